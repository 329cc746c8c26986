"""The memory for snapshots of a simulated pod: simulated slots behind the launcher's real fence."""

from __future__ import annotations

from tests.simulation.training import SimulatedWorker
from understudy_launcher.snapshot_fence import Header, SnapshotFence
from understudy_protocol.enums import NO_ROUND
from understudy_protocol.launcher import StartWorkers
from understudy_protocol.snapshots import RestoreChoice, SavedStep

SLOTS = 2


class SimulatedMemory:
    def __init__(self, ranks: int) -> None:
        self.fence = SnapshotFence()
        self.replaced = NO_ROUND  # the newest round that gave the ranks of this pod to another one, as far as it knows
        self.slots: dict[int, list[Header | None]] = {rank: [None] * SLOTS for rank in range(ranks)}
        self._targets: dict[int, int] = {}  # by local rank: the slot for the next save

    def start(self, start: StartWorkers) -> tuple[SavedStep, ...]:
        self._targets.clear()
        return self.fence.whole(start, self.slots)

    def choose(self, choice: RestoreChoice) -> None:
        for local_rank, slot in self.fence.choose(choice.saved).items():
            self._targets[local_rank] = 1 - slot

    def save(self, worker: SimulatedWorker, step: int) -> None:
        """save() in the worker."""
        slots = self.slots[worker.local_rank]
        oldest = min(range(SLOTS), key=lambda slot: _order(slots[slot]))
        slot = self._targets.get(worker.local_rank, oldest)
        slots[slot] = Header(SavedStep(worker.token, step), worker.rank, worker.start.world_size, b"")
        self._targets[worker.local_rank] = 1 - slot

    def interrupt_save(self, worker: SimulatedWorker) -> None:
        """The worker has ended during a save: the slot that it was writing has no header."""
        newest = 1 - self._targets.get(worker.local_rank, 0)
        header = self.slots[worker.local_rank][newest]
        if header is not None and header.saved.token == worker.token:
            self.slots[worker.local_rank][newest] = None

    def held(self, worker: SimulatedWorker) -> set[SavedStep]:
        """What the slots have for the worker's rank, whatever the fence says."""
        place = (worker.rank, worker.start.world_size)
        headers = (x for x in self.slots[worker.local_rank] if x is not None)
        return {header.saved for header in headers if (header.rank, header.world_size) == place}


def _order(header: Header | None) -> tuple[bool, SavedStep | None]:
    return (False, None) if header is None else (True, header.saved)
