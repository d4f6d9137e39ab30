"""nc, in two of its kinds: standard input to standard output, both ways."""

from harness import Case, check, find, free_port

PACKAGES = ("netcat-openbsd", "ncat")
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


CASES = [
    Case("nc, client to server", openbsd(True), ("nc.openbsd",)),
    Case("nc, server to client", openbsd(False), ("nc.openbsd",)),
    Case(
        "ncat --recv-only", ncat, ("ncat",), share=0,
        note="the receiver ends its direction before it spoke, so it could not ring: on TCP",
    ),
]
