"""The current state as numbers: from the statuses of jobs and pools, and the findings about nodes. Pure.

A state without jobs, pools or nodes has the value 0, because alerts cannot use a series that comes and goes.
"""

from collections import Counter
from collections.abc import Iterable

from understudy_operator.metrics.metric_book import Values
from understudy_operator.plan.facts.cluster_objects import Node
from understudy_operator.plan.facts.reported_conditions import condition
from understudy_operator.plan.facts.status import JobStatus, PoolStatus, RolloutsStatus, Spares
from understudy_operator.plan.times.rfc3339 import parse_time
from understudy_protocol.enums import FaultClass

#: The phases of plan/status/status.py. A job without a status is new.
PHASES = ("Pending", "Starting", "Running", "Recovering", "Restarting", "Suspended", "Succeeded", "Failed")
#: Phases in which the job waits.
WAITING = ("Pending", "Starting", "Recovering", "Restarting")
SPARES = ("desired", "ready", "claimed")
POOL_PODS = ("desired", "ready", "claimed", "available")
ROLLOUTS = ("fresh", "updating", "uncertain")
NEW = "Pending"

Jobs = Iterable[JobStatus]
Pools = Iterable[PoolStatus]


def phases(jobs: Jobs) -> Values:
    counts = Counter(job.phase or NEW for job in jobs)
    return {(phase,): counts[phase] for phase in PHASES}


def longest_waits(jobs: Jobs, now: float) -> Values:
    """By phase: how long the job that has waited longest has not been running."""
    longest = dict.fromkeys(WAITING, 0.0)
    for job in jobs:
        phase, ready = job.phase or NEW, condition(job, "Ready")
        if phase in longest and ready is not None:
            longest[phase] = max(longest[phase], now - parse_time(ready.last_transition_time))
    return {(phase,): seconds for phase, seconds in longest.items()}


def spares(jobs: Jobs) -> Values:
    return _sums((job.spares for job in jobs if not job.terminal_state), SPARES)


def rollouts(jobs: Jobs) -> Values:
    return _sums((job.rollouts for job in jobs if not job.terminal_state), ROLLOUTS)


def pool_pods(pools: Pools) -> Values:
    return _sums(pools, POOL_PODS)


def empty_pools(pools: Pools) -> float:
    """Pools that should have spares, and have none that can be claimed."""
    return sum((pool.desired or 0) > 0 and not pool.available for pool in pools)


def verdicts(nodes: Iterable[Node], now: float) -> Values:
    node_verdicts = (node.verdict_at(now) for node in nodes)
    counts = Counter(x.fault_class for x in node_verdicts if x is not None)
    return {(fault_class.value,): counts[fault_class] for fault_class in FaultClass}


def count_avoided_nodes(jobs: Jobs) -> float:
    return len({entry.node for job in jobs for entry in job.avoided_nodes})


def _sums(records: Iterable[Spares | RolloutsStatus | PoolStatus | None], states: tuple[str, ...]) -> Values:
    """The sum of each of these fields."""
    existing = [record for record in records if record is not None]
    return {(state,): sum(getattr(record, state) or 0 for record in existing) for state in states}
