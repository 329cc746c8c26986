"""The coordinator's state: all of it in one place, for the modules that each decide one thing.

Rules: each field is written in one module. Fields that one decision owns form a group: a class with methods for the
changes if other modules cause them, otherwise plain fields that only the named module writes. This module decides
nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property

from understudy_protocol import membership as m
from understudy_protocol.enums import NO_ROUND, Fault, RoundToken, Term
from understudy_protocol.observer import Appoint, StepProgress
from understudy_protocol.pod import JobShape
from understudy_protocol.snapshots import CopyPlan, MadeStep, RestoreChoice, SavedStep
from understudy_sidecar.membership.backoff import Backoff
from understudy_sidecar.membership.events import Broadcast, CoordinatorEffect, Hangup, Log, Send, StepDown
from understudy_sidecar.membership.fault_history import FaultHistory
from understudy_sidecar.membership.ladder import BudgetLimits
from understudy_sidecar.membership.losses import Losses
from understudy_sidecar.membership.node_facts import NodeFacts
from understudy_sidecar.membership.pending import PendingDecisions
from understudy_sidecar.membership.recoveries import RecoveryLog
from understudy_sidecar.membership.roster import MemberRecord, Roster
from understudy_sidecar.membership.round_state import RoundCheck, RoundPhase, RoundState
from understudy_sidecar.membership.script_fault import ScriptFault
from understudy_sidecar.membership.silence import SilenceTimeouts, SilenceWatch
from understudy_sidecar.membership.slow_ranks import SlowRankWatch
from understudy_sidecar.membership.stall import HangDetection, StepWatch
from understudy_sidecar.membership.voter_config import ConfigChanges, Tally, VoterConfig, VoterConfigs


@dataclass(frozen=True)
class PreviousTerm:
    """The known facts about the previous term, from the operator's appointment and from the leader snapshot of this
    pod.
    """

    coordinator_uid: str = ""  # of the previous coordinator, if members have elected this one
    leader_snapshot: m.LeaderSnapshot | None = None  # the newest; names the previous rank holders and coordinator
    appointment: Appoint | None = None  # None if members have elected this coordinator
    running_pods: frozenset[str] = frozenset()  # uids of the running pods, from the operator; empty: unknown
    ended_pods: frozenset[str] = frozenset()  # uids of voters that have ended, from the operator

    @cached_property
    def neighbors(self) -> frozenset[str]:
        """uids of the other pods with ranks on the node of the previous coordinator."""
        known, node = self.leader_snapshot, self.coordinator_node
        if known is None or not node:
            return frozenset()
        return frozenset(x.pod_uid for x in known.rank_holders if x.node == node) - {self.coordinator_uid}

    @property
    def coordinator_node(self) -> str:
        """Of the previous coordinator, if members have elected this one; "" if unknown."""
        known = self.leader_snapshot
        return known.coordinator_node if known is not None and self.coordinator_uid else ""


@dataclass
class Draining:
    """Members leave, and the others save before the next round. leaving.py begins and ends it."""

    token: RoundToken
    until: float
    _unsaved: set[str]  # uids of actives whose workers have not ended yet

    def is_unsaved(self, uid: str) -> bool:
        return uid in self._unsaved

    def waits(self, now: float) -> bool:
        return bool(self._unsaved) and now < self.until

    def expect_save(self, uid: str) -> None:
        """The member gets its order later than the others."""
        self._unsaved.add(uid)

    def on_ended(self, uid: str) -> None:
        """The member's workers have ended, or it was lost."""
        self._unsaved.discard(uid)

    def shorten(self, until: float) -> None:
        self.until = min(self.until, until)


@dataclass(frozen=True)
class ReplicasReport:
    """The newest report of a rank about its rollout servers, and the pod that sent it."""

    replicas: m.Replicas
    pod: str
    node: str


@dataclass
class FoundSnapshot:
    """Where the members have it."""

    saved: SavedStep
    own: set[int] = field(default_factory=set)  # group ranks whose pods have it
    copied: dict[int, list[str]] = field(default_factory=dict)  # by group rank: uids of the pods that keep a copy of it

    @property
    def ranks(self) -> set[int]:
        return self.own | self.copied.keys()


@dataclass
class Restores:
    """Which snapshot the running round restores. Written by restoring.py."""

    unreported: set[str] = field(default_factory=set)  # uids of actives whose snapshots are not known
    holders: set[str] = field(default_factory=set)  # uids of waiting members whose copies are not known
    holders_until: float | None = None  # the choice waits for those; None: actives are missing, or the choice is made
    found: dict[tuple[int, ...], FoundSnapshot] = field(default_factory=dict)  # by the numbers of its SavedStep
    newest_made: MadeStep | None = None  # that members reported of the rounds before; None: not known
    target: SavedStep | None = None  # will be chosen once all members have it
    fetching: dict[str, int] = field(default_factory=dict)  # group ranks by uid, of members that do not have it yet
    errors: list[str] = field(default_factory=list)  # of copies that could not be fetched
    is_decided: bool = False  # whether snapshots are suspect was decided for this round
    choice: RestoreChoice | None = None  # of this round
    decided: RoundToken = NO_ROUND  # the newest round with a choice, as far as known
    restored: SavedStep | None = None  # by that round
    suspicions: int = 0  # consecutive rounds that failed soon after they had restored a snapshot


