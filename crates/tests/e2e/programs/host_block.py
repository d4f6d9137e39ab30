"""Block storage over the fabric: host_block.py WEFT CASE DIRECTORY.

As hosts.py, whose machine this has, too. The second host has the disks; both use them, the second
through memory and the first over the cable.
"""

import json
import os
import pathlib
import random

from two_hosts import DIRECTORY, LIMIT, WEFT, hosts, run_case, sh, text_of, until

IQN = "iqn.2026-11.example.weft:far"
SIZE, PART = 16 << 20, 4 << 20
# An end that is told nothing for so long hangs.
TOLD_WITHIN = 25


def serve(host, *luns):
    words = ["--listen", "127.0.0.1:3260", "--target", IQN, "--state", host.home / "state",
             "--control", host.home / "block.sock"]
    for lun in luns:
        words += ["--lun", lun]
    server, log = host.start(WEFT, "block", "serve", *words)
    until("it is offered", lambda: "as block.3260" in text_of(log))
    return server


def attach(host, place, lun, name="disk"):
    """Attaches a LUN. Returns the process, its log and the address of the export."""
    path = host.home / f"{name}{lun}.nbd"
    process, log = host.start(WEFT, "block", "attach", f"weft://{place}/{IQN}/{lun}", "--nbd",
                              f"unix:{path}")
    until("it is attached", lambda: "serving at" in text_of(log))
    return process, log, f"nbd+unix:///?socket={path}"


def units(host):
    told = host.run(WEFT, "block", "stat", "--json", "--control", host.home / "block.sock")
    return json.loads(told)["units"]


def await_no_session(host):
    until("the target frees all", lambda: not any(unit["sessions"] for unit in units(host)),
          TOLD_WITHIN)


def has_libfabric(process):
    maps = pathlib.Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8")
    return "libfabric" in maps


def fio(host, url, *options):
    return host.start("fio", "--name=x", "--ioengine=nbd", f"--uri={url}", "--bs=16k",
                      "--iodepth=16", "--size=8M", "--verify_state_save=0", *options,
                      cwd=DIRECTORY)


def over_the_fabric():
    one, two = hosts()
    disk, source, back = (DIRECTORY / name for name in ("disk", "source", "back"))
    source.write_bytes(random.Random(5).randbytes(PART))
    for path in (disk, back):
        path.touch()
        os.truncate(path, SIZE)
    server = serve(two, "0=mem:16M", f"1=file:{disk}")
    until("the first host knows it", lambda: "block.3260" in one.run(WEFT, "status"))
    refused, log = one.start(WEFT, "block", "attach", f"weft://localhost/{IQN}/0", "--nbd",
                             f"unix:{one.home}/none")
    assert refused.wait(LIMIT) == 1 and "no server of this host" in text_of(log), text_of(log)
    for host, place, lun in ((two, "localhost", 0), (two, "localhost", 1), (one, "10.9.0.2", 0)):
        attached, log, url = attach(host, place, lun)
        assert has_libfabric(attached) == (host is one), "memory on one host"
        host.run("nbdcopy", "--flush", source, url)
        host.run("nbdcopy", url, back)
        assert back.read_bytes()[:PART] == source.read_bytes(), f"{place} {lun}"
        host.run("qemu-io", "-f", "raw", "-c", "write -P 0x5a 1M 700k", "-c",
                 "write -z 2M 1M", "-c", "discard 3M 1M", "-c", "flush", "-c",
                 "read -P 0x5a 1M 700k", "-c", "read -P 0 2M 1M", "-c", "read -P 0 3M 1M", url)
        if lun == 0:
            verified, told = fio(host, url, "--rw=randwrite", "--verify=crc32c", "--randseed=7")
            assert verified.wait(LIMIT) == 0, text_of(told)
        attached.terminate()
        assert attached.wait(LIMIT) == 0, text_of(log)
    assert all(unit["writes"]["errors"] == 0 for unit in units(two)), units(two)
    await_no_session(two)
    # A LUN of the second host, exported by the first one as iSCSI.
    between = serve(one, f"3=weft://10.9.0.2:3260/{IQN}/0")
    one.run("qemu-io", "-f", "raw", "-c", "write -P 7 8M 64k", "-c", "read -P 7 8M 64k",
            f"iscsi://127.0.0.1:3260/{IQN}/3")
    between.terminate()
    assert between.wait(LIMIT) == 0
    # An initiator that is killed leaves nothing, and disturbs nobody.
    kept = attach(two, "localhost", 1)
    killed = [attach(one, "10.9.0.2", 0), attach(two, "localhost", 0)]
    for_long = ("--time_based", "--runtime=60")
    writers = [fio(one, url, "--rw=randwrite", *for_long) for *_, url in killed]
    before = units(two)[0]["writes"]["operations"]
    until("they write", lambda: units(two)[0]["writes"]["operations"] > before + 100)
    for process, *_ in killed:
        process.kill()
    for writer, log in writers:
        assert writer.wait(TOLD_WITHIN) != 0, text_of(log)
    until("the target frees all", lambda: units(two)[0]["sessions"] == 0, TOLD_WITHIN)
    two.run("qemu-io", "-f", "raw", "-c", "write -P 9 0 1M", "-c", "read -P 9 0 1M", kept[2])
    # A target that is killed is told at once to those who read and write.
    attached = [attach(one, "10.9.0.2", 0, "again"), kept]
    writers = [fio(one, url, "--rw=randrw", *for_long) for *_, url in attached]
    before = units(two)[1]["reads"]["operations"]
    until("they read", lambda: units(two)[1]["reads"]["operations"] > before + 100)
    server.kill()
    for writer, log in writers:
        assert writer.wait(TOLD_WITHIN) != 0, text_of(log)
    for process, log, _ in attached:
        assert process.wait(TOLD_WITHIN) == 1 and "is gone" in text_of(log), text_of(log)
    sh(f"! test -e {one.home}/again0.nbd")


run_case(globals())
