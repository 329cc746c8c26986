"""The operator of a chart with watchNamespaces: it has Roles in two namespaces, and reads only nodes of the cluster.

The API server is this module's own, because other tests rely on a ClusterRole.
"""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.conftest import an_api_server
from tests.integration.operator.conftest import install_rights, must
from tests.integration.operator.kube import Kube, Raw
from tests.integration.operator.pool import Pool
from tests.integration.operator.process import OperatorProcess
from tests.integration.operator.replicas import health
from tests.integration.operator.test_node_faults import XID, conditions
from tests.integration.operator.training import JOB, NAME, Training, node_of
from tests.ports import free_port

if TYPE_CHECKING:
    from tests.integration.conftest import ApiServer

pytestmark = pytest.mark.timeout(180)

WATCHED, OTHER = ("red", "blue"), "green"
POLICIES = "/apis/networking.k8s.io/v1/namespaces/red/networkpolicies"
BINDING = "understudy-operator-jobs"


@pytest.fixture(scope="module")
def api_server() -> Iterator["ApiServer"]:
    with an_api_server() as server:
        for namespace in (*WATCHED, OTHER):
            must(server.kubectl("create", "namespace", namespace))
        yield server


@pytest.fixture(scope="module")
def kubeconfig(api_server: "ApiServer", tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = (f"watchNamespaces={{{','.join(WATCHED)}}}", "networkPolicies.jobs.enabled=true")
    return install_rights(api_server, tmp_path_factory.mktemp("operator"), *settings)


@pytest.fixture
def operator(kubeconfig: Path, tmp_path: Path) -> Iterator[OperatorProcess]:
    """The operator as the chart starts it."""
    env = {"UNDERSTUDY_NAMESPACES": ",".join(WATCHED), "UNDERSTUDY_NETWORK_POLICIES": "[]"}
    process = OperatorProcess(kubeconfig, free_port(), tmp_path / "log", **env)
    process.start()
    yield process
    process.stop()


@asynccontextmanager
async def training_in(api_server: "ApiServer", namespace: str, operator: OperatorProcess) -> AsyncIterator[Training]:
    kube = Kube(api_server, namespace, operator)
    training = Training(kube)
    yield training
    await training.stop()
    # No garbage collector runs here.
    for plural in ("trainingjobs", "hotsparepools", "pods", "secrets", "services"):
        for raw in await kube.list(plural):
            await kube.call("DELETE", f"{plural}/{raw['metadata']['name']}", {"gracePeriodSeconds": 0})
    await kube.close()


@pytest.fixture
async def red(api_server: "ApiServer", operator: OperatorProcess) -> AsyncIterator[Training]:
    async with training_in(api_server, "red", operator) as training:
        yield training


@pytest.fixture
async def blue(api_server: "ApiServer", operator: OperatorProcess) -> AsyncIterator[Training]:
    async with training_in(api_server, "blue", operator) as training:
        yield training


async def test_jobs_pools_nodes_and_policies_are_reconciled_without_rights_on_other_namespaces(
    red: Training, operator: OperatorProcess, tmp_path: Path
) -> None:
    # when a job and a pool are applied in a watched namespace
    pods = await red.start()
    await Pool(red.kube, red).apply()
    # then the pool has its spare, and the job its NetworkPolicy
    await Pool(red.kube, red).until_spares(1)

    async def policy() -> Raw | None:
        found = (await red.kube.call("GET", POLICIES))["items"]
        return found[0] if found else None

    found = await red.kube.until("the job has a NetworkPolicy", policy)
    assert found is not None
    assert found["metadata"]["name"] == f"{NAME}-members"
    # and a node's condition reaches the job: nodes are the only cluster-scoped objects that it reads
    await conditions(red.kube, node_of(pods[1]), XID)

    async def avoided() -> bool:
        return node_of(pods[1]) in {entry["node"] for entry in (await red.status()).get("avoidedNodes", ())}

    await red.kube.until("the node is avoided", avoided)
    # and the operator requested nothing that it may not have, and knows that there is no Kueue
    log = (tmp_path / "log").read_text()
    assert "is forbidden: User" not in log
    assert "the cluster has no Kueue" in log


@pytest.mark.attack("E1", "reads Secrets with the operator's token", before="the API server answered")
def test_a_stolen_token_of_the_operator_only_works_in_the_watched_namespaces(
    api_server: "ApiServer", kubeconfig: Path
) -> None:
    account = "system:serviceaccount:understudy-system:understudy-operator"
    # given the rights of an operator that watches two namespaces
    must(api_server.kubectl("auth", "can-i", "create", "secrets", "-n", "red", f"--as={account}"))
    must(api_server.kubectl("auth", "can-i", "list", "nodes", f"--as={account}"))
    # when an attacker reads Secrets with them, or uses them in another namespace, or in all
    attempts = [
        ("get", "secrets", "-n", "red"),
        ("get", "secret", "llm-membership", "-n", "red"),
        ("get", "secrets", "--watch", "-n", "red"),
        ("get", "secrets", "-n", OTHER),
        ("get", "secrets", "--all-namespaces"),
        ("get", "pods", "--all-namespaces"),
        ("get", "configmaps", "-n", "kube-system"),
        ("-n", OTHER, "delete", "jobs", "--all"),
        ("-n", OTHER, "run", "evil", "--image=evil", "--dry-run=server"),
    ]
    # then the API server rejects it
    for words in attempts:
        refused = api_server.kubectl(*words, f"--as={account}")
        assert refused.returncode != 0, words
        assert "Forbidden" in refused.stderr


@pytest.mark.parametrize("kind", ["TrainingJob", "HotSparePool"])
async def test_an_object_in_another_namespace_is_rejected_with_the_watched_namespaces(
    api_server: "ApiServer", kubeconfig: Path, kind: str
) -> None:
    manifest = {**JOB, "metadata": {"name": NAME, "namespace": OTHER}}
    if kind == "HotSparePool":
        template = JOB["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
        manifest |= {"kind": kind, "spec": {"replicas": 1, "template": template}}
    refused = api_server.kubectl("create", "-f", "-", stdin=json.dumps(manifest))
    assert "the operator of Understudy does not watch namespace green: use one of red, blue" in refused.stderr


async def test_a_namespace_whose_role_binding_is_deleted_stops_no_other_one(
    api_server: "ApiServer", red: Training, blue: Training, operator: OperatorProcess, tmp_path: Path
) -> None:
    # given an operator that watches two namespaces, in one of which it has lost its rights
    async def ready() -> bool:
        return (await health(operator, "/readyz"))[0] == 200

    await red.kube.until("the operator has listed both", ready)
    binding = must(api_server.kubectl("-n", "blue", "get", "rolebinding", BINDING, "-o", "json"))
    must(api_server.kubectl("-n", "blue", "delete", "rolebinding", BINDING))
    # when the operator is restarted, and a job is applied in each namespace
    operator.stop()
    operator.start()
    await blue.apply()
    await red.apply()
    # then the job of the other namespace gets its pods, and the log names the missing right
    await red.until_pods(3)
    assert "may not list pods in namespace blue, so its jobs and pools wait" in (tmp_path / "log").read_text()
    assert await blue.pods() == []
    # and once the rights are restored, so does the job that waited
    kept = {name: json.loads(binding)[name] for name in ("apiVersion", "kind", "roleRef", "subjects")}
    metadata = {"name": BINDING, "namespace": "blue"}
    must(api_server.kubectl("create", "-f", "-", stdin=json.dumps({**kept, "metadata": metadata})))
    await blue.until_pods(3)
