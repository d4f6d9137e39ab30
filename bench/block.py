#!/usr/bin/env python3
"""Speed of `weft block` beside tgt and nbdkit, with the same clients, in one run.

block.py [--weft PATH] [--peers] [--runs 3] [--json]
block.py --depth-one PATH

With --depth-one it is 4 KiB at depth 1 over the fabric's shared memory beside iSCSI over TCP, both
by initiators of ours; PATH is the program of `cargo build --release --example depth_one -p
weft-block-server`.

iSCSI is driven by `qemu-img bench`, whose accesses jump by a large step, NBD by fio over a UNIX
socket with random accesses. Every LUN is 1 GiB of memory that was written before. Figures are
medians; client and server share the machine.
"""

import argparse
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import tempfile
import time

IQN = "iqn.2026-11.example.weft:bench"
SIZE = 1 << 30
# A step between accesses, so that they do not follow each other: a prime number of pages.
PAGES = 7919
# Name, writes, bytes, depth, accesses of one run.
SHAPES = [
    ("4 KiB read QD32", False, 4096, 32, 60_000),
    ("4 KiB write QD32", True, 4096, 32, 60_000),
    ("4 KiB read QD1", False, 4096, 1, 15_000),
    ("1 MiB read QD8", False, 1 << 20, 8, 2_000),
    ("1 MiB write QD8", True, 1 << 20, 8, 2_000),
]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def until_there(connect, within=20):
    end = time.monotonic() + within
    while True:
        try:
            with connect():
                return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def unix(path, kind=socket.SOCK_STREAM):
    def connect():
        connected = socket.socket(socket.AF_UNIX, kind)
        connected.connect(path)
        return connected
    return connect


def cpu_seconds(process):
    with open(f"/proc/{process.pid}/stat", encoding="utf-8") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Weft:
    """A server of ours with one LUN in memory, for iSCSI and NBD."""

    def __init__(self, weft, directory):
        self.port, self.nbd = free_port(), os.path.join(directory, "weft.nbd")
        self.process = subprocess.Popen([
            weft, "block", "serve", "--listen", f"127.0.0.1:{self.port}", "--target", IQN,
            "--lun", f"0=mem:{SIZE}", "--nbd", f"unix:{self.nbd}", "--control",
            os.path.join(directory, "control"), "--state", os.path.join(directory, "state"),
        ], stdout=subprocess.DEVNULL)
        until_there(lambda: socket.create_connection(("127.0.0.1", self.port)))
        self.iscsi = f"iscsi://127.0.0.1:{self.port}/{IQN}/0"


