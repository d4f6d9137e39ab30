#!/usr/bin/env python3
"""A Debian guest whose root is a LUN of `weft block serve`, by its kernel's own NBD and iSCSI.

guest.py [--weft PATH] [--debs DIRECTORY]

The guest is emulated by QEMU (TCG), so it proves function and no speed. Its kernel and open-iscsi
are Debian's, fetched by `apt-get download` into --debs if they are not there. From a file system in
memory it logs in at LUN 1 by iSCSI (iscsi_tcp, iscsistart), then it attaches LUN 0 by NBD (nbd,
nbd-client) and boots from it. There it writes a file to each, with their checksums, and ends. The
host looks at the files and checks both file systems. Needs qemu-system-x86, busybox-static,
nbd-client, e2fsprogs.
"""

import argparse
import hashlib
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time

IQN = "iqn.2026-11.example.weft:guest"
PACKAGES = ["linux-image-cloud-amd64", "open-iscsi", "libopeniscsiusr"]
# The host as the guest sees it.
GATEWAY = "10.0.2.2"
BUSYBOX = ("sh", "mount", "umount", "modprobe", "depmod", "ifconfig", "route", "sleep", "cat",
           "switch_root", "sha256sum", "dd", "sync", "reboot", "uname", "echo", "mkdir", "ls",
           "grep")
MODULES = ("drivers/virtio", "drivers/block", "drivers/scsi", "net/core", "lib", "drivers/net/*.ko",
           "crypto")
INIT = """#!/bin/sh
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
depmod -a
modprobe virtio_pci
modprobe virtio_net
modprobe nbd
modprobe sd_mod
modprobe iscsi_tcp
ifconfig lo 127.0.0.1 up
ifconfig eth0 10.0.2.15 netmask 255.255.255.0 up
route add default gw {gateway}
echo "guest: Linux $(uname -r)"
iscsistart -i iqn.2026-11.example.weft:guest-host -t {iqn} -g 1 -a {gateway} -p {iscsi} </dev/null
for number in 1 2 3 4 5 6 7 8 9 10; do
    [ -b /dev/sda ] && [ -b /dev/sdb ] && break
    sleep 1
done
nbd-client {gateway} {nbd} /dev/nbd0 -N 0 -b 512
mkdir -p /root
mount -t ext4 /dev/nbd0 /root && echo "guest: LUN 0 by NBD is the root"
exec switch_root /root /sbin/init
"""
# The first program of the root on the LUN.
SECOND = """#!/bin/sh
mount -t proc none /proc
mount -t devtmpfs none /dev
echo "guest: booted from $(cat /name)"
for disk in /dev/sda /dev/sdb; do
    mount -t ext4 $disk /mnt && [ -e /mnt/second ] && break
    umount /mnt
done
[ -e /mnt/second ] && echo "guest: LUN 1 by iSCSI is $disk"
for place in / /mnt/; do
    dd if=/dev/urandom of=${place}data bs=1M count=8 2>/dev/null
    sha256sum ${place}data > ${place}sum
done
sync
umount /mnt
mount -o remount,ro /
echo "guest: all was written"
reboot -f
"""


def run(*words, **how):
    ended = subprocess.run([str(word) for word in words], capture_output=True, timeout=300,
                           check=False, **how)
    assert ended.returncode == 0, f"{words}: {ended.stdout}{ended.stderr}"
    return ended.stdout


def unpacked(debs):
    """The files of the packages."""
    debs.mkdir(parents=True, exist_ok=True)
    if not list(debs.glob("linux-image-6*.deb")):
        about = run("apt-cache", "depends", PACKAGES[0]).decode()
        kernel = re.search(r"Depends: (linux-image-6\S+)", about)[1]
        run("apt-get", "download", kernel, *PACKAGES[1:], cwd=debs)
    files = debs / "files"
    if not files.exists():
        for deb in debs.glob("*.deb"):
            run("dpkg-deb", "-x", deb, files)
    return files


def with_libraries(program, root, libraries):
    """Copies a program and the libraries that it is linked with."""
    shutil.copy(program, root / "bin")
    environment = {**os.environ, "LD_LIBRARY_PATH": str(libraries)}
    for line in run("ldd", program, env=environment).decode().splitlines():
        found = re.search(r"(/\S+) \(", line)
        if found:
            target = root / ("lib64" if "ld-linux" in found[1] else "lib/x86_64-linux-gnu")
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy(found[1], target)


