"""The fabric for asyncio: an `Endpoint` whose waits are awaited.

    import asyncio
    from weft import aio

    async def serve() -> None:
        async with aio.Endpoint("echo", offer="echo") as endpoint:
            async for message in endpoint:
                await endpoint.send(message.peer, message.payload, tag=message.tag)

    asyncio.run(serve())

The loop watches the descriptor of the endpoint while somebody waits, and not otherwise, so that
messages which nobody awaits stay in the mailbox. Timeouts are those of asyncio: `asyncio.timeout`.
Objects are those of `weft`. An endpoint belongs to the loop in which it was opened.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, SupportsIndex, TypeVar

import weft
from weft import Memory, Message, Notification, Operation, Peer, PeerDied
from weft._buffer import Buffer

_T = TypeVar("_T")

_STAGE = 256 << 10


class Endpoint:
    """As `weft.Endpoint`, whose arguments it takes. Its calls that may wait are coroutines."""

    def __init__(self, name: str = "python", **options: Any) -> None:
        self._loop = asyncio.get_running_loop()
        self._plain = weft.Endpoint(name, **options)
        self._file = self._plain.fileno()
        self._waiters: set[asyncio.Future[None]] = set()
        self._is_watched = False
        self._timer: asyncio.Handle | None = None
        self._stage: memoryview | None = None
        self._stage_free = asyncio.Lock()

    @property
    def plain(self) -> weft.Endpoint:
        """The endpoint, for calls that do not wait."""
        return self._plain

    @property
    def address(self) -> str:
        """The address, `NODE:VPID`, by which peers connect."""
        return self._plain.address

    @property
    def host(self) -> str | None:
        """The address of the endpoint that offers the service which this one was opened for."""
        return self._plain.host

    def register(self, length: int) -> Memory:
        """Registers `length` fresh bytes."""
        return self._plain.register(length)

    async def connect(self, address: str | None = None) -> Peer:
        """Connects to the endpoint at `address`, or to the host of the service."""
        return await self.finish(self._plain.start_connect(address))

    async def receive(self, *, peer: Peer | None = None, tag: int | None = None) -> Message:
        """The next message, of `peer` and with `tag` if these are given.

        Raises `PeerDied` as `weft.Endpoint.receive` does.
        """
        return await self._until(lambda: self._plain.receive_nowait(peer=peer, tag=tag))

    async def notification(
        self, *, peer: Peer | None = None, tag: int | None = None
    ) -> Notification:
        """The next notification, of `peer` and with `tag` if these are given."""
        return await self._until(lambda: self._plain.notification_nowait(peer=peer, tag=tag))

    async def send(self, peer: Peer, data: Buffer, *, tag: int = 0, kind: int = 0) -> None:
        """Sends a message of up to 120 bytes, as soon as the mailbox of the peer has room."""
        await self._until(lambda: peer.send_nowait(data, tag=tag, kind=kind) or None)

    async def put(
        self,
        peer: Peer,
        data: Buffer,
        key: SupportsIndex,
        offset: int = 0,
        *,
        notify: int | None = None,
        value: int = 0,
        ordered: bool = False,
    ) -> None:
        """Writes to the peer's memory, and returns when the bytes are visible there.

        On one host the copy is made by this thread, inside the call.
        """

        def start() -> Operation[None]:
            return peer.start_put(
                data, key, offset, notify=notify, value=value, ordered=ordered, timeout=0
            )

        await self.finish(await self._accepted(start))

    async def get(
        self, peer: Peer, key: SupportsIndex, offset: int = 0, *, into: Buffer
    ) -> None:
        """Reads the peer's memory into all of `into`."""
        view = memoryview(into).cast("B")
        try:
            operation = await self._accepted(
                lambda: peer.start_get(key, offset, into=view, timeout=0)
            )
        except BufferError:
            if view.readonly:
                raise
            await self._get_by_stage(peer, key, offset, view)
        else:
            await self.finish(operation)

    async def finish(self, operation: Operation[_T]) -> _T:
        """Waits for the end of an operation. If this is cancelled, so is the operation."""
        try:
            await self._until(lambda: operation.done or None)
        except asyncio.CancelledError:
            # Closed meanwhile: what was asked of this call is its cancellation.
            with suppress(weft.Error):
                operation.cancel()
            raise
        return operation.wait(0)

    async def __aiter__(self) -> AsyncIterator[Message]:
        """All messages. A peer that goes down ends nothing: others may go on."""
        while True:
            try:
                message = await self.receive()
            except PeerDied:
                continue
            yield message

    def close(self) -> None:
        """Closes the endpoint. Who waits gets `weft.Closed`."""
        self._rest()
        self._plain.close()
        self._wake(weft.Closed("the endpoint is closed"))

    async def __aenter__(self) -> Endpoint:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<weft.aio.Endpoint {self.address}>"

    async def _until(self, look: Callable[[], _T | None]) -> _T:
        """Awaits events until `look` finds something."""
        while (found := look()) is None:
            waiter = self._loop.create_future()
            self._waiters.add(waiter)
            try:
                self._watch()
                await waiter
            finally:
                self._waiters.discard(waiter)
        return found

    async def _accepted(self, start: Callable[[], Operation[_T]]) -> Operation[_T]:
        """Starts an operation as soon as there is room for it."""

        def look() -> Operation[_T] | None:
            try:
                return start()
            except weft.TimedOut:
                return None

        return await self._until(look)

    async def _get_by_stage(
        self, peer: Peer, key: SupportsIndex, offset: int, view: memoryview
    ) -> None:
        """Reads into memory that is not registered, by way of memory that is."""
        async with self._stage_free:
            if self._stage is None:
                self._stage = memoryview(self._plain.register(_STAGE))
            for start in range(0, max(1, view.nbytes), _STAGE):
                part = self._stage[: min(_STAGE, view.nbytes - start)]

                def begin(at: int = offset + start, part: memoryview = part) -> Operation[None]:
                    return peer.start_get(key, at, into=part, timeout=0)

                operation = await self._accepted(begin)
                try:
                    await self.finish(operation)
                except BaseException:
                    # What was started may still write there.
                    self._stage = None
                    raise
                view[start : start + part.nbytes] = part

    def _watch(self) -> None:
        if not self._is_watched:
            self._loop.add_reader(self._file, self._turn)
            self._is_watched = True
        if self._timer is None:
            self._timer = self._loop.call_soon(self._turn)

    def _rest(self) -> None:
        if self._is_watched and not self._loop.is_closed():
            self._loop.remove_reader(self._file)
        self._is_watched = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _turn(self) -> None:
        """Takes what came, wakes those who wait, and prepares to sleep."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._waiters:
            self._rest()
            return
        try:
            if self._plain.poll() > 0:
                self._wake(None)
                return
            within = self._plain.arm()
        except weft.Error as error:
            self._wake(error)
            return
        if within == 0:
            self._timer = self._loop.call_soon(self._turn)
        elif within is not None:
            self._timer = self._loop.call_later(within, self._turn)

    def _wake(self, error: weft.Error | None) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                if error is None:
                    waiter.set_result(None)
                else:
                    waiter.set_exception(error)
