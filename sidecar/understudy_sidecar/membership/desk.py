"""What a coordinator has on its desk: all of its state in one place, for the modules that each decide one thing.

Facts and effects only: nothing is decided here.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from understudy_protocol import membership as m
from understudy_protocol.observer import Appoint, Cause, Lost, NodeFact, StepProgress
from understudy_protocol.pod import JobShape
from understudy_protocol.words import NO_ROUND, Office, RoundToken, Verdict
from understudy_sidecar.membership.backoff import Backoff
from understudy_sidecar.membership.electorate import ElectorateKeeper, Tally
from understudy_sidecar.membership.events import Broadcast, CoordinatorEffect, Hangup, Say, Send
from understudy_sidecar.membership.first_failure import FirstFailure
from understudy_sidecar.membership.ladder import Limits
from understudy_sidecar.membership.offences import Offences
from understudy_sidecar.membership.recoveries import RecoveryBook
from understudy_sidecar.membership.roster import Member, Roster
from understudy_sidecar.membership.script_fault import ScriptFault
from understudy_sidecar.membership.silence import Patience, SilenceWatch
from understudy_sidecar.membership.stall import StepWatch

LOST_KEPT = 1000
#: A member that was lost and comes back is the last candidate for ranks for so long; twice as long after each loss.
LOST_AGAIN_S = 10.0
LONGEST_LOST_AGAIN_S = 600.0
#: How long after a change of the members the succession is looked at again.
SUCCESSION_S = 0.5
SUCCESSION_MEMBERS_A_SECOND = 1000


class State(Enum):
    SETTLING = "settling"
    WAITING = "waiting"
    RUNNING = "running"
    CLOSED = "closed"


@dataclass
class Draining:
    """Members leave, and the others save with them."""

    token: RoundToken
    until: float
    pending: set[str]  # uids of actives whose workers have not ended yet


@dataclass
class Hanging:
    """Members say that their workers hang; others may still.

    before_first_step: the coordinator has asked for the stacks of a round that has made no step.
    """

    until: float
    before_first_step: bool = False
    told: dict[str, m.Hung] = field(default_factory=dict)  # by uid


@dataclass(frozen=True)
class ReplicasTold:
    """The newest word of a rank about its rollout servers, and where it came from."""

    replicas: m.Replicas
    pod: str
    node: str


@dataclass
class Dismissal:
    """A member is to be given up, once all other actives have proved to be there: none of them was first."""

    uid: str
    cause: Cause
    reason: str
    charged: bool
    at: float  # when the recovery began that this is about
    failed_at: float  # when its worker failed (first_failure.py)
    heartbeat: int
    pending: set[str]  # uids of actives that have not answered this heartbeat or a later one
    until: float
    earlier: str = ""  # a member that says that a worker of its own failed before


@dataclass
class Uncounted:
    """A worker's fault: it is counted once the failures of its round are gathered, by a coordinator with a majority."""

    failures: FirstFailure
    at: float  # when the recovery began that this is about
    stays: str  # why its pod cannot be given up


@dataclass
class Doubt:
    """The coordinator decides nothing before a majority has answered this heartbeat or a later one.

    It has stood still, or is about to close the job as failed: its members may follow a newer coordinator by now.
    """

    heartbeat: int
    heard: Tally


