"""`python -m tests.unit.launcher.holding_sidecar SOCKET PORT ROUND`: a sidecar that lets its launcher keep a
connection.

It connects to PORT (its coordinator), serves its launcher with the real link, sends it the connection and starts a
round. It prints the inode of the connection's socket. On `close` from stdin it closes the connection; on `drop_socket`
it orders the launcher to drop it.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path

from tests.unit.launcher.fake_sidecar import round_
from understudy_sidecar.launcher_link import LauncherLink


async def serve(path: Path, port: int, number: int) -> None:
    connection = socket.create_connection(("127.0.0.1", port))
    print(os.fstat(connection.fileno()).st_ino, flush=True)

    def up(_: object) -> None:
        link.hold_socket(connection.fileno())
        link.send(round_(number))

    link = LauncherLink(up, lambda message: None, lambda: None)
    await link.listen(path)
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    while command := (await commands.readline()).strip():
        if command == b"close":
            connection.close()
        elif command == b"drop":
            link.drop_socket()
        print("done", flush=True)


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
