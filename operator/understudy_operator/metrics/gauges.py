"""The current state as numbers: from the statuses of jobs and pools, and the findings about nodes. Pure.

A state without jobs, pools or nodes has the value 0, because alerts cannot use a series that comes and goes. Only the
lowest goodput is absent without a job: 0 would be the worst one.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from understudy_operator.metrics.metric_book import Values
from understudy_operator.plan.facts.cluster_objects import Node
from understudy_operator.plan.facts.reported_conditions import condition
from understudy_operator.plan.facts.status import JobStatus, PoolStatus, RolloutsStatus, Spares
from understudy_operator.plan.times.rfc3339 import parse_time
from understudy_protocol.enums import Fault, FaultClass
from understudy_protocol.goodput import FIELDS, Part, ettr, parts_at

#: The phases of plan/status/next_status.py. A job without a status is new.
PHASES = ("Pending", "Starting", "Running", "Recovering", "Restarting", "Suspended", "Succeeded", "Failed")
#: Phases in which the job waits.
WAITING = ("Pending", "Starting", "Recovering", "Restarting")
SPARES = ("desired", "ready", "claimed")
POOL_PODS = ("desired", "ready", "claimed", "available")
ROLLOUTS = ("fresh", "updating", "uncertain")
NEW = "Pending"
#: The goodput of a younger job says little: it has just started.
JUDGED_AFTER_S = 3600.0

Jobs = Iterable[JobStatus]
Pools = Iterable[PoolStatus]


def phases(jobs: Jobs) -> Values:
    counts = Counter(job.phase or NEW for job in jobs)
    return {(phase,): counts[phase] for phase in PHASES}


def longest_waits(jobs: Jobs, now: float) -> Values:
    """By phase: how long the job that has waited longest has not been running."""
    longest = dict.fromkeys(WAITING, 0.0)
    for job in jobs:
        phase, since = job.phase or NEW, _not_running_since(job)
        if phase in longest and since is not None:
            longest[phase] = max(longest[phase], now - since)
    return {(phase,): seconds for phase, seconds in longest.items()}


def _not_running_since(job: JobStatus) -> float | None:
    """A job that was suspended waits since it was resumed."""
    ready, suspended = condition(job, "Ready"), condition(job, "Suspended")
    if ready is None:
        return None
    return max(parse_time(entry.last_transition_time) for entry in (ready, suspended) if entry is not None)


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


def job_seconds(jobs: Jobs, now: float) -> Values:
    """By part: of the jobs that have not ended."""
    found = [goodput_parts(job, now) for job in jobs if not job.terminal_state]
    return {(field,): sum(parts.get(field, 0.0) for parts in found) for field in FIELDS}


def job_lost_seconds(jobs: Jobs) -> Values:
    """By fault: the seconds that faults have cost the jobs that have not ended."""
    lost = [entry for job in jobs if job.goodput is not None and not job.terminal_state for entry in job.goodput.lost]
    return {(fault.value,): sum(entry.seconds for entry in lost if entry.fault is fault) for fault in Fault}


def lowest_goodput(jobs: Jobs, now: float) -> Values:
    """The smallest productive share of the time in which a job was not suspended. Only of jobs that report steps."""
    shares = [_productive_share(goodput_parts(job, now)) for job in jobs if not job.terminal_state]
    lowest = min((share for share in shares if share is not None), default=None)
    return {} if lowest is None else {(): lowest}


def goodput_parts(job: JobStatus, now: float) -> Mapping[str, float]:
    """The seconds of each part until now; empty if the job has no account."""
    goodput = job.goodput
    if goodput is None:
        return {}
    stepped_at = None if job.progress is None or job.progress.at is None else parse_time(job.progress.at)
    return parts_at(goodput.seconds_by_field, goodput.part, parse_time(goodput.since), stepped_at, now)


def _productive_share(parts: Mapping[str, float]) -> float | None:
    counted = {field: seconds for field, seconds in parts.items() if field != Part.SUSPENDED.field}
    return None if sum(counted.values()) < JUDGED_AFTER_S else ettr(counted)


def _sums(records: Iterable[Spares | RolloutsStatus | PoolStatus | None], states: tuple[str, ...]) -> Values:
    """The sum of each of these fields."""
    existing = [record for record in records if record is not None]
    return {(state,): sum(getattr(record, state) or 0 for record in existing) for state in states}
