"""The operator's /metrics: each replica reports requests and reconciles, only the leader reports jobs."""

import time
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest

from tests.unit.operator.metrics.reading import scraped
from understudy_operator.metrics.ended import EndedRecovery, Ends
from understudy_operator.metrics.metric_book import MetricBook
from understudy_operator.metrics.operator_metrics import OperatorMetrics, target
from understudy_operator.metrics.serving import port_of, serve
from understudy_operator.plan.facts.cluster_objects import Node
from understudy_operator.plan.facts.status import (
    AvoidedNode,
    CauseStatus,
    Condition,
    JobStatus,
    RecoveryStatus,
    RolloutsStatus,
)
from understudy_operator.plan.leadership.shard import SINGLE_SHARD, Shard
from understudy_operator.plan.times.rfc3339 import micro_time, whole_seconds
from understudy_operator.runtime.api import API_FAILURES, Api, ApiError
from understudy_protocol.enums import Fault

#: The labels: a closed set each, of a few words.
LABELS = {
    "tier",
    "fault",
    "strategy",
    "outcome",
    "kind",
    "error",
    "verb",
    "resource",
    "result",
    "phase",
    "state",
    "class",
    "task",
    "part",
    "shard",
}


@dataclass
class FixedState:
    """The state of a replica."""

    leading: bool = True
    all_jobs: list[JobStatus] = field(default_factory=list)
    shard: Shard = SINGLE_SHARD

    def leads(self) -> bool:
        return self.leading

    knows = leads

    def jobs(self) -> Any:
        return self.all_jobs

    def pools(self) -> Any:
        return []

    def nodes(self) -> list[Node]:
        return []

    def offenders(self) -> int:
        return 1

    def malformed(self) -> dict[str, int]:
        return {"pods": 2}

    def waiting(self) -> int:
        return 3

    def without_coordinator(self) -> int:
        return 0

    def now(self) -> float:
        return 0.0


@pytest.fixture
def metrics() -> OperatorMetrics:
    metrics = OperatorMetrics()
    metrics.read(FixedState())
    return metrics


def test_no_label_can_have_the_name_of_an_object(metrics: OperatorMetrics):
    assert {label for described in metrics.book.described for label in described.labels} <= LABELS


#: A status whose every string a tenant can have written, and names of its objects.
HOSTILE = "stolen-name"
HOSTILE_JOB = JobStatus(
    phase=HOSTILE,
    conditions=(Condition(HOSTILE, "True", HOSTILE, HOSTILE, whole_seconds(0)),),
    rollouts=RolloutsStatus(version=HOSTILE),
    avoided_nodes=(AvoidedNode(node=HOSTILE, source=HOSTILE, reason=HOSTILE),),
    recoveries=(
        RecoveryStatus(
            Fault.NODE, micro_time(0), "SpareSwap", HOSTILE, cause=CauseStatus(pod=HOSTILE, message=HOSTILE)
        ),
    ),
)


@pytest.mark.attack("A4", "reads in the operator's metrics what others name their jobs", before="refused, too")
async def test_metrics_contain_no_text_of_a_job():
    # given a job with a name in each text field
    metrics = OperatorMetrics()
    metrics.read(FixedState(all_jobs=[HOSTILE_JOB]))
    # when a client reads the metrics, then it learns of one job, and no name
    server = await serve(metrics.book.text, 0)
    try:
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{server.port}/metrics") as answer:
            lines = await answer.text()
    finally:
        await server.close()
    assert "understudy_avoided_nodes 1" in lines
    assert HOSTILE not in lines


def test_every_metric_has_our_prefix_and_counters_end_in_total(metrics: OperatorMetrics):
    for described in metrics.book.described:
        assert described.name.startswith("understudy_")
        assert described.name.endswith("_total") == (described.kind == "Counter"), described.name
        assert described.name.endswith("_seconds") or described.kind != "Histogram", described.name
    names = [described.name for described in metrics.book.described]
    assert len(names) == len(set(names))


