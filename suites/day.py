#!/usr/bin/env python3
"""A day in the life: services of several kinds and short clients of three users, under weft.

    suites/day.py                    an hour
    suites/day.py --minutes 5        another time
    suites/day.py --without-weft     the same on plain TCP, which tells a mistake of this script
    suites/day.py --seed N           another order of what happens
    suites/day.py --install          installs the services from Debian first

nginx, PostgreSQL, redis, MariaDB, a service in Python, one in Node.js and sshd run all the time,
and so do some lasting connections. Each of three users does one short thing after the other, as
cron would: all that comes back is compared. Meanwhile the daemon is killed or ended and started
anew, and clients are killed amid a transfer. Nothing else may fail. Memory and descriptors of the
services are sampled: what they have in the last quarter is compared with what they had in the
second.

Needs root. Exit status: 0 when nothing failed and nothing grew, 1 otherwise, 2 for wrong arguments.
"""

import argparse
import hashlib
import os
import random
import signal
import statistics
import sys
import threading
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "matrix"))

import harness  # noqa: E402  (it is the matrix's)
from harness import Failed, Mode, Node, check, find, free_port, python, same  # noqa: E402
from programs import nginx, openssh, postgresql, redis  # noqa: E402
from run import install  # noqa: E402

USERS = ("daemon", "bin", "games")
PACKAGES = (
    *nginx.PACKAGES, *openssh.PACKAGES, *postgresql.PACKAGES, *redis.PACKAGES,
    "mariadb-server", "mariadb-client", "nodejs",
)
SAMPLE_EVERY = 5
RESTART_EVERY = (15, 45)
KILL_EVERY = (4, 12)
# A service may have so much more in the last quarter than in the second: of memory a part and some
# megabytes, since allocators and caches fill slowly, of descriptors some that are in use just then.
MEMORY_PART, MEMORY_BYTES, DESCRIPTORS = 0.1, 8 << 20, 12

# A connection that lasts: questions of many sizes, each answer compared.
LASTING = """
import random, signal, socket, sys, time
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
s = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
stream, source, turns = s.makefile("rb"), random.Random(sys.argv[2]), 0
while not stop:
    value = source.randbytes(int(10 ** source.uniform(0, 5.5)))
    name = b"lasting:" + sys.argv[2].encode()
    for words in ((b"SET", name, value), (b"GET", name)):
        s.sendall(b"*%d\\r\\n" % len(words)
                  + b"".join(b"$%d\\r\\n%s\\r\\n" % (len(word), word) for word in words))
    assert stream.readline() == b"+OK\\r\\n"
    assert stream.readline() == b"$%d\\r\\n" % len(value)
    assert stream.read(len(value) + 2) == value + b"\\r\\n", "another value"
    turns += 1
    time.sleep(source.uniform(0, 0.05))
print(turns)
"""


