"""A replaced trainer that thaws: its calls do not reach the server, and the weights are Uncertain at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from tests.unit.rollout.guarded import TOKEN, Guarded, guarded, until
from tests.unit.rollout.model import PATIENT, TENSORS, Cluster, ModelEngine, World
from tests.unit.virtual_time import in_virtual_time
from understudy_rollout import Group, Replica, Tensor, WeightsState, WeightUpdate
from understudy_rollout.engines.http import EngineErrorAnswer, EngineServer, NotDelivered
from understudy_rollout.failures import AdmissionRefused, EngineUnreachable
from understudy_rollout.gateway import Gateway
from understudy_rollout.gateway.flights import Policy
from understudy_rollout.weights import Fence

VERSION_HEADER = "Understudy-Weight-Version"

CALLS_LIMIT_S = 10.0

OLD, NEW = (1, 2, 3), (1, 2, 4)


class Trainer:
    """One trainer's view of the server behind a gateway: each bucket is written as soon as the server accepts it."""

    def __init__(self, site: Guarded, fence: Fence, direct: bool = False) -> None:
        self.gateway = Gateway(site.url, TOKEN)
        self.fence, self.direct, self.site = fence, direct, site
        self.engine = WrittenEngine(site, self.gateway, direct)
        self.replica = Replica("rollout-0", self.engine, admission=self.gateway)

    def update(self, version: str) -> WeightUpdate:
        sender = Sender()
        return WeightUpdate([self.replica], sender, version=version, fence=self.fence, timeouts=PATIENT)


class Sender:
    async def open_group(self, world_size: int) -> Group:
        return Group("127.0.0.1", 29500, world_size, f"group-{id(self)}", "gloo")

    async def join_group(self, group: Group) -> None: ...

    async def send(self, group: Group, tensors: Sequence[Tensor]) -> None: ...

    async def leave_group(self, group: Group | None) -> None: ...


class WrittenEngine(ModelEngine):
    """The control calls of its server are POST /control/<call>."""

    def __init__(self, site: Guarded, gateway: Gateway, direct: bool) -> None:
        super().__init__("rollout-0", World())
        self.server = EngineServer(f"http://127.0.0.1:{site.server.port}" if direct else gateway)

    async def stop_generation(self) -> None:
        await self.server.post("/control/stop")

    async def release_kv(self) -> None:
        await self.server.post("/control/release")

    async def join_group(self, group: Group, first_rank: int) -> None:
        await self.server.post("/control/join", {"group": group.name})

    async def receive(self, group: Group, tensors: Sequence[Tensor]) -> None:
        await self.server.post("/control/receive", {"tensors": [tensor.name for tensor in tensors]})

    async def finish(self, version: str) -> None:
        await self.server.post("/control/finish")

    async def leave_group(self, group: Group) -> None:
        await self.server.post("/control/leave", {"group": group.name})

    async def resume_kv(self) -> None:
        await self.server.post("/control/resume-kv")

    async def flush_cache(self) -> None:
        await self.server.post("/control/flush")

    async def resume_generation(self) -> None:
        await self.server.post("/control/resume")


@asynccontextmanager
async def two_trainers(direct: bool = False) -> AsyncIterator[tuple[Guarded, Trainer, Trainer]]:
    async with guarded() as site:
        yield site, Trainer(site, OLD, direct), Trainer(site, NEW, direct)


async def status_of_an_answer(site: Guarded) -> tuple[int, str]:
    response = await site.ask()
    return response.status, response.headers.get(VERSION_HEADER, "")


@in_virtual_time
async def test_every_call_of_an_update_goes_through_the_gateway_to_the_server() -> None:
    async with two_trainers() as (site, trainer, _):
        async with trainer.update("v1") as update:
            await update.transfer(TENSORS[:1])
            await update.transfer(TENSORS[1:])
        assert [call for call, _ in site.server.controls] == [
            *("stop", "release", "join", "receive", "receive", "finish", "leave", "resume-kv", "flush", "resume")
        ]
        assert await status_of_an_answer(site) == (200, "v1")


@in_virtual_time
async def test_a_trainer_that_thaws_after_a_newer_update_writes_nothing_and_the_weights_are_uncertain() -> None:
    async with two_trainers() as (site, old, new):
        # given a trainer that is frozen between two buckets
        frozen = old.update("v1")
        await frozen.__aenter__()
        await frozen.transfer(TENSORS[:1])
        # and its successor, which completes an update
        async with new.update("v2") as update:
            await update.transfer(TENSORS)
        assert await status_of_an_answer(site) == (200, "v2")
        before = list(site.server.controls)
        # when the old one thaws
        with pytest.raises(AdmissionRefused, match=r"409.*update \w+ of round 1\.2\.3 does not run here") as late:
            await frozen.transfer(TENSORS[1:])
        # then no request is admitted from then on, until an update is complete
        state = await site.state()
        assert (state["state"], state["version"]) == ("Uncertain", "")
        assert "may have written" in str(state["reason"])
        assert (await site.ask()).status == 503
        # and neither the call nor the undo of its update reached the server
        await frozen.__aexit__(type(late.value), late.value, None)
        assert site.server.controls == before
        assert old.replica.weights.state is WeightsState.UNCERTAIN
        async with new.update("v3") as update:
            await update.transfer(TENSORS)
        assert await status_of_an_answer(site) == (200, "v3")


