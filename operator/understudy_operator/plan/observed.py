"""The facts on which the operator decides: frozen, read from raw objects by observe/read.py."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from understudy_operator.plan.faults.verdicts import Finding, find_verdict
from understudy_operator.plan.injection.facts import InjectedJob
from understudy_operator.plan.pod_answers import NEVER, NO_ANSWERS, PodAnswers
from understudy_operator.plan.pool.warm_facts import Adoption
from understudy_operator.plan.queue import Queue
from understudy_operator.plan.refusals import Refusal
from understudy_operator.plan.secret_writes import NO_WRITES, SecretWrites
from understudy_operator.plan.spec import JobSpec, World
from understudy_protocol.enums import CloseReason, Term
from understudy_protocol.logs import TEXT
from understudy_protocol.membership import Close
from understudy_protocol.observer import Snapshot

if TYPE_CHECKING:
    from understudy_operator.keyring import Keyring
    from understudy_operator.plan.pool.facts import Pool
    from understudy_operator.plan.stays import Stay

#: The status.terminalState of each close, as JobSet spells it. Any other close ends pods, and not the job.
TERMINAL_STATES = {CloseReason.SUCCEEDED: "Completed", CloseReason.FAILED: "Failed"}


#: The loss of one of so many voters needs the casting vote of the operator (elections.py).
FEW_VOTERS = 2
#: Phases of a pod.
ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True)
class Job:
    namespace: str
    name: str
    uid: str
    generation: int
    resource_version: str
    deleting: bool
    created_at: float
    completed_at: float | None  # from status
    spec: JobSpec
    status: Mapping[str, Any]
    orphans: bool = False  # it is deleted without its pods
    queue: Queue | None = None  # of Kueue
    log_format: str = TEXT  # of the sidecars of its pods
    injected: InjectedJob | None = None  # a Job controller creates its pods; uid is then Owner.membership

    @property
    def world(self) -> World:
        """The world. Fails for a job without a launcher."""
        assert self.spec.world is not None
        return self.spec.world

    @property
    def terminal(self) -> bool:
        """Whether it has ended, according to status."""
        return bool(self.status.get("terminalState"))

    @property
    def previous_epoch(self) -> int:
        """The name of the attempt of the world: the newest epoch before it; 0 in the first one."""
        return int(self.status.get("coordinator", {}).get("formerEpoch", 0))

    @property
    def attempt(self) -> int:
        """The number of the world's attempt, whose pods share a key; 0 in the first one. It grows with each attempt.

        Always 0 if the job is injected: its pods are created with their Secret's name, so a suspension does not change
        it. They follow the newest epoch. Each attempt of a JobSet has its own InjectedJob and uid.
        """
        return self.previous_epoch if self.injected is None else 0

    @property
    def previous_attempt(self) -> int | None:
        """The attempt before this one; None in the first one."""
        previous = self.status.get("coordinator", {}).get("previousAttempt")
        return None if previous is None else int(previous)

    @property
    def membership(self) -> str:
        """The job uid under which members authenticate: pods of one attempt cannot join another one."""
        return f"{self.uid}-{self.attempt}" if self.attempt else self.uid

    @property
    def restarts(self) -> int:
        """Restarts of the whole job."""
        return int(self.status.get("restarts", 0))

    @property
    def job_restarts_counted(self) -> int:
        """Restarts of the whole job that count towards maxRestarts."""
        return int(self.status.get("restartsCountTowardsMax", 0))

    @property
    def restarts_counted(self) -> int:
        """All restarts that count towards maxRestarts, also those of single Jobs."""
        entries = self.status.get("replicatedJobsStatus", ())
        return self.job_restarts_counted + sum(sum(x.get("jobRestartsCountTowardsMax", ())) for x in entries)

    def restarts_of(self, group: str, index: int) -> int:
        """Restarts of a single Job."""
        return self._of_job(group, index, "jobRestarts")

    def counted_restarts_of(self, group: str, index: int) -> int:
        return self._of_job(group, index, "jobRestartsCountTowardsMax")

    def _of_job(self, group: str, index: int, field: str) -> int:
        entries = self.status.get("replicatedJobsStatus", ())
        counts = next((entry.get(field, ()) for entry in entries if entry["name"] == group), ())
        return int(counts[index]) if index < len(counts) else 0

    @property
    def round(self) -> int:
        """The newest round in status; -1 before the first."""
        return int(self.status.get("round", -1))


@dataclass(frozen=True)
class Controller:
    """An object's controller from its ownerReferences; empty if it has none."""

    kind: str = ""
    name: str = ""
    uid: str = ""


