"""Sends blocks of many sizes over some connections and compares what comes back.

usage: echo_client.py PORT [CONNECTIONS]

The protocol of all echo programs here: the length in decimal digits and a line end, then so many
bytes; the other end answers with the same bytes. Any number of times on a connection.
"""

import random
import socket
import sys
import threading

SIZES = (1, 3000, 0, 70_000, 2, 1_500_000, 17, 400_000, 4_000_000)


def send(connection, block):
    connection.sendall(b"%d\n" % len(block))
    # In pieces of odd length.
    for place in range(0, len(block), 99_991):
        connection.sendall(block[place : place + 99_991])


def session(number):
    with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as connection:
        for turn in range(len(SIZES)):
            size = SIZES[(turn + number) % len(SIZES)]
            block = random.Random(number * 100 + turn).randbytes(size)
            # Beside reading: servers may send back while they read, and buffers have an end.
            writer = threading.Thread(target=send, args=[connection, block])
            writer.start()
            got = bytearray()
            while len(got) < len(block):
                part = connection.recv(1 << 18)
                assert part, f"the end after {len(got)} of {len(block)} bytes"
                got += part
            assert got == block, f"other bytes in turn {turn}"
            writer.join()
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b"", "something behind the end"
    done.append(number)


done = []
threads = [
    threading.Thread(target=session, args=[n])
    for n in range(int(sys.argv[2]) if len(sys.argv) > 2 else 4)
]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len(done) == len(threads), "some connections failed"
print("the same bytes came back")
