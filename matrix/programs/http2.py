"""HTTP/2 between curl and nginx, over TLS and in the clear: many streams on one connection."""

import signal

from harness import Case, check, find, free_port, same, sha256
from programs.python import certificate

PACKAGES = ("nginx-light", "curl", "nghttp2-client", "openssl")
BIG = 30_000_000

CONFIGURATION = """
daemon off;
worker_processes 2;
pid {directory}/nginx.pid;
error_log stderr notice;
events {{ worker_connections 256; }}
http {{
    access_log off;
    sendfile on;
    keepalive_requests 1000000;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    server {{
        listen 127.0.0.1:{clear} http2;
        listen 127.0.0.1:{tls} ssl http2;
        ssl_certificate {pem};
        ssl_certificate_key {pem};
        root {directory}/www;
    }}
}}
"""


def start(node):
    pem, clear, tls = certificate(node), free_port(), free_port()
    path = node.write(
        "nginx.conf",
        CONFIGURATION.format(directory=node.directory, pem=pem, clear=clear, tls=tls),
    )
    server = node.server(find("nginx"), "-p", node.directory, "-c", path, port=tls)
    return server, pem, clear, tls


def curl(node):
    digests = [node.random_file(f"www/file{n}", BIG // (n + 1), seed=n)[1] for n in range(4)]
    server, pem, clear, tls = start(node)
    names = range(len(digests))

    def fetch(names, url, *options):
        files = [word for n in names for word in ("-o", f"got{n}", f"{url}/file{n}")]
        client = node.client("curl", "-sSf", "-w", "%{http_version}\\n", *options, *files)
        same(client.stdout.split(), ["2"] * len(names), "versions of HTTP")

    def compare():
        for number in names:
            got = node.directory / f"got{number}"
            same(sha256(got), digests[number], f"SHA-256 of file {number}")
            got.unlink()

    # curl 7.88 takes a second answer on such a connection for one of HTTP/1: one by one.
    for number in names:
        fetch([number], f"http://127.0.0.1:{clear}", "--http2-prior-knowledge")
    compare()
    # All at once, over one connection.
    fetch(
        names, f"https://localhost:{tls}",
        "--parallel", "--http2", "--cacert", pem, "--connect-to", f"::127.0.0.1:{tls}",
    )
    compare()
    node.stop(server, signal.SIGQUIT)


def load(node):
    node.write("www/small", "some bytes\n" * 100)
    server, _, clear, tls = start(node)
    for url in (f"http://127.0.0.1:{clear}/small", f"https://127.0.0.1:{tls}/small"):
        client = node.client(find("h2load"), "-n", 5000, "-c", 5, "-m", 20, "-t", 2, url)
        check("5000 succeeded, 0 failed, 0 errored" in client.stdout, client.report())
        check("status codes: 5000 2xx" in client.stdout, client.report())
    node.stop(server, signal.SIGQUIT)


CASES = [
    Case("curl HTTP/2", curl, ("nginx", "curl", "openssl")),
    Case("h2load HTTP/2", load, ("nginx", "h2load", "openssl")),
]
