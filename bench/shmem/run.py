#!/usr/bin/env python3
"""OpenSHMEM of weft beside that of Open MPI with UCX, on this host: two PEs, each on a processor of
its own, in turns, medians, and the ratio in the same run.

    bench/shmem/run.py --peers          installs Open MPI, compiles measure.c with both, compares
    bench/shmem/run.py --only put,cas   these tests alone
    bench/shmem/run.py --hosts          a PE in each of two network namespaces with a cable, over
                                        TCP: weft by libfabric's, Open MPI by UCX's (as root)
    bench/shmem/run.py --figures DIR    tables and plots of figures 2.11 to 2.17 of report 000, on
                                        one host; with --hosts, between the namespaces as well

With --only, those figures alone that a test of get, get_nbi, put, put_nbi, cas, fetch_add or add
is for. A bar is the ratio that weft promises; see SPECIFICATION.md.
"""

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
from pathlib import Path

import figures
import hosts
import peers
from measure import Missing

SOURCE = Path(__file__).with_name("measure.c")
TURNS = 3
# Test, sizes in bytes, and the bars: the ratio to Open MPI that weft promises at a size.
TESTS = [
    ("put", [8, 64, 512, 4096, 65536, 1 << 20], {8: 0.40, 1 << 20: 1.02}),
    ("get", [8, 64, 512, 4096, 65536, 1 << 20], {8: 0.40}),
    ("put_nbi", [8, 4096], {8: 0.5}),
    ("get_nbi", [8, 4096], {}),
    ("fetch_add", [8], {8: 0.35}),
    ("cas", [8], {8: 0.35}),
    ("swap", [8], {}),
    ("add", [8], {}),
    ("fetch_add_self", [8], {}),
    ("cas_self", [8], {}),
    ("add_self", [8], {}),
    ("wait", [8], {8: 0.92}),
    ("put_signal", [8], {}),
    ("barrier", [8], {8: 0.65}),
    ("broadcast", [8, 65536], {65536: 0.35}),
    ("sum", [8, 65536], {65536: 0.3}),
]
# The same between hosts: the bars there, and the operations and trials of a run.
FAR_TESTS = [
    ("put", [8, 64, 512, 65536, 1 << 20], {}),
    ("get", [8, 64, 512, 65536, 1 << 20], {}),
    ("put_nbi", [8, 64, 4096], {8: 0.1}),
    ("get_nbi", [8, 4096], {}),
    ("fetch_add", [8], {8: 1.0}),
    ("cas", [8], {}),
    ("add", [8], {}),
    ("wait", [8], {}),
    ("barrier", [8], {}),
    ("broadcast", [8, 65536], {}),
    ("sum", [8, 65536], {}),
]
FAR_OPERATIONS = 64
FAR_TRIALS = 60
FAR_TRIALS_LONG = 5
# Exit code of measure.c for a test that this implementation has not.
CODE_NO_TEST = 4


def once(peer: peers.Peer, program: Path, test: str, size: int, more=()):
    """Nanoseconds of one operation; nothing where the implementation has no such call."""
    failed = ""
    for _ in range(1 + peer.retries):
        done = peer.run(2, [str(program), test, str(size), *more])
        if done.returncode == CODE_NO_TEST:
            return None
        lines = done.stdout.split()
        if done.returncode == 0 and lines:
            # Of many short trials on a machine that others use, the fast ones say what a call costs.
            return float(lines[0])
        failed = (f"{peer.name}: {test} {size}: exit status {done.returncode}: "
                  f"{done.stderr.strip()[-600:]}")
        if peer.retries:
            print(f"run.py: again, as it failed: {peer.name}: {test} {size}: exit status "
                  f"{done.returncode}", file=sys.stderr)
    raise RuntimeError(failed)


def turns(compared: list, programs: dict, test: str, size: int, count: int, more=()) -> dict:
    """The median of each implementation; they run in turns."""
    figures = {peer.name: [] for peer in compared}
    for _ in range(count):
        for peer in compared:
            figure = once(peer, programs[peer.name], test, size, more)
            if figure is not None:
                figures[peer.name].append(figure)
    return {name: statistics.median(values) for name, values in figures.items() if values}


