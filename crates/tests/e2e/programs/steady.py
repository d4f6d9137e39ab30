"""Connections that keep working when the node daemon dies.

usage: steady.py server            prints its port and echoes
       steady.py client PORT STOP  runs until the file STOP exists

The client keeps one connection open and makes others. Each sends bytes both ways and compares them.
It prints one JSON object: the number of connections, and the longest time of one.
"""

import json
import os
import socket
import sys
import threading
import time


def echo(connection):
    while data := connection.recv(65_536):
        connection.sendall(data)
    connection.close()


def exchange(connection, number):
    sent = (b"%08d" % number) * 2500
    connection.sendall(sent)
    got = b""
    while len(got) < len(sent):
        part = connection.recv(65_536)
        assert part, f"the end after {len(got)} bytes"
        got += part
    assert got == sent


def main():
    if sys.argv[1] == "server":
        listener = socket.create_server(("127.0.0.1", 0), backlog=100)
        print(listener.getsockname()[1], flush=True)
        while True:
            connection = listener.accept()[0]
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=echo, args=[connection], daemon=True).start()
    address, stop = ("127.0.0.1", int(sys.argv[2])), sys.argv[3]
    lasting = socket.create_connection(address)
    count, longest = 0, 0.0
    while not os.path.exists(stop):
        begin = time.monotonic()
        exchange(lasting, count)
        with socket.create_connection(address) as connection:
            exchange(connection, count)
            exchange(connection, count + 1)
        count += 1
        longest = max(longest, time.monotonic() - begin)
        if count == 10:
            print("going", flush=True)
    print(json.dumps({"connections": count, "longest": longest}))


main()
