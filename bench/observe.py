"""The cost of looking: the same measurements while nobody looks at the daemon, and while its metrics
are read each second, its dashboard is open and `weft top` follows it, in turns.

    bench/observe.py [--runs N] [--weft PATH] [--json]

It needs root for the frames of Ethernet devices, which it leaves out without.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Optional

import ethernet
from fabric import Weft
from measure import Missing, Server, client, free_port, need

# The program, and the bar of each figure: looking may cost 3 %.
BAR = 0.97
IDLE_CONNECTIONS = 100
IDLE_SECONDS = 20


class Looking:
    """Who looks at a node, until the block is left: `weft top`, a client of the dashboard's stream,
    and one that reads the metrics where they are served."""

    def __init__(self, weft: Path, env: dict, dash: str, metrics: Optional[str] = None):
        self.top, self.env = [str(weft), "top", "--json"], env
        self.dash, self.metrics = dash, metrics

    def scrape(self) -> None:
        while not self.ended.wait(1):
            self.read += len(urllib.request.urlopen(f"{self.metrics}/metrics").read())

    def follow(self) -> None:
        with stream_of(self.dash) as stream:
            while not self.ended.is_set():
                self.read += len(stream.readline())

    def __enter__(self):
        self.ended, self.read = threading.Event(), 0
        self.program = subprocess.Popen(self.top, env=self.env, stdout=subprocess.DEVNULL)
        clients = [self.follow] + ([self.scrape] if self.metrics else [])
        self.threads = [threading.Thread(target=one) for one in clients]
        for thread in self.threads:
            thread.start()
        time.sleep(1.5)
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.program.kill()
        self.program.wait()
        for thread in self.threads:
            thread.join()
        if self.read == 0:
            raise RuntimeError("the views showed nothing")


def stream_of(dash: str):
    """The numbers of a dashboard as its page gets them, a line each half second."""
    place, _, token = dash.partition("#token=")
    request = urllib.request.Request(f"{place.rstrip('/')}/stream")
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    return urllib.request.urlopen(request, timeout=10)


class Node:
    """A daemon whose metrics and dashboard are served."""

    def __init__(self, weft: Path):
        self.weft = weft
        self.directory = tempfile.mkdtemp(prefix="weft-bench-")
        metrics, dash = (f"127.0.0.1:{free_port()}" for _ in range(2))
        self.metrics, self.dash = f"http://{metrics}", f"http://{dash}"
        own = {name: value for name, value in os.environ.items() if name[:5] != "WEFT_"}
        self.env = {**own, "WEFT_DAEMON_SOCKET": f"{self.directory}/weft.sock"}
        listen = ["--metrics-listen", metrics, "--dash-listen", dash]
        self.daemon = subprocess.Popen(
            [str(weft), "daemon", *listen], env=self.env, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 10
        while subprocess.run([str(weft), "status"], env=self.env, capture_output=True).returncode:
            if time.monotonic() > deadline:
                raise RuntimeError("the daemon does not answer")
            time.sleep(0.1)

    def looking(self) -> Looking:
        return Looking(self.weft, self.env, self.dash, self.metrics)

    def end(self) -> None:
        self.daemon.terminate()
        self.daemon.wait()
        shutil.rmtree(self.directory)


def perf(node: Node, test: str) -> float:
    command = [str(node.weft), "perf", test, "--json", "--runs", "1"]
    return json.loads(client(command, node.env))["median"]


def stream(node: Node) -> float:
    """GB/s of iperf3 over direct sockets."""
    program, port = need("iperf3"), str(free_port())
    under = [str(node.weft), "run", "--", program]
    with Server([*under, "-s", "-p", port], int(port), node.env):
        printed = client([*under, "-c", "127.0.0.1", "-p", port, "-t", "2", "-J"], node.env)
    return json.loads(printed)["end"]["sum_received"]["bits_per_second"] / 8e9


def sockets(node: Node) -> float:
    """One-way time of 64 bytes of sockperf over direct sockets, microseconds."""
    program, port = need("sockperf"), str(free_port())
    under = [str(node.weft), "run", "--", program]
    at = ["--tcp", "-i", "127.0.0.1", "-p", port]
    with Server([*under, "server", *at], int(port), node.env):
        # Its default is 600,000 messages per second at most, which weft is beyond: it would stop.
        often = ["-t", "2", "--mps=3000000"]
        printed = client([*under, "ping-pong", *at, "-m", "64", *often], node.env)
    return float(printed.split("Latency is ")[1].split()[0])


def idle(node: Node) -> float:
    """The share of a core that the daemon takes for 100 idle connections and one dashboard."""
    program = (
        "import socket, sys, time\n"
        "server = socket.create_server(('127.0.0.1', 0), backlog=200)\n"
        f"pairs = [(socket.create_connection(server.getsockname()), server.accept()[0])"
        f" for _ in range({IDLE_CONNECTIONS})]\n"
        "for near, far in pairs:\n"
        "    for _ in range(20):\n"
        "        near.send(b'x'); far.recv(1); far.send(b'y'); near.recv(1)\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [str(node.weft), "run", "--", sys.executable, "-c", program]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}

    def ticks() -> int:
        fields = Path(f"/proc/{node.daemon.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])

    with subprocess.Popen(command, env=node.env, **pipes) as running:
        running.stdout.readline()
        told = client([str(node.weft), "status", "--json"], node.env)
        if len(json.loads(told)["connections"]) < IDLE_CONNECTIONS:
            raise RuntimeError("the connections are not on the fabric")
        with stream_of(node.dash) as stream:
            end, before = time.monotonic() + IDLE_SECONDS, ticks()
            while time.monotonic() < end:
                stream.readline()
            used = (ticks() - before) / os.sysconf("SC_CLK_TCK")
        running.stdin.close()
    return used / IDLE_SECONDS


class Lab:
    """The lab's daemon, whose dashboard `weft dash` serves."""

    def __init__(self, weft: Path):
        ethernet.lab(weft)
        own = {name: value for name, value in os.environ.items() if name[:5] != "WEFT_"}
        self.weft, self.env = weft, {**own, "WEFT_NODE": "lab"}
        command = [str(weft), "dash", "--no-open"]
        self.served = subprocess.Popen(command, env=self.env, stdout=subprocess.PIPE, text=True)
        words = self.served.stdout.readline().split()
        self.dash = next(word for word in words if word.startswith("http://"))

    def looking(self) -> Looking:
        return Looking(self.weft, self.env, self.dash)

    def end(self) -> None:
        self.served.kill()
        self.served.wait()


