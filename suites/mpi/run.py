#!/usr/bin/env python3
"""Programs of MPI over weft and over Open MPI's own transports: the results are compared.

    suites/mpi/run.py                 the programs that are installed
    suites/mpi/run.py --root DIR      those whose packages were unpacked into DIR (dpkg -x)
    suites/mpi/run.py --only lammps   one of them; may be repeated

HPCC (Debian's hpcc), LAMMPS (lammps), ScaLAPACK's tests (scalapack-mpi-test), parallel HDF5
(libhdf5-openmpi-dev; --hdf5-tests names a directory with programs of HDF5's own testpar), IOR
(github.com/hpc/ior, built with mpicc.openmpi; --ior names the program), and mpi4py's own tests
(--mpi4py names the directory of its unpacked sdist, --python an interpreter that has mpi4py for
Open MPI). Lines with results are compared, times are not. Ends with 1 if any differ.
"""

import argparse
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIBRARIES = "usr/lib/x86_64-linux-gnu"
HPCC = """HPL
two
HPL.out
8
1
200
1
80
0
1
1
2
16.0
1
2
1
4
1
2
1
1
1
0
1
0
1
0
2
64
0
0
1
8
##### This line (no. 32) is ignored.
1
200
2
40 64
"""
MELT = """units lj
atom_style atomic
lattice fcc 0.8442
region box block 0 8 0 8 0 8
create_box 1 box
create_atoms 1 box
mass 1 1.0
velocity all create 1.44 87287
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
neighbor 0.3 bin
fix 1 all nve
thermo 20
run 100
"""


class Place:
    """Where the programs and their libraries are."""

    def __init__(self, arguments):
        self.root, self.ior = Path(arguments.root), arguments.ior
        self.mpi4py, self.python = arguments.mpi4py, arguments.python
        self.hdf5_tests = arguments.hdf5_tests
        libraries = [self.root / LIBRARIES / part for part in ("", "openblas-pthread")]
        self.libraries = ":".join(map(str, libraries))

    def program(self, path):
        found = self.root / path
        return str(found) if found.exists() else None


def hpcc(place, directory):
    (directory / "hpccinf.txt").write_text(HPCC)
    return [([place.program("usr/bin/hpcc")], "hpccoutf.txt", r"\|\|Ax-b\|\|_oo/|FAILED|Success=")]


def lammps(place, directory):
    (directory / "in.melt").write_text(MELT)
    return [([place.program("usr/bin/lmp"), "-in", "in.melt"], None, r"^ +\d+ +\S+ +\S+ +\S+ +\S+")]


def scalapack(place, directory):
    tests = place.root / LIBRARIES / "scalapack/openmpi-tests"
    for data in glob.glob(f"{tests}/*.dat"):
        shutil.copy(data, directory)
    results = r"tests? (completed|were)|PASSED|FAILED|passed|failed"
    names = ["xdlu", "xdllt", "xdls", "xdqr", "xdinv", "xdhrd", "xdtrd", "xzlu", "xzqr"]
    found = [str(tests / name) if tests.exists() else None for name in names]
    return [([name], None, results) for name in found]


def hdf5(place, directory):
    include, library = place.root / "usr/include/hdf5/openmpi", place.root / LIBRARIES
    if not (include / "hdf5.h").exists():
        return [([None], None, "")]
    # Unpacked packages have the libraries beside, with links into the root.
    links = [library, library / "hdf5/openmpi"]
    words = ["mpicc.openmpi", "-O1", f"-I{include}", "-o", directory / "hdf5", HERE / "hdf5.c"]
    words += [f"-L{link}" for link in links] + [library / "libhdf5_openmpi.so.103"]
    subprocess.run(words, check=True, env={**os.environ, "LD_LIBRARY_PATH": place.libraries})
    own = [([str(directory / "hdf5"), "rows.h5"], None, r"values are wrong")]
    tests = sorted(Path(place.hdf5_tests).iterdir()) if place.hdf5_tests else []
    results = r"PASSED|FAILED|SKIP|tests (finished|were)|[Ee]rrors? "
    return own + [([str(test)], None, results) for test in tests if os.access(test, os.X_OK)]


def ior(place, directory):
    program = place.ior or shutil.which("ior")
    words = "-a MPIIO -c -b 2m -t 256k -s 2 -w -r -W -R -o ior".split()
    results = r"[Ee]rror|^(tasks|xfersize|blocksize|aggregate filesize|nodes) "
    return [([program, *words], None, results)]


