"""Reads facts from objects of the API. Pure.

Each field is checked. An object without any of these fields is read, too: its row has dashes.
"""

import re
from collections.abc import Iterable
from dataclasses import replace

from understudy_cli import fields
from understudy_cli.facts import (
    AvoidedNode,
    Cause,
    Condition,
    DrillRecord,
    Event,
    Goodput,
    Job,
    LostTime,
    Node,
    Pod,
    Pool,
    Recovery,
    SavedSnapshot,
)
from understudy_cli.fields import Raw
from understudy_cli.untrusted import one_line
from understudy_protocol import pod as names
from understudy_protocol.goodput import Part

#: Strategies, in the order of `status.recoveriesByStrategy`.
STRATEGIES = ("inPlace", "spareSwap", "podRecreate", "jobRestart")
_NAME_LENGTH = 253
_MOST_CONSEQUENCES = 64


def read_job(raw: Raw) -> Job:
    status = fields.table(raw, "status")
    return Job(
        kind=fields.text(raw, "kind"),
        namespace=_name(raw, "metadata", "namespace"),
        name=_name(raw, "metadata", "name"),
        uid=_name(raw, "metadata", "uid"),
        created_at=fields.time(raw, "metadata", "creationTimestamp"),
        target=_name(status, "target"),
        phase=fields.text(status, "phase", limit=40),
        conditions=_conditions(status),
        started_at=fields.time(status, "startTime"),
        completed_at=fields.time(status, "completionTime"),
        members_desired=fields.count(status, "members", "desired"),
        members_active=fields.count(status, "members", "active"),
        members_ready=fields.count(status, "members", "ready"),
        spares_desired=fields.count(status, "spares", "desired"),
        spares_ready=fields.count(status, "spares", "ready"),
        spares_claimed=fields.count(status, "spares", "claimed"),
        round=fields.number(status, "round"),
        coordinator=_name(status, "coordinator", "podName"),
        recoveries_by_strategy=tuple(fields.count(status, "recoveriesByStrategy", name) for name in STRATEGIES),
        last_recovery=_recovery_of(status, "lastRecovery"),
        recoveries=tuple(read_recovery(entry) for entry in fields.entries(status, "recoveries")),
        step=fields.number(status, "progress", "step"),
        is_step_counted=fields.flag(status, "progress", "counted"),
        total_steps=fields.number(status, "progress", "total"),
        stepped_at=fields.time(status, "progress", "at"),
        snapshot=_snapshot(status, "snapshot"),
        copied_snapshot=_snapshot(status, "copiedSnapshot"),
        goodput=_goodput(fields.table(status, "goodput")),
        avoided_nodes=tuple(map(_avoided, fields.entries(status, "avoidedNodes"))),
        pool=_name(raw, "spec", "spares", "pool"),
        restarts=fields.count(status, "restarts"),
        allows_drills="Allowed" in _drills_settings(raw),
        drill=_drill(fields.table(status, "drill")),
    )


def _snapshot(status: Raw, field: str) -> SavedSnapshot | None:
    step = fields.number(status, "progress", field, "step")
    at = fields.time(status, "progress", field, "at")
    return None if step is None or at is None else SavedSnapshot(step, at)


def _drills_settings(raw: Raw) -> tuple[str, str]:
    """Of a TrainingJob and of an InjectedJob."""
    return fields.text(raw, "spec", "drills"), fields.text(raw, "spec", "annotations", "drills")


def read_recovery(raw: Raw) -> Recovery:
    """An object of kind Recovery, or an entry of `status.recoveries`, which has a part of its fields."""
    consequences = tuple(map(_cause, fields.entries(raw, "consequences")))[:_MOST_CONSEQUENCES]
    return Recovery(
        fault=fields.text(raw, "fault", limit=40),
        strategy=fields.text(raw, "strategy", limit=40),
        reason=fields.text(raw, "reason"),
        round=fields.number(raw, "round"),
        cause=_cause(fields.table(raw, "cause")),
        detected_at=fields.time(raw, "detectedAt"),
        running_at=fields.time(raw, "runningAt"),
        resumed_at=fields.time(raw, "resumedAt"),
        pause_s=fields.decimal(raw, "pauseSeconds"),
        outcome=fields.text(raw, "outcome", limit=40),
        traceback=fields.lines(raw, "cause", "traceback"),
        consequences=consequences,
        consequence_count=max(len(consequences), fields.count(raw, "consequenceCount")),
        restored_from=fields.text(raw, "restoredFrom", limit=40),
        restore_reason=fields.text(raw, "restoreReason"),
        lost_steps=fields.number(raw, "lostSteps"),
        gpu_seconds_lost=fields.decimal(raw, "gpuSecondsLost"),
        rank_seconds_lost=fields.decimal(raw, "rankSecondsLost"),
        owners=tuple(_name(owner, "uid") for owner in fields.entries(raw, "metadata", "ownerReferences")),
    )


