"""Two hosts with a cable between them: hosts.py WEFT CASE DIRECTORY [ARGUMENT] runs a case.

The machine has a network namespace and a /run of its own. DIRECTORY is empty. A host is a network
namespace with a daemon; nothing else leads from one to the other than the cable.
"""

import hashlib
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time

from two_hosts import (
    DATA_PORTS, DIRECTORY, LIMIT, SILENCE_MS, WEFT, hosts, run_case, running, sh, sh_text, text_of,
    until)

# An end that is told nothing for so long hangs.
TOLD_WITHIN = 25
GROUP, PORT = "239.1.2.3", 5000


def endpoints():
    """The tests of `weft perf` between endpoints of two hosts, and the other way round."""
    one, two = hosts()
    for server, client, node in [(two, one, 1), (one, two, 0)]:
        serving = server.serve()
        data = server.listening() - {7700}
        assert data and data <= set(DATA_PORTS), data
        tests = [("latency",), ("put", "--size", "65536"), ("get", "--size", "65536"), ("atomic",),
                 ("message", "--size", "100000"), ("lane", "--over", "endpoint")]
        for test, *options in tests if node == 1 else tests[:1]:
            told = json.loads(client.measure(node, test, *options))
            assert told["median"] > 0, told
        serving.kill()
    failed, log = one.start(WEFT, "perf", "latency", "--to", "9")
    assert failed.wait(LIMIT) != 0 and "no `weft perf serve` of node 9" in text_of(log)


def counted():
    """What endpoints put to another host is in all views, over libfabric alone and beside shared
    memory. Under load each view lies between two looks at the status."""
    port = 9470
    one, two = hosts("--metrics-listen", f"127.0.0.1:{port}", "--dash-listen",
                     f"127.0.0.1:{port + 1}")

    def of_status(told):
        return sum(total["registers"].get("put_bytes", 0) for total in told["totals"])

    def status():
        return of_status(json.loads(one.run(WEFT, "status", "--json")))

    def page(address):
        return one.run("curl", "-sS", "--fail", f"http://127.0.0.1:{address}")

    def of_metrics():
        lines = page(f"{port}/metrics").splitlines()
        name = "weft_endpoint_bytes_total{"
        return sum(int(float(line.rsplit(" ", 1)[1])) for line in lines
                   if line.startswith(name) and 'operation="puts"' in line)

    for transport in ("ofi", "auto"):
        serving = two.serve("--transport", transport)
        before = status()
        size, runs, each = 65536, 1, 200
        measuring, log = one.start(WEFT, "perf", "put", "--transport", transport, "--to", "1",
                                   "--size", str(size), "--runs", str(runs), "--iterations",
                                   str(each), "--json")
        until("it puts", lambda: status() > before + 10 * size)
        least = status()
        # The dashboard and the metrics show one snapshot for 250 ms.
        time.sleep(0.3)
        views = [of_metrics(), of_status(json.loads(page(f"{port + 1}/snapshot"))),
                 of_status(json.loads(one.run(WEFT, "top", "--json", "--count", "1")))]
        most = status()
        assert all(least <= one <= most for one in views), (least, views, most)
        assert measuring.wait(LIMIT) == 0, text_of(log)
        # The measurement has puts beside those of its bandwidth.
        assert status() - before >= size * runs * each, (before, status())
        serving.kill()
    times = [total["times"] for total in json.loads(one.run(WEFT, "status", "--json"))["totals"]]
    assert any("puts" in of_program for of_program in times), times


def has_libfabric(process):
    """Whether libfabric is in a process."""
    return "libfabric" in pathlib.Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8")


def layers():
    """One endpoint for both: peers of its host share memory with it, others reach it over
    libfabric, which no process loads before. Both go on over a restart of the daemon, and both are
    told of the end."""
    one, two = hosts()
    serving = two.serve("--transport", "auto")
    # On its own host, without libfabric at either end.
    near, near_log = two.start(WEFT, "perf", "latency", "--to", "1", "--runs", "1000",
                                "--iterations", "200000")
    until("it measures", lambda: two.endpoints() == [0, 1, 1])
    assert near.poll() is None, text_of(near_log)
    assert not has_libfabric(near) and not has_libfabric(serving), "nobody needed it"
    # Between the hosts.
    far, far_log = one.start(WEFT, "perf", "put", "--to", "1", "--size", "65536", "--runs",
                             "1000", "--iterations", "20000")
    until("it measures, too", lambda: one.endpoints() == [1])
    assert has_libfabric(far) and has_libfabric(serving)
    assert not has_libfabric(near), "the peer of one that has it needs none"
    for host in (one, two):
        host.daemon.kill()
        host.daemon.wait(LIMIT)
        host.start_daemon()
    # For longer than a new daemon waits for endpoints from before.
    time.sleep(1.5)
    for process, log in ((near, near_log), (far, far_log)):
        assert process.poll() is None, text_of(log)
    for host in (one, two):
        host.await_both()
    # A new one meets the server at the address that it had.
    told = json.loads(one.measure(1, "latency"))
    assert told["median"] > 0 and told["transport"] == "auto", told
    serving.kill()
    for process, log in ((near, near_log), (far, far_log)):
        assert process.wait(TOLD_WITHIN) != 0, text_of(log)


