"""A pool that jobs share: which job gets a spare, how its template rolls, and that no kill of the operator loses a
claim.
"""

import json
import math
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace

import pytest

from tests.cluster import Cluster
from tests.e2e.compared import Comparison, compared, fault_of
from tests.e2e.installation import NAMESPACE as SYSTEM
from tests.e2e.lanes import NAMESPACE
from tests.e2e.objects import find, listed
from tests.e2e.plain import PlainJob, alive
from tests.e2e.pools import ANNOTATION_CLAIMED_POD_UID, LABEL_POOL_UID, SharedPool, preferring
from tests.e2e.training import CHECKOUT, Raw
from tests.e2e.undisturbed import check_losses
from tests.e2e.waiting import wait_until
from tests.e2e.warm import (
    ANNOTATION_ADOPTED_AT,
    ANNOTATION_WARM_POOL_UID,
    PooledTraining,
    WarmPool,
    power_off_away_from,
)

pytestmark = pytest.mark.timeout(300)

#: A job of two pods that loses one with its node has no majority left: its coordinator is appointed again after twice
#: the coordinatorLossTimeout, which is 30 s if unset.
FENCED = {"coordinatorLossTimeout": "10s"}
RECOVERED_S = 90
#: It depends on whether the pool's spare itself, or a pod of the job in its place, takes the ranks.
REPLACED = ("SpareSwap", "PodRecreate")
#: Kills for each kind of claim. `make e2e-kills` kills 50 times, which takes twenty minutes.
KILLS = int(os.environ.get("UNDERSTUDY_KILLS", "1"))
#: The least time of a refill, so that there is a time without a spare. If a job has lost its coordinator, the operator
#: may appoint another one, and so claim, only after twice the coordinatorLossTimeout (20 s).
REFILL_S = 25
MakeJob = Callable[..., PlainJob]
MakePool = Callable[..., SharedPool]


@pytest.fixture
def pool_name(request: pytest.FixtureRequest) -> str:
    """The test's own name, from which the names of its jobs are derived."""
    words = request.node.name.removeprefix("test_").translate(str.maketrans("_[]", "---"))
    return f"pool-{words[:12]}-{words[-12:]}".strip("-").lower()


@pytest.fixture
def made(cluster: Cluster) -> Iterator[list[PlainJob | SharedPool]]:
    """The objects to delete after the test."""
    made: list[PlainJob | SharedPool] = []
    yield made
    for node in cluster.nodes():
        cluster.restore(node)
    for one in made:
        one.discard()


@pytest.fixture
def make_job(cluster: Cluster, made: list[PlainJob | SharedPool], pool_name: str) -> MakeJob:
    """A job without spares of its own, that names the pool and runs."""

    def make(name: str, *nodes: str, actives: int = 2) -> PlainJob:
        job = PlainJob(cluster, NAMESPACE, f"{pool_name}-{name}", actives=actives, spares=0)
        made.append(job)
        manifest = job.manifest(spares={"replicas": 0, "pool": pool_name}, recovery={**FENCED, "spareTimeout": "120s"})
        cluster.kubectl("apply", "-f", "-", input=json.dumps(preferring(manifest, *nodes) if nodes else manifest))
        return job

    return make


@pytest.fixture
def make_pool(cluster: Cluster, made: list[PlainJob | SharedPool], pool_name: str) -> MakePool:
    def make(**changes: object) -> SharedPool:
        pool = SharedPool(cluster, NAMESPACE, pool_name, **changes)  # type: ignore[arg-type]
        made.append(pool)
        pool.apply()
        pool.wait_until_full()
        return pool

    return make


def runs_whole(status: Raw) -> bool:
    members = status["members"]
    return bool(status["phase"] == "Running" and members["ready"] == members["desired"])


def from_pool(job: PlainJob) -> list[Raw]:
    return [pod for pod in alive(job) if LABEL_POOL_UID in pod["metadata"]["labels"]]