def test_a_standby_replica_reports_that_it_is_on_standby_and_no_jobs():
    metrics, result = OperatorMetrics(), FixedState(leading=False, all_jobs=[JobStatus(phase="Running")])
    metrics.read(result)
    lines = scraped(metrics.book.text())
    assert lines[("understudy_leader", "0")] == 0
    assert not {name for name, *_ in lines} & {"understudy_jobs", "understudy_spares", "understudy_queue_depth"}
    # when the replica becomes the leader
    result.leading = True
    lines = scraped(metrics.book.text())
    assert lines[("understudy_leader", "0")] == 1
    assert lines[("understudy_jobs", "Running")] == 1
    assert lines[("understudy_queue_depth",)] == 3


def test_a_replica_reports_its_shard_and_the_number_of_shards():
    metrics = OperatorMetrics()
    metrics.read(FixedState(shard=Shard(1, 3)))
    lines = scraped(metrics.book.text())
    assert (lines[("understudy_leader", "1")], lines[("understudy_shards",)]) == (1, 3)


def test_a_recovery_counts_by_fault_strategy_and_outcome_and_its_seconds_if_training_continued(
    metrics: OperatorMetrics,
):
    # given that each combination begins at 0, so that its first recovery is an increase
    before = scraped(metrics.book.text())
    assert before[("understudy_recoveries_total", "Node", "Recovered", "SpareSwap")] == 0
    # when one recovery has succeeded, and another one has failed
    well, badly = EndedRecovery("Node", "SpareSwap", "Recovered", 1.5), EndedRecovery("Process", "None", "Failed", None)
    metrics.ended(Ends((well, badly), failed_updates=2))
    # then both are counted, and the seconds of the first one
    lines = scraped(metrics.book.text())
    assert lines[("understudy_recoveries_total", "Node", "Recovered", "SpareSwap")] == 1
    assert lines[("understudy_recoveries_total", "Process", "Failed", "None")] == 1
    assert lines[("understudy_recovery_seconds_bucket", "Node", "1.0", "SpareSwap")] == 0
    assert lines[("understudy_recovery_seconds_bucket", "Node", "2.0", "SpareSwap")] == 1
    assert lines[("understudy_recovery_seconds_count", "Node", "SpareSwap")] == 1
    assert not any(key[:2] == ("understudy_recovery_seconds_count", "Process") for key in lines)
    assert lines[("understudy_weight_updates_failed_total",)] == 2


@pytest.mark.parametrize(("error", "result"), [(ApiError(500, "", ""), "Trouble"), (ValueError("no"), "Bug")])
def test_a_failed_reconcile_counts_as_trouble_or_bug(metrics: OperatorMetrics, error: Exception, result: str):
    with metrics.time_reconcile("TrainingJob", API_FAILURES):
        pass
    with pytest.raises(type(error)), metrics.time_reconcile("TrainingJob", API_FAILURES):
        raise error
    lines = scraped(metrics.book.text())
    assert lines[("understudy_reconcile_seconds_count", "TrainingJob")] == 1
    failed = {key[1]: value for key, value in lines.items() if key[0] == "understudy_reconcile_errors_total" and value}
    assert failed == {result: 1}


# Requests ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/api/v1/nodes", ("list", "nodes")),
        ("GET", "/api/v1/nodes/n1", ("get", "nodes")),
        ("POST", "/api/v1/namespaces/research/pods", ("create", "pods")),
        ("DELETE", "/api/v1/namespaces/research/pods/llm-0", ("delete", "pods")),
        ("PATCH", "/api/v1/namespaces/research/pods/llm-0", ("patch", "pods")),
        (
            "PUT",
            "/apis/understudy.dev/v1alpha1/namespaces/research/trainingjobs/llm/status",
            ("update", "trainingjobs/status"),
        ),
        ("GET", "/apis/understudy.dev/v1alpha1/trainingjobs", ("list", "trainingjobs")),
        ("PUT", "/apis/coordination.k8s.io/v1/namespaces/system/leases/operator", ("update", "leases")),
        ("GET", "/version", ("get", "other")),
    ],
)
def test_a_request_is_reported_by_verb_and_resource_and_never_by_name(
    method: str, path: str, expected: tuple[str, str]
):
    assert target(method, path) == expected


