"""No arbitrary object ends a task or makes a reconcile raise. The nightly run has 20,000 examples of each kind.

The operator is a whole one, with a job, its Jobs and its pool at work. Each example replaces the object by one in which
some fields are arbitrary JSON, as the bytes that the API server would send.
"""

import asyncio
import copy
import gc
import json
import logging
import os
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.operator.arbitrary import spoiled
from tests.unit.operator.controllers.test_job_worker import FakeLink
from tests.unit.operator.fake_api import CREATED, Raw
from tests.unit.operator.given import A0, A1, NOW, TEMPLATE, S, a_job, a_recovery, a_snapshot, in_round, lost, observed
from tests.unit.operator.given_operator import ClusterApi, Running, running
from tests.unit.virtual_time import _Loop
from tests.unit.webhook.golden import pod as golden_pod
from understudy_operator.controllers import job_worker as worker
from understudy_operator.observe.read_injected import read_injected
from understudy_operator.observe.resync import PATHS
from understudy_operator.observe.store import Kind
from understudy_operator.plan.facts.observed import Coordination
from understudy_operator.plan.facts.status import written
from understudy_operator.plan.injection.injected_pods import inject
from understudy_operator.plan.injection.owner import read_owner
from understudy_operator.plan.injection.settings import Objection
from understudy_operator.plan.injection.targets import UNREADABLE, manifest_of, read_target, spec_of
from understudy_operator.plan.intents import Callee, Follow
from understudy_operator.plan.leadership.search import Search
from understudy_operator.plan.reconcile import reconcile
from understudy_operator.runtime.api import API_FAILURES
from understudy_operator.runtime.decoding import WatchEvent, decoder, object_of
from understudy_protocol import compiled, observer, wire
from understudy_protocol.enums import NO_TERM
from understudy_protocol.observer import Cause, Refused, Stepping, StepProgress
from understudy_protocol.rollouts import Rollouts, UpdateFailure

