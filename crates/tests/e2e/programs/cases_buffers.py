"""Buffers with sizes that the program set."""

import ctypes
import errno
import select
import socket
import time

from semantics import case, exactly, fill, pattern, until_end

SMALL = 4096


def fix(connection, name):
    connection.setsockopt(socket.SOL_SOCKET, name, SMALL)


@case
class small_buffers_hold_little:
    def server(t):
        c = t.accept(receive_buffer=SMALL)
        count = t.hear()
        t.say(exactly(c, count) == pattern(65_536)[:count])
        t.sync()
        t.say(len(until_end(c)))

    def client(t):
        s = t.connect()
        fix(s, socket.SO_SNDBUF)
        count = fill(s)
        t.say(0 < count < 150_000)
        t.tell(count)
        t.sync()
        s.setblocking(True)
        s.sendall(pattern(300_000))
        s.close()


@case
class small_buffers_and_a_writer_that_does_not_wait:
    def server(t):
        c = t.accept(warm=False, receive_buffer=SMALL)
        t.sync()
        t.say(len(until_end(c)))

    def client(t):
        s = socket.socket()
        fix(s, socket.SO_SNDBUF)
        # Set before the connect; the peer is not told.
        s.setblocking(False)
        try:
            s.connect(tuple(t.hear()))
        except BlockingIOError:
            select.select([], [s], [])
        total = 0
        try:
            while total < 150_000:
                total += s.send(bytes(20_000))
        except BlockingIOError:
            t.say("full")
        t.sync()
        s.setblocking(True)
        s.sendall(bytes(200_000 - total))
        s.close()


@case
class small_buffers_in_both_directions:
    def server(t):
        c = t.accept()
        fix(c, socket.SO_RCVBUF)
        fix(c, socket.SO_SNDBUF)
        t.sync()
        data = exactly(c, 50_000)
        t.say(data == pattern(50_000))
        c.sendall(data)
        c.close()

    def client(t):
        s = t.connect()
        fix(s, socket.SO_RCVBUF)
        fix(s, socket.SO_SNDBUF)
        t.sync()
        s.sendall(pattern(50_000))
        t.say(until_end(s) == pattern(50_000))


@case
class peer_with_small_buffers_closes_amid_a_write:
    def server(t):
        c = t.accept()
        fix(c, socket.SO_RCVBUF)
        t.sync()
        exactly(c, 1000)
        time.sleep(0.05)
        c.close()

    def client(t):
        s = t.connect()
        fix(s, socket.SO_SNDBUF)
        t.sync()
        try:
            s.sendall(pattern(200_000))
            t.say("all went out")
        except ConnectionError:
            t.say("the connection broke")


@case
class vectors_are_filled_to_the_end:
    def server(t):
        c = t.accept()
        for _ in range(3):
            c.sendall(b"0123456789abcdefghijkl")
            t.sync()
            t.sync()

    def client(t):
        s = t.connect()
        for _ in range(3):
            t.sync()
            time.sleep(0.05)
            for flags in (socket.MSG_PEEK, 0):
                parts = [bytearray(4), bytearray(6), bytearray(30)]
                t.say(s.recvmsg_into(parts, 0, flags)[0], parts)
            t.sync()


@case
class addresses_that_no_program_has:
    def server(t):
        c = t.accept()
        c.sendall(b"something")
        t.sync()
        t.say(exactly(c, 4))

    def client(t):
        s = t.connect()
        t.sync()
        select.select([s], [], [], 5)
        library = ctypes.CDLL(None, use_errno=True)
        address, size, fd = ctypes.c_void_p, ctypes.c_size_t, s.fileno()
        poller = select.epoll()
        poller.register(s, select.EPOLLIN)

        def call(name, *arguments):
            ctypes.set_errno(0)
            result = getattr(library, name)(*arguments)
            t.say(name, result, errno.errorcode.get(ctypes.get_errno(), 0))

        for bad, length in ((1, 10), (1 << 63, 10), ((1 << 64) - 4096, 1 << 20), ((1 << 47) - 8, 16)):
            call("write", fd, address(bad), size(length))
            call("read", fd, address(bad), size(length))
            call("send", fd, address(bad), size(length), 0)
            call("recv", fd, address(bad), size(length), 0)
            vector = (ctypes.c_uint64 * 2)(bad, length)
            call("writev", fd, vector, 1)
            call("readv", fd, vector, 1)
            call("readv", fd, address(bad), 1)
            call("recvmsg", fd, address(bad), 0)
            call("sendmsg", fd, address(bad), 0)
            call("poll", address(bad), 1, 0)
            call("epoll_wait", poller.fileno(), address(bad), 1, 0)
        # The failed calls transfer no byte and lose no byte.
        call("write", fd, address(1), size(0))
        s.sendall(b"good")
        t.say(exactly(s, 9))
