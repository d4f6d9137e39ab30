"""Bytes, ends and errors of a stream."""

import array
import errno
import fcntl
import os
import select
import signal
import socket
import struct
import tempfile
import termios
import threading
import time

from semantics import case, exactly, fill, pattern, until_end


@case
class half_close_by_client:
    def server(t):
        c = t.accept()
        t.say(until_end(c))
        t.say(c.recv(10))
        c.sendall(b"after your end")
        c.close()

    def client(t):
        s = t.connect()
        s.sendall(b"request")
        s.shutdown(socket.SHUT_WR)
        t.say(until_end(s))
        t.attempt("send", s.send, b"x")


@case
class half_close_by_server:
    def server(t):
        c = t.accept()
        c.sendall(b"greeting")
        c.shutdown(socket.SHUT_WR)
        t.say(until_end(c))

    def client(t):
        s = t.connect()
        t.say(until_end(s))
        time.sleep(0.05)
        s.sendall(b"after your end")
        s.close()


def send_in_parts(connection, data, waits=None):
    """Sends `data`, and waits for room by `waits` where the connection does not block."""
    if waits is None:
        connection.sendall(data)
        return
    connection.setblocking(False)
    waits.register(connection, select.POLLOUT)
    while data:
        waits.poll()
        try:
            data = data[connection.send(data[:50_000]) :]
        except BlockingIOError:
            pass
    waits.unregister(connection)
    connection.setblocking(True)


def receives_alone(t, c):
    c.shutdown(socket.SHUT_WR)
    t.say(until_end(c) == pattern(2_000_000))


def sends_alone(t, c, waits):
    send_in_parts(c, pattern(2_000_000), waits)
    c.shutdown(socket.SHUT_WR)
    t.say(c.recv(1))


def in_parts(connection):
    """2 MB, most of which is sent long after two ends have agreed."""
    data = pattern(2_000_000)
    for start in range(0, len(data), 50_000):
        connection.sendall(data[start : start + 50_000])
        time.sleep(0.005)
    connection.shutdown(socket.SHUT_WR)


def of_parts(connection):
    return until_end(connection) == pattern(2_000_000)


@case
class moves_amid_bytes_to_an_end_that_only_reads:
    def server(t):
        t.say(of_parts(t.accept()))

    def client(t):
        in_parts(t.connect())


@case
class moves_amid_bytes_to_an_end_that_ended_its_own_direction:
    """As `ncat --recv-only` does."""

    def server(t):
        c = t.accept()
        c.shutdown(socket.SHUT_WR)
        t.say(of_parts(c))

    def client(t):
        in_parts(t.connect())


@case
class moves_amid_bytes_to_a_client_that_only_reads:
    def server(t):
        in_parts(t.accept())

    def client(t):
        t.say(of_parts(t.connect()))


@case
class one_way_to_an_end_that_sends_nothing:
    """The receiver ends its own direction before any byte came, as `ncat --recv-only` does."""

    def server(t):
        listener = t.listen()
        for _ in range(3):
            with t.accept(listener, warm=False) as c:
                receives_alone(t, c)
        for waits in (None, select.poll(), select.epoll()):
            with t.accept(listener, warm=False) as c:
                sends_alone(t, c, waits)

    def client(t):
        address = tuple(t.hear())
        for waits in (None, select.poll(), select.epoll()):
            with t.connect(address, warm=False) as s:
                sends_alone(t, s, waits)
        for _ in range(3):
            with t.connect(address, warm=False) as s:
                receives_alone(t, s)


@case
class half_close_with_much_data_after:
    def server(t):
        c = t.accept()
        t.say(len(until_end(c)))
        c.sendall(pattern(3_000_000))
        c.shutdown(socket.SHUT_RDWR)
        t.attempt("send", c.send, b"x")
        c.close()

    def client(t):
        s = t.connect()
        s.sendall(pattern(2_000_000))
        s.shutdown(socket.SHUT_WR)
        t.say(until_end(s) == pattern(3_000_000))


@case
class shutdown_of_reading:
    def server(t):
        c = t.accept()
        t.sync()
        t.say(until_end(c))
        t.sync()

    def client(t):
        s = t.connect()
        s.shutdown(socket.SHUT_RD)
        t.attempt("recv", s.recv, 10)
        t.sync()
        # Longer than the time after which a writer checks whether its peer is alive.
        for _ in range(5):
            s.sendall(b"still writing ")
            time.sleep(0.02)
        s.close()
        t.sync()


