"""Calls of the C library that Python does not make: formatted output, call numbers, old names."""

import ctypes
import errno
import fcntl
import os
import select
import signal
import socket
import struct
import termios
import time

from semantics import case, exactly, until_end

LIBC = ctypes.CDLL(None, use_errno=True)
READ, WRITE, CLOSE, POLL, FCNTL, SENDTO, RECVFROM, SHUTDOWN, DUP = 0, 1, 3, 7, 72, 44, 45, 48, 32
EPOLL_WAIT, F_GETFD, MSG_WAITFORONE = 232, 1, 0x10000


def until_there(connection, count):
    """Waits until `count` bytes can be read at once."""
    while len(connection.recv(count, socket.MSG_PEEK)) < count:
        pass


@case
class formatted_output:
    def server(t):
        c = t.accept()
        for _ in range(3):
            t.say(exactly(c, 4))
            text = LIBC.dprintf(
                c.fileno(),
                b"%s %d %.3f %c %lld %x %s %d %d %.1f|",
                b"words",
                7,
                ctypes.c_double(2.5),
                ord("c"),
                ctypes.c_longlong(1 << 40),
                255,
                b"and",
                8,
                9,
                ctypes.c_double(0.5),
            )
            t.say("wrote", text)
        t.say("checked", getattr(LIBC, "__dprintf_chk")(c.fileno(), 1, b"%d-%d-%d-%d|", 1, 2, 3, 4))
        c.close()

    def client(t):
        s = t.connect()
        for _ in range(3):
            s.sendall(b"next")
            t.say(exactly(s, 45))
        t.say(until_end(s))


@case
class calls_by_number:
    def server(t):
        c = t.accept()
        t.say(exactly(c, 12))
        c.sendall(b"abcdef")
        t.say(until_end(c))
        c.sendall(b"tail")

    def client(t):
        s = t.connect()
        call, buffer = LIBC.syscall, ctypes.create_string_buffer(100)
        fd = s.fileno()
        t.say(call(WRITE, fd, b"writes", 6), call(SENDTO, fd, b"sends!", 6, 0, None, 0))
        entry = ctypes.create_string_buffer(struct.pack("ihh", fd, select.POLLIN, 0))
        t.say("polls", call(POLL, entry, 1, -1), struct.unpack("ihh", entry.raw[:8])[2])
        t.say("reads", call(READ, fd, buffer, 2), buffer.raw[:2])
        t.say("receives", call(RECVFROM, fd, buffer, 4, socket.MSG_WAITALL, None, None))
        t.say(buffer.raw[:4])
        other = call(DUP, fd)
        t.say("copied", other > fd, call(FCNTL, other, F_GETFD, 0))
        t.say("shut", call(SHUTDOWN, other, socket.SHUT_WR))
        waits = select.epoll()
        waits.register(other, select.EPOLLIN)
        event = ctypes.create_string_buffer(12)
        t.say("waits", call(EPOLL_WAIT, waits.fileno(), event, 1, 2000))
        t.say("reads", exactly(s, 4))
        t.say("closes", call(CLOSE, other), call(CLOSE, s.detach()))


@case
class calls_by_old_names:
    def server(t):
        c = t.accept()
        t.say(exactly(c, 10))
        c.sendall(b"abcdef")
        t.say(until_end(c))

    def client(t):
        s = t.connect()
        buffer, fd = ctypes.create_string_buffer(100), s.fileno()
        old = lambda name: getattr(LIBC, "__" + name)
        t.say(old("write")(fd, b"write", 5), old("send")(fd, b"sends", 5, 0))
        t.say(old("recv")(fd, buffer, 2, socket.MSG_WAITALL), buffer.raw[:2])
        t.say(old("read")(fd, buffer, 4), buffer.raw[:4])
        t.say("no mark", LIBC.sockatmark(fd))
        t.say(old("close")(s.detach()))


class Part(ctypes.Structure):
    _fields_ = [("base", ctypes.c_char_p), ("length", ctypes.c_size_t)]