def users():
    """The endpoints of another user are not found on another host either."""
    one, two = hosts()
    # `weft perf` uses the partition of its user: another user's server is not found.
    log = open(DIRECTORY / "log-user", "w+", encoding="utf-8")
    serving = two.serve()
    command = ("setpriv", "--reuid=1000", "--regid=1000", "--clear-groups", WEFT, "perf", "latency",
               "--to", "1")
    sh(f"chmod 755 {DIRECTORY} {one.home}")
    other = subprocess.Popen(("ip", "netns", "exec", one.name, *command), env=one.environment(),
                             stdout=log, stderr=subprocess.STDOUT)
    assert other.wait(LIMIT) != 0
    assert "no `weft perf serve` of node 1" in text_of(log), text_of(log)
    serving.kill()


def stream(one, two, megabytes):
    """A stream through the device, with its checksum."""
    receive = ("import hashlib, socket\n"
               "listener = socket.create_server(('10.77.0.2', 5001))\n"
               "print('ready', flush=True)\n"
               "connection, digest = listener.accept()[0], hashlib.sha256()\n"
               "while part := connection.recv(1 << 20):\n"
               "    digest.update(part)\n"
               "print(digest.hexdigest())\n")
    send = ("import socket, sys\n"
            "connection = socket.create_connection(('10.77.0.2', 5001))\n"
            f"for number in range({megabytes}):\n"
            "    connection.sendall(number.to_bytes(8, 'big') * (1 << 17))\n")
    receiver, log = two.start(sys.executable, "-uc", receive)
    until("the receiver listens", lambda: "ready" in text_of(log))
    one.run(sys.executable, "-uc", send)
    assert receiver.wait(LIMIT) == 0
    digest = hashlib.sha256()
    for number in range(megabytes):
        digest.update(number.to_bytes(8, "big") * (1 << 17))
    assert text_of(log).split()[-1] == digest.hexdigest(), "the bytes differ"


def device():
    """Ping, a stream, iperf3 and a multicast group over the device, which is over libfabric."""
    how = ("--fabric-device", "on", "--ether-learn-ms", "100")
    one, two = hosts(*how)

    def ping(*of):
        for host in of:
            n = host.number
            until("the device is there",
                  lambda: "weft0" in host.run("ip", "-br", "link"))  # noqa: B023
            sh(f"ip -n host{n} address add 10.77.0.{n}/24 dev weft0")
        told = one.run("ping", "-c", "20", "-i", "0.02", "-s", "1400", "10.77.0.2")
        assert "20 received" in told, told

    ping(one, two)
    # A device that comes greets the others, and no program of the daemon's user.
    program = two.serve("--transport", "auto")
    one.daemon.kill()
    one.daemon.wait(LIMIT)
    one.start_daemon(*how)
    ping(one)
    assert not has_libfabric(program), "it was reached by a device"
    program.kill()
    stream(one, two, 64)
    server, log = two.start("iperf3", "-s", "-1", "--forceflush")
    until("iperf3 listens", lambda: "listening" in text_of(log))
    told = one.run("iperf3", "-c", "10.77.0.2", "-t", "1", "--json")
    assert json.loads(told)["end"]["sum_received"]["bits_per_second"] > 1e7, told
    assert server.wait(LIMIT) == 0
    member = ("import socket, struct\n"
              "member = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
              f"member.bind(('', {PORT}))\n"
              "member.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP,"
              f" socket.inet_aton('{GROUP}') + socket.inet_aton('10.77.0.2'))\n"
              "print('ready', flush=True)\n"
              "member.settimeout(30)\n"
              "print(member.recvfrom(2000)[0].decode())\n")
    joined, log = two.start(sys.executable, "-uc", member)
    until("the member is there", lambda: "ready" in text_of(log))
    call = ("import socket, time\n"
            "caller = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
            "caller.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF,"
            " socket.inet_aton('10.77.0.1'))\n"
            "for _ in range(100):\n"
            f"    caller.sendto(b'to all of you', ('{GROUP}', {PORT}))\n"
            "    time.sleep(0.02)\n")
    one.run(sys.executable, "-uc", call)
    assert joined.wait(LIMIT) == 0 and "to all of you" in text_of(log), text_of(log)


