"""Waits for servers behind their gateways. test_gateways.py tests how they are found."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from tests.unit.rollout.guarded import guarded
from tests.unit.rollout.model import PATIENT, Broken, Cluster, Fault, Kind, ModelEngine, Place, World
from tests.unit.virtual_time import in_virtual_time
from understudy_rollout import Replica, WeightsState, WeightUpdate
from understudy_rollout.failures import StepTimedOut
from understudy_rollout.gateway import Gateway
from understudy_rollout.gateway.app import WEIGHTS
from understudy_rollout.replicas import until_up


@asynccontextmanager
async def behind_a_gateway(*answers: int) -> AsyncIterator[tuple[Replica, list[str]]]:
    """A replica with these health answers, the last one repeated forever; and the requests that it got."""
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        if request.path == WEIGHTS:
            return web.json_response({"state": "Fresh", "version": "v0", "reason": ""})
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


async def test_servers_are_checked_until_they_are_healthy() -> None:
    async with behind_a_gateway(502, 503, 200) as (replica, asked):
        await until_up([replica], limit_s=20)
        assert asked == ["/health"] * 3


async def test_the_wait_has_a_limit_and_its_error_has_the_last_answer() -> None:
    async with behind_a_gateway(502) as (replica, _):
        with pytest.raises(StepTimedOut, match=r"http://127.0.0.1:\d+: not up within 0.2 s: .* answered 502"):
            await until_up([replica], limit_s=0.2)


async def test_replicas_without_a_gateway_are_not_waited_for() -> None:
    await until_up([Replica("rollout-0", ModelEngine("rollout-0", World()))], limit_s=0)


def seen(replica: Replica) -> tuple[WeightsState, str]:
    return replica.weights.state, replica.weights.version


@in_virtual_time
async def test_a_replica_of_a_restarted_trainer_has_its_gateways_state() -> None:
    async with guarded("v7") as site:
        replica = Replica("rollout-0", ModelEngine("rollout-0", World()), admission=site.admission)
        assert seen(replica) == (WeightsState.UNCERTAIN, "")
        await until_up([replica])
        assert seen(replica) == (WeightsState.FRESH, "v7")
        # and that its server was restarted
        await site.server.restart("base")
        await until_up([replica])
        assert seen(replica) == (WeightsState.UNCERTAIN, "")
        assert "the inference server was restarted or lost" in replica.weights.reason


@in_virtual_time
async def test_an_update_that_touches_nothing_keeps_its_gateways_state() -> None:
    async with guarded("v7") as site:
        # given a restarted trainer, which has no state of its replica
        cluster = Cluster(1)
        replica = Replica("rollout-0", cluster.engines["rollout-0"], admission=site.admission)
        cluster.world.faults = [Fault("rollout-0", "release_kv", Place.BEFORE, Kind.ERROR)]
        # when an update fails before it has touched the weights
        with pytest.raises(Broken):
            async with WeightUpdate([replica], version="v8", timeouts=PATIENT):
                raise AssertionError("not reached")
        # then they are Fresh, in the trainer and in the gateway
        assert seen(replica) == (WeightsState.FRESH, "v7")
        assert (await site.state())["state"] == "Fresh"


@in_virtual_time
async def test_a_replica_that_another_trainer_updates_is_uncertain_here() -> None:
    async with guarded("v7") as site:
        replica = Replica("rollout-0", ModelEngine("rollout-0", World()), admission=site.admission)
        await site.close("of another", "v8")
        await replica.refresh()
        assert seen(replica) == (WeightsState.UNCERTAIN, "")
        assert replica.weights.reason == "another update was running: the weights are being updated to version v8"


async def test_a_replica_without_a_gateway_has_the_state_of_its_updates() -> None:
    (replica,) = Cluster(1).replicas
    replica.admission = Replica("other", replica.engine).admission
    await replica.refresh()
    assert seen(replica) == (WeightsState.FRESH, "v0")
