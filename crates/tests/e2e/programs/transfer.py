"""Cases of `weft cp`: transfer.py WEFT CASE. Ends with the line "all of it" if all is well."""
import fcntl, glob, json, os, random, shutil, signal, socket, subprocess, sys, tempfile
import threading, time

WEFT = sys.argv[1]
MIB = 1 << 20
os.umask(0o022)


def weft(*words, code=0, within=60, **more):
    ended = subprocess.run([WEFT, "cp", *map(str, words)], capture_output=True, text=True,
                           timeout=within, errors="surrogateescape", **more)
    assert ended.returncode == code, (words, ended)
    return ended


def report(*words, code=0):
    return json.loads(weft("--json", *words, code=code).stdout)


def shell():
    """A remote shell that leads to this host, and the options that name it."""
    with open("rsh", "w") as file:
        file.write('#!/bin/sh\nshift\nexec "$@"\n')
    os.chmod("rsh", 0o755)
    return ["--rsh", os.path.abspath("rsh"), "--weft-path", WEFT]


def fill(path, size, seed=1):
    generator = random.Random(seed)
    with open(path, "wb") as file:
        while size > 0:
            file.write(generator.randbytes(min(size, MIB)))
            size -= MIB


def tree(top):
    """A tree with everything in it that `cp -a` keeps."""
    os.makedirs(f"{top}/a/b/c")
    os.makedirs(f"{top}/empty")
    fill(f"{top}/a/large", 5 * MIB + 77)
    for index in range(300):
        fill(f"{top}/a/b/{index}", index * 7, index)
    os.symlink("../nowhere", f"{top}/a/dangling")
    os.symlink("/etc", f"{top}/etc")
    os.link(f"{top}/a/large", f"{top}/empty/hard")
    os.mkfifo(f"{top}/fifo", 0o640)
    for name in (b"new\nline", b"\xff\xfe", b"n" * 255, b" ", b"-n", b"\\"):
        with open(os.path.join(top.encode(), name), "wb") as file:
            file.write(name)
    with open(f"{top}/holes", "wb") as file:
        file.truncate(64 * MIB)
        for at in (0, 3 * MIB + 5, 40 * MIB):
            file.seek(at)
            file.write(b"data")
    os.chmod(f"{top}/a/large", 0o4751)
    os.chmod(f"{top}/a/b/7", 0o000)
    os.chown(f"{top}/a/b/8", 1234, 2345)
    os.chown(f"{top}/etc", 1234, 2345, follow_symlinks=False)
    for path, name in ((f"{top}/a/b/9", "user.one"), (f"{top}/a", "user.two"),
                       (f"{top}/a/b/9", "trusted.three")):
        os.setxattr(path, name, b"value\0\xff" * 40)
    # user::rw-, user:1:r--, group::r--, mask::r--, other::r--
    acl = bytes.fromhex("02000000" "01000600ffffffff" "0200040001000000" "04000400ffffffff"
                        "10000400ffffffff" "20000400ffffffff")
    os.setxattr(f"{top}/a/b/10", "system.posix_acl_access", acl)
    for path in (f"{top}/a/b/11", f"{top}/a/dangling", f"{top}/a/b/c", f"{top}/a"):
        os.utime(path, ns=(981173106123456789, 981173106987654321), follow_symlinks=False)
    os.chmod(f"{top}/a/b/c", 0o2550)


def same(one, other):
    """Compares two trees by rsync and diff. `one` and `other` end in a slash."""
    judged = subprocess.run(["rsync", "-n", "-i", "-c", "-aHAX", "--delete", one, other],
                            capture_output=True, check=True)
    assert judged.stdout == b"", judged.stdout.decode(errors="replace")
    judged = subprocess.run(["diff", "-r", "--no-dereference", one, other], capture_output=True)
    other_lines = [line for line in judged.stdout.splitlines() if b"is a fifo" not in line]
    assert not other_lines, other_lines


def leftovers(top="."):
    return [name for _, _, names in os.walk(top) for name in names if name.startswith(".weft-")]


