"""docs/how-to/inject.md, followed literally: kubectl runs its commands against a real API server with the chart's
webhooks and the real operator. Pods are created as by the Job controller.
"""

import asyncio
import copy
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.integration.operator.kube import Kube
from tests.integration.operator.test_inject import webhook  # noqa: F401 (a fixture)
from tests.unit.docs.inject_page import Shell, blocks, lines, refused, replaced

if TYPE_CHECKING:
    from tests.integration.conftest import ApiServer

pytestmark = pytest.mark.usefixtures("webhook")

Raw = dict[str, Any]
NAMESPACE = "research"  # as on the page
JOBS = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
INJECTED = f"/apis/understudy.dev/v1alpha1/namespaces/{NAMESPACE}/injectedjobs"


@pytest.fixture
async def shell(api_server: "ApiServer", kube: Kube, tmp_path: Path) -> AsyncIterator[Shell]:
    """A shell; the namespace exists in its cluster, without its label."""
    shell = Shell(api_server.binaries / "kubectl", api_server.kubeconfig, tmp_path)
    await must(shell, f"kubectl get namespace {NAMESPACE} || kubectl create namespace {NAMESPACE}")
    yield shell
    for path in (JOBS, PODS, INJECTED):
        for raw in await kube.list(path):
            at_once = {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}
            await kube.call("DELETE", f"{path}/{raw['metadata']['name']}", at_once)
    await must(shell, f"kubectl label namespace {NAMESPACE} understudy.dev/inject-")


async def must(shell: Shell, line: str) -> str:
    return await asyncio.to_thread(shell.must, line)


async def test_the_pages_three_steps_lead_to_an_injected_job(kube: Kube, shell: Shell) -> None:
    labels, reads = map(lines, blocks("sh"))
    # given the namespace, labelled by the page's first step
    for line in labels:
        await must(shell, line)
    # when the page's Job is applied, by the first line of its third step
    apply, listing, describing = reads
    await must(shell, apply)
    for index in range(5):
        await kube.call("POST", PODS, await a_pod(kube, index))

    # then the next line lists the page's InjectedJob
    async def listed() -> str:
        result = await must(shell, listing)
        return result if "job.train" in result else ""

    result = await kube.until("the InjectedJob is listed", listed)
    assert {"NAME", "KIND/NAME", "PHASE", "READY", "SPARES", "RECOVERIES"} <= set(result.split())

    # and the last line describes it, with the sizes in the page's comment
    async def described() -> Raw | None:
        text = await must(shell, describing)
        found: Raw = yaml.safe_load(await must(shell, f"kubectl -n {NAMESPACE} get ij job.train -o yaml"))
        return found if "Conditions:" in text and "SparesReady" in text else None

    raw = await kube.until("its conditions are reported", described)
    assert raw is not None
    spec = raw["spec"]
    assert (spec["pods"], spec["members"], spec["nprocPerNode"]) == (5, 4, 8)
    assert raw["status"]["spares"]["desired"] == 1


async def a_pod(kube: Kube, index: int) -> Raw:
    """A pod of the existing Job, as its controller creates it."""
    job = await kube.call("GET", f"{JOBS}/train")
    pod = copy.deepcopy(job["spec"]["template"])
    uid = job["metadata"]["uid"]
    values = {"batch.kubernetes.io/job-completion-index": str(index)}
    labels = {"batch.kubernetes.io/job-name": "train", "batch.kubernetes.io/controller-uid": uid, **values}
    made, owner = pod["metadata"], {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": uid}
    return {
        "metadata": {
            "name": f"train-{index}-x",
            "labels": {**made["labels"], **labels},
            "annotations": {**made["annotations"], **values},
            "ownerReferences": [owner | {"controller": True}],
        },
        "spec": pod["spec"],
    }


async def test_requests_that_the_page_lists_are_rejected_with_its_messages(kube: Kube, shell: Shell) -> None:
    # given the labelled namespace
    await must(shell, blocks("sh")[0])
    job = yaml.safe_load(blocks("yaml")[0])
    for change, answer in refused():
        # when the page's Job is applied with a row of its table
        done = await asyncio.to_thread(shell.run, "kubectl apply -f -", json.dumps(replaced(job, change)))
        # then kubectl prints the row's message, and there is no such Job
        assert done.returncode != 0, change
        assert f"understudy cannot inject the pods of this Job: {answer}" in done.stderr
    assert await kube.list(JOBS) == []


async def test_pods_of_a_namespace_without_the_label_are_not_changed(kube: Kube, shell: Shell) -> None:
    await must(shell, "kubectl apply -f train.yaml")
    made = await kube.call("POST", PODS, await a_pod(kube, 0))
    assert "initContainers" not in made["spec"]
