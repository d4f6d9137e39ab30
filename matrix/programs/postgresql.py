"""PostgreSQL: TPC-B with its sums, reads, many connections, copies, a standby, killed backends."""

import hashlib
import os
import shutil
import signal
import time
from functools import partial

from harness import Case, check, find, free_port, same, unprivileged_user

PACKAGES = ("postgresql-15", "postgresql-client-15")
NEEDS = ("initdb", "postgres", "psql", "pgbench")
SCALE = 2

CONFIGURATION = """
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
max_connections = 60
fsync = off
shared_buffers = 32MB
logging_collector = off
wal_level = replica
max_wal_senders = 4
"""


class Cluster:
    """A server with a directory of its own, run by a user who is not root."""

    def __init__(self, node):
        self.node, self.user, self.port = node, unprivileged_user("postgres"), free_port()
        self.data = node.directory / "cluster" / "data"
        self.data.parent.mkdir()
        if self.user:
            shutil.chown(self.data.parent, self.user, self.user)
        node.plain(
            find("initdb"), "-D", self.data, "-N", "-A", "trust", "-U", "postgres",
            "--locale=C", "-E", "UTF8", user=self.user, cwd=self.data.parent,
        )
        with open(self.data / "postgresql.conf", "a") as file:
            file.write(CONFIGURATION)
        self.start()

    def start(self):
        self.server = self.node.server(
            find("postgres"), "-D", self.data, "-p", self.port,
            port=self.port, user=self.user, cwd=self.data.parent,
        )
        self.node.await_text(self.server, "ready to accept")

    def environment(self):
        return {"PGHOST": "127.0.0.1", "PGPORT": str(self.port), "PGUSER": "postgres"}

    def pgbench(self, *options, **started):
        """pgbench as a client; no transaction may fail."""
        client = self.node.client(
            find("pgbench"), *options, "postgres", env=self.environment(), **started
        )
        check("aborted" not in client.stderr, client.report())
        return client

    def psql(self, sql, client=True, **options):
        run = self.node.client if client else self.node.plain
        return run(
            find("psql"), "-X", "-At", "-v", "ON_ERROR_STOP=1", "-d", "postgres", "-c", sql,
            env=self.environment(), **options,
        ).stdout.strip()

    def fill(self):
        self.pgbench("-i", "-q", "-s", SCALE)

    def consistent(self):
        """What pgbench's history adds up to is what the balances do, everywhere."""
        sums = self.psql(
            "select (select coalesce(sum(delta), 0) from pgbench_history),"
            " (select sum(abalance) from pgbench_accounts),"
            " (select sum(tbalance) from pgbench_tellers),"
            " (select sum(bbalance) from pgbench_branches),"
            " (select count(*) from pgbench_history)"
        ).split("|")
        check(len(set(sums[:4])) == 1, f"history, accounts, tellers, branches: {sums}")
        return int(sums[4])

    def stop(self):
        # INT: sessions that are open are ended.
        self.node.stop(self.server, signal.SIGINT, limit=30)
        same(self.server.process.returncode, 0, f"status of postgres {self.server.report()}")


def transactions(*options):
    def run(node):
        cluster = Cluster(node)
        cluster.fill()
        cluster.pgbench("-T", 3, *options)
        check(cluster.consistent() > 10, "next to no transaction was made")
        cluster.stop()

    return run


def exact(node):
    """A number of transactions that is known: none may be lost or made twice."""
    cluster = Cluster(node)
    cluster.fill()
    cluster.pgbench("-c", 5, "-t", 60)
    same(cluster.consistent(), 300, "transactions in the history")
    cluster.stop()


def reads(node):
    cluster = Cluster(node)
    cluster.fill()
    cluster.pgbench("-S", "-T", 3, "-c", 1)
    cluster.pgbench("-S", "-T", 3, "-c", 8, "-j", 2, "-M", "prepared")
    # A connection for each transaction.
    cluster.pgbench("-S", "-t", 30, "-c", 4, "-C")
    cluster.stop()


def many(node):
    cluster = Cluster(node)
    cluster.fill()
    cluster.pgbench("-S", "-T", 4, "-c", 50, "-j", 2)
    cluster.stop()


def copies(node):
    """Megabytes in and out by COPY, and a dump; the server computes the same digest."""
    cluster = Cluster(node)
    lines = [f"{n}\t{hashlib.sha256(str(n).encode()).hexdigest() * 4}\n" for n in range(100_000)]
    source = node.write("lines.txt", "".join(lines))
    os.chmod(source, 0o644)
    cluster.psql("create table lines (n integer, text text)")
    cluster.psql(f"\\copy lines from '{source}'")
    client = node.client(
        find("psql"), "-X", "-d", "postgres",
        "-c", "copy (select * from lines order by n) to stdout",
        env=cluster.environment(),
    )
    check(client.stdout_bytes == source.read_bytes(), "other lines came back")
    digest = cluster.psql("select md5(string_agg(n || text, '' order by n)) from lines")
    wanted = hashlib.md5("".join(line.strip().replace("\t", "") for line in lines).encode())
    same(digest, wanted.hexdigest(), "the server's digest")
    dump = node.client(find("pg_dump"), "-d", "postgres", env=cluster.environment())
    check("".join(lines[:1000]) in dump.stdout, "the dump lacks lines")
    cluster.stop()


