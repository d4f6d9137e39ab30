"""Kills the peer of a connection at a random moment; measures when this end detects it.

usage: sudden_death.py KILLED ROUNDS SEED      KILLED is server or client
       sudden_death.py victim-server MODE      prints its port
       sudden_death.py victim-client MODE PORT

Prints one JSON object: the rounds, the observed endings, and the longest time in seconds for each
mode of waiting. Every connection first carries some bytes both ways, which also shows that the next
connection works after a death.
"""

import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import threading
import time

MODES = ["read", "write", "echo", "poll", "select", "epoll", "epoll-edge", "nonblocking-write"]
# The victim is killed while it starts, connects, moves to the fabric or has just begun.
MODES += ["early", "early"]


def greet(connection):
    """Sends some bytes in both directions; either side may read first."""
    for number in range(10):
        connection.sendall(b"%05d" % number)
        got = b""
        while len(got) < 5:
            part = connection.recv(5 - len(got))
            if not part:
                raise EOFError
            got += part
        assert got == b"%05d" % number, got


def victim(connection, mode):
    greet(connection)
    print("going", flush=True)
    while mode == "early":
        greet(connection)
    if mode == "echo":
        while data := connection.recv(65_536):
            connection.sendall(data)
    # Makes no call until it is killed.
    time.sleep(60)


def survivor(connection, mode):
    """Waits as `mode` says until the peer is gone, and returns how the death showed."""
    block = bytes(range(256)) * 400
    try:
        if mode == "early":
            while True:
                greet(connection)
        if mode == "read":
            return "end" if not connection.recv(10) else "bytes"
        if mode == "write":
            while True:
                connection.sendall(block)
        if mode == "echo":
            while True:
                connection.sendall(block[:20_000])
                left = 20_000
                while left:
                    part = connection.recv(left)
                    if not part:
                        return "end"
                    left -= len(part)
        connection.setblocking(False)
        if mode == "nonblocking-write":
            while True:
                try:
                    connection.send(block)
                except BlockingIOError:
                    select.select([], [connection], [], 10)
        if mode == "poll":
            waiter = select.poll()
            waiter.register(connection, select.POLLIN)
            ready = waiter.poll(10_000)
        elif mode == "select":
            ready = select.select([connection], [], [], 10)[0]
        else:
            waiter = select.epoll()
            edge = select.EPOLLET if mode == "epoll-edge" else 0
            waiter.register(connection, select.EPOLLIN | select.EPOLLRDHUP | edge)
            ready = waiter.poll(10)
        if not ready:
            return "hang"
        return "end" if not connection.recv(10) else "bytes"
    except EOFError:
        return "end"
    except (ConnectionResetError, BrokenPipeError) as error:
        return type(error).__name__


# When the connection of this round existed.
begun = [0.0]


def meet(killed, child, listener):
    """The connection with the victim; None when the victim died before there was one."""
    connection = None
    if killed == "server":
        port = child.stdout.readline()
        if port:
            try:
                connection = socket.create_connection(("127.0.0.1", int(port)))
            except (ConnectionRefusedError, ConnectionResetError):
                pass
    else:
        listener.settimeout(0.05)
        while not connection:
            try:
                connection = listener.accept()[0]
            except TimeoutError:
                if child.poll() is not None:
                    break
    if connection:
        connection.settimeout(None)
    begun[0] = time.monotonic()
    return connection


def main():
    if sys.argv[1] == "victim-server":
        listener = socket.create_server(("127.0.0.1", 0))
        print(listener.getsockname()[1], flush=True)
        victim(listener.accept()[0], sys.argv[2])
        return
    if sys.argv[1] == "victim-client":
        victim(socket.create_connection(("127.0.0.1", int(sys.argv[3]))), sys.argv[2])
        return
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    killed, rounds, numbers = sys.argv[1], int(sys.argv[2]), random.Random(int(sys.argv[3]))
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    longest, seen = {}, {}
    for number in range(rounds):
        mode = MODES[number % len(MODES)]
        line = [sys.executable, __file__, f"victim-{killed}", mode]
        line += [str(port)] if killed == "client" else []
        child = subprocess.Popen(line, stdout=subprocess.PIPE)
        moment = []

        def kill(pid=child.pid, moment=moment):
            moment.append(time.monotonic())
            os.kill(pid, signal.SIGKILL)

        signal.alarm(30)
        if mode == "early":
            timer = threading.Timer(numbers.uniform(0.02, 0.15), kill)
            timer.start()
            connection = meet(killed, child, listener)
        else:
            timer = threading.Timer(numbers.uniform(0, 0.05), kill)
            connection = meet(killed, child, listener)
            greet(connection)
            assert child.stdout.readline() == b"going\n"
            timer.start()
        told = survivor(connection, mode) if connection else "too early"
        known = time.monotonic()
        timer.join()
        if connection:
            # A victim that was killed while it waited to be accepted was dead before the
            # connection.
            longest[mode] = max(longest.get(mode, 0), known - max(moment[0], begun[0]))
            connection.close()
        seen[told] = seen.get(told, 0) + 1
        child.wait()
        child.stdout.close()
    maps = open("/proc/self/maps").read()
    print(json.dumps({
        "rounds": rounds,
        "seen": seen,
        "longest": longest,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "mappings": maps.count("memfd:"),
    }))


main()
