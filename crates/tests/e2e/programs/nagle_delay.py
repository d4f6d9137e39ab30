"""The options that delay small segments: as the program reads them, and as the kernel has them.

Both ends are in this process. A helper without weft duplicates the descriptor and asks the kernel
without a library in between. Prints `told NODELAY CORK, kernel NODELAY CORK` each time.
"""

import os
import socket
import subprocess
import sys
import threading
import time

HELPER = """
import ctypes, os, socket, sys
pid, fd = int(sys.argv[1]), int(sys.argv[2])
PIDFD_GETFD = 438
copy = ctypes.CDLL(None, use_errno=True).syscall(PIDFD_GETFD, os.pidfd_open(pid), fd, 0)
if copy < 0:
    sys.exit("pidfd_getfd: " + os.strerror(ctypes.get_errno()))
s = socket.socket(fileno=copy)
tcp = socket.IPPROTO_TCP
print(s.getsockopt(tcp, socket.TCP_NODELAY), s.getsockopt(tcp, socket.TCP_CORK))
"""


def option(connection, name):
    return connection.getsockopt(socket.IPPROTO_TCP, name)


def report(connection):
    told = option(connection, socket.TCP_NODELAY), option(connection, socket.TCP_CORK)
    command = [sys.executable, "-c", HELPER, str(os.getpid()), str(connection.fileno())]
    kernel = subprocess.run(command, env={}, stdout=subprocess.PIPE, text=True, check=True)
    print("told %d %d, kernel" % told, kernel.stdout.strip(), flush=True)


def exchange(one, other, rounds):
    for number in range(rounds):
        for source, target in ((one, other), (other, one)):
            source.sendall(bytes([number % 256]))
            assert target.recv(1) == bytes([number % 256])


def main():
    listener = socket.create_server(("127.0.0.1", 0))
    one = socket.create_connection(listener.getsockname())
    other, _ = listener.accept()
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
    other.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # The daemon may be slow on a busy machine.
    for _ in range(4):
        exchange(one, other, 200)
        time.sleep(0.1)
    exchange(one, other, 200)
    report(one)
    report(other)
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
    report(one)
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    other.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 0)
    report(one)
    report(other)
    exchange(one, other, 10)
    # The connection returns to TCP, with the options that the program set: the receiver of the
    # descriptor must find the bytes there.
    reader = threading.Thread(target=lambda: print("read", one.recv(1)))
    reader.start()
    left, right = socket.socketpair()
    socket.send_fds(left, [b"x"], [other.fileno()])
    report(other)
    other.sendall(b"y")
    reader.join()
    print("all of them")


main()