@case
class shutdown_twice_and_unconnected:
    def server(t):
        c = t.accept()
        t.say(c.recv(10))
        c.sendall(b"x")
        t.sync()

    def client(t):
        fresh = socket.socket()
        t.attempt("unconnected", fresh.shutdown, socket.SHUT_WR)
        t.attempt("send", fresh.send, b"x")
        t.attempt("recv", fresh.recv, 1)
        s = t.connect()
        t.attempt("first", s.shutdown, socket.SHUT_WR)
        t.attempt("second", s.shutdown, socket.SHUT_WR)
        t.say(s.recv(10))
        t.sync()
        s.close()


@case
class shutdown_wakes_a_reader:
    def server(t):
        c = t.accept()
        t.say(until_end(c))

    def client(t):
        s = t.connect()
        timer = threading.Timer(0.2, s.shutdown, [socket.SHUT_RDWR])
        timer.start()
        t.attempt("recv", s.recv, 10)
        timer.join()


@case
class close_with_unread_data_resets:
    def server(t):
        c = t.accept()
        select.select([c], [], [], 5)
        time.sleep(0.05)
        c.close()
        t.sync()

    def client(t):
        s = t.connect()
        s.sendall(b"never read")
        t.sync()
        time.sleep(0.05)
        t.attempt("recv", s.recv, 10)
        t.attempt("recv again", s.recv, 10)


@case
class close_with_part_unread_resets:
    def server(t):
        c = t.accept()
        t.say(exactly(c, 100) == pattern(100))
        t.sync()
        c.close()
        t.sync()

    def client(t):
        s = t.connect()
        s.sendall(pattern(50_000))
        t.sync()
        t.sync()
        time.sleep(0.05)
        t.attempt("recv", s.recv, 10)


@case
class end_comes_after_all_data:
    def server(t):
        c = t.accept()
        c.sendall(pattern(3_000_000))
        c.close()

    def client(t):
        s = t.connect()
        time.sleep(0.2)
        t.say(until_end(s) == pattern(3_000_000))
        t.say(s.recv(1), s.recv(1))


@case
class end_at_exit_without_close:
    def server(t):
        c = t.accept()
        c.sendall(pattern(150_000))
        t.held.append(c)

    def client(t):
        s = t.connect()
        time.sleep(0.3)
        t.say(until_end(s) == pattern(150_000))


@case
class broken_pipe:
    def server(t):
        c = t.accept()
        c.close()
        t.sync()

    def client(t):
        s = t.connect()
        t.sync()
        t.say(s.recv(1))
        # On TCP the first send succeeds and is answered with a reset; an earlier error is allowed.
        for _ in range(5):
            try:
                s.send(b"into the void")
            except OSError:
                break
            time.sleep(0.02)
        t.attempt("at last", s.send, b"x")


@case
class broken_pipe_signal:
    def server(t):
        c = t.accept()
        c.close()
        t.sync()

    def client(t):
        got = []
        signal.signal(signal.SIGPIPE, lambda *_: got.append(1))
        s = t.connect()
        t.sync()
        t.say(s.recv(1))
        while not got:
            try:
                s.send(b"x")
            except OSError as error:
                t.say(errno.errorcode[error.errno])
            time.sleep(0.02)
        t.say("signals", len(got))
        t.attempt("without", s.send, b"x", socket.MSG_NOSIGNAL)
        t.say("signals", len(got))
        t.attempt("with", s.send, b"x")
        t.say("signals", len(got))


@case
class end_of_own_writing_is_a_broken_pipe:
    def server(t):
        c = t.accept()
        t.say(until_end(c))

    def client(t):
        s = t.connect()
        s.shutdown(socket.SHUT_WR)
        t.attempt("send", s.send, b"x")
        t.attempt("sendmsg", s.sendmsg, [b"x"])
        s.close()


