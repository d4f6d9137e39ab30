"""Connections of about a megabyte, one after another; both ends compare the bytes.

usage: kept.py server MANNER PORT      prints "ready"
       kept.py client PORT COUNT THREADS [--until-killed]

MANNER is how the server serves: `one` by one, `threads` (one for each connection), `workers` (three
forked ones), `forks` (a child for each connection) or `execs` (a program for each connection). With
--until-killed the client never ends, and tolerates every failure except a wrong byte or a timeout.
"""

import hashlib
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import threading

WAIT = 8


def pattern(seed, size):
    return random.Random(seed).randbytes(size)


def exactly(connection, count):
    parts = []
    while count:
        part = connection.recv(min(count, 1 << 17))
        if not part:
            raise EOFError(f"{count} bytes are missing")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def answer(connection):
    """Receives `up` bytes, answers with their hash and `down` bytes."""
    seed, up, down = struct.unpack("!III", exactly(connection, 12))
    digest = hashlib.sha256(exactly(connection, up)).digest()
    connection.sendall(digest)
    connection.sendall(pattern(seed + 1, down))
    while connection.recv(100):
        pass


def serve_one(manner, connection):
    if manner == "execs":
        os.set_inheritable(connection.fileno(), True)
        # The exec comes in the middle of the transfer, when the connection is on its lane.
        head = exactly(connection, 12)
        first = exactly(connection, 300_000)
        program = subprocess.Popen(
            [sys.executable, __file__, "rest", str(connection.fileno()), head.hex()],
            stdin=subprocess.PIPE,
            close_fds=False,
        )
        connection.close()
        program.communicate(first)
        return
    try:
        answer(connection)
    except (OSError, EOFError):
        pass
    connection.close()


def rest(number, head, first):
    """The program of "execs": continues after the first bytes."""
    connection = socket.socket(fileno=number)
    seed, up, down = struct.unpack("!III", head)
    digest = hashlib.sha256(first + exactly(connection, up - len(first))).digest()
    connection.sendall(digest)
    connection.sendall(pattern(seed + 1, down))
    while connection.recv(100):
        pass


def server(manner, port):
    listener = socket.create_server(("127.0.0.1", port), reuse_port=False)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN if manner == "forks" else signal.SIG_DFL)
    if manner == "workers":
        for _ in range(2):
            if os.fork() == 0:
                break
        else:
            print("ready", flush=True)
    else:
        print("ready", flush=True)
    while True:
        connection = listener.accept()[0]
        if manner == "threads":
            threading.Thread(target=serve_one, args=(manner, connection), daemon=True).start()
        elif manner == "forks":
            if os.fork() == 0:
                listener.close()
                serve_one(manner, connection)
                os._exit(0)
            connection.close()
        else:
            serve_one(manner, connection)


def ask(port, dice):
    seed = dice.randrange(1 << 30)
    up, down = dice.choice([(1_000_000, 1), (1, 1_000_000), (700_000, 700_000)])
    if dice.random() < 0.3:
        up, down = (max(1, part - dice.randrange(part)) for part in (up, down))
    up = max(up, 300_000)
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT) as connection:
        connection.sendall(struct.pack("!III", seed, up, down))
        bytes_up = pattern(seed, up)
        half = dice.randrange(up)
        connection.sendall(bytes_up[:half])
        connection.sendall(bytes_up[half:])
        if exactly(connection, 32) != hashlib.sha256(bytes_up).digest():
            print("the server got other bytes", flush=True)
            os._exit(1)
        if exactly(connection, down) != pattern(seed + 1, down):
            print("the client got other bytes", flush=True)
            os._exit(1)
        if dice.random() < 0.5:
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(100):
                pass


def client(port, count, seed, endless):
    dice = random.Random(seed)
    done = 0
    while endless or done < count:
        try:
            ask(port, dice)
            done += 1
            if endless and done == 20:
                print("twenty", flush=True)
        except (EOFError, OSError) as error:
            if not endless or isinstance(error, TimeoutError):
                print(f"{type(error).__name__}: {error}", flush=True)
                os._exit(1)


def main():
    role, *words = sys.argv[1:]
    if role == "server":
        server(words[0], int(words[1]))
    if role == "rest":
        rest(int(words[0]), bytes.fromhex(words[1]), sys.stdin.buffer.read())
        return
    port, count, threads = map(int, words[:3])
    each = [
        threading.Thread(target=client, args=(port, count // threads, seed, len(words) > 3))
        for seed in range(threads)
    ]
    for thread in each:
        thread.start()
    for thread in each:
        thread.join()
    print("all bytes are right", flush=True)


main()
