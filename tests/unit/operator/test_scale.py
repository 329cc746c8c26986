"""A job of 5,000 pods: the API server's cost of a fault does not grow with the job, nor does the operator's cost
without changes.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

from tests.unit.operator.controllers.test_job_worker import FakeLink, links
from tests.unit.operator.fake_api import CREATED, FakeApi, Raw, owned_by
from tests.unit.operator.given import IMAGE, KEYRING, NOW, TEMPLATE, a_job
from understudy_operator.apply.executor import Executor
from understudy_operator.controllers.job_worker import JobWorker
from understudy_operator.observe.read_pool import pods_of, split
from understudy_operator.observe.store import Kind, Store
from understudy_operator.plan.facts.job import Job
from understudy_operator.plan.facts.observed import Coordination
from understudy_operator.plan.facts.pods import Pods
from understudy_operator.plan.manifests.pods import pod_manifest
from understudy_operator.runtime.clock import Clock
from understudy_protocol import pod as names
from understudy_protocol.enums import Fault, RoundToken, Strategy, WorkersState
from understudy_protocol.observer import Cause, MemberView, Recovery, Snapshot

__all__ = ["links"]  # a fixture

ACTIVES, SPARES = 4_990, 10
KEY = ("research", "llm")
PATH = "/apis/understudy.dev/v1alpha1/namespaces/research/trainingjobs/llm"
CHANGED = ("p17", "p4995")
WRITES = 6
LIMIT_S = 40.0


class World:
    """A job in round 0: every pod runs, and the first spare coordinates."""

    def __init__(self) -> None:
        self.api, self.store = FakeApi(), Store()
        template = {"spec": {"parallelism": ACTIVES, "template": TEMPLATE}}
        spec = {
            "replicatedJobs": [{"name": "workers", "template": template}],
            "launcher": {"nprocPerNode": 1},
            "spares": {"replicas": SPARES},
        }
        metadata = {"namespace": "research", "name": "llm", "uid": "job-uid", "creationTimestamp": CREATED}
        coordinator = {"epoch": 7, "term": 1, "podName": "p4990", "podUID": "uid-p4990"}
        status = {"coordinator": coordinator, "round": 0, "term": 1}
        body = {"kind": "TrainingJob", "metadata": metadata, "spec": spec, "status": status}
        self.put(PATH, Kind.JOB, body)
        labels = {names.LABEL_JOB: "llm", names.LABEL_JOB_UID: "job-uid"}
        owned = {"namespace": "research", "labels": labels, "ownerReferences": owned_by("job-uid")}
        for name in ("llm", "llm-coordinator"):
            service = {"kind": "Service", "metadata": owned, "spec": {}}
            self.put(f"/api/v1/namespaces/research/services/{name}", Kind.SERVICE, service)
        made = replace(a_job(parallelism=ACTIVES), uid="job-uid")
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        self.put("/api/v1/nodes/n", Kind.NODE, {"kind": "Node", "metadata": {"name": "n"}, "status": ready})
        for number in range(ACTIVES + SPARES):
            self.add_pod(made, number)
        self.rank_holders: dict[str, int | None] = {
            f"p{n}": n if n < ACTIVES else None for n in range(ACTIVES + SPARES)
        }

    def put(self, path: str, kind: Kind, body: Raw) -> None:
        self.store.put(kind, self.api.put(path, body))

    def add_pod(self, job: Job, number: int) -> None:
        """Adds a pod to the store; the API server has only the pods of CHANGED, the only ones that are ever written."""
        index = number if number < ACTIVES else None
        pod = pod_manifest(job, index=index, serial="1", facts="facts", sidecar_image=IMAGE)
        sidecar = {"name": names.SIDECAR_CONTAINER, "started": True, "state": {"running": {}}}
        pod["metadata"] |= {"name": f"p{number}", "uid": f"uid-p{number}", "creationTimestamp": CREATED}
        pod["metadata"]["resourceVersion"] = "1"
        if number == ACTIVES:
            pod["metadata"]["labels"][names.LABEL_COORDINATOR] = "true"
        pod["spec"]["nodeName"] = "n"
        pod["status"] = {"phase": "Running", "podIP": "10.0.0.1", "initContainerStatuses": [sidecar]}
        self.store.put(Kind.POD, pod)
        if f"p{number}" in CHANGED:
            self.put(f"/api/v1/namespaces/research/pods/p{number}", Kind.POD, pod)

    def reports(self, number: int, *recoveries: Recovery) -> Coordination:
        def view(name: str, rank: int | None) -> MemberView:
            workers = WorkersState.IDLE if rank is None else WorkersState.RUNNING
            return MemberView(f"uid-{name}", name, "n", rank, rank, workers)

        members = tuple(view(name, rank) for name, rank in self.rank_holders.items())
        token = RoundToken(7, 1, number)
        result = Snapshot(token, "uid-p4990", members, (), recoveries, {"InPlace": len(recoveries)}, None, "", None)
        return Coordination(result, "uid-p4990", NOW)

    def status(self) -> Raw:
        status: Raw = self.api.objects[PATH]["status"]
        return status

    def writes(self) -> Counter[str]:
        return Counter(
            f"{method} {path.split('/')[-2]}" for method, path in self.api.calls if method not in ("GET", "LIST")
        )


def own_pods(world: World) -> tuple[Pods, Pods]:
    """The job's pods, and others that concern it."""
    return split(pods_of(world.store, ("research", "job-uid")), "job-uid")


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not holds():  # noqa: ASYNC110 (what it waits for is in the fake API server, which tells nobody)
            await asyncio.sleep(0.01)


