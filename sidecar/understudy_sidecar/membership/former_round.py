"""The former coordinator's round, as a new coordinator derives it from the claims in its members' Joins.

The newest round that any member was in is the former one; claims of older rounds are ignored. If all its ranks are
claimed and their workers still train, the round continues without a restart.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from understudy_protocol.enums import NO_ROUND, RoundToken, WorkersState
from understudy_sidecar.membership.roster import MemberRecord

_AT_WORK = (WorkersState.STARTING, WorkersState.RUNNING, WorkersState.FINISHED)


@dataclass(frozen=True)
class FormerRound:
    token: RoundToken  # NO_ROUND if no member claims a round
    size: int  # its members
    members: dict[int, MemberRecord]  # by group rank
    is_complete: bool  # every rank is claimed
    is_training: bool  # complete, and the workers of all claimed ranks run or have finished


def former_round(members: Iterable[MemberRecord], actives: int) -> FormerRound:
    """The round that the connected members come from. actives: its size if no member reports one."""
    claims = [x for x in members if x.join.group_rank is not None and x.link is not None]
    token = max((x.join.token for x in claims), default=NO_ROUND)
    newest = [x for x in claims if x.join.token == token]
    size = max((x.join.group_world_size for x in newest), default=0) or actives
    by_rank = {x.join.group_rank: x for x in newest if x.join.group_rank is not None and x.join.group_rank < size}
    is_complete = len(by_rank) == size
    return FormerRound(
        token, size, by_rank, is_complete, is_complete and all(x.workers in _AT_WORK for x in by_rank.values())
    )
