"""How connections are made, and their names and options."""

import errno
import os
import select
import signal
import socket
import struct
import threading
import time

from semantics import case, exactly, pattern, served_by_a_child, until_end


@case
class connect_without_blocking:
    def server(t):
        c = t.accept()
        t.say(c.recv(10))
        c.sendall(b"pong")
        t.sync()

    def client(t):
        address = tuple(t.hear())
        s = socket.socket()
        s.setblocking(False)
        number = s.connect_ex(address)
        t.say(number in (0, errno.EINPROGRESS))
        t.say(select.select([], [s], [], 5)[1] == [s])
        t.say(s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
        t.say(errno.errorcode.get(s.connect_ex(address)))
        if not t.cold:
            for _ in range(20):
                select.select([], [s], [], 5)
                s.send(b"png")
                got = b""
                while len(got) < 4:
                    select.select([s], [], [], 5)
                    got += s.recv(4 - len(got))
        s.send(b"ping")
        select.select([s], [], [], 5)
        t.say(s.recv(10))
        t.sync()


@case
class connection_refused:
    def server(t):
        listener = t.listen()
        t.hear()
        listener.close()
        t.sync()
        t.sync()

    def client(t):
        address = tuple(t.hear())
        t.tell("close it")
        t.sync()
        s = socket.socket()
        t.attempt("connect", s.connect, address)
        s = socket.socket()
        s.setblocking(False)
        number = s.connect_ex(address)
        if number == errno.EINPROGRESS:
            poller = select.poll()
            poller.register(s, select.POLLIN | select.POLLOUT)
            events = poller.poll(5000)[0][1]
            t.say(bool(events & select.POLLERR), bool(events & select.POLLHUP))
            number = s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        t.say(errno.errorcode.get(number))
        t.sync()


@case
class names_of_both_ends:
    def server(t):
        c = t.accept()
        t.say(c.getsockname()[0], c.getpeername()[0])
        t.tell([c.getsockname(), c.getpeername()])
        t.sync()

    def client(t):
        s = t.connect()
        local, remote = t.hear()
        t.say(list(s.getpeername()) == local, list(s.getsockname()) == remote)
        t.say(s.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE) == socket.SOCK_STREAM)
        t.say(s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
        t.sync()
        s.close()
        other = socket.socket()
        t.attempt("unconnected", other.getpeername)


@case
class ipv6:
    def server(t):
        c = t.accept(host="::1", family=socket.AF_INET6)
        t.say(c.getpeername()[0], exactly(c, 100_000) == pattern(100_000))
        c.sendall(b"six")
        t.sync()

    def client(t):
        s = t.connect(family=socket.AF_INET6)
        s.sendall(pattern(100_000))
        t.say(s.recv(10))
        t.sync()


@case
class dual_stack:
    def server(t):
        listener = socket.socket(socket.AF_INET6)
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(("::", 0))
        listener.listen()
        t.tell(["127.0.0.1", listener.getsockname()[1]])
        for _ in range(2):
            c = t.accept(listener)
            t.say(c.getpeername()[0], c.recv(10))
            c.sendall(b"yes")
            c.close()

    def client(t):
        host, port = t.hear()
        s = t.connect((host, port))
        s.sendall(b"four")
        t.say(until_end(s))
        s = t.connect(("::1", port), family=socket.AF_INET6)
        s.sendall(b"six")
        t.say(until_end(s))


@case
class linger_zero_resets:
    def server(t):
        c = t.accept()
        t.sync()
        c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        c.close()
        t.sync()

    def client(t):
        s = t.connect()
        t.sync()
        t.sync()
        until(s, select.POLLHUP)
        t.attempt("recv", s.recv, 10)
        t.attempt("send", s.send, b"x")


@case
class linger_waits_for_the_data:
    def server(t):
        c = t.accept()
        c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 5))
        c.sendall(pattern(100_000))
        c.close()
        t.sync()

    def client(t):
        s = t.connect()
        t.say(until_end(s) == pattern(100_000))
        t.sync()


