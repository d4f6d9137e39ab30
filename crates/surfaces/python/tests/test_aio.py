"""asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from conftest import PATIENCE, Other

import weft
from weft import aio


def test_many_clients_of_a_server_in_one_loop() -> None:
    async def serve(endpoint: aio.Endpoint) -> None:
        async for message in endpoint:
            await endpoint.send(message.peer, message.payload, tag=message.tag)

    async def ask(address: str, number: int) -> None:
        async with aio.Endpoint(f"client {number}") as endpoint:
            peer = await endpoint.connect(address)
            for turn in range(50):
                question = bytes([number, turn])
                await endpoint.send(peer, question, tag=number)
                assert (await endpoint.receive(peer=peer)).payload == question

    async def main() -> None:
        async with asyncio.timeout(PATIENCE):
            async with aio.Endpoint("a server") as endpoint:
                server = asyncio.create_task(serve(endpoint))
                await asyncio.gather(*(ask(endpoint.address, number) for number in range(8)))
                server.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await server

    asyncio.run(main())


def test_puts_gets_and_notifications() -> None:
    async def main() -> None:
        async with asyncio.timeout(PATIENCE), aio.Endpoint() as one, aio.Endpoint() as two:
            memory = two.register(1 << 20)
            key = memory.grant()
            peer = await one.connect(two.address)
            waits = asyncio.create_task(two.notification(tag=3))
            await asyncio.sleep(0)
            content = bytes(range(256)) * 2048
            await one.put(peer, content, key, 7, notify=3, value=8)
            assert (await waits).value == 8
            into = bytearray(len(content))
            await one.get(peer, key, 7, into=into)
            assert into == content
            own = one.register(16)
            await one.get(peer, key, 8, into=own)
            assert bytes(memoryview(own)[:3]) == b"\x01\x02\x03"
            with pytest.raises(weft.OutOfBounds):
                await one.get(peer, key, 1 << 20, into=bytearray(1))
            with pytest.raises(BufferError):
                await one.get(peer, key, into=bytes(1))
            with pytest.raises(weft.NotFound):
                await one.connect("0:65000")

    asyncio.run(main())


def test_a_full_mailbox_is_waited_for() -> None:
    async def main() -> None:
        async with asyncio.timeout(PATIENCE), aio.Endpoint() as one, aio.Endpoint() as two:
            peer = await one.connect(two.address)

            async def flood() -> None:
                for number in range(2000):
                    await one.send(peer, number.to_bytes(4, "little"))

            flooding = asyncio.create_task(flood())
            for number in range(2000):
                got = await two.receive()
                assert int.from_bytes(got.payload, "little") == number
            await flooding

    asyncio.run(main())


def test_timeouts_and_closing_end_waits() -> None:
    async def main() -> None:
        endpoint = aio.Endpoint()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await endpoint.receive()
        waits = asyncio.create_task(endpoint.receive())
        await asyncio.sleep(0.05)
        assert not waits.done()
        endpoint.close()
        with pytest.raises(weft.Closed):
            await waits
        endpoint.close()

    asyncio.run(main())


def test_an_idle_loop_sleeps() -> None:
    async def main() -> None:
        import resource
        import time

        async with aio.Endpoint() as endpoint:
            waits = asyncio.create_task(endpoint.receive())
            await asyncio.sleep(0.1)
            before = resource.getrusage(resource.RUSAGE_SELF)
            begun = time.monotonic()
            await asyncio.sleep(0.5)
            after = resource.getrusage(resource.RUSAGE_SELF)
            busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            assert busy < 0.5 * (time.monotonic() - begun)
            waits.cancel()

    asyncio.run(main())


def test_a_death_is_raised(other: Callable[..., Other]) -> None:
    code = """
        endpoint = weft.Endpoint("a server")
        say(endpoint.address)
        endpoint.receive()
    """

    async def main() -> None:
        async with asyncio.timeout(PATIENCE), aio.Endpoint() as endpoint:
            server = other(code)
            (address,) = server.says()
            peer = await endpoint.connect(address)
            waits = asyncio.create_task(endpoint.receive(peer=peer))
            await asyncio.sleep(0.05)
            server.process.kill()
            with pytest.raises(weft.PeerDied) as died:
                await waits
            assert died.value.address == address
            with pytest.raises(weft.PeerDied):
                await endpoint.send(peer, b"x")

    asyncio.run(main())
