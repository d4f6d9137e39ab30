"""Containers on one machine: containers.py WEFT CASE DIRECTORY runs a case.

The machine has a network namespace and a /run of its own. DIRECTORY is empty.
"""

import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

WEFT, DIRECTORY = sys.argv[1], pathlib.Path(sys.argv[3])
PROGRAMS = pathlib.Path(__file__).parent
LIMIT = 60
# Large enough that both ends have agreed before the transfer ends, even on a busy machine.
BYTES = 64 << 20
# Root's number in containers that share the users of the host.
ROOT = "0"
# Long enough for a daemon on a busy machine.
os.environ["WEFT_DAEMON_ANSWER_MS"] = "2000"
running = []


def sh(text):
    subprocess.run(["sh", "-euc", text], check=True, timeout=LIMIT)


def start(*command, **how):
    """Starts a command whose output goes to a file, which is returned with it."""
    log = open(DIRECTORY / f"log-{len(running)}", "w+", encoding="utf-8")
    process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, **how)
    running.append((process, log))
    return process, log


def text_of(log):
    return pathlib.Path(log.name).read_text(encoding="utf-8")


def until(what, true):
    end = time.monotonic() + LIMIT
    while not true():
        assert time.monotonic() < end, f"{what}\n" + "\n".join(text_of(log) for _, log in running)
        time.sleep(0.01)


def ended(process, log):
    """The output of a process, which has to end well."""
    status = process.wait(LIMIT)
    assert status == 0, f"{status}: {text_of(log)}"
    return text_of(log)


def bridge(name, address):
    sh(f"ip link add {name} type bridge; ip address add {address} dev {name}; ip link set {name} up")


def daemon(*options):
    process, log = start(WEFT, "daemon", *options)
    until("the daemon is ready", lambda: "ready at" in text_of(log))
    return process, log


def container(name, on, address, *command, inside=(), script=PROGRAMS / "container.sh", **how):
    """Runs a command in a container on a bridge, whose address is .1 of the same network."""
    gateway = address.rsplit(".", 1)[0] + ".1"
    words = ("sh", str(script), name, on, f"{address}/24", gateway)
    return start(*inside, *words, *command, **how)


def under_weft(*command):
    return (WEFT, "run", "--stats", "--", *command)


def serves(name, on, address, folder, weft=True, port=8000):
    """A web server in a container, which serves a folder."""
    command = (sys.executable, "-u", "-m", "http.server", "--bind", address, str(port))
    command = under_weft(*command) if weft else command
    process, log = container(name, on, address, *command, cwd=folder)
    until("the server is ready", lambda: "Serving HTTP" in text_of(log))
    return process, log


def fetch(url, target, *options):
    return ("curl", "-sS", "--fail", "--max-time", str(LIMIT), "-o", str(target), *options, url)


def folder_with_a_file(name, size=BYTES):
    folder = DIRECTORY / name
    folder.mkdir()
    (folder / "file").write_bytes(os.urandom(size))
    return folder


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def over(kind, output):
    """Connections and received bytes over the fabric or TCP, by the table of --stats."""
    line = re.search(rf"^{kind} +(\d+) +\S+ \S+ +(\S+) (\S+)$", output, re.M)
    assert line, output
    unit = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9}
    return int(line[1]), float(line[2]) * unit[line[3]]


def over_fabric(output, size=BYTES):
    connections, received = over("fabric", output)
    # Bytes that the server wrote before both ends agreed are on TCP: the kernel holds tens of
    # megabytes.
    assert connections == 1 and received > 0.1 * size, output


def over_tcp(output):
    assert over("fabric", output)[0] == 0 and over("tcp", output)[0] == 1, output


def crossed():
    """How many connections the daemon found between namespaces."""
    status = subprocess.run(
        [WEFT, "status", "--json"], check=True, timeout=LIMIT, stdout=subprocess.PIPE
    )
    services = {one["name"]: one for one in json.loads(status.stdout)["services"]}
    return {one["name"]: one["value"] for one in services["connections"]["counters"]}["crossed"]


