"""The two hosts of hosts.py: their network, their daemons, and what runs on them."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

WEFT, DIRECTORY = sys.argv[1], pathlib.Path(sys.argv[3])
LIMIT = 150
# Shorter than the default, so that a case of silence is soon over.
SILENCE_MS = 2000
# As where a firewall lets these through alone.
DATA_PORTS = range(7710, 7790)
running = []


def sh(text):
    subprocess.run(["sh", "-euc", text], check=True, timeout=LIMIT)


def sh_text(text):
    return subprocess.run(["sh", "-euc", text], check=True, timeout=LIMIT, capture_output=True,
                          text=True).stdout


def text_of(log):
    return pathlib.Path(log.name).read_text(encoding="utf-8")


def until(what, true, limit=LIMIT):
    end = time.monotonic() + limit
    while not true():
        assert time.monotonic() < end, f"{what}\n" + "\n".join(text_of(log) for _, log in running)
        time.sleep(0.01)


class Host:
    """Number 1 or 2, with the address 10.9.0.1 or 10.9.0.2."""

    def __init__(self, number):
        self.number, self.name = number, f"host{number}"
        self.home = DIRECTORY / self.name
        self.home.mkdir()
        self.daemon = None

    def environment(self):
        socket_path = str(self.home / "n.sock")
        return {**os.environ, "WEFT_DAEMON_SOCKET": socket_path, "XDG_CONFIG_HOME": str(self.home),
                "WEFT_FABRIC_PORTS": f"{DATA_PORTS[0]}-{DATA_PORTS[-1]}"}

    def start(self, *command, **how):
        """Starts a command whose output goes to a file, which is returned with it."""
        log = open(DIRECTORY / f"log-{len(running)}", "w+", encoding="utf-8")
        command = ("ip", "netns", "exec", self.name, *command)
        how.setdefault("env", self.environment())
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, **how)
        running.append((process, log))
        return process, log

    def run(self, *command, limit=LIMIT, **how):
        process, log = self.start(*command, **how)
        status = process.wait(limit)
        assert status == 0, f"{command}: {status}: {text_of(log)}"
        return text_of(log)

    def start_daemon(self, *options):
        seeds = () if self.number == 1 else ("--fabric-seeds", "10.9.0.1:7700")
        self.daemon, log = self.start(
            WEFT, "daemon", "--fabric-key", str(DIRECTORY / "key"),
            "--fabric-listen", f"10.9.0.{self.number}:7700", *seeds,
            # It measures no copies, which keeps both processors busy.
            "--fabric-silence-ms", str(SILENCE_MS), "--shm-copy", "nontemporal", *options)
        until("the daemon is ready", lambda: "ready at" in text_of(log))

    def sees_both(self):
        """Whether the daemon says that both hosts are there. On a busy machine it may say it later
        than `weft` waits for its answer."""
        process, log = self.start(WEFT, "fabric", "nodes", "--json")
        if process.wait(LIMIT) != 0:
            assert "does not answer" in text_of(log), text_of(log)
            return False
        states = [node["state"] for node in json.loads(text_of(log))["nodes"]]
        return sorted(states) == ["self", "up"]

    def await_both(self):
        until("both are there", self.sees_both)

    def packets(self):
        """Packets that this host has sent over the cable."""
        link = f"ip -n {self.name} -j -s link show cable{self.number}"
        return json.loads(sh_text(link))[0]["stats64"]["tx"]["packets"]

    def measure(self, to, test, *options):
        return self.run(WEFT, "perf", test, "--to", str(to), "--json", "--runs", "2", *options)

    def serve(self, *options):
        options = options or ("--transport", "ofi")
        server, log = self.start(WEFT, "perf", "serve", *options)
        until("the server is ready", lambda: "serving node" in text_of(log))
        return server

    def measures(self):
        """Whether an endpoint of this host has a peer."""
        told = json.loads(self.run(WEFT, "status", "--json"))
        return any(endpoint["peers"] for endpoint in told["endpoints"])

    def endpoints(self):
        """The numbers of peers of this host's endpoints. One that calls a server is gone again when
        the measurement begins."""
        told = json.loads(self.run(WEFT, "status", "--json"))
        return sorted(endpoint["peers"] for endpoint in told["endpoints"])

    def have_met(self):
        """How many endpoints of this host have a peer."""
        return sum(peers > 0 for peers in self.endpoints())

    def passed(self):
        """How many ends of connections between hosts this host's daemon has helped."""
        told = json.loads(self.run(WEFT, "status", "--json"))
        counters = [counter for service in told["services"] for counter in service["counters"]]
        return sum(one["value"] for one in counters if one["name"] == "between_hosts")

    def listening(self):
        """The TCP ports of this host at which somebody listens."""
        lines = self.run("ss", "-ltnH").splitlines()
        return {int(line.split()[3].rpartition(":")[2]) for line in lines}

    def files(self):
        """How many descriptors the daemon has."""
        return len(os.listdir(f"/proc/{self.daemon.pid}/fd"))

    def memory_files(self):
        """How many files in memory the daemon holds."""
        place = f"/proc/{self.daemon.pid}/fd"
        links = []
        for name in os.listdir(place):
            with contextlib.suppress(FileNotFoundError):
                links.append(os.readlink(f"{place}/{name}"))
        return sum("memfd:" in link for link in links)

    def processes(self):
        """The processes in the network of this host."""
        listed = subprocess.run(["ip", "netns", "pids", self.name], check=True, capture_output=True)
        return [int(word) for word in listed.stdout.split()]


def hosts(*options):
    """Two hosts whose daemons have joined."""
    sh("ip netns add host1; ip netns add host2;"
       "ip link add cable1 netns host1 type veth peer name cable2 netns host2")
    both = [Host(1), Host(2)]
    for host in both:
        n = host.number
        sh(f"ip -n host{n} link set lo up; ip -n host{n} address add 10.9.0.{n}/24 dev cable{n};"
           f"ip -n host{n} link set cable{n} up")
    key = subprocess.run([WEFT, "fabric", "key"], check=True, capture_output=True).stdout
    with open(os.open(DIRECTORY / "key", os.O_CREAT | os.O_WRONLY, 0o600), "wb") as file:
        file.write(key)
    for host in both:
        host.start_daemon(*options)
    for host in both:
        host.await_both()
    return both


def run_case(cases, *arguments):
    """Runs the case that the command line names. It tells of the programs that were started last if
    the case fails, and ends all of them."""
    try:
        cases[sys.argv[2]](*arguments)
    except BaseException:
        # Looks at a daemon are many, and say little.
        told = [one for one in running if "status" not in one[0].args]
        for process, log in told[-12:]:
            print(f"--- {process.args}\n{text_of(log)[-3000:]}", flush=True)
        raise
    finally:
        for process, _ in running:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                process.kill()
    print("all of it")
