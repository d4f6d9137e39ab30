#!/usr/bin/env python3
"""The package for Python: puts of NumPy beside `weft perf put`, and messages beside pyzmq.

    cargo build --release -p weft-cli -p weft-python
    bench/python.py

Needs NumPy and pyzmq (Debian: python3-numpy, python3-zmq). Both sides of a row are measured in
turns, in one run; the ratio is the median of the turns' ratios, above 1 where weft for Python is
better. The puts are between two processes. A row of messages counts those of 8 bytes that one
process or thread sends and another one receives; those of weft are between two processes, in the
row with `inproc`, too.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from measure import compare

ROOT = Path(__file__).resolve().parent.parent
GIB = 1 << 30
PUTS = 4
MESSAGES = 200_000
# How long an end waits for the other one, seconds.
PATIENCE = 60


def package(target: Path, directory: Path) -> None:
    """Makes the package of the module that cargo built."""
    (directory / "weft").mkdir()
    for file in (ROOT / "crates/surfaces/python/weft").iterdir():
        if file.is_file():
            (directory / "weft" / file.name).symlink_to(file)
    (directory / "weft/_weft.abi3.so").symlink_to(target / "lib_weft.so")


def child(role: str, *arguments: str) -> subprocess.Popen:
    """This program as the other process."""
    command = [sys.executable, __file__, "--role", role, *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


CORES = sorted(os.sched_getaffinity(0))


def pinned(number: int) -> None:
    """Keeps this thread on a processor of its own, as `weft perf` does its ends."""
    os.sched_setaffinity(0, {CORES[number % len(CORES)]})


def owner() -> None:
    import weft

    pinned(1)
    with weft.Endpoint("bench owner") as endpoint:
        memory = endpoint.register(GIB)
        print(endpoint.address, int(memory.grant()), flush=True)
        sys.stdin.readline()


def receiver() -> None:
    import weft

    with weft.Endpoint("bench receiver") as endpoint:
        print(endpoint.address, flush=True)
        for _ in range(MESSAGES):
            message = endpoint.receive(PATIENCE)
        message.peer.send(b"all")
        sys.stdin.readline()


def zmq_receiver(address: str) -> None:
    import zmq

    with zmq.Context() as context, context.socket(zmq.PAIR) as socket:
        socket.connect(address)
        for _ in range(MESSAGES):
            socket.recv()
        socket.send(b"all")
        sys.stdin.readline()


def put() -> float:
    """GB/s of puts of 1 GiB of NumPy. The first one finds the pages."""
    import numpy

    import weft

    array = numpy.ones(GIB // 8)
    with weft.Endpoint("bench") as endpoint, child("owner") as other:
        address, key = other.stdout.readline().split()
        peer = endpoint.connect(address)
        pinned(0)
        peer.put(array, int(key), timeout=PATIENCE)
        times = []
        for _ in range(PUTS):
            begun = time.perf_counter()
            peer.put(array, int(key), timeout=PATIENCE)
            times.append(time.perf_counter() - begun)
        other.stdin.close()
    os.sched_setaffinity(0, CORES)
    return GIB / statistics.median(times) / 1e9


def perf_put(weft: Path) -> float:
    command = [weft, "perf", "put", f"--size={GIB}", "--runs=1", f"--iterations={PUTS}", "--json"]
    told = subprocess.run(command, check=True, timeout=300, capture_output=True, text=True).stdout
    return json.loads(told)["median"]


def messages() -> float:
    import weft

    with weft.Endpoint("bench") as endpoint, child("receiver") as other:
        peer = endpoint.connect(other.stdout.readline().strip())
        payload = bytes(8)
        begun = time.perf_counter()
        for _ in range(MESSAGES):
            peer.send(payload)
        endpoint.receive(PATIENCE)
        took = time.perf_counter() - begun
        other.stdin.close()
    return MESSAGES / took


def zmq_messages(is_ipc: bool) -> float:
    import zmq

    with ExitStack() as stack:
        context = stack.enter_context(zmq.Context())
        socket = stack.enter_context(context.socket(zmq.PAIR))
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="weft-python-"))
        address = f"ipc://{folder}/s" if is_ipc else "inproc://bench"
        socket.bind(address)
        if is_ipc:
            other = stack.enter_context(child("zmq-receiver", address))
            stack.callback(other.stdin.close)
        else:
            thread = threading.Thread(target=zmq_thread, args=(context, address))
            thread.start()
            stack.callback(thread.join)
        payload = bytes(8)
        begun = time.perf_counter()
        for _ in range(MESSAGES):
            socket.send(payload)
        socket.recv()
        return MESSAGES / (time.perf_counter() - begun)


def zmq_thread(context, address: str) -> None:
    import zmq

    with context.socket(zmq.PAIR) as socket:
        socket.connect(address)
        for _ in range(MESSAGES):
            socket.recv()
        socket.send(b"all")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", type=Path, default=ROOT / "target/release")
    parser.add_argument("--turns", type=int, default=11, help="how often each is measured at most")
    parser.add_argument("--width", type=float, default=0.04, help="how wide an interval is enough")
    parser.add_argument("--role", help=argparse.SUPPRESS)
    parser.add_argument("address", nargs="?", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role:
        roles = {"owner": owner, "receiver": receiver,
                 "zmq-receiver": partial(zmq_receiver, arguments.address)}
        roles[arguments.role]()
        return
    weft = arguments.target.resolve() / "weft"
    for file in (weft, weft.with_name("lib_weft.so")):
        if not file.exists():
            sys.exit(f"no {file}: cargo build --release -p weft-cli -p weft-python")
    with tempfile.TemporaryDirectory(prefix="weft-python-") as folder:
        package(arguments.target.resolve(), Path(folder))
        os.environ["PYTHONPATH"] = folder
        sys.path.insert(0, folder)
        os.environ["WEFT_DAEMON_SOCKET"] = f"{folder}/n.sock"
        daemon = subprocess.Popen([weft, "daemon"], stderr=subprocess.DEVNULL)
        try:
            while not Path(f"{folder}/n.sock").exists() and daemon.poll() is None:
                time.sleep(0.01)
            rows = [
                ("put of 1 GiB, GB/s, beside weft perf put", put, partial(perf_put, weft)),
                ("8 B messages/s, beside pyzmq ipc", messages, partial(zmq_messages, True)),
                ("8 B messages/s, beside pyzmq inproc", messages, partial(zmq_messages, False)),
            ]
            for name, own, peer in rows:
                row = compare(peer, own, arguments)
                print(f"{name:<42} {row['other']:>12.3f} {row['one']:>12.3f} "
                      f"{row['ratio']:>7.3f} ({row['low']:.3f} to {row['high']:.3f}) "
                      f"{row['turns']:>3} turns", flush=True)
        finally:
            daemon.terminate()
            daemon.wait()


if __name__ == "__main__":
    main()
