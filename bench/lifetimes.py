#!/usr/bin/env python3
"""How fast connections are that live for so many bytes, over kernel TCP and under weft.

For each size and direction, with a reply and without, the two are measured in turns; the ratio is
the median of the turns' ratios, beside the interval that holds the true median in 95 of 100 such
measurements. Turns go on until that interval is narrow, or there were as many as allowed. Servers
stay the same for all turns, so that they know by then how long their connections live. apache2 and
nginx with ab and wrk (Debian's) are measured the same way, without keep-alive.

    bench/lifetimes.py                   everything, as a table
    bench/lifetimes.py --turns 101 --width 0.02    narrower intervals
    bench/lifetimes.py --only down       rows whose name contains the word
    bench/lifetimes.py --json            for scripts
"""

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from measure import compare

ROOT = Path(__file__).resolve().parent.parent
SIZES = [1 << 10, 14 << 10, 100 << 10, 1 << 20, 10 << 20, 100 << 20, 1 << 30]
SECONDS = 0.3
APACHE = """
ServerRoot %(place)s
Listen 127.0.0.1:%(port)d
LoadModule mpm_event_module /usr/lib/apache2/modules/mod_mpm_event.so
LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so
User www-data
PidFile %(place)s/httpd.%(port)d.pid
DocumentRoot %(place)s/files
ErrorLog %(place)s/error.log
ServerName here
"""
NGINX = """
daemon off;
worker_processes 2;
pid %(place)s/nginx.%(port)d.pid;
error_log %(place)s/nginx.log;
events {}
http {
    access_log off;
    sendfile on;
    server { listen 127.0.0.1:%(port)d; root %(place)s/files; }
}
"""
SERVERS = {
    "apache2": (APACHE, ("-DFOREGROUND", "-f", "%(file)s")),
    "nginx": (NGINX, ("-p", "%(place)s", "-c", "%(file)s")),
}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def await_port(port, process):
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            time.sleep(0.01)
    sys.exit(f"the server at port {port} did not start")


