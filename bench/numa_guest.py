#!/usr/bin/env python3
"""`weft block serve` in an emulated guest of two memory nodes: memory and threads are where they
belong.

numa_guest.py [--weft PATH] [--debs DIRECTORY]

The guest is that of guest.py, with a processor and memory in each of two nodes. The server has a
LUN in the memory of each node, and each is filled by the guest's own NBD. Then the kernel is asked
where the pages of the server are (numa_maps), which processors its threads may use, and the server
how many connections each of its threads has. Needs what guest.py needs.
"""

import argparse
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import guest

LUN_MIB = 24
INIT = """#!/bin/sh
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
mkdir -p /tmp /run
depmod -a
modprobe nbd
ifconfig lo 127.0.0.1 up
weft block serve --target {iqn} --lun 0=mem:{size}M,node=0 --lun 1=mem:{size}M,node=1 \\
    --nbd 127.0.0.1:10809 --listen 127.0.0.1:3260 --control /run/control --state /run/state &
server=$!
for number in 1 2 3 4 5 6 7 8 9 10; do
    [ -S /run/control ] && break
    sleep 1
done
for lun in 0 1; do
    nbd-client 127.0.0.1 10809 /dev/nbd$lun -N $lun -b 512
    dd if=/dev/urandom of=/dev/nbd$lun bs=1M count={size}
    sync
done
for lun in 0 1; do
    dd if=/dev/nbd$lun of=/dev/null bs=1M
done
echo "guest: stat"
weft block stat --json --control /run/control
echo "guest: maps"
cat /proc/$server/numa_maps
echo "guest: threads"
for thread in /proc/$server/task/*; do
    echo "$(cat $thread/comm) $(grep Cpus_allowed_list $thread/status)"
done
echo "guest: end"
reboot -f
"""


def check(told):
    """Prints where all is, and fails where it does not belong."""
    parts = re.split(r"^guest: (\w+)\r?\n", told, flags=re.M)
    assert "end" in parts, told[-3000:]
    parts = dict(zip(parts[1::2], parts[2::2]))
    status = json.loads(parts["stat"][parts["stat"].index("{"):])
    assert [unit["node"] for unit in status["units"]] == [0, 1], status
    assert all(unit["writes"]["bytes"] >= LUN_MIB << 20 for unit in status["units"]), status
    connections = {reactor["node"]: reactor["connections"] for reactor in status["reactors"]}
    assert connections == {0: 1, 1: 1}, connections
    # The mappings with the pages of a whole LUN.
    homes = []
    for line in parts["maps"].splitlines():
        pages = {int(node): int(count) for node, count in re.findall(r" N(\d)=(\d+)", line)}
        if sum(pages.values()) >= LUN_MIB << 8:
            print(f"a mapping of {sum(pages.values())} pages, policy {line.split()[1]}: {pages}")
            homes.append(pages)
    assert sorted(tuple(pages) for pages in homes) == [(0,), (1,)], homes
    threads = re.findall(r"^(weft-block-\d) Cpus_allowed_list:\s+(\S+)", parts["threads"], re.M)
    for name, processors in threads:
        print(f"thread {name} may use processor {processors}")
    assert sorted(threads) == [("weft-block-0", "0"), ("weft-block-1", "1")], threads
    print("memory, threads and connections of both LUNs are on their nodes")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--weft", default="weft")
    parser.add_argument("--debs", type=pathlib.Path,
                        default=pathlib.Path(tempfile.gettempdir()) / "weft-guest-debs")
    options = parser.parse_args()
    files = guest.unpacked(options.debs.absolute())
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        weft = directory / "weft"
        subprocess.run(["strip", "-o", weft, shutil.which(options.weft)], check=True)
        init = INIT.format(iqn=guest.IQN, size=LUN_MIB)
        kernel, archive = guest.initramfs(files, directory, init, [weft, guest.nbd_client()])
        machine = ["-m", "768", "-smp", "2"]
        for node in ("0", "1"):
            machine += ["-object", f"memory-backend-ram,size=384M,id=m{node}", "-numa",
                        f"node,nodeid={node},cpus={node},memdev=m{node}"]
        check(guest.booted(kernel, archive, *machine))


if __name__ == "__main__":
    sys.exit(main())
