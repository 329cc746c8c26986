"""Every adapter against a server that speaks its engine's protocol: the same tests for all adapters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import product
from typing import Any
from zlib import crc32

import pytest
from aiohttp import web

from tests.unit.rollout.guarded import TOKEN
from tests.unit.rollout.model import (
    OF_ENGINES,
    OF_LOADING_ENGINES,
    PATIENT,
    STEP_OF,
    TENSORS,
    UNDOS,
    Cluster,
    Fault,
    Kind,
    ModelGate,
    Place,
    notes,
    only,
)
from tests.unit.rollout.servers import EngineServer, listener_at
from tests.unit.rollout.sglang_server import OlderSglangServer, SglangServer
from tests.unit.rollout.vllm_server import PlainVllmServer, VllmServer
from tests.unit.virtual_time import in_virtual_time
from understudy_rollout import Group, Timeouts, WeightsState, WeightUpdate
from understudy_rollout.engines import SglangEngine, VllmEngine
from understudy_rollout.failures import EngineRefused, EngineUnreachable, StepTimedOut
from understudy_rollout.gateway import Gateway, server_watch
from understudy_rollout.gateway.app import GatewayApp
from understudy_rollout.gateway.flights import InFlightRequests
from understudy_rollout.gateway.proxy import Proxy
from understudy_rollout.gateway.weights_file import WeightsFile
from understudy_rollout.weights import Fence, PreviousState, Weights

NO_FENCE = (0, 0, 0)

Adapter = SglangEngine | VllmEngine


@dataclass(frozen=True)
class Conforming:
    """An adapter and a server for it. A new adapter's tests need only one more of these."""

    adapter: Callable[[str | Gateway], Adapter]
    server: type[EngineServer]
    receives: bool = True  # False: weights come only from folders
    faults: tuple[str, ...] | None = None  # the calls with faults; None: all; else those that differ here
    behind_gateway: bool = False  # and calls go through it


ENGINES = {
    "sglang": Conforming(SglangEngine, SglangServer),
    "sglang-older": Conforming(SglangEngine, OlderSglangServer, faults=("receive", "finish", "leave_group")),
    "sglang-gateway": Conforming(SglangEngine, SglangServer, faults=("receive",), behind_gateway=True),
    "vllm": Conforming(VllmEngine, VllmServer),
    "vllm-gateway": Conforming(VllmEngine, VllmServer, faults=("leave_group",), behind_gateway=True),
    "vllm-plain": Conforming(VllmEngine, PlainVllmServer, receives=False, faults=("load", "finish")),
}


@dataclass
class GateAndGateway(ModelGate):
    """The model of a gateway, and a real gateway that gets the same messages."""

    real: Gateway = field(default_factory=lambda: Gateway("http://127.0.0.1:1", TOKEN))

    async def close(self, update: str, version: str, fence: Fence) -> PreviousState:
        found = await super().close(update, version, fence)
        await self.real.close(update, version, fence)
        return found

    async def join(self, update: str, group: Group) -> None:
        await super().join(update, group)
        await self.real.join(update, group)

    async def confirm(self, update: str) -> None:
        await super().confirm(update)
        await self.real.confirm(update)

    async def open(self, update: str) -> None:
        await super().open(update)
        await self.real.open(update)

    async def abandon(self, update: str, touched: bool, reason: str) -> None:
        await super().abandon(update, touched, reason)
        await self.real.abandon(update, touched, reason)


