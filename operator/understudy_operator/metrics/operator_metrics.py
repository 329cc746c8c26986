"""The operator's metrics: counted by the code that does something, or read from a `LeaderState` at a scrape.

A standby replica reports its own work (requests, watches), and nothing about jobs and pools. So a sum over the replicas
is the leader's value. With several shards the sum is that of all leaders, except for nodes, which all of them report.
"""

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from understudy_operator.metrics import gauges
from understudy_operator.metrics.ended import FAILED, NO_STRATEGY, RECOVERED, EndCounter, Ends
from understudy_operator.metrics.metric_book import MetricBook, Values
from understudy_operator.plan.facts.cluster_objects import Node
from understudy_operator.plan.facts.status import JobStatus, PoolStatus
from understudy_operator.plan.leadership.shard import Shard
from understudy_protocol.enums import Fault, Strategy, Tier

RECOVERY_S = (0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800)
RECONCILE_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
REQUEST_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
KINDS = ("TrainingJob", "InjectedJob", "HotSparePool")
#: Causes of a failed reconcile: the API server, or a bug.
TROUBLE, BUG = "Trouble", "Bug"
STRATEGIES = (*(strategy.value for strategy in Strategy), "JobRestart")
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_PATH = re.compile(
    r"/(?:api/v1|apis/[^/]+/[^/]+)(?:/namespaces/[^/]+)?/(?P<plural>[^/]+)(?:/(?P<name>[^/]+)(?:/(?P<sub>[^/]+))?)?"
)


class LeaderState(Protocol):
    """The state that a leader reports."""

    @property
    def shard(self) -> Shard: ...
    def leads(self) -> bool: ...
    def knows(self) -> bool:
        """Whether it leads and its store has been filled."""

    def jobs(self) -> list[JobStatus]:
        """TrainingJobs and InjectedJobs."""

    def pools(self) -> list[PoolStatus]: ...
    def nodes(self) -> list[Node]: ...
    def offenders(self) -> int:
        """Nodes that have failed jobs repeatedly."""

    def malformed(self) -> Mapping[str, int]:
        """Objects that cannot be read, or only in part, by resource."""

    def waiting(self) -> int:
        """Jobs and pools that have changed since their last reconcile began."""

    def without_coordinator(self) -> int: ...
    def now(self) -> float:
        """Unix time."""


