"""A member's hard state, and its rules: a restart must not forget it.

- A member votes once in a term. The term must be newer than every one that the member has voted in or followed, and the
  candidate's voter configuration must not be older than the one that the member has acknowledged.
- A member does not follow a coordinator of a term that is older than the newest known.
- A change is stored (effect RecordHardState) before any message is sent that relies on it.
"""

from dataclasses import replace

from understudy_protocol.enums import Term
from understudy_protocol.hard_state import HardState
from understudy_protocol.membership import ConfigChange, LeaderSnapshot, RequestVote
from understudy_protocol.recovery import History

#: A partitioned coordinator names only members of its side: disconnected members also call those of the other side.
MAX_PREVIOUS_STANDBY_COORDINATORS = 5


class Voter:
    """The methods return whether the hard state allows the change; if so, they change it."""

    def __init__(self, hard_state: HardState) -> None:
        self.hard_state = hard_state

    def grant_vote(self, request: RequestVote) -> bool:
        """Vote for the candidate, if the rules allow it."""
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
        """Follow a coordinator of this term, if none is newer."""
        if term < self.hard_state.term:
            return False
        if term > self.hard_state.term:
            self.hard_state = replace(self.hard_state, term=term, voted_for="")
        return True

    def accept_appointment(self, term: Term) -> bool:
        """Accept the operator's appointment, unless its epoch is already known."""
        if term.epoch <= self.hard_state.term.epoch:
            return False
        self.hard_state = replace(self.hard_state, term=term, voted_for="")
        return True

    def acknowledge(self, change: ConfigChange) -> bool:
        """Accept a change whose version is at least as new as the stored one, and whose term is the newest known."""
        version = change.config_version
        if version < self.hard_state.config_version or Term(version.epoch, version.term) < self.hard_state.term:
            return False
        known = dict.fromkeys((*self.hard_state.standby_coordinators, *self.hard_state.previous_standby_coordinators))
        previous_standbys = tuple(standby for standby in known if standby not in change.standby_coordinators)[
            :MAX_PREVIOUS_STANDBY_COORDINATORS
        ]
        self.hard_state = replace(
            self.hard_state,
            config_version=version,
            standby_coordinators=change.standby_coordinators,
            previous_standby_coordinators=previous_standbys,
        )
        return True

    @property
    def history(self) -> History | None:
        """The history of the leader snapshot, if that is of the newest configuration; an older one is useless."""
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
