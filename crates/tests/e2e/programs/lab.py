"""A lab of a few nodes, used as its users do: lab.py WEFT CASE runs a case from outside the lab.

lab.py in ROLE ARGUMENT... is the program that runs in a node.
"""

import contextlib
import hashlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

NODES = 3
MTU = 1500
TYPE = 0x88B5  # For experiments (IEEE 802).
GROUP = "239.1.2.3"
PORT = 5000
LIMIT = 150
# For how many seconds a packet may be on its way on a busy machine. Nobody sends it again.
BUSY = 20
# The default is twelve seconds: hosts of users may have joined groups before the daemon began.
LEARN_MS = 1000


def mac(node):
    return bytes([0x2E, 0x87, 0x04, 0x07, node >> 8, node & 255])


# --- in a node -----------------------------------------------------------------------------------


def raw():
    """A packet socket for frames of an experimental type."""
    frames = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(TYPE))
    frames.bind(("weft0", TYPE))
    frames.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
    frames.settimeout(5)
    return frames


def contents(size):
    return bytes((place * 7 + size) % 256 for place in range(size))


def frame_of(to, source, size):
    """A frame of `size` bytes, counted with its check sequence, which is never sent."""
    header = to + source + struct.pack("!H", TYPE)
    return header + contents(size - 4 - len(header))


def frames_come():
    frames = raw()
    say("ready")
    for size in range(60, MTU + 18 + 1):
        came = frames.recv(1 << 16)
        assert came == frame_of(mac(1), mac(0), size), f"{size}: {len(came)} came"
    say("all")


def frames_go():
    frames = raw()
    for size in range(60, MTU + 18 + 1):
        frames.send(frame_of(mac(1), mac(0), size))


def forge():
    """Sends one frame with the address of node 2, and one with the right address."""
    frames = raw()
    frames.send(frame_of(mac(1), mac(2), 100))
    frames.send(frame_of(mac(1), mac(0), 101))


def one_comes():
    frames = raw()
    say("ready")
    say(str(len(frames.recv(1 << 16)) + 4))


def stream_comes():
    listener = socket.create_server(("::", PORT), family=socket.AF_INET6, dualstack_ipv6=True)
    say("ready")
    connection = listener.accept()[0]
    digest = hashlib.sha256()
    while part := connection.recv(1 << 20):
        digest.update(part)
    say(digest.hexdigest())


def counted_comes(file):
    """As `stream_comes`, and keeps the number of bytes in a file."""
    listener = socket.create_server(("", PORT))
    say("ready")
    connection = listener.accept()[0]
    digest, count = hashlib.sha256(), 0
    with open(file, "wb", buffering=0) as told:
        while part := connection.recv(1 << 20):
            digest.update(part)
            count += len(part)
            os.pwrite(told.fileno(), count.to_bytes(8, "little"), 0)
    say(digest.hexdigest())


def stream_goes(host, megabytes, pause, until=""):
    """Sends so much, and goes on until there is a file `until`."""
    connection = socket.create_connection((host, PORT))
    say("ready")
    digest = hashlib.sha256()
    number = 0
    while number < int(megabytes) or until and not os.path.exists(until):
        part = number.to_bytes(8, "big") * (1 << 17)
        number += 1
        connection.sendall(part)
        digest.update(part)
        time.sleep(float(pause))
    say(digest.hexdigest())


def calls_go():
    """Sends a broadcast every millisecond, until it is killed."""
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    say("ready")
    while True:
        # Without a link there may be no route.
        with contextlib.suppress(OSError):
            datagrams.sendto(b"who?", ("10.77.255.255", PORT))
        time.sleep(0.001)


def calls_come(host):
    """Counts the datagrams from `host` until it is interrupted."""
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind(("", PORT))
    datagrams.settimeout(LIMIT)
    # A program that a shell starts in the background ignores SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    say("ready")
    count = 0
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            count += datagrams.recvfrom(2000)[1][0] == host
    say(count)


