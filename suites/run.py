#!/usr/bin/env python3
"""Runs public test suites of network programs with and without weft, and prints the difference.

A test that fails only under weft is repeated alone, in both ways, so that one that is flaky
anyway is told from one that weft breaks. Most of these tests hold both ends of a connection in one
process; the column "share" says how much of their bytes went over the fabric all the same.

    suites/run.py --peers               installs the suites, then runs everything
    suites/run.py --list                says what there is
    suites/run.py --only test_socket    modules whose title contains the word
    suites/run.py --json                for scripts

Suites: CPython's own (Debian's libpython3.11-testsuite), those that the wheels of tornado, gevent
and twisted carry, and that of uvloop's source package. Everything that is started is ended when
its time is over.
"""

import argparse
import concurrent.futures
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

import catalog
from catalog import Missing, Module, Printed
from outcomes import Outcome

ROOT = Path(__file__).resolve().parent.parent
# Beside the programs of the build, which nobody commits.
PLACE = ROOT / "target" / "suites"
HANGS_MAX = 3
REPEATED_MAX = 40
TEXT_BYTES_MAX = 64 << 20
UNITS = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


# --- one run -------------------------------------------------------------------------------------


@dataclass
class Traffic:
    """What `weft run --stats` said: connections and bytes both ways."""

    fabric_connections: int = 0
    tcp_connections: int = 0
    fabric_bytes: int = 0
    tcp_bytes: int = 0

    def add(self, text: str) -> None:
        row = r"^(fabric|tcp) +(\d+) +(\d+) (\w+) +(\d+) (\w+)$"
        for kind, count, sent, unit, received, other in re.findall(row, text, re.M):
            total = int(sent) * UNITS.get(unit, 0) + int(received) * UNITS.get(other, 0)
            if kind == "fabric":
                self.fabric_connections += int(count)
                self.fabric_bytes += total
            else:
                self.tcp_connections += int(count)
                self.tcp_bytes += total

    @property
    def share(self) -> Optional[float]:
        total = self.fabric_bytes + self.tcp_bytes
        return self.fabric_bytes / total if total else None


@dataclass
class Run:
    """A module that ran in one of the two ways."""

    outcomes: dict = field(default_factory=dict)
    traffic: Traffic = field(default_factory=Traffic)
    seconds: float = 0.0
    problem: str = ""

    def count(self, result: str) -> int:
        return sum(outcome.result == result for outcome in self.outcomes.values())


def environment(node: Path) -> dict:
    """Without other configuration of weft, and with a node of this script's own."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("WEFT_") or name == "WEFT_LOG"
    }
    kept.pop("LD_PRELOAD", None)
    kept.pop("PYTHONPATH", None)
    return {
        **kept,
        "WEFT_DAEMON_SOCKET": str(node / "n.sock"),
        "XDG_CONFIG_HOME": str(node),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "LC_ALL": "C.UTF-8",
    }


def end(process: subprocess.Popen) -> None:
    """Ends a process and what it started in its session."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return
        try:
            process.wait(3)
        except subprocess.TimeoutExpired:
            continue


# What runs now, for an end before its time; and that it has come.
running = set()
stopping = threading.Event()


