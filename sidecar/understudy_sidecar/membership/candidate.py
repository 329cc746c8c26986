"""The candidate: a sidecar that is not the coordinator answers callers, and may be elected by their votes.

    state        event                                           next         what it does
    -----------  ----------------------------------------------  -----------  ------------------------------------------
    IDLE         a member calls, and the job is closed           IDLE         Close
    IDLE         a member calls, and the coordinator is known    IDLE         Redirect to the coordinator; hangs up
    IDLE         a member calls, and this is no standby          IDLE         Redirect without an address; hangs up
    IDLE         a member calls a standby coordinator            COLLECTING   the caller waits in the candidate pool
    IDLE         … which doubts the coordinator that it knows    COLLECTING   the same, until its member has decided
    COLLECTING   a majority waits that can vote for this one     CAMPAIGNING  RequestVote for the next term, to these
    COLLECTING   … only with members of a newer configuration    IDLE         Redirect: the callers call the next host
    CAMPAIGNING  a majority has granted its votes                ELECTED      AssumeLeadership, with all callers
    CAMPAIGNING  a member knows a newer term of this epoch       COLLECTING   after a pause, counts again who can vote
    COLLECTING   the last caller has disconnected                IDLE
    CAMPAIGNING  a newer configuration or epoch is known         IDLE         Redirect: the callers call the next host
    any          the coordinator is known, or the job is closed  IDLE         Redirect or Close to all callers
    any          the operator reports a newer coordinator        IDLE         Redirect to it, to all callers

Rules: a standby coordinator requests no votes before its pool has a majority that can vote for it (Raft's pre-vote). So
a member cannot increase the term if it alone has lost the coordinator, or has missed a change of the voter
configuration. This matters because a member of a newer term ends the term of each coordinator that it joins. Members
call only after they have lost their coordinator, are in one pool at a time, and use the same order (calling.py), so
votes rarely split. Each caller decides how long it waits. The candidate's own member counts as a caller, wherever it is
connected, until it has voted for another candidate. Only the operator's appointment begins an epoch: a candidate
campaigns only for terms in the epoch of its voter configuration.
"""

from dataclasses import dataclass
from enum import Enum

from understudy_protocol import membership as m
from understudy_protocol.enums import NO_TERM, Term
from understudy_protocol.hard_state import HardState
from understudy_protocol.observer import Superseded
from understudy_sidecar.membership.events import (
    AssumeLeadership,
    CandidateEffect,
    CandidateEvent,
    Dropped,
    FromOperator,
    Hangup,
    JoinReceived,
    Log,
    Received,
    RecordHardState,
    Send,
    Tick,
)
from understudy_sidecar.membership.voter import Voter
from understudy_sidecar.membership.voter_config import Tally, VoterConfig

#: Two candidates in each other's pool deny each other's requests: the first of the list retries at once, others later.
RETRY_S = 0.1


class CandidateState(Enum):
    IDLE = "idle"
    COLLECTING = "collecting"
    CAMPAIGNING = "campaigning"
    ELECTED = "elected"


@dataclass(frozen=True)
class MemberInfo:
    """The current knowledge of the pod's own member.

    may_vote: it has a launcher and no coordinator, and is in no pool of a candidate that has its vote.
    """

    coordinator: m.StandbyCoordinator | None
    closed: m.Close | None
    may_vote: bool
    hard_state: HardState
    replacement_reason: str = ""  # why the pod must be replaced
    lacks_launcher: bool = False  # none has connected yet, or the last one has ended
    doubts_coordinator: bool = False  # a caller has lost it: the member looks whether its machine responds