def under_weft(host, between, *command, options=("--stats",), before=(), **how):
    """Starts a program under weft, with what it says of other hosts. Without options it can be
    signalled. `before` is a command that runs weft. Its connections move as users have it."""
    environment = {**host.environment(), "WEFT_SOCKET_BETWEEN_HOSTS": between}
    # On a busy machine an endpoint takes seconds to open and to reach another one.
    environment["WEFT_DAEMON_ANSWER_MS"] = "20000"
    for name in ("WEFT_SOCKET_SWITCH_CALLS", "WEFT_SOCKET_SWITCH_WAIT_US"):
        environment.pop(name, None)
    return host.start(*before, WEFT, "run", *options, "--", *command, env=environment,
                      start_new_session=True, **how)


def let_move(one, two, pairs, file):
    """Makes a file when the connections of so many pairs of programs have moved."""
    until("their endpoints have met", lambda: one.have_met() >= pairs <= two.have_met())
    # Their lanes are a few messages away.
    time.sleep(0.5)
    file.touch()


def moved(log):
    """The bytes that a program which ended has sent and received over the fabric."""
    found = re.search(r"^fabric +\d+ +([\d.]+ \S+) +([\d.]+ \S+)$", text_of(log), re.MULTILINE)
    assert found, text_of(log)
    units = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}
    return [float(text.split()[0]) * units[text.split()[1]] for text in found.groups()]


def sockets():
    """A file by HTTP, byte by byte: over libfabric if both ends say so, and else over TCP."""
    one, two = hosts()
    kinds = [("always", "always", 64), ("never", "always", 4), ("always", "never", 4)]
    for at, (server_kind, client_kind, megabytes) in enumerate(kinds):
        size = megabytes << 20
        data = random.Random(at).randbytes(size)
        (two.home / "file").write_bytes(data)
        server, server_log = under_weft(
            two, server_kind, sys.executable, "-u", "-m", "http.server", str(8000 + at),
            "--bind", "10.9.0.2", "--directory", str(two.home), options=())
        until("the server is ready", lambda log=server_log: "Serving HTTP" in text_of(log))
        target = one.home / "got"
        client, log = under_weft(one, client_kind, "curl", "-sS", "-o", str(target),
                                 # Slow enough that both ends have moved before it is over.
                                 "--limit-rate", "20M",
                                 f"http://10.9.0.2:{8000 + at}/file")
        assert client.wait(LIMIT) == 0, text_of(log)
        assert hashlib.sha256(target.read_bytes()).digest() == hashlib.sha256(data).digest()
        sent, received = moved(log)
        if server_kind == client_kind:
            assert received > 0, text_of(log)
        else:
            assert sent == received == 0, text_of(log)
        server.kill()


TALKS = str(pathlib.Path(__file__).with_name("over_endpoints.py"))


def talk(host, what, port, count, *file, **how):
    """Starts a side of over_endpoints.py; its server is on the second host."""
    return under_weft(host, "always", sys.executable, "-u", TALKS, what, str(port), str(count),
                      "10.9.0.2", *file, **how)


def socket_programs():
    """Threads with a connection each and one epoll set; a program that forks goes on."""
    one, two = hosts()
    # On one host lanes are in memory.
    for port, (host, what, count) in enumerate(
            [(one, "echo", 6), (one, "forks", 1), (two, "echo", 6)], 7001):
        server, server_log = talk(two, "server", port, count)
        until("the server is ready", lambda log=server_log: "ready" in text_of(log))
        client, log = talk(host, what, port, count)
        assert client.wait(LIMIT) == 0, text_of(log) + text_of(server_log)
        assert f"{count} right" in text_of(log), text_of(log)
        assert server.wait(LIMIT) == 0, text_of(server_log)
        assert text_of(server_log).count("end\n") == count, text_of(server_log)
        if what == "echo":
            assert min(moved(log) + moved(server_log)) > 0, text_of(log)


