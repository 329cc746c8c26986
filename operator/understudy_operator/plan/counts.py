"""Members and spares, counted for status. What no coordinator says stays as it was."""

from typing import Any

from understudy_operator.plan.observed import Observed
from understudy_operator.plan.once import once_a_pass
from understudy_operator.plan.recoveries import AT_WORK
from understudy_protocol.observer import MemberView, Snapshot

#: Promoted spares that status names.
PROMOTED_TOLD = 20


def member_counts(observed: Observed) -> tuple[dict[str, int], dict[str, int]]:
    """Members and spares."""
    world = observed.job.world
    active, ready, spares, claimed = _counts(observed)
    members = {"desired": world.actives, "active": active, "ready": ready}
    return members, {"desired": world.spares, "ready": spares, "claimed": claimed}


def promoted_spares(observed: Observed) -> list[dict[str, Any]]:
    """For status: pods that were made as spares, as their names say, and hold ranks by now."""
    if observed.close is not None:
        return []
    told = observed.snapshot
    if told is None or not tells_seats(observed, told):
        return list(observed.job.status.get("promotedSpares", ()))
    ranks = {member.pod_uid: member.group_rank for member in told.members if member.group_rank is not None}
    promoted = sorted((ranks[pod.uid], pod.name) for pod in observed.live() if pod.spare and pod.uid in ranks)
    return [{"pod": name, "groupRank": rank} for rank, name in promoted[:PROMOTED_TOLD]]


@once_a_pass
def _counts(observed: Observed) -> tuple[int, int, int, int]:
    before = observed.job.status
    if observed.close is not None:
        return 0, 0, 0, 0
    if observed.snapshot is not None and tells_seats(observed, observed.snapshot):
        return _seats(observed, observed.snapshot)
    active, ready = (int(before.get("members", {}).get(name, 0)) for name in ("active", "ready"))
    spares, claimed = (int(before.get("spares", {}).get(name, 0)) for name in ("ready", "claimed"))
    return active, ready, spares, claimed


def tells_seats(observed: Observed, snapshot: Snapshot) -> bool:
    return observed.seating_known or snapshot.token.round < 0


def _seats(observed: Observed, snapshot: Snapshot) -> tuple[int, int, int, int]:
    live = {pod.uid: pod for pod in observed.live()}
    members = [member for member in snapshot.members if member.pod_uid in live]
    seated = [member for member in members if member.group_rank is not None]

    def is_spare(member: MemberView) -> bool:
        # Before the first round who was made for an index waits too, but for its own rank.
        return member.group_rank is None and (snapshot.token.round >= 0 or member.index is None)

    at_work = sum(member.workers in AT_WORK for member in seated)
    spares = sum(is_spare(member) for member in members)
    taken = sum(live[member.pod_uid].spare for member in seated)
    missing = max(0, observed.job.world.spares - spares)
    return len(seated), at_work, spares, min(taken, missing)
