"""Programs that are started beside a connection, or with a connection as a standard stream."""

import ctypes
import os
import socket
import subprocess
import sys
import time

from semantics import case, exactly, pattern, until_end, without_weft


@case
class stdin_and_stdout_of_a_program:
    def server(t):
        c = t.accept(warm=False)
        child = subprocess.Popen(["cat"], stdin=c, stdout=c)
        c.close()
        t.say(child.wait())

    def client(t):
        s = t.connect(warm=False)
        s.sendall(pattern(3_000))
        t.say(exactly(s, 3_000) == pattern(3_000))
        s.sendall(b"last")
        s.shutdown(socket.SHUT_WR)
        t.say(until_end(s))


@case
class stdout_of_a_program_in_the_client:
    def server(t):
        c = t.accept(warm=False)
        t.say(until_end(c))

    def client(t):
        s = t.connect(warm=False)
        program = [sys.executable, "-c", "print('from the program')"]
        t.say(subprocess.run(program, stdout=s).returncode)
        s.close()


@case
class started_by_posix_spawn:
    def server(t):
        c = t.accept(warm=False)
        actions = [(os.POSIX_SPAWN_DUP2, c.fileno(), 0), (os.POSIX_SPAWN_DUP2, c.fileno(), 1)]
        pid = os.posix_spawnp("cat", ["cat"], dict(os.environ), file_actions=actions)
        c.close()
        t.say(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    def client(t):
        s = t.connect(warm=False)
        s.sendall(b"spawned")
        s.shutdown(socket.SHUT_WR)
        t.say(until_end(s))


@case
class replaced_by_exec:
    def server(t):
        c = t.accept(warm=False)
        pid = os.fork()
        if pid == 0:
            os.dup2(c.fileno(), 0)
            os.dup2(c.fileno(), 1)
            os.execvp("cat", ["cat"])
        c.close()
        t.say(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    def client(t):
        s = t.connect(warm=False)
        s.sendall(b"replaced")
        s.shutdown(socket.SHUT_WR)
        t.say(until_end(s))


@case
class program_without_weft_finds_what_was_not_read:
    def server(t):
        c = t.accept()
        t.say(exactly(c, 5))
        t.sync()
        time.sleep(0.1)
        pid = os.fork()
        if pid == 0:
            os.dup2(c.fileno(), 0)
            os.dup2(c.fileno(), 1)
            os.execvpe("cat", ["cat"], without_weft())
        c.close()
        t.say(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    def client(t):
        s = t.connect()
        s.sendall(b"first" + pattern(50_000))
        s.shutdown(socket.SHUT_WR)
        t.sync()
        t.say(until_end(s) == pattern(50_000))


def through_cat(start):
    """Exchanges some bytes, then starts a child with the connection as standard streams."""

    class Case:
        def server(t):
            c = t.accept()
            c.sendall(exactly(c, 5)[::-1])
            status = start(c)
            c.close()
            t.say(status())

        def client(t):
            s = t.connect()
            s.sendall(b"first")
            t.say(exactly(s, 5))
            s.sendall(pattern(300_000))
            s.shutdown(socket.SHUT_WR)
            t.say(until_end(s) == pattern(300_000))

    Case.__name__ = start.__name__
    return case(Case)


def spawned(c, environment):
    actions = [(os.POSIX_SPAWN_DUP2, c.fileno(), 0), (os.POSIX_SPAWN_DUP2, 0, 1)]
    pid = os.posix_spawnp("cat", ["cat"], environment, file_actions=actions)
    return lambda: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def popened(c, environment):
    # subprocess starts its child by vfork.
    return subprocess.Popen(["cat"], stdin=c, stdout=c, env=environment).wait


@through_cat
def spawned_in_use(c):
    return spawned(c, os.environ)


@through_cat
def spawned_in_use_without_weft(c):
    return spawned(c, without_weft())


@through_cat
def child_of_vfork_in_use(c):
    return popened(c, os.environ)


@through_cat
def child_of_vfork_in_use_without_weft(c):
    return popened(c, without_weft())


def words(*values):
    return (ctypes.c_char_p * (len(values) + 1))(*values, None)


def execs(call):
    """In the middle of a connection, a child execs a shell by a call of the C library.

    The decorated function returns the arguments of the call for a command and an environment.
    """

    def decorated(arguments):
        return case(amid_a_connection(call, arguments))

    return decorated


def amid_a_connection(call, arguments):
    class Case:
        def server(t):
            c = t.accept()
            c.sendall(exactly(c, 5)[::-1])
            n = c.fileno()
            os.set_inheritable(n, True)
            libc = ctypes.CDLL(None)
            command = b"head -c 10 <&%d | tr a-z A-Z >&%d" % (n, n)
            environment = words(*(b"%s=%s" % pair for pair in os.environb.items()))
            pid = os.fork()
            if pid == 0:
                getattr(libc, call)(*arguments(command, environment))
                os._exit(99)
            t.say(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            # The child has ended; the server goes on with the connection.
            t.sync()
            c.sendall(exactly(c, 4)[::-1])
            c.close()

        def client(t):
            s = t.connect()
            s.sendall(b"first")
            t.say(exactly(s, 5))
            s.sendall(b"some words")
            t.say(exactly(s, 10))
            t.sync()
            s.sendall(b"last")
            t.say(until_end(s))

    Case.__name__ = arguments.__name__
    return Case


@execs("execl")
def execl_in_use(command, environment):
    return b"/bin/sh", b"sh", b"-c", command, None


@execs("execlp")
def execlp_in_use(command, environment):
    # More arguments than registers hold, and than the library stores without allocating.
    many = [b"%d" % number for number in range(300)]
    whole = b'test "$*" = "$(seq -s " " 0 299)" && ' + command
    return b"sh", b"sh", b"-c", whole, b"sh", *many, None


@execs("execle")
def execle_in_use(command, environment):
    whole = b'test -n "$PATH" && ' + command
    return b"/bin/sh", b"sh", b"-c", whole, None, environment


@execs("execle")
def execle_in_use_without_weft(command, environment):
    path = b"PATH=" + os.environb[b"PATH"]
    return b"/bin/sh", b"sh", b"-c", command, None, words(path)


@execs("fexecve")
def fexecve_in_use(command, environment):
    program = os.open("/bin/sh", os.O_RDONLY | os.O_CLOEXEC)
    return program, words(b"sh", b"-c", command), environment


@execs("execveat")
def execveat_in_use(command, environment):
    directory = os.open("/bin", os.O_RDONLY)
    return directory, b"sh", words(b"sh", b"-c", command), environment, 0


@execs("syscall")
def exec_by_number_in_use(command, environment):
    return 59, b"/bin/sh", words(b"sh", b"-c", command), environment


@case
class shells_use_an_inherited_connection:
    LIBC = ctypes.CDLL(None)

    def server(t):
        c = t.accept()
        c.sendall(exactly(c, 5)[::-1])
        os.set_inheritable(c.fileno(), True)
        n, libc = c.fileno(), shells_use_an_inherited_connection.LIBC
        t.say(libc.system(b"head -c 10 <&%d | tr a-z A-Z >&%d; exit 3" % (n, n)) >> 8)
        libc.popen.restype = ctypes.c_void_p
        stream = ctypes.c_void_p(libc.popen(b"cat >&%d" % n, b"w"))
        libc.fputs(b"written to a shell", stream)
        t.say(libc.pclose(stream))
        stream = ctypes.c_void_p(libc.popen(b"head -c 5 <&%d; exit 4" % n, b"r"))
        line = ctypes.create_string_buffer(100)
        libc.fgets(line, 100, stream)
        t.say(line.value, libc.pclose(stream) >> 8)
        # The children have ended; the server goes on with the connection.
        t.sync()
        c.sendall(exactly(c, 4)[::-1])
        c.close()

    def client(t):
        s = t.connect()
        s.sendall(b"first")
        t.say(exactly(s, 5))
        s.sendall(b"some words")
        t.say(exactly(s, 10), exactly(s, 18))
        s.sendall(b"fifth")
        t.sync()
        s.sendall(b"last")
        t.say(until_end(s))


@case
class child_of_vfork_keeps_a_connection_by_its_number:
    def server(t):
        c = t.accept(warm=False)
        out, into = os.pipe()
        n = c.fileno()
        command = f"read go; head -c 5 <&{n} | tr a-z A-Z >&{n}"
        child = subprocess.Popen(["sh", "-c", command], stdin=out, pass_fds=[n])
        for _ in range(100):
            c.sendall(exactly(c, 4)[::-1])
        os.write(into, b"go\n")
        t.say(child.wait())
        c.close()

    def client(t):
        s = t.connect(warm=False)
        for _ in range(100):
            s.sendall(b"ping")
            exactly(s, 4)
        s.sendall(b"words")
        t.say(until_end(s))


@case
class programs_are_started_beside_a_connection:
    def server(t):
        c = t.accept()
        for _ in range(10):
            c.sendall(exactly(c, 100)[::-1])
            subprocess.run(["true"], check=True)
        t.say(until_end(c))

    def client(t):
        s = t.connect()
        right = 0
        for turn in range(10):
            s.sendall(pattern(100, turn))
            t_out = subprocess.run(["echo", "x"], capture_output=True, check=True).stdout
            right += exactly(s, 100) == pattern(100, turn)[::-1] and t_out == b"x\n"
        t.say(right)
        os.system("exit 0")
        s.close()


@case
class program_on_a_connection_in_use:
    def server(t):
        c = t.accept()
        child = subprocess.Popen(["cat"], stdin=c, stdout=c)
        c.close()
        t.say(child.wait())

    def client(t):
        s = t.connect()
        s.sendall(pattern(3_000))
        t.say(exactly(s, 3_000) == pattern(3_000))
        s.sendall(b"last")
        s.shutdown(socket.SHUT_WR)
        t.say(until_end(s))
