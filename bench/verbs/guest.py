"""A guest: a machine in software emulation, and the shell in it that runs what the script says.

A guest is gone when its block is left, whatever happened inside. Every wait has an end.
"""

import contextlib
import os
import selectors
import subprocess
import time
from pathlib import Path

READY_S = 120
WIRE_S = 20
# 256 endpoints have some 2 GiB of buffers.
MEMORY_MB = 6144
# With ten times as much a program has lost its way.
OUTPUT_BYTES_MAX = 4 << 20


class Failed(Exception):
    """A guest or a step did not do what it should."""


class Guest:
    """One guest with the address 10.9.0.`number`, on a wire to the guest beside it if there is one.

    `wire` is a UNIX socket: guest 1 listens there, guest 2 connects.
    """

    def __init__(self, number: int, kernel: Path, image: Path, log: Path, wire=None):
        self.number, self.wire = number, wire
        self.address = f"10.9.0.{number}"
        self.name = f"guest {number}"
        self.log = log
        self.waiting = b""
        # A wire over TCP costs 44 ms a round trip, one over UDP loses frames.
        network = ["-netdev", f"stream,id=n,server={'on' if number == 1 else 'off'},addr.type=unix,"
                   f"addr.path={wire}"] if wire else ["-netdev", "user,id=n,restrict=on"]
        self.machine = [
            "qemu-system-x86_64", "-accel", "tcg", "-machine", "q35",
            "-cpu", "max", "-m", str(MEMORY_MB), "-smp", "1", "-nodefaults", "-no-reboot",
            "-display", "none", "-kernel", kernel, "-initrd", image,
            "-append", "console=ttyS0 panic=-1 rdinit=/init no_timer_check",
            *network, "-device", f"virtio-net-pci,netdev=n,romfile=,mac=52:54:00:00:09:0{number}",
            "-serial", f"file:{log}", "-serial", "stdio",
        ]

    def __enter__(self):
        if self.number > 1:
            self.wait_for_wire()
        self.process = subprocess.Popen(
            self.machine, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        os.set_blocking(self.process.stdout.fileno(), False)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.process.stdout, selectors.EVENT_READ)
        return self

    def __exit__(self, *_) -> None:
        self.process.kill()
        self.process.wait()
        self.selector.close()
        self.process.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    def wait_for_wire(self) -> None:
        """Waits until the first guest listens: QEMU does not try again."""
        deadline = time.monotonic() + WIRE_S
        while not self.wire.exists():
            if time.monotonic() > deadline:
                raise Failed(f"the first guest does not listen at {self.wire}")
            time.sleep(0.1)

    def ready(self) -> None:
        """Waits for the shell, and makes the card: soft-RoCE on the guest's interface."""
        deadline = time.monotonic() + READY_S
        while (line := self.line(deadline)) != "@ready":
            if line is None:
                self.fail("it does not boot", "start", [])
        self.run(
            f"ip address add {self.address}/24 dev eth0 && ip link set eth0 up && "
            "rdma link add rxe0 type rxe netdev eth0",
            READY_S,
        )

    def run(self, command: str, limit: float, show=None) -> str:
        """What `command` prints. Raises `Failed` if it fails, or has not ended after `limit` s."""
        self.start(command)
        return self.finish(limit, show)

    def start(self, command: str) -> None:
        """Starts a command; `finish` has to follow before the next one. It is one line."""
        self.command = command
        try:
            self.process.stdin.write(f"{command}\n".encode())
            self.process.stdin.flush()
        except BrokenPipeError:
            self.fail("the guest has ended", command, [])

    def finish(self, limit: float, show=None) -> str:
        """As `run`, for the command that was started. `show` is called with each line."""
        deadline = time.monotonic() + limit
        printed, size = [], 0
        while True:
            line = self.line(deadline)
            if line is None:
                self.fail(f"no end within {limit:.0f} s", self.command, printed)
            # The last line of a program may lack its end.
            text, ended, code = line.partition("@ended ")
            if text or not ended:
                size += len(text)
                printed.append(text)
                if show:
                    show(text)
            if size > OUTPUT_BYTES_MAX:
                self.fail("it prints without an end", self.command, printed)
            if ended:
                if code != "0":
                    self.fail(f"exit code {code}", self.command, printed)
                return "\n".join(printed)

    def fail(self, why: str, command: str, printed: list) -> None:
        kernel = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        last = "\n".join(printed[-30:] + ["-- the kernel's last words:"] + kernel[-12:])
        raise Failed(f"{self.name}: {command}: {why}\n{last}")

    def line(self, deadline: float):
        """The next line, or None when the time is over or the guest has ended."""
        while b"\n" not in self.waiting:
            left = deadline - time.monotonic()
            if left <= 0 or not self.selector.select(left):
                return None
            read = self.process.stdout.read(65536)
            if read == b"":
                return None
            self.waiting += read or b""
        line, self.waiting = self.waiting.split(b"\n", 1)
        return line.decode(errors="replace").rstrip("\r")
