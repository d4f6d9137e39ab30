"""A lab as the tools of its users see it: lab_tools.py WEFT CASE runs a case from outside."""

import json
import os
import re
import signal
import subprocess
import tempfile
import threading
import time

import lab

MTU_MAX = 65520
# A network namespace beside those of the lab, with one interface of a veth pair.
HOST = "weft-e2e-host"


def tool(node, *command, check=True, limit=60):
    """Runs `command` in a node and returns its output."""
    command = [lab.WEFT, "lab", "exec", f"n{node}", "--", *map(str, command)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    printed = ended.stdout + ended.stderr
    assert ended.returncode == 0 or not check, f"{command}: {ended.returncode} {printed}"
    return printed


class Running:
    """A program that runs in a node until the end of the `with` block."""

    def __init__(self, node, *command):
        command = [lab.WEFT, "lab", "exec", f"n{node}", "--", *map(str, command)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdout=pipe, stderr=subprocess.STDOUT, text=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()

    def until(self, text, within=60):
        """The output up to `text`. Kills a program that does not print it within the limit."""
        printed = ""
        timer = threading.Timer(within, self.process.kill)
        timer.start()
        try:
            for line in self.process.stdout:
                printed += line
                if text in line:
                    return printed
        finally:
            timer.cancel()
        raise AssertionError(f"no {text!r} within {within} s in {printed!r}")

    def rest(self):
        return self.process.communicate(timeout=60)[0]


def outside(*command):
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


def soon(what, within=60):
    """Repeats `what` until its result is true, and returns the result."""
    ends = time.monotonic() + within
    while not (found := what()):
        assert time.monotonic() < ends, f"not within {within} s"
        time.sleep(0.1)
    return found


def counters(node):
    link = json.loads(tool(node, "ip", "-s", "-j", "link", "show", "weft0"))[0]
    return link["stats64"]["tx"], link["stats64"]["rx"]


def settled(node):
    """The counters of a node when no more packets arrive."""
    ends = time.monotonic() + 60
    while (before := counters(node)) != (time.sleep(0.3), counters(node))[1]:
        assert time.monotonic() < ends, "something comes for ever"
    return before


def pings():
    printed = tool(0, "ping", "-4", "-f", "-q", "-c", 20000, "n1")
    assert " 20000 received" in printed, printed
    printed = tool(1, "ping", "-6", "-f", "-q", "-c", 5000, "fd77::3")
    assert " 5000 received" in printed, printed
    # The largest IPv4 packets, which are fragmented.
    printed = tool(2, "ping", "-4", "-q", "-c", 3, "-s", 65507, "n0")
    assert " 3 received" in printed, printed


def neighbours():
    printed = tool(0, "arping", "-c", 3, "-I", "weft0", "10.77.0.2").lower()
    assert "2e:87:04:07:00:01" in printed, printed
    printed = tool(0, "arping", "-c", 2, "-w", 2, "-I", "weft0", "10.77.0.77", check=False)
    assert "2e:87" not in printed.lower(), printed
    printed = tool(2, "ndisc6", "-1", "fd77::2", "weft0").lower()
    assert "2e:87:04:07:00:01" in printed, printed
    printed = tool(2, "ip", "-6", "addr", "show", "weft0")
    assert "fe80::2c87:4ff:fe07:2/64" in printed, printed


def dhcp_and_slaac():
    tool(0, "ip", "addr", "add", "fd78::1/64", "dev", "weft0", "nodad")
    with tempfile.TemporaryDirectory() as directory:
        server = ["dnsmasq", "--no-daemon", "--conf-file=/dev/null", "--port=0", "--user=root"]
        server += ["--interface=weft0", "--bind-interfaces", "--enable-ra"]
        server += ["--dhcp-range=10.77.9.10,10.77.9.20,255.255.0.0,1h"]
        server += ["--dhcp-range=fd78::,ra-only,64", f"--dhcp-leasefile={directory}/leases"]
        server += [f"--pid-file={directory}/pid"]
        with Running(0, *server) as running:
            running.until("DHCP, IP range")
            lease = ["udhcpc", "-i", "weft0", "-n", "-q", "-f", "-s", "/bin/true"]
            printed = tool(2, *lease)
            assert re.search(r"lease of 10\.77\.9\.\d+ obtained", printed), printed
            printed = tool(1, "rdisc6", "-1", "weft0")
            assert "fd78::/64" in printed, printed
            address = "fd78::2c87:4ff:fe07:2"
            soon(lambda: address in tool(2, "ip", "-6", "addr", "show", "weft0"))
            printed = tool(1, "ping", "-6", "-c", 2, "-i", 0.2, address)
            assert " 2 received" in printed, printed


def captures():
    """What tcpdump captures: VLAN tags, and a frame to an address that no host has."""
    frame = "ff ff ff ff ff ff 2e 87 04 07 00 00 "
    frames = {
        "vlan 5, p 3": frame + "81 00 60 05 88 b5 ",
        "vlan 7, p 0": frame + "88 a8 00 07 81 00 00 05 88 b5 ",
        "02:00:00:00:00:99": "02 00 00 00 00 99 2e 87 04 07 00 00 88 b5 ",
    }
    send = "import socket, sys; s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW); "
    send += "s.bind(('weft0', 0)); s.send(bytes.fromhex(sys.argv[1]))"
    for expected, header in frames.items():
        others = "ether src 2e:87:04:07:00:00 and not (ip or ip6 or arp)"
        with Running(1, "tcpdump", "-l", "-e", "-n", "-i", "weft0", "-c", 1, others) as capture:
            capture.until("listening")
            tool(0, "python3", "-c", send, header + "11 " * 60)
            printed = capture.rest()
            assert expected in printed, printed


def mtus():
    """The MTU can be changed at run time; no packet is too long for the next MTU."""
    for mtu in (9000, 1500, 576, 3333, MTU_MAX):
        for node in (0, 1):
            tool(node, "ip", "link", "set", "weft0", "mtu", mtu)
        fits, longer = mtu - 28, mtu - 27
        printed = tool(0, "ping", "-4", "-M", "do", "-c", 2, "-i", 0.1, "-s", fits, "n1")
        assert " 2 received" in printed, printed
        printed = tool(0, "ping", "-4", "-M", "do", "-c", 1, "-s", longer, "n1", check=False)
        assert f"mtu={mtu}" in printed.replace(" ", ""), printed
    refused = tool(0, "ip", "link", "set", "weft0", "mtu", 65536, check=False)
    assert "mtu greater than device maximum" in refused, refused


def carrier():
    """The link is up while a daemon serves the device."""
    def link():
        return "Link detected: yes" in tool(1, "ethtool", "weft0")

    printed = tool(1, "ethtool", "-k", "weft0")
    for feature in ("tcp-segmentation-offload: on", "tx-checksumming: on", "scatter-gather: on"):
        assert feature in printed, printed
    assert link()
    status = json.loads(lab.weft("status", "--node", "lab", "--json").stdout)
    os.kill(status["pid"], signal.SIGKILL)
    soon(lambda: not link())
    lab.weft("lab", "up", "--nodes", str(lab.NODES), "--mtu", str(lab.MTU))
    assert link()


def statistics():
    """The kernel and the daemon count every frame once, at both ends."""
    tool(1, "nft", "add table inet t; add chain inet t c { type filter hook input priority 0; }")
    tool(1, "nft", "add rule inet t c ip protocol icmp counter")
    tool(0, "ping", "-4", "-f", "-q", "-c", 1000, "n1")
    printed = tool(1, "nft", "list", "ruleset")
    assert "counter packets 1000 " in printed, printed
    for node in (0, 1):
        soon(lambda node=node: agree(node))


def agree(node):
    device = lab.devices()[node]
    sent, received = counters(node)
    offloads = 12 * device["sent"]
    return (
        (sent["packets"], sent["bytes"] + offloads) == (device["sent"], device["sent_bytes"])
        and received["packets"] == device["received"]
        and sent["dropped"] == sent["errors"] == received["dropped"] == received["errors"] == 0
    )


def queues():
    """Flows spread over the queues and stay in order; the other policies do as documented."""
    lab.weft("lab", "down")
    os.environ.update(WEFT_ETHER_QUEUES="3", WEFT_ETHER_LOOPS="2")
    for steering in ("processor", "round-robin", "flow"):
        os.environ["WEFT_ETHER_STEERING"] = steering
        lab.weft("lab", "up", "--nodes", "2")
        before = sent_by_queue(0)
        tool(0, "taskset", "-c", 0, "ping", "-4", "-f", "-q", "-c", 600, "n1")
        sent = [after - one for after, one in zip(sent_by_queue(0), before, strict=True)]
        if steering == "round-robin":
            assert min(sent) > 190, sent
        else:
            assert max(sent) > 590, f"{steering}: {sent}"
        with Running(1, "iperf3", "-s", "-1", "--forceflush") as server:
            server.until("Server listening")
            amount = "200M" if steering == "flow" else "20M"
            tool(0, "iperf3", "-c", "n1", "-P", 16, "-n", amount)
        if steering == "flow":
            assert min(sent_by_queue(0)) > 100 and min(sent_by_queue(1)) > 100
            receiver = lab.Role(1, "numbers_come", 100_000).ready()
            lab.Role(0, "numbers_go", "n1", 100_000).end()
            assert receiver.end() == "all"
            one_where_several_were()
        lab.weft("lab", "down")


def sent_by_queue(node):
    return [queue["sent"] for queue in lab.devices()[node]["queues"]]


def one_where_several_were():
    """The interfaces stay when their daemon dies; a daemon with other options names the
    conflict."""
    pid = json.loads(lab.weft("status", "--node", "lab", "--json").stdout)["pid"]
    os.kill(pid, signal.SIGKILL)
    os.environ["WEFT_ETHER_QUEUES"] = "1"
    ended = lab.weft("lab", "up", "--nodes", "2", check=False)
    assert ended.returncode != 0 and "ether.queues" in ended.stderr, ended.stderr


def bridged():
    """A host behind a bridge of node 1 is reached, and is found again behind node 2."""
    outside("ip", "netns", "add", HOST)
    for node in (1, 2):
        tool(node, "ip", "link", "add", "br0", "type", "bridge")
        tool(node, "ip", "link", "set", "weft0", "master", "br0")
        tool(node, "ip", "link", "set", "br0", "up")
    for node in (1, 2):
        peer = ["peer", "name", "e0", "netns", HOST, "address", "02:00:00:00:00:07"]
        tool(node, "ip", "link", "add", "port0", "type", "veth", *peer)
        tool(node, "ip", "link", "set", "port0", "master", "br0", "up")
        outside("ip", "-n", HOST, "addr", "add", "10.77.5.1/16", "dev", "e0")
        outside("ip", "-n", HOST, "link", "set", "e0", "up")
        announce = ["ip", "netns", "exec", HOST, "arping", "-q", "-U", "-c", "3", "-i", "e0"]
        # arping fails when no host answers.
        subprocess.run([*announce, "10.77.5.1"], check=False)
        printed = tool(0, "ping", "-c", 5, "-i", 0.2, "10.77.5.1")
        assert " 5 received" in printed, printed
        addresses = [list(address[:3]) for address in lab.devices()[0]["addresses"]]
        assert ["02:00:00:00:00:07", 0, node] in addresses, addresses
        printed = tool(node, "bridge", "fdb", "show", "br", "br0")
        assert "2e:87:04:07:00:00 dev weft0" in printed, printed
        # The interface goes away with its peer.
        outside("ip", "-n", HOST, "link", "del", "e0")


def gateway():
    """Node 1 routes to a network whose interface has no offloads and a smaller MTU."""
    outside("ip", "netns", "add", HOST)
    tool(1, "ip", "link", "add", "out0", "type", "veth", "peer", "name", "e0", "netns", HOST)
    tool(1, "ip", "addr", "add", "10.99.0.1/24", "dev", "out0")
    tool(1, "ip", "link", "set", "out0", "mtu", "1400", "up")
    tool(1, "sysctl", "-q", "-w", "net.ipv4.ip_forward=1")
    inside = ["ip", "netns", "exec", HOST]
    outside("ip", "-n", HOST, "addr", "add", "10.99.0.2/24", "dev", "e0")
    outside("ip", "-n", HOST, "link", "set", "e0", "mtu", "1400", "up")
    outside("ip", "-n", HOST, "route", "add", "default", "via", "10.99.0.1")
    for offload in ("tso", "gso", "tx"):
        tool(1, "ethtool", "-K", "out0", offload, "off")
        outside(*inside, "ethtool", "-K", "e0", offload, "off")
    # Incoming packets are merged.
    tool(1, "ethtool", "-K", "out0", "gro", "on")
    tool(0, "ip", "route", "add", "10.99.0.0/24", "via", "10.77.0.2")
    rules = "add table netdev t; add chain netdev t c "
    rules += "{ type filter hook ingress device e0 priority 0; }; "
    rules += "add rule netdev t c meta length > 1400 counter"
    outside(*inside, "nft", rules)

    printed = tool(0, "ping", "-c", 1, "-M", "do", "-s", 2000, "10.99.0.2", check=False)
    assert "mtu = 1400" in printed, printed
    assert "mtu 1400" in tool(0, "ip", "route", "get", "10.99.0.2")
    with subprocess.Popen([*inside, "iperf3", "-s"], stdout=subprocess.DEVNULL) as server:
        try:
            soon(lambda: "10.99.0.2" in tool(0, "iperf3", "-c", "10.99.0.2", "-t", 2, check=False))
            before = lab.devices()[0]
            tool(0, "iperf3", "-c", "10.99.0.2", "-t", 2, "-R")
            after = lab.devices()[0]
            tool(0, "iperf3", "-c", "10.99.0.2", "-u", "-b", "100M", "-l", 1300, "-t", 1)
        finally:
            server.kill()
    packets = after["received"] - before["received"]
    average = (after["received_bytes"] - before["received_bytes"]) / packets
    assert average > 3000, f"packets of {average} bytes came in"
    printed = subprocess.check_output([*inside, "nft", "list", "ruleset"], text=True)
    assert "counter packets 0 " in printed, printed
    printed = subprocess.check_output([*inside, "nstat", "-asz", "*InCsumErrors"], text=True)
    assert re.findall(r"InCsumErrors +(\d+)", printed) and not re.findall(
        r"InCsumErrors +[1-9]", printed
    ), printed


def floods(paced=False):
    """A flood loses no packet that the device accepted."""
    for node, hook in ((0, "egress"), (1, "ingress")):
        chain = f"add chain netdev t c {{ type filter hook {hook} device weft0 priority 0; }}"
        way = "ether saddr 2e:87:04:07:00:00 ether daddr 2e:87:04:07:00:01"
        rule = f"add rule netdev t c {way} counter"
        tool(node, "nft", f"add table netdev t; {chain}; {rule}")

    def lost():
        """How many packets to node 1 were lost, not counting those that its own device dropped."""
        gone, come = (
            int(re.search(r"counter packets (\d+)", tool(node, "nft", "list", "ruleset"))[1])
            for node in (0, 1)
        )
        return gone - settled(0)[0]["dropped"] - come

    with Running(1, "iperf3", "-s", "--forceflush") as server:
        server.until("Server listening")
        before = settled(0)[0]
        tool(0, "iperf3", "-u", "-b", 0, "-l", 200, "-c", "n1", "-t", 2)
        sent = settled(0)[0]
        # More than the queues on the way hold, however slow the machine is.
        assert sent["packets"] - before["packets"] > 30_000, sent
        assert lost() <= 0
        if paced:
            assert sent["dropped"] == before["dropped"], f"{before} {sent}"
            return
        # No packet that the device accepted is lost while the daemon is stopped, either.
        pid = json.loads(lab.weft("status", "--node", "lab", "--json").stdout)["pid"]
        with Running(0, "iperf3", "-u", "-b", 0, "-l", 200, "-c", "n1", "-t", 2) as client:
            time.sleep(0.5)
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.7)
            os.kill(pid, signal.SIGCONT)
            client.rest()
        # Some of the dropped packets may have been for other nodes.
        assert lost() <= 0


def paced():
    """With pacing a flood waits at its sender, and no packet is dropped."""
    floods(paced=True)


def storms():
    """The flood of one node does not silence the other nodes."""
    with Running(1, "iperf3", "-s", "--forceflush") as server:
        server.until("Server listening")
        flood = ["iperf3", "-u", "-b", 0, "-l", 64, "-P", 2, "-c", "n1", "-t", 3]
        with Running(0, *flood) as flooding:
            flooding.until("connected")
            time.sleep(0.5)
            printed = tool(2, "ping", "-q", "-c", 200, "-i", 0.01, "n1")
            assert " 200 received" in printed, printed


def returns():
    """A node whose interface goes down and up can be reached again."""
    tool(2, "ip", "link", "set", "weft0", "down")
    printed = tool(0, "ping", "-q", "-c", 3, "-i", 0.2, "-W", 1, "10.77.0.3", check=False)
    assert " 0 received" in printed, printed
    tool(2, "ip", "link", "set", "weft0", "up")
    printed = tool(0, "ping", "-q", "-c", 20, "-i", 0.2, "10.77.0.3", check=False)
    assert re.search(r" (1[0-9]|20) received", printed), printed


def lost():
    """A node that lost its network namespace or its device is told, and made again."""
    up = ("lab", "up", "--nodes", str(lab.NODES), "--mtu", str(lab.MTU))
    link_away = lambda: tool(2, "ip", "link", "del", "weft0")
    space_away = lambda: outside("ip", "netns", "del", "weft-n1")
    for lose, told, node in ((space_away, "namespace of n1", 1), (link_away, "device of n2", 2)):
        lose()
        status = lab.weft("lab", "status", check=False)
        assert status.returncode == 1 and told in status.stderr and " ".join(up) in status.stderr
        lab.weft(*up)
        assert not any(device["gone"] for device in lab.devices())
        assert " 2 received" in tool(0, "ping", "-q", "-c", 2, "-i", 0.2, f"n{node}")


def small():
    """An MTU too small for IPv6 leaves IPv4."""
    lab.weft("lab", "down")
    lab.weft("lab", "up", "--mtu", "576")
    assert " 2 received" in tool(0, "ping", "-q", "-c", 2, "-i", 0.2, "-M", "do", "-s", 548, "n1")
    assert "fd77" not in tool(0, "ip", "address") + tool(0, "cat", "/etc/hosts")


if __name__ == "__main__":
    try:
        lab.case(globals(), MTU_MAX if lab.sys.argv[2] == "gateway" else lab.MTU)
    finally:
        hosts = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
        if HOST in hosts.stdout:
            outside("ip", "netns", "del", HOST)
