"""Connections that a program inherits as standard streams, or otherwise, before they have moved."""

import ctypes
import os
import struct
import subprocess
import sys
import tempfile
import time

from semantics import case, exactly, pattern, until_end

LIBC = ctypes.CDLL(None, use_errno=True)
LINES = 200


def line(number):
    return b"%06d " % number + b"a" * 3_000 + b"\n"


def exchange_lines(t, s):
    """Sends lines, compares each with its echo, and then ends the stream."""
    for number in range(LINES):
        s.sendall(line(number))
        assert exactly(s, len(line(number))) == line(number), number
    s.shutdown(1)
    t.say(until_end(s))


def echo_all(c):
    while part := c.recv(4_000):
        c.sendall(part)
    c.close()


def becomes(connection, *words):
    """Starts a child that execs a program with the connection as its standard streams."""
    child = os.fork()
    if child == 0:
        os.dup2(connection.fileno(), 0)
        os.dup2(connection.fileno(), 1)
        os.execvp(words[0], words)
    return lambda: os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def by_lines(warm, *words):
    """sed reads and writes by stdio; each line is answered before the next is sent."""

    class lines:
        def server(t):
            c = t.accept(warm=warm)
            ended = becomes(c, *words)
            c.close()
            t.say(ended())

        def client(t):
            s = t.connect(warm=warm)
            for number in range(LINES):
                s.sendall(line(number))
                answer = exactly(s, len(line(number)))
                assert answer == line(number).replace(b"a", b"b", 1), number
            s.sendall(b"last a")
            s.shutdown(1)
            t.say(until_end(s))

    return lines


@case
class program_answers_line_by_line(by_lines(False, "sed", "-u", "s/a/b/")):
    pass


@case
class program_answers_line_by_line_in_use(by_lines(None, "sed", "-u", "s/a/b/")):
    pass


@case
class programs_in_a_pipe(by_lines(False, "sh", "-c", "cat | sed -u s/a/b/")):
    pass


def of_wide_characters(warm):
    """rev reads and writes wide characters, which streams with callbacks do not support."""

    class wide:
        def server(t):
            c = t.accept(warm=warm)
            ended = becomes(c, "rev")
            c.close()
            t.say(ended())

        def client(t):
            s = t.connect(warm=warm)
            for number in range(LINES):
                s.sendall(line(number))
            s.shutdown(1)
            wanted = b"".join(line(number)[-2::-1] + b"\n" for number in range(LINES))
            t.say(until_end(s) == wanted)

    return wide


@case
class program_of_wide_characters(of_wide_characters(False)):
    pass


@case
class program_of_wide_characters_in_use(of_wide_characters(None)):
    pass


def printed_at_exit(warm):
    """The bytes that are in stdout's buffer when the program ends."""
    program = "import ctypes; c = ctypes.CDLL(None); c.printf(b'first words\\n'); c.exit(3)"

    class printed:
        def server(t):
            c = t.accept(warm=warm)
            ended = becomes(c, sys.executable, "-c", program)
            c.close()
            t.say(ended())

        def client(t):
            s = t.connect(warm=warm)
            t.say(until_end(s))

    return printed


@case
class printed_at_exit_by_a_program(printed_at_exit(False)):
    pass


@case
class printed_at_exit_by_a_program_in_use(printed_at_exit(None)):
    pass


@case
class streams_of_a_program_have_descriptors:
    """fileno(3) works, and streams keep working when their descriptor becomes another file."""

    def server(t):
        c = t.accept(warm=False)
        program = (
            "import ctypes, os; c = ctypes.CDLL(None); c.fileno.argtypes = [ctypes.c_void_p]; "
            "streams = [ctypes.c_void_p.in_dll(c, name) for name in ('stdin', 'stdout')]; "
            "os.read(0, 100); "
            "os.write(1, repr([c.fileno(stream) for stream in streams]).encode()); "
            "c.printf(b' before'); c.fflush(None); r, w = os.pipe(); os.dup2(w, 1); "
            "c.printf(b'into the pipe'); c.fflush(None); os.dup2(0, 1); "
            "os.write(1, os.read(r, 100)); c.printf(b' after'); c.fflush(None); "
            "c.freopen.restype = ctypes.c_void_p; "
            "c.fgets.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]; "
            "word = ctypes.create_string_buffer(5); "
            "again = c.freopen(b'/etc/passwd', b'r', streams[0]); "
            "c.fgets(word, 5, streams[0]); c.printf(b' %s %d', word, again == streams[0].value); "
            "c.exit(0)"
        )
        ended = becomes(c, sys.executable, "-c", program)
        c.close()
        t.say(ended())

    def client(t):
        s = t.connect(warm=False)
        s.sendall(b"begin")
        t.say(until_end(s))


