"""The memory for snapshots of a simulated pod, and its copies: simulated slots behind the real fence and the real rules
about copies. A copy takes a while, may be cut, and may be damaged when it is fetched.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.simulation.network import reachable
from tests.simulation.training import NOTHING, SimulatedWorker
from understudy_launcher.snapshot_fence import SnapshotFence
from understudy_protocol.enums import NO_ROUND, RoundToken
from understudy_protocol.launcher import StartWorkers
from understudy_protocol.snapshot_files import Header
from understudy_protocol.snapshots import CopyHolder, CopyPlan, KeptSteps, RestoreChoice, SavedStep
from understudy_sidecar.membership import events as e
from understudy_sidecar.membership.copy_stride import StrideNeed, is_due
from understudy_sidecar.membership.kept_copies import KeptCopies, fetched_steps

if TYPE_CHECKING:
    from tests.simulation.sidecars import SimulatedSidecar

SLOTS = 2
PLAN_S = (0.001, 0.05)
COPY_S = (0.01, 0.6)  # more than a step at times
SLOW_LINKS: dict[str, tuple[float, float]] = {}  # instead of COPY_S, by the name of the owner's machine
FETCH_S = (0.01, 1.0)
#: The share of copies that are cut on their way, and of those that turn out to be damaged.
CUT, DAMAGED = 0.03, 0.05


class SimulatedMemory:
    """copies: other pods whose copies this one keeps."""

    def __init__(self, ranks: int, copies: int) -> None:
        self.fence = SnapshotFence()
        self.replaced = NO_ROUND  # the newest round that gave the ranks of this pod to another one, as far as it knows
        self.missed = self.missed_before = NO_ROUND  # the newest round that was formed without this pod, as it knows
        self.slots: dict[int, list[Header | None]] = {rank: [None] * SLOTS for rank in range(ranks)}
        self.kept: dict[int, list[Header | None]] = {file: [None] * SLOTS for file in range(copies * ranks)}
        self.sets = copies
        self.copied: dict[int, int] = {}  # by local rank: the slot that is being copied to another pod
        self.on_save: Callable[[int], None] = lambda local_rank: None
        self._targets: dict[int, int] = {}  # by local rank: the slot for the next save

    def start(self, start: StartWorkers) -> tuple[SavedStep, ...]:
        self._targets.clear()
        return self.fence.whole(start, self.slots)

    def choose(self, choice: RestoreChoice) -> None:
        for local_rank, slot in self.fence.choose(choice.saved, self.slots).items():
            self._targets[local_rank] = 1 - slot

    def discard(self, local_rank: int) -> None:
        """The snapshot that the round restores is damaged."""
        self.slots[local_rank][1 - self._targets[local_rank]] = None

    def save(self, worker: SimulatedWorker, step: int) -> None:
        """save() in the worker."""
        slots = self.slots[worker.local_rank]
        slot = self._targets.get(worker.local_rank, self._oldest(worker.local_rank))
        if self.copied.get(worker.local_rank) == slot:
            slot = 1 - slot
        serial = 1 + max((x.serial for x in slots if x is not None and x.saved.token == worker.token), default=0)
        slots[slot] = Header(SavedStep(worker.token, step), worker.rank, worker.start.world_size, b"", serial=serial)
        self._targets[worker.local_rank] = 1 - slot
        self.on_save(worker.local_rank)

    def interrupt_save(self, worker: SimulatedWorker) -> None:
        """The worker has ended during a save: the slot that it was writing has no header."""
        newest = 1 - self._targets.get(worker.local_rank, 0)
        header = self.slots[worker.local_rank][newest]
        if header is not None and header.saved.token == worker.token:
            self.slots[worker.local_rank][newest] = None

    def overwrite(self, header: Header, nproc: int) -> list[SavedStep]:
        """A fetch of a copy of one rank begins to write. Return the snapshot that it overwrites."""
        slots = self.slots[header.rank % nproc]
        if any(x is not None and _place(x) == _place(header) for x in slots):
            return []
        slot = self._oldest(header.rank % nproc)
        before, slots[slot] = slots[slot], None
        return [before.saved] if before is not None else []

    def fetched(self, header: Header, nproc: int) -> None:
        slots = self.slots[header.rank % nproc]
        same = [slot for slot, x in enumerate(slots) if x is not None and _place(x) == _place(header)]
        slots[same[0] if same else self._oldest(header.rank % nproc)] = header

    def held(self, worker: SimulatedWorker) -> set[SavedStep]:
        """What the slots have for the worker's rank, whatever the fence says."""
        place = (worker.rank, worker.start.world_size)
        headers = (x for x in self.slots[worker.local_rank] if x is not None)
        return {header.saved for header in headers if (header.rank, header.world_size) == place}

    def kept_of(self, nproc: int, world_size: int) -> tuple[KeptSteps, ...]:
        """The copies that other pods could restore."""
        return tuple(
            KeptSteps(x.group_rank, tuple(saved for saved in x.whole if saved.token >= max(self.replaced, self.missed)))
            for x in KeptCopies(self.sets, nproc).kept(self.kept, world_size)
        )

    def _oldest(self, local_rank: int) -> int:
        return min(range(SLOTS), key=lambda slot: _order(self.slots[local_rank][slot]))