@dataclass
class Desk:
    shape: JobShape
    pod_uid: str
    ip: str
    office: Office
    since: float  # when it took office
    token: RoundToken  # of the running or newest round, perhaps an older office's; its number may be below `at_least`
    keeper: ElectorateKeeper
    may_come: frozenset[str] = frozenset()  # uids of the pods that run, as the operator has said; empty: not known
    former_holder: str = ""  # pod uid of the coordinator before, if members have elected this one
    former_estate: m.Estate | None = None  # the newest that this pod has had: names who held ranks, and who coordinated
    appointment: Appoint | None = None  # of the operator, unless members have elected this coordinator
    state: State = State.WAITING
    at_least: int = field(init=False)  # the newest round number that was known when this coordinator took office
    first: bool = True  # no round was ever formed
    version: int = 0  # grows with every change that an observer may want to know
    closed: m.Close | None = None
    close_until: float = 0.0
    close_pending: set[str] = field(default_factory=set)  # uids that have not acknowledged it
    size: int = 0  # members of the running or newest round
    look: bool = True  # something has changed that a waiting round may follow from
    look_at: float = 0.0  # not before
    looked_at: float = 0.0
    roster: Roster = field(init=False)
    book: RecoveryBook = field(default_factory=RecoveryBook)
    offences: Offences = field(init=False)
    history_number: int = 0  # of the newest that was told
    backoff: Backoff = field(init=False)
    script_fault: ScriptFault = field(init=False)
    steps: StepWatch = field(default_factory=StepWatch)
    silence: SilenceWatch = field(default_factory=lambda: SilenceWatch(Patience()))
    lost: dict[str, Lost] = field(default_factory=dict)
    losses: dict[str, tuple[int, float]] = field(default_factory=dict)  # by uid: how often it was lost, and when last
    progress: StepProgress | None = None
    facts: dict[str, NodeFact] = field(default_factory=dict)
    facts_known: bool = False  # the operator has told them to this coordinator
    facts_at: float = 0.0  # when it did
    swaps: dict[str, str] = field(default_factory=dict)  # uid of who is drained to give its ranks to a spare -> why
    swaps_looked: tuple[int, int] = (-1, -1)  # version and number of verdicts when swaps were last looked for
    heirs: tuple[m.Heir, ...] = ()
    vacant_since: float | None = None
    newcomers: frozenset[str] = frozenset()  # uids of members that had no coordinator before this one, until a round
    gathers_until: float = 0.0  # no round before: what was lost with a member, or failed first, is about to be known
    start_due: float | None = None  # when status names the pods whose workers do not run yet; None: that was done
    formed_at: float = 0.0  # when the newest round was; of a former coordinator's: when this one took office
    start_expires: float | None = None  # when a round that has made no step by then hangs; None: it does not
    started_at: float | None = None  # when all workers of the running round were spawned
    stepped: RoundToken = NO_ROUND  # the newest round in which any worker has reported a step
    draining: Draining | None = None
    hanging: Hanging | None = None
    doubt: Doubt | None = None
    fails: str = ""  # why the job is closed as failed, once a majority has confirmed that this coordinator is followed
    left_in_doubt: set[str] = field(default_factory=set)  # uids of members whose connections ended during the doubt
    may_return_until: float = 0.0  # for so long they may connect again
    dismissal: Dismissal | None = None
    uncounted: Uncounted | None = None
    rollouts: dict[int, ReplicasTold] = field(default_factory=dict)  # by rank, who told last is the last
    heartbeat: int = 0  # the number of the newest
    succession_due: float | None = None
    estate_stale: bool = False
    now: float = 0.0  # of the event that is being handled
    out: list[CoordinatorEffect] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.now, self.at_least = self.since, self.token.round
        self.size = self.shape.actives
        self.roster = Roster(self.shape.actives)
        self.silence.lease_s = self.shape.fence_s
        self.backoff = Backoff(self.shape.backoff_max_s)
        self.script_fault = ScriptFault(self.shape.script_fault_rounds)
        shape = self.shape
        limits = Limits(shape.in_place_max_restarts, shape.in_place_window_s, shape.in_place_max_per_pod)
        self.offences = Offences(limits)

    # Effects --------------------------------------------------------------------------------------------------------

    def say(self, text: str) -> None:
        self.out.append(Say(text))

    def send(self, member: Member, message: object) -> None:
        if member.link is not None:
            self.out.append(Send(member.link, message))

    def broadcast(self, links: Iterable[int], message: object) -> None:
        to = tuple(links)
        if to:
            self.out.append(Broadcast(to, message))

    def ask(self, links: Iterable[int]) -> int:
        """Whether these are there; the number of the heartbeat."""
        self.heartbeat += 1
        self.broadcast(links, m.Heartbeat(self.heartbeat, self.token))
        return self.heartbeat

    def hang_up(self, link: int | None, reason: str) -> None:
        if link is not None:
            self.out.append(Hangup(link, reason))

    # Facts ----------------------------------------------------------------------------------------------------------

    def members_changed(self, now: float) -> None:
        """Who is there has changed: observers want to know, and the succession may follow."""
        self.version += 1
        self.look = True
        if self.succession_due is None:
            # Longer in a large job, where each proposal goes to thousands and members come by the hundred.
            self.succession_due = now + max(SUCCESSION_S, len(self.roster.members) / SUCCESSION_MEMBERS_A_SECOND)

    def inherit_later(self, now: float) -> None:
        """What heirs need to know has changed."""
        self.estate_stale = True
        if self.succession_due is None:
            self.succession_due = now + SUCCESSION_S

    def is_current(self, member: Member, token: RoundToken) -> bool:
        return self.state is State.RUNNING and token == self.token and member.group_rank is not None

    def learn_nodes(self, facts: Iterable[NodeFact], at: float = 0.0) -> None:
        before, self.facts = self.facts, {fact.node: fact for fact in facts}
        first, self.facts_known, self.look, self.facts_at = not self.facts_known, True, True, at
        self.version += 1
        links: dict[m.NodeVerdict, list[int]] = {}  # one word for all whose nodes are well
        for member in self.roster.members.values():
            known = before.get(member.node) == self.facts.get(member.node) and not first
            if member.link is not None and not known:
                links.setdefault(self.verdict(member.node), []).append(member.link)
        for verdict, to in links.items():
            self.broadcast(to, verdict)
        for member in self.roster.active():
            assert member.group_rank is not None
            self.roster.domains[member.group_rank] = self.domain(member.node) or member.join.domain

    def domain(self, node: str) -> str:
        fact = self.facts.get(node)
        return "" if fact is None else fact.domain

    def learn_from(self, join: m.Join) -> None:
        """What a member brings back of what was told of its node, as long as no operator has told this coordinator."""
        told = join.verdict
        if self.facts_known or told is None:
            return
        faulty, going = (told.reason, "") if told.verdict is Verdict.FAULTY else ("", told.reason)
        if faulty or (going and told.fault_class is not None):
            fact = NodeFact(join.node, join.domain, faulty, told.until, told.fault_class, going, told.grace_s)
            self.facts[join.node] = fact

    @property
    def round_number(self) -> int:
        """Never falls, although members may continue a round with a lower number than that of one that broke."""
        return max(self.token.round, self.at_least)

    def verdict(self, node: str) -> m.NodeVerdict:
        fact = self.facts.get(node)
        if fact is None or not (fact.faulty or fact.going):
            return m.NodeVerdict(Verdict.UNKNOWN, at=self.facts_at)
        what = Verdict.FAULTY if fact.faulty else Verdict.UNKNOWN
        told = (fact.faulty or fact.going, fact.until, fact.fault_class, fact.grace_s)
        return m.NodeVerdict(what, *told, self.facts_at)

    def faulty(self, node: str) -> str:
        """Why no member on this node may be given ranks; "" if its hardware is well, as far as is known."""
        fact = self.fact(node)
        return "" if fact is None else fact.faulty

    def held(self, node: str) -> str:
        """What is held against the node, hardware or not; "" if nothing is."""
        fact = self.fact(node)
        return "" if fact is None else fact.faulty or fact.going

    def fact(self, node: str) -> NodeFact | None:
        """What is held against the node, or where it is; None if nothing is known that has not expired."""
        fact = self.facts.get(node)
        return None if fact is None or (fact.until is not None and self.now >= fact.until) else fact

    def lately_lost(self, uid: str) -> bool:
        """Whether a member that came back was lost so shortly ago that any other one is the better candidate."""
        times, at = self.losses.get(uid, (0, 0.0))
        return times > 0 and self.now < at + min(LOST_AGAIN_S * 2.0 ** min(times - 1, 10), LONGEST_LOST_AGAIN_S)

    def expiries(self) -> list[float]:
        """When verdicts expire: somebody may be given ranks then."""
        return [fact.until for fact in self.facts.values() if fact.until is not None]

    def has_majority(self) -> bool:
        """Whether the electorate's majority is linked, not silent, and still follows this coordinator."""
        if self.doubt is not None:
            return False
        return not self.keeper.newest.exists or self.roster.voters_linked.carries()
