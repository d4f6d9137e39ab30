#!/usr/bin/env python3
"""Runs programs on the preload library under sanitizers and valgrind, and prints what they found.

    suites/sanitize.py                    everything, on a few seeds
    suites/sanitize.py --only address     address, thread or valgrind alone
    suites/sanitize.py --seeds 1..40      other seeds of the torture program

address and thread build the library anew with rustc's instrumentation (its own code, not the
standard library's) and the C programs with gcc's. valgrind takes the
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
PROGRAMS = ROOT / "crates/tests/e2e/programs"
WEFT = TARGET / "release/weft"
TRIPLE = "x86_64-unknown-linux-gnu"
LIMIT = 900
REPORTED = 99
COLD = {"WEFT_SOCKET_SWITCH_CALLS": "0", "WEFT_SOCKET_SWITCH_WAIT_US": "5000000"}

# The runtime of ThreadSanitizer takes these calls first and, until they return, every atomic
# operation for none. So the program's own go straight to the library's functions.
CALLS = """accept bind close connect dup epoll_create1 epoll_ctl epoll_wait fcntl getsockname ioctl
    listen pipe poll preadv2 pwritev2 read readv recv recvfrom recvmsg select send sendfile
    sendmmsg sendmsg sendto shutdown socket socketpair splice write writev""".split()
DIRECT = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#define DIRECT(name)                                                                       \\
    static void *place_##name;                                                             \\
    __attribute__((constructor)) static void find_##name(void)                             \\
    {                                                                                      \\
        void *library = dlopen(getenv("WEFT_PRELOAD"), RTLD_NOLOAD | RTLD_LAZY);           \\
        place_##name = library ? dlsym(library, #name) : NULL;                             \\
        if (!place_##name)                                                                 \\
            abort();                                                                       \\
    }                                                                                      \\
    __attribute__((naked)) void direct_##name(void)                                        \\
    {                                                                                      \\
        __asm__("jmp *%0" : : "m"(place_##name));                                          \\
    }
"""


class Failed(Exception):
    """The finds, or why nothing could be looked for."""


def call(command, **options):
    print("$", " ".join(str(word) for word in command), flush=True)
    return subprocess.run([str(word) for word in command], **options)


def built(sanitizer):
    """The preload library with the sanitizer's checks."""
    directory = TARGET / f"{sanitizer}-sanitizer"
    flags = f"-Zsanitizer={sanitizer} -Cunsafe-allow-abi-mismatch=sanitizer -Cdebuginfo=1"
    # Hooks that call each other do not go through the runtime's own.
    flags += " -Clink-arg=-Wl,-Bsymbolic-functions"
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
    lines = [line for log in sorted(logs.iterdir()) for line in open(log, errors="replace")]
    # valgrind begins those about itself, like calls of the kernel that it does not know, with --.
    found = "".join(line for line in lines if line.strip() and not line.startswith("--"))
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
    # Not cancelled.c: a thread that is cancelled leaves its stack marked as if it were in use.
    for name in "handlers.c", "exiting.c":
        under_weft(place, [compiled(name, place, *check)], environment)
    torture = compiled("torture.c", place, *check)
    for seed in seeds:
        for surroundings in {}, COLD:
            under_weft(place, [torture, seed, 1000, 3], {**environment, **surroundings})


def thread(place, seeds):
    library = built("thread")
    suppressions = ROOT / "xtask/thread-sanitizer.suppressions"
    # Its handlers are installed through our hooks, before those may be entered.
    early = ":".join(f"handle_{what}=0" for what in ("segv", "sigbus", "abort", "sigill", "sigfpe"))
    # The program that would name the places would get the library loaded into it, too.
    early += ":symbolize=0"
    environment = {
        "WEFT_PRELOAD": str(library),
        "TSAN_OPTIONS": f"{early}:suppressions={suppressions}:exitcode={REPORTED}:log_path=LOGS",
    }
    # rustc's own runtime: gcc's lacks calls that its code makes.
    sysroot = subprocess.run(["rustc", "--print", "sysroot"], capture_output=True, text=True)
    libraries = Path(sysroot.stdout.strip()) / f"lib/rustlib/{TRIPLE}/lib"
    runtime = next(libraries.glob("librustc*_rt.tsan.a"), None)
    if runtime is None:
        raise Failed(f"rustc brings no runtime: {libraries}/librustc*_rt.tsan.a is missing")
    torture = compiled("torture.c", place, "-fsanitize=thread", "-c")
    direct = place / "direct.c"
    direct.write_text(DIRECT + "".join(f"DIRECT({name})\n" for name in CALLS))
    renamed = [f"--redefine-sym={name}=direct_{name}" for name in CALLS]
    if call(["objcopy", *renamed, torture]).returncode:
        raise Failed("torture's calls cannot be renamed")
    program = place / "torture-thread"
    link = ["gcc", torture, direct, "-o", program, "-rdynamic", "-Wl,--whole-archive", runtime]
    if call([*link, "-Wl,--no-whole-archive", "-pthread", "-ldl", "-lm", "-lrt"]).returncode:
        raise Failed("torture.c does not link")
    for seed in seeds:
        for surroundings in {}, COLD:
            words = [program, seed, 500, 3, "together"]
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
