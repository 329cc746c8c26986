"""The copies that a pod keeps for other pods: whose it accepts, where each one goes, and which are whole. Pure.

The memory has sets of files: a set has a file for each rank of one pod, with two slots. Rules: a pod accepts copies
only from the owners in the plan of its newest round. A copy goes into the slot of its rank with the older copy, so an
incomplete copy leaves the newer one whole. A set keeps the copies of an owner until the plan gives the set to another
one and this owner's first copy comes: a round whose holders have changed can still restore from it.
"""

from collections.abc import Mapping, Sequence

from understudy_protocol.enums import NO_ROUND, RoundToken
from understudy_protocol.snapshot_files import Header
from understudy_protocol.snapshots import CopyOwner, CopyPlan, FetchedStep, KeptSteps, SavedStep

Slots = Mapping[int, Sequence[Header | None]]  # by file; None: the slot is empty, or was being written


class KeptCopies:
    """sets: the number of pods whose copies the memory can have. nproc: files of a set."""

    def __init__(self, sets: int, nproc: int) -> None:
        self._sets, self._nproc = sets, nproc
        self.token = NO_ROUND  # of the newest plan
        self._plan = CopyPlan(0)
        self._set_of: dict[int, int] = {}  # by group rank of the owners in the plan

    def plan(self, token: RoundToken, plan: CopyPlan, slots: Slots) -> None:
        """A newer plan. An owner keeps the set that has its copies."""
        self.token, self._plan = token, plan
        ranks = [owner.group_rank for owner in plan.owners][: self._sets]
        used = [self._group_rank_in(number, slots) for number in range(self._sets)]
        self._set_of = {rank: used.index(rank) for rank in ranks if rank in used}
        free = [number for number in range(self._sets) if number not in self._set_of.values()]
        free.sort(key=lambda number: used[number] is not None)
        self._set_of.update(zip([rank for rank in ranks if rank not in self._set_of], free, strict=False))

    def rejection(self, token: RoundToken, group_rank: int, pod_uid: str) -> str:
        """Why a copy of this pod is not accepted; "" if it is."""
        reason = rejection(self.token, self._plan, token, group_rank, pod_uid)
        return reason or ("" if group_rank in self._set_of else "this pod has no memory for its copies")

    def place(self, group_rank: int, header: Header, slots: Slots) -> tuple[int, int] | None:
        """The file and the slot for this copy; None if its rank is not one of the owner's, if that slot has a newer
        copy, or if one of the two slots has this copy.
        """
        local_rank = header.rank - group_rank * self._nproc
        if header.world_size != self._plan.world_size or not 0 <= local_rank < self._nproc:
            return None
        if header.saved.token != self.token or group_rank not in self._set_of:
            return None
        file = self._set_of[group_rank] * self._nproc + local_rank
        ages = [self._age(found, header) for found in slots[file]]
        if (True, header.saved) in ages or (True, header.saved) < min(ages):
            return None
        return file, ages.index(min(ages))

    def kept(self, slots: Slots, world_size: int) -> tuple[KeptSteps, ...]:
        """All copies that a world of this size can restore, and the owners in the plan."""
        found: dict[int, set[SavedStep]] = {owner.group_rank: set() for owner in self._plan.owners}
        for number in range(self._sets):
            rank = self._group_rank_in(number, slots)
            if rank is not None:
                found.setdefault(rank, set()).update(self._whole(number, rank, slots, world_size))
        return tuple(KeptSteps(rank, tuple(sorted(steps))) for rank, steps in sorted(found.items()))

    def find(self, group_rank: int, saved: SavedStep, world_size: int, slots: Slots) -> list[tuple[int, int]]:
        """The file and slot of this copy for each local rank; empty unless all are whole."""
        for number in range(self._sets):
            found = []
            for local_rank in range(self._nproc):
                rank, file = group_rank * self._nproc + local_rank, number * self._nproc + local_rank
                found += [
                    (file, slot)
                    for slot, x in enumerate(slots[file])
                    if x is not None and (x.saved, x.rank, x.world_size) == (saved, rank, world_size)
                ][:1]
            if len(found) == self._nproc:
                return found
        return []

    def _age(self, found: Header | None, header: Header) -> tuple[bool, SavedStep]:
        """The slot with the smallest age is overwritten first: an empty slot, or a slot of another rank."""
        is_same = found is not None and (found.rank, found.world_size) == (header.rank, header.world_size)
        return (is_same, found.saved) if found is not None else (False, SavedStep(NO_ROUND, -1))

    def _whole(self, number: int, group_rank: int, slots: Slots, world_size: int) -> set[SavedStep]:
        of_ranks = []
        for local_rank in range(self._nproc):
            place = (group_rank * self._nproc + local_rank, world_size)
            headers = slots[number * self._nproc + local_rank]
            of_ranks.append({x.saved for x in headers if x is not None and (x.rank, x.world_size) == place})
        return set.intersection(*of_ranks)

    def _group_rank_in(self, number: int, slots: Slots) -> int | None:
        """The owner of the newest copy in a set."""
        headers = [x for local_rank in range(self._nproc) for x in slots[number * self._nproc + local_rank]]
        newest = max((x for x in headers if x is not None), key=lambda x: x.saved, default=None)
        return None if newest is None else newest.rank // self._nproc


def fetched_steps(own: Slots, group_rank: int, nproc: int, world_size: int) -> tuple[FetchedStep, ...]:
    """The fetched snapshots in the memory of a pod's own ranks, by local rank, which this pod can restore."""
    of_ranks = []
    for local_rank, headers in own.items():
        place = (group_rank * nproc + local_rank, world_size)
        fetched = [x for x in headers if x is not None and x.fetched_for != NO_ROUND]
        of_ranks.append({x.saved: x.fetched_for for x in fetched if (x.rank, x.world_size) == place})
    whole = set.intersection(*map(set, of_ranks)) if of_ranks else set[SavedStep]()
    return tuple(FetchedStep(min(rank[saved] for rank in of_ranks), saved) for saved in sorted(whole))


def rejection(newest: RoundToken, plan: CopyPlan, token: RoundToken, group_rank: int, pod_uid: str) -> str:
    """Why a pod with this plan, of this newest round, accepts no copy of that pod and round; "" if it accepts it."""
    if token != newest:
        return f"it belongs to round {token}, and this pod keeps copies of round {newest}"
    if CopyOwner(group_rank, pod_uid) not in plan.owners:
        return f"this pod keeps no copies of pod {pod_uid[:64]} with group rank {group_rank}"
    return ""
