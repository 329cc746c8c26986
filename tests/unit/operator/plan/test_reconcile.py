"""Whole reconciles: pure, in order, and stable at the right pods in a world with arbitrary faults."""

import copy
import random
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.operator.given import (
    A0,
    A1,
    ADDRESS,
    FAILED,
    IMAGE,
    NOW,
    SUCCEEDED,
    XID_79,
    S,
    a_job,
    a_pod,
    a_recovery,
    a_snapshot,
    ended,
    in_round,
    lost,
    member,
    observed,
    starting,
    terminating,
)
from understudy_operator.observe.read import read_pod
from understudy_operator.plan.facts.cluster_objects import Node, Pod
from understudy_operator.plan.facts.observed import Coordination, Observed
from understudy_operator.plan.facts.pod_answers import PodAnswer, PodAnswers
from understudy_operator.plan.facts.pods import Pods
from understudy_operator.plan.facts.refusals import Refusal, RefusalKind
from understudy_operator.plan.facts.secret_writes import SecretWrites
from understudy_operator.plan.facts.spec import FailurePolicy, RestartStrategy
from understudy_operator.plan.intents import (
    CREATE_POD,
    Create,
    CreatePod,
    DeletePod,
    DeleteSecret,
    Follow,
    PatchPod,
    Plan,
    PodIntent,
    ReleasePod,
    Unfollow,
)
from understudy_operator.plan.leadership.coordination import JOB_DELETED
from understudy_operator.plan.reconcile import reconcile
from understudy_operator.runtime.kept_fields import select_pod_fields
from understudy_protocol import pod as names
from understudy_protocol.enums import CloseReason, Fault, WorkersState
from understudy_protocol.membership import Close
from understudy_protocol.observer import Lost, Snapshot, StepProgress

POLL_INTERVAL_S = 2.0
MAX_INTERVAL_S = 30.0
TRY_AGAIN_S = 10.0

#: How long the node controller tolerates a node that is not Ready before it evicts pods (Kubernetes' default).
EVICTION_S = 300.0


def plan_of(facts: Observed, now: float = NOW) -> Plan:
    return reconcile(facts, IMAGE, now)


# One reconcile ------------------------------------------------------------------------------------------------------


def test_a_new_job_gets_its_objects_first_and_then_a_status_with_their_address():
    facts = observed(a_job(), (), secret_writes=SecretWrites(), has_hostnames_service=False, coordinator_address="")
    plan = plan_of(facts)
    kinds = [intent.manifest["kind"] for intent in plan.objects if isinstance(intent, Create)]
    assert kinds == ["Secret", "Service", "Service"]
    assert (plan.status, plan.pods, plan.link, plan.events) == (None, (), None, ())
    # when they exist
    plan = plan_of(observed(a_job(), (), secret_writes=SecretWrites()))
    assert plan.status is not None
    assert (plan.status.phase, plan.status.coordinator.address) == ("Pending", ADDRESS)
    assert (plan.pods, plan.link, plan.events) == ((), None, ())


def test_a_new_job_whose_service_is_rejected_gets_a_status_with_the_reason():
    refusal = Refusal("exceeded quota: services=5", RefusalKind.QUOTA, "create Service job")
    facts = observed(a_job(), (), coordinator_address="", refusals=(refusal,))
    plan = plan_of(facts)
    assert plan.status is not None
    assert [entry.message for entry in plan.status.conditions if entry.type == "Blocked"] == [refusal.message]


def test_an_appointment_is_in_status_label_and_link_of_the_same_plan():
    plan = plan_of(observed(a_job()))
    assert plan.status is not None
    epoch = plan.status.coordinator.epoch
    assert plan.status.coordinator.pod_uid == S.uid
    assert plan.pods == (PatchPod("s", {names.LABEL_COORDINATOR: "true"}),)
    assert isinstance(plan.link, Follow)
    assert [(callee.pod_uid, callee.epoch) for callee in plan.link.first] == [(S.uid, epoch)]
    assert [event.reason for event in plan.events] == ["CoordinatorAppointed"]