class Tgt:
    """tgt with a LUN in a file in memory."""

    def __init__(self, _, directory):
        self.port, control = free_port(), str(free_port() % 1000 + 100)
        self.image = f"/dev/shm/weft-bench-{os.getpid()}"
        with open(self.image, "wb") as file:
            file.truncate(SIZE)
        self.process = subprocess.Popen(
            ["tgtd", "-f", "-C", control, "--iscsi", f"portal=127.0.0.1:{self.port}"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until_there(lambda: socket.create_connection(("127.0.0.1", self.port)))
        for words in (
                ["--op", "new", "--mode", "target", "--tid", "1", "-T", IQN],
                ["--op", "new", "--mode", "logicalunit", "--tid", "1", "--lun", "1", "-b",
                 self.image],
                ["--op", "bind", "--mode", "target", "--tid", "1", "-I", "ALL"]):
            subprocess.run(["tgtadm", "-C", control, "--lld", "iscsi", *words], check=True)
        self.iscsi, self.nbd = f"iscsi://127.0.0.1:{self.port}/{IQN}/1", None


class Nbdkit:
    """nbdkit with its memory plug-in."""

    def __init__(self, _, directory):
        self.nbd, self.iscsi = os.path.join(directory, "nbdkit.sock"), None
        self.process = subprocess.Popen(
            ["nbdkit", "-f", "-U", self.nbd, "memory", f"size={SIZE}"])
        until_there(unix(self.nbd))


def qemu(url, writes, length, depth, count):
    """Accesses in a second."""
    step = PAGES * 4096 if length == 4096 else length * 7
    command = ["qemu-img", "bench", "-f", "raw", "-c", str(count), "-d", str(depth), "-s",
               str(length), "-S", str(step), "-t", "none"]
    ended = subprocess.run(command + (["-w"] if writes else []) + [url], capture_output=True,
                           text=True, timeout=300, check=True)
    return count / float(re.search(r"completed in ([\d.]+) seconds", ended.stdout)[1])


def fio(path, writes, length, depth, count):
    """Accesses in a second."""
    ended = subprocess.run([
        "fio", "--name=x", "--ioengine=nbd", f"--uri=nbd+unix:///?socket={path}",
        f"--rw={'randwrite' if writes else 'randread'}", f"--bs={length}", f"--iodepth={depth}",
        f"--size={SIZE}", f"--io_size={length * count}", "--output-format=json",
    ], capture_output=True, text=True, timeout=300, check=True)
    job = json.loads(ended.stdout[ended.stdout.index("{"):])["jobs"][0]
    return job["write" if writes else "read"]["iops"]


def measure(servers, runs):
    """Rows of figures; the servers take turns, so that all meet the same machine."""
    rows = []
    for server in servers:
        for way, drive in (("iscsi", qemu), ("nbd", fio)):
            place = getattr(server, way)
            if place:
                drive(place, True, 1 << 20, 8, SIZE >> 20)
    for name, writes, length, depth, count in SHAPES:
        for way, drive in (("iscsi", qemu), ("nbd", fio)):
            found = {}
            for _ in range(runs):
                for server in servers:
                    place = getattr(server, way)
                    if place is None:
                        continue
                    before, began = cpu_seconds(server.process), time.monotonic()
                    rate = drive(place, writes, length, depth, count)
                    cores = (cpu_seconds(server.process) - before) / (time.monotonic() - began)
                    found.setdefault(type(server).__name__, []).append((rate, cores))
            for peer, figures in found.items():
                rate = statistics.median(rate for rate, _ in figures)
                cores = statistics.median(cores for _, cores in figures)
                rows.append({"shape": name, "way": way, "server": peer, "iops": round(rate),
                             "mb_s": round(rate * length / 1e6), "server_cores": round(cores, 2)})
    return rows


def depth_one(arguments):
    """Accesses in a second at depth 1, over the fabric and over TCP, which take turns."""
    with tempfile.TemporaryDirectory() as directory:
        os.environ["WEFT_DAEMON_SOCKET"] = os.path.join(directory, "node.sock")
        daemon = subprocess.Popen([arguments.weft, "daemon", "--shm-copy", "nontemporal"],
                                  stderr=subprocess.DEVNULL)
        until_there(unix(os.environ["WEFT_DAEMON_SOCKET"], socket.SOCK_SEQPACKET))
        server = Weft(arguments.weft, directory)
        try:
            places = [f"weft://localhost:{server.port}/{IQN}/0", server.iscsi]
            until_offered(server.port, arguments.weft)
            found = {place: [] for place in places}
            for _ in range(arguments.runs):
                for place in places:
                    told = subprocess.run([arguments.depth_one, "2", place], capture_output=True,
                                          text=True, timeout=120, check=True).stdout
                    found[place].append([float(rate) for rate in told.split()[1:]])
        finally:
            for process in (server.process, daemon):
                process.terminate()
                process.wait(10)
    print("| 4 KiB, depth 1 | over the fabric, in a second | iSCSI over TCP | ratio |")
    print("|---|---|---|---|")
    for at, name in enumerate(("reads", "writes")):
        fabric, tcp = (statistics.median(rates[at] for rates in found[place]) for place in places)
        print(f"| {name} | {fabric:,.0f} | {tcp:,.0f} | {fabric / tcp:.2f} |")


def until_offered(port, weft):
    end = time.monotonic() + 20
    while f"block.{port}" not in subprocess.run([weft, "status"], capture_output=True, text=True,
                                                check=False).stdout:
        assert time.monotonic() < end, "it is not offered"
        time.sleep(0.1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weft", default="weft")
    parser.add_argument("--peers", action="store_true", help="tgt and nbdkit, too")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--depth-one", metavar="PATH")
    arguments = parser.parse_args()
    if arguments.depth_one:
        depth_one(arguments)
        return
    kinds = [Weft] + ([Tgt, Nbdkit] if arguments.peers else [])
    with tempfile.TemporaryDirectory() as directory:
        servers = []
        try:
            for kind in kinds:
                servers.append(kind(arguments.weft, directory))
            rows = measure(servers, arguments.runs)
        finally:
            for server in servers:
                server.process.send_signal(signal.SIGTERM)
                try:
                    server.process.wait(5)
                except subprocess.TimeoutExpired:
                    server.process.kill()
                if hasattr(server, "image"):
                    os.unlink(server.image)
    if arguments.json:
        print(json.dumps(rows, indent=1))
        return
    base = {(row["shape"], row["way"]): row["iops"] for row in rows if row["server"] == "Weft"}
    print("| accesses | over | server | in a second | MB/s | cores | weft to it |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        ratio = base[row["shape"], row["way"]] / row["iops"]
        print(f"| {row['shape']} | {row['way']} | {row['server'].lower()} | {row['iops']:,} | "
              f"{row['mb_s']:,} | {row['server_cores']} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