def compared(name: str, unit: str, is_least: bool, measure, looking, runs: int) -> dict:
    pairs = []
    for turn in range(runs):
        def looked_at() -> float:
            with looking():
                return measure()

        sides = {"off": measure, "on": looked_at}
        order = ["off", "on"] if turn % 2 == 0 else ["on", "off"]
        figures = {side: sides[side]() for side in order}
        pairs.append((figures["off"], figures["on"]))
    ratios = [off / on if is_least else on / off for off, on in pairs]
    medians = [statistics.median(pair[side] for pair in pairs) for side in (0, 1)]
    ratio = statistics.median(ratios)
    return {
        "name": name,
        "unit": unit,
        "nobody": medians[0],
        "all": medians[1],
        "ratio": ratio,
        "held": ratio >= BAR,
    }


def measure(weft: Path, runs: int) -> tuple:
    rows = []
    node = Node(weft)
    try:
        for name, unit, is_least, one in (
            ("messages of 8 bytes", "M/s", False, lambda: perf(node, "rate") / 1e6),
            ("latency of 8 bytes", "us", True, lambda: perf(node, "latency")),
            ("sockperf, 64 bytes", "us", True, lambda: sockets(node)),
            ("iperf3", "GB/s", False, lambda: stream(node)),
        ):
            rows.append(compared(name, unit, is_least, one, node.looking, runs))
        share = idle(node)
    finally:
        node.end()
    try:
        lab = Lab(weft)
    except Missing as why:
        print(f"frames: skipped, {why}", file=sys.stderr)
        return rows, share
    try:
        own, way = Weft(weft), ethernet.FABRIC
        for name, unit, is_least, one in (
            ("frames of 1500 bytes", "GB/s", False, lambda: ethernet.stream(own, way, 1500)),
            ("frames of 64 bytes", "us", True, lambda: ethernet.latency(own, way)),
        ):
            rows.append(compared(name, unit, is_least, one, lab.looking, runs))
    finally:
        lab.end()
    return rows, share


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--runs", type=int, default=7, help="turns of each figure [default: 7]")
    parser.add_argument("--weft", type=Path, default=Path("target/release/weft"))
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    rows, share = measure(asked.weft.absolute(), asked.runs)
    if asked.json:
        print(json.dumps({"rows": rows, "idle_share": share}))
        return
    print(f"{'':<24}{'nobody looks':>14}{'all views':>12}{'ratio':>8}")
    for row in rows:
        held = "" if row["held"] else f"  below {BAR}"
        figures = f"{row['nobody']:>14.3f}{row['all']:>12.3f}{row['ratio']:>8.3f}"
        print(f"{row['name']:<24}{figures}  {row['unit']}{held}")
    print(f"{IDLE_CONNECTIONS} idle connections, a dashboard open: {share:.2%} of a core")


if __name__ == "__main__":
    main()
