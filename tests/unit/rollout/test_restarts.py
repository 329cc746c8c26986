"""Gateway and server are restarted, alone and together: admitted weights are always known to be whole."""

from __future__ import annotations

import asyncio
from itertools import product

import aiohttp
import pytest

from tests.unit.rollout.guarded import Guarded, guarded, until
from tests.unit.rollout.model import OF_ENGINES, PATIENT, Broken, Cluster, Place, Side
from tests.unit.virtual_time import in_virtual_time
from understudy_rollout import WeightsState, WeightUpdate
from understudy_rollout.failures import AdmissionRefused, EngineRefused

VERSION_HEADER = "Understudy-Weight-Version"

LOOK_EVERY_S = 1.0

CALLS = tuple(method for method in OF_ENGINES if method not in ("join_group", "receive", "leave_group"))


async def whole_update(site: Guarded, version: str, update: str = "u") -> None:
    await site.close(update, version)
    site.server.version = version
    await site.admission.open(update)


async def seen(site: Guarded) -> tuple[str, str]:
    state = await site.state()
    return str(state["state"]), str(state["version"])


@in_virtual_time
async def test_a_gateway_that_is_restarted_in_an_update_admits_nothing_before_the_end_of_it() -> None:
    async with guarded() as site:
        # given a running update
        await site.close("u", "v1")
        # when the gateway is restarted
        await site.restart()
        # then it does not assume its server's first version again
        assert await seen(site) == ("Updating", "v1")
        assert (await site.ask()).status == 503
        # and has the update's version when that has ended
        site.server.version = "v1"
        await site.admission.open("u")
        assert (await site.ask()).headers[VERSION_HEADER] == "v1"


@pytest.mark.parametrize("away_s", [1.0, 12.0])
@in_virtual_time
async def test_a_finished_transfer_is_opened_when_its_gateway_is_back(away_s: float) -> None:
    async with guarded() as site:
        # given an update whose gateway is down when only the last step is left
        cluster = Cluster(1)
        (replica,) = cluster.replicas
        replica.admission = site.admission
        engine = cluster.engines["rollout-0"]
        resume, starting = engine.resume_generation, []

        async def come_back() -> None:
            await asyncio.sleep(away_s)
            await site.start()

        async def resume_and_lose_the_gateway() -> None:
            await resume()
            await site.stop()
            starting.append(asyncio.ensure_future(come_back()))

        engine.resume_generation = resume_and_lose_the_gateway  # type: ignore[method-assign]
        # when it ends, with the default timeouts
        async with WeightUpdate(cluster.replicas, version="v1") as update:
            await update.load("v1")
        # then the gateway gets the message as soon as it is back
        assert await seen(site) == ("Fresh", "v1")
        assert (replica.weights.state, replica.weights.version) == (WeightsState.FRESH, "v1")


@in_virtual_time
async def test_a_gateway_that_is_restarted_after_a_failed_update_waits_for_a_complete_one() -> None:
    async with guarded() as site:
        await site.close("u", "v1")
        await site.admission.abandon("u", True, "the transfer failed")
        await site.restart()
        assert (await site.state())["reason"] == "the transfer failed"
        assert (await site.ask()).status == 503
        await whole_update(site, "v2", "next")
        assert (await site.ask()).status == 200


@in_virtual_time
async def test_a_restarted_gateway_continues_with_the_version_of_its_server() -> None:
    async with guarded() as site:
        await whole_update(site, "v1")
        await site.restart()
        response = await site.ask()
        assert (response.status, response.headers[VERSION_HEADER]) == (200, "v1")
        assert await response.json() == {"text": "v1"}


@in_virtual_time
async def test_an_update_that_touched_nothing_restores_the_state_before_the_restart() -> None:
    async with guarded() as site:
        await whole_update(site, "v1")
        await site.close("later", "v2")
        await site.restart()
        await site.admission.abandon("later", False, "no group")
        assert await seen(site) == ("Fresh", "v1")


@pytest.mark.parametrize("version", ["", "v0"])
@in_virtual_time
async def test_the_stored_state_is_ignored_if_both_were_restarted(version: str) -> None:
    async with guarded(version) as site:
        await whole_update(site, "v1")
        # when the server is restarted while the gateway is down
        await site.stop()
        await site.server.restart("base")
        await site.start()
        # then the gateway does not trust the previous version
        response = await site.ask()
        assert response.status == 503
        assert "another process listens" in (await response.json())["error"]["message"]
        await whole_update(site, "v2", "next")
        assert (await site.ask()).status == 200


@in_virtual_time
async def test_a_server_that_is_down_when_its_gateway_starts_is_not_trusted_when_it_is_back() -> None:
    async with guarded() as site:
        await whole_update(site, "v1")
        await site.stop()
        await site.server.stop()
        await site.start()
        assert (await seen(site))[0] == "Uncertain"
        await site.server.restart("base")
        await asyncio.sleep(2 * LOOK_EVERY_S)
        assert (await site.ask()).status == 503


