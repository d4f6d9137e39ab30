"""What select, poll and epoll report about a connection."""

import errno
import os
import select
import socket
import threading
import time

from semantics import case, exactly, fill, pattern, until_end
from uring import Registrar

NAMES = {
    select.EPOLLIN: "IN",
    select.EPOLLOUT: "OUT",
    select.EPOLLRDHUP: "RDHUP",
    select.EPOLLHUP: "HUP",
    select.EPOLLERR: "ERR",
    select.EPOLLPRI: "PRI",
}


def shown(events):
    return "+".join(name for bit, name in NAMES.items() if events & bit) or "none"


def told(poller, seconds=0.0):
    """The reported events of the only descriptor in the set."""
    found = poller.poll(seconds)
    return shown(found[0][1]) if found else "nothing"


def told_in_time(poller, wanted, seconds=5.0):
    """As `told`, for events that may take a while to appear."""
    deadline = time.monotonic() + seconds
    while (seen := told(poller, 0.05)) != wanted and time.monotonic() < deadline:
        time.sleep(0.002)
    return seen


@case
class select_sees_what_is_ready:
    def server(t):
        c = t.accept()
        t.sync()
        c.sendall(b"x")
        t.sync()
        c.close()

    def client(t):
        s = t.connect()
        t.say([len(part) for part in select.select([s], [s], [s], 0)])
        t.say([len(part) for part in select.select([s], [], [s], 0.1)])
        t.sync()
        t.say([len(part) for part in select.select([s], [], [], 5)])
        t.say([len(part) for part in select.select([s], [s], [s], 5)])
        t.say(s.recv(10))
        t.say([len(part) for part in select.select([s], [], [], 0)])
        t.sync()
        t.say([len(part) for part in select.select([s], [], [], 5)])
        t.say(s.recv(10))
        t.say([len(part) for part in select.select([s], [], [], 0)])


@case
class select_wakes_when_something_comes:
    def server(t):
        c = t.accept()
        for _ in range(5):
            time.sleep(0.1)
            c.sendall(b"x")
        t.sync()

    def client(t):
        s = t.connect()
        for _ in range(5):
            begin = time.monotonic()
            t.say(len(select.select([s], [], [], 5)[0]), time.monotonic() - begin < 3)
            t.say(s.recv(1))
        t.sync()


@case
class poll_sees_what_is_ready:
    def server(t):
        c = t.accept()
        t.sync()
        c.sendall(b"x")
        t.sync()
        c.shutdown(socket.SHUT_WR)
        t.sync()
        c.close()

    def client(t):
        s = t.connect()
        both, reads = select.poll(), select.poll()
        both.register(s, select.POLLIN | select.POLLOUT | select.POLLPRI | 0x2000)
        reads.register(s, select.POLLIN | 0x2000)
        t.say(told(both), told(reads, 50))
        t.sync()
        t.say(told(reads, 5000), told(both))
        t.say(s.recv(10), told(reads))
        t.sync()
        t.say(told(reads, 5000), told(both))
        t.say(s.recv(10), told(reads))
        t.sync()
        s.close()


@case
class poll_mixes_with_other_descriptors:
    def server(t):
        c = t.accept()
        t.sync()
        c.sendall(b"x")
        t.sync()

    def client(t):
        s = t.connect()
        inner, outer = os.pipe()
        poller = select.poll()
        poller.register(s, select.POLLIN)
        poller.register(inner, select.POLLIN)
        t.say(poller.poll(50))
        threading.Timer(0.1, os.write, [outer, b"p"]).start()
        t.say([fd == inner for fd, _ in poller.poll(5000)])
        os.read(inner, 1)
        t.sync()
        t.say([fd == s.fileno() for fd, _ in poller.poll(5000)])
        t.say(s.recv(1))
        closed = os.dup(inner)
        os.close(closed)
        poller.register(closed, select.POLLIN)
        t.say([shown(events) if events != 32 else "NVAL" for _, events in poller.poll(0)])
        t.sync()


@case
class epoll_level:
    def server(t):
        c = t.accept()
        t.sync()
        c.sendall(b"abc")
        t.sync()
        c.close()
        t.sync()

    def client(t):
        s = t.connect()
        poller = select.epoll()
        poller.register(s, select.EPOLLIN | select.EPOLLRDHUP)
        t.say(told(poller), told(poller, 0.05))
        t.sync()
        t.say(told(poller, 5), told(poller), told(poller))
        t.say(s.recv(1), told(poller), s.recv(2), told(poller))
        t.sync()
        t.say(told(poller, 5), told(poller))
        t.say(s.recv(1), told(poller))
        poller.modify(s, select.EPOLLOUT)
        t.say(told(poller))
        poller.unregister(s)
        t.say(told(poller))
        t.attempt("twice", poller.unregister, s)
        t.sync()


