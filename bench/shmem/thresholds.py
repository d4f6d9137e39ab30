#!/usr/bin/env python3
"""Finds the numbers at which collectives of weft's OpenSHMEM change their way, on this machine.

    bench/shmem/thresholds.py               all of them, as tables
    bench/shmem/thresholds.py --only stage  staging buffers against copies from the source
    bench/shmem/thresholds.py --only flat   all PEs look at all, against trees

Staging is compared by two builds of the library: one stages all that is measured, the other next to
nothing. The size from which on copies from the source cost less is the threshold. The builds take
their numbers from variables; crates/services/pgas/src/collective/thresholds.rs has the ones that count.
The builds run in turns, and the least of a figure's turns is taken.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import peers
from measure import Missing

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCE = Path(__file__).with_name("collectives.c")
LIBRARY = "libweft_shmem.so"
SIZED = ["broadcast", "fcollect", "sum", "alltoall"]
STAGED = {name: {"STAGE_BYTES": count, "BROADCAST_BYTES": count}
          for name, count in (("staged", 32768), ("direct", 64))}
FLAT = {"flat": {"FLAT_MAX": 1024}}
TREES = {f"tree of {number}": {"FLAT_MAX": 1, "BRANCHES": number} for number in (2, 4, 8, 16)}
BUILD_SECONDS_MAX = 1800


class Builds:
    """Builds of the library with other numbers, each in a directory of its own."""

    def __init__(self, directory: Path):
        self.directory = directory

    def make(self, name: str, numbers: dict) -> Path:
        path = self.directory / name.replace(" ", "-")
        target = ROOT / "target" / "thresholds"
        variables = {f"WEFT_SHMEM_{key}": str(value) for key, value in numbers.items()}
        environment = {**os.environ, **variables, "CARGO_TARGET_DIR": str(target)}
        print(f"building: {name}", file=sys.stderr, flush=True)
        subprocess.run(["cargo", "build", "--quiet", "--release", "-p", "weft-shmem"], cwd=ROOT,
                       env=environment, check=True, timeout=BUILD_SECONDS_MAX)
        path.mkdir()
        shutil.copy(target / "release" / LIBRARY, path / LIBRARY)
        return path


def once(weft: peers.Peer, library: Path, program: Path, size: int, tests: list) -> dict:
    """Nanoseconds by test and bytes."""
    environment = {**weft.environment, "LD_LIBRARY_PATH": str(library)}
    peer = peers.Peer(weft.name, weft.compiler, weft.compiler_cxx, weft.launcher, environment)
    done = peer.run(size, [str(program), *tests], seconds=600)
    if done.returncode != 0:
        raise RuntimeError(f"{library.name}: exit status {done.returncode}: {done.stderr[-600:]}")
    rows = (line.split() for line in done.stdout.splitlines())
    return {(test, int(count)): float(ns) for test, count, ns in rows}


def least(weft: peers.Peer, libraries: dict, program: Path, size: int, tests: list,
          turns: int) -> dict:
    """The least figure of each build, by test and bytes."""
    figures = {}
    for _ in range(turns):
        for name, library in libraries.items():
            for key, ns in once(weft, library, program, size, tests).items():
                figures[key, name] = min(ns, figures.get((key, name), ns))
    return figures


def stage(weft: peers.Peer, builds: Builds, program: Path, sizes: list, turns: int) -> None:
    libraries = {name: builds.make(name, numbers) for name, numbers in STAGED.items()}
    for size in sizes:
        figures = least(weft, libraries, program, size, SIZED, turns)
        print(f"\n{size} PEs, ns: staged / direct (their ratio)")
        counts = sorted({count for (_, count), _ in figures})
        print(f"{'bytes':>8} " + " ".join(f"{test:>22}" for test in SIZED))
        for count in counts:
            cells = []
            for test in SIZED:
                staged, direct = (figures[(test, count), name] for name in STAGED)
                cells.append(f"{staged:,.0f} / {direct:,.0f} ({staged / direct:.2f})")
            print(f"{count:>8} " + " ".join(f"{cell:>22}" for cell in cells), flush=True)
        for test in SIZED:
            better = [count for count in counts
                      if figures[(test, count), "staged"] <= figures[(test, count), "direct"]]
            print(f"{test}: staging costs no more up to {max(better, default=0)} bytes")


def flat(weft: peers.Peer, builds: Builds, program: Path, sizes: list, turns: int) -> None:
    ways = {**FLAT, **TREES}
    libraries = {name: builds.make(name, numbers) for name, numbers in ways.items()}
    print(f"\nbarrier, ns\n{'PEs':>8} " + " ".join(f"{name:>12}" for name in ways))
    for size in sizes:
        figures = least(weft, libraries, program, size, ["barrier"], turns)
        cells = [f"{figures[('barrier', 64), name]:,.0f}" for name in ways]
        print(f"{size:>8} " + " ".join(f"{cell:>12}" for cell in cells), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", choices=("stage", "flat"))
    parser.add_argument("--np", default="2,4", metavar="LIST", help="PEs for staging [default: 2,4]")
    parser.add_argument("--np-flat", default="4,8,16,32", metavar="LIST", help="PEs for trees")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--weft", help="the weft that compiles and launches [default: "
                                       "target/release/weft]")
    arguments = parser.parse_args()
    try:
        sizes, sizes_flat = ([int(size) for size in text.split(",")]
                             for text in (arguments.np, arguments.np_flat))
        weft = peers.weft(arguments.weft)
    except (Missing, ValueError, OSError) as error:
        print(f"thresholds.py: {error}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as directory:
        builds, program = Builds(Path(directory)), Path(directory) / "collectives"
        weft.build([SOURCE], program, ["-std=gnu11", "-O2"])
        if arguments.only != "flat":
            stage(weft, builds, program, sizes, arguments.turns)
        if arguments.only != "stage":
            flat(weft, builds, program, sizes_flat, arguments.turns)
    return 0


if __name__ == "__main__":
    sys.exit(main())