class Served(Cluster):
    """A cluster whose engines are behind HTTP."""

    def __init__(self, engine: Conforming) -> None:
        super().__init__(2)
        self._made = engine
        self.loads = not engine.receives
        self.adapters: dict[str, Adapter] = {}
        self.servers: dict[str, EngineServer] = {}
        self.gateways: dict[str, web.AppRunner] = {}

    async def start(self) -> None:
        for replica in self.replicas:
            await self.serve(replica.name)

    async def serve(self, name: str) -> None:
        await self.stop(name)
        self.servers[name] = server = self._made.server(self.engines[name])
        await server.start()
        if self._made.behind_gateway:
            await self.guard(name, server.url)
        self.adapt(name)

    async def guard(self, name: str, url: str) -> None:
        app = GatewayApp(InFlightRequests(WeightsFile(Weights())), Proxy(url), TOKEN).application()
        self.gateways[name] = runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.01)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        real = Gateway(f"http://127.0.0.1:{runner.addresses[0][1]}", TOKEN)
        old = self.gates[name]
        known = {"weights": old.weights, "calls": old.calls}
        self.gates[name] = GateAndGateway(old.name, self.world, real=real, **known)  # type: ignore[arg-type]

    def adapt(self, name: str) -> None:
        """Use a new adapter that has no state of the server, like that of a restarted trainer."""
        gate = self.gates[name]
        at = gate.real if isinstance(gate, GateAndGateway) else self.servers[name].url
        self.adapters[name] = adapter = self._made.adapter(at)
        replica = next(x for x in self.replicas if x.name == name)
        replica.engine, replica.admission = adapter, gate

    async def stop(self, name: str) -> None:
        if name in self.servers:
            del self.adapters[name]
            if name in self.gateways:
                await self.gateways.pop(name).cleanup()
            await self.servers.pop(name).stop()

    async def restart_dead(self) -> None:
        for server in self.servers.values():
            await server.until_idle()
        dead = [name for name, model in self.engines.items() if not model.alive]
        self.restart()
        for name in dead:
            await self.serve(name)

    def check(self, *not_undone: str) -> None:
        super().check(*not_undone)
        for name, server in self.servers.items():
            if server.engine.alive and name not in not_undone:
                server.check()


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway checks the listener at each call; test_listener.py tests the reading of the kernel's tables."""
    monkeypatch.setattr(server_watch, "listener_at", listener_at)


@asynccontextmanager
async def served(engine: str) -> AsyncIterator[Served]:
    cluster = Served(ENGINES[engine])
    await cluster.start()
    try:
        yield cluster
    finally:
        for name in list(cluster.servers):
            await cluster.stop(name)


WAYS = [
    pytest.param(engine, loads, id=f"{engine}-{'load' if loads else 'receive'}")
    for engine, made in ENGINES.items()
    for loads in ((False, True) if made.receives else (True,))
]


def cases(sent: tuple[str, ...], loaded: tuple[str, ...]) -> list[Any]:
    """For each way, the calls with faults. Each `make test` runs one in three, chosen by its name."""
    found = []
    for way, place, kind in product(WAYS, Place, Kind):
        engine, loads = way.values
        met = ENGINES[str(engine)].faults
        for method in loaded if loads else sent:
            if met is None or method in met:
                name = f"{way.id}-{method}-{place.value}-{kind.value}"
                marks = [] if crc32(name.encode()) % 3 == 0 else [pytest.mark.nightly]
                found.append(pytest.param(engine, loads, method, place, kind, id=name, marks=marks))
    return found


CASES = cases(OF_ENGINES, OF_LOADING_ENGINES)
UNDO_CASES = cases(UNDOS, UNDOS[1:])
each_engine = pytest.mark.parametrize("engine", ENGINES)
each_way = pytest.mark.parametrize(("engine", "loads"), WAYS)


@each_way
@in_virtual_time
async def test_updates_one_after_the_other_reach_every_server(engine: str, loads: bool) -> None:
    async with served(engine) as cluster:
        cluster.loads = loads
        for version in ("v1", "v2"):
            assert await cluster.update(version) is None
            cluster.check()
            assert {(x.weights.state, x.weights.version) for x in cluster.replicas} == {(WeightsState.FRESH, version)}