def numbers_come(count):
    """Checks that numbered datagrams arrive once and in order; acknowledges some of them."""
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind(("", PORT))
    datagrams.settimeout(10)
    say("ready")
    for number in range(int(count)):
        data, sender = datagrams.recvfrom(2000)
        assert int.from_bytes(data[:8], "big") == number, f"{data[:8].hex()} where {number} is due"
        if number % 64 == 0:
            datagrams.sendto(b"more", sender)
    say("all")


def numbers_go(host, count):
    """Sends numbered datagrams; the first alone, as others would overtake it while ARP resolves."""
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.connect((host, PORT))
    datagrams.settimeout(10)
    for number in range(int(count)):
        datagrams.send(number.to_bytes(8, "big") + bytes(number % 1400))
        if number % 64 == 0:
            datagrams.recv(100)


def group_comes(address):
    """Counts the datagrams to a broadcast address or a group, until none comes for two seconds."""
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    datagrams.bind(("", PORT))
    if address == GROUP:
        own = socket.gethostbyname(socket.gethostname())
        membership = socket.inet_aton(GROUP) + socket.inet_aton(own)
        datagrams.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
    say("ready")
    count = 0
    datagrams.settimeout(30)
    try:
        while True:
            datagrams.recv(100)
            count += 1
            datagrams.settimeout(2)
    except socket.timeout:
        say(str(count))


def group_goes(address, count):
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    own = socket.gethostbyname(socket.gethostname())
    datagrams.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(own))
    datagrams.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 0)
    for _ in range(int(count)):
        datagrams.sendto(b"x" * 50, (address, PORT))


def say(text):
    print(text, flush=True)


# --- outside -------------------------------------------------------------------------------------


