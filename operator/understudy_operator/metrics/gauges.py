"""The current state as numbers: from the statuses of jobs and pools, and the findings about nodes. Pure.

A state without jobs, pools or nodes has the value 0, because alerts cannot use a series that comes and goes.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from understudy_operator.metrics.metric_book import Values
from understudy_operator.plan.facts.cluster_objects import Node
from understudy_operator.plan.facts.reported_conditions import condition
from understudy_operator.plan.times.rfc3339 import parse_time
from understudy_protocol.enums import FaultClass

#: The phases of plan/status/phase.py. A job without a status is new.
PHASES = ("Pending", "Starting", "Running", "Recovering", "Restarting", "Suspended", "Succeeded", "Failed")
#: Phases in which the job waits.
WAITING = ("Pending", "Starting", "Recovering", "Restarting")
SPARES = ("desired", "ready", "claimed")
POOL_PODS = ("desired", "ready", "claimed", "available")
ROLLOUTS = ("fresh", "updating", "uncertain")
NEW = "Pending"

Raws = Iterable[Mapping[str, Any]]


def phases(jobs: Raws) -> Values:
    counts = Counter(_phase(job) for job in jobs)
    return {(phase,): counts[phase] for phase in PHASES}


def longest_waits(jobs: Raws, now: float) -> Values:
    """By phase: how long the job that has waited longest has not been running."""
    longest = dict.fromkeys(WAITING, 0.0)
    for job in jobs:
        phase, since = _phase(job), condition(job.get("status", {}), "Ready").get("lastTransitionTime")
        if phase in longest and since is not None:
            longest[phase] = max(longest[phase], now - parse_time(since))
    return {(phase,): seconds for phase, seconds in longest.items()}


def spares(jobs: Raws) -> Values:
    return _sums((job for job in jobs if not _ended(job)), "spares", SPARES)


def rollouts(jobs: Raws) -> Values:
    return _sums((job for job in jobs if not _ended(job)), "rollouts", ROLLOUTS)


def pool_pods(pools: Raws) -> Values:
    statuses = [pool.get("status", {}) for pool in pools]
    return {(state,): sum(int(status.get(state, 0)) for status in statuses) for state in POOL_PODS}


def empty_pools(pools: Raws) -> float:
    """Pools that should have spares, and have none that can be claimed."""
    statuses = [pool.get("status", {}) for pool in pools]
    return sum(int(x.get("desired", 0)) > 0 and not int(x.get("available", 0)) for x in statuses)


def verdicts(nodes: Iterable[Node], now: float) -> Values:
    node_verdicts = (node.verdict_at(now) for node in nodes)
    counts = Counter(x.fault_class for x in node_verdicts if x is not None)
    return {(fault_class.value,): counts[fault_class] for fault_class in FaultClass}


def count_avoided_nodes(jobs: Raws) -> float:
    return len({entry["node"] for job in jobs for entry in job.get("status", {}).get("avoidedNodes", ())})


def _sums(jobs: Raws, field: str, states: tuple[str, ...]) -> Values:
    entries = [job.get("status", {}).get(field, {}) for job in jobs]
    return {(state,): sum(int(entry.get(state, 0)) for entry in entries) for state in states}


def _phase(job: Mapping[str, Any]) -> str:
    return str(job.get("status", {}).get("phase") or NEW)


def _ended(job: Mapping[str, Any]) -> bool:
    return bool(job.get("status", {}).get("terminalState"))
