#!/usr/bin/env python3
"""Measures what many idle connections between two processes cost under weft beyond plain TCP:
memory of both processes and the daemon, processor time, and the time to open them all.

    bench/many.py                       10,000 connections, each used before it rests
    bench/many.py --connections 2000    others
"""

import argparse
import os
import resource
import select
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from compare import find_weft

EXCHANGES = 8
# Ports that one address has, more or less.
CONNECTIONS_MAX = 20_000
IDLE_S = 5


def allow_descriptors(count: int) -> None:
    wanted = count + 1000
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, wanted))


def serve(count: int) -> None:
    """Answers every byte, on `count` connections; ends when the last is closed."""
    allow_descriptors(count)
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    print(listener.getsockname()[1], flush=True)
    poller = select.epoll()
    connections = {}
    for _ in range(count):
        connection, _ = listener.accept()
        connections[connection.fileno()] = connection
        poller.register(connection, select.EPOLLIN)
    while connections:
        for number, _ in poller.poll():
            data = connections[number].recv(4096)
            if data:
                connections[number].sendall(data)
            else:
                poller.unregister(number)
                connections.pop(number).close()


def ask(count: int, port: int) -> None:
    """Opens and uses `count` connections, says how long that took, and keeps them."""
    allow_descriptors(count)
    begin = time.monotonic()
    connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
    opened = time.monotonic() - begin
    for connection in connections:
        for _ in range(EXCHANGES):
            connection.sendall(bytes(100))
            left = 100
            while left:
                left -= len(connection.recv(left))
    print(opened, flush=True)
    sys.stdin.readline()


def memory(pid: int) -> int:
    """Bytes of a process, its share of what others have, too."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no memory of {pid}")


def busy(pid: int) -> float:
    """Seconds of processor time."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(prefix: list, count: int, others: list) -> dict:
    """One side; `others` finds processes that belong to it, too."""
    command = [*prefix, sys.executable, __file__, "--connections", str(count)]
    pipe = subprocess.PIPE
    with subprocess.Popen([*command, "--serve"], stdout=pipe, text=True) as server:
        port = server.stdout.readline().strip()
        asking = [*command, "--ask", port]
        with subprocess.Popen(asking, stdin=pipe, stdout=pipe, text=True) as client:
            opened = float(client.stdout.readline())
            time.sleep(2)
            pids = [server.pid, client.pid, *(find() for find in others)]
            used = sum(memory(pid) for pid in pids)
            before = sum(busy(pid) for pid in pids)
            time.sleep(IDLE_S)
            cpu = (sum(busy(pid) for pid in pids) - before) / IDLE_S
            client.stdin.close()
            client.wait()
    return {"opened": opened, "memory": used, "cpu": cpu}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--connections", metavar="N", type=int, default=10_000)
    parser.add_argument("--weft", metavar="PATH", help="the command; default: build it")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--ask", metavar="PORT", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not 1 <= arguments.connections <= CONNECTIONS_MAX:
        parser.error(f"--connections is to be from 1 to {CONNECTIONS_MAX}")
    if arguments.serve:
        serve(arguments.connections)
        return 0
    if arguments.ask is not None:
        ask(arguments.connections, arguments.ask)
        return 0
    weft = find_weft(arguments.weft)
    with tempfile.TemporaryDirectory(prefix="weft-many-") as directory:
        os.environ["WEFT_DAEMON_SOCKET"] = f"{directory}/node.sock"
        # The daemon grows for the first connection, whoever has it.
        subprocess.run([weft, "run", "--", "true"], check=True)
        find = ["pgrep", "-n", "-f", "weft daemon"]
        daemon = subprocess.run(find, capture_output=True, text=True, check=True)
        plain = measure([], arguments.connections, [])
        under = measure([weft, "run", "--"], arguments.connections, [lambda: int(daemon.stdout)])
        subprocess.run([weft, "down"], check=False, stdout=subprocess.DEVNULL)
    each = (under["memory"] - plain["memory"]) / arguments.connections / 1024
    print(f"{arguments.connections} connections, idle")
    print(f"memory beyond plain TCP   {each:.2f} KiB each, both ends and the daemon")
    print(f"processor                 {under['cpu']:.2%} of a core, plain TCP {plain['cpu']:.2%}")
    print(f"opened in                 {under['opened']:.2f} s, plain TCP {plain['opened']:.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
