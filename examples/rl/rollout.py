"""A rollout server around a tiny torch model, whose answers show with which weights they were computed.

Every parameter of version n is filled with n, and each token of an answer is computed from all parameters: a token of
mixed weights is none of `token(n)`. A token takes TOKEN_S, so updates begin while answers are under way.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from typing import Any

import torch
from aiohttp import web
from gloo_group import GlooGroup
from torch import nn

TOKEN_S = 0.01


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))


def fill(some: nn.Module, version: float) -> None:
    with torch.no_grad():
        for parameter in some.parameters():
            parameter.fill_(version)


def token(some: nn.Module) -> float:
    with torch.no_grad():
        return float(some(torch.ones(4)))


class Rollout:
    def __init__(self, die_in_update: int) -> None:
        self._model, self._group, self._paused = model(), None, False
        self._die_in_update, self._updates = die_in_update, 0
        self._cache: dict[str, float] | None = {}  # of prefixes: stale if it outlives its weights
        self._answering: set[asyncio.Task[Any]] = set()
        fill(self._model, 0)

    def application(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/generate", self.generate)
        app.router.add_get("/health", self.health)
        for name in ("pause", "resume", "release_kv", "resume_kv", "join", "receive", "leave", "flush"):
            app.router.add_post(f"/{name}", getattr(self, name))
        return app

    async def generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        if self._paused or self._cache is None:
            return web.Response(status=500, text="paused, or without its cache")
        task = asyncio.current_task()
        assert task is not None
        self._answering.add(task)
        try:
            tokens = []
            for _ in range(body["tokens"]):
                tokens.append(self._cache.setdefault("prefix", token(self._model)))
                await asyncio.sleep(TOKEN_S)
            return web.json_response({"tokens": tokens})
        finally:
            self._answering.discard(task)

    async def health(self, _: web.Request) -> web.Response:
        return web.Response(text="well")

    async def pause(self, _: web.Request) -> web.Response:
        self._paused = True
        for task in self._answering:
            task.cancel()
        return web.Response()

    async def resume(self, _: web.Request) -> web.Response:
        self._paused = False
        return web.Response()

    async def release_kv(self, _: web.Request) -> web.Response:
        self._cache = None
        return web.Response()

    async def resume_kv(self, _: web.Request) -> web.Response:
        self._cache = {} if self._cache is None else self._cache
        return web.Response()

    async def flush(self, _: web.Request) -> web.Response:
        if self._cache is not None:
            self._cache.clear()
        return web.Response()

    async def join(self, request: web.Request) -> web.Response:
        body = await request.json()
        self._updates += 1
        at = (body["address"], body["port"], body["rank"], body["world_size"], body["name"])
        self._group = await asyncio.to_thread(GlooGroup, *at)
        return web.Response()

    async def receive(self, request: web.Request) -> web.Response:
        parameters = dict(self._model.named_parameters())
        for name in (await request.json())["names"]:
            arrived = torch.empty_like(parameters[name])
            assert self._group is not None
            await asyncio.to_thread(self._group.broadcast, arrived)
            with torch.no_grad():
                parameters[name].copy_(arrived)
            if self._updates == self._die_in_update:
                os._exit(1)
        return web.Response()

    async def leave(self, _: web.Request) -> web.Response:
        self._group = None
        return web.Response()


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1", help="to listen on")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--until-stdin-ends", action="store_true", help="end when the process that started it ends")
    parser.add_argument("--die-in-update", type=int, default=0, help="after its first tensor")
    chosen = parser.parse_args()
    runner = web.AppRunner(Rollout(chosen.die_in_update).application(), access_log=None, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, chosen.host, chosen.port).start()
    if chosen.until_stdin_ends:
        await asyncio.to_thread(sys.stdin.read)
        os._exit(0)  # a broadcast may still wait in a thread
    await asyncio.Event().wait()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # pid 1 of a container ignores SIGTERM without a handler
    asyncio.run(main())
