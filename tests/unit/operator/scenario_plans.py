"""Scenarios: observed states in words, and the operator's plan for each, with its reasons.

tests/unit/operator/scenarios/*.yaml has the scenarios; test_scenarios.py compares the plans. After an intended change,

    scripts/py -m tests.unit.operator.scenario_plans

rewrites the plans; read the diff.

A scenario has `given`: `groups` (replicatedJobs by name, with the fields that differ), `world` (names of those whose
pods train; by default none), `spec` (its other fields, as in a manifest), `status`, `jobs` (child Jobs by name), `job
pods` (their pods that delay them), `pods` (of the world, by name; `gang` is the pod group in Kueue's queue), `reported`
(by the coordinator), `nodes` (by name: the fields that differ), `offenders` (nodes that have failed jobs before) and
`facts` (all other differences). All other fields are ordinary: see given.py. A pod has the `rank` that it was created
for, unless it has a `current rank`.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from tests.unit.operator.given import (
    ADDRESS,
    AN_HOUR_AGO,
    IMAGE,
    NOW,
    TEMPLATE,
    a_pod,
    a_snapshot,
    lost,
    member,
    observed,
)
from tests.unit.operator.golden_plans import by_name, crd_schema, keys, write
from understudy_operator.observe.read import read_job
from understudy_operator.observe.read_node import read_node
from understudy_operator.plan.facts import queue as kueue
from understudy_operator.plan.facts.cluster_objects import ChildJob, Node, Pod
from understudy_operator.plan.facts.job import Job
from understudy_operator.plan.facts.keys import JOB_NAME
from understudy_operator.plan.facts.observed import Observed
from understudy_operator.plan.facts.recovery_objects import RecoveryFields
from understudy_operator.plan.facts.refusals import read_refusal
from understudy_operator.plan.facts.secret_writes import SecretWrites
from understudy_operator.plan.facts.status import written
from understudy_operator.plan.intents import (
    Create,
    CreateJob,
    CreatePod,
    DeleteJob,
    DeletePod,
    DeleteSecret,
    Follow,
    PatchJob,
    PatchPod,
    Plan,
    PodIntent,
    ReleasePod,
    Unfollow,
)
from understudy_operator.plan.manifests.child_jobs import FINGERPRINT, job_manifest
from understudy_operator.plan.reconcile import reconcile
from understudy_operator.plan.times.rfc3339 import micro_time
from understudy_operator.runtime.kept_fields import select_node_fields
from understudy_protocol import pod as names
from understudy_protocol.enums import CloseReason, Fault, WorkersState
from understudy_protocol.membership import Close
from understudy_protocol.recovery import Cause
from understudy_protocol.rollouts import Rollouts, UpdateFailure

FOLDER = Path(__file__).parent / "scenarios"
Raw = Mapping[str, Any]
HOW_JOBS_ARE: Mapping[str, Mapping[str, Any]] = {
    "pending": {"active": 1},
    "without pods": {"started_at": NOW - 60},
    "ready": {"active": 1, "ready": 1, "started_at": NOW - 60},
    "succeeded": {"ended": True, "is_complete": True, "started_at": NOW - 60},
    "failed": {"ended": True, "started_at": NOW - 60, "ended_at": NOW - 5},
    "suspended": {"suspended": True},
    "suspended after start": {"suspended": True, "started_at": NOW - 60},
    "queued": {"suspended": True, "queue": "team"},
    "admitted": {"active": 1, "ready": 1, "started_at": NOW - 60, "queue": "team"},
    "deleting": {"deleting": True},
}

STARTING: Raw = {"phase": "Pending", "ip": "", "sidecar_started": False, "sidecar_ran": False}
FAILED: Raw = {"phase": "Failed", "sidecar_started": False}
#: The default values of status, which are not shown.
DEFAULT_FIELDS = {"restarts": 0, "restartsCountTowardsMax": 0, "observedGeneration": 1}
#: `for` sets these times to so many seconds ago.
TIMES = ("deleting_since", "waiting_since", "created_at")
HOW_PODS_ARE: Mapping[str, Mapping[str, Any]] = {
    "terminating": {"deleting_since": NOW - 1},
    "ended": FAILED,
    "pending": {**STARTING, "node": ""},
    "gated": {**STARTING, "node": "", "gates": (kueue.GATE,)},
    "starting": {**STARTING, "waiting_since": NOW - 1},
    "refused by its kubelet": {**FAILED, "sidecar_ran": False, "could_start": False, "created_at": NOW - 0.5},
}

POD = keys(
    *(
        "age",
        "attempt",
        "coordinator",
        "failed starts",
        "failure",
        "for",
        "gang",
        "group",
        "finalizers",
        "job",
        "kueue",
    ),
    *("let go", "made of", "rank", "current rank", "trouble"),
    **{"is": {"enum": HOW_PODS_ARE}},
)
ROLLOUTS = keys("blocked", "failed", "fresh", "in a row", "uncertain", "updating", "version")
FIELDS = crd_schema("trainingjobs")
GROUP = FIELDS["spec"]["properties"]["replicatedJobs"]["items"]["properties"]
IS_CHILD = keys(
    *("attempt", "own attempt", "made of", *(field.name for field in fields(ChildJob))),
    **{"is": {"enum": HOW_JOBS_ARE}},
)
#: The schema of `given`.
SCHEMA = keys(
    "world",
    "offenders",
    groups=by_name(
        {
            "properties": {
                **GROUP,
                "job": GROUP["template"]["properties"]["spec"],
                "metadata": GROUP["template"]["properties"]["metadata"],
            }
        }
    ),
    spec=FIELDS["spec"],
    status=FIELDS["status"],
    metadata=keys("annotations", "deletionTimestamp", "finalizers", "generation", "labels", "name", "namespace", "uid"),
    jobs=by_name({**IS_CHILD, "enum": HOW_JOBS_ARE}),
    pods=by_name(POD),
    job_pods=by_name(POD),
    reported=keys(
        "epoch", "lost", "round", "ranks", "waiting for", "workers", rollouts=ROLLOUTS, closed=keys("message", "reason")
    ),
    nodes=by_name(keys("annotations", "conditions", "labels", "taints", "unschedulable")),
    facts=keys(
        "checked", "claims", "not ready", "nothing", "paused", "refused", without={"items": {"enum": ("Service",)}}
    ),
)


def planned(scenario: Raw, later_s: float = 0.0) -> list[str]:
    """The plan, one intent a line; with `later_s`, the plan of a reconcile so much later without other changes."""
    given = scenario.get("given", {})
    return list(_lines(reconcile(state(given), IMAGE, NOW + later_s), given.get("status", {})))


# Given ---------------------------------------------------------------------------------------------------------------


def state(given: Raw) -> Observed:
    job = read_job(manifest(given))
    pods = [_pod(name, result or {}) for name, result in given.get("pods", {}).items()]
    named = {pod.name: pod for pod in pods}
    kept = {
        name: (result or {}).get("current rank", named[name].index) for name, result in given.get("pods", {}).items()
    }
    rank_holders = {rank: named[name] for name, rank in kept.items() if rank is not None}
    result = given.get("reported")
    snapshot = None if result is None else _snapshot(result, pods, rank_holders)
    children = tuple(_child(job, name, result) for name, result in given.get("jobs", {}).items())
    facts = given.get("facts", {})
    ordinary = observed(
        job,
        pods,
        snapshot,
        children=children,
        claims=frozenset(facts.get("claims", ())),
        templates_checked=facts.get("checked", True),
        job_pods=tuple(_pod(name, result or {}) for name, result in given.get("job pods", {}).items()),
        not_ready=facts.get("not ready", ()),
        **_objects(facts),
        offenders=given.get("offenders", {}),
    )
    special = {name: _node(name, result) for name, result in given.get("nodes", {}).items()}
    return replace(ordinary, nodes={**ordinary.nodes, **special})


def _node(name: str, result: Raw) -> Node:
    metadata = {"name": name, "labels": result.get("labels", {}), "annotations": result.get("annotations", {})}
    spec = {field: result[field] for field in ("taints", "unschedulable") if field in result}
    conditions = [{"type": "Ready", "status": "True"}, *result.get("conditions", ())]
    return read_node(select_node_fields({"metadata": metadata, "spec": spec, "status": {"conditions": conditions}}))


def _objects(facts: Raw) -> dict[str, Any]:
    """nothing: no object exists yet. without: the Service, if it was deleted. refused: refusals of the last reconcile.
    paused: writes that are not retried yet, with the remaining seconds.
    """
    nothing, without = facts.get("nothing", False), facts.get("without", ())
    values: dict[str, Any] = {
        "has_hostnames_service": not nothing and "Service" not in without,
        "coordinator_address": "" if nothing or "Service" in without else ADDRESS,
        **({"secret_writes": SecretWrites()} if nothing else {}),
        "paused": {key: NOW + pause_s for key, pause_s in facts.get("paused", {}).items()},
    }
    if "refused" in facts:
        refusals = (read_refusal(status, message) for status, message in facts["refused"])
        values["refusals"] = tuple(refusal for refusal in refusals if refusal is not None)
    return values


def manifest(given: Raw) -> Raw:
    groups = given.get("groups", {"workers": {}})
    spec = {"replicatedJobs": [_group(name, result or {}) for name, result in groups.items()], **given.get("spec", {})}
    if "world" in given:
        spec["launcher"] = {"targetReplicatedJobs": given["world"], **spec.get("launcher", {})}
    else:
        spec.setdefault("launcher", {"mode": "Off"})
    metadata = {"namespace": "research", "name": "llm", "uid": "job-uid", "resourceVersion": "7"}
    metadata |= {"creationTimestamp": micro_time(AN_HOUR_AGO), **given.get("metadata", {})}
    return {"metadata": metadata, "spec": spec, "status": _status(given)}


def _status(given: Raw) -> Raw:
    """With the address of the coordinator's Service: the operator has written it as soon as the Service existed."""
    status: Raw = given.get("status", {})
    if "world" not in given or given.get("facts", {}).get("nothing"):
        return status
    return {**status, "coordinator": {**status.get("coordinator", {}), "address": ADDRESS}}