# Receives a stream, and meddles with all descriptors but its own: closes them, one by one and by
# ranges, or puts a file over each. The file must stay as it is.
MEDDLER = """
import hashlib, os, resource, socket, sys
what, size = sys.argv[1], int(sys.argv[2])
connection = socket.create_connection(('10.9.0.2', 7001))
own = connection.fileno()
file = os.open(sys.argv[3], os.O_RDWR | os.O_CREAT)
os.write(file, b'mine')
most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
digest, got, rounds = hashlib.sha256(), 0, 0
def of_others():
    return [n for n in map(int, os.listdir('/proc/self/fd')) if n > 2 and n not in (own, file)]
while part := connection.recv(1 << 20):
    digest.update(part)
    got += len(part)
    if got < rounds * (size // 8):
        continue
    rounds += 1
    if what == 'close':
        for number in of_others():
            try:
                os.close(number)
            except OSError:
                pass
        for number in range(3, 200):
            if number not in (own, file):
                try:
                    os.close(number)
                except OSError as error:
                    assert error.errno == 9, error
        os.closerange(max(own, file) + 1, most)
    elif rounds == 5:
        for number in of_others():
            try:
                os.dup2(file, number)
            except OSError as error:
                assert error.errno in (9, 16), error
assert os.pread(file, 100, 0) == b'mine', 'something was written to the file'
child = os.fork()
if child == 0:
    print('the child has', len(of_others()), flush=True)
    os._exit(0)
os.waitpid(child, 0)
print('got', got, digest.hexdigest(), 'rounds', rounds, flush=True)
"""
# Sends little to one client until there is a file, and then a stream.
STREAMS = """
import hashlib, os, socket, sys, time
listener = socket.create_server(('10.9.0.2', 7001))
print('ready', flush=True)
connection, digest, sent = listener.accept()[0], hashlib.sha256(), 0
def send(part):
    global sent
    connection.sendall(part)
    digest.update(part)
    sent += len(part)
while not os.path.exists(sys.argv[2]):
    send(b'a little')
    time.sleep(0.002)
for number in range(int(sys.argv[1]) >> 16):
    send(number.to_bytes(8, 'big') * (1 << 13))
connection.close()
print(sent, digest.hexdigest(), flush=True)
"""


def socket_descriptors():
    """A program that closes descriptors it does not know, or puts files over them, goes on."""
    one, two = hosts()
    size = 16 << 20
    for what in ("close", "dup2"):
        have_moved = DIRECTORY / f"moved-{what}"
        server, server_log = under_weft(two, "always", sys.executable, "-uc", STREAMS, str(size),
                                        str(have_moved))
        until("the server is ready", lambda log=server_log: "ready" in text_of(log))
        client, log = under_weft(one, "always", sys.executable, "-uc", MEDDLER, what, str(size),
                                 str(one.home / what))
        let_move(one, two, 1, have_moved)
        assert client.wait(LIMIT) == 0, text_of(log)
        assert server.wait(LIMIT) == 0, text_of(server_log)
        sent, digest = text_of(server_log).split("ready\n")[1].split()[:2]
        assert f"got {sent} {digest}" in text_of(log), text_of(log) + text_of(server_log)
        assert moved(log)[1] > size / 2, text_of(log)


def socket_ends():
    """Ends that are killed are told to the other end."""
    one, two = hosts()
    flooded = {}
    for port, dies in enumerate(["server", "client"], 7001):
        options = {side: () if side == dies else ("--stats",) for side in ("server", "client")}
        server = talk(two, "server", port, 1, options=options["server"])
        until("the server is ready", lambda log=server[1]: "ready" in text_of(log))
        client = talk(one, "flood", port, 60, options=options["client"])
        until("the client is connected", lambda log=client[1]: "connected" in text_of(log))
        flooded[dies] = {"server": server, "client": client}
    until("the daemons have passed the addresses",
          lambda: all(host.passed() >= len(flooded) for host in (one, two)))
    # The connecting ends open their endpoint now, and all move.
    time.sleep(3)
    for dies, ends in flooded.items():
        ends[dies][0].kill()
        for side, (process, log) in ends.items():
            if side != dies:
                assert process.wait(TOLD_WITHIN) == 0, text_of(log)
                assert "ConnectionResetError" in text_of(log) or "BrokenPipe" in text_of(log), (
                    text_of(log))
                assert max(moved(log)) > 0, text_of(log)


def compiled(name):
    """A program of this folder, in C."""
    binary, source = DIRECTORY / name, pathlib.Path(__file__).with_name(f"{name}.c")
    subprocess.run(["gcc", "-O1", "-pthread", "-o", binary, source], check=True)
    return str(binary)


def socket_exiting():
    """Programs that end while their threads use connections, which move at their first call."""
    one, two = hosts()
    program, clients = compiled("exiting"), "8"
    how = {"options": ("--stats", "--socket-switch-calls", "0")}
    at = ("10.9.0.2", "7201", clients)
    # Many end before they move; on a busy machine all of a run may.
    for _ in range(5):
        server = under_weft(two, "always", program, "server", *at, **how)
        until("the server is ready", lambda: "ready" in text_of(server[1]))
        both = server, under_weft(one, "always", program, "clients", *at, **how)
        for process, log in both[::-1]:
            assert process.wait(LIMIT) == 0, text_of(server[1]) + text_of(log)
        assert f"{clients} clients ended" in text_of(both[1][1]), text_of(both[1][1])
        if max(moved(server[1])) > 0:
            return
    raise AssertionError(text_of(server[1]))


