"""The exceptions of weft. Each derives from Error, and from Python's own of the same meaning."""

from __future__ import annotations


class Error(Exception):
    """What the fabric refuses, or what failed on it. The text says how to proceed."""


class OpenError(Error):
    """An endpoint was not opened."""


class NoDaemon(OpenError, ConnectionError):
    """No node daemon answers. `weft daemon` starts one, and so does `start_daemon=True`."""


class ConnectError(Error, ConnectionError):
    """An endpoint could not connect to a peer."""


class NotFound(Error, LookupError):
    """There is no endpoint with this address, or no service of this name."""


class PeerDied(Error, ConnectionError):
    """The peer ended, was killed, cannot be reached any more, or was disconnected."""

    address: str | None
    """Its address, if that is known."""
    reason: str
    """`ended`, `unreachable`, `misbehaved`, `disconnected` or `unknown`."""

    def __init__(self, text: str, address: str | None = None, reason: str = "unknown") -> None:
        super().__init__(text)
        self.address = address
        self.reason = reason


class InvalidKey(Error):
    """The key was never granted, was revoked, or is of another partition."""


class AccessDenied(Error, PermissionError):
    """The key does not allow the operation, or the policy does not let this user in."""


class OutOfBounds(Error, IndexError):
    """The bytes are outside of the memory."""


class Misaligned(Error, ValueError):
    """The offset of a word is not a multiple of its size."""


class TooLong(Error, ValueError):
    """The message is longer than a mailbox takes: use put."""


class Exhausted(Error, MemoryError):
    """There is no more of something: memory, keys, peers, numbers of endpoints."""


class Cancelled(Error):
    """The operation was given up before anything of it left."""


class WouldBlock(Error, BlockingIOError):
    """A queue is full."""


class TimedOut(Error, TimeoutError):
    """The call did not end within its timeout. What was started goes on."""


class InboxFull(Error):
    """The inbox of the endpoint is full. Take messages and notifications out, then call again."""


class InUse(Error, RuntimeError):
    """Another thread uses the endpoint, or the call that a signal handler interrupted."""


class Closed(Error, ValueError):
    """The endpoint is closed."""


class Forked(Error, RuntimeError):
    """The object is of the process before a fork. A child opens endpoints of its own."""
