#!/usr/bin/env python3
"""Collectives of long data between two hosts, by the bytes that cross the network and by time: one
build of weft's OpenSHMEM beside others, in turns, with several PEs on each of two network
namespaces with a cable (as root).

    bench/shmem/leaders.py                            the build in target/release
    bench/shmem/leaders.py --libraries old,new        the libweft_shmem.so in these directories
    bench/shmem/leaders.py --pes 4 --only sum,alltoall --sizes 1024,1048576

The bytes of an operation are those of both directions, with all headers, less those of a run
without trials. Some runs send thousands of small segments more: the least of the turns counts. The
bytes hardly depend on the load of the machine; the times do.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

import hosts
import peers
from measure import Missing

SOURCE = Path(__file__).with_name("leaders.c")
TESTS = ["fcollect", "alltoall", "broadcast", "sum", "sum_double"]
SIZES = [1024, 65536, 1 << 20]
# Operations of a trial, and trials: a run takes about a second.
TRIALS = {1024: (50, 20), 65536: (10, 10), 1 << 20: (3, 5)}


def run(peer: peers.Peer, network: hosts.Hosts, pes: int, command: list) -> tuple:
    """The words that a run prints, and the bytes that crossed."""
    before = network.sent()
    done = peer.run(pes, command)
    if done.returncode != 0:
        raise RuntimeError(f"exit status {done.returncode}: {done.stderr.strip()[-600:]}")
    return done.stdout.split(), network.sent() - before


def measure(builds: dict, network: hosts.Hosts, pes: int, words: list, turns: int) -> list:
    """Microseconds and KiB of an operation, of each build; they run in turns."""
    operations, trials = TRIALS.get(int(words[-1]), (10, 10))
    idle = {name: min(run(peer, network, pes, [*words, str(operations), "0"])[1]
                      for _ in range(turns)) for name, peer in builds.items()}
    found = {name: [] for name in builds}
    for _ in range(turns):
        for name, peer in builds.items():
            printed, crossed = run(peer, network, pes, [*words, str(operations), str(trials)])
            each = (crossed - idle[name]) / (operations * trials)
            found[name].append((float(printed[0]) / 1000, each / 1024))
    return [(statistics.median(us for us, _ in figures), min(each for _, each in figures))
            for figures in found.values()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--weft", help="the weft that launches [default: target/release/weft]")
    parser.add_argument("--libraries", default="", metavar="DIRS", help="builds, with commas")
    parser.add_argument("--pes", type=int, default=4, help="PEs of each host [default: 4]")
    parser.add_argument("--only", default=",".join(TESTS), metavar="TESTS")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), metavar="BYTES")
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    libraries = [Path(name).resolve() for name in arguments.libraries.split(",") if name]
    try:
        weft = peers.weft(arguments.weft)
        with tempfile.TemporaryDirectory() as directory:
            program = Path(directory) / "leaders"
            weft.build([SOURCE], program, ["-std=gnu11", "-O2"])
            with hosts.Hosts(weft.launcher[0]) as network:
                own = network.own(weft, arguments.pes)
                builds = {"weft": own}
                if libraries:
                    builds = {path.name: peers.Peer(path.name, [], [], own.launcher,
                                                    {"LD_LIBRARY_PATH": str(path)})
                              for path in libraries}
                print(f"2 hosts with {arguments.pes} PEs each: us, KiB that cross")
                print(f"{'':<12} {'bytes':>8} " + " ".join(f"{name:>20}" for name in builds))
                for test in arguments.only.split(","):
                    for size in map(int, arguments.sizes.split(",")):
                        figures = measure(builds, network, 2 * arguments.pes,
                                          [str(program), test, str(size)], arguments.turns)
                        cells = [f"{us:,.1f} {kibibytes:,.1f}" for us, kibibytes in figures]
                        print(f"{test:<12} {size:>8} " + " ".join(f"{cell:>20}" for cell in cells),
                              flush=True)
    except (Missing, RuntimeError) as error:
        print(f"leaders.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