# --- the cases -----------------------------------------------------------------------------------


def bridged():
    """Two containers on a bridge, and one and the host."""
    bridge("br0", "10.0.0.1/24")
    daemon("--daemon-allow", ROOT)
    folder = folder_with_a_file("served")
    serves("server", "br0", "10.0.0.2", folder)
    url, got = "http://10.0.0.2:8000/file", DIRECTORY / "got"
    client = ended(*container("client", "br0", "10.0.0.3", *under_weft(*fetch(url, got))))
    assert digest(got) == digest(folder / "file")
    over_fabric(client)
    assert crossed() == 1
    client = ended(*start(*under_weft(*fetch(url, DIRECTORY / "host"))))
    assert digest(DIRECTORY / "host") == digest(folder / "file")
    over_fabric(client)
    assert crossed() == 2


def redis():
    """A redis in a container, asked from another one."""
    bridge("br0", "10.0.0.1/24")
    daemon("--daemon-allow", ROOT)
    options = ("--bind", "10.0.0.2", "--protected-mode", "no", "--save", "", "--dir", "/run")
    server = under_weft("redis-server", *options)
    _, log = container("server", "br0", "10.0.0.2", *server)
    until("redis is ready", lambda: "Ready to accept connections" in text_of(log))
    bench = ("redis-benchmark", "-h", "10.0.0.2", "-c", "1", "-n", "5000", "-t", "get", "-q")
    client = ended(*container("client", "br0", "10.0.0.3", *under_weft(*bench)))
    assert over("fabric", client)[0] >= 1 and over("fabric", client)[1] > 5000, client


def unrelated():
    """Two networks with the same addresses, which nothing joins."""
    daemon("--daemon-allow", ROOT)
    for network in ("one", "two"):
        bridge(f"br-{network}", "10.0.0.1/24")
    folders = {network: folder_with_a_file(network) for network in ("one", "two")}
    # Both ends of each network under weft: each gets its own bytes, over the fabric.
    url, port = "http://10.0.0.2:8000/file", ("--local-port", "40000")
    for network, folder in folders.items():
        serves(f"server-{network}", f"br-{network}", "10.0.0.2", folder)
    clients = {}
    for network in folders:
        command = under_weft(*fetch(url, DIRECTORY / f"got-{network}", *port))
        clients[network] = container(f"client-{network}", f"br-{network}", "10.0.0.3", *command)
    for network, client in clients.items():
        over_fabric(ended(*client))
        assert digest(DIRECTORY / f"got-{network}") == digest(folders[network] / "file")
    assert crossed() == 2