@pytest.mark.parametrize(("engine", "loads", "method", "place", "kind"), CASES)
@in_virtual_time
async def test_a_fault_at_any_call_leaves_every_server_whole_or_marked(
    engine: str, loads: bool, method: str, place: Place, kind: Kind
) -> None:
    async with served(engine) as cluster:
        # given two servers, and a fault in one of them
        fault, step = Fault("rollout-1", method, place, kind), STEP_OF[method]
        cluster.loads = loads

        # when an update meets the fault
        error = await cluster.update("v1", fault, timeouts=only(step) if kind is Kind.TIMEOUT else PATIENT)

        # then the caller gets the server's error
        assert fault.happened
        expected = {
            Kind.ERROR: EngineRefused,
            Kind.TIMEOUT: StepTimedOut,
            Kind.CANCELLATION: asyncio.CancelledError,
            Kind.KILLED: EngineUnreachable,
            Kind.RESET: EngineUnreachable,
        }
        assert isinstance(error, expected[kind]), notes(error)
        # and the invariants are true
        cluster.check()
        if step in ("transfer", "finalize"):
            assert {x.weights.state for x in cluster.replicas} == {WeightsState.UNCERTAIN}

        # and when a killed server is back, the next update reaches all
        await cluster.restart_dead()
        assert await cluster.update("v2") is None
        cluster.check()
        assert {(x.weights.state, x.weights.version) for x in cluster.replicas} == {(WeightsState.FRESH, "v2")}


@pytest.mark.parametrize(("engine", "loads", "undo", "place", "kind"), UNDO_CASES)
@in_virtual_time
async def test_a_fault_in_an_undo_leaves_every_server_whole_or_marked(
    engine: str, loads: bool, undo: str, place: Place, kind: Kind
) -> None:
    async with served(engine) as cluster:
        # given a transfer that fails on one server, and an undo that fails on the other one
        cluster.loads = loads
        first = Fault("rollout-0", "load" if loads else "receive", Place.IN, Kind.ERROR)
        second = Fault("rollout-1", undo, place, kind)

        # when it is undone
        error = await cluster.update("v1", first, second, timeouts=only("undo"))

        # then the caller gets the first error, and both servers are marked
        assert isinstance(error, EngineRefused)
        assert second.happened
        assert any(line.startswith("and undo: ") and "rollout-1" in line for line in notes(error))
        cluster.check("rollout-1")
        assert {x.weights.state for x in cluster.replicas} == {WeightsState.UNCERTAIN}

        # and the next update makes both whole, in either way
        await cluster.restart_dead()
        assert await cluster.update("v2") is None
        cluster.check()
        assert {(x.weights.state, x.weights.version) for x in cluster.replicas} == {(WeightsState.FRESH, "v2")}


@pytest.mark.parametrize("then_loads", [False, True])
@each_way
@in_virtual_time
async def test_a_restarted_trainer_can_update_the_servers_that_its_predecessor_left(
    engine: str, loads: bool, then_loads: bool
) -> None:
    async with served(engine) as cluster:
        # given servers, one with an interrupted update, whose trainer was killed during it
        cluster.loads = loads
        name = "rollout-1"
        method = "load" if loads else "receive"
        await cluster.update("v1", Fault(name, method, Place.IN, Kind.ERROR), timeouts=only("undo"))
        server = cluster.servers[name]
        if isinstance(server, VllmServer):
            server.waiting = server.partial = True
            server.active = server.configured and not loads
        if isinstance(server, SglangServer):
            server.session = server.has_sessions and not loads
        cluster.adapt(name)
        # when the next trainer updates them
        cluster.loads = then_loads or not ENGINES[engine].receives
        assert await cluster.update("v2") is None
        # then all their weights are from that update
        cluster.check()
        assert {(x.weights.state, x.weights.version) for x in cluster.replicas} == {(WeightsState.FRESH, "v2")}


@each_engine
@in_virtual_time
async def test_an_undo_of_a_step_that_never_happened_is_no_error(engine: str) -> None:
    async with served(engine) as cluster:
        adapter, group = cluster.adapters["rollout-0"], Group("127.0.0.1", 1, 2, "never")
        await cluster.gates["rollout-0"].close("u", "v1", NO_FENCE)
        for _ in range(2):
            await adapter.leave_group(group)
            await adapter.resume_kv()
            await adapter.flush_cache()
            await adapter.resume_generation()
        assert cluster.engines["rollout-0"].alive