def here():
    tree("src")
    weft("-a", "src", "dst")
    same("src/", "dst/")
    assert os.stat("dst/holes").st_blocks < 200, "holes are holes"
    weft("-a", "src", "dst")
    same("src/", "dst/src/")
    os.mkdir("in")
    weft("-a", "src/.", "in")
    same("src/", "in/")
    # Over what is there, with other bytes and other kinds of things.
    fill("in/a/b/200", 10)
    os.remove("in/a/b/201")
    os.symlink("/etc/passwd", "in/a/b/201")
    weft("-a", "src/.", "in")
    same("src/", "in/")
    weft("-a", "--block-size", "4K", "--no-verify", "--no-resume", "src", "small")
    same("src/", "small/")
    assert leftovers() == []
    # Past the page cache: files of 1 MiB and more are read so, and those in pieces are written so.
    direct = os.path.join(tempfile.mkdtemp(dir="."), "dst")
    shown = report("-a", "--direct", "src", direct)
    same("src/", direct + "/")
    opened = os.open("src/a/large", os.O_RDONLY)
    try:
        fcntl.fcntl(opened, fcntl.F_SETFL, os.O_DIRECT)
        lets = True
    except OSError:
        lets = False
    os.close(opened)
    # Two files, read and written.
    assert shown["direct"] == (4 if lets else 0), shown["direct"]
    assert report("-a", "src", "usual")["direct"] == 0
    text = weft("-a", "--stats", "src", "again").stdout
    assert "opened for O_DIRECT    0 at this end" in text, text
    assert "local (both places are on this host)" in text, text
    # In memory no thread has a disk to stay near.
    assert "memory nodes           no thread of this end is bound" in text, text
    assert [one["node"] for one in shown["near"]] == [None] * 3, shown


def by_shell():
    tree("src")
    far = shell()
    weft("-a", *far, "src", f"host:{os.getcwd()}/there")
    same("src/", "there/")
    shown = report("-a", *far, f"host:{os.getcwd()}/there", "back")
    same("src/", "back/")
    assert shown["transport"] == "shell" and shown["status"] == 0, shown
    # Between two others: this process moves no bytes.
    shown = report("-a", *far, f"127.0.0.1:{os.getcwd()}/src", f"127.0.0.1:{os.getcwd()}/third")
    same("src/", "third/")
    assert shown["transport"] == "third-party", shown
    assert "nowhere" in weft("-a", *far, "host:/nowhere", "x", code=1).stderr
    assert "not reached" in weft("--rsh", "/nowhere/ssh", "rsh", "host:x", code=2).stderr
    with open("talks", "w") as file:
        file.write("#!/bin/sh\necho Welcome to this host\n")
    os.chmod("talks", 0o755)
    said = weft("--rsh", os.path.abspath("talks"), "rsh", "host:x", code=2).stderr
    assert "answers something else" in said, said
    assert leftovers() == []


def serving(*words):
    server = subprocess.Popen([WEFT, "transfer", "serve", "--listen", "127.0.0.1:0", *words],
                              stderr=subprocess.PIPE, text=True)
    line = server.stderr.readline()
    return server, "weft://" + line.strip().rsplit(" ", 1)[1]


def by_server():
    tree("src")
    os.mkdir("root")
    os.mkdir("outside")
    for name in ("key", "other"):
        with open(name, "w") as file:
            subprocess.run([WEFT, "fabric", "key"], stdout=file, check=True)
    refused = subprocess.run([WEFT, "transfer", "serve", "--listen", "0.0.0.0:0", "--root", "root"],
                             capture_output=True, text=True, timeout=20)
    assert refused.returncode == 1 and "a key is needed" in refused.stderr, refused
    server, url = serving("--root", "root", "--key", "key")
    try:
        shown = report("-a", "--key", "key", "--streams", "3", "src", url + "/x")
        same("src/", "root/x/")
        assert shown["transport"] == "tls" and shown["streams"] == 3, shown
        weft("-a", "--key", "key", url + "/x", "back")
        same("src/", "back/")
        told = weft("-a", "--key", "other", "src", url + "/y", code=2).stderr
        assert "does not accept the key" in told, told
        weft("-a", "src", url + "/y", code=2)
        # The server does not leave its directory, whatever links lie there.
        os.symlink(os.path.abspath("outside"), "root/out")
        os.symlink("/", "root/x/up")
        for place in ("/out", "/out/z", "/../outside", "/x/up/tmp/z"):
            weft("-a", "--key", "key", "src", url + place, code=2)
        for place in ("/out/.", "/../outside", "/x/up/etc/passwd"):
            weft("-a", "--key", "key", url + place, "stolen", code=2)
        os.mkdir("nest")
        os.mkdir("nest/x")
        os.mkdir("nest/x/up")
        fill("nest/x/up/planted", 10)
        told = weft("-a", "--key", "key", "nest/x", url, code=1).stderr
        assert "a link at the destination is in its way" in told, told
        assert os.listdir("outside") == [] and not os.path.exists("/planted")
    finally:
        server.kill()
        server.wait()
    server, url = serving("--root", "root", "--read-only")
    try:
        shown = report("-a", "--streams", "1", url + "/x/a", "read")
        same("src/a/", "read/")
        assert shown["transport"] == "tcp", shown
        assert "not written" in weft("src/fifo", url, code=2).stderr
    finally:
        server.kill()
        server.wait()
    assert leftovers() == [], leftovers()


