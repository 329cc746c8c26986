"""The placement of waiting members on vacant ranks. Pure: the same facts give the same placement.

Rules: each completion index has a pod that was created for it, which comes first. Spares may take ranks only if
`spares_allowed`: in the first round after a wait, later at once. A spare of the rank's previous topology domain comes
first, then the spare that has waited longest. A member on a node with a Faulty verdict gets no rank. A member on a node
that ends soon (maintenance, preemption) gets a rank only if there is no other member. A member that was lost a short
time ago is the last choice, also for the rank of its own index. Only vacant ranks are given away, so a fast spare never
takes a slow survivor's rank.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class RankCandidate:
    uid: str
    index: int | None  # None: a spare
    domain: str = ""
    is_fit: bool = True  # not on a node with a Faulty verdict
    node_stays: bool = True  # not on a node that ends soon
    was_lost_recently: bool = False  # it was lost a short time ago, and has returned


@dataclass(frozen=True)
class Placement:
    taken: dict[int, str]  # group rank -> uid
    missing: tuple[int, ...]  # group ranks that no member can take yet


def place(
    vacant: Sequence[int],
    waiting: Sequence[RankCandidate],
    *,
    spares_allowed: bool,
    domains: Mapping[int, str] | None = None,
) -> Placement:
    """Fill the vacant ranks. waiting: in order of arrival."""
    usable = [candidate for candidate in waiting if candidate.is_fit]
    steady = [candidate for candidate in usable if not candidate.was_lost_recently]
    own = {candidate.index: candidate.uid for candidate in reversed(steady) if candidate.index is not None}
    taken = {rank: own[rank] for rank in vacant if rank in own}
    unfilled = [rank for rank in vacant if rank not in taken]
    if spares_allowed and unfilled:
        placed = set(taken.values())
        left = [candidate for candidate in usable if candidate.uid not in placed]
        # Stable: spares first, each in order of arrival.
        left.sort(
            key=lambda candidate: (candidate.was_lost_recently, not candidate.node_stays, candidate.index is not None)
        )
        _fill_with_spares(unfilled, left, domains or {}, taken)
    elif unfilled:
        own = {candidate.index: candidate.uid for candidate in reversed(usable) if candidate.index is not None}
        taken |= {rank: own[rank] for rank in unfilled if rank in own}
    unfilled = [rank for rank in unfilled if rank not in taken]
    return Placement(taken, tuple(unfilled))


def _is_first_choice(candidate: RankCandidate) -> bool:
    return candidate.node_stays and not candidate.was_lost_recently


def _fill_with_spares(
    unfilled: Sequence[int], left: list[RankCandidate], domains: Mapping[int, str], taken: dict[int, str]
) -> None:
    """Spares of the rank's own domain first, then any."""
    free = {candidate.uid: candidate for candidate in left}
    for rank in unfilled:
        domain = domains.get(rank, "")
        if not domain:
            continue
        near = next(
            (uid for uid, candidate in free.items() if candidate.domain == domain and _is_first_choice(candidate)), None
        )
        if near is not None:
            taken[rank] = near
            del free[near]
    rest = iter(free)
    for rank in unfilled:
        if rank not in taken:
            uid = next(rest, None)
            if uid is None:
                return
            taken[rank] = uid
