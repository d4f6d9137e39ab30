"""The echo server with asyncio's streams; see echo_client.py for the protocol."""

import asyncio
import sys


async def session(reader, writer):
    while line := await reader.readline():
        block = await reader.readexactly(int(line))
        writer.write(block)
        await writer.drain()
    writer.close()


async def main():
    server = await asyncio.start_server(session, "127.0.0.1", int(sys.argv[1]))
    async with server:
        await server.serve_forever()


asyncio.run(main())