def _group(name: str, result: Raw) -> Raw:
    job_spec = {"parallelism": 1, "template": TEMPLATE, **result.get("job", {})}
    remaining = {field: value for field, value in result.items() if field not in ("job", "metadata")}
    return {"name": name, "template": {"metadata": result.get("metadata", {}), "spec": job_spec}, **remaining}


def _child(job: Job, name: str, result: Any) -> ChildJob:
    """result: the state, or a mapping with more."""
    more: dict[str, Any] = {"is": result} if isinstance(result, str) else dict(result)
    group_name, _, index = name.removeprefix("llm-").rpartition("-")
    group = next((group for group in job.spec.children if group.name == group_name), None)
    made = {} if group is None else job_manifest(job, group, int(index))
    how = dict(HOW_JOBS_ARE[more.pop("is")])
    attempt, own = more.pop("attempt", job.restarts), more.pop("own attempt", job.restarts_of(group_name, int(index)))
    template = made["spec"]["template"] if made else {}
    annotations = made["metadata"]["annotations"] if made else {}
    return ChildJob(
        uid=f"uid-{name}",
        name=name,
        group=group_name,
        index=int(index),
        attempt=attempt,
        job_attempt=own,
        desired_pods=1,
        fingerprint=more.pop("fingerprint", annotations.get(FINGERPRINT, "")),
        template_hash=more.pop("made of", annotations.get(names.ANNOTATION_SPEC_HASH, "")),
        template=more.pop("template", template),
        **(how | more),
    )


