"""Clusters of network namespaces on this machine: `weft lab` from Python. Needs root.

    from weft.lab import Lab

    with Lab.up(nodes=3) as lab:
        lab.run(0, ["ping", "-c", "1", "n1"], check=True)
        lab.cut(0, 1)
        print(lab.status())

There is one lab on a machine, that of the `weft` command.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from ._command import CommandFailed, run, run_json, weft_command

__all__ = ["CommandFailed", "Lab"]


class Lab:
    """The lab of this machine. As a context manager it is taken down at the end."""

    @classmethod
    def up(
        cls,
        nodes: int | None = None,
        *,
        topology: str | None = None,
        mtu: int | None = None,
        timeout: float | None = 60.0,
    ) -> Lab:
        """Makes the nodes `n0`, `n1`, ….

        `topology` is `full`, `torus:2x2x2`, `links:0-1,1-2` or a file of links; `mtu` the bytes of
        IP in a frame.
        """
        arguments = ["lab", "up"]
        for name, value in [("nodes", nodes), ("topology", topology), ("mtu", mtu)]:
            if value is not None:
                arguments.append(f"--{name}={value}")
        run(arguments, timeout)
        return cls()

    def down(self, timeout: float | None = 60.0) -> None:
        """Removes the nodes."""
        run(["lab", "down"], timeout)

    def status(self) -> list[dict[str, Any]]:
        """What `weft lab status --json` prints: one entry for each node."""
        status = run_json(["lab", "status"])
        if not isinstance(status, list):
            raise CommandFailed("weft lab status printed no list")
        return status

    def links(self) -> Any:
        """What `weft lab link --json` prints."""
        return run_json(["lab", "link"])

    def cut(self, one: int, other: int) -> None:
        """Cuts the link between two nodes."""
        run(["lab", "link", str(one), str(other), "down"])

    def mend(self, one: int, other: int) -> None:
        """Mends the link between two nodes."""
        run(["lab", "link", str(one), str(other), "up"])

    def command(self, node: int, program: Sequence[str]) -> list[str]:
        """The command that runs a program in a node, for `subprocess.Popen`."""
        return [weft_command(), "lab", "exec", str(node), "--", *program]

    def run(
        self,
        node: int,
        program: Sequence[str],
        *,
        timeout: float | None = 60.0,
        check: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program in a node, and returns what it printed."""
        return subprocess.run(
            self.command(node, program),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=check,
            stdin=subprocess.DEVNULL,
        )

    def __enter__(self) -> Lab:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.down()