@dataclass(frozen=True)
class Swap:
    """A member is to be replaced before it fails. fault and reason: of the entry in the recovery log."""

    fault: Fault
    reason: str
    message: str


@dataclass
class CopyPlacement:
    """Which members keep whose copies in the running round. Written by copies.py."""

    holders: dict[int, tuple[str, ...]] = field(default_factory=dict)  # uids by group rank
    plans: dict[str, CopyPlan] = field(default_factory=dict)  # by uid
    #: The facts from which the plans were made: Joins and domains, the number of members with ranks, the uids of those
    #: that leave, and the stride.
    facts: tuple[list[m.Join], list[str], int, set[str], int] = field(default_factory=lambda: ([], [], 0, set(), 1))
    stride: int = 1  # of all copies
    lower_at: float | None = None  # when the stride may fall; None: no member needs less than before
    checked: tuple[int, int] = (0, 0)  # the numbers of removals and of members when the copies were last placed
    place_at: float | None = None  # when the copies of the running round are placed again; None: they have been


@dataclass
class Swaps:
    """Written by proactive.py."""

    requests: dict[str, str] = field(default_factory=dict)  # the user's reason, by uid of a pod that a user drains
    begun: dict[str, Swap] = field(default_factory=dict)  # by uid of a member that drains before it is replaced
    checked: tuple[int, int, bool] = (-1, -1, False)  # the facts at the last check for swaps


@dataclass
class CheckQuorum:
    """The coordinator decides nothing before a majority has answered this heartbeat or a later one.

    Its process was paused, or it is about to close the job as failed: its members may follow a newer coordinator.
    """

    heartbeat: int
    responded: Tally


@dataclass
class Quorum:
    """Whether this coordinator is still followed. Written by quorum.py."""

    check: CheckQuorum | None = None
    disconnected: set[str] = field(default_factory=set)  # uids of members that disconnected during the check-quorum
    reconnect_until: float = 0.0  # until then they may connect again
    missing_since: float | None = None  # when a majority was last connected
    kept_silent: bool = False  # a silent member was not counted as lost because a majority is missing
    examines_silence_at: float = 0.0  # not before, while a majority is missing
    is_lacking: bool = False  # a majority is needed, and missing
    observers: int = 0
    unobserved_since: float | None = None  # waiting, without observers and voters


@dataclass
class Ending:
    """Written by ending.py."""

    close: m.Close | None = None
    until: float = 0.0
    unacknowledged: set[str] = field(default_factory=set)  # uids
    decision: m.Close | None = None  # takes effect once a majority has confirmed that it follows this coordinator


