"""The coordinator's state: all of it in one place, for the modules that each decide one thing.

Facts and effects only: this module decides nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from understudy_protocol import membership as m
from understudy_protocol.enums import NO_ROUND, RoundToken, Term, Verdict
from understudy_protocol.observer import Appoint, Cause, Lost, NodeFact, StepProgress
from understudy_protocol.pod import JobShape
from understudy_sidecar.membership.backoff import Backoff
from understudy_sidecar.membership.events import Broadcast, CoordinatorEffect, Hangup, Log, Send
from understudy_sidecar.membership.first_failure import FirstFailure
from understudy_sidecar.membership.ladder import BudgetLimits
from understudy_sidecar.membership.offences import Offences
from understudy_sidecar.membership.recoveries import RecoveryLog
from understudy_sidecar.membership.roster import MemberRecord, Roster
from understudy_sidecar.membership.script_fault import ScriptFault
from understudy_sidecar.membership.silence import SilenceWatch, Timeouts
from understudy_sidecar.membership.stall import StepWatch
from understudy_sidecar.membership.voter_config import Tally, VoterConfigs

MAX_LOST = 1000
#: A member that was lost and has returned is the last choice for ranks for this long; doubles with each loss.
LOST_RECENTLY_S = 10.0
MAX_LOST_RECENTLY_S = 600.0
#: How long after a change of the members the coordinator checks the voter configuration again.
CONFIG_CHANGE_S = 0.5
CONFIG_CHANGE_MEMBERS_PER_SECOND = 1000


class Phase(Enum):
    REBUILDING = "settling"
    WAITING = "waiting"
    RUNNING = "running"
    CLOSED = "closed"


@dataclass
class Draining:
    """Members leave, and the others save before the next round."""

    token: RoundToken
    until: float
    pending: set[str]  # uids of actives whose workers have not ended yet


@dataclass
class HangReports:
    """Members report that their workers hang; more reports may follow.

    before_first_step: the coordinator has requested the stacks of a round that has made no step.
    """

    until: float
    before_first_step: bool = False
    reports: dict[str, m.Hung] = field(default_factory=dict)  # by uid


@dataclass(frozen=True)
class ReplicasReport:
    """The newest report of a rank about its rollout servers, and the pod that sent it."""

    replicas: m.Replicas
    pod: str
    node: str


@dataclass
class PendingEviction:
    """A member that will be evicted once all other actives have answered: then none of them was lost first."""

    uid: str
    cause: Cause
    reason: str
    charged: bool
    at: float  # when its recovery began
    failed_at: float  # when its worker failed (first_failure.py)
    heartbeat: int
    pending: set[str]  # uids of actives that have not answered this heartbeat or a later one
    until: float
    earlier_failure: str = ""  # name of a member whose worker failed earlier, by its own report


@dataclass
class PendingFault:
    """A worker's fault that waits to be counted: for the other failures of its round, and for a majority."""

    failures: FirstFailure
    at: float  # when its recovery began
    keep_reason: str  # why its pod cannot be evicted


@dataclass
class CheckQuorum:
    """The coordinator decides nothing before a majority has answered this heartbeat or a later one.

    Its process was paused, or it is about to close the job as failed: its members may follow a newer coordinator.
    """

    heartbeat: int
    responded: Tally


