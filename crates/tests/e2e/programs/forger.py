"""A connection and a socket that pretends to be one end of it.

forger.py client SERVER PORT LOCAL_PORT connects, tells the connection's sequence numbers, and reads
slowly. forger.py forge ADDRESS LOCAL_PORT SERVER PORT SENT RECEIVED makes a socket with these
addresses and numbers, in a network namespace of its own, and uses it as the owner of such a
connection would, until its standard input ends. Both need CAP_NET_ADMIN over their network namespace.
"""

import ctypes
import select
import socket
import sys
import time

# From linux/tcp.h.
REPAIR, REPAIR_QUEUE, QUEUE_SEQ = 19, 20, 21
RECEIVE_QUEUE, SEND_QUEUE = 1, 2
ON, OFF_WITHOUT_PROBE = 1, -1
BITS = 32


# A forger calls the C library past weft, which leaves sockets that are repaired to the kernel.
SETSOCKOPT = ctypes.CDLL("libc.so.6", use_errno=True).setsockopt


def option(end, name, value):
    number = ctypes.byref(ctypes.c_int(value))
    if SETSOCKOPT(end.fileno(), socket.IPPROTO_TCP, name, number, 4):
        raise OSError(ctypes.get_errno(), f"option {name}")


def queue_seq(end, queue):
    option(end, REPAIR_QUEUE, queue)
    return end.getsockopt(socket.IPPROTO_TCP, QUEUE_SEQ) % (1 << BITS)


def set_queue_seq(end, queue, number):
    option(end, REPAIR_QUEUE, queue)
    signed = number - (1 << BITS) if number >= 1 << (BITS - 1) else number
    option(end, QUEUE_SEQ, signed)


def client(server, port, local_port):
    end = socket.create_connection((server, int(port)), source_address=("", int(local_port)))
    option(end, REPAIR, ON)
    sent, received = queue_seq(end, SEND_QUEUE), queue_seq(end, RECEIVE_QUEUE)
    option(end, REPAIR, OFF_WITHOUT_PROBE)
    print("numbers", sent, received, flush=True)
    end.sendall(b"GET /file HTTP/1.0\r\n\r\n")
    while end.recv(1 << 16):
        time.sleep(0.01)


def forge(address, local_port, server, port, sent, received):
    end = socket.socket()
    option(end, REPAIR, ON)
    # The kernel counts a SYN that it sent among the bytes acknowledged. This socket sent none.
    set_queue_seq(end, SEND_QUEUE, (int(sent) - 1) % (1 << BITS))
    set_queue_seq(end, RECEIVE_QUEUE, int(received))
    end.bind((address, int(local_port)))
    end.connect((server, int(port)))
    option(end, REPAIR, OFF_WITHOUT_PROBE)
    end.setblocking(False)
    while sys.stdin not in select.select([sys.stdin, end], [], [], 0.01)[0]:
        end.send(b"x")
        try:
            end.recv(1 << 16)
        except BlockingIOError:
            pass
    print("forged", flush=True)


{"client": client, "forge": forge}[sys.argv[1]](*sys.argv[2:])