@case
class peek:
    def server(t):
        c = t.accept()
        c.sendall(b"abcdef")
        t.sync()
        c.sendall(pattern(200_000))
        t.sync()

    def client(t):
        s = t.connect()
        t.say(s.recv(3, socket.MSG_PEEK))
        t.say(exactly_peeked(s, 6))
        t.say(s.recv(2))
        t.say(exactly_peeked(s, 4))
        t.say(s.recvmsg_into([bytearray(4)], 0, socket.MSG_PEEK)[0])
        t.say(exactly(s, 4))
        t.attempt("nothing", s.recv, 5, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        t.sync()
        t.say(exactly(s, 200_000) == pattern(200_000))
        t.sync()


def exactly_peeked(s, count):
    """The peeked bytes, once `count` bytes have arrived."""
    for _ in range(500):
        seen = s.recv(count, socket.MSG_PEEK)
        if len(seen) == count:
            return seen
        time.sleep(0.002)
    return seen


@case
class wait_for_all:
    def server(t):
        c = t.accept()
        for part in range(10):
            c.sendall(pattern(10_000)[part * 1000 : part * 1000 + 1000])
            time.sleep(0.02)
        t.sync()
        c.sendall(b"short")
        c.close()

    def client(t):
        s = t.connect()
        t.say(s.recv(10_000, socket.MSG_WAITALL) == pattern(10_000))
        t.sync()
        t.say(s.recv(100, socket.MSG_WAITALL))


@case
class wait_for_all_in_parts:
    def server(t):
        c = t.accept()
        for part in range(0, 400_000, 50_000):
            c.sendall(pattern(400_000)[part : part + 50_000])
            time.sleep(0.01)
        t.sync()

    def client(t):
        s = t.connect()
        one, two = bytearray(100_000), bytearray(300_000)
        count = s.recvmsg_into([one, two], 0, socket.MSG_WAITALL)[0]
        t.say(count, bytes(one + two) == pattern(400_000))
        t.sync()


@case
class do_not_wait:
    def server(t):
        c = t.accept()
        t.sync()
        c.sendall(b"now")
        t.sync()
        t.sync()

    def client(t):
        s = t.connect()
        t.attempt("nothing", s.recv, 10, socket.MSG_DONTWAIT)
        t.sync()
        t.sync()
        select.select([s], [], [], 5)
        t.attempt("something", s.recv, 10, socket.MSG_DONTWAIT)
        t.attempt("nothing", s.recv, 10, socket.MSG_DONTWAIT)
        t.sync()


@case
class truncating_discards:
    def server(t):
        c = t.accept()
        c.sendall(b"0123456789")
        t.sync()

    def client(t):
        s = t.connect()
        s.recv(10, socket.MSG_PEEK | socket.MSG_WAITALL)
        while len(s.recv(10, socket.MSG_PEEK)) < 10:
            pass
        room = bytearray(b"....")
        t.say(s.recv_into(room, 4, socket.MSG_TRUNC), bytes(room))
        t.say(exactly(s, 6))
        t.sync()


@case
class zero_bytes:
    def server(t):
        c = t.accept()
        t.say(c.send(b""), c.sendmsg([]))
        t.sync()
        c.sendall(b"x")
        t.sync()

    def client(t):
        s = t.connect()
        t.sync()
        select.select([s], [], [], 5)
        t.say(s.recv(0), os.read(s.fileno(), 0), s.recvmsg_into([])[0])
        t.say(s.recv(5))
        t.sync()


@case
class time_limit_of_reading:
    def server(t):
        c = t.accept()
        t.sync()
        t.sync()

    def client(t):
        s = t.connect()
        s.settimeout(0.2)
        begin = time.monotonic()
        t.attempt("python's", s.recv, 10)
        t.say(0.15 < time.monotonic() - begin < 5)
        s.settimeout(None)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 200_000))
        begin = time.monotonic()
        t.attempt("the system's", s.recv, 10)
        t.say(0.15 < time.monotonic() - begin < 5)
        begin = time.monotonic()
        t.attempt("once more", os.read, s.fileno(), 10)
        t.say(0.15 < time.monotonic() - begin < 5)
        t.sync()
        t.sync()


@case
class time_limit_of_writing:
    def server(t):
        c = t.accept()
        t.sync()
        t.sync()

    def client(t):
        s = t.connect()
        fill(s)
        s.setblocking(True)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 200_000))
        begin = time.monotonic()
        try:
            t.say("some" if s.send(pattern(8_000_000)) else "none")
        except BlockingIOError:
            # No byte was sent: the room that was left depends on the system.
            t.say("some")
        t.say(0.15 < time.monotonic() - begin < 5)
        s.settimeout(0.2)
        begin = time.monotonic()
        t.attempt("python's", s.sendall, pattern(8_000_000))
        t.say(0.15 < time.monotonic() - begin < 5)
        t.sync()
        t.sync()


