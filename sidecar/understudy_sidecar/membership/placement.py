"""Which waiting member takes which vacant group rank.

Rules: a survivor keeps its rank (it is not asked here). A pod that was made for a rank (its completion index) comes
before any other. Others, spares first, in the order in which they joined, take what is left; in the first round only
when the pods that were made for these ranks had their time to come, so that a fast spare never takes a slow pod's rank.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Candidate:
    uid: str
    index: int | None  # None: a spare


@dataclass(frozen=True)
class Placement:
    taken: dict[int, str]  # group rank -> uid
    missing: tuple[int, ...]  # group ranks that nobody can take yet


def place(vacant: Iterable[int], waiting: Sequence[Candidate], *, spares_allowed: bool) -> Placement:
    """Fill the vacant ranks from the waiting members, who are given in the order in which they joined."""
    left = list(waiting)
    taken: dict[int, str] = {}
    unfilled = []
    for rank in vacant:
        own = next((c for c in left if c.index == rank), None)
        if own is None:
            unfilled.append(rank)
        else:
            taken[rank] = own.uid
            left.remove(own)
    if spares_allowed:
        left.sort(key=lambda c: c.index is not None)  # stable: spares first, each by its arrival
        for rank, candidate in zip(tuple(unfilled), left, strict=False):
            taken[rank] = candidate.uid
            unfilled.remove(rank)
    return Placement(taken, tuple(unfilled))
