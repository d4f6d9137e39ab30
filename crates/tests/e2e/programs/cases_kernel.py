"""Features that only the kernel supports: connections in use leave the lane when needed."""

import ctypes
import errno
import fcntl
import hashlib
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time

from semantics import (
    away,
    case,
    exactly,
    fill,
    pattern,
    served_by_a_child,
    until_end,
    without_weft,
)

SO_ZEROCOPY, MSG_ZEROCOPY, SO_EE_ORIGIN_ZEROCOPY = 60, 0x4000000, 5
SIOCATMARK = 0x8905


class both:
    """A case in which both sides do the same."""

    def __init__(self, act):
        self.server = lambda t: act(t, t.accept())
        self.client = lambda t: act(t, t.connect())


def same(act):
    kind = both(act)
    kind.__name__ = act.__name__
    return case(kind)


@same
def both_write_before_they_read(t, c):
    c.sendall(pattern(1_500_000))
    t.say(exactly(c, 1_500_000) == pattern(1_500_000))
    c.sendall(b"again")
    t.say(exactly(c, 5))
    t.sync()


@same
def both_write_by_poll_before_they_read(t, c):
    c.setblocking(False)
    waits, data = select.poll(), pattern(1_500_000)
    waits.register(c, select.POLLOUT)
    while data:
        waits.poll()
        try:
            data = data[c.send(data) :]
        except BlockingIOError:
            pass
    c.setblocking(True)
    t.say(exactly(c, 1_500_000) == pattern(1_500_000))
    t.sync()


@same
def both_write_by_epoll_before_they_read(t, c):
    c.setblocking(False)
    waits, data = select.epoll(), pattern(1_500_000)
    waits.register(c, select.EPOLLOUT | select.EPOLLIN | select.EPOLLET)
    while data:
        try:
            data = data[c.send(data) :]
        except BlockingIOError:
            waits.poll()
    c.setblocking(True)
    t.say(exactly(c, 1_500_000) == pattern(1_500_000))
    t.sync()


@case
class writer_whose_peer_has_ended_over_tcp:
    def server(t):
        c = t.accept()
        c.sendall(pattern(1_500_000))
        c.shutdown(socket.SHUT_WR)
        t.sync()
        t.sync()
        time.sleep(0.3)
        t.say(exactly(c, 1_000_000) == pattern(1_000_000), until_end(c))

    def client(t):
        s = t.connect()
        t.sync()
        t.say(until_end(s) == pattern(1_500_000))
        t.sync()
        s.sendall(pattern(1_000_000))
        s.close()


@case
class reader_pauses_again_and_again:
    def server(t):
        c = t.accept()
        digest, left = hashlib.sha256(), 12_000_000
        while left:
            time.sleep(0.07)
            part = exactly(c, min(left, 1_000_000))
            digest.update(part)
            left -= len(part)
        t.say(digest.hexdigest())
        c.sendall(b"thanks")

    def client(t):
        s = t.connect()
        data = pattern(12_000_000)
        t.say(hashlib.sha256(data).hexdigest())
        s.sendall(data)
        t.say(until_end(s))


@case
class edges_across_a_crossing:
    def server(t):
        c = t.accept()
        c.setblocking(False)
        waits = select.epoll()
        waits.register(c, select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET)
        digest, ended = hashlib.sha256(), False
        while not ended:
            waits.poll()
            time.sleep(0.03)
            while True:
                try:
                    part = c.recv(100_000)
                except BlockingIOError:
                    break
                digest.update(part)
                if not part:
                    ended = True
                    break
        t.say(digest.hexdigest())

    def client(t):
        s = t.connect()
        data = pattern(9_000_000)
        for start in range(0, len(data), 3_000_000):
            s.sendall(data[start : start + 3_000_000])
            time.sleep(0.1)
        s.close()
        t.say(hashlib.sha256(data).hexdigest())


@case
class urgent_byte_in_use:
    def server(t):
        c = t.accept()
        t.sync()
        time.sleep(0.1)
        waits = select.poll()
        waits.register(c, select.POLLPRI)
        t.say("urgent", [event for _, event in waits.poll(2000)])
        t.attempt("out of line", c.recv, 1, socket.MSG_OOB)
        t.say(exactly(c, 3))
        mark = fcntl.ioctl(c, SIOCATMARK, struct.pack("i", 7))
        t.say("at the mark", struct.unpack("i", mark)[0])
        t.say(exactly(c, 3))
        c.sendall(b"answer")
        t.sync()
        t.say(until_end(c))

    def client(t):
        s = t.connect()
        s.sendall(b"abc")
        s.send(b"!", socket.MSG_OOB)
        s.sendall(b"def")
        t.sync()
        t.say(exactly(s, 6))
        t.sync()
        s.sendall(b"more")
        s.close()


