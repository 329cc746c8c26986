"""Events in the life of a job with the label other than faults: its normal end with preStop hooks, a suspension, a
second job of the same name, and a pod that starts just as the training has ended.

Its workers step without torch, so that each of these takes seconds.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from tests.cluster import Cluster
from tests.e2e.compared import compared, fault_of
from tests.e2e.injected import label_namespace
from tests.e2e.injected_plain import WITNESS, InjectedPlain
from tests.e2e.lanes import NAMESPACE as LANE_NAMESPACE
from tests.e2e.success import ended_badly
from tests.e2e.training import CHECKOUT, LABEL_ROLE, Raw
from tests.e2e.waiting import wait_until

pytestmark = pytest.mark.timeout(400)

NAMESPACE = f"{LANE_NAMESPACE}-lives"
PODS = 3  # two that train, and a spare
Make = Callable[..., InjectedPlain]


@pytest.fixture
def make(cluster: Cluster) -> Iterator[Make]:
    """Creates a job of that name, and deletes it after the test."""
    label_namespace(cluster, NAMESPACE)
    made: list[InjectedPlain] = []

    def begin(name: str, **changes: Any) -> InjectedPlain:
        job = InjectedPlain(cluster, CHECKOUT / "build" / f"e2e-lives-{name}", NAMESPACE, name, **changes)
        made.append(job)
        job.begin()
        return job

    yield begin
    for job in made:
        job.discard()


def hook(name: str) -> Raw:
    """A preStop hook that writes a file."""
    return {"preStop": {"exec": {"command": ["sh", "-c", f": > {WITNESS}/{name}-$POD"]}}}


def a_sidecar() -> Raw:
    """The user's own sidecar, with a hook. It ends at SIGTERM."""
    command = ["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 0.1; done"]
    return {"name": "helper", "restartPolicy": "Always", "command": command, "lifecycle": hook("helper")}


def names_of(pods: list[Raw]) -> set[str]:
    return {pod["metadata"]["name"] for pod in pods}


def secrets_of(pods: list[Raw]) -> set[str]:
    """The Secrets from which pods have their key."""
    volumes = (volume for pod in pods for volume in pod["spec"]["volumes"] if volume["name"] == "understudy-pod")
    return {volume["projected"]["sources"][0]["secret"]["name"] for volume in volumes}


def test_hooks_run_as_without_the_label_when_a_pod_is_deleted_and_when_the_job_completes(make: Make) -> None:
    # given a job whose trainer has a preStop hook, and which has a sidecar of its own with another one
    job = make("hooks", hooks=hook("trainer"), pod_spec={"initContainers": [a_sidecar()]})
    job.wait_until_whole()

    # when one of its active pods is deleted
    victim = next(pod for pod in job.pods() if pod["metadata"]["labels"].get(LABEL_ROLE) == "active")
    token = job.token()
    # then both hooks of that pod run, and the training continues with the spare
    with compared(job, fault_of(victim, "Pod", "SpareSwap")):
        job.cluster.kubectl("-n", NAMESPACE, "delete", "pod", victim["metadata"]["name"], "--wait=false")
        job.wait_for_steps_after(token)
    lost = {victim["metadata"]["name"]}
    wait_until("both of its hooks have run", lambda: job.traces("trainer") == job.traces("helper") == lost, 30)
    # and with another spare, once its controller has created one
    wait_until("there is another pod", lambda: len(names_of(job.pods()) - lost) == PODS, 60, seen=job.text)
    job.wait_until_whole()

    # when the training ends by itself
    pods = names_of(job.pods()) - lost
    job.finish()
    codes = job.wait_for_end()
    # then every container has ended with 0, the sidecars once their hooks had run. No hook of a trainer has run,
    # because Kubernetes runs none of a container that ends by itself
    assert not ended_badly(codes)
    assert len(codes) == PODS * len(("understudy-sidecar", "helper", "gate", "trainer"))
    assert job.traces("helper") == pods | lost
    assert job.traces("trainer") == lost


def recoveries_beside_suspension(status: Raw, kind: str) -> list[Raw]:
    """The JobSet controller may delete pods of its first Job before the operator has seen that the JobSet is
    suspended: the pods that are left take that for a loss.
    """
    recoveries: list[Raw] = status.get("recoveries", [])
    return [x for x in recoveries if kind != "JobSet" or "its pod was asked to end" not in x["reason"]]