def test_the_plan_for_a_job_that_is_being_deleted_only_ends_its_link():
    assert plan_of(observed(a_job(status=in_round(3), deleting=True), (A0, ended(A1)))) == Plan(link=JOB_DELETED)


def test_after_the_close_nothing_is_created_and_the_job_is_not_reconciled_once_all_pods_have_ended():
    running = plan_of(observed(snapshot=a_snapshot(closed=SUCCEEDED), secret_writes=SecretWrites()))
    assert (running.objects, running.requeue_after_s) == ((), 30.0)
    finished = plan_of(observed(pods=(ended(A0, SUCCEEDED), ended(A1))))
    assert (finished.link, finished.requeue_after_s) == (Unfollow(), None)


def test_a_refused_creation_is_retried_once_its_pause_is_over_and_all_else_continues():
    # given new pods that were rejected a moment ago
    quota = Refusal("exceeded quota", RefusalKind.QUOTA)
    facts = observed(a_job(), (A0, terminating(A1)), not_ready=[A1.node], refusals=(quota,))
    facts = replace(facts, paused={CREATE_POD: NOW + 1.5})
    # then no pod is created, the pod on the dead node is deleted, and the next reconcile is at the end of the pause
    kept = plan_of(facts)
    assert [type(intent) for intent in kept.pods] == [DeletePod]
    assert (kept.paused_writes, kept.requeue_after_s) == (frozenset({CREATE_POD}), 1.5)
    # and then the pods are created
    tried = plan_of(facts, NOW + 1.5)
    assert {type(intent) for intent in tried.pods} == {CreatePod, DeletePod}
    assert (tried.paused_writes, tried.requeue_after_s) == (frozenset(), POLL_INTERVAL_S)


def test_a_pod_that_is_deleted_under_a_precondition_is_not_patched_by_the_same_plan():
    # given a pod that never started, on a broken node that stops responding; its annotation would report the finding
    broken = {A1.node: Node(A1.node, False, findings=(XID_79,))}
    facts = observed(a_job(), (A0, replace(starting(A1), version="7"), S))
    facts = replace(facts, nodes={**facts.nodes, **broken})
    # then it is only deleted: a patch would change the resourceVersion of the precondition
    assert [type(intent) for intent in plan_of(facts).pods if _name(intent) == A1.name] == [DeletePod]


def _name(intent: PodIntent) -> str:
    return "" if isinstance(intent, CreatePod) else intent.name


@pytest.mark.parametrize(("spares", "waits_s"), [(1, 1.0), (1498, 1.5)])
def test_counts_are_written_later_if_the_job_has_many_pods(spares: int, waits_s: float):
    # given a recovery in which no worker runs yet, as status records
    waiting = [replace(S, uid=f"spare-{number}", name=f"spare-{number}") for number in range(spares)]
    starts = [member(A0, 0, WorkersState.STARTING), member(A1, 1, WorkersState.STARTING)]
    recovery = a_recovery(NOW - 1)
    snapshot = a_snapshot(starts, number=1, recoveries=[recovery])
    facts = observed(a_job(status=in_round(0), spares=spares), (A0, A1, *waiting), snapshot)
    status = plan_of(facts).status
    assert status is not None
    facts = replace(facts, job=replace(facts.job, status=status), status_written_at=NOW)
    # when the workers of one pod run, then this waits
    snapshot = a_snapshot([member(A0, 0), starts[1]], number=1, recoveries=[recovery])
    facts = replace(facts, coordination=replace(facts.coordination, snapshot=snapshot))
    assert plan_of(facts, NOW + waits_s - 0.1).status is None
    assert plan_of(facts, NOW + waits_s).status is not None