class SimulatedCopies:
    """The process for copies of one sidecar."""

    def __init__(self, sidecar: SimulatedSidecar) -> None:
        self._sidecar, self._pod, self._world = sidecar, sidecar.pod, sidecar.world
        shape = self._pod.cluster.shape
        self._nproc = shape.nproc_per_node
        self.rules = KeptCopies(shape.snapshot_copies, self._nproc)
        self._rng = random.Random(f"copies-{self._world.seed}-{self._pod.uid}")
        self._token, self._group_rank, self._plan = NO_ROUND, -1, CopyPlan(0)
        self._sending: set[int] = set()  # local ranks
        self._memory: SimulatedMemory | None = None
        self._arrived_at = 0.0  # when all copies that were sent have arrived
        self._sent: dict[int, list[SavedStep]] = {}  # to the holders of the round, by local rank
        self._serials: dict[int, int] = {}  # of the newest one of the round, by local rank
        self._need, self._reported_need = StrideNeed(), 1
        self._is_flushing = False
        self._fetching: e.FetchCopy | None = None
        self._overwritten: list[SavedStep] = []
        if self.memory is not None:
            self.memory.copied.clear()  # marks of an earlier process

    @property
    def memory(self) -> SimulatedMemory | None:
        """Of the newest launcher. It outlives the launcher, because the sidecar has its files."""
        launcher = self._pod.launcher
        if launcher is not None and launcher.alive:
            self._memory = launcher.memory
        return self._memory

    def do(self, effect: e.PlanCopies | e.FetchCopy | e.FlushCopies) -> None:
        match effect:
            case e.PlanCopies(token, group_rank, plan):
                delay = self._rng.uniform(*PLAN_S)
                self._sidecar.later(delay, lambda: self._on_plan(token, -1 if group_rank is None else group_rank, plan))
            case e.FetchCopy():
                self._fetching = effect
                lasts_s = self._rng.uniform(*FETCH_S)
                self._sidecar.later(lasts_s / 2, lambda: self._begin_to_write(effect))
                self._sidecar.later(lasts_s, lambda: self._fetch(effect))
            case e.FlushCopies(token):
                self._is_flushing = True
                for local_rank in range(self._nproc):
                    self._on_save(local_rank)
                self._flush(token)

    def _flush(self, token: RoundToken) -> None:
        if self._sending:
            self._sidecar.later(0.01, lambda: self._flush(token))
        else:
            self._is_flushing = False
            self._sidecar.later(
                max(0.0, self._arrived_at - self._world.now), lambda: self._sidecar.handle(e.CopiesFlushed(token))
            )

    def _on_plan(self, token: RoundToken, group_rank: int, plan: CopyPlan) -> None:
        if (token, plan.holders) != (self._token, self._plan.holders):
            self._sent.clear()
        if self._fetching is not None and self._fetching.token < token:
            self._fetching = None
        is_new = token != self._token
        if is_new:
            self._serials.clear()
        self._token, self._group_rank, self._plan, memory = token, group_rank, plan, self.memory
        kept: tuple[KeptSteps, ...] = ()
        if memory is not None:
            memory.on_save, memory.copied = self._on_save, {} if is_new or plan.stride == 1 else memory.copied
            self.rules.plan(self._token, plan, memory.kept)
            kept = self.rules.kept(memory.kept, plan.world_size)
        own = {} if memory is None else memory.slots
        fetched = fetched_steps(own, self._group_rank, self._nproc, plan.world_size)
        self._sidecar.handle(e.CopiesPlanned(self._token, kept, tuple(self._overwritten), fetched))

    # Sending --------------------------------------------------------------------------------------------------------

    def _on_save(self, local_rank: int) -> None:
        memory = self.memory
        if memory is None or local_rank in self._sending or not self._sidecar.alive:
            return
        stride, serial = 1 if self._is_flushing else self._plan.stride, self._serials.get(local_rank, 0)
        own = [
            (x.saved, slot)
            for slot, x in enumerate(memory.slots[local_rank])
            if x and x.saved.token == self._token and is_due(x.serial, stride, serial)
        ]
        sent = self._sent.setdefault(local_rank, [])
        unsent = [x for x in own if x[0] not in sent and (self._is_flushing or x[0] > max(sent, default=NOTHING))]
        saved, slot = max(unsent, default=(NOTHING, 0))
        header = memory.slots[local_rank][slot]
        if header is None or saved == NOTHING or not self._plan.holders:
            return
        sent.append(saved)
        self._serials[local_rank] = header.serial
        self._sending.add(local_rank)
        memory.copied[local_rank] = slot
        for holder in self._plan.holders:
            self._send(holder, header)
        self._sidecar.later(self._copy_s(), lambda: self._sent_to_all(memory, local_rank))

    def _send(self, holder: CopyHolder, header: Header) -> None:
        token, group_rank, pod = self._token, self._group_rank, self._pod.cluster.pod_at(holder.ip)
        if pod is None or not reachable(self._pod.machine, pod.machine) or self._rng.random() < CUT:
            return
        delay = self._copy_s()
        self._arrived_at = max(self._arrived_at, self._world.now + 0.001 + delay)

        def begin() -> None:
            keeper = pod.sidecar
            if keeper is None or keeper.copies is None or keeper.copies.memory is None:
                return
            rules, memory = keeper.copies.rules, keeper.copies.memory
            if rules.rejection(token, group_rank, self._pod.uid):
                return
            place = rules.place(group_rank, header, memory.kept)
            if place is None:
                return
            file, slot = place
            memory.kept[file][slot] = None

            def end() -> None:
                if rules.token == token and reachable(self._pod.machine, pod.machine) and self._sidecar.alive:
                    memory.kept[file][slot] = header

            keeper.later(delay, end)

        if pod.sidecar is not None:
            pod.sidecar.later(0.001, begin)

    def _copy_s(self) -> float:
        return self._rng.uniform(*SLOW_LINKS.get(self._pod.machine.name, COPY_S))

    def _sent_to_all(self, memory: SimulatedMemory, local_rank: int) -> None:
        self._sending.discard(local_rank)
        serials = [x.serial for x in memory.slots[local_rank] if x and x.saved.token == self._token]
        self._need.on_copied(max(serials, default=0) - self._serials.get(local_rank, 0))
        if self._need.stride is not None and self._need.stride != self._reported_need:
            self._reported_need = self._need.stride
            self._sidecar.handle(e.CopyStrideNeeded(self._need.stride))
        if self._plan.stride == 1:
            memory.copied.pop(local_rank, None)
        self._on_save(local_rank)

    # Fetching -------------------------------------------------------------------------------------------------------

    def _begin_to_write(self, fetch: e.FetchCopy) -> None:
        own = self.memory
        if fetch is not self._fetching or own is None:
            return
        headers = next(filter(None, (self._headers_at(holder, fetch)[0] for holder in fetch.holders)), [])
        for header in headers:
            for saved in own.overwrite(header, self._nproc):
                self._overwritten.append(saved)
                self._sidecar.handle(e.CopyOverwrites(saved))

    def _fetch(self, fetch: e.FetchCopy) -> None:
        if fetch is not self._fetching:
            return  # it was ended
        error, self._fetching = "no holder", None
        for holder in fetch.holders:
            error = self._fetch_from(holder, fetch)
            if not error:
                break
        if error:
            self._pod.cluster.training.unfetchable.add((fetch.token, fetch.saved))
        else:
            self._overwritten = [x for x in self._overwritten if x != fetch.saved]
        self._sidecar.handle(e.CopyFetched(fetch.token, fetch.saved, error, tuple(self._overwritten)))

    def _fetch_from(self, holder: CopyHolder, fetch: e.FetchCopy) -> str:
        headers, error = self._headers_at(holder, fetch)
        if error:
            return error
        if self._rng.random() < DAMAGED:
            return "the copy is damaged"
        own = self.memory
        assert own is not None
        for header in headers:
            self._overwritten += own.overwrite(header, self._nproc)
            own.fetched(replace(header, fetched_for=fetch.token), self._nproc)
        return ""

    def _headers_at(self, holder: CopyHolder, fetch: e.FetchCopy) -> tuple[list[Header], str]:
        """The copies that this holder has, or why it has none."""
        own, pod = self.memory, self._pod.cluster.pod_at(holder.ip)
        if own is None or pod is None or not pod.machine.is_responding or not reachable(self._pod.machine, pod.machine):
            return [], "it does not respond"
        keeper = pod.sidecar.copies if pod.sidecar is not None and pod.sidecar.alive else None
        if keeper is None or keeper.memory is None:
            return [], "it has ended"
        found = keeper.rules.find(fetch.group_rank, fetch.saved, self._plan.world_size, keeper.memory.kept)
        headers = [header for file, slot in found or () if (header := keeper.memory.kept[file][slot]) is not None]
        return headers, "" if headers else "it has no such copy"


def _place(header: Header) -> tuple[SavedStep, int, int]:
    return header.saved, header.rank, header.world_size


def _order(header: Header | None) -> tuple[bool, SavedStep | None]:
    return (False, None) if header is None else (True, header.saved)


__all__ = ["SimulatedCopies", "SimulatedMemory"]