def weft(*arguments, check=True):
    command = [WEFT, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    if check and ended.returncode != 0:
        sys.exit(f"{' '.join(command)}: {ended.returncode} {ended.stdout}{ended.stderr}")
    return ended


def wait_for(is_so):
    ends = time.monotonic() + LIMIT
    while not is_so():
        assert time.monotonic() < ends, "it does not become so"
        time.sleep(0.02)


class Role:
    """A program that runs in a node."""

    def __init__(self, node, *role, under=()):
        script = [sys.executable, os.path.abspath(__file__), "in", *map(str, role)]
        command = [WEFT, "lab", "exec", f"n{node}", "--", *under, *script]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def line(self):
        return self.process.stdout.readline().strip()

    def ready(self):
        assert self.line() == "ready"
        return self

    def end(self):
        """The last word that the program printed."""
        printed = self.process.communicate(timeout=LIMIT)[0].split()
        assert self.process.returncode == 0, f"ended with {self.process.returncode}"
        return printed[-1] if printed else ""


def devices():
    return json.loads(weft("lab", "status", "--json").stdout)


def every_size():
    receiver = Role(1, "frames_come").ready()
    Role(0, "frames_go").end()
    assert receiver.end() == "all"


def streams():
    for sender, receiver, host in ((0, 1, "n1"), (2, 0, "10.77.0.1"), (1, 2, "fd77::3")):
        listening = Role(receiver, "stream_comes").ready()
        sent = Role(sender, "stream_goes", host, 200, 0).end()
        assert listening.end() == sent


def direct():
    """Programs under weft bypass the device, although each is in its own network namespace."""
    under = [WEFT, "run", "--"]
    receiver = Role(1, "stream_comes", under=under).ready()
    sender = Role(0, "stream_goes", "n1", 100, 0.02, under=under)
    ends = time.monotonic() + 10
    moved = 0
    while moved < 10 << 20:
        assert time.monotonic() < ends, f"{moved} bytes went over the fabric"
        connections = json.loads(weft("status", "--node", "lab", "--json").stdout)["connections"]
        moved = sum(connection["bytes_from_client"] for connection in connections)
    assert receiver.end() == sender.end()
    passed = devices()[0]["sent_bytes"]
    assert passed < 50 << 20, f"{passed} bytes went over the device"


def datagrams():
    count = 200_000
    receiver = Role(2, "numbers_come", count).ready()
    Role(0, "numbers_go", "n2", count).end()
    assert receiver.end() == "all"


def broadcasts():
    receivers = [Role(node, "group_comes", "10.77.255.255").ready() for node in (1, 2)]
    Role(0, "group_goes", "10.77.255.255", 20).end()
    assert [receiver.end() for receiver in receivers] == ["20", "20"]


def learned():
    """Waits until a daemon that was just started has learned which node wants which group."""
    time.sleep(LEARN_MS / 1000 + 0.5)


def groups():
    """After the daemon has learned the memberships, only members get the packets of a group."""
    learned()
    member = Role(1, "group_comes", GROUP).ready()
    time.sleep(1.5)
    before = devices()[2]
    Role(0, "group_goes", GROUP, 50).end()
    assert member.end() == "50"
    after = devices()[2]
    extra = after["received"] + after["unwanted"] - before["received"] - before["unwanted"]
    assert extra < 20, f"{extra} packets came to who wants none of the 50"
    assert any(group[0] == "01:00:5e:01:02:03" for group in devices()[0]["groups"])


def forgeries():
    receiver = Role(1, "one_comes").ready()
    before = devices()[0]["refused"]
    Role(0, "forge").end()
    assert receiver.end() == "101"
    assert devices()[0]["refused"] == before + 1


def daemon_dies():
    """A connection survives a daemon that is killed during its traffic."""
    receiver = Role(1, "stream_comes").ready()
    sender = Role(0, "stream_goes", "n1", 60, 0.05).ready()
    time.sleep(0.5)
    socket_path = "/run/weft/lab.sock"
    status = json.loads(weft("status", "--node", "lab", "--json").stdout)
    os.kill(status["pid"], signal.SIGKILL)
    time.sleep(0.3)
    assert os.path.exists(socket_path)
    weft("lab", "up", "--nodes", str(NODES), "--mtu", str(MTU))
    assert receiver.end() == sender.end()


def again():
    """A second `up` changes nothing; another size is refused; foreign namespaces stay untouched."""
    before = devices()[0]["mac"]
    weft("lab", "up", "--nodes", str(NODES), "--mtu", str(MTU))
    assert devices()[0]["mac"] == before
    refused = weft("lab", "up", "--nodes", "2", check=False)
    assert refused.returncode == 1 and "weft lab down" in refused.stderr, refused.stderr
    weft("lab", "down")
    weft("lab", "down")
    assert not any(name.startswith("weft-n") for name in os.listdir("/run/netns"))
    others = "/run/netns/weft-n1"
    with open(others, "x", encoding="ascii"):
        pass
    try:
        refused = weft("lab", "up", "--nodes", "2", check=False)
        assert refused.returncode == 1 and "weft-n1" in refused.stderr, refused.stderr
        assert os.path.exists(others)
    finally:
        os.unlink(others)
    missing = weft("lab", "exec", "n0", "--", "true", check=False)
    assert missing.returncode == 125 and "weft lab up" in missing.stderr, missing.stderr


def interrupted():
    """`down` removes and `up` completes what a lab left when it was killed at any moment."""
    up = ["lab", "up", "--nodes", str(NODES)]
    weft("lab", "down")
    start = time.monotonic()
    weft(*up)
    takes = time.monotonic() - start
    weft("lab", "down")
    rounds = 12
    for number in range(rounds):
        with open("/run/weft/lab.new", "w", encoding="ascii") as half:
            half.write("{")
        begun = subprocess.Popen([WEFT, *up], stderr=subprocess.DEVNULL)
        time.sleep(takes * number / rounds)
        begun.kill()
        begun.wait()
        if number % 3 == 2:
            weft(*up)
        if number % 6 == 5:
            # `down` runs while the daemon is still dying.
            status = json.loads(weft("status", "--node", "lab", "--json").stdout)
            os.kill(status["pid"], signal.SIGKILL)
        elif number % 3 == 2:
            assert len(devices()) == NODES
            weft("lab", "exec", "n0", "--", "ping", "-q", "-c", "1", f"n{NODES - 1}")
        weft("lab", "down")
        assert not any(name.startswith("weft-n") for name in os.listdir("/run/netns"))
        left = {name for name in os.listdir("/run/weft") if name.startswith("lab.")}
        assert not left & {"lab.json", "lab.hosts", "lab.new"}, left
        ended = weft("status", "--node", "lab", check=False)
        assert ended.returncode == 1, ended.stdout


def many():
    """Most of many nodes are idle while some communicate; an idle node answers at once."""
    nodes = 48
    weft("lab", "down")
    weft("lab", "up", "--nodes", str(nodes))
    assert [len(device["peers"]) for device in devices()] == [nodes - 1] * nodes
    pairs = [(7, 40), (21, 22)]
    receivers = [Role(to, "stream_comes").ready() for _, to in pairs]
    senders = [Role(one, "stream_goes", f"n{to}", 200, 0) for one, to in pairs]
    for number in range(0, nodes, 5):
        ping = ["ping", "-4", "-q", "-c", "20", "-i", "0.002", "-W", "2", f"n{nodes - 1 - number}"]
        weft("lab", "exec", f"n{number}", "--", *ping)
    assert [receiver.end() for receiver in receivers] == [sender.end() for sender in senders]


def memberships():
    """The members of a group change; the members of the moment get every packet."""
    learned()
    for members in ((1, 2), (2, 5, 7), range(1, 8), (3,)):
        before = [device["received"] for device in devices()]
        there = [Role(node, "group_comes", GROUP).ready() for node in members]
        # The daemon learns of joins. For members that left, queries get no answer (RFC 3376 section
        # 8.8: 2 s).
        time.sleep(3)
        Role(0, "group_goes", GROUP, 100).end()
        assert [member.end() for member in there] == ["100"] * len(there)
        after = [device["received"] for device in devices()]
        others = set(range(1, 8)) - set(members)
        extra = {node: after[node] - before[node] for node in others}
        assert all(count < 50 for count in extra.values()), f"{extra} came to who wants none"


def links():
    """Packets avoid a cut link, a node without links is unreachable, and connections survive."""
    def reaches(host):
        ping = ["ping", "-4", "-q", "-c", "2", "-i", "0.2", "-W", "1", host]
        return weft("lab", "exec", "n0", "--", *ping, check=False).returncode == 0

    def carrier():
        with_link = weft("lab", "exec", "n0", "--", "cat", "/sys/class/net/weft0/carrier")
        return with_link.stdout.strip() == "1"

    def comes(*hosts):
        """On a busy machine the change may come after the command that asked for it."""
        wait_for(carrier)
        for host in hosts:
            wait_for(lambda: reaches(host))  # noqa: B023

    comes("n1")
    mended = os.path.join(tempfile.mkdtemp(), "mended")
    receiver = Role(1, "stream_comes").ready()
    sender = Role(0, "stream_goes", "n1", 20, 0.05, mended).ready()
    weft("lab", "link", "n0", "n1", "down")
    comes("n1")
    weft("lab", "link", "2", "weft-n0", "down")
    wait_for(lambda: not carrier())
    assert not reaches("n1") and not reaches("n2")
    listed = json.loads(weft("lab", "link", "--json").stdout)
    states = {(link["a"], link["b"]): link["state"] for link in listed}
    assert states == {(0, 1): "down", (0, 2): "down", (1, 2): "up"}, states
    cut = {device["node"]: device["cut_links"] for device in devices()}
    assert cut == {0: [1, 2], 1: [0], 2: [0]}, cut
    os.environ["COLUMNS"] = "200"
    told = weft("lab", "status").stdout.splitlines()
    assert [line.split()[-1] for line in told] == ["cut", "n2", "n0", "n0"], told
    # A restarted daemon applies the cut links from its first packet on.
    caller, called = Role(0, "calls_go").ready(), Role(2, "calls_come", "10.77.0.1").ready()
    status = json.loads(weft("status", "--node", "lab", "--json").stdout)
    os.kill(status["pid"], signal.SIGKILL)
    time.sleep(0.3)
    weft("lab", "up", "--nodes", str(NODES), "--mtu", str(MTU))
    assert not reaches("n2") and not carrier()
    caller.process.kill()
    caller.process.wait()
    called.process.send_signal(signal.SIGINT)
    count = called.end()
    assert count == "0", f"{count} packets crossed a link that was cut"
    weft("lab", "link", "n2", "n0", "up")
    comes("n1", "n2")
    open(mended, "w").close()
    assert receiver.end() == sender.end()
    refused = weft("lab", "link", "n0", "n7", "down", check=False)
    assert refused.returncode == 1 and "n0 to n2" in refused.stderr, refused.stderr
    weft("lab", "down")
    weft("lab", "up", "--topology", "torus:2x2x2")
    assert len(devices()) == 8
    assert len(weft("lab", "link").stdout.splitlines()) == 13
    refused = weft("lab", "link", "n0", "n7", "down", check=False)
    assert refused.returncode == 1 and "have no link" in refused.stderr, refused.stderr
    for neighbour in ("n1", "n2", "n4"):
        comes("n7")
        weft("lab", "link", "n0", neighbour, "down")
    wait_for(lambda: not reaches("n7"))
    weft("lab", "down")
    weft("lab", "up", "--nodes", "3", "--topology", "links:0-1")
    comes("n1")
    assert not reaches("n2")


def fabric(*arguments, check=True):
    return weft("fabric", *arguments, check=check)


def measure(transport, iterations):
    """The arguments of weft for a measurement from n0 to n1."""
    perf = ["perf", "latency", "--to", "0", "--transport", transport, "--runs", "1"]
    return ["lab", "exec", "n0", "--", WEFT, *perf, "--iterations", str(iterations)]


def endpoints(transport):
    """Endpoints on n0 and n1 that exchange messages, more than anybody waits for."""
    serve = [WEFT, "lab", "exec", "n1", "--", WEFT, "perf", "serve", "--transport", transport]
    server = subprocess.Popen(serve, stdout=subprocess.PIPE, text=True)
    assert "serving" in server.stdout.readline()
    command = [WEFT, *measure(transport, 40000000)]
    measured = subprocess.Popen(command, stdout=-1, stderr=-1, text=True)

    def measures():
        status = json.loads(weft("status", "--node", "lab", "--json").stdout)
        own = [one for one in status["endpoints"] if one["pid"] == measured.pid]
        return any(endpoint["peers"] > 0 for endpoint in own)

    wait_for(measures)
    # The call of the server has its own endpoint, and is over after that.
    time.sleep(0.3)
    return server, measured


def cut_off():
    """A manager leads around links that fail. Without a way, all that goes between nodes waits."""
    weft("lab", "down")
    os.environ["WEFT_FABRIC_SILENCE_MS"] = "3000"
    weft("lab", "up", "--nodes", str(NODES))
    assert "term 1, ruling" in fabric("show").stdout
    fabric("check")
    hops = lambda: len(json.loads(fabric("trace", "n0", "n1", "--json").stdout))
    assert hops() == 1
    fabric("fail", "n0-n1")
    assert hops() == 2
    listed = json.loads(weft("lab", "link", "--json").stdout)
    assert {(link["a"], link["b"]) for link in listed if link["state"] == "down"} == {(0, 1)}
    fabric("check")
    for arguments, told in [
        (["fail", "n0-n1"], "cut already"),
        (["heal", "n0-n2"], "not cut"),
        (["fail", "n0-n9"], "names no link"),
        (["fail", "n0:7"], "no link"),
        (["trace", "n0", "n9"], "n0 to n2"),
    ]:
        refused = fabric(*arguments, check=False)
        assert refused.returncode == 1 and told in refused.stderr, (arguments, refused.stderr)

    # A direct socket between n0 and n1, and endpoints, while n0 has no link.
    under = [WEFT, "run", "--"]
    came = "/run/weft-came"
    receiver = Role(1, "counted_comes", came, under=under).ready()
    sender = Role(0, "stream_goes", "n1", 100, 0.02, under=under).ready()

    def on_fabric():
        connections = json.loads(weft("status", "--node", "lab", "--json").stdout)["connections"]
        return sum(connection["bytes_from_client"] for connection in connections)

    def count():
        with open(came, "rb") as file:
            return int.from_bytes(file.read(8), "little")

    wait_for(lambda: on_fabric() > 10 << 20)
    fabric("fail", "n0-n2")
    assert fabric("trace", "n0", "n1", check=False).returncode == 1
    assert fabric("check", check=False).returncode == 1
    parts = json.loads(fabric("check", "--json", check=False).stdout)
    assert sorted(part["part"] for part in parts) == [["n0"], ["n1", "n2"]], parts
    for part in parts:
        inside = len(part["part"])
        assert part["routed_pairs"] == inside * (inside - 1), part
        assert part["unrouted_pairs"] == inside * (NODES - inside), part
        assert part["broadcast"] == inside, part
    # Bytes that were there before are still read.
    time.sleep(0.3)
    still = count()
    time.sleep(0.7)
    assert count() == still, f"{count() - still} bytes crossed a link that was cut"
    assert sender.process.poll() is None
    fabric("heal", "n0-n2")
    assert receiver.end() == sender.end()
    # Endpoints live through a short cut.
    server, measured = endpoints("shm")
    fabric("fail", "n0-n2")
    time.sleep(0.5)
    fabric("heal", "n0-n2")
    assert measured.poll() is None, measured.communicate()
    long_cut("shm", server, measured)


def long_cut(transport, server, measured):
    """Endpoints are told of the end of their peer after the silence. Then others meet."""
    fabric("fail", "n0-n2")
    told = measured.communicate(timeout=LIMIT)[1]
    assert measured.returncode == 1 and "is gone" in told and server.poll() is None, told
    fabric("heal", "n0-n2")
    again = weft(*measure(transport, 100))
    assert "latency" in again.stdout, again.stdout
    server.kill()
    server.wait()


def cut_off_over_libfabric():
    """Endpoints that meet at ports of libfabric wait while no way leads to their peer."""
    weft("lab", "down")
    os.environ["WEFT_FABRIC_SILENCE_MS"] = "4000"
    weft("lab", "up", "--nodes", str(NODES))
    fabric("fail", "n0-n1")
    server, measured = endpoints("ofi")
    came = lambda: devices()[1]["received"]

    def goes_on():
        before = came()
        wait_for(lambda: came() > before + 1000)

    # Their bytes go over the devices of their nodes.
    goes_on()
    fabric("fail", "n0-n2")
    still = came()
    time.sleep(1.5)
    assert came() < still + 10, f"{came() - still} packets came over a link that was cut"
    assert measured.poll() is None, measured.communicate()
    fabric("heal", "n0-n2")
    goes_on()
    assert measured.poll() is None, measured.communicate()
    long_cut("ofi", server, measured)


def daemons():
    """Devices of two daemons meet at a third one, and meet again after any of them was killed."""
    names = ("weft-e2e-a", "weft-e2e-b", "weft-e2e-c")
    segment = "/run/weft/e2e-segment.sock"

    def start(number):
        name = names[number]
        device = f"{number},netns={name},segment={segment}"
        weft("daemon", "--node", name, "--background", "--device", device)
        address = ["ip", "-n", name, "addr", "add", f"10.79.0.{number + 1}/24", "dev", "weft0"]
        subprocess.run(address, check=True)

    def kill(name):
        pid = json.loads(weft("status", "--node", name, "--json").stdout)["pid"]
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: weft("status", "--node", name, check=False).returncode != 0)

    def reaches(host="10.79.0.2", within=1):
        ping = ["ping", "-q", "-c", "1", "-W", str(within), host]
        command = ["ip", "netns", "exec", names[0], *ping]
        return subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode == 0

    try:
        weft("daemon", "--node", "e2e-segment", "--background")
        for number, name in enumerate(names):
            subprocess.run(["ip", "netns", "add", name], check=True)
            start(number)
        wait_for(reaches)
        kill(names[1])
        wait_for(lambda: not reaches())
        start(1)
        wait_for(reaches)
        # A stopped daemon does not delay other nodes, even when many packets wait for it.
        wait_for(lambda: reaches("10.79.0.3"))
        pid = json.loads(weft("status", "--node", names[1], "--json").stdout)["pid"]
        os.kill(pid, signal.SIGSTOP)
        send = "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        send += "for _ in range(2000): s.sendto(bytes(1000), ('10.79.0.2', 9))"
        command = ["ip", "netns", "exec", names[0], sys.executable, "-c", send]
        try:
            subprocess.run(command, check=True, timeout=LIMIT)
            # These are more packets than are kept for the node; in the end the peer is given up.
            wait_for(lambda: reaches("10.79.0.3"))
            # On a busy machine an answer may be late, and must come all the same.
            assert all(reaches("10.79.0.3", BUSY) for _ in range(20)) and not reaches()
        finally:
            os.kill(pid, signal.SIGCONT)
        wait_for(reaches)
        kill("e2e-segment")
        assert all(reaches(within=BUSY) for _ in range(20))
        weft("daemon", "--node", "e2e-segment", "--background")
        kill(names[1])
        start(1)
        wait_for(reaches)
    finally:
        for name in (*names, "e2e-segment"):
            weft("down", "--node", name, check=False)
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False)