def socket_children():
    """Children that use no endpoint of their parent, and an end that is stopped for a while."""
    one, two = hosts()
    cloned, moved_all = compiled("cloned"), DIRECTORY / "moved"
    ways = [("clone", ""), ("number", "alone"), ("Fork", "handler"), ("shares", "")]
    pairs = []
    for port, (how, when) in enumerate(ways, 7101):
        at = ("10.9.0.2", str(port))
        server = under_weft(two, "always", cloned, "listen", how, *at)
        until("the server is ready", lambda log=server[1]: "ready" in text_of(log))
        pairs.append((server, under_weft(one, "always", cloned, how, when, *at, str(moved_all))))
    let_move(one, two, len(ways), moved_all)
    for server, client in pairs:
        for process, log in (client, server):
            assert process.wait(LIMIT) == 0, text_of(log)
            assert "all of them" in text_of(log), text_of(log)
        over_fabric(client[1])
    flooded, over = {}, DIRECTORY / "over"
    for port, stops in enumerate(("server", "client"), 7301):
        options = {side: () if side == stops else ("--stats",) for side in ("server", "client")}
        server = talk(two, "server", port, 1, options=options["server"])
        until("the server is ready", lambda log=server[1]: "ready" in text_of(log))
        client = talk(one, "flood", port, LIMIT, str(over), options=options["client"])
        until("the client is connected", lambda log=client[1]: "connected" in text_of(log))
        flooded[stops] = {"server": server, "client": client}
    until("their endpoints have met", lambda: one.have_met() >= len(flooded) <= two.have_met())
    time.sleep(1)
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for stops, ends in flooded.items():
            os.killpg(ends[stops][0].pid, number)
        time.sleep(0.5)
    over.touch()
    for stops, ends in flooded.items():
        for side, (process, log) in ends.items():
            assert process.wait(LIMIT) == 0, text_of(log)
            assert side == stops or max(moved(log)) > 0, text_of(log)
        assert "same" in text_of(ends["client"][1]), text_of(ends["client"][1])


def over_fabric(log):
    """Checks that bytes of a program went over the fabric, in both directions."""
    assert min(moved(log)) > 0, text_of(log)


def finishes(host, *command, **how):
    """Runs a program under weft, and returns its output."""
    process, log = under_weft(host, "always", *command, **how)
    assert process.wait(LIMIT) == 0, text_of(log)
    return log


def socket_redis():
    """redis-benchmark, and values that come back as they were written."""
    one, two = hosts()
    redis, redis_log = under_weft(
        two, "always", "redis-server", "--bind", "10.9.0.2", "--port", "6379", "--save", "",
        "--protected-mode", "no", options=())
    until("redis is ready", lambda: "Ready to accept" in text_of(redis_log))
    at = ("-h", "10.9.0.2")
    over_fabric(finishes(one, "redis-benchmark", *at, "-q", "-n", "2000", "-c", "4", "-t",
                         "set,get", "-d", "2000"))
    chance = random.Random(5)
    values = {f"k{number}": chance.randbytes(chance.randrange(1, 30_000)).hex()
              for number in range(60)}
    commands = DIRECTORY / "commands"
    commands.write_text("".join(f"set {key} {value}\n" for key, value in values.items())
                        + "".join(f"get {key}\n" for key in values))
    with open(commands, encoding="utf-8") as file:
        log = finishes(one, "redis-cli", *at, stdin=file)
    lines = text_of(log).split("\n")
    assert lines[:len(values)] == ["OK"] * len(values), lines[:3]
    assert lines[len(values):2 * len(values)] == list(values.values()), "values differ"
    over_fabric(log)
    redis.kill()


def socket_iperf():
    """iperf3 in both directions."""
    one, two = hosts()
    for options in ((), ("-R",)):
        server, log = under_weft(two, "always", "iperf3", "-s", "-1", "--forceflush")
        until("iperf3 listens", lambda told=log: "listening" in text_of(told))
        client = finishes(one, "iperf3", "-c", "10.9.0.2", "-t", "4", "--json", *options)
        assert '"error"' not in text_of(client), text_of(client)
        assert server.wait(LIMIT) == 0, text_of(log)
        assert max(moved(client)) > 1e5, text_of(client)


