"""The two sides of connections whose lanes go over endpoints.

usage: over_endpoints.py server PORT CONNECTIONS [HOST]
       over_endpoints.py echo|forks PORT CONNECTIONS [HOST]
       over_endpoints.py flood PORT SECONDS [HOST]
       over_endpoints.py closes PORT 1

The server answers each connection with what it gets, from one epoll set, and says how each ended.
A client checks every byte; with `forks` it makes a child now and then, which uses the connection,
and one program. `flood` writes for a time and says how it ended. `closes` closes descriptors that
it does not know, and then puts a file at their numbers.
"""

import hashlib
import os
import selectors
import socket
import subprocess
import sys
import tempfile
import threading
import time

mode, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
host = sys.argv[4] if len(sys.argv) > 4 else "127.0.0.1"


def serve():
    listener = socket.create_server((host, port), backlog=64)
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    print("ready", flush=True)
    waiting, over, ended = {}, set(), 0

    def end(connection, how):
        print(how, flush=True)
        selector.unregister(connection)
        connection.close()

    while ended < count:
        for key, events in selector.select():
            if key.fileobj is listener:
                connection = listener.accept()[0]
                connection.setblocking(False)
                waiting[connection] = bytearray()
                selector.register(connection, selectors.EVENT_READ)
                continue
            connection = key.fileobj
            answer = waiting[connection]
            try:
                if events & selectors.EVENT_READ and len(answer) < 1 << 20:
                    if part := connection.recv(1 << 16):
                        answer += part
                    else:
                        over.add(connection)
                if answer:
                    del answer[: connection.send(answer)]
            except BlockingIOError:
                pass
            except OSError as error:
                end(connection, type(error).__name__)
                ended += 1
                continue
            if connection in over and not answer:
                end(connection, "end")
                ended += 1
                continue
            reads = connection not in over and len(answer) < 1 << 20
            wanted = selectors.EVENT_READ if reads else 0
            selector.modify(connection, wanted | (selectors.EVENT_WRITE if answer else 0))


def turns(connection, count):
    for turn in range(count):
        sent = os.urandom(1 + turn * 397 % 30_000)
        connection.sendall(sent)
        got = b""
        while len(got) < len(sent):
            part = connection.recv(1 << 16)
            assert part, "an end amid an answer"
            got += part
        assert got == sent, "other bytes"
        yield turn, sent


def exchange(number, right):
    connection = socket.create_connection((host, port))
    for turn, sent in turns(connection, 120):
        if turn % 10 == 9:
            time.sleep(0.005)
        if mode == "forks" and number == 0 and turn in (60, 90):
            if (child := os.fork()) == 0:
                # The connection is the child's, too, while the parent leaves it alone.
                got = b""
                try:
                    connection.sendall(sent)
                    got = connection.recv(len(sent), socket.MSG_WAITALL)
                finally:
                    os._exit(got != sent)
            assert os.waitpid(child, 0)[1] == 0, "the child cannot use the connection"
            subprocess.run(["true"], check=True)
    connection.close()
    right.append(number)


def flood():
    connection = socket.create_connection((host, port))
    print("connected", flush=True)
    answers = hashlib.sha256()

    def read():
        try:
            while part := connection.recv(1 << 16):
                answers.update(part)
        except OSError:
            pass

    reader = threading.Thread(target=read)
    reader.start()
    sent = hashlib.sha256()
    end = time.monotonic() + count
    try:
        while time.monotonic() < end:
            part = os.urandom(20_000)
            connection.sendall(part)
            sent.update(part)
        connection.shutdown(socket.SHUT_WR)
    except OSError as error:
        print(type(error).__name__, flush=True)
        return
    reader.join()
    print("same" if answers.digest() == sent.digest() else "different", flush=True)


def descriptors():
    """The number and the file of each descriptor of this process."""
    found = {}
    for number in os.listdir("/proc/self/fd"):
        try:
            found[int(number)] = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            pass
    return found


def is_of_endpoint(file):
    """True for kinds of files that the program has not opened, but for arenas."""
    kinds = ("socket:", "anon_inode:", "/memfd:weft-")
    return file.startswith(kinds) and not file.startswith("/memfd:weft-arena")


def closes():
    connection = socket.create_connection((host, port))
    list(turns(connection, 120))
    own = connection.fileno()
    before = {number for number, file in descriptors().items() if is_of_endpoint(file)}
    for number in range(3, max(before) + 1):
        if number != own:
            try:
                os.close(number)
            except OSError:
                pass
    lost = before - set(descriptors())
    assert not lost, f"closed: {lost}"
    os.closerange(3, own)
    os.closerange(own + 1, 1 << 20)
    # The line to the daemon is opened anew when it is wanted.
    lost = before - set(descriptors())
    assert len(lost) <= 1, f"closed by a range: {lost}"
    list(turns(connection, 40))
    with tempfile.TemporaryFile() as file:
        taken = set(descriptors()) & before - {own, file.fileno()}
        for number in taken:
            os.dup2(file.fileno(), number)
        list(turns(connection, 40))
        for number in taken:
            assert os.path.sameopenfile(number, file.fileno()), f"{number} is not the program's"
        assert file.seek(0, os.SEEK_END) == 0, "something was written to the program's file"
    connection.close()
    print(len(taken) > 5 and "right", flush=True)


if mode == "server":
    serve()
elif mode == "closes":
    closes()
elif mode == "flood":
    flood()
else:
    right = []
    clients = [threading.Thread(target=exchange, args=(n, right)) for n in range(count)]
    [client.start() for client in clients]
    [client.join() for client in clients]
    print(len(right), "right", flush=True)
