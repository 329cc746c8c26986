"""The operator has the rights that it uses, and no others.

First of the tests that run alone: it checks the requests of the operator with which the lanes' tests ran. The tests of
the chart replace that operator.
"""

import json
from collections.abc import Iterator

import pytest

from tests.cluster import Cluster
from tests.cluster.audit import Right, Use, granted, idle, missing, of_pods, uses
from tests.cluster.paths import Paths
from tests.e2e.installation import NAMESPACE as SYSTEM
from tests.e2e.installation import OPERATOR_PODS, RELEASE
from tests.e2e.lanes import NAMESPACE
from tests.e2e.plain import PlainJob
from tests.e2e.pools import SharedPool
from tests.e2e.waiting import wait_until

pytestmark = [pytest.mark.timeout(200), pytest.mark.alone]

INJECTION = (
    *(Right("understudy.dev", "injectedjobs", verb) for verb in ("get", "create", "delete")),
    Right("understudy.dev", "injectedjobs/status", "update"),
    Right("understudy.dev", "injectedjobs/finalizers", "update"),
    Right("jobset.x-k8s.io", "jobsets", "get"),
    Right("kubeflow.org", "pytorchjobs", "get"),
)
OTHER_LEASES = [
    Right("coordination.k8s.io", "leases", verb, SYSTEM, f"{RELEASE}-operator-{index}-of-{count}")
    for count in range(2, 9)
    for index in range(count)
    for verb in ("get", "update")
]
#: Granted, and used only while test_chart.py enables networkPolicies.jobs.enabled.
NETWORKS = "networking.k8s.io"
#: Rights that a run may leave unused, with the reason why they are granted.
RARE = {
    Right("", "pods", "get"): "a creation that had no answer is found to have been done",
    Right("", "services", "get"): "one of that name is there already",
    Right("", "secrets", "delete"): "a job is suspended, or begins another attempt",
    Right("", "nodes", "get"): "a pod is on a node that no watch has reported yet",
    Right("batch", "jobs/status", "patch"): "a suspended Job keeps its startTime before Kubernetes 1.36",
    Right("understudy.dev", "trainingjobs", "get"): "a job has changed between its read and the write of its status",
    Right("understudy.dev", "trainingjobs/finalizers", "update"): "never sent: an admission plugin asks for it",
    Right("understudy.dev", "recoveries", "delete"): "a job has had more faults than recovery.historyLimit",
    Right("understudy.dev", "hotsparepools", "get"): "a pool has changed between its read and the write of its status",
    Right("understudy.dev", "hotsparepools/finalizers", "update"): "never sent: an admission plugin asks for it",
    **dict.fromkeys(INJECTION, "of injected pods: test_inject.py"),
    Right("coordination.k8s.io", "leases", "create", SYSTEM): "the Lease outlives the operator's pods",
    **dict.fromkeys(OTHER_LEASES, "the Leases of other numbers of shards, while operator.shards changes"),
    Right("", "configmaps", "create", SYSTEM): "so does what is remembered of nodes",
}


@pytest.fixture
def used(cluster: Cluster) -> list[Use]:
    """The requests of the installed operator, and not of an earlier one, which may end while this one starts.

    Its ReplicaSet need not be the newest: a Deployment that gets an earlier template again uses the ReplicaSet of that
    template. An operator that was uninstalled had a ReplicaSet of the same name, if its template was the same: the last
    requests of its pods, whose rights are gone, are denied.
    """
    exercise(cluster, "rights")
    pods = json.loads(cluster.kubectl("-n", SYSTEM, "get", "pods", "-l", OPERATOR_PODS, "-o", "json"))["items"]
    newest = max(pods, key=lambda raw: raw["metadata"]["creationTimestamp"])
    (owner,) = newest["metadata"]["ownerReferences"]
    replica_set = json.loads(cluster.kubectl("-n", SYSTEM, "get", "replicaset", owner["name"], "-o", "json"))
    of_this = of_pods(uses(lines()), f"{owner['name']}-", replica_set["metadata"]["creationTimestamp"])
    return [use for use in of_this if use.right.group != NETWORKS]


def exercise(cluster: Cluster, name: str) -> None:
    """Create and delete a pool and a job of that name, and a spare that is not needed any more."""
    pool = SharedPool(cluster, NAMESPACE, name)
    pool.apply()
    pool.wait_until_full()
    pool.delete()
    job = PlainJob(cluster, NAMESPACE, name, actives=1, spares=1)
    job.apply()
    job.wait_until_whole()
    change = json.dumps({"spec": {"spares": {"replicas": 2}}})
    cluster.kubectl("-n", NAMESPACE, "patch", "tj", name, "--type=merge", "-p", change)
    wait_until("there is another spare", lambda: len(job.pods()) == 3, 60)
    change = json.dumps({"spec": {"spares": {"replicas": 1}}})
    cluster.kubectl("-n", NAMESPACE, "patch", "tj", name, "--type=merge", "-p", change)
    wait_until("it is gone again", lambda: len(job.pods()) == 2, 60)
    job.delete()


def lines() -> Iterator[str]:
    log = Paths.from_environment().audit_log
    for file in (*sorted(log.parent.glob(f"{log.stem}-*{log.suffix}")), log):
        yield from file.read_text().splitlines()


def rights(cluster: Cluster) -> set[Right]:
    name = f"{RELEASE}-operator"
    roles = [
        json.loads(cluster.kubectl("get", "clusterrole", name, "-o", "json")),
        json.loads(cluster.kubectl("-n", SYSTEM, "get", "role", name, "-o", "json")),
    ]
    return granted(roles)


def test_the_operator_uses_exactly_the_rights_that_it_is_granted(cluster: Cluster, used: list[Use]) -> None:
    assert used
    present = rights(cluster)
    assert missing(present, used) == set()
    assert idle(present, used) - set(RARE) == set()
    assert set(RARE) <= present, "an exception for a right that is not granted any more"
