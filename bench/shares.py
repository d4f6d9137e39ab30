#!/usr/bin/env python3
"""Which share of the bytes of a connection goes over TCP before its directions move.

Each run has a new server and a new client under weft, so that neither knows of earlier
connections: the client asks for a lane when it has moved some bytes, and TCP carries those and what
goes on until both ends agree. One way: the client sends and closes. Both ways: both ends send and
receive, each in two threads. The share is that of the bytes which the client sent, and for both
ways also of those which it received.

    bench/shares.py                      everything, as a table; beside stress-ng, too
    bench/shares.py --runs 21            more runs of each row
    bench/shares.py --weft target/verify/weft
"""

import argparse
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from measure import Server, free_port

ROOT = Path(__file__).resolve().parent.parent
MB = 1_000_000
PROGRAM = """
import socket, sys, threading
role, port, size, both = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "both"
def receive(c):
    left = size
    while left:
        part = c.recv(65536)
        assert part, left
        left -= len(part)
def serve(c, sends, receives):
    writer = threading.Thread(target=c.sendall, args=[bytes(size)])
    if sends:
        writer.start()
    if receives:
        receive(c)
    if sends:
        writer.join()
if role == "server":
    listener = socket.create_server(("127.0.0.1", port))
    c, _ = listener.accept()
    serve(c, both, True)
else:
    c = socket.create_connection(("127.0.0.1", port))
    serve(c, True, both)
    c.shutdown(socket.SHUT_WR)
    while c.recv(1):
        pass
"""
UNITS = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}


def shares(stats):
    """The shares of TCP of what was sent and of what was received, in per cent."""
    rows = {}
    for row in ("fabric", "tcp"):
        found = re.search(rf"^{row} +\d+ +(\d+) (\w+) +(\d+) (\w+)$", stats, re.MULTILINE)
        if not found:
            sys.exit(f"no statistics: {stats}")
        sent, unit, received, other = found.groups()
        rows[row] = int(sent) * UNITS[unit], int(received) * UNITS[other]
    pairs = zip(rows["tcp"], rows["fabric"])
    return [100 * tcp / (tcp + fabric) if tcp + fabric else 0 for tcp, fabric in pairs]


def run(weft, place, size, ways):
    port = free_port()
    environment = {"WEFT_DAEMON_SOCKET": str(place / "n.sock")}
    words = [str(port), str(size), ways]
    under = [str(weft), "run", "--stats", "--", sys.executable, "-c", PROGRAM]
    with Server([*under, "server", *words], port, environment):
        client = subprocess.run(
            [*under, "client", *words],
            env={**environment, "PATH": "/usr/bin:/bin"},
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            check=True,
        )
    return shares(client.stderr)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=11, help="runs of each row")
    parser.add_argument("--weft", type=Path, default=ROOT / "target/release/weft")
    arguments = parser.parse_args()
    weft = arguments.weft.resolve()
    heads = f"{'connection':<22} {'beside':<20} {'sent: median':>14} {'worst':>7}"
    print(f"{heads} {'received':>9} {'worst':>7}")
    with tempfile.TemporaryDirectory(prefix="weft-shares-") as place:
        place = Path(place)
        for load in ([], ["stress-ng", "--cpu", "2", "-q"]):
            if load and not shutil.which(load[0]):
                print("stress-ng is not installed: not measured", file=sys.stderr)
                continue
            beside = subprocess.Popen(load) if load else None
            try:
                for ways in ("one way", "both"):
                    for size in (1, 10, 100):
                        both = "both" if ways == "both" else "one"
                        rows = [run(weft, place, size * MB, both) for _ in range(arguments.runs)]
                        sent, received = zip(*rows)
                        cells = [statistics.median(sent), max(sent)]
                        cells += [statistics.median(received), max(received)]
                        shown = [f"{cell:.1f} %" for cell in cells]
                        if both == "one":
                            shown[2:] = ["", ""]
                        print(
                            f"{f'{size} MB, {ways}':<22} {' '.join(load[:3]) or 'nothing':<20}"
                            f" {shown[0]:>14} {shown[1]:>7} {shown[2]:>9} {shown[3]:>7}",
                            flush=True,
                        )
            finally:
                if beside:
                    beside.terminate()
                    beside.wait()
        subprocess.run(
            [str(weft), "down"],
            env={"WEFT_DAEMON_SOCKET": str(place / "n.sock")},
            stderr=subprocess.DEVNULL,
        )


if __name__ == "__main__":
    main()
