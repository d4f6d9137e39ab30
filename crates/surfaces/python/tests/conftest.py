"""What the tests share: a daemon of their own, pairs of endpoints, and other processes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import weft

PATIENCE = 30.0
"""Seconds for what has to come. A busy machine does not reach it."""


def answers(socket: str) -> bool:
    """Whether a daemon answers there."""
    try:
        weft.Endpoint(socket=socket).close()
    except weft.NoDaemon:
        return False
    return True


@pytest.fixture(scope="session", autouse=True)
def daemon() -> Iterator[None]:
    """The daemon of WEFT_DAEMON_SOCKET, else one that is started for the tests."""
    if "WEFT_DAEMON_SOCKET" in os.environ:
        yield
        return
    from weft._command import weft_command

    with tempfile.TemporaryDirectory(prefix="weft-python-") as directory:
        socket = str(Path(directory, "weft.sock"))
        os.environ["WEFT_DAEMON_SOCKET"] = socket
        process = subprocess.Popen([weft_command(), "daemon"], stderr=subprocess.DEVNULL)
        until = time.monotonic() + PATIENCE
        while not answers(socket):
            assert process.poll() is None and time.monotonic() < until, "no daemon"
            time.sleep(0.01)
        try:
            yield
        finally:
            del os.environ["WEFT_DAEMON_SOCKET"]
            process.terminate()
            process.wait()


class Pair:
    """Two endpoints; `there` is the second as the first sees it."""

    def __init__(self) -> None:
        self.one = weft.Endpoint("a test")
        self.two = weft.Endpoint("a test")
        self.there = self.one.connect(self.two.address)

    def close(self) -> None:
        self.one.close()
        self.two.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.close()


class Other:
    """Another process of Python. It says lines, and is killed at the end of the test."""

    def __init__(self, code: str, *arguments: str) -> None:
        code = "import sys, time, weft\nsay = lambda *w: print(*w, flush=True)\n" + code
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def says(self) -> list[str]:
        """The words of its next line."""
        assert self.process.stdout is not None
        words = self.process.stdout.readline().split()
        assert words, f"the other process ended: {self.process.wait()}"
        return words


@pytest.fixture
def other() -> Iterator[Callable[..., Other]]:
    started: list[Other] = []

    def start(code: str, *arguments: str) -> Other:
        started.append(Other(textwrap.dedent(code), *arguments))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.wait()
