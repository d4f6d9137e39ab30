#!/usr/bin/env python3
"""Two builds of weft beside each other: did direct sockets become slower from one to the other?

Both are measured in turns, in one run; the ratio is the median of the turns' ratios, above 1 where
the new build is faster, beside the interval that holds the true median in 95 of 100 such
measurements. Turns go on until that interval is narrow, or there were as many as allowed.

    bench/versions.py OLD/target/release/weft
    bench/versions.py OLD/target/release/weft --only redis --turns 61 --width 0.02

A program that is not installed is named and left out; `bench/compare.py --peers` installs all but
MariaDB's server and sysbench.
"""

import argparse
import atexit
import operator
import re
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from measure import Missing, Server, client, compare, free_port, need
from sockets import Way, iperf, memcached, nginx, pgbench, redis, sockperf

ROOT = Path(__file__).resolve().parent.parent
SYSBENCH = ("--db-driver=mysql", "--mysql-host=127.0.0.1", "--mysql-user=root", "--mysql-db=test")


def mariadb(way: Way, threads: int) -> float:
    """Point selects per second."""
    install, server, sysbench = map(need, ("mariadb-install-db", "mariadbd", "sysbench"))
    with ExitStack() as stack:
        data = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="weft-versions-"))) / "d"
        data.mkdir()
        own = ["--no-defaults", f"--datadir={data}", "--user=root"]
        client([install, *own, "--auth-root-authentication-method=normal"])
        port = free_port()
        place = [f"--socket={data}/s", "--bind-address=127.0.0.1", f"--port={port}"]
        stack.enter_context(Server(way.server([server, *own, *place]), port))
        test = [sysbench, "oltp_point_select", *SYSBENCH, f"--mysql-port={port}", "--time=3"]
        create = ["-e", "create database if not exists test"]
        client([need("mariadb"), "-h127.0.0.1", f"-P{port}", "-uroot", *create])
        client([*test, "prepare"])
        printed = client(way.client([*test, f"--threads={threads}", "run"]))
    return float(re.search(r"queries: .*\(([\d.]+) per sec", printed).group(1))


# The name, what measures it, and whether less is better.
MEASURES = {
    "sockperf 64 B": (sockperf, True),
    "iperf3": (iperf, False),
    "redis set -c 1": (partial(redis, what="set", clients=1), False),
    "redis get -c 50": (partial(redis, what="get", clients=50), False),
    "nginx 1 connection": (partial(nginx, connections=1), False),
    "nginx 50 connections": (partial(nginx, connections=50), False),
    "pgbench -S -c 1": (partial(pgbench, clients=1), False),
    "pgbench -S -c 8": (partial(pgbench, clients=8), False),
    "memcached get": (memcached, False),
    "MariaDB 1 thread": (partial(mariadb, threads=1), False),
    "MariaDB 8 threads": (partial(mariadb, threads=8), False),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path, help="the command of the old build")
    parser.add_argument("--new", type=Path, default=ROOT / "target/release/weft")
    parser.add_argument("--only", metavar="WORD", action="append", help="measures named so")
    parser.add_argument("--turns", type=int, default=31, help="how often each is measured at most")
    parser.add_argument("--width", type=float, default=0.04, help="how wide an interval is enough")
    arguments = parser.parse_args()
    ways = []
    for node, path in (("old-build", arguments.old), ("new-build", arguments.new)):
        if not path.exists():
            build = "cargo build --release -p weft-cli -p weft-preload"
            sys.exit(f"{path} is not there; build it: {build}")
        # A daemon for each: two releases may not understand each other.
        start = [str(path.resolve()), "run", "--node", node, "--"]
        under = partial(operator.add, start)
        ways.append(Way(under, under))
        atexit.register(subprocess.run, [str(path.resolve()), "down", "--node", node], check=False)
    for name, (measure, is_least) in MEASURES.items():
        if arguments.only and not any(word in name for word in arguments.only):
            continue
        try:
            row = compare(*(partial(measure, way) for way in ways), arguments, is_least)
        except (Missing, RuntimeError) as error:
            print(f"{name:<22} not measured: {error}", flush=True)
            continue
        print(
            f"{name:<22} {row['one']:>10.3f} {row['other']:>10.3f} {row['ratio']:>7.3f}"
            f"  ({row['low']:.3f} to {row['high']:.3f}) {row['turns']:>3} turns",
            flush=True,
        )


if __name__ == "__main__":
    main()
