"""The two sides of connections whose lanes go over endpoints.

usage: over_endpoints.py server PORT CONNECTIONS [HOST]
       over_endpoints.py echo|forks PORT CONNECTIONS [HOST]
       over_endpoints.py flood PORT SECONDS [HOST [FILE]]

The server answers each connection with what it gets, from one epoll set, and says how each ended.
A client checks every byte; with `forks` it makes a child now and then, which uses the connection,
and one program. `flood` writes for a time, or until there is a file, and says how it ended.
"""

import hashlib
import os
import selectors
import socket
import subprocess
import sys
import threading
import time

mode, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
host = sys.argv[4] if len(sys.argv) > 4 else "127.0.0.1"
file = sys.argv[5] if len(sys.argv) > 5 else None


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
        while time.monotonic() < end and not (file and os.path.exists(file)):
            part = os.urandom(20_000)
            connection.sendall(part)
            sent.update(part)
        connection.shutdown(socket.SHUT_WR)
    except OSError as error:
        print(type(error).__name__, flush=True)
        return
    reader.join()
    print("same" if answers.digest() == sent.digest() else "different", flush=True)


if mode == "server":
    serve()
elif mode == "flood":
    flood()
else:
    right = []
    clients = [threading.Thread(target=exchange, args=(n, right)) for n in range(count)]
    [client.start() for client in clients]
    [client.join() for client in clients]
    print(len(right), "right", flush=True)
