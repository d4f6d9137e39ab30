"""nc, in two of its kinds, and socat: standard input to standard output, both ways."""

from harness import Case, check, find, free_port

PACKAGES = ("netcat-openbsd", "ncat", "socat")
BIG = 30_000_000


def openbsd(forward):
    def run(node):
        source, _ = node.random_file("source", BIG)
        nc, port = find("nc.openbsd"), free_port()
        # The sender ends with its input; the receiver does not look at its own.
        ends = ("-d", "-N") if forward else ("-N", "-d")
        with open(source, "rb") as file:
            server = node.server(
                nc, ends[0], "-l", "127.0.0.1", port, port=port, stdin=None if forward else file
            )
            client = node.start_client(
                nc, ends[1], "127.0.0.1", port, stdin=file if forward else None
            )
        node.finished(client)
        node.finished(server)
        got = (server if forward else client).stdout_bytes
        check(got == source.read_bytes(), f"{len(got)} of {BIG} bytes, or others")

    return run


def ncat(node):
    source, _ = node.random_file("source", BIG)
    port = free_port()
    with open(source, "rb") as file:
        server = node.server(
            find("ncat"), "-l", "--recv-only", "127.0.0.1", port, port=port
        )
        client = node.start_client(find("ncat"), "--send-only", "127.0.0.1", port, stdin=file)
    node.finished(client)
    node.finished(server)
    check(server.stdout_bytes == source.read_bytes(), "other bytes than were sent")


def through_a_program(program, *options):
    """socat starts a program for each connection, beside itself or in its place."""

    def run(node):
        lines = b"".join(b"%07d a\n" % number for number in range(BIG // 10))
        source = node.directory / "source"
        source.write_bytes(lines)
        port, exec_ = free_port(), ",".join((f"EXEC:{program}", *options))
        listener = f"TCP-LISTEN:{port},reuseaddr,fork,bind=127.0.0.1"
        server = node.server(find("socat"), listener, exec_, port=port)
        with open(source, "rb") as file:
            client = node.start_client(
                find("socat"), "-t10", "-", f"TCP:127.0.0.1:{port}", stdin=file
            )
        node.finished(client)
        got = client.stdout_bytes
        check(got == lines.replace(b"a", b"b"), f"{len(got)} of {len(lines)} bytes, or others")
        node.stop(server)

    return run


CASES = [
    Case("socat EXEC", through_a_program("sed s/a/b/"), ("socat", "sed"), share=0.9),
    Case(
        "socat EXEC, nofork", through_a_program("sed s/a/b/", "nofork"), ("socat", "sed"), share=0.9
    ),
    Case("nc, client to server", openbsd(True), ("nc.openbsd",)),
    Case("nc, server to client", openbsd(False), ("nc.openbsd",)),
    Case("ncat --recv-only", ncat, ("ncat",)),
]
