"""Runs one side of a case of socket semantics.

usage: semantics.py list
       semantics.py CASE server|client CONTROL [--cold]
       semantics.py serve CASE

Both sides print what they observe. A case must print the same on plain TCP and under weft. The
sides synchronise over a Unix socket at CONTROL, which is not under test. Unless --cold is given, a
connection first exchanges some bytes, so that it is on the fabric when the case begins.

`serve` loads the case and forks a program for each request on standard input, a socket (see
src/fork_server.rs).
"""

import errno
import json
import signal
import os
import socket
import sys
import time

CASES = {}
WAIT = 10
# The least number of seconds for which a peer that is away stays away.
AWAY = float(os.environ.get("E2E_AWAY", "0"))


def away(usually):
    """The number of seconds for which a peer is away."""
    return max(usually, AWAY)


def case(name_or_class):
    CASES[name_or_class.__name__] = name_or_class
    return name_or_class


class Side:
    """The environment of a case: the other side, a listener or a connection, and its output."""

    def __init__(self, role, control, cold):
        self.role, self.cold, self.held = role, cold, []
        if role == "server":
            self.control = control.accept()[0]
        else:
            self.control = socket.socket(socket.AF_UNIX)
            deadline = time.monotonic() + WAIT
            while True:
                try:
                    self.control.connect(control)
                    break
                except OSError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.002)
        self.control.settimeout(8 + AWAY)
        self.reader, self.writer = self.control.makefile("r"), self.control.makefile("w")

    def say(self, *words):
        print(*words, flush=True)

    def tell(self, value):
        self.writer.write(json.dumps(value) + "\n")
        self.writer.flush()

    def hear(self):
        line = self.reader.readline()
        if not line:
            raise EOFError("the other side is gone")
        return json.loads(line)

    def sync(self):
        """Waits until both sides have come here."""
        self.tell("sync")
        heard = self.hear()
        assert heard == "sync", heard

    def listen(self, host="127.0.0.1", family=socket.AF_INET, backlog=128, receive_buffer=None):
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if receive_buffer:
            # Connections that are accepted later inherit the size.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        listener.bind((host, 0))
        listener.listen(backlog)
        self.tell([host, listener.getsockname()[1]])
        return listener

    def accept(self, listener=None, warm=None, **options):
        own = listener is None
        listener = listener or self.listen(**options)
        connection, _ = listener.accept()
        if own:
            self.held.append(listener)
        self.warm(connection, True, warm)
        return connection

    def connect(self, address=None, family=socket.AF_INET, warm=None):
        address = address or tuple(self.hear())
        connection = socket.socket(family, socket.SOCK_STREAM)
        connection.connect(address)
        self.warm(connection, False, warm)
        return connection

    def warm(self, connection, serves, wanted=None):
        if not (not self.cold if wanted is None else wanted):
            return
        for _ in range(20):
            if serves:
                exactly(connection, 3)
                connection.sendall(b"pong")
            else:
                connection.sendall(b"png")
                exactly(connection, 4)

    def attempt(self, what, function, *arguments):
        """Makes a call and prints its result or error."""
        try:
            result = function(*arguments)
        except OSError as error:
            number = error.errno
            # Python reports a time limit in two ways.
            if isinstance(error, TimeoutError) and number is None:
                number = errno.EAGAIN
            self.say(what, errno.errorcode.get(number, number))
            return None
        shown = result if not isinstance(result, bytes) or len(result) < 100 else len(result)
        self.say(what, shown)
        return result


def exactly(connection, count):
    parts = []
    while count:
        part = connection.recv(min(count, 1 << 20))
        if not part:
            raise EOFError(f"{count} bytes are missing")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def without_weft():
    """The environment of programs that run without the preload library."""
    return {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}


def served_by_a_child(t, serve):
    """A child that accepts a connection and calls `serve` with it. Returns its number."""
    listener = t.listen()
    pid = os.fork()
    if pid == 0:
        serve(t.accept(listener))
        os._exit(1)
    listener.close()
    return pid


def until_end(connection):
    parts = []
    while part := connection.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


def pattern(count, seed=1):
    """Bytes that do not repeat at powers of two."""
    block = bytes((place * place + place * seed + seed) % 251 for place in range(65_521))
    return (block * (count // len(block) + 1))[:count]


def fill(connection):
    """Writes without blocking until no more bytes fit; returns the number of bytes."""
    connection.setblocking(False)
    block, total, idle = pattern(65_536), 0, 0
    while idle < 8:
        try:
            total += connection.send(block[total % 65_536 :])
            idle = 0
        except BlockingIOError:
            # Bytes in transit may make room once more, and so may a return to TCP.
            idle += 1
            time.sleep(0.02)
    return total


def load(name=None):
    """Loads the file that defines the case; all files when no name is given or found."""
    modules = "stream connection readiness fairness process programs inherited buffers calls "
    modules += "kernel options passed threads"
    for module in modules.split():
        if name:
            path = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"cases_{module}.py")
            with open(path, encoding="utf-8") as file:
                if f"@case\nclass {name}" not in file.read():
                    continue
        __import__(f"cases_{module}")
        if name in CASES:
            return
    if name:
        load()


def fork_orphan():
    """Forks twice: the child of the child gets 0. It leads a process group, and the process that
    adopts orphans is its parent. The caller gets its number, once that is so."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        pid = os.fork()
        if pid:
            os.setpgid(pid, pid)
            os.write(writes, str(pid).encode())
            os._exit(0)
    os.close(writes)
    pid = os.read(reads, 20) if child else b"0"
    os.close(reads)
    if child:
        os.waitpid(child, 0)
    return int(pid)


def serve():
    """Answers each request with the number of the program that it forks; returns in that program,
    which has the arguments, the standard streams and the process group of one that was started."""
    request = b""
    while part := os.read(0, 1 << 16):
        request += part
        if not request.endswith(b"\n"):
            continue
        wanted, request = json.loads(request), b""
        pid = fork_orphan()
        if pid:
            os.write(0, f"{pid}\n".encode())
            continue
        outputs = [wanted["stdout"], wanted["stderr"]]
        made = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        for number, (path, flags) in enumerate(
            [("/dev/null", os.O_RDONLY), *((output, made) for output in outputs)]
        ):
            opened = os.open(path, flags)
            os.dup2(opened, number)
            os.close(opened)
        sys.argv[1:] = wanted["arguments"]
        return
    sys.exit()


def main():
    if sys.argv[1] == "list":
        load()
        print("\n".join(CASES))
        return
    # Loading all files would compile them again for each case.
    load(sys.argv[2 if sys.argv[1] == "serve" else 1])
    if sys.argv[1] == "serve":
        serve()
    name, role, place = sys.argv[1:4]
    signal.alarm(20 + int(AWAY))
    control = place
    if role == "server":
        control = socket.socket(socket.AF_UNIX)
        control.bind(place)
        control.listen()
    side = Side(role, control, "--cold" in sys.argv)
    getattr(CASES[name], role)(side)
    side.say("end")


if __name__ == "__main__":
    # The files of cases import this module under its own name.
    sys.modules["semantics"] = sys.modules["__main__"]
    main()