def missing():
    """A missing requirement is named, and nothing is left behind."""
    weft("lab", "down")
    without = ["setpriv", "--inh-caps", "-net_admin", "--bounding-set", "-net_admin"]
    no_tun = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none /dev/net && exec "$@"', "sh"]
    for start, named in ((without, "CAP_NET_ADMIN"), (no_tun, "/dev/net/tun")):
        command = [*start, WEFT, "lab", "up"]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
        assert ended.returncode == 1 and named in ended.stderr, ended.stderr
        assert not any(name.startswith("weft-n") for name in os.listdir("/run/netns"))
        assert "no lab is up" in weft("lab", "status", check=False).stderr


def case(cases, mtu=MTU):
    """Runs the case that the command line names, in its own lab."""
    nodes = 8 if sys.argv[2] == "memberships" else NODES
    weft("lab", "up", "--nodes", str(nodes), "--mtu", str(mtu))
    try:
        cases[sys.argv[2]]()
    finally:
        weft("lab", "down", check=False)
    say("all of it")


WEFT = sys.argv[1]
# Variables of the tests, of which weft would warn.
for variable in ("WEFT_BIN", *(name for name in os.environ if name.startswith("WEFT_E2E_"))):
    os.environ.pop(variable, None)
os.environ["WEFT_ETHER_LEARN_MS"] = str(LEARN_MS)
# Daemons measure no copies, which keeps both processors busy.
os.environ["WEFT_SHM_COPY"] = "nontemporal"

if __name__ == "__main__":
    if WEFT == "in":
        globals()[sys.argv[2]](*sys.argv[3:])
    else:
        case(globals())
