"""Every adapter against a server that speaks its engine's protocol: the same tests for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import product

import pytest

from tests.unit.rollout.model import OF_ENGINES, PATIENT, STEP_OF, Cluster, Fault, Kind, Place, notes, only
from tests.unit.rollout.servers import EngineServer, SglangServer, VllmServer
from tests.unit.virtual_time import in_virtual_time
from understudy_rollout import Group, State, WeightUpdate
from understudy_rollout.engines import SglangEngine, VllmEngine
from understudy_rollout.failures import EngineRefused, EngineUnreachable, StepTimedOut

Adapter = SglangEngine | VllmEngine


@dataclass(frozen=True)
class Conforming:
    """An adapter, and a server for it. One more of these is all that a new adapter's tests need."""

    adapter: Callable[[str], Adapter]
    server: type[EngineServer]
    leaves_groups: bool  # at once, and not when it joins the next one
    calls: tuple[str, ...] = OF_ENGINES  # of an engine's, those that an update makes at the server


ENGINES = {
    "sglang": Conforming(SglangEngine, SglangServer, leaves_groups=True),
    "vllm": Conforming(
        VllmEngine, VllmServer, leaves_groups=False, calls=tuple(x for x in OF_ENGINES if x != "leave_group")
    ),
}


class Served(Cluster):
    """A cluster whose engines are behind HTTP."""

    def __init__(self, engine: Conforming) -> None:
        super().__init__(2)
        self.leaves_groups = engine.leaves_groups
        self._made = engine
        self.adapters: dict[str, Adapter] = {}
        self.servers: dict[str, EngineServer] = {}

    async def start(self) -> None:
        for replica in self.replicas:
            await self.serve(replica.name)

    async def serve(self, name: str) -> None:
        await self.stop(name)
        self.servers[name] = server = self._made.server(self.engines[name])
        await server.start()
        self.adapters[name] = adapter = self._made.adapter(server.url)
        next(x for x in self.replicas if x.name == name).engine = adapter

    async def stop(self, name: str) -> None:
        if name in self.servers:
            await self.adapters.pop(name).close()
            await self.servers.pop(name).stop()


@asynccontextmanager
async def served(engine: str) -> AsyncIterator[Served]:
    cluster = Served(ENGINES[engine])
    await cluster.start()
    try:
        yield cluster
    finally:
        for name in list(cluster.servers):
            await cluster.stop(name)


CASES = [
    pytest.param(engine, method, place, kind, id=f"{engine}-{method}-{place.value}-{kind.value}")
    for engine, made in ENGINES.items()
    for method, place, kind in product(made.calls, Place, Kind)
]


each_engine = pytest.mark.parametrize("engine", ENGINES)


@each_engine
@in_virtual_time
async def test_updates_one_after_the_other_reach_every_server(engine: str) -> None:
    async with served(engine) as cluster:
        for version in ("v1", "v2"):
            assert await cluster.update(version) is None
            cluster.check()
            assert {(x.weights.state, x.weights.version) for x in cluster.replicas} == {(State.FRESH, version)}


@each_engine
@in_virtual_time
async def test_servers_load_from_a_folder(engine: str) -> None:
    async with served(engine) as cluster:
        async with WeightUpdate(cluster.replicas, version="v1", timeouts=PATIENT) as update:
            await update.load("v1")
        cluster.check()
        assert {x.weights.version for x in cluster.replicas} == {"v1"}


@pytest.mark.parametrize(("engine", "method", "place", "kind"), CASES)
@in_virtual_time
async def test_a_fault_at_any_call_leaves_every_server_whole_or_marked(
    engine: str, method: str, place: Place, kind: Kind
) -> None:
    async with served(engine) as cluster:
        # given two servers, and a fault in one of them
        fault, step = Fault("rollout-1", method, place, kind), STEP_OF[method]

        # when an update meets it
        error = await cluster.update("v1", fault, timeouts=only(step) if kind is Kind.TIMEOUT else PATIENT)

        # then the caller sees what the server did
        assert fault.happened
        expected = {
            Kind.ERROR: EngineRefused,
            Kind.TIMEOUT: StepTimedOut,
            Kind.CANCELLATION: asyncio.CancelledError,
            Kind.KILLED: EngineUnreachable,
            Kind.RESET: EngineUnreachable,
        }
        assert isinstance(error, expected[kind]), notes(error)
        # and the invariants hold
        cluster.check()
        if step in ("transfer", "finalize"):
            assert {x.weights.state for x in cluster.replicas} == {State.UNCERTAIN}

        # and when a server that was killed is back, the next update reaches all
        dead = [name for name, model in cluster.engines.items() if not model.alive]
        cluster.restart()
        for name in dead:
            await cluster.serve(name)
        assert await cluster.update("v2") is None
        cluster.check()
        assert {(x.weights.state, x.weights.version) for x in cluster.replicas} == {(State.FRESH, "v2")}


@each_engine
@in_virtual_time
async def test_an_undo_of_what_never_happened_is_no_error(engine: str) -> None:
    async with served(engine) as cluster:
        adapter, group = cluster.adapters["rollout-0"], Group("127.0.0.1", 1, 2, "never")
        for _ in range(2):
            await adapter.leave_group(group)
            await adapter.resume_kv()
            await adapter.flush_cache()
            await adapter.resume_generation()
        assert cluster.engines["rollout-0"].alive


@each_engine
@in_virtual_time
async def test_a_server_that_is_gone_is_told_from_one_that_refuses(engine: str) -> None:
    async with served(engine) as cluster:
        adapter = cluster.adapters["rollout-0"]
        await adapter.healthy()
        cluster.world.faults = [Fault("rollout-0", "flush_cache", Place.BEFORE, Kind.ERROR)]
        with pytest.raises(EngineRefused, match=r"POST http://127.*: the server answered 500: .*broke before"):
            await adapter.flush_cache()
        await cluster.servers["rollout-0"].stop()
        with pytest.raises(EngineUnreachable, match=r"GET http://127\.0\.0\.1:\d+/health"):
            await adapter.healthy()


def test_a_url_without_its_scheme_is_named() -> None:
    with pytest.raises(ValueError, match="url: expected http://host:port of the server; seen 'rollout-0:30000'"):
        SglangEngine("rollout-0:30000")


@in_virtual_time
async def test_sglangs_cache_is_resumed_before_generation_though_its_release_had_no_answer() -> None:
    async with served("sglang") as cluster:
        await cluster.update("v1", Fault("rollout-1", "release_kv", Place.AFTER, Kind.RESET))
        calls = cluster.engines["rollout-1"].calls
        assert calls[-2:] == ["resume_kv", "resume_generation"]


@in_virtual_time
async def test_an_update_that_was_left_behind_in_vllm_does_not_keep_the_next_one_out() -> None:
    async with served("vllm") as cluster:
        server = cluster.servers["rollout-1"]
        assert isinstance(server, VllmServer)
        server.active = True
        assert await cluster.update("v1") is None
        cluster.check()
