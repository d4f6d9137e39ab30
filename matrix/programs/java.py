"""Java: NIO with a selector, channels that block, streams of the old interface, transferTo."""

import tempfile

from harness import Case, Node, SOURCES, check, find, free_port, python, same, sha256

PACKAGES = ("default-jdk-headless",)
NEEDS = ("java", "javac")

# Compiled once for all cases; not kept.
_classes = None


def java(node: Node, *words):
    global _classes
    if _classes is None:
        _classes = tempfile.TemporaryDirectory(prefix="weft-matrix-java-")
        node.plain(find("javac"), "-d", _classes.name, SOURCES / "Echo.java", limit=120)
    return (find("java"), "-Xmx200m", "-XX:-UsePerfData", "-cp", _classes.name, "Echo", *words)


def echo(node):
    port = free_port()
    server = node.server(*java(node, "server", port), port=port)
    for client in (java(node, "client", port), (python(), SOURCES / "echo_client.py", port)):
        ended = node.client(*client)
        check("the same bytes came back" in ended.stdout, ended.report())
    node.stop(server)


def transfer(node):
    source, digest = node.random_file("file", 50_000_000)
    port = free_port()
    server = node.server(*java(node, "file", port, source), port=port)
    for number in range(2):
        node.client(*java(node, "fetch", port, node.directory / f"got{number}"))
        same(sha256(node.directory / f"got{number}"), digest, "SHA-256 of the transfer")
    node.stop(server)


CASES = [
    Case("java NIO", echo, (*NEEDS, "python3")),
    Case("java transferTo", transfer, NEEDS),
]