def is_adopted(pod: Raw) -> bool:
    annotations: Raw = pod["metadata"]["annotations"]
    return {ANNOTATION_WARM_POOL_UID, ANNOTATION_ADOPTED_AT} <= annotations.keys()


def victim(job: PlainJob) -> Raw:
    """A pod that does not coordinate, so that the job recovers as fast as it can."""
    coordinator = job.status()["coordinator"]["podUID"]
    return next(pod for pod in alive(job) if pod["metadata"]["uid"] != coordinator)


def take_away(job: PlainJob, pod: Raw) -> None:
    """Its containers are killed, all at once."""
    for pid in job.cluster.container_pids(job.namespace, pod["metadata"]["name"]).values():
        os.kill(pid, signal.SIGKILL)


def pool_condition(job: PlainJob) -> Raw:
    return next((entry for entry in job.status()["conditions"] if entry["type"] == "PoolAvailable"), {})


def events(cluster: Cluster, name: str) -> list[str]:
    return [x["reason"] for x in listed(cluster, NAMESPACE, "events") if x["regarding"]["name"] == name]


@pytest.mark.nightly  # each make test: simulation_operator/test_pools.py (no spare is claimed twice)
def test_one_of_two_jobs_gets_the_spare_and_the_other_one_its_refill(
    cluster: Cluster, make_job: MakeJob, make_pool: MakePool
) -> None:
    # given two jobs of two pods, each with one pod on a node of its own, and a pool of one
    home, first, second, spare = cluster.nodes()
    pool = make_pool(nodes=(spare, home), ready_after_s=REFILL_S)
    jobs = [make_job("a", home, first), make_job("b", home, second)]
    for job, node in zip(jobs, (first, second), strict=True):
        job.wait_until_whole()
        job.wait_for_voters()  # before that no member knows the pods of the round
        assert sum(pod["spec"]["nodeName"] == node for pod in alive(job)) == 1, job.text()

    # when both nodes are powered off at once
    def one_has_it() -> PlainJob | None:
        return next((job for job in jobs if from_pool(job)), None)

    with ExitStack() as comparisons, ThreadPoolExecutor() as hands:
        for job, node in zip(jobs, (first, second), strict=True):
            (lost,) = [pod for pod in alive(job) if pod["spec"]["nodeName"] == node]
            comparisons.enter_context(compared(job, fault_of(lost, "Node", *REPLACED), RECOVERED_S))
        list(hands.map(cluster.power_off, (first, second)))

        # then one job gets the spare, and the other one waits, and reports that
        lucky = wait_until("one job's pod stands in the spare's place", one_has_it, RECOVERED_S, seen=pool.text)
        assert lucky is not None
        other = next(job for job in jobs if job is not lucky)
        wait_until(
            "the other says that it waits", lambda: "PoolEmpty" in events(cluster, other.name), 30, seen=pool.text
        )

        # and gets the refill; each job's status has reported the loss of its own pod, and the pause of the training
        wait_until("the other has the refill", lambda: from_pool(other), RECOVERED_S, seen=pool.text)
    for job in jobs:
        job.wait_for(
            "the job runs again", lambda s: s["phase"] == "Running" and s["members"]["ready"] == 2, RECOVERED_S
        )
        assert len(from_pool(job)) == 1, job.text()
    taken = [pod["metadata"]["annotations"][ANNOTATION_CLAIMED_POD_UID] for job in jobs for pod in from_pool(job)]
    assert len(set(taken)) == 2
    pool.wait_until_full()
    assert pool.status()["claimed"] == 2


