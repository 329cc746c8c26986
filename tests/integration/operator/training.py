"""A TrainingJob and its environment: scheduler, kubelets and coordinator, played by the test."""

import base64
import copy
from collections.abc import Callable
from typing import Any

from tests.integration.operator.coordinator import FakeSidecar, loopback_address
from tests.integration.operator.kube import Kube, Raw
from understudy_protocol import pod as names
from understudy_protocol.enums import RoundToken, Term, WorkersState
from understudy_protocol.observer import Lost, MemberView, Recovery, Refused, Snapshot

APPOINTED = Term(1, 1)
KEY_FILES = (names.KEY_FILE, names.OPERATOR_KEY_FILE)
NAME = "llm"
JOB: Raw = {
    "apiVersion": "understudy.dev/v1alpha1",
    "kind": "TrainingJob",
    "metadata": {"name": NAME},
    "spec": {
        "launcher": {"nprocPerNode": 2},
        "spares": {"replicas": 1},
        "replicatedJobs": [
            {
                "name": "workers",
                "template": {
                    "spec": {
                        "parallelism": 2,
                        "template": {
                            "spec": {
                                "containers": [
                                    {"name": "trainer", "image": "example.com/trainer:1", "command": ["python", "t.py"]}
                                ]
                            }
                        },
                    }
                },
            }
        ],
    },
}


async def facts_secret(kube: Kube, pod: Raw) -> Raw:
    """The Secret with the facts about the job, which the pod mounts."""
    (volume,) = [x for x in pod["spec"]["volumes"] if x["name"] == names.POD_VOLUME]
    _, facts, _ = volume["projected"]["sources"]
    return await kube.call("GET", f"secrets/{facts['secret']['name']}")


def secret_name(job: Raw) -> str:
    """The name of the Secret of the job's first attempt."""
    return f"{NAME}-{job['metadata']['uid']}-membership"


