#!/usr/bin/env python3
"""Runs public test suites of OpenSHMEM with weft's compiler wrappers and launcher.

    bench/shmem/suites.py DIR                   all suites that lie in DIR, with 2 PEs
    bench/shmem/suites.py DIR --np 1,2,4,8      with several numbers of PEs
    bench/shmem/suites.py DIR --only unit       programs whose names hold this
    bench/shmem/suites.py DIR --hosts           the PEs on two network namespaces in turn (as root)
    bench/shmem/suites.py DIR --peer openmpi    with Debian's Open MPI instead
    bench/shmem/suites.py DIR --peer /opt/sos   with another OpenSHMEM, installed there

DIR is a checkout of one suite or has several in it. Known are those of openshmem-org: tests-sos,
tests-uh (its C programs) and tests-mellanox. They are no part of weft. A program passes when it
exits with 0, or with the status that it means to, and prints no "Failed"; 77 is a skip, as automake
has it. One that does not end in time hangs, and one that does not compile is named with the first
error.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import hosts
import peers
from measure import Missing

# Directories of tests-sos with programs of one source each.
OF_SOS = ("unit", "spec-example", "shmemx", "apps")
# Programs that end with another status on purpose.
STATUSES = {"test_shmem_global_exit": 99}
# Programs that expect what one PE alone cannot give.
OF_TWO = ("test_shmem_accessible", "test_shmem_reduction")
# Those with a source more.
MORE_SOURCES = {"mt_lock_test": ["mt_lock.c"]}
FLAGS = ["-O1", "-pthread", "-w"]
CODE_SKIPPED = 77
FAILED = re.compile(r"\bfailed\b", re.IGNORECASE)


@dataclass
class Program:
    """A program of a suite."""

    suite: str
    name: str
    sources: list
    flags: list = field(default_factory=list)
    arguments: list = field(default_factory=list)
    # Words of the suite's own that mean failure although the exit status is 0.
    reads_output: bool = False
    # The exit status of success.
    status: int = 0
    # It means nothing with fewer PEs.
    pes_min: int = 1


def sos(root: Path) -> list:
    found = []
    for group in OF_SOS:
        directory = root / "test" / group
        for source in sorted([*directory.glob("*.c"), *directory.glob("*.cpp")]):
            text = source.read_text(errors="replace")
            # Programs with MPI, too, need a library of it.
            if "main" not in text or "<mpi.h>" in text:
                continue
            standard = "-std=gnu++11" if source.suffix == ".cpp" else "-std=gnu11"
            headers = root / "test" / "include"
            flags = [standard, f"-I{directory}", f"-I{headers}", "-DENABLE_THREADS"]
            sources = [source, *(directory / name for name in MORE_SOURCES.get(source.stem, []))]
            found.append(Program("tests-sos", f"{group}/{source.stem}", sources, flags))
    return found


def uh(root: Path) -> list:
    directory = root / "feature_tests" / "C"
    flags = ["-std=gnu11", f"-I{directory}"]
    return [Program("tests-uh", source.stem, [source], flags, reads_output=True,
                    status=STATUSES.get(source.stem, 0),
                    pes_min=2 if source.stem in OF_TWO else 1)
            for source in sorted(directory.glob("test_*.c"))]


def mellanox(root: Path) -> list:
    """The verifier is one program; its tasks count as programs."""
    directory = root / "verifier"
    # Templates are included by others; those with MPI need a library of it.
    sources = [source for source in sorted(directory.rglob("*.c"))
               if not source.stem.endswith("_template") and source.parent.name != "mix"
               and '"mpi.h"' not in source.read_text(errors="replace")]
    folders = sorted({source.parent for source in sources})
    flags = ["-std=gnu11", "-DHAVE_UNISTD_H", "-DCHECK_ACTIVE_SET=1", "-DHAVE_ALLTOALL", "-DQUICK_TEST",
             *(f"-I{folder}" for folder in folders)]
    # The analysis measures for minutes, and checks nothing.
    others = [directory, directory / "cmn", directory / "analysis"]
    names = {"strided": "stride"}
    tasks = [names.get(folder.name, folder.name) for folder in folders if folder not in others]
    return [Program("tests-mellanox", task, sources, flags, ["exec", f"--task={task}"])
            for task in tasks]


SUITES = [
    ("test/unit/hello.c", sos),
    ("feature_tests/C/test_shmem_put.c", uh),
    ("verifier/osh_main.c", mellanox),
]


def find(directory: Path) -> list:
    programs = []
    for root in [directory, *sorted(path for path in directory.iterdir() if path.is_dir())]:
        for marker, programs_of in SUITES:
            if (root / marker).is_file():
                programs += programs_of(root)
    return programs


class Builds:
    """Compiled programs; the same sources are compiled once."""

    def __init__(self, peer: peers.Peer, directory: Path):
        self.peer, self.directory, self.done = peer, directory, {}
        # The verifier includes what its configure script writes.
        (directory / "config.h").write_text('#define VERSION "1.2"\n#define PACKAGE "verifier"\n')

    def of(self, program: Program):
        """The path of the program, or the first error of the compiler."""
        key = tuple(map(str, program.sources))
        if key not in self.done:
            path = self.directory / f"program-{len(self.done)}"
            try:
                flags = [*FLAGS, *program.flags, f"-I{self.directory}"]
                self.peer.build(program.sources, path, flags)
                self.done[key] = path
            except RuntimeError as error:
                self.done[key] = first_error(str(error))
        return self.done[key]


def first_error(text: str) -> str:
    for line in text.splitlines():
        if "error" in line or "undefined" in line:
            return line.strip()[:160]
    return text.strip().splitlines()[-1][:160]


def run(peer: peers.Peer, program: Program, path: Path, size: int, seconds: float) -> tuple:
    """The verdict and what it rests on."""
    if size < program.pes_min:
        return "skip", f"it takes {program.pes_min} PEs"
    # Programs write files; each run has a directory of its own.
    with tempfile.TemporaryDirectory() as directory:
        try:
            done = peer.run(size, [str(path), *program.arguments], seconds, cwd=directory)
        except subprocess.TimeoutExpired:
            return "hang", f"no end within {seconds:g} s"
    output = done.stdout + done.stderr
    last = output.strip().splitlines()[-1][:160] if output.strip() else "no output"
    if done.returncode == CODE_SKIPPED:
        return "skip", last
    if done.returncode != program.status:
        return "fail", f"exit status {done.returncode}: {last}"
    failed = [line for line in output.splitlines() if FAILED.search(line)]
    if program.reads_output and failed:
        return "fail", failed[0].strip()[:160]
    return "pass", last


def test(peer: peers.Peer, programs: list, sizes: list, seconds: float, is_quiet: bool) -> int:
    counts, failures = {}, []
    width = max(len(program.name) for program in programs)
    print(f"{'':<{width}}  " + " ".join(f"np={size:<4}" for size in sizes))
    with tempfile.TemporaryDirectory() as directory:
        builds = Builds(peer, Path(directory))
        for program in programs:
            path = builds.of(program)
            if isinstance(path, str):
                verdicts = [("build", path)] * len(sizes)
            else:
                verdicts = [run(peer, program, path, size, seconds) for size in sizes]
            for size, (verdict, why) in zip(sizes, verdicts):
                key = (program.suite, size)
                counts.setdefault(key, {}).setdefault(verdict, 0)
                counts[key][verdict] += 1
                if verdict not in ("pass", "skip"):
                    failures.append(f"{program.suite} {program.name} np={size}: {verdict}: {why}")
            words = [verdict for verdict, _ in verdicts]
            if not is_quiet or any(word != "pass" for word in words):
                print(f"{program.name:<{width}}  " + " ".join(f"{word:<7}" for word in words),
                      flush=True)
    print()
    for failure in failures:
        print(failure)
    print()
    total = {}
    for (suite, size), verdicts in sorted(counts.items()):
        shown = ", ".join(f"{number} {verdict}" for verdict, number in sorted(verdicts.items()))
        print(f"{suite} np={size}: {shown}")
        for verdict, number in verdicts.items():
            total[verdict] = total.get(verdict, 0) + number
    passed, skipped = total.get("pass", 0), total.get("skip", 0)
    failed = sum(total.values()) - passed - skipped
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("directory", type=Path, metavar="DIR")
    parser.add_argument("--np", default="2", metavar="LIST", help="numbers of PEs, with commas")
    parser.add_argument("--only", default="", metavar="TEXT", help="programs with this in the name")
    parser.add_argument("--peer", default="weft", metavar="NAME",
                        help="weft, openmpi, or the directory of an installation")
    parser.add_argument("--weft", help="the weft to test [default: target/release/weft]")
    parser.add_argument("--seconds", type=float, default=60, help="a program hangs after them")
    parser.add_argument("--hosts", action="store_true", help="on two network namespaces")
    parser.add_argument("--quiet", action="store_true", help="name only what does not pass")
    arguments = parser.parse_args()
    try:
        sizes = [int(size) for size in arguments.np.split(",")]
        peer = peers.named(arguments.peer, arguments.weft)
        programs = [program for program in find(arguments.directory.resolve())
                    if arguments.only in f"{program.suite}/{program.name}"]
        if not programs:
            raise Missing(f"no known suite lies in {arguments.directory}, or nothing has "
                          f"{arguments.only!r} in its name")
        if arguments.hosts:
            if arguments.peer != "weft":
                raise Missing("--hosts is for weft alone")
            with hosts.Hosts(peer.launcher[0]) as far:
                return test(far.own(peer), programs, sizes, arguments.seconds, arguments.quiet)
    except (Missing, ValueError, OSError) as error:
        print(f"suites.py: {error}", file=sys.stderr)
        return 2
    return test(peer, programs, sizes, arguments.seconds, arguments.quiet)


if __name__ == "__main__":
    sys.exit(main())