class CandidateMachine:
    """See the module. It lives until it is elected; then a Coordinator replaces it."""

    def __init__(self, pod_uid: str, voter: Voter, member_info: MemberInfo) -> None:
        self.pod_uid, self.voter = pod_uid, voter
        self.state = CandidateState.IDLE
        self._member_info = member_info
        self._callers: dict[int, m.Join] = {}
        self._links: dict[str, int] = {}  # by pod uid: the caller's newest link
        self._leader_snapshot: m.LeaderSnapshot | None = None  # the one that the tallies are based on
        self._connected = Tally(VoterConfig())  # callers, and the own member
        self._votes = Tally(VoterConfig())
        self._campaign_term: Term | None = None
        self._newest_refused_term: Term | None = None
        self._retry_at: float | None = None
        self._out: list[CandidateEffect] = []

    def handle(self, event: CandidateEvent, member_info: MemberInfo, now: float) -> list[CandidateEffect]:
        self._member_info = member_info
        self._recount_for_new_leader_snapshot()
        match event:
            case JoinReceived(link, join):
                self._on_call(link, join)
            case Received(link, m.VoteGranted(term)) if link in self._callers and term == self._campaign_term:
                self._on_vote_granted(self._callers[link].pod_uid)
            case Received(link, m.VoteDenied() as denied) if link in self._callers:
                self._on_vote_denied(denied, now)
            case Dropped(link):
                self._on_dropped(link)
            case FromOperator(Superseded(_, uid, ip)):
                self._redirect_all(m.StandbyCoordinator(uid, ip) if ip else None)
            case Received() | FromOperator() | Tick():
                pass
        self._redirect_if_coordinator_known()
        self._campaign_if_possible()
        if self._retry_at is not None and now >= self._retry_at:
            self._campaign_again()
        effects, self._out = self._out, []
        return effects

    def deadline(self) -> float | None:
        return self._retry_at

    @property
    def callers(self) -> dict[int, m.Join]:
        """The Joins of the waiting callers, by link."""
        return dict(self._callers)

    @property
    def voter_config(self) -> VoterConfig:
        return self._connected.voter_config

    def _recount_for_new_leader_snapshot(self) -> None:
        leader_snapshot = self.voter.hard_state.leader_snapshot
        if leader_snapshot is not None and leader_snapshot is not self._leader_snapshot:
            self._leader_snapshot = leader_snapshot
            voter_config = VoterConfig(
                leader_snapshot.config_version,
                frozenset(leader_snapshot.voters),
                frozenset(leader_snapshot.old_voters),
            )
            if voter_config.version != self.voter_config.version and self.state is CandidateState.CAMPAIGNING:
                self._stop_campaign()
            self._connected, self._votes = Tally(voter_config, self._connected), Tally(voter_config, self._votes)

    # Callers --------------------------------------------------------------------------------------------------------

    def _on_call(self, link: int, join: m.Join) -> None:
        info = self._member_info
        is_known = info.coordinator is not None and not info.doubts_coordinator
        if not self._may_campaign() and info.closed is None and not is_known:
            self._redirect(link, None)
            return
        self._callers[link] = join
        self._links[join.pod_uid] = link
        self._connected.add(join.pod_uid)
        if self.state is CandidateState.IDLE:
            self.state = CandidateState.COLLECTING
        elif self.state is CandidateState.CAMPAIGNING:
            self._request_vote(link)

    def _may_campaign(self) -> bool:
        """Whether this is a standby coordinator of the newest epoch that it knows."""
        return self.voter_config.exists and self.voter_config.version.epoch == self.voter.hard_state.term.epoch

    def _on_dropped(self, link: int) -> None:
        self._forget(link)
        if not self._callers and self.state is CandidateState.COLLECTING:
            self._close_pool()

    def _redirect_if_coordinator_known(self) -> None:
        info = self._member_info
        closed, coordinator = info.closed, info.coordinator
        if closed is not None:
            for link in list(self._callers):
                self._out += [Send(link, closed), Send(link, m.ShutdownComplete())]
            self._close_pool()
        elif coordinator is not None and coordinator.pod_uid != self.pod_uid and not info.doubts_coordinator:
            self._redirect_all(coordinator)

    # The election ---------------------------------------------------------------------------------------------------

    def _next_term(self) -> Term:
        known = [self.voter.hard_state.term, *(join.term for join in self._callers.values())]
        newest = max([*known, self._newest_refused_term or NO_TERM])
        return Term(newest.epoch, newest.number + 1)

    def _campaign_if_possible(self) -> None:
        """Campaign if a majority is connected; the own member counts, wherever it is connected."""
        if (
            self.state not in (CandidateState.IDLE, CandidateState.COLLECTING)
            or not self._may_campaign()
            or self._member_info.coordinator is not None
        ):
            return
        if self._member_info.may_vote:
            self._connected.add(self.pod_uid)
        elif self.pod_uid not in self._links:
            self._connected.discard(self.pod_uid)
        if self._member_info.closed is not None or not self._connected.has_majority():
            return
        known = {join.pod_uid: join.config_version for join in self._callers.values()}
        known[self.pod_uid] = self.voter.hard_state.config_version
        newer = {uid: version for uid, version in known.items() if version > self.voter_config.version}
        if Tally(self.voter_config, set(self._connected) - newer.keys()).has_majority():
            self._campaign(self._next_term())
        elif self._callers:
            self._disconnect_callers(f"a majority needs members that know voter configuration {max(newer.values())}")

    def _campaign(self, term: Term) -> None:
        if term.epoch != self.voter_config.version.epoch:
            self._disconnect_callers(f"the voter configuration of epoch {term.epoch} is not known")
            return
        self.state, self._campaign_term, self._votes = CandidateState.CAMPAIGNING, term, Tally(self.voter_config)
        self._newest_refused_term = self._retry_at = None
        self._out.append(Log(f"is a candidate in term {term}: {len(self._callers)} members are connected"))
        for link in self._callers:
            self._request_vote(link)
        request = m.RequestVote(term, self.voter_config.version, self.pod_uid)
        if self._member_info.may_vote and self.voter.grant_vote(request):
            self._out.append(RecordHardState(self.voter.hard_state))
            self._on_vote_granted(self.pod_uid)

    def _request_vote(self, link: int) -> None:
        may_vote = self._callers[link].config_version <= self.voter_config.version
        if self._campaign_term is not None and may_vote:
            self._out.append(Send(link, m.RequestVote(self._campaign_term, self.voter_config.version, self.pod_uid)))

    def _on_vote_granted(self, uid: str) -> None:
        self._votes.add(uid)
        if self.state is CandidateState.CAMPAIGNING and self._campaign_term is not None and self._votes.has_majority():
            self.state = CandidateState.ELECTED
            self._newest_refused_term = self._retry_at = None
            self._out.append(Log(f"elected as coordinator of term {self._campaign_term} by {len(self._votes)} members"))
            self._out.append(AssumeLeadership(self._campaign_term, self.voter.hard_state.leader_snapshot))

    def _on_vote_denied(self, denied: m.VoteDenied, now: float) -> None:
        if self.state is not CandidateState.CAMPAIGNING or self._campaign_term is None:
            return
        newer = denied.config_version > self.voter_config.version
        if newer or denied.term.epoch > self._campaign_term.epoch:
            self._disconnect_callers(
                f"a member knows voter configuration {denied.config_version} and term {denied.term}"
            )
        elif denied.term >= self._campaign_term:
            self._newest_refused_term = max(denied.term, self._newest_refused_term or denied.term)
            if self._retry_at is None:
                self._retry_at = now + RETRY_S * self._position()

    def _campaign_again(self) -> None:
        """If a majority can still vote for it: meanwhile its own member may have voted for another candidate."""
        self._retry_at = None
        self.state = CandidateState.COLLECTING
        self._campaign_if_possible()

    def _position(self) -> int:
        """Index among the standby coordinators: 0 for the first."""
        standbys = self.voter.hard_state.standby_coordinators
        return next(
            (position for position, standby in enumerate(standbys) if standby.pod_uid == self.pod_uid), len(standbys)
        )

    def _disconnect_callers(self, reason: str) -> None:
        self._out.append(Log(f"disconnects {len(self._callers)} members of its candidate pool: {reason}"))
        self._redirect_all(None)

    def _redirect_all(self, to: m.StandbyCoordinator | None) -> None:
        for link in list(self._callers):
            self._redirect(link, to)
        self._close_pool()

    def _redirect(self, link: int, to: m.StandbyCoordinator | None) -> None:
        self._forget(link)
        self._out.append(Send(link, m.Redirect("", "") if to is None else m.Redirect(to.pod_uid, to.ip)))
        self._out.append(Hangup(link, "redirected"))

    def _forget(self, link: int) -> None:
        join = self._callers.pop(link, None)
        if join is not None and self._links.get(join.pod_uid) == link:  # it has not called again meanwhile
            del self._links[join.pod_uid]
            self._connected.discard(join.pod_uid)
            self._votes.discard(join.pod_uid)

    def _stop_campaign(self) -> None:
        """Stop the campaign: its votes were requested under another voter configuration."""
        self.state, self._votes = CandidateState.COLLECTING, Tally(self.voter_config)
        self._campaign_term = self._newest_refused_term = self._retry_at = None

    def _close_pool(self) -> None:
        self._callers.clear()
        self._links.clear()
        self._connected, self._votes = Tally(self.voter_config), Tally(self.voter_config)
        self._campaign_term = self._newest_refused_term = self._retry_at = None
        if self.state is not CandidateState.ELECTED:
            self.state = CandidateState.IDLE
