"""nginx: workers, sendfile, keep-alive, proxying to itself, and reload while it is busy."""

import re
import signal
import time

from harness import Case, check, descendants, find, free_port, same, sha256

PACKAGES = ("nginx-light", "curl", "wrk")
BIG = 100_000_000

CONFIGURATION = """
daemon off;
worker_processes 2;
pid {directory}/nginx.pid;
error_log stderr notice;
events {{ worker_connections 512; {events} }}
http {{
    access_log off;
    sendfile {sendfile};
    tcp_nopush on;
    client_max_body_size 0;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    keepalive_requests 1000000;
    upstream itself {{ server 127.0.0.1:{port}; keepalive 8; }}
    server {{
        listen 127.0.0.1:{port};
        root {directory}/www;
        location /proxy/ {{
            proxy_pass http://itself/;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
        }}
        {more}
    }}
}}
"""


def start(node, sendfile="on", events="", more=""):
    port = free_port()
    node.write("www/small.txt", "some bytes\n" * 50)
    path = node.write(
        "nginx.conf",
        CONFIGURATION.format(
            directory=node.directory, port=port, sendfile=sendfile, events=events, more=more
        ),
    )
    server = node.server(find("nginx"), "-p", node.directory, "-c", path, port=port)
    return server, f"http://127.0.0.1:{port}"


def stop(node, server):
    # QUIT lets workers finish what they do; TERM need not.
    node.stop(server, signal.SIGQUIT)
    same(server.process.returncode, 0, f"status of nginx {server.report()}")
    check("alert" not in server.stderr, server.report())


def download(sendfile):
    def run(node):
        _, digest = node.random_file("www/big", BIG)
        server, url = start(node, sendfile)
        clients = [
            node.start_client("curl", "-sSf", "-o", node.directory / f"got{n}", f"{url}/big")
            for n in range(2)
        ]
        for number, client in enumerate(clients):
            node.finished(client)
            same(sha256(node.directory / f"got{number}"), digest, "SHA-256 of the download")
        # Many files over one connection, and a part of a file.
        node.client("curl", "-sSf", "-o", "part", "-r", "777777-50000000", f"{url}/big")
        wanted = (node.directory / "www/big").read_bytes()[777777:50000001]
        check((node.directory / "part").read_bytes() == wanted, "another part than asked for")
        many = [word for n in range(50) for word in ("-o", f"s{n}", f"{url}/small.txt")]
        node.client("curl", "-sSf", *many)
        same((node.directory / "s49").read_text(), "some bytes\n" * 50, "the last of 50 files")
        stop(node, server)

    return run


def busy(node, url, seconds, connections, *options):
    return node.start_client(
        find("wrk"), "-t", "2", "-c", connections, "-d", f"{seconds}s", "--timeout", "5s",
        *options, f"{url}/small.txt",
    )


def answered(client):
    """The number of requests, when each was answered as it should be."""
    count = re.search(r"(\d+) requests in", client.stdout)
    check(count and int(count[1]) > 100, client.report())
    check("Non-2xx" not in client.stdout, client.report())
    return int(count[1])


def keep_alive(connections, *options):
    def run(node):
        server, url = start(node)
        client = node.finished(busy(node, url, 3, connections, *options), 30)
        answered(client)
        check("Socket errors" not in client.stdout, client.report())
        stop(node, server)

    return run


def reload(node):
    _, digest = node.random_file("www/big", BIG)
    server, url = start(node)
    slow = node.start_client(
        "curl", "-sSf", "--limit-rate", "20M", "-o", node.directory / "got", f"{url}/big"
    )
    load = busy(node, url, 8, 20)
    time.sleep(1)
    generations = []
    for _ in range(3):
        generations.append(workers(server))
        configuration = node.directory / "nginx.conf"
        node.plain(find("nginx"), "-p", node.directory, "-c", configuration, "-s", "reload")
        time.sleep(1)
        check(set(workers(server)) - set(generations[-1]), "no new worker came")
    # The connections of workers that go are closed between requests: wrk connects again, and may
    # lose the request that it had just sent, as on TCP. None may hang, and none be refused.
    client = node.finished(load, 60)
    answered(client)
    errors = re.search(r"connect (\d+), read (\d+), write (\d+), timeout (\d+)", client.stdout)
    if errors:
        connect, reads, writes, timeouts = map(int, errors.groups())
        check(connect == 0 and timeouts == 0, client.report())
        check(reads + writes <= 3 * 20, client.report())
    node.finished(slow, 60)
    same(sha256(node.directory / "got"), digest, "a download through three reloads")
    # Old workers end when their last connection does.
    end = time.monotonic() + 10
    old = {pid for generation in generations for pid in generation}
    while old & set(workers(server)):
        check(time.monotonic() < end, f"old workers stay: {old & set(workers(server))}")
        time.sleep(0.1)
    stop(node, server)


def workers(server):
    return [pid for pid in descendants(server.pid) if _is_worker(pid)]


def _is_worker(pid):
    try:
        with open(f"/proc/{pid}/cmdline") as file:
            return "worker process" in file.read()
    except OSError:
        return False


def killed_worker(node):
    """A worker is killed while it sends: its clients see the end, the next are served."""
    _, digest = node.random_file("www/big", BIG)
    server, url = start(node)
    client = node.start_client("curl", "-sS", "--limit-rate", "10M", "-o", "cut", f"{url}/big")
    time.sleep(1)
    for pid in workers(server):
        node.plain("kill", "-KILL", pid)
    # 18: the transfer ended early; 56: it was reset.
    check(client.wait(20) in (18, 56), client.report())
    node.client("curl", "-sSf", "--retry", "5", "--retry-connrefused", "-o", "got", f"{url}/big")
    same(sha256(node.directory / "got"), digest, "SHA-256 after a worker was killed")
    node.stop(server, signal.SIGQUIT)


def proxied(node):
    _, digest = node.random_file("www/big", BIG // 4)
    server, url = start(node)
    node.client("curl", "-sSf", "-o", "got", f"{url}/proxy/big")
    same(sha256(node.directory / "got"), digest, "SHA-256 through the proxy")
    client = node.finished(busy(node, f"{url}/proxy", 2, 8), 30)
    answered(client)
    stop(node, server)


NEEDS = ("nginx", "curl")
CASES = [
    Case("nginx download, sendfile", download("on"), NEEDS),
    Case("nginx download, no sendfile", download("off"), NEEDS),
    Case("nginx keep-alive, 1 connection", keep_alive(1, "-t", "1"), (*NEEDS, "wrk")),
    Case("nginx keep-alive, 20 connections", keep_alive(20), (*NEEDS, "wrk")),
    Case("nginx reload under load", reload, (*NEEDS, "wrk")),
    Case("nginx worker killed", killed_worker, NEEDS, share=0.5),
    Case("nginx as proxy of itself", proxied, (*NEEDS, "wrk"), talks_to_itself=True),
]
