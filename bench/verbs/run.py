#!/usr/bin/env python3
"""Runs weft over verbs, without a card: guests in software emulation, Debian's kernel, and
soft-RoCE (rdma_rxe) on the interface of each.

In one guest the cases of `weft-e2e: libfabric` and `ofi`, the conformance suite, run over
`verbs;ofi_rxm`, and `weft info` and `weft perf` show what there is. Then two guests are joined by a
wire, and `fi_pingpong` checks it. Their daemons join, `weft perf` measures between them, and a file
crosses a connection of `nc` under `weft run`. Times are those of an emulated processor, not of a
card.

    bench/verbs/run.py --peers          installs what is missing (Debian, as root), runs all
    bench/verbs/run.py --only mailbox   cases of the suites whose name contains the word
    bench/verbs/run.py --guests 2       the steps of two guests alone

Nothing is left but the kernel's files, in target/verbs. It takes some twenty minutes.

exit status: 0 when nothing failed, 1 when something did or did not run, 2 for a mistake in the
arguments.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import image
from guest import Failed, Guest

ROOT = Path(__file__).resolve().parent.parent.parent
PLACE = ROOT / "target" / "verbs"
PROVIDER = "verbs;ofi_rxm"
STEP_S = 300
CASE_S = 600
LISTENS_S = 5
# Slower than a lane is made, so that most of the file goes over it: loading libfabric takes
# seconds here.
PIECES, PIECE_BYTES, PAUSE_S = 30, 1 << 15, 1


def build() -> list:
    """Builds weft and the conformance suite, and finds the programs."""
    command = ["cargo", "build", "--profile", "demo", "-p", "weft-cli", "-p", "weft-preload"]
    command += ["-p", "weft-e2e", "--lib", "--bin", "weft", "--test", "libfabric", "--test", "ofi"]
    command += ["--message-format", "json-render-diagnostics"]
    built = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE)
    made = [json.loads(line) for line in built.stdout.splitlines()]
    made = {one["target"]["name"]: one["filenames"][0] for one in made if one.get("filenames")}
    return [Path(made[name]) for name in ("weft", "libfabric", "ofi", "weft_preload")]


def say(text: str) -> None:
    print(text, flush=True)


def show(text: str) -> None:
    say(f"    {text}")


class Run:
    """The steps, and what came of them."""

    def __init__(self, programs: list, arguments: argparse.Namespace):
        self.weft, *self.suites, _ = (f"/bin/{program.name}" for program in programs)
        self.arguments = arguments
        self.passed, self.failed = [], []

    def step(self, name: str, work) -> None:
        """Does a step, and notes whether it raised Failed."""
        begin = time.monotonic()
        try:
            work()
            word = "ok"
            self.passed.append(name)
        except Failed as failure:
            word = f"FAILED: {failure}"
            self.failed.append(name)
        say(f"{name}: {word} ({time.monotonic() - begin:.1f} s)")

    def alone(self, guest: Guest) -> None:
        """The steps of one guest: both ends of each connection are on its card."""
        if not self.arguments.only:
            self.step("weft info", lambda: self.info(guest))
            perf = f"{self.weft} perf %s --transport ofi --provider '{PROVIDER}'"
            for test in ("latency", "put --size 1048576"):
                self.step(f"weft perf {test}", lambda: self.shown(guest, perf % test))
        env = f"WEFT_E2E_PROVIDERS='{PROVIDER}' WEFT_E2E_SOURCE={guest.address}"
        words = self.arguments.only or [""]
        for suite in self.suites:
            listed = guest.run(f"{env} {suite} --list", STEP_S)
            for case in re.findall(r"^(\w+): test$", listed, re.MULTILINE):
                if any(word in case for word in words):
                    command = f"{env} {suite} --exact {case}"
                    self.step(case, lambda: self.case(guest, command))

    def shown(self, guest: Guest, command: str) -> None:
        guest.run(command, STEP_S, show)

    def info(self, guest: Guest) -> None:
        printed = guest.run(f"{self.weft} info", STEP_S)
        listed = re.search(r"^libfabric.*?\n(?=\S)", printed, re.MULTILINE | re.DOTALL)
        if listed is None or PROVIDER not in listed.group():
            raise Failed(f"{PROVIDER} is not among what `weft info` lists:\n{printed}")
        for line in listed.group().splitlines():
            show(line)

    def case(self, guest: Guest, command: str) -> None:
        printed = guest.run(command, CASE_S, show if self.arguments.verbose else None)
        if "1 passed; 0 failed; 0 ignored" not in printed:
            raise Failed(f"it did not run:\n{printed}")

    def together(self, first: Guest, second: Guest) -> None:
        """The steps of two guests."""
        for size in (64, 1 << 20):
            self.step(f"fi_pingpong of {size} B", lambda: self.pingpong(first, second, size))
        self.step("the daemons join", lambda: self.join(first, second))
        serve = f"{self.weft} perf serve --provider '{PROVIDER}'"
        self.serve(second, "perf", serve, "grep -q 'serving node' /tmp/perf.told")
        for test in ("latency", "put --size 65536"):
            # The emulation may be too slow for the first call.
            perf = f"{self.weft} perf {test} --to 1 --runs 1 --provider '{PROVIDER}'"
            command = f"{perf} || {perf} || {perf}"
            self.step(f"weft perf {test} --to 1", lambda: self.shown(first, command))
        second.run("kill $(cat /tmp/perf.pid)", STEP_S)
        self.step("nc under weft run", lambda: self.copy(first, second))

    def join(self, first: Guest, second: Guest) -> None:
        """Has the daemons of both guests join."""
        key = first.run(f"{self.weft} fabric key", STEP_S)
        for guest, seeds in ((first, ""), (second, f"--fabric-seeds {first.address}:7700")):
            guest.run(f"umask 077; echo '{key}' >/tmp/key", STEP_S)
            options = f"--fabric-key /tmp/key --fabric-listen {guest.address}:7700 {seeds}"
            ready = "grep -q 'ready at' /tmp/daemon.told"
            self.serve(guest, "daemon", f"{self.weft} daemon {options}", ready)
        up = f"""{self.weft} fabric nodes --json | grep -q '"up"'"""
        for guest in (first, second):
            guest.run(f"until {up}; do sleep 1; done", STEP_S)
        second.run(f"{self.weft} fabric nodes", STEP_S, show)

    def serve(self, guest: Guest, name: str, command: str, ready: str) -> None:
        """Starts a command that stays, and waits until it is ready. Its words are in a file."""
        told = f"/tmp/{name}.told"
        guest.run(
            f"{command} >{told} 2>&1 & echo $! >/tmp/{name}.pid; "
            f"until {ready} || ! kill -0 $!; do sleep 1; done; "
            f"{ready} || {{ cat {told}; false; }}",
            STEP_S,
        )

    def copy(self, first: Guest, second: Guest) -> None:
        """A file goes from one guest to the other, and is the same there."""
        options = f"--stats --socket-between-hosts always --fabric-provider '{PROVIDER}'"
        run = f"{self.weft} run {options} --daemon-answer-ms 60000 -- nc"
        listens = "netstat -ltn | grep -q ':5000 '"
        # Where its input ends, nc ends the connection.
        second.run("mkfifo /tmp/open", STEP_S)
        self.serve(second, "nc", f"({run} -l -p 5000 <>/tmp/open >/tmp/copy)", listens)
        first.run(f"head -c {PIECES * PIECE_BYTES} /dev/urandom >/tmp/file", STEP_S)
        piece = f"dd if=/tmp/file bs={PIECE_BYTES} count=1 skip=$piece 2>/dev/null"
        pieces = f"for piece in $(seq 0 {PIECES - 1}); do {piece}; sleep {PAUSE_S}; done"
        told = first.run(f"({pieces}) | {run} {second.address} 5000", STEP_S, show)
        ended = "while kill -0 $(cat /tmp/nc.pid) 2>/dev/null; do sleep 1; done"
        second.run(f"{ended}; cat /tmp/nc.told", STEP_S, show)
        sums = [
            guest.run(f"sha256sum <{file}", STEP_S)
            for guest, file in ((first, "/tmp/file"), (second, "/tmp/copy"))
        ]
        if sums[0] != sums[1]:
            raise Failed(f"the copy differs: {sums}")
        sent = re.search(r"^fabric +[0-9]+ +([0-9.]+)", told, re.MULTILINE)
        if sent is None or float(sent.group(1)) == 0:
            raise Failed(f"nothing went over the fabric:\n{told}")

    def pingpong(self, first: Guest, second: Guest, size: int) -> None:
        command = f"fi_pingpong -p '{PROVIDER}' -e rdm -S {size} -I 100"
        first.start(command)
        # The client does not try again when nobody listens yet, and the shell of the first is busy.
        time.sleep(LISTENS_S)
        second.run(f"{command} {first.address}", STEP_S, show)
        first.finish(STEP_S)


def guests(run: Run, kernel: Path, packed: bytes, count: int) -> None:
    """Boots guests, joined if there are two, and runs the steps."""
    with tempfile.TemporaryDirectory(prefix="weft-verbs-") as directory, ExitStack() as stack:
        place = Path(directory)
        initial = place / "initrd"
        initial.write_bytes(packed)
        wire = place / "wire" if count > 1 else None
        booted = []
        for number in range(1, count + 1):
            log = place / f"kernel-{number}"
            booted.append(stack.enter_context(Guest(number, kernel, initial, log, wire)))
        for guest in booted:
            begin = time.monotonic()
            guest.ready()
            say(f"{guest.name} is up at {guest.address} ({time.monotonic() - begin:.1f} s)")
        (run.alone if count == 1 else run.together)(*booted)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", action="store_true", help="install what is missing")
    parser.add_argument("--only", metavar="WORD", action="append", help="cases named so")
    parser.add_argument("--guests", metavar="N", type=int, choices=(1, 2), help="steps of N alone")
    parser.add_argument("--verbose", action="store_true", help="show what each case prints")
    arguments = parser.parse_args()
    begin = time.monotonic()
    if arguments.peers:
        image.install(PLACE)
    try:
        kernel = image.kernel(PLACE)
        programs = build()
        run = Run(programs, arguments)
        packed = image.image(PLACE, programs)
        say(f"{kernel.name}, initial file system of {len(packed) >> 20} MB")
        both = (1,) if arguments.only else (1, 2)
        for count in (arguments.guests,) if arguments.guests else both:
            guests(run, kernel, packed, count)
    except image.Missing as missing:
        sys.exit(str(missing))
    except Failed as failure:
        say(f"FAILED: {failure}")
        run.failed.append("a guest")
    total = len(run.passed) + len(run.failed)
    if not total:
        parser.error("no case has that in its name")
    say(f"{len(run.passed)} of {total} passed in {time.monotonic() - begin:.0f} s")
    if run.failed:
        say("failed: " + ", ".join(run.failed))
    return 1 if run.failed else 0


if __name__ == "__main__":
    sys.exit(main())
