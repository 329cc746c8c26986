"""What `why` says about faults that only a cluster has: from the pod's status, as the kubelet and others write it, to
the operator's status of the job, and from there to the text."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tests.unit.operator.given import A0, NOW, a_job, a_pod, a_recovery, a_snapshot, in_round, observed, status_of
from understudy_cli.reading import read_job, recoveries_of
from understudy_cli.views.causes import Why, why
from understudy_operator.observe.read import read_pod
from understudy_operator.plan.facts.cluster_objects import Pod
from understudy_protocol import pod as names
from understudy_protocol.enums import Fault
from understudy_protocol.observer import Cause

LOST = a_recovery(fault=Fault.POD, cause=Cause(0, "a0", "node-a0", None, None, "its connection ended"))


def out_of_memory() -> Why:
    """The kernel killed the trainer container of the pod of rank 0, because it exceeded its limit."""
    killed = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
    status = {"phase": "Failed", "containerStatuses": [{"name": "trainer", "state": killed}]}
    return _after_loss(_pod(status))


def evicted() -> Why:
    """The kubelet evicted the pod of rank 0, because its node ran out of disk."""
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "TerminationByKubelet",
        "message": "The node was low on resource: ephemeral-storage",
    }
    return _after_loss(_pod({"phase": "Failed", "reason": "Evicted", "conditions": [condition]}))


def wrong_image() -> Why:
    """The image of the only spare does not exist."""
    waiting = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "registry/train:41"'}
    status = {"phase": "Pending", "containerStatuses": [{"name": "trainer", "state": {"waiting": waiting}}]}
    spare = replace(a_pod("s0", phase="Pending", sidecar_started=False), trouble=_pod(status).trouble)
    return _why(status_of(observed(a_job(status=in_round(0)), pods=[A0, spare], snapshot=a_snapshot())))


def all_of_them() -> Iterator[tuple[str, str, str]]:
    """For each: its name, how it was made, and what `why` says."""
    for name, how, found in (
        ("out of memory of a container", "status of the pod: OOMKilled", out_of_memory()),
        ("eviction of a pod", "status of the pod: Evicted, and DisruptionTarget", evicted()),
    ):
        yield name, how, f"{found.faults[0].place}: {found.faults[0].symptom}"
    yield "wrong image on a spare", "status of the spare: ImagePullBackOff", wrong_image().problems[0]


def _pod(status: dict[str, Any]) -> Pod:
    limits = {"limits": {"memory": "64Gi"}}
    trainer = {"name": "trainer", "env": [{"name": names.ENV_NPROC, "value": "1"}], "resources": limits}
    metadata = {"name": "a0", "uid": "uid-a0", "creationTimestamp": "2026-11-20T09:00:00Z"}
    raw = {"metadata": metadata, "spec": {"containers": [trainer]}, "status": status}
    return read_pod(raw)


def _after_loss(pod: Pod) -> Why:
    dead = a_pod("a0", 0, phase="Failed", out_of_memory=pod.out_of_memory, disruption=pod.disruption)
    snapshot = a_snapshot(recoveries=[LOST])
    return _why(status_of(observed(a_job(status=in_round(0)), pods=[dead], snapshot=snapshot)))


def _why(status: dict[str, Any]) -> Why:
    job = read_job({"kind": "TrainingJob", "metadata": {"name": "llm", "namespace": "team-a"}, "status": status})
    return why(job, recoveries_of(job, ()), NOW, 1, "understudy")
