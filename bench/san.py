#!/usr/bin/env python3
"""Files on block targets of two back-end hosts, copied between two front-end hosts (002).

san.py [--weft PATH] [--megabytes 256] [--files 500]

Four hosts are network namespaces on one switch, joined by key: store1 and store2 serve a LUN each
over the fabric, front1 and front2 attach them. Each LUN has an ext4 file system, mounted without
the kernel's help (nbdfuse, fuse2fs). `weft cp` takes the files of front1 to front2. All of it is
compared at the end. One command, as root; it prints a table. Needs libnbd-bin, nbdfuse, fuse2fs,
e2fsprogs, fio.
"""

import argparse
import contextlib
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HOSTS = ["store1", "front1", "front2", "store2"]
IQN = "iqn.2026-11.example.weft:san"
LUN_BYTES = 1 << 30
LIMIT = 300


def parsed():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--weft", default="weft")
    parser.add_argument("--megabytes", type=int, default=256, help="the large file")
    parser.add_argument("--files", type=int, default=500, help="small ones, of 16 KiB each")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    return parser.parse_args()


class Host:
    """A network namespace with a daemon of the fabric."""

    def __init__(self, weft, name, number, directory):
        self.weft, self.name, self.address = weft, name, f"10.9.0.{number}"
        self.home = directory / name
        self.home.mkdir()
        self.started = []
        run("ip", "netns", "add", name)
        run("ip", "link", "add", f"v{name}", "master", "switch", "type", "veth", "peer", "name",
            "eth0", "netns", name)
        run("ip", "link", "set", f"v{name}", "up")
        for words in (["link", "set", "lo", "up"],
                      ["address", "add", f"{self.address}/24", "dev", "eth0"],
                      ["link", "set", "eth0", "up"]):
            run("ip", "-n", name, *words)

    def start(self, *words, ready=None, in_network=True):
        """Starts a program in its network, or outside: mounts that others shall see."""
        log = open(self.home / f"log{len(self.started)}", "w+", encoding="utf-8")
        environment = {**os.environ, "WEFT_DAEMON_SOCKET": str(self.home / "n.sock"),
                       "XDG_CONFIG_HOME": str(self.home)}
        before = ["ip", "netns", "exec", self.name] if in_network else []
        process = subprocess.Popen([*before, *map(str, words)],
                                   stdout=log, stderr=subprocess.STDOUT, env=environment)
        self.started.append(process)
        path = pathlib.Path(log.name)
        if ready is not None:
            until(lambda: ready(path.read_text(encoding="utf-8")),
                  lambda: f"{words}: {path.read_text(encoding='utf-8')}", process)
        return process, path

    def run(self, *words):
        process, path = self.start(*words)
        status = process.wait(LIMIT)
        text = path.read_text(encoding="utf-8")
        assert status == 0, f"{words}: {status}: {text}"
        return text


def run(*words):
    ended = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert ended.returncode == 0, f"{words}: {ended.stdout}{ended.stderr}"
    return ended.stdout


def until(is_true, about, process=None):
    end = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < end and (process is None or process.poll() is None), about()
        time.sleep(0.02)


def await_service(host, store):
    """Waits until a host knows the service of a store."""
    def is_known():
        nodes = json.loads(host.run(host.weft, "fabric", "nodes", "--json"))["nodes"]
        numbers = [node["number"] for node in nodes if node["name"] == store]
        offers = json.loads(host.run(host.weft, "status", "--json"))["offers"]
        return any(offer["name"] == "block.3260" and offer["node"] in numbers for offer in offers)
    until(is_known, lambda: f"{host.name} does not know {store}")


def fio(host, url, rw):
    """MB/s of one MiB at a time, eight at once."""
    told = host.run("fio", "--name=x", "--ioengine=nbd", f"--uri={url}", f"--rw={rw}", "--bs=1M",
                    "--iodepth=8", "--size=512M", "--output-format=json")
    job = json.loads(told[told.index("{"):])["jobs"][0]
    return job["write" if rw == "write" else "read"]["bw_bytes"] / 1e6


def mounted(host, url):
    """Makes a file system on an export, and mounts it."""
    nbd, files = host.home / "nbd", host.home / "files"
    disk = nbd / "disk"
    for directory in (nbd, files):
        directory.mkdir()
    process, path = host.start("nbdfuse", disk, url, in_network=False)
    until(lambda: disk.exists() and disk.stat().st_size == LUN_BYTES,
          lambda: path.read_text(encoding="utf-8"), process)
    run("mkfs.ext4", "-q", "-F", "-E", "nodiscard,lazy_itable_init=1", str(disk))
    process, path = host.start("fuse2fs", "-f", "-o", "fakeroot", disk, files,
                               in_network=False)
    until(lambda: (files / "lost+found").exists(), lambda: path.read_text(encoding="utf-8"),
          process)
    return files


