"""Buffers whose sizes the program fixed."""

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
        # Before it is connected, so that nobody is told.
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
