#!/usr/bin/env python3
"""How fast connections are that live for so many bytes, over kernel TCP and under weft.

For each size and direction, with a reply and without, the two are measured in turns; the ratio is the
median of the turns' ratios, beside its quartiles. Servers stay the same for all turns, so that they
know by then how long their connections live. apache2 with ab (Debian's) is measured the same way.

    bench/lifetimes.py                   everything, as a table
    bench/lifetimes.py --turns 21        narrower intervals
    bench/lifetimes.py --only down       rows whose name contains the word
    bench/lifetimes.py --json            for scripts
"""

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SIZES = [1 << 10, 14 << 10, 100 << 10, 1 << 20, 10 << 20, 100 << 20, 1 << 30]
SECONDS = 0.3
HTTPD = """
ServerRoot {place}
Listen 127.0.0.1:{port}
LoadModule mpm_event_module /usr/lib/apache2/modules/mod_mpm_event.so
LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so
User {user}
PidFile {place}/httpd.{port}.pid
DocumentRoot {place}/files
ErrorLog {place}/error.log
ServerName here
"""


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

    def compare(self, measure, turns):
        """The medians of both, and the ratio's quartiles."""
        count = [measure(is_weft, None) for is_weft in (False, True)][0]
        pairs = []
        for turn in range(turns):
            order = (False, True) if turn % 2 else (True, False)
            figures = {is_weft: measure(is_weft, count) for is_weft in order}
            pairs.append((figures[False], figures[True]))
        ratios = [weft / tcp for tcp, weft in pairs]
        tcp, weft = (statistics.median(pair[side] for pair in pairs) for side in (0, 1))
        low, middle, high = statistics.quantiles(ratios, n=4) if turns > 1 else ratios * 3
        return {"tcp": tcp, "weft": weft, "ratio": middle, "low": low, "high": high}


def sockets(bench, only, turns):
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

                yield name, bench.compare(measure, turns)


def apache(bench, only, turns):
    if not (shutil.which("apache2") and shutil.which("ab")):
        print("apache2 and ab are not installed: not measured", file=sys.stderr)
        return
    files = bench.place / "files"
    files.mkdir()
    sizes = SIZES[:5]
    for size in sizes:
        (files / str(size)).write_bytes(os.urandom(size))
    bench.place.chmod(0o755)
    ports = [free_port() for _ in range(2)]
    for is_weft, port in enumerate(ports):
        text = HTTPD.format(place=bench.place, port=port, user="www-data")
        configuration = bench.place / f"httpd.{port}.conf"
        configuration.write_text(text)
        bench.start(["apache2", "-DFOREGROUND", "-f", str(configuration)], port, bool(is_weft))
    for size in sizes:
        name = f"apache2, ab -c 4, {name_of(size)}"
        if only and not any(word in name for word in only):
            continue

        def measure(is_weft, count):
            url = f"http://127.0.0.1:{ports[is_weft]}/{size}"
            many = ["-n", str(count or 20)]
            printed = bench.run(["ab", "-q", "-c", "4", *many, url], is_weft)
            words = [line.split() for line in printed.splitlines()]
            failed = [line[2] for line in words if line[:2] == ["Failed", "requests:"]]
            if failed != ["0"]:
                sys.exit(f"{name}: {failed} requests failed")
            rate = next(float(line[3]) for line in words if line[:1] == ["Requests"])
            return max(8, int(rate * SECONDS)) if count is None else rate

        yield name, bench.compare(measure, turns)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=7, help="how often each is measured")
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
            for part in (sockets, apache):
                for name, row in part(bench, arguments.only, arguments.turns):
                    rows[name] = row
                    if not arguments.json:
                        print(
                            f"{name:<28} {row['tcp']:>10.1f}/s {row['weft']:>10.1f}/s"
                            f" {row['ratio']:>7.3f}  ({row['low']:.3f} to {row['high']:.3f})",
                            flush=True,
                        )
        finally:
            bench.end()
    if arguments.json:
        print(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