def _pod(name: str, result: Raw) -> Pod:
    changes: dict[str, Any] = {
        "attempt": result.get("attempt", 0),
        **(HOW_PODS_ARE[result["is"]] if "is" in result else {}),
    }
    if "job" in result:
        changes["labels"] = {JOB_NAME: result["job"]}
    since = {name: NOW - result["for"] for name in TIMES if name in changes and "for" in result}
    changes |= since | {name: result[name] for name in ("trouble", "failure") if name in result}
    if "finalizers" in result:
        changes["blocking_finalizers"] = tuple(result["finalizers"])
    if "failed starts" in result:
        changes["annotations"] = {names.ANNOTATION_FAILED_STARTS: str(result["failed starts"])}
    if "made of" in result:
        changes["annotations"] = {names.ANNOTATION_SPEC_HASH: result["made of"]}
    if "kueue" in result:
        changes |= _in_queue(result)
    if "coordinator" in result:
        known = changes.get("labels", {names.LABEL_ROLE: names.ROLE_ACTIVE})
        changes["labels"] = {**known, names.LABEL_COORDINATOR: "true"}
    return a_pod(name, result.get("rank"), **changes)


def _in_queue(result: Raw) -> dict[str, Any]:
    """kueue: the pod group, or `alone` for a spare; `gang`: created as a spare, in place of a pod of the group."""
    labels = {names.LABEL_REPLICATED_JOB: result.get("group", "workers"), kueue.MANAGED: "true", kueue.QUEUE: "team"}
    labels |= {names.LABEL_ROLE: names.ROLE_SPARE if result.get("rank") is None else names.ROLE_ACTIVE}
    if result["kueue"] != "alone":
        labels[kueue.GROUP_NAME] = result["kueue"]
    gang = {names.ANNOTATION_GANG_MEMBER: "true"} if result.get("gang") else {}
    rank = {} if result.get("rank") is None else {names.ANNOTATION_GROUP_RANK: str(result["rank"])}
    finalizers = () if result.get("let go") else (kueue.MANAGED,)
    created = {"created_at": NOW - result["age"]} if "age" in result else {}
    return {"labels": labels, "annotations": gang | rank, "finalizers": finalizers} | created


