"""memcached: threads that are handed connections, its protocol test, large values."""

import signal

from harness import Case, check, find, free_port, python, unprivileged_user

PACKAGES = ("memcached", "libmemcached-tools")

CLIENT = """
import hashlib, random, socket, sys, threading

def value(key, length):
    return random.Random(f"{key}:{length}").randbytes(length)

def session(number):
    connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    stream = connection.makefile("rwb")
    lengths = [1, 50, 1000, 17_000, 300_000, 1_000_000]
    for turn in range(30):
        length = lengths[(turn + number) % len(lengths)]
        key = f"k{number}-{turn}"
        stream.write(f"set {key} 0 0 {length}\\r\\n".encode() + value(key, length) + b"\\r\\n")
        stream.flush()
        assert stream.readline() == b"STORED\\r\\n"
        stream.write(f"get {key}\\r\\n".encode())
        stream.flush()
        head = stream.readline()
        assert head == f"VALUE {key} 0 {length}\\r\\n".encode(), head
        assert stream.read(length) == value(key, length), "another value"
        assert stream.readline() + stream.readline() == b"\\r\\nEND\\r\\n"
    done.append(number)

done = []
threads = [threading.Thread(target=session, args=[number]) for number in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert len(done) == 8
print("all values are as written")
"""


def start(node):
    port = free_port()
    options = []
    if user := unprivileged_user("nobody"):
        options = ["-u", user]
    return node.server(
        find("memcached"), "-l", "127.0.0.1", "-p", port, "-U", "0", "-t", 4, "-m", 256, *options,
        port=port,
    ), port


def values(node):
    server, port = start(node)
    client = node.client(python(), node.write("client.py", CLIENT), port)
    check("all values are as written" in client.stdout, client.report())
    node.stop(server, signal.SIGINT)


def protocol(node):
    server, port = start(node)
    for kind in ("-a", "-b"):
        client = node.client(find("memccapable"), "-h", "127.0.0.1", "-p", port, kind, "-t", 5)
        check("All tests passed" in client.stdout, client.report())
    node.stop(server, signal.SIGINT)


def load(node):
    server, port = start(node)
    for test in ("set", "get", "mget"):
        node.client(
            find("memcslap"), "--servers", f"127.0.0.1:{port}", "--concurrency", 8,
            "--execute-number", 500, "--initial-load", 500, "--test", test,
        )
    node.stop(server, signal.SIGINT)


CASES = [
    Case("memcached values", values, ("memcached", "python3")),
    Case("memcached protocol test", protocol, ("memcached", "memccapable")),
    # The client writes its first megabytes before a thread of the server took the connection over.
    Case("memcached load", load, ("memcached", "memcslap"), share=0.5),
]
