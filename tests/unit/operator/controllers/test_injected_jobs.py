"""Injected pods in the operator's store: each of their jobs gets its InjectedJob, and a pod without a launcher gets its
node's findings.
"""

import asyncio
import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.operator.fake_api import FakeApi
from tests.unit.operator.given import IMAGE
from tests.unit.virtual_time import in_virtual_time
from tests.unit.webhook.golden import pod as golden_pod
from understudy_operator.apply.pace import Pace
from understudy_operator.controllers.injected_jobs import InjectedJobCreator
from understudy_operator.observe.store import Key, Kind, Store
from understudy_operator.plan.injection.injected_pods import inject
from understudy_operator.runtime.clock import Clock
from understudy_protocol import pod as names
from understudy_protocol import wire
from understudy_protocol.enums import Verdict
from understudy_protocol.membership import NodeVerdict

BURST = 300.0
WRITES_PER_S = 300.0
LONGEST_RETRY_S = 30.0

Raw = dict[str, Any]
UID = golden_pod("job")["metadata"]["labels"]["batch.kubernetes.io/controller-uid"]
JOB = "/apis/batch/v1/namespaces/research/jobs/train"
INJECTED = "/apis/understudy.dev/v1alpha1/namespaces/research/injectedjobs"


class World:
    def __init__(self, clock: Clock | None = None) -> None:
        self.api, self.store = FakeApi(), Store()
        self.enqueued: list[Key] = []
        clock = clock or Clock()
        self.pace = Pace(clock.steady)
        self.injection = InjectedJobCreator(self.api, self.store, self.enqueued.append, clock, self.pace)

    def job(self, **spec: Any) -> None:
        metadata = golden_pod("job")["metadata"]
        template = {"metadata": {"labels": metadata["labels"], "annotations": metadata["annotations"]}}
        whole = {"completionMode": "Indexed", "parallelism": 3, "completions": 3, "template": template, **spec}
        self.api.put(JOB, {"kind": "Job", "metadata": {"uid": UID}, "spec": whole})

    def pod(self, name: str, number: int = 0) -> Raw:
        raw = inject(golden_pod(name), IMAGE).pod
        raw["metadata"] |= {"name": f"{name}-{number}", "uid": f"pod-{number}"}
        raw["spec"]["nodeName"] = "n1"
        made = self.api.put(f"/api/v1/namespaces/research/pods/{name}-{number}", raw)
        self.store.put(Kind.POD, made)
        return made

    def node(self, faulty: str) -> None:
        metadata = {"name": "n1", "annotations": {names.ANNOTATION_FAULTY: faulty}}
        self.store.put(Kind.NODE, self.api.put("/api/v1/nodes/n1", {"metadata": metadata}))

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(2 * LONGEST_RETRY_S):
            while not holds():  # noqa: ASYNC110 (what it waits for tells nobody)
                await asyncio.sleep(0.01)

    def made(self) -> list[Raw]:
        return self.api.of_kind("InjectedJob")


async def test_the_first_pod_creates_the_injectedjob_and_the_others_find_it() -> None:
    world = World()
    world.job()
    for number in range(3):
        world.injection.on_pod(world.pod("job", number))
    await world.until(lambda: bool(world.enqueued))
    assert [raw["metadata"]["name"] for raw in world.made()] == ["job.train"]
    world.injection.check_all_pods()
    await world.injection.stop()
    assert [call for call in world.api.calls if call[0] == "POST"] == [("POST", f"{INJECTED}/job.train")]
    assert world.enqueued == [("research", "job.train")]


async def test_a_job_that_cannot_be_injected_gets_one_event() -> None:
    world = World()
    world.job(completions=5)
    for number in range(3):
        world.injection.on_pod(world.pod("job", number))
    await world.until(lambda: bool(world.api.of_kind("Event")))
    world.injection.check_all_pods()
    await asyncio.sleep(0)
    await world.injection.stop()
    (event,) = world.api.of_kind("Event")
    assert (event["reason"], event["regarding"]["kind"], event["regarding"]["name"]) == ("NotInjected", "Job", "train")
    assert "spec.completions is 5 and parallelism 3" in event["note"]
    assert world.made() == []


