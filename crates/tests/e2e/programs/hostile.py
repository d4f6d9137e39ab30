"""A user that attacks the daemon.

usage: hostile.py MANNER SOCKET [USER]

fuse        passes files whose file system never answers (begins as root, becomes USER)
linger      passes connections whose close waits
refused     passes such connections in channels beyond the user's allowance
wakeups       opens endpoints whose wakeups contain such connections, and ends them
noise       sends 30,000 invalid packets, each on its own channel
programs    opens channels until they are refused
offers      offers ends of connections with lanes until they are refused
endpoints   opens endpoints until they are refused
statuses    asks for the status again and again and reads no answer
deaf        says hello again and again and reads no answer
spy         tries to reach the endpoints and keys of other users
random      sends packets of random kinds, bodies and descriptors for a while

Prints the result when the attack is at its worst, then waits to be killed.
"""

import array
import ctypes
import os
import random
import resource
import select
import signal
import socket
import struct
import sys
import threading
import time

HELLO, REFUSED, OFFER, LISTENING, STATUS, JOIN = 1, 3, 4, 8, 9, 13
OPEN, CONNECT, ASK_MEMBERS, PUBLISH, RESOLVE, REPLY, MEMBERS = 32, 34, 37, 38, 40, 48, 49
ACCEPTED, CONNECTED = 0, 1
DONE, EXHAUSTED, FORBIDDEN, NOT_FOUND = 0, 2, 3, 4
F_ADD_SEALS, SEALS = 1033, 1 | 2 | 4


def message(kind, body=b""):
    return struct.pack("<4sHH", b"weft", 11, kind) + body


def channel(where):
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # Blocks while the daemon's queue is full.
    line.connect(where)
    line.settimeout(5)
    return line


def greeted(where):
    line = channel(where)
    line.send(message(HELLO, struct.pack("<IH", os.getpid(), 4) + b"evil"))
    return line, kind_of(line.recv(4096))


def kind_of(packet):
    return struct.unpack_from("<H", packet, 6)[0] if len(packet) >= 8 else 0


def send(line, packet, descriptors=()):
    rights = array.array("i", descriptors)
    line.sendmsg([packet], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if rights else [])


def memory(length=4096):
    import fcntl

    file = os.memfd_create("evil", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(file, length)
    fcntl.fcntl(file, F_ADD_SEALS, SEALS)
    return file


def connection():
    listener = socket.create_server(("127.0.0.1", 0))
    one = socket.create_connection(listener.getsockname())
    return one, listener.accept()[0], listener


def open_body(ticket=1, flags=0, partition=0, name=b"", invitation=b""):
    birth, any_vpid, any_peers, slots = random.getrandbits(63), 0xFFFF, 0, 256
    head = struct.pack("<IIQQHHI", ticket, flags, partition, birth, any_vpid, any_peers, slots)
    return head + struct.pack("<48sI16s", name, 0, invitation)


def opened(line, **how):
    """Opens one more endpoint; returns its status, its VPID and the other end of its wakeup."""
    wakeup, mine = socket.socketpair()
    files = [memory(4096), memory(65_536), wakeup.fileno()]
    send(line, message(OPEN, open_body(**how)), files)
    for file in files[:2]:
        os.close(file)
    wakeup.close()
    status, first = reply(line)
    return status, first & 0xFFFF, mine


def reply(line):
    while True:
        packet, rights, _, _ = line.recvmsg(4096, socket.CMSG_SPACE(16))
        for level, kind, data in rights:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                for file in array.array("i", data):
                    os.close(file)
        if kind_of(packet) == REPLY:
            _, status, first, _ = struct.unpack_from("<IHQQ", packet, 8)
            return status, first


def serve_fuse(device):
    """Answers requests up to the open of a file, and none after that."""
    attributes = struct.pack("<6Q10I", 2, 0, 0, 0, 0, 0, 0, 0, 0, 0o100666, 1, 0, 0, 0, 4096, 0)
    while True:
        request = os.read(device, 1 << 20)
        _, opcode, unique, node = struct.unpack_from("<IIQQ", request)
        if opcode == 26:  # INIT
            body = struct.pack("<IIIIHHIIHHI7I", 7, 31, 0, 0, 16, 12, 4096, 1, 0, 0, 0, *[0] * 7)
        elif opcode == 1:  # LOOKUP
            body = struct.pack("<QQQQII", 2, 0, 9, 0, 0, 0) + attributes
        elif opcode == 3 and node == 1:  # GETATTR of the root
            root = struct.pack("<6Q10I", 1, 0, 0, 0, 0, 0, 0, 0, 0, 0o40777, 1, 0, 0, 0, 4096, 0)
            body = struct.pack("<QII", 9, 0, 0) + root
        elif opcode == 14:  # OPEN
            body = struct.pack("<QII", 1, 0, 0)
        else:
            continue
        os.write(device, struct.pack("<IiQ", 16 + len(body), 0, unique) + body)


def become(user):
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def fuse(where, user):
    device = os.open("/dev/fuse", os.O_RDWR)
    place = where + ".fuse"
    os.makedirs(place, exist_ok=True)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"evil", place.encode(), b"fuse", 0, options) != 0:
        sys.exit(f"no FUSE here: {os.strerror(ctypes.get_errno())}")
    if os.fork() == 0:
        serve_fuse(device)
    os.close(device)
    become(int(user))
    file = os.open(place + "/file", os.O_RDWR)
    one, other, listener = connection()
    offer = struct.pack("<QBIB", 1, ACCEPTED, 3, 0)
    for kind, body, files in [
        (OFFER, offer, [one.fileno(), file]),
        (OFFER, offer, [file]),
        (LISTENING, struct.pack("<Q", 2), [file]),
        (JOIN, struct.pack("<Q", 3), [file]),
        (OPEN, open_body(), [file, file, file]),
        (OPEN, open_body(), [memory(4096), memory(65_536), file]),
        (PUBLISH, struct.pack("<IHHIBBQQHQ", 1, 0, 0, 1, 1, 0, 0, 4096, 0xFFFF, 0), [file]),
    ]:
        line = channel(where)
        send(line, message(kind, body), files)
        KEPT.append(line)
    KEPT.extend([one, other, listener])
    return "handed over"


