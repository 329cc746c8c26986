"""What a coordinator tells Prometheus of its rounds, read by the client library's own parser."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from tests.unit.operator.metrics.reading import scraped
from tests.unit.sidecar.membership.driven import Driven
from understudy_protocol import membership as m
from understudy_protocol.words import RoundToken, WorkersState
from understudy_sidecar import health
from understudy_sidecar.membership.desk import State
from understudy_sidecar.membership.events import CoordinatorEvent
from understudy_sidecar.metrics import DESCRIBED, CoordinatorMetrics

ROUNDS, FAULTS = "understudy_coordinator_rounds_total", "understudy_coordinator_faults_total"
BOTH = ("active-0", "active-1")
TOOK = "understudy_coordinator_rendezvous_seconds"


class Measured(Driven):
    """Its metrics look after each event, as the office lets them."""

    def __init__(self, *args: Any, **told: Any) -> None:
        self.metrics = CoordinatorMetrics()
        super().__init__(*args, **told)

    def at_once(self, event: CoordinatorEvent) -> None:
        super().at_once(event)
        self.metrics.look(self.coordinator, self.now)

    def scrape(self) -> dict[tuple[str, ...], float]:
        return scraped(self.metrics.text(self.coordinator))

    def rounds(self) -> dict[str, float]:
        return {key[1]: count for key, count in self.scrape().items() if key[0] == ROUNDS and count}

    def ack(self, *names: str) -> None:
        for name in names:
            self.hear(name, m.Ack(self.token))
            self.hear(name, m.Started(self.token))


@pytest.fixture
def office() -> Measured:
    """Two members train since 4 s after the coordinator's start, of which the last acknowledged 1 s later."""
    office = Measured(nproc=8)
    office.later(4.0)
    office.join("active-0")
    office.join("active-1")
    office.ack("active-0")
    office.later(1.0, *BOTH)
    office.ack("active-1")
    return office


def test_a_sidecar_that_coordinates_nothing_says_just_that():
    assert scraped(CoordinatorMetrics().text(None)) == {("understudy_coordinator_in_office",): 0}


def test_a_first_round_tells_its_size_and_how_long_it_took_from_the_start(office: Measured):
    said = office.scrape()
    assert said[("understudy_coordinator_in_office",)] == 1
    assert said[("understudy_coordinator_members",)] == 2
    assert said[("understudy_coordinator_world_size",)] == 16
    assert said[("understudy_coordinator_round",)] == 0
    assert office.rounds() == {"First": 1}
    assert (said[(f"{TOOK}_count",)], said[(f"{TOOK}_sum",)]) == (1, 5.0)
    assert (said[(f"{TOOK}_bucket", "2.5")], said[(f"{TOOK}_bucket", "5.0")]) == (0, 1)
    assert said[(f"{TOOK}_bucket", "+Inf")] == 1


def test_a_restart_in_place_is_a_round_for_its_fault_that_takes_until_all_have_it(office: Measured):
    office.later(100.0, *BOTH)
    office.worker_fails("active-1")
    office.ack("active-0")
    assert office.scrape()[(f"{TOOK}_count",)] == 1
    office.later(0.25, *BOTH)
    office.ack("active-1")
    said = office.scrape()
    assert office.rounds() == {"First": 1, "Process": 1}
    assert said[(FAULTS, "Process")] == 1
    assert said[("understudy_coordinator_round",)] == 1
    assert said[(f"{TOOK}_count",)] == 2
    assert said[(f"{TOOK}_sum",)] == pytest.approx(5.27)


def test_a_lost_member_holds_up_the_next_round_until_another_comes():
    # given three that train
    office, others = Measured(3), ("active-0", "active-1")
    for name in (*others, "active-2"):
        office.join(name)
    office.ack(*others, "active-2")
    office.later(100.0, *others, "active-2")
    # when one is lost, and another pod comes for its rank 30 s later
    office.hear("active-2", m.Gone("its containers have ended"))
    assert office.scrape()[("understudy_coordinator_members",)] == 2
    office.later(30.0, *others)
    office.join("active-2")
    office.later(1.0, *others)
    office.ack(*others, "active-2")
    # then that took as long, and the round is the fault's
    assert 30 < office.scrape()[(f"{TOOK}_sum",)] < 32
    assert office.rounds() == {"First": 1, "Pod": 1}


def test_a_step_is_told_once_there_is_one(office: Measured):
    assert ("understudy_coordinator_step",) not in office.scrape()
    office.hear("active-0", m.Progress(office.token, 7, None, 0.1, office.now))
    assert office.scrape()[("understudy_coordinator_step",)] == 7


def test_a_round_of_a_former_coordinator_that_trains_on_is_none_of_ours():
    # given members that train in round 5 of another office
    office = Measured(epoch=2, at_least_round=5)
    for rank, name in enumerate(BOTH):
        office.join(name, RoundToken(1, 1, 5), rank, WorkersState.RUNNING)
    office.later(5.0, *BOTH)
    assert office.coordinator.state is State.RUNNING
    # then it is told, and was not formed here
    assert office.scrape()[("understudy_coordinator_round",)] == 5
    assert office.rounds() == {}
    assert office.scrape()[(f"{TOOK}_count",)] == 0
    # and the next one is
    office.worker_fails("active-1")
    office.ack(*BOTH)
    assert office.rounds() == {"Process": 1}
    assert office.scrape()[(f"{TOOK}_count",)] == 1


def test_another_office_begins_at_0(office: Measured):
    other = Driven(epoch=2)
    office.metrics.look(other.coordinator, other.now)
    said = scraped(office.metrics.text(other.coordinator))
    assert said[(ROUNDS, "First")] == said[(f"{TOOK}_count",)] == 0
    assert said[("understudy_coordinator_world_size",)] == 0


def test_everything_that_is_told_is_described_and_nothing_else(office: Measured):
    office.hear("active-0", m.Progress(office.token, 7, None, 0.1, office.now))
    told = {name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") for name, *_ in office.scrape()}
    assert told == {described.name for described in DESCRIBED}


def test_no_label_has_the_name_of_anything():
    assert {label for described in DESCRIBED for label in described.labels} == {"cause", "fault"}


@pytest.mark.parametrize(("path", "expected"), [("/metrics", "of the job"), ("/started", "ok")])
async def test_it_is_served_where_the_kubelet_probes(path: str, expected: str):
    told: Callable[[], bytes] = lambda: b"of the job"  # noqa: E731
    server = await health.listen(0, "127.0.0.1", metrics=told)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}{path}"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        assert (response.status, await response.text()) == (200, expected)
    server.close()