def strangers():
    """As before, but only one end of each connection is under weft: a client in one network and a
    server in the other one, with the same four addresses and ports at the same time."""
    daemon("--daemon-allow", ROOT)
    for network in ("one", "two"):
        bridge(f"br-{network}", "10.0.0.1/24")
    folders = {network: folder_with_a_file(network, BYTES // 2) for network in ("one", "two")}
    serves("server-one", "br-one", "10.0.0.2", folders["one"], weft=False)
    _, log = serves("server-two", "br-two", "10.0.0.2", folders["two"])
    # Slow enough that both connections are there at once, and both ends are offered.
    slowly = ("--local-port", "40000", "--limit-rate", "48M")
    commands = {
        network: fetch("http://10.0.0.2:8000/file", DIRECTORY / f"got-{network}", *slowly)
        for network in folders
    }
    commands["one"] = under_weft(*commands["one"])
    clients = {}
    for network, command in commands.items():
        clients[network] = container(f"client-{network}", f"br-{network}", "10.0.0.3", *command)
    until("both ends are offered", lambda: waiting() == 2)
    outputs = {network: ended(*client) for network, client in clients.items()}
    for network, folder in folders.items():
        assert digest(DIRECTORY / f"got-{network}") == digest(folder / "file")
    over_tcp(outputs["one"])
    assert crossed() == 0, text_of(log)


def waiting():
    status = subprocess.run(
        [WEFT, "status", "--json"], check=True, timeout=LIMIT, stdout=subprocess.PIPE
    )
    return json.loads(status.stdout)["waiting"]


def forged():
    """A socket with the addresses and the sequence numbers of another's connection, made by root of
    a user namespace. Made by the host's root, in a namespace of the host's, it passes for that
    connection's end, so the forgery is a good one."""
    bridge("br0", "10.0.0.1/24")
    daemon("--daemon-allow", "any")
    folder = folder_with_a_file("served")
    serves("server", "br0", "10.0.0.2", folder)
    room = """
        ip link add d0 type veth peer name d1
        ip link set d1 up
        ip link set d0 up
        ip address add 10.0.0.3/24 dev d0
        ip neigh add 10.0.0.2 lladdr 02:00:00:00:00:01 dev d0
        exec "$@"
    """
    own_network = ("unshare", "--net", "--", "sh", "-euc", room, "sh")
    own_users = ("unshare", "--user", "--map-root-user", *own_network[1:])
    script = str(PROGRAMS / "forger.py")
    for port, namespaces, passes in (("40000", own_users, 0), ("40001", own_network, 1)):
        words = (sys.executable, script, "client", "10.0.0.2", "8000", port)
        _, log = container(f"client-{port}", "br0", "10.0.0.3", *words)
        until("the numbers are told", lambda: "numbers" in text_of(log))
        numbers = text_of(log).split()[1:3]
        until("the server offers its end", lambda: waiting() == 1)
        ends = ("10.0.0.3", port, "10.0.0.2", "8000", *numbers)
        words = under_weft(sys.executable, script, "forge", *ends)
        forger = start(*namespaces, *words, stdin=subprocess.PIPE)
        done = (lambda: crossed() == 1) if passes else (lambda: waiting() == 2)
        until("the forger offers its end", done)
        forger[0].stdin.close()
        assert "forged" in ended(*forger)
        assert crossed() == passes, text_of(forger[1])
        sh(f"ip netns delete client-{port}")
        running[-2][0].kill()
        until("the server is done", lambda: waiting() == 0)


def translated():
    """A port of the host leads to a container, and the host's address stands for its clients."""
    bridge("br-in", "10.1.0.1/24")
    bridge("br-out", "10.2.0.1/24")
    pathlib.Path("/proc/sys/net/ipv4/ip_forward").write_text("1\n", encoding="utf-8")
    rules = """
        table ip nat {
            chain prerouting {
                type nat hook prerouting priority dstnat
                ip daddr 10.2.0.1 tcp dport 80 dnat to 10.1.0.2:8000
            }
            chain output {
                type nat hook output priority -100
                ip daddr 10.2.0.1 tcp dport 80 dnat to 10.1.0.2:8000
            }
            chain postrouting {
                type nat hook postrouting priority srcnat
                oifname "br-in" masquerade
            }
        }
    """
    probe = "table ip probe { chain one { type nat hook prerouting priority -100; }; }\n"
    done = subprocess.run(["nft", "-f", "-"], input=probe, text=True, capture_output=True)
    if done.returncode != 0:
        print("skipped: the kernel does not translate addresses here: " + done.stderr)
        return
    subprocess.run(["nft", "-f", "-"], input=rules, text=True, check=True)
    daemon("--daemon-allow", ROOT)
    folder = folder_with_a_file("served")
    _, log = serves("server", "br-in", "10.1.0.2", folder)
    got = DIRECTORY / "got"
    command = under_weft(*fetch("http://10.2.0.1:80/file", got))
    client = ended(*container("client", "br-out", "10.2.0.3", *command))
    assert "10.1.0.1 - -" in text_of(log), "the server sees the host's address"
    assert digest(got) == digest(folder / "file")
    over_fabric(client)
    assert crossed() == 1
    # From the host, whose socket has the same address at both ends.
    client = ended(*start(*under_weft(*fetch("http://10.2.0.1:80/file", got))))
    assert digest(got) == digest(folder / "file")
    over_fabric(client)
    assert crossed() == 2


def closed():
    """Nobody may join from a container unless daemon.allow says so; its connections are on TCP."""
    bridge("br0", "10.0.0.1/24")
    daemon("--daemon-allow", "1000,@1000")
    folder = folder_with_a_file("served", 1 << 20)
    serves("server", "br0", "10.0.0.2", folder)
    command = under_weft(*fetch("http://10.0.0.2:8000/file", DIRECTORY / "got"))
    client = ended(*container("client", "br0", "10.0.0.3", *command))
    assert digest(DIRECTORY / "got") == digest(folder / "file")
    over_tcp(client)
    assert "daemon.allow names neither user 0" in client, client
    # Root of a container is not root of the daemon.
    process, log = container("other", "br0", "10.0.0.4", WEFT, "down")
    assert process.wait(LIMIT) != 0 and "daemon.allow" in text_of(log), text_of(log)
    assert crossed() == 0


def rootless():
    """Containers that a user makes, in a user namespace without the host's root."""
    user = "1000"
    daemon("--daemon-allow", user)
    # Copies, since the user may not reach the places of the originals.
    files = DIRECTORY / "files"
    files.mkdir()
    for file in (WEFT, pathlib.Path(WEFT).parent / "libweft_preload.so", PROGRAMS / "container.sh"):
        shutil.copy(file, files)
    files.chmod(0o755)
    DIRECTORY.chmod(0o755)
    be_user = ("setpriv", "--reuid", user, "--regid", user, "--clear-groups")
    namespaces = ("unshare", "--user", "--map-root-user", "--net", "--mount")
    # The names of this user's network namespaces are in a /run of its own.
    room = """
        mount --bind /run/weft /mnt
        mount -t tmpfs tmpfs /run
        mkdir /run/weft
        mount --move /mnt /run/weft
        ip link add br0 type bridge
        ip address add 10.0.0.1/24 dev br0
        ip link set br0 up
        echo ready
        exec sleep 99
    """
    holder, log = start(*be_user, *namespaces, "--", "sh", "-euc", room, cwd="/")
    until("the user namespace is ready", lambda: "ready" in text_of(log))
    inside = ("nsenter", "-t", str(holder.pid), "--user", "--net", "--mount", "--")

    def runs(name, address, trust, *command):
        named = {"WEFT_DAEMON_SOCKET": "/run/weft/default.sock", "WEFT_DAEMON_TRUST_UID": trust}
        weft = (str(files / "weft"), "run", "--stats", "--", *command)
        how = {"inside": inside, "script": files / "container.sh", "cwd": "/"}
        return container(name, "br0", address, *weft, **how, env=os.environ | named)

    unmapped = pathlib.Path("/proc/sys/kernel/overflowuid").read_text(encoding="utf-8").strip()
    options = ("--bind", "10.0.0.2", "--protected-mode", "no", "--save", "", "--dir", "/run")
    _, log = runs("server", "10.0.0.2", unmapped, "redis-server", *options)
    until("redis is ready", lambda: "Ready to accept connections" in text_of(log))
    bench = ("redis-benchmark", "-h", "10.0.0.2", "-c", "1", "-n", "5000", "-t", "get", "-q")
    client = ended(*runs("client", "10.0.0.3", unmapped, *bench))
    assert over("fabric", client)[0] >= 1 and over("fabric", client)[1] > 5000, client
    assert crossed() >= 1
    # Without the option nothing shows that it is the host's root who listens there.
    client = ended(*runs("other", "10.0.0.4", "0", *bench))
    assert over("fabric", client)[0] == 0 and "is not used" in client, client
    assert "daemon.trust_uid" in client, client


def main():
    case = globals()[sys.argv[2]]
    try:
        case()
    finally:
        for process, _ in reversed(running):
            process.kill()
            process.wait(LIMIT)
    print("all of it")


main()