@dataclass
class CoordinatorState:
    shape: JobShape
    pod_uid: str
    ip: str
    term: Term
    since: float  # when its term began
    round: RoundState
    voter_configs: VoterConfigs
    previous: PreviousTerm = PreviousTerm()
    version: int = 0  # grows with every change that observers need
    progress: StepProgress | None = None  # written by round_progress.py
    round_check: RoundCheck = field(default_factory=RoundCheck)
    roster: Roster = field(init=False)
    losses: Losses = field(default_factory=Losses)
    nodes: NodeFacts = field(default_factory=NodeFacts)
    recovery_log: RecoveryLog = field(default_factory=RecoveryLog)
    fault_history: FaultHistory = field(init=False)
    pending: PendingDecisions = field(default_factory=PendingDecisions)
    backoff: Backoff = field(init=False)
    script_fault: ScriptFault = field(init=False)
    steps: StepWatch = field(default_factory=StepWatch)
    silence: SilenceWatch = field(default_factory=lambda: SilenceWatch(SilenceTimeouts()))
    hangs: HangDetection = field(default_factory=HangDetection)
    slow_ranks: SlowRankWatch = field(default_factory=SlowRankWatch)
    swaps: Swaps = field(default_factory=Swaps)
    restores: Restores = field(default_factory=Restores)
    copies: CopyPlacement = field(default_factory=CopyPlacement)
    draining: Draining | None = None  # written by leaving.py
    quorum: Quorum = field(default_factory=Quorum)
    config_changes: ConfigChanges = field(default_factory=ConfigChanges)
    rollouts: dict[int, ReplicasReport] = field(default_factory=dict)  # by rank, by arrival; written by rollouts.py
    learned_modules: tuple[str, ...] = ()  # written by preload.py
    ending: Ending = field(default_factory=Ending)
    heartbeat: int = 0  # number of the newest one
    now: float = 0.0  # of the event that is being handled
    _out: list[CoordinatorEffect] = field(default_factory=list)

    def __post_init__(self) -> None:
        shape, self.now = self.shape, self.since
        self.roster = Roster(shape.actives)
        self.silence.lease_s = shape.fence_s
        self.backoff = Backoff(shape.backoff_max_s)
        self.script_fault = ScriptFault(shape.script_fault_rounds)
        limits = BudgetLimits(shape.in_place_max_restarts, shape.in_place_window_s, shape.in_place_max_per_pod)
        self.fault_history = FaultHistory(limits)

    def begin_epoch(self, appoint: Appoint) -> None:
        """The operator appoints the running coordinator again: an epoch begins without a voter configuration."""
        self.term = Term(appoint.epoch, 1)
        self.voter_configs = VoterConfigs(self.term)
        self.roster.set_voter_config(VoterConfig())
        self.previous = replace(self.previous, running_pods=frozenset(appoint.running_pods))

    # Effects --------------------------------------------------------------------------------------------------------

    def log(self, text: str) -> None:
        self._out.append(Log(text))

    def send(self, member: MemberRecord, message: object) -> None:
        if member.link is not None:
            self._out.append(Send(member.link, message))

    def broadcast(self, links: Iterable[int], message: object) -> None:
        to = tuple(links)
        if to:
            self._out.append(Broadcast(to, message))

    def send_heartbeat(self, links: Iterable[int]) -> int:
        """Send a heartbeat to these links; return its number."""
        self.heartbeat += 1
        self.broadcast(links, m.Heartbeat(self.heartbeat, self.round.token))
        return self.heartbeat

    def hang_up(self, link: int | None, reason: str) -> None:
        if link is not None:
            self._out.append(Hangup(link, reason))

    def do(self, *effects: CoordinatorEffect) -> None:
        self._out += effects

    def step_down(self, reason: str) -> None:
        self._out.append(StepDown(reason))

    @property
    def has_effects(self) -> bool:
        return bool(self._out)

    def take_effects(self) -> list[CoordinatorEffect]:
        effects, self._out = self._out, []
        return effects

    # Facts ----------------------------------------------------------------------------------------------------------

    def notify_observers(self) -> None:
        """Something has changed that observers need."""
        self.version += 1

    def on_members_changed(self, now: float) -> None:
        """Members have joined or left: observers need an update, and the voter configuration may have to change."""
        self.version += 1
        self.round_check.request()
        self.config_changes.on_members_changed(len(self.roster.members), now)

    def knows_newest_round(self) -> bool:
        """Whether a step of the newest round before this term would be known. If one of its pods has joined and does
        not come from it, it has made none. O(members).
        """
        newest, members = self.round.newest_known, self.roster.members
        if self.round.stepped.round >= newest or any(x.join.token.round >= newest for x in members.values()):
            return True
        known, appointment = self.previous.leader_snapshot, self.previous.appointment
        rank_holders = () if appointment is None else appointment.rank_holders
        if known is not None and known.token.round >= newest:
            rank_holders += known.rank_holders
        return any(rank_holder.pod_uid in members for rank_holder in rank_holders)

    def expect_step(self, now: float) -> None:
        """The running round has to make its first step within startTimeout."""
        timeout_s = self.shape.start_timeout_s if self.round.stepped != self.round.token else 0.0
        self.hangs.expect_step(timeout_s, now)

    def is_current(self, member: MemberRecord, token: RoundToken) -> bool:
        return self.round.phase is RoundPhase.RUNNING and token == self.round.token and member.group_rank is not None

    def hardware_finding(self, node: str) -> str:
        """Why no member on this node may get ranks; "" if its hardware has no finding."""
        return self.nodes.hardware_finding(node, self.now)

    def node_finding(self, node: str) -> str:
        """The node health finding, about hardware or not; "" if there is none."""
        return self.nodes.finding(node, self.now)

    def reason_to_leave(self, member: MemberRecord) -> str:
        """Why this member should have no ranks: a finding of its node, or a user drains its pod; else ""."""
        return self.node_finding(member.node) or self.swaps.requests.get(member.uid, "")

    def domain_of(self, member: MemberRecord) -> str:
        return self.nodes.domain(member.node) or member.join.domain

    def has_majority(self) -> bool:
        """Whether a majority of the voters is connected, not silent, and still follows this coordinator. The first
        round needs an operator instead.
        """
        if self.quorum.check is not None:
            return False
        if self.voter_configs.newest.exists:
            return self.roster.connected_voters.has_majority()
        # Before the first round there are no voters, so the operator appoints another coordinator if it loses this one.
        return self.quorum.observers > 0 or not self.round.is_first
