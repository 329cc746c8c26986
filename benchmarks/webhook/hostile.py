"""Hostile callers of the webhook: `python -m benchmarks.webhook.hostile PORT CONNECTIONS SECONDS`, in a separate
process.

All connections are opened at once, from ADDRESSES, one kind after the other. When the server closes a connection, it is
opened again until the seconds have passed. A pod can use all kinds without any knowledge: nothing sent, no TLS, a
request that never ends, a body that is too large, one that is nested, one with a million values, one that is sent very
slowly, and endless reviews of pods.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import ssl
import sys
from collections.abc import Awaitable, Callable

ADDRESSES = tuple(f"127.0.0.{number}" for number in range(66, 76))
MEBIBYTE = 1 << 20

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def head(length: int, path: str = "/mutate") -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode()


def review(spec: bytes) -> bytes:
    metadata = b'"metadata": {"labels": {"understudy.dev/inject": "enabled"}}'
    pod = b"{" + metadata + b', "spec": ' + spec + b"}"
    request = b'{"uid": "u", "kind": {"kind": "Pod"}, "object": ' + pod + b"}"
    return b'{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": ' + request + b"}"


NESTED = review(b"[" * (3 * MEBIBYTE - 1000))
SHALLOW_NESTED = review(b'{"a":' * 400 + b"1" + b"}" * 400)
VALUES = review(b"[" + b"[]," * 1_000_000 + b"1]")
#: A job whose check takes minutes: the check searches each of 15,000 groups in a list of as many.
EXPENSIVE = (
    b'{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": "u", '
    b'"kind": {"kind": "TrainingJob"}, "object": {"metadata": {"name": "x"}, "spec": {"replicatedJobs": ['
    + b", ".join(b'{"name": "g%d", "template": {}}' % number for number in range(15_000))
    + b'], "launcher": {"targetReplicatedJobs": ['
    + b", ".join(b'"g%d"' % number for number in range(1, 15_001))
    + b"]}}}}}"
)
POD = review(b'{"containers": [{"name": "a", "image": "b", "command": ["c"]}]}')


async def _never(_: Streams) -> None:
    await asyncio.sleep(3600)


async def _slow_head(streams: Streams) -> None:
    for byte in itertools.chain(b"POST /mutate HTTP/1.1\r\nHost: x\r\n", itertools.repeat(ord("a"))):
        streams[1].write(bytes([byte]))
        await asyncio.sleep(0.2)


async def _slow_body(streams: Streams) -> None:
    streams[1].write(head(3 * MEBIBYTE))
    while True:
        streams[1].write(b"[")
        await asyncio.sleep(0.2)


def _sends(body: bytes, path: str = "/mutate") -> Callable[[Streams], Awaitable[None]]:
    async def send(streams: Streams) -> None:
        while True:
            streams[1].write(head(len(body), path) + body)
            await streams[1].drain()
            if not await streams[0].readline():
                return

    return send


#: For each kind: whether it uses TLS, and the function that sends its bytes.
KINDS: tuple[tuple[bool, Callable[[Streams], Awaitable[None]]], ...] = (
    (False, _never),
    (False, _sends(b"no TLS" * 100)),
    (True, _never),
    (True, _slow_head),
    (True, _slow_body),
    (True, _sends(b"x" * (64 * MEBIBYTE))),
    (True, _sends(NESTED)),
    (True, _sends(SHALLOW_NESTED)),
    (True, _sends(VALUES)),
    (True, _sends(POD)),
    (True, _sends(EXPENSIVE, "/validate")),
)


async def _attack(number: int, port: int, context: ssl.SSLContext) -> None:
    speaks_tls, behave = KINDS[number % len(KINDS)]
    address = ADDRESSES[number // len(KINDS) % len(ADDRESSES)]
    while True:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, ValueError):
            streams = await asyncio.open_connection(
                "127.0.0.1", port, local_addr=(address, 0), ssl=context if speaks_tls else None
            )
            try:
                ending = asyncio.create_task(_ended(streams[0])) if behave is _never else None
                await (ending or behave(streams))
            finally:
                streams[1].transport.abort()
        await asyncio.sleep(0.05)


async def _ended(reader: asyncio.StreamReader) -> None:
    await reader.read(1)


async def main(port: int, connections: int, seconds: float) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.gather(*(_attack(number, port, context) for number in range(connections)))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
