"""Writes and reads of random sizes with random delays, in both directions at the same time.

usage: stress.py server MANNER BYTES SEED          prints its port
       stress.py client MANNER BYTES SEED PORT

Each side sends BYTES bytes and receives as many. It prints one line: the SHA-256 of the bytes that
it sent and of those it received. MANNER is how it waits: blocking (two threads), poll, select,
epoll (level) or epoll-edge. All but blocking use one thread and a non-blocking socket.
"""

import hashlib
import random
import select
import socket
import sys
import threading
import time

# Twice the largest write, of bytes that do not repeat at powers of two.
LARGEST = 1_000_003
POOL = random.Random(11).randbytes(2 * LARGEST)


def size(numbers):
    """Mostly small and medium sizes, and sometimes a large one."""
    kind = numbers.random()
    if kind < 0.25:
        return numbers.randrange(1, 200)
    if kind < 0.6:
        return numbers.randrange(200, 20_000)
    return numbers.randrange(20_000, LARGEST if kind > 0.9 else 200_000)


def delay(numbers):
    if numbers.random() < 0.02:
        time.sleep(numbers.random() * 0.002)


class Sender:
    def __init__(self, total, seed):
        self.left, self.numbers, self.hash = total, random.Random(seed), hashlib.sha256()
        self.block = memoryview(b"")

    def step(self, connection):
        """Makes one write; false when all bytes were sent."""
        if not self.block:
            begin = self.numbers.randrange(LARGEST)
            length = min(size(self.numbers), self.left)
            self.block = memoryview(POOL)[begin : begin + length]
            delay(self.numbers)
        sent = connection.send(self.block)
        self.hash.update(self.block[:sent])
        self.block = self.block[sent:]
        self.left -= sent
        if not self.left:
            connection.shutdown(socket.SHUT_WR)
        return self.left > 0


class Receiver:
    def __init__(self, total, seed):
        self.total, self.numbers, self.hash = 0, random.Random(seed), hashlib.sha256()
        self.expected = total
        self.room = memoryview(bytearray(LARGEST))

    def step(self, connection):
        """Makes one read; false at the end."""
        delay(self.numbers)
        got = connection.recv_into(self.room[: size(self.numbers)])
        self.hash.update(self.room[:got])
        self.total += got
        return got > 0


def blocking(connection, sender, receiver):
    def send():
        while sender.step(connection):
            pass

    thread = threading.Thread(target=send)
    thread.start()
    while receiver.step(connection):
        pass
    thread.join()


def wait_by(manner, connection):
    """Returns a function of (reads, writes) that waits and tells which of them is ready."""
    number = connection.fileno()
    if manner == "select":
        def wait(reads, writes):
            ready = select.select([number] * reads, [number] * writes, [], 20)
            return bool(ready[0]), bool(ready[1])
        return wait
    poller = select.poll() if manner == "poll" else select.epoll()
    edge = select.EPOLLET if manner == "epoll-edge" else 0
    poller.register(number, select.EPOLLIN | select.EPOLLOUT | edge)

    def wait(reads, writes):
        wanted = select.EPOLLIN * reads | select.EPOLLOUT * writes
        if not edge:
            poller.modify(number, wanted)
        found = poller.poll(20_000 if manner == "poll" else 20)
        events = found[0][1] if found else 0
        ended = events & (select.EPOLLHUP | select.EPOLLERR)
        return bool(events & select.EPOLLIN or ended), bool(events & select.EPOLLOUT or ended)

    return wait


def non_blocking(manner, connection, sender, receiver):
    connection.setblocking(False)
    wait = wait_by(manner, connection)
    edge = manner == "epoll-edge"
    reads, writes, may_read, may_write = True, True, False, False
    while reads or writes:
        if not (may_read and reads or may_write and writes):
            ready = wait(reads, writes)
            assert any(ready), f"20 s of nothing: {reads} {writes}, {receiver.total} came"
            may_read, may_write = may_read or ready[0], may_write or ready[1]
        try:
            if reads and may_read:
                reads = receiver.step(connection)
                may_read = edge
        except BlockingIOError:
            may_read = False
        try:
            if writes and may_write:
                writes = sender.step(connection)
                may_write = edge
        except BlockingIOError:
            may_write = False


def main():
    role, manner, total, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    if role == "server":
        listener = socket.create_server(("127.0.0.1", 0))
        print(listener.getsockname()[1], flush=True)
        connection = listener.accept()[0]
    else:
        connection = socket.create_connection(("127.0.0.1", int(sys.argv[5])))
    own = seed * 2 + (role == "server")
    sender, receiver = Sender(total, own), Receiver(total, own + 1000)
    if manner == "blocking":
        blocking(connection, sender, receiver)
    else:
        non_blocking(manner, connection, sender, receiver)
    assert receiver.total == total, f"{receiver.total} of {total} bytes"
    print("sent", sender.hash.hexdigest(), "received", receiver.hash.hexdigest(), flush=True)


main()