@in_virtual_time
async def test_a_quick_restart_of_a_server_is_detected_before_a_request_reaches_it() -> None:
    async with guarded() as site:
        await whole_update(site, "v1")
        await asyncio.sleep(LOOK_EVERY_S / 2)  # between two checks
        # when the server is restarted between two checks
        await site.server.restart("base")
        # then no client gets an answer from its new weights
        response = await site.ask()
        assert response.status == 503
        assert (await seen(site))[0] == "Uncertain"


@in_virtual_time
async def test_a_restart_of_a_server_while_its_gateway_starts_is_detected() -> None:
    async with guarded() as site:
        await whole_update(site, "v1")
        await site.restart()
        await site.server.restart("base")  # before the gateway has connected to it
        assert (await site.ask()).status == 503


@in_virtual_time
async def test_running_requests_end_when_the_server_is_restarted() -> None:
    async with guarded() as site:
        site.server.waits, site.server.tokens = True, 5
        whole, stream = site.ask(), await site.ask(stream=True)
        assert await stream.content.readany() == b"v0 "
        await until(lambda: site.server.running == 2)
        await site.server.restart("base")
        assert (await whole).status == 503
        with pytest.raises(aiohttp.ClientError):
            await stream.content.read()
        stream.close()
        assert (await site.state())["inFlight"] == 0


@in_virtual_time
async def test_a_server_that_is_restarted_in_an_update_is_not_opened_by_its_end() -> None:
    async with guarded() as site:
        await site.close("u", "v1")
        # when the server is restarted after it has got its tensors, so that it has its initial weights
        await site.server.restart("base")
        # then the end of the update is rejected at once
        with pytest.raises(AdmissionRefused, match=r"update u does not run here \(it is Uncertain\)"):
            await site.admission.open("u")
        assert (await site.ask()).status == 503


@in_virtual_time
async def test_a_server_that_closes_idle_connections_is_the_same_one() -> None:
    async with guarded() as site:
        await whole_update(site, "v1")
        await asyncio.sleep(LOOK_EVERY_S)
        assert site.server.runner is not None
        assert site.server.runner.server is not None
        for connection in list(site.server.runner.server.connections):
            assert connection.transport is not None
            connection.transport.close()
        await asyncio.sleep(3 * LOOK_EVERY_S)
        assert await seen(site) == ("Fresh", "v1")


@in_virtual_time
async def test_the_next_gateway_rejects_a_replaced_trainer_too() -> None:
    async with guarded() as site:
        await site.close("new", "v1", (1, 2, 4))
        await site.admission.open("new")
        await site.restart()
        with pytest.raises(AdmissionRefused, match=r"round 1\.2\.3, and a trainer of the newer round 1\.2\.4"):
            await site.close("old", "v0", (1, 2, 3))


@in_virtual_time
async def test_a_message_that_cannot_be_stored_is_rejected() -> None:
    async with guarded() as site:
        # given a gateway whose file cannot be replaced
        site.file.unlink()
        site.file.mkdir()
        # when an update begins, it is rejected
        with pytest.raises(EngineRefused, match=r"500: .*cannot write its state file, so it rejects the call"):
            await site.close("u", "v1")
        assert (await site.ask()).status == 503
        # and once the file can be written again, the weights are as before
        site.file.rmdir()
        await site.admission.abandon("u", False, "its gateway could not keep it")
        assert (await site.ask()).headers[VERSION_HEADER] == "v0"


@pytest.mark.parametrize(("method", "fails"), list(product(CALLS, (False, True))))
@in_virtual_time
async def test_a_gateway_restarted_at_any_call_of_an_update_has_a_true_state_afterwards(
    method: str, fails: bool
) -> None:
    async with guarded() as site:
        # given an update whose gateway is restarted before a call to the server, which may fail
        cluster = Cluster(1)
        (replica,) = cluster.replicas
        strike = cluster.world.at

        async def restart(side: Side, called: str, place: Place) -> None:
            if (called, place) == (method, Place.BEFORE) and side.calls.count(method) == 1:
                await site.restart()
                replica.admission = site.admission
                if fails:
                    raise Broken(method)
            await strike(side, called, place)

        cluster.world.at = restart  # type: ignore[method-assign,assignment]
        replica.admission = site.admission
        # when the update has ended
        try:
            async with WeightUpdate(cluster.replicas, version="v1", timeouts=PATIENT) as update:
                await update.load("v1")
        except Broken:
            assert fails
        # then gateway and trainer have the same state of the weights
        state = await seen(site)
        assert state == (replica.weights.state.value, replica.weights.version)
        # and they are admitted only if they are of one version
        site.server.version = ",".join(sorted(set(cluster.engines["rollout-0"].holds.values())))
        response = await site.ask()
        assert (response.status == 200) == (replica.weights.state is WeightsState.FRESH)
        if response.status == 200:
            assert (await response.json())["text"] == response.headers[VERSION_HEADER] == state[1]