@case
class epoll_edge:
    def server(t):
        c = t.accept()
        for _ in range(3):
            t.sync()
            c.sendall(b"abc")
        t.sync()
        c.shutdown(socket.SHUT_WR)
        t.sync()

    def client(t):
        s = t.connect()
        poller = select.epoll()
        poller.register(s, select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET)
        t.say(told(poller, 0.05))
        for _ in range(3):
            t.sync()
            t.say(told(poller, 5), told(poller, 0.05))
            t.say(s.recv(1), told(poller, 0.05))
        t.say(exactly(s, 6))
        t.sync()
        t.say(told_in_time(poller, "IN+RDHUP"), told(poller, 0.05))
        t.sync()


@case
class epoll_edge_of_writing:
    def server(t):
        c = t.accept()
        total = t.hear()
        time.sleep(0.1)
        t.say(len(exactly(c, total)) == total)
        t.sync()

    def client(t):
        s = t.connect()
        poller = select.epoll()
        poller.register(s, select.EPOLLOUT | select.EPOLLET)
        t.say(told(poller, 1), told(poller, 0.05))
        total = fill(s)
        told(poller)
        t.say(told(poller, 0.05))
        t.tell(total)
        t.say(told(poller, 5))
        t.attempt("send", s.send, b"x")
        t.sync()


@case
class epoll_edge_reader_that_trusts_short_reads:
    """As nginx does: a reader that got fewer bytes than it asked for waits for the next edge."""

    def reader(t, c):
        poller = select.epoll()
        poller.register(c, select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET)
        c.setblocking(False)
        total, size, ready = 0, 65_536, True
        while total < 5_000_000:
            if not ready and not any(e & select.EPOLLIN for _, e in poller.poll(5)):
                if not poller.poll(2):
                    break
            try:
                got = len(c.recv(size))
            except BlockingIOError:
                ready = False
                continue
            total += got
            ready = got == size
        c.setblocking(True)
        t.say(total)

    def writer(t, c):
        for part in range(100):
            c.sendall(pattern(50_000))
            if part % 10 == 5:
                time.sleep(0.002)

    def server(t):
        case_ = epoll_edge_reader_that_trusts_short_reads
        c = t.accept()
        case_.reader(t, c)
        t.sync()
        case_.writer(t, c)
        t.sync()

    def client(t):
        case_ = epoll_edge_reader_that_trusts_short_reads
        s = t.connect()
        case_.writer(t, s)
        t.sync()
        case_.reader(t, s)
        t.sync()


@case
class epoll_edge_writer_that_looks_often:
    """The writer polls a full socket until weft leaves the check to the kernel; then room comes."""

    def server(t):
        c = t.accept()
        poller = select.epoll()
        poller.register(c, select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET)
        t.say(told_in_time(poller, "OUT"))
        for _ in range(3):
            count = fill(c)
            # Bytes in transit may make room once more, which is reported only once.
            while "OUT" in [told(poller) for _ in range(3000)]:
                count += fill(c)
            t.say(count > 0)
            t.tell(count)
            t.say(told_in_time(poller, "OUT"))
        poller.unregister(c)
        t.sync()

    def client(t):
        s = t.connect()
        for _ in range(3):
            exactly(s, t.hear())
        t.sync()


@case
class epoll_writable_after_drain:
    def server(t):
        c = t.accept()
        total = t.hear()
        time.sleep(0.1)
        t.say(len(exactly(c, total)) == total)
        t.sync()

    def client(t):
        s = t.connect()
        poller = select.epoll()
        poller.register(s, select.EPOLLIN | select.EPOLLOUT)
        t.say(told(poller, 1))
        total = fill(s)
        t.say(told(poller, 0.05))
        plain = select.poll()
        plain.register(s, select.POLLOUT)
        t.say(told(plain, 50), [len(part) for part in select.select([s], [s], [], 0.05)])
        t.tell(total)
        t.say(told(poller, 5))
        t.say(told_in_time(plain, "OUT"), len(select.select([], [s], [], 5)[1]))
        t.sync()


@case
class epoll_once:
    def server(t):
        c = t.accept()
        t.sync()
        c.sendall(b"abc")
        t.sync()

    def client(t):
        s = t.connect()
        poller = select.epoll()
        flags = select.EPOLLIN | select.EPOLLONESHOT
        poller.register(s, flags)
        t.sync()
        t.say(told(poller, 5), told(poller, 0.05))
        poller.modify(s, flags)
        t.say(told(poller, 1), told(poller, 0.05))
        t.say(s.recv(10))
        poller.modify(s, flags)
        t.say(told(poller, 0.05))
        t.sync()