def lingering():
    one, other, listener = connection()
    one.setblocking(False)
    try:
        while True:
            one.send(bytes(65_536))
    except BlockingIOError:
        pass
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 3600))
    return one, other, listener


def send_the_last(line, packet, one):
    """Sends the connection and closes it here, so that the daemon holds the last copy. Returns
    whether it does: where the daemon closed first, this close waits until the alarm."""
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
    try:
        send(line, packet, [one.fileno()])
        start = time.monotonic()
        os.close(one.detach())
        return time.monotonic() - start < 0.02
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def linger(where):
    handed_over = 0
    while handed_over < 4:
        one, other, listener = lingering()
        line = channel(where)
        handed_over += send_the_last(line, message(LISTENING, struct.pack("<Q", 1)), one)
        KEPT.extend([line, other, listener])
    return "handed over"


def refused(where):
    programs(where)
    handed_over = 0
    while handed_over < 4:
        one, other, listener = lingering()
        line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        line.connect(where)
        try:
            handed_over += send_the_last(line, b"x", one)
        except OSError:
            # Refused before the packet was sent; closing the connection would wait here.
            KEPT.append(one)
        KEPT.extend([line, other, listener])
    return "refused"


def wakeups(where):
    one, other, listener = lingering()
    wakeup, mine = socket.socketpair()
    send(mine, b"x", [one.fileno()])
    os.close(one.detach())
    line, _ = greeted(where)
    files = [memory(4096), memory(65_536), wakeup.fileno()]
    send(line, message(OPEN, open_body()), files)
    # The daemon holds the last copy, and closes it when the program of the endpoint ends.
    wakeup.close()
    time.sleep(0.5)
    line.close()
    time.sleep(0.5)
    KEPT.extend([mine, other, listener])
    return "handed over"


def noise(where):
    refused = 0
    for number in range(30_000):
        line = channel(where)
        try:
            line.send(random.randbytes(20) if number % 2 else message(77))
        except OSError:
            refused += 1
        line.close()
    return f"{refused} refused"


def programs(where):
    count = 0
    for _ in range(20_000):
        try:
            line, kind = greeted(where)
        except OSError:
            break
        if kind == REFUSED:
            break
        KEPT.append(line)
        count += 1
    return f"{count} programs"


def offers(where):
    line, _ = greeted(where)
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    count, lane = 0, memory()
    for token in range(20_000):
        one = socket.create_connection(listener.getsockname())
        other = listener.accept()[0]
        offer = message(OFFER, struct.pack("<QBIB", token, ACCEPTED, 3, 0))
        send(line, offer, [other.fileno(), lane])
        if token % 64 == 63 and select.select([line], [], [], 0)[0]:
            # An offer with a lane is answered only when it is refused.
            count += 1
            break
        KEPT.extend([one, other])
        count += 1
    time.sleep(0.2)
    while select.select([line], [], [], 0)[0]:
        count -= kind_of(line.recv(4096)) == REFUSED
    KEPT.append(line)
    return f"{count} offers"


