#!/usr/bin/env python3
"""Compares settings of the Ethernet devices, in turns between two nodes of a lab: throughput,
segments that came out of order, latency, and what the daemon's loops cost. Needs root.

    bench/devices.py                                    which queue a packet goes to
    bench/devices.py ether.coalesce=0 ether.coalesce=125
    bench/devices.py ether.loops=1 ether.loops=2,ether.queues=2
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

from compare import find_weft
from ethernet import inside, listens
from fabric import CORES
from measure import client, need

STEERINGS = ("flow", "processor", "round-robin")
SEVERAL = "ether.queues=2,ether.loops=2,ether.steering="
SECONDS = 2
ADDRESS = "10.77.0.2"


def variables(settings: str) -> dict:
    """The variables for `name=value,name=value`."""
    pairs = (setting.split("=", 1) for setting in settings.split(",") if setting)
    return {f"WEFT_{name.upper().replace('.', '_')}": value for name, value in pairs}


@contextmanager
def lab(weft: Path, settings: str):
    """A lab of two nodes under `settings`; the process that serves its devices."""
    environment = {name: value for name, value in os.environ.items() if name[:5] != "WEFT_"}
    environment.update(variables(settings))

    def call(*arguments: str) -> str:
        pipe = subprocess.PIPE
        command = [str(weft), *arguments]
        done = subprocess.run(command, env=environment, stdout=pipe, stderr=pipe, text=True)
        if done.returncode != 0:
            raise RuntimeError(done.stderr.strip())
        return done.stdout

    call("lab", "up", "--nodes", "2")
    try:
        # Where the machine's default paces, a timer per packet is what would be measured.
        for node in (0, 1):
            reno = ["sysctl", "-qw", "net.ipv4.tcp_congestion_control=reno"]
            subprocess.run(inside(node, reno), check=True)
        yield json.loads(call("status", "--node", "lab", "--json"))["pid"]
    finally:
        call("lab", "down")


@contextmanager
def serves(command: list, port: int, protocol: str = "tcp"):
    """A server on node 1 that listens, until the block is left."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(inside(1, command), **quiet) as process:
        try:
            deadline = time.monotonic() + 10
            while not listens(process, port, protocol):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{' '.join(command)} does not listen")
                time.sleep(0.01)
            yield
        finally:
            process.kill()


def busy(pid: int) -> float:
    """Seconds of processor time."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def out_of_order() -> int:
    """Segments that came to node 1 before others that were sent before them."""
    lines = client(inside(1, ["cat", "/proc/net/netstat"])).splitlines()
    names, values = (line.split() for line in lines if line.startswith("TcpExt:"))
    return int(dict(zip(names, values))["TCPOFOQueue"])


# Of many datagrams one is answered now and then.
EVENLY = ["under-load", "--reply-every", "100"]


def streams(daemon: int, count: int, apart: bool = False) -> dict:
    """Streams of TCP; `apart`: with its ends on different processors."""
    port, program = 5201, need("iperf3")
    ask = [program, "-c", ADDRESS, "-P", str(count), "-t", str(SECONDS), "-J"]
    on = [["taskset", "-c", str(CORES[end])] if apart else [] for end in (0, -1)]
    with serves([*on[1], program, "-s", "-1"], port):
        used, before = busy(daemon), out_of_order()
        printed = json.loads(client(inside(0, [*on[0], *ask])))
        used, early = busy(daemon) - used, out_of_order() - before
    rate = printed["end"]["sum_received"]["bits_per_second"] / 1e9
    return {"Gbit/s": rate, "CPU %": 100 * used / SECONDS, "early/s": early / SECONDS}


def latency(daemon: int, way: list) -> dict:
    """One way, of datagrams."""
    port, program = 11111, need("sockperf")
    at = ["-i", ADDRESS, "-p", str(port)]
    ask = [program, *way, *at, "-t", str(SECONDS)]
    with serves([program, "server", *at], port, "udp"):
        used = busy(daemon)
        printed = client(inside(0, ask))
        used = busy(daemon) - used
    found = {part: re.search(rf"{part}\s*=\s*([0-9.]+)", printed) for part in ("50.000", "99.000")}
    figures = {f"p{part[:2]} us": float(match.group(1)) for part, match in found.items()}
    return {**figures, "CPU %": 100 * used / SECONDS}


def requests(daemon: int, clients: int) -> dict:
    port = 6399
    serve = [need("redis-server"), "--port", str(port), "--save", "", "--protected-mode", "no"]
    ask = [need("redis-benchmark"), "-h", ADDRESS, "-p", str(port), "-c", str(clients), "--csv"]
    ask += ["-t", "get", "-n", str(20_000 if clients == 1 else 100_000)]
    with serves(serve, port):
        used, begin = busy(daemon), time.monotonic()
        printed = client(inside(0, ask))
        used = (busy(daemon) - used) / (time.monotonic() - begin)
    rate = float(printed.strip().splitlines()[-1].split(",")[1].strip('"'))
    return {"1000/s": rate / 1000, "CPU %": 100 * used}


CASES = {
    "1 stream": lambda daemon: streams(daemon, 1),
    "1 stream, pinned": lambda daemon: streams(daemon, 1, apart=True),
    "8 streams": lambda daemon: streams(daemon, 8),
    "ping-pong": lambda daemon: latency(daemon, ["ping-pong", "-m", "64"]),
    "20,000 datagrams/s": lambda daemon: latency(daemon, [*EVENLY, "--mps", "20000", "-m", "1400"]),
    "redis -c 1": lambda daemon: requests(daemon, 1),
    "redis -c 50": lambda daemon: requests(daemon, 50),
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("settings", metavar="NAME=VALUE[,NAME=VALUE]", nargs="*")
    parser.add_argument("--runs", metavar="N", type=int, default=3, help="default: 3")
    parser.add_argument("--case", choices=CASES, action="append", help="default: all")
    parser.add_argument("--weft", metavar="PATH", help="the command; default: build it")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("a lab needs root")
    weft = find_weft(arguments.weft)
    all_settings = arguments.settings or ["", *(SEVERAL + steering for steering in STEERINGS)]
    cases = {name: CASES[name] for name in arguments.case or CASES}
    figures = {}
    for run in range(arguments.runs):
        # They begin in turns, so that neither always finds the machine as the other left it.
        for settings in all_settings[:: -1 if run % 2 else 1]:
            with lab(weft, settings) as daemon:
                for name, case in cases.items():
                    print(f"run {run + 1}, {settings or 'default'}: {name}", file=sys.stderr)
                    for unit, figure in case(daemon).items():
                        figures.setdefault((name, settings, unit), []).append(figure)
    for name in cases:
        print(name)
        for settings in all_settings:
            medians = (
                f"{statistics.median(found):10.3g} {unit}"
                for (case, of, unit), found in figures.items()
                if (case, of) == (name, settings)
            )
            print(f"  {settings or 'default':60}" + "".join(medians))
    return 0


if __name__ == "__main__":
    sys.exit(main())