@case
class epoll_edge_reports_again_after_modify:
    def server(t):
        c = t.accept()
        t.sync()
        c.sendall(b"abc")
        t.sync()

    def client(t):
        s = t.connect()
        poller = select.epoll()
        flags = select.EPOLLIN | select.EPOLLET
        poller.register(s, flags)
        t.sync()
        t.say(told(poller, 5), told(poller, 0.05))
        poller.modify(s, flags)
        t.say(told(poller, 1), told(poller, 0.05))
        late = select.epoll()
        late.register(s, flags)
        t.say(told(late, 1), told(late, 0.05))
        t.sync()


@case
class hang_up_of_both_halves:
    def server(t):
        c = t.accept()
        t.sync()
        c.shutdown(socket.SHUT_WR)
        t.sync()
        t.say(until_end(c))
        t.sync()

    def client(t):
        s = t.connect()
        poller = select.epoll()
        poller.register(s, select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP)
        t.say(told(poller))
        t.sync()
        t.sync()
        t.say(told_in_time(poller, "IN+OUT+RDHUP"))
        s.shutdown(socket.SHUT_WR)
        t.sync()
        t.say(told_in_time(poller, "IN+OUT+RDHUP+HUP"))
        t.say(s.recv(1))


@case
class reset_is_an_error_event:
    def server(t):
        c = t.accept()
        select.select([c], [], [], 5)
        time.sleep(0.05)
        c.close()
        t.sync()

    def client(t):
        s = t.connect()
        poller = select.epoll()
        poller.register(s, select.EPOLLIN | select.EPOLLRDHUP)
        s.sendall(b"unread")
        t.sync()
        t.say(told_in_time(poller, "IN+RDHUP+HUP+ERR"))
        t.attempt("recv", s.recv, 1)


@case
class many_connections_in_one_epoll:
    COUNT = 200
    ROUNDS = 10

    def server(t):
        listener = t.listen(backlog=300)
        listener.setblocking(False)
        poller = select.epoll()
        poller.register(listener, select.EPOLLIN)
        held, closed, served = {}, 0, 0
        while closed < many_connections_in_one_epoll.COUNT:
            for fd, events in poller.poll(10):
                if fd == listener.fileno():
                    try:
                        while True:
                            c, _ = listener.accept()
                            c.setblocking(False)
                            held[c.fileno()] = c
                            poller.register(c, select.EPOLLIN)
                    except BlockingIOError:
                        continue
                c = held[fd]
                try:
                    data = c.recv(4096)
                except BlockingIOError:
                    continue
                if data:
                    served += len(data)
                    c.send(data)
                else:
                    poller.unregister(c)
                    held.pop(fd).close()
                    closed += 1
        t.say(closed, served)

    def client(t):
        address = tuple(t.hear())
        count, rounds = many_connections_in_one_epoll.COUNT, many_connections_in_one_epoll.ROUNDS
        all_of_them = [socket.create_connection(address) for _ in range(count)]
        right = 0
        for turn in range(rounds):
            for number, s in enumerate(all_of_them):
                s.sendall(b"%06d%04d" % (number, turn))
            for number, s in enumerate(all_of_them):
                right += exactly(s, 10) == b"%06d%04d" % (number, turn)
        t.say(right)
        for s in all_of_them:
            s.close()


@case
class epoll_inside_epoll:
    def server(t):
        c = t.accept()
        t.sync()
        c.sendall(b"x")
        t.sync()

    def client(t):
        s = t.connect()
        inner, outer = select.epoll(), select.epoll()
        inner.register(s, select.EPOLLIN)
        outer.register(inner.fileno(), select.EPOLLIN)
        t.say(told(outer, 0.05))
        t.sync()
        t.say(told(outer, 5), told(inner, 1))
        t.say(s.recv(1), told(inner, 0))
        t.sync()


@case
class epoll_registered_before_connect:
    def server(t):
        c = t.accept(warm=False)
        t.say(exactly(c, 4))
        c.sendall(b"pong")
        t.sync()
        c.sendall(b"more")
        t.sync()

    def client(t):
        address = tuple(t.hear())
        s = socket.socket()
        s.setblocking(False)
        poller = select.epoll()
        number = s.connect_ex(address)
        t.say(number in (0, errno.EINPROGRESS))
        poller.register(s, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)
        t.say(told_in_time(poller, "OUT"))
        s.send(b"ping")
        t.say(told_in_time(poller, "IN+OUT"))
        t.say(s.recv(10))
        t.sync()
        t.say(told_in_time(poller, "IN+OUT"), s.recv(10))
        t.sync()


