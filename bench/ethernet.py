"""Ethernet over the fabric beside a veth pair, between the same two nodes of a lab."""

import atexit
import json
import os
import subprocess
import time
from functools import cache
from pathlib import Path

from fabric import CORES, Weft
from measure import Bar, Missing, client, free_port, need

PACKAGES = ("iperf3", "sockperf", "ethtool", "iproute2")
# The interface of weft, and one of a veth pair; with the address of node 1 there.
FABRIC = ("weft0", "10.77.0.2")
VETH = ("weft-v0", "10.78.0.2")
OFFLOADS = ("tso", "gso", "gro", "sg", "tx")


def inside(node: int, command: list) -> list:
    return ["ip", "netns", "exec", f"weft-n{node}", *command]


def run(*command: str) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@cache
def lab(weft: Path) -> None:
    """Two nodes, and a veth pair between them."""
    if os.geteuid() != 0:
        raise Missing("a lab needs root")
    if Path("/run/weft/lab.json").exists():
        raise Missing("a lab is up already: `weft lab down`")
    environment = {name: value for name, value in os.environ.items() if name[:5] != "WEFT_"}
    command = [str(weft), "lab", "up", "--nodes", "2"]
    subprocess.run(command, check=True, env=environment, stderr=subprocess.DEVNULL)
    down = [str(weft), "lab", "down"]
    atexit.register(lambda: subprocess.run(down, env=environment, check=False))
    interface = VETH[0]
    peer = ["peer", "name", interface, "netns", "weft-n1"]
    run("ip", "link", "add", interface, "netns", "weft-n0", "type", "veth", *peer)
    for node in (0, 1):
        run("ip", "-n", f"weft-n{node}", "addr", "add", f"10.78.0.{node + 1}/24", "dev", interface)
        run("ip", "-n", f"weft-n{node}", "link", "set", interface, "up")
        # Where the machine's default paces, a timer per packet is what would be measured.
        run(*inside(node, ["sysctl", "-w", "net.ipv4.tcp_congestion_control=reno"]))
    time.sleep(1)


def listens(process: subprocess.Popen, port: int, protocol: str) -> bool:
    for table in (protocol, f"{protocol}6"):
        lines = Path(f"/proc/{process.pid}/net/{table}").read_text().splitlines()[1:]
        if any(line.split()[1].endswith(f":{port:04X}") for line in lines):
            return True
    return False


def pair(server: list, client_command: list, port: int, protocol: str = "tcp") -> str:
    """A server on node 1 and the last processor, a client on node 0 and the first."""
    server = inside(1, ["taskset", "-c", str(CORES[-1]), *server])
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(server, **quiet) as process:
        try:
            deadline = time.monotonic() + 10
            while not listens(process, port, protocol):
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{' '.join(server)} does not listen")
                time.sleep(0.01)
            return client(inside(0, ["taskset", "-c", str(CORES[0]), *client_command]))
        finally:
            process.kill()


def prepare(weft: Weft, interface: str, mtu: int, offloads: bool = True) -> None:
    lab(weft.path)
    for node in (0, 1):
        run("ip", "-n", f"weft-n{node}", "link", "set", interface, "mtu", str(mtu))
        for offload in OFFLOADS if not offloads else reversed(OFFLOADS):
            state = "on" if offloads else "off"
            run(*inside(node, [need("ethtool"), "-K", interface, offload, state]))


def stream(weft: Weft, way: tuple, mtu: int, offloads: bool = True) -> float:
    """One stream of TCP, gigabytes per second."""
    interface, address = way
    prepare(weft, interface, mtu, offloads)
    program, port = need("iperf3"), str(free_port())
    command = [program, "-c", address, "-p", port, "-t", "2", "-J"]
    printed = pair([program, "-s", "-1", "-p", port], command, int(port))
    return json.loads(printed)["end"]["sum_received"]["bits_per_second"] / 8e9


def latency(weft: Weft, way: tuple) -> float:
    """One-way latency of datagrams of 64 bytes, microseconds."""
    interface, address = way
    prepare(weft, interface, 1500)
    program, port = need("sockperf"), str(free_port())
    place = ["-i", address, "-p", port]
    command = [program, "ping-pong", *place, "-m", "64", "-t", "2"]
    printed = pair([program, "server", *place], command, int(port), "udp")
    return float(printed.split("Latency is ")[1].split()[0])


def bars(weft: Weft) -> list:
    def of(way: tuple, *settings):
        return lambda: stream(weft, way, *settings)

    unit = "GB/s"
    return [
        Bar("ethernet 1500 / veth", unit, of(FABRIC, 1500), of(VETH, 1500), 0.5, False),
        Bar("ethernet 65520 / veth", unit, of(FABRIC, 65520), of(VETH, 65520), 0.8, False),
        Bar("ethernet 1500 / 65520", unit, of(FABRIC, 1500), of(FABRIC, 65520), 0.75, False),
        Bar("ethernet offloads / none", unit, of(FABRIC, 1500), of(FABRIC, 1500, False), 5, False),
        Bar(
            "ethernet latency 64 B / veth",
            "us",
            lambda: latency(weft, FABRIC),
            lambda: latency(weft, VETH),
            3,
            True,
        ),
    ]
