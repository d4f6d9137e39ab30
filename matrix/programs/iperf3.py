"""iperf3 in its modes; it compares no contents, but counts bytes at both ends."""

import json

from harness import Case, check, find, free_port

PACKAGES = ("iperf3",)


def mode(*options):
    def run(node):
        port = free_port()
        server = node.server(find("iperf3"), "-s", "-1", "-p", port, port=port)
        client = node.client(
            find("iperf3"), "-c", "127.0.0.1", "-p", port, "-J", *(options or ("-t", "1"))
        )
        report = json.loads(client.stdout)
        check("error" not in report, client.report())
        end = report["end"]
        sent, received = end["sum_sent"]["bytes"], end["sum_received"]["bytes"]
        check(sent > 1_000_000 and received > 0.5 * sent, f"{sent} sent, {received} received")
        if "--bidir" in options:
            back = end["sum_received_bidir_reverse"]["bytes"]
            check(back > 1_000_000, f"{back} bytes came back")
        node.finished(server)

    return run


def file(node):
    """A file from one end to the other: iperf3 reads and writes it as its data."""
    source, _ = node.random_file("source", 20_000_000)
    got, port = node.directory / "got", free_port()
    server = node.server(find("iperf3"), "-s", "-1", "-p", port, "-F", got, port=port)
    node.client(
        find("iperf3"), "-c", "127.0.0.1", "-p", port, "-F", source, "-n", "20000000", "-l", "50000"
    )
    node.finished(server)
    # The receiver leaves when it is told the end, whatever is on its way; on TCP as well.
    content = got.read_bytes()
    check(len(content) > 5_000_000, f"{len(content)} bytes")
    check(source.read_bytes().startswith(content), "other bytes than were sent")


NEEDS = ("iperf3",)
OPTIONS = {
    "1 stream": (),
    "-P 4": ("-P", "4", "-t", "1"),
    "-R": ("-R", "-t", "1"),
    "-R -P 4": ("-R", "-P", "4", "-t", "1"),
    "--bidir": ("--bidir", "-t", "1"),
    "--bidir -P 2": ("--bidir", "-P", "2", "-t", "1"),
    "-Z": ("-Z", "-t", "1"),
    "-Z -R": ("-Z", "-R", "-t", "1"),
    "-w 64K": ("-w", "64K", "-t", "1"),
    "-l 77 -N": ("-l", "77", "-N", "-t", "1"),
    "-b 50M": ("-b", "50M", "-t", "2"),
    "-n 300M": ("-n", "300M"),
    "-C reno, -M 1000": ("-C", "reno", "-M", "1000", "-t", "1"),
}
CASES = [Case(f"iperf3 {name}", mode(*options), NEEDS) for name, options in OPTIONS.items()]
CASES += [Case("iperf3 -F", file, NEEDS)]