@case
class many_connections_one_after_the_other:
    def server(t):
        listener = t.listen()
        seen = 0
        for number in range(1000):
            c, _ = listener.accept()
            seen += exactly(c, 8) == b"%08d" % number
            c.sendall(b"%04d" % (number % 10_000))
            c.close()
        t.say(seen)
        t.sync()

    def client(t):
        address = tuple(t.hear())
        seen = 0
        for number in range(1000):
            s = socket.create_connection(address)
            s.sendall(b"%08d" % number)
            seen += until_end(s) == b"%04d" % (number % 10_000)
            s.close()
        t.say(seen)
        t.sync()


@case
class server_speaks_first:
    def server(t):
        c = t.accept(warm=False)
        c.sendall(b"220 welcome\r\n")
        t.say(c.recv(100))
        c.sendall(b"221 bye\r\n")
        c.close()

    def client(t):
        s = t.connect(warm=False)
        t.say(s.recv(13, socket.MSG_WAITALL))
        s.sendall(b"QUIT\r\n")
        t.say(until_end(s))


@case
class client_speaks_before_accept:
    def server(t):
        listener = t.listen()
        t.sync()
        time.sleep(0.1)
        c, _ = listener.accept()
        t.say(exactly(c, 50_005) == b"early" + pattern(50_000))
        c.sendall(b"late")
        t.say(until_end(c))

    def client(t):
        address = tuple(t.hear())
        s = socket.create_connection(address)
        s.sendall(b"early")
        t.sync()
        s.sendall(pattern(50_000))
        t.say(s.recv(10))
        s.close()


@case
class closed_before_accept:
    def server(t):
        listener = t.listen()
        t.sync()
        c, _ = listener.accept()
        t.say(until_end(c))

    def client(t):
        address = tuple(t.hear())
        s = socket.create_connection(address)
        s.sendall(b"gone already")
        s.close()
        t.sync()


@case
class large_writes_in_both_directions:
    def server(t):
        c = t.accept()
        exchange(t, c, 20_000_000)

    def client(t):
        s = t.connect()
        exchange(t, s, 20_000_000)


def exchange(t, connection, count):
    sender = threading.Thread(target=connection.sendall, args=[pattern(count)])
    sender.start()
    t.say(exactly(connection, count) == pattern(count))
    sender.join()
    t.sync()


@case
class urgent_byte:
    def server(t):
        c = t.accept()
        t.sync()
        t.say(sorted(exactly(c, 3)))
        t.sync()

    def client(t):
        s = t.connect()
        t.attempt("none came", s.recv, 1, socket.MSG_OOB)
        s.sendall(b"abc")
        t.sync()
        t.sync()


@case
class options_of_a_connection:
    def server(t):
        c = t.accept()
        t.sync()

    def client(t):
        s = t.connect()
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        t.say(s.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        s.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        t.say(s.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 50_000)
        t.say(s.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF))
        state = s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 8)[0]
        t.say("established", state == 1)
        t.sync()


