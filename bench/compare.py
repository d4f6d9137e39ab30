#!/usr/bin/env python3
"""Measures weft beside UCX, kernel TCP and UNIX sockets on this machine, and says which bars it
reaches.

Everything is measured in one run, the two sides of a bar in turns, five times; a bar is judged by
the median of the turns' ratios, since wall times of two machines, or of one machine at two times,
say nothing. A virtual machine's cores may move closer together or further apart at any moment, by
which a cache line takes three to six times as long between them: where that decides, a turn counts
only if a raw line took as long before, between and after the two sides; others are repeated. Peers
and programs are Debian's: --peers installs them.

    bench/compare.py --peers            everything, as a table
    bench/compare.py --only latency     bars whose name contains the word
    bench/compare.py --json             for scripts
    bench/compare.py --computing 2      beside two programs that compute
    bench/compare.py --one-core         all programs on one processor

In the last two ways direct sockets alone are measured, and nothing may be slower than kernel TCP.
"""

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import Optional

import ethernet
import fabric
import sockets
from measure import Bar

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = [*fabric.PACKAGES, *sockets.PACKAGES, *ethernet.PACKAGES]
RUNS = 5


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


def find_weft(given: Optional[str], libraries: tuple = ("weft-preload",)) -> Path:
    """The command that was named, or that of this tree, which is built with its libraries."""
    if given:
        return Path(given).resolve()
    packages = [word for name in ("weft-cli", *libraries) for word in ("-p", name)]
    command = ["cargo", "build", "--release", *packages]
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
    parser.add_argument("--computing", metavar="N", type=int, default=0, help="programs beside")
    parser.add_argument("--one-core", action="store_true", help="leave one processor")
    arguments = parser.parse_args()
    if arguments.runs < 1:
        parser.error("--runs is to be at least 1")
    if arguments.peers:
        install()
    weft = fabric.Weft(find_weft(arguments.weft))
    is_crowded = arguments.computing > 0 or arguments.one_core
    everything = fabric.bars(weft) + sockets.bars(weft) + ethernet.bars(weft)
    chosen = [
        bar
        for bar in (crowded(sockets.bars(weft)) if is_crowded else everything)
        if not arguments.only or any(word in bar.name for word in arguments.only)
    ]
    if not chosen:
        parser.error("no bar has that in its name")
    # A daemon of its own: the user's is neither disturbed nor measured.
    with tempfile.TemporaryDirectory(prefix="weft-compare-") as directory:
        # Databases do not run as root.
        os.chmod(directory, 0o711)
        os.environ.pop("WEFT_SOCKET", None)
        os.environ["WEFT_DAEMON_SOCKET"] = f"{directory}/node.sock"
        if arguments.one_core:
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        try:
            with computing(arguments.computing):
                return compare(chosen, arguments)
        finally:
            subprocess.run([weft.path, "down"], stderr=subprocess.DEVNULL, check=False)


def crowded(bars: list) -> list:
    """The bars beside kernel TCP as they are for a machine that has no processor to spare."""
    beside_tcp = (bar for bar in bars if bar.name.endswith("/ kernel"))
    return [dataclasses.replace(bar, bound=1.0) for bar in beside_tcp]


@contextmanager
def computing(count: int):
    """Programs that compute until the block is left."""
    programs = [subprocess.Popen(sockets.COMPUTE) for _ in range(count)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def compare(chosen: list, arguments: argparse.Namespace) -> int:
    if not arguments.json:
        print(f"{'':<34} {'weft':>14} {'peer':>14} {'bar':>12} {'ratio':>8}  reached")
    for bar in chosen:
        bar.measure(arguments.runs)
        if not arguments.json:
            print(line(bar), flush=True)
    if arguments.json:
        machine = {"cores": len(fabric.CORES), "kernel": os.uname().release}
        results = [bar.json() for bar in chosen]
        print(json.dumps({"machine": machine, "runs": arguments.runs, "bars": results}, indent=1))
    return 0 if all(bar.reached for bar in chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
