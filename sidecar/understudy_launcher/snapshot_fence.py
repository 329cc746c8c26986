"""Which snapshots in the slots of a pod's ranks count, and which of them a round restores. Pure.

Rules: the slots are read when no worker of an older round is left, and before those of the next round start. A header
counts if the round that ran last has written it, or if it counted at the read before and was not overwritten. So a
process of an older round that has escaped its launcher, and writes after its round was replaced, writes nothing that
is ever restored. Once a round has its choice, only the chosen snapshot counts: the training continues from it, or from
the script's own checkpoint, and all others belong to a history that was given up. A rank restores only what was saved
for the same rank of a world of the same size.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Optional

from understudy_protocol.enums import NO_ROUND, RoundToken
from understudy_protocol.launcher import StartWorkers
from understudy_protocol.snapshots import SavedStep


@dataclass(frozen=True)
class Header:
    """A slot's header, written last: the slot is whole. digest: of its content, 32 bytes."""

    saved: SavedStep
    rank: int
    world_size: int
    digest: bytes


Slots = Mapping[int, Sequence[Optional[Header]]]  # by local rank; None: the slot is empty, or was being written


class SnapshotFence:
    def __init__(self) -> None:
        self._ran: RoundToken = NO_ROUND  # the newest round whose workers may have written
        self._counted: dict[int, tuple[Optional[Header], ...]] = {}  # by local rank and slot

    def whole(self, start: StartWorkers, slots: Slots) -> tuple[SavedStep, ...]:
        """The snapshots that each rank of the pod can restore in the round that starts, oldest first."""
        self._counted = {
            local_rank: tuple(header if self._counts(local_rank, header) else None for header in headers)
            for local_rank, headers in slots.items()
        }
        self._ran = start.token
        of_ranks = [self._restorable(local_rank, start) for local_rank in self._counted]
        return tuple(sorted(frozenset.intersection(*of_ranks))) if of_ranks else ()

    def choose(self, saved: Optional[SavedStep]) -> dict[int, int]:
        """The round restores this snapshot. Return the slot of each local rank that has it."""
        self._counted = {
            local_rank: tuple(header if header and header.saved == saved else None for header in headers)
            for local_rank, headers in self._counted.items()
        }
        return {
            local_rank: slot
            for local_rank, headers in self._counted.items()
            for slot, header in enumerate(headers)
            if header is not None
        }

    def _counts(self, local_rank: int, header: Optional[Header]) -> bool:
        if header is None:
            return False
        return header.saved.token == self._ran or header in self._counted.get(local_rank, ())

    def _restorable(self, local_rank: int, start: StartWorkers) -> "frozenset[SavedStep]":
        place = (start.rank_offset + local_rank, start.world_size)
        headers = self._counted[local_rank]
        return frozenset(x.saved for x in headers if x is not None and (x.rank, x.world_size) == place)