REOPENS = """
import ctypes, errno, fcntl, os, sys
c = ctypes.CDLL(None, use_errno=True)
stdin, stdout = (ctypes.c_void_p.in_dll(c, name) for name in ("stdin", "stdout"))
c.freopen.restype = c.fgets.restype = ctypes.c_void_p
buffer = ctypes.create_string_buffer(30)
file = sys.argv[1].encode()
os.read(0, 100)

def reopen(path, mode, stream):
    number = 0 if stream is stdin else 3
    again = c.freopen(path, mode, stream)
    told = "same" if again == stream.value else errno.errorcode[ctypes.get_errno()]
    try:
        access = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE
        told = told, access, fcntl.fcntl(number, fcntl.F_GETFD)
    except OSError as error:
        told = told, errno.errorcode[error.errno]
    say(mode, *told)

def say(*words):
    os.write(1, (repr(words) + "\\n").encode())

def line(stream):
    c.clearerr(stream)
    got = c.fgets(buffer, 30, stream)
    say("line", buffer.value if got else None, bool(c.feof(stream)), bool(c.ferror(stream)))

def write(text, stream):
    c.clearerr(stream)
    say("write", c.fputs(text, stream) >= 0 and c.fflush(stream) == 0, bool(c.ferror(stream)))

reopen(file, b"w+", stdin)
write(b"first\\nsecond\\n", stdin)
say("back", c.fseek(stdin, ctypes.c_long(0), 0))
line(stdin)
say("at", c.ftell(stdin))
reopen(file, b"re", stdin)
line(stdin)
write(b"no", stdin)
reopen(file, b"ae", stdin)
write(b"third\\n", stdin)
line(stdin)
reopen(None, b"r", stdin)
line(stdin)
reopen(file, b"r+", stdin)
line(stdin)
reopen(file, b"wx", stdin)
line(stdin)
say(os.stat(file).st_size)
"""


@case
class standard_streams_are_reopened:
    """freopen(3) with every kind of mode, on the stdin of a program that is a connection."""

    def server(t):
        c = t.accept(warm=False)
        with tempfile.TemporaryDirectory() as directory:
            ended = becomes(c, sys.executable, "-c", REOPENS, directory + "/file")
            c.close()
            t.say(ended())

    def client(t):
        s = t.connect(warm=False)
        s.sendall(b"begin")
        t.say(until_end(s).decode())


@case
class program_is_started_by_a_program:
    """As git's server does: the first program reads some bytes, and the second goes on."""

    def server(t):
        c = t.accept(warm=False)
        first = (
            "import os, subprocess; os.write(1, os.read(0, 5)[::-1]); "
            "pid = os.fork(); pid or os.execvp('cat', ['cat']); "
            "os.waitpid(pid, 0); os.write(1, b'and the first')"
        )
        ended = becomes(c, sys.executable, "-c", first)
        c.close()
        t.say(ended())

    def client(t):
        s = t.connect(warm=False)
        s.sendall(b"hello")
        t.say(exactly(s, 5))
        exchange_lines(t, s)


@case
class stdin_of_the_server_itself_for_a_while:
    """The server reads a line by stdio, restores its own stdin, and goes on with system calls."""

    def server(t):
        c = t.accept(warm=False)
        kept = os.dup(0)
        os.dup2(c.fileno(), 0)
        word = ctypes.create_string_buffer(10)
        stdin = ctypes.c_void_p.in_dll(LIBC, "stdin")
        LIBC.setvbuf(stdin, None, 2, 0)
        LIBC.fgets(word, 7, stdin)
        os.dup2(kept, 0)
        t.say(word.value)
        echo_all(c)

    def client(t):
        s = t.connect(warm=False)
        s.sendall(b"by it\n" + line(0))
        assert exactly(s, len(line(0))) == line(0)
        exchange_lines(t, s)


@case
class program_holds_a_connection_that_it_does_not_use:
    def server(t):
        c = t.accept(warm=False)
        echo_all(c)

    def client(t):
        s = t.connect(warm=False)
        s.set_inheritable(True)
        for number in range(LINES):
            if number in (5, 15):
                beside = subprocess.Popen(["sleep", "0.1"], close_fds=False, preexec_fn=int)
            s.sendall(line(number))
            assert exactly(s, len(line(number))) == line(number), number
        s.shutdown(1)
        t.say(until_end(s))
        beside.wait()


def kills_at(*numbers):
    """A filter that kills the process at calls with these numbers (struct sock_filter)."""
    code = [struct.pack("HBBI", 0x20, 0, 0, 0)]
    for number in numbers:
        code.append(struct.pack("HBBI", 0x15, 0, 1, number))
        code.append(struct.pack("HBBI", 0x06, 0, 0, 0x80000000))
    code.append(struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000))
    filters = ctypes.create_string_buffer(b"".join(code))
    return filters, struct.pack("HxxxxxxP", len(code), ctypes.addressof(filters))


def behind_a_filter(warm):
    """As OpenSSH's server does: a child exchanges bytes behind a filter, then its parent goes
    on."""
    NO_NEW_PRIVILEGES, SECCOMP, FILTER = 38, 22, 2
    SENDTO, RECVFROM, SENDMSG, RECVMSG, YIELD = 44, 45, 46, 47, 24

    class filtered:
        def server(t):
            c = t.accept(warm=warm)
            child = os.fork()
            if child == 0:
                _filters, program = kills_at(SENDTO, RECVFROM, SENDMSG, RECVMSG, YIELD)
                LIBC.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)
                if LIBC.prctl(SECCOMP, FILTER, program, 0, 0):
                    os._exit(9)
                for _ in range(30):
                    os.write(c.fileno(), os.read(c.fileno(), 100))
                os._exit(0)
            t.say(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            echo_all(c)

        def client(t):
            s = t.connect(warm=warm)
            for number in range(30):
                s.sendall(b"%06d" % number)
                assert exactly(s, 6) == b"%06d" % number
            exchange_lines(t, s)

    return filtered


@case
class child_behind_a_filter_of_system_calls(behind_a_filter(False)):
    pass


@case
class child_behind_a_filter_of_system_calls_in_use(behind_a_filter(None)):
    pass
