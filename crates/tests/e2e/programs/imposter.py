"""A program that abuses the lanes which it kept with a process of another user, and its victims.

usage: imposter.py serve PORT NAME [GATE]
       imposter.py ask PORT NAME COUNT [GATE]
       imposter.py invite PORT GATE
       imposter.py clone PORT

serve    answers requests. When the file GATE is there, it stops listening and claims each
         invitation on a lane of its, whichever connection it is to.
ask      makes COUNT requests to a server that is called NAME, or as many as leave it a kept lane
         when COUNT is 0. Then it waits for the file GATE, and makes two more requests. Before it
         sends the first one, it prints its port and waits again, for GATE with the ending .go.
invite   makes requests until it has kept a lane. When the file GATE is there, it invites to the
         connection from the port that the file names, which is not its own. It prints whether that
         was claimed.
clone    makes requests until it has kept a lane. Then it makes a child by clone(3) amid a request.
         The child makes requests while its parent does. In the end it prints whether it still keeps
         one of the first lanes.
"""

import ctypes
import hashlib
import itertools
import os
import signal
import socket
import sys
import threading
import time

SIZE = 1 << 20
LIMIT = 8
WORD, STATE_SHIFT, ROUND_SHIFT = 128, 62, 48
INVITED, CLAIMED = 1, 2


def mappings():
    """Where this process has lanes mapped, by their inodes."""
    with open("/proc/self/maps") as maps:
        found = [line.split() for line in maps if "memfd:weft-lane" in line]
    return {words[4]: int(words[0].split("-")[0], 16) for words in found}


def lanes():
    """The invitation words of all lanes that this process has mapped."""
    return [ctypes.c_uint64.from_address(start + WORD) for start in mappings().values()]


def await_file(path):
    while not os.path.exists(path):
        time.sleep(0.002)


def content(name):
    block = hashlib.sha256(name.encode()).digest()
    return block * (SIZE // len(block))


def exactly(connection, count):
    parts = []
    while count:
        part = connection.recv(min(count, 1 << 16))
        if not part:
            raise EOFError(f"{count} bytes are missing")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def serve_one(connection, name):
    try:
        while exactly(connection, 1):
            connection.sendall(content(name))
            connection.sendall(exactly(connection, 32))
    except (EOFError, OSError):
        connection.close()


def claims_all():
    print("claims", flush=True)
    found = lanes()
    while True:
        for word in found:
            value = word.value
            if value >> STATE_SHIFT == INVITED:
                word.value = value ^ (INVITED ^ CLAIMED) << STATE_SHIFT
                print("claimed", flush=True)


def serve(port, name, gate=None):
    listener = socket.create_server(("127.0.0.1", port), reuse_port=False)
    print("ready", flush=True)

    def accept():
        try:
            while True:
                connection = listener.accept()[0]
                threading.Thread(target=serve_one, args=(connection, name), daemon=True).start()
        except OSError:
            return

    threading.Thread(target=accept, daemon=True).start()
    if gate:
        await_file(gate)
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        claims_all()
    threading.Event().wait()


def request(port, name, before=None, wait=0):
    """One request. Waits so many seconds for an answer to an invitation."""
    with socket.create_connection(("127.0.0.1", port), timeout=LIMIT) as connection:
        if before:
            before(connection)
        connection.sendall(b"a")
        time.sleep(wait)
        assert exactly(connection, SIZE) == content(name), "the bytes of another server"
        secret = os.urandom(32)
        connection.sendall(secret)
        assert exactly(connection, 32) == secret


def until_kept(port, name):
    """The first few teach both ends how long a connection lives."""
    deadline = time.monotonic() + 30
    for count in itertools.count():
        if count > 8 and lanes():
            return
        assert time.monotonic() < deadline, "no lane was kept"
        request(port, name)


def ask(port, name, count, gate=None):
    if count:
        for _ in range(count):
            request(port, name)
    else:
        until_kept(port, name)
    print("asked", flush=True)
    if not gate:
        return
    await_file(gate)
    name = open(gate).read() or name

    def announce(connection):
        print(f"from {connection.getsockname()[1]}.", flush=True)
        await_file(gate + ".go")

    request(port, name, announce, wait=0.1)
    # After an invitation that nobody claimed, one in eight connections asks the daemon for another
    # lane in place of inviting. If that was the first, the second one invites.
    request(port, name, wait=0.1)
    print("all is right", flush=True)


def fingerprint(port, own):
    """As weft-preload's `reserve` and Rust's derived `Hash` have it."""
    SO_NETNS_COOKIE = 71
    with socket.socket() as any_socket:
        network = any_socket.getsockopt(socket.SOL_SOCKET, SO_NETNS_COOKIE, 8)
    loopback = bytes(8) + bytes([127, 0, 0, 1])
    hashed = network
    for one in (own, port):
        hashed += loopback + one.to_bytes(2, sys.byteorder)
    value = 0xCBF29CE484222325
    for byte in hashed:
        value = (value ^ byte) * 0x100000001B3 & (1 << 64) - 1
    return value & (1 << ROUND_SHIFT) - 1


def invite(port, gate):
    until_kept(port, "honest")
    print("asked", flush=True)
    await_file(gate)
    victim = int(open(gate).read())
    found = lanes()
    for word in found:
        word.value = INVITED << STATE_SHIFT | 9 << ROUND_SHIFT | fingerprint(port, victim)
    print("invited", flush=True)
    await_file(gate + ".done")
    states = [word.value >> STATE_SHIFT for word in found]
    print("claimed" if CLAIMED in states else "ignored", flush=True)


def clone(port):
    until_kept(port, "honest")
    before = set(mappings())
    stack = ctypes.create_string_buffer(1 << 20)
    top = ctypes.c_void_p(ctypes.addressof(stack) + len(stack) & ~15)

    def requests():
        for _ in range(20):
            request(port, "honest")

    def child(_):
        try:
            requests()
            os._exit(0)
        finally:
            os._exit(1)

    function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(child)
    with socket.create_connection(("127.0.0.1", port), timeout=LIMIT) as connection:
        connection.sendall(b"a")
        assert exactly(connection, SIZE) == content("honest")
        made = ctypes.CDLL(None).clone(function, top, signal.SIGCHLD, None)
        assert made > 0, made
        connection.sendall(bytes(32))
        assert exactly(connection, 32) == bytes(32)
    requests()
    _, status = os.waitpid(made, 0)
    assert status == 0, f"the child ended with {status}"
    print("kept" if before & set(mappings()) else "given up", flush=True)


role, port, *words = sys.argv[1:]
if role == "serve":
    serve(int(port), *words)
elif role == "ask":
    ask(int(port), words[0], int(words[1]), *words[2:])
elif role == "clone":
    clone(int(port))
else:
    invite(int(port), *words)
