"""Numbers of members and spares, for status. Without a report from a coordinator they stay as they are."""

from dataclasses import dataclass

from understudy_operator.plan.facts.observed import Observed, cached_per_reconcile
from understudy_operator.plan.facts.recoveries import AT_WORK
from understudy_operator.plan.facts.status import Members, PromotedSpare, Spares
from understudy_protocol.observer import Snapshot

#: Promoted spares that status names.
MAX_REPORTED_PROMOTED = 20


@dataclass(frozen=True)
class TrainingSize:
    """Of all pods with ranks together."""

    devices: int
    ranks: int


def member_counts(observed: Observed) -> tuple[Members, Spares]:
    world = observed.job.world
    active, ready, spares, claimed = _counts(observed)
    return Members(world.actives, active, ready), Spares(world.spares, spares, claimed)


def promoted_spares(observed: Observed) -> tuple[PromotedSpare, ...]:
    """For status: pods that were created as spares, as their names show, and have ranks now."""
    if observed.close is not None:
        return ()
    snapshot = observed.snapshot
    if snapshot is None or not reports_rank_holders(observed, snapshot):
        return observed.job.status.promoted_spares
    ranks = observed.ranks
    promoted = sorted((ranks[pod.uid], pod.name) for pod in observed.live.spares if pod.uid in ranks)
    return tuple(PromotedSpare(name, rank) for rank, name in promoted[:MAX_REPORTED_PROMOTED])


def training_size(observed: Observed) -> TrainingSize | None:
    """None while no pod has a rank, and if one of the pods with ranks is not known."""
    if observed.snapshot is None:
        return None
    pods, holders = observed.pods.by_uid, observed.ranks
    if not holders or any(uid not in pods for uid in holders):
        return None
    devices = sum(pods[uid].devices for uid in holders)
    return TrainingSize(devices, len(holders) * observed.job.world.nproc_per_node)


@cached_per_reconcile
def _counts(observed: Observed) -> tuple[int, int, int, int]:
    before = observed.job.status
    if observed.close is not None:
        return 0, 0, 0, 0
    if observed.snapshot is not None and reports_rank_holders(observed, observed.snapshot):
        return _count_members(observed, observed.snapshot)
    return before.members.active, before.members.ready, before.spares.ready, before.spares.claimed


def reports_rank_holders(observed: Observed, snapshot: Snapshot) -> bool:
    return observed.rank_holders_known or snapshot.token.round < 0


def _count_members(observed: Observed, snapshot: Snapshot) -> tuple[int, int, int, int]:
    live = observed.live.by_uid
    members = [member for member in snapshot.members if member.pod_uid in live]
    rank_holders = [member for member in members if member.group_rank is not None]
    others = [member for member in members if member.group_rank is None]
    at_work = sum(member.workers in AT_WORK for member in rank_holders)
    # Before the first round a pod that was created for an index has no rank either, but waits for its own.
    spares = len(others) if snapshot.token.round >= 0 else sum(member.index is None for member in others)
    taken = sum(pod.uid in observed.ranks for pod in observed.live.spares)
    missing = max(0, observed.job.world.spares - spares)
    return len(rank_holders), at_work, spares, min(taken, missing)