class Header(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_void_p),
        ("name_length", ctypes.c_uint),
        ("parts", ctypes.POINTER(Part)),
        ("count", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_length", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    ]


class Message(ctypes.Structure):
    _fields_ = [("header", Header), ("length", ctypes.c_uint)]


def messages(*buffers):
    made = (Message * len(buffers))()
    for message, (buffer, length) in zip(made, buffers):
        part = Part(ctypes.cast(buffer, ctypes.c_char_p), length)
        message.header.parts, message.header.count = ctypes.pointer(part), 1
    return made


@case
class several_messages_in_one_call:
    def server(t):
        c = t.accept()
        t.say(exactly(c, 9))
        c.sendall(b"abcdefgh")
        t.say(until_end(c))

    def client(t):
        s = t.connect()
        out = messages((b"one", 3), (b"two", 3), (b"six", 3))
        t.say(LIBC.sendmmsg(s.fileno(), out, 3, 0), [message.length for message in out])
        buffers = [ctypes.create_string_buffer(4) for _ in range(3)]
        into = messages(*((buffer, 4) for buffer in buffers))
        until_there(s, 8)
        t.say(LIBC.recvmmsg(s.fileno(), into, 3, socket.MSG_DONTWAIT, None))
        t.say([buffer.raw[: message.length] for buffer, message in zip(buffers, into)])
        s.close()


class Time(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


@case
class several_messages_within_a_time:
    """recvmmsg looks at its time limit behind each message. Without MSG_WAITFORONE it waits for
    every message."""

    def server(t):
        c = t.accept()
        for part in b"aaaa", b"bbbb", b"ccccdddd", b"eeeeffff":
            t.sync()
            c.sendall(part)
        t.sync()
        # The client waits in its call by now, or finds all of it there.
        for part in b"gggg", b"hhhh", b"iiii":
            time.sleep(0.05)
            c.sendall(part)
        c.close()

    def client(t):
        s = t.connect()

        def receive(what, count, flags, limit, there=0):
            buffers = [ctypes.create_string_buffer(4) for _ in range(count)]
            into = messages(*((buffer, 4) for buffer in buffers))
            t.sync()
            until_there(s, there)
            length = LIBC.recvmmsg(s.fileno(), into, count, flags, limit and ctypes.byref(limit))
            error = ctypes.get_errno() if length < 0 else 0
            found = [buffers[place].raw[: into[place].length] for place in range(max(length, 0))]
            t.say(what, length, errno.errorcode.get(error, error), found)

        passed = Time(0, 0)
        receive("nothing is left after the first", 3, 0, passed)
        t.say((passed.seconds, passed.nanoseconds))
        short = Time(0, 1)
        receive("a message may come after the limit", 2, 0, short)
        t.say((short.seconds, short.nanoseconds))
        long = Time(50, 0)
        receive("both within the limit", 2, 0, long, 8)
        t.say(long.seconds in (48, 49), 0 <= long.nanoseconds < 10**9)
        receive("the first alone waits", 3, MSG_WAITFORONE, Time(50, 0), 8)
        receive("waits for each, and then finds the end", 5, 0, Time(50, 0))
        for wrong in Time(0, 10**9), Time(-1, 0):
            LIBC.recvmmsg(s.fileno(), messages(), 0, 0, None)
            length = LIBC.recvmmsg(s.fileno(), messages((b"x", 1)), 1, 0, ctypes.byref(wrong))
            t.say("not a time", length, errno.errorcode[ctypes.get_errno()])
        s.close()


@case
class vectors_with_flags:
    def server(t):
        c = t.accept()
        t.say(exactly(c, 6))
        c.sendall(b"abcdef")
        t.say(until_end(c))

    def client(t):
        s = t.connect()
        t.say(LIBC.pwritev2(s.fileno(), (Part * 2)(Part(b"abc", 3), Part(b"def", 3)), 2, -1, 0))
        until_there(s, 6)
        first, second = ctypes.create_string_buffer(2), ctypes.create_string_buffer(9)
        parts = (Part * 2)(
            Part(ctypes.cast(first, ctypes.c_char_p), 2),
            Part(ctypes.cast(second, ctypes.c_char_p), 9),
        )
        t.say(LIBC.preadv2(s.fileno(), parts, 2, -1, 0), first.raw, second.raw)
        t.attempt("no offset", os.pread, s.fileno(), 1, 0)
        t.attempt("nor there", os.pwrite, s.fileno(), b"x", 0)
        s.close()


@case
class waiting_with_a_signal_mask:
    def server(t):
        c = t.accept()
        for _ in range(4):
            t.sync()
            c.sendall(b"x")
        t.sync()

    def client(t):
        s = t.connect()
        fd, none = s.fileno(), ctypes.create_string_buffer(8)
        second = ctypes.create_string_buffer(struct.pack("qq", 5, 0))

        def waits(what, call):
            t.sync()
            t.say(what, call(), exactly(s, 1))

        entry = ctypes.create_string_buffer(struct.pack("ihh", fd, select.POLLIN, 0))
        waits("ppoll", lambda: LIBC.ppoll(entry, 1, second, none))
        bits = ctypes.create_string_buffer(128)
        bits[fd // 8] = 1 << fd % 8
        waits("pselect", lambda: LIBC.pselect(fd + 1, bits, None, None, second, none))
        epoll, event = select.epoll(), ctypes.create_string_buffer(12)
        epoll.register(fd, select.EPOLLIN)
        waits("epoll_pwait", lambda: LIBC.epoll_pwait(epoll.fileno(), event, 1, 5000, none))
        waits("epoll_pwait2", lambda: LIBC.epoll_pwait2(epoll.fileno(), event, 1, second, none))
        t.sync()


@case
class options_that_ask_the_kernel:
    def server(t):
        c = t.accept()
        t.sync()
        t.say(exactly(c, 4))
        t.sync()
        t.sync()

    def client(t):
        s = t.connect()
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
        s.send(b"ab", socket.MSG_MORE)
        s.sendall(b"cd")
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
        t.sync()
        t.sync()
        unsent = struct.unpack("i", fcntl.ioctl(s, termios.TIOCOUTQ, bytes(4)))[0]
        # Up to 4 bytes, until the peer's kernel has acknowledged them.
        t.say("unsent", unsent <= 4)
        info = s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
        t.say(len(info), info[0])
        for name in "SO_TYPE", "SO_DOMAIN", "SO_PROTOCOL", "SO_ACCEPTCONN", "SO_ERROR":
            t.say(name, s.getsockopt(socket.SOL_SOCKET, getattr(socket, name)))
        nonblocking = lambda: bool(fcntl.fcntl(s, fcntl.F_GETFL) & os.O_NONBLOCK)
        fcntl.ioctl(s, termios.FIONBIO, struct.pack("i", 1))
        t.attempt("does not wait", s.recv, 1)
        t.say(nonblocking())
        fcntl.ioctl(s, termios.FIONBIO, struct.pack("i", 0))
        t.say(nonblocking())
        t.sync()


@case
class closed_by_range:
    def server(t):
        listener = t.listen()
        for _ in range(2):
            t.say(until_end(t.accept(listener)))

    def client(t):
        address = tuple(t.hear())
        for close in lambda fd: LIBC.close_range(fd, fd, 0), lambda fd: LIBC.closefrom(fd):
            s = t.connect(address)
            s.sendall(b"last words")
            high = fcntl.fcntl(s, fcntl.F_DUPFD, 900)
            s.close()
            close(high)
            t.attempt("gone", fcntl.fcntl, high, fcntl.F_GETFD)


@case
class written_by_a_handler:
    def server(t):
        c = t.accept()
        t.say(exactly(c, 40).count(b"h"))
        t.say(until_end(c))

    def client(t):
        s = t.connect()
        # A handler in C that only calls write(2), during other calls on the connection.
        fd, done = s.fileno(), []
        kind = ctypes.CFUNCTYPE(None, ctypes.c_int)

        def handler(number):
            LIBC.write(fd, b"h", 1)
            done.append(number)

        kept = kind(handler)
        LIBC.signal(signal.SIGUSR1, kept)
        for _ in range(40):
            os.kill(os.getpid(), signal.SIGUSR1)
        t.say(len(done))
        s.close()
