"""Waits with times, looks ahead, what comes beside the bytes, and options about the wire."""

import ctypes
import errno
import fcntl
import select
import socket
import struct
import termios
import time

from cases_calls import LIBC, Time
from semantics import case, exactly, pattern

TCP_ULP, TCP_INQ, SIOCOUTQNSD = 31, 36, 0x894B
SO_PEEK_OFF, SO_MAX_PACING_RATE = 42, 47
SO_ATTACH_FILTER, SO_DETACH_FILTER = 26, 27
SO_TIMESTAMP, SO_TIMESTAMPNS, SO_TIMESTAMPING = 29, 35, 37
STAMPS = {SO_TIMESTAMP: 1, SO_TIMESTAMPNS: 1, SO_TIMESTAMPING: 1 << 3 | 1 << 4}


def asked(connection, request):
    return struct.unpack("i", fcntl.ioctl(connection, request, bytes(4)))[0]


def in_time(holds, seconds=5.0):
    """Whether something comes to hold."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True


class Poll(ctypes.Structure):
    _fields_ = [("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short)]


class Event(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("events", ctypes.c_uint32), ("data", ctypes.c_uint64)]


class Micro(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("microseconds", ctypes.c_long)]


def waits_for(s, epoll):
    """The waits with a time of their own, by name. Each gets seconds and a small part."""
    fds = ctypes.byref(Poll(s.fileno(), select.POLLIN, 0))
    events = (Event * 4)()

    def bits():
        words = (ctypes.c_ulong * 16)()
        words[s.fileno() // 64] |= 1 << s.fileno() % 64
        return words

    last = s.fileno() + 1
    return {
        "ppoll": lambda *time: LIBC.ppoll(fds, 1, ctypes.byref(Time(*time)), None),
        "select": lambda *time: LIBC.select(last, bits(), None, None, ctypes.byref(Micro(*time))),
        "pselect": lambda *time: LIBC.pselect(
            last, bits(), None, None, ctypes.byref(Time(*time)), None
        ),
        "epoll_pwait2": lambda *time: LIBC.epoll_pwait2(
            epoll.fileno(), events, 4, ctypes.byref(Time(*time)), None
        ),
    }


@case
class times_of_waits:
    """Times that are none are refused; short ones are kept: one of many, as others are busy."""

    def server(t):
        c = t.accept()
        t.sync()
        c.close()

    def client(t):
        s = t.connect()
        epoll = select.epoll()
        epoll.register(s, select.EPOLLIN)
        for name, wait in waits_for(s, epoll).items():
            for time_given in (-1, 0), (0, -1), (-1, 999), (0, 10**9), (0, 0):
                if name == "select" and time_given[1] == 10**9:
                    continue
                result = wait(*time_given)
                error = errno.errorcode.get(ctypes.get_errno()) if result else None
                t.say(name, time_given, result, error)
            part = 100 if name == "select" else 100_000
            shortest = 1.0
            for _ in range(50):
                begin = time.monotonic()
                assert wait(0, part) == 0
                shortest = min(shortest, time.monotonic() - begin)
            t.say(name, shortest >= 0.0001, shortest < 0.001)
        t.sync()


@case
class looks_that_wait_for_all:
    """And bytes that are dropped, all or those that are there."""

    def server(t):
        c = t.accept()
        c.sendall(b"abc")
        time.sleep(0.05)
        c.sendall(b"def")
        t.sync()
        c.sendall(pattern(120_000))
        t.sync()
        c.sendall(b"xy")
        c.shutdown(socket.SHUT_WR)
        t.sync()

    def client(t):
        s = t.connect()
        both = socket.MSG_PEEK | socket.MSG_WAITALL
        t.say(s.recv(6, both))
        t.say(s.recvmsg_into([bytearray(2), bytearray(4)], 0, both)[0])
        t.say(s.recv(8, both | socket.MSG_DONTWAIT))
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 20_000))
        t.say(s.recv(8, both))
        t.say(s.recv(6))
        t.sync()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 5, 0))
        t.say(LIBC.recv(s.fileno(), None, 100_000, socket.MSG_TRUNC | socket.MSG_WAITALL))
        t.say(in_time(lambda: asked(s, termios.FIONREAD) == 20_000))
        t.say(LIBC.recv(s.fileno(), None, 10_000, socket.MSG_TRUNC))
        t.say(exactly(s, 10_000) == pattern(120_000)[-10_000:])
        t.sync()
        t.say(s.recv(10, both), s.recv(10), s.recv(10))
        t.sync()


@case
class looks_far_ahead:
    """More than a lane holds can be seen, as the writer goes on over TCP."""

    def server(t):
        c = t.accept()
        c.sendall(pattern(4_000_000))
        c.sendall(pattern(1_000_000, seed=7))
        t.sync()

    def client(t):
        s = t.connect()
        t.say(exactly(s, 4_000_000) == pattern(4_000_000))
        data = pattern(1_000_000, seed=7)
        # How much the kernel holds behind a lane is its own affair.
        t.say(in_time(lambda: asked(s, termios.FIONREAD) > 262_144))
        seen = asked(s, termios.FIONREAD)
        t.say(s.recv(seen, socket.MSG_PEEK) == data[:seen])
        t.say(s.recv(300_000, socket.MSG_PEEK | socket.MSG_WAITALL) == data[:300_000])
        part = bytearray(200_000)
        t.say(s.recvmsg_into([bytearray(100_000), part], 0, socket.MSG_PEEK)[0])
        t.say(part == data[100_000:300_000])
        t.say(LIBC.recv(s.fileno(), None, 300_000, socket.MSG_TRUNC | socket.MSG_PEEK))
        t.say(LIBC.recv(s.fileno(), None, 300_000, socket.MSG_TRUNC))
        t.say(exactly(s, 700_000) == data[300_000:])
        t.sync()


@case
class unread_bytes_are_told:
    """TCP_INQ, for a connection and by inheritance."""

    def server(t):
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setsockopt(socket.IPPROTO_TCP, TCP_INQ, 1)
        t.tell([*listener.getsockname()])
        c = t.accept(listener)
        exactly(c, 1)
        t.say(c.recvmsg(1, 100)[1])
        c.sendall(b"0123456789")
        t.sync()
        t.sync()

    def client(t):
        s = t.connect()
        s.sendall(b"abcd")
        s.setsockopt(socket.IPPROTO_TCP, TCP_INQ, 1)
        t.sync()
        while len(s.recv(10, socket.MSG_PEEK)) < 10:
            pass
        for count, room in (3, 100), (1, 20), (1, 10), (1, 0):
            t.say(s.recvmsg(count, room)[:3])
        s.setsockopt(socket.IPPROTO_TCP, TCP_INQ, 0)
        t.say(s.recvmsg(4, 100)[:3])
        t.sync()


@case
class stamps_are_told:
    def server(t):
        c = t.accept()
        for _ in STAMPS:
            while exactly(c, 1) == b"a":
                c.sendall(b"b")
        t.sync()

    def client(t):
        s = t.connect()
        for option, value in STAMPS.items():
            s.setsockopt(socket.SOL_SOCKET, option, value)
            kinds = set()
            # The kernel begins to stamp a little later.
            for _ in range(200):
                s.sendall(b"a")
                data, beside, flags, _ = s.recvmsg(1, 200)
                assert data == b"b"
                kinds = {(level, kind, len(part)) for level, kind, part in beside}
                if kinds:
                    break
                time.sleep(0.005)
            t.say(option, sorted(kinds), flags)
            s.setsockopt(socket.SOL_SOCKET, option, 0)
            s.sendall(b"c")
        t.sync()


def that_returns(length):
    """A filter of one instruction, as `struct sock_fprog`, and what it points at: of each segment
    it lets `length` bytes pass."""
    code = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, length))
    return struct.pack("HxxxxxxP", 1, ctypes.addressof(code)), code


@case
class dropped_by_a_filter:
    def server(t):
        c = t.accept()
        t.sync()
        c.sendall(b"abc")
        t.sync()
        t.sync()

    def client(t):
        s = t.connect()
        program, kept = that_returns(0)
        s.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)
        t.sync()
        s.settimeout(0.3)
        t.attempt("comes", s.recv, 10)
        t.sync()
        s.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)
        s.settimeout(8)
        # The kernel of the other side sends it again.
        t.say(exactly(s, 3))
        del kept
        t.sync()


@case
class options_about_the_wire:
    """Options that steer the kernel's way: the bytes go there, or the option is refused."""

    def server(t):
        c = t.accept()
        for _ in range(5):
            c.sendall(exactly(c, 1000))
        t.sync()

    def client(t):
        s = t.connect()
        program, kept = that_returns(0xFFFFFFFF)
        for level, option, value in [
            (socket.SOL_SOCKET, SO_MAX_PACING_RATE, 100_000_000),
            (socket.SOL_SOCKET, SO_ATTACH_FILTER, program),
            (socket.IPPROTO_TCP, TCP_ULP, b"no_such_protocol"),
            (socket.IPPROTO_TCP, TCP_ULP, b"tls"),
        ]:
            t.attempt(option, s.setsockopt, level, option, value)
            s.sendall(pattern(1000))
            t.say(exactly(s, 1000) == pattern(1000))
        t.attempt("offset", s.setsockopt, socket.SOL_SOCKET, SO_PEEK_OFF, 2)
        s.sendall(pattern(1000))
        while asked(s, termios.FIONREAD) < 1000:
            pass
        for _ in range(2):
            t.say(s.recv(4, socket.MSG_PEEK))
        t.say(exactly(s, 1000) == pattern(1000))
        del kept
        t.sync()


