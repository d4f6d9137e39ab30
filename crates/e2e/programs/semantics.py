"""One case of socket semantics, as one of its two sides.

usage: semantics.py list
       semantics.py CASE server|client CONTROL [--cold]

Both sides print what they see; the same case printed on plain TCP and under weft must be the same.
The sides agree over a Unix socket at CONTROL, which is not what is tested. Unless --cold is given
a connection exchanges some bytes first, so that it is on the fabric when the case begins.
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
# So long a peer that is away stays away at least, in seconds.
AWAY = float(os.environ.get("WEFT_E2E_AWAY", "0"))


def away(usually):
    """For how many seconds a peer is away."""
    return max(usually, AWAY)


def case(name_or_class):
    CASES[name_or_class.__name__] = name_or_class
    return name_or_class


class Side:
    """What a case is given: the other side, a listener or a connection, and a place to print."""

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
        """Both sides have come here."""
        self.tell("sync")
        heard = self.hear()
        assert heard == "sync", heard

    def listen(self, host="127.0.0.1", family=socket.AF_INET, backlog=128, receive_buffer=None):
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if receive_buffer:
            # Connections inherit it, if they come later.
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
        """Calls and prints what came of it."""
        try:
            result = function(*arguments)
        except OSError as error:
            number = error.errno
            # The two ways in which Python tells a time limit.
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
    """The environment of programs that are not to be preloaded."""
    return {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}


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
    """Writes without blocking until nothing more goes in; returns how many bytes went."""
    connection.setblocking(False)
    block, total, idle = pattern(65_536), 0, 0
    while idle < 8:
        try:
            total += connection.send(block[total % 65_536 :])
            idle = 0
        except BlockingIOError:
            # Bytes on their way may make room once more, and so does a way back to TCP.
            idle += 1
            time.sleep(0.02)
    return total


def load(name=None):
    """Loads the file beside this one that has the case; all of them if none says so by its name."""
    modules = "stream connection readiness fairness process programs inherited buffers calls kernel"
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


def main():
    if sys.argv[1] == "list":
        load()
        print("\n".join(CASES))
        return
    name, role, place = sys.argv[1:4]
    # All of them would be compiled anew for each case.
    load(name)
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
    # So that the files of cases find this module under its name.
    sys.modules["semantics"] = sys.modules["__main__"]
    main()
