"""Whether the others can save without a member that saves nothing (termination.replicaGroups). Decides only.

Rules: a group holds one part of what is saved, each member of it the same. The others can save if each group that the
member is in has another active that is in touch, not leaving, and not on a faulty node. A rank in no group holds what
nobody else has. Nothing is known where no groups are declared, or while an elastic job has shrunk: its ranks, and so
its shards, are not those that were declared.
"""

from enum import Enum

from understudy_sidecar.membership.desk import Desk


class Others(Enum):
    """What the other actives are to do."""

    MAY_SAVE = "the other pods have all shards"
    MISS_SHARDS = "no healthy pod has some of the shards"
    UNKNOWN = "the distribution of shards is not known"


def may_save_without(desk: Desk, group_rank: int) -> Others:
    declared = desk.shape.replica_groups
    if not declared or desk.size != desk.shape.actives:
        return Others.UNKNOWN
    groups = [group for group in declared if group_rank in group]
    held = bool(groups) and all(any(_holds(desk, rank) for rank in group if rank != group_rank) for group in groups)
    return Others.MAY_SAVE if held else Others.MISS_SHARDS


def _holds(desk: Desk, group_rank: int) -> bool:
    """Whether somebody healthy does, as this rank."""
    uid = desk.roster.holders[group_rank] if group_rank < len(desk.roster.holders) else None
    if uid is None or uid in desk.roster.leaving:
        return False
    member = desk.roster.members[uid]
    return member.link is not None and not desk.faulty(member.node)