@case
class signal_for_an_urgent_byte:
    def server(t):
        c = t.accept()
        came = threading.Event()
        signal.signal(signal.SIGURG, lambda *_: came.set())
        fcntl.fcntl(c, fcntl.F_SETOWN, os.getpid())
        t.sync()
        deadline = time.monotonic() + 3
        while not came.is_set() and time.monotonic() < deadline:
            time.sleep(0.01)
        t.say("signalled", came.is_set())
        t.sync()

    def client(t):
        s = t.connect()
        t.sync()
        s.send(b"!", socket.MSG_OOB)
        t.sync()


def signalled_for_bytes(t, ask):
    """A signal comes for each of three messages; `ask` makes the kernel send it."""
    c = t.accept()
    came = threading.Event()
    signal.signal(signal.SIGIO, lambda *_: came.set())
    fcntl.fcntl(c, fcntl.F_SETOWN, os.getpid())
    ask(c)
    for _ in range(3):
        came.clear()
        t.sync()
        deadline = time.monotonic() + 3
        while not came.is_set() and time.monotonic() < deadline:
            time.sleep(0.01)
        t.say("signalled", came.is_set(), exactly(c, 5))
        c.sendall(b"there")
    t.sync()


def peer_of_signalled(t):
    s = t.connect()
    for _ in range(3):
        t.sync()
        s.sendall(b"hello")
        t.say(exactly(s, 5))
    t.sync()


@case
class signal_for_bytes:
    def server(t):
        def ask(c):
            flags = fcntl.fcntl(c, fcntl.F_GETFL)
            fcntl.fcntl(c, fcntl.F_SETFL, flags | os.O_ASYNC)

        signalled_for_bytes(t, ask)

    client = peer_of_signalled


@case
class signal_for_bytes_by_ioctl_of_a_copy:
    def server(t):
        def ask(c):
            with socket.socket(fileno=os.dup(c.fileno())) as copy:
                fcntl.ioctl(copy, termios.FIOASYNC, struct.pack("i", 1))

        signalled_for_bytes(t, ask)

    client = peer_of_signalled


def by_aio(call, fd, buffer):
    """Makes an asynchronous call of the C library on the buffer, and waits for its end."""
    library = ctypes.CDLL(None, use_errno=True)
    request = ctypes.create_string_buffer(168)
    struct.pack_into("i", request, 0, fd)
    struct.pack_into("QQ", request, 16, ctypes.addressof(buffer), len(buffer))
    struct.pack_into("i", request, 44, 1)  # SIGEV_NONE
    if getattr(library, call)(ctypes.byref(request)):
        return "refused", ctypes.get_errno()
    while library.aio_error(ctypes.byref(request)) == errno.EINPROGRESS:
        time.sleep(0.01)
    return library.aio_return(ctypes.byref(request))


@case
class read_by_aio_in_use:
    def server(t):
        c = t.accept()
        t.say(exactly(c, 4))
        c.sendall(b"more")
        buffer = ctypes.create_string_buffer(4)
        t.say(by_aio("aio_read", c.fileno(), buffer), buffer.raw)
        t.say(by_aio("aio_write", c.fileno(), ctypes.create_string_buffer(b"fine", 4)))
        t.say(exactly(c, 4))

    def client(t):
        s = t.connect()
        s.sendall(b"some")
        t.say(exactly(s, 4))
        s.sendall(b"then")
        t.say(exactly(s, 4))
        s.sendall(b"last")