def _snapshot(result: Raw, pods: list[Pod], rank_holders: Mapping[int, Pod]) -> Any:
    working = WorkersState(result.get("workers", WorkersState.RUNNING.value))
    known = {pod.name: pod for pod in pods}
    if "ranks" in result:
        members = [member(known[name], rank) for name, rank in result["ranks"].items()]
    else:
        members = [member(pod, rank if result["round"] >= 0 else None, working) for rank, pod in rank_holders.items()]
    closed = result.get("closed")
    return a_snapshot(
        members,
        number=result["round"],
        epoch=result.get("epoch", 1),
        coordinator=pods[0],
        closed=None if closed is None else Close(CloseReason(closed["reason"]), closed.get("message", "")),
        lost=[lost(known[name], Fault(fault)) for name, fault in result.get("lost", {}).items()],
        waiting_for=result.get("waiting for", ""),
        rollouts=_rollouts(result["rollouts"]) if "rollouts" in result else None,
    )


def _rollouts(result: Raw) -> Rollouts:
    """failed: the id of the failed update, `in a row` the number of failures, `blocked` the blocked replicas."""
    failure = cause = None
    if "failed" in result:
        at, blocked = NOW - 1, tuple(result.get("blocked", ()))
        failure = UpdateFailure(result["failed"], "step-7", "rollout-1 is gone", result.get("in a row", 1), at, blocked)
        cause = Cause(0, "a0", "node-a0", None, None, failure.message)
    counts = {name: result.get(name, 0) for name in ("fresh", "updating", "uncertain")}
    return Rollouts(**counts, version=result.get("version", ""), failure=failure, cause=cause)


# Then ----------------------------------------------------------------------------------------------------------------


def _lines(plan: Plan, before: Raw) -> Iterator[str]:
    yield from (f"check {x['kind']} {x['metadata']['name']}" for x in plan.dry_runs)
    yield from (_object(intent) for intent in plan.objects)
    yield from () if plan.status is None else _changes(before, _without_address(written(plan.status)))
    yield from map(_job_line, plan.jobs)
    yield from map(_pod_line, plan.pods)
    match plan.link:
        case Follow(term, nodes=nodes):
            yield f"follow the coordinator of epoch {term.epoch}"
            yield from (
                f"report {x.node} to the coordinator as {'broken' if x.hardware_finding else 'about to go'}"
                for x in nodes
            )
        case Unfollow(end):
            yield "end the line" + ("" if end is None else f": {end.reason.value}: {end.message}")
        case None:
            pass
    yield from (f"event {event.type} {event.reason}: {event.message}" for event in plan.events)
    yield from () if plan.recoveries is None else map(_recovery_object, plan.recoveries.objects.values())
    yield from (f"do not try yet to {key}" for key in sorted(plan.paused_writes))
    if plan.remove:
        yield f"delete the TrainingJob: {plan.remove}"
    yield "rest" if plan.requeue_after_s is None else f"look again in {plan.requeue_after_s:g} s"


def _without_address(status: Raw) -> Raw:
    coordinator = {name: value for name, value in status.get("coordinator", {}).items() if value != ADDRESS}
    kept = {name: value for name, value in status.items() if name != "coordinator"}
    return {**kept, "coordinator": coordinator} if coordinator else kept