def recoveries_of(job: Job, objects: Iterable[Recovery]) -> tuple[Recovery, ...]:
    """The recoveries of a job that are known, the oldest first: its objects of kind Recovery, and those of its status.

    objects: those of kind Recovery, of any job; empty if the cluster does not have the kind. An object has more fields
    than an entry of the status about the same fault.
    """
    of_status = job.recoveries or (() if job.last_recovery is None else (job.last_recovery,))
    of_objects = [recovery for recovery in objects if job.uid in recovery.owners]
    times = {recovery.detected_at for recovery in of_objects}
    known = [*(_ended_with(job, each) for each in of_status if each.detected_at not in times), *of_objects]
    return tuple(sorted(known, key=lambda recovery: recovery.detected_at or 0.0))


def _ended_with(job: Job, recovery: Recovery) -> Recovery:
    """The status has no outcomes: a recovery that is open there has ended with its job at the latest."""
    if recovery.is_open and job.has_ended:
        return replace(recovery, outcome="Failed" if job.is_true("Failed") else "Recovered")
    return recovery


def read_pod(raw: Raw) -> Pod:
    labels = fields.words(raw, "metadata", "labels")
    annotations = fields.words(raw, "metadata", "annotations")
    state, message = _state(raw)
    rank = annotations.get(names.ANNOTATION_GROUP_RANK, "")
    trainer = annotations.get(names.ANNOTATION_TRAINER_CONTAINER, "")
    has_rank = labels.get(names.LABEL_ROLE) == names.ROLE_ACTIVE and re.fullmatch(r"[0-9]{1,6}", rank)
    return Pod(
        namespace=_name(raw, "metadata", "namespace"),
        name=_name(raw, "metadata", "name"),
        uid=_name(raw, "metadata", "uid"),
        job=labels.get(names.LABEL_JOB, ""),
        job_uid=labels.get(names.LABEL_JOB_UID, ""),
        role=labels.get(names.LABEL_ROLE, ""),
        group_rank=int(rank) if has_rank else None,
        nproc=_nproc(raw),
        node=_name(raw, "spec", "nodeName"),
        state=state,
        message=message,
        is_ready=_is_true(raw, "Ready"),
        has_ended=fields.text(raw, "status", "phase") in ("Succeeded", "Failed"),
        is_coordinator=labels.get(names.LABEL_COORDINATOR) == "true",
        created_at=fields.time(raw, "metadata", "creationTimestamp"),
        pool=labels.get(names.LABEL_POOL, ""),
        claimed_by=annotations.get(names.ANNOTATION_CLAIMED_BY, ""),
        trainer=trainer or _trainer(raw),
    )


def read_event(raw: Raw) -> Event:
    times = (("series", "lastObservedTime"), ("lastTimestamp",), ("eventTime",), ("firstTimestamp",))
    return Event(
        about_uid=_name(raw, "involvedObject", "uid"),
        at=next((at for path in times if (at := fields.time(raw, *path)) is not None), None),
        reason=fields.text(raw, "reason", limit=60),
        message=fields.text(raw, "message"),
        times=fields.count(raw, "series", "count") or fields.count(raw, "count"),
        is_warning=fields.text(raw, "type") == "Warning",
    )


def read_node(raw: Raw) -> Node:
    annotations = fields.words(raw, "metadata", "annotations")
    faulty = annotations.get(names.ANNOTATION_FAULTY, "")
    return Node(
        name=_name(raw, "metadata", "name"),
        is_ready=_is_true(raw, "Ready"),
        is_unschedulable=fields.flag(raw, "spec", "unschedulable"),
        faulty="" if faulty == "false" else faulty,
        maintenance=annotations.get(names.ANNOTATION_MAINTENANCE, ""),
        expires=annotations.get(names.ANNOTATION_FAULT_EXPIRES, ""),
    )


def read_pool(raw: Raw) -> Pool:
    status = fields.table(raw, "status")
    return Pool(
        namespace=_name(raw, "metadata", "namespace"),
        name=_name(raw, "metadata", "name"),
        uid=_name(raw, "metadata", "uid"),
        desired=fields.count(status, "desired"),
        ready=fields.count(status, "ready"),
        claimed=fields.count(status, "claimed"),
        available=fields.count(status, "available"),
        conditions=_conditions(status),
        created_at=fields.time(raw, "metadata", "creationTimestamp"),
    )


def _cause(raw: Raw) -> Cause:
    return Cause(
        rank=fields.number(raw, "rank"),
        pod=_name(raw, "pod"),
        node=_name(raw, "node"),
        exit_code=fields.number(raw, "exitCode"),
        signal=fields.text(raw, "signal", limit=40),
        message=fields.text(raw, "message"),
    )


# Parts ----------------------------------------------------------------------------------------------------------------


def _name(raw: object, *path: str) -> str:
    return fields.text(raw, *path, limit=_NAME_LENGTH)


def _conditions(status: Raw) -> tuple[Condition, ...]:
    return tuple(
        Condition(
            type=fields.text(entry, "type", limit=60),
            status=fields.text(entry, "status", limit=10),
            reason=fields.text(entry, "reason", limit=60),
            message=fields.text(entry, "message"),
            at=fields.time(entry, "lastTransitionTime"),
        )
        for entry in fields.entries(status, "conditions")
    )


