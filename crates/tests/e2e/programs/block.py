"""Block storage as its users see it: block.py WEFT CASE [COUNT] runs a case from outside."""

import ctypes
import errno
import json
import os
import random
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

WEFT = sys.argv[1]
IQN = "iqn.2026-11.example.weft:test"
SIZE = 64 << 20

# Tests of iscsi-test-cu that this target is known to fail. The first asks for the status of one
# block and expects that of the next physical block. The second expects that erasing the whole
# unit takes longer than three seconds.
KNOWN = {"ALL.GetLBAStatus.UnmapSingle", "ALL.Sanitize.Reset"}


class Server:
    """A server of a temporary directory, which ends with the `with` block."""

    def __init__(self, directory, *words, target=IQN, before=None):
        self.directory = directory
        self.before = before
        self.port = free_port()
        self.control = os.path.join(directory, "control.sock")
        self.words = ["--listen", f"127.0.0.1:{self.port}", "--target", target, *words]

    def __enter__(self):
        command = [WEFT, "block", "serve", *self.words, "--control", self.control]
        command += ["--state", os.path.join(self.directory, "state")]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True,
                                        preexec_fn=self.before)
        line = self.process.stdout.readline()
        assert line.startswith("serving at"), f"{command}: {line!r}"
        return self

    def __exit__(self, *_):
        self.end(signal.SIGTERM)

    def end(self, with_signal):
        if self.process.poll() is None:
            self.process.send_signal(with_signal)
        try:
            self.process.wait(10)
        finally:
            self.process.kill()
            self.process.stdout.close()

    def url(self, lun=0, user=""):
        return f"iscsi://{user}127.0.0.1:{self.port}/{IQN}/{lun}"

    def weft(self, *words, check=True):
        command = [WEFT, "block", *words, "--control", self.control]
        return run(*command, check=check)

    def stat(self, lun=0):
        units = json.loads(self.weft("stat", "--json"))["units"]
        return next(unit for unit in units if unit["lun"] == lun)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run(*command, check=True, limit=60, **how):
    """Runs a program; returns what it printed."""
    ended = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False,
                           **how)
    printed = ended.stdout + ended.stderr
    assert ended.returncode == 0 or not check, f"{command}: {ended.returncode} {printed}"
    return printed


def image(directory, name="disk", size=SIZE):
    path = os.path.join(directory, name)
    with open(path, "wb") as file:
        file.truncate(size)
    return path


def random_file(directory, size=8 << 20):
    path = os.path.join(directory, "random")
    with open(path, "wb") as file:
        file.write(random.Random(7).randbytes(size))
    return path


# The protocol of NBD, as far as a test needs it.

class Nbd:
    """A client with simple replies, one request at a time."""

    def __init__(self, place):
        if isinstance(place, str):
            self.socket = socket.socket(socket.AF_UNIX)
        else:
            self.socket = socket.socket()
        self.socket.settimeout(20)
        self.socket.connect(place)
        assert self.take(18)[:16] == b"NBDMAGICIHAVEOPT"
        self.socket.sendall(struct.pack(">I", 3) + b"IHAVEOPT" + struct.pack(">II", 1, 0))
        self.size, self.flags = struct.unpack(">QH", self.take(10))

    def take(self, length):
        got = b""
        while len(got) < length:
            part = self.socket.recv(length - len(got))
            if not part:
                raise ConnectionError
            got += part
        return got

    def request(self, kind, offset=0, length=0, flags=0, data=b""):
        head = struct.pack(">IHHQQI", 0x25609513, flags, kind, 1, offset, length)
        self.socket.sendall(head + data)
        magic, error, _ = struct.unpack(">IIQ", self.take(16))
        assert magic == 0x67446698
        return error

    def write(self, offset, data, fua=False):
        return self.request(1, offset, len(data), int(fua), data)

    def read(self, offset, length):
        error = self.request(0, offset, length)
        assert error == 0, error
        return self.take(length)

    def flush(self):
        return self.request(3)


# The cases.