def test_a_new_template_rolls_and_a_spare_is_always_available(make_pool: MakePool) -> None:
    # given a pool of one, and room for one more
    pool = make_pool()
    (before,) = pool.pods()

    # then its spare is replaced
    def rolled() -> bool:
        present = [pod for pod in pool.pods() if "deletionTimestamp" not in pod["metadata"]]
        new = len(present) == 1 and present[0]["metadata"]["uid"] != before["metadata"]["uid"]
        return new and pool.condition("Rolling")["status"] == "False"

    with pool.watched() as claimable:
        # when the template changes
        pool.apply(note="2")
        wait_until("the pool has rolled", rolled, 60, seen=pool.text)
        previous = before["metadata"]["uid"]
        wait_until("the former one goes", lambda: claimable.uids.isdisjoint({previous}), 10, seen=lambda: claimable)

    # and at every moment there is a spare that a job could claim
    assert claimable.fewest == 1


def test_a_pool_without_room_reports_it_and_rolls_when_a_claim_takes_the_spare(
    cluster: Cluster, make_job: MakeJob, make_pool: MakePool
) -> None:
    # given a pool of one on one node, where there is no room for another spare
    *others, spare = cluster.nodes()
    pool = make_pool(nodes=(spare,), alone=True)
    job = make_job("a", *others[:2])
    job.wait_until_whole()

    # when the template changes
    pool.apply(note="2")

    # then the pool reports that, and keeps its spare
    wait_until(
        "it reports that there is no room",
        lambda: pool.condition("Rolling")["reason"] == "Unschedulable",
        30,
        seen=pool.text,
    )
    assert pool.status()["available"] == 1

    # and when a job claims the spare, the new one takes its place
    lost = victim(job)
    with compared(job, fault_of(lost, "Pod", "PodRecreate"), RECOVERED_S):
        take_away(job, lost)
        wait_until("the job's pod stands in the spare's place", lambda: from_pool(job), RECOVERED_S, seen=pool.text)
    wait_until("the pool has rolled", lambda: pool.condition("Rolling")["status"] == "False", 60, seen=pool.text)
    pool.wait_until_full()


@pytest.mark.alone
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("warm", [False, True])
def test_no_kill_of_the_operator_loses_doubles_or_leaves_a_claim(
    cluster: Cluster, make_job: MakeJob, made: list[PlainJob | SharedPool], pool_name: str, warm: bool
) -> None:
    # given a job that uses the pool, and keeps a majority
    job = make_job("a", actives=3)
    pool = WarmPool(cluster, NAMESPACE, pool_name, training=job) if warm else SharedPool(cluster, NAMESPACE, pool_name)
    made.append(pool)
    pool.apply()
    pool.wait_until_full()
    job.wait_until_whole()
    rng = random.Random(7)
    taken: set[str] = set()

    for kill in range(KILLS):
        # when a pod is lost, and the operator is killed at some moment of the claim that follows
        rounds, lost = job.status()["round"], victim(job)
        comparison = Comparison(job)
        take_away(job, lost)
        time.sleep(rng.uniform(0.0, 4.0))
        kill_leader(cluster)

        # then the job is complete again, no pod of it is left over, and the pool is full
        job.wait_for(
            f"the job is whole after kill {kill}",
            lambda s, rounds=rounds: runs_whole(s) and s["round"] > rounds,
            RECOVERED_S,
        )
        # and status reports the loss truthfully, except while no operator leads
        comparison.check(replace(fault_of(lost, "Pod", *REPLACED), reported_within_s=math.inf), RECOVERED_S)
        pool.wait_until_full(RECOVERED_S)
        wait_until("the job has three pods", lambda: len(alive(job)) == 3, 30, seen=job.text)
        claimed = [pod["metadata"]["name"] for pod in pool.pods() if pod["metadata"].get("finalizers")]
        assert claimed == [], pool.text()
        # and each spare is one pod of the job: the spare itself if it was adopted, otherwise one in its place
        if warm:
            wait_until("adopted pods are marked", lambda: all(map(is_adopted, from_pool(job))), 30, seen=job.text)
        result = [pod["metadata"] for pod in from_pool(job)]
        spares = [pod["uid"] if warm else pod["annotations"][ANNOTATION_CLAIMED_POD_UID] for pod in result]
        assert len(set(spares)) == len(spares)
        taken |= set(spares)
    assert taken


