"""The chart with watchNamespaces: the audit log of the real API server shows that the operator requests nothing outside
of its Roles, and that it reads only nodes of the whole cluster. `make test` tests its Roles and its behavior on an API
server: tests/integration/operator/test_namespaces.py and tests/integration/test_chart_applied.py.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from tests.cluster import Cluster, CommandFailed
from tests.cluster.audit import Right, granted, idle, missing, uses
from tests.e2e.installation import DEPLOYMENT, OPERATOR_PODS, RELEASE, install, operator_node
from tests.e2e.installation import NAMESPACE as SYSTEM
from tests.e2e.lanes import NAMESPACE
from tests.e2e.objects import listed
from tests.e2e.plain import PlainJob
from tests.e2e.test_access_rights import NETWORKS, RARE, exercise, lines
from tests.e2e.waiting import wait_until

pytestmark = [pytest.mark.timeout(400), pytest.mark.alone, pytest.mark.nightly]

JOBS_ROLE = f"{RELEASE}-operator-jobs"
GONE_LIMIT_S = 60


@pytest.fixture(scope="module", autouse=True)
def restored(cluster: Cluster) -> Iterator[None]:
    """Restores the chart for the other tests."""
    yield
    install(cluster, print)
    operator_node(cluster)


@pytest.fixture(scope="module")
def since(cluster: Cluster) -> str:
    """The time at which the operators of a chart with watchNamespaces are restarted.

    The requests of a cluster-wide operator that still runs when helm replaces its ClusterRole are forbidden.
    """
    install(cluster, print, f"watchNamespaces={{{NAMESPACE}}}")
    before = {pod["metadata"]["uid"] for pod in listed(cluster, SYSTEM, "pods", OPERATOR_PODS)}
    started = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S")
    cluster.kubectl("-n", SYSTEM, "rollout", "restart", DEPLOYMENT)
    cluster.kubectl("-n", SYSTEM, "rollout", "status", DEPLOYMENT, "--timeout=90s")

    def operators() -> set[str]:
        return {pod["metadata"]["uid"] for pod in listed(cluster, SYSTEM, "pods", OPERATOR_PODS)}

    wait_until("the former operators are gone", lambda: not before & operators(), GONE_LIMIT_S, seen=operators)
    operator_node(cluster)
    return started


def rights(cluster: Cluster) -> set[Right]:
    name = f"{RELEASE}-operator"
    roles = [
        json.loads(cluster.kubectl("get", "clusterrole", name, "-o", "json")),
        json.loads(cluster.kubectl("-n", SYSTEM, "get", "role", name, "-o", "json")),
        json.loads(cluster.kubectl("-n", NAMESPACE, "get", "role", JOBS_ROLE, "-o", "json")),
    ]
    return granted(roles)


def in_namespace(right: Right) -> Right:
    """The same right in the watched namespace, if it is not about nodes or the operator's own objects."""
    return right if right.resource == "nodes" or right.namespace == SYSTEM else replace(right, namespace=NAMESPACE)


def test_the_operator_requests_only_granted_rights_and_reads_only_nodes_of_the_cluster(
    cluster: Cluster, since: str
) -> None:
    # given an operator that watches one namespace, in which a job and a pool are created and deleted
    exercise(cluster, "watched")
    used = [use for use in uses(lines()) if use.at >= since]
    present = rights(cluster)
    # then all its requests were granted
    assert used
    assert missing(present, used) == set()
    # and outside of that namespace and its own it requested only nodes
    outside = {use.right.resource for use in used if use.right.namespace not in (NAMESPACE, SYSTEM)}
    assert outside == {"nodes"}
    assert {right.resource for right in present if right.namespace == ""} == {"nodes"}
    # and each right was used, by it or by the operator of all namespaces, which has the same rights everywhere
    ever = [replace(use, right=in_namespace(use.right)) for use in uses(lines()) if use.right.group != NETWORKS]
    assert idle(present, ever) - {in_namespace(right) for right in RARE} == set()


def test_a_job_in_another_namespace_is_refused_with_the_fix(cluster: Cluster, since: str) -> None:
    assert since
    manifest = PlainJob(cluster, SYSTEM, "elsewhere").manifest()
    with pytest.raises(CommandFailed) as refused:
        cluster.kubectl("create", "--dry-run=server", "-f", "-", input=json.dumps(manifest))
    assert f"does not watch namespace {SYSTEM}: use one of {NAMESPACE}" in str(refused.value)


def test_helms_test_passes(cluster: Cluster, since: str) -> None:
    assert since
    assert "Succeeded" in cluster.helm("test", RELEASE, "--namespace", SYSTEM, "--timeout", "120s")
