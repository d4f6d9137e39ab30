"""What the cases share: a weft node of their own, servers, clients, ports, files and counters.

A case is a function that is given a `Node`. It starts servers with `node.server`, runs clients
with `node.client`, and compares what came of it with `check`. Which of the two run under weft is
the mode's business; the case is the same in all modes.

Every wait has an end, and nothing that a case started outlives it: this process is the reaper of
all its descendants, so programs that became daemons are found and killed as well.
"""

import ctypes
import enum
import hashlib
import itertools
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

SOURCES = Path(__file__).resolve().parent / "sources"
# Places that are not in every user's PATH.
SEARCH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin:/usr/local/go/bin"
SEARCH = ":".join(
    [SEARCH] + [str(p) for p in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]
)
PR_SET_CHILD_SUBREAPER = 36
LISTENING = "0A"


class Skip(Exception):
    """The case cannot run here; the text says why."""


class Failed(Exception):
    """Something is not as it should be."""


class Mode(enum.Enum):
    """Which ends run under weft."""

    BOTH = "both"
    SERVER = "server"
    CLIENT = "client"
    NEITHER = "neither"


@dataclass
class Case:
    """A program, what is done with it, and what is needed for that."""

    name: str
    run: object
    # Programs that must be installed.
    needs: tuple = ()
    # The least share of all counted bytes that goes over the fabric when both ends are under weft:
    # connections begin on TCP, and its buffers take some megabytes before the other end reads. 0
    # where design 002 keeps the connection on TCP; the case then says why in `note`.
    share: float = 0.7
    note: str = ""
    # True when the server (or the client) also talks to itself: it has a share when alone, too.
    talks_to_itself: bool = False
    modes: tuple = tuple(Mode)


@dataclass
class Traffic:
    """What `weft run --stats` counted, summed over programs."""

    connections: int = 0
    sent: int = 0
    received: int = 0

    @property
    def bytes(self):
        return self.sent + self.received


@dataclass
class Statistics:
    """The table of `weft run --stats`; `tables` says how many were added up."""

    fabric: Traffic = field(default_factory=Traffic)
    tcp: Traffic = field(default_factory=Traffic)
    reasons: dict = field(default_factory=dict)
    tables: int = 0

    def add(self, text):
        """Adds the last table in what a program wrote to standard error, if there is one."""
        begin = text.rfind("weft    connections")
        if begin < 0:
            return False
        line = r"^(fabric|tcp) +(\d+) +(\d+) (\w+) +(\d+) (\w+)$"
        for name, count, sent, sent_unit, got, got_unit in re.findall(line, text[begin:], re.M):
            traffic = getattr(self, name)
            traffic.connections += int(count)
            traffic.sent += _bytes(sent, sent_unit)
            traffic.received += _bytes(got, got_unit)
        for count, reason in re.findall(r"^on tcp: (\d+) because (.*)$", text[begin:], re.M):
            self.reasons[reason] = self.reasons.get(reason, 0) + int(count)
        self.tables += 1
        return True

    @property
    def share(self):
        """Bytes over the fabric of all bytes, or None when nothing was counted."""
        total = self.fabric.bytes + self.tcp.bytes
        return self.fabric.bytes / total if total else None


def _bytes(number, unit):
    return int(number) * 1000 ** ["B", "kB", "MB", "GB", "TB", "PB"].index(unit)


class Program:
    """A program that runs, its output in files."""

    def __init__(self, shown, process, stdout, stderr, weft):
        self.shown, self.process, self.weft = shown, process, weft
        self.thread = threading.get_ident()
        self._stdout, self._stderr = stdout, stderr

    @property
    def pid(self):
        return self.process.pid

    @property
    def stdout(self):
        return self._stdout.read_text(errors="replace")

    @property
    def stdout_bytes(self):
        return self._stdout.read_bytes()

    @property
    def stderr(self):
        return self._stderr.read_text(errors="replace")

    def wait(self, limit=60):
        try:
            return self.process.wait(limit)
        except subprocess.TimeoutExpired:
            raise Failed(f"did not end within {limit} s: {self.report()}") from None

    def alive(self):
        return self.process.poll() is None

    def remove(self):
        """Removes what it wrote."""
        self._stdout.unlink()
        self._stderr.unlink()

    def report(self):
        """All of it, for messages."""
        return (
            f"{self.shown}: status {self.process.poll()}\n"
            f"{_tail(self.stdout)}{_tail(self.stderr)}"
        )


