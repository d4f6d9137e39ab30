"""A server that forks just after its client asked for the fabric, and goes on in both processes."""

import os
import socket
import sys
import time

FIRST, MORE, SLOW, LATE, SIZE = 20, 6, 4, 200, 1000


def receive(connection, size):
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            sys.exit(f"an end after {len(data)} bytes")
        data += part
    return data


def block(number):
    return bytes([number % 256]) * SIZE


def serve(connection):
    # The server asks for the fabric long before the client does, and then checks for the answer
    # rarely.
    for _ in range(FIRST):
        receive(connection, 1)
    connection.sendall(b"y")
    # The client asks meanwhile, while this process makes no call on the connection.
    time.sleep(0.2)
    child = os.fork()
    # As in rsync, one process writes, the other reads, and both hold the connection to the end.
    if child == 0:
        receive(connection, MORE)
        for number in range(LATE):
            if receive(connection, SIZE) != block(number):
                os._exit(2)
        os._exit(0)
    for number in range(LATE):
        connection.sendall(block(number))
        # The first blocks are sent slowly, so that the client has time for a few checks for its
        # answer.
        if number < SLOW:
            time.sleep(0.1)
    if os.waitpid(child, 0)[1] != 0:
        sys.exit("the child read something else")


listener = socket.create_server(("127.0.0.1", 0))
server = os.fork()
if server == 0:
    serve(listener.accept()[0])
    os._exit(0)
connection = socket.create_connection(listener.getsockname())
listener.close()
connection.sendall(b"x" * FIRST)
receive(connection, 1)
for _ in range(MORE):
    connection.sendall(b"z")
for number in range(LATE):
    connection.sendall(block(number))
    if receive(connection, SIZE) != block(number):
        sys.exit("the client read something else")
connection.close()
if os.waitpid(server, 0)[1] != 0:
    sys.exit("the server did not end well")
print("all of them")
