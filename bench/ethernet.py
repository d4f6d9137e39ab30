"""Ethernet over the fabric beside a veth pair, between the same two nodes of a lab.

bench/compare.py measures the two beside each other. To compare two builds, in turns:

    bench/ethernet.py WEFT      the figures of one build, as JSON
"""

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

from fabric import CORES, Weft
from measure import Bar, Missing, client, free_port, need

PACKAGES = ("iperf3", "sockperf", "ethtool", "iproute2")
# Where the two ends are, the interface, and the address of the second: both devices served by one
# daemon, each by one of its own, and a veth pair.
FABRIC = ("weft-n", "weft0", "10.77.0.2")
APART = ("weft-b", "weft0", "10.79.0.2")
VETH = ("weft-n", "weft-v0", "10.78.0.2")
OFFLOADS = ("tso", "gso", "gro", "sg", "tx")


def inside(node: int, command: list, place: str = "weft-n") -> list:
    return ["ip", "netns", "exec", f"{place}{node}", *command]


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
    interface = VETH[1]
    peer = ["peer", "name", interface, "netns", "weft-n1"]
    run("ip", "link", "add", interface, "netns", "weft-n0", "type", "veth", *peer)
    for node in (0, 1):
        run("ip", "-n", f"weft-n{node}", "addr", "add", f"10.78.0.{node + 1}/24", "dev", interface)
        run("ip", "-n", f"weft-n{node}", "link", "set", interface, "up")
        # Where the machine's default paces, a timer per packet is what would be measured.
        run(*inside(node, ["sysctl", "-w", "net.ipv4.tcp_congestion_control=reno"]))
    time.sleep(1)


@cache
def apart(weft: Path) -> None:
    """Two devices of two daemons, which meet at a third."""
    directory = tempfile.mkdtemp(prefix="weft-bench-")
    environment = {name: value for name, value in os.environ.items() if name[:5] != "WEFT_"}

    def call(name: str, *arguments: str, check: bool = True) -> None:
        own = {**environment, "WEFT_DAEMON_SOCKET": f"{directory}/{name}.sock"}
        subprocess.run([str(weft), *arguments], env=own, check=check, stdout=subprocess.DEVNULL)

    def end() -> None:
        for name in ("0", "1", "segment"):
            call(name, "down", check=False)
        for node in (0, 1):
            subprocess.run(["ip", "netns", "del", f"{APART[0]}{node}"], check=False)
        shutil.rmtree(directory)

    atexit.register(end)
    call("segment", "daemon", "--background")
    for node in (0, 1):
        place = f"{APART[0]}{node}"
        run("ip", "netns", "add", place)
        device = f"{node},netns={place},segment={directory}/segment.sock"
        call(str(node), "daemon", "--background", "--device", device)
        run("ip", "-n", place, "addr", "add", f"10.79.0.{node + 1}/24", "dev", "weft0")
    time.sleep(1)


def listens(process: subprocess.Popen, port: int, protocol: str) -> bool:
    for table in (protocol, f"{protocol}6"):
        lines = Path(f"/proc/{process.pid}/net/{table}").read_text().splitlines()[1:]
        if any(line.split()[1].endswith(f":{port:04X}") for line in lines):
            return True
    return False


def pair(place: str, server: list, client_command: list, port: str, protocol: str) -> str:
    """A server on node 1 and the last processor, a client on node 0 and the first."""
    server = inside(1, ["taskset", "-c", str(CORES[-1]), *server], place)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(server, **quiet) as process:
        try:
            deadline = time.monotonic() + 10
            while not listens(process, int(port), protocol):
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{' '.join(server)} does not listen")
                time.sleep(0.01)
            return client(inside(0, ["taskset", "-c", str(CORES[0]), *client_command], place))
        finally:
            process.kill()


def prepare(weft: Weft, way: tuple, mtu: int, offloads: bool = True) -> None:
    place, interface, _ = way
    (apart if way is APART else lab)(weft.path)
    for node in (0, 1):
        run("ip", "-n", f"{place}{node}", "link", "set", interface, "mtu", str(mtu))
        for offload in OFFLOADS if not offloads else reversed(OFFLOADS):
            state = "on" if offloads else "off"
            run(*inside(node, [need("ethtool"), "-K", interface, offload, state], place))


def stream(weft: Weft, way: tuple, mtu: int, offloads: bool = True) -> float:
    """One stream of TCP, gigabytes per second."""
    place, _, address = way
    prepare(weft, way, mtu, offloads)
    program, port = need("iperf3"), str(free_port())
    command = [program, "-c", address, "-p", port, "-t", "2", "-J"]
    printed = pair(place, [program, "-s", "-1", "-p", port], command, port, "tcp")
    return json.loads(printed)["end"]["sum_received"]["bits_per_second"] / 8e9


def latency(weft: Weft, way: tuple) -> float:
    """One-way latency of datagrams of 64 bytes, microseconds."""
    place, _, address = way
    prepare(weft, way, 1500)
    program, port = need("sockperf"), str(free_port())
    at = ["-i", address, "-p", port]
    command = [program, "ping-pong", *at, "-m", "64", "-t", "2"]
    printed = pair(place, [program, "server", *at], command, port, "udp")
    return float(printed.split("Latency is ")[1].split()[0])


def bars(weft: Weft) -> list:
    def of(way: tuple, *settings):
        return lambda: stream(weft, way, *settings)

    def delay(way: tuple):
        return lambda: latency(weft, way)

    unit = "GB/s"
    return [
        Bar("ethernet 1500 / veth", unit, of(FABRIC, 1500), of(VETH, 1500), 0.5, False),
        Bar("ethernet 65520 / veth", unit, of(FABRIC, 65520), of(VETH, 65520), 0.8, False),
        Bar("ethernet 1500 / 65520", unit, of(FABRIC, 1500), of(FABRIC, 65520), 0.75, False),
        Bar("ethernet offloads / none", unit, of(FABRIC, 1500), of(FABRIC, 1500, False), 5, False),
        Bar("ethernet latency / veth", "us", delay(FABRIC), delay(VETH), 3, True),
        Bar("ethernet latency apart / veth", "us", delay(APART), delay(VETH), 6, True),
    ]


def main() -> None:
    weft = Weft(Path(sys.argv[1]))
    figures = {f"{mtu}, GB/s": stream(weft, FABRIC, mtu) for mtu in (1500, 65520)}
    print(json.dumps({**figures, "latency, us": latency(weft, FABRIC)}))


if __name__ == "__main__":
    main()
