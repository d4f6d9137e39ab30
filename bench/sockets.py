"""Direct sockets beside kernel TCP and UNIX sockets: programs that nobody changed."""

import atexit
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Callable, Optional

from fabric import Weft
from measure import Bar, Missing, Server, client, free_port, need

PACKAGES = (
    *("iperf3", "sockperf", "redis", "nginx-light", "wrk"),
    *("memcached", "libmemcached-tools", "postgresql-15"),
)
# Programs that compute, beside which latency is measured.
COMPUTE = [sys.executable, "-c", "while True: pass"]
BUSY_PROGRAMS = 2
PAIRS = 8


@dataclass
class Way:
    """How the two programs of a pair reach each other."""

    server: Callable[[list], list]
    client: Callable[[list], list]
    # A UNIX socket in place of a port, where the program has them.
    unix: bool = False


def plain(command: list) -> list:
    return command


TCP = Way(plain, plain)
UNIX = Way(plain, plain, unix=True)


def address(way: Way, stack: ExitStack):
    """A free port, or the path of a UNIX socket."""
    if not way.unix:
        return free_port()
    directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="weft-compare-"))
    os.chmod(directory, 0o777)
    return Path(directory) / "socket"


# --- latency -------------------------------------------------------------------------------------


def sockperf_pair(way: Way, stack: ExitStack, *options: str) -> list:
    """Starts a server; the client's command."""
    program, port = need("sockperf"), free_port()
    place = ["--tcp", "-i", "127.0.0.1", "-p", str(port), *options]
    stack.enter_context(Server(way.server([program, "server", *place]), port))
    # Its default is 600,000 messages per second at most, which weft is beyond: it would stop.
    return way.client([program, "ping-pong", *place, "-m", "64", "-t", "2", "--mps=3000000"])


def sockperf(way: Way, *options: str) -> float:
    """One-way latency of 64 bytes, microseconds."""
    with ExitStack() as stack:
        printed = client(sockperf_pair(way, stack, *options))
    return float(printed.split("Latency is ")[1].split()[0])


def busy(way: Way) -> float:
    """The same beside programs that compute, as many as there are processors here."""
    computing = [subprocess.Popen(COMPUTE) for _ in range(BUSY_PROGRAMS)]
    try:
        return sockperf(way)
    finally:
        for program in computing:
            program.kill()
            program.wait()


def pairs(way: Way) -> tuple:
    """Several pairs at once: messages per second of all, the worst 99th percentile."""
    with ExitStack() as stack:
        commands = [sockperf_pair(way, stack) for _ in range(PAIRS)]
        clients = [
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for command in commands
        ]
        printed = [process.communicate(timeout=60)[0] for process in clients]
    rate, worst = 0.0, 0.0
    for text in printed:
        # A message is there and back.
        rate += 1e6 / float(text.split("Latency is ")[1].split()[0]) / 2
        worst = max(worst, float(text.split("percentile 99.000 =")[1].split()[0]))
    return rate, worst


# --- bandwidth -----------------------------------------------------------------------------------


def iperf(way: Way) -> float:
    """Bandwidth of one stream, GB/s."""
    program, port = need("iperf3"), free_port()
    with Server(way.server([program, "-s", "-B", "127.0.0.1", "-p", str(port)]), port):
        command = [program, "-c", "127.0.0.1", "-p", str(port), "-t", "3", "-J"]
        printed = client(way.client(command))
    return json.loads(printed)["end"]["sum_received"]["bits_per_second"] / 8e9


UNIX_STREAM = """
import os, socket, time
block = bytes(131072)
near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
if os.fork() == 0:
    near.close()
    into = bytearray(131072)
    while far.recv_into(into):
        pass
    os._exit(0)
far.close()
start = time.monotonic()
sent = 0
while time.monotonic() - start < 3:
    near.sendall(block)
    sent += len(block)
near.close()
os.wait()
print(sent / (time.monotonic() - start) / 1e9)
"""