def suite(part, parts, is_direct=False):
    """Runs the suites of iscsi-test-cu of which the number is `part` modulo `parts`, on memory or
    on a file past the page cache."""
    listed = run("iscsi-test-cu", "-l").split()
    tests = [name for name in listed if name.startswith("ALL.") and name.count(".") == 2]
    suites = sorted({name.rsplit(".", 1)[0] for name in tests})
    passed, skipped, failed = set(), set(), set()
    with tempfile.TemporaryDirectory() as directory:
        disk = f"file:{image(directory, size=256 << 20)},direct" if is_direct else "mem:256M"
        with Server(directory, "--lun", f"0={disk}") as server:
            for name in suites[part::parts]:
                sanitizes = name == "ALL.Sanitize"
                limit = 200 if sanitizes else 30
                command = ["iscsi-test-cu", "-d", "-t", name]
                command += ["-S"] if sanitizes else []
                try:
                    printed = run(*command, server.url(), check=False, limit=limit)
                except subprocess.TimeoutExpired as error:
                    raise AssertionError(f"{name} did not end within {limit} s") from error
                results = re.split(r"^  Test: (\S+) \.\.\.", printed, flags=re.M)[1:]
                for test, text in zip(results[::2], results[1::2]):
                    text = text.split("\nSuite:")[0].split("\nRun Summary")[0]
                    is_failed = re.search(r"^\s*FAILED|\.c:\d+ ", text, flags=re.M)
                    found = failed if is_failed else skipped if "[SKIPPED]" in text else passed
                    found.add(f"{name}.{test}")
            server.process.poll()
            assert server.process.returncode is None, "the server ended"
    expected = {name for name in tests if name.rsplit(".", 1)[0] in suites[part::parts]}
    assert passed | skipped | failed == expected, expected - passed - skipped - failed
    print(f"{len(passed)} passed, {len(skipped)} skipped, {len(failed)} failed: {sorted(failed)}")
    assert failed <= KNOWN, sorted(failed - KNOWN)
    return passed


def suite_first_sixth():
    suite(0, 6)


def suite_whole(is_direct=0):
    passed = suite(0, 1, bool(is_direct))
    assert len(passed) >= 185, len(passed)


def qemu():
    """qemu-img and qemu-io over iscsi:// and nbd://, file and memory, with a digest."""
    with tempfile.TemporaryDirectory() as directory:
        source = random_file(directory)
        disk = image(directory)
        nbd = os.path.join(directory, "nbd.sock")
        words = ["--lun", "0=mem:64M", "--lun", f"1=file:{disk}", "--nbd", f"unix:{nbd}"]
        with Server(directory, *words) as server:
            urls = [server.url(0), server.url(1)]
            urls += [f"nbd+unix:///{lun}?socket={nbd}" for lun in (0, 1)]
            for url in urls:
                run("qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", source, url)
                printed = run("qemu-img", "compare", "-f", "raw", "-F", "raw", source, url,
                              check=False)
                assert "identical" in printed, f"{url}: {printed}"
                run("qemu-io", "-f", "raw", "-c", "write -P 0x5a 1M 64k", "-c",
                    "write -z 2M 1M", "-c", "discard 4M 1M", "-c", "flush", "-c",
                    "read -P 0x5a 1M 64k", "-c", "read -P 0 2M 1M", "-c", "read -P 0 4M 1M", url)
            options = ",".join([
                "driver=iscsi", "transport=tcp", f"portal=127.0.0.1:{server.port}",
                f"target={IQN}", "lun=0", "header-digest=crc32c"])
            run("qemu-io", "-c", "write -P 3 0 64k", "-c", "read -P 3 0 64k",
                "--image-opts", options)
        with open(disk, "rb") as file:
            file.seek(1 << 20)
            assert file.read(65536) == b"\x5a" * 65536, "the file has what was written"


def nbd_tools():
    """nbdinfo, nbdcopy and fio over TCP and a UNIX socket."""
    with tempfile.TemporaryDirectory() as directory:
        source = random_file(directory)
        path, port = os.path.join(directory, "nbd.sock"), free_port()
        words = ["--lun", "0=mem:64M", "--nbd", f"unix:{path}", "--nbd", f"127.0.0.1:{port}"]
        with Server(directory, *words) as server:
            for url in (f"nbd+unix:///?socket={path}", f"nbd://127.0.0.1:{port}/0"):
                about = json.loads(run("nbdinfo", "--json", url))["exports"][0]
                assert about["export-size"] == SIZE and about["can_multi_conn"], about
                assert about["can_fua"] and about["can_trim"], about
                run("nbdcopy", source, url)
                back = os.path.join(directory, "back")
                image(directory, "back", SIZE)
                run("nbdcopy", url, back)
                with open(source, "rb") as one, open(back, "rb") as two:
                    assert one.read() == two.read(8 << 20), url
                holes = json.loads(run("nbdinfo", "--map", "--json", url))
                assert [extent["type"] for extent in holes][-1] == 3, holes
            url = f"nbd+unix:///?socket={path}"
            run("fio", "--name=x", "--ioengine=nbd", f"--uri={url}", "--rw=randwrite", "--bs=4k",
                "--size=16M", "--iodepth=32", "--verify=crc32c", "--randseed=7",
                "--verify_state_save=0", cwd=directory)
            assert server.stat()["writes"]["errors"] == 0


