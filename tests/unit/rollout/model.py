"""A model of rollout servers and a trainer: their state, and faults before, in and after each of their calls.

A group behaves as in NCCL: a side that joins waits for all ranks, a receiver waits for the sender, and the sender for
the receivers. So a side that fails leaves the others waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from understudy_rollout import Group, Replica, Tensor, Timeouts, WeightUpdate
from understudy_rollout.weights import (
    Abandon,
    Begin,
    Commit,
    Fence,
    JoinGroup,
    PreviousState,
    UpdateCall,
    Weights,
    WeightsState,
    WeightsStatus,
)

TENSORS = (Tensor("a", "float32", (2, 2)), Tensor("b", "float32", (4,)))
TRAINER = "trainer"
#: The calls of a complete update, in their order.
OF_ENGINES = (
    "stop_generation",
    "release_kv",
    "join_group",
    "receive",
    "finish",
    "leave_group",
    "resume_kv",
    "flush_cache",
    "resume_generation",
)
#: The same for an update whose servers load from a folder.
OF_LOADING_ENGINES = (
    "stop_generation",
    "release_kv",
    "load",
    "finish",
    "resume_kv",
    "flush_cache",
    "resume_generation",
)
#: The calls that also undo, in this order.
UNDOS = ("leave_group", "resume_kv", "flush_cache", "resume_generation")
OF_GATES = ("close", "join", "confirm", "open")
OF_LOADING_GATES = ("close", "confirm", "open")
OF_TRAINER = ("open_group", "join_group", "send", "leave_group")
STEP_OF = {
    "close": "close",
    "stop_generation": "stop",
    "release_kv": "release_kv",
    "open_group": "build_group",
    "join_group": "build_group",
    "receive": "transfer",
    "send": "transfer",
    "load": "transfer",
    "finish": "finalize",
    "leave_group": "leave_group",
    "resume_kv": "resume_kv",
    "flush_cache": "flush_cache",
    "resume_generation": "resume",
    "join": "build_group",
    "confirm": "finalize",
    "open": "open",
}
PLENTY_S, SHORT_S = 30.0, 1.0  # in virtual time
#: For tests whose faults are not hangs: a slow machine must not time out.
PATIENT = Timeouts(*[PLENTY_S] * len(Timeouts.__dataclass_fields__))


class Place(Enum):
    BEFORE = "before"
    IN = "in"
    AFTER = "after"


class Kind(Enum):
    ERROR = "error"
    TIMEOUT = "timeout"
    CANCELLATION = "cancellation"
    KILLED = "killed"
    RESET = "reset"


class Broken(Exception):
    """An error of an engine."""


@dataclass
class Fault:
    """Happens once: at the first call of `method` on `side` that gets there."""

    side: str
    method: str
    place: Place
    kind: Kind
    raised: BaseException | None = None
    happened: bool = False


@dataclass
class World:
    """All sides, and their states."""

    faults: list[Fault] = field(default_factory=list)
    updating: asyncio.Task[None] | None = None
    present: dict[str, set[int]] = field(default_factory=dict)  # group's name -> ranks
    wants: set[str] = field(default_factory=set)  # the sides in the current transfer
    news: asyncio.Event = field(default_factory=asyncio.Event)
    over: set[str] = field(default_factory=set)  # groups that the trainer has left
    hangs: asyncio.Event = field(default_factory=asyncio.Event)  # set when hanging calls continue

    async def until(self, group: Group, fulfilled: Callable[[], bool]) -> None:
        while not fulfilled():
            if group.name in self.over:
                raise Broken(f"the trainer has left the group {group.name}")
            self.news.clear()
            await self.news.wait()

    async def at(self, side: Side, method: str, place: Place) -> None:
        for fault in self.faults:
            if (fault.side, fault.method, fault.place) == (side.name, method, place) and not fault.happened:
                fault.happened = True
                await self._strike(fault, side)

    async def _strike(self, fault: Fault, side: Side) -> None:
        if fault.kind is Kind.KILLED:
            side.alive = False
        if fault.kind in (Kind.KILLED, Kind.RESET):
            fault.raised = ConnectionResetError("Connection reset by peer")
            raise fault.raised
        if fault.kind is Kind.ERROR:
            fault.raised = Broken(f"{fault.side} broke {fault.place.value} {fault.method}")
            raise fault.raised
        if fault.kind is Kind.CANCELLATION:
            assert self.updating is not None
            self.updating.cancel()
        await self.hangs.wait()


@dataclass
class Side:
    """Anything that gets calls. Each call has its effect in two halves, and can fail before, between and after."""

    name: str
    world: World
    alive: bool = True
    calls: list[str] = field(default_factory=list)

    async def call(self, method: str, half: Callable[[], None], whole: Callable[[], None]) -> None:
        self.calls.append(method)
        if not self.alive:
            raise ConnectionRefusedError(f"{self.name} is gone")
        await asyncio.sleep(0)
        await self.world.at(self, method, Place.BEFORE)
        half()
        await self.world.at(self, method, Place.IN)
        whole()
        await self.world.at(self, method, Place.AFTER)


@dataclass
class ModelEngine(Side):
    generating: bool = True
    kv: bool = True
    group: Group | None = None
    holds: dict[str, str] = field(default_factory=lambda: {tensor.name: "v0" for tensor in TENSORS})
    version: str = "v0"
    prefixes_of: set[str] = field(default_factory=lambda: {"v0"})
    sent: Callable[[], str] = lambda: "v0"  # the version that the trainer sends now

    async def stop_generation(self) -> None:
        await self.call("stop_generation", lambda: self._set(generating=False), lambda: None)

    async def release_kv(self) -> None:
        assert not self.generating, "an engine that runs requests needs its cache"
        await self.call("release_kv", lambda: self._set(kv=False), self.prefixes_of.clear)

    async def join_group(self, group: Group, first_rank: int) -> None:
        ranks = self.world.present.setdefault(group.name, set())
        await self.call("join_group", lambda: self._set(group=group), lambda: ranks.add(first_rank))
        self.world.news.set()
        await self.world.until(group, lambda: len(ranks) == group.world_size)

    async def receive(self, group: Group, tensors: Sequence[Tensor]) -> None:
        assert self.group == group, "an engine receives only in its group"
        first, *others = tensors

        def take(some: Sequence[Tensor]) -> None:
            for tensor in some:
                self.holds[tensor.name] = self.sent()

        self.world.wants.add(self.name)
        self.world.news.set()
        await self.world.until(group, lambda: TRAINER in self.world.wants)
        await self.call("receive", lambda: take([first]), lambda: take(others))

    async def load(self, path: str) -> None:
        await self.call("load", lambda: self.holds.update(a=path), lambda: self.holds.update(b=path))

    async def finish(self, version: str) -> None:
        await self.call("finish", lambda: None, lambda: self._set(version=version))

    async def leave_group(self, group: Group) -> None:
        await self.call("leave_group", lambda: self._set(group=None), lambda: None)

    async def resume_kv(self) -> None:
        await self.call("resume_kv", lambda: None, lambda: self._set(kv=True))

    async def flush_cache(self) -> None:
        await self.call("flush_cache", self.prefixes_of.clear, lambda: None)

    async def resume_generation(self) -> None:
        def resume() -> None:
            assert self.kv, "an engine without its cache cannot generate"
            self.generating = True

        await self.call("resume_generation", lambda: None, resume)

    def _set(self, **state: object) -> None:
        for name, value in state.items():
            setattr(self, name, value)


@dataclass
class ModelTrainer(Side):
    group: Group | None = None
    groups: int = 0
    listens: bool = False  # at the group's address

    async def open_group(self, world_size: int) -> Group:
        assert self.group is None, "it has left the previous group, or was asked to"
        await self.call("open_group", lambda: setattr(self, "listens", True), lambda: None)
        self.groups += 1
        return Group("127.0.0.1", 29500 + self.groups, world_size, f"update-{self.groups}", "gloo")

    async def join_group(self, group: Group) -> None:
        ranks = self.world.present.setdefault(group.name, set())
        await self.call("join_group", lambda: setattr(self, "group", group), lambda: ranks.add(0))
        self.world.news.set()
        await self.world.until(group, lambda: len(ranks) == group.world_size)

    async def send(self, group: Group, tensors: Sequence[Tensor]) -> None:
        self.world.wants.add(self.name)
        self.world.news.set()
        await self.world.until(group, lambda: len(self.world.wants) == group.world_size)
        await self.call("send", lambda: None, lambda: None)
        self.world.wants.clear()

    async def leave_group(self, group: Group | None) -> None:
        self.world.wants.clear()
        if group is not None:
            self.world.over.add(group.name)
        self.world.news.set()
        await self.call("leave_group", lambda: setattr(self, "group", None), lambda: setattr(self, "listens", False))


@dataclass
class ModelGate(Side):
    """A gateway in front of its engine, with its own state."""

    weights: Weights = field(default_factory=lambda: Weights.fresh("v0"))

    async def close(self, update: str, version: str, fence: Fence) -> PreviousState:
        await self.call("close", lambda: self.weights.handle(Begin(update, version, fence)), lambda: None)
        return self.weights.previous()

    async def known(self) -> WeightsStatus:
        return self.weights.known().now

    async def join(self, update: str, group: Group) -> None:
        await self.call("join", lambda: self.weights.handle(JoinGroup(update, group)), lambda: None)

    async def confirm(self, update: str) -> None:
        await self.call("confirm", lambda: self.weights.handle(UpdateCall(update)), lambda: None)

    async def open(self, update: str) -> None:
        await self.call("open", lambda: None, lambda: self.weights.handle(Commit(update)))

    async def abandon(self, update: str, touched: bool, reason: str) -> None:
        await self.call("abandon", lambda: None, lambda: self.weights.handle(Abandon(update, touched, reason)))

    @property
    def admits(self) -> bool:
        return self.alive and self.weights.state is WeightsState.FRESH


class Cluster:
    """A trainer and its replicas, and their invariants between updates."""

    def __init__(self, replicas: int = 2) -> None:
        self.world = World()
        self.trainer = ModelTrainer(TRAINER, self.world)
        self.sends = "v0"
        self.loads = False  # whether servers load from a folder, without a trainer
        names = [f"rollout-{n}" for n in range(replicas)]
        self.engines = {name: self._engine(name) for name in names}
        self.gates = {name: ModelGate(f"gate of {name}", self.world) for name in names}
        self.replicas = [
            Replica(name, self.engines[name], admission=self.gates[name], weights=Weights.fresh("v0")) for name in names
        ]

    def _engine(self, name: str) -> ModelEngine:
        return ModelEngine(name, self.world, sent=lambda: self.sends)

    async def update(self, version: str, *faults: Fault, timeouts: Timeouts = PATIENT) -> BaseException | None:
        """Run an update in its own task. Return its error."""
        self.world.faults, self.sends = list(faults), version
        self.world.wants.clear()
        self.world.hangs = asyncio.Event()

        async def work() -> None:
            if self.loads:
                async with WeightUpdate(self.replicas, version=version, timeouts=timeouts) as update:
                    await update.load(version)
                return
            async with WeightUpdate(self.replicas, self.trainer, version=version, timeouts=timeouts) as update:
                await update.transfer(TENSORS[:1])
                await update.transfer(TENSORS[1:])

        self.world.updating = asyncio.ensure_future(work())
        (outcome,) = await asyncio.gather(self.world.updating, return_exceptions=True)
        return outcome

    def restart(self) -> None:
        """Restart killed sides: servers have their initial weights."""
        if not self.trainer.alive:
            self.trainer.alive, self.trainer.group, self.trainer.listens = True, None, False
        for name, gate in self.gates.items():
            if not self.engines[name].alive:
                self.engines[name].__dict__.update(self._engine(name).__dict__)
                gate.weights = Weights()
            if not gate.alive:
                gate.__dict__.update(ModelGate(gate.name, self.world, weights=Weights()).__dict__)

    def check(self, *not_undone: str) -> None:
        """The invariants after an update, however it ended. not_undone: sides with a failed undo."""
        assert not (self.trainer.group or self.trainer.listens) or not self.trainer.alive or TRAINER in not_undone
        for replica in self.replicas:
            engine, gate = self.engines[replica.name], self.gates[replica.name]
            assert replica.updated_by is None
            assert replica.weights.state is not WeightsState.UPDATING
            if not engine.alive:
                assert replica.weights.state is WeightsState.UNCERTAIN, f"{replica.name} is marked"
            elif not self.is_whole(engine):
                assert replica.name in not_undone, f"it can generate, has its KV cache, and is in no group: {replica}"
                assert replica.weights.state is WeightsState.UNCERTAIN, f"{replica.name} is marked"
            if replica.weights.state is WeightsState.FRESH:
                assert set(engine.holds.values()) == {replica.weights.version} == {engine.version}
                assert engine.prefixes_of <= {replica.weights.version}, "no prefix of other weights is left"
            if gate.admits:
                assert engine.alive
                assert set(engine.holds.values()) == {gate.weights.version}, "admitted requests meet one version"

    @staticmethod
    def is_whole(engine: ModelEngine) -> bool:
        return engine.generating and engine.kv and engine.group is None


def only(step: str, limit_s: float = SHORT_S) -> Timeouts:
    """Short for this step; long for the others."""
    return replace(PATIENT, **{step: limit_s})


def notes(error: BaseException | None) -> list[str]:
    return getattr(error, "__notes__", [])