@asynccontextmanager
async def running(world: World, links: list[FakeLink]) -> AsyncIterator[JobWorker]:
    """The job's worker, once status reports that the job runs and no write is left."""
    worker = JobWorker(
        KEY, world.store, Executor(world.api, world.store, Clock()), KEYRING, IMAGE, lambda _: None, Clock()
    )
    try:
        await until(lambda: bool(links))
        links[0].coordination = world.reports(0)
        await wait_until_idle(world, worker, links[0])
        assert world.status()["phase"] == "Running"
        world.api.calls.clear()
        yield worker
    finally:
        await worker.stop()


async def wait_until_idle(world: World, worker: JobWorker, link: FakeLink) -> None:
    """Wait until a whole reconcile, whose last step is to follow the link, has written nothing."""
    while True:
        before, reconciles = len(world.api.calls), len(link.done)
        for more in (1, 2):  # the first one may have begun before
            worker.enqueue()
            await until(lambda wanted=reconciles + more: len(link.done) >= wanted)  # type: ignore[misc]
        if len(world.api.calls) == before:
            return


class Turns:
    """How often the event loop has run since the last call of `count`."""

    def __init__(self) -> None:
        self._turns = 0
        asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._turns += 1
        asyncio.get_running_loop().call_soon(self._turn)

    def count(self) -> int:
        turns, self._turns = self._turns, 0
        return turns


async def test_the_event_loop_runs_other_tasks_while_changed_pods_are_read_and_planned(links: list[FakeLink]):
    # given a job whose 5,000 pods have all changed
    world = World()
    turns, counts = Turns(), list[int]()

    def steady() -> float:
        """A reconcile calls it before and after its planning."""
        counts.append(turns.count())
        return time.monotonic()

    executor = Executor(world.api, world.store, Clock())
    worker = JobWorker(KEY, world.store, executor, KEYRING, IMAGE, lambda _: None, Clock(steady=steady))
    # when they are read and planned
    try:
        await until(lambda: len(counts) >= 2)
    finally:
        await worker.stop()
    # then other tasks run after each 100 pods that are read, and while the plan is made
    assert counts[0] >= 5_000 / 100
    assert counts[1] > 0


async def test_the_cost_of_a_fault_does_not_grow_with_the_job(links: list[FakeLink]):
    # given a running job of 5,000 pods with an up-to-date status
    world = World()
    async with running(world, links) as worker:
        # when a worker fails, and the next round runs in place
        cause = Cause(17, "p17", "n", 1, None, "RuntimeError: CUDA error")
        still_open = Recovery(1, Fault.PROCESS, Strategy.IN_PLACE, cause, time.time() - 1.0, None)
        links[0].coordination = world.reports(1, still_open)
        worker.enqueue()
        await until(lambda: world.status()["phase"] == "Recovering")
        recovered = replace(still_open, resumed_at=still_open.detected_at + 0.5)
        links[0].coordination = world.reports(1, recovered)
        await wait_until_idle(world, worker, links[0])

        # then status, events and one Recovery report it, and no pod is written
        assert world.status()["phase"] == "Running"
        assert {raw["reason"] for raw in world.api.of_kind("Event")} >= {"FaultDetected", "Recovered"}
        assert set(world.writes()) == {"PUT trainingjobs", "POST events", "POST recoveries", "PATCH recoveries"}
        assert (world.writes()["POST recoveries"], world.writes()["PATCH recoveries"]) == (1, 1)
        assert sum(world.writes().values()) <= WRITES

        # when a spare takes a rank, then only the two changed pods are labelled
        world.api.calls.clear()
        world.rank_holders |= {"p17": None, "p4995": 17}
        links[0].coordination = world.reports(2, recovered)
        await wait_until_idle(world, worker, links[0])
        assert world.writes()["PATCH pods"] == 2

    # and unchanged pods are not read again: the next reconcile gets the same object
    (pods, others), again = own_pods(world), own_pods(world)
    assert (len(pods), others) == (ACTIVES + SPARES, ())
    assert again[0] is pods
