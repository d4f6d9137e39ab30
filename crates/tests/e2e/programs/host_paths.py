"""Hosts whose daemons reach each other and whose data do not: host_paths.py WEFT CASE DIRECTORY.

As hosts.py, whose machine this has, too.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time

from two_hosts import (
    DATA_PORTS, DIRECTORY, LIMIT, WEFT, Host, hosts, run_case, running, sh, text_of, until)


def state(host, number):
    """The state of a node and the reason, as a host tells it."""
    process, log = host.start(WEFT, "fabric", "nodes", "--json")
    if process.wait(LIMIT) != 0:
        assert "does not answer" in text_of(log), text_of(log)
        return None, ""
    nodes = json.loads(text_of(log))["nodes"]
    found = [node for node in nodes if node["number"] == number]
    return (found[0]["state"], found[0]["reason"]) if found else (None, "")


def await_state(host, number, wanted):
    def is_so():
        found = state(host, number)[0] == wanted
        # Each look is a process.
        time.sleep(0 if found else 0.2)
        return found

    until(f"{number} is {wanted} at {host.name}", is_so)
    return state(host, number)[1]


def counter(host, name):
    told = json.loads(host.run(WEFT, "status", "--json"))
    counters = [one for service in told["services"] for one in service["counters"]]
    return sum(one["value"] for one in counters if one["name"] == name)


def log_of(daemon):
    return [text_of(log) for process, log in running if process is daemon][0]


def restart(host, *options):
    host.daemon.kill()
    host.daemon.wait(LIMIT)
    host.start_daemon(*options)


LOW, HIGH = DATA_PORTS[0], DATA_PORTS[-1]


def firewall():
    """A firewall lets the daemons through, and refuses data from the first host to the second."""
    rule = f"ip -n host1 rule %s ipproto tcp dport {LOW}-{HIGH} prohibit"
    cut_by(rule % "add", rule % "del")


def silent_firewall():
    """The same, and the firewall drops what it does not let through."""
    table = "table inet silent"
    rules = (f"{table} {{ chain out {{ type filter hook output priority 0;"
             f" tcp dport {LOW}-{HIGH} drop; }}; }}")
    nft = "nsenter --net=/run/netns/host1 nft"
    cut_by(f"echo '{rules}' | {nft} -f -", f"{nft} delete {table}")


def cut_by(closing, opening):
    one, two = hosts()
    assert counter(one, "paths_open") == 1
    low, high = LOW, HIGH
    if subprocess.run(closing, shell=True, check=False).returncode:
        print("skipped: this kernel has no such rules")
        return
    restart(one)
    reason = await_state(one, 1, "unreachable")
    assert "no data go there" in reason and f"{low} to {high} (fabric.ports)" in reason, reason
    back = await_state(two, 0, "unreachable")
    assert "from there to this host" in back and f"{low} to {high}" in back, back
    assert counter(one, "paths_cut") == counter(two, "paths_cut") == 1
    assert "a host is not reached: " in log_of(one.daemon), log_of(one.daemon)
    failed, log = one.start(WEFT, "perf", "latency", "--to", "1")
    assert failed.wait(LIMIT) != 0 and "no data go there" in text_of(log), text_of(log)
    # A program is told the reason, in place of one that it cannot mend.
    server, log = two.start(WEFT, "run", "--", sys.executable, "-uc",
                            "import socket\n"
                            "listener = socket.create_server(('10.9.0.2', 8000))\n"
                            "print('ready', flush=True)\n"
                            "connection = listener.accept()[0]\n"
                            "while part := connection.recv(1 << 16):\n"
                            "    connection.sendall(part)\n",
                            env={**two.environment(), "WEFT_SOCKET_BETWEEN_HOSTS": "always"})
    until("the server is ready", lambda: "ready" in text_of(log))
    client, log = one.start(WEFT, "run", "--stats", "--", sys.executable, "-uc",
                            "import socket\n"
                            "connection = socket.create_connection(('10.9.0.2', 8000))\n"
                            "for _ in range(2000):\n"
                            "    connection.sendall(b'x' * 64)\n"
                            "    assert len(connection.recv(64, socket.MSG_WAITALL)) == 64\n",
                            env={**one.environment(), "WEFT_SOCKET_BETWEEN_HOSTS": "always"})
    assert client.wait(LIMIT) == 0, text_of(log)
    assert "node 1 is unreachable: " in text_of(log), text_of(log)
    assert server.wait(LIMIT) == 0
    # When it is open, both notice by themselves.
    sh(opening)
    await_state(one, 1, "up")
    await_state(two, 0, "up")


def families():
    """A host with an IPv6 address among those with IPv4 ones is told so; one whose IPv4 address is
    written as an IPv6 one is as the others."""
    one, two = hosts()
    for host in (one, two):
        sh(f"ip -n {host.name} address add fd00::{host.number}/64 dev cable{host.number} nodad")
    restart_at(two, "[fd00::2]:7700", "10.9.0.1:7700")
    for host, other in ((one, 1), (two, 0)):
        reason = await_state(host, other, "unreachable")
        assert "same family (IPv4 or IPv6)" in reason, reason
    restart_at(two, "[::ffff:10.9.0.2]:7700", "[::ffff:10.9.0.1]:7700")
    for host, other in ((one, 1), (two, 0)):
        await_state(host, other, "up")
    # An address that reaches no host, or too many.
    two.daemon.kill()
    two.daemon.wait(LIMIT)
    for wrong in ("10.9.0.255:7700", "127.0.1.1:7700", "255.255.255.255:7700", "224.0.0.1:7700"):
        failed, log = two.start(WEFT, "daemon", "--fabric-key", str(DIRECTORY / "key"),
                                "--fabric-listen", wrong, "--fabric-seeds", "10.9.0.1:7700")
        assert failed.wait(LIMIT) != 0, wrong
        assert "the others reach" in text_of(log) or "which the others reach" in text_of(log), (
            text_of(log))


def restart_at(host, address, seed):
    host.daemon.kill()
    host.daemon.wait(LIMIT)
    host.daemon, log = host.start(
        WEFT, "daemon", "--fabric-key", str(DIRECTORY / "key"), "--fabric-listen", address,
        "--fabric-seeds", seed, "--fabric-silence-ms", "2000")
    until("the daemon is ready", lambda: "ready at" in text_of(log))


def copies():
    """A copy of a host, as of a virtual machine, is refused, and its original is reached as before;
    when the original is gone, the copy is the host."""
    sh("ip netns add host1; ip netns add host2; ip netns add host3;"
       "ip link add bridge type bridge; ip link set bridge up")
    all_three = [Host(number) for number in (1, 2, 3)]
    for host in all_three:
        n = host.number
        sh(f"ip link add end{n} type veth peer name cable{n} netns host{n};"
           f"ip link set end{n} master bridge up; ip -n host{n} link set lo up;"
           f"ip -n host{n} address add 10.9.0.{n}/24 dev cable{n};"
           f"ip -n host{n} link set cable{n} up")
    key = subprocess.run([WEFT, "fabric", "key"], check=True, capture_output=True).stdout
    with open(os.open(DIRECTORY / "key", os.O_CREAT | os.O_WRONLY, 0o600), "wb") as file:
        file.write(key)
    one, two, copy = all_three
    for host in (one, two):
        host.start_daemon("--node", host.name)
    await_state(one, 1, "up")
    serving = two.serve()
    shutil.copytree(two.home / "n.sock.fabric", copy.home / "n.sock.fabric")
    copy.start_daemon("--node", copy.name)
    reason = await_state(copy, 1, "refused")
    assert "same identity" in reason, reason
    told = json.loads(one.run(WEFT, "fabric", "nodes", "--json"))["nodes"][1]
    assert (told["name"], told["address"], told["state"]) == (
        "host2", "10.9.0.2:7700", "up"), told
    assert json.loads(one.measure(1, "latency"))["median"] > 0
    serving.kill()
    two.serve().kill()
    two.daemon.kill()
    two.daemon.wait(LIMIT)
    await_state(one, 1, "up")
    until("the copy is the host", lambda: json.loads(one.run(
        WEFT, "fabric", "nodes", "--json"))["nodes"][1]["address"] == "10.9.0.3:7700")
    await_state(one, 1, "up")
    copy.serve()
    assert json.loads(one.measure(1, "latency"))["median"] > 0


def names():
    """Seeds are names of hosts, which are known later than the daemon starts."""
    one, two = hosts()
    two.daemon.kill()
    two.daemon.wait(LIMIT)
    shutil.rmtree(two.home / "n.sock.fabric")
    table = DIRECTORY / "hosts"
    table.write_text("127.0.0.1 localhost\n", encoding="utf-8")
    sh(f"mount --bind {table} /etc/hosts")
    two.daemon, log = two.start(
        WEFT, "daemon", "--fabric-key", str(DIRECTORY / "key"), "--fabric-listen", "10.9.0.2:7700",
        "--fabric-seeds", "the-first:7700", "--fabric-silence-ms", "2000")
    until("the daemon is ready", lambda: "ready at" in text_of(log))
    nodes = json.loads(two.run(WEFT, "fabric", "nodes", "--json"))
    assert "no address of the seed the-first:7700" in nodes["nodes"][-1]["reason"], nodes
    table.write_text("127.0.0.1 localhost\n10.9.0.1 the-first\n", encoding="utf-8")
    # The former host with this name and number is down, and is no other one's name.
    await_state(one, 2, "up")
    told = json.loads(one.run(WEFT, "fabric", "nodes", "--json"))["nodes"]
    named = [node["name"] for node in told]
    assert re.fullmatch(r".+#0", named[0]) and re.fullmatch(r".+#2", named[2]), named
    shown = json.loads(one.run(WEFT, "fabric", "show", "--json"))["nodes"]
    assert [node["name"] for node in shown] == named, (shown, named)
    assert "are both called" in log_of(one.daemon), log_of(one.daemon)


run_case(globals())