async def test_a_rejected_event_is_not_sent_again() -> None:
    """As in a namespace that is being deleted."""
    world = World()
    world.api.refuse = lambda body: "the namespace is being terminated" if body["kind"] == "Event" else ""
    world.job(completions=5)
    world.injection.on_pod(world.pod("job"))
    await world.until(lambda: bool(world.injection._tasks))
    await world.until(lambda: not world.injection._tasks)
    assert [path.split("/")[-2] for method, path in world.api.calls if method == "POST"] == ["events"]


@in_virtual_time
async def test_hundreds_of_pods_are_annotated_at_a_limited_rate() -> None:
    """The pods of a job without a launcher, all on one node each time that it gets a finding."""
    loop, pods = asyncio.get_running_loop(), int(BURST + WRITES_PER_S / 10)
    world = World(Clock(steady=loop.time))
    world.node("Xid 79")
    for number in range(pods):
        world.injection.on_pod(world.pod("alone", number))
    await world.until(lambda: not world.injection._tasks)
    assert loop.time() >= 0.09
    assert len([call for call in world.api.calls if call[0] == "PATCH"]) == pods


@in_virtual_time
async def test_the_annotation_of_a_pod_waits_for_its_turn_among_all_writes() -> None:
    loop = asyncio.get_running_loop()
    world = World(Clock(steady=loop.time))
    for _ in range(int(BURST)):
        async with world.pace.turn("research", "another-job"):
            pass
    world.node("Xid 79")
    world.injection.on_pod(world.pod("alone"))
    await world.until(lambda: not world.injection._tasks)
    assert loop.time() >= 1 / WRITES_PER_S


async def test_a_new_job_of_the_same_name_is_another_job() -> None:
    world = World()
    world.job()
    world.api.objects[JOB]["metadata"]["uid"] = "another"
    world.injection.on_pod(world.pod("job"))
    await world.until(lambda: ("GET", JOB) in world.api.calls)
    await world.injection.stop()
    assert world.made() == []


@in_virtual_time
@pytest.mark.parametrize("result", [True, False], ids=["the watch reports it", "no watch reports it"])
async def test_a_new_injectedjob_is_created_once_its_predecessor_is_gone(result: bool) -> None:
    """The garbage collector needs a while to delete the InjectedJob of a deleted Job, and few events of pods follow
    meanwhile.
    """
    # given the InjectedJob of a deleted Job, and a pod of the new Job of the same name
    loop = asyncio.get_running_loop()
    world = World()
    world.job()
    spec = {"target": {"uid": "a previous one"}}
    previous = world.api.put(f"{INJECTED}/job.train", {"kind": "InjectedJob", "metadata": {}, "spec": spec})
    previous["metadata"]["namespace"] = "research"
    world.store.put(Kind.INJECTED, previous)
    pod = world.pod("job")
    world.store.put(Kind.POD, pod)
    world.injection.on_pod(pod)
    await asyncio.sleep(300.0)
    assert world.enqueued == []
    # when that InjectedJob is deleted
    del world.api.objects[f"{INJECTED}/job.train"]
    gone_at = loop.time()
    if result:
        world.store.remove(Kind.INJECTED, previous)
        world.injection.check_pods_of_job(("research", "job.train"))
    # then the new Job's InjectedJob is created
    await world.until(lambda: bool(world.enqueued))
    await world.injection.stop()
    assert [raw["spec"]["target"]["uid"] for raw in world.made()] == [UID]
    assert loop.time() <= gone_at + (0.1 if result else 1.5 * LONGEST_RETRY_S)


async def test_a_remaining_pod_of_a_deleted_job_does_not_delay_the_new_job() -> None:
    # given the current Job, a pod of its predecessor, and then one of its own
    world = World()
    world.job()
    left = world.pod("job", 0)
    left["metadata"]["labels"] |= {"batch.kubernetes.io/controller-uid": "former", names.LABEL_JOB_UID: "former"}
    # when the operator observes both at the same moment
    world.injection.on_pod(left)
    world.injection.on_pod(world.pod("job", 1))
    # then the current Job has its InjectedJob
    await world.until(lambda: bool(world.enqueued))
    await world.injection.stop()
    assert [raw["spec"]["target"]["uid"] for raw in world.made()] == [UID]


