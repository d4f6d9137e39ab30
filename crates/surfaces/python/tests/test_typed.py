"""The types of the installed package: mypy in its strict mode, and the stubs of the module."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from test_pages import NOTEBOOKS, of_book, of_notebook, of_page

import weft

pytest.importorskip("mypy")
PACKAGE = Path(weft.__file__).parent

PROGRAM = """
import weft
from weft import aio
from weft.lab import Lab
from weft.metrics import Sample, parse

def plain(endpoint: weft.Endpoint) -> bytes:
    memory = endpoint.register(10)
    key: weft.RemoteKey = memory.grant(weft.Access.READ)
    peer: weft.Peer = endpoint.start_connect("0:1").wait()
    peer.put(memoryview(b"x"), key, notify=1)
    peer.put(b"x", int(key))
    return peer.get(key, length=3)

async def awaits(endpoint: aio.Endpoint) -> int:
    async for message in endpoint:
        await endpoint.send(message.peer, message.payload)
    return (await endpoint.notification()).value

def wrong(endpoint: weft.Endpoint) -> None:
    endpoint.connect(5)  # E
    endpoint.receive("soon")  # E
    endpoint.register(1).grant().value  # E
"""


def mypy(*arguments: str, where: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=where)


def test_the_package_is_strictly_typed(tmp_path: Path) -> None:
    assert (PACKAGE / "py.typed").is_file()
    cache = f"--cache-dir={tmp_path}"
    ended = mypy("mypy", "--strict", cache, "-p", "weft", where=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_a_program_is_checked_against_the_types(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    cache = f"--cache-dir={tmp_path}"
    ended = mypy("mypy", "--strict", cache, str(program), where=tmp_path)
    wrong = {at for at, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith("# E")}
    found = {int(line.split(":")[1]) for line in ended.stdout.splitlines() if ": error:" in line}
    assert found == wrong, ended.stdout + ended.stderr


def test_the_examples_pass(tmp_path: Path) -> None:
    pages = {
        "page": [code for code, _ in of_page()],
        **{path.stem: [code for code, _ in of_notebook(path)] for path in NOTEBOOKS},
        **{name: [code] for name, code in of_book()},
    }
    assert len(pages) >= 4
    for name, parts in pages.items():
        (tmp_path / f"{name}.py").write_text("\n".join(parts))
    # Before 3.12 no checker knows that an array is a buffer.
    command = ["mypy", "--strict", "--python-version=3.12", f"--cache-dir={tmp_path}"]
    ended = mypy(*command, *(f"{name}.py" for name in pages), where=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_the_stubs_are_those_of_the_module(tmp_path: Path) -> None:
    allowed = tmp_path / "allowed"
    # Python has a name for the buffer protocol from 3.12 on.
    allowed.write_text("weft._weft.Memory.__buffer__\nweft._buffer.Buffer\n")
    command = ["mypy.stubtest", "weft", "--allowlist", str(allowed), "--ignore-unused-allowlist"]
    ended = mypy(*command, where=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_everything_has_a_docstring() -> None:
    for name in weft.__all__:
        thing = getattr(weft, name)
        assert thing.__doc__, name
        for member in vars(thing):
            if not member.startswith("_") and callable(getattr(thing, member)):
                assert getattr(thing, member).__doc__, f"{name}.{member}"