def _tail(text, lines=30):
    kept = text.splitlines()[-lines:]
    return "".join(f"    | {line[:300]}\n" for line in kept)


class Node:
    """A directory, a daemon of weft's own to it, and the programs of one case in one mode."""

    def __init__(self, weft, mode):
        self.weft, self.mode = Path(weft), mode
        self.directory = Path(tempfile.mkdtemp(prefix="weft-matrix-"))
        # Servers that give up root must get to the daemon's socket and to their files.
        self.directory.chmod(0o755)
        self.statistics, self._counting = Statistics(), threading.Lock()
        self._programs, self._numbers, self._daemon = [], itertools.count(1), None
        self.missing_tables = []
        if mode is not Mode.NEITHER:
            self._start_daemon()

    # Programs

    def environment(self, extra=None):
        clean = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("WEFT_") or name == "WEFT_LOG"
        }
        clean.pop("LD_PRELOAD", None)
        clean["PATH"] = SEARCH
        clean["WEFT_DAEMON_SOCKET"] = str(self.directory / "n.sock")
        clean["XDG_CONFIG_HOME"] = str(self.directory)
        clean["PYTHONUNBUFFERED"] = clean["PYTHONDONTWRITEBYTECODE"] = "1"
        # Messages of tools are compared with English words.
        clean["LC_ALL"] = "C.UTF-8"
        return clean | (extra or {})

    def start(self, weft, *argv, user=None, env=None, cwd=None, stdin=None):
        """Starts a program, under `weft run --stats` or without weft."""
        argv = [str(word) for word in argv]
        command = ([str(self.weft), "run", "--stats", "--"] if weft else []) + argv
        number = next(self._numbers)
        stdout = self.directory / f"{number}.out"
        stderr = self.directory / f"{number}.err"
        with open(stdout, "wb") as out, open(stderr, "wb") as err:
            process = subprocess.Popen(
                command,
                stdin=stdin or subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=self.environment(env),
                cwd=cwd or self.directory,
                start_new_session=True,
                user=user,
                group=user,
                extra_groups=[] if user else None,
            )
        program = Program(" ".join(argv), process, stdout, stderr, weft)
        self._programs.append(program)
        return program

    def discard(self):
        """Counts what the calling thread's ended programs said, and removes it."""
        mine = threading.get_ident()
        for program in list(self._programs):
            if program.thread == mine and program is not self._daemon and not program.alive():
                with self._counting:
                    if program.weft:
                        self.statistics.add(program.stderr)
                self._programs.remove(program)
                program.remove()

    def server(self, *argv, port=None, limit=30, **options):
        """Starts a server, under weft in modes `both` and `server`; waits until it listens."""
        weft = self.mode in (Mode.BOTH, Mode.SERVER)
        program = self.start(weft, *argv, **options)
        if port:
            self.await_port(port, program, limit)
        return program

    def start_client(self, *argv, **options):
        """Starts a client, under weft in modes `both` and `client`."""
        return self.start(self.mode in (Mode.BOTH, Mode.CLIENT), *argv, **options)

    def client(self, *argv, limit=60, **options):
        """Runs a client to its end, which must be a good one."""
        program = self.start_client(*argv, **options)
        return self.finished(program, limit)

    def plain(self, *argv, limit=60, **options):
        """Runs a program that is not part of what is tested, without weft."""
        return self.finished(self.start(False, *argv, **options), limit)

    def finished(self, program, limit=60, status=0):
        """Waits for the end of a program and checks its status."""
        code = program.wait(limit)
        check(code == status, program.report())
        return program

    def stop(self, program, with_signal=signal.SIGTERM, limit=20):
        """Asks a server to end and waits for that; with --stats `weft` passes the signal on."""
        if program.alive():
            program.process.send_signal(with_signal)
        program.wait(limit)
        return program

    # Surroundings

    def await_text(self, program, text, limit=30, count=1):
        """Waits until a program wrote `text` to one of its outputs, `count` times in all."""
        end = time.monotonic() + limit
        while (program.stdout + program.stderr).count(text) < count:
            check(program.alive(), f"ended before it said {text!r}: {program.report()}")
            check(time.monotonic() < end, f"did not say {text!r}: {program.report()}")
            time.sleep(0.02)

    def await_port(self, port, program=None, limit=30):
        """Waits until somebody listens at `port`; does not connect, which servers might count."""
        end = time.monotonic() + limit
        while not listens(port):
            if program and not program.alive():
                raise Failed(f"ended before it listened at {port}: {program.report()}")
            if time.monotonic() > end:
                shown = program.report() if program else ""
                raise Failed(f"nobody listens at {port} after {limit} s {shown}")
            time.sleep(0.01)

    def write(self, name, text):
        """A file of the case."""
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def random_file(self, name, size, seed=1):
        """A file of `size` bytes that no compression helps with, and its SHA-256."""
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        source, digest = random.Random(seed), hashlib.sha256()
        with open(path, "wb") as file:
            left = size
            while left:
                block = source.randbytes(min(left, 1 << 20))
                file.write(block)
                digest.update(block)
                left -= len(block)
        path.chmod(0o644)
        return path, digest.hexdigest()

    def copy_source(self, name):
        """A copy of one of our own sources in the case's directory, where it may be compiled."""
        return Path(shutil.copy(SOURCES / name, self.directory / name))

    # The end

    def close(self):
        """Ends everything, gathers the counters and says what was wrong with the ends."""
        wrong = []
        for program in reversed(self._programs):
            if program is not self._daemon:
                try:
                    self.stop(program, limit=10)
                except Failed as failure:
                    wrong.append(str(failure))
        for program in self._programs:
            if program is self._daemon:
                continue
            if program.weft and not self.statistics.add(program.stderr):
                self.missing_tables.append(program.shown)
            if "panicked" in program.stderr:
                wrong.append(f"a panic: {program.report()}")
        if self._daemon and not self._daemon.alive():
            wrong.append(f"the daemon ended: {self._daemon.report()}")
        kill_descendants()
        return wrong

    def remove(self):
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def daemon_pid(self):
        return self._daemon.pid

    def restart_daemon(self, with_signal, pause):
        """Ends the daemon, and starts another one after `pause` seconds."""
        self._daemon.process.send_signal(with_signal)
        self._daemon.wait(20)
        time.sleep(pause)
        self._start_daemon()

    def _start_daemon(self):
        self._daemon = self.start(False, self.weft, "daemon")
        end = time.monotonic() + 20
        while True:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
                if one.connect_ex(str(self.directory / "n.sock")) == 0:
                    return
            if "ready at" in self._daemon.stderr + self._daemon.stdout:
                return
            if not self._daemon.alive() or time.monotonic() > end:
                raise Failed(f"the daemon does not answer: {self._daemon.report()}")
            time.sleep(0.01)