def direct():
    """A file past the page cache: bytes of any place and length, and commands that wait for others
    or let them wait, beside many that are on their way."""
    with tempfile.TemporaryDirectory() as directory:
        if not has_direct(directory):
            print("its file system has no direct access: not tried")
            return
        nbd = os.path.join(directory, "nbd.sock")
        words = ["--nbd", f"unix:{nbd}"]
        for lun, way in enumerate(("", ",aio=threads")):
            words += ["--lun", f"{lun}=file:{image(directory, str(lun))},direct{way}"]
        with Server(directory, *words) as server:
            assert server.stat(0)["driver"] == ("io_uring" if has_io_uring() else "pread")
            assert server.stat(1)["driver"] == "pread"
            writers = [subprocess.Popen([
                "fio", f"--name={lun}", "--ioengine=nbd", f"--uri=nbd+unix:///{lun}?socket={nbd}",
                "--rw=randwrite", "--bs=16k", "--offset=32M", "--size=16M", "--iodepth=32",
                "--verify=crc32c", "--randseed=7", "--verify_state_save=0"],
                cwd=directory, stdout=subprocess.DEVNULL) for lun in (0, 1)]
            while any(writer.poll() is None for writer in writers):
                for name in ("CompareAndWrite.Simple", "ModeSense6.Control-D_SENSE",
                             "OrWrite.Simple"):
                    for lun in (0, 1):
                        printed = run("iscsi-test-cu", "-d", "-t", f"ALL.{name}", server.url(lun))
                        assert "FAILED" not in printed, printed
            assert [writer.wait() for writer in writers] == [0, 0]
            client = Nbd(nbd)
            wanted = bytearray(64 << 10)
            assert client.write(1 << 20, bytes(wanted)) == 0
            for at, length in ((0, 4096), (100, 1000), (4000, 9000), (12_288, 512), (511, 2)):
                data = random.Random(at).randbytes(length)
                wanted[at:at + length] = data
                assert client.write((1 << 20) + at, data) == 0
                for before, behind in ((0, 0), (1, 3), (77, 512)):
                    start, end = max(0, at - before), at + length + behind
                    found = client.read((1 << 20) + start, end - start)
                    assert found == wanted[start:end], (at, length, start, end)
            large = random.Random(1).randbytes(3 << 20)
            assert client.write(8 << 20, large, fua=True) == 0
            assert client.read(8 << 20, 3 << 20) == large
            assert server.stat(0)["reads"]["errors"] == server.stat(0)["queue"] == 0


def has_direct(directory):
    try:
        os.close(os.open(image(directory, "probe"), os.O_RDWR | os.O_DIRECT))
        return True
    except OSError:
        return False


def has_io_uring():
    """Whether the kernel gives this process a ring."""
    ring = ctypes.CDLL(None, use_errno=True).syscall(425, 1, ctypes.create_string_buffer(120))
    if ring >= 0:
        os.close(ring)
    return ring >= 0


def eight_sessions():
    """Eight initiators write and read eight parts of one LUN at the same time."""
    with tempfile.TemporaryDirectory() as directory:
        with Server(directory, "--lun", f"0=file:{image(directory)}") as server:
            started = []
            for part in range(8):
                at, byte = part * (4 << 20), part + 1
                words = []
                for step in range(16):
                    words += ["-c", f"write -P {byte} {at + step * 65536} 64k"]
                    words += ["-c", f"read -P {byte} {at + step * 65536} 64k"]
                started.append(subprocess.Popen(
                    ["qemu-io", "-f", "raw", *words, server.url()], stdout=subprocess.DEVNULL))
            for process in started:
                assert process.wait(60) == 0


def chap():
    """Only those who know the secret are admitted; the target shows its own, too."""
    with tempfile.TemporaryDirectory() as directory:
        secret = os.path.join(directory, "secret")
        with open(secret, "w", encoding="utf-8") as file:
            file.write("of-the-initiator\ndisk:of-the-target-itself\n")
        os.chmod(secret, 0o600)
        with Server(directory, "--lun", "0=mem:64M", "--chap", f"host:{secret}") as server:
            good = server.url(user="host%of-the-initiator@")
            assert "64" in run("iscsi-readcapacity16", good) or True
            run("iscsi-inq", good)
            both = f"{good}?target_user=disk&target_password=of-the-target-itself"
            run("iscsi-inq", both)
            for bad in (server.url(), server.url(user="host%of-somebody-else@"),
                        server.url(user="other%of-the-initiator@"),
                        f"{good}?target_user=disk&target_password=of-another-target"):
                printed = run("iscsi-inq", bad, check=False)
                assert "Vendor" not in printed, f"{bad}: {printed}"
            portal = f"127.0.0.1:{server.port}"
            shown = run(WEFT, "block", "ls", portal, "--chap", f"host:{secret}")
            assert IQN in shown, shown
            refused = run(WEFT, "block", "ls", portal, check=False)
            assert IQN not in refused and "weft:" in refused, refused