@pytest.mark.parametrize(("running_jobs", "waits_s"), [(1, 10.0), (400, 20.0)])
def test_a_job_that_makes_steps_is_reconciled_when_its_progress_is_due(running_jobs: int, waits_s: float):
    # given a job whose status has its progress
    facts = observed(snapshot=a_snapshot(progress=StepProgress(1, 1000, NOW)), running_jobs=running_jobs)
    status = plan_of(facts).status
    assert status is not None
    facts = replace(facts, job=replace(facts.job, status=status))
    assert plan_of(facts).requeue_after_s == waits_s
    # when it has made a step, then this is written at that time
    snapshot = a_snapshot(progress=StepProgress(2, 1000, NOW + 1))
    facts = replace(facts, coordination=replace(facts.coordination, snapshot=snapshot))
    assert plan_of(facts, NOW + waits_s - 0.1).status is None
    assert plan_of(facts, NOW + waits_s).status is not None


def test_a_job_with_a_refusal_is_reconciled_more_often():
    facts = observed(snapshot=a_snapshot(), refusals=(Refusal("no", RefusalKind.ADMISSION),))
    assert plan_of(facts).requeue_after_s == TRY_AGAIN_S < MAX_INTERVAL_S


FACTS = {
    "new": observed(a_job(), ()),
    "running": observed(snapshot=a_snapshot()),
    "a loss": observed(snapshot=a_snapshot([member(A0, 0), member(S, 1)], number=1, lost=[lost(A1)])),
    "several troubles": observed(
        a_job(status=in_round(2), spares=3),
        (A0, terminating(A1), starting(S), ended(a_pod("f"))),
        a_snapshot([member(A0, 0)], waiting_for="1 of 2 pods"),
        not_ready=[A1.node],
    ),
    "closed": observed(snapshot=a_snapshot(closed=SUCCEEDED)),
}


@pytest.mark.parametrize("case", FACTS)
def test_the_same_facts_give_the_same_plan_and_stay_as_they_are(case: str):
    facts = FACTS[case]
    before = copy.deepcopy(facts)
    assert plan_of(facts) == plan_of(facts)
    assert facts == before


# Many reconciles ----------------------------------------------------------------------------------------------------


