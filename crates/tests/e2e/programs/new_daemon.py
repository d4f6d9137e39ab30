"""Both ends of two connections, between which the daemon is replaced: new_daemon.py DIRECTORY.

Writes the file "first" into DIRECTORY when the first connection has carried its messages, and opens
the second one when there is a file "second".
"""

import pathlib
import socket
import sys
import threading
import time

PLACE, MESSAGES = pathlib.Path(sys.argv[1]), 2000


def echo(listener):
    while True:
        connection = listener.accept()[0]
        while data := connection.recv(64):
            connection.sendall(data)
        connection.close()


def talk(address):
    with socket.create_connection(address) as connection:
        for number in range(MESSAGES):
            sent = b"%08d" % number
            connection.sendall(sent)
            assert connection.recv(64) == sent, number


listener = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=echo, args=(listener,), daemon=True).start()
talk(listener.getsockname())
(PLACE / "first").touch()
while not (PLACE / "second").exists():
    time.sleep(0.01)
talk(listener.getsockname())
print("both were carried")
