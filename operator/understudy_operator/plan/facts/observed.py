"""The facts on which the operator decides: frozen, read from raw objects by observe/read.py."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, wraps
from typing import Any, TypeVar, TypeVarTuple

from understudy_operator.plan.facts.cluster_objects import ChildJob, Node, Pod, Stay
from understudy_operator.plan.facts.job import Job
from understudy_operator.plan.facts.keyring import Keyring
from understudy_operator.plan.facts.pod_answers import NEVER, NO_ANSWERS, PodAnswers
from understudy_operator.plan.facts.pods import NO_PODS, Pods, cached_with_pods
from understudy_operator.plan.facts.pool_facts import Adoption, PoolView
from understudy_operator.plan.facts.refusals import Refusal
from understudy_operator.plan.facts.reported_conditions import condition
from understudy_operator.plan.facts.secret_writes import NO_WRITES, SecretWrites
from understudy_protocol.enums import CloseReason, Term
from understudy_protocol.membership import Close
from understudy_protocol.observer import Snapshot

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
#: The status.terminalState of each close, as JobSet spells it. Any other close ends pods, and not the job.
TERMINAL_STATES = {CloseReason.SUCCEEDED: "Completed", CloseReason.FAILED: "Failed"}


#: The loss of one of so many voters needs the casting vote of the operator (elections.py).
FEW_VOTERS = 2


@dataclass(frozen=True)
class Coordination:
    """The state of the search for the coordinator among the job's pods; plan/leadership/search.py maintains it."""

    snapshot: Snapshot | None = None  # the newest that counts, also of a coordinator that is gone
    coordinator_uid: str = ""  # pod uid of the coordinator that the operator is connected to; "" while searching
    since: float = NEVER  # the start of that state: connected, or searching
    answers: PodAnswers = NO_ANSWERS  # of other pods, while searching
    lost_at: float | None = None  # when the last coordinator was lost; None: there is one, or there was none


def term_of(snapshot: Snapshot) -> Term:
    return Term(snapshot.token.epoch, snapshot.token.term)


def has_majority(snapshot: Snapshot) -> bool:
    """Whether a majority of the voters are members. True before there is a voter configuration."""
    voters = frozenset(snapshot.voters)
    return not voters or 2 * len(voters.intersection(x.pod_uid for x in snapshot.members)) > len(voters)


def ends_early(observed: "Observed") -> bool:
    """Whether the job has ended for another reason than the end of the world: its members still train."""
    has_entry = any(observed.job.status.replicated_job(group.name) for group in observed.job.world.groups)
    return observed.job.terminal and has_entry and observed.world_close is None


