"""Descriptors that one thread closes, replaces or divides while others use them."""

import ctypes
import errno
import os
import resource
import signal
import socket
import struct
import threading
import time

from semantics import case, exactly, pattern

libc = ctypes.CDLL(None, use_errno=True)


def echoes(listener):
    """Serves connections that send back what they get, each in a thread."""

    def serve(connection):
        try:
            while part := connection.recv(4096):
                connection.sendall(part)
        except OSError:
            pass
        connection.close()

    while True:
        connection, _ = listener.accept()
        threading.Thread(target=serve, args=(connection,), daemon=True).start()


def echoed(connection, count, size=64):
    """True when the other end sends back what this one sends."""
    for number in range(count):
        wanted = bytes([97 + number % 26]) * size
        connection.sendall(wanted)
        if exactly(connection, size) != wanted:
            return False
    return True


def sleeps(task):
    """Waits until a thread sleeps in the kernel."""
    while True:
        with open(f"/proc/self/task/{task}/stat", encoding="ascii") as file:
            if file.read().rpartition(")")[2].split()[0] == "S":
                return
        time.sleep(0.001)


class Reader(threading.Thread):
    """Receives once, by the number of a descriptor, in a thread of its own."""

    def __init__(self, descriptor, receive=None):
        super().__init__(daemon=True)
        self.descriptor, self.got, self.began = descriptor, None, threading.Event()
        self.receive = receive or (lambda: os.read(descriptor, 64))
        self.start()
        self.began.wait()
        time.sleep(0.005)
        sleeps(self.native_id)

    def run(self):
        self.began.set()
        try:
            self.got = self.receive()
        except OSError as error:
            self.got = errno.errorcode[error.errno]


class Echo:
    """A case whose server sends back what it gets, until the client says so."""

    def server(t):
        listener = t.listen()
        threading.Thread(target=echoes, args=(listener,), daemon=True).start()
        t.sync()


