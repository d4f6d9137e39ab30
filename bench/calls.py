#!/usr/bin/env python3
"""Two builds of weft beside each other: how many instructions a call takes on a lane.

A shared machine moves times by tens of per cent. A count of instructions is the same in each run,
to a thousandth. `calls.c` sends, polls and receives on a connection with itself under `weft run`
and valgrind's callgrind (Debian: valgrind), which counts the instructions of the process, not
those of the kernel. A count does not see misses of caches, nor other processes and threads that
use the same lines, nor how long a call waits.

    bench/calls.py OLD/target/release/weft
    bench/calls.py OLD/target/release/weft --count 10000
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from measure import Missing, client, need

ROOT = Path(__file__).resolve().parent.parent
# The C library copies long blocks by `rep movsb`, of which callgrind counts an instruction a byte.
# A processor moves many bytes at once there. Copies by vectors count like other instructions.
VECTORS = "glibc.cpu.x86_rep_movsb_threshold=1000000000"
DUMP = re.compile(r"^desc: Trigger: Client Request: (.+)$(?s:.*?)^summary: (\d+)$", re.M)
# The row of an empty loop: the instructions of the marks, which are in each row.
MARKS = "nothing"


def count(weft: Path, node: str, program: Path, calls: int) -> dict:
    """The instructions of each call, by its name."""
    callgrind = [need("valgrind"), "--tool=callgrind", "--collect-atstart=no", "-q"]
    with tempfile.TemporaryDirectory(prefix="weft-calls-") as place:
        callgrind.append(f"--callgrind-out-file={place}/counts")
        statistics = Path(place) / "statistics"
        start = [str(weft), "run", "--node", node, "--stats", "--"]
        with statistics.open("w") as file:
            subprocess.run(
                [*start, *callgrind, str(program), str(calls)],
                env={**os.environ, "GLIBC_TUNABLES": VECTORS},
                stderr=file,
                timeout=600,
                check=True,
            )
        lane = re.search(r"^fabric +(\d+)", statistics.read_text(), re.M)
        if lane is None or int(lane[1]) != 2:
            raise RuntimeError(f"{weft}: the connection is not on the fabric")
        dumps = (file.read_text() for file in Path(place).glob("counts.*"))
        found = dict(dump.groups() for dump in map(DUMP.search, dumps) if dump)
    return {name: (int(all_) - int(found[MARKS])) / calls for name, all_ in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path, help="the command of the old build")
    parser.add_argument("--new", type=Path, default=ROOT / "target/release/weft")
    parser.add_argument("--count", type=int, default=1000, help="how many calls count")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="weft-calls-") as place:
        program = Path(place) / "calls"
        flags = ["-O2", "-Wall", "-Wextra", "-pthread"]
        client(["cc", *flags, "-o", str(program), str(ROOT / "bench/calls.c")])
        sides = []
        for node, path in (("old-build", arguments.old), ("new-build", arguments.new)):
            path = path.resolve()
            if not path.exists():
                sys.exit(f"{path} is not there; build weft-cli and weft-preload with --release")
            # A daemon for each: two releases may not understand each other.
            try:
                sides.append(count(path, node, program, arguments.count))
            except Missing:
                sys.exit("valgrind is not installed; Debian: apt install valgrind")
            except (RuntimeError, subprocess.SubprocessError) as error:
                sys.exit(f"not measured: {error}")
            finally:
                subprocess.run([str(path), "down", "--node", node], check=False)
    old, new = sides
    print(f"{'instructions a call':<28} {'old':>10} {'new':>10}   new/old")
    for name in sorted(old.keys() & new.keys() - {MARKS}):
        print(f"{name:<28} {old[name]:>10.1f} {new[name]:>10.1f} {new[name] / old[name]:>9.3f}")


if __name__ == "__main__":
    main()