class OperatorMetrics:
    def __init__(self) -> None:
        self.book = book = MetricBook()
        self._recoveries = book.counter(
            "understudy_recoveries_total",
            "Recoveries that have ended, with the next step or with the failure of the job.",
            ("fault", "strategy", "outcome"),
        )
        for fault in Fault:  # begin at 0: otherwise the first recovery of a kind is not an increase
            for strategy in STRATEGIES:
                for outcome in (RECOVERED, FAILED):
                    self._recoveries.labels(fault.value, strategy, outcome)
            self._recoveries.labels(fault.value, NO_STRATEGY, FAILED)
        self._recovery_s = book.histogram(
            "understudy_recovery_seconds",
            "Time from the fault to the next step, of recoveries that have succeeded.",
            ("fault", "strategy"),
            RECOVERY_S,
        )
        self._restores = book.counter(
            "understudy_restores_total",
            "Recoveries of jobs with snapshots, by the tier from which their workers restored the training.",
            ("tier",),
        )
        self._lost_steps = book.counter(
            "understudy_lost_steps_total",
            "Steps that recoveries of jobs with snapshots had to make again, as far as known.",
            ("tier",),
        )
        for tier in Tier:
            self._restores.labels(tier.value)
            self._lost_steps.labels(tier.value)
        self._failed_updates = book.counter(
            "understudy_weight_updates_failed_total", "Weight updates that have failed, retries included."
        )
        self._reconciles = book.histogram(
            "understudy_reconcile_seconds",
            "Duration of a reconcile, with all of its requests to the API server.",
            ("kind",),
            RECONCILE_S,
        )
        self._errors = book.counter(
            "understudy_reconcile_errors_total",
            "Reconciles that have failed. error is Trouble if the API server rejected a request or did not respond, "
            "else Bug.",
            ("kind", "error"),
        )
        self._queue_s = book.histogram(
            "understudy_queue_seconds",
            "Time from the first change after a reconcile has begun until the next reconcile of that object begins.",
            ("kind",),
            RECONCILE_S,
        )
        for kind in KINDS:
            self._reconciles.labels(kind)
            self._queue_s.labels(kind)
            for error in (TROUBLE, BUG):
                self._errors.labels(kind, error)
        self._requests = book.counter(
            "understudy_api_requests_total",
            "Requests to the API server, without watches. result is Ok, the status of an error, or NoAnswer.",
            ("verb", "resource", "result"),
        )
        self._request_s = book.histogram(
            "understudy_api_request_seconds",
            "Duration of a request to the API server, without watches.",
            ("verb", "resource"),
            REQUEST_S,
        )
        self._watch_failures = book.counter(
            "understudy_watch_failures_total",
            "Watches that could not be opened, or whose connection broke.",
            ("resource",),
        )
        self._watch_restarts = book.counter(
            "understudy_watch_restarts_total",
            "Watches that have ended and were reopened. Each watch ends after five minutes.",
            ("resource",),
        )
        self._failed_events = book.counter(
            "understudy_watch_event_errors_total",
            "Watch events that the operator failed to process because of a bug. The watch continues.",
            ("resource",),
        )
        self._task_restarts = book.counter(
            "understudy_task_restarts_total",
            "Long-lived tasks of the operator that have ended because of a bug and were restarted.",
            ("task",),
        )

    # Counted at the event --------------------------------------------------------------------------------------------

    def count_request(self, method: str, path: str, result: str, seconds: float) -> None:
        """A request to the API server."""
        verb, resource = target(method, path)
        self._requests.labels(verb, resource, result).inc()
        self._request_s.labels(verb, resource).observe(seconds)

    @contextmanager
    def time_reconcile(self, kind: str, trouble: tuple[type[BaseException], ...]) -> Iterator[None]:
        """trouble: errors that are not bugs of the operator. A canceled reconcile is no error."""
        began = time.monotonic()
        try:
            yield
        except Exception as error:
            self._errors.labels(kind, TROUBLE if isinstance(error, trouble) else BUG).inc()
            raise
        self._reconciles.labels(kind).observe(time.monotonic() - began)

    def waited(self, kind: str, seconds: float) -> None:
        """A reconcile begins that an enqueue has caused so long ago."""
        self._queue_s.labels(kind).observe(seconds)

    def watches(self, resource: str) -> None:
        """Called for each watch, so its series begin at 0."""
        self._watch_failures.labels(resource)
        self._watch_restarts.labels(resource)
        self._failed_events.labels(resource)

    def watch_failed(self, resource: str) -> None:
        self._watch_failures.labels(resource).inc()

    def watch_restarts(self, resource: str) -> None:
        self._watch_restarts.labels(resource).inc()

    def event_failed(self, resource: str) -> None:
        """The operator failed to process an event of a watch."""
        self._failed_events.labels(resource).inc()

    def supervises(self, task: str) -> None:
        """Called for each long-lived task, so its series begins at 0."""
        self._task_restarts.labels(task)

    def task_restarts(self, task: str) -> None:
        self._task_restarts.labels(task).inc()

    def ended(self, ends: Ends) -> None:
        for entry in ends.recoveries:
            self._recoveries.labels(entry.fault, entry.strategy, entry.outcome).inc()
            if entry.seconds is not None:
                self._recovery_s.labels(entry.fault, entry.strategy).observe(entry.seconds)
            if entry.restored_from is not None:
                self._restores.labels(entry.restored_from).inc()
                self._lost_steps.labels(entry.restored_from).inc(entry.lost_steps or 0)
        self._failed_updates.inc(ends.failed_updates)

    # Read on a scrape ------------------------------------------------------------------------------------------------

    def read(self, of: LeaderState) -> None:
        """Read this operator's state at each scrape from now on."""
        reading = self.book.reading

        def led(values: Callable[[], Values]) -> Callable[[], Values]:
            return lambda: values() if of.knows() else {}

        def one(value: Callable[[], float]) -> Callable[[], Values]:
            return led(lambda: {(): value()})

        reading(
            "understudy_leader",
            "1 on the leader of the shard, else 0. A single shard has the number 0.",
            ("shard",),
            lambda: {(str(of.shard.index),): float(of.leads())},
        )
        reading(
            "understudy_shards",
            "The number of shards of the operator (chart: operator.shards).",
            (),
            lambda: {(): float(of.shard.count)},
        )
        reading("understudy_jobs", "TrainingJobs and InjectedJobs.", ("phase",), led(lambda: gauges.phases(of.jobs())))
        reading(
            "understudy_longest_wait_seconds",
            "How long the job that has waited longest in this phase has not been running.",
            ("phase",),
            led(lambda: gauges.longest_waits(of.jobs(), of.now())),
        )
        reading(
            "understudy_jobs_without_coordinator",
            "Jobs that have trained and whose coordinator was not found for 8 s. They may have lost the majority of "
            "their pods.",
            (),
            one(of.without_coordinator),
        )
        reading(
            "understudy_job_seconds",
            "Time of the jobs that have not ended, by the part that it went to (status.goodput). sinceLastStep: the "
            "next step decides about it.",
            ("part",),
            led(lambda: gauges.job_seconds(of.jobs(), of.now())),
        )
        reading(
            "understudy_job_lost_seconds",
            "Time that faults have cost the jobs that have not ended.",
            ("fault",),
            led(lambda: gauges.job_lost_seconds(of.jobs())),
        )
        reading(
            "understudy_job_lowest_goodput_ratio",
            "The smallest productive share of the time in which a job was not suspended, and did not wait for quota, "
            "of the jobs that have not ended, report steps, and are an hour old. Absent if there are none.",
            (),
            led(lambda: gauges.lowest_goodput(of.jobs(), of.now())),
        )
        reading("understudy_spares", "Spares of jobs.", ("state",), led(lambda: gauges.spares(of.jobs())))
        reading(
            "understudy_pool_pods",
            "Pods of HotSparePools. claimed: pods whose place a job has claimed.",
            ("state",),
            led(lambda: gauges.pool_pods(of.pools())),
        )
        reading(
            "understudy_pools_without_spare",
            "HotSparePools that want spares but have none that a job can claim.",
            (),
            one(lambda: gauges.empty_pools(of.pools())),
        )
        reading(
            "understudy_rollouts",
            "Rollout replicas by the state of their weights.",
            ("state",),
            led(lambda: gauges.rollouts(of.jobs())),
        )
        reading(
            "understudy_node_verdicts",
            "Nodes with a verdict of a fault source.",
            ("class",),
            led(lambda: gauges.verdicts(of.nodes(), of.now())),
        )
        reading(
            "understudy_avoided_nodes",
            "Nodes that jobs avoid. Each job reports at most 20.",
            (),
            one(lambda: gauges.count_avoided_nodes(of.jobs())),
        )
        reading("understudy_repeat_offenders", "Nodes that have failed several jobs.", (), one(of.offenders))
        reading(
            "understudy_malformed_objects",
            "Objects that the operator cannot read, or not completely. An Event on each object gives the reason.",
            ("resource",),
            led(lambda: {(resource,): count for resource, count in of.malformed().items()}),
        )
        reading(
            "understudy_queue_depth",
            "Jobs and pools that have changed and wait for a reconcile.",
            (),
            one(of.waiting),
        )


def target(method: str, path: str) -> tuple[str, str]:
    """The verb and the resource of a request, as Kubernetes' own metrics call them."""
    found = _PATH.fullmatch(path)
    if found is None:
        return _VERBS.get(method, method.lower()), "other"
    sub = f"/{found['sub']}" if found["sub"] else ""
    verb = _VERBS.get(method) or ("get" if found["name"] else "list")
    return verb, f"{found['plural']}{sub}"


class JobMetrics:
    """Counts the ends in one job's statuses."""

    def __init__(self, metrics: OperatorMetrics) -> None:
        self._metrics, self._end_counter = metrics, EndCounter()

    def on_read(self, version: str, status: JobStatus) -> None:
        """The job, as a reconcile has read it."""
        self._metrics.ended(self._end_counter.on_read(version, status))

    def on_write(self, version: str, before: JobStatus, after: JobStatus) -> None:
        self._end_counter.on_write(version, before, after)

    def on_written(self, *, done: bool) -> None:
        self._metrics.ended(self._end_counter.on_written(done=done))
