"""The parts of every comparison: processes, and a bar with its turns."""

import math
import os
import shutil
import socket
import statistics
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Optional

# A raw cache line is as fast as before when its time is within this factor.
LINE_STEADY = 1.25
REPEATED_MAX = 60


class Missing(Exception):
    """Something that a bar needs is not there."""




def need(program: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise Missing(f"{program} is not installed; call this with --peers")
    return path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def listens(place) -> bool:
    """Asks the kernel, so that no server sees a connection that is not the client's."""
    if isinstance(place, Path):
        return place.exists()
    port = place
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

    def __init__(self, command: list, place, env: Optional[dict] = None, **options):
        """`place` is the port or the path of the UNIX socket where it listens."""
        self.command, self.place = command, place
        self.options = {"env": {**os.environ, **(env or {})}, **options}

    def __enter__(self):
        self.process = subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **self.options,
        )
        deadline = time.monotonic() + 10
        while not listens(self.place):
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


def client(command: list, env: Optional[dict] = None, within: float = 60, **options) -> str:
    done = subprocess.run(
        command,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=within,
        check=False,
        **options,
    )
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["it said nothing"]
        raise RuntimeError(f"{' '.join(command)}: {lines[-1]}")
    return done.stdout


# With fewer turns an interval says nothing.
TURNS_MIN = 9


def interval(ordered: list) -> tuple:
    """Where the median of what these were drawn from is, 95 times of 100: by their ranks alone."""
    rank = max(0, math.floor(len(ordered) / 2 - 0.98 * math.sqrt(len(ordered))))
    return ordered[rank], ordered[-1 - rank]


def compare(one: Callable, other: Callable, patience, is_least: bool = False) -> dict:
    """Measures both in turns until the interval of their ratio is at most `patience.width` wide, or
    for `patience.turns`. The ratio is above 1 where the other is better."""
    pairs = []
    while True:
        sides = (one, other) if len(pairs) % 2 == 0 else (other, one)
        figures = {side: side() for side in sides}
        pairs.append((figures[one], figures[other]))
        ratios = sorted(a / b if is_least else b / a for a, b in pairs)
        low, high = interval(ratios)
        is_narrow = len(pairs) >= TURNS_MIN and high - low <= patience.width
        if is_narrow or len(pairs) >= patience.turns:
            break
    medians = [statistics.median(pair[side] for pair in pairs) for side in (0, 1)]
    return {
        "one": medians[0],
        "other": medians[1],
        "ratio": statistics.median(ratios),
        "low": low,
        "high": high,
        "turns": len(pairs),
    }


@dataclass
class Bar:
    """A comparison: weft's figure over the peer's, with a bound from above or below.

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
        # They begin in turns, so that neither always finds the machine as the other left it.
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
            subprocess.SubprocessError,
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