def socket_postgres():
    """pgbench with 4 clients, and a dump that is the same over the fabric and without it."""
    one, two = hosts()
    programs = max(pathlib.Path("/usr/lib/postgresql").iterdir()) / "bin"
    home = two.home / "pg"
    home.mkdir()
    sh(f"chmod 755 {DIRECTORY} {one.home} {two.home}; chown nobody {home}")
    nobody = ("setpriv", "--reuid=nobody", "--clear-groups", "--no-new-privs")
    two.run(*nobody, str(programs / "initdb"), "-D", str(home / "data"), "-U", "postgres", "-A",
            "trust", "-N")
    with open(home / "data" / "pg_hba.conf", "a", encoding="utf-8") as file:
        file.write("host all all 10.9.0.0/24 trust\n")
    # One user at both ends, as a lane between hosts needs.
    server, log = under_weft(two, "always", str(programs / "postgres"), "-D", str(home / "data"),
                             "-h", "10.9.0.2", "-k", str(home), options=(), before=nobody)
    until("the server is ready", lambda: "ready to accept" in text_of(log))
    at = ("-h", "10.9.0.2", "-U", "postgres")
    two.run("pgbench", "-i", "-q", "-s", "1", *at, "postgres")
    told = finishes(one, "pgbench", *at, "-c", "4", "-t", "50", "postgres", before=nobody)
    assert "number of failed transactions: 0 " in text_of(told), text_of(told)
    over_fabric(told)
    dump = ("pg_dump", *at, "--restrict-key=x", "postgres")
    if "--restrict-key" not in two.run("pg_dump", "--help"):
        dump = ("pg_dump", *at, "postgres")
    plain = two.run(*dump)
    told = finishes(one, *dump, before=nobody)
    lines = text_of(told).split("\nweft ")[0]
    assert lines.strip() == plain.strip(), "the dumps differ"
    assert moved(told)[1] > 1e5, text_of(told)[-600:]
    server.terminate()


def outage(one, two, seconds):
    """Cuts the cable for so long, while connections are on the fabric."""
    until("the daemons have passed the addresses", lambda: one.passed() >= 1 and two.passed() >= 1)
    time.sleep(2)
    sh("ip -n host1 link set cable1 down")
    time.sleep(seconds)
    sh("ip -n host1 link set cable1 up")


def socket_outage():
    """A cable that is cut for longer than the fabric's silence ends no connection: a file by curl,
    and requests to redis, go on byte by byte when it is mended."""
    one, two = hosts()
    data = random.Random(7).randbytes(96 << 20)
    (two.home / "file").write_bytes(data)
    server, server_log = under_weft(
        two, "always", sys.executable, "-u", "-m", "http.server", "8000", "--bind", "10.9.0.2",
        "--directory", str(two.home), options=())
    until("the server is ready", lambda: "Serving HTTP" in text_of(server_log))
    redis, redis_log = under_weft(
        two, "always", "redis-server", "--bind", "10.9.0.2", "--port", "6379", "--save", "",
        "--protected-mode", "no", options=())
    until("redis is ready", lambda: "Ready to accept" in text_of(redis_log))
    target = one.home / "got"
    client, log = under_weft(one, "always", "curl", "-sS", "-o", str(target), "--limit-rate", "20M",
                             "http://10.9.0.2:8000/file")
    # Each reply is compared with what was written, as one connection goes on.
    asks = ("import socket, sys, time\n"
            "connection = socket.create_connection(('10.9.0.2', 6379))\n"
            "stream, end, number = connection.makefile('rb'), time.monotonic() + 14, 0\n"
            "while time.monotonic() < end:\n"
            "    value = b'%d' % number * 50\n"
            "    command = b'*3\\r\\n$3\\r\\nSET\\r\\n$1\\r\\nk\\r\\n$%d\\r\\n%s\\r\\n'\n"
            "    connection.sendall(command % (len(value), value)"
            " + b'*2\\r\\n$3\\r\\nGET\\r\\n$1\\r\\nk\\r\\n')\n"
            "    assert stream.readline() == b'+OK\\r\\n'\n"
            "    length = int(stream.readline()[1:])\n"
            "    assert stream.read(length + 2) == value + b'\\r\\n', number\n"
            "    number += 1\n"
            "print('asked', number)\n")
    asking, asked = under_weft(one, "always", sys.executable, "-uc", asks)
    outage(one, two, 8)
    assert client.wait(LIMIT) == 0, text_of(log)
    assert hashlib.sha256(target.read_bytes()).digest() == hashlib.sha256(data).digest()
    assert asking.wait(LIMIT) == 0, text_of(asked)
    for told in (log, asked):
        assert moved(told)[1] > 0, text_of(told)
        # The rest came over TCP.
        assert re.search(r"^tcp +\d+ ", text_of(told), re.MULTILINE), text_of(told)
    for process in (server, redis):
        process.kill()