@case
class writing_to_a_peer_that_closed:
    def server(t):
        c = t.accept()
        c.close()
        t.sync()
        t.sync()

    def client(t):
        s = t.connect()
        t.say(s.recv(1))
        t.sync()
        t.attempt("nothing", s.send, b"")
        t.say(polled(s))
        # The bytes are sent, and answered with a reset.
        t.attempt("first", s.send, b"into the void")
        until(s, select.POLLHUP)
        t.say(polled(s))
        t.attempt("nothing", s.send, b"")
        t.attempt("second", s.send, b"x")
        t.say(polled(s))
        t.attempt("recv", s.recv, 1)
        t.say(s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
        t.sync()


@case
class writing_to_a_peer_that_was_killed:
    """The killed peer had read all bytes, or only some."""

    def server(t):
        def serve(c, count):
            exactly(c, count)
            os.kill(os.getpid(), signal.SIGKILL)

        for count in (10, 5):
            pid = served_by_a_child(t, lambda c, count=count: serve(c, count))
            os.waitpid(pid, 0)
            t.sync()
            t.sync()

    def client(t):
        for _ in range(2):
            s = t.connect()
            s.sendall(b"0123456789")
            t.sync()
            until(s, select.POLLRDHUP)
            t.attempt("first", s.send, b"x")
            until(s, select.POLLHUP)
            t.attempt("second", s.send, b"x")
            t.attempt("third", s.send, b"x")
            t.attempt("recv", s.recv, 1)
            t.attempt("recv", s.recv, 1)
            t.say(polled(s))
            t.sync()


@case
class killed_after_it_had_read_everything:
    """The peer slept until its last bytes came: its wakeup must not look like an unread byte."""

    def server(t):
        def serve(c):
            for _ in range(5):
                exactly(c, 10)
            os.kill(os.getpid(), signal.SIGKILL)

        os.waitpid(served_by_a_child(t, serve), 0)
        t.sync()

    def client(t):
        s = t.connect()
        for _ in range(5):
            time.sleep(0.03)
            s.sendall(b"0123456789")
        t.sync()
        until(s, select.POLLRDHUP)
        t.say(polled(s))
        t.say(s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
        t.attempt("recv", s.recv, 1)
        t.say(polled(s))


@case
class writing_much_to_a_peer_that_closed:
    def server(t):
        c = t.accept()
        c.close()
        t.sync()
        t.sync()

    def client(t):
        s = t.connect()
        t.say(s.recv(1))
        t.sync()
        t.attempt("everything", s.sendall, bytes(20_000_000))
        t.attempt("recv", s.recv, 1)
        t.sync()


def until(connection, events):
    """Waits for a report of the peer's kernel, which may be late on a busy machine."""
    poll = select.poll()
    poll.register(connection, events)
    poll.poll(5000)


def polled(connection):
    """What poll reports at once for all events."""
    poll = select.poll()
    poll.register(connection, 0xFFFF & ~select.POLLNVAL)
    return [hex(events) for _, events in poll.poll(0)]


@case
class reset_as_options_and_shutdown_tell_it:
    def server(t):
        for _ in range(3):
            c = t.accept()
            t.sync()
            c.close()
            t.sync()

    def client(t):
        for first in ("option", "recv", "send"):
            s = t.connect()
            s.sendall(b"never read")
            t.sync()
            t.sync()
            until(s, select.POLLHUP)
            t.attempt("peer", s.getpeername)
            t.say(polled(s))
            if first == "recv":
                t.attempt("recv", s.recv, 1)
            if first == "send":
                t.attempt("send", s.send, b"x")
            t.say(polled(s))
            t.say(s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
            t.say(s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
            t.say(polled(s))
            t.attempt("recv", s.recv, 1)
            t.attempt("send", s.send, b"x")
            t.attempt("shutdown", s.shutdown, socket.SHUT_WR)
            t.attempt("shutdown", s.shutdown, socket.SHUT_RDWR)
            t.attempt("peer", s.getpeername)


def after_registration(t, flags, send_to=False):
    """A client that registers its socket with epoll before it connects, as nginx does."""
    address = tuple(t.hear())
    s = socket.socket()
    s.setblocking(False)
    poller = select.epoll()
    poller.register(s, flags)
    t.say(dict(poller.poll(1)).get(s.fileno()))
    if send_to:
        s.setblocking(True)
        t.say(s.sendto(b"ping", socket.MSG_FASTOPEN, address))
        s.setblocking(False)
    else:
        t.say(s.connect_ex(address) in (0, errno.EINPROGRESS))
        select.select([], [s], [], 5)
        s.send(b"ping")
    received = 0
    while received < 300_000:
        # With edge-triggered events all bytes must be read before the next wait.
        if not any(seen & select.EPOLLIN for _, seen in poller.poll(5)):
            continue
        try:
            while received < 300_000:
                received += len(s.recv(10_000))
        except BlockingIOError:
            pass
    t.say(received)
    s.close()


def after_registration_served(t):
    c = t.accept(warm=False)
    t.say(exactly(c, 4))
    c.sendall(bytes(300_000))
    t.say(until_end(c))


@case
class registered_and_then_connected:
    server = after_registration_served

    def client(t):
        after_registration(t, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)


@case
class registered_level_triggered_and_then_connected:
    server = after_registration_served

    def client(t):
        after_registration(t, select.EPOLLIN | select.EPOLLRDHUP)


@case
class edge_of_reading_beside_one_of_writing:
    """The connection usually moves here with bytes unread on TCP; an edge for them must follow."""

    def server(t):
        c = t.accept(warm=False)
        t.say(exactly(c, 6))
        c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(20):
            c.sendall(b"0123456789")
        t.sync()
        t.say(until_end(c))

    def client(t):
        s = socket.socket()
        s.setblocking(False)
        waits = select.epoll()
        waits.register(s, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)
        # A connection moves when weft has seen a wait for the set that it is in.
        waits.poll(0)
        t.say(s.connect_ex(tuple(t.hear())) in (0, errno.EINPROGRESS))
        select.select([], [s], [], 5)
        for _ in range(6):
            s.send(b"p")
        t.sync()
        received = s.recv(10)
        t.say([event for _, event in waits.poll(5)])
        while len(received) < 200:
            received += s.recv(200)
        t.say(received == b"0123456789" * 20)
        s.close()


@case
class registered_and_then_connected_by_sendto:
    server = after_registration_served

    def client(t):
        after_registration(t, select.EPOLLIN | select.EPOLLET, send_to=True)


@case
class registered_and_then_listening:
    def server(t):
        listener = socket.socket()
        listener.setblocking(False)
        poller = select.epoll()
        poller.register(listener, select.EPOLLIN | select.EPOLLEXCLUSIVE)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        poller.poll(0)
        t.tell(listener.getsockname())
        t.say(poller.poll(5) == [(listener.fileno(), select.EPOLLIN)])
        c, _ = listener.accept()
        c.setblocking(True)
        t.warm(c, True)
        t.say(exactly(c, 4))
        c.sendall(b"pong")
        t.say(until_end(c))

    def client(t):
        s = t.connect()
        s.sendall(b"ping")
        t.say(exactly(s, 4))
        s.close()


@case
class registered_again:
    """As libuv does: a registration as new fails because it exists, and is then modified."""

    def server(t):
        c = t.accept()
        t.say(exactly(c, 4))
        t.sync()
        c.sendall(b"pong")
        t.sync()
        c.sendall(bytes(200_000))
        t.say(until_end(c))

    def client(t):
        s = t.connect()
        poller = select.epoll()
        poller.register(s, select.EPOLLOUT)
        t.say(poller.poll(5) == [(s.fileno(), select.EPOLLOUT)])
        t.attempt("add", poller.register, s, select.EPOLLIN)
        s.sendall(b"ping")
        t.attempt("add", poller.register, s, select.EPOLLIN)
        poller.modify(s, select.EPOLLIN)
        t.say(poller.poll(0))
        t.sync()
        t.say(poller.poll(5) == [(s.fileno(), select.EPOLLIN)], exactly(s, 4))
        t.attempt("add", poller.register, s, select.EPOLLIN)
        t.sync()
        t.say(poller.poll(5) == [(s.fileno(), select.EPOLLIN)], len(exactly(s, 200_000)))
        poller.unregister(s)
        t.attempt("remove", poller.unregister, s)
        t.attempt("change", poller.modify, s, select.EPOLLOUT)
        poller.register(s, select.EPOLLOUT)
        t.say(poller.poll(5) == [(s.fileno(), select.EPOLLOUT)])
        s.close()
