#!/usr/bin/env python3
"""Runs public test suites of OpenSHMEM with weft's compiler wrappers and launcher.

    bench/shmem/suites.py DIR                   all suites that lie in DIR, with 2 PEs
    bench/shmem/suites.py DIR --np 1,2,4,8      with several numbers of PEs
    bench/shmem/suites.py DIR --only unit       programs whose names hold this
    bench/shmem/suites.py DIR --hosts           the PEs on two network namespaces in turn (as root)
    bench/shmem/suites.py DIR --peer openmpi    with Debian's Open MPI instead
    bench/shmem/suites.py DIR --beside /opt/sos weft and another OpenSHMEM, installed there

DIR is a checkout of one suite or has several in it. Known are those of openshmem-org: tests-sos,
tests-uh (its C programs), tests-mellanox and tests-cray (its C and C++ programs). They are no part
of weft. A program passes when it
exits with 0, or with the status that it means to, and prints no "Failed"; 77 is a skip, as automake
has it. One that does not end in time hangs, and one that does not compile is named with the first
error. With --beside, both have the same sources, flags and limit, in turns, and the programs that
pass with the other one alone are listed; the exit status is 0 when there is none. The environment
reaches both: Sandia OpenSHMEM wants OSHRUN_LAUNCHER=mpiexec.hydra, say, and SHMEM_OFI_PROVIDER.
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

# Directories of tests-sos with programs of one source each. Those of shmemx are beside the
# specification, and its configure script leaves them out unless told otherwise: they are counted as
# a suite of their own.
OF_SOS = ("unit", "spec-example", "shmemx", "apps")
# Programs that end with another status on purpose.
STATUSES = {"test_shmem_global_exit": 99}
# Programs that expect what one PE alone cannot give.
OF_TWO = ("test_shmem_accessible", "test_shmem_reduction")
OF_ONE = ("all_", "shmem_global_exit")
# A folder of tests-mellanox whose cases run one by one.
APART = "basic"
# Those with a source more.
MORE_SOURCES = {"mt_lock_test": ["mt_lock.c"]}
FLAGS = ["-O1", "-pthread", "-w"]
CODE_SKIPPED = 77
FAILED = re.compile(r"\bfail(ed)?\b", re.IGNORECASE)


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
            suite = "sos-shmemx" if group == "shmemx" else "tests-sos"
            found.append(Program(suite, f"{group}/{source.stem}", sources, flags))
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
    tasks = [names.get(folder.name, folder.name) for folder in folders
             if folder not in [*others, directory / APART]]
    # One of these ends the job, and would take those behind it along.
    cases = [source.stem.rpartition("_")[2] for source in sources if source.parent.name == APART]
    tasks += [f"{APART}:{case}" for case in cases if re.fullmatch(r"tc\d+", case)]
    return [Program("tests-mellanox", task, sources, flags, ["exec", f"--task={task}"])
            for task in tasks]


def cray(root: Path) -> list:
    """Programs that write FAIL; those of one PE alone are named."""
    flags = ["-DHAVE_SHORT", "-DHAVE_LONG_LONG", "-DHAVE_LONG_DOUBLE", "-DNEEDS_FINALIZE"]
    return [Program("tests-cray", f"{group}/{source.stem}", [source], flags, reads_output=True,
                    pes_min=1 if source.stem.startswith(OF_ONE) else 2)
            for group in ("sma1", "sma2")
            for source in sorted([*(root / group).glob("*.c"), *(root / group).glob("*.cpp")])]


SUITES = [
    ("sma1/sma1_tlist", cray),
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


PROBE = """#include <shmem.h>
#include <stdlib.h>
int main(int count, char **words) {
    shmem_init();
    int is_right = shmem_n_pes() == atoi(words[1]);
    shmem_finalize();
    return is_right ? 0 : 3;
}
"""
VERDICTS = ("pass", "fail", "hang", "build", "skip")


def probe(peer: peers.Peer, size: int, directory: Path) -> None:
    """A launcher of something else starts jobs of one PE, whose programs pass and show nothing."""
    source, program = directory / "probe.c", directory / "probe"
    source.write_text(PROBE)
    peer.build([source], program, ["-w"])
    done = peer.run(size, [str(program), str(size)])
    if done.returncode != 0:
        raise Missing(f"{peer.name} does not start a job of {size} PEs: exit status "
                      f"{done.returncode}: {(done.stdout + done.stderr).strip()[-300:]}")


@dataclass
class Result:
    """The verdict on one program with one library and one number of PEs."""

    program: Program
    peer: str
    size: int
    verdict: str
    why: str

    @property
    def is_failure(self) -> bool:
        return self.verdict not in ("pass", "skip")


def test(compared: list, programs: list, sizes: list, seconds: float, is_quiet: bool) -> list:
    """Runs all programs; prints a line for each."""
    results = []
    width = max(len(program.name) for program in programs)
    columns = 8 * len(sizes)
    heads = (f"{peer.name:<{columns}.{columns - 1}}" for peer in compared)
    print(f"{'':<{width}}  " + "".join(heads))
    print(f"{'':<{width}}  " + "".join(f"np={size:<5}" for _ in compared for size in sizes))
    with tempfile.TemporaryDirectory() as directory:
        builds = []
        for number, peer in enumerate(compared):
            own = Path(directory) / str(number)
            own.mkdir()
            probe(peer, sizes[-1], own)
            builds.append(Builds(peer, own))
        for program in programs:
            cells = []
            for build in builds:
                path = build.of(program)
                for size in sizes:
                    verdict = ("build", path) if isinstance(path, str) else \
                        run(build.peer, program, path, size, seconds)
                    results.append(Result(program, build.peer.name, size, *verdict))
                    cells.append(verdict[0])
            if not is_quiet or any(cell != "pass" for cell in cells):
                print(f"{program.name:<{width}}  " + "".join(f"{cell:<8}" for cell in cells),
                      flush=True)
    return results


def summary(results: list, names: list) -> int:
    """Prints what did not pass, and a table of counts; returns the exit status."""
    print()
    for result in results:
        if result.is_failure:
            program = result.program
            print(f"{result.peer}: {program.suite} {program.name} np={result.size}: "
                  f"{result.verdict}: {result.why}")
    print()
    words = [f"{verdict:>6}" for verdict in VERDICTS]
    print(f"{'suite':<16} {'np':>3}  {'':<12} " + "".join(words))
    groups = sorted({(result.program.suite, result.size) for result in results})
    for suite, size in groups:
        for name in names:
            verdicts = [result.verdict for result in results
                        if (result.program.suite, result.size, result.peer) == (suite, size, name)]
            counts = "".join(f"{verdicts.count(verdict):>6}" for verdict in VERDICTS)
            print(f"{suite:<16} {size:>3}  {name:<12} {counts}")
    if len(names) == 1:
        return 1 if any(result.is_failure for result in results) else 0
    own, other = names
    passed = {(result.program.suite, result.program.name, result.size)
              for result in results if result.peer == other and result.verdict == "pass"}
    worse = [result for result in results if result.peer == own and result.is_failure
             and (result.program.suite, result.program.name, result.size) in passed]
    print(f"\n{len(worse)} pass with {other} and not with {own}")
    for result in worse:
        program = result.program
        print(f"  {program.suite} {program.name} np={result.size}: {result.verdict}: {result.why}")
    return 1 if worse else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("directory", type=Path, metavar="DIR")
    parser.add_argument("--np", default="2", metavar="LIST", help="numbers of PEs, with commas")
    parser.add_argument("--only", default="", metavar="TEXT", help="programs with this in the name")
    parser.add_argument("--peer", default="weft", metavar="NAME",
                        help="weft, openmpi, or the directory of an installation")
    parser.add_argument("--beside", metavar="NAME", help="another one as well, and the differences")
    parser.add_argument("--weft", help="the weft to test [default: target/release/weft]")
    parser.add_argument("--seconds", type=float, default=60, help="a program hangs after them")
    parser.add_argument("--hosts", action="store_true", help="on two network namespaces")
    parser.add_argument("--quiet", action="store_true", help="name only what does not pass")
    arguments = parser.parse_args()
    try:
        sizes = [int(size) for size in arguments.np.split(",")]
        compared = [peers.named(name, arguments.weft)
                    for name in (arguments.peer, arguments.beside) if name]
        programs = [program for program in find(arguments.directory.resolve())
                    if arguments.only in f"{program.suite}/{program.name}"]
        if not programs:
            raise Missing(f"no known suite lies in {arguments.directory}, or nothing has "
                          f"{arguments.only!r} in its name")
        options = (programs, sizes, arguments.seconds, arguments.quiet)
        if arguments.hosts:
            if arguments.peer != "weft" or arguments.beside:
                raise Missing("--hosts is for weft alone")
            with hosts.Hosts(compared[0].launcher[0]) as far:
                compared = [far.own(compared[0])]
                results = test(compared, *options)
        else:
            results = test(compared, *options)
    except (Missing, ValueError, OSError, RuntimeError) as error:
        print(f"suites.py: {error}", file=sys.stderr)
        return 2
    return summary(results, [peer.name for peer in compared])


if __name__ == "__main__":
    sys.exit(main())