@each_engine
@in_virtual_time
async def test_an_unreachable_server_raises_another_error_than_one_that_rejects(engine: str) -> None:
    async with served(engine) as cluster:
        adapter = cluster.adapters["rollout-0"]
        await adapter.server.get("/health")
        await cluster.gates["rollout-0"].close("u", "v1", NO_FENCE)
        cluster.world.faults = [Fault("rollout-0", "flush_cache", Place.BEFORE, Kind.ERROR)]
        with pytest.raises(EngineRefused, match=r"POST http://127.*: the server answered [45]00: "):
            await adapter.flush_cache()
        await cluster.servers["rollout-0"].stop()
        with pytest.raises(EngineUnreachable, match=r"GET http://127\.0\.0\.1:\d+(/understudy/v1/engine)?/health"):
            await adapter.server.get("/health")


@pytest.mark.parametrize("status", [301, 302, 303, 307])
async def test_a_redirect_to_a_login_page_is_no_success(status: int) -> None:
    # given a proxy that sends each request without a login to its page, which answers 200
    async def redirect(request: web.Request) -> web.Response:
        return web.Response(status=status, headers={"Location": "/login"})

    async def login(request: web.Request) -> web.Response:
        return web.Response(text="<html>")

    app = web.Application()
    app.router.add_route("*", "/login", login)
    app.router.add_route("*", "/{path:.*}", redirect)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        # when an adapter calls a server there, then the call has failed
        with pytest.raises(EngineRefused, match=f"the server answered {status}"):
            await SglangEngine(f"http://{host}:{port}").flush_cache()
    finally:
        await runner.cleanup()


def test_a_url_without_its_scheme_is_named() -> None:
    with pytest.raises(ValueError, match="url: expected http://host:port of the server; got 'rollout-0:30000'"):
        SglangEngine("rollout-0:30000")


@in_virtual_time
async def test_an_error_in_an_answer_with_status_200_is_detected() -> None:
    async with served("vllm") as cluster:
        # given a server whose cache cannot be reset
        server = cluster.servers["rollout-1"]
        assert isinstance(server, VllmServer)
        server.holds_blocks = True
        # when it is updated
        error = await cluster.update("v1")
        # then the update fails, and the server is marked
        assert isinstance(error, EngineRefused)
        assert 'reset_prefix_cache: requests still hold blocks; got {"success": false}' in str(error)
        assert [x.weights.state for x in cluster.replicas] == [WeightsState.FRESH, WeightsState.UNCERTAIN]


@in_virtual_time
async def test_vllms_generation_stays_paused_until_it_is_resumed() -> None:
    async with served("vllm") as cluster:
        adapter, model = cluster.adapters["rollout-0"], cluster.engines["rollout-0"]
        await adapter.stop_generation()
        await adapter.release_kv()
        await adapter.resume_kv()
        assert (model.kv, model.generating) == (True, False)
        await adapter.resume_generation()
        assert model.generating
        # and if it runs, resuming its present cache has no effect
        await adapter.resume_kv()
        assert model.generating


@pytest.mark.parametrize("engine", ["sglang", "sglang-older"])
@in_virtual_time
async def test_sglangs_memory_is_released_only_when_its_scheduler_is_idle(engine: str) -> None:
    async with served(engine) as cluster:
        # given a server whose scheduler takes a while to finish the last request
        server = cluster.servers["rollout-1"]
        assert isinstance(server, SglangServer)
        server.refuses_flushes = 3
        # when it is updated, then the update waits for it
        assert await cluster.update("v1") is None
        cluster.check()
        assert server.refuses_flushes == 0


