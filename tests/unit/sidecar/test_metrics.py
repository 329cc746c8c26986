"""A coordinator's metrics of its rounds, read by Prometheus' own parser of the client library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from tests.unit.operator.metrics.reading import scraped
from tests.unit.sidecar.membership.driven import DrivenCoordinator
from understudy_protocol import membership as m
from understudy_protocol.enums import RoundToken, Verdict, WorkersState
from understudy_protocol.launcher import SnapshotsStored
from understudy_sidecar import health
from understudy_sidecar.copy_commands import CopyCounts
from understudy_sidecar.membership.events import CoordinatorEvent
from understudy_sidecar.membership.round_state import RoundPhase
from understudy_sidecar.metrics import DESCRIBED, CoordinatorMetrics, text_of, text_of_stored

ROUNDS, FAULTS = "understudy_coordinator_rounds_total", "understudy_coordinator_faults_total"
BOTH = ("active-0", "active-1")
TOOK = "understudy_coordinator_rendezvous_seconds"


class Measured(DrivenCoordinator):
    """Its metrics are updated after each event, as the sidecar does."""

    def __init__(self, *args: Any, **reported: Any) -> None:
        self.metrics = CoordinatorMetrics()
        super().__init__(*args, **reported)

    def at_once(self, event: CoordinatorEvent) -> None:
        super().at_once(event)
        self.metrics.update(self.coordinator, self.now)

    def scrape(self) -> dict[tuple[str, ...], float]:
        return scraped(self.metrics.text(self.coordinator))

    def rounds(self) -> dict[str, float]:
        return {key[1]: count for key, count in self.scrape().items() if key[0] == ROUNDS and count}

    def ack(self, *names: str) -> None:
        for name in names:
            self.receive(name, m.Ack(self.token))
            self.receive(name, m.Started(self.token))


@pytest.fixture
def driven() -> Measured:
    """Two members train since 4 s after the coordinator's start; the second acknowledged 1 s later."""
    driven = Measured(nproc=8)
    driven.later(4.0)
    driven.join("active-0")
    driven.join("active-1")
    driven.ack("active-0")
    driven.later(1.0, *BOTH)
    driven.ack("active-1")
    return driven


def test_a_sidecar_that_does_not_coordinate_reports_only_that():
    assert scraped(CoordinatorMetrics().text(None)) == {("understudy_coordinator_is_leader",): 0}


def test_a_first_round_reports_its_size_and_its_time_from_the_start(driven: Measured):
    metrics = driven.scrape()
    assert metrics[("understudy_coordinator_is_leader",)] == 1
    assert metrics[("understudy_coordinator_members",)] == 2
    assert metrics[("understudy_coordinator_world_size",)] == 16
    assert metrics[("understudy_coordinator_round",)] == 0
    assert driven.rounds() == {"First": 1}
    assert (metrics[(f"{TOOK}_count",)], metrics[(f"{TOOK}_sum",)]) == (1, 5.0)
    assert (metrics[(f"{TOOK}_bucket", "2.5")], metrics[(f"{TOOK}_bucket", "5.0")]) == (0, 1)
    assert metrics[(f"{TOOK}_bucket", "+Inf")] == 1


def test_a_restart_in_place_is_a_round_for_its_fault_that_lasts_until_all_have_acknowledged(driven: Measured):
    driven.later(100.0, *BOTH)
    driven.fail_worker("active-1")
    driven.ack("active-0")
    assert driven.scrape()[(f"{TOOK}_count",)] == 1
    driven.later(0.25, *BOTH)
    driven.ack("active-1")
    metrics = driven.scrape()
    assert driven.rounds() == {"First": 1, "Process": 1}
    assert metrics[(FAULTS, "Process")] == 1
    assert metrics[("understudy_coordinator_round",)] == 1
    assert metrics[(f"{TOOK}_count",)] == 2
    assert metrics[(f"{TOOK}_sum",)] == pytest.approx(5.27)


def test_a_lost_member_delays_the_next_round_until_another_joins():
    # given three members that train
    driven, others = Measured(3), ("active-0", "active-1")
    for name in (*others, "active-2"):
        driven.join(name)
    driven.ack(*others, "active-2")
    driven.later(100.0, *others, "active-2")
    # when one is lost, and another pod joins for its rank 30 s later
    driven.receive("active-2", m.Gone("its containers have ended"))
    assert driven.scrape()[("understudy_coordinator_members",)] == 2
    driven.later(30.0, *others)
    driven.join("active-2")
    driven.later(1.0, *others)
    driven.ack(*others, "active-2")
    # then the round took as long, and counts for the fault
    assert 30 < driven.scrape()[(f"{TOOK}_sum",)] < 32
    assert driven.rounds() == {"First": 1, "Pod": 1}