@dataclass(frozen=True)
class Pod:
    uid: str
    name: str
    node: str  # "" until it is scheduled
    ip: str
    phase: str
    spare: bool  # created as a spare
    index: int | None  # completion index (over all Jobs) it was created for; None for a spare
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    created_at: float
    deleting_since: float | None
    grace_s: float
    sidecar_started: bool  # and still runs
    sidecar_ran: bool  # at any time
    close: Close | None  # from the sidecar's termination message
    trouble: str  # why it does not start, from the scheduler or the kubelet; "" if nothing is wrong
    exit_code: int | None = None  # of the trainer container
    out_of_memory: str = ""  # message that the kernel killed the trainer container for lack of memory; "" if not
    attempt: int = 0  # of the world, in which it was created
    version: str = ""  # of the observed object
    gates: tuple[str, ...] = ()  # its scheduling gates
    finalizers: tuple[str, ...] = ()
    disruption: str = ""  # why it was evicted or preempted, in the message of the cause; "" if it was not
    blocking_finalizers: tuple[str, ...] = ()  # finalizers, if only they keep the object of a deleted pod
    waiting_since: float = 0.0  # when it got its node, if it has no container yet; else 0
    failure: str = ""  # why it has failed, from the kubelet; "" if it has not
    could_start: bool = True  # whether all of its containers could be started; known for a failed pod
    ready: bool = False  # according to its probes
    unready_since: float = 0.0  # since when its probes fail; 0 if they do not
    nominated_node: str = ""  # the node on which the scheduler preempts others for it
    owner: str = ""  # uid of the job or the pool that it belongs to, confirmed by its ownerReferences
    controller: Controller = Controller()
    secrets: frozenset[str] = frozenset()  # names of the operator's Secrets that it mounts
    volumes_mounted: bool = False  # all volumes: its kubelet reports a network, which it sets up after them

    @property
    def ended(self) -> bool:
        return self.phase in ENDED

    @property
    def is_done(self) -> bool:
        """Whether at most its object remains: finalizers may keep that of a pod that ended or was never scheduled."""
        return self.ended or bool(self.blocking_finalizers) or (self.deleting_since is not None and not self.node)

    @property
    def alive(self) -> bool:
        return self.deleting_since is None and self.phase not in ENDED


@dataclass(frozen=True)
class ChildJob:
    """A Job of batch/v1 that was created from a replicatedJob."""

    uid: str
    name: str
    group: str  # its replicatedJob
    index: int
    attempt: int  # restarts of the whole job at its creation
    job_attempt: int  # restarts of this Job alone, at its creation
    desired_pods: int  # pods that make it ready
    deleting: bool = False
    suspended: bool = False
    created_at: float = 0.0
    started_at: float = 0.0  # by the Job controller; 0 before
    active: int = 0  # pods
    failed: int = 0
    terminating: int = 0
    ready: int = 0
    succeeded: int = 0
    ended: bool = False
    is_complete: bool = False  # and not failed
    reason: str = ""  # of its failure
    message: str = ""
    ended_at: float = 0.0
    fingerprint: str = ""
    template_hash: str = ""  # ReplicatedJob.template_hash; "" if an old version created it
    written_fields: str = ""  # the fields of its template that this operator has written, from its annotation
    queue: str = ""  # Kueue's; then Kueue decides when it runs
    template: Mapping[str, Any] = field(default_factory=dict)  # of its pods
    backoff_limit: int | None = None


@dataclass(frozen=True)
class Node:
    name: str
    ready: bool
    since: float = 0.0  # when it last became ready or not ready; 0 if the node does not record it
    labels: Mapping[str, str] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()  # of the fault sources, the one that counts most first
    out_of_service: bool = False  # an administrator has confirmed by a taint that nothing runs on it
    created_at: float = 0.0
    forgiven_at: float | None = None  # the memory ignores offenses before it; None: no such time

    def verdict_at(self, now: float) -> Finding | None:
        """The verdict about it; None if no finding counts."""
        return find_verdict(self.findings, now) if self.findings else None


class NodeMap(dict[str, Node]):
    """All nodes at one moment, by name. The reconciles of all jobs share it, so it must not be changed."""

    @cached_property
    def with_findings(self) -> tuple[Node, ...]:
        """The few nodes with findings."""
        return tuple(node for node in self.values() if node.findings)


def with_findings(nodes: Mapping[str, Node]) -> tuple[Node, ...]:
    return nodes.with_findings if isinstance(nodes, NodeMap) else NodeMap(nodes).with_findings


@dataclass(frozen=True)
class PoolView:
    """The HotSparePool that a job names, as the job sees it."""

    name: str
    exists: bool
    desired: int = 0
    template: str = ""  # fingerprint of the newest one
    pods: tuple[Pod, ...] = ()
    definition: "Pool | None" = None  # of its newest spares
    secret: str = ""  # name of the Secret with the pool's key


@dataclass(frozen=True)
class Coordination:
    """The state of the search for the coordinator among the job's pods; plan/search.py maintains it."""

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
    return not voters or 2 * sum(member.pod_uid in voters for member in snapshot.members) > len(voters)