@dataclass(frozen=True)
class Observed:
    job: Job
    pods: Pods
    nodes: Mapping[str, Node]
    coordination: Coordination
    keyring: Keyring = field(compare=False, repr=False)
    has_hostnames_service: bool
    coordinator_address: str  # ClusterIP:port of the coordinator's Service; "" until it has one
    entropy: str  # random text of this reconcile, for names
    refusals: tuple[Refusal, ...] | None = None  # by the API server, current ones; None: no write was tried yet
    paused: Mapping[str, float] = field(default_factory=dict)  # rejected writes (intent_key()) -> time of the retry
    secret_writes: SecretWrites = NO_WRITES
    status_written_at: float = 0.0  # this process's newest write of the status; 0.0: none
    running_jobs: int = 1  # whose coordinators this process follows
    children: tuple[ChildJob, ...] = ()
    previous_pods: Pods = NO_PODS  # of previous attempts
    job_pods: tuple[Pod, ...] = ()  # of child Jobs, a few that delay them
    claims: frozenset[str] = frozenset()  # existing volume claims
    templates_checked: bool = True  # whether the API server has answered the dry runs of this generation
    offenders: Mapping[str, str] = field(default_factory=dict)  # nodes that have failed jobs before -> description
    claimed: tuple[Pod, ...] = ()  # pods of pools that this job has claimed
    pool: PoolView | None = None  # that the job names; None if it names none
    adoptions: Mapping[str, Adoption] = field(default_factory=dict)  # of claimed spares, by pod uid
    coordinator_missing: bool = False  # see elections.is_coordinator_missing
    overdue: frozenset[str] = frozenset()  # replicatedJobs of the world that are past activeDeadlineSeconds
    has_kueue: bool | None = True  # whether the cluster has Kueue; None: not known yet
    has_queued_jobs: bool = False  # whether this process has seen a child Job in a queue, also one that is gone
    spec_error: str = ""  # an error in the spec that the API server does not detect
    past_stays: tuple[Stay, ...] = ()  # pods of this job that the operator has seen, and whose objects are gone
    #: Results computed from these facts, by the function that has computed them (cached_per_reconcile).
    computed: dict[Any, Any] = field(default_factory=dict, init=False, compare=False, repr=False)

    @property
    def snapshot(self) -> Snapshot | None:
        return self.coordination.snapshot

    @property
    def lost_uids(self) -> frozenset[str]:
        return frozenset() if self.snapshot is None else frozenset(lost.pod_uid for lost in self.snapshot.lost)

    @property
    def rank_holders_known(self) -> bool:
        """Whether the snapshot has the rank holders.

        A new coordinator does not know them until members have reported, and before the first round there are none.
        """
        snapshot = self.snapshot
        return snapshot is not None and (
            bool(snapshot.waiting_for) or any(x.group_rank is not None for x in snapshot.members)
        )

    @property
    def before_first_round(self) -> bool:
        """Whether this attempt has had no round, as far as status and the snapshot show."""
        return self.job.round < 0 and (self.snapshot is None or self.snapshot.token.round < 0)

    @cached_property
    def ranks(self) -> Mapping[str, int]:
        """The group ranks of the newest report, by the uids of the pods that have one."""
        members = () if self.snapshot is None else self.snapshot.members
        return {member.pod_uid: member.group_rank for member in members if member.group_rank is not None}

    @cached_property
    def member_uids(self) -> frozenset[str]:
        """The pods that are members according to the newest report."""
        return frozenset() if self.snapshot is None else frozenset(member.pod_uid for member in self.snapshot.members)

    @cached_property
    def lacks_majority(self) -> bool:
        """Whether less than a majority is connected to the coordinator: members it has lost may train elsewhere."""
        return self.snapshot is not None and not has_majority(self.snapshot)

    @property
    def has_few_voters(self) -> bool:
        """Whether the loss of one voter needs the operator's vote: one of two voters is no majority."""
        return self.snapshot is not None and 0 < len(self.snapshot.voters) <= FEW_VOTERS

    @property
    def close(self) -> Close | None:
        """Why the world ended: from status once the job has ended, before that from the coordinator or any finished
        pod.
        """
        for reason, state in TERMINAL_STATES.items():
            if self.job.status.terminal_state == state:
                end = condition(self.job.status, state)
                return Close(reason, "" if end is None else end.message)
        return self.world_close

    @cached_property
    def world_close(self) -> Close | None:
        """The close of the world itself. When its pods are gone, only status still records a success."""
        found = next((close for close in self.reported_closes if close.reason in TERMINAL_STATES), None)
        return found or self._recorded_close()

    @cached_property
    def reported_closes(self) -> tuple[Close, ...]:
        """The close of this attempt's rendezvous as reported by the coordinator, then by each finished pod."""
        closed = None if self.snapshot is None else self.snapshot.closed
        return (*(() if closed is None else (closed,)), *_closes(self.pods))

    def _recorded_close(self) -> Close | None:
        if self.job.spec.world is None:
            return None
        group = self.job.world.groups[0]
        entry = self.job.status.replicated_job(group.name)
        if entry is None:
            return None
        if entry.succeeded >= group.replicas:  # fewer: of Jobs, before the suspended job got its launcher
            return Close(CloseReason.SUCCEEDED, "all workers of all members exited 0")
        failed = entry.failed and self.job.terminal and not self.overdue
        return Close(CloseReason.FAILED, "") if failed else None

    def node_ready(self, name: str) -> bool:
        node = self.nodes.get(name)
        return node is not None and node.ready

    @cached_property
    def on_dead_nodes(self) -> Pods:
        """The pods whose nodes are gone or not ready. A node that is not ready may only be cut off from the API server:
        the coordinator may reach its pods.
        """
        dead = [node for node in self.pods.by_node if node and not self.node_ready(node)]
        uids = {pod.uid for node in dead for pod in self.pods.by_node[node]}
        return self.pods.with_uids(uids)

    @cached_property
    def live(self) -> Pods:
        """Pods that have a rank, wait for one, or may still join: not ended, not deleted, not lost, not on a dead
        node.
        """
        gone = {pod.uid for pod in self.on_dead_nodes if pod.alive and not self._may_run(pod)}
        return self.pods.alive.without_uids(gone | (self.lost_uids & self.pods.alive.by_uid.keys()))

    def _may_run(self, pod: Pod) -> bool:
        """Whether a pod on a dead node may run."""
        if self.coordinator_missing and any(x.ready for x in self.nodes.values()):
            return pod.uid in self.coordination.answers.by_pod  # no other pod can report its loss
        if self.rank_holders_known:
            return pod.uid in self.member_uids
        return pod.sidecar_started and self.job.round >= 0  # before the first round it can be replaced


@cached_with_pods
def _closes(pods: Pods) -> tuple[Close, ...]:
    """Reported by finished pods."""
    return tuple(pod.close for pod in pods if pod.close is not None)


def cached_per_reconcile(function: Callable[[Observed, *Ts], T]) -> Callable[[Observed, *Ts], T]:
    """A function that stores its results with the facts of the reconcile: several decisions need them, and they may
    depend on thousands of pods. Its results must not be changed.
    """

    @wraps(function)
    def cached(observed: Observed, *at: *Ts) -> T:
        key = (function, *at)
        if key not in observed.computed:
            observed.computed[key] = function(observed, *at)
        result: T = observed.computed[key]
        return result

    return cached
