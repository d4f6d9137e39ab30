#!/usr/bin/env python3
"""A GlusterFS volume over the devices of a lab: two servers, a FUSE client, files compared.

    suites/storage.py                 500 files and one of 1 GB, written, read and compared
    suites/storage.py --megabytes N   another size of the large one
    suites/storage.py --install       installs GlusterFS from Debian first

The servers are in nodes 1 and 2, each with every file, the client in node 0. In the middle the
daemon that serves the devices is killed and started again, and the link to node 2 is cut and mended.
Needs root and /dev/fuse; no lab may be up.
"""

import argparse
import hashlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WEFT = ROOT / "target/release/weft"
NODES = 3
SERVERS = (1, 2)
FILES = 500
LIMIT = 300

# A server sees its own state where GlusterFS wants it, and nothing of that of others.
SERVER = """
set -e
mkdir -p /var/lib/glusterd /var/log/glusterfs
mount --bind "$1/state" /var/lib/glusterd
mount --bind "$1/log" /var/log/glusterfs
mount -t tmpfs none /run
mkdir -p /run/gluster
exec glusterd --no-daemon
"""


def call(*command, **options):
    print("$", " ".join(map(str, command)), flush=True)
    return subprocess.run(command, check=True, timeout=LIMIT, **options)


def weft(*arguments):
    call(WEFT, *arguments, stdout=subprocess.DEVNULL)


def gluster(server, *arguments, check=True):
    """A command to the server in a node, in its view of the machine."""
    enter = ["nsenter", "-t", str(server.pid), "-m", "-n", "-u"]
    command = [*enter, "gluster", "--mode=script", *map(str, arguments)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    if check and ended.returncode != 0:
        sys.exit(f"{' '.join(command)}: {ended.stdout}{ended.stderr}")
    return ended


def patiently(what, within=30):
    ends = time.monotonic() + within
    while not what():
        if time.monotonic() > ends:
            sys.exit(f"not within {within} s")
        time.sleep(0.2)


def digest(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write(directory, megabytes):
    """Files of many sizes and a large one; returns their digests by name."""
    numbers = random.Random(1)
    digests = {}
    for number in range(FILES):
        data = numbers.randbytes(int(2 ** numbers.uniform(0, 20)))
        name = f"{number % 10}/{number}"
        place = directory / name
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(data)
        digests[name] = hashlib.sha256(data).hexdigest()
        if number == FILES // 3:
            daemon_dies()
        if number == FILES // 2:
            weft("lab", "link", "n0", "n2", "down")
            weft("lab", "link", "n1", "n2", "down")
            time.sleep(1)
            weft("lab", "link", "n0", "n2", "up")
            weft("lab", "link", "n1", "n2", "up")
    block = numbers.randbytes(1 << 20)
    whole = hashlib.sha256()
    with open(directory / "large", "wb") as file:
        for number in range(megabytes):
            part = number.to_bytes(8, "big") + block[8:]
            file.write(part)
            whole.update(part)
        os.fsync(file.fileno())
    digests["large"] = whole.hexdigest()
    return digests


def daemon_dies():
    printed = subprocess.check_output([WEFT, "status", "--node", "lab", "--json"], text=True)
    os.kill(int(re.search(r'"pid": (\d+)', printed)[1]), signal.SIGKILL)
    time.sleep(0.5)
    weft("lab", "up", "--nodes", str(NODES))


def serve(node, directory):
    """The server of a node, which keeps everything below `directory`."""
    for part in ("state", "log", "brick"):
        (directory / part).mkdir(parents=True)
    command = [WEFT, "lab", "exec", f"n{node}", "--", "sh", "-c", SERVER, "sh", directory]
    server = subprocess.Popen(command, start_new_session=True)
    patiently(lambda: gluster(server, "pool", "list", check=False).returncode == 0)
    return server


def compare(megabytes, directory):
    servers = [serve(node, directory / f"n{node}") for node in SERVERS]
    mount = directory / "mount"
    mount.mkdir()
    first = servers[0]
    try:
        gluster(first, "peer", "probe", "n2")
        patiently(lambda: "Connected" in gluster(first, "peer", "status").stdout)
        bricks = [f"n{node}:{directory}/n{node}/brick" for node in SERVERS]
        gluster(first, "volume", "create", "v", "replica", 2, *bricks, "force")
        gluster(first, "volume", "start", "v")
        client = ["glusterfs", "--volfile-server=n1", "--volfile-id=v"]
        # Mounted for node 0 alone, in whose view the files are written and read.
        inside = [WEFT, "lab", "exec", "n0", "--"]
        work = [sys.executable, __file__, "--inside", str(mount), "--megabytes", str(megabytes)]
        log = f"--log-file={directory}/client.log"
        script = f'{" ".join(client)} {log} {mount} && exec "$@"'
        call(*inside, "sh", "-c", script, "sh", *work)
        for node in SERVERS:
            digests = (directory / "digests").read_text().split()
            for name, expected in zip(digests[::2], digests[1::2]):
                # A server heals the changes that it missed when somebody looks, as the client did.
                brick = directory / f"n{node}/brick" / name
                patiently(lambda: brick.exists() and digest(brick) == expected, 60)
            print(f"n{node} has all {len(digests) // 2} files as they were written", flush=True)
        call(WEFT, "lab", "status")
    finally:
        # Servers and client have processes of their own there, and so has the daemon that was
        # started again from there.
        for node in range(NODES):
            listed = ["ip", "netns", "pids", f"weft-n{node}"]
            for pid in subprocess.run(listed, capture_output=True, check=False).stdout.split():
                os.kill(int(pid), signal.SIGKILL)


def inside(mount, megabytes):
    """In node 0: writes, forgets what the kernel keeps, reads."""
    start = time.monotonic()
    digests = write(mount, megabytes)
    took = time.monotonic() - start
    print(f"{len(digests)} files written in {took:.1f} s", flush=True)
    Path("/proc/sys/vm/drop_caches").write_text("3")
    start = time.monotonic()
    wrong = [name for name, expected in digests.items() if digest(mount / name) != expected]
    print(f"read again in {time.monotonic() - start:.1f} s, {len(wrong)} differ", flush=True)
    listed = "".join(f"{name} {value}\n" for name, value in digests.items())
    (mount.parent / "digests").write_text(listed)
    sys.exit(1 if wrong else 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=1000, help="of the large file")
    parser.add_argument("--install", action="store_true", help="install GlusterFS from Debian")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        inside(arguments.inside, arguments.megabytes)
    if arguments.install:
        call("apt-get", "install", "-y", "-qq", "--no-install-recommends", "glusterfs-server")
    if not shutil.which("glusterd"):
        sys.exit("GlusterFS is not installed; --install installs it")
    call("cargo", "build", "--release", "-q", "-p", "weft-preload", "-p", "weft-cli", cwd=ROOT)
    weft("lab", "up", "--nodes", str(NODES))
    with tempfile.TemporaryDirectory(prefix="weft-storage-") as directory:
        try:
            compare(arguments.megabytes, Path(directory))
        finally:
            weft("lab", "down")
    print("storage: all files are what was written")


if __name__ == "__main__":
    main()