def name_of(size):
    for unit, bytes_ in (("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10)):
        if size >= bytes_:
            return f"{size // bytes_} {unit}"
    return f"{size} B"


class Bench:
    def __init__(self, weft, place):
        self.weft, self.place = weft, place
        self.environment = {**os.environ, "WEFT_DAEMON_SOCKET": str(place / "n.sock")}
        self.running = []

    def under(self, is_weft):
        return [str(self.weft), "run", "--"] if is_weft else []

    def start(self, command, port, is_weft):
        process = subprocess.Popen(
            self.under(is_weft) + command,
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.running.append(process)
        await_port(port, process)

    def run(self, command, is_weft):
        done = subprocess.run(
            self.under(is_weft) + command,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=120,
            check=True,
        )
        return done.stdout.decode()

    def end(self):
        for process in self.running:
            # In order, so that a server ends its workers.
            process.terminate()
            process.wait(timeout=20)
        subprocess.run([str(self.weft), "down"], env=self.environment, stderr=subprocess.DEVNULL)

    def compare(self, measure, patience):
        """The medians of both, and the ratio's with its interval."""
        count = [measure(is_weft, None) for is_weft in (False, True)][0]
        sides = (partial(measure, is_weft, count) for is_weft in (False, True))
        row = compare(*sides, patience)
        return {"tcp": row.pop("one"), "weft": row.pop("other"), **row}


def sockets(bench, only, patience):
    program = bench.place / "lifetimes"
    source = ROOT / "bench/lifetimes.c"
    subprocess.run(["gcc", "-O2", "-pthread", "-o", program, source], check=True)
    ports = [free_port() for _ in range(2)]
    for is_weft, port in enumerate(ports):
        bench.start([str(program), "server", str(port)], port, bool(is_weft))
    for size in SIZES:
        for way in ("up", "down"):
            for reply in (0, 1):
                name = f"{name_of(size)} {way}{' with reply' if reply else ''}"
                if only and not any(word in name for word in only):
                    continue

                def measure(is_weft, count):
                    words = ["client", str(ports[is_weft]), way, str(size), str(reply)]
                    command = [str(program), *words]
                    if count is None:
                        rate = float(bench.run([*command, "3"], is_weft))
                        return max(1, min(5000, int(rate * SECONDS)))
                    return float(bench.run([*command, str(count)], is_weft))

                yield name, bench.compare(measure, patience)


def ab(bench, is_weft, url, count):
    """Requests a second, of `count` of them."""
    printed = bench.run(["ab", "-q", "-c", "4", "-n", str(count or 20), url], is_weft)
    words = [line.split() for line in printed.splitlines()]
    failed = [line[2] for line in words if line[:2] == ["Failed", "requests:"]]
    if failed != ["0"]:
        sys.exit(f"{url}: {failed} requests failed")
    rate = next(float(line[3]) for line in words if line[:1] == ["Requests"])
    return max(8, int(rate * SECONDS)) if count is None else rate


def wrk(bench, is_weft, url, _count):
    """Requests a second, for a second."""
    words = ["wrk", "-t1", "-c4", "-d1s", "-H", "Connection: close", url]
    printed = bench.run(words, is_weft)
    # wrk counts the server's end of a connection as an error of reading, and is told so here alone.
    if "Non-2xx" in printed:
        sys.exit(f"{url}: {printed}")
    return float(printed.split("Requests/sec:")[1].split()[0])


def web(bench, only, patience):
    """apache2 and nginx, asked by ab and wrk without keep-alive."""
    files = bench.place / "files"
    files.mkdir()
    sizes = SIZES[:5]
    for size in sizes:
        (files / str(size)).write_bytes(os.urandom(size))
    bench.place.chmod(0o755)
    for server, (text, command) in SERVERS.items():
        if not shutil.which(server):
            print(f"{server} is not installed: not measured", file=sys.stderr)
            continue
        ports = [free_port() for _ in range(2)]
        for is_weft, port in enumerate(ports):
            configuration = bench.place / f"{server}.{port}.conf"
            configuration.write_text(text % {"place": bench.place, "port": port})
            words = [word % {"place": bench.place, "file": configuration} for word in command]
            bench.start([server, *words], port, bool(is_weft))
        for client in (ab, wrk):
            if not shutil.which(client.__name__):
                print(f"{client.__name__} is not installed: not measured", file=sys.stderr)
                continue
            for size in sizes:
                name = f"{server}, {client.__name__} -c 4, {name_of(size)}"
                if only and not any(word in name for word in only):
                    continue

                def measure(is_weft, count):
                    url = f"http://127.0.0.1:{ports[is_weft]}/{size}"
                    return client(bench, is_weft, url, count)

                yield name, bench.compare(measure, patience)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=41, help="how often each is measured at most")
    parser.add_argument("--width", type=float, default=0.04, help="how wide an interval is enough")
    parser.add_argument("--only", metavar="WORD", action="append", help="rows named so")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--weft", type=Path, default=ROOT / "target/release/weft")
    arguments = parser.parse_args()
    if not arguments.weft.exists():
        sys.exit(f"{arguments.weft} is not built: cargo build --release -p weft-cli -p weft-preload")
    rows = {}
    with tempfile.TemporaryDirectory(prefix="weft-lifetimes-") as place:
        bench = Bench(arguments.weft.resolve(), Path(place))
        try:
            for part in (sockets, web):
                for name, row in part(bench, arguments.only, arguments):
                    rows[name] = row
                    if not arguments.json:
                        print(
                            f"{name:<28} {row['tcp']:>10.1f}/s {row['weft']:>10.1f}/s"
                            f" {row['ratio']:>7.3f}  ({row['low']:.3f} to {row['high']:.3f})"
                            f" {row['turns']:>4} turns",
                            flush=True,
                        )
        finally:
            bench.end()
    if arguments.json:
        print(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
