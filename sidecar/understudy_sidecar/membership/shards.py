"""Whether the others can save without a member that saves nothing (termination.replicaGroups). Decides only.

Rules: a group holds one part of what is saved, each member of it the same. The others can save if each group that the
member is in has another active that is in touch, not leaving, and not on a faulty node. A rank in no group holds what
nobody else has. Nothing is known where no groups are declared, or while an elastic job has shrunk: its ranks, and so
its shards, are not those that were declared.
"""

from enum import Enum

from understudy_sidecar.membership.coordinator_state import CoordinatorState


class SavePossibility(Enum):
    """What the other actives are to do."""

    MAY_SAVE = "the other pods have all shards"
    MISS_SHARDS = "no healthy pod has some of the shards"
    UNKNOWN = "the distribution of shards is not known"


def may_save_without(state: CoordinatorState, group_rank: int) -> SavePossibility:
    declared = state.shape.replica_groups
    if not declared or state.size != state.shape.actives:
        return SavePossibility.UNKNOWN
    groups = [group for group in declared if group_rank in group]
    are_complete = bool(groups) and all(
        any(_has_healthy_holder(state, rank) for rank in group if rank != group_rank) for group in groups
    )
    return SavePossibility.MAY_SAVE if are_complete else SavePossibility.MISS_SHARDS


def _has_healthy_holder(state: CoordinatorState, group_rank: int) -> bool:
    """Whether somebody healthy does, as this rank."""
    uid = state.roster.holders[group_rank] if group_rank < len(state.roster.holders) else None
    if uid is None or uid in state.roster.leaving:
        return False
    member = state.roster.members[uid]
    return member.link is not None and not state.hardware_finding(member.node)