def ends_early(observed: "Observed") -> bool:
    """Whether the job has ended for another reason than the end of the world: its members still train."""
    entries = observed.job.status.get("replicatedJobsStatus", ())
    world_groups = {group.name for group in observed.job.world.groups}
    has_entry = any(entry["name"] in world_groups for entry in entries)
    return observed.job.terminal and has_entry and observed.world_close is None


@dataclass(frozen=True)
class Observed:
    job: Job
    pods: tuple[Pod, ...]
    nodes: Mapping[str, Node]
    coordination: Coordination
    keyring: "Keyring" = field(compare=False, repr=False)
    has_hostnames_service: bool
    coordinator_address: str  # ClusterIP:port of the coordinator's Service; "" until it has one
    entropy: str  # random text of this reconcile, for names
    refusals: tuple[Refusal, ...] | None = None  # by the API server, current ones; None: no write was tried yet
    paused: Mapping[str, float] = field(default_factory=dict)  # rejected writes (intent_key()) -> time of the retry
    secret_writes: SecretWrites = NO_WRITES
    advertised_address: str = ""  # the coordinator's address that the job's pods have; "" if there are none
    children: tuple[ChildJob, ...] = ()
    previous_pods: tuple[Pod, ...] = ()  # pods of previous attempts
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
    spec_error: str = ""  # an error in the spec that the API server does not detect
    past_stays: "tuple[Stay, ...]" = ()  # pods of this job that the operator has seen, and whose objects are gone
    #: Results computed from these facts, by the function that has computed them (reconcile_cache.py).
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

    @property
    def lacks_majority(self) -> bool:
        """Whether less than a majority is connected to the coordinator: members it has lost may train elsewhere."""
        return self.snapshot is not None and not has_majority(self.snapshot)

    @property
    def has_few_voters(self) -> bool:
        """Whether the loss of one voter needs the operator's vote: one of two voters is no majority."""
        return self.snapshot is not None and 0 < len(self.snapshot.voters) <= FEW_VOTERS

    @property
    def close(self) -> Close | None:
        """Why the world ended: from status once the job has ended, before from the coordinator or any finished pod."""
        for reason, state in TERMINAL_STATES.items():
            if self.job.status.get("terminalState") == state:
                conditions = self.job.status.get("conditions", ())
                return Close(reason, next((x.get("message", "") for x in conditions if x["type"] == state), ""))
        return self.world_close

    @cached_property
    def world_close(self) -> Close | None:
        """The close of the world itself. When its pods are gone, only status still records a success."""
        found = next((close for close in self.reported_closes if close.reason in TERMINAL_STATES), None)
        return found or self._recorded_close()

    @cached_property
    def reported_closes(self) -> tuple[Close, ...]:
        """The close of this attempt's rendezvous as reported by the coordinator, then by each finished pod."""
        reported = [pod.close for pod in self.pods]
        if self.snapshot is not None:
            reported.insert(0, self.snapshot.closed)
        return tuple(close for close in reported if close is not None)

    def _recorded_close(self) -> Close | None:
        if self.job.spec.world is None:
            return None
        name = self.job.world.groups[0].name
        entry: Mapping[str, Any] = next(
            (x for x in self.job.status.get("replicatedJobsStatus", ()) if x["name"] == name), {}
        )
        if entry.get("succeeded"):
            return Close(CloseReason.SUCCEEDED, "all workers of all members exited 0")
        failed = entry.get("failed") and self.job.terminal and not self.overdue
        return Close(CloseReason.FAILED, "") if failed else None

    def node_ready(self, name: str) -> bool:
        node = self.nodes.get(name)
        return node is not None and node.ready

    def live(self) -> list[Pod]:
        """Pods that have a rank, wait, or will: not ended, not deleted, not lost, not on a dead node."""
        return list(self._live)

    @cached_property
    def _live(self) -> tuple[Pod, ...]:
        """Computed once, because many decisions of a reconcile need it and a job may have thousands of pods."""
        lost = self.lost_uids
        member_uids = set() if self.snapshot is None else {member.pod_uid for member in self.snapshot.members}

        def may_run(pod: Pod) -> bool:
            """A node that is not ready may only be cut off from the API server: the coordinator may reach its pods."""
            if not pod.node or self.node_ready(pod.node):
                return True
            if self.coordinator_missing and any(x.ready for x in self.nodes.values()):
                return pod.uid in self.coordination.answers.by_pod  # no other pod can report its loss
            if self.rank_holders_known:
                return pod.uid in member_uids
            return pod.sidecar_started and self.job.round >= 0  # before the first round it can be replaced

        return tuple(pod for pod in self.pods if pod.alive and pod.uid not in lost and may_run(pod))