@in_virtual_time
async def test_an_sglang_whose_scheduler_is_never_idle_does_not_get_the_release() -> None:
    async with served("sglang") as cluster:
        server = cluster.servers["rollout-1"]
        assert isinstance(server, SglangServer)
        server.refuses_flushes = 1 << 30
        error = await cluster.update("v1", timeouts=Timeouts())
        assert isinstance(error, EngineRefused)
        assert "flush_cache" in str(error)
        assert cluster.engines["rollout-1"].alive
        assert "POST /release_memory_occupation" not in server.asked


@in_virtual_time
async def test_sglangs_cache_is_resumed_before_generation_though_its_release_had_no_answer() -> None:
    async with served("sglang") as cluster:
        await cluster.update("v1", Fault("rollout-1", "release_kv", Place.AFTER, Kind.RESET))
        calls = cluster.engines["rollout-1"].calls
        assert calls[-2:] == ["resume_kv", "resume_generation"]


SLEEPERS = ["sglang", "sglang-older", "sglang-gateway", "vllm", "vllm-gateway"]


@pytest.mark.parametrize("release_kv", [False, True])
@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.parametrize("engine", SLEEPERS)
@in_virtual_time
async def test_a_sleeping_cache_is_woken_up_before_it_is_used(engine: str, paused: bool, release_kv: bool) -> None:
    async with served(engine) as cluster:
        # given a server whose cache was released, and perhaps paused, by a trainer that has ended
        model = cluster.engines["rollout-1"]
        model.kv, model.generating = False, not paused
        cluster.sends = "v1"
        # when it is updated
        update = WeightUpdate(cluster.replicas, cluster.trainer, version="v1", release_kv=release_kv, timeouts=PATIENT)
        async with update:
            await update.transfer(TENSORS)
        # then it survives, and generates with the new weights
        cluster.check()
        assert {(x.weights.state, x.weights.version) for x in cluster.replicas} == {(WeightsState.FRESH, "v1")}


@pytest.mark.parametrize("release_kv", [False, True])
@pytest.mark.parametrize("engine", ["vllm", "vllm-gateway", "vllm-plain"])
@in_virtual_time
async def test_a_vllm_whose_weights_sleep_is_woken_up_before_they_are_used(engine: str, release_kv: bool) -> None:
    async with served(engine) as cluster:
        server, model = cluster.servers["rollout-1"], cluster.engines["rollout-1"]
        assert isinstance(server, VllmServer)
        server.weights_sleep, model.kv, model.generating = True, False, False
        update = WeightUpdate(cluster.replicas, version="v1", release_kv=release_kv, timeouts=PATIENT)
        async with update:
            await update.load("v1")
        cluster.check()
        assert {(x.weights.state, x.weights.version) for x in cluster.replicas} == {(WeightsState.FRESH, "v1")}


@in_virtual_time
async def test_an_sglang_whose_weights_sleep_too_is_rejected_before_they_are_used() -> None:
    async with served("sglang") as cluster:
        server, model = cluster.servers["rollout-1"], cluster.engines["rollout-1"]
        assert isinstance(server, SglangServer)
        server.weights_sleep, model.kv = True, False
        error = await cluster.update("v1")
        assert isinstance(error, EngineRefused)
        assert "the server does not generate: its weights may have been released" in str(error)
        assert model.alive
        # and the weights are unchanged
        assert {(x.weights.state, x.weights.version) for x in cluster.replicas} == {(WeightsState.FRESH, "v0")}


@pytest.mark.parametrize("engine", SLEEPERS)
@in_virtual_time
async def test_a_server_that_does_not_sleep_is_checked_but_not_woken_up(engine: str) -> None:
    async with served(engine) as cluster:
        for version in ("v1", "v2"):
            assert await cluster.update(version) is None
        asked = cluster.servers["rollout-0"].asked
        if isinstance(cluster.servers["rollout-0"], SglangServer):
            assert asked.count("GET /health_generate") == 1
        else:  # vLLM reports it, and another program may have put it to sleep since
            assert asked.count("GET /is_sleeping") == 2
            assert asked.count("POST /wake_up") == 2, "only those that resume its cache"