def _object(intent: Create | DeleteSecret) -> str:
    if isinstance(intent, DeleteSecret):
        return f"delete Secret {intent.name}"
    return f"create {intent.manifest['kind']} {intent.manifest['metadata']['name']}"


def _changes(before: Raw, status: Raw) -> Iterator[str]:
    """The changes of status, without times and versions."""
    for field in (
        "phase",
        "terminalState",
        "restarts",
        "restartsCountTowardsMax",
        "round",
        "coordinator",
        "attemptStartTime",
        "observedGeneration",
        "recoveriesByStrategy",
        "rollouts",
        "avoidedNodes",
    ):
        if status.get(field) != before.get(field, DEFAULT_FIELDS.get(field)):
            yield f"status {field}: {_compact(status.get(field))}"
    if status.get("lastRecovery") != before.get("lastRecovery"):
        yield f"status lastRecovery: {_recovery(status['lastRecovery'])}"
    for entry in status["replicatedJobsStatus"]:
        result = {name: value for name, value in entry.items() if name != "name" and value}
        yield f"status {entry['name']}: {_compact(result)}"
    for entry in status["conditions"]:
        if entry["reason"] == "LauncherSet":
            continue  # in every scenario with a world
        if entry["status"] == "True" or (entry["type"] == "Ready" and entry["message"]):
            yield f"condition {entry['type']}={entry['status']} {entry['reason']}: {entry['message']}".rstrip(": ")


def _recovery(entry: Raw) -> str:
    how = entry.get("strategy", "not known yet")
    return f"{entry['fault']}, {how}, {'recovered' if 'resumedAt' in entry else 'open'}"


def _recovery_object(fields: RecoveryFields) -> str:
    outcome = "open" if fields.outcome is None else fields.outcome.value
    return f"Recovery of {fields.cause.pod or 'the job'}: {fields.fault.value}, {fields.strategy}, {outcome}"


def _job_line(intent: CreateJob | DeleteJob | PatchJob) -> str:
    match intent:
        case CreateJob(given, reason):
            suspended = " suspended" if given["spec"]["suspend"] else ""
            return f"create Job {given['metadata']['name']}{suspended}: {reason}"
        case DeleteJob(name, _, reason):
            return f"delete Job {name}: {reason}"
        case PatchJob(name, patch, reason, clock):
            description = "suspend" if patch["spec"]["suspend"] else "resume"
            return f"{description} Job {name}{' with a new start time' if clock else ''}: {reason}"


def _pod_line(intent: PodIntent) -> str:
    match intent:
        case CreatePod(given, reason):
            return f"create Pod {given['metadata']['name'][:-6]}{_place(given)}: {reason}"
        case DeletePod(name, _, grace_s, reason, _):
            return f"delete Pod {name}{'' if grace_s is None else f' in {grace_s} s'}: {reason}"
        case PatchPod(name, labels, annotations):
            return f"label Pod {name} {_compact({**labels, **annotations})}"
        case ReleasePod(name, _, finalizers, reason, _):
            return f"release Pod {name}, which keeps {list(finalizers)}: {reason}"


def _off(pod: Raw) -> str:
    """The nodes that the pod avoids."""
    annotations = pod["metadata"].get("annotations", {})
    off = [annotations.get(key, "") for key in (names.ANNOTATION_AVOIDED_NODES, names.ANNOTATION_LEAST_PREFERRED_NODES)]
    where = zip((", never on", ", rather not on"), off, strict=True)
    return "".join(f"{how} {nodes}" for how, nodes in where if nodes)


def _place(pod: Raw) -> str:
    """The pod's place in Kueue's queue and in the scheduler's."""
    labels = pod["metadata"]["labels"]
    queued = f" in queue {labels[kueue.QUEUE]}" if kueue.QUEUE in labels else ""
    group = f", group {labels[kueue.GROUP_NAME]}" if kueue.GROUP_NAME in labels else ""
    priority = pod["spec"].get("priorityClassName")
    return queued + group + (f", priority {priority}" if priority else "") + _off(pod)


def _compact(value: Any) -> str:
    return json.dumps(value) if not isinstance(value, str) else value


if __name__ == "__main__":
    write(FOLDER, SCHEMA, planned)
