"""Scenarios of pools: observed states in words, and the operator's plan for each, with its reasons.

tests/unit/operator/pool_scenarios/*.yaml has the scenarios; test_pool_scenarios.py compares the plans. After an
intended change,

    scripts/py -m tests.unit.operator.pool_scenario_plans

rewrites the plans; read the diff.

A scenario has `given`: `spec` (of the pool: the fields that differ), `status`, `spares` (by name: the state of each, or
a mapping with `is`, `age`, `template: old`, `claimed by` and, in seconds ago, `claimed`), `replacement_pods` (names of
jobs' pods, or a mapping of one to the spare that it replaces), `nodes` (that are not healthy) and `refused`. All other
fields are ordinary: see given_pool.py.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.unit.operator.given import AN_HOUR_AGO, NOW, a_pod, ended, pending, terminating
from tests.unit.operator.given_pool import OLD, SPARE_TEMPLATE, a_spare, not_ready, observed_pool, without_room
from tests.unit.operator.golden_plans import by_name, crd_schema, keys, write
from understudy_operator.observe.read_pool import read_pool
from understudy_operator.plan.facts.cluster_objects import Node, Pod
from understudy_operator.plan.facts.pool_facts import ObservedPool
from understudy_operator.plan.facts.refusals import Refusal, RefusalKind
from understudy_operator.plan.facts.status import written
from understudy_operator.plan.intents import CreatePod, DeletePod, PoolPlan
from understudy_operator.plan.pool.reconcile_pool import reconcile_pool
from understudy_operator.plan.times.rfc3339 import micro_time
from understudy_operator.plan.verdicts.findings import Finding
from understudy_protocol import pod as names
from understudy_protocol.enums import FaultClass

FOLDER = Path(__file__).parent / "pool_scenarios"
PREEMPTED = "it was disrupted: PreemptionByScheduler: Preempted by pod 4711 on node node-p1"
EVICTED = "it was disrupted: EvictionByEvictionAPI: Eviction API: evicting"
UNFIT = "container trainer ended with exit code 85: Error: the spare is unusable: 7 of 8 devices answer"
Raw = Mapping[str, Any]
HOW_SPARES_ARE: Mapping[str, Callable[[Pod], Pod]] = {
    "ready": lambda pod: pod,
    "starting": not_ready,
    "pending": lambda pod: not_ready(pending(pod)),
    "without room": without_room,
    "preempted": lambda pod: not_ready(terminating(replace(pod, disruption=PREEMPTED, is_preempted=True))),
    "evicted": lambda pod: not_ready(terminating(replace(pod, disruption=EVICTED))),
    "going": terminating,
    "unfit": lambda pod: replace(not_ready(ended(pod)), failure=UNFIT),
    "ended": lambda pod: not_ready(ended(pod)),
}
FIELDS = crd_schema("hotsparepools")
SPARE = keys(
    *("age", "claimed", "claimed by"),
    template={"enum": ("old",)},
    **{"is": {"enum": HOW_SPARES_ARE}},
)
#: The schema of `given`.
SCHEMA = keys(
    "refused",
    "replacement_pods",
    metadata=keys("annotations", "deletionTimestamp", "finalizers", "generation", "labels", "name", "namespace", "uid"),
    spec=FIELDS["spec"],
    status=FIELDS["status"],
    nodes=by_name({}),
    spares=by_name({**SPARE, "enum": HOW_SPARES_ARE}),
)


def planned(scenario: Raw) -> list[str]:
    """The plan, one intent a line."""
    return list(_lines(reconcile_pool(state(scenario.get("given", {})), NOW)))


def state(given: Raw) -> ObservedPool:
    metadata = {"namespace": "research", "name": "shared", "uid": "pool-uid", "resourceVersion": "7", "generation": 1}
    metadata |= {"creationTimestamp": micro_time(AN_HOUR_AGO), **given.get("metadata", {})}
    spec = {"template": SPARE_TEMPLATE, **given.get("spec", {"replicas": 2})}
    pool = read_pool({"metadata": metadata, "spec": spec, "status": given.get("status", {})})
    pods = [_spare(name, result or "ready") for name, result in given.get("spares", {}).items()]
    seen = observed_pool(pool, pods, replacement_pods=tuple(map(_replacement_pods, given.get("replacement_pods", ()))))
    ill = {name: _node(name, result) for name, result in given.get("nodes", {}).items()}
    refused = tuple(Refusal(message, RefusalKind.QUOTA) for message in given.get("refused", ()))
    return replace(seen, nodes={**seen.nodes, **ill}, refusals=refused)


def _node(name: str, result: str) -> Node:
    if result == "not ready":
        return Node(name, False)
    return Node(name, True, findings=(Finding("understudy", FaultClass.HARDWARE, result),))


def _spare(name: str, result: Any) -> Pod:
    more: dict[str, Any] = {"is": result} if isinstance(result, str) else dict(result)
    template = OLD if more.get("template") == "old" else ""
    at = NOW - more.get("claimed", 0)
    pod = a_spare(name, claimed_by=more.get("claimed by", ""), at=at, template=template)
    return HOW_SPARES_ARE[more.get("is", "ready")](replace(pod, created_at=NOW - more.get("age", 3600)))


def _replacement_pods(result: Any) -> Pod:
    """result: a name, or a mapping of a name to the spare that the pod replaces."""
    if isinstance(result, str):
        return a_pod(result)
    ((name, spare),) = result.items()
    return a_pod(name, annotations={names.ANNOTATION_CLAIMED_POD_UID: f"uid-{spare}"})


def _lines(plan: PoolPlan) -> Iterator[str]:
    yield from () if plan.status is None else _status_lines(written(plan.status))
    for intent in plan.releases:
        yield f"release {intent.name}: {intent.reason}"
    for pod in plan.pods:
        if isinstance(pod, CreatePod):
            yield f"create {pod.manifest['metadata']['name'][:-6]}: {pod.reason}"
        elif isinstance(pod, DeletePod):
            yield f"delete {pod.name}{'' if pod.grace_s is None else f' in {pod.grace_s} s'}: {pod.reason}"
    for event in plan.events:
        yield f"event {event.type} {event.reason}: {event.message}"
    if plan.requeue_after_s is not None:
        yield f"look again in {plan.requeue_after_s:g} s"


def _status_lines(status: Raw) -> Iterator[str]:
    counts = ("desired", "replicas", "ready", "claimed", "available", "updated")
    yield "status " + ", ".join(f"{status[name]} {name}" for name in counts)
    if "autoSize" in status:
        yield f"status autoSize: {json.dumps(status['autoSize'])}"
    for entry in status["conditions"]:
        if entry["status"] == "True" or (entry["type"] == "Ready" and entry["message"]):
            yield f"condition {entry['type']}={entry['status']} {entry['reason']}: {entry['message']}".rstrip(": ")


if __name__ == "__main__":
    write(FOLDER, SCHEMA, planned)
