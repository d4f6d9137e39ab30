#!/usr/bin/env python3
"""Copies with `weft cp` and its peers, and prints wall time, rate, and processor time of both ends.

  bench/transfer.py                 weft alone
  bench/transfer.py --peers         beside cp, rsync's daemon, rsync and scp by ssh, rclone and
                                    globus-url-copy, those that are there
  bench/transfer.py --size 1        a file of 1 GiB in place of 4

From memory to memory (/dev/shm), over the loopback where there is a network. Medians of 3 runs behind
one that warms up. Rows of both directions count the bytes of both. Processor time is that of the
children of this program, so servers are its children, too.
"""
import argparse, os, shlex, shutil, socket, statistics, subprocess, sys, tempfile, time

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
parser.add_argument("--weft", default="target/release/weft")
parser.add_argument("--peers", action="store_true")
parser.add_argument("--size", type=float, default=4, help="GiB of the large file")
parser.add_argument("--files", type=int, default=20_000, help="small files of 16 KiB")
parser.add_argument("--runs", type=int, default=3)
parser.add_argument("--only", default="", help="rows with this in their name")
arguments = parser.parse_args()
WEFT = os.path.abspath(arguments.weft)
TOP = tempfile.mkdtemp(prefix="weft-bench-", dir="/dev/shm")
BACK = f"{TOP}/back"
TICKS = os.sysconf("SC_CLK_TCK")
BOTH = "both directions"
running = []


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as one:
        return one.getsockname()[1]


def await_port(port):
    """Waits until a server listens."""
    end = time.monotonic() + 20
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            assert time.monotonic() < end, f"nobody listens at port {port}"
            time.sleep(0.05)


def start_sshd(sshd):
    """A server of ssh with a key of its own, and the options that lead to it."""
    key, port = f"{TOP}/ssh-key", free_port()
    if not os.path.exists(key):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
        shutil.copy(f"{key}.pub", f"{TOP}/authorized")
    os.makedirs("/run/sshd", exist_ok=True)
    words = [f"HostKey={key}", f"Port={port}", "ListenAddress=127.0.0.1", "StrictModes=no",
             f"AuthorizedKeysFile={TOP}/authorized", "PidFile=none", "PermitRootLogin=yes",
             "UsePAM=no", "Subsystem=sftp internal-sftp"]
    server = start(sshd, "-D", "-f", "/dev/null",
                   *[word for one in words for word in ("-o", one)])
    await_port(port)
    return server, ["-p", str(port), "-i", key, "-o", "StrictHostKeyChecking=no", "-o",
                    "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR"]


def processor(server):
    """Seconds of this program's ended children, and of a server that runs."""
    times = os.times()
    total = times.children_user + times.children_system
    for pid in below(server.pid) if server else []:
        try:
            with open(f"/proc/{pid}/stat") as file:
                fields = file.read().rsplit(")", 1)[1].split()
            total += sum(map(int, fields[11:15])) / TICKS
        except OSError:
            pass
    return total


def below(pid):
    """A process, its children, theirs, and so on."""
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True).stdout
    return [pid, *(one for child in found.split() for one in below(int(child)))]