@pytest.mark.parametrize("kind", ["Job", "JobSet"])
def test_a_job_that_is_suspended_has_no_pods_and_continues_when_it_is_resumed(
    make: Make, request: pytest.FixtureRequest, kind: str
) -> None:
    if kind == "JobSet":
        request.getfixturevalue("jobsets")
    # given a job that trains
    job = make(f"suspended-{kind.lower()}", kind=kind)
    job.wait_until_whole()
    itself = job.injected()["metadata"]["uid"]

    # when it is suspended
    job.suspend(suspended=True)
    # then its pods are deleted, and they receive the suspension, which is no fault
    wait_until("its pods are gone", lambda: not job.pods(), 60, seen=job.text)
    token = job.token()
    status = job.wait_for("it is reported as suspended", lambda status: status.get("phase") == "Suspended")
    assert [x["status"] for x in status["conditions"] if x["type"] == "Suspended"] == ["True"]
    assert recoveries_beside_suspension(status, kind) == []
    assert status["members"]["active"] == 0

    # when it is resumed
    job.suspend(suspended=False)
    # then it trains as before, as the same InjectedJob, in rounds that fence the earlier ones, without a recovery
    job.wait_for_steps_after(token)
    status = job.wait_until_whole()
    assert job.injected()["metadata"]["uid"] == itself
    assert status["coordinator"]["epoch"] > token[0]
    assert recoveries_beside_suspension(status, kind) == []

    # and it completes
    job.finish()
    codes = job.wait_for_end()
    assert not ended_badly(codes)


def test_a_job_that_is_deleted_and_applied_again_at_once_is_another_one(make: Make) -> None:
    # given a job that trains
    job = make("again")
    job.wait_until_whole()
    token, previous = job.token(), job.pods()
    uid, uids = job.target()["metadata"]["uid"], job.uids()

    # when it is deleted, and the same manifest applied before any of its objects is gone
    job.cluster.kubectl("-n", NAMESPACE, "delete", "job", job.name, "--wait=false")
    job.apply()
    other = job.target()["metadata"]["uid"]
    assert other != uid

    # then the second one trains, too, with a key and an InjectedJob of its own
    job.wait_for_steps_after(token)
    wait_until("the first one's pods are gone", lambda: not job.uids() & uids, 60, seen=job.text)
    job.wait_until_whole()
    assert job.injected()["spec"]["target"]["uid"] == other
    assert not secrets_of(job.pods()) & secrets_of(previous)
    assert all(other in name for name in secrets_of(job.pods()))
    assert job.status().get("recoveries", []) == []

    # and completes
    job.finish()
    codes = job.wait_for_end()
    assert not ended_badly(codes)


def test_a_pod_that_starts_just_as_the_training_has_ended_ends_with_0(make: Make) -> None:
    # given a job whose spare was lost, and a pod in its place, of which only the sidecar runs yet
    job = make("late")
    job.wait_until_whole()
    known = job.uids()
    spare = next(pod for pod in job.pods() if pod["metadata"]["labels"].get(LABEL_ROLE) != "active")
    with job.budget_used():
        forced = ("--grace-period=0", "--force", "--wait=false")
        job.cluster.kubectl("-n", NAMESPACE, "delete", "pod", spare["metadata"]["name"], *forced)
        late = wait_until("its pod has a sidecar that runs", partial(newcomer, job, known), 90, seen=job.text)

        # when all ranks end
        job.finish()
        job.wait_for("the training has succeeded", lambda status: status.get("phase") == "Succeeded")
        ended = [pod for pod in job.pods() if pod["metadata"]["uid"] in known - {spare["metadata"]["uid"]}]
        wait_until("the pods that trained have ended", lambda: all_succeeded(job, names_of(ended)), 60, seen=job.text)

    # then the pod that starts only now ends with 0 as well, and the Job completes
    codes = job.wait_for_end()
    assert not ended_badly(codes)
    assert f"{late}/trainer" in codes


def newcomer(job: InjectedPlain, known: set[str]) -> str:
    """The name of a pod that was created since, once its sidecar runs; "" before."""
    for pod in job.pods():
        statuses = pod["status"].get("initContainerStatuses", ())
        started = any(x["name"] == "understudy-sidecar" and x.get("started") for x in statuses)
        if pod["metadata"]["uid"] not in known and started:
            return str(pod["metadata"]["name"])
    return ""


def all_succeeded(job: InjectedPlain, names: set[str]) -> bool:
    return all(pod["status"]["phase"] == "Succeeded" for pod in job.pods() if pod["metadata"]["name"] in names)
