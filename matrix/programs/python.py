"""Python: asyncio, ssl, multiprocessing's managers and connections, http.server."""

from harness import Case, SOURCES, check, find, free_port, python, same, sha256

PACKAGES = ("python3", "curl", "openssl")

MANAGER = """
import multiprocessing.managers, sys
held = {}
class Manager(multiprocessing.managers.BaseManager): pass
Manager.register("held", callable=lambda: held, proxytype=multiprocessing.managers.DictProxy)
manager = Manager(("127.0.0.1", int(sys.argv[1])), b"key")
if sys.argv[2] == "server":
    manager.get_server().serve_forever()
manager.connect()
proxy = manager.held()

def work(number):
    # A process forked from one that has a connection already.
    for turn in range(40):
        key, value = (number, turn), bytes([number]) * (turn * 5000)
        proxy[key] = value
        assert proxy[key] == value, "another value"

processes = [multiprocessing.Process(target=work, args=[n]) for n in range(4)]
for process in processes: process.start()
for process in processes: process.join()
assert [process.exitcode for process in processes] == [0] * 4
assert len(proxy.keys()) == 160, len(proxy.keys())
print("160 values are as written")
"""

TLS = """
import hashlib, random, socket, ssl, sys, threading
port, role, certificate = int(sys.argv[1]), sys.argv[2], sys.argv[3]
data = random.Random(5).randbytes(8_000_000)

def serve(connection):
    with context.wrap_socket(connection, server_side=True) as tls:
        got = bytearray()
        while len(got) < len(data):
            part = tls.recv(1 << 16)
            assert part, "an early end"
            got += part
        tls.sendall(hashlib.sha256(got).digest() + got)
        tls.unwrap()

if role == "server":
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate)
    listener = socket.create_server(("127.0.0.1", port))
    while True:
        threading.Thread(target=serve, args=[listener.accept()[0]], daemon=True).start()
context = ssl.create_default_context(cafile=certificate)

def talk():
    plain = socket.create_connection(("127.0.0.1", port))
    with context.wrap_socket(plain, server_hostname="localhost") as tls:
        tls.settimeout(20)
        tls.sendall(data)
        got = bytearray()
        while len(got) < len(data) + 32:
            part = tls.recv(1 << 16)
            assert part, "an early end"
            got += part
        assert got == hashlib.sha256(data).digest() + data, "other bytes"
        tls.unwrap()
    done.append(1)

done = []
threads = [threading.Thread(target=talk) for _ in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert len(done) == 3
print("the same bytes came back")
"""


def certificate(node):
    """A key and its certificate in one file, for localhost and 127.0.0.1."""
    path = node.directory / "both.pem"
    node.plain(
        find("openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
        "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
        "-keyout", node.directory / "key.pem", "-out", node.directory / "cert.pem",
    )
    path.write_text(
        (node.directory / "key.pem").read_text() + (node.directory / "cert.pem").read_text()
    )
    return path


def asyncio(node):
    port = free_port()
    server = node.server(python(), SOURCES / "echo_server.py", port, port=port)
    for name in ("echo_client_asyncio.py", "echo_client.py"):
        client = node.client(python(), SOURCES / name, port)
        check("the same bytes came back" in client.stdout, client.report())
    node.stop(server)


def manager(node):
    script, port = node.write("manager.py", MANAGER), free_port()
    server = node.server(python(), script, port, "server", port=port)
    client = node.client(python(), script, port, "client")
    check("160 values are as written" in client.stdout, client.report())
    node.stop(server)


def tls(node):
    script, pem, port = node.write("tls.py", TLS), certificate(node), free_port()
    server = node.server(python(), script, port, "server", pem, port=port)
    client = node.client(python(), script, port, "client", pem)
    check("the same bytes came back" in client.stdout, client.report())
    check("Error" not in server.stderr, server.report())
    node.stop(server)


def http_server(node):
    source, digest = node.random_file("www/file", 30_000_000)
    port = free_port()
    server = node.server(
        python(), "-m", "http.server", "-b", "127.0.0.1", "-d", source.parent, port, port=port
    )
    clients = [
        node.start_client("curl", "-sSf", "-o", f"got{n}", f"http://127.0.0.1:{port}/file")
        for n in range(4)
    ]
    for number, client in enumerate(clients):
        node.finished(client)
        same(sha256(node.directory / f"got{number}"), digest, "SHA-256 of the download")
    script = f"import urllib.request as u; print(len(u.urlopen('http://127.0.0.1:{port}/').read()))"
    check(int(node.client(python(), "-c", script).stdout) > 100, "no listing")
    node.stop(server)


CASES = [
    Case("python asyncio", asyncio, ("python3",)),
    Case("python multiprocessing manager", manager, ("python3",)),
    Case("python ssl", tls, ("python3", "openssl")),
    Case("python http.server", http_server, ("python3", "curl")),
]
