"""Gateway and server are restarted, each alone and both at once: what is admitted afterwards is known to be whole."""

from __future__ import annotations

import asyncio
from itertools import product

import aiohttp
import pytest

from tests.unit.rollout.guarded import Guarded, guarded, until
from tests.unit.rollout.model import OF_ENGINES, PATIENT, Broken, Cluster, Place, Side
from tests.unit.virtual_time import in_virtual_time
from understudy_rollout import State, WeightUpdate
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
        # given an update under way
        await site.close("u", "v1")
        # when the gateway is restarted
        await site.restart()
        # then it does not take its server's first version for true again
        assert await seen(site) == ("Updating", "v1")
        assert (await site.ask()).status == 503
        # and knows the update when it has come to its end
        site.server.version = "v1"
        await site.admission.open("u")
        assert (await site.ask()).headers[VERSION_HEADER] == "v1"


@pytest.mark.parametrize("away_s", [1.0, 12.0])
@in_virtual_time
async def test_a_finished_transfer_is_opened_when_its_gateway_is_back(away_s: float) -> None:
    async with guarded() as site:
        # given an update whose gateway is away when all but its end is done
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
        # when it ends, with the limits that it has by default
        async with WeightUpdate(cluster.replicas, version="v1") as update:
            await update.load("v1")
        # then the gateway is told as soon as it is back
        assert await seen(site) == ("Fresh", "v1")
        assert (replica.weights.state, replica.weights.version) == (State.FRESH, "v1")


@in_virtual_time
async def test_a_gateway_that_is_restarted_after_a_failed_update_waits_for_a_whole_one() -> None:
    async with guarded() as site:
        await site.close("u", "v1")
        await site.admission.abandon("u", True, "the transfer failed")
        await site.restart()
        assert (await site.state())["reason"] == "the transfer failed"
        assert (await site.ask()).status == 503
        await whole_update(site, "v2", "next")
        assert (await site.ask()).status == 200


@in_virtual_time
async def test_a_gateway_that_is_restarted_goes_on_with_the_version_that_its_server_still_has() -> None:
    async with guarded() as site:
        await whole_update(site, "v1")
        await site.restart()
        response = await site.ask()
        assert (response.status, response.headers[VERSION_HEADER]) == (200, "v1")
        assert await response.json() == {"text": "v1"}


@in_virtual_time
async def test_an_update_that_touched_nothing_leaves_what_was_there_before_the_restart() -> None:
    async with guarded() as site:
        await whole_update(site, "v1")
        await site.close("later", "v2")
        await site.restart()
        await site.admission.abandon("later", False, "no group")
        assert await seen(site) == ("Fresh", "v1")


@pytest.mark.parametrize("version", ["", "v0"])
@in_virtual_time
async def test_when_both_were_restarted_what_was_kept_does_not_count(version: str) -> None:
    async with guarded(version) as site:
        await whole_update(site, "v1")
        # when the server is restarted while there is no gateway
        await site.stop()
        await site.server.restart("base")
        await site.start()
        # then it is not asked for the version that the former one had
        response = await site.ask()
        assert response.status == 503
        assert "another process listens" in (await response.json())["error"]["message"]
        await whole_update(site, "v2", "next")
        assert (await site.ask()).status == 200


@in_virtual_time
async def test_a_server_that_listens_no_more_when_its_gateway_starts_is_not_trusted_when_it_is_back() -> None:
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
async def test_a_server_that_is_restarted_within_a_moment_is_noticed_before_it_is_asked() -> None:
    async with guarded() as site:
        await whole_update(site, "v1")
        await asyncio.sleep(LOOK_EVERY_S / 2)  # between two looks
        # when the server is restarted in less time than lies between two looks
        await site.server.restart("base")
        # then nobody gets an answer of what it holds now
        response = await site.ask()
        assert response.status == 503
        assert (await seen(site))[0] == "Uncertain"


@in_virtual_time
async def test_a_server_that_is_restarted_while_its_gateway_starts_is_noticed() -> None:
    async with guarded() as site:
        await whole_update(site, "v1")
        await site.restart()
        await site.server.restart("base")  # before the gateway has connected to it
        assert (await site.ask()).status == 503


@in_virtual_time
async def test_what_is_under_way_when_the_server_is_restarted_ends() -> None:
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
        # when the server is restarted after it has got its tensors, so that it holds what it starts with
        await site.server.restart("base")
        # then the end of the update is refused, at once
        with pytest.raises(AdmissionRefused, match=r"update u does not run here \(it is Uncertain\)"):
            await site.admission.open("u")
        assert (await site.ask()).status == 503


@in_virtual_time
async def test_a_server_that_hangs_up_on_idle_connections_is_the_same_one() -> None:
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
async def test_a_trainer_that_was_replaced_is_refused_by_the_next_gateway_too() -> None:
    async with guarded() as site:
        await site.close("new", "v1", (1, 2, 4))
        await site.admission.open("new")
        await site.restart()
        with pytest.raises(AdmissionRefused, match=r"round 1\.2\.3, and a trainer of the newer round 1\.2\.4"):
            await site.close("old", "v0", (1, 2, 3))


@in_virtual_time
async def test_what_cannot_be_kept_is_not_taken_for_told() -> None:
    async with guarded() as site:
        # given a gateway whose file cannot be replaced
        site.file.unlink()
        site.file.mkdir()
        # when an update begins, it does not
        with pytest.raises(EngineRefused, match=r"500: .*cannot write its state file, so it rejects the call"):
            await site.close("u", "v1")
        assert (await site.ask()).status == 503
        # and once it can be kept again, the weights are what they were
        site.file.rmdir()
        await site.admission.abandon("u", False, "its gateway could not keep it")
        assert (await site.ask()).headers[VERSION_HEADER] == "v0"


@pytest.mark.parametrize(("method", "fails"), list(product(CALLS, (False, True))))
@in_virtual_time
async def test_a_gateway_restarted_at_any_call_of_an_update_knows_afterwards_what_is_so(
    method: str, fails: bool
) -> None:
    async with guarded() as site:
        # given an update whose gateway is restarted before one of the server's calls, which may fail
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
        # when it comes to its end
        try:
            async with WeightUpdate(cluster.replicas, version="v1", timeouts=PATIENT) as update:
                await update.load("v1")
        except Broken:
            assert fails
        # then the gateway says of the weights what the trainer says
        told = await seen(site)
        assert told == (replica.weights.state.value, replica.weights.version)
        # and admits them only if they are of one version
        site.server.version = ",".join(sorted(set(cluster.engines["rollout-0"].holds.values())))
        response = await site.ask()
        assert (response.status == 200) == (replica.weights.state is State.FRESH)
        if response.status == 200:
            assert (await response.json())["text"] == response.headers[VERSION_HEADER] == told[1]
