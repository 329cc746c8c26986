"""Pods with the labels of a job or a pool in its own namespace, but with another owner: the labels decide nothing."""

import pytest

from tests.unit.operator.fake_api import CREATED, Raw, owned_by
from understudy_operator.observe.read_pool import claimed_pods, pods_from_pool, pods_of, pods_of_pool, split
from understudy_operator.observe.store import Kind, Store
from understudy_operator.plan.facts.cluster_objects import Pod
from understudy_protocol import pod as names

ATTACKERS = "uid-of-the-attackers-own-object"


def a_pod(labels: dict[str, str], owners: list[Raw], name: str = "stranger") -> Raw:
    metadata: Raw = {"namespace": "research", "name": name, "uid": f"uid-{name}", "resourceVersion": "1"}
    metadata |= {"labels": labels, "creationTimestamp": CREATED, "ownerReferences": owners}
    sidecar = {"name": names.SIDECAR_CONTAINER, "started": True, "state": {"running": {}}}
    status = {"phase": "Running", "podIP": "10.9.9.9", "initContainerStatuses": [sidecar]}
    return {"kind": "Pod", "metadata": metadata, "spec": {"nodeName": "n"}, "status": status}


def labels(job_uid: str, **more: str) -> dict[str, str]:
    return {names.LABEL_JOB: "llm", names.LABEL_JOB_UID: job_uid, **more}


def of_job(store: Store, uid: str = "job-uid") -> tuple[tuple[Pod, ...], tuple[Pod, ...]]:
    """The job's own pods, and those that it has claimed."""
    return split(pods_of(store, ("research", uid)), uid)


@pytest.mark.attack(
    "B4",
    "a pod has the labels of a job and of a claim, and names an InjectedJob as its owner",
    before="the operator counted it as a pod of the job and called it",
)
def test_a_pod_that_the_job_does_not_own_is_not_one_of_its_pods() -> None:
    """The operator calls only pods of the job."""
    store, claimed = Store(), {names.LABEL_CLAIMED_BY_UID: "job-uid"}
    store.put(Kind.POD, a_pod(labels("job-uid", **claimed), owned_by(ATTACKERS, "InjectedJob")))
    assert of_job(store) == ((), ())
    store.put(Kind.POD, a_pod(labels("job-uid"), owned_by("job-uid"), "ours"))
    assert [[pod.name for pod in pods] for pods in of_job(store)] == [["ours"], []]


@pytest.mark.attack("B4", "a kubelet creates a mirror pod with the labels of a job", before="not counted, too")
def test_a_mirror_pod_with_the_labels_of_a_job_is_not_one_of_its_pods() -> None:
    # given a mirror pod that has ended, with the node as its controller, as Kubernetes requires
    store, mirror = Store(), a_pod(labels("job-uid"), owned_by("uid-of-the-node", "Node"))
    mirror["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "x"}
    mirror["status"]["phase"] = "Failed"
    store.put(Kind.POD, mirror)
    assert of_job(store) == ((), ())


@pytest.mark.attack(
    "B4",
    "a pod of another owner has the label of a claim of a job",
    before="the job took it for its spare: it deleted the pod and created its own on the node of the pod",
)
def test_a_claim_counts_only_on_pods_of_a_pool() -> None:
    store, claimed = Store(), {names.LABEL_CLAIMED_BY_UID: "job-uid"}
    store.put(Kind.POD, a_pod(labels(ATTACKERS, **claimed), owned_by(ATTACKERS, "ReplicaSet")))
    assert of_job(store) == ((), ())
    store.put(Kind.POD, a_pod(labels("pool-uid", **claimed), owned_by("pool-uid", "HotSparePool"), "spare"))
    assert [[pod.name for pod in pods] for pods in of_job(store)] == [[], ["spare"]]


@pytest.mark.attack(
    "B4",
    "a pod has the label of a pool, and no owner or another one",
    before="the operator changed its labels and finalizers to release it",
)
@pytest.mark.parametrize("owners", [[], owned_by(ATTACKERS, "ReplicaSet"), owned_by("pool-uid", "ReplicaSet")])
def test_a_pod_with_the_label_of_a_pool_is_not_released_by_it(owners: list[Raw]) -> None:
    store, values = Store(), {names.LABEL_POOL: "shared", names.LABEL_CLAIMED_BY_UID: "job-uid"}
    uid = owners[0]["uid"] if owners else "pool-uid"
    store.put(Kind.POD, a_pod({names.LABEL_JOB_UID: uid, **values}, owners))
    assert claimed_pods(store, ("research", "shared")) == ()


def test_a_pod_that_replaces_a_pools_spare_counts_only_if_a_job_owns_it() -> None:
    store, pool, came = Store(), ("research", "pool-uid"), {names.LABEL_POOL_UID: "pool-uid"}
    store.put(Kind.POD, a_pod(labels(ATTACKERS, **came), owned_by(ATTACKERS, "ReplicaSet")))
    store.put(Kind.POD, a_pod(labels("job-uid", **came), owned_by("job-uid"), "ours"))
    assert [pod.name for pod in pods_from_pool(store, pool)] == ["ours"]
    assert pods_of_pool(store, pool) == ()
