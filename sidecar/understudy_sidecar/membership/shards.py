"""Whether the others can save without a member that saves nothing (termination.replicaGroups). Decides only.

Rules: all members of a replica group hold the same part of a checkpoint. The others can save if each group of the
member has another active that is connected, not leaving, and not on a faulty node. The shards of a rank in no group
exist nowhere else. The result is UNKNOWN if no groups are declared, or while an elastic job has shrunk: then its ranks,
and so its shards, are not the declared ones.
"""

from enum import Enum

from understudy_sidecar.membership.coordinator_state import CoordinatorState


class SavePossibility(Enum):
    """Whether the other actives can save a whole checkpoint."""

    MAY_SAVE = "the other pods have all shards"
    MISS_SHARDS = "no healthy pod has some of the shards"
    UNKNOWN = "the distribution of shards is not known"


def may_save_without(state: CoordinatorState, group_rank: int) -> SavePossibility:
    declared = state.shape.replica_groups
    if not declared or state.round.size != state.shape.actives:
        return SavePossibility.UNKNOWN
    groups = [group for group in declared if group_rank in group]
    are_complete = bool(groups) and all(
        any(_has_healthy_holder(state, rank) for rank in group if rank != group_rank) for group in groups
    )
    return SavePossibility.MAY_SAVE if are_complete else SavePossibility.MISS_SHARDS


def _has_healthy_holder(state: CoordinatorState, group_rank: int) -> bool:
    """Whether the holder of this rank is healthy."""
    uid = state.roster.holders[group_rank] if group_rank < len(state.roster.holders) else None
    if uid is None or uid in state.roster.leaving:
        return False
    member = state.roster.members[uid]
    return member.link is not None and not state.hardware_finding(member.node)
