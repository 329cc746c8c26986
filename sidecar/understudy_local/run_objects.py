"""A run as the objects that a cluster would have: a TrainingJob, its pods, its events, and its Recoveries.

So `understudy local get`, `why` and `timeline` show a run with the views of a cluster.
"""

import time
from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from understudy_local.cluster import Happened, LocalCluster
from understudy_local.training_job import CONTAINER, NAMESPACE
from understudy_operator.plan.facts.cluster_objects import Pod
from understudy_operator.plan.facts.ownership import API_VERSION, KIND
from understudy_operator.plan.facts.recovery_objects import RECOVERY_KIND, Outcome, RecoveryFields, recovery_json
from understudy_operator.plan.facts.status import Goodput, JobStatus, PartSeconds, written
from understudy_operator.plan.times.rfc3339 import micro_time, parse_time, whole_seconds
from understudy_protocol import pod as names
from understudy_protocol.goodput import SINCE_LAST_STEP, Part, parts_at

#: The phase of a run that ended without a result, for example by Ctrl-C. A TrainingJob has no such phase.
STOPPED = "Stopped"


def described(cluster: LocalCluster, *, has_ended: bool = False) -> dict[str, Any]:
    """{"job": TrainingJob, "pods": [Pod, …], "events": [Event, …], "recoveries": [Recovery, …]}, as JSON objects."""
    is_stopped = has_ended and not cluster.status.terminal_state
    status = written(stopped(cluster.status, time.time()) if is_stopped else cluster.status)
    job = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": cluster.folder.name,
            "namespace": NAMESPACE,
            "uid": cluster.uid,
            "creationTimestamp": whole_seconds(cluster.started_at),
        },
        "spec": {"launcher": {"nprocPerNode": cluster.options.nproc}},
        "status": status,
    }
    pods = [_pod(pod.observed(), cluster.options.nproc) for pod in cluster.pods.values()]
    return {
        "job": job,
        "pods": pods,
        "events": _events(cluster.happened, cluster.uid),
        "recoveries": [
            _recovery(name, fields, cluster.uid, is_stopped=is_stopped)
            for name, fields in sorted(cluster.recoveries.items())
        ],
    }


def stopped(status: JobStatus, now: float) -> JobStatus:
    """The last status of a run that ended without a result: no time passes after it."""
    ended = None if status.goodput is None else _ended_account(status.goodput, status, now)
    return replace(status, phase=STOPPED, goodput=ended)


def _ended_account(account: Goodput, status: JobStatus, now: float) -> Goodput:
    """The time after the last step is that of the end."""
    stepped_at = None if status.progress is None or status.progress.at is None else parse_time(status.progress.at)
    parts = parts_at(account.seconds_by_field, account.part, parse_time(account.since), stepped_at, now)
    parts[Part.ENDING.field] += parts.pop(SINCE_LAST_STEP)
    seconds = PartSeconds.of({part: parts[part.field] for part in Part})
    return replace(account, part=None, since=micro_time(now), seconds=seconds)


def _recovery(name: str, fields: RecoveryFields, uid: str, *, is_stopped: bool) -> dict[str, Any]:
    if is_stopped and fields.outcome is None:
        fields = replace(fields, outcome=Outcome.UNKNOWN)
    metadata = {"name": name, "namespace": NAMESPACE, "ownerReferences": [{"uid": uid}]}
    return {"apiVersion": API_VERSION, "kind": RECOVERY_KIND, "metadata": metadata, **recovery_json(fields)}


def _pod(pod: Pod, nproc: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "name": pod.name,
        "namespace": NAMESPACE,
        "uid": pod.uid,
        "labels": pod.labels,
        "annotations": pod.annotations,
        "creationTimestamp": whole_seconds(pod.created_at),
    }
    if pod.deleting_since is not None and pod.exit_code is None:
        metadata["deletionTimestamp"] = whole_seconds(pod.deleting_since)
    trainer = {"name": CONTAINER, "env": [{"name": names.ENV_NPROC, "value": str(nproc)}]}
    ready = {"type": "Ready", "status": "True" if pod.sidecar_started and pod.exit_code is None else "False"}
    status: dict[str, Any] = {"phase": pod.phase, "conditions": [ready]}
    if pod.exit_code is not None:
        status["containerStatuses"] = [{"name": CONTAINER, "state": {"terminated": {"exitCode": pod.exit_code}}}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"nodeName": pod.node, "containers": [trainer]},
        "status": status,
    }


def _events(happened: Iterable[Happened], uid: str) -> list[dict[str, Any]]:
    return [
        {
            "involvedObject": {"uid": uid},
            "type": each.kind,
            "reason": each.reason,
            "message": each.message,
            "eventTime": micro_time(each.at),
        }
        for each in happened
    ]