def killed(node):
    """A backend is killed: PostgreSQL restarts all of them, clients are told, and it goes on."""
    cluster = Cluster(node)
    cluster.fill()
    load = node.start_client(
        find("pgbench"), "-T", "30", "-c", "4", "postgres", env=cluster.environment()
    )
    time.sleep(1.5)
    pid = cluster.psql(
        "select pid from pg_stat_activity where application_name = 'pgbench' limit 1", client=False
    )
    node.plain("kill", "-KILL", pid)
    check(load.wait(30) != 0, load.report())
    check("aborted" in load.stderr or "server closed" in load.stderr, load.report())
    node.await_text(cluster.server, "ready to accept", count=2)
    cluster.consistent()
    before = cluster.consistent()
    # -n: otherwise it empties the history first.
    cluster.pgbench("-n", "-c", 4, "-t", 20)
    same(cluster.consistent(), before + 80, "transactions after the restart")
    cluster.stop()


def terminated(node):
    """A session is ended by the server while the client waits for an answer."""
    cluster = Cluster(node)
    client = node.start_client(
        find("psql"), "-X", "-d", "postgres", "-c", "select pg_sleep(60)", env=cluster.environment()
    )
    sessions = "from pg_stat_activity where query like 'select pg_sleep%'"
    end = time.monotonic() + 10
    while cluster.psql(f"select count(*) {sessions}", client=False) != "1":
        check(time.monotonic() < end and client.alive(), client.report())
        time.sleep(0.1)
    cluster.psql(f"select pg_terminate_backend(pid) {sessions}")
    same(client.wait(10), 2, f"status of a session that was ended {client.report()}")
    check("terminating connection due to administrator command" in client.stderr, client.report())
    # And by the client, while the server works: a request that comes over a connection of its own.
    client = node.start_client(
        find("psql"), "-X", "-d", "postgres", "-c", "select pg_sleep(60)", env=cluster.environment()
    )
    while cluster.psql(f"select count(*) {sessions}", client=False) != "1":
        check(time.monotonic() < end + 10 and client.alive(), client.report())
        time.sleep(0.1)
    client.process.send_signal(signal.SIGINT)
    check(client.wait(10) != 0, client.report())
    check("canceling statement due to user request" in client.stderr, client.report())
    cluster.stop()


def standby(node):
    """A base backup, a standby that follows, and the same sums on both."""
    cluster = Cluster(node)
    cluster.fill()
    copy = cluster.data.parent / "copy"
    node.client(
        find("pg_basebackup"), "-D", copy, "-R", "-X", "stream", "-c", "fast",
        env=cluster.environment(), user=cluster.user, cwd=cluster.data.parent,
    )
    port = free_port()
    follower = node.start_client(
        find("postgres"), "-D", copy, "-p", port, user=cluster.user, cwd=cluster.data.parent
    )
    node.await_port(port, follower)
    cluster.pgbench("-T", 2, "-c", 4)
    count = cluster.consistent()
    end = time.monotonic() + 20
    other = partial(cluster.psql, client=False)
    last = other("select pg_current_wal_lsn()")
    there = cluster.environment() | {"PGPORT": str(port)}
    question = (
        f"select pg_last_wal_replay_lsn() >= '{last}', "
        "(select count(*) from pgbench_history), (select sum(delta) from pgbench_history)"
    )
    while True:
        asked = node.start(
            False, find("psql"), "-X", "-At", "-d", "postgres", "-c", question, env=there
        )
        asked.wait(20)
        if asked.stdout.startswith("t|"):
            break
        check(time.monotonic() < end and follower.alive(), asked.report() + follower.report())
        time.sleep(0.1)
    wanted = other("select true, count(*), sum(delta) from pgbench_history")
    same(asked.stdout.strip(), wanted, "history on the standby")
    check(f"|{count}|" in wanted, wanted)
    node.stop(follower, signal.SIGINT, limit=30)
    cluster.stop()


CASES = [
    Case("postgresql TPC-B, 1 client", transactions("-c", 1), NEEDS),
    Case("postgresql TPC-B, 8 clients", transactions("-c", 8, "-j", 2), NEEDS),
    Case("postgresql TPC-B, exact count", exact, NEEDS),
    Case("postgresql reads", reads, NEEDS),
    Case("postgresql 50 connections", many, NEEDS),
    Case("postgresql COPY and dump", copies, (*NEEDS, "pg_dump")),
    Case("postgresql backend killed", killed, NEEDS),
    Case(
        "postgresql session ended", terminated, NEEDS, share=0,
        note="sessions of some calls stay on TCP",
    ),
    Case("postgresql standby", standby, (*NEEDS, "pg_basebackup")),
]
