"""Waiting for servers behind their gateways. How they are found: tests/unit/operator/plan/test_gateways.py."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from tests.unit.rollout.model import ModelEngine, World
from understudy_rollout import Replica
from understudy_rollout.failures import StepTimedOut
from understudy_rollout.gateway import Gateway
from understudy_rollout.replicas import until_up


@asynccontextmanager
async def behind_a_gateway(*answers: int) -> AsyncIterator[tuple[Replica, list[str]]]:
    """A replica whose health is answered so, the last one for ever; and what was asked."""
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(status=answers[min(len(asked), len(answers)) - 1])

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port: Any = runner.addresses[0][1]
    gateway = Gateway(f"http://127.0.0.1:{port}", "token")
    yield Replica("rollout-0", ModelEngine("rollout-0", World()), admission=gateway), asked
    await runner.cleanup()


async def test_servers_are_asked_until_they_are_well() -> None:
    async with behind_a_gateway(502, 503, 200) as (replica, asked):
        await until_up([replica], limit_s=20)
        assert asked == ["/health"] * 3


async def test_nobody_waits_for_ever_and_the_last_answer_is_told() -> None:
    async with behind_a_gateway(502) as (replica, _):
        with pytest.raises(StepTimedOut, match=r"http://127.0.0.1:\d+: not up within 0.2 s: .* answered 502"):
            await until_up([replica], limit_s=0.2)


async def test_replicas_without_a_gateway_are_not_waited_for() -> None:
    await until_up([Replica("rollout-0", ModelEngine("rollout-0", World()))], limit_s=0)