def endpoints(where):
    count = 0
    line, _ = greeted(where)
    while True:
        status, _, wakeup = opened(line)
        if status != DONE:
            assert status == EXHAUSTED, status
            break
        KEPT.append(wakeup)
        count += 1
    KEPT.append(line)
    return f"{count} endpoints"


def flood(where, packet, lines):
    def ask():
        while True:
            try:
                line = channel(where)
                while True:
                    line.send(packet)
            except OSError:
                time.sleep(0.001)

    for _ in range(lines):
        threading.Thread(target=ask, daemon=True).start()
    time.sleep(0.3)
    return "asking"


def spy(where):
    """Tries to reach another user's endpoints. Every attempt must fail."""
    line, _ = greeted(where)
    status, own, wakeup = opened(line)
    assert status == DONE, status
    seen = set()
    for vpid in range(256):
        if vpid == own:
            continue
        send(line, message(CONNECT, struct.pack("<IHIH", 1, own, 0, vpid)), [memory()])
        seen.add(("connect", reply(line)[0]))
        for slot in range(4):
            for generation in range(3):
                resolve = struct.pack("<IHHHI", 1, own, vpid, slot, generation)
                send(line, message(RESOLVE, resolve))
                seen.add(("resolve", reply(line)[0]))
        # Poses as the owner of the other endpoint.
        # Its memory is a file, or in place.
        for in_place, files in ((0, [memory()]), (1, [])):
            publish = struct.pack("<IHHIBBQQHQ", 1, vpid, 0, 1, 1, in_place, 4096, 4096, 0xFFFF, 0)
            send(line, message(PUBLISH, publish), files)
            seen.add(("publish", reply(line)[0]))
    for user in (0, 1, 65_534, 54_321):
        if user != os.getuid():
            # The lowest 32 bits of a partition are its user.
            seen.add(("partition", opened(line, flags=2, partition=user)[0]))
            seen.add(("offer", opened(line, flags=10, partition=1 << 32 | user, name=b"x")[0]))
    # Names and tickets that nobody gave.
    for guess in range(20):
        seen.add(("service", opened(line, flags=16, name=b"service-%d" % guess)[0]))
        seen.add(("invitation", opened(line, flags=32, invitation=random.randbytes(16))[0]))
    members = message(ASK_MEMBERS, struct.pack("<IHB", 1, own, 63))
    line.send(members)
    packet = line.recv(4096)
    assert kind_of(packet) == MEMBERS, packet
    words = struct.unpack_from("<64Q", packet, 12)
    seen.add(("members", sum(bin(word).count("1") for word in words)))
    # Asks for the lane of another connection: a socket only identifies its own connection.
    one, other, listener = connection()
    send(line, message(JOIN, struct.pack("<Q", 9)), [one.fileno()])
    seen.add(("join", kind_of(line.recv(4096))))
    KEPT.extend([line, wakeup])
    return " ".join(f"{what}:{number}" for what, number in sorted(seen))


def arbitrary(where, seconds=3.0):
    chance = random.Random(7)
    one, other, listener = connection()
    files = [one.fileno(), listener.fileno(), memory(), memory(20_480), 0, 1]
    files += [os.open("/dev/null", os.O_RDWR), os.open("/", os.O_RDONLY), *os.pipe()]
    sent, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        line = channel(where)
        line.settimeout(0.1)
        try:
            for _ in range(chance.randrange(20)):
                body = chance.randbytes(chance.choice([0, 4, 8, 13, 26, 40, chance.randrange(200)]))
                packet = message(chance.randrange(66), body)
                if chance.random() < 0.1:
                    packet = chance.randbytes(chance.randrange(64))
                given = chance.choices(files, k=chance.choice([0, 0, 1, 1, 2, 3, 4, 8]))
                send(line, packet, given)
                sent += 1
                if chance.random() < 0.3:
                    line.recvmsg(4096, socket.CMSG_SPACE(64))
        except OSError:
            pass
        line.close()
    return f"{'many' if sent > 500 else sent} packets"


KEPT = []
MANNERS = {
    "linger": linger,
    "refused": refused,
    "wakeups": wakeups,
    "noise": noise,
    "programs": programs,
    "offers": offers,
    "endpoints": endpoints,
    "statuses": lambda where: flood(where, message(STATUS), 16),
    "deaf": lambda where: flood(where, message(HELLO, struct.pack("<IH", 1, 4) + b"evil"), 16),
    "spy": spy,
    "random": arbitrary,
}


def main():
    manner, where, *user = sys.argv[1:]
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    print("result:", fuse(where, *user) if manner == "fuse" else MANNERS[manner](where), flush=True)
    while True:
        time.sleep(60)


main()