async def test_the_injectedjob_of_a_jobsets_previous_attempt_is_deleted() -> None:
    world = World()
    metadata = golden_pod("jobset")["metadata"]
    job = {"parallelism": 2, "template": {"metadata": {"labels": metadata["labels"]}}}
    spec = {"replicatedJobs": [{"name": "workers", "replicas": 1, "template": {"spec": job}}]}
    uid = metadata["labels"]["jobset.sigs.k8s.io/jobset-uid"]
    path = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/research/jobsets/llm"
    world.api.put(path, {"metadata": {"uid": uid}, "spec": spec})
    world.api.put(f"{INJECTED}/jobset.llm", {"kind": "InjectedJob", "metadata": {"name": "jobset.llm"}})
    world.injection.on_pod(world.pod("jobset"))
    await world.until(lambda: bool(world.enqueued))
    await world.injection.stop()
    assert [raw["metadata"]["name"] for raw in world.made()] == ["jobset.llm.1"]


async def test_a_pod_without_a_launcher_gets_the_findings_about_its_node_and_their_withdrawal() -> None:
    world = World()
    world.node("Xid 79")
    made = world.pod("alone")
    path = "/api/v1/namespaces/research/pods/alone-0"

    def is_reported() -> tuple[Verdict, str] | None:
        text = world.api.objects[path]["metadata"]["annotations"].get(names.ANNOTATION_NODE_VERDICT)
        found = None if text is None else wire.decode(text, {"NodeVerdict": NodeVerdict})
        return (found.verdict, found.reason) if isinstance(found, NodeVerdict) else None

    world.injection.on_pod(made)
    await world.until(lambda: is_reported() is not None)
    assert is_reported() == (Verdict.FAULTY, "annotation: Xid 79")
    await world.until(lambda: not world.injection._tasks)
    patches = copy.copy(world.api.calls)
    world.injection.check_all_pods()
    assert world.api.calls == patches
    world.node("false")
    world.injection.check_all_pods()
    await world.until(lambda: is_reported() == (Verdict.UNKNOWN, ""))
    await world.injection.stop()
    assert world.made() == []


class SlowApi(FakeApi):
    """Needs 50 ms for each request."""

    def __init__(self) -> None:
        super().__init__()
        self.under_way = self.most = 0

    async def get(self, path: str) -> Raw:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0.05)
        self.under_way -= 1
        return await super().get(path)

    def gets(self, namespace: str) -> int:
        return sum(method == "GET" and f"/namespaces/{namespace}/" in path for method, path in self.calls)


def forged(ordinary: Raw, number: int) -> Raw:
    """A pod of an injected job according to its labels and ownerReferences; there is no such Job."""
    pod = copy.deepcopy(ordinary)
    metadata, uid = pod["metadata"], f"forged-{number}"
    metadata |= {"namespace": "evil", "name": f"pod-{number}", "uid": f"pod-{number}"}
    metadata["labels"] |= {"batch.kubernetes.io/controller-uid": uid, names.LABEL_JOB_UID: uid}
    metadata["ownerReferences"] = [{**reference, "uid": uid} for reference in metadata["ownerReferences"]]
    return pod


@pytest.mark.attack(
    "A1",
    "creates 2,000 pods whose ownerReferences name Jobs that do not exist",
    before="2,000 simultaneous requests at the start, and again at each change of a node",
)
@in_virtual_time
async def test_pods_with_forged_owners_cost_few_requests_and_delay_no_other_namespace() -> None:
    # given 500 of them
    loop = asyncio.get_running_loop()
    world = World(Clock(steady=loop.time))
    world.api = api = SlowApi()
    world.injection = InjectedJobCreator(api, world.store, world.enqueued.append, Clock(steady=loop.time), world.pace)
    world.job()
    ordinary = world.pod("job")
    pods = [forged(ordinary, number) for number in range(500)]
    for pod in pods:
        world.store.put(Kind.POD, pod)
    # when the operator starts, and a pod of another namespace is created
    world.injection.check_all_pods()
    world.injection.on_pod(ordinary)
    # then that pod waits for one request, although most of the others still wait
    await world.until(lambda: bool(world.enqueued))
    assert loop.time() < 0.3
    assert api.gets("evil") < 200
    # and at most 32 requests run at a time
    await world.until(lambda: api.gets("evil") == 500)
    assert api.most <= 32
    # when nodes change each minute for half an hour, then each owner is requested again after growing pauses
    for _ in range(30):
        await asyncio.sleep(60.0)
        world.injection.check_all_pods()
    assert api.gets("evil") <= 500 * 9
    # and the operator keeps no data of pods that are gone
    for pod in pods:
        world.store.remove(Kind.POD, pod)
    world.injection.check_all_pods()
    assert not world.injection._owners._absent
    await world.injection.stop()
