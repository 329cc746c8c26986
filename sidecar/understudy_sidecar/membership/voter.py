"""What a member has promised, and what follows from it: the part of it that a restart must not forget.

- An office is granted once. It must be newer than every one that the member has granted or followed, and of a
  candidate whose electorate is not older than what the member has acknowledged.
- A coordinator of an older office than the newest known is not followed.
- What changes here is stored (effect RecordVow) before anything that it allows is sent.
"""

from dataclasses import replace

from understudy_protocol.enums import Term
from understudy_protocol.hard_state import HardState
from understudy_protocol.membership import ConfigChange, LeaderSnapshot, RequestVote
from understudy_protocol.recovery import History

#: A coordinator that was cut off names only members of its side: those of the other side are called, too.
MAX_FORMER_STANDBY_COORDINATORS = 5


class Voter:
    """Each method says whether the vow has changed, and with `grant_vote` and `follow` whether it may be done."""

    def __init__(self, hard_state: HardState) -> None:
        self.hard_state = hard_state

    def grant_vote(self, request: RequestVote) -> bool:
        """Whether the office may be given to who asks for it. The vow is changed then."""
        hard_state = self.hard_state
        if request.config_version < hard_state.config_version:
            return False
        if hard_state.term == request.term and hard_state.voted_for == request.pod_uid:
            return True
        if request.term <= hard_state.term:
            return False
        self.hard_state = replace(hard_state, term=request.term, voted_for=request.pod_uid)
        return True

    def follow(self, term: Term) -> bool:
        """Whether a coordinator of this office is the newest that is known."""
        if term < self.hard_state.term:
            return False
        if term > self.hard_state.term:
            self.hard_state = replace(self.hard_state, term=term, voted_for="")
        return True

    def accept_appointment(self, term: Term) -> bool:
        """Take an office that the operator has given: never in an epoch that was heard of before."""
        if term.epoch <= self.hard_state.term.epoch:
            return False
        self.hard_state = replace(self.hard_state, term=term, voted_for="")
        return True

    def acknowledge(self, change: ConfigChange) -> bool:
        """Whether its version is at least as new as the stored one, and its office as the newest known."""
        version = change.config_version
        if version < self.hard_state.config_version or Term(version.epoch, version.term) < self.hard_state.term:
            return False
        known = dict.fromkeys((*self.hard_state.standby_coordinators, *self.hard_state.former_standby_coordinators))
        former_standbys = tuple(standby for standby in known if standby not in change.standby_coordinators)[
            :MAX_FORMER_STANDBY_COORDINATORS
        ]
        self.hard_state = replace(
            self.hard_state,
            config_version=version,
            standby_coordinators=change.standby_coordinators,
            former_standby_coordinators=former_standbys,
        )
        return True

    @property
    def history(self) -> History | None:
        """Of the newest electorate that it knows: what an older one's heir was told is not worth telling."""
        leader_snapshot = self.hard_state.leader_snapshot
        return (
            None
            if leader_snapshot is None or leader_snapshot.config_version < self.hard_state.config_version
            else leader_snapshot.history
        )

    def store_leader_snapshot(self, leader_snapshot: LeaderSnapshot) -> bool:
        known = self.hard_state.leader_snapshot
        if known is not None and leader_snapshot.config_version < known.config_version:
            return False
        self.hard_state = replace(self.hard_state, leader_snapshot=leader_snapshot)
        return True