@pytest.fixture
def training(cluster: Cluster, pool_name: str) -> Iterator[PooledTraining]:
    """Six ranks on three pods, with real torch, without spares of its own."""
    folder = CHECKOUT / "build" / f"e2e-storage-{pool_name}"
    training = PooledTraining(cluster, folder, NAMESPACE, name=f"{pool_name}-job", pool=pool_name)
    training.apply()
    yield training
    training.discard()
    check_losses(training)


def test_a_warm_spare_joins_unchanged(
    cluster: Cluster, training: PooledTraining, made: list[PlainJob | SharedPool]
) -> None:
    # given a job, and a pool whose spares have the job's pod spec
    pool = WarmPool(cluster, NAMESPACE, training.pool, training=training)
    made.append(pool)
    pool.apply()
    pool.wait_until_full(120)
    (spare,) = pool.spares()

    # when a node is powered off
    act = power_off_away_from(training, pool)

    # then the spare has the ranks, in the same pod, and none of its containers was restarted
    pods = {pod["metadata"]["uid"]: pod for pod in training.pods()}
    joined = pods[spare["metadata"]["uid"]]
    assert {ANNOTATION_WARM_POOL_UID, ANNOTATION_ADOPTED_AT} <= joined["metadata"]["annotations"].keys()
    assert joined["metadata"]["uid"] in {pod["metadata"]["uid"] for pod in training.pods_by_rank().values()}
    assert started(joined) == started(spare)
    assert act.strategy == "SpareSwap"
    assert any("claimed Warm" in text for text in messages(cluster, training.name))

    # and the pool has another one
    pool.wait_until_full(120)
    assert pool.status()["claimed"] == 1


@pytest.mark.nightly  # each make test: unit/operator/plan/pool/test_comparing.py, test_pools.py
def test_a_spare_with_a_different_spec_is_replaced_and_the_event_names_the_field(
    cluster: Cluster, training: PooledTraining, made: list[PlainJob | SharedPool]
) -> None:
    # given a pool whose spares have another grace period than the job's pods
    pool = WarmPool(cluster, NAMESPACE, training.pool, training=training, change=other_grace)
    made.append(pool)
    pool.apply()
    pool.wait_until_full(120)

    # when a node is powered off
    power_off_away_from(training, pool)

    # then a pod of the job's own has replaced the spare
    assert any(LABEL_POOL_UID in pod["metadata"]["labels"] for pod in training.pods())
    result = messages(cluster, training.name)
    assert any("because spec.terminationGracePeriodSeconds is not set, and 7 in the pool" in text for text in result), (
        result
    )


def other_grace(template: Raw) -> None:
    template["spec"]["terminationGracePeriodSeconds"] = 7


def started(pod: Raw) -> dict[str, str]:
    """The start time of each of its containers, which a restart would change."""
    status = pod["status"]
    result = (*status.get("initContainerStatuses", ()), *status["containerStatuses"])
    return {container["name"]: container["state"]["running"]["startedAt"] for container in result}


def messages(cluster: Cluster, name: str) -> list[str]:
    return [x.get("note", "") for x in listed(cluster, NAMESPACE, "events") if x["regarding"]["name"] == name]


def kill_leader(cluster: Cluster) -> None:
    """SIGKILL to the operator that leads: a standby takes over, and another pod starts without the pause of a crash
    loop.
    """
    lease = find(cluster, SYSTEM, "leases", "understudy-operator") or {"spec": {}}
    pod = (lease["spec"].get("holderIdentity") or "").rpartition("_")[0]
    pids = cluster.container_pids(SYSTEM, pod) if pod else {}
    for pid in pids.values():
        os.kill(pid, signal.SIGKILL)
    if pod:
        gone = ("--grace-period=0", "--force", "--wait=false", "--ignore-not-found")
        cluster.kubectl("-n", SYSTEM, "delete", "pod", pod, *gone)
