"""A child process that is a bare aiohttp server, on uvloop too: the lower bound for a coordinator on aiohttp.

Callers prove the key and get a Welcome. Once all are connected, they get their ranks. When one disconnects, the waiting
one gets its rank. The server does nothing else: it has no heartbeats, no limits, and no standby coordinator.
"""

from __future__ import annotations

import argparse
import asyncio

from aiohttp import web

from benchmarks.child import Answer, run, serve
from benchmarks.machine import take_open_files
from benchmarks.rendezvous import job
from tests.sealed_socket import SealedSocket, receive_hello, seal
from understudy_protocol import compiled, membership, pod, wire
from understudy_protocol import membership as m
from understudy_protocol.enums import RoundToken, Term
from understudy_protocol.handshake import HandshakeCalled, Role

_MEMBERSHIP = wire.message_types(membership)
BACKLOG = 4096
POD_UID = "coordinator"


class Bare:
    def __init__(self, host: str, actives: int) -> None:
        self._host, self._actives = host, actives
        self._called = HandshakeCalled(job.KEY, Role.MEMBER, job.UID, POD_UID, host)
        self._round = -1
        self._links: dict[SealedSocket, m.Join] = {}
        self._holders: list[SealedSocket] = []
        self._started: set[str] = set()
        self._moved = asyncio.Event()

    async def listening(self) -> Answer:
        """Returns when members can call."""
        app = web.Application()
        app.router.add_get(pod.MEMBERSHIP_PATH, self._on_call)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, self._host, pod.COORDINATOR_PORT, backlog=BACKLOG).start()
        return {}

    async def is_settled(self, number: int, members: int) -> Answer:
        """Returns when all members of the round run their workers."""
        while not (self._round == number and len(self._started) >= members):  # the runner enforces the limit
            self._moved.clear()
            await self._moved.wait()
        return {"round": self._round}

    async def _on_call(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(compress=False)
        await socket.prepare(request)
        link = await seal(socket, self._called, await receive_hello(socket))
        join = compiled.decode(await link.receive() or b"", _MEMBERSHIP)
        assert isinstance(join, m.Join), "a member joins first"
        self._links[link] = join
        await _send(link, m.Welcome(self._token(), Term(job.EPOCH, 1), 10.0, "", POD_UID, self._host))
        if self._round < 0 and len(self._links) > self._actives:  # the spare is there too
            self._holders = sorted(self._links, key=lambda x: (self._links[x].index is None, self._links[x].index or 0))
            del self._holders[self._actives :]
            await self._assign()
        try:
            while (text := await link.receive()) is not None:
                if isinstance(compiled.decode(text, _MEMBERSHIP), m.Started):
                    self._started.add(join.pod_uid)
                    self._moved.set()
        finally:
            del self._links[link]
            if link in self._holders:
                spare = next(x for x in self._links if x not in self._holders)
                self._holders[self._holders.index(link)] = spare
                await self._assign()
        return socket

    async def _assign(self) -> None:
        self._round += 1
        self._started.clear()
        token, size, nproc = self._token(), self._actives, job.NPROC_PER_NODE
        master = self._links[self._holders[0]]
        for rank, link in enumerate(self._holders):
            world = (rank * nproc, size * nproc)
            await _send(link, m.Assign(token, rank, size, *world, master.ip, master.master_port, "a round"))

    def _token(self) -> RoundToken:
        return RoundToken(job.EPOCH, 1, self._round)


async def _send(link: SealedSocket, message: object) -> None:
    await link.send(compiled.encode(message))


async def _main(host: str, actives: int) -> None:
    bare = Bare(host, actives)
    await serve({"listening": bare.listening, "settled": bare.is_settled})


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", required=True)
    parser.add_argument("--actives", type=int, required=True)
    asked = parser.parse_args()
    take_open_files()
    run(_main(asked.host, asked.actives))
