"""Waits that are fair, and answers that do not depend on the peer's help."""

import os
import select
import signal
import socket
import threading
import time

from cases_readiness import shown, told, told_in_time
from semantics import away, case, exactly

ROUNDS = 300
# The least number of these rounds in which each of three descriptors must be reported.
LEAST = ROUNDS // 30


def mixture():
    """A pipe with a byte, a listener with a waiting connection, and what keeps both alive."""
    reader, writer = os.pipe()
    os.write(writer, b"x")
    # A Unix socket, so that it does not count as a TCP connection.
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("")
    listener.listen()
    waiting = socket.socket(socket.AF_UNIX)
    waiting.connect(listener.getsockname())
    return reader, listener, (writer, waiting)


class ready_lane:
    """A case whose client always has bytes to read; this is its other side."""

    def server(t):
        c = t.accept()
        c.sendall(b"something")
        t.sync()
        t.sync()


@case
class epoll_for_one_event_tells_all_in_turn(ready_lane):
    def client(t):
        s = t.connect()
        t.sync()
        select.select([s], [], [], 5)
        reader, listener, held = mixture()
        poller = select.epoll()
        for each in (s.fileno(), reader, listener.fileno()):
            poller.register(each, select.EPOLLIN)
        seen = [poller.poll(1, 1)[0][0] for _ in range(ROUNDS)]
        for each in (s.fileno(), reader, listener.fileno()):
            t.say(seen.count(each) >= LEAST)
        t.sync()


@case
class epoll_for_one_event_tells_all_connections_in_turn:
    def server(t):
        listener = t.listen()
        connections = [t.accept(listener) for _ in range(3)]
        for c in connections:
            c.sendall(b"something")
        t.sync()
        t.sync()

    def client(t):
        address = tuple(t.hear())
        connections = [t.connect(address) for _ in range(3)]
        t.sync()
        poller = select.epoll()
        for s in connections:
            select.select([s], [], [], 5)
            poller.register(s, select.EPOLLIN)
        for most in (1, 2):
            seen = [fd for _ in range(ROUNDS) for fd, _ in poller.poll(1, most)]
            t.say([seen.count(s.fileno()) >= LEAST for s in connections])
        t.sync()


@case
class epoll_tells_all_while_bytes_come_all_the_time:
    def server(t):
        c = t.accept()
        t.sync()
        while c.recv(1) == b"x":
            c.sendall(b"y")
        t.sync()

    def client(t):
        s = t.connect()
        reader, listener, held = mixture()
        t.sync()
        poller = select.epoll()
        for each in (s.fileno(), reader, listener.fileno()):
            poller.register(each, select.EPOLLIN)
        s.sendall(b"x")
        seen, answers = [], 0
        deadline = time.monotonic() + 5
        while answers < ROUNDS and time.monotonic() < deadline:
            for fd, _ in poller.poll(1, 1):
                seen.append(fd)
                if fd == s.fileno():
                    answers += len(s.recv(1))
                    s.sendall(b"x")
        t.say(answers >= ROUNDS)
        for each in (reader, listener.fileno()):
            t.say(seen.count(each) >= LEAST)
        exactly(s, 1)
        s.sendall(b"z")
        t.sync()


@case
class poll_tells_all_that_is_ready(ready_lane):
    def client(t):
        s = t.connect()
        t.sync()
        select.select([s], [], [], 5)
        reader, listener, held = mixture()
        poller = select.poll()
        for each in (s.fileno(), reader, listener.fileno()):
            poller.register(each, select.POLLIN)
        for wait in (0, 1000, None):
            t.say({len(poller.poll(wait)) for _ in range(50)})
        t.sync()


@case
class select_tells_all_that_is_ready(ready_lane):
    def client(t):
        s = t.connect()
        t.sync()
        select.select([s], [], [], 5)
        reader, listener, held = mixture()
        for wait in (0, 1, None):
            found = (select.select([s, reader, listener], [s], [], wait) for _ in range(50))
            t.say({(len(reads), len(writes)) for reads, writes, _ in found})
        t.sync()


