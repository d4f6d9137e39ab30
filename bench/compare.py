#!/usr/bin/env python3
"""Measures weft beside UCX and kernel TCP on this machine, and says which bars it reaches.

Everything is measured in one run, the two sides of a bar in turns, five times; a bar is judged by
the median of the turns' ratios, since wall times of two machines, or of one machine at two times,
say nothing. A virtual machine's cores may move closer together or further apart at any moment, by which
a cache line takes three to six times as long between them: where that decides, a turn counts only
if a raw line took as long before, between and after the two sides; others are repeated. Peers are Debian's ucx-utils, sockperf, iperf3 and redis: --peers installs them.

    bench/compare.py --peers            everything, as a table
    bench/compare.py --only latency     bars whose name contains the word
    bench/compare.py --json             for scripts
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Optional

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ["ucx-utils", "libfabric-bin", "iperf3", "sockperf", "redis"]
RUNS = 5
# A raw cache line is as fast as before when its time is within this factor.
LINE_STEADY = 1.25
REPEATED_MAX = 60
UCX = {"UCX_TLS": "posix,cma", "UCX_WARN_UNUSED_ENV_VARS": "n"}
CORES = sorted(os.sched_getaffinity(0))
# UCX counts a megabyte as 2**20 bytes, weft a gigabyte as 10**9.
GIGABYTES_PER_UCX_MEGABYTE = 2**20 / 1e9


class Missing(Exception):
    """Something that a bar needs is not there."""


# --- processes -----------------------------------------------------------------------------------


def need(program: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise Missing(f"{program} is not installed; call this with --peers")
    return path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def listens(port: int) -> bool:
    """Asks the kernel, so that no server sees a connection that is not the client's."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[1].endswith(f":{port:04X}") and fields[3] == "0A":
                return True
    return False