def test_a_step_is_reported_once_there_is_one(driven: Measured):
    assert ("understudy_coordinator_step",) not in driven.scrape()
    driven.receive("active-0", m.Progress(driven.token, 7, None, 0.1, driven.now))
    assert driven.scrape()[("understudy_coordinator_step",)] == 7


def test_a_round_of_a_previous_coordinator_that_continues_does_not_count_as_formed():
    # given members that train in round 5 of another term
    driven = Measured(epoch=2, at_least_round=5)
    for rank, name in enumerate(BOTH):
        driven.join(name, RoundToken(1, 1, 5), rank, WorkersState.RUNNING)
    driven.later(5.0, *BOTH)
    assert driven.coordinator.phase is RoundPhase.RUNNING
    # then the round is reported, and does not count as formed here
    assert driven.scrape()[("understudy_coordinator_round",)] == 5
    assert driven.rounds() == {}
    assert driven.scrape()[(f"{TOOK}_count",)] == 0
    # and the next one counts
    driven.fail_worker("active-1")
    driven.ack(*BOTH)
    assert driven.rounds() == {"Process": 1}
    assert driven.scrape()[(f"{TOOK}_count",)] == 1


def test_another_term_begins_at_0(driven: Measured):
    other = DrivenCoordinator(epoch=2)
    driven.metrics.update(other.coordinator, other.now)
    metrics = scraped(driven.metrics.text(other.coordinator))
    assert metrics[(ROUNDS, "First")] == metrics[(f"{TOOK}_count",)] == 0
    assert metrics[("understudy_coordinator_world_size",)] == 0


def test_the_copies_of_a_pods_snapshots_are_counted():
    name = "understudy_snapshot_copies_total"
    counts = {
        (name, "Copied"): 7,
        (name, "Skipped"): 2,
        (name, "Failed"): 1,
        ("understudy_snapshot_copied_bytes_total",): 5000,
    }
    assert scraped(text_of(CopyCounts(copied=7, skipped=2, failed=1, copied_bytes=5000))) == counts
    assert scraped(text_of(CopyCounts(7, 2, 1, 5000, step=3000, at=1763716005.25))) == counts | {
        ("understudy_snapshot_copied_step",): 3000,
        ("understudy_snapshot_copied_timestamp_seconds",): 1763716005,
    }


def test_the_snapshots_of_a_pod_on_storage_are_counted_with_the_newest_complete_step():
    name = "understudy_snapshot_storage_writes_total"
    counts = {(name, "Written"): 7, (name, "Failed"): 2}
    assert text_of_stored(None) == b""
    assert scraped(text_of_stored(SnapshotsStored(7, 2))) == counts
    assert scraped(text_of_stored(SnapshotsStored(7, 2, 3000, 1763716005.25))) == counts | {
        ("understudy_snapshot_storage_step",): 3000,
        ("understudy_snapshot_storage_timestamp_seconds",): 1763716005,
    }


def test_exactly_the_reported_metrics_are_described(driven: Measured):
    driven.receive("active-0", m.Progress(driven.token, 7, None, 0.1, driven.now))
    found = driven.scrape() | scraped(text_of(CopyCounts(0, 0, 0, 0, 7, 1.0)))
    found |= scraped(text_of_stored(SnapshotsStored(1, 0, 7, 1.0)))
    reported = {name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") for name, *_ in found}
    assert reported == {described.name for described in DESCRIBED}


def test_no_label_contains_a_name_of_an_object():
    assert {label for described in DESCRIBED for label in described.labels} == {"cause", "fault", "result"}


@pytest.mark.attack("D1", "a member whose texts and names are to appear in metrics", before="there were none, too")
def test_metrics_contain_no_text_of_a_member(driven: Measured):
    # given a member whose messages contain a secret text
    text = "stolen-text"
    for message in (
        m.ForkFallback(text),
        m.NodeVerdict(Verdict.FAULTY, text),
        m.WorkerFailed(driven.token, 0, 1, None, text, driven.now, text),
        m.Leaving(text, 0.0),
        m.Gone(text),
    ):
        driven.receive("active-0", message)
    driven.join("stolen-text-1")
    # then no metric contains it
    assert b"understudy_coordinator_faults_total" in driven.metrics.text(driven.coordinator)
    assert text.encode() not in driven.metrics.text(driven.coordinator)


@pytest.mark.parametrize(("path", "expected"), [("/metrics", "of the job"), ("/started", "ok")])
async def test_metrics_are_served_on_the_port_of_the_kubelets_probes(path: str, expected: str):
    reported: Callable[[], bytes] = lambda: b"of the job"  # noqa: E731
    server = await health.listen(0, "127.0.0.1", metrics=reported)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}{path}"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        assert (response.status, await response.text()) == (200, expected)
    server.close()