@case
class inner_set_is_drained_without_a_look_at_it:
    def server(t):
        c = t.accept()
        for _ in range(3):
            t.sync()
            c.sendall(b"abc")
            t.sync()

    def client(t):
        s = t.connect()
        inner, middle, outer = select.epoll(), select.epoll(), select.epoll()
        inner.register(s, select.EPOLLIN)
        middle.register(inner.fileno(), select.EPOLLIN)
        outer.register(middle.fileno(), select.EPOLLIN)
        poller = select.poll()
        poller.register(inner.fileno(), select.POLLIN)
        t.say(told(outer, 0.05), told(poller, 50))
        for _ in range(3):
            t.sync()
            t.say(told(outer, 5), told(poller, 5000))
            t.say(s.recv(1))
            # Two bytes are still unread.
            t.say(told(outer, 1), told(poller, 1000))
            t.say(exactly(s, 2))
            t.say(told(outer, 0), told(poller, 0))
            t.say(told(outer, 0.05), told(poller, 50))
            t.sync()


@case
class inner_set_that_was_looked_at_is_drained_later:
    def server(t):
        c = t.accept()
        t.sync()
        c.sendall(b"abc")
        t.sync()

    def client(t):
        s = t.connect()
        inner, outer = select.epoll(), select.epoll()
        inner.register(s, select.EPOLLIN | select.EPOLLOUT)
        inner.modify(s, select.EPOLLIN)
        outer.register(inner.fileno(), select.EPOLLIN)
        t.sync()
        t.say(told(outer, 5), told(inner, 5), told(outer, 1), told(inner, 1))
        t.say(exactly(s, 3))
        t.say(told(outer, 0), told(outer, 0.05), told(inner, 0), told(outer, 0.05))
        t.sync()


def what_polls_say(t, s, edges):
    poller = select.poll()
    poller.register(s, select.POLLIN | select.POLLOUT | select.POLLRDHUP)
    level = select.epoll()
    level.register(s, select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP)
    t.say(told(poller), told(level), told(edges), told(edges))
    t.say([len(part) for part in select.select([s], [s], [], 0)])


def shuts_beside(peer):
    """A case whose client shuts a connection down while its peer is in the state `peer`."""

    class shuts:
        def server(t):
            c = t.accept()
            t.tell(os.getpid())
            t.sync()
            peer(t)
            t.sync()

        def client(t):
            s = t.connect()
            number = t.hear()
            edges = select.epoll()
            edges.register(s, select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET)
            t.say(told(edges))
            t.sync()
            if peer is stopped:
                os.kill(number, signal.SIGSTOP)
            time.sleep(0.02)
            for how in (socket.SHUT_RD, socket.SHUT_RDWR):
                t.attempt("shutdown", s.shutdown, how)
                what_polls_say(t, s, edges)
            t.attempt("again", s.shutdown, socket.SHUT_RDWR)
            t.attempt("recv", s.recv, 1)
            time.sleep(away(0) if peer is stopped else 0)
            os.kill(number, signal.SIGCONT)
            t.sync()

    return shuts


def sleeps(t):
    time.sleep(away(0.3))


def stopped(t):
    pass


def computes(t):
    deadline = time.monotonic() + away(0.3)
    while time.monotonic() < deadline:
        pass


@case
class shut_down_beside_a_peer_that_sleeps(shuts_beside(sleeps)):
    pass


@case
class shut_down_beside_a_peer_that_is_stopped(shuts_beside(stopped)):
    pass


@case
class shut_down_beside_a_peer_that_computes(shuts_beside(computes)):
    pass


@case
class shut_down_by_the_peer_alone:
    def server(t):
        c = t.accept()
        t.sync()
        c.shutdown(socket.SHUT_RDWR)
        t.sync()
        poller = select.poll()
        poller.register(c, select.POLLIN | select.POLLRDHUP)
        t.say(told(poller))
        t.sync()

    def client(t):
        s = t.connect()
        poller = select.poll()
        poller.register(s, select.POLLIN | select.POLLOUT | select.POLLRDHUP)
        t.sync()
        t.say(told_in_time(poller, "IN+OUT+RDHUP"))
        t.sync()
        t.sync()


@case
class a_thread_in_poll_is_woken_by_a_shutdown:
    def server(t):
        t.accept()
        t.sync()

    def client(t):
        s = t.connect()
        for how in (socket.SHUT_RD, socket.SHUT_RDWR):
            poller = select.poll()
            poller.register(s, select.POLLRDHUP if how == socket.SHUT_RD else 0)
            seen = []
            thread = threading.Thread(target=lambda: seen.append(shown(poller.poll(8000)[0][1])))
            thread.start()
            time.sleep(0.1)
            s.shutdown(how)
            thread.join()
            t.say(seen)
        t.sync()