class Server:
    """A server process that is gone when the block is left."""

    def __init__(self, command: list, port: int, env: Optional[dict] = None):
        self.command, self.port = command, port
        self.env = {**os.environ, **(env or {})}

    def __enter__(self):
        self.process = subprocess.Popen(
            self.command,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 10
        while not listens(self.port):
            if self.process.poll() is not None:
                raise RuntimeError(f"{' '.join(self.command)} ended before it listened")
            if time.monotonic() > deadline:
                self.__exit__()
                raise RuntimeError(f"{' '.join(self.command)} does not listen")
            time.sleep(0.01)
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(2)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def client(command: list, env: Optional[dict] = None, within: float = 60) -> str:
    done = subprocess.run(
        command,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=within,
        check=False,
    )
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["it said nothing"]
        raise RuntimeError(f"{' '.join(command)}: {lines[-1]}")
    return done.stdout


# --- the two sides of the fabric -----------------------------------------------------------------


@dataclass
class Weft:
    """The command under test."""

    path: Path

    def perf(self, test: str, size: Optional[int] = None) -> dict:
        # One run each: the turns of this script are the repetitions.
        command = [str(self.path), "perf", test, "--json", "--runs", "1"]
        if size is not None and test not in ("atomic", "cacheline"):
            command += ["--size", str(size)]
        return json.loads(client(command))

    def main(self, test: str, size: Optional[int] = None) -> float:
        return self.perf(test, size)["median"]

    def single(self, test: str, size: int) -> float:
        return self.perf(test, size)["latency"]["median"]

    def crowd(self, pairs: int) -> float:
        """The worst p99 latency of several pairs at once, microseconds."""
        command = [str(self.path), "perf", "latency", "--json", "--runs", "1", "--unpinned"]
        crowd = [
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for _ in range(pairs)
        ]
        worst = 0.0
        for member in crowd:
            output, errors = member.communicate(timeout=120)
            if member.returncode != 0:
                raise RuntimeError(errors.strip())
            worst = max(worst, json.loads(output)["p99"])
        return worst

    def under(self, command: list) -> list:
        return [str(self.path), "run", "--", *command]


@dataclass
class Ucx:
    """One line of figures of ucx_perftest."""

    latency_us: float
    gigabytes: float
    rate: float


def ucx(test: str, size: int, iterations: int, *extra: str) -> Ucx:
    program, port = need("ucx_perftest"), free_port()
    # UCT tests name their transport themselves.
    env = {} if "-x" in extra else UCX
    near, far = str(CORES[0]), str(CORES[-1])
    with Server([program, "-c", far, "-p", str(port)], port, env):
        command = [program, "127.0.0.1", "-c", near, "-p", str(port), "-f", "-t", test]
        command += ["-s", str(size), "-n", str(iterations), *extra]
        lines = client(command, env).splitlines()
    figures = [float(word) for word in lines[-1].split()]
    # Iterations; median, average and overall time; average and overall bandwidth, then rate.
    return Ucx(figures[3], figures[5] * GIGABYTES_PER_UCX_MEGABYTE, figures[7])


# --- the two sides of sockets --------------------------------------------------------------------


def sockperf(wrap: Callable[[list], list]) -> float:
    """One-way latency of 64 bytes, microseconds."""
    program, port = need("sockperf"), free_port()
    place = ["--tcp", "-i", "127.0.0.1", "-p", str(port)]
    with Server(wrap([program, "server", *place]), port):
        # Its default is 600,000 messages per second at most, which weft is beyond: it would stop.
        command = [program, "ping-pong", *place, "-m", "64", "-t", "2", "--mps=3000000"]
        printed = client(wrap(command))
    return float(printed.split("Latency is ")[1].split()[0])


def iperf(wrap: Callable[[list], list]) -> float:
    """Bandwidth of one stream, GB/s."""
    program, port = need("iperf3"), free_port()
    with Server(wrap([program, "-s", "-B", "127.0.0.1", "-p", str(port)]), port):
        printed = client(wrap([program, "-c", "127.0.0.1", "-p", str(port), "-t", "3", "-J"]))
    return json.loads(printed)["end"]["sum_received"]["bits_per_second"] / 8e9


def redis(wrap: Callable[[list], list], what: str) -> float:
    """Requests per second of one client."""
    server, benchmark, port = need("redis-server"), need("redis-benchmark"), free_port()
    place = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    with Server(wrap([server, *place]), port):
        command = [benchmark, "-p", str(port), "-t", what, "-c", "1", "-n", "100000", "--csv"]
        printed = client(wrap(command))
    line = next(line for line in printed.splitlines() if line.startswith(f'"{what.upper()}"'))
    return float(line.split(",")[1].strip('"'))


# --- bars ----------------------------------------------------------------------------------------


@dataclass
class Bar:
    """What is compared: weft's figure over the peer's, with a bound from above or below.

    Without a peer the figure itself is bounded.
    """

    name: str
    unit: str
    weft: Callable[[], float]
    peer: Optional[Callable[[], float]]
    bound: float
    is_most: bool
    # How long a raw cache line takes, where the bar depends on it.
    line: Optional[Callable[[], float]] = None
    weft_figures: list = field(default_factory=list)
    peer_figures: list = field(default_factory=list)
    problem: Optional[str] = None
    repeated: int = 0

    def turn(self, reverse: bool) -> bool:
        """One turn of each side; false, and no figure, when the machine changed meanwhile."""
        sides = [(self.weft, self.weft_figures), (self.peer, self.peer_figures)]
        found, lines = [], []
        # Who begins alternates, so that neither always finds the machine as the other left it.
        for measure, figures in reversed(sides) if reverse else sides:
            if measure is not None:
                lines.append(self.line() if self.line else 1.0)
                found.append((figures, measure()))
        lines.append(self.line() if self.line else 1.0)
        if max(lines) > LINE_STEADY * min(lines):
            return False
        for figures, figure in found:
            figures.append(figure)
        return True

    def measure(self, runs: int) -> None:
        try:
            turn = 0
            while turn < runs:
                if self.turn(turn % 2 == 1):
                    turn += 1
                else:
                    self.repeated += 1
                    if self.repeated > REPEATED_MAX:
                        raise RuntimeError("the machine's cores do not stay where they are")
        except (
            Missing,
            RuntimeError,
            subprocess.TimeoutExpired,
            StopIteration,
            ValueError,
            KeyError,
            IndexError,
        ) as error:
            self.problem = str(error) or type(error).__name__

    @property
    def ratio(self) -> Optional[float]:
        if self.problem is not None or not self.weft_figures:
            return None
        if self.peer is None:
            return statistics.median(self.weft_figures)
        turns = zip(self.weft_figures, self.peer_figures, strict=True)
        return statistics.median(own / peer for own, peer in turns)

    @property
    def reached(self) -> Optional[bool]:
        if self.ratio is None:
            return None
        return self.ratio <= self.bound if self.is_most else self.ratio >= self.bound

    def bar(self) -> str:
        sign = "<=" if self.is_most else ">="
        return f"{sign} {self.bound:g} x" if self.peer else f"{sign} {self.bound:g} {self.unit}"

    def json(self) -> dict:
        return {
            "name": self.name,
            "unit": self.unit,
            "bound": self.bound,
            "bound_is": "most" if self.is_most else "least",
            "ratio": self.ratio,
            "reached": self.reached,
            "weft": self.weft_figures,
            "peer": self.peer_figures,
            "problem": self.problem,
            "repeated": self.repeated,
        }


def bars(weft: Weft) -> list:
    plain = lambda command: command  # noqa: E731
    raw_line = lambda: weft.main("cacheline")  # noqa: E731
    return [
        *(
            Bar(
                f"latency {size} B / ucx tag_lat",
                "us",
                lambda size=size: weft.main("latency", size),
                lambda size=size: ucx("tag_lat", size, 300_000).latency_us,
                0.6,
                True,
                raw_line,
            )
            for size in (8, 120)
        ),
        *(
            Bar(
                f"latency {size} B / cache line",
                "us",
                lambda size=size: weft.main("latency", size),
                raw_line,
                2.0,
                True,
                raw_line,
            )
            for size in (8, 120)
        ),
        Bar(
            "rate 8 B / ucx am_bw (posix)",
            "/s",
            lambda: weft.main("rate", 8),
            lambda: ucx("am_bw", 8, 5_000_000, "-d", "memory", "-x", "posix").rate,
            2.5,
            False,
            raw_line,
        ),
        Bar(
            "put latency 8 B / ucx ucp_put_lat",
            "us",
            lambda: weft.single("put", 8),
            lambda: ucx("ucp_put_lat", 8, 500_000).latency_us,
            1.2,
            True,
            raw_line,
        ),
        *(
            Bar(
                f"put {name} / ucx ucp_put_bw",
                "GB/s",
                lambda size=size: weft.main("put", size),
                lambda size=size, count=count: ucx("ucp_put_bw", size, count).gigabytes,
                0.85,
                False,
            )
            for name, size, count in (
                ("4 KiB", 4096, 500_000),
                ("64 KiB", 65536, 100_000),
                ("1 MiB", 1 << 20, 10_000),
                ("8 MiB", 8 << 20, 1_000),
            )
        ),
        Bar(
            "fetch-add / ucx ucp_fadd",
            "/s",
            lambda: weft.main("atomic"),
            lambda: ucx("ucp_fadd", 8, 3_000_000, "-O", "32").rate,
            5.0,
            False,
            raw_line,
        ),
        Bar("p99 of 8 polling processes", "us", lambda: weft.crowd(4), None, 200.0, True),
        Bar(
            "sockperf tcp 64 B / kernel",
            "us",
            lambda: sockperf(weft.under),
            lambda: sockperf(plain),
            1 / 50,
            True,
        ),
        Bar("iperf3 / kernel", "GB/s", lambda: iperf(weft.under), lambda: iperf(plain), 4.0, False),
        *(
            Bar(
                f"redis {what} -c 1 / kernel",
                "/s",
                lambda what=what: redis(weft.under, what),
                lambda what=what: redis(plain, what),
                5.0,
                False,
            )
            for what in ("set", "get")
        ),
    ]


# --- what is printed -----------------------------------------------------------------------------


def shown(figures: list, unit: str) -> str:
    if not figures:
        return "-"
    value = statistics.median(figures)
    if value >= 1e6:
        return f"{value / 1e6:.1f} M{unit}"
    return f"{value:.0f} {unit}" if value >= 1000 else f"{value:.3f} {unit}"


def line(bar: Bar) -> str:
    ratio = "-" if bar.ratio is None else f"{bar.ratio:.3g}"
    word = {True: "yes", False: "NO", None: "not measured"}[bar.reached]
    cells = (bar.name, shown(bar.weft_figures, bar.unit), shown(bar.peer_figures, bar.unit))
    text = f"{cells[0]:<34} {cells[1]:>14} {cells[2]:>14} {bar.bar():>12} {ratio:>8}  {word}"
    if bar.repeated:
        text += f", {bar.repeated} turns repeated"
    return text + (f": {bar.problem}" if bar.problem else "")


def install() -> None:
    if os.geteuid() != 0:
        sys.exit("--peers needs root for apt-get; or install " + " ".join(PACKAGES))
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    commands = (["update"], ["install", "-y", "--no-install-recommends", *PACKAGES])
    for command in commands:
        subprocess.run(["apt-get", "-q", *command], env=env, check=True, stdout=subprocess.DEVNULL)


def find_weft(given: Optional[str]) -> Path:
    if given:
        return Path(given).resolve()
    command = ["cargo", "build", "--release", "-p", "weft-cli", "-p", "weft-preload"]
    subprocess.run(command, cwd=ROOT, check=True)
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    return (ROOT / target / "release/weft").resolve()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", action="store_true", help="install the peers from Debian")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--only", metavar="WORD", action="append", help="bars named so")
    parser.add_argument("--runs", metavar="N", type=int, default=RUNS, help="turns of each side")
    parser.add_argument("--weft", metavar="PATH", help="the command; default: build it")
    arguments = parser.parse_args()
    if arguments.runs < 1:
        parser.error("--runs is to be at least 1")
    if arguments.peers:
        install()
    weft = Weft(find_weft(arguments.weft))
    chosen = [
        bar
        for bar in bars(weft)
        if not arguments.only or any(word in bar.name for word in arguments.only)
    ]
    if not chosen:
        parser.error("no bar has that in its name")
    # A daemon of its own: the user's is neither disturbed nor measured.
    with tempfile.TemporaryDirectory(prefix="weft-compare-") as directory:
        os.environ.pop("WEFT_SOCKET", None)
        os.environ["WEFT_DAEMON_SOCKET"] = f"{directory}/node.sock"
        try:
            return compare(chosen, arguments)
        finally:
            subprocess.run([weft.path, "down"], stderr=subprocess.DEVNULL, check=False)


def compare(chosen: list, arguments: argparse.Namespace) -> int:
    if not arguments.json:
        print(f"{'':<34} {'weft':>14} {'peer':>14} {'bar':>12} {'ratio':>8}  reached")
    for bar in chosen:
        bar.measure(arguments.runs)
        if not arguments.json:
            print(line(bar), flush=True)
    if arguments.json:
        machine = {"cores": len(CORES), "kernel": os.uname().release}
        results = [bar.json() for bar in chosen]
        print(json.dumps({"machine": machine, "runs": arguments.runs, "bars": results}, indent=1))
    return 0 if all(bar.reached for bar in chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