@case
class completions_of_zero_copy:
    def server(t):
        c = t.accept()
        t.say(exactly(c, 500_000) == pattern(500_000))
        c.sendall(b"ok")
        t.sync()

    def client(t):
        s = t.connect()
        t.attempt("asked", s.setsockopt, socket.SOL_SOCKET, SO_ZEROCOPY, 1)
        # The kernel reads this memory until it reports completion.
        data, done, calls = memoryview(pattern(500_000)), 0, 0
        while done < len(data):
            done += s.send(data[done : done + 100_000], MSG_ZEROCOPY)
            calls += 1
        t.say(exactly(s, 2))
        told, deadline = 0, time.monotonic() + 5
        while told < calls and time.monotonic() < deadline:
            try:
                _, beside, _, _ = s.recvmsg(1, 512, socket.MSG_ERRQUEUE | socket.MSG_DONTWAIT)
            except BlockingIOError:
                time.sleep(0.01)
                continue
            for _, _, value in beside:
                _, origin, _, _, _, first, last = struct.unpack("=IBBBBII", value[:16])
                assert origin == SO_EE_ORIGIN_ZEROCOPY, origin
                told += last - first + 1
        t.say("all completed", told == calls)
        t.sync()


def low_water(t, c):
    if c.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == 1:
        c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 100)
    t.sync()
    t.say("with ten", select.select([c], [], [], 0.2)[0] == [c])
    t.sync()
    t.say("with a hundred", select.select([c], [], [], 5)[0] == [c], len(c.recv(1000)))
    t.sync()
    # A read waits for the low-water mark, too, but not beyond an end.
    t.say(len(c.recv(1000)), len(c.recv(1000)))


def low_water_writer(t, s):
    t.sync()
    s.sendall(bytes(10))
    t.sync()
    s.sendall(bytes(90))
    t.sync()
    s.sendall(bytes(50))
    time.sleep(0.1)
    s.sendall(bytes(50))
    time.sleep(0.1)
    s.shutdown(socket.SHUT_WR)


@case
class low_water_mark:
    def server(t):
        low_water(t, t.accept())

    def client(t):
        low_water_writer(t, t.connect())


@case
class low_water_mark_in_use:
    def server(t):
        c = t.accept()
        for _ in range(20):
            c.sendall(exactly(c, 10))
        low_water(t, c)

    def client(t):
        s = t.connect()
        for _ in range(20):
            s.sendall(bytes(10))
            exactly(s, 10)
        low_water_writer(t, s)


@case
class low_water_mark_of_a_listener:
    def server(t):
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 100)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        t.tell([*listener.getsockname()])
        low_water(t, t.accept(listener, warm=False))

    def client(t):
        low_water_writer(t, t.connect(warm=False))


PASSED = """
import os, socket, sys
ours = socket.socket(fileno=int(sys.argv[1]))
c = socket.socket(fileno=socket.recv_fds(ours, 1, 1)[1][0])
left = 400_000
while left:
    part = c.recv(left)
    assert part, f"{left} bytes are missing"
    left -= len(part)
c.sendall(b"from another program")
c.shutdown(socket.SHUT_WR)
print("heard", c.recv(100), flush=True)
"""


@case
class passed_in_use_to_a_program_without_weft:
    def server(t):
        c = t.accept()
        ours, theirs = socket.socketpair()
        program = subprocess.Popen(
            [sys.executable, "-c", PASSED, str(theirs.fileno())],
            env=without_weft(),
            pass_fds=[theirs.fileno()],
            stdout=subprocess.PIPE,
        )
        t.sync()
        t.attempt("passed", socket.send_fds, ours, [b"x"], [c.fileno()])
        c.close()
        t.sync()
        t.say(program.communicate()[0])

    def client(t):
        s = t.connect()
        t.sync()
        # The peer asks to return to TCP; this side agrees at its next call.
        s.settimeout(0.3)
        t.attempt("nothing yet", s.recv, 1)
        s.settimeout(None)
        t.sync()
        s.sendall(pattern(400_000))
        t.say(until_end(s))
        s.sendall(b"bye")
        s.close()


@case
class passed_in_use_by_a_peer_in_epoll:
    def server(t):
        c = t.accept()
        ours, theirs = socket.socketpair()
        program = subprocess.Popen(
            [sys.executable, "-c", PASSED, str(theirs.fileno())],
            env=without_weft(),
            pass_fds=[theirs.fileno()],
            stdout=subprocess.PIPE,
        )
        t.sync()
        time.sleep(0.1)
        t.attempt("passed", socket.send_fds, ours, [b"x"], [c.fileno()])
        c.close()
        t.sync()
        t.say(program.communicate()[0])

    def client(t):
        s = t.connect()
        waits = select.epoll()
        waits.register(s, select.EPOLLIN)
        t.sync()
        t.say(waits.poll(0.5))
        t.sync()
        s.sendall(pattern(400_000))
        t.say([event for _, event in waits.poll()])
        t.say(until_end(s))
        s.sendall(b"bye")
        s.close()


