"""Programs that no library can be preloaded into: they stay on TCP, and all is as it should be."""

import tempfile
from pathlib import Path

from harness import Case, SOURCES, check, find, free_port, python

PACKAGES = ("golang-go", "gcc", "libc6-dev")
NOTE = "no library can be preloaded into it: on TCP by design"


# Compiled once for all modes; not kept.
_directory = tempfile.TemporaryDirectory(prefix="weft-matrix-compiled-")


def compiled(node, language):
    program = Path(_directory.name) / language
    if program.exists():
        return program
    if language == "go":
        home = {"HOME": _directory.name, "CGO_ENABLED": "0"}
        source = node.copy_source("echo.go")
        node.plain(find("go"), "build", "-o", program, source, env=home, limit=200)
    else:
        node.plain(find("gcc"), "-O2", "-static", "-o", program, SOURCES / "echo.c")
    return program


def echo(language):
    """Its own server and client, then each of them with a program that can be preloaded."""

    def run(node):
        program, port, other = compiled(node, language), free_port(), free_port()
        server = node.server(program, "server", port, port=port)
        seen = node.server(python(), SOURCES / "echo_server.py", other, port=other)
        for client in (
            (program, "client", port),
            (program, "client", other),
            (python(), SOURCES / "echo_client.py", port),
        ):
            ended = node.client(*client)
            check("the same bytes came back" in ended.stdout, ended.report())
        node.stop(server)
        node.stop(seen)

    return run


CASES = [
    Case("go program", echo("go"), ("go", "python3"), share=0, note=NOTE),
    Case("static C program", echo("c"), ("gcc", "python3"), share=0, note=NOTE),
]