def with_busybox(root):
    for name in ("bin", "sbin", "proc", "sys", "dev", "mnt", "root"):
        (root / name).mkdir(parents=True, exist_ok=True)
    shutil.copy(shutil.which("busybox"), root / "bin/busybox")
    for name in BUSYBOX:
        (root / "bin" / name).symlink_to("busybox")


def program(path, text):
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


def initramfs(files, directory, init, programs):
    """The kernel, and a file system in memory with the first program and others."""
    root = directory / "initramfs"
    with_busybox(root)
    version = next((files / "lib/modules").iterdir()).name
    here, there = files / "lib/modules" / version, root / "lib/modules" / version
    for place in MODULES:
        for module in (here / "kernel").glob(place if "*" in place else f"{place}/**/*.ko"):
            target = there / module.relative_to(here)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(module, target)
    libraries = next(files.glob("**/libopeniscsiusr.so*")).parent
    for each in programs:
        with_libraries(each, root, libraries)
    program(root / "init", init)
    names = b"\n".join(str(path.relative_to(root)).encode() for path in sorted(root.rglob("*")))
    archive = directory / "initramfs.cpio"
    archive.write_bytes(run("busybox", "cpio", "-o", "-H", "newc", cwd=root, input=names))
    return next((files / "boot").glob("vmlinuz-*")), archive


def nbd_client():
    return shutil.which("nbd-client") or "/usr/sbin/nbd-client"


def booted(kernel, archive, *machine):
    """All that a guest writes to its console, until it ends."""
    guest = subprocess.Popen(
        ["qemu-system-x86_64", "-accel", "tcg", "-cpu", "max", "-nographic", "-no-reboot",
         "-kernel", kernel, "-initrd", archive, "-append", "console=ttyS0 quiet panic=-1",
         *machine],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        told, _ = guest.communicate(timeout=600)
    finally:
        guest.kill()
    return told.decode(errors="replace")


def disks(directory):
    """Two file systems: a root, and one with a mark."""
    root, other = directory / "root", directory / "other"
    with_busybox(root)
    (root / "name").write_text("LUN 0 of weft\n", encoding="utf-8")
    program(root / "sbin/init", SECOND)
    other.mkdir()
    (other / "second").touch()
    made = []
    for source in (root, other):
        disk = directory / f"{source.name}.img"
        with open(disk, "wb") as file:
            file.truncate(64 << 20)
        run("mkfs.ext4", "-q", "-d", source, disk)
        made.append(disk)
    return made


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def check(disk):
    """The file that the guest wrote has its checksum, and the file system is whole."""
    data = run("debugfs", "-R", "cat /data", disk)
    told = run("debugfs", "-R", "cat /sum", disk).split()[0].decode()
    assert len(data) == 8 << 20 and hashlib.sha256(data).hexdigest() == told, disk
    run("e2fsck", "-fn", disk)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--weft", default="weft")
    parser.add_argument("--debs", type=pathlib.Path,
                        default=pathlib.Path(tempfile.gettempdir()) / "weft-guest-debs")
    options = parser.parse_args()
    files = unpacked(options.debs.absolute())
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        ports = free_port(), free_port()
        init = INIT.format(gateway=GATEWAY, iqn=IQN, iscsi=ports[0], nbd=ports[1])
        programs = [next(files.glob("**/iscsistart")), nbd_client()]
        kernel, archive = initramfs(files, directory, init, programs)
        made = disks(directory)
        command = [options.weft, "block", "serve", "--listen", f"127.0.0.1:{ports[0]}", "--nbd",
                   f"127.0.0.1:{ports[1]}", "--target", IQN, "--control", directory / "control",
                   "--state", directory / "state"]
        for number, disk in enumerate(made):
            command += ["--lun", f"{number}=file:{disk}"]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        began = time.monotonic()
        try:
            told = booted(kernel, archive, "-m", "512", "-netdev", "user,id=n", "-device",
                          "virtio-net-pci,netdev=n,romfile=")
        finally:
            server.terminate()
            server.wait(10)
        lines = re.findall(r"guest: .*", told)
        print("\n".join(line.strip() for line in lines))
        assert lines and "all was written" in lines[-1], told[-3000:]
        for disk in made:
            check(disk)
        print(f"both file systems have what the guest wrote ({time.monotonic() - began:.0f} s)")


if __name__ == "__main__":
    sys.exit(main())
