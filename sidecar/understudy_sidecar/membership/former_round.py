"""What a coordinator that is new in office makes of the members' claims: the former coordinator's round.

Members bring back what they last knew. The newest round that any of them was in is the former one; claims of older
rounds count for nothing. If all its ranks are claimed and their workers still train, the round goes on as it is.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from understudy_protocol.enums import NO_ROUND, RoundToken, WorkersState
from understudy_sidecar.membership.roster import MemberRecord

_AT_WORK = (WorkersState.STARTING, WorkersState.RUNNING, WorkersState.FINISHED)


@dataclass(frozen=True)
class FormerRound:
    token: RoundToken  # NO_ROUND if nobody claims anything
    size: int  # its members
    members: dict[int, MemberRecord]  # by group rank
    is_complete: bool  # every rank is claimed
    is_training: bool  # whole, and no claimed rank's workers have ended


def former_round(members: Iterable[MemberRecord], actives: int) -> FormerRound:
    """The round that the connected members come from. actives: its size where nobody knows better."""
    claims = [x for x in members if x.join.group_rank is not None and x.link is not None]
    token = max((x.join.token for x in claims), default=NO_ROUND)
    newest = [x for x in claims if x.join.token == token]
    size = max((x.join.group_world_size for x in newest), default=0) or actives
    by_rank = {x.join.group_rank: x for x in newest if x.join.group_rank is not None and x.join.group_rank < size}
    is_complete = len(by_rank) == size
    return FormerRound(
        token, size, by_rank, is_complete, is_complete and all(x.workers in _AT_WORK for x in by_rank.values())
    )