class Services:
    """Everything that runs all the time, and what a short client can do with each."""

    def __init__(self, node):
        self.node = node
        self.file, self.digest = node.random_file("www/file", 3_000_000)
        self.running = {}
        self.running["nginx"], self.web = nginx.start(node)
        self.cluster = postgresql.Cluster(node)
        self.running["PostgreSQL"] = self.cluster.server
        self.cluster.pgbench("-i", "-q", "-s", 2)
        self.running["redis"], self.redis = redis.start(node, "redis")
        self.mariadb()
        self.python = free_port()
        self.running["Python"] = node.server(
            python(), "-m", "http.server", "-b", "127.0.0.1", "-d", self.file.parent, self.python,
            port=self.python,
        )
        self.node_js = free_port()
        script = harness.SOURCES / "echo.js"
        self.running["Node.js"] = node.server(
            find("node"), script, "http", self.node_js, self.file, port=self.node_js
        )
        self.running["sshd"], self.ssh = openssh.start(node)
        # ssh minds who else can read a key of the user's own alone.
        (node.directory / "client_key").chmod(0o644)

    def mariadb(self):
        directory, self.sql = self.node.directory / "mariadb", free_port()
        directory.mkdir()
        own = ("--no-defaults", f"--datadir={directory}", "--user=root")
        by_password = "--auth-root-authentication-method=normal"
        self.node.plain(find("mariadb-install-db"), *own, by_password)
        self.running["MariaDB"] = self.node.server(
            find("mariadbd"), *own, f"--socket={directory}/s", "--bind-address=127.0.0.1",
            f"--port={self.sql}", port=self.sql, limit=60,
        )
        for user in USERS:
            self.mysql("root", f"create user '{user}'@'%'; grant all on *.* to '{user}'@'%'")

    def mysql(self, name, sql, user=None):
        """The answer of MariaDB to its user `name`; `user` runs the client."""
        words = ("-h", "127.0.0.1", "-P", self.sql, "-u", name, "-N", "-e", sql)
        client = self.node.client(find("mariadb"), "--no-defaults", *words, user=user)
        return client.stdout.strip()

    # Short clients do one of these; each is given its user and a source of chance.

    def fetch(self, user, chance):
        port = chance.choice((self.web, f"http://127.0.0.1:{self.python}"))
        got = self.node.client("curl", "-sSf", f"{port}/file", user=user, limit=30)
        same(hashlib.sha256(got.stdout_bytes).hexdigest(), self.digest, "SHA-256 of a download")

    def fetch_from_node_js(self, user, chance):
        got = self.node.client("curl", "-sSf", f"http://127.0.0.1:{self.node_js}/", user=user)
        same(hashlib.sha256(got.stdout_bytes).hexdigest(), self.digest, "SHA-256 from Node.js")

    def many_pages(self, user, chance):
        url = f"{self.web}/small.txt?[1-{chance.randint(1, 200)}]"
        got = self.node.client("curl", "-sSf", url, user=user)
        same(set(got.stdout.splitlines()), {"some bytes"}, "lines of small pages")

    def ask_redis(self, user, chance):
        value = chance.randbytes(chance.randint(1, 20_000)).hex()
        client = (find("redis-cli"), "-p", self.redis)
        self.node.client(*client, "set", user, value, user=user)
        same(self.node.client(*client, "get", user, user=user).stdout.strip(), value, "a value")

    def load_redis(self, user, chance):
        self.node.client(
            find("redis-benchmark"), "-p", self.redis, "-n", 5000, "-c", chance.randint(1, 20),
            "-t", "set,get", "-q", user=user,
        )

    def select(self, user, chance):
        number = chance.randint(1, 100_000)
        sql = f"select repeat('{user}', {number % 3000}) || {number}"
        answer = self.cluster.psql(sql, user=user)
        same(answer, user * (number % 3000) + str(number), "what PostgreSQL answers")

    def transactions(self, user, chance):
        self.cluster.pgbench("-n", "-c", chance.randint(1, 6), "-t", 30, user=user)

    def select_from_mariadb(self, user, chance):
        number = chance.randint(1, 5000)
        answer = self.mysql(user, f"select repeat('x', {number})", user)
        same(answer, "x" * number, "what MariaDB answers")

    def by_ssh(self, user, chance):
        number = chance.randint(1, 100_000)
        client = (find("ssh"), "-F", self.ssh, "root@127.0.0.1")
        got = self.node.client(*client, f"seq {number}", user=user)
        same(got.stdout.count("\n"), number, "lines by ssh")

    def short(self):
        return (
            self.fetch, self.fetch_from_node_js, self.many_pages, self.ask_redis, self.load_redis,
            self.select, self.transactions, self.select_from_mariadb, self.by_ssh,
        )

    def victim(self, chance):
        """A client that takes long, to be killed."""
        slowly = ("curl", "-sS", "--limit-rate", "2M", "-o", "/dev/null")
        load = (find("redis-benchmark"), "-p", self.redis, "-n", 10_000_000, "-q")
        bench = (find("pgbench"), "-n", "-S", "-T", 60, "-c", 3, "postgres")
        of_nginx = (*slowly, f"{self.web}/file")
        of_python = (*slowly, f"http://127.0.0.1:{self.python}/file")
        words = chance.choice((of_nginx, of_python, load, bench))
        user = chance.choice(USERS)
        return self.node.start_client(*words, env=self.cluster.environment(), user=user)