@case
class closed_while_a_thread_reads(Echo):
    """The number of a connection goes to another one while a thread still waits at the first."""

    def client(t):
        address, rights = tuple(t.hear()), []

        def work():
            connection = socket.create_connection(address)
            for _ in range(20):
                right = echoed(connection, 15)
                reader = Reader(connection.fileno())
                connection.shutdown(socket.SHUT_RDWR)
                connection.close()
                connection = socket.create_connection(address)
                right &= echoed(connection, 15)
                reader.join()
                rights.append(right and reader.got == b"")
            connection.close()

        workers = [threading.Thread(target=work) for _ in range(8)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        t.say(len(rights), all(rights))
        t.sync()


@case
class a_call_holds_a_closed_connection(Echo):
    """Without a shutdown the connection goes on for the thread that waits."""

    def server(t):
        listener = t.listen()
        connection, _ = listener.accept()
        t.say(exactly(connection, 3000) == b"a" * 3000)
        connection.sendall(b"b" * 3000)
        t.sync()
        # The other end is still there.
        connection.sendall(b"late")
        t.say(connection.recv(100))
        connection.close()

    def client(t):
        connection = t.connect(warm=False)
        connection.sendall(b"a" * 3000)
        exactly(connection, 3000)
        descriptor = connection.fileno()
        reader = Reader(descriptor)
        connection.close()
        other = os.open("/dev/null", os.O_RDONLY)
        t.say(other == descriptor, os.read(descriptor, 10))
        t.sync()
        reader.join()
        t.say(reader.got)


@case
class replaced_while_a_thread_reads(Echo):
    """As Java closes a socket: another file gets its number, and a signal wakes the reader."""

    def client(t):
        address, seen = tuple(t.hear()), set()
        marker, other = socket.socketpair()
        other.close()
        signal.signal(signal.SIGUSR1, lambda *_: None)
        for number in range(60):
            connection = socket.create_connection(address)
            echoed(connection, 15)
            descriptor = connection.fileno()
            reader = Reader(descriptor)
            if number % 2:
                connection.send(b"a")
            os.dup2(marker.fileno(), descriptor)
            while reader.is_alive():
                signal.pthread_kill(reader.ident, signal.SIGUSR1)
                reader.join(0.001)
            reader.join()
            seen.add(reader.got)
            connection.close()
        t.say(seen <= {b"", b"a"})
        t.sync()


@case
class dissolved_and_connected_again(Echo):
    """`connect` to no address resets the peer, and then the socket is as new."""

    def server(t):
        listener = t.listen()
        for _ in range(2):
            connection, _ = listener.accept()
            try:
                while part := connection.recv(4096):
                    connection.sendall(part)
                t.say("end")
            except OSError as error:
                t.say(errno.errorcode[error.errno])
            connection.close()
        t.sync()

    def client(t):
        address = tuple(t.hear())
        connection = socket.create_connection(address)
        t.say(echoed(connection, 30))
        copy = connection.dup()
        nothing = struct.pack("=H14x", socket.AF_UNSPEC)
        t.say(libc.connect(connection.fileno(), nothing, len(nothing)))
        t.attempt("send", connection.send, b"lost")
        t.attempt("recv", connection.recv, 10)
        t.attempt("getpeername", connection.getpeername)
        connection.connect(address)
        t.say(echoed(connection, 30), echoed(copy, 30))
        copy.close()
        connection.shutdown(socket.SHUT_WR)
        t.say(connection.recv(10))
        t.sync()


def dissolved(unread, waits, shut):
    """Leaves its peer without a word, which may wait, and with bytes unread."""

    class Case:
        def server(t):
            connection = t.accept()
            for _ in range(30):
                connection.sendall(connection.recv(100))
            connection.sendall(pattern(unread))
            t.sync()
            if not waits:
                t.sync()
                time.sleep(0.05)
            t.attempt("recv", connection.recv, 10)
            t.attempt("recv", connection.recv, 10)
            if waits:
                t.sync()
                time.sleep(0.05)
            t.say(connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) if shut else None)
            t.attempt("send", connection.send, b"x")

        def client(t):
            connection = t.connect()
            t.say(echoed(connection, 30))
            t.sync()
            if shut:
                connection.shutdown(socket.SHUT_WR)
            if waits:
                time.sleep(0.1)
            nothing = struct.pack("=H14x", socket.AF_UNSPEC)
            t.say(libc.connect(connection.fileno(), nothing, len(nothing)))
            t.sync()

    return Case


@case
class dissolved_with_bytes_unread(dissolved(5_000, False, False)):
    pass


@case
class dissolved_with_bytes_unread_by_a_peer_that_waits(dissolved(5_000, True, False)):
    pass


@case
class dissolved_after_a_half_close(dissolved(0, False, True)):
    pass


@case
class dissolved_after_a_half_close_with_bytes_unread(dissolved(5_000, True, True)):
    pass


@case
class descriptors_of_a_thread_alone(Echo):
    """A thread that divides its descriptors from the others closes its own copies alone."""

    def client(t):
        CLONE_FILES = 0x400
        address = tuple(t.hear())
        connection = socket.create_connection(address)
        t.say(echoed(connection, 30))
        results = []

        def apart():
            results.append(libc.unshare(CLONE_FILES))
            os.close(connection.fileno())
            other = socket.create_connection(address)
            results.append(other.fileno() == connection.fileno())
            results.append(echoed(other, 30))
            results.append(other.detach() >= 0)

        thread = threading.Thread(target=apart)
        thread.start()
        thread.join()
        t.say(results, echoed(connection, 30))
        t.say(echoed(socket.create_connection(address), 30))
        t.sync()


@case
class as_many_descriptors_as_the_limit(Echo):
    """The library's own descriptors are not below the limit that leaves room above it."""

    def client(t):
        address = tuple(t.hear())
        echoed(socket.create_connection(address), 30)
        used = len(os.listdir("/proc/self/fd")) - 1
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (32, most))
        below = sum(int(name) < 32 for name in os.listdir("/proc/self/fd")) - 1
        connections = []
        try:
            while True:
                connections.append(socket.create_connection(address))
                echoed(connections[-1], 30)
        except OSError as error:
            t.say(errno.errorcode[error.errno])
        t.say(len(connections) + below, used - below >= 0)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        t.sync()
