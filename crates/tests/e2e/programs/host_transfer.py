"""Files that move between joined hosts: host_transfer.py WEFT CASE DIRECTORY.

As hosts.py, whose machine this has, too.
"""

import json
import os
import random
import signal
import time

from two_hosts import DIRECTORY, LIMIT, WEFT, hosts, run_case, sh, sh_text, text_of, until

MIB = 1 << 20


def fill(path, size):
    generator = random.Random(size)
    with open(path, "wb") as file:
        for _ in range(0, size, MIB):
            file.write(generator.randbytes(MIB))


def serve(host, root):
    """A server for hosts of the fabric alone, as it has no key."""
    server, log = host.start(WEFT, "transfer", "serve", "--listen", "0.0.0.0:7799", "--root", root)
    until("the server is ready", lambda: "serving" in text_of(log))
    assert "over the fabric alone" in text_of(log), text_of(log)
    until("libfabric is loaded ahead", lambda: "libfabric" in maps(server), 20)
    return server


def maps(process):
    with open(f"/proc/{process.pid}/maps", encoding="utf-8") as file:
        return file.read()


def kill(process):
    """Kills a program inside a namespace: it has the number of the command that led there."""
    os.kill(process.pid, signal.SIGKILL)
    process.wait(LIMIT)


def there(top):
    """Bytes that lie in temporary files."""
    files = [os.path.join(where, name) for where, _, names in os.walk(top) for name in names]
    return sum(os.stat(file).st_blocks * 512 for file in files if file.endswith(".part"))


def by_a_user(one, two, words, src):
    """A user of a server shows a key over TCP, and the bytes go over the fabric behind that."""
    key = one.run(WEFT, "fabric", "key")
    (DIRECTORY / "ann.key").write_text(key)
    os.makedirs(DIRECTORY / "users/ann")
    users = DIRECTORY / "users.toml"
    users.write_text(f'[ann]\nkey = "{key.strip()}"\nroot = "ann"\n')
    users.chmod(0o600)
    log = two.start(WEFT, "transfer", "serve", "--listen", "0.0.0.0:7798", "--root",
                    DIRECTORY / "users", "--users", users)[1]
    until("the server is ready", lambda: "serving" in text_of(log))
    words = (*words, "--key", str(DIRECTORY / "ann.key"))
    for name, way, choice in (("x", "fabric", "auto"), ("y", "fabric", "fabric"),
                              ("z", "tls", "tcp")):
        shown = json.loads(one.run(*words, "--transport", choice, f"{src}/a",
                                   f"weft://10.9.0.2:7798/{name}"))
        assert shown["transport"] == way, shown
        sh(f"diff -r {src}/a {DIRECTORY}/users/ann/{name}")


def over_sessions(one, words, src, root):
    """Three sessions carry the blocks of one copy, each over an endpoint of its own."""
    client, log = one.start(*words, "--streams", "3", "--bwlimit", "12M", f"{src}/large",
                            "weft://10.9.0.2:7799/three")

    def carriers():
        told = json.loads(one.run(WEFT, "status", "--json"))
        puts = [endpoint["registers"].get("puts", 0) for endpoint in told["endpoints"]]
        return sum(count > 8 for count in puts)

    until("three endpoints put blocks", lambda: carriers() == 3, 20)
    assert client.wait(LIMIT) == 0, text_of(log)
    shown = json.loads(text_of(log))
    assert shown["transport"] == "fabric" and shown["streams"] == 3, shown
    sh(f"cmp {src}/large {root}/three")


