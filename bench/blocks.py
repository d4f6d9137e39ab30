#!/usr/bin/env python3
"""Large blocks from one program to another: over a TCP connection, or by one copy of the kernel's.

    bench/blocks.py stream BLOCK SPAN TOTAL     send and recv; run it under weft, or not
    bench/blocks.py copy BLOCK SPAN TOTAL       process_vm_readv from the other program's memory

Blocks of BLOCK bytes, out of and into SPAN bytes of memory one after the other, TOTAL bytes in all.
Prints GB/s. With SPAN = BLOCK the data stay in the cache; with much more, they come from memory. As
in the C library's heap, memory begins 16 bytes behind a page.
"""

import ctypes
import mmap
import os
import signal
import socket
import sys
import time

LIBC = ctypes.CDLL(None, use_errno=True)


class Part(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def memory(span: int, byte: int) -> memoryview:
    """Private memory of this process, with all its pages there."""
    behind = 16
    area = mmap.mmap(-1, span + behind, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    area.write(bytes([byte]) * (span + behind))
    return memoryview(area)[behind:]


def address(area: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(area))


def places(block: int, span: int, total: int):
    fit = span // block
    return ((number % fit) * block for number in range(total // block))


def send(port: int, block: int, span: int, total: int) -> None:
    view = memory(span, 1)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        # As long as it takes to come to the fabric.
        for _ in range(100):
            connection.sendall(b"x")
            connection.recv(1)
        for place in places(block, span, total):
            connection.sendall(view[place : place + block])


def stream(block: int, span: int, total: int) -> float:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        child = os.fork()
        if child == 0:
            listener.close()
            send(port, block, span, total)
            os._exit(0)
        connection, _ = listener.accept()
    view = memory(span, 2)
    with connection:
        for _ in range(100):
            connection.sendall(connection.recv(1))
        begin = time.monotonic()
        for place in places(block, span, total):
            if connection.recv_into(view[place : place + block], block, socket.MSG_WAITALL) < block:
                sys.exit("the other program ended early")
        seconds = time.monotonic() - begin
    os.waitpid(child, 0)
    return total / seconds / 1e9


def copy(block: int, span: int, total: int) -> float:
    source, target = memory(span, 1), memory(span, 2)
    there, ready = os.pipe()
    child = os.fork()
    if child == 0:
        # The pages are this process's own from here on, as another program's are.
        source[:] = b"\3" * span
        os.write(ready, b"x")
        while True:
            signal.pause()
    os.read(there, 1)
    try:
        begin = time.monotonic()
        for place in places(block, span, total):
            own = Part(address(target) + place, block)
            other = Part(address(source) + place, block)
            arguments = (ctypes.byref(own), 1, ctypes.byref(other), 1, 0)
            if LIBC.process_vm_readv(child, *arguments) != block:
                sys.exit(f"process_vm_readv: {os.strerror(ctypes.get_errno())}")
        return total / (time.monotonic() - begin) / 1e9
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


if __name__ == "__main__":
    if len(sys.argv) != 5 or sys.argv[1] not in ("stream", "copy"):
        sys.exit(__doc__)
    measure = stream if sys.argv[1] == "stream" else copy
    print(f"{measure(*(int(word) for word in sys.argv[2:])):.3f}")