@case
class non_blocking_read_and_full_write:
    def server(t):
        c = t.accept()
        t.sync()
        total = t.hear()
        t.say(exactly(c, total) == b"".join([pattern(65_536)] * (total // 65_536 + 1))[:total])
        t.sync()
        t.sync()

    def client(t):
        s = t.connect()
        s.setblocking(False)
        t.attempt("read", s.recv, 10)
        t.attempt("os.read", os.read, s.fileno(), 10)
        t.sync()
        total = fill(s)
        t.say(total > 30_000)
        t.tell(total)
        t.sync()
        select.select([], [s], [], 5)
        t.attempt("write", s.send, b"x")
        t.sync()


@case
class bytes_that_wait:
    def server(t):
        c = t.accept()
        t.sync()
        c.sendall(b"12345")
        t.sync()
        c.sendall(pattern(20_000))
        t.sync()

    def client(t):
        def waiting():
            place = array.array("i", [-1])
            fcntl.ioctl(s, termios.FIONREAD, place)
            return place[0]

        def await_bytes(count):
            deadline = time.monotonic() + 5
            while waiting() != count and time.monotonic() < deadline:
                time.sleep(0.002)
            return waiting()

        s = t.connect()
        t.say(waiting())
        t.sync()
        t.say(await_bytes(5))
        t.say(s.recv(2), waiting())
        t.sync()
        t.say(await_bytes(20_003))
        t.say(len(exactly(s, 20_003)), waiting())
        t.sync()


@case
class several_buffers:
    def server(t):
        c = t.accept()
        whole = pattern(150_000)
        t.say(c.sendmsg([b"a", b"", b"bcd", whole[:5000], b"e"]))
        sent = 0
        parts = [whole[place : place + 1500] for place in range(0, 150_000, 1500)]
        sent = c.sendmsg(parts)
        c.sendall(whole[sent:])
        t.say(os.writev(c.fileno(), [b"x", b"yz"]))
        t.sync()

    def client(t):
        s = t.connect()
        t.say(exactly(s, 5005) == b"abcd" + pattern(5000) + b"e")
        rest = bytearray(150_003)
        done = 0
        while done < len(rest):
            view = memoryview(rest)[done:]
            cut = min(len(view), 700)
            done += s.recvmsg_into([view[:cut], view[cut:]])[0]
        t.say(bytes(rest) == pattern(150_000) + b"xyz")
        t.sync()


@case
class message_header_after_receiving:
    def server(t):
        c = t.accept()
        c.sendall(b"hello")
        t.sync()

    def client(t):
        s = t.connect()
        data, beside, flags, address = s.recvmsg(100, 100)
        t.say(data, beside, flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC), address)
        t.sync()


@case
class sent_from_a_file:
    def server(t):
        c = t.accept()
        with tempfile.TemporaryFile() as file:
            file.write(pattern(1_000_000))
            file.flush()
            sent = 0
            while sent < 600_000:
                sent += os.sendfile(c.fileno(), file.fileno(), sent, 600_000 - sent)
            file.seek(600_000)
            while sent < 1_000_000:
                sent += os.sendfile(c.fileno(), file.fileno(), None, 1_000_000 - sent)
            t.say(sent, file.seek(0, 1), os.sendfile(c.fileno(), file.fileno(), 2_000_000, 5))
        c.close()

    def client(t):
        s = t.connect()
        t.say(until_end(s) == pattern(1_000_000))


@case
class sent_from_a_file_without_waiting:
    def server(t):
        c = t.accept()
        c.setblocking(False)
        with tempfile.TemporaryFile() as file:
            file.write(pattern(2_000_000))
            file.flush()
            file.seek(0)
            sent = 0
            while sent < 2_000_000:
                place = None if sent < 1_000_000 else sent
                try:
                    sent += os.sendfile(c.fileno(), file.fileno(), place, 2_000_000 - sent)
                except BlockingIOError:
                    select.select([], [c], [])
            t.say(sent, file.seek(0, 1) >= 1_000_000)
            t.sync()
            # The other end closed with bytes unread.
            t.sync()
            ends = set()
            while "EPIPE" not in ends:
                try:
                    os.sendfile(c.fileno(), file.fileno(), 0, 5)
                except OSError as error:
                    ends.add(errno.errorcode[error.errno])
            t.say(sorted(ends))

    def client(t):
        s = t.connect()
        t.say(exactly(s, 1_999_990) == pattern(2_000_000)[:1_999_990])
        t.sync()
        s.close()
        t.sync()


@case
class spliced:
    def server(t):
        c = t.accept()
        c.sendall(pattern(30_000))
        c.shutdown(socket.SHUT_WR)
        t.say(len(until_end(c)))

    def client(t):
        s = t.connect()
        inner, outer = os.pipe()
        got = b""
        while True:
            # Programs read and write where they cannot splice.
            try:
                moved = os.splice(s.fileno(), outer, 4096)
                part = os.read(inner, moved) if moved else b""
            except OSError as error:
                assert error.errno == errno.EINVAL, error
                part = s.recv(4096)
            if not part:
                break
            got += part
        t.say(got == pattern(30_000))
        s.sendall(b"thanks")
        s.close()


@case
class reply_after_a_large_upload:
    def server(t):
        c = t.accept(warm=False)
        t.say(exactly(c, 5_000_000) == pattern(5_000_000))
        c.sendall(b"got it")
        t.say(until_end(c))

    def client(t):
        s = t.connect(warm=False)
        s.sendall(pattern(5_000_000))
        t.say(s.recv(100))
        s.close()


@case
class silent_server_closes_after_a_large_upload:
    def server(t):
        c = t.accept(warm=False)
        t.say(exactly(c, 5_000_000) == pattern(5_000_000))
        time.sleep(0.1)
        c.close()

    def client(t):
        s = t.connect(warm=False)
        s.sendall(pattern(5_000_000))
        t.say(s.recv(100))