def execute(command: list, node: Path, limit_s: float) -> tuple:
    """Runs a command; returns what it printed, whether it ended in time, and its status."""
    with tempfile.TemporaryDirectory(prefix="suite-", dir=node, ignore_cleanup_errors=True) as work:
        # Through a file: a pipe stays open as long as any forgotten child.
        with open(node / f"{Path(work).name}.txt", "w+b") as printed:
            process = subprocess.Popen(
                command,
                cwd=work,
                env=environment(node),
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            running.add(process)
            if stopping.is_set():
                end(process)
            in_time = True
            try:
                process.wait(limit_s)
            except subprocess.TimeoutExpired:
                in_time = False
            end(process)
            running.discard(process)
            printed.seek(0)
            text = printed.read(TEXT_BYTES_MAX).decode("utf-8", "replace")
        os.unlink(printed.name)
    return text, in_time, process.returncode


@dataclass
class Runner:
    """How modules are run: the node, the command under test, the limits."""

    node: Path
    weft: Path
    limit_s: float
    keep: Optional[Path]
    python: str

    def run(self, module: Module, under_weft: bool, only: Optional[list] = None) -> Run:
        done, without = Run(), []
        start = time.monotonic()
        for _ in range(HANGS_MAX if module.can_leave_out and only is None else 1):
            hung = self.once(module, under_weft, without, only, done)
            if not hung:
                break
            without += hung
        done.seconds = time.monotonic() - start
        return done

    def once(self, module, under_weft, without, only, done: Run) -> list:
        """Runs a module once, adds to `done`, and returns the tests that did not end."""
        with tempfile.TemporaryDirectory(prefix="out-", dir=self.node) as directory:
            command = module.command(Path(directory), without, only)
            if under_weft:
                command = [str(self.weft), "run", "--stats", "--", *command]
            text, in_time, status = execute(command, self.node, self.limit_s)
            found = module.read(Printed(text, Path(directory)))
        if self.keep:
            way = "weft" if under_weft else "plain"
            with open(self.keep / f"{module.suite}-{module.name}.{way}.txt", "a") as log:
                log.write(f"$ {' '.join(command)}\n{text}\n")
        done.traffic.add(text)
        done.outcomes.update(found)
        hung = [name for name, outcome in found.items() if outcome.result == "hung"]
        if not found:
            lines = [line for line in text.splitlines() if line.strip()]
            done.problem = lines[-1][:200] if lines else "it printed nothing"
        if not in_time:
            done.problem = f"it did not end within {self.limit_s:.0f} s"
        elif status < 0:
            done.problem = f"it was ended by signal {-status}"
        return hung


# --- the difference ------------------------------------------------------------------------------


@dataclass
class Difference:
    """A test that failed under weft and not without."""

    name: str
    message: str
    # How often it failed of how many runs.
    weft: list = field(default_factory=lambda: [0, 0])
    plain: list = field(default_factory=lambda: [0, 0])

    @property
    def is_flaky_anyway(self) -> bool:
        return self.plain[0] > 0

    def __str__(self) -> str:
        ways = [f"{bad} of {all_} {way}" for (bad, all_), way in
                ((self.weft, "under weft"), (self.plain, "without"))]
        return f"{self.name}: failed {', '.join(ways)}: {self.message}"


@dataclass
class Result:
    """A module in both ways."""

    module: Module
    plain: Run = field(default_factory=Run)
    weft: Run = field(default_factory=Run)
    differences: list = field(default_factory=list)
    skipped_only_weft: list = field(default_factory=list)
    missing: str = ""

    @property
    def only_weft(self) -> list:
        return [found for found in self.differences if not found.is_flaky_anyway]

    @property
    def both(self) -> list:
        return [name for name, found in self.weft.outcomes.items()
                if found.is_bad and self.plain.outcomes.get(name, found).is_bad]

    @property
    def only_plain(self) -> list:
        return [name for name, found in self.plain.outcomes.items()
                if found.is_bad and not self.weft.outcomes.get(name, found).is_bad]

    def json(self) -> dict:
        traffic = self.weft.traffic
        return {
            "module": self.module.title,
            "missing": self.missing,
            "tests": len(self.weft.outcomes),
            "tests_plain": len(self.plain.outcomes),
            "passed": self.weft.count("ok"),
            "skipped": self.weft.count("skipped"),
            "only_weft": [vars(found) for found in self.only_weft],
            "flaky": [vars(found) for found in self.differences if found.is_flaky_anyway],
            "both": self.both,
            "only_plain": self.only_plain,
            "skipped_only_weft": self.skipped_only_weft,
            "traffic": {**vars(traffic), "share": traffic.share},
            "seconds": {"weft": self.weft.seconds, "plain": self.plain.seconds},
            "problems": [run.problem for run in (self.plain, self.weft) if run.problem],
        }


def compare(runner: Runner, module: Module, repeats: int) -> Result:
    result = Result(module)
    try:
        catalog.check(module, PLACE, runner.python)
    except Missing as missing:
        result.missing = str(missing)
        return result
    result.plain = runner.run(module, False)
    result.weft = runner.run(module, True)
    nothing = Outcome("failed", result.weft.problem or "it did not run")
    for name, plain in result.plain.outcomes.items():
        found = result.weft.outcomes.get(name, nothing)
        if plain.result == "ok" and found.is_bad:
            result.differences.append(Difference(name, found.message, [1, 1], [0, 1]))
        elif plain.result == "ok" and found.result == "skipped":
            result.skipped_only_weft.append(name)
    for found in result.differences[:REPEATED_MAX]:
        repeat(runner, module, found, repeats)
    return result


def repeat(runner: Runner, module: Module, found: Difference, repeats: int) -> None:
    """Runs one test alone again and again in both ways."""
    for _ in range(repeats):
        if stopping.is_set():
            return
        for under_weft, counts in ((True, found.weft), (False, found.plain)):
            outcome = runner.run(module, under_weft, [found.name]).outcomes.get(found.name)
            if outcome is not None:
                counts[0] += outcome.is_bad
                counts[1] += 1


# --- what is printed -----------------------------------------------------------------------------

HEADER = ("module", "tests", "passed", "only weft", "flaky", "both", "skipped", "fabric conn.",
          "tcp conn.", "share", "seconds")


def row(result: Result) -> tuple:
    traffic, weft = result.weft.traffic, result.weft
    share = "-" if traffic.share is None else f"{traffic.share:.1%}"
    flaky = len(result.differences) - len(result.only_weft) + len(result.only_plain)
    return (result.module.title, len(weft.outcomes), weft.count("ok"), len(result.only_weft),
            flaky, len(result.both), weft.count("skipped"), traffic.fabric_connections,
            traffic.tcp_connections, share, f"{result.plain.seconds:.0f}/{weft.seconds:.0f}")


def line(cells: tuple) -> str:
    widths = [44, 6, 7, 10, 6, 5, 8, 13, 10, 7, 9]
    first = str(cells[0]).ljust(widths[0])
    return first + "".join(str(cell).rjust(width) for cell, width in zip(cells[1:], widths[1:]))


def show(result: Result) -> None:
    if result.missing:
        print(f"{result.module.title:<44} missing: {result.missing}", flush=True)
        return
    print(line(row(result)), flush=True)
    for found in result.only_weft:
        print(f"    only under weft: {found}")
    for found in result.differences:
        if found.is_flaky_anyway:
            print(f"    flaky without weft: {found}")
    for name in result.skipped_only_weft:
        print(f"    skipped only under weft: {name}")
    for way, run in (("without", result.plain), ("under weft", result.weft)):
        if run.problem:
            print(f"    {way}: {run.problem}")


def total(results: list) -> int:
    """Prints the sums and returns how many tests fail only under weft."""
    failed = sum(len(result.only_weft) for result in results)
    all_ = Traffic()
    for result in results:
        for name, value in vars(result.weft.traffic).items():
            setattr(all_, name, getattr(all_, name) + value)
    sums = [sum(cells) for cells in zip(*[
        (len(r.weft.outcomes), r.weft.count("ok"), len(r.only_weft), row(r)[4], len(r.both),
         r.weft.count("skipped")) for r in results])] or [0] * 6
    share = "-" if all_.share is None else f"{all_.share:.1%}"
    print(line(("all", *sums, all_.fabric_connections, all_.tcp_connections, share, "")))
    print(f"\n{sums[1]} passed, {failed} failed only under weft")
    return failed


# --- the command ---------------------------------------------------------------------------------


def find_weft(given: Optional[str]) -> Path:
    path = Path(given) if given else ROOT / "target" / "release" / "weft"
    if not path.is_file():
        sys.exit(f"{path} is not there: build it with cargo build --release, or give --weft")
    return path.resolve()


class Node:
    """A node of this script's own, so that no other is disturbed."""

    def __init__(self, weft: Path):
        self.directory = Path(tempfile.mkdtemp(prefix="weft-suites-"))
        self.directory.chmod(0o755)
        self.daemon = subprocess.Popen(
            [str(weft), "daemon"],
            env=environment(self.directory),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        deadline = time.monotonic() + 10
        while not (self.directory / "n.sock").exists():
            if self.daemon.poll() is not None or time.monotonic() > deadline:
                self.close()
                sys.exit("the node daemon does not start")
            time.sleep(0.01)

    def close(self) -> None:
        end(self.daemon)
        shutil.rmtree(self.directory, ignore_errors=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", action="store_true", help="install the suites first")
    parser.add_argument("--list", action="store_true", help="print the modules and stop")
    parser.add_argument(
        "--only", action="append", default=[], metavar="WORD",
        help="modules whose title contains the word, or is it; can be given more than once",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document at the end")
    parser.add_argument("--weft", metavar="PATH", help="the program (default: target/release/weft)")
    parser.add_argument("--python", metavar="PATH", default=catalog.INTERPRETER,
                        help="whose own tests CPython's are (default: Debian's)")
    parser.add_argument("--repeat", type=int, default=3, metavar="N",
                        help="runs of a test that failed only under weft (default: 3)")
    parser.add_argument("--limit", type=float, default=600, metavar="S",
                        help="seconds for one run of one module (default: 600)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N",
                        help="modules at once (default: 1)")
    parser.add_argument("--keep", metavar="DIRECTORY", help="keep there what the runs print")
    return parser.parse_args()


def wanted(module: Module, words: list) -> bool:
    return any(word in module.title for word in words)


def main() -> int:
    given = arguments()
    # A run is ended by its runner first, which says what it was at.
    modules = catalog.modules(PLACE, int(given.limit * 0.9), given.python)
    # A word that is a whole title means that module alone.
    exact = [word for word in given.only if word in [module.title for module in modules]]
    loose = [word for word in given.only if word not in exact]
    modules = [module for module in modules
               if not given.only or module.title in exact or loose and wanted(module, loose)]
    if given.list:
        print("\n".join(module.title for module in modules))
        return 0
    weft = find_weft(given.weft)
    if given.peers:
        catalog.install(PLACE)
    keep = Path(given.keep) if given.keep else None
    if keep:
        keep.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside"))
    node = Node(weft)
    results = []
    pool = concurrent.futures.ThreadPoolExecutor(max(1, given.jobs))
    try:
        runner = Runner(node.directory, weft, given.limit, keep, given.python)
        if not given.json:
            print(line(HEADER), flush=True)
        waiting = [pool.submit(compare, runner, each, given.repeat) for each in modules]
        for done in concurrent.futures.as_completed(waiting):
            results.append(done.result())
            if not given.json:
                show(results[-1])
    finally:
        # A second one must not keep this from being done.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        stopping.set()
        pool.shutdown(wait=False, cancel_futures=True)
        for process in list(running):
            end(process)
        node.close()
    if given.json:
        print(json.dumps([result.json() for result in results], indent=1))
        return int(any(result.only_weft for result in results))
    return int(total(results) > 0)


if __name__ == "__main__":
    sys.exit(main())
