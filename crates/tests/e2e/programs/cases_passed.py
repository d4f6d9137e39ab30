"""Connections that are passed on with bytes unread while their peer is out of reach.

Each case runs with the rights of root, and without any. A process without rights may not use the
socket of its peer, nor fill a receive queue, so the daemon does it.
"""

import ctypes
import os
import signal
import socket
import struct
import time

from semantics import case, exactly, pattern

LIBC = ctypes.CDLL(None, use_errno=True)
# _LINUX_CAPABILITY_VERSION_3
VERSION = 0x20080522


def drop_rights():
    """Takes all capabilities from this process."""
    header = struct.pack("Ii", VERSION, 0)
    assert LIBC.capset(header, bytes(24)) == 0, ctypes.get_errno()


def pass_on(t, c):
    """Passes a connection on by SCM_RIGHTS. Returns it as its new holder has it."""
    ours, theirs = socket.socketpair()
    t.attempt("passed", socket.send_fds, ours, [b"x"], [c.fileno()])
    c.close()
    passed = socket.socket(fileno=socket.recv_fds(theirs, 1, 1)[1][0])
    passed.settimeout(5)
    return passed


def turns(s, begins):
    """Some exchanges, so that both directions are on the fabric."""
    for _ in range(12):
        if begins:
            s.sendall(b"0123456789")
        exactly(s, 10)
        if not begins:
            s.sendall(b"0123456789")


def of_a_peer_that_closed(sent, has_rights, shuts=False):
    class passes:
        def server(t):
            if not has_rights:
                drop_rights()
            c = t.accept()
            turns(c, False)
            t.say(exactly(c, 1) == pattern(sent)[:1])
            if shuts:
                c.shutdown(socket.SHUT_WR)
            t.sync()
            t.sync()
            # The peer's kernel tells the end.
            time.sleep(0.05)
            passed = pass_on(t, c)
            t.say(exactly(passed, sent - 1) == pattern(sent)[1:])
            t.say(passed.recv(1), passed.recv(1))
            if not shuts:
                t.attempt("written", passed.send, b"x")
                time.sleep(0.05)
            t.attempt("written again", passed.send, b"x")
            t.sync()

        def client(t):
            s = t.connect()
            turns(s, True)
            s.sendall(pattern(sent))
            t.sync()
            if shuts:
                t.say(s.recv(1))
            s.close()
            t.sync()
            t.sync()

    return passes


@case
class passed_with_bytes_unread_of_a_peer_that_closed(of_a_peer_that_closed(200, True)):
    pass


@case
class passed_with_much_unread_of_a_peer_that_closed(of_a_peer_that_closed(230_000, True)):
    pass


@case
class passed_with_bytes_unread_and_half_closed_of_a_peer_that_closed(
    of_a_peer_that_closed(3_000, True, shuts=True)
):
    pass


@case
class passed_without_rights_of_a_peer_that_closed(of_a_peer_that_closed(230_000, False)):
    pass


def of_a_peer_that_is_stopped(sent, has_rights, send_buffer=None, ends=False):
    class passes:
        def server(t):
            if not has_rights:
                drop_rights()
            c = t.accept()
            turns(c, False)
            peer = t.hear()
            # Long enough for the peer to fall asleep.
            time.sleep(0.03)
            os.kill(peer, signal.SIGSTOP)
            passed = pass_on(t, c)
            t.say(exactly(passed, sent) == pattern(sent))
            if ends:
                t.say(passed.recv(1))
            os.kill(peer, signal.SIGCONT)
            passed.sendall(b"answer")
            if not ends:
                t.say(exactly(passed, 100_000) == pattern(100_000))
            t.sync()

        def client(t):
            s = t.connect()
            if send_buffer:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
            turns(s, True)
            s.sendall(pattern(sent))
            if ends:
                s.shutdown(socket.SHUT_WR)
            t.tell(os.getpid())
            t.say(exactly(s, 6))
            if send_buffer:
                t.say(s.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF))
            if not ends:
                s.sendall(pattern(100_000))
            t.sync()

    return passes


@case
class passed_with_more_unread_than_the_buffer_of_a_peer_that_is_stopped(
    of_a_peer_that_is_stopped(20_000, True, send_buffer=4_096)
):
    pass


@case
class passed_without_rights_while_the_peer_is_stopped(of_a_peer_that_is_stopped(230_000, False)):
    pass


@case
class passed_without_rights_half_closed_while_the_peer_is_stopped(
    of_a_peer_that_is_stopped(3_000, False, ends=True)
):
    pass


@case
class passed_without_rights_beside_a_buffer_that_is_too_small(
    of_a_peer_that_is_stopped(20_000, False, send_buffer=4_096)
):
    pass
