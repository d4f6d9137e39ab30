"""Threads, signals, fork and passed descriptors."""

import ctypes
import os
import signal
import socket
import threading
import time

from semantics import case, exactly, pattern, until_end


@case
class copy_of_a_descriptor:
    def server(t):
        c = t.accept()
        t.say(exactly(c, 11))
        c.sendall(b"one")
        t.sync()
        c.sendall(b"two")
        t.say(until_end(c))

    def client(t):
        s = t.connect()
        copy = os.dup(s.fileno())
        s.sendall(b"first ")
        os.write(copy, b"again")
        t.say(os.read(copy, 3))
        s.close()
        t.sync()
        t.say(os.read(copy, 3))
        os.write(copy, b"from the copy")
        number = 700
        os.dup2(copy, number)
        os.close(copy)
        os.write(number, b" and the copy's")
        os.close(number)


@case
class copy_over_a_connection:
    def server(t):
        c = t.accept()
        t.say(until_end(c))

    def client(t):
        s = t.connect()
        s.sendall(b"closed by dup2")
        inner, outer = os.pipe()
        os.dup2(inner, s.fileno())
        os.write(outer, b"pipe")
        t.say(os.read(s.fileno(), 4))


@case
class child_uses_the_connection:
    def server(t):
        c = t.accept()
        t.say(exactly(c, 6))
        c.sendall(b"to the child")
        t.say(until_end(c))

    def client(t):
        s = t.connect()
        pid = os.fork()
        if pid == 0:
            s.sendall(b"child ")
            ok = exactly(s, 12) == b"to the child"
            s.sendall(b"and bye")
            s.close()
            os._exit(0 if ok else 1)
        s.close()
        t.say(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


@case
class parent_and_child_in_turns:
    def server(t):
        c = t.accept()
        for _ in range(20):
            c.sendall(exactly(c, 7))
        t.say(until_end(c))

    def client(t):
        s = t.connect()
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            right = 0
            for turn in range(10):
                theirs.recv(1)
                s.sendall(b"child%02d" % turn)
                right += exactly(s, 7) == b"child%02d" % turn
                theirs.send(b"x")
            os._exit(right)
        right = 0
        for turn in range(10):
            s.sendall(b"paren%02d" % turn)
            right += exactly(s, 7) == b"paren%02d" % turn
            ours.send(b"x")
            ours.recv(1)
        t.say(right, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        s.close()


@case
class parent_goes_on_after_child_closed:
    def server(t):
        c = t.accept()
        t.say(exactly(c, 6))
        c.sendall(b"still")
        t.say(until_end(c))

    def client(t):
        s = t.connect()
        pid = os.fork()
        if pid == 0:
            s.close()
            os._exit(0)
        os.waitpid(pid, 0)
        time.sleep(0.05)
        s.sendall(b"parent")
        t.say(exactly(s, 5))
        s.close()


@case
class server_forks_for_each_connection:
    def server(t):
        listener = t.listen()
        children = []
        for _ in range(10):
            c, _ = listener.accept()
            pid = os.fork()
            if pid == 0:
                listener.close()
                data = exactly(c, 50_000)
                c.sendall(data[::-1])
                c.close()
                os._exit(0)
            c.close()
            children.append(pid)
        t.say([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children])

    def client(t):
        address = tuple(t.hear())
        for _ in range(10):
            s = socket.create_connection(address)
            s.sendall(pattern(50_000))
            t.say(until_end(s) == pattern(50_000)[::-1])
            s.close()


@case
class workers_share_a_listener:
    def server(t):
        listener = t.listen()
        workers = []
        for _ in range(3):
            pid = os.fork()
            if pid == 0:
                for _ in range(4):
                    c, _ = listener.accept()
                    c.sendall(exactly(c, 1000)[::-1])
                    c.close()
                os._exit(0)
            workers.append(pid)
        t.say([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in workers])

    def client(t):
        address = tuple(t.hear())
        right = 0
        for _ in range(12):
            s = socket.create_connection(address)
            s.sendall(pattern(1000))
            right += until_end(s) == pattern(1000)[::-1]
            s.close()
        t.say(right)


@case
class child_dies_with_the_connection_open:
    def server(t):
        c = t.accept()
        t.say(exactly(c, 3))
        t.say(until_end(c))

    def client(t):
        s = t.connect()
        pid = os.fork()
        if pid == 0:
            s.sendall(b"bye")
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(pid, 0)
        time.sleep(0.1)
        s.sendall(b"parent lives")
        s.close()


@case
class one_thread_reads_one_writes:
    def server(t):
        c = t.accept()
        echo = threading.Thread(target=lambda: c.sendall(pattern(3_000_000, 2)))
        echo.start()
        t.say(exactly(c, 3_000_000) == pattern(3_000_000))
        echo.join()
        t.sync()

    def client(t):
        s = t.connect()
        got = []
        reader = threading.Thread(target=lambda: got.append(exactly(s, 3_000_000)))
        reader.start()
        data = pattern(3_000_000)
        for place in range(0, 3_000_000, 10_000):
            s.sendall(data[place : place + 10_000])
        reader.join()
        t.say(got[0] == pattern(3_000_000, 2))
        t.sync()


@case
class four_threads_write_messages:
    def server(t):
        c = t.accept()
        counts = [0] * 4
        whole = True
        for _ in range(4 * 2000):
            message = exactly(c, 64)
            writer = message[0] - 65
            whole &= message == bytes([65 + writer]) * 60 + b"%04d" % counts[writer]
            counts[writer] += 1
        t.say(whole, counts)
        t.sync()

    def client(t):
        s = t.connect()

        def write(writer):
            for number in range(2000):
                assert s.send(bytes([65 + writer]) * 60 + b"%04d" % number) == 64

        threads = [threading.Thread(target=write, args=[number]) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        t.sync()


@case
class four_threads_read_messages:
    def server(t):
        c = t.accept()
        for number in range(4000):
            c.sendall(b"%016d" % number)
        c.close()

    def client(t):
        s = t.connect()
        got, lock = [], threading.Lock()

        def read():
            while True:
                with lock:
                    part = s.recv(16, socket.MSG_WAITALL)
                if not part:
                    return
                got.append(int(part))

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        t.say(sorted(got) == list(range(4000)))


@case
class what_one_reader_leaves_wakes_another:
    """Both threads are asleep when two bytes arrive, and each reads one."""

    ROUNDS = 100

    def server(t):
        c = t.accept()
        for number in range(what_one_reader_leaves_wakes_another.ROUNDS):
            time.sleep(number % 4 * 0.0005)
            if number % 3:
                c.sendall(b"ab")
            else:
                c.sendall(b"a")
                c.sendall(b"b")
            exactly(c, 2)
        t.sync()

    def client(t):
        s = t.connect()

        def read():
            for _ in range(what_one_reader_leaves_wakes_another.ROUNDS):
                s.sendall(s.recv(1))
                both.wait(20)

        both = threading.Barrier(2)
        threads = [threading.Thread(target=read) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        t.say(not both.broken)
        t.sync()


@case
class close_in_another_thread:
    def server(t):
        c = t.accept()
        t.sync()
        time.sleep(0.2)
        c.sendall(b"late")
        t.sync()

    def client(t):
        s = t.connect()
        got = []
        number = s.fileno()
        reader = threading.Thread(target=lambda: got.append(os.read(number, 10)))
        reader.start()
        time.sleep(0.1)
        t.sync()
        reader.join()
        t.say(got)
        t.sync()


@case
class signal_with_a_handler_interrupts:
    def server(t):
        c = t.accept()
        t.sync()
        t.say(t.hear())
        c.sendall(b"data")
        t.sync()

    def client(t):
        s = t.connect()
        seen = []

        def handler(*_):
            seen.append(1)
            if len(seen) == 2:
                raise InterruptedError("by the handler")

        def send():
            # The second signal comes after the first was handled: two pending signals are one.
            for count in range(2):
                time.sleep(0.15)
                os.kill(os.getpid(), signal.SIGUSR1)
                while len(seen) == count:
                    time.sleep(0.001)

        signal.signal(signal.SIGUSR1, handler)
        signal.siginterrupt(signal.SIGUSR1, True)
        t.sync()
        threading.Thread(target=send).start()
        t.attempt("recv", s.recv, 10)
        t.say(len(seen))
        t.tell("interrupted")
        t.say(s.recv(10))
        t.sync()


@case
class signal_with_restart_goes_on:
    def server(t):
        c = t.accept()
        t.sync()
        t.say(t.hear())
        c.sendall(b"data")
        t.sync()

    def client(t):
        s = t.connect()
        handled = os.pipe()

        def send():
            # Python's own handler runs only after the read; the C handler writes at once.
            for _ in range(3):
                time.sleep(0.1)
                os.kill(os.getpid(), signal.SIGUSR1)
                os.read(handled[0], 1)
            t.tell("signalled")

        os.set_blocking(handled[1], False)
        signal.set_wakeup_fd(handled[1])
        signal.signal(signal.SIGUSR1, lambda *_: None)
        signal.siginterrupt(signal.SIGUSR1, False)
        t.sync()
        sender = threading.Thread(target=send)
        sender.start()
        t.say(s.recv(10))
        sender.join()
        t.sync()


@case
class alarm_ends_a_wait:
    def server(t):
        c = t.accept()
        t.sync()
        t.sync()

    def client(t):
        s = t.connect()

        def handler(*_):
            raise TimeoutError(110, "alarm")

        signal.signal(signal.SIGALRM, handler)
        signal.siginterrupt(signal.SIGALRM, True)
        t.sync()
        much = pattern(30_000_000)
        for what, call, argument in (("recv", s.recv, 10), ("send", s.sendall, much)):
            begin = time.monotonic()
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            t.attempt(what, call, argument)
            t.say(0.25 < time.monotonic() - begin < 5)
        t.sync()


@case
class handlers_are_told_as_they_were_given:
    def server(t):
        t.accept()
        t.sync()

    def client(t):
        t.connect()
        libc = ctypes.CDLL(None, use_errno=True)
        kind = ctypes.CFUNCTYPE(None, ctypes.c_int)
        seen = []
        one, two = kind(lambda number: seen.append((1, number))), kind(lambda _: seen.append(2))
        names = {ctypes.cast(one, ctypes.c_void_p).value: "one"}
        names[ctypes.cast(two, ctypes.c_void_p).value] = "two"
        names.update({None: "default", 1: "ignored", 2**64 - 1: "refused"})
        number = signal.SIGUSR2

        def told():
            """The handler and the flags of `struct sigaction`; the mask lies between them."""
            action = ctypes.create_string_buffer(256)
            libc.sigaction(number, None, action)
            handler = int.from_bytes(action.raw[:8], "little") or None
            flags = int.from_bytes(action.raw[136:140], "little")
            return names.get(handler, "unknown"), hex(flags & ~0x04000000)

        def given(install, handler):
            install = getattr(libc, install)
            install.restype = ctypes.c_void_p
            return names.get(install(number, handler), "unknown")

        def raised():
            seen.clear()
            os.kill(os.getpid(), number)
            return seen

        t.say(told())
        t.say(given("signal", one), told(), raised())
        t.say(given("sysv_signal", two), told(), raised(), told())
        t.say(given("signal", one), given("bsd_signal", two), told())
        t.say(libc.siginterrupt(number, 1), told(), raised())
        t.say(libc.siginterrupt(number, 0), told(), raised())
        t.say(given("sigset", one), told(), given("signal", 1), told(), raised())
        action = ctypes.create_string_buffer(256)
        action.raw = ctypes.cast(two, ctypes.c_void_p).value.to_bytes(8, "little") + bytes(248)
        t.say(libc.sigaction(number, action, None), told(), raised())
        t.say(libc.sigaction(64 + 1, action, None), libc.sigaction(signal.SIGKILL, action, None))
        t.say(given("signal", 0), told())
        t.sync()


@case
class signal_storm_loses_no_byte:
    def server(t):
        c = t.accept()
        sender = threading.Thread(target=c.sendall, args=[pattern(5_000_000, 3)])
        sender.start()
        t.say(exactly(c, 5_000_000) == pattern(5_000_000))
        sender.join()
        t.sync()

    def client(t):
        s = t.connect()
        signal.signal(signal.SIGALRM, lambda *_: None)
        signal.siginterrupt(signal.SIGALRM, True)
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        sender = threading.Thread(target=s.sendall, args=[pattern(5_000_000)])
        sender.start()
        got = exactly(s, 5_000_000)
        sender.join()
        signal.setitimer(signal.ITIMER_REAL, 0)
        t.say(got == pattern(5_000_000, 3))
        t.sync()


@case
class passed_to_another_process:
    def server(t):
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            ours.close()
            descriptor = socket.recv_fds(theirs, 1, 1)[1][0]
            c = socket.socket(fileno=descriptor)
            c.sendall(exactly(c, 5)[::-1])
            c.close()
            os._exit(0)
        theirs.close()
        c = t.accept(warm=False)
        socket.send_fds(ours, [b"x"], [c.fileno()])
        c.close()
        t.say(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    def client(t):
        s = t.connect(warm=False)
        s.sendall(b"abcde")
        t.say(until_end(s))


@case
class streams_of_the_c_library:
    def server(t):
        c = t.accept()
        stream = c.makefile("rwb")
        for line in iter(stream.readline, b"end\n"):
            stream.write(line.upper())
            stream.flush()
        stream.close()
        c.close()

    def client(t):
        s = t.connect()
        stream = s.makefile("rwb")
        for number in range(50):
            stream.write(b"line %d\n" % number)
            stream.flush()
            assert stream.readline() == b"LINE %d\n" % number
        stream.write(b"end\n")
        stream.flush()
        t.say(stream.read())


def echoes(connection, count):
    for _ in range(count):
        connection.sendall(connection.recv(100))


def held_by_two(ends):
    """A child uses a connection that its parent also holds; then the parent goes on."""

    class held:
        def server(t):
            c = t.accept()
            child = os.fork()
            if child == 0:
                echoes(c, 60)
                if ends == "killed":
                    os.kill(os.getpid(), signal.SIGKILL)
                while ends == "there" and c.recv(1, socket.MSG_PEEK) != b"z":
                    time.sleep(0.01)
                os._exit(0)
            if ends == "there":
                t.hear()
            else:
                os.waitpid(child, 0)
            t.tell("go on")
            echoes(c, 60)
            t.say(until_end(c))

        def client(t):
            s = t.connect()
            for number in range(120):
                if number == 60:
                    if ends == "there":
                        t.tell("go on")
                    t.hear()
                word = b"%06d" % number
                s.sendall(word)
                assert exactly(s, 6) == word, number
            s.sendall(b"z")
            s.close()
            t.say("echoed")

    return held


@case
class held_by_two_and_the_one_that_used_it_is_exited(held_by_two("exited")):
    pass


@case
class held_by_two_and_the_one_that_used_it_is_killed(held_by_two("killed")):
    pass


@case
class held_by_two_and_the_one_that_used_it_is_there(held_by_two("there")):
    pass