class Day:
    """The events of the day, and their counters."""

    def __init__(self, node, minutes, seed):
        self.node, self.seed, self.seconds = node, seed, minutes * 60
        self.services, self.over = Services(node), threading.Event()
        self.done, self.failures, self.restarts, self.kills = {}, [], 0, 0
        # By service: seconds, bytes of memory, descriptors.
        self.samples = {}

    def run(self):
        lasting = [
            self.node.start_client(python(), "-c", LASTING, self.services.redis, user, user=user)
            for user in USERS
        ]
        self.began = time.monotonic()
        workers = [threading.Thread(target=self.cron, args=(user,)) for user in USERS]
        workers.append(threading.Thread(target=self.kill_clients))
        if self.node.mode is Mode.BOTH:
            workers.append(threading.Thread(target=self.restart_daemon))
        for worker in workers:
            worker.start()
        while time.monotonic() - self.began < self.seconds:
            time.sleep(min(SAMPLE_EVERY, self.seconds))
            self.sample()
            self.show()
            dead = [name for name, server in self.services.running.items() if not server.alive()]
            dead += [program.shown for program in lasting if not program.alive()]
            if dead:
                self.failures.append(f"ended by themselves: {dead}")
                break
        self.over.set()
        for worker in workers:
            worker.join()
        for program in lasting:
            self.try_(lambda program=program: self.lasted(program))
        self.try_(lambda: self.services.cluster.consistent())
        print(file=sys.stderr)

    def lasted(self, program):
        self.node.stop(program)
        check(program.process.returncode == 0, program.report())
        check(int(program.stdout) > 10, "a lasting connection did next to nothing")

    def try_(self, act):
        try:
            act()
        except Failed as failure:
            self.failures.append(str(failure))
        except Exception:  # a mistake of this script is a failure, too
            self.failures.append(traceback.format_exc())

    def cron(self, user):
        chance = random.Random(f"{self.seed} {user}")
        while not self.over.wait(chance.uniform(0, 0.3)):
            act = chance.choice(self.services.short())
            self.try_(lambda: act(user, chance))
            self.done[act.__name__] = self.done.get(act.__name__, 0) + 1
            self.node.discard()

    def kill_clients(self):
        chance = random.Random(f"{self.seed} kill")
        while not self.over.wait(chance.uniform(*KILL_EVERY)):
            victim = self.services.victim(chance)
            self.over.wait(chance.uniform(0, 1))
            children = harness.descendants(victim.pid)
            for pid in (*children, victim.pid):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            victim.wait(10)
            for pid in children:
                try:
                    # They have lost their parent, and are ours.
                    os.waitpid(pid, 0)
                except ChildProcessError:
                    pass
            self.kills += 1
            self.node.discard()

    def restart_daemon(self):
        chance = random.Random(f"{self.seed} daemon")
        while not self.over.wait(chance.uniform(*RESTART_EVERY)):
            how = chance.choice((signal.SIGKILL, signal.SIGTERM))
            self.try_(lambda: self.node.restart_daemon(how, chance.uniform(0, 2)))
            self.restarts += 1

    def sample(self):
        watched = {name: server.pid for name, server in self.services.running.items()}
        if self.node.mode is Mode.BOTH:
            watched["weft daemon"] = self.node.daemon_pid
        for name, pid in watched.items():
            memory, descriptors = measured([pid, *harness.descendants(pid)])
            now = time.monotonic() - self.began
            self.samples.setdefault(name, []).append((now, memory, descriptors))

    def show(self):
        left = max(0, self.seconds - (time.monotonic() - self.began))
        done, failed = sum(self.done.values()), len(self.failures)
        text = f"{done} done, {failed} failed, {left / 60:.1f} min left"
        print(f"\r{text}   ", end="", file=sys.stderr, flush=True)

    def growth(self):
        """A line for each service, and what grew."""
        lines, grew = [], []
        for name, samples in self.samples.items():
            quarter = self.seconds / 4
            second = [one for one in samples if quarter <= one[0] < 2 * quarter] or samples[:1]
            last = [one for one in samples if one[0] >= 3 * quarter] or samples[-1:]
            # The median, since sessions come and go.
            (memory, open_), (memory_last, open_last) = (
                [statistics.median(one[place] for one in part) for place in (1, 2)]
                for part in (second, last)
            )
            lines.append(
                f"{name:12} {memory / 1e6:8.1f} {memory_last / 1e6:8.1f} MB"
                f" {open_:6.0f} {open_last:6.0f} descriptors"
            )
            if memory_last > memory * (1 + MEMORY_PART) + MEMORY_BYTES:
                grew.append(f"memory of {name}")
            if open_last > open_ + DESCRIPTORS:
                grew.append(f"descriptors of {name}")
        return lines, grew


def measured(pids):
    """Bytes of memory that are a process's own, and descriptors, of all of them together."""
    memory = descriptors = 0
    for pid in pids:
        try:
            own = Path(f"/proc/{pid}/smaps_rollup").read_text().split("Pss:")[1].split()[0]
            descriptors += len(os.listdir(f"/proc/{pid}/fd"))
            memory += int(own) << 10
        except (OSError, IndexError):
            continue  # it ended meanwhile
    return memory, descriptors


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--without-weft", action="store_true")
    parser.add_argument("--install", action="store_true")
    parser.add_argument("--weft", default=ROOT / "target/release/weft")
    options = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("needs root, to be several users")
    if options.minutes <= 0:
        parser.error("--minutes must be above 0")
    harness.become_reaper()
    if options.install:
        install(PACKAGES)
    node = Node(options.weft, Mode.NEITHER if options.without_weft else Mode.BOTH)
    try:
        day = Day(node, options.minutes, options.seed)
        day.run()
        day.failures += node.close()
    except harness.Skip as skip:
        sys.exit(f"{skip}; --install installs what is missing")
    finally:
        harness.kill_descendants()
    lines, grew = day.growth()
    share = node.statistics.share
    print(f"{options.minutes:g} minutes, seed {options.seed}")
    done = ", ".join(f"{name} {count}" for name, count in sorted(day.done.items()))
    print(f"short clients: {done}")
    print(f"daemon started anew {day.restarts} times, {day.kills} clients killed")
    print("on the fabric: " + ("-" if share is None else f"{share:.1%} of all bytes counted"))
    print("\n".join(["service, its second quarter, its last:", *lines]))
    for failure in day.failures:
        print(f"FAILED: {failure}")
    for what in grew:
        print(f"GREW: {what}")
    node.remove()
    print("nothing failed, nothing grew" if not day.failures and not grew else "see above")
    sys.exit(1 if day.failures or grew else 0)


if __name__ == "__main__":
    main()