def shown(value) -> str:
    return "-" if value is None else f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"


def row(cells: list) -> str:
    return f"{cells[0]:<16} {cells[1]:>9} " + " ".join(f"{cell:>12}" for cell in cells[2:])


def far_trials(size: int) -> list:
    """The operations of a trial and the number of trials between hosts."""
    trials = FAR_TRIALS if size <= 4096 else FAR_TRIALS_LONG
    return [str(FAR_OPERATIONS), str(trials)]


def compare(compared: list, programs: dict, only: list, count: int, tests=None) -> list:
    """Prints the table of prices; returns its rows."""
    names = [peer.name for peer in compared]
    print(row(["ns", "bytes", *names, "ratio", "bar"]))
    rows = []
    for test, sizes, bars in tests or TESTS:
        if only and test not in only:
            continue
        for size in sizes:
            more = far_trials(size) if tests else ()
            medians = turns(compared, programs, test, size, count, more)
            own, other = medians.get("weft"), medians.get("Open MPI")
            ratio = own / other if own and other else None
            bar = bars.get(size)
            verdict = "" if bar is None else f"<= {bar:.2f}"
            if ratio is not None and bar is not None and ratio > bar:
                verdict += " missed"
            cells = [test, str(size), *(shown(medians.get(name)) for name in names)]
            print(row([*cells, "-" if ratio is None else f"{ratio:.2f}", verdict]), flush=True)
            rows.append({"test": test, "bytes": size, "ns": medians, "ratio": ratio, "bar": bar})
    return rows


def places(compared: list, far: list, programs: dict, count: int) -> list:
    """One host, and the two namespaces if there are any."""
    def near_of(test: str, size: int) -> dict:
        return turns(compared, programs, test, size, count)

    def far_of(test: str, size: int) -> dict:
        return turns(far, programs, test, size, count, far_trials(size))

    found = [figures.Place("one host", compared, near_of)]
    return [*found, figures.Place("two namespaces", far, far_of)] if far else found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0],
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", action="store_true", help="install Open MPI with UCX first")
    parser.add_argument("--weft", help="the weft to measure [default: target/release/weft]")
    parser.add_argument("--only", default="", metavar="TESTS", help="these tests, with commas")
    parser.add_argument("--turns", type=int, default=TURNS, help="runs of each implementation")
    parser.add_argument("--without", default="", metavar="NAME", help="weft, or openmpi")
    parser.add_argument("--figures", type=Path, metavar="DIR", help="write tables and plots there")
    parser.add_argument("--hosts", action="store_true", help="a PE in each of two namespaces")
    parser.add_argument("--json", action="store_true", help="print the table as JSON, too")
    arguments = parser.parse_args()
    only = [test for test in arguments.only.split(",") if test]
    unknown = set(only) - {test for test, _, _ in TESTS + FAR_TESTS}
    if unknown:
        parser.error(f"no test is called {', '.join(sorted(unknown))}")
    try:
        if arguments.peers:
            peers.install()
        compared = []
        if arguments.without != "weft":
            compared.append(peers.weft(arguments.weft))
        if arguments.without != "openmpi":
            compared.append(peers.open_mpi())
        with tempfile.TemporaryDirectory() as directory:
            programs = {}
            for peer in compared:
                programs[peer.name] = Path(directory) / peer.name.replace(" ", "").lower()
                peer.build([SOURCE], programs[peer.name], ["-O2", "-Wno-deprecated-declarations"])
            far = []
            with contextlib.ExitStack() as stack:
                if arguments.hosts:
                    own = next((peer for peer in compared if peer.name == "weft"), None)
                    pair = stack.enter_context(hosts.Hosts(own and own.launcher[0]))
                    by_name = {"weft": pair.own, "Open MPI": pair.open_mpi}
                    far = [by_name[peer.name](peer) for peer in compared]
                if arguments.figures:
                    where = places(compared, far, programs, arguments.turns)
                    figures.draw(where, arguments.figures, only)
                    return 0
                tests = FAR_TESTS if far else None
                rows = compare(far or compared, programs, only, arguments.turns, tests)
            if arguments.json:
                print(json.dumps(rows, indent=2))
    except (Missing, RuntimeError) as error:
        print(f"run.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