# An echo, and a client that says how its connection ended after the word on its standard input.
ECHO = ("import socket, sys\n"
        "listener = socket.create_server(('10.9.0.2', int(sys.argv[1])))\n"
        "print('serving', flush=True)\n"
        "one, _ = listener.accept()\n"
        "while data := one.recv(65536):\n"
        "    one.sendall(data)\n")
ENDS = ("import errno, socket, sys, time\n"
        "one = socket.create_connection(('10.9.0.2', int(sys.argv[1])))\n"
        "one.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(sys.argv[2]))\n"
        "end = time.monotonic() + 3\n"
        "while time.monotonic() < end:\n"
        "    one.sendall(b'x' * 64)\n"
        "    assert len(one.recv(64, socket.MSG_WAITALL)) == 64\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "start = time.monotonic()\n"
        "try:\n"
        "    one.sendall(b'y' * 64)\n"
        "    print('end:', len(one.recv(64)), flush=True)\n"
        "except OSError as error:\n"
        "    took = time.monotonic() - start\n"
        "    print('end:', errno.errorcode[error.errno], round(took, 2), flush=True)\n")


def socket_dead_host():
    """A host that never answers again ends a connection with TCP's error, in TCP's time behind the
    fabric's silence. TCP_USER_TIMEOUT makes that time short; plain TCP stands beside it."""
    one, two = hosts()
    timeout_s = 2
    ends = []
    for port, way in ((8000, "never"), (8001, "always")):
        _, log = under_weft(two, way, sys.executable, "-uc", ECHO, str(port), options=())
        until("the echo is ready", lambda log=log: "serving" in text_of(log))
        ends.append(under_weft(one, way, sys.executable, "-uc", ENDS, str(port),
                               str(timeout_s * 1000), stdin=subprocess.PIPE))
    for _, log in ends:
        until("both have talked", lambda log=log: "ready" in text_of(log))
    assert one.passed() >= 1 and two.passed() >= 1
    # Else the kernel may find out that nobody answers to the address, which is another error.
    mac = sh_text("ip -n host2 -br link show dev cable2").split()[2]
    sh(f"ip -n host1 neighbour replace 10.9.0.2 lladdr {mac} dev cable1 nud permanent;"
       "ip -n host2 link set cable2 down")
    for process, _ in ends:
        process.stdin.write(b"\n")
        process.stdin.close()
    told = []
    for process, log in ends:
        assert process.wait(LIMIT) == 0, text_of(log)
        found = re.search(r"^end: (\w+) ([\d.]+)$", text_of(log), re.MULTILINE)
        assert found, text_of(log)
        told.append((found.group(1), float(found.group(2))))
    (plain, plain_took), (direct, direct_took) = told
    assert direct == plain, told
    # The bytes on the lane go to TCP when the fabric has been silent for its time.
    assert plain_took - 0.5 <= direct_took <= plain_took + SILENCE_MS / 1000 + 15, told
    assert moved(ends[1][1])[0] > 0, text_of(ends[1][1])


def way(host, number):
    """The way of programs of a host to a node, as its daemon tells it."""
    told = json.loads(host.run(WEFT, "fabric", "nodes", "--json"))
    return [node["way"] for node in told["nodes"] if node["number"] == number][0]


def socket_auto():
    """The daemons measure the way between two hosts when a program leaves the choice to weft, both
    know it, and a program is told. Over software the fabric is slower, so programs stay on TCP."""
    one, two = hosts()
    assert way(one, 1)["age_s"] is None and way(one, 0) is None
    ended, log = under_weft(one, "auto", "true")
    assert ended.wait(LIMIT) == 0
    assert "way to node 1: tcp (not measured)" in text_of(log), text_of(log)
    # The daemons give themselves 20 s until the servers listen, and a minute for the clients.
    until("both know the way",
          lambda: all(way(host, other)["age_s"] is not None for host, other in ((one, 1), (two, 0))),
          85)
    measured = way(one, 1)["measured"]
    assert measured and measured == way(two, 0)["measured"], (way(one, 1), way(two, 0))
    slower = (measured["fabric_round_trip_ns"] > measured["tcp_round_trip_ns"]
              or measured["fabric_bytes_per_s"] < measured["tcp_bytes_per_s"])
    assert (way(one, 1)["way"] == "tcp") >= slower, way(one, 1)
    server, log = under_weft(two, "auto", sys.executable, "-uc", ECHO, "8000", options=())
    until("the echo is ready", lambda: "serving" in text_of(log))
    talk_much = ("import socket\n"
                 "one = socket.create_connection(('10.9.0.2', 8000))\n"
                 "for _ in range(2000):\n"
                 "    one.sendall(b'x' * 64)\n"
                 "    assert len(one.recv(64, socket.MSG_WAITALL)) == 64\n")
    client, log = under_weft(one, "auto", sys.executable, "-uc", talk_much)
    assert client.wait(LIMIT) == 0, text_of(log)
    assert "way to node 1: " in text_of(log) and "(measured " in text_of(log), text_of(log)
    if way(one, 1)["way"] == "tcp":
        assert moved(log) == [0, 0], text_of(log)
    server.kill()