def unix_stream() -> float:
    """The work of iperf3 over a UNIX socket, which it cannot use: blocks of 128 KiB, GB/s."""
    return float(client([sys.executable, "-c", UNIX_STREAM]))


# --- servers -------------------------------------------------------------------------------------


def redis(way: Way, what: str, clients: int) -> float:
    """Requests per second."""
    server, benchmark, port = need("redis-server"), need("redis-benchmark"), free_port()
    place = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    command = [benchmark, "-t", what, "-c", str(clients), "-n", "100000", "--csv"]
    with ExitStack() as stack:
        if way.unix:
            path = str(address(way, stack))
            place += ["--unixsocket", path]
            command += ["-s", path]
        else:
            command += ["-p", str(port)]
        stack.enter_context(Server(way.server([server, *place]), port))
        printed = client(way.client(command))
    line = next(line for line in printed.splitlines() if line.startswith(f'"{what.upper()}"'))
    return float(line.split(",")[1].strip('"'))


NGINX = """
worker_processes 1; daemon off; pid {directory}/pid; error_log stderr crit;
events {{ worker_connections 2000; }}
http {{
  access_log off; keepalive_requests 1000000000;
  client_body_temp_path {directory}/b; proxy_temp_path {directory}/p;
  fastcgi_temp_path {directory}/f; uwsgi_temp_path {directory}/u; scgi_temp_path {directory}/s;
  server {{ listen 127.0.0.1:{port} backlog=4096; root {directory}; }}
}}
"""