#: The number of examples of each kind: the same ones in each run, unless `make arbitrary` sets another number.
EXAMPLES = os.environ.get("UNDERSTUDY_EXAMPLES", "")
ordinary_settings = settings(
    max_examples=int(EXAMPLES or 50),
    derandomize=not EXAMPLES,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
#: Kinds whose spec the API server validates by our own CRDs: their spec is valid.
CHECKED = (Kind.JOB, Kind.POOL, Kind.INJECTED)
SPARE = {"spec": {"containers": [{"name": "hold", "image": "example.com/pause:1"}]}}
EVERYTHING_WRONG = [
    {"type": "Ready", "status": "False", "reason": "r", "message": "m", "lastTransitionTime": CREATED},
    {"type": "PodScheduled", "status": "True", "lastTransitionTime": CREATED},
    {"type": "DisruptionTarget", "status": "True", "reason": "r", "message": "m", "lastTransitionTime": CREATED},
]
STATUS: Raw = {
    **in_round(3, "llm", recoveriesByStrategy={"inPlace": 1, "jobRestart": 1}),
    "phase": "Recovering",
    "startTime": CREATED,
    "attemptStartTime": CREATED,
    "restarts": 1,
    "restartsCountTowardsMax": 1,
    "observedGeneration": 1,
    "members": {"desired": 2, "active": 2, "ready": 2},
    "spares": {"desired": 1, "ready": 1, "claimed": 0},
    "promotedSpares": [{"pod": "p", "groupRank": 1}],
    "progress": {"step": 7, "total": 100, "at": CREATED},
    "conditions": [
        {"type": name, "status": "True", "reason": "r", "message": "m", "lastTransitionTime": CREATED}
        for name in ("Ready", "Failed", "Invalid", "Blocked", "QuotaReserved", "SparesReady")
    ],
    "replicatedJobsStatus": [
        {"name": "workers", "ready": 1, "failed": 1, "jobRestarts": [1], "jobRestartsCountTowardsMax": [1]}
    ],
    "recoveries": [
        {
            "fault": "Node",
            "strategy": "SpareSwap",
            "round": 2,
            "cause": {"rank": 1, "pod": "p", "node": "n1", "exitCode": 1, "signal": "SIGKILL", "message": "m"},
            "detectedAt": CREATED,
            "runningAt": CREATED,
            "resumedAt": CREATED,
            "pauseSeconds": 1.5,
        }
    ],
    "rollouts": {
        "fresh": 1,
        "failure": {"update": "u", "at": CREATED, "consecutiveFailures": 1},
        "restartedForUpdate": "t",
    },
    "avoidedNodes": [{"node": "n1", "source": "s", "reason": "r", "until": CREATED, "pods": ["p"]}],
}
POOL_STATUS: Raw = {
    "desired": 1,
    "conditions": [{"type": "Blocked", "status": "True", "reason": "r", "message": "m", "lastTransitionTime": CREATED}],
    "autoSize": {"nodes": 1, "nodeDays": "2.5", "failures": "0.5", "countedUntil": CREATED, "surplusSince": CREATED},
}


class Errors(logging.Handler):
    """All errors except failures of the API server."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, API_FAILURES):
            self.seen.append(f"{record.getMessage()}: {error!r}")


class World:
    """An operator at work, in virtual time that continues from example to example."""

    def __init__(self) -> None:
        self._loop = _Loop()
        self.errors = Errors()
        logging.getLogger("understudy_operator").addHandler(self.errors)
        self._versions = iter(range(10_000, 10**9))
        self._do(self._start())

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        self._loop.run_until_complete(work)

    async def _start(self) -> None:
        self.api = ClusterApi()
        _put_everything(self.api)
        # The objects do not age: otherwise each example also plans what becomes due in the meantime.
        self._entered = running(self.api, wall=time.time)
        self.cluster: Running = await self._entered.__aenter__()
        await self.cluster.until(lambda: len(self.api.of_kind("Pod")) >= 5)
        _let_run(self.api)
        await asyncio.sleep(120.0)
        self._ordinary = copy.deepcopy(self.api.objects)
        assert not self.errors.seen
        self._failed = self.cluster.failures()

    def close(self) -> None:
        self._do(self._stop())
        self._loop.close()
        logging.getLogger("understudy_operator").removeHandler(self.errors)

    async def _stop(self) -> None:
        await self._entered.__aexit__(None, None, None)

    def ordinary(self, kind: Kind) -> list[tuple[str, Raw]]:
        """The objects of that kind, with their paths."""
        plural = PATHS[kind][0].rpartition("/")[2]
        group = PATHS[kind][0].rpartition("/")[0]
        return [(at, raw) for at, raw in self._ordinary.items() if at.startswith(group) and at.split("/")[-2] == plural]

    def shown(self, kind: Kind, path: str, raw: Any) -> None:
        """The watch reports the object, the operator handles it, and the world is restored."""
        self._do(self._shown(kind, path, raw))

    async def _shown(self, kind: Kind, path: str, raw: Any) -> None:
        operator, ordinary = self.cluster.operator, self._ordinary[path]
        if kind in (Kind.JOB, Kind.POOL) and _is_named_like(raw, ordinary):
            raw["metadata"]["resourceVersion"] = str(next(self._versions))
            self.api.objects[path] = copy.deepcopy(raw)  # so that its status can be written
        elif isinstance(raw, dict) and isinstance(raw.get("metadata"), dict):
            raw["metadata"]["resourceVersion"] = str(next(self._versions))
        decoded = object_of(kind.value, WatchEvent("MODIFIED", msgspec.Raw(json.dumps(raw).encode())))
        operator.on_watch_event(kind, "MODIFIED", decoded)
        operator._enqueue_all()
        await asyncio.sleep(0.6)
        operator.on_watch_event(kind, "DELETED", decoded)
        self.api.objects = copy.deepcopy(self._ordinary)
        self.api.calls.clear()
        self.api.history.clear()
        for each in Kind:
            listed = await self.api.list(PATHS[each][0])
            operator.store.replace(each, listed.items, asyncio.get_running_loop().time() + 1e-6)
        seen, self.errors.seen = self.errors.seen, []
        assert not seen
        assert dict(operator.waiting) == {}
        before, self._failed = self._failed, self.cluster.failures()
        assert self._failed == before


def _put_everything(api: ClusterApi) -> None:
    template = {"spec": {"parallelism": 2, "template": TEMPLATE}}
    groups = [{"name": "workers", "template": template}, {"name": "aside", "template": template}]
    launcher = {"nprocPerNode": 1, "targetReplicatedJobs": ["workers"]}
    success = {"operator": "All", "targetReplicatedJobs": ["workers"]}
    spares = {"replicas": 1, "pool": "shared"}
    spec = {"replicatedJobs": groups, "launcher": launcher, "spares": spares, "successPolicy": success}
    api.apply_job(spec=spec)
    pool = {"autoSize": {"nodes": 10, "minReplicas": 1, "maxReplicas": 2}, "template": SPARE}
    group = "/apis/understudy.dev/v1alpha1/namespaces/research"
    metadata = {"namespace": "research", "name": "shared"}
    api.put(f"{group}/hotsparepools/shared", {"kind": "HotSparePool", "metadata": metadata, "spec": pool})
    annotations = {"understudy.dev/faulty": "Xid 79", "understudy.dev/fault-expires": "2036-11-20T10:00:00Z"}
    conditions = [
        {"type": "Ready", "status": "True", "reason": "r", "message": "Xid 79", "lastTransitionTime": CREATED}
    ]
    taints = [{"key": "node.kubernetes.io/out-of-service", "value": "x", "effect": "NoExecute", "timeAdded": CREATED}]
    for name, result in (("n1", {}), ("n2", annotations)):
        node = {"kind": "Node", "metadata": {"name": name, "labels": {"zone": "a"}, "annotations": result}}
        node |= {"spec": {"taints": taints if result else []}, "status": {"conditions": conditions}}
        api.put(f"/api/v1/nodes/{name}", node)
    pod = inject(golden_pod("job"), "example.com/sidecar:1").pod
    pod["metadata"] |= {"name": "train-0", "uid": "pod-train-0"}
    api.put("/api/v1/namespaces/research/pods/train-0", {"kind": "Pod", **pod})
    metadata = golden_pod("job")["metadata"]
    labelled = {"metadata": {"labels": metadata["labels"], "annotations": metadata["annotations"]}}
    job = {"completionMode": "Indexed", "parallelism": 3, "completions": 3, "template": labelled}
    uid = metadata["labels"]["batch.kubernetes.io/controller-uid"]
    api.put("/apis/batch/v1/namespaces/research/jobs/train", {"kind": "Job", "metadata": {"uid": uid}, "spec": job})


def _let_run(api: ClusterApi) -> None:
    """Sets the status that kubelets and earlier reconciles would have written."""
    for raw in api.of_kind("Pod"):
        raw["spec"]["nodeName"] = "n1"
        state = {"name": "understudy-sidecar", "started": True, "state": {"running": {}}, "restartCount": 1}
        ended = {
            "name": "trainer",
            "lastState": {"terminated": {"reason": "OOMKilled", "exitCode": 137, "message": "m"}},
        }
        waits = {"name": "other", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "m"}}}
        raw["status"] = {"phase": "Running", "podIP": "10.1.0.1", "conditions": EVERYTHING_WRONG}
        raw["status"] |= {"initContainerStatuses": [state], "containerStatuses": [ended, waits]}
    for raw in api.of_kind("Job"):
        condition = {"type": "Suspended", "status": "False", "lastTransitionTime": CREATED}
        raw["status"] = {"active": 2, "ready": 2, "startTime": CREATED, "conditions": [condition]}
        raw["status"] |= {"uncountedTerminatedPods": {"succeeded": ["u"]}, "succeeded": 0, "failed": 1}


def _is_named_like(raw: Any, ordinary: Raw) -> bool:
    metadata = raw.get("metadata") if isinstance(raw, dict) else None
    fields = ("namespace", "name", "uid", "resourceVersion", "creationTimestamp")
    return isinstance(metadata, dict) and all(metadata.get(x) == ordinary["metadata"].get(x) for x in fields)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "CoordinatorLink", FakeLink)
        made = World()
        yield made
        made.close()


@pytest.mark.attack("A4", "creates arbitrary objects of each kind", before="readers raised in watches and wake-ups")
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", Kind, ids=lambda kind: str(kind.value))
def test_no_object_ends_a_task_or_makes_a_reconcile_raise(world: World, kind: Kind) -> None:
    present = world.ordinary(kind)
    if kind is Kind.JOB:
        present = [(path, {**raw, "status": raw.get("status", {}) | STATUS}) for path, raw in present]
    if kind is Kind.POOL:
        present = [(path, {**raw, "status": raw.get("status", {}) | POOL_STATUS}) for path, raw in present]
    if kind is Kind.CLAIM:
        metadata = {"namespace": "research", "name": "data", "uid": "u", "resourceVersion": "1"}
        world._ordinary.setdefault("/api/v1/namespaces/research/persistentvolumeclaims/data", {"metadata": metadata})
        present = world.ordinary(kind)
    assert present

    @ordinary_settings
    @given(st.data(), st.sampled_from(present))
    def holds(data: st.DataObject, ordinary: tuple[str, Raw]) -> None:
        path, raw = ordinary
        if kind in CHECKED:
            kept = {"kind": raw["kind"], "spec": raw["spec"]}
            spoilt = data.draw(spoiled({name: field for name, field in raw.items() if name not in kept}))
            world.shown(kind, path, {**kept, **spoilt} if isinstance(spoilt, dict) else spoilt)
        else:
            world.shown(kind, path, data.draw(spoiled(raw)))

    holds()


SNAPSHOT = a_snapshot(number=4)
CAUSE = Cause(1, "a0", "n1", 1, "SIGKILL", "m")
SENT: list[Any] = [
    json.loads(wire.encode(message))
    for message in (
        a_snapshot(
            number=4,
            recoveries=[a_recovery(NOW - 1.0, NOW, running_at=NOW, pause_s=1.0, cause=CAUSE, reason="r")],
            lost=[lost(A0)],
            counts={"InPlace": 1},
            progress=StepProgress(7, 100, NOW),
            waiting_for="1 of 2 pods",
            standby_coordinators=[A1],
            voters=[A0, A1, S],
            actives=2,
            rollouts=Rollouts(1, 1, 1, "v", UpdateFailure("u", "v", "m", 1, NOW, ("r",)), CAUSE),
        ),
        Stepping(StepProgress(7, 100, NOW)),
        Refused("not the coordinator", "uid-s", "10.1.0.1", 3),
    )
]


#: Fragments that a message may repeat thousands of times.
FRAGMENTS = ['"', '\\"', "\\", "[", "[],", '{"":', "1", ",", "1234567890123456789,", "\\\n", "\ud800", "xid("]
#: The CPU time that an example may take: a constant, and an addition for each byte.
CPU_S, CPU_S_PER_BYTE = 0.3, 1e-5


@contextmanager
def little_cpu_time(size: int) -> Iterator[None]:
    gc.disable()  # of what earlier examples have left: a collection takes half a second
    began = time.thread_time()
    try:
        yield
        took = time.thread_time() - began
    finally:
        gc.enable()
    assert took < CPU_S + CPU_S_PER_BYTE * size


@st.composite
def sent_bytes(draw: st.DrawFn) -> bytes:
    """A message with arbitrary fields; after an insertion or a truncation it may be no JSON."""
    text = json.dumps(draw(st.sampled_from(SENT).flatmap(spoiled)))
    if draw(st.booleans()):
        text = '{"later":1234567890123456789,' + text[1:]
    for fragment in draw(st.lists(st.sampled_from(FRAGMENTS), max_size=2)):
        at = draw(st.integers(0, len(text)))
        remaining = draw(st.sampled_from([text[at:], ""]))
        text = text[:at] + fragment * draw(st.sampled_from([1, 2, 20_000])) + remaining
    return text.encode(errors="surrogatepass")


@pytest.mark.attack(
    "A4",
    "sends arbitrary messages from a coordinator",
    before="OverflowError and IndexError in reconciles; a message of 24 KB took 8 s",
)
@pytest.mark.timeout(7200)
@ordinary_settings
@given(sent_bytes(), st.booleans())
def test_no_message_of_a_coordinator_makes_a_reconcile_raise(sent: bytes, begun: bool) -> None:
    # given a line to the coordinator's pod, and a message as the line decodes it; a rejected message ends the line
    callee = Callee("uid-s", "10.1.0.1")
    search = Search(Coordination(), NOW)
    search.follow(Follow(NO_TERM, (callee,), running={"uid-s": "10.1.0.1", "uid-a1": "10.1.0.2"}), NOW)
    (line,) = search.calls(NOW).values()
    search.on_message(line, SNAPSHOT, NOW)
    with little_cpu_time(len(sent)):
        try:
            search.on_message(line, compiled.decode_untrusted(sent, wire.message_types(observer)), NOW)
        except wire.WireError:
            return
        search.calls(NOW + 1.0)
        # when the job is reconciled, then nothing raises, and the status can be written and read again
        job = a_job(status={**STATUS} if begun else {})
        plan = reconcile(observed(job, coordination=search.coordination), "example.com/sidecar:1", NOW)
        assert plan.status is None or json.dumps(written(plan.status), allow_nan=False)


def targets() -> list[tuple[str, Raw, Raw]]:
    """For each kind whose pods are injected: the kind, an object, and an injected pod of it."""
    found = []
    for name, kind in (("job", "Job"), ("jobset", "JobSet"), ("pytorchjob", "PyTorchJob")):
        pod = inject(golden_pod(name), "example.com/sidecar:1").pod
        metadata = pod["metadata"]
        template = {"metadata": {"labels": metadata["labels"], "annotations": metadata["annotations"]}}
        job = {"completionMode": "Indexed", "parallelism": 3, "completions": 3, "template": template}
        specs: dict[str, Raw] = {
            "Job": job,
            "JobSet": {"replicatedJobs": [{"name": "workers", "replicas": 1, "template": {"spec": job}}]},
            "PyTorchJob": {"pytorchReplicaSpecs": {"Worker": {"replicas": 3, "template": template}}},
        }
        found.append((kind, {"kind": kind, "metadata": {"name": "x", "uid": "u"}, "spec": specs[kind]}, pod))
    return found


@pytest.mark.attack("A4", "injects pods of an arbitrary Job, JobSet or PyTorchJob", before="no test covered it")
@pytest.mark.timeout(7200)
@ordinary_settings
@given(st.data(), st.sampled_from(targets()))
def test_an_arbitrary_target_leads_to_an_injectedjob_or_an_event(
    data: st.DataObject, target: tuple[str, Raw, Raw]
) -> None:
    # given a target that the API server may store, perhaps of another version of its CRD
    kind, ordinary, pod = target
    raw = data.draw(spoiled(ordinary))
    text = json.dumps(raw)
    with little_cpu_time(len(text)):
        decoded = decoder("GET", f"/apis/batch/v1/namespaces/research/jobs/{kind}")(text.encode())
        try:
            # when its InjectedJob is created
            owner = read_owner(pod)
            manifest = manifest_of("research", owner, spec_of(read_target(kind, decoded), owner, pod))
        except (Objection, *UNREADABLE):
            return  # an event reports the reason
    # then the manifest can be sent, and read as a job
    metadata = {**manifest["metadata"], "uid": "own", "resourceVersion": "7", "creationTimestamp": CREATED}
    stored = {**json.loads(json.dumps(manifest, allow_nan=False)), "metadata": metadata}
    assert read_injected(stored).world.actives >= 1
