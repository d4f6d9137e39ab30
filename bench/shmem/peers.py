"""The implementations of OpenSHMEM that are compared: how each one compiles and runs a program."""

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from compare import find_weft  # noqa: E402
from measure import Missing  # noqa: E402

# A program that runs longer hangs, and so does a compiler.
SECONDS_MAX = 120
BUILD_SECONDS_MAX = 900
# A launcher that is told to end has this long for it.
END_SECONDS_MAX = 5
# Settings for Open MPI's oshmem: without the first its programs crash in finalize in Debian's build,
# without the others it refuses to run as root, and more processes than processors.
OPEN_MPI = ["--mca", "osc", "^rdma", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
PACKAGES = ["openmpi-bin", "libopenmpi-dev", "libucx-dev", "gcc", "g++", "libc6-dev"]


@dataclass
class Peer:
    """One implementation."""

    name: str
    compiler: list
    compiler_cxx: list
    launcher: list
    environment: dict = field(default_factory=dict)
    # How often a run is begun anew that failed.
    retries: int = 0

    def build(self, sources: list, program: Path, flags: list) -> None:
        is_cxx = any(Path(source).suffix in (".cpp", ".cc", ".cxx") for source in sources)
        compiler = self.compiler_cxx if is_cxx else self.compiler
        command = [*compiler, *flags, "-o", str(program), *map(str, sources), "-lm"]
        done = self.call(command, BUILD_SECONDS_MAX)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}:\n{done.stderr.strip()}")

    def run(self, size: int, command: list, seconds: float = SECONDS_MAX, **options):
        return self.call([*self.launcher, "-np", str(size), *command], seconds, **options)

    def call(self, command: list, seconds: float = SECONDS_MAX, **options):
        environment = {**os.environ, **self.environment}
        pipe = subprocess.PIPE
        # A session of its own, so that what a launcher leaves behind can be ended with it.
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=pipe,
                                   stderr=pipe, text=True, errors="replace",
                                   start_new_session=True, **options)
        try:
            stdout, stderr = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            end(process)
            raise
        return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def end(process: subprocess.Popen) -> None:
    """Ends a launcher that hangs: first by the signal that it passes on to its processes."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.communicate(timeout=END_SECONDS_MAX)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def weft(given) -> Peer:
    program = str(find_weft(given, ("weft-preload", "weft-shmem")))
    return Peer("weft", [program, "oshcc"], [program, "oshc++"], [program, "oshrun"])


def open_mpi() -> Peer:
    """Debian's Open MPI. Its programs are named in full: other implementations have the same."""
    found = [shutil.which(name) for name in ("oshcc.openmpi", "oshrun.openmpi")]
    compiler = found[0] or shutil.which("oshcc")
    launcher = found[1] or shutil.which("oshrun")
    if compiler is None or launcher is None:
        raise Missing("Open MPI's oshcc is not installed; call this with --peers")
    cxx = shutil.which("oshc++") or shutil.which("oshcxx") or compiler
    return Peer("Open MPI", [compiler], [cxx], [launcher, *OPEN_MPI])


def installed(directory: Path) -> Peer:
    """An OpenSHMEM whose wrappers and launcher lie in a directory."""
    directory = directory.resolve()
    programs = [directory / "bin" / name for name in ("oshcc", "oshc++", "oshrun")]
    for program in programs:
        if not program.is_file():
            raise Missing(f"{program} is not there; name the directory of an installation")
    cc, cxx, run = map(str, programs)
    return Peer(directory.name, [cc], [cxx], [run])


def named(name: str, given) -> Peer:
    """The peer with a name. `given` is the weft to take."""
    if name == "weft":
        return weft(given)
    return open_mpi() if name == "openmpi" else installed(Path(name))


def install() -> None:
    """Installs the peers from the packages of the system."""
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        raise Missing("--peers installs Debian's packages, as root; install them by hand: "
                      + " ".join(PACKAGES))
    subprocess.run(["apt-get", "install", "-y", "--no-install-recommends", *PACKAGES], check=True,
                   stdout=subprocess.DEVNULL)
