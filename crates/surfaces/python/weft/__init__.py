"""weft: endpoints on a fabric, messages between them, and each other's memory.

    import weft

    with weft.Endpoint("an example") as endpoint:
        memory = endpoint.register(1 << 20)        # memoryview(memory), numpy.frombuffer(memory)
        key = memory.grant(weft.Access.READ | weft.Access.WRITE)
        print(endpoint.address, int(key))          # for the peers

        peer = endpoint.connect("0:5")             # the address that the peer printed
        peer.send(b"hello", tag=1)                 # up to 120 bytes
        peer.put(b"any bytes", key=7, offset=0)    # the number that the peer printed
        answer = endpoint.receive(timeout=5)

Modules: `weft.aio` has the same for asyncio, `weft.lab` makes clusters of namespaces, and
`weft.metrics` reads what the node daemon counts.
"""

from __future__ import annotations

from enum import IntFlag

from ._errors import (
    AccessDenied,
    Cancelled,
    Closed,
    ConnectError,
    Error,
    Exhausted,
    Forked,
    InboxFull,
    InUse,
    InvalidKey,
    Misaligned,
    NoDaemon,
    NotFound,
    OpenError,
    OutOfBounds,
    PeerDied,
    TimedOut,
    TooLong,
    WouldBlock,
)
from ._weft import (
    VERSION,
    Endpoint,
    Memory,
    Message,
    Notification,
    Operation,
    Peer,
    PeerDown,
    RemoteKey,
)

__version__ = VERSION


class Access(IntFlag):
    """The rights of a key."""

    READ = 1
    """Get."""
    WRITE = 2
    """Put."""
    ATOMIC = 4
    """Atomics; needs READ and WRITE as well."""


__all__ = [
    "Access",
    "AccessDenied",
    "Cancelled",
    "Closed",
    "ConnectError",
    "Endpoint",
    "Error",
    "Exhausted",
    "Forked",
    "InUse",
    "InboxFull",
    "InvalidKey",
    "Memory",
    "Message",
    "Misaligned",
    "NoDaemon",
    "NotFound",
    "Notification",
    "OpenError",
    "Operation",
    "OutOfBounds",
    "Peer",
    "PeerDied",
    "PeerDown",
    "RemoteKey",
    "TimedOut",
    "TooLong",
    "WouldBlock",
]
