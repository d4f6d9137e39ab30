"""Two hosts on this machine, for the off-node table: network namespaces with a cable between them and
a daemon of weft each. Needs root. Nothing of it is left at the end.
"""

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Optional

import peers
from measure import Missing

SECONDS_MAX = 30
NAMES = ("one", "two")
# A process of Debian's Open MPI 4.1.4 crashes between hosts now and then: docs/design/011-openshmem.md.
OPEN_MPI_RETRIES = 4
# A program of a host sees its network, the devices of that in /sys, and a name of its own.
ENTER = "mount -t sysfs sysfs /sys && hostname {name} && export TMPDIR={directory}; {command}"


class Hosts:
    """The two hosts, while the context lasts."""

    def __init__(self, weft: Optional[str]):
        """`weft` is the command whose daemons the hosts have, if they have any."""
        self.weft = weft
        self.running = []

    def __enter__(self):
        if os.geteuid() != 0:
            raise Missing("two network namespaces need root")
        self.holder = tempfile.TemporaryDirectory()
        self.directory = Path(self.holder.name)
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in reversed(self.running):
            process.kill()
            process.wait()
        self.holder.cleanup()

    def _start(self, command: list, log: Path, **environment) -> subprocess.Popen:
        with log.open("w", encoding="utf-8") as output:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output,
                                       stderr=output, env={**os.environ, **environment})
        self.running.append(process)
        return process

    def _make(self):
        made = self.directory / "namespaces"
        self.pids = []
        for name in NAMES:
            (self.directory / name).mkdir()
            command = ["unshare", "--net", "sh", "-c", "ip link set lo up; echo up; exec sleep 9999"]
            process = self._start(command, made.with_suffix("." + name))
            self._until(lambda log=made.with_suffix("." + name): "up" in log.read_text())
            self.pids.append(process.pid)
        self._ip(0, f"link add cable type veth peer name cable netns {self.pids[1]}")
        for host in range(2):
            self._ip(host, f"address add 10.9.0.{host + 1}/24 dev cable")
            self._ip(host, "link set cable up")
        if self.weft is not None:
            self._start_daemons()

    def _start_daemons(self):
        key = self.directory / "key"
        made_key = subprocess.run([self.weft, "fabric", "key"], check=True, capture_output=True)
        key.write_bytes(made_key.stdout)
        key.chmod(0o600)
        for host, name in enumerate(NAMES):
            seeds = ["--fabric-seeds=10.9.0.1:7700"] if host else []
            log = self.directory / f"{name}.log"
            self._start(["nsenter", "-t", str(self.pids[host]), "-n", self.weft, "daemon",
                         f"--fabric-key={key}", f"--fabric-listen=10.9.0.{host + 1}:7700", *seeds],
                        log, WEFT_DAEMON_SOCKET=self._socket(name))
            self._until(lambda log=log: "ready at" in log.read_text())

    def _socket(self, name: str) -> str:
        return str(self.directory / name / "n.sock")

    def _ip(self, host: int, words: str) -> None:
        enter = ["nsenter", "-t", str(self.pids[host]), "-n", "ip", *words.split()]
        subprocess.run(enter, check=True)

    @staticmethod
    def _until(is_true) -> None:
        end = time.monotonic() + SECONDS_MAX
        while not is_true():
            if time.monotonic() > end:
                raise RuntimeError("a namespace or a daemon is not ready")
            time.sleep(0.01)

    def _script(self, name: str, text: str) -> str:
        path = self.directory / name
        path.write_text("#!/bin/sh\n" + text, encoding="utf-8")
        path.chmod(0o755)
        return str(path)

    def _inside(self, host: int, command: str) -> str:
        """Shell text that runs a command, whose words are $@, as a program of a host."""
        name = NAMES[host]
        inner = ENTER.format(name=name, directory=self.directory / name, command=command)
        return f"nsenter -t {self.pids[host]} -n unshare --mount --uts sh -c '{inner}' sh"

    def sent(self) -> int:
        """Bytes that the hosts have sent to each other."""
        total = 0
        for pid in self.pids:
            lines = Path(f"/proc/{pid}/net/dev").read_text().splitlines()
            cable = next(line for line in lines if line.strip().startswith("cable:"))
            total += int(cable.split(":")[1].split()[8])
        return total

    def own(self, peer: peers.Peer, pes: int = 1) -> peers.Peer:
        """weft with so many PEs on each host."""
        cases = "".join(f"{name}) pid={self.pids[host]} socket={self._socket(name)} ;;\n"
                        for host, name in enumerate(NAMES))
        ssh = self._script("ssh", f"host=$1; shift\ncase $host in\n{cases}esac\n"
                           "export WEFT_FABRIC_HOST=$host WEFT_DAEMON_SOCKET=$socket\n"
                           'exec nsenter -t $pid -n sh -c "$*"\n')
        words = ["-hosts", ",".join(f"{name}:{pes}" for name in NAMES), "-launcher-exec", ssh]
        return peers.Peer("weft", peer.compiler, peer.compiler_cxx, [*peer.launcher, *words])

    def open_mpi(self, peer: peers.Peer) -> peers.Peer:
        """Open MPI with UCX over TCP, with one PE on each host."""
        for tool in ("nsenter", "unshare"):
            if shutil.which(tool) is None:
                raise Missing(f"{tool} is not installed")
        there = self._inside(1, 'exec sh -c "$*"')
        here = self._inside(0, 'exec "$@"')
        agent = self._script("agent", f'shift\nexec {there} "$@"\n')
        start = self._script("start", f'exec {here} "$@"\n')
        words = ["--mca", "plm_rsh_agent", agent, "--host", "10.9.0.1:1,10.9.0.2:1",
                 "--mca", "oob_tcp_if_include", "cable", "--mca", "btl_tcp_if_include", "cable",
                 "-x", "UCX_TLS=tcp", "-x", "UCX_NET_DEVICES=cable"]
        launcher = [start, *peer.launcher, *words]
        return peers.Peer("Open MPI", peer.compiler, peer.compiler_cxx, launcher,
                          retries=OPEN_MPI_RETRIES)