BPF, MAP_CREATE, MAP_UPDATE, PROG_LOAD, PROG_ATTACH = 321, 0, 2, 5, 8
SOCKMAP, SK_SKB, STREAM_VERDICT = 15, 14, 5


def bpf(command, form, *values):
    attributes = ctypes.create_string_buffer(struct.pack(form, *values), 128)
    return LIBC.syscall(BPF, command, attributes, 128)


@case
class dropped_by_a_map_of_sockets:
    """A program in the kernel drops all that comes. Without the rights nothing is dropped."""

    def server(t):
        c = t.accept()
        t.sync()
        c.sendall(b"abc")
        t.sync()

    def client(t):
        s = t.connect()
        sockets = bpf(MAP_CREATE, "IIII", SOCKMAP, 4, 4, 1)
        # r0 = SK_DROP; exit
        code = ctypes.create_string_buffer(struct.pack("BBhiBBhi", 0xB7, 0, 0, 0, 0x95, 0, 0, 0))
        licence = ctypes.create_string_buffer(b"GPL")
        places = ctypes.addressof(code), ctypes.addressof(licence)
        verdict = bpf(PROG_LOAD, "IIQQ", SK_SKB, 2, *places)
        attached = bpf(PROG_ATTACH, "IIII", sockets, verdict, STREAM_VERDICT, 0)
        t.say(sockets > 0, verdict > 0, attached)
        key, value = (ctypes.create_string_buffer(struct.pack("I", n)) for n in (0, s.fileno()))
        places = ctypes.addressof(key), ctypes.addressof(value), 0
        t.say(bpf(MAP_UPDATE, "IxxxxQQQ", sockets, *places))
        t.sync()
        s.settimeout(0.3)
        t.attempt("comes", s.recv, 10)
        t.sync()


@case
class counts_of_a_connection:
    """TCP_INFO and SIOCOUTQ count what goes by the fabric."""

    def server(t):
        counted(t, t.accept(), 50_000, 70_000)

    def client(t):
        counted(t, t.connect(), 70_000, 50_000)


def counted(t, connection, sent, received):
    def counts():
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        acked, received, sent, again = (
            struct.unpack_from("Q", info, place)[0] for place in (120, 128, 200, 208)
        )
        return [acked, received, sent - again]

    def grew():
        return [now - then for then, now in zip(before, counts())]

    t.sync()
    # The kernel acknowledges the last bytes of the other side a little later.
    in_time(lambda: asked(connection, termios.TIOCOUTQ) == 0)
    before = counts()
    t.sync()
    connection.sendall(pattern(sent))
    # A part stays unread, and is received all the same.
    exactly(connection, received - 1000)
    in_time(lambda: grew() == [sent, received, sent])
    t.say(grew())
    for request in termios.TIOCOUTQ, SIOCOUTQNSD:
        t.say(in_time(lambda: asked(connection, request) == 0))
    t.say(asked(connection, termios.FIONREAD))
    t.sync()
    exactly(connection, 1000)
    t.sync()