def by_users():
    """Users of a server, each with a key, a directory and rights."""
    tree("src")
    os.makedirs("root/ann")
    keys = {}
    for name in ("ann", "bob", "stranger"):
        line = subprocess.run([WEFT, "fabric", "key"], capture_output=True, text=True, check=True)
        keys[name] = line.stdout.strip()
        with open(name, "w") as file:
            file.write(line.stdout)
    with open("users", "w") as file:
        file.write(f'[ann]\nkey = "{keys["ann"]}"\nroot = "ann"\n'
                   f'[bob]\nkey = "{keys["bob"]}"\nread-only = true\n')
    words = (WEFT, "transfer", "serve", "--listen", "0.0.0.0:0", "--root", "root", "--users")

    def refused(file):
        ended = subprocess.run([*words, file], capture_output=True, text=True, timeout=20)
        assert ended.returncode == 1, ended
        return ended.stderr

    os.chmod("users", 0o644)
    assert "others may read the keys" in refused("users")
    os.chmod("users", 0o600)
    with open(os.open("twice", os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
        file.write(f'[ann]\nkey = "{keys["ann"]}"\n[bob]\nkey = "{keys["ann"]}"\n')
    assert "user bob: ann has the same key" in refused("twice")
    assert "cannot be used with" in subprocess.run([*words, "users", "--key", "ann"],
                                                   capture_output=True, text=True).stderr
    server, url = serving("--root", "root", "--users", "users")
    try:
        shown = report("-a", "--key", "ann", "--streams", "3", "src", url + "/x")
        assert shown["transport"] == "tls" and shown["streams"] == 3, shown
        same("src/", "root/ann/x/")
        weft("-a", "--key", "ann", url + "/x", "hers")
        same("src/", "hers/")
        # A directory is not left, whatever lies beside it.
        os.mkdir("root/other")
        for place in ("/../other", "/ann/../../other"):
            weft("-a", "--key", "ann", "src", url + place, code=2)
        assert os.listdir("root/other") == []
        weft("-a", "--key", "bob", url + "/ann/x", "his")
        same("src/", "his/")
        assert "not written" in weft("-a", "--key", "bob", "src", url + "/y", code=2).stderr
        assert "not accept the key" in weft("--key", "stranger", "users", url, code=2).stderr
        weft("users", url, code=2)
        assert sorted(os.listdir("root")) == ["ann", "other"]
    finally:
        server.kill()
        server.wait()
    assert leftovers() == [], leftovers()


def fabric():
    """Two processes of one host over shared memory: by a shell, a server, and between two others.
    Either end is killed amid a transfer: the other one says so at once, and the same command goes
    on."""
    tree("src")
    far = shell()
    shown = report("-a", *far, "src", f"host:{os.getcwd()}/there")
    same("src/", "there/")
    assert shown["transport"] == "fabric" and "read into its memory" in shown["why"], shown
    shown = report("-a", *far, "--block-size", "4K", "--window", "64K",
                   f"host:{os.getcwd()}/there", "back")
    same("src/", "back/")
    assert shown["transport"] == "fabric" and shown["window_blocks"] <= 16, shown
    shown = report("-a", *far, "--transport", "tcp", "src", f"host:{os.getcwd()}/piped")
    assert shown["transport"] == "shell" and "fabric" not in shown["why"], shown
    shown = report("-a", *far, f"127.0.0.1:{os.getcwd()}/src", f"127.0.0.1:{os.getcwd()}/third")
    same("src/", "third/")
    assert shown["transport"] == "third-party" and "meet on the fabric" in shown["why"], shown
    os.mkdir("root")
    server, url = serving("--root", "root")
    shown = report("-a", "--transport", "fabric", "src", url + "/x")
    same("src/", "root/x/")
    assert shown["transport"] == "fabric", shown
    weft("-a", url + "/../src", "stolen", code=2)
    # Either end dies.
    fill("file", 24 * MIB)
    words = [WEFT, "cp", "-a", "--transport", "fabric", "--block-size", "256K", "--json"]
    for turn in range(4):
        pushes, kills_server = turn % 2 == 0, turn < 2
        if not os.path.exists("root/file"):
            shutil.copy2("file", "root/file")
        places = ["file", url + f"/copy{turn}"] if pushes else [url + "/file", f"copy{turn}"]
        streams = "2" if turn in (1, 2) else "1"
        running = subprocess.Popen([*words, "--streams", streams, "--bwlimit", "40M", *places],
                                   stdout=subprocess.PIPE, text=True)
        while part() < 4 * MIB:
            assert running.poll() is None, running.communicate()
            time.sleep(0.005)
        (server if kills_server else running).kill()
        if kills_server:
            begun = time.monotonic()
            told = json.loads(running.communicate(timeout=20)[0])
            assert time.monotonic() - begun < 5, "it is told at once"
            assert told["status"] == 2 and "goes on from here" in told["error"], told
            server.wait()
            server, url = serving("--root", "root")
            places = ["file", url + f"/copy{turn}"] if pushes else [url + "/file", f"copy{turn}"]
        running.wait()
        deadline = time.monotonic() + 10
        while True:
            # The end that is left may still hold the journal.
            ended = subprocess.run([*words, *places], capture_output=True, text=True, timeout=60)
            if ended.returncode == 0 or time.monotonic() > deadline:
                break
        shown = json.loads(ended.stdout)
        assert shown["status"] == 0 and shown["resumed"] > 3 * MIB, shown
        assert shown["resumed"] + shown["received"] == 24 * MIB, shown
        subprocess.run(["cmp", "file", f"root/copy{turn}" if pushes else f"copy{turn}"], check=True)
    server.kill()
    server.wait()
    assert "nobody offers" in weft("--transport", "fabric", "file", url + "/y", code=2).stderr
    assert leftovers() == [], leftovers()


def gone(pid):
    return not os.path.exists(f"/proc/{pid}") or "\nState:\tZ" in open(f"/proc/{pid}/status").read()


def third(way="both places are on other hosts"):
    """Between two others: stopped by Ctrl-C, without the one that asked, and without either end.
    Both ends stop each time, and the same command goes on."""
    fill("file", 24 * MIB)
    here = os.getcwd()
    words = [WEFT, "cp", "-a", *shell(), "--block-size", "256K", "--json"]
    places = [f"localhost:{here}/file", f"127.0.0.1:{here}/copy"]
    for ends in ("both", "asker", "target", "source"):
        running = subprocess.Popen([*words, "--bwlimit", "30M", *places], stdout=subprocess.PIPE,
                                   text=True)
        while part() < 4 * MIB:
            assert running.poll() is None, running.communicate()
            time.sleep(0.005)
        # The shell of the target is started first.
        children = subprocess.run(["pgrep", "-P", str(running.pid)], capture_output=True,
                                  text=True, check=True).stdout.split()
        target, source = sorted(map(int, children))
        if ends == "both":
            running.send_signal(signal.SIGINT)
        else:
            os.kill({"asker": running.pid, "target": target, "source": source}[ends],
                    signal.SIGKILL)
        begun = time.monotonic()
        told = running.communicate(timeout=20)[0]
        if ends != "asker":
            told = json.loads(told)
            assert told["status"] == 2 and "goes on from here" in told["error"], (ends, told)
            assert ("stopped" in told["error"]) == (ends == "both"), (ends, told)
        while not (gone(target) and gone(source)):
            assert time.monotonic() - begun < 10, f"{ends}: an end goes on"
            time.sleep(0.01)
        ended = subprocess.run([*words, *places], capture_output=True, text=True, timeout=60)
        shown = json.loads(ended.stdout)
        assert shown["status"] == 0 and shown["resumed"] > 3 * MIB, (ends, shown)
        assert shown["resumed"] + shown["received"] == 24 * MIB, (ends, shown)
        assert shown["transport"] == "third-party" and way in shown["why"], (ends, shown)
        subprocess.run(["cmp", "file", "copy"], check=True)
        os.remove("copy")
        assert leftovers() == [], (ends, leftovers())


def third_on_fabric():
    """The same where both ends meet on the fabric."""
    third("both places are on other hosts, which meet on the fabric")


def third_for_long():
    """One that takes longer than an end is taken for gone that says nothing."""
    fill("file", 15 * MIB)
    here = os.getcwd()
    shown = json.loads(weft("-a", *shell(), "--json", "--block-size", "64K", "--bwlimit", "200K",
                            f"localhost:{here}/file", f"127.0.0.1:{here}/copy", within=150).stdout)
    assert shown["status"] == 0 and shown["seconds"] > 65, shown
    subprocess.run(["cmp", "file", "copy"], check=True)


def part():
    """Bytes that lie in temporary files."""
    found = 0
    for top, _, names in os.walk("."):
        for name in names:
            if name.endswith(".part"):
                found += os.stat(os.path.join(top, name)).st_blocks * 512
    return found


def killed():
    """Either end is killed at random moments. The next run sends what is not there, and at most
    one block for each writer more."""
    size, block = 24 * MIB, 256 << 10
    os.mkdir("src")
    fill("src/file", size)
    for index in range(200):
        fill(f"src/{index}", 3000, index)
    generator = random.Random(os.environ.get("SEED", "7"))
    words = [WEFT, "cp", "-a", "--block-size", "256K", *shell()]
    for turn in range(int(os.environ.get("TURNS", "2"))):
        shutil.rmtree("dst", ignore_errors=True)
        places = [["src", f"host:{os.getcwd()}/dst"], [f"host:{os.getcwd()}/src", "dst"]][turn % 2]
        for _ in range(2):
            running = subprocess.Popen([*words, "--bwlimit", "60M", *places],
                                       stderr=subprocess.DEVNULL, start_new_session=True)
            time.sleep(generator.uniform(0.05, 0.4))
            children = subprocess.run(["pgrep", "-P", str(running.pid)], capture_output=True,
                                      text=True).stdout.split()
            victim = int(children[0]) if children and generator.random() < 0.5 else running.pid
            try:
                os.kill(victim, signal.SIGKILL)
            except ProcessLookupError:
                pass
            running.wait(timeout=30)
            # The other end notices.
            deadline = time.time() + 10
            while subprocess.run(["pgrep", "-g", str(running.pid)],
                                 capture_output=True).stdout and time.time() < deadline:
                time.sleep(0.02)
            if os.path.exists("dst/file"):
                with open("src/file", "rb") as one, open("dst/file", "rb") as other:
                    assert one.read() == other.read(), "under its name a file is whole"
            if os.path.exists("dst") and not leftovers():
                break
        if os.path.exists("dst") and not leftovers():
            # It had ended before it was killed. The same command would now copy into it.
            same("src/", "dst/")
            continue
        there = part()
        ended = subprocess.run([*words, "--json", *places], capture_output=True, text=True,
                               timeout=60)
        assert ended.returncode == 0, ended
        shown = json.loads(ended.stdout)
        assert shown["resumed"] >= there - 2 * block, (there, shown)
        assert shown["received"] + shown["resumed"] == shown["bytes"] or shown["resumed"] == 0, shown
        same("src/", "dst/")
        assert leftovers() == [], leftovers()


def killed_often():
    """The same at 200 moments."""
    os.environ["TURNS"] = "100"
    killed()


class Way:
    """A way to a port that cuts the first connection after `cut` bytes to it, or flips one bit of
    the byte with that number; later ones pass."""

    def __init__(self, port, cut=None, flip=None):
        self.to, self.left, self.flip = port, cut, flip
        self.listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self.serve, daemon=True).start()

    def place(self, path):
        return f"weft://127.0.0.1:{self.listener.getsockname()[1]}/{path}"

    def serve(self):
        while True:
            try:
                one = self.listener.accept()[0]
                other = socket.create_connection(("127.0.0.1", self.to))
            except OSError:
                return
            for pair in ((one, other, True), (other, one, False)):
                threading.Thread(target=self.carry, args=pair, daemon=True).start()

    def carry(self, one, other, is_up):
        try:
            while data := bytearray(one.recv(1 << 16)):
                if is_up and self.flip is not None:
                    if self.flip < len(data):
                        data[self.flip] ^= 1 << random.randrange(8)
                        self.flip = None
                    else:
                        self.flip -= len(data)
                if is_up and self.left is not None:
                    if self.left < len(data):
                        other.sendall(data[:self.left])
                        self.left = None
                        break
                    self.left -= len(data)
                other.sendall(data)
        except OSError:
            pass
        for end in (one, other):
            # Both halves of the connection end.
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


def cut():
    """The way is cut after a random number of bytes, and in other runs a bit on it is flipped. The
    next run sends what is not there, and at most one block for each writer more; no file is wrong
    under its name."""
    size, block = 6 * MIB, 256 << 10
    os.mkdir("src")
    os.mkdir("root")
    fill("src/file", size)
    for index in range(100):
        fill(f"src/{index}", 3000, index)
    generator = random.Random(int(os.environ.get("SEED", "11")))
    words = [WEFT, "cp", "-a", "--transport", "tcp", "--streams", "1", "--block-size", "256K",
             "--json", "src"]
    server, url = serving("--root", "root")
    port = int(url.rsplit(":", 1)[1])
    turns = int(os.environ.get("TURNS", "3"))
    try:
        for turn in range(2 * turns):
            at = generator.randrange(size + 400_000)
            way = Way(port, cut=at) if turn < turns else Way(port, flip=at)
            ended = subprocess.run([*words, way.place("dst")], capture_output=True, text=True,
                                   timeout=60)
            shown = json.loads(ended.stdout)
            if os.path.exists("root/dst/file"):
                subprocess.run(["cmp", "src/file", "root/dst/file"], check=True)
            if ended.returncode != 0:
                there = part()
                ended = subprocess.run([*words, way.place("dst")], capture_output=True, text=True,
                                       timeout=60)
                shown = json.loads(ended.stdout)
                assert shown["status"] == 0, (turn, at, shown)
                assert shown["resumed"] >= there - 2 * block, (turn, at, there, shown)
            assert shown["status"] == 0, (turn, at, shown)
            same("src/", "root/dst/")
            shutil.rmtree("root/dst")
            assert leftovers("root") == [], (turn, at)
            way.listener.close()
    finally:
        server.kill()
        server.wait()


def cut_often():
    """The same after 100 numbers of bytes, and with 100 bits."""
    os.environ["TURNS"] = "100"
    cut()


def stop_amid(words, enough):
    running = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    deadline = time.time() + 20
    while part() < enough and time.time() < deadline and running.poll() is None:
        time.sleep(0.01)
    running.send_signal(signal.SIGINT)
    told = running.communicate(timeout=20)[1]
    assert running.returncode == 2 and "goes on from here" in told, (running.returncode, told)


def damaged():
    """Bits of the temporary file and of the journal are flipped between two runs."""
    fill("file", 16 * MIB)
    with open("sparse", "wb") as file:
        file.truncate(8 * MIB)
        file.seek(MIB)
        file.write(random.Random(3).randbytes(4 * MIB))
    generator = random.Random(5)
    for turn, name in enumerate(["file", "sparse", "file", "file"]):
        words = [WEFT, "cp", "-a", "--block-size", "64K", "--bwlimit", "20M", name, "copy"]
        stop_amid(words, 2 * MIB)
        for left in leftovers():
            if left.endswith(".part") or turn >= 2:
                with open(left, "r+b") as file:
                    for _ in range(3):
                        length = os.stat(left).st_size
                        at = generator.randrange(length)
                        file.seek(at)
                        byte = file.read(1)[0]
                        file.seek(at)
                        file.write(bytes([byte ^ 1 << generator.randrange(8)]))
        shown = report("-a", "--block-size", "64K", name, "copy")
        with open(name, "rb") as one, open("copy", "rb") as other:
            assert one.read() == other.read(), name
        assert turn >= 2 or shown["resumed"] > 0, shown
        assert leftovers() == [], leftovers()
        os.remove("copy")


def full():
    """A destination without room: what fits is right, and the rest is told."""
    os.mkdir("src")
    fill("src/0-small", 1000)
    fill("src/1-large", 8 * MIB)
    fill("src/2-small", 1000)
    os.mkdir("little")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", "little"], check=True)
    try:
        shown = report("-a", "src", "little", code=1)
        assert [one["code"] for one in shown["troubles"]] == ["full"], shown
        assert shown["troubles"][0]["path"] == "src/1-large" and shown["files"] == 2, shown
        assert sorted(os.listdir("little/src")) == ["0-small", "2-small"]
        subprocess.run(["mount", "-o", "remount,ro", "little"], check=True)
        shown = report("-a", "src", "little", code=1)
        assert {one["code"] for one in shown["troubles"]} == {"permission"}, shown
    finally:
        subprocess.run(["umount", "little"], check=True)


def troubles():
    """A file that vanishes, one that grows, and one that cannot be read."""
    os.mkdir("src")
    fill("src/grows", 3 * MIB)
    for index in range(4):
        fill(f"src/vanishes-{index}", 2 * MIB, index)
    running = subprocess.Popen([WEFT, "cp", "-a", "--json", "--block-size", "64K", "--bwlimit",
                                "4M", "src", "dst"], stdout=subprocess.PIPE, text=True)
    while not part():
        time.sleep(0.01)
    os.remove("src/vanishes-3")
    with open("src/grows", "ab") as file:
        file.write(b"more")
    shown = json.loads(running.communicate(timeout=60)[0])
    codes = sorted((one["path"], one["code"]) for one in shown["troubles"])
    assert ("src/grows", "changed") in codes, shown
    assert running.returncode in (1, 3), running.returncode
    assert (running.returncode == 1) == (("src/vanishes-3", "vanished") in codes), shown
    fill("alone", 6 * MIB)
    running = subprocess.Popen([WEFT, "cp", "--block-size", "64K", "--bwlimit", "12M", "alone",
                                "copy"], stderr=subprocess.PIPE, text=True)
    while not part():
        time.sleep(0.01)
    with open("alone", "r+b") as file:
        file.write(b"other bytes")
    told = running.communicate(timeout=60)[1]
    assert running.returncode == 3 and "changed while it was read" in told, (running, told)
    told = weft("nowhere", "x", code=1).stderr
    assert "nowhere" in told, told
    told = weft("src", "x", code=1).stderr
    assert "-r copies what is in it" in told, told
    weft("src", "dst", "nowhere", "/dev/null/x", code=2)
    weft("--block-size", "5", "alone", "x", code=2)
    assert "itself" in weft("-a", "src", "src", code=2).stderr
    told = weft("-a", ".", "src/deep", code=1).stderr
    assert leftovers() == [], leftovers()


def removing():
    """What is not at the source is removed if that is asked for, and nothing else is."""
    tree("src")
    os.makedirs("dst/src/a/gone/deep")
    os.makedirs("dst/other")
    os.makedirs("dst/src/keep.o")
    fill("dst/src/a/gone/deep/file", 10)
    os.symlink("/etc", "dst/src/a/link")
    fill("dst/src/x.o", 10)
    fill("src/y.o", 10)
    words = ["-a", "--delete", "--exclude", "*.o", "--exclude", "/a/b/c/", "src", "dst"]
    before = subprocess.run(["find", "dst"], capture_output=True).stdout
    told = weft("-n", *words).stdout
    for line in ("deleting src/a/gone/deep/file", "deleting src/a/link", "src/a/large"):
        assert line in told.splitlines(), told
    assert subprocess.run(["find", "dst"], capture_output=True).stdout == before
    shown = report(*words)
    assert shown["deleted"] == 4, shown
    assert os.path.isdir("dst/other") and os.path.exists("dst/src/x.o"), "not of the source"
    assert os.path.isdir("dst/src/keep.o") and not os.path.exists("dst/src/y.o")
    assert not os.path.exists("dst/src/a/gone") and not os.path.lexists("dst/src/a/link")
    assert not os.path.exists("dst/src/a/b/c")
    assert os.path.isdir("/etc"), "links are removed, not followed"


def races():
    """Somebody puts links into the way again and again. Nothing outside is touched."""
    os.makedirs("src/d/e")
    for index in range(400):
        fill(f"src/d/e/{index}", 100, index)
    os.makedirs("outside/e")
    running = subprocess.Popen([sys.executable, "-c", """
import os, time
end = time.time() + 4
while time.time() < end:
    for path in ("dst/d/e", "dst/d"):
        try:
            os.rename(path, path + ".away")
            os.symlink(os.path.abspath("outside"), path)
            os.unlink(path)
            os.rename(path + ".away", path)
        except OSError:
            pass
"""])
    while running.poll() is None:
        subprocess.run([WEFT, "cp", "-a", "src/.", "dst"], capture_output=True, timeout=60)
        os.makedirs("dst", exist_ok=True)
    assert os.listdir("outside") == ["e"] and os.listdir("outside/e") == []


def sparse():
    """1 TiB of holes."""
    with open("large", "wb") as file:
        file.truncate(1 << 40)
        file.seek(700 << 30)
        file.write(b"in the midst")
    shown = report("-a", "large", "copy")
    assert shown["bytes"] == 1 << 40 and shown["received"] < MIB, shown
    with open("copy", "rb") as file:
        file.seek(700 << 30)
        assert file.read(12) == b"in the midst"
    assert os.stat("copy").st_blocks < 100 and os.stat("copy").st_size == 1 << 40


def real():
    """A tree that nobody here made: the modules of Python, there and back."""
    there_and_back(os.path.dirname(os.__file__), shell())


def there_and_back(top, far, host="host"):
    weft("-a", *far, top, f"{host}:{os.getcwd()}/there", within=600)
    weft("-a", *far, f"{host}:{os.getcwd()}/there", "back", within=600)
    same(top + "/", "back/")
    for name in ("there", "back"):
        shutil.rmtree(name)


def by_ssh():
    """By a real ssh: a git clone with its objects, and Debian's source of Linux where it is."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "key"], check=True)
    shutil.copy("key.pub", "authorized")
    os.chmod("authorized", 0o600)
    os.chmod(".", 0o755)
    os.makedirs("/run/sshd", exist_ok=True)
    options = ["HostKey=" + os.path.abspath("key"), "Port=2222", "ListenAddress=127.0.0.1",
               "AuthorizedKeysFile=" + os.path.abspath("authorized"), "StrictModes=no",
               "PidFile=none", "PermitRootLogin=yes", "UsePAM=no"]
    server = subprocess.Popen([shutil.which("sshd") or "/usr/sbin/sshd", "-D", "-f", "/dev/null",
                               *[word for option in options for word in ("-o", option)]])
    try:
        rsh = (f"ssh -p 2222 -i {os.path.abspath('key')} -o StrictHostKeyChecking=no "
               "-o UserKnownHostsFile=/dev/null -o LogLevel=ERROR -o ConnectionAttempts=20")
        far = ["--rsh", rsh, "--weft-path", WEFT]
        source = os.path.dirname(os.path.abspath(__file__))
        subprocess.run(["git", "clone", "-q", "--no-hardlinks", "--depth", "50",
                        "file://" + subprocess.run(
                            ["git", "-C", source, "rev-parse", "--show-toplevel"], check=True,
                            capture_output=True, text=True).stdout.strip(), "clone"], check=True)
        there_and_back("clone", far, "127.0.0.1")
        for archive in glob.glob("/usr/src/linux-source-*.tar.xz")[:1]:
            os.mkdir("linux")
            subprocess.run(["tar", "-xf", archive, "-C", "linux"], check=True)
            there_and_back("linux", far, "127.0.0.1")
    finally:
        server.kill()
        server.wait()


def many():
    """100,000 files in one directory."""
    os.mkdir("src")
    for index in range(100_000):
        with open(f"src/{index}", "w") as file:
            file.write(str(index))
    shown = report("-a", "src", "dst")
    assert shown["files"] == 100_000, shown
    same("src/", "dst/")


place = tempfile.mkdtemp(prefix="weft-transfer-", dir=os.environ.get("PLACE"))
os.chdir(place)
try:
    globals()[sys.argv[2]]()
finally:
    os.chdir("/")
    shutil.rmtree(place, ignore_errors=True)
print("all of it")