def over_rails(one, by_shell, src):
    """A second cable between the hosts carries the blocks of every other session."""
    sh("ip link add second1 netns host1 type veth peer name second2 netns host2")
    for n in (1, 2):
        sh(f"ip -n host{n} address add 10.8.0.{n}/24 dev second{n};"
           f"ip -n host{n} link set second{n} up")

    def carried():
        links = [json.loads(sh_text(f"ip -n host1 -j -s link show {link}"))[0]["stats64"]
                 for link in ("cable1", "second1")]
        return [link["tx"]["bytes"] + link["rx"]["bytes"] for link in links]

    for sources in (f"{src}/large", f"host2:{src}/large"):
        before, copy = carried(), str(DIRECTORY / "railed")
        there = f"host2:{copy}" if sources.startswith("/") else copy
        shown = json.loads(one.run(*by_shell, "--rails", "10.9.0.1,10.8.0.1", sources, there))
        assert shown["transport"] == "fabric" and shown["streams"] == 2, shown
        assert "by way of 10.9.0.1 and 10.8.0.1" in shown["why"], shown
        moved = [now - then for now, then in zip(carried(), before)]
        # Blocks go where there is room, so none has exactly half of them.
        assert min(moved) > 4 * MIB and sum(moved) > 24 * MIB, moved
        sh(f"cmp {src}/large {copy}; rm {copy}")


def transfer():
    """A tree to a server of the other host, by its name, and back by a shell that leads there. Both
    ends are killed amid a transfer, which goes on."""
    one, two = hosts()
    for name in ("src/a/b", "root"):
        os.makedirs(DIRECTORY / name)
    src, root = str(DIRECTORY / "src"), str(DIRECTORY / "root")
    fill(f"{src}/large", 24 * MIB)
    for index in range(300):
        with open(f"{src}/a/b/{index}", "wb") as file:
            file.write(os.urandom(index * 11))
    server = serve(two, root)
    words = (WEFT, "cp", "-a", "--json", "--block-size", "256K")
    until("it is offered", lambda: "transfer.7799" in one.run(WEFT, "status"))
    shown = json.loads(one.run(*words, src, "weft://10.9.0.2:7799/x"))
    assert shown["transport"] == "fabric" and "libfabric puts blocks" in shown["why"], shown
    sh(f"diff -r {src} {root}/x")
    shell = DIRECTORY / "rsh"
    # A shell to the other host: into its network, with its daemon.
    shell.write_text(f"#!/bin/sh\nshift\nexport WEFT_DAEMON_SOCKET={two.home}/n.sock\n"
                     "exec ip netns exec host2 \"$@\"\n")
    shell.chmod(0o755)
    by_shell = (*words, "--rsh", str(shell), "--weft-path", WEFT)
    shown = json.loads(one.run(*by_shell, "--streams", "2", f"host2:{root}/x",
                               str(DIRECTORY / "back")))
    assert shown["transport"] == "fabric" and shown["streams"] == 2, shown
    sh(f"diff -r {src} {DIRECTORY}/back")
    over_sessions(one, words, src, root)
    over_rails(one, by_shell, src)
    by_a_user(one, two, words, src)
    for turn, kills_server in enumerate((True, False)):
        place = f"weft://10.9.0.2:7799/large{turn}"
        client, log = one.start(*words, "--bwlimit", "30M", f"{src}/large", place)
        until("some of it is there", lambda: there(root) > 4 * MIB)
        assert client.poll() is None, text_of(log)
        kill(server if kills_server else client)
        if kills_server:
            begun = time.monotonic()
            assert client.wait(LIMIT) == 2, text_of(log)
            assert time.monotonic() - begun < 10, "it is told"
            assert "goes on from here" in text_of(log), text_of(log)
            # The end of the other program is said, and not that of its memory.
            assert "not valid" not in text_of(log), text_of(log)
            server = serve(two, root)
            until("it is offered", lambda: "transfer.7799" in one.run(WEFT, "status"))
        ended = []

        def goes_on():
            again, log = one.start(*words, f"{src}/large", place)
            ended.append((again.wait(LIMIT), text_of(log)))
            return ended[-1][0] == 0

        # The end that is left may still have the former transfer.
        until("it goes on", goes_on, 20)
        shown = json.loads(ended[-1][1])
        assert shown["transport"] == "fabric" and shown["resumed"] > 3 * MIB, shown
        sh(f"cmp {src}/large {root}/large{turn}")


run_case(globals())
