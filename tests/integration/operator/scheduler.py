"""The real kube-scheduler with the tests' API server, and nodes with room for a number of devices.

Rules: it schedules only pods that request it by its name, so the pods of other tests do not change. Each test's pods
are scheduled only to its own nodes. No kubelet and no node controller runs: the test plays them.
"""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.conftest import running
from tests.integration.operator.kube import Kube, Raw, Runs
from tests.integration.operator.training import Training
from tests.ports import free_port

if TYPE_CHECKING:
    from tests.integration.conftest import ApiServer

NAME = "of-priorities"
DEVICES = "nvidia.com/gpu"
OWNER = "understudy.dev/test"
#: Higher ones preempt lower ones.
PRIORITIES = {"filler": -10, "spare": 500, "training": 1000, "urgent": 2000}
OUT = {"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule"}


class Scheduler:
    """The process. `operator` runs next to it: a wait ends as soon as one of them has ended."""

    def __init__(self, command: list[str], log: Path, operator: Runs) -> None:
        self._command, self._log, self._operator = command, log, operator
        self._process: subprocess.Popen[bytes] | None = None

    @contextmanager
    def started(self) -> Iterator["Scheduler"]:
        with running(self._command, self._log) as self._process:
            yield self

    @property
    def runs(self) -> bool:
        return self._operator.runs and self._process is not None and self._process.poll() is None

    def log(self) -> str:
        return f"{self._operator.log()}\nkube-scheduler's log ends with:\n{self._log.read_text()[-3000:]}"


def scheduler_of(server: "ApiServer", folder: Path, operator: Runs) -> Scheduler:
    program = server.binaries / "kube-scheduler"
    if not program.exists():
        pytest.fail(f"no kube-scheduler in {server.binaries}: run python -m tests.cluster binaries")
    configuration = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(server.kubeconfig)},
        "leaderElection": {"leaderElect": False},
        "profiles": [{"schedulerName": NAME}],
    }
    file = folder / "scheduler.json"
    file.write_text(json.dumps(configuration))
    as_us = [f"--{name}-kubeconfig={server.kubeconfig}" for name in ("authentication", "authorization")]
    where = ["--bind-address=127.0.0.1", f"--secure-port={free_port()}", f"--cert-dir={folder / 'certificates'}"]
    return Scheduler([str(program), f"--config={file}", *as_us, *where], folder / "scheduler.log", operator)


class Nodes:
    """A test's own nodes, with one device each; and the pods for them."""

    def __init__(self, kube: Kube) -> None:
        self.kube = kube

    async def begin(self) -> None:
        for name, value in PRIORITIES.items():
            body = {"metadata": {"name": self.priority(name)}, "value": value}
            await self.kube.call("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", body)

    async def end(self) -> None:
        for raw in await self.kube.list("/api/v1/nodes"):
            if raw["metadata"].get("labels", {}).get(OWNER) == self.kube.namespace:
                await self.kube.call("DELETE", f"/api/v1/nodes/{raw['metadata']['name']}")
        for name in PRIORITIES:
            await self.kube.call("DELETE", f"/apis/scheduling.k8s.io/v1/priorityclasses/{self.priority(name)}")

    def priority(self, name: str) -> str:
        return f"{self.kube.namespace}-{name}"

    def name(self, node: str) -> str:
        return f"{self.kube.namespace}-{node}"

    async def add(self, *nodes: str) -> None:
        room = {"cpu": "8", "memory": "8Gi", "pods": "20", DEVICES: "1"}
        ready = {"type": "Ready", "status": "True", "reason": "Test", "message": ""}
        for node in nodes:
            name = self.name(node)
            metadata = {"name": name, "labels": {OWNER: self.kube.namespace}}
            await self.kube.call("POST", "/api/v1/nodes", {"metadata": metadata})
            status = {"capacity": room, "allocatable": room, "conditions": [ready]}
            await self.kube.call("PATCH", f"/api/v1/nodes/{name}/status", {"status": status})
            # Every node is admitted with a taint, which the node controller removes once the node is Ready.
            await self.kube.call("PATCH", f"/api/v1/nodes/{name}", {"spec": {"taints": None}})

    async def power_off(self, name: str) -> None:
        """As the node controller reports it."""
        unknown = {"type": "Ready", "status": "Unknown", "reason": "Test", "message": ""}
        await self.kube.call("PATCH", f"/api/v1/nodes/{name}", {"spec": {"taints": [OUT]}})
        await self.kube.call("PATCH", f"/api/v1/nodes/{name}/status", {"status": {"conditions": [unknown]}})

    def requests(self, spec: Raw, priority: str) -> Raw:
        """The pod's spec, with a device for its first container."""
        first, *others = spec["containers"]
        values: Raw = {
            **spec,
            "containers": [{**first, "resources": {"limits": {DEVICES: 1}}}, *others],
            "schedulerName": NAME,
            "nodeSelector": {OWNER: self.kube.namespace},
        }
        return values | ({"priorityClassName": self.priority(priority)} if priority else {})

    async def pod(self, name: str, priority: str) -> Raw:
        """A pod without a job."""
        spec = self.requests({"containers": [{"name": "c", "image": "example.com/other:1"}]}, priority)
        return await self.kube.call("POST", "pods", {"metadata": {"name": name}, "spec": spec})

    async def of(self, pod: Raw) -> str:
        """The node to which the scheduler assigns it."""

        async def look() -> str:
            node: str = (await self.kube.call("GET", f"pods/{pod['metadata']['name']}"))["spec"].get("nodeName", "")
            return node

        node = await self.kube.until(f"pod {pod['metadata']['name']} is scheduled", look)
        return node.removeprefix(f"{self.kube.namespace}-")

    async def until_no_room(self, pod: Raw) -> None:
        """The scheduler has tried, and has found neither a node nor pods to preempt."""

        async def look() -> bool:
            raw = await self.kube.call("GET", f"pods/{pod['metadata']['name']}")
            result = condition(raw, "PodScheduled")
            nominated = raw["status"].get("nominatedNodeName")
            return result.get("reason") == "Unschedulable" and not nominated and not raw["spec"].get("nodeName")

        await self.kube.until(f"there is no room for pod {pod['metadata']['name']}", look)

    async def until_preempted(self, pod: Raw) -> Raw:
        """The scheduler has preempted it."""

        async def look() -> Raw | None:
            raw = await self.kube.call("GET", f"pods/{pod['metadata']['name']}")
            preempted = condition(raw, "DisruptionTarget").get("reason") == "PreemptionByScheduler"
            return raw if preempted and "deletionTimestamp" in raw["metadata"] else None

        raw = await self.kube.until(f"pod {pod['metadata']['name']} is preempted", look)
        assert raw is not None
        return raw


class Scheduled(Training):
    """A job whose pods the scheduler places."""

    def __init__(self, kube: Kube, nodes: Nodes) -> None:
        super().__init__(kube)
        self._nodes = nodes

    async def run(self, pod: Raw, ip: str = "") -> None:
        """Run it once it has its node, which is in `pod` from then on."""
        pod["spec"]["nodeName"] = self._nodes.name(await self._nodes.of(pod))
        await self.start_containers(pod, ip)


def condition(raw: Raw, kind: str) -> Raw:
    """The condition of that type; empty if there is none."""
    found: Any = next((entry for entry in raw["status"].get("conditions", ()) if entry["type"] == kind), {})
    return dict(found)
