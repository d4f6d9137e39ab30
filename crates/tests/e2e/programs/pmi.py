"""A process of a job that speaks PMI by itself, independent of weft's client.

    pmi.py 1|2 [FAULT]      exchanges a value with each other rank over PMI-1 or PMI-2

FAULT makes rank 1 misbehave before the barrier: `dies`, `leaves` (exits without finalize), `aborts`
with code 7, or `talks` what is no message.
"""

import os
import signal
import socket
import sys

VERSION, FAULT = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""
RANK, SIZE = int(os.environ["PMI_RANK"]), int(os.environ["PMI_SIZE"])
stream = socket.socket(fileno=int(os.environ["PMI_FD"])).makefile("rwb", buffering=0)


def line(request: str) -> dict:
    stream.write(f"cmd={request}\n".encode())
    answer = b""
    while not answer.endswith(b"\n"):
        byte = stream.read(1)
        if not byte:
            sys.exit("the launcher closed the connection")
        answer += byte
    return dict(word.split("=", 1) for word in answer.decode().split())


def exactly(length: int) -> bytes:
    data = b""
    while len(data) < length:
        piece = stream.read(length - len(data))
        if not piece:
            sys.exit("the launcher closed the connection")
        data += piece
    return data


def frame(command: str, **values) -> dict:
    body = f"cmd={command};" + "".join(f"{key}={value};" for key, value in values.items())
    stream.write(f"{len(body):<6}{body}".encode())
    answer = exactly(int(exactly(6)))
    return dict(part.split("=", 1) for part in answer.decode().split(";") if part)


def one() -> None:
    assert line("init pmi_version=1 pmi_subversion=1")["rc"] == "0"
    name = line("get_my_kvsname")["kvsname"]
    assert int(line("get_universe_size")["size"]) == SIZE
    assert line(f"put kvsname={name} key=k{RANK} value=v{RANK}")["rc"] == "0"
    misbehave()
    assert line("barrier_in")["cmd"] == "barrier_out"
    for rank in range(SIZE):
        assert line(f"get kvsname={name} key=k{rank}")["value"] == f"v{rank}"
    mapping = line(f"get kvsname={name} key=PMI_process_mapping")["value"]
    print(f"rank {RANK} of {SIZE} {mapping}", flush=True)
    line("finalize")


def two() -> None:
    assert line("init pmi_version=2 pmi_subversion=0")["rc"] == "0"
    full = frame("fullinit", pmirank=RANK)
    assert (int(full["rank"]), int(full["size"])) == (RANK, SIZE)
    name = frame("job-getid")["jobid"]
    assert frame("kvs-put", key=f"k{RANK}", value=f"v{RANK}")["rc"] == "0"
    misbehave()
    assert frame("kvs-fence")["rc"] == "0"
    for rank in range(SIZE):
        got = frame("kvs-get", jobid=name, srcid=-1, key=f"k{rank}")
        assert (got["found"], got["value"]) == ("TRUE", f"v{rank}")
    mapping = frame("info-getjobattr", key="PMI_process_mapping")["value"]
    print(f"rank {RANK} of {SIZE} {mapping}", flush=True)
    frame("finalize")


def misbehave() -> None:
    if RANK != 1 or not FAULT:
        return
    if FAULT == "dies":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif FAULT == "leaves":
        os._exit(0)
    elif FAULT == "aborts":
        stream.write(b"cmd=abort exitcode=7 message=enough of it\n")
    elif FAULT == "talks":
        stream.write(b"GET / HTTP/1.0\n")
    signal.pause()


one() if VERSION == "1" else two()