def mpi4py(place, directory):
    # Open MPI over libfabric has no spawn. Its version 4.1 crashes or waits without end in
    # test_p2p_obj and the tests of `without`: docs/measurements/mpi.md says over which providers.
    # Each rank tells on standard error.
    without = ["testAlltoallwBottom", "testCancel", "testCompareAndSwap", "testJoin"]
    words = ["sh", "-c", 'exec "$@" 2>&1', "sh", place.python, tests, "-v"]
    words += ["-e", "test_(spawn|ulfm|p2p_obj$)"]
    words += [word for name in without for word in ("-x", name)]
    return [(words if tests else [None], None, r"^(FAIL|ERROR): |^Ran \d+ tests")]


PROGRAMS = {"hpcc": hpcc, "lammps": lammps, "scalapack": scalapack, "hdf5": hdf5, "ior": ior,
            "mpi4py": mpi4py}


def results_of(text, pattern):
    """The lines with results, less times and rates: those have two digits behind the point, or
    stand behind "in". Ranks print in any order."""
    lines = [line for line in text.splitlines() if re.search(pattern, line)]
    return sorted(re.sub(r" *(\b\d+\.\d\d|\*+)(?=\s|$)| in [\d.]+s", "", line) for line in lines)


def run(way, words, output, ranks, place, directory, provider):
    command = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-np", str(ranks)]
    environment = {**os.environ, "LD_LIBRARY_PATH": place.libraries, "OMP_NUM_THREADS": "1",
                   "OPENBLAS_NUM_THREADS": "1"}
    if way == "weft":
        command += ["--mca", "pml", "cm", "--mca", "mtl", "ofi", "--mca", "btl", "self,ofi"]
        for part in ("mtl", "btl"):
            command += ["--mca", f"{part}_ofi_provider_include", "weft"]
        environment["FI_PROVIDER_PATH"] = provider
    else:
        command += ["--mca", "pml", "ob1", "--mca", "btl", "self,vader"]
    if output:
        (directory / output).unlink(missing_ok=True)
    done = subprocess.run([*command, *words], cwd=directory, env=environment, capture_output=True,
                          text=True, timeout=900, check=False)
    text = (directory / output).read_text() if output and done.returncode == 0 else done.stdout
    return done.returncode, text, done.stderr[-400:]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", default="/", help="where packages were unpacked [default: /]")
    parser.add_argument("--ior", help="the program of IOR")
    parser.add_argument("--hdf5-tests", metavar="DIR", help="compiled programs of HDF5's testpar")
    parser.add_argument("--mpi4py", metavar="DIR", help="an unpacked sdist of mpi4py")
    parser.add_argument("--python", default=sys.executable, help="an interpreter with mpi4py")
    parser.add_argument("--weft", default="target/release/weft", help="the weft command")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--only", action="append", choices=PROGRAMS)
    arguments = parser.parse_args()
    place = Place(arguments)
    provider = subprocess.run([Path(arguments.weft).resolve(), "fi", "path"], check=True,
                              capture_output=True, text=True).stdout.strip()
    differing = False
    for name in arguments.only or PROGRAMS:
        with tempfile.TemporaryDirectory() as directory:
            directory = Path(directory)
            for words, output, results in PROGRAMS[name](place, directory):
                if words[0] is None:
                    print(f"{name}: not installed", flush=True)
                    break
                told = {}
                for way in ("own", "weft"):
                    what = (way, words, output, arguments.ranks, place, directory, provider)
                    code, text, said = run(*what)
                    told[way] = results_of(text, results)
                    # Some tests of mpi4py fail over all ways.
                    if code != 0 and name != "mpi4py":
                        print(f"{name} {Path(words[0]).name} over {way} ended with {code}: {said}")
                        differing = True
                same = told["own"] == told["weft"] and told["own"]
                differing |= not same
                print(f"{name} {Path(words[0]).name}: {len(told['weft'])} lines of results, "
                      f"{'the same' if same else 'DIFFERENT'}", flush=True)
                for own, weft in zip(told["own"], told["weft"]):
                    if own != weft:
                        print(f"  own  {own}\n  weft {weft}")
    return int(differing)


if __name__ == "__main__":
    sys.exit(main())