def check(good, text):
    """Like assert, but never switched off."""
    if not good:
        raise Failed(str(text))


def same(found, wanted, what):
    check(found == wanted, f"{what}: {str(found)[:200]!r} in place of {str(wanted)[:200]!r}")


def find(name):
    """The path of a program."""
    path = shutil.which(name, path=SEARCH)
    if not path:
        raise Skip(f"{name} is not installed")
    return path


def python():
    """The interpreter of the system where there is one: others may be scripts that look for one."""
    return "/usr/bin/python3" if Path("/usr/bin/python3").exists() else find("python3")


def sha256(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def tree(directory):
    """The SHA-256 of every file below `directory`."""
    root = Path(directory)
    return {
        str(path.relative_to(root)): sha256(path)
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def listens(port):
    """True when a socket of this network namespace listens at `port`."""
    wanted = f":{port:04X}"
    for name in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/net/{name}").read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            words = line.split()
            if words[3] == LISTENING and words[1].endswith(wanted):
                return True
    return False


def unprivileged_user(name):
    """`name` when we are root and there is such a user, so that servers that refuse root run."""
    import pwd

    if os.geteuid() != 0:
        return None
    try:
        pwd.getpwnam(name)
    except KeyError:
        raise Skip(f"there is no user {name}") from None
    return name


def become_reaper():
    """Descendants that lose their parent become our children, so that they can be killed."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(root):
    """The processes below `root`, by /proc."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                # The name is in parentheses and may have spaces; the parent follows the state.
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
            except OSError:
                continue
            parents.setdefault(int(parent), []).append(int(entry.name))
    found, left = [], [root]
    while left:
        children = parents.get(left.pop(), [])
        found += children
        left += children
    return found


def kill_descendants():
    """Kills whatever is left of a case. Several rounds, since the dying may have had children."""
    for _ in range(20):
        left = descendants(os.getpid())
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                break
        time.sleep(0.02)
