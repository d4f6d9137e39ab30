#!/usr/bin/env python3
"""Where the time of a message on a direct socket goes: instructions, copies, calls of the kernel.

For each size it prints, for one message from one program to another:

- the instructions of its sends and of its receives, by valgrind's callgrind;
- how many bytes the process stores for each byte of the message, by valgrind's lackey: 2 are a copy
  into the lane and one out of it;
- the calls of the kernel of both programs, and how many of these are wakeups, yields and fences, by
  strace. strace makes each call slow, so the programs sleep more than without it;
- its time one way, over weft and over kernel TCP, in turns.

    bench/account.py                         all sizes
    bench/account.py --size 64 --size 1024   some
    bench/account.py --weft PATH             another build than target/release/weft

Debian: valgrind and strace. The kernel's own copies and instructions are not counted: TCP has two
copies, too.
"""

import argparse
import collections
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from calls import DUMP, VECTORS
from measure import Missing, client, need

ROOT = Path(__file__).resolve().parent.parent
SIZES = (64, 1 << 10, 16 << 10, 128 << 10, 1 << 20)
# A run with three times as many messages less one with as many: what starts a program is gone.
TIMES = 3
STORE = re.compile(rb"^ [SM] [0-9a-f]+,(\d+)$", re.M)
CALL = re.compile(r"^ *[\d.]+ +[\d.]+ +\d+ +(\d+) .*?(\w+)$", re.M)
WAKES, YIELDS, FENCES = "sendto", "sched_yield", "membarrier"


class Account:
    """Measures one build."""

    def __init__(self, weft: Path, place: Path):
        self.run = [str(weft), "run", "--"]
        self.place, self.program = place, str(place / "account")
        flags = ["-O2", "-Wall", "-Wextra"]
        client(["cc", *flags, "-o", self.program, str(ROOT / "bench/account.c")])

    def instructions(self, size: int, count: int) -> dict:
        """Instructions of the sends and of the receives of a message."""
        for old in self.place.glob("counts*"):
            old.unlink()
        tool = [need("valgrind"), "--tool=callgrind", "--collect-atstart=no", "-q"]
        tool.append(f"--callgrind-out-file={self.place}/counts")
        self.counted([*tool, self.program, "self", str(size), str(count)])
        dumps = (DUMP.search(file.read_text()) for file in self.place.glob("counts.*"))
        return {dump[1]: int(dump[2]) / count for dump in dumps if dump}

    def stored(self, size: int, count: int) -> float:
        """Bytes that are stored for each byte of a message."""
        tool = [need("valgrind"), "--tool=lackey", "--trace-mem=yes", "--basic-counts=no"]
        tool.append(f"--log-file={self.place}/stores")
        found = []
        for messages in (count, TIMES * count):
            self.counted([*tool, self.program, "self", str(size), str(messages)])
            trace = (self.place / "stores").read_bytes()
            found.append(sum(int(length) for length in STORE.findall(trace)))
        # `self` does everything twice, once for the sends and once for the receives.
        return (found[1] - found[0]) / ((TIMES - 1) * count * size * 2)

    def counted(self, command: list) -> None:
        client([*self.run, *command], env={"GLIBC_TUNABLES": VECTORS}, within=600)

    def calls(self, size: int, count: int) -> collections.Counter:
        """Calls of the kernel of both programs for a message one way, by their names."""
        found = []
        for messages in (count, TIMES * count):
            tool = [need("strace"), "-f", "-c", "-o", f"{self.place}/calls"]
            client([*self.run, *tool, self.program, "pair", str(size), str(messages)])
            table = (self.place / "calls").read_text()
            found.append({name: int(times) for times, name in CALL.findall(table)})
        found[1].pop("total", None)
        per_message = {}
        for name, times in found[1].items():
            per_message[name] = (times - found[0].get(name, 0)) / ((TIMES - 1) * count * 2)
        # A call of the start may be missing in one of the runs.
        return collections.Counter({name: max(0.0, times) for name, times in per_message.items()})

    def time(self, size: int, count: int, turns: int) -> list:
        """Microseconds one way over weft and over TCP, medians of the turns."""
        command = [self.program, "pair", str(size), str(count)]
        turn = [[float(client([*way, *command])) for way in (self.run, [])] for _ in range(turns)]
        return [statistics.median(figures) for figures in zip(*turn, strict=True)]


def named(size: int) -> str:
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


def rows(account: Account, sizes: list, turns: int):
    for size in sizes:
        many = max(8, min(500, (4 << 20) // size))
        instructions = account.instructions(size, many)
        # Those of a start differ from run to run by more than a few messages make.
        calls = account.calls(size, max(many, 200))
        weft, tcp = account.time(size, 8 * many, turns)
        # A whole trace of memory is long: few messages suffice, each is as the one before.
        yield (
            named(size),
            f"{instructions['send']:,.0f}",
            f"{instructions['recv']:,.0f}",
            f"{account.stored(size, max(2, min(50, (256 << 10) // size))):.2f}",
            f"{calls.total():.2f}",
            *(f"{calls[name]:.2f}" for name in (WAKES, YIELDS, FENCES)),
            f"{weft:.2f}",
            f"{tcp:.2f}",
        )


HEAD = (
    *("size", "send", "recv", "stored B/B", "calls", "wakeups", "yields", "fences"),
    *("us", "us, TCP"),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--weft", type=Path, default=ROOT / "target/release/weft")
    parser.add_argument("--size", type=int, action="append", help="bytes of a message")
    parser.add_argument("--turns", type=int, default=5, help="how often a time is measured")
    arguments = parser.parse_args()
    weft = arguments.weft.resolve()
    if not weft.exists():
        sys.exit(f"{weft} is not there; build weft-cli and weft-preload with --release")
    os.environ.pop("WEFT_SOCKET", None)
    with tempfile.TemporaryDirectory(prefix="weft-account-") as place:
        os.environ["WEFT_DAEMON_SOCKET"] = f"{place}/node.sock"
        print("| " + " | ".join(HEAD) + " |")
        print("|" + "---|" * len(HEAD))
        try:
            for row in rows(Account(weft, Path(place)), arguments.size or SIZES, arguments.turns):
                print("| " + " | ".join(row) + " |", flush=True)
        except (Missing, RuntimeError, subprocess.SubprocessError) as error:
            sys.exit(f"not measured: {error}")
        finally:
            subprocess.run([str(weft), "down"], stderr=subprocess.DEVNULL, check=False)


if __name__ == "__main__":
    main()