def start(*command, **how):
    """Starts a server, which ends with this program at the latest."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **how}
    running.append(subprocess.Popen(command, **quiet))
    return running[-1]


def end(server):
    server.terminate()
    try:
        server.wait(5)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def bytes_below(directory):
    return sum(os.stat(os.path.join(top, one)).st_size
               for top, _, names in os.walk(directory) for one in names)


def measure(name, command, destination, bytes_, files, server=None):
    if arguments.only not in name:
        return
    walls, costs = [], []
    for run in range(arguments.runs + 1):
        # A server keeps the directory open, so it stays.
        subprocess.run(["find", destination, BACK, "-mindepth", "1", "-delete"], check=True)
        before, begin = processor(server), time.monotonic()
        ended = subprocess.run(command, capture_output=True, text=True)
        wall = time.monotonic() - begin
        cost = processor(server) - before
        if ended.returncode != 0:
            print(f"{name:<44} failed: {ended.stderr.strip()[-100:]}")
            return
        copied = bytes_below(destination) + bytes_below(BACK)
        assert copied == bytes_, f"{name}: {copied} bytes arrived of {bytes_}"
        if run > 0:
            walls.append(wall)
            costs.append(cost)
    wall, cost = statistics.median(walls), statistics.median(costs)
    print(f"{name:<44} {wall:8.3f} s {bytes_ / wall / 1e6:9.0f} MB/s {files / wall:9.0f} files/s "
          f"{cost / (bytes_ / 1e9):7.2f} CPU s/GB")
    sys.stdout.flush()


def servers():
    """Names, commands that take a source and a destination below `there`, and servers."""
    there = f"{TOP}/there"
    port = free_port()
    os.environ["WEFT_DAEMON_SOCKET"] = f"{TOP}/n.sock"
    daemon = start(WEFT, "daemon", stderr=subprocess.PIPE, text=True)
    while "ready at" not in daemon.stderr.readline():
        assert daemon.poll() is None, "the daemon ended"
    server = start(WEFT, "transfer", "serve", "--listen", f"127.0.0.1:{port}", "--root", TOP,
                   stderr=subprocess.PIPE, text=True)
    server.stderr.readline()
    url = f"weft://127.0.0.1:{port}"

    def weft(*options):
        return lambda source: [WEFT, "cp", "-a", *options, source, f"{url}/there"]

    def both(*options):
        """The same, and at the same time the source comes back from the server."""
        def command(source):
            ways = [(source, f"{url}/there"), (f"{url}/{os.path.basename(source)}", BACK)]
            there, back = (shlex.join([WEFT, "cp", "-a", *options, *way]) for way in ways)
            return ["sh", "-c", f"{there} & first=$!; {back} && wait $first"]
        return command

    yield "weft cp, fabric", weft("--transport", "fabric"), server
    yield f"weft cp, fabric, {BOTH}", both("--transport", "fabric"), server
    yield "weft cp, fabric, not verified", weft("--transport", "fabric", "--no-verify"), server
    yield "weft cp, TCP", weft("--transport", "tcp"), server
    yield f"weft cp, TCP, {BOTH}", both("--transport", "tcp"), server
    yield "weft cp, TCP, 4 streams", weft("--transport", "tcp", "--streams", "4"), server
    yield "weft cp, TCP, not verified", weft("--transport", "tcp", "--no-verify"), server
    end(server)
    end(daemon)
    if not arguments.peers:
        return
    if shutil.which("rsync"):
        port = free_port()
        with open(f"{TOP}/rsyncd.conf", "w") as file:
            file.write(f"uid = 0\ngid = 0\nuse chroot = no\n[x]\npath = {there}\nread only = no\n")
        server = start("rsync", "--daemon", "--no-detach", f"--port={port}",
                       "--address=127.0.0.1", f"--config={TOP}/rsyncd.conf")
        await_port(port)
        yield "rsync -aW, daemon", lambda source: ["rsync", "-aW", source,
                                                   f"rsync://127.0.0.1:{port}/x/"], server
        end(server)
    sshd = shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin")
    if sshd and shutil.which("scp"):
        server, options = start_sshd(sshd)
        yield "scp -r", lambda source: ["scp", "-q", "-r", "-P", options[1], *options[2:], source,
                                        f"127.0.0.1:{there}/"], server
        if shutil.which("rsync"):
            rsh = "ssh " + " ".join(options)
            yield "rsync -aW, ssh", lambda source: ["rsync", "-aW", "-e", rsh, source,
                                                    f"127.0.0.1:{there}/"], server
        end(server)
    if shutil.which("globus-url-copy") and shutil.which("globus-gridftp-server"):
        port = free_port()
        server = start("globus-gridftp-server", "-p", str(port), "-aa", "-anonymous-user", "root",
                       "-allow-root", "-ipc-interface", "127.0.0.1")
        await_port(port)

        def globus(source):
            slash = "/" if os.path.isdir(source) else ""
            options = ["-r", "-pp", "-cc", "4"] if slash else ["-fast", "-p", "4"]
            name = os.path.basename(source)
            return ["globus-url-copy", "-cd", *options, f"file://{source}{slash}",
                    f"ftp://127.0.0.1:{port}{there}/{name}{slash}"]

        yield "globus-url-copy, 4 streams", globus, server
        end(server)


try:
    # The source, and what both directions make of it.
    needed, free = 3 * arguments.size + 1, shutil.disk_usage(TOP).free / (1 << 30)
    if needed > free:
        sys.exit(f"/dev/shm has {free:.1f} GiB, and {needed:.1f} are needed: mount -o "
                 f"remount,size={needed + 1:.0f}g /dev/shm, or give a smaller --size")
    large, small = f"{TOP}/large", f"{TOP}/small"
    size = int(arguments.size * 1024) << 20
    with open(large, "wb") as file:
        part = os.urandom(1 << 20)
        for _ in range(size >> 20):
            file.write(part)
    os.makedirs(small)
    for index in range(arguments.files):
        if index % 1000 == 0:
            os.makedirs(f"{small}/{index // 1000}")
        with open(f"{small}/{index // 1000}/{index}", "wb") as file:
            file.write(part[:16 << 10])
    print(f"# {arguments.size:g} GiB in a file; {arguments.files} files of 16 KiB; "
          f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}")
    here = f"{TOP}/there"
    sources = [(large, size, 1), (small, arguments.files << 14, arguments.files)]
    for source, bytes_, files in sources:
        kind = os.path.basename(source)
        local = [("weft cp, one host", [WEFT, "cp", "-a", source, here]),
                 ("weft cp, one host, not verified", [WEFT, "cp", "-a", "--no-verify", source,
                                                      here])]
        if arguments.peers:
            local.append(("cp -a", ["cp", "-a", source, here]))
            if shutil.which("rclone"):
                # It copies what is in a directory.
                to = f"{here}/{kind}" if os.path.isdir(source) else here
                local.append(("rclone copy, one host", ["rclone", "copy", "--config",
                                                        f"{TOP}/rclone.conf", source, to]))
        for directory in (here, BACK):
            os.makedirs(directory, exist_ok=True)
        for name, command in local:
            measure(f"{kind}: {name}", command, here, bytes_, files)
        for name, command, server in servers():
            ways = 2 if BOTH in name else 1
            measure(f"{kind}: {name}", command(source), here, ways * bytes_, ways * files, server)
        shutil.rmtree(here, ignore_errors=True)
finally:
    for server in running:
        server.kill()
    shutil.rmtree(TOP, ignore_errors=True)