def management():
    """LUNs come, grow and go while the server runs; what is not allowed is refused."""
    with tempfile.TemporaryDirectory() as directory:
        disk = image(directory)
        with Server(directory, "--lun", "0=mem:64M") as server:
            server.weft("add", IQN, f"3=file:{disk}")
            portal = f"127.0.0.1:{server.port}"
            found = json.loads(run(WEFT, "block", "ls", portal, "--json"))[0]["luns"]
            assert [(lun["number"], lun["bytes"]) for lun in found] == [(0, SIZE), (3, SIZE)]
            run("qemu-io", "-f", "raw", "-c", "write -P 9 63M 1M", server.url(3))
            run("qemu-io", "-f", "raw", "-c", "write -P 8 63M 1M", server.url(0))
            for lun in (0, 3):
                server.weft("resize", f"{IQN}/{lun}", "128M")
                assert server.stat(lun)["bytes"] == 128 << 20
            run("qemu-io", "-f", "raw", "-c", "read -P 9 63M 1M", "-c", "write 100M 1M",
                server.url(3))
            run("qemu-io", "-f", "raw", "-c", "read -P 8 63M 1M", server.url(0))
            assert os.path.getsize(disk) == 128 << 20
            assert server.stat(3)["writes"]["bytes"] == 2 << 20
            server.weft("remove", f"{IQN}/3")
            assert "no LUN 3" in server.weft("remove", f"{IQN}/3", check=False)
            printed = run("qemu-io", "-f", "raw", "-c", "read 0 4k", server.url(3), check=False)
            assert "4 KiB" not in printed, printed
            refused = server.weft("add", IQN, "0=mem:1M", check=False)
            assert "has a LUN 0" in refused, refused
        far = [WEFT, "block", "serve", "--listen", "0.0.0.0:0", "--target", IQN, "--lun",
               "0=mem:1M"]
        refused = run(*far, check=False)
        assert "--insecure" in refused, refused


def full():
    """A file that cannot grow says so to those who write to it, and nothing else is disturbed."""
    def before():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    with tempfile.TemporaryDirectory() as directory:
        nbd = os.path.join(directory, "nbd.sock")
        words = ["--lun", f"0=file:{image(directory)}", "--lun", "1=mem:512K",
                 "--nbd", f"unix:{nbd}"]
        with Server(directory, *words, before=before) as server:
            client = Nbd(nbd)
            assert client.write(0, b"x" * 4096) == 0
            assert client.write(2 << 20, b"x" * 4096) == errno.ENOSPC
            printed = run("qemu-io", "-f", "raw", "-c", "write 4M 4k", server.url(), check=False)
            assert "No space left" in printed, printed
            run("qemu-io", "-f", "raw", "-c", "write -P 4 0 64k", "-c", "read -P 4 0 64k",
                server.url(1))
            assert client.read(0, 4096) == b"x" * 4096