def _recovery_of(status: Raw, name: str) -> Recovery | None:
    found = fields.table(status, name)
    return read_recovery(found) if found else None


def _goodput(raw: Raw) -> Goodput | None:
    since, word = fields.time(raw, "since"), fields.text(raw, "part", limit=40)
    part = next((part for part in Part if part.value == word), None)
    if since is None or (word and part is None):
        return None
    seconds = {part.field: max(0.0, fields.decimal(raw, "seconds", part.field) or 0.0) for part in Part}
    is_repeated_unknown = fields.flag(raw, "repeatedUnknown")
    return Goodput(since, part, seconds, is_repeated_unknown, tuple(map(_lost, fields.entries(raw, "lost"))))


def _lost(raw: Raw) -> LostTime:
    return LostTime(
        fault=fields.text(raw, "fault", limit=40),
        node=_name(raw, "node"),
        seconds=fields.decimal(raw, "seconds") or 0.0,
        gpu_seconds=fields.decimal(raw, "gpuSeconds"),
        rank_seconds=fields.decimal(raw, "rankSeconds"),
    )


def _drill(raw: Raw) -> DrillRecord | None:
    pods = fields.get(raw, "pods")
    return (
        DrillRecord(
            request=fields.text(raw, "request", limit=80),
            at=fields.time(raw, "at"),
            pods=tuple(one_line(pod, _NAME_LENGTH) for pod in pods if isinstance(pod, str))
            if isinstance(pods, list)
            else (),
            node=_name(raw, "node"),
            refusal=fields.text(raw, "refusal"),
        )
        if raw
        else None
    )


def _avoided(raw: Raw) -> AvoidedNode:
    return AvoidedNode(
        node=_name(raw, "node"),
        source=_name(raw, "source"),
        fault_class=fields.text(raw, "class", limit=40),
        reason=fields.text(raw, "reason"),
        until=fields.time(raw, "until"),
    )


def _is_true(raw: Raw, kind: str) -> bool:
    conditions = fields.entries(raw, "status", "conditions")
    return any(fields.text(entry, "type") == kind and fields.text(entry, "status") == "True" for entry in conditions)


def _trainer(raw: Raw) -> str:
    """The container with the launcher: the first with the variable of `launcher.nprocPerNode`, else the first one."""
    containers = list(fields.entries(raw, "spec", "containers"))
    with_launcher = [container for container in containers if _variable(container, names.ENV_NPROC)]
    return next((_name(container, "name") for container in (*with_launcher, *containers)), "")


def _nproc(raw: Raw) -> int:
    containers = fields.entries(raw, "spec", "containers")
    found = next((value for container in containers if (value := _variable(container, names.ENV_NPROC))), "")
    return int(found) if re.fullmatch(r"[1-9][0-9]{0,3}", found) else 0


def _variable(container: Raw, name: str) -> str:
    variables = fields.entries(container, "env")
    return next((fields.text(entry, "value") for entry in variables if fields.text(entry, "name") == name), "")


def _state(raw: Raw) -> tuple[str, str]:
    """One word for the state of a pod, and a message if it is in trouble."""
    status = fields.table(raw, "status")
    phase, reason = fields.text(status, "phase", limit=40), fields.text(status, "reason", limit=60)
    if fields.get(raw, "metadata", "deletionTimestamp") is not None:
        return "Terminating", ""
    if phase == "Failed":
        return reason or _exit(status), fields.text(status, "message")
    if phase == "Pending":
        return _waiting(status)
    if phase == "Running" and not _is_true(raw, "Ready"):
        return _waits(status) or ("NotReady", "")
    return phase or "Unknown", ""


def _waiting(status: Raw) -> tuple[str, str]:
    for condition in fields.entries(status, "conditions"):
        if fields.text(condition, "type") == "PodScheduled" and fields.text(condition, "status") == "False":
            return fields.text(condition, "reason", limit=60) or "Unschedulable", fields.text(condition, "message")
    return _waits(status) or ("Pending", "")


def _waits(status: Raw) -> tuple[str, str] | None:
    """The reason for which a container waits, other than the ordinary one."""
    for kind in ("initContainerStatuses", "containerStatuses"):
        for container in fields.entries(status, kind):
            waiting = fields.table(container, "state", "waiting")
            reason = fields.text(waiting, "reason", limit=60)
            if reason and reason not in ("ContainerCreating", "PodInitializing"):
                return reason, fields.text(waiting, "message")
    return None


def _exit(status: Raw) -> str:
    """The reason, such as OOMKilled. The reason `Error` says less than the exit code."""
    for container in fields.entries(status, "containerStatuses"):
        ended = fields.table(container, "state", "terminated")
        code, reason = fields.count(ended, "exitCode"), fields.text(ended, "reason", limit=60)
        if code:
            return f"Exit:{code}" if reason in ("", "Error") else reason
    return "Failed"