@dataclass
class CoordinatorState:
    shape: JobShape
    pod_uid: str
    ip: str
    term: Term
    since: float  # when its term began
    # of the running or newest round, perhaps of an older term; its number may be below `newest_known_round`
    token: RoundToken
    voter_configs: VoterConfigs
    running_pods: frozenset[str] = frozenset()  # uids of the running pods, from the operator; empty: unknown
    former_coordinator: str = ""  # pod uid of the previous coordinator, if members have elected this one
    former_leader_snapshot: m.LeaderSnapshot | None = (
        None  # the newest that this pod received: names the former rank holders and coordinator
    )
    appointment: Appoint | None = None  # by the operator; None if members have elected this coordinator
    phase: Phase = Phase.WAITING
    newest_known_round: int = field(
        init=False
    )  # the newest round number that was known when this coordinator's term began
    is_first_round: bool = True  # no round was ever formed
    version: int = 0  # grows with every change that observers need
    closed: m.Close | None = None
    close_until: float = 0.0
    close_pending: set[str] = field(default_factory=set)  # uids that have not acknowledged it
    size: int = 0  # members of the running or newest round
    check_needed: bool = True  # a change since the last check may allow a round
    check_at: float = 0.0  # not before
    checked_at: float = 0.0
    roster: Roster = field(init=False)
    recovery_log: RecoveryLog = field(default_factory=RecoveryLog)
    offences: Offences = field(init=False)
    history_number: int = 0  # of the newest history that was sent
    backoff: Backoff = field(init=False)
    script_fault: ScriptFault = field(init=False)
    steps: StepWatch = field(default_factory=StepWatch)
    silence: SilenceWatch = field(default_factory=lambda: SilenceWatch(Timeouts()))
    lost: dict[str, Lost] = field(default_factory=dict)
    losses: dict[str, tuple[int, float]] = field(default_factory=dict)  # by uid: number and time of the last
    progress: StepProgress | None = None
    node_facts: dict[str, NodeFact] = field(default_factory=dict)
    node_facts_known: bool = False  # the operator has sent them to this coordinator
    node_facts_at: float = 0.0  # when it sent them
    swaps: dict[str, str] = field(default_factory=dict)  # uid of a member that drains before it is replaced -> reason
    swaps_checked: tuple[int, int] = (-1, -1)  # version and number of verdicts when swaps were last looked for
    standby_coordinators: tuple[m.StandbyCoordinator, ...] = ()
    vacant_since: float | None = None
    newcomers: frozenset[str] = frozenset()  # until a round: uids of members that had no coordinator before this one
    gathers_until: float = 0.0  # no round is formed earlier: related losses and failures are still being reported
    start_due: float | None = None  # when status names the pods whose workers do not run yet; None: done
    formed_at: float = 0.0  # when the newest round was formed; for a former coordinator's round: when this term began
    start_expires: float | None = None  # when a round without a step counts as hung; None: never
    started_at: float | None = None  # when all workers of the running round were spawned
    stepped: RoundToken = NO_ROUND  # the newest round in which any worker has reported a step
    draining: Draining | None = None
    hang_reports: HangReports | None = None
    check_quorum: CheckQuorum | None = None
    failure_reason: str = (
        ""  # why the job is closed as failed, once a majority has confirmed that this coordinator is followed
    )
    disconnected_in_check_quorum: set[str] = field(
        default_factory=set
    )  # uids of members that disconnected during the check-quorum
    reconnect_until: float = 0.0  # until then they may connect again
    pending_eviction: PendingEviction | None = None
    pending_fault: PendingFault | None = None
    rollouts: dict[int, ReplicasReport] = field(default_factory=dict)  # by rank, in the order of their arrival
    heartbeat: int = 0  # number of the newest one
    config_change_due: float | None = None
    leader_snapshot_is_stale: bool = False
    now: float = 0.0  # of the event that is being handled
    out: list[CoordinatorEffect] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.now, self.newest_known_round = self.since, self.token.round
        self.size = self.shape.actives
        self.roster = Roster(self.shape.actives)
        self.silence.lease_s = self.shape.fence_s
        self.backoff = Backoff(self.shape.backoff_max_s)
        self.script_fault = ScriptFault(self.shape.script_fault_rounds)
        shape = self.shape
        limits = BudgetLimits(shape.in_place_max_restarts, shape.in_place_window_s, shape.in_place_max_per_pod)
        self.offences = Offences(limits)

    # Effects --------------------------------------------------------------------------------------------------------

    def log(self, text: str) -> None:
        self.out.append(Log(text))

    def send(self, member: MemberRecord, message: object) -> None:
        if member.link is not None:
            self.out.append(Send(member.link, message))

    def broadcast(self, links: Iterable[int], message: object) -> None:
        to = tuple(links)
        if to:
            self.out.append(Broadcast(to, message))

    def send_heartbeat(self, links: Iterable[int]) -> int:
        """Send a heartbeat to these links; return its number."""
        self.heartbeat += 1
        self.broadcast(links, m.Heartbeat(self.heartbeat, self.token))
        return self.heartbeat

    def hang_up(self, link: int | None, reason: str) -> None:
        if link is not None:
            self.out.append(Hangup(link, reason))

    # Facts ----------------------------------------------------------------------------------------------------------

    def on_members_changed(self, now: float) -> None:
        """Members have joined or left: observers need an update, and the voter configuration may have to change."""
        self.version += 1
        self.check_needed = True
        if self.config_change_due is None:
            # Longer in a large job: each proposal goes to thousands of members, and members join by the hundred.
            self.config_change_due = now + max(
                CONFIG_CHANGE_S, len(self.roster.members) / CONFIG_CHANGE_MEMBERS_PER_SECOND
            )

    def send_leader_snapshot_later(self, now: float) -> None:
        """A part of the leader snapshot has changed: send it with the next check of the voter configuration."""
        self.leader_snapshot_is_stale = True
        if self.config_change_due is None:
            self.config_change_due = now + CONFIG_CHANGE_S

    def is_current(self, member: MemberRecord, token: RoundToken) -> bool:
        return self.phase is Phase.RUNNING and token == self.token and member.group_rank is not None

    def update_node_facts(self, facts: Iterable[NodeFact], at: float = 0.0) -> None:
        before, self.node_facts = self.node_facts, {fact.node: fact for fact in facts}
        is_first_report, self.node_facts_known, self.check_needed, self.node_facts_at = (
            not self.node_facts_known,
            True,
            True,
            at,
        )
        self.version += 1
        links: dict[m.NodeVerdict, list[int]] = {}  # one message for all healthy nodes
        for member in self.roster.members.values():
            is_unchanged = before.get(member.node) == self.node_facts.get(member.node) and not is_first_report
            if member.link is not None and not is_unchanged:
                links.setdefault(self.node_verdict(member.node), []).append(member.link)
        for verdict, to in links.items():
            self.broadcast(to, verdict)
        for member in self.roster.active_members():
            assert member.group_rank is not None
            self.roster.domains[member.group_rank] = self.domain(member.node) or member.join.domain

    def domain(self, node: str) -> str:
        fact = self.node_facts.get(node)
        return "" if fact is None else fact.domain

    def restore_node_fact(self, join: m.Join) -> None:
        """Use the verdict in a member's Join until the operator has sent the node facts to this coordinator."""
        verdict = join.verdict
        if self.node_facts_known or verdict is None:
            return
        hardware_finding, leaving_reason = (
            (verdict.reason, "") if verdict.verdict is Verdict.FAULTY else ("", verdict.reason)
        )
        if hardware_finding or (leaving_reason and verdict.fault_class is not None):
            fact = NodeFact(
                join.node,
                join.domain,
                hardware_finding,
                verdict.until,
                verdict.fault_class,
                leaving_reason,
                verdict.grace_s,
            )
            self.node_facts[join.node] = fact

    @property
    def round_number(self) -> int:
        """Never decreases, although members may continue a round with a lower number than a round that broke."""
        return max(self.token.round, self.newest_known_round)

    def node_verdict(self, node: str) -> m.NodeVerdict:
        fact = self.node_facts.get(node)
        if fact is None or not (fact.hardware_finding or fact.leaving_reason):
            return m.NodeVerdict(Verdict.UNKNOWN, at=self.node_facts_at)
        result = Verdict.FAULTY if fact.hardware_finding else Verdict.UNKNOWN
        finding = (fact.hardware_finding or fact.leaving_reason, fact.until, fact.fault_class, fact.grace_s)
        return m.NodeVerdict(result, *finding, self.node_facts_at)

    def hardware_finding(self, node: str) -> str:
        """Why no member on this node may get ranks; "" if its hardware has no finding."""
        fact = self.node_fact(node)
        return "" if fact is None else fact.hardware_finding

    def node_finding(self, node: str) -> str:
        """The node health finding, about hardware or not; "" if there is none."""
        fact = self.node_fact(node)
        return "" if fact is None else fact.hardware_finding or fact.leaving_reason

    def node_fact(self, node: str) -> NodeFact | None:
        """The node's domain and findings; None if unknown or expired."""
        fact = self.node_facts.get(node)
        return None if fact is None or (fact.until is not None and self.now >= fact.until) else fact

    def was_lost_recently(self, uid: str) -> bool:
        """Whether this member returned so soon after a loss that any other member is the better choice."""
        losses, at = self.losses.get(uid, (0, 0.0))
        return losses > 0 and self.now < at + min(LOST_RECENTLY_S * 2.0 ** min(losses - 1, 10), MAX_LOST_RECENTLY_S)

    def verdict_expiries(self) -> list[float]:
        """When verdicts expire: members on these nodes may get ranks then."""
        return [fact.until for fact in self.node_facts.values() if fact.until is not None]

    def has_majority(self) -> bool:
        """Whether a majority of the voters is connected, not silent, and still follows this coordinator."""
        if self.check_quorum is not None:
            return False
        return not self.voter_configs.newest.exists or self.roster.connected_voters.has_majority()