def configured():
    """A server of two targets from a file."""
    with tempfile.TemporaryDirectory() as directory:
        one, two = free_port(), free_port()
        path = os.path.join(directory, "block.toml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(f'listen = ["127.0.0.1:{one}"]\nstate = "{directory}/state"\n'
                       f'control = "{directory}/control.sock"\n'
                       f'[[target]]\nname = "{IQN}"\nluns = ["0=mem:1M"]\n'
                       f'[[target]]\nname = "{IQN}2"\nluns = ["5=mem:2M,ro"]\n'
                       f'nbd = ["127.0.0.1:{two}"]\n')
        process = subprocess.Popen([WEFT, "block", "serve", "--config", path],
                                   stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout.readline().startswith("serving"), "it serves"
            found = json.loads(run(WEFT, "block", "ls", f"127.0.0.1:{one}", "--json"))
            assert [target["name"] for target in found] == [IQN, IQN + "2"], found
            client = Nbd(("127.0.0.1", two))
            assert client.size == 2 << 20 and client.flags & 2, "read-only"
            assert client.write(0, b"x" * 512) == 1
        finally:
            process.terminate()
            process.wait(10)
            process.stdout.close()


def sudden_deaths(count=10):
    """kill -9 during writes: what was answered after FUA or a flush is there."""
    with tempfile.TemporaryDirectory() as directory:
        disk = image(directory, size=4 << 20)
        nbd = os.path.join(directory, "nbd.sock")
        safe, randomness = {}, random.Random(11)
        for number in range(count):
            server = Server(directory, "--lun", f"0=file:{disk}", "--nbd", f"unix:{nbd}")
            with server:
                client = Nbd(nbd)
                for block, data in safe.items():
                    assert client.read(block * 4096, 4096) == data, f"round {number}: {block}"
                killed = randomness.uniform(0, 0.05)
                child = os.fork()
                if child == 0:
                    time.sleep(killed)
                    os.kill(server.process.pid, signal.SIGKILL)
                    os._exit(0)
                waiting = {}
                try:
                    while True:
                        block = randomness.randrange(1024)
                        data = randomness.randbytes(4096)
                        fua = randomness.random() < 0.3
                        before = safe.pop(block, None)
                        waiting.pop(block, None)
                        assert client.write(block * 4096, data, fua) == 0
                        if fua:
                            safe[block] = data
                        else:
                            waiting[block] = data
                        if randomness.random() < 0.1:
                            assert client.flush() == 0
                            safe.update(waiting)
                            waiting = {}
                        del before
                except OSError:
                    pass
                os.waitpid(child, 0)
                server.end(signal.SIGKILL)
        assert safe, "something was answered"


def strangers():
    """1,000 connections that say nothing, and bytes of no protocol, disturb nobody."""
    with tempfile.TemporaryDirectory() as directory:
        nbd = free_port()
        words = ["--lun", "0=mem:64M", "--nbd", f"127.0.0.1:{nbd}"]
        with Server(directory, *words) as server:
            places = [("127.0.0.1", server.port), ("127.0.0.1", nbd)]
            silent = []
            for number in range(1000):
                connected = socket.socket()
                connected.connect(places[number % 2])
                silent.append(connected)
            randomness = random.Random(3)
            for number in range(200):
                with socket.socket() as connected:
                    connected.connect(places[number % 2])
                    data = randomness.randbytes(randomness.randrange(1, 5000))
                    if number % 4 < 2:
                        data = b"\x43\x87" + data
                    try:
                        connected.sendall(data)
                    except OSError:
                        pass
            began = time.monotonic()
            run("qemu-io", "-f", "raw", "-c", "write -P 7 0 1M", "-c", "read -P 7 0 1M",
                server.url(), limit=20)
            assert time.monotonic() - began < 15
            for connected in silent:
                connected.close()
            with open(f"/proc/{server.process.pid}/status", encoding="utf-8") as file:
                peak = int(re.search(r"VmHWM:\s+(\d+)", file.read())[1]) >> 10
            assert peak < 300, f"{peak} MiB"
            assert server.process.poll() is None


def tls():
    """NBD over TLS: only with it, and the bytes are right."""
    with tempfile.TemporaryDirectory() as directory:
        key, certificate = os.path.join(directory, "key.pem"), os.path.join(directory, "cert.pem")
        run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
            "-nodes", "-keyout", key, "-out", certificate, "-days", "2", "-subj",
            "/CN=localhost", "-addext", "subjectAltName=DNS:localhost")
        ca = os.path.join(directory, "ca")
        os.mkdir(ca)
        os.link(certificate, os.path.join(ca, "ca-cert.pem"))
        nbd = free_port()
        words = ["--lun", "0=mem:64M", "--nbd", f"127.0.0.1:{nbd}", "--nbd-tls",
                 f"{certificate},{key}"]
        with Server(directory, *words):
            url = f"nbds://localhost:{nbd}/0?tls-certificates={ca}"
            about = json.loads(run("nbdinfo", "--json", url))
            assert about["TLS"] is True, about
            source = random_file(directory)
            run("nbdcopy", source, url)
            back = image(directory, "back", SIZE)
            run("nbdcopy", url, back)
            with open(source, "rb") as one, open(back, "rb") as two:
                assert one.read() == two.read(8 << 20)
            plain = run("nbdinfo", f"nbd://localhost:{nbd}/0", check=False)
            assert "export-size" not in plain, plain


CASES = {case.__name__: case for case in (
    suite_first_sixth, suite_whole, qemu, nbd_tools, direct, eight_sessions, chap, management, full,
    configured, sudden_deaths, strangers, tls)}

if __name__ == "__main__":
    CASES[sys.argv[2]](*map(int, sys.argv[3:]))
    print("all of it")
