"""The members of bench-detection: they accept connections, read what arrives, and never answer."""

from __future__ import annotations

import asyncio
import sys

from benchmarks.child import reply, run


async def main(ip: str) -> None:
    server = await asyncio.start_server(_read, ip, 0)
    reply(port=server.sockets[0].getsockname()[1])
    stdin = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    await stdin.read()


async def _read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.read(1 << 12):
        pass
    writer.close()


if __name__ == "__main__":
    run(main(sys.argv[1]))