@case
class spliced_into_a_connection:
    def server(t):
        c = t.accept()
        t.say(exactly(c, 200_000) == pattern(200_000))
        c.sendall(b"thanks")

    def client(t):
        s = t.connect()
        inner, outer = os.pipe()
        data = pattern(200_000)
        for start in range(0, len(data), 10_000):
            os.write(outer, data[start : start + 10_000])
            left = 10_000
            while left:
                left -= os.splice(inner, s.fileno(), left)
        t.say(until_end(s))


@case
class spliced_out_of_a_connection:
    def server(t):
        c = t.accept()
        c.sendall(pattern(300_000))
        t.sync()
        c.sendall(b"tail")
        c.close()

    def client(t):
        s = t.connect()
        inner, outer = os.pipe()
        got = b""
        while len(got) < 300_000:
            moved = os.splice(s.fileno(), outer, 30_000)
            part = os.read(inner, moved)
            assert len(part) == moved > 0
            got += part
        t.say(got == pattern(300_000))
        t.sync()
        tail = b""
        while moved := os.splice(s.fileno(), outer, 100):
            tail += os.read(inner, moved)
        t.say(tail)
        null = os.open("/dev/null", os.O_RDONLY)
        t.attempt("no pipe", os.splice, s.fileno(), null, 10)


@case
class bytes_that_wait_to_be_read:
    def server(t):
        c = t.accept()
        t.sync()
        time.sleep(0.2)
        waiting = struct.unpack("i", fcntl.ioctl(c, termios.FIONREAD, struct.pack("i", 0)))[0]
        # The kernel may hold three segments of 32 KiB back for its own account of memory.
        t.say("some", waiting > 60_000)
        t.say(len(exactly(c, 1_000_000)))
        t.sync()
        waiting = struct.unpack("i", fcntl.ioctl(c, termios.FIONREAD, struct.pack("i", 0)))[0]
        t.say(waiting)

    def client(t):
        s = t.connect()
        writer = threading.Thread(target=s.sendall, args=[pattern(1_000_000)])
        writer.start()
        t.sync()
        writer.join()
        t.sync()


def unread_when_passed(sent, read):
    """Passes a descriptor on after `sent` bytes arrived, of which `read` were read."""

    class Case:
        def server(t):
            c = t.accept()
            t.sync()
            # Long enough for both ends to finish; the sent bytes are now unread here.
            time.sleep(0.1)
            t.say(exactly(c, read) == pattern(sent)[:read])
            ours, theirs = socket.socketpair()
            t.attempt("passed", socket.send_fds, ours, [b"x"], [c.fileno()])
            passed = socket.socket(fileno=socket.recv_fds(theirs, 1, 1)[1][0])
            t.say(exactly(passed, sent - read) == pattern(sent)[read:])
            passed.sendall(b"answer")
            t.say(exactly(passed, 4))
            t.sync()

        def client(t):
            s = t.connect()
            s.sendall(pattern(sent))
            t.sync()
            t.say(exactly(s, 6))
            s.sendall(b"more")
            t.sync()

    return Case


@case
class passed_with_bytes_unread(unread_when_passed(6, 0)):
    pass


@case
class passed_amid_a_message(unread_when_passed(100, 33)):
    pass


@case
class passed_with_much_unread(unread_when_passed(230_000, 5_001)):
    pass


MUCH = 1_200_000


