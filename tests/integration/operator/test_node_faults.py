"""Findings about nodes in status and in pods; and the memory of nodes under two operators."""

import copy
import time

import pytest

from tests.integration.operator.kube import Kube, Raw
from tests.integration.operator.process import NODE_FAULTS
from tests.integration.operator.replicas import Replicas, leader
from tests.integration.operator.training import JOB, NAME, Training
from understudy_operator.plan.times.rfc3339 import micro_time
from understudy_protocol import wire
from understudy_protocol.enums import Fault, FaultClass, Strategy, Verdict
from understudy_protocol.membership import NodeVerdict
from understudy_protocol.observer import Cause, Recovery

pytestmark = pytest.mark.timeout(120)

CONFIG_MAP = "/api/v1/namespaces/{}/configmaps/{}".format(*NODE_FAULTS.split("/"))
XID = {
    "type": "SysLogsXIDError",
    "status": "True",
    "reason": "SysLogsXIDErrorIsNotHealthy",
    "message": "ErrorCode:79 PCI:0002:00:00 GPU has fallen off the bus Recommended Action=RESTART_BM;",
}


@pytest.fixture
def operator(replicas: Replicas) -> Replicas:
    return replicas


async def conditions(kube: Kube, node: str, *more: Raw) -> None:
    ready = {"type": "Ready", "status": "True", "reason": "Test", "message": ""}
    await kube.call("PATCH", f"/api/v1/nodes/{node}/status", {"status": {"conditions": [ready, *more]}})


async def test_a_condition_reaches_status_an_event_the_coordinator_and_the_pods_annotation_and_is_withdrawn(
    training: Training, kube: Kube
):
    a0, a1, spare = await training.start()
    await training.report(0, [(a0, 0), (a1, 1), (spare, None)])
    node = f"node-{a1['metadata']['name']}"

    async def avoided() -> Raw | None:
        result = (await training.status()).get("avoidedNodes", [])
        return next((entry for entry in result if entry["node"] == node), None)

    async def verdict() -> NodeVerdict | None:
        pod = await kube.call("GET", f"pods/{a1['metadata']['name']}")
        text = pod["metadata"].get("annotations", {}).get("understudy.dev/node-verdict", "")
        result = wire.decode(text, {"NodeVerdict": NodeVerdict}) if text else None
        return result if isinstance(result, NodeVerdict) else None

    # when a source sets a condition
    await conditions(kube, node, XID)

    # then status and an event report it with its source, and the pod has the annotation
    entry = await kube.until("the node is avoided", avoided)
    assert entry is not None
    assert (entry["source"], entry["class"], entry["pods"]) == ("nvsentinel-xid", "Hardware", [a1["metadata"]["name"]])

    async def event() -> list[str]:
        return await training.events("NodeAvoided")

    (lines,) = await kube.until("the event", event)
    assert "nvsentinel-xid: SysLogsXIDError" in lines

    async def faulty() -> bool:
        result = await verdict()
        return result is not None and (result.verdict, result.fault_class) == (Verdict.FAULTY, FaultClass.HARDWARE)

    await kube.until("the annotation has the verdict", faulty)

    # and when the condition clears, it is withdrawn everywhere
    await conditions(kube, node, {**XID, "status": "False", "reason": "SysLogsXIDErrorIsHealthy", "message": ""})

    async def withdrawn() -> bool:
        result = await verdict()
        return (await avoided()) is None and result is not None and result.verdict is Verdict.UNKNOWN

    await kube.until("it is withdrawn", withdrawn)


async def suspended_job(kube: Kube, name: str, node: str) -> None:
    """Its status has a fault of that node."""
    job = copy.deepcopy(JOB) | {"metadata": {"name": name}}
    job["spec"]["suspend"] = True
    await kube.call("POST", "trainingjobs", job)
    cause = {"pod": f"{name}-0", "node": node, "message": "its connection went silent"}
    fault = {"fault": "Node", "round": 1, "cause": cause, "detectedAt": micro_time(time.time())}
    fault |= {"strategy": "SpareSwap", "resumedAt": micro_time(time.time()), "pauseSeconds": 1.0}
    status = {"recoveries": [fault], "lastRecovery": fault}
    await kube.call("PATCH", f"trainingjobs/{name}/status", {"status": status})


async def test_a_nodes_faults_are_remembered_once_by_any_leading_operator(
    training: Training, kube: Kube, replicas: Replicas
):
    # given three jobs with faults on a node since its creation, one of them with three faults
    a0, a1, spare = await training.start()
    await training.report(0, [(a0, 0), (a1, 1), (spare, None)])
    node, now = f"node-{a1['metadata']['name']}", time.time()
    cause = Cause(2, a1["metadata"]["name"], node, None, None, "its connection went silent")
    faults = [Recovery(1, Fault.NODE, Strategy.SPARE_SWAP, cause, now + at, now + at + 1) for at in (0.0, 0.1, 0.2)]
    await training.report(1, [(a0, 0), (a1, 1), (spare, None)], recoveries=tuple(faults))
    for name in ("other-1", "other-2"):
        await suspended_job(kube, name, node)

    async def memory() -> str:
        folder, _, name = CONFIG_MAP.rpartition("/")
        found = [raw.get("data", {}) for raw in await kube.list(folder) if raw["metadata"]["name"] == name]
        return str(found[0].get(node, "")) if found else ""

    async def whole_memory() -> str:
        text = await memory()
        return text if text.count(f"/{NAME}") == 3 and "/other-1" in text and "/other-2" in text else ""

    async def offender() -> Raw | None:
        result = (await training.status()).get("avoidedNodes", [])
        found = (entry for entry in result if entry["node"] == node and entry["source"] == "memory")
        return next((entry for entry in found if "failed 5 times recently" in entry["reason"]), None)

    # then the leader has written them, and the node is avoided
    written = await kube.until("the ConfigMap has the faults of all of them", whole_memory)
    entry = await kube.until("the node is avoided", offender)
    assert entry is not None
    assert entry["usableAsLastResort"] is True

    # when another operator leads, it knows them, and counts each once
    first = await leader(kube)
    replicas.named(first).kill()
    await leader(kube, other_than=first)
    await kube.call("PATCH", f"/api/v1/nodes/{node}", {"metadata": {"labels": {"touched": "yes"}}})
    await kube.until("the node is avoided still", offender)
    assert await memory() == written

    # and when an administrator forgives the node, it is used again
    forgiven = {"metadata": {"annotations": {"understudy.dev/ignore-faults-before": str(int(time.time()) + 1)}}}
    await kube.call("PATCH", f"/api/v1/nodes/{node}", forgiven)

    async def used_again() -> bool:
        return await offender() is None

    await kube.until("the node is used again", used_again)
