"""The real operator against a real API server, with only the rights that the chart grants, and under its policies.

No kubelet and no scheduler run: `Training` plays them. No garbage collector runs either, so a deleted job's objects
stay.
"""

import json
import secrets
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.operator.kube import Kube, Runs
from tests.integration.operator.process import OperatorProcess
from tests.integration.operator.replicas import Replicas
from tests.integration.operator.training import Training
from tests.ports import free_port

if TYPE_CHECKING:
    from tests.integration.conftest import ApiServer

ROOT = Path(__file__).resolve().parents[3]
SYSTEM = "understudy-system"


@pytest.fixture(scope="module")
def kubeconfig(api_server: "ApiServer", tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The operator's kubeconfig: a token of the chart's service account, with the rights of the chart's role and
    policies.
    """
    return install_rights(api_server, tmp_path_factory.mktemp("operator"))


def install_rights(api_server: "ApiServer", folder: Path, *settings: str) -> Path:
    """The kubeconfig of the operator of a chart with these values."""
    must(api_server.kubectl("apply", "-f", str(ROOT / "crds")))
    if api_server.kubectl("get", "namespace", SYSTEM).returncode != 0:
        must(api_server.kubectl("create", "namespace", SYSTEM))
    chart = ["template", "understudy", str(ROOT / "charts" / "understudy"), "--namespace", SYSTEM]
    shown = [word for name in ("rbac", "policies") for word in ("--show-only", f"templates/{name}.yaml")]
    rendered = subprocess.run(
        [api_server.binaries / "helm", *chart, *shown, *(word for x in settings for word in ("--set", x))],
        capture_output=True,
        text=True,
        check=True,
    )
    must(api_server.kubectl("apply", "-f", "-", stdin=rendered.stdout))
    token = must(api_server.kubectl("-n", SYSTEM, "create", "token", "understudy-operator", "--duration=1h")).strip()
    configuration = json.loads(api_server.kubeconfig.read_text())
    configuration["users"][0]["user"] = {"token": token}
    file = folder / "kubeconfig"
    file.write_text(json.dumps(configuration))
    wait_until_served(api_server)
    return file


def wait_until_served(api_server: "ApiServer") -> None:
    deadline = time.monotonic() + 30
    # A request that arrives while the API server prepares a new kind may wait for half a minute, and the next one may
    # not wait at all.
    while (
        done := api_server.kubectl("get", "trainingjobs,hotsparepools,recoveries", "--request-timeout=5s")
    ).returncode != 0:
        assert time.monotonic() < deadline, f"the API server does not serve our kinds: {done.stderr}"
        time.sleep(0.1)


def must(done: "subprocess.CompletedProcess[str]") -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def operator(kubeconfig: Path) -> Iterator[OperatorProcess]:
    log = kubeconfig.parent / "operator.log"
    process = OperatorProcess(kubeconfig, free_port(), log)
    process.start()
    yield process
    process.stop()
    # A missing right is the chart's error, and so is a rejection by our policy; other rejections are expected by a
    # test.
    wrong = ("is forbidden: User", "ValidatingAdmissionPolicy 'understudy-operator'", "Traceback")
    lines = log.read_text().splitlines()
    assert [line for line in lines if any(text in line for text in wrong)] == [], process.log()


@pytest.fixture
def replicas(kubeconfig: Path, tmp_path: Path) -> Iterator[Replicas]:
    """For a test whose fixture `operator` is these replicas."""
    processes = [
        OperatorProcess(kubeconfig, free_port(), tmp_path / f"{name}.log", name) for name in ("replica-0", "replica-1")
    ]
    for process in processes:
        process.start()
    yield Replicas(processes)
    for process in processes:
        process.kill()


@asynccontextmanager
async def kube_of(api_server: "ApiServer", operator: Runs) -> AsyncIterator[Kube]:
    """The test's own namespace."""
    kube = Kube(api_server, f"test-{secrets.token_hex(4)}", operator)
    await kube.call("POST", "/api/v1/namespaces", {"metadata": {"name": kube.namespace}})
    yield kube
    # Its jobs and pools must not continue while other tests run.
    for plural in ("trainingjobs", "hotsparepools"):
        for raw in await kube.list(plural):
            await kube.call("DELETE", f"{plural}/{raw['metadata']['name']}")
    await kube.close()


@pytest.fixture
async def kube(api_server: "ApiServer", operator: Runs) -> AsyncIterator[Kube]:
    async with kube_of(api_server, operator) as kube:
        yield kube


@pytest.fixture
async def training(kube: Kube) -> AsyncIterator[Training]:
    training = Training(kube)
    yield training
    await training.stop()
