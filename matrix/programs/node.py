"""Node.js: http, net, and cluster, whose workers share a listener that the primary opened."""

from harness import Case, SOURCES, check, find, free_port, python, same, sha256

PACKAGES = ("nodejs", "curl")
SCRIPT = SOURCES / "echo.js"


def http(node):
    source, digest = node.random_file("file", 30_000_000)
    port = free_port()
    server = node.server(find("node"), SCRIPT, "http", port, source, port=port)
    url = f"http://127.0.0.1:{port}/"
    node.client("curl", "-sSf", "-o", "got", url)
    same(sha256(node.directory / "got"), digest, "SHA-256 of the download")
    client = node.client("curl", "-sSf", "-T", source, "-H", "Expect:", url)
    same(client.stdout, digest, "SHA-256 of the upload")
    client = node.client(find("node"), SCRIPT, "get", port)
    same(client.stdout.strip(), digest, "SHA-256 of twelve downloads")
    node.stop(server)


def net(*workers):
    def run(node):
        port = free_port()
        server = node.server(find("node"), SCRIPT, "server", port, *workers, port=port)
        for client in ((find("node"), SCRIPT, "client"), (python(), SOURCES / "echo_client.py")):
            ended = node.client(*client, port)
            check("the same bytes came back" in ended.stdout, ended.report())
        node.stop(server)

    return run


NEEDS = ("node", "curl", "python3")
CASES = [
    Case("node http", http, NEEDS),
    Case("node net", net(), NEEDS),
    # The primary accepts and passes connections to the workers, or workers share the listener.
    Case(
        "node cluster", net(2), NEEDS, share=0,
        note="the primary passes each connection to a worker: on TCP by design",
    ),
]
