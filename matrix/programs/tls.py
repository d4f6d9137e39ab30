"""stunnel and `openssl s_server`: TLS in front of others and by itself."""

from harness import Case, check, find, free_port, python, same, sha256
from programs.python import certificate

PACKAGES = ("stunnel4", "openssl", "curl")
BIG = 50_000_000

STUNNEL = """
foreground = yes
pid =
cert = {pem}
[web]
accept = 127.0.0.1:{port}
connect = 127.0.0.1:{web}
"""


def stunnel(node):
    """curl to stunnel to a web server: stunnel is a server and a client at once."""
    source, digest = node.random_file("www/file", BIG)
    pem, port, web = certificate(node), free_port(), free_port()
    origin = node.server(
        python(), "-m", "http.server", "-b", "127.0.0.1", "-d", source.parent, web, port=web
    )
    path = node.write("stunnel.conf", STUNNEL.format(pem=pem, port=port, web=web))
    server = node.server(find("stunnel"), path, port=port)
    url = f"https://localhost:{port}/file"
    clients = [
        node.start_client(
            "curl", "-sSf", "--cacert", pem, "--connect-to", f"::127.0.0.1:{port}",
            "-o", f"got{n}", url,
        )
        for n in range(3)
    ]
    for number, client in enumerate(clients):
        node.finished(client)
        same(sha256(node.directory / f"got{number}"), digest, "SHA-256 of the download")
    check("INTERNAL ERROR" not in server.stderr, server.report())
    node.stop(server)
    node.stop(origin)


def openssl(node):
    source, digest = node.random_file("www/file", BIG)
    pem, port = certificate(node), free_port()
    server = node.server(
        find("openssl"), "s_server", "-quiet", "-accept", f"127.0.0.1:{port}", "-cert", pem,
        "-WWW", port=port, cwd=source.parent,
    )
    node.client(
        "curl", "-sSf", "--http0.9", "--cacert", pem, "--connect-to", f"::127.0.0.1:{port}",
        "-o", "got", f"https://localhost:{port}/file",
    )
    same(sha256(node.directory / "got"), digest, "SHA-256 of the download")
    # The other tool: it reads its input and the connection by select.
    request = node.write("request", "GET /file HTTP/1.0\r\n\r\n")
    with open(request, "rb") as file:
        client = node.finished(
            node.start_client(
                find("openssl"), "s_client", "-quiet", "-connect", f"127.0.0.1:{port}",
                "-CAfile", pem, stdin=file,
            )
        )
    _, _, body = client.stdout_bytes.partition(b"\r\n\r\n")
    check(body == source.read_bytes(), f"{len(body)} bytes, or others than the file's")
    node.stop(server)


CASES = [
    Case("stunnel", stunnel, ("stunnel", "openssl", "curl", "python3"), talks_to_itself=True),
    Case("openssl s_server and s_client", openssl, ("openssl", "curl")),
]
