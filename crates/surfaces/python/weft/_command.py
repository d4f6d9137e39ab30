"""Runs the `weft` command, which labs and metrics ask."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from typing import Any

from ._errors import Error


class CommandFailed(Error):
    """The `weft` command failed; the text is what it said."""


def weft_command() -> str:
    """The `weft` command: that of the variable WEFT_BIN, else the one on the PATH.

    Raises `CommandFailed` if there is none.
    """
    found = os.environ.get("WEFT_BIN") or shutil.which("weft")
    if found is None:
        raise CommandFailed("there is no `weft` on the PATH; install it, or set WEFT_BIN")
    return found


def run(arguments: Sequence[str], timeout: float | None = 60.0) -> str:
    """Runs the command, and returns what it printed."""
    command = [weft_command(), *arguments]
    # The command warns of this name, which is none of its options.
    environment = {name: value for name, value in os.environ.items() if name != "WEFT_BIN"}
    try:
        ended = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
            env=environment,
        )
    except OSError as error:
        raise CommandFailed(f"{command[0]} cannot be run: {error}") from error
    except subprocess.TimeoutExpired as error:
        text = f"weft {' '.join(arguments)}: no end within {timeout} s"
        raise CommandFailed(text) from error
    if ended.returncode != 0:
        said = ended.stderr.strip() or ended.stdout.strip()
        raise CommandFailed(f"weft {' '.join(arguments)}: {said or ended.returncode}")
    return ended.stdout


def run_json(arguments: Sequence[str], timeout: float | None = 60.0) -> Any:
    """Runs the command with `--json`, and returns what it printed."""
    printed = run([*arguments, "--json"], timeout)
    try:
        return json.loads(printed)
    except json.JSONDecodeError as error:
        text = f"weft {' '.join(arguments)} printed no JSON: {error}"
        raise CommandFailed(text) from error
