"""A child process that is a bare aiohttp server, on uvloop too: the least that a coordinator on aiohttp would cost.

Callers prove the key and are welcomed; once all are there they get their ranks, and when one has gone, the one that
waits gets its rank. Nothing else: nobody is watched, nothing is bounded, and nobody would succeed this process.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets

from aiohttp import web

from benchmarks.child import Answer, run, serve
from benchmarks.machine import take_open_files
from benchmarks.rendezvous import job
from understudy_protocol import compiled, handshake, membership, pod, wire
from understudy_protocol import membership as m
from understudy_protocol.words import Office, RoundToken

_HANDSHAKE = wire.message_types(handshake)
_MEMBERSHIP = wire.message_types(membership)
BACKLOG = 4096


class Bare:
    def __init__(self, host: str, actives: int) -> None:
        self._host, self._actives = host, actives
        self._round = -1
        self._links: dict[web.WebSocketResponse, m.Join] = {}
        self._holders: list[web.WebSocketResponse] = []
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

    async def settled(self, number: int, members: int) -> Answer:
        """Returns when all members of the round run their workers."""
        while not (self._round == number and len(self._started) >= members):  # the runner holds the limit
            self._moved.clear()
            await self._moved.wait()
        return {"round": self._round}

    async def _on_call(self, request: web.Request) -> web.WebSocketResponse:
        link = web.WebSocketResponse(compress=False)
        await link.prepare(request)
        await self._prove(link)
        self._links[link] = join = compiled.decode(await link.receive_str(), _MEMBERSHIP)
        await _send(link, m.Welcome(self._token(), Office(job.EPOCH, 1), 10.0, "", "coordinator", self._host))
        if self._round < 0 and len(self._links) > self._actives:  # the spare is there too
            self._holders = sorted(self._links, key=lambda x: (self._links[x].index is None, self._links[x].index or 0))
            del self._holders[self._actives :]
            await self._assign()
        try:
            async for frame in link:
                message = compiled.decode(frame.data, _MEMBERSHIP)
                if isinstance(message, m.Started):
                    self._started.add(join.pod_uid)
                    self._moved.set()
        finally:
            del self._links[link]
            if link in self._holders:
                spare = next(x for x in self._links if x not in self._holders)
                self._holders[self._holders.index(link)] = spare
                await self._assign()
        return link

    async def _prove(self, link: web.WebSocketResponse) -> None:
        hello = compiled.decode(await link.receive_str(), _HANDSHAKE)
        nonce = secrets.token_hex(handshake.NONCE_BYTES)
        parts = (job.KEY, hello.role, hello.job_uid, hello.nonce, nonce)
        await _send(link, handshake.Challenge(nonce, handshake.server_proof(*parts)))
        prove = compiled.decode(await link.receive_str(), _HANDSHAKE)
        assert handshake.same(handshake.caller_proof(*parts), prove.proof)

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


async def _send(link: web.WebSocketResponse, message: object) -> None:
    await link.send_str(compiled.encode(message).decode())


async def _main(host: str, actives: int) -> None:
    bare = Bare(host, actives)
    await serve({"listening": bare.listening, "settled": bare.settled})


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", required=True)
    parser.add_argument("--actives", type=int, required=True)
    asked = parser.parse_args()
    take_open_files()
    run(_main(asked.host, asked.actives))