def nginx(way: Way, connections: int, *options: str) -> float:
    """Requests of 1 KiB per second."""
    wrk, server, port = need("wrk"), need("nginx"), free_port()
    with tempfile.TemporaryDirectory(prefix="weft-compare-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        (directory / "page").write_bytes(bytes(1024))
        configuration = directory / "nginx.conf"
        configuration.write_text(NGINX.format(directory=directory, port=port))
        with Server(way.server([server, "-c", str(configuration)]), port):
            place = f"http://127.0.0.1:{port}/page"
            command = [wrk, "-t", "1", "-c", str(connections), "-d", "2s", *options, place]
            printed = client(way.client(command))
    if "Non-2xx" in printed:
        raise RuntimeError(f"wrk: {printed}")
    return float(printed.split("Requests/sec:")[1].split()[0])


def memcached(way: Way) -> float:
    """Gets per second of one client."""
    server, slap = need("memcached"), need("memcslap")
    with ExitStack() as stack:
        place = address(way, stack)
        named = ["-s", str(place)] if way.unix else ["-l", "127.0.0.1", "-p", str(place)]
        command = [server, "-u", "nobody", "-U", "0", *named]
        stack.enter_context(Server(way.server(command), place))
        at = str(place) if way.unix else f"127.0.0.1:{place}"
        gets = 100_000
        printed = client(way.client([slap, "-s", at, "-t", "get", "-e", str(gets)]))
    keys, seconds = re.search(r"Time to +get +(\d+) keys by.*threads: +([\d.]+)", printed).groups()
    return int(keys) / float(seconds)


POSTGRESQL = """
listen_addresses = '127.0.0.1'
max_connections = 60
fsync = off
"""


@cache
def cluster() -> Path:
    """A database with pgbench's tables, made once."""
    directory = Path(tempfile.mkdtemp(prefix="weft-compare-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    directory.chmod(0o755)
    data = directory / "data"
    data.mkdir(0o700)
    owner = None
    if os.geteuid() == 0:
        owner = "postgres"
        shutil.chown(data, owner, owner)
    client(
        [postgresql("initdb"), "-D", str(data), "-N", "-A", "trust", "-U", "postgres"],
        user=owner, cwd=directory,
    )
    with open(data / "postgresql.conf", "a") as file:
        file.write(POSTGRESQL)
    with ExitStack() as stack:
        place = start_postgresql(TCP, data, stack)
        client([postgresql("pgbench"), "-i", "-q", "-s", "2", *place, "postgres"])
    return data


def postgresql(program: str) -> str:
    # Debian keeps the servers of several versions apart.
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{program}"))
    if not found:
        raise Missing(f"{program} is not installed; call this with --peers")
    return str(found[-1])


def start_postgresql(way: Way, data: Path, stack: ExitStack) -> list:
    """Starts a server; how a client names it."""
    port = free_port()
    sockets = stack.enter_context(tempfile.TemporaryDirectory(prefix="weft-compare-"))
    os.chmod(sockets, 0o777)
    command = [postgresql("postgres"), "-D", str(data), "-p", str(port), "-k", sockets]
    owner = "postgres" if os.geteuid() == 0 else None
    stack.enter_context(Server(way.server(command), port, user=owner, cwd=data.parent))
    return ["-h", sockets if way.unix else "127.0.0.1", "-p", str(port), "-U", "postgres"]


def pgbench(way: Way, clients: int) -> float:
    """Selects per second."""
    with ExitStack() as stack:
        place = start_postgresql(way, cluster(), stack)
        many = ["-c", str(clients), "-j", str(min(clients, 2)), "-T", "3"]
        command = [postgresql("pgbench"), "-n", "-S", "-M", "prepared", *many, *place, "postgres"]
        printed = client(way.client(command))
    return float(printed.split("tps = ")[1].split()[0])


# --- bars ----------------------------------------------------------------------------------------


def bars(weft: Weft) -> list:
    both = Way(weft.under, weft.under)
    near, far = Way(plain, weft.under), Way(weft.under, plain)

    def bar(name: str, unit: str, measure: Callable, bound: float, most=False, peer=TCP, own=both):
        return Bar(name, unit, partial(measure, own), partial(measure, peer), bound, most)

    def most(name: str, measure: Callable, bound: float, own: Optional[Way] = None):
        return bar(name, "us", measure, bound, most=True, own=own or both)

    def rate(name: str, measure: Callable, bound: float, **ways: Way):
        return bar(name, "/s", measure, bound, **ways)

    def polling(way: Way) -> float:
        return sockperf(way, "--nonblocked") if way is TCP else sockperf(way)

    close = ("-H", "Connection: close")
    return [
        most("sockperf tcp 64 B / kernel", sockperf, 1 / 50),
        most("sockperf tcp 64 B / kernel polling", polling, 1 / 8),
        most("sockperf busy machine / kernel", busy, 1.0),
        most("sockperf plain server / kernel", sockperf, 1.03, near),
        most("sockperf plain client / kernel", sockperf, 1.03, far),
        rate("sockperf 8 pairs, all / kernel", lambda way: pairs(way)[0], 1.0),
        most("sockperf 8 pairs, p99 / kernel", lambda way: pairs(way)[1], 1.0),
        bar("iperf3 / kernel", "GB/s", iperf, 4.0),
        Bar("iperf3 / UNIX stream", "GB/s", partial(iperf, both), unix_stream, 1.5, False),
        *(
            rate(f"redis {what} -c 1 / kernel", partial(redis, what=what, clients=1), 5.0)
            for what in ("set", "get")
        ),
        rate("redis get -c 50 / kernel", partial(redis, what="get", clients=50), 1.5),
        rate("redis get -c 50 / UNIX", partial(redis, what="get", clients=50), 1.1, peer=UNIX),
        rate("nginx 1 connection / kernel", partial(nginx, connections=1), 3.0),
        rate("nginx 50 connections / kernel", partial(nginx, connections=50), 1.3),
        rate("nginx new connections / kernel", lambda way: nginx(way, 10, *close), 0.8),
        rate("nginx plain client / kernel", partial(nginx, connections=1), 0.97, own=far),
        rate("pgbench -S -c 1 / kernel", partial(pgbench, clients=1), 1.5),
        rate("pgbench -S -c 8 / kernel", partial(pgbench, clients=8), 1.15),
        rate("pgbench -S -c 8 / UNIX", partial(pgbench, clients=8), 1.0, peer=UNIX),
        rate("memcached get / kernel", memcached, 1.5),
        rate("memcached get / UNIX", memcached, 1.0, peer=UNIX),
    ]
