"""Two connections ask for the fabric while their peers do nothing yet: the first one has an answer
of the daemon, the second one asks a daemon that is stopped. Then both exchange messages.

usage: late_daemon.py DIRECTORY     goes on as files `second`, `go` and `stop` appear there, and
                                    makes `first` and `third`
"""

import os
import pathlib
import socket
import sys
import time

PLACE = pathlib.Path(sys.argv[1])
WRITES, BYTES = 40, 1000


def wait_for(name):
    while not (PLACE / name).exists():
        time.sleep(0.005)


def exactly(connection, count):
    got = b""
    while len(got) < count:
        part = connection.recv(count - len(got))
        assert part, "an end amid the bytes"
        got += part
    return got


def serve(listener):
    connections = [listener.accept()[0] for _ in range(2)]
    wait_for("go")
    for number, connection in enumerate(connections):
        assert exactly(connection, WRITES * BYTES) == bytes([number]) * WRITES * BYTES
    while True:
        for connection in connections:
            message = connection.recv(100)
            if not message:
                return
            connection.sendall(message)


def begin(port, number):
    """A connection that has written so much that it has asked."""
    connection = socket.create_connection(("127.0.0.1", port))
    for _ in range(WRITES):
        connection.sendall(bytes([number]) * BYTES)
    return connection


listener = socket.create_server(("127.0.0.1", 0))
child = os.fork()
if child == 0:
    serve(listener)
    os._exit(0)
port = listener.getsockname()[1]
connections = [begin(port, 0)]
(PLACE / "first").touch()
wait_for("second")
connections.append(begin(port, 1))
(PLACE / "third").touch()
wait_for("go")
turn = 0
while not (PLACE / "stop").exists():
    for connection in connections:
        message = b"%d" % turn
        connection.sendall(message)
        assert exactly(connection, len(message)) == message
        turn += 1
for connection in connections:
    connection.shutdown(socket.SHUT_WR)
    assert connection.recv(1) == b""
    connection.close()
assert os.waitpid(child, 0)[1] == 0
print("all came back")