class Training:
    """One job, llm: two actives, one spare."""

    def __init__(self, kube: Kube) -> None:
        self.kube = kube
        self.coordinator, self.standby = FakeSidecar(), FakeSidecar()
        self.leadership_term = Term(0, 0)
        self.holder = ""  # pod uid

    async def stop(self) -> None:
        await self.coordinator.stop()
        await self.standby.stop()

    # The user

    async def apply(self, change: Callable[[Raw], object] = lambda _: None) -> Raw:
        job = copy.deepcopy(JOB)
        change(job)
        return await self.kube.call("POST", "trainingjobs", job)

    async def status(self) -> Raw:
        status: Raw = (await self.kube.call("GET", f"trainingjobs/{NAME}")).get("status", {})
        return status

    async def condition(self, kind: str) -> tuple[str, str]:
        found = [x for x in (await self.status()).get("conditions", ()) if x["type"] == kind]
        return (found[0]["status"], found[0]["message"]) if found else ("", "")

    async def events(self, reason: str) -> list[str]:
        events = await self.kube.list("events")
        return [x["note"] for x in events if x["reason"] == reason and x["regarding"]["name"] == NAME]

    async def until_events(self, reason: str, count: int = 1) -> list[str]:
        """Events are written after the status that reports the same."""

        async def look() -> list[str]:
            events = await self.events(reason)
            return events if len(events) >= count else []

        return await self.kube.until(f"{count} x event {reason}", look)

    async def pods(self) -> list[Raw]:
        """The job's pods that are not being deleted, in the order of their names; without a pool's pods."""
        pods = [pod for pod in await self.kube.list("pods") if names.LABEL_JOB in pod["metadata"].get("labels", {})]
        return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]

    async def until_phase(self, phase: str) -> Raw:
        async def look() -> Raw | None:
            status = await self.status()
            return status if status.get("phase") == phase else None

        found = await self.kube.until(f"phase {phase}", look)
        assert found is not None
        return found

    async def until_pods(self, count: int) -> list[Raw]:
        async def look() -> list[Raw]:
            pods = await self.pods()
            return pods if len(pods) == count else []

        return await self.kube.until(f"{count} pods", look)

    async def until_appointed(self) -> None:
        async def look() -> bool:
            return bool(self.coordinator.appointments)

        await self.kube.until("the coordinator is appointed", look)

    # Scheduler and kubelets

    async def run(self, pod: Raw, ip: str = "") -> None:
        """Assign the pod to its own node, and run it."""
        name = pod["metadata"]["name"]
        await self.set_node_ready(f"node-{name}", ready=True)
        target = {"target": {"kind": "Node", "name": f"node-{name}"}}
        await self.kube.call("POST", f"pods/{name}/binding", {"metadata": {"name": name}, **target})
        await self.start_containers(pod, ip)

    async def start_containers(self, pod: Raw, ip: str = "") -> None:
        ip = ip or loopback_address()
        for sidecar in (self.coordinator, self.standby):
            if sidecar.ip == ip:
                sidecar.pod_uid = pod["metadata"]["uid"]
        status = {
            "phase": "Running",
            "podIP": ip,
            "podIPs": [{"ip": ip}],
            "initContainerStatuses": [container(names.SIDECAR_CONTAINER, {"running": {}}, started=True)],
        }
        await self.kube.call("PATCH", f"pods/{pod['metadata']['name']}/status", {"status": status})

    async def run_all(self, pods: list[Raw]) -> None:
        """The spare first: it is appointed as soon as it runs, and has the coordinator's address. The first active is
        its standby coordinator.
        """
        spare, first, *others = sorted(pods, key=lambda pod: (not is_spare(pod), pod["metadata"]["name"]))
        await self.run(spare, self.coordinator.ip)
        await self.run(first, self.standby.ip)
        for pod in others:
            await self.run(pod)

    async def set_node_ready(self, name: str, ready: bool) -> None:
        condition = {"type": "Ready", "status": "True" if ready else "Unknown", "reason": "Test", "message": ""}
        node = {"metadata": {"name": name}, "status": {"conditions": [condition]}}
        if name in {raw["metadata"]["name"] for raw in await self.kube.list("/api/v1/nodes")}:
            await self.kube.call("PATCH", f"/api/v1/nodes/{name}/status", node)
        else:
            await self.kube.call("POST", "/api/v1/nodes", node)

    async def label_node(self, name: str, **labels: str) -> None:
        await self.kube.call("PATCH", f"/api/v1/nodes/{name}", {"metadata": {"labels": labels}})

    async def end(self, pod: Raw, message: str, exit_code: int) -> None:
        state = {"terminated": {"exitCode": exit_code, "message": message}}
        status = {
            "phase": "Succeeded" if exit_code == 0 else "Failed",
            "initContainerStatuses": [container(names.SIDECAR_CONTAINER, state)],
        }
        await self.kube.call("PATCH", f"pods/{pod['metadata']['name']}/status", {"status": status})

    async def run_out_of_memory(self, pod: Raw) -> None:
        """The kernel has killed its trainer container for lack of memory."""
        ended = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
        status = {"phase": "Failed", "containerStatuses": [container("trainer", ended)]}
        await self.kube.call("PATCH", f"pods/{pod['metadata']['name']}/status", {"status": status})

    async def remove(self, pod: Raw) -> None:
        """As a kubelet does after the last container has ended."""
        body = {"gracePeriodSeconds": 0}
        await self.kube.call("DELETE", f"pods/{pod['metadata']['name']}", body)

    # The coordinator

    async def start(self, change: Callable[[Raw], object] = lambda _: None) -> list[Raw]:
        """From the creation to round 0; returns the pods, the spare (which coordinates) last. The first active is its
        standby coordinator.
        """
        job = await self.apply(change)
        pods = await self.until_pods(3)
        pods.sort(key=is_spare)
        await self.serve(job)
        await self.run_all(pods)
        await self.until_appointed()
        self.coordinator_uid(pods[2])
        await self.report(0, [(pods[0], 0), (pods[1], 1), (pods[2], None)])
        await self.until_phase("Running")
        return pods

    async def serve(self, job: Raw) -> None:
        data = (await self.kube.call("GET", f"secrets/{secret_name(job)}"))["data"]
        key, operator_key = (bytes.fromhex(base64.b64decode(data[name]).decode()) for name in KEY_FILES)
        for sidecar in (self.coordinator, self.standby):
            await sidecar.start(key, operator_key, job["metadata"]["uid"])
        await self.standby.report(Refused("this sidecar is not the coordinator"))

    def coordinator_uid(self, pod: Raw) -> None:
        """The appointed coordinator is this pod's sidecar."""
        self.leadership_term, self.holder = Term(self.coordinator.appointments[-1].epoch, 1), pod["metadata"]["uid"]

    async def report(self, number: int, rank_holders: list[tuple[Raw, int | None]], **changes: Any) -> None:
        await self.coordinator.report(self.snapshot(number, rank_holders, **changes))

    async def elect(self, pod: Raw, number: int, rank_holders: list[tuple[Raw, int | None]], **changes: Any) -> None:
        """The standby coordinator's sidecar has been elected."""
        self.leadership_term, self.holder = (
            Term(self.leadership_term.epoch, self.leadership_term.number + 1),
            pod["metadata"]["uid"],
        )
        await self.standby.report(self.snapshot(number, rank_holders, **changes))

    def snapshot(self, number: int, rank_holders: list[tuple[Raw, int | None]], **changes: Any) -> Snapshot:
        members = tuple(view(pod, rank) for pod, rank in rank_holders)
        return a_snapshot(number, members, leadership_term=self.leadership_term, pod_uid=self.holder, **changes)


def a_snapshot(
    number: int,
    members: tuple[MemberView, ...],
    lost: tuple[Lost, ...] = (),
    recoveries: tuple[Recovery, ...] = (),
    counts: dict[str, int] | None = None,
    waiting_for: str = "",
    closed: Any = None,
    leadership_term: Term = APPOINTED,
    pod_uid: str = "uid-s",
    standby_coordinators: tuple[str, ...] = (),
    voters: tuple[str, ...] = (),
) -> Snapshot:
    token = RoundToken(leadership_term.epoch, leadership_term.number, number)
    result = (token, pod_uid, members, lost, recoveries, counts or {}, None, waiting_for, closed)
    return Snapshot(*result, standby_coordinators=standby_coordinators, voters=voters)


def view(pod: Raw, rank: int | None) -> MemberView:
    index = None if is_spare(pod) else int(pod["metadata"]["annotations"][names.ANNOTATION_GROUP_RANK])
    workers = WorkersState.IDLE if rank is None else WorkersState.RUNNING
    metadata = pod["metadata"]
    return MemberView(metadata["uid"], metadata["name"], node_of(pod), index, rank, workers)


def is_spare(pod: Raw) -> bool:
    return bool(pod["metadata"]["labels"][names.LABEL_ROLE] == names.ROLE_SPARE)


def node_of(pod: Raw) -> str:
    """The node in the object, or if it has none, the one to which `run` has assigned the pod."""
    return str(pod["spec"].get("nodeName") or f"node-{pod['metadata']['name']}")


def container(name: str, state: Raw, *, started: bool = False) -> Raw:
    return {
        "name": name,
        "image": "x",
        "imageID": "x",
        "ready": started,
        "started": started,
        "restartCount": 0,
        "state": state,
    }
