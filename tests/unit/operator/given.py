"""The base data of the operator's tests: a small job, its pods and nodes, and its coordinator's reports.

Each builder makes an ordinary object; a test states only the differences. Unless a test changes it, the job is `llm`
with two actives and one spare, it has been running since NOW - 1 h, and every node is Ready.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from understudy_operator.plan.facts.cluster_objects import Node, Pod
from understudy_operator.plan.facts.job import Job
from understudy_operator.plan.facts.keyring import Keyring
from understudy_operator.plan.facts.observed import Coordination, Observed
from understudy_operator.plan.facts.pod_answers import PodAnswer, PodAnswers
from understudy_operator.plan.facts.pods import Pods
from understudy_operator.plan.facts.secret_writes import SecretWrites
from understudy_operator.plan.facts.spec import JobSpec, ReplicatedJob, World
from understudy_operator.plan.facts.status import JobStatus, read_job_status, written
from understudy_operator.plan.leadership.coordination import Leadership
from understudy_operator.plan.manifests.object_names import membership_secret_name, rollout_secret_name
from understudy_operator.plan.manifests.shape import facts_secret_name
from understudy_operator.plan.status.next_status import plan_status
from understudy_operator.plan.verdicts.findings import Finding
from understudy_protocol import pod as names
from understudy_protocol.enums import CloseReason, Fault, FaultClass, RoundToken, Strategy, WorkersState
from understudy_protocol.membership import Close
from understudy_protocol.observer import Cause, Lost, MemberView, Recovery, Snapshot, StepProgress
from understudy_protocol.rollouts import Rollouts

NEVER = math.inf

NOW = 1_790_000_000.0
AN_HOUR_AGO = NOW - 3600
ADDRESS = "10.0.0.7:8478"
KEYRING = Keyring(b"the master secret of these tests, of 41 B")
IMAGE = "example.com/sidecar:1"
KEYRING = Keyring(bytes(range(32)))

TEMPLATE: Mapping[str, Any] = {
    "spec": {"containers": [{"name": "trainer", "image": "example.com/trainer:1", "command": ["python", "train.py"]}]}
}


def a_group(
    name: str = "workers",
    replicas: int = 1,
    parallelism: int = 2,
    pod_template: Mapping[str, Any] = TEMPLATE,
    *,
    metadata: Mapping[str, Any] = MappingProxyType({}),
    job_spec: Mapping[str, Any] = MappingProxyType({}),
    **changes: Any,
) -> ReplicatedJob:
    template = {"metadata": dict(metadata), "spec": {"parallelism": parallelism, "template": pod_template, **job_spec}}
    return ReplicatedJob(name, template, replicas, **changes)


def a_job(
    *,
    status: Mapping[str, Any] | JobStatus | None = None,
    deleting: bool = False,
    completed_at: float | None = None,
    name: str = "llm",
    replicated_job: str = "workers",
    replicas: int = 1,
    parallelism: int = 2,
    pod_template: Mapping[str, Any] = TEMPLATE,
    job_template_metadata: Mapping[str, Any] = MappingProxyType({}),
    spec: Mapping[str, Any] = MappingProxyType({}),
    **world: Any,
) -> Job:
    """world: the fields of the World that differ; spec: the other fields of the spec that differ."""
    group = a_group(replicated_job, replicas, parallelism, pod_template, metadata=job_template_metadata)
    ordinary: dict[str, Any] = {"groups": (group,), "nproc_per_node": 8, "container": "trainer", "spares": 1}
    whole: dict[str, Any] = {"replicated_jobs": (group,), "world": World(**(ordinary | world)), **spec}
    return Job(
        namespace="research",
        name=name,
        uid="job-uid",
        generation=1,
        resource_version="7",
        deleting=deleting,
        created_at=AN_HOUR_AGO,
        completed_at=completed_at,
        spec=JobSpec(**whole),
        status=a_status(status or {}),
    )


def a_status(fields: Mapping[str, Any] | JobStatus) -> JobStatus:
    """The status that the operator reads from these fields of the API."""
    return fields if isinstance(fields, JobStatus) else read_job_status({"status": fields})[0]


def in_round(number: int = 0, coordinator: str = "s", epoch: int = 1, term: int = 1, **status: Any) -> dict[str, Any]:
    """The status of a job in this round, whose coordinator is this pod. term 0: it is appointed and has not reported
    yet.
    """
    received = {"term": term} if term else {}
    leadership = {
        "epoch": epoch,
        **received,
        "podName": coordinator,
        "podUID": f"uid-{coordinator}",
        "address": ADDRESS,
    }
    return {"round": number, "coordinator": leadership, **status}


def a_pod(name: str, index: int | None = None, **changes: Any) -> Pod:
    """A running pod, created for this index or as a spare, on a node of its own."""
    role = names.ROLE_SPARE if index is None else names.ROLE_ACTIVE
    ordinary = Pod(
        uid=f"uid-{name}",
        name=name,
        node=f"node-{name}",
        ip="10.1.0.1",
        phase="Running",
        spare=index is None,
        index=index,
        labels={names.LABEL_ROLE: role},
        annotations={} if index is None else {names.ANNOTATION_GROUP_RANK: str(index)},
        created_at=AN_HOUR_AGO,
        deleting_since=None,
        grace_s=30.0,
        sidecar_started=True,
        sidecar_ran=True,
        close=None,
        trouble="",
    )
    return replace(ordinary, **changes)


def pending(pod: Pod) -> Pod:
    return replace(pod, node="", ip="", phase="Pending", sidecar_started=False, sidecar_ran=False)


def starting(pod: Pod) -> Pod:
    """On its node; its sidecar has not started yet."""
    return replace(pod, phase="Pending", sidecar_started=False, sidecar_ran=False)


def ended(pod: Pod, close: Close | None = None) -> Pod:
    phase = "Succeeded" if close is not None and close.reason is CloseReason.SUCCEEDED else "Failed"
    return replace(pod, phase=phase, sidecar_started=False, close=close)


def terminating(pod: Pod, since: float = NOW) -> Pod:
    return replace(pod, deleting_since=since)


#: The finding about a node that has lost a GPU.
XID_79 = Finding("nvsentinel-xid", FaultClass.HARDWARE, "Xid 79")
#: The three pods of the job: two actives, and a spare that coordinates.
A0, A1, S = a_pod("a0", 0), a_pod("a1", 1), a_pod("s")
SUCCEEDED = Close(CloseReason.SUCCEEDED, "all workers of all members exited 0")
FAILED = Close(CloseReason.FAILED, "10 restarts in place within 1 h are spent")


def member(pod: Pod, rank: int | None, workers: WorkersState | None = None) -> MemberView:
    at_work = WorkersState.IDLE if rank is None else WorkersState.RUNNING
    return MemberView(pod.uid, pod.name, pod.node, pod.index, rank, workers or at_work)


def lost(pod: Pod, fault: Fault = Fault.POD, at: float = NOW, reason: str = "its connection ended") -> Lost:
    return Lost(pod.uid, pod.name, pod.node, fault, reason, at)


def a_recovery(detected_at: float = NOW - 2, resumed_at: float | None = None, **changes: Any) -> Recovery:
    cause = Cause(8, "a1", "node-a1", None, "SIGKILL", "killed")
    return replace(Recovery(1, Fault.PROCESS, Strategy.IN_PLACE, cause, detected_at, resumed_at), **changes)


def a_snapshot(
    members: Iterable[MemberView] = (member(A0, 0), member(A1, 1), member(S, None)),
    *,
    number: int = 0,
    epoch: int = 1,
    term: int = 1,
    lost: Sequence[Lost] = (),
    recoveries: Sequence[Recovery] = (),
    counts: Mapping[str, int] | None = None,
    progress: StepProgress | None = None,
    waiting_for: str = "",
    closed: Close | None = None,
    coordinator: Pod = S,
    actives: int = 0,
    standby_coordinators: Iterable[Pod] = (),
    voters: Iterable[Pod] = (),
    rollouts: Rollouts | None = None,
) -> Snapshot:
    return Snapshot(
        RoundToken(epoch, term, number),
        coordinator.uid,
        tuple(members),
        tuple(lost),
        tuple(recoveries),
        dict(counts or {}),
        progress,
        waiting_for,
        closed,
        actives,
        tuple(pod.uid for pod in standby_coordinators),
        tuple(pod.uid for pod in voters),
        rollouts,
    )


def observed(
    job: Job | None = None,
    pods: Iterable[Pod] = (A0, A1, S),
    snapshot: Snapshot | None = None,
    *,
    not_ready: Iterable[str] = (),
    searches_since: float | None = None,
    reason: str = "not the coordinator",
    responders: Iterable[Pod] = (),
    responding_since: float | None = None,
    named: str = "",
    config_epoch: int = 0,
    previous_pods: Iterable[Pod] = (),
    **changes: Any,
) -> Observed:
    """By default a job that runs in round 0, and whose Secrets this process has created. Without a snapshot the
    operator has just started; with one it is connected to the coordinator.

    searches_since: when the connection to the coordinator ended. answered: the pods that have reported since then
    (responding_since) that they are not the coordinator, with the coordinator that they name and their voter
    configuration.
    """
    pods, job = Pods(pods), job if job is not None else a_job(status=in_round(0))
    lines = {pod.uid: PodAnswer(reason, named, config_epoch) for pod in responders}
    down = set(not_ready)
    nodes = {pod.node: Node(pod.node, pod.node not in down) for pod in pods if pod.node}
    ordinary = Observed(
        job=job,
        pods=pods,
        nodes=nodes,
        coordination=Coordination(
            snapshot,
            snapshot.pod_uid if snapshot is not None and searches_since is None else "",
            NOW if searches_since is None else searches_since,
            PodAnswers(lines, (responding_since or searches_since or NOW) if lines else NEVER),
        ),
        keyring=KEYRING,
        has_hostnames_service=True,
        coordinator_address=ADDRESS,
        entropy="entropy",
        secret_writes=SecretWrites(dict.fromkeys(secret_names(job), AN_HOUR_AGO)),
        previous_pods=Pods(previous_pods),
    )
    return replace(ordinary, **changes)


def secret_names(job: Job) -> tuple[str, ...]:
    """All Secrets that the job may have while its coordinator's Service has ADDRESS."""
    facts = () if job.spec.world is None else (facts_secret_name(job, ADDRESS),)
    return (membership_secret_name(job), rollout_secret_name(job), *facts)


WAITING = "1 of 2 pods (group ranks 1)"
#: Two nodes that stopped responding at the same moment.
TIES = [
    a_recovery(NOW, fault=Fault.NODE, strategy=None, cause=Cause(8 * i, f"a{i}", "n", None, None, "silent"))
    for i in range(2)
]
LEADERSHIP = Leadership(1, 1, S, "")


def status_of(given: Observed, leadership: Leadership = LEADERSHIP, now: float = NOW) -> dict[str, Any]:
    return written(plan_status(given, leadership, now))


def after(before: Mapping[str, Any], snapshot: Snapshot | None, now: float = NOW, **changes: Any) -> dict[str, Any]:
    """The status after a reconcile that observes this status and this snapshot."""
    return status_of(observed(a_job(status=before), snapshot=snapshot, **changes), now=now)


def condition(status: Mapping[str, Any], kind: str) -> dict[str, Any]:
    (found,) = [x for x in status["conditions"] if x["type"] == kind]
    return dict(found)
