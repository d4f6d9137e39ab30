#!/usr/bin/env python3
"""Runs programs on the preload library under sanitizers and valgrind, and prints what they found.

    suites/sanitize.py                    everything, on a few seeds
    suites/sanitize.py --only address     address, thread or valgrind alone
    suites/sanitize.py --seeds 1..40      other seeds of the torture program

address and thread build the library anew with rustc's instrumentation (its own code, not the
standard library's) and the C programs with gcc's; the runtime is gcc's. valgrind takes the
release build as it is, under programs of others: curl, redis and this directory's torture.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "target"
PROGRAMS = ROOT / "crates/e2e/programs"
WEFT = TARGET / "release/weft"
TRIPLE = "x86_64-unknown-linux-gnu"
LIMIT = 900
REPORTED = 99
COLD = {"WEFT_SOCKET_SWITCH_CALLS": "0", "WEFT_SOCKET_SWITCH_WAIT_US": "5000000"}


class Failed(Exception):
    """What was found, or why it could not be looked for."""


def call(command, **options):
    print("$", " ".join(str(word) for word in command), flush=True)
    return subprocess.run([str(word) for word in command], **options)


def built(sanitizer):
    """The preload library with the sanitizer's checks."""
    directory = TARGET / f"{sanitizer}-sanitizer"
    flags = f"-Zsanitizer={sanitizer} -Cunsafe-allow-abi-mismatch=sanitizer -Cdebuginfo=1"
    environment = dict(
        os.environ, RUSTC_BOOTSTRAP="1", RUSTFLAGS=flags, CARGO_TARGET_DIR=str(directory)
    )
    command = "cargo build --release -q -p weft-preload --target".split() + [TRIPLE]
    if call(command, cwd=ROOT, env=environment).returncode:
        raise Failed("the library does not build")
    return directory / TRIPLE / "release/libweft_preload.so"


def compiled(name, place, *options):
    binary = place / Path(name).stem
    command = ["gcc", "-O1", "-g", "-pthread", *options, PROGRAMS / name, "-o", binary]
    if call(command).returncode:
        raise Failed(f"{name} does not compile")
    return binary


def under_weft(place, words, environment, limit=LIMIT):
    """Runs `words` under `weft run`; raises with its output when it or a checker complains."""
    logs = place / "logs"
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir()
    everything = {
        **os.environ,
        "WEFT_DAEMON_SOCKET": str(place / "n.sock"),
        **{name: value.replace("LOGS", str(logs / "log")) for name, value in environment.items()},
    }
    try:
        ended = call(
            [WEFT, "run", "--stats", "--", *words],
            env=everything,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit,
        )
    except subprocess.TimeoutExpired as late:
        raise Failed(f"not over after {limit} s: {late.stdout!r} {late.stderr!r}") from late
    reports = [path.read_text(errors="replace") for path in sorted(logs.iterdir())]
    found = "\n".join(report for report in reports if report.strip())
    if ended.returncode or found:
        raise Failed(f"status {ended.returncode}\n{ended.stdout}{ended.stderr}{found}")
    share = [line for line in ended.stderr.splitlines() if line.startswith(("fabric", "tcp "))]
    print("   ", ended.stdout.strip().splitlines()[-1:], share, flush=True)


def address(place, seeds):
    library = built("address")
    options = "verify_asan_link_order=0:detect_leaks=1:detect_stack_use_after_return=1"
    environment = {
        "WEFT_PRELOAD": str(library),
        "ASAN_OPTIONS": f"{options}:exitcode={REPORTED}:log_path=LOGS",
    }
    check = ["-fsanitize=address"]
    for name in "cancelled.c", "handlers.c", "exiting.c":
        under_weft(place, [compiled(name, place, *check)], environment)
    torture = compiled("torture.c", place, *check)
    for seed in seeds:
        for surroundings in {}, COLD:
            under_weft(place, [torture, seed, 1000, 3], {**environment, **surroundings})


def thread(place, seeds):
    library = built("thread")
    suppressions = ROOT / "xtask/thread-sanitizer.suppressions"
    environment = {
        "WEFT_PRELOAD": str(library),
        "TSAN_OPTIONS": f"suppressions={suppressions}:exitcode={REPORTED}:log_path=LOGS",
    }
    torture = compiled("torture.c", place, "-fsanitize=thread")
    for seed in seeds:
        for surroundings in {}, COLD:
            # Without its layout of addresses at random, which the runtime may not cope with.
            words = ["setarch", "-R", torture, seed, 500, 3, "together"]
            under_weft(place, words, {**environment, **surroundings})


def valgrind(place, seeds):
    check = ["valgrind", "--quiet", f"--error-exitcode={REPORTED}", "--log-file=LOGS.%p"]
    check = [word.replace("LOGS", str(place / "logs/log")) for word in check]
    torture = compiled("torture.c", place)
    for seed in list(seeds)[:2]:
        for surroundings in {}, COLD:
            under_weft(place, [*check, torture, seed, 200, 2, "together"], surroundings)
    with tempfile.TemporaryDirectory(dir=place) as directory:
        (Path(directory) / "file").write_bytes(os.urandom(20_000_000))
        # Both ends in one run, so that all of it is under valgrind, server and client.
        http = f"""
            {' '.join(check)} redis-server --port 7391 --save '' --daemonize no >/dev/null &
            server=$!
            until redis-cli -p 7391 ping >/dev/null 2>&1; do sleep 0.2; done
            {' '.join(check)} redis-benchmark -p 7391 -c 8 -n 4000 -q -t set,get,lrange_100 &&
            redis-cli -p 7391 shutdown nosave; wait $server &&
            {{ python3 -m http.server -b 127.0.0.1 -d {directory} 7392 >/dev/null 2>&1 &
               python=$!; sleep 1.5
               {' '.join(check)} curl -s http://127.0.0.1:7392/file | cmp - {directory}/file
               status=$?; kill $python; exit $status; }}
        """
        under_weft(place, ["sh", "-c", http], COLD)


KINDS = {"address": address, "thread": thread, "valgrind": valgrind}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=KINDS, action="append")
    parser.add_argument("--seeds", default="1..7", metavar="FROM..TO")
    arguments = parser.parse_args()
    first, last = (int(number) for number in arguments.seeds.split(".."))
    missing = [tool for tool in ("gcc", "valgrind", "redis-server") if not shutil.which(tool)]
    if missing:
        sys.exit(f"{', '.join(missing)} not installed: apt-get install gcc valgrind redis-server")
    if call(["cargo", "build", "--release", "-q", "-p", "weft-preload", "-p", "weft-cli"], cwd=ROOT).returncode:
        sys.exit("weft does not build")
    failed = []
    with tempfile.TemporaryDirectory(prefix="weft-sanitize-") as name:
        place = Path(name)
        for kind in arguments.only or KINDS:
            print(f"=== {kind}", flush=True)
            try:
                KINDS[kind](place, range(first, last))
                print(f"{kind}: nothing found", flush=True)
            except Failed as what:
                print(f"{kind}: FAILED: {what}", flush=True)
                failed.append(kind)
        subprocess.run([WEFT, "down"], env={**os.environ, "WEFT_DAEMON_SOCKET": str(place / "n.sock")})
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
