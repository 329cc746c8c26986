"""The number of spares of a pool with `autoSize`: enough for the failures of 99 of 100 days.

Rules: the failures of a day follow the binomial distribution over the nodes that the spares are for. The failure rate
of a node comes from the spec, if set. Otherwise it comes from the failures that the pool's jobs reported, once these
cover HISTORY_NODE_DAYS or more, with the default as a prior that weighs like PRIOR_FAILURES failures; until then it is
the default. Days and failures lose half of their weight in HALF_LIFE_S, so that the rate follows the hardware.

Against flapping: the number grows at once, and shrinks only if fewer would have been enough for SHRINK_AFTER_S.
A time in status that is in the future counts as now: a clock that was set back delays nothing.
"""

from dataclasses import dataclass
from math import exp, lgamma, log

from understudy_operator.plan.facts.pool_facts import DEFAULT_FAILURES_PER_NODE_DAY, AutoSize, ObservedPool
from understudy_operator.plan.facts.status import AutoSizeStatus
from understudy_operator.plan.times.reconcile_clock import is_due
from understudy_operator.plan.times.rfc3339 import micro_time, parse_time

ENOUGH = 0.99
MOST_LIKELY = 0.999  # a rate that rounds to 1.0 would make log(1 - rate) fail
DAY_S = 86400.0
HISTORY_NODE_DAYS = 1000.0
PRIOR_FAILURES = 2.0
HALF_LIFE_S = 30 * DAY_S
SHRINK_AFTER_S = DAY_S
#: How often days and failures are counted, and up to how long ago: a recovery is reported a moment after its failure.
COUNT_EVERY_S = 600.0
LATE_S = 60.0
#: Of a longer absence the operator counts only the last part: it does not know the nodes of the rest.
LONGEST_S = DAY_S


@dataclass(frozen=True)
class FailureHistory:
    node_days: float
    failures: float
    until: float


def desired(observed: ObservedPool, now: float) -> tuple[int, AutoSizeStatus | None]:
    """The number of spares; and, if it was computed, the inputs for status."""
    pool = observed.pool
    if pool.auto_size is None:
        return pool.replicas, None
    before = pool.status.auto_size
    counted = update_history(before, observed, now)
    likely, source = _likelihood(pool.auto_size, counted)
    nodes = _nodes(observed, pool.auto_size)
    wanted = _bounded(spares_for(nodes, likely, pool.auto_size.most), pool.auto_size)
    current = wanted if before is None or pool.status.desired is None else _bounded(pool.status.desired, pool.auto_size)
    since = now if before is None or before.surplus_since is None else min(now, parse_time(before.surplus_since))
    shrinks = wanted < current and not is_due(since + SHRINK_AFTER_S, now)
    status = AutoSizeStatus(
        nodes=nodes,
        failures_per_node_day=f"{likely:.6f}",
        source=source,
        node_days=f"{counted.node_days:.3f}",
        failures=f"{counted.failures:.3f}",
        counted_until=micro_time(counted.until),
        surplus_since=micro_time(since) if shrinks else None,
    )
    return (current if shrinks else wanted), status


def spares_for(nodes: int, likely: float, most: int) -> int:
    """The smallest number that is enough with probability ENOUGH; at most `most`."""
    covered = 0.0
    for failing in range(min(nodes, most) + 1):
        ways = lgamma(nodes + 1) - lgamma(failing + 1) - lgamma(nodes - failing + 1)
        covered += exp(ways + failing * log(likely) + (nodes - failing) * log(1.0 - likely))
        if covered >= ENOUGH:
            return failing
    return min(nodes, most)


def update_history(before: AutoSizeStatus | None, observed: ObservedPool, now: float) -> FailureHistory:
    """The history after this reconcile; before: status.autoSize."""
    if before is None or before.counted_until is None or before.node_days is None or before.failures is None:
        return FailureHistory(0.0, 0.0, now)
    counted_until = min(now, parse_time(before.counted_until))
    recorded = FailureHistory(float(before.node_days), float(before.failures), counted_until)
    until = now - LATE_S
    if until - recorded.until < COUNT_EVERY_S:
        return recorded
    passed_s = min(until - recorded.until, LONGEST_S)
    weight = 0.5 ** (passed_s / HALF_LIFE_S)
    reported = [entry for client in observed.clients for entry in client.node_failures]
    failed = [node for node, at in reported if max(recorded.until, until - passed_s) <= at < until]
    days = len(_client_nodes(observed)) * passed_s / DAY_S
    failures = len(set(failed) - {""}) + failed.count("")  # a node that several jobs report has failed once
    return FailureHistory(recorded.node_days * weight + days, recorded.failures * weight + failures, until)


def _likelihood(auto: AutoSize, counted: FailureHistory) -> tuple[float, str]:
    if auto.failures_per_node_day is not None:
        return min(auto.failures_per_node_day, MOST_LIKELY), "Spec"
    if counted.node_days < HISTORY_NODE_DAYS:
        return DEFAULT_FAILURES_PER_NODE_DAY, "Default"
    prior_days = PRIOR_FAILURES / DEFAULT_FAILURES_PER_NODE_DAY
    return min(0.5, (counted.failures + PRIOR_FAILURES) / (counted.node_days + prior_days)), "History"


def _nodes(observed: ObservedPool, auto: AutoSize) -> int:
    return len(_client_nodes(observed)) if auto.nodes is None else auto.nodes


def _client_nodes(observed: ObservedPool) -> frozenset[str]:
    return frozenset[str]().union(*(client.nodes for client in observed.clients))


def _bounded(spares: int, auto: AutoSize) -> int:
    return max(auto.least, min(auto.most, spares))