@in_virtual_time
async def test_a_trainer_that_thaws_inside_the_newer_update_keeps_it_from_being_committed() -> None:
    async with two_trainers() as (site, old, new):
        frozen = old.update("v1")
        await frozen.__aenter__()
        await frozen.transfer(TENSORS[:1])
        # when it thaws while the newer one transfers
        update = new.update("v2")
        await update.__aenter__()
        await update.transfer(TENSORS[:1])
        with pytest.raises(AdmissionRefused):
            await frozen.transfer(TENSORS[1:])
        assert (await site.state())["state"] == "Uncertain"
        await update.transfer(TENSORS[1:])
        # then the newer one is not committed, and everything is undone
        with pytest.raises(AdmissionRefused, match="cannot be committed: update"):
            await update.__aexit__(None, None, None)
        calls = [call for call, _ in site.server.controls]
        assert calls[-4:] == ["leave", "resume-kv", "flush", "resume"]
        assert "finish" not in calls
        assert (await site.state())["state"] == "Uncertain"
        # and later calls of the old one do not affect the next update
        async with new.update("v3") as again:
            with pytest.raises(AdmissionRefused):
                await frozen.__aexit__(None, None, None)
            await again.transfer(TENSORS)
        assert await status_of_an_answer(site) == (200, "v3")


@in_virtual_time
async def test_without_fences_the_update_that_began_last_counts() -> None:
    async with two_trainers() as (site, old, new):
        old.fence = new.fence = (0, 0, 0)
        frozen = old.update("v1")
        await frozen.__aenter__()
        async with new.update("v2") as update:
            await update.transfer(TENSORS)
        with pytest.raises(AdmissionRefused):
            await frozen.transfer(TENSORS)
        assert (await site.ask()).status == 503


@pytest.mark.parametrize("inside", [False, True])
@in_virtual_time
async def test_a_call_that_bypasses_the_gateway_is_detected_when_its_update_ends(inside: bool) -> None:
    async with two_trainers(direct=True) as (site, old, new):
        # given a trainer that bypasses the gateway, and is frozen between two buckets
        frozen = old.update("v1")
        await frozen.__aenter__()
        await frozen.transfer(TENSORS[:1])
        update = new.update("v2")
        await update.__aenter__()
        await update.transfer(TENSORS)
        if not inside:
            await update.__aexit__(None, None, None)
            assert await status_of_an_answer(site) == (200, "v2")
        # when it thaws, writes the other one and finishes
        await frozen.transfer(TENSORS[1:])
        with pytest.raises(AdmissionRefused):
            await frozen.__aexit__(None, None, None)
        # then the weights are Uncertain at once, before it finalizes
        assert (await site.state())["state"] == "Uncertain"
        assert (await site.ask()).status == 503
        if inside:
            with pytest.raises(AdmissionRefused, match="cannot be committed"):
                await update.__aexit__(None, None, None)
            assert (await site.ask()).status == 503


@in_virtual_time
async def test_a_late_call_ends_running_answers() -> None:
    async with two_trainers() as (site, old, new):
        frozen = old.update("v1")
        await frozen.__aenter__()
        async with new.update("v2") as update:
            await update.transfer(TENSORS)
        site.server.waits = True
        asked = site.ask()
        await until(lambda: site.server.running == 1)
        with pytest.raises(AdmissionRefused):
            await frozen.transfer(TENSORS)
        assert (await asked).status == 503
        await until(lambda: site.server.running == 0)


@in_virtual_time
async def test_a_gateway_that_is_restarted_after_a_late_call_is_uncertain() -> None:
    async with two_trainers() as (site, old, new):
        frozen = old.update("v1")
        await frozen.__aenter__()
        async with new.update("v2") as update:
            await update.transfer(TENSORS)
        with pytest.raises(AdmissionRefused):
            await frozen.transfer(TENSORS)
        await site.restart()
        assert "may have written" in str((await site.state())["reason"])


@in_virtual_time
async def test_the_group_of_an_older_update_is_left_before_a_newer_one_is_joined() -> None:
    async with two_trainers() as (site, old, new):
        frozen = old.update("v1")
        await frozen.__aenter__()
        site.server.controls.clear()
        # when another process updates the server, after its gateway was restarted
        await site.restart()
        async with new.update("v2") as update:
            await update.transfer(TENSORS)
        # then it leaves the group of the other process
        joined = [(call, body["group"]) for call, body in site.server.controls if call in ("join", "leave")]
        (left, older), (joins, newer), (leaves, again) = joined
        assert (left, joins, leaves) == ("leave", "join", "leave")
        assert older != newer == again
        # and a third one, after a complete update, has no group to leave
        site.server.controls.clear()
        async with new.update("v3") as update:
            await update.transfer(TENSORS)
        assert [call for call, _ in site.server.controls].count("leave") == 1