class Answering(Api):
    """Returns this answer to every request."""

    def __init__(self, metrics: OperatorMetrics, answer: Exception | None = None) -> None:
        super().__init__(None, on_response=metrics.count_request)
        self._answer = answer

    async def send(self, *_: Any) -> dict[str, Any]:
        if self._answer is not None:
            raise self._answer
        return {"items": [], "metadata": {}}


@pytest.mark.parametrize(
    ("answer", "result"),
    [(None, "Ok"), (ApiError(409, "AlreadyExists", ""), "409"), (aiohttp.ClientConnectionError(), "NoAnswer")],
)
async def test_reads_and_writes_are_counted_with_their_result(
    metrics: OperatorMetrics, answer: Exception | None, result: str
):
    api = Answering(metrics, answer)
    for call in (api.list("/api/v1/pods"), api.create("/api/v1/namespaces/research/pods", {})):
        try:
            await call
        except API_FAILURES:
            assert answer is not None
    lines = scraped(metrics.book.text())
    for verb in ("list", "create"):
        assert lines[("understudy_api_requests_total", "pods", result, verb)] == 1
        assert lines[("understudy_api_request_seconds_count", "pods", verb)] == 1


# Served --------------------------------------------------------------------------------------------------------------


async def test_prometheus_can_read_a_scrape_over_http():
    book = MetricBook()
    book.counter("understudy_things_total", "Things.").inc()
    server = await serve(book.text, 0)
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{server.port}/metrics") as response:
        assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert scraped(await response.read())[("understudy_things_total",)] == 1
    await server.close()


@pytest.mark.attack("D2", "asks for metrics without end", before="each request recalculated all metrics")
async def test_metrics_are_calculated_at_most_five_times_a_second():
    calculated: list[float] = []

    def text() -> bytes:
        calculated.append(time.monotonic())
        return b"understudy 1\n"

    server = await serve(text, 0)
    began = time.monotonic()
    async with aiohttp.ClientSession() as session:
        for _ in range(50):
            async with session.get(f"http://127.0.0.1:{server.port}/metrics") as response:
                assert await response.read() == b"understudy 1\n"
    assert len(calculated) <= 1 + (time.monotonic() - began) / 0.2
    await server.close()


def test_metrics_are_not_served_without_a_port_and_an_invalid_port_is_rejected():
    assert port_of({}) is None
    assert port_of({"UNDERSTUDY_METRICS_PORT": "8081"}) == 8081
    for wrong in ("0", "no", "65536"):
        with pytest.raises(ValueError, match=r"UNDERSTUDY_METRICS_PORT is .*: set it to a port"):
            port_of({"UNDERSTUDY_METRICS_PORT": wrong})


def test_restores_and_lost_steps_are_counted_by_tier(metrics: OperatorMetrics) -> None:
    restored = EndedRecovery("Process", "InPlace", "Recovered", 0.5, "Memory", 2)
    unknown = EndedRecovery("Pod", "SpareSwap", "Recovered", 0.5, "Storage", None)
    metrics.ended(Ends((restored, restored, unknown)))
    lines = scraped(metrics.book.text())
    assert lines[("understudy_restores_total", "Memory")] == 2
    assert lines[("understudy_restores_total", "Storage")] == 1
    assert lines[("understudy_lost_steps_total", "Memory")] == 4
    assert lines[("understudy_lost_steps_total", "Storage")] == 0