class World:
    """A cluster without faults of its own: pods start on separate nodes, and present members get ranks.

    Members vote if `votes` is set, but elect no coordinator: only the operator appoints.
    """

    def __init__(self, actives: int, spares: int, nodes: int = 40, *, votes: bool = False) -> None:
        self.job = a_job(parallelism=actives, spares=spares)
        self.nodes = {f"n{i}": Node(f"n{i}", True) for i in range(nodes)}
        self.pods: dict[str, Pod] = {}
        self.rank_holders: dict[int, str] = {}
        self.lost: dict[str, Lost] = {}
        self.dead_since: dict[str, float] = {}  # by node
        self.round = -1
        self.now = NOW
        self.serial = 0
        self.votes, self.reported, self.received_at = votes, Coordination(), NOW
        self.closed: Close | None = None
        self.created = self.deleted = 0
        self.secret_writes = SecretWrites()

    def observe(self) -> Observed:
        self.call()
        facts = observed(self.job, (), nodes=self.nodes, coordination=self.reported, entropy=f"pass {self.serial}")
        pods = Pods(self.pods[uid] for uid in sorted(self.pods))
        return replace(facts, pods=pods, secret_writes=self.secret_writes)

    def call(self) -> None:
        """Ask all connected pods for the coordinator."""
        term = self.job.status.coordinator
        holder = self.pods.get(term.pod_uid)
        if holder is not None and holder.alive and self.nodes[holder.node].ready:
            self.received_at = self.now
            self.reported = Coordination(self.snapshot(holder, term.epoch), holder.uid, self.now)
        else:
            present = {uid: PodAnswer() for uid, pod in self.pods.items() if self.is_connected(pod)}
            self.reported = replace(
                self.reported, coordinator_uid="", since=self.received_at, answers=PodAnswers(present, self.received_at)
            )

    def snapshot(self, coordinator: Pod, epoch: int) -> Snapshot:
        with_ranks = {uid: rank for rank, uid in self.rank_holders.items()}
        joined = [pod for pod in self.pods.values() if self.is_connected(pod)]
        missing = self.job.world.actives - len(with_ranks)
        return a_snapshot(
            [member(pod, with_ranks.get(pod.uid)) for pod in joined],
            number=self.round,
            epoch=epoch,
            coordinator=coordinator,
            lost=list(self.lost.values()),
            waiting_for=f"{missing} pods" if missing else "",
            standby_coordinators=joined[:2] if self.votes and self.round >= 0 else (),
            voters=joined if self.votes and self.round >= 0 else (),
            closed=self.closed,
        )

    def is_connected(self, pod: Pod) -> bool:
        return pod.sidecar_started and not pod.ended and self.nodes[pod.node].ready and pod.uid not in self.lost

    def run_reconcile(self) -> Plan:
        self.serial += 1
        plan = plan_of(self.observe(), self.now)
        if plan.status is not None:
            self.job = replace(self.job, status=plan.status)
        for intent in plan.objects:
            self.write(intent)
        for step in plan.pods:
            self.apply(step)
        return plan

    def write(self, intent: Create | DeleteSecret) -> None:
        match intent:
            case DeleteSecret(name):
                self.secret_writes = self.secret_writes.after_deletion(name)
            case Create(manifest):
                assert manifest["kind"] == "Secret"
                self.secret_writes = self.secret_writes.after_creation(manifest["metadata"]["name"], self.now)

    def apply(self, intent: PodIntent) -> None:
        match intent:
            case ReleasePod():
                raise AssertionError(f"no pod here has a finalizer: {intent}")
            case CreatePod(manifest, _):
                self.created += 1
                metadata = {**manifest["metadata"], "uid": manifest["metadata"]["name"]}
                raw = {**manifest, "metadata": {**metadata, "creationTimestamp": "2026-11-20T10:00:00Z"}}
                pod = replace(read_pod(select_pod_fields(raw)), created_at=self.now + self.serial / 1000)
                assert pod.uid not in self.pods, "a name is never used twice"
                self.pods[pod.uid] = pod
            case DeletePod(uid=uid, grace_s=grace_s):
                pod = self.pods[uid]
                self.deleted += 1
                if grace_s == 0 or pod.ended or not pod.node:
                    del self.pods[uid]
                else:
                    self.pods[uid] = terminating(pod, self.now)
            case PatchPod(name, labels, annotations):
                pod = self.pods[name]
                self.pods[name] = replace(
                    pod, labels=_merged(pod.labels, labels), annotations=_merged(pod.annotations, annotations)
                )

    def live_on(self) -> None:
        """The kubelets and the coordinator at work for a while: pods end and start, members get ranks."""
        for uid, pod in list(self.pods.items()):
            if pod.node and self.now - self.dead_since.get(pod.node, self.now) >= EVICTION_S and pod.alive:
                self.pods[uid] = pod = terminating(pod, self.now)
            if pod.deleting_since is not None and self.nodes[pod.node].ready:
                del self.pods[uid]
            elif not pod.node:
                self.pods[uid] = starting(replace(pod, node=self.free_node()))
            elif not pod.sidecar_started and not pod.ended and self.nodes[pod.node].ready:
                self.pods[uid] = replace(pod, phase="Running", ip="10.1.0.1", sidecar_started=True, sidecar_ran=True)
        self.take_ranks()
        self.now += 5

    def free_node(self) -> str:
        taken = {pod.node for pod in self.pods.values()}
        return next(name for name, node in self.nodes.items() if node.ready and name not in taken)

    def take_ranks(self) -> None:
        received = {uid: pod for uid, pod in self.pods.items() if self.is_connected(pod) and pod.alive}
        self.rank_holders = {rank: uid for rank, uid in self.rank_holders.items() if uid in received}
        waiting = sorted(set(received) - set(self.rank_holders.values()), key=lambda uid: (received[uid].spare, uid))
        vacant = [rank for rank in range(self.job.world.actives) if rank not in self.rank_holders]
        term = self.job.status.coordinator.pod_uid in received
        if term and vacant and len(waiting) >= len(vacant):
            self.rank_holders |= dict(zip(vacant, waiting, strict=False))
            self.round += 1

    def settle(self) -> None:
        quiet = 0
        for _ in range(100):
            ranks = dict(self.rank_holders)
            plan = self.run_reconcile()
            self.live_on()
            changed = plan.pods or plan.status is not None or self.rank_holders != ranks
            quiet = 0 if changed or not self.is_whole() else quiet + 1
            if quiet == 2:
                return
        pytest.fail(f"not stable after 100 reconciles: {self.observe()}")

    def is_whole(self) -> bool:
        received = [pod for pod in self.pods.values() if pod.alive and self.is_connected(pod)]
        return (
            len(received) == self.wanted
            and len(self.rank_holders) == self.job.world.actives
            and bool(self.reported.coordinator_uid)
        )

    @property
    def wanted(self) -> int:
        return self.job.world.actives + self.job.world.spares

    # Faults

    def lose_process(self, pod: Pod) -> None:
        self.pods[pod.uid] = ended(pod)

    def lose_connection(self, pod: Pod) -> None:
        self.lost[pod.uid] = lost(pod, Fault.POD, self.now)

    def lose_node(self, pod: Pod) -> None:
        self.nodes[pod.node] = Node(pod.node, False)
        self.dead_since[pod.node] = self.now
        self.lost[pod.uid] = lost(pod, Fault.NODE, self.now)

    def lose_object(self, pod: Pod) -> None:
        del self.pods[pod.uid]

    def evict(self, pod: Pod) -> None:
        self.pods[pod.uid] = terminating(pod, self.now)

    def close(self, close: Close) -> None:
        """The coordinator closes the rendezvous; the remaining members cannot join another attempt."""
        self.closed = close
        self.run_reconcile()
        self.restart_attempt()

    def restart_attempt(self) -> None:
        self.closed, self.round, self.rank_holders = None, -1, {}
        self.lost |= {uid: lost(pod, Fault.POD, self.now) for uid, pod in self.pods.items()}

    def suspend(self, suspended: bool) -> None:
        self.job = replace(self.job, spec=replace(self.job.spec, suspend=suspended))

    def change_spares(self, spares: int) -> None:
        world = replace(self.job.world, spares=spares)
        self.job = replace(self.job, spec=replace(self.job.spec, world=world))


