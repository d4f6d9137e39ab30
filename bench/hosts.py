"""A direct socket between two hosts beside plain TCP, both ways in turns: bench/hosts.py WEFT.

The hosts are network namespaces with a cable between them, each with a daemon. Needs root.
"""

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).parent
# Name, the words of the client, and whether more is better.
TESTS = {
    "64 B, hot": (("turns", "64", "4000", "0"), False),
    "64 B, both asleep": (("turns", "64", "300", "2000"), False),
    "4 KiB, hot": (("turns", "2048", "1000", "0"), False),
    "bulk": (("bulk", os.environ.get("MB", "1024")), True),
}
WAYS = ("never", "always")


def sh(text):
    subprocess.run(["sh", "-euc", text], check=True)


class Host:
    """Number 1 or 2, with the address 10.9.0.1 or 10.9.0.2."""

    def __init__(self, number, weft, directory, provider, real_time):
        self.number, self.weft, self.home = number, weft, directory / f"host{number}"
        self.real_time = real_time
        self.home.mkdir()
        n = number
        sh(f"ip -n host{n} link set lo up; ip -n host{n} address add 10.9.0.{n}/24 dev cable{n};"
           f"ip -n host{n} link set cable{n} up")
        self.environment = {**os.environ, "WEFT_DAEMON_SOCKET": str(self.home / "n.sock"),
                            "XDG_CONFIG_HOME": str(self.home)}
        if provider:
            self.environment["WEFT_FABRIC_PROVIDER"] = provider
        seeds = () if number == 1 else ("--fabric-seeds", "10.9.0.1:7700")
        self.daemon = self.start(weft, "daemon", "--fabric-key", str(directory / "key"),
                                 "--fabric-listen", f"10.9.0.{n}:7700", *seeds)

    def start(self, *command, **how):
        how.setdefault("env", self.environment)
        return subprocess.Popen(("ip", "netns", "exec", f"host{self.number}", *command),
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **how)

    def under(self, way, *command):
        environment = {**self.environment, "WEFT_SOCKET_BETWEEN_HOSTS": way}
        first = ("chrt", "-f", "5") if self.real_time else ()
        return self.start(*first, self.weft, "run", "--stats", "--", *command, env=environment)

    def is_joined(self):
        told = self.start(self.weft, "fabric", "nodes", "--json").communicate()[0]
        try:
            return "up" in {node["state"] for node in json.loads(told)["nodes"]}
        except ValueError:
            return False


def measure(one, two, program, words, way, port):
    server = two.under(way, program, "serve", str(port))
    try:
        for _ in range(200):
            test, *rest = words
            client = one.under(way, program, test, "10.9.0.2", str(port), *rest)
            told = client.communicate(timeout=300)[0]
            if client.returncode == 0:
                break
            time.sleep(0.05)
        else:
            raise SystemExit(told)
        first = re.search(r"^([\d.]+)(?: [\d.]+)?$", told, re.MULTILINE)
        over = re.search(r"^fabric +\d+ +(\S+ \S+)", told, re.MULTILINE)
        return float(first.group(1)), over.group(1) if over else "nothing"
    finally:
        server.terminate()
        server.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("weft", type=pathlib.Path)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--provider", default="tcp;ofi_rxm")
    parser.add_argument("--only", action="append", choices=TESTS)
    parser.add_argument("--real-time", action="store_true",
                        help="for a machine that others use: the programs go first")
    parser.add_argument("--ways", default=",".join(WAYS))
    options = parser.parse_args()
    if os.environ.get("HOSTS_BENCH_INSIDE") is None:
        os.execvp("unshare", ["unshare", "--mount", "--propagation", "private", "--net", "sh", "-c",
                              "mount -t tmpfs tmpfs /run; export HOSTS_BENCH_INSIDE=1; exec \"$@\"", "sh",
                              "python3", __file__, *sys.argv[1:]])
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        program = str(directory / "hosts")
        subprocess.run(["cc", "-O2", "-o", program, HERE / "hosts.c"], check=True)
        sh("ip netns add host1; ip netns add host2;"
           "ip link add cable1 netns host1 type veth peer name cable2 netns host2")
        key = subprocess.run([options.weft, "fabric", "key"], check=True, capture_output=True).stdout
        with open(os.open(directory / "key", os.O_CREAT | os.O_WRONLY, 0o600), "wb") as file:
            file.write(key)
        weft = options.weft.resolve()
        both = [Host(n, weft, directory, options.provider, options.real_time) for n in (1, 2)]
        try:
            end = time.monotonic() + 30
            while not all(host.is_joined() for host in both):
                assert time.monotonic() < end, "the daemons do not find each other"
                time.sleep(0.1)
            ways, port = options.ways.split(","), 9000
            for name in options.only or TESTS:
                words, more_is_better = TESTS[name]
                got = {way: [] for way in ways}
                over = {}
                for _ in range(options.turns):
                    for way in ways:
                        port += 1
                        value, over[way] = measure(*both, program, words, way, port)
                        got[way].append(value)
                middle = {way: statistics.median(values) for way, values in got.items()}
                print(name, {way: [round(v, 1) for v in values] for way, values in got.items()},
                      "over the fabric:", over, flush=True)
                for way in ways[1:]:
                    # Of turns, not of medians: the machine may change its pace amid a run.
                    ratio = statistics.median(a / b for a, b in zip(got[way], got[ways[0]]))
                    unit = "MB/s" if more_is_better else "us"
                    print(f"  {way} {middle[way]:.1f} {unit}, {ways[0]} {middle[ways[0]]:.1f} {unit}, "
                          f"median of the turns' ratios {ratio:.3f}", flush=True)
        finally:
            for host in both:
                host.daemon.terminate()
                host.daemon.wait()


main()
