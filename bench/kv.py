#!/usr/bin/env python3
"""Measures the engine of `weft kv` beside RocksDB and fjall, in turns, medians of several runs.

    bench/kv.py --peers [--mix SD] [--runs 3] [--json FILE]
    bench/kv.py --replication [--mix SD,M] [--replicas 2] [--threads 32] [--plot FILE.svg]

With --replication it measures a primary with its backups by `weft kv bench`: backups that get the
tables (Send-Index) beside backups that build them (Build-Index).

Each run is a process of its own in a memory cgroup (version 1 or 2) of a quarter of the data and
what the engine needs, so that the page cache does not hide reads. Where no cgroup can be made, it
says so. Sizes are those of notes in docs/measurements.md: level 0 of 4 MiB, growth 4, tables of 4
MiB, two threads of clients, two behind.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

import kv_replication

ROOT = pathlib.Path(__file__).resolve().parent.parent
PEERS = ROOT / "bench" / "kv-peers"
ENGINES = ["weft", "rocksdb", "rocksdb-blob", "fjall", "fjall-kv"]
PHASES = ["load-a", "run-a", "run-b", "run-c", "run-d"]
RECORDS = {"S": 600_000, "M": 400_000, "L": 150_000, "SD": 400_000, "MD": 400_000, "LD": 200_000}
OPERATIONS = {"L": 150_000}
MEAN = {"S": 33, "M": 123, "L": 1023, "SD": 249, "MD": 285, "LD": 645}
LEVEL0 = 4 << 20


def target():
    return pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))


def build():
    environment = dict(os.environ, CARGO_TARGET_DIR=str(target()))
    subprocess.run(["cargo", "build", "--release"], cwd=PEERS, env=environment, check=True)
    return target() / "release" / "kv-peers"


class Cgroup:
    """A memory limit for the processes that join it."""

    def __init__(self, limit):
        self.path = None
        for root, name in [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
                           ("/sys/fs/cgroup", "memory.max")]:
            path = pathlib.Path(root) / f"weft-kv-{os.getpid()}"
            try:
                path.mkdir()
                (path / name).write_text(str(limit))
            except OSError:
                if path.is_dir():
                    path.rmdir()
                continue
            self.path = path
            return
        print("bench/kv.py: no memory cgroup can be made: the page cache is unlimited",
              file=sys.stderr)

    def join(self):
        if self.path:
            (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def remove(self):
        if self.path:
            self.path.rmdir()


def run(program, engine, mix, folder, limit, phases, operations):
    directory = pathlib.Path(tempfile.mkdtemp(dir=folder))
    data = RECORDS[mix] * MEAN[mix]
    words = [program, engine, directory / "store", ",".join(phases), mix, RECORDS[mix], operations,
             2, LEVEL0, data // 4]
    group = Cgroup(limit) if limit else None
    try:
        join = group.join if group else None
        done = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, text=True,
                              check=True, preexec_fn=join, timeout=500)
        return json.loads(done.stdout.splitlines()[-1])["phases"]
    finally:
        if group:
            group.remove()
        shutil.rmtree(directory, ignore_errors=True)
        os.sync()


def table(mix, results, phases):
    print(f"\n{mix} mix: thousand operations a second, median (lowest-highest)")
    print(f"{'engine':14}" + "".join(f"{phase:>20}" for phase in phases))
    for engine, runs in results.items():
        row = f"{engine:14}"
        for index in range(len(phases)):
            speeds = sorted(run[index]["ops_per_second"] / 1000 for run in runs)
            text = f"{statistics.median(speeds):.0f} ({speeds[0]:.0f}-{speeds[-1]:.0f})"
            row += f"{text:>20}"
        print(row)
    for name, title in [("cpu_us_per_op", "CPU us/op"),
                        ("device_io_amplification", "device I/O amplification"),
                        ("syscall_io_amplification", "syscall I/O amplification")]:
        print(f"{title}, medians")
        for engine, runs in results.items():
            medians = [statistics.median(run[index][name] for run in runs)
                       for index in range(len(phases))]
            print(f"{engine:14}" + "".join(f"{value:>20.2f}" for value in medians))
    print("write latency in us, median of p50/p99/p99.9/p99.99")
    for engine, runs in results.items():
        row = f"{engine:14}"
        for index, phase in enumerate(phases):
            parts = [statistics.median(run[index]["write_latency_us"][part] for run in runs)
                     for part in ["p50", "p99", "p999", "p9999"]]
            row += f"{'/'.join(f'{part:.0f}' for part in parts):>20}"
        print(row)


def replication(arguments):
    weft = arguments.program or target() / "release" / "weft"
    phases = arguments.phases.split(",")
    everything, figures = {}, {}
    for mix in arguments.mix.split(","):
        records = int(RECORDS[mix] * arguments.scale)
        operations = int(OPERATIONS.get(mix, 200_000) * arguments.scale)
        arguments.cache = records * MEAN[mix] // 4
        results = {kind: [] for kind in kv_replication.KINDS}
        for _ in range(arguments.runs):
            for kind in results:
                # Each copy has as much of the page cache as a store alone has.
                limit = arguments.memory * arguments.replicas
                group = Cgroup(limit) if limit else None
                try:
                    join = group.join if group else None
                    results[kind].append(kv_replication.run(
                        weft, kind, mix, records, operations, phases, arguments, join))
                finally:
                    if group:
                        group.remove()
        figures[mix] = kv_replication.table(mix, results, phases)
        everything[mix] = results
    if arguments.plot:
        kv_replication.plot(arguments.plot, figures, phases)
    return everything


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", action="store_true", help="RocksDB and fjall beside weft")
    parser.add_argument("--replication", action="store_true", help="Send-Index and Build-Index")
    parser.add_argument("--replicas", type=int, default=2, help="copies, with --replication")
    parser.add_argument("--threads", type=int, default=32, help="clients, with --replication")
    parser.add_argument("--level0", type=int, default=LEVEL0, help="bytes, with --replication")
    parser.add_argument("--scale", type=float, default=1, help="of the size, with --replication")
    parser.add_argument("--plot", help="writes a drawing, with --replication")
    parser.add_argument("--engines", help="names with commas, in place of --peers")
    parser.add_argument("--mix", default="SD", help="S, M, L, SD, MD or LD; several with commas")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--phases", default=",".join(PHASES))
    parser.add_argument("--memory", type=int, default=96 << 20, help="bytes; 0 is no limit")
    parser.add_argument("--dir", default=tempfile.gettempdir(), help="on the device to measure")
    parser.add_argument("--program", help="kv-peers or weft, if it was built")
    parser.add_argument("--json", help="writes all figures to this file")
    arguments = parser.parse_args()
    if arguments.replication:
        everything = replication(arguments)
        if arguments.json:
            pathlib.Path(arguments.json).write_text(json.dumps(everything, indent=1))
        return
    program = arguments.program or build()
    engines = ENGINES if arguments.peers else ["weft"]
    if arguments.engines:
        engines = arguments.engines.split(",")
    phases = arguments.phases.split(",")
    everything = {}
    for mix in arguments.mix.split(","):
        results = {engine: [] for engine in engines}
        operations = OPERATIONS.get(mix, 200_000)
        for _ in range(arguments.runs):
            for engine in engines:
                results[engine].append(run(program, engine, mix, arguments.dir, arguments.memory,
                                           phases, operations))
        table(mix, results, phases)
        everything[mix] = results
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(everything, indent=1))


if __name__ == "__main__":
    main()