def full_when_passed(how):
    """Passes on a descriptor whose peer found no room for 0.1 s, and went on over TCP."""

    class Case:
        def server(t):
            c = t.accept()
            peer = t.hear()
            if how == "both":
                c.setblocking(False)
                sent = fill(c)
                c.setblocking(True)
            # Long enough for the peer to find no room.
            t.sync()
            time.sleep(0.05)
            t.say(exactly(c, 5_001) == pattern(MUCH)[:5_001])
            if how == "waits":
                waits_in_another_thread(c, None)
            if how == "stopped":
                os.kill(peer, signal.SIGSTOP)
            ours, theirs = socket.socketpair()
            t.attempt("passed", socket.send_fds, ours, [b"x"], [c.fileno()])
            if how == "stopped":
                os.kill(peer, signal.SIGCONT)
            if how == "both":
                t.tell(sent)
            c.close()
            passed = socket.socket(fileno=socket.recv_fds(theirs, 1, 1)[1][0])
            t.say(exactly(passed, MUCH - 5_001) == pattern(MUCH)[5_001:])
            if how == "half_closed":
                t.say(passed.recv(1))
            else:
                t.say(exactly(passed, 4))
            passed.sendall(b"answer")
            passed.close()

        def client(t):
            s = t.connect()
            t.tell(os.getpid())
            s.sendall(pattern(MUCH))
            if how == "half_closed":
                s.shutdown(socket.SHUT_WR)
            t.sync()
            if how == "both":
                exactly(s, t.hear())
            if how != "half_closed":
                s.sendall(b"more")
            t.say(until_end(s))

    return Case


@case
class passed_when_the_direction_was_full(full_when_passed("")):
    pass


@case
class passed_when_the_direction_was_full_and_is_half_closed(full_when_passed("half_closed")):
    pass


@case
class passed_when_both_directions_were_full(full_when_passed("both")):
    pass


@case
class passed_when_the_direction_was_full_beside_a_thread_that_waits(full_when_passed("waits")):
    pass


@case
class passed_when_the_direction_was_full_and_the_peer_is_stopped(full_when_passed("stopped")):
    pass


def passes_beside_the_other_end(sent, act_before=None, is_ended=False):
    """Passes an end on whose other end is in this process, where no thread looks at it."""

    class passes:
        def server(t):
            listener = socket.socket()
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            far = socket.create_connection(listener.getsockname())
            near, _ = listener.accept()
            # The accepting end brings the lane, and no other thread answers the connecting one.
            for _ in range(20):
                near.sendall(b"pong")
                exactly(far, 4)
                far.sendall(b"png")
                exactly(near, 3)
            far.sendall(pattern(sent))
            near.sendall(pattern(100))
            t.say(exactly(near, 1) == pattern(sent)[:1])
            if act_before:
                act_before(far, near)
            ours, theirs = socket.socketpair()
            t.attempt("passed", socket.send_fds, ours, [b"x"], [near.fileno()])
            near.close()
            passed = socket.socket(fileno=socket.recv_fds(theirs, 1, 1)[1][0])
            t.say(exactly(far, 100) == pattern(100))
            t.say(exactly(passed, sent - 1) == pattern(sent)[1:])
            if is_ended:
                t.say(passed.recv(1))
            else:
                far.sendall(b"more")
                t.say(exactly(passed, 4))
            t.attempt("answered", passed.sendall, b"answer")
            passed.close()
            t.say(until_end(far))

        client = server

    return passes


@case
class passed_beside_the_other_end(passes_beside_the_other_end(3)):
    pass


@case
class passed_with_much_unread_beside_the_other_end(passes_beside_the_other_end(200_000)):
    pass


def waits_in_another_thread(far, near):
    def wait():
        waits = select.poll()
        waits.register(far, select.POLLERR)
        waits.poll(300)

    threading.Thread(target=wait, daemon=True).start()
    time.sleep(0.05)


@case
class passed_beside_the_other_end_and_a_thread_that_waits(
    passes_beside_the_other_end(5_000, waits_in_another_thread)
):
    pass


@case
class passed_beside_the_other_end_that_is_half_closed(
    passes_beside_the_other_end(5_000, lambda far, _: far.shutdown(socket.SHUT_WR), True)
):
    pass


@case
class passed_with_bytes_unread_of_a_peer_that_is_stopped_and_killed:
    """The new holder finds what the peer wrote before."""

    def server(t):
        def serve(c):
            for _ in range(5):
                exactly(c, 10)
                c.sendall(b"0123456789")
            c.sendall(pattern(5_000))
            os.kill(os.getpid(), signal.SIGSTOP)

        pid = served_by_a_child(t, serve)
        os.waitpid(pid, os.WUNTRACED)
        t.sync()
        t.sync()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        t.sync()

    def client(t):
        s = t.connect()
        for _ in range(5):
            s.sendall(b"0123456789")
            exactly(s, 10)
        t.sync()
        ours, theirs = socket.socketpair()
        socket.send_fds(ours, [b"x"], [s.fileno()])
        reader = socket.socket(fileno=socket.recv_fds(theirs, 1, 1)[1][0])
        t.sync()
        t.sync()
        # Behind them is an end, or a reset: the peer had not read that this end left.
        t.say(exactly(reader, 5_000) == pattern(5_000))