@in_virtual_time
async def test_a_newer_update_waits_for_a_running_call_of_an_older_one() -> None:
    async with two_trainers() as (site, old, new):
        # given a server that receives a bucket from a trainer that is frozen in it
        frozen = old.update("v1")
        await frozen.__aenter__()
        site.server.waits = True
        receiving = asyncio.ensure_future(frozen.transfer(TENSORS))
        await until(lambda: site.server.running == 1)
        # when the newer update begins, then it stops the server only after that call has ended
        updating = asyncio.ensure_future(new.update("v2").__aenter__())
        while (await site.state())["version"] != "v2":
            pass
        assert [call for call, _ in site.server.controls].count("stop") == 1
        site.server.waits = False
        site.server.go_on.release()
        await updating
        await receiving
        assert [call for call, _ in site.server.controls].count("stop") == 2


@in_virtual_time
async def test_a_call_of_an_older_update_that_never_ends_blocks_the_newer_one() -> None:
    async with two_trainers() as (site, old, new):
        frozen = old.update("v1")
        await frozen.__aenter__()
        site.server.waits = True
        receiving = asyncio.ensure_future(frozen.transfer(TENSORS))
        await until(lambda: site.server.running == 1)
        before = asyncio.get_running_loop().time()
        with pytest.raises(AdmissionRefused, match=r"a call of update \w+ still runs at the server"):
            await new.update("v2").__aenter__()
        assert CALLS_LIMIT_S <= asyncio.get_running_loop().time() - before < CALLS_LIMIT_S + 2
        assert (await site.state())["state"] == "Uncertain"
        receiving.cancel()
        await asyncio.wait({receiving})


@in_virtual_time
async def test_a_call_to_the_server_needs_the_token_and_an_update() -> None:
    async with guarded() as site:
        stranger = EngineServer(Gateway(site.url, "guessed"))
        with pytest.raises(EngineErrorAnswer, match="401"):
            await stranger.get("/health")
        server = EngineServer(site.admission)
        await server.get("/health")  # calls that only read need no update
        with pytest.raises(EngineErrorAnswer, match=r"400.*Understudy-Update"):
            await server.post("/control/flush")
        with pytest.raises(EngineErrorAnswer, match=r"400.*Understudy-Update"):
            await server.get("/flush_cache")  # a GET may change a server's state
        assert site.server.controls == []
        assert (await site.ask()).status == 200


@in_virtual_time
async def test_the_servers_answers_are_forwarded_unchanged() -> None:
    async with guarded() as site:
        await site.close()
        server = EngineServer(site.admission, {"Authorization": "Bearer key"})
        await server.post("/control/flush", {"a": 1}, params={"timeout": "30"})
        assert site.server.controls == [("flush", {"a": 1})]
        assert site.server.seen == [("Bearer key", "timeout=30", None)]
        # a rejection by the server is no rejection by the gateway
        with pytest.raises(EngineErrorAnswer, match="409: occupied") as refused:
            await server.post("/control/refuse")
        assert refused.value.status == 409
        # after a broken connection the effect is unknown; without a connection there was none
        with pytest.raises(EngineUnreachable) as broken:
            await server.post("/control/break-off")
        assert not isinstance(broken.value, NotDelivered)
        await site.server.stop()
        with pytest.raises(NotDelivered):
            await server.post("/control/flush")


@in_virtual_time
async def test_a_call_waits_for_a_gateway_that_restarts() -> None:
    async with guarded() as site:
        await site.close()
        server = EngineServer(site.admission)
        await site.stop()
        calling = asyncio.ensure_future(server.post("/control/flush"))
        await asyncio.sleep(1)
        assert not calling.done()
        await site.start()
        await calling
        assert site.server.controls == [("flush", None)]


@in_virtual_time
async def test_a_job_of_two_servers_is_updated_through_their_gateways() -> None:
    async with guarded() as one, guarded(policy=Policy.WAIT) as other:
        replicas = [Replica(f"rollout-{n}", Trainer(site, NEW).engine) for n, site in enumerate((one, other))]
        for replica in replicas:
            engine = replica.engine
            assert isinstance(engine, WrittenEngine)
            gateway = engine.server.admission
            assert isinstance(gateway, Gateway)
            replica.admission = gateway
        async with WeightUpdate(replicas, Sender(), version=1, fence=NEW, timeouts=PATIENT) as update:
            await update.transfer(TENSORS)
        assert [await status_of_an_answer(site) for site in (one, other)] == [(200, "1"), (200, "1")]


@in_virtual_time
async def test_a_custom_admission_need_not_know_groups() -> None:
    cluster = Cluster(1)
    assert await cluster.update("v1") is None
    assert cluster.gates["rollout-0"].calls == ["close", "join", "confirm", "open"]
