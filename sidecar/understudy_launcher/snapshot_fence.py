"""Which snapshots in the slots of a pod's ranks count, and which of them a round restores. Pure.

Rules: the slots are read when no worker of an older round is left, and before those of the next round start. A header
counts if the round that ran last has written it, or if it counted at the previous read and was not overwritten. So a
process of an older round that has escaped its launcher, and writes after its round was replaced, writes nothing that is
ever restored. Once a round has its choice, only the chosen snapshot counts, and the older ones of the round that has
saved it: the training continues from it, or from the script's own checkpoint, and all others belong to an abandoned
history. A rank restores only a snapshot that was saved for the same rank of a world of the same size. If a chosen
snapshot did not count at the read, the pod has fetched it from another pod since then.

The newest snapshot is for reports, while the workers run. It counts if a next round could restore it. It does not
become older while a round runs: a slot that is being written is empty for a moment.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Optional

from understudy_protocol.enums import NO_ROUND, RoundToken
from understudy_protocol.launcher import StartWorkers
from understudy_protocol.snapshot_files import Header
from understudy_protocol.snapshots import SavedStep

Slots = Mapping[int, Sequence[Optional[Header]]]  # by local rank; None: the slot is empty, or was being written


@dataclass(frozen=True)
class NewestSnapshot:
    saved: SavedStep
    saved_ns: int  # by the last rank, in Unix nanoseconds


class SnapshotFence:
    def __init__(self) -> None:
        self._ran: RoundToken = NO_ROUND  # the newest round whose workers may have written
        self._start: Optional[StartWorkers] = None
        self._counted: dict[int, tuple[Optional[Header], ...]] = {}  # by local rank and slot
        self._newest: Optional[NewestSnapshot] = None  # since the round has started, or has its choice

    def whole(self, start: StartWorkers, slots: Slots) -> tuple[SavedStep, ...]:
        """The snapshots that each rank of the pod can restore in the round that starts, oldest first."""
        self._counted = {
            local_rank: tuple(header if self._counts(local_rank, header) else None for header in headers)
            for local_rank, headers in slots.items()
        }
        self._ran, self._start, self._newest = start.token, start, None
        of_ranks = [self._restorable(local_rank) for local_rank in self._counted]
        return tuple(sorted(frozenset.intersection(*of_ranks))) if of_ranks else ()

    def choose(self, saved: Optional[SavedStep], slots: Slots) -> dict[int, int]:
        """The round restores this snapshot. Return the slot of each local rank that has it."""
        all_before, chosen = self._counted, dict[int, int]()
        self._counted, self._newest = {}, None
        for local_rank, headers in slots.items():
            before = [x for x in all_before.get(local_rank, ()) if x is not None and x.saved.leads_to(saved)]
            fitting = [slot for slot, x in enumerate(headers) if x and x.saved == saved and self._fits(local_rank, x)]
            counted = [slot for slot in fitting if headers[slot] in before]
            found = (counted or fitting)[:1]
            self._counted[local_rank] = tuple(
                x if slot in found or x in before else None for slot, x in enumerate(headers)
            )
            if found:
                chosen[local_rank] = found[0]
        return chosen

    def newest(self, slots: Slots) -> "Optional[NewestSnapshot]":
        """Of the running round, or what it could restore; None: the pod has none."""
        of_ranks = [
            {x.saved: x.saved_ns for x in headers if x and self._counts(rank, x) and self._fits(rank, x)}
            for rank, headers in slots.items()
        ]
        of_all = frozenset.intersection(*map(frozenset, of_ranks)) if of_ranks else frozenset()
        if of_all and (self._newest is None or max(of_all) > self._newest.saved):
            saved = max(of_all)
            self._newest = NewestSnapshot(saved, max(times[saved] for times in of_ranks))
        return self._newest

    def _fits(self, local_rank: int, header: Header) -> bool:
        """Whether it is of this rank of a world of this size."""
        start = self._start
        return start is not None and (header.rank, header.world_size) == (
            start.rank_offset + local_rank,
            start.world_size,
        )

    def _counts(self, local_rank: int, header: Optional[Header]) -> bool:
        if header is None:
            return False
        return header.saved.token == self._ran or header in self._counted.get(local_rank, ())

    def _restorable(self, local_rank: int) -> "frozenset[SavedStep]":
        headers = self._counted[local_rank]
        return frozenset(x.saved for x in headers if x is not None and self._fits(local_rank, x))