def unread_beside(peer, sent, is_half_closed=False):
    """Passes a descriptor on with bytes unread, whose peer does not look meanwhile."""

    class passes:
        def server(t):
            c = t.accept()
            for _ in range(12):
                exactly(c, 10)
                c.sendall(b"0123456789")
            peer_number = t.hear()
            # Long enough for the peer to fall asleep.
            time.sleep(0.03)
            t.say(exactly(c, 1) == pattern(sent)[:1])
            if peer == "is_stopped":
                os.kill(peer_number, signal.SIGSTOP)
            ours, theirs = socket.socketpair()
            t.attempt("passed", socket.send_fds, ours, [b"x"], [c.fileno()])
            c.close()
            passed = socket.socket(fileno=socket.recv_fds(theirs, 1, 1)[1][0])
            passed.settimeout(5)
            t.say(exactly(passed, sent - 1) == pattern(sent)[1:])
            if is_half_closed:
                t.say(passed.recv(1))
            os.kill(peer_number, signal.SIGCONT)
            if not is_half_closed:
                t.say(exactly(passed, 100_000) == pattern(100_000))
            passed.sendall(b"answer")
            passed.close()

        def client(t):
            s = t.connect()
            for _ in range(12):
                s.sendall(b"0123456789")
                exactly(s, 10)
            s.sendall(pattern(sent))
            if is_half_closed:
                s.shutdown(socket.SHUT_WR)
            t.tell(os.getpid())
            deadline = time.monotonic() + 0.15
            while peer == "computes" and time.monotonic() < deadline:
                pass
            time.sleep(0.05)
            if not is_half_closed:
                s.sendall(pattern(100_000))
            t.say(until_end(s))

    return passes


@case
class passed_with_bytes_unread_while_the_peer_computes(unread_beside("computes", 6_000)):
    pass


@case
class passed_with_bytes_unread_while_the_peer_is_stopped(unread_beside("is_stopped", 200)):
    pass


@case
class passed_with_much_unread_while_the_peer_is_stopped(unread_beside("is_stopped", 230_000)):
    pass


@case
class passed_half_closed_while_the_peer_is_stopped(unread_beside("is_stopped", 3_000, True)):
    pass


def passes_beside(peer, is_under_weft):
    """Passes a connection on while its peer is away and no byte is unread."""

    class passes:
        def server(t):
            c = t.accept()
            t.tell(os.getpid())
            peer_number = t.hear()
            ours, theirs = socket.socketpair()
            program = subprocess.Popen(
                [sys.executable, "-c", PASSED, str(theirs.fileno())],
                env=None if is_under_weft else without_weft(),
                pass_fds=[theirs.fileno()],
                stdout=subprocess.PIPE,
            )
            t.sync()
            if peer == "is_stopped":
                os.kill(peer_number, signal.SIGSTOP)
            time.sleep(0.05)
            t.attempt("passed", socket.send_fds, ours, [b"x"], [c.fileno()])
            c.close()
            time.sleep(away(0.1) if peer == "is_stopped" else 0.1)
            os.kill(peer_number, signal.SIGCONT)
            t.sync()
            t.say(program.communicate()[0])

        def client(t):
            s = t.connect()
            t.hear()
            t.tell(os.getpid())
            t.sync()
            deadline = time.monotonic() + away(1.2)
            if peer == "sleeps":
                time.sleep(away(1.2))
            elif peer == "computes":
                while time.monotonic() < deadline:
                    pass
            t.sync()
            s.sendall(pattern(400_000))
            t.say(until_end(s))
            s.sendall(b"bye")
            s.close()

    return passes


@case
class passed_to_a_program_while_the_peer_sleeps(passes_beside("sleeps", False)):
    pass


@case
class passed_to_a_program_while_the_peer_computes(passes_beside("computes", False)):
    pass


@case
class passed_to_a_program_while_the_peer_is_stopped(passes_beside("is_stopped", False)):
    pass


@case
class passed_to_a_program_under_weft_while_the_peer_is_stopped(passes_beside("is_stopped", True)):
    pass