@case
class epoll_wait_in_one_thread_write_in_another:
    def server(t):
        c = t.accept()
        t.say(len(until_end(c)))

    def client(t):
        s = t.connect()
        poller = select.epoll()
        poller.register(s, select.EPOLLIN)
        waiter = threading.Thread(target=poller.poll, args=[1])
        waiter.start()
        for _ in range(100):
            s.sendall(b"0123456789")
        waiter.join()
        s.close()


@case
class closed_descriptor_leaves_the_set:
    def server(t):
        c = t.accept()
        t.sync()
        c.close()
        t.sync()

    def client(t):
        s = t.connect()
        poller = select.epoll()
        poller.register(s, select.EPOLLIN)
        copy = s.dup()
        poller.register(copy, select.EPOLLIN)
        copy.close()
        s.close()
        t.sync()
        t.say(told(poller, 0.05))
        t.sync()


@case
class epoll_changed_while_a_thread_waits:
    def server(t):
        c = t.accept()
        for _ in range(3):
            t.sync()
            time.sleep(0.1)
            c.sendall(b"x")
        t.sync()

    def client(t):
        s = t.connect()
        for change in ("register", "modify", "writable"):
            poller, seen = select.epoll(), []
            if change == "modify":
                poller.register(s, 0)
            waiter = threading.Thread(target=lambda: seen.extend(poller.poll(5)))
            waiter.start()
            time.sleep(0.1)
            if change == "modify":
                poller.modify(s, select.EPOLLIN)
            else:
                wanted = select.EPOLLOUT if change == "writable" else 0
                poller.register(s, select.EPOLLIN | wanted | select.EPOLLET)
            begin = time.monotonic()
            t.sync()
            waiter.join()
            t.say(change, [shown(events) for _, events in seen], time.monotonic() - begin < 4)
            t.say(s.recv(1))
        t.sync()


@case
class reader_waits_before_anybody_spoke:
    def server(t):
        c = t.accept(warm=False)
        t.say(c.recv(10))
        c.sendall(b"answer")
        time.sleep(0.1)
        c.sendall(b"another")
        t.sync()

    def client(t):
        s = t.connect(warm=False)
        got = []
        reader = threading.Thread(target=lambda: got.extend([s.recv(6), s.recv(7)]))
        reader.start()
        time.sleep(0.1)
        s.sendall(b"question")
        reader.join(5)
        t.say(got)
        t.sync()


@case
class waiting_costs_no_processor:
    def server(t):
        c = t.accept()
        time.sleep(0.2)
        c.sendall(exactly(c, 3_000_000))
        t.sync()
        t.sync()

    def client(t):
        s = t.connect()
        # A reader sleeps while a writer waits for room; then both have nothing to do.
        got = []
        reader = threading.Thread(target=lambda: got.append(exactly(s, 3_000_001)), daemon=True)
        reader.start()
        s.sendall(bytes(3_000_000))
        t.sync()
        time.sleep(0.2)
        poller = select.epoll()
        poller.register(s, select.EPOLLPRI)
        begin = time.process_time()
        poller.poll(1)
        t.say(time.process_time() - begin < 0.3)
        t.sync()


@case
class epoll_added_twice:
    def server(t):
        c = t.accept()
        t.sync()
        c.sendall(b"news")
        t.sync()

    def client(t):
        s = t.connect()
        epoll = select.epoll()
        epoll.register(s, select.EPOLLIN)
        t.attempt("again", epoll.register, s, select.EPOLLIN | select.EPOLLOUT)
        t.say(epoll.poll(0))
        t.sync()
        t.say([hex(events) for _, events in epoll.poll(5)])
        t.attempt("and again", epoll.register, s, select.EPOLLIN)
        t.say([hex(events) for _, events in epoll.poll(5)])
        t.say(exactly(s, 4))
        t.say(epoll.poll(0))
        epoll.unregister(s)
        t.attempt("out twice", epoll.unregister, s)
        t.sync()


@case
class epoll_filled_by_io_uring_where_there_is_one:
    def server(t):
        c = t.accept()
        for _ in range(3):
            t.sync()
            c.sendall(b"news")
            t.say(exactly(c, 2))
        t.sync()

    def client(t):
        s = t.connect()
        epoll = select.epoll()
        Registrar(epoll).register(s.fileno(), select.EPOLLIN)
        for _ in range(3):
            t.sync()
            t.say([hex(events) for _, events in epoll.poll(5)])
            t.say(exactly(s, 4))
            t.say(epoll.poll(0))
            s.sendall(b"ok")
        t.sync()
