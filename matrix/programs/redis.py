"""redis: its benchmark, a snapshot under load, a replica, and a dump over the connection."""

import re
import signal
import time

from harness import Case, check, find, free_port, same

PACKAGES = ("redis-server", "redis-tools")
NEEDS = ("redis-server", "redis-cli", "redis-benchmark")


def start(node, name, *options, as_client=False):
    port = free_port()
    directory = node.directory / name
    directory.mkdir()
    argv = (
        find("redis-server"), "--port", port, "--bind", "127.0.0.1", "--save", "",
        "--appendonly", "no", "--dir", directory, *options,
    )
    if as_client:
        program = node.start_client(*argv)
        node.await_port(port, program)
    else:
        program = node.server(*argv, port=port)
    # It listens, and answers, while it still loads.
    node.await_text(program, "Ready to accept connections")
    return program, port


def ask(node, port, *words, client=True):
    run = node.client if client else node.plain
    return run(find("redis-cli"), "-p", port, *words).stdout.strip()


def fill(node, port, seed=7):
    """Values of many sizes, whose digest the server knows."""
    node.client(
        find("redis-benchmark"), "-p", port, "-t", "set,lpush,hset,zadd", "-n", 5000, "-r", 2000,
        "-d", 800, "-c", 8, "-q",
    )
    for length in (1, 100, 20_000, 3_000_000):
        value = (f"{seed}:{length}:" * length)[:length]
        path = node.write(f"value-{length}", value)
        with open(path, "rb") as file:
            node.finished(
                node.start_client(
                    find("redis-cli"), "-p", port, "-x", "set", f"value:{length}", stdin=file
                )
            )
        got = node.client(find("redis-cli"), "-p", port, "get", f"value:{length}").stdout
        # redis-cli ends a value with a line end.
        same(got, value + "\n", f"a value of {length} bytes")


def digest(node, port):
    found = ask(node, port, "debug", "digest", client=False)
    check(re.fullmatch("[0-9a-f]{40}", found) and int(found, 16), f"digest: {found}")
    return found


def benchmark(*options):
    def run(node):
        server, port = start(node, "a")
        client = node.client(
            find("redis-benchmark"), "-p", port, "-t", "set,get,lrange_100,mset", "-r", 1000,
            "--csv", *options,
        )
        check(client.stdout.count('"') >= 8, client.report())
        node.stop(server)

    return run


LOCAL = ("--enable-debug-command", "local")


def snapshot(node):
    """BGSAVE forks with all connections open; writes go on in the parent meanwhile."""
    server, port = start(node, "a", *LOCAL)
    fill(node, port)
    load = node.start_client(
        find("redis-benchmark"), "-p", port, "-t", "set", "-n", 150_000, "-r", 5000, "-d", 500,
        "-c", 20, "-q",
    )
    for _ in range(4):
        saved = ask(node, port, "lastsave", client=False)
        same(ask(node, port, "bgsave"), "Background saving started", "bgsave")
        end = time.monotonic() + 20
        while "rdb_bgsave_in_progress:1" in ask(node, port, "info", "persistence", client=False):
            check(time.monotonic() < end, "the snapshot takes too long")
            time.sleep(0.02)
        check(ask(node, port, "lastsave", client=False) >= saved, "no snapshot was made")
        check(
            "rdb_last_bgsave_status:ok" in ask(node, port, "info", "persistence", client=False),
            server.report(),
        )
        time.sleep(1.05)
    node.finished(load)
    wanted = digest(node, port)
    same(ask(node, port, "save"), "OK", "save")
    node.stop(server)
    # What was saved is what was there.
    again, port = start(node, "b", "--dir", node.directory / "a", *LOCAL)
    same(digest(node, port), wanted, "digest of what was loaded")
    node.stop(again)


def replica(how):
    def run(node):
        server, port = start(
            node, "a", "--repl-diskless-sync", how, "--repl-diskless-sync-delay", "0", *LOCAL
        )
        fill(node, port)
        replicaof = ("--replicaof", f"127.0.0.1 {port}")
        follower, other = start(node, "b", *replicaof, *LOCAL, as_client=True)
        synced(node, port, other)
        node.client(
            find("redis-benchmark"), "-p", port, "-t", "set", "-n", 20_000, "-r", 3000,
            "-d", 700, "-q",
        )
        synced(node, port, other)
        # The link is cut; it syncs again and is the same again.
        check(int(ask(node, port, "client", "kill", "type", "replica")) >= 1, "no replica was cut")
        ask(node, port, "set", "after", "the cut")
        synced(node, port, other)
        same(ask(node, other, "get", "after", client=False), "the cut", "a value on the replica")
        node.stop(follower)
        node.stop(server)

    return run


def synced(node, port, other):
    end = time.monotonic() + 30
    while True:
        state = ask(node, other, "info", "replication", client=False)
        up = "master_link_status:up" in state
        if up and digest(node, port) == ask(node, other, "debug", "digest", client=False):
            return
        check(time.monotonic() < end, f"the replica does not follow: {state}")
        time.sleep(0.1)


def dump(node):
    server, port = start(node, "a", *LOCAL)
    fill(node, port)
    wanted = digest(node, port)
    directory = node.directory / "b"
    directory.mkdir()
    node.client(find("redis-cli"), "-p", port, "--rdb", directory / "dump.rdb")
    node.stop(server)
    again, port = start(node, "c", "--dir", directory, *LOCAL)
    same(digest(node, port), wanted, "digest of the dump")
    node.stop(again)


def published(node):
    """A subscriber sleeps in a read for most of its time, beside short connections of others."""
    server, port = start(node, "a")
    listener = node.start_client(find("redis-cli"), "-p", port, "subscribe", "news")
    end = time.monotonic() + 10
    while ask(node, port, "pubsub", "numsub", "news", client=False) != "news\n1":
        check(time.monotonic() < end, listener.report())
        time.sleep(0.05)
    for number in range(100):
        same(ask(node, port, "publish", "news", f"item {number}", client=False), "1", "receivers")
    rest = node.write("rest", "".join(f"publish news item-{n}\n" for n in range(100, 10_000)))
    with open(rest, "rb") as file:
        node.client(find("redis-cli"), "-p", port, stdin=file)
    node.await_text(listener, "item-9999\n")
    got = re.findall(r"^item[ -](\d+)$", listener.stdout, re.M)
    same([int(number) for number in got], list(range(10_000)), "items")
    # The server is killed: the subscriber sees the end.
    pid = ask(node, port, "info", "server", client=False)
    node.plain("kill", "-KILL", re.search(r"process_id:(\d+)", pid)[1])
    node.stop(listener, signal.SIGINT)


CASES = [
    Case("redis benchmark, 1 client", benchmark("-c", 1, "-n", 3000), NEEDS),
    Case("redis benchmark, 50 clients", benchmark("-c", 50, "-n", 10_000, "-d", 1000), NEEDS),
    Case("redis benchmark, pipelines", benchmark("-c", 8, "-P", 32, "-n", 30_000), NEEDS),
    Case("redis BGSAVE under load", snapshot, NEEDS),
    Case("redis replica, from disk", replica("no"), NEEDS),
    Case("redis replica, diskless", replica("yes"), NEEDS),
    Case("redis-cli --rdb", dump, NEEDS),
    Case("redis publish", published, NEEDS, share=0.5),
]