FAULTS = ("lose_process", "lose_connection", "lose_node", "lose_object", "evict")


def _merged(before: Mapping[str, str], patch: Mapping[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in {**before, **patch}.items() if value is not None}


def assert_stable(world: World) -> None:
    """All declared pods exist, each rank is taken, and a further reconcile changes nothing."""
    alive = [pod for pod in world.pods.values() if pod.alive]
    assert len(alive) == world.wanted
    assert sorted(world.rank_holders) == list(range(world.job.world.actives))
    plan = plan_of(world.observe(), world.now)
    assert (plan.objects, plan.status, plan.pods, plan.events) == ((), None, (), ())
    assert isinstance(plan.link, Follow)
    assert plan.requeue_after_s is not None
    assert plan.requeue_after_s <= MAX_INTERVAL_S


def test_a_job_becomes_stable_with_its_pods_and_no_more():
    world = World(actives=4, spares=2)
    world.settle()
    assert_stable(world)
    assert (world.created, world.deleted) == (6, 0)
    assert world.round == 0


@settings(max_examples=60, deadline=None, database=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(0, 3), st.booleans())
def test_the_job_becomes_stable_again_after_any_loss_without_churn(seed: int, actives: int, spares: int, votes: bool):
    chance = random.Random(seed)
    world = World(actives, spares, votes=votes)
    world.settle()
    for _ in range(3):
        world.created = world.deleted = 0
        victims = chance.sample(sorted(world.pods), k=chance.randint(1, min(2, world.wanted)))
        hit = [(victim, chance.choice(FAULTS)) for victim in victims if world.pods[victim].alive]
        for victim, fault in hit:
            getattr(world, fault)(world.pods[victim])
        world.settle()
        assert_stable(world)
        assert world.created == len(hit)
        assert world.deleted <= 2 * len(hit)  # on a dead node the second one is forced


@pytest.mark.parametrize("strategy", [RestartStrategy.RECREATE, RestartStrategy.BLOCKING_RECREATE])
def test_a_job_that_restarts_becomes_stable_with_only_new_pods(strategy: RestartStrategy):
    # given a job that runs, and that may restart once
    world = World(actives=3, spares=1)
    policy = FailurePolicy(max_restarts=1, strategy=strategy)
    world.job = replace(world.job, spec=replace(world.job.spec, failure=policy))
    world.settle()
    previous, epoch = set(world.pods), world.job.status.coordinator.epoch

    # when its budget of recoveries is exhausted
    world.close(FAILED)
    world.settle()

    # then it has pods of a new attempt, and a coordinator in a higher epoch
    assert_stable(world)
    assert not previous & set(world.pods)
    assert world.job.status.restarts == world.job.status.restarts_count_towards_max == 1
    assert world.job.status.coordinator.epoch > world.job.status.coordinator.former_epoch >= epoch
    assert (world.job.status.phase, world.job.status.round) == ("Running", 0)

    # and when that happens again, the job fails
    world.closed = FAILED
    world.run_reconcile()
    assert world.job.status.terminal_state == "Failed"


def test_a_job_that_is_suspended_has_no_pods_and_becomes_stable_again_when_it_is_resumed():
    world = World(actives=3, spares=1)
    world.settle()
    previous = set(world.pods)
    world.suspend(True)
    world.run_reconcile()
    world.restart_attempt()
    for _ in range(5):
        world.run_reconcile()
        world.live_on()
    assert world.pods == {}
    assert [name for name in world.secret_writes.created if "-facts-" not in name] == []
    assert world.job.status.phase == "Suspended"
    world.suspend(False)
    world.settle()
    assert_stable(world)
    assert not previous & set(world.pods)
    assert world.job.status.restarts == 0


@pytest.mark.parametrize("reported_by", ["the coordinator", "a pod"])
def test_a_job_that_is_resumed_before_status_records_the_suspension_restarts_with_new_pods(reported_by: str):
    # given a job whose coordinator has closed the rendezvous because of a suspension
    world = World(actives=3, spares=1)
    world.settle()
    previous, epoch = set(world.pods), world.job.status.coordinator.epoch
    suspended = Close(CloseReason.SUSPENDED, "the job is suspended")
    if reported_by == "the coordinator":
        world.closed = suspended
    else:
        world.pods = {uid: replace(ended(pod), close=suspended) for uid, pod in world.pods.items()}

    # when the user has resumed the job before the operator wrote the suspension to status
    plan = world.run_reconcile()

    # then this attempt ends, and the job trains in another one; no restart is counted
    assert [(event.reason, event.message) for event in plan.events] == [
        (
            "Resumed",
            "the job was resumed right after its suspension had stopped the workers: the operator recreates its pods",
        )
    ]
    assert world.job.status.phase == "Restarting"
    world.restart_attempt()
    world.settle()
    assert_stable(world)
    assert not previous & {uid for uid, pod in world.pods.items() if pod.alive}
    assert world.job.status.coordinator.former_epoch >= epoch
    assert world.job.status.restarts == 0


@settings(max_examples=30, deadline=None, database=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_the_number_of_spares_follows_the_spec(numbers: list[int]):
    world = World(actives=2, spares=1)
    world.settle()
    for number in numbers:
        kept = dict(world.rank_holders)
        world.created, world.deleted, before = 0, 0, world.job.world.spares
        world.change_spares(number)
        world.settle()
        assert_stable(world)
        assert (world.created, world.deleted) == (max(0, number - before), max(0, before - number))
        assert world.rank_holders == kept
