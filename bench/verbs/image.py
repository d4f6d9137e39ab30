"""The kernel and the initial file system of a guest: Debian's kernel, busybox, and programs of this
system with the libraries that they load.

Nothing is installed here: the package of the kernel is unpacked to a folder beside the build.
"""

import gzip
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

PACKAGES = (
    "busybox",
    "ibverbs-providers",
    "iproute2",
    "libfabric-bin",
    "qemu-system-x86",
)
KERNEL = "linux-image-amd64"
# Those that others name as their dependencies come by themselves. rdma_rxe does not name the two
# that are behind it: without crc32_generic it makes no link, and without rdma_ucm no program can
# connect.
MODULES = ("virtio_pci", "virtio_net", "crc32_generic", "rdma_rxe", "rdma_ucm")
LIBRARIES = Path("/usr/lib/x86_64-linux-gnu")
# These are loaded by name when programs run, so no program lists them.
LOADED = (LIBRARIES / "libfabric.so.1", LIBRARIES / "libibverbs/librxe-rdmav34.so")
DRIVER = Path("/etc/libibverbs.d/rxe.driver")
SHELL = "/bin/busybox"
REGULAR, DIRECTORY = 0o100000, 0o040000

# The first serial port has the kernel's words, the second one a shell that the script talks to.
INIT = """#!/bin/busybox sh
/bin/busybox --install -s /applets
export PATH=/bin:/applets HOME=/ FI_UNIVERSE_SIZE=16
mount -t devtmpfs dev /dev
mkdir -p /dev/shm && mount -t tmpfs shm /dev/shm
mount -t proc proc /proc
mount -t sysfs sys /sys
while read module; do insmod /modules/$module || poweroff -f; done </modules/order
ip link set lo up
ulimit -n 65536
exec </dev/ttyS1 >/dev/ttyS1 2>&1
stty raw -echo
echo @ready
while read -r line; do ( eval "$line" ) </dev/null 2>&1; echo "@ended $?"; done
poweroff -f
"""


class Missing(Exception):
    """Something that a guest needs is not there."""


def apt(*command, **options) -> None:
    lock = ["-q", "-o", "DPkg::Lock::Timeout=300"]
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", *lock, *command], env=env, check=True, timeout=1200, **options)


def install(place: Path) -> None:
    """Installs Debian's packages, and unpacks its kernel to `place`."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        sys.exit("--peers needs root and Debian's apt-get; or install " + " ".join(PACKAGES))
    apt("update", stdout=subprocess.DEVNULL)
    apt("install", "-y", "--no-install-recommends", *PACKAGES, stdout=subprocess.DEVNULL)
    listed = subprocess.run(
        ["apt-cache", "depends", KERNEL], capture_output=True, text=True, check=True
    )
    package = re.search(r"Depends: (linux-image-\S+)", listed.stdout).group(1)
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    apt("download", package, cwd=place)
    (archive,) = place.glob("*.deb")
    subprocess.run(["dpkg-deb", "-x", archive, place], check=True, timeout=300)
    archive.unlink()


def kernel(place: Path) -> Path:
    """The kernel that was unpacked."""
    for found in place.glob("boot/vmlinuz-*"):
        return found
    raise Missing(f"no kernel in {place}; call this with --peers")


def modules(place: Path) -> list:
    """The files of the modules, each behind those that it depends on."""
    files = {file.stem: file for file in place.glob("lib/modules/*/kernel/**/*.ko")}
    order = []

    def add(name: str) -> None:
        file = files.get(name)
        if file is None:
            raise Missing(f"the kernel in {place} has no module {name}; call this with --peers")
        if file in order:
            return
        listed = re.search(rb"\0depends=([^\0]*)\0", file.read_bytes()).group(1).decode()
        for other in filter(None, listed.split(",")):
            add(other.replace("-", "_"))
        order.append(file)

    files = {name.replace("-", "_"): file for name, file in files.items()}
    for name in MODULES:
        add(name)
    return order


def libraries(program: Path) -> set:
    """The libraries that the dynamic loader would load, and the loader."""
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
    if "not found" in listed.stdout:
        raise Missing(f"{program} lacks libraries here:\n{listed.stdout}")
    return {Path(path) for path in re.findall(r"(/\S+) \(0x", listed.stdout)}


class Archive:
    """An initial file system in the format that Linux unpacks (cpio, "newc")."""

    def __init__(self):
        self.bytes, self.folders, self.count = bytearray(), set(), 0

    def _add(self, name: str, mode: int, content: bytes) -> None:
        self.count += 1
        fields = [self.count, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0]
        head = "070701" + "".join(f"{field:08X}" for field in fields)
        for part in (head.encode() + name.encode() + b"\0", content):
            self.bytes += part + bytes(-len(part) % 4)

    def folder(self, path: Path) -> None:
        name = str(path).strip("/")
        if name in ("", ".") or name in self.folders:
            return
        self.folder(path.parent)
        self.folders.add(name)
        self._add(name, DIRECTORY | 0o755, b"")

    def file(self, path: str, content: bytes) -> None:
        self.folder(Path(path).parent)
        self._add(path.strip("/"), REGULAR | 0o755, content)

    def packed(self) -> bytes:
        self._add("TRAILER!!!", 0, b"")
        return gzip.compress(bytes(self.bytes), compresslevel=1)


def found(program: str) -> Path:
    path = shutil.which(program)
    if path is None:
        raise Missing(f"{program} is not installed; call this with --peers")
    return Path(path)


def image(place: Path, programs: list) -> bytes:
    """An initial file system with `programs`, paths of this system, in /bin."""
    for path in (*LOADED, DRIVER):
        if not path.exists():
            raise Missing(f"{path} is not there; call this with --peers")
    programs = [*programs, *(found(name) for name in ("busybox", "ip", "rdma", "fi_pingpong"))]
    archive = Archive()
    for folder in ("applets", "dev", "proc", "sys", "tmp", "run"):
        archive.folder(Path(folder))
    archive.file("init", INIT.encode())
    for program in programs:
        archive.file(f"bin/{program.name}", program.read_bytes())
    linked = set().union(*(libraries(file) for file in (*programs, *LOADED)))
    for library in sorted(linked.union(LOADED)):
        archive.file(str(library), library.read_bytes())
    archive.file(str(DRIVER), DRIVER.read_bytes())
    # The provider looks for this name where none is given.
    archive.file("etc/hosts", b"127.0.0.1 localhost\n")
    archive.file("etc/nsswitch.conf", b"hosts: files\n")
    order = modules(place)
    for module in order:
        archive.file(f"modules/{module.name}", module.read_bytes())
    archive.file("modules/order", "".join(f"{module.name}\n" for module in order).encode())
    return archive.packed()