def without_libfabric():
    """The daemon joins all the same, and says why it has no device."""
    one, two = hosts("--fabric-device", "on", "--fabric-provider", "nothing")
    for host in (one, two):
        told = [text_of(log) for process, log in running if process is host.daemon][0]
        until("it says why",
              lambda: "no Ethernet device in the fabric" in  # noqa: B023
              [text_of(log) for process, log in running if process is host.daemon][0])  # noqa: B023
        assert "ready at" in told
    failed, log = one.start(WEFT, "perf", "latency", "--to", "1", "--provider", "nothing")
    assert failed.wait(LIMIT) != 0 and "no provider nothing" in text_of(log), text_of(log)
    # Programs that leave the choice to weft stay on TCP, and are told why.
    under_weft(one, "auto", "true")[0].wait(LIMIT)
    until("the measurement has failed", lambda: way(one, 1)["age_s"] is not None)
    assert "nothing" in way(one, 1)["failure"] and way(one, 1)["way"] == "tcp", way(one, 1)


def deaths(rounds):
    """Kills an end, a daemon or the cable amid measurements, at a random moment, again and again:
    who is left is told promptly, or goes on; and afterwards everything works, and nothing grew."""
    seed = int(os.environ.get("E2E_SEED", "1"))
    chance = random.Random(seed)
    print(f"E2E_SEED={seed}", flush=True)
    one, two = hosts()
    # The first status makes files that the daemon keeps.
    assert not one.measures() and not two.measures()
    idle = [host.memory_files() for host in (one, two)]
    serving = two.serve()
    before = None
    for number in range(int(rounds)):
        test = chance.choice([("latency",), ("put", "--size", "262144"), ("atomic",),
                              ("message", "--size", "50000")])
        sent = one.packets()
        # It would take a minute, also on a fast machine.
        client, log = one.start(WEFT, "perf", test[0], "--to", "1", "--runs", "1000",
                                "--iterations", "2000", *test[1:])
        what = ["server", "daemon1", "cable", "client", "daemon2", "stop"][number % 6]
        # Before it measures it needs its daemon, for the keys of its memory; that takes a few
        # hundred packets.
        until("it measures", lambda: one.measures() and one.packets() > sent + 2000)  # noqa: B023
        time.sleep(chance.random() / 4)
        began = time.monotonic()
        if what == "client":
            client.kill()
        elif what == "server":
            serving.kill()
            assert client.wait(TOLD_WITHIN) != 0, text_of(log)
            serving = two.serve()
        elif what in ("daemon1", "daemon2"):
            host = one if what == "daemon1" else two
            host.daemon.kill()
            host.daemon.wait(LIMIT)
            time.sleep(chance.random())
            # It is no end of the measurement.
            assert client.poll() is None, text_of(log)
            host.start_daemon()
            time.sleep(1.5)
            assert client.poll() is None, text_of(log)
        elif what == "cable":
            sh("ip -n host1 link set cable1 down")
            status = client.wait(TOLD_WITHIN)
            assert status != 0, text_of(log)
            sh("ip -n host1 link set cable1 up")
        else:
            serving.send_signal(signal.SIGSTOP)
            assert client.wait(TOLD_WITHIN) != 0, text_of(log)
            serving.send_signal(signal.SIGCONT)
        print(f"{number} {what}: {time.monotonic() - began:.1f} s", flush=True)
        client.kill()
        client.wait(LIMIT)
        for host in (one, two):
            host.await_both()
        json.loads(one.measure(1, "latency"))
        if number == 5:
            before = [host.files() for host in (one, two)]
    serving.kill()
    serving.wait(LIMIT)
    for host, memory in zip((one, two), idle):
        until("no program is left",
              lambda: host.processes() == [host.daemon.pid])  # noqa: B023
        until("no memory of programs is left",
              lambda: host.memory_files() <= memory)  # noqa: B023
    if before and int(rounds) > 6:
        after = [host.files() for host in (one, two)]
        assert all(now <= then + 8 for now, then in zip(after, before)), (before, after)


run_case(globals(), *[word for word in sys.argv[4:] if word])
