"""The echo client with asyncio's protocols: non-blocking connects and writes."""

import asyncio
import random
import sys

SIZES = (1, 3000, 70_000, 1_500_000, 17, 4_000_000)


async def session(number):
    reader, writer = await asyncio.open_connection("127.0.0.1", int(sys.argv[1]))
    for turn in range(len(SIZES)):
        block = random.Random(number * 100 + turn).randbytes(SIZES[(turn + number) % len(SIZES)])
        writer.write(b"%d\n" % len(block))
        writer.write(block)
        await writer.drain()
        got = await asyncio.wait_for(reader.readexactly(len(block)), 30)
        assert got == block, f"other bytes in turn {turn}"
    writer.write_eof()
    assert await reader.read() == b""
    writer.close()


async def main():
    await asyncio.gather(*(session(number) for number in range(10)))
    print("the same bytes came back")


asyncio.run(main())