def fill(files, options):
    randomness = random.Random(3)
    with open(files / "large", "wb") as file:
        for _ in range(options.megabytes):
            file.write(randomness.randbytes(1 << 20))
    for number in range(options.files):
        directory = files / f"d{number % 10}"
        directory.mkdir(exist_ok=True)
        (directory / f"f{number}").write_bytes(randomness.randbytes(16 << 10))


def copied(front, key, source, target):
    began = time.monotonic()
    front.run(front.weft, "cp", "-a", "--exclude", "lost+found", "--key", key, source,
              f"weft://{target}")
    return time.monotonic() - began


def inside(options):
    directory = pathlib.Path(options.inside)
    weft = options.weft
    run("mount", "-t", "tmpfs", "tmpfs", "/run")
    run("ip", "link", "add", "switch", "type", "bridge")
    run("ip", "link", "set", "switch", "up")
    key = directory / "key"
    key.touch(0o600)
    key.write_text(run(weft, "fabric", "key"), encoding="utf-8")
    hosts = {}
    try:
        for number, name in enumerate(HOSTS, 1):
            hosts[name] = host = Host(weft, name, number, directory)
            seeds = ["--fabric-seeds", "10.9.0.1:7700"] if number > 1 else []
            host.start(weft, "daemon", "--node", name, "--fabric-key", key, "--fabric-listen",
                       f"{host.address}:7700", "--shm-copy", "nontemporal", *seeds,
                       ready=lambda text: "ready at" in text)
        rows, files = [], {}
        for store, front in (("store1", "front1"), ("store2", "front2")):
            host = hosts[front]
            hosts[store].start(
                weft, "block", "serve", "--listen", "weft:3260", "--target", IQN, "--lun",
                f"0=mem:{LUN_BYTES}", "--control", hosts[store].home / "control", "--state",
                hosts[store].home / "state", ready=lambda text: "offered" in text)
            await_service(host, store)
            path = host.home / "disk.nbd"
            host.start(weft, "block", "attach", f"weft://{hosts[store].address}/{IQN}/0", "--nbd",
                       f"unix:{path}", ready=lambda text: "serving at" in text)
            url = f"nbd+unix:///?socket={path}"
            rows.append((f"{front} writes a LUN of {store}", fio(host, url, "write")))
            rows.append((f"{front} reads a LUN of {store}", fio(host, url, "read")))
            files[front] = mounted(host, url)
        fill(files["front1"], options)
        port = f"{hosts['front2'].address}:7710"
        hosts["front2"].start(weft, "transfer", "serve", "--listen", port, "--root",
                              files["front2"], "--key", key,
                              ready=lambda text: "7710" in text)
        seconds = copied(hosts["front1"], key, files["front1"] / "large", f"{port}/large")
        large = options.megabytes * 1.048576
        rows.append(("weft cp of a large file, disk to disk", large / seconds))
        small = options.files * (16 << 10) / 1e6
        source = f"{files['front1']}/."
        (files["front2"] / "all").mkdir()
        seconds = copied(hosts["front1"], key, source, f"{port}/all")
        rows.append((f"weft cp of all, {options.files} small files as well",
                     (large + small) / seconds))
        run("diff", "-r", "--exclude=lost+found", "--exclude=all", str(files["front1"]),
            str(files["front2"] / "all"))
        run("cmp", str(files["front1"] / "large"), str(files["front2"] / "large"))
        print("all bytes are the same at both ends\n")
        print(f"{'step':48} {'MB/s':>8}")
        for name, rate in rows:
            print(f"{name:48} {rate:8.0f}")
    except BaseException:
        for log in sorted(directory.glob("*/log*")):
            print(f"--- {log}\n{log.read_text(encoding='utf-8')[-600:]}", file=sys.stderr)
        raise
    finally:
        for host in reversed(list(hosts.values())):
            for process in reversed(host.started):
                if process.poll() is None:
                    process.send_signal(signal.SIGTERM)
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(10)
                process.kill()


def main():
    options = parsed()
    if options.inside:
        return inside(options)
    options.weft = shutil.which(options.weft) or sys.exit("there is no weft; name it by --weft")
    for tool in ("nbdfuse", "fuse2fs", "mkfs.ext4", "fio", "ip", "unshare"):
        if not shutil.which(tool):
            sys.exit(f"{tool} is missing; its package of Debian has this or a similar name")
    with tempfile.TemporaryDirectory() as directory:
        words = ["unshare", "--mount", "--propagation", "private", "--net", "--", sys.executable,
                 __file__, "--weft", options.weft, "--inside", directory, "--megabytes",
                 str(options.megabytes), "--files", str(options.files)]
        return subprocess.run(words, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
