"""One copy between two pods over loopback, and the same bytes through a plain socket."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Iterator

from benchmarks.goals import UNDERSTUDY
from benchmarks.records import Sample
from tests.unit.sidecar.copying import copying_pods

STREAM, PLAIN = "copy", "plain socket"
BYTES, CHUNK_BYTES = 256 << 20, 1 << 20
GB = 1e9


def measure_copies(runs: int) -> list[Sample]:
    """From the end of save() until the other pod has the whole copy. Two copies before them touch the memory."""
    return asyncio.run(_copies(runs))


async def _copies(runs: int) -> list[Sample]:
    content, samples = bytes(BYTES), []
    async with copying_pods(BYTES) as (owner, keeper, _):
        await keeper.plan(owners=(owner.owner,))
        await owner.plan(holders=(keeper.holder,))
        for step in range(1, runs + 3):
            owner.save(step, content, serial=step)
            before = time.perf_counter()
            while step not in await keeper.kept_steps(owners=(owner.owner,)):  # noqa: ASYNC110 (it sends no event)
                await asyncio.sleep(0.005)
            took_s = time.perf_counter() - before
            if step > 2:
                samples.append(Sample(UNDERSTUDY, STREAM, 1, step - 3, {"s_per_gb": took_s * GB / BYTES}))
    return samples


def measure_plain(runs: int) -> Iterator[Sample]:
    near, far = socket.create_server(("127.0.0.1", 0)), socket.socket()
    far.connect(near.getsockname())
    connection, _ = near.accept()
    pid = os.fork()
    if pid == 0:
        far.close()
        _receive(connection)
    content = memoryview(bytes(BYTES))
    for run in range(-2, runs):
        before = time.perf_counter()
        for start in range(0, BYTES, CHUNK_BYTES):
            far.sendall(content[start : start + CHUNK_BYTES])
        far.recv(1)
        if run >= 0:
            yield Sample(PLAIN, STREAM, 1, run, {"s_per_gb": (time.perf_counter() - before) * GB / BYTES})
    for each in (near, far, connection):
        each.close()
    os.waitpid(pid, 0)


def _receive(connection: socket.socket) -> None:
    """Into memory, and answer each BYTES. Ends the process at the end of the stream, or if the parent has ended."""
    memory = memoryview(bytearray(BYTES))
    while True:
        received = 0
        while received < BYTES:
            count = connection.recv_into(memory[received : received + CHUNK_BYTES])
            if not count:
                os._exit(0)
            received += count
        connection.sendall(b"1")
