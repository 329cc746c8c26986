"""The pages of the dashboard: their rows, the lanes of a job's picture, and the changes between two moments."""

from typing import Any

import pytest

from tests.unit.cli import samples
from understudy_cli.facts import Fleet, Job, Pod, Recovery
from understudy_cli.reading import read_event, read_job, read_node, read_pod, read_pool, read_recovery
from understudy_cli.views.pages import (
    DashboardState,
    FaultLine,
    GoodputLine,
    JobLine,
    LaneHolder,
    Page,
    PageAddress,
    changes,
    lanes,
    page,
)

JOB = PageAddress("job", "team-a", "llm")


def fleet(**changes: Any) -> Fleet:
    given = {"jobs": (read_job(samples.job()),), "pods": tuple(map(read_pod, samples.pods()))} | changes
    return Fleet(**given)


def test_a_row_of_the_fleet_has_numbers_times_and_no_ages() -> None:
    (row,) = page(fleet(), PageAddress("fleet"), samples.NOW)["jobs"].values()
    assert isinstance(row, JobLine)
    assert (row.ready, row.spares, row.recoveries, row.step, row.fault) == ("2/2", "0/1", 2, 1200, "Node")
    assert row.fault_at == samples.NOW - 120
    # and it does not change with the time
    assert page(fleet(), PageAddress("fleet"), samples.NOW) == page(fleet(), PageAddress("fleet"), samples.NOW + 3600)


@pytest.mark.parametrize("address", [JOB, PageAddress("fleet")])
def test_these_pages_change_only_if_something_has_happened(address: PageAddress) -> None:
    assert list(changes(page(fleet(), address, samples.NOW), page(fleet(), address, samples.NOW + 86400), 10)) == []


def test_a_job_has_only_its_own_pods_recoveries_and_events() -> None:
    # given a pod of a deleted job with the same name, a pod of another namespace, and events of another object
    former = samples.pod("former", "node-b", rank=0)
    former["metadata"]["labels"]["understudy.dev/job-uid"] = "uid-of-a-deleted-job"
    elsewhere = samples.pod("elsewhere", "node-b", rank=0)
    elsewhere["metadata"]["namespace"] = "team-b"
    pods = tuple(map(read_pod, (*samples.pods(), former, elsewhere)))
    event = {"involvedObject": {"uid": "uid-of-llm"}, "reason": "NodeAvoided", "eventTime": "2026-11-20T11:58:01Z"}
    events = (read_event(event), read_event(event | {"involvedObject": {"uid": "another"}, "reason": "Other"}))
    other = read_recovery(samples.recovery_object() | {"metadata": {"ownerReferences": [{"uid": "another"}]}})
    given = fleet(pods=pods, events=events, recoveries=(read_recovery(samples.recovery_object()), other))
    # when its page is made
    found = page(given, JOB, samples.NOW)
    # then these are not there
    assert set(found["pods"]) == {"llm-spare-new1", "llm-workers-0-1", "llm-spare-x7k2p"}
    kinds = [entry.kind for entry in found["history"].values()]  # type: ignore[attr-defined]
    assert ("NodeAvoided" in kinds, "Other" in kinds) == (True, False)
    assert len(found["faults"]) == 3  # two of the status, and one object


def test_the_time_of_a_job_has_its_parts_and_losses_but_not_the_time_until_now() -> None:
    found = page(fleet(), JOB, samples.NOW)
    (line,) = found["goodput"].values()
    assert isinstance(line, GoodputLine)
    assert (line.seconds["productive"], line.seconds["capacity"], line.part) == (10000.0, 0.0, "productive")
    assert (line.is_stepping, line.since, line.stepped_at) == (True, samples.NOW - 100, samples.NOW - 0.5)
    assert list(line.seconds) == list(line.meanings)
    assert [(loss.by, loss.name, loss.device_seconds) for loss in found["lost"].values()] == [  # type: ignore[attr-defined]
        ("fault", "Node", 80.0),
        ("fault", "Process", 4.0),
        ("node", "node-a", 80.0),
        ("node", "node-b", 2.4),
        ("node", "", 1.6),
    ]
    # and a job without an account has none
    assert not page(fleet(jobs=(read_job(samples.job(goodput=None)),)), JOB, samples.NOW)["goodput"]


def test_pods_of_an_injected_job_have_its_name() -> None:
    job = read_job(samples.job("jobset.llm") | {"kind": "InjectedJob"})
    raw = samples.pod("a", "node-b", rank=0)
    raw["metadata"]["labels"] |= {"understudy.dev/job-name": "jobset.llm", "understudy.dev/job-uid": "of-the-jobset"}
    given = fleet(jobs=(job,), pods=(read_pod(raw),))
    assert set(page(given, PageAddress("job", "team-a", "jobset.llm"), samples.NOW)["pods"]) == {"a"}


def test_a_job_that_does_not_exist_has_no_rows() -> None:
    assert set(page(fleet(), PageAddress("job", "team-b", "llm"), samples.NOW)) == {"state"}


def test_faults_at_the_same_time_have_rows_of_their_own() -> None:
    twins = [samples.recovery(cause={"rank": rank, "pod": "p"}) for rank in (3, 4)]
    found = page(fleet(jobs=(read_job(samples.job(recoveries=twins)),)), JOB, samples.NOW)
    assert len(found["faults"]) == 2


def test_a_page_has_the_newest_200_faults_and_their_number() -> None:
    many = [
        samples.recovery(detectedAt=f"2026-11-20T{hour:02}:{minute:02}:00Z")
        for hour in range(4)
        for minute in range(60)
    ]
    found = page(fleet(jobs=(read_job(samples.job(recoveries=many)),)), JOB, samples.NOW)
    assert len(found["faults"]) == 200
    assert found["span"][""].more_faults == 40  # type: ignore[attr-defined]
    assert min(row.at for row in found["faults"].values()) == samples.NOW - 12 * 3600 + 40 * 60  # type: ignore[attr-defined]


def test_spares_and_nodes_have_the_rows_of_their_verbs() -> None:
    given = fleet(pools=(read_pool(samples.pool()),), nodes=tuple(map(read_node, samples.nodes())))
    found = page(given, PageAddress("spares"), samples.NOW)
    assert list(found["owners"]) == ["team-a/job/llm", "team-a/pool/shared"]
    assert list(found["spares"]) == ["team-a/llm-spare-new1"]
    assert list(page(given, PageAddress("nodes"), samples.NOW)["nodes"]) == ["node-a", "node-d", "node-b", "node-c"]


# Lanes ----------------------------------------------------------------------------------------------------------------


def job_of(**status: Any) -> Job:
    return read_job(samples.job(startTime="2026-11-20T09:00:00Z", **status))


def fault(minute: int, strategy: str, rank: int, pod: str, **given: Any) -> Recovery:
    at = f"2026-11-20T10:{minute:02}:00Z"
    end = f"2026-11-20T10:{minute:02}:10Z"
    cause = {"rank": rank, "pod": pod, "node": f"node-of-{pod}"}
    return read_recovery(samples.recovery(strategy=strategy, cause=cause, detectedAt=at, resumedAt=end) | given)


def active(name: str, rank: int) -> Pod:
    return read_pod(samples.pod(name, "node-now", rank=rank))


NINE, TEN = samples.NOW - 3 * 3600, samples.NOW - 2 * 3600


def test_a_lane_has_the_pods_of_its_ranks_one_after_the_other() -> None:
    # given ranks 2-3, whose pod a was replaced by b, which had a fault in place and was then replaced by c
    faults = (fault(5, "SpareSwap", 3, "a"), fault(7, "InPlace", 2, "b"), fault(20, "PodRecreate", 2, "b"))
    # when its lane is made
    (lane,) = lanes(job_of(), [active("c", 1), active("d", 0)], faults)
    # then each pod has them from the end of one recovery to the next fault
    assert lane.ranks == "ranks 2-3"
    assert lane.holders == (
        LaneHolder("a", "node-of-a", NINE, TEN + 300),
        LaneHolder("b", "node-of-b", TEN + 310, TEN + 1200),
        LaneHolder("c", "node-now", TEN + 1210, None),
    )
    assert lane.faults == ((TEN + 300, "Process"), (TEN + 420, "Process"), (TEN + 1200, "Process"))


def test_a_lost_pod_has_no_ranks_while_its_recovery_is_open() -> None:
    lost = fault(5, "SpareSwap", 3, "a", resumedAt=None, pauseSeconds=None)
    (lane,) = lanes(job_of(), [active("a", 1)], (lost,))
    assert lane.holders == (LaneHolder("a", "node-of-a", NINE, TEN + 300),)


def test_a_lane_ends_with_its_job() -> None:
    ended = job_of(completionTime="2026-11-20T11:00:00Z")
    (lane,) = lanes(ended, [], (fault(5, "InPlace", 3, "a"),))
    assert [(holder.start, holder.end) for holder in lane.holders] == [(NINE, samples.NOW - 3600)]


def test_lanes_begin_with_the_newest_fault_and_faults_without_a_rank_have_none() -> None:
    faults = (fault(5, "InPlace", 0, "a"), fault(6, "InPlace", 2, "b"), fault(7, "InPlace", 1, "a"))
    unknown = fault(8, "SpareSwap", 0, "z", cause={"pod": "z"})
    found = lanes(job_of(), [active("a", 0), active("b", 1)], (*faults, unknown))
    assert [lane.ranks for lane in found] == ["ranks 0-1", "ranks 2-3"]


def test_a_page_has_16_lanes_in_the_order_of_their_ranks() -> None:
    at = "2026-11-20T10:{:02}:00Z"
    many = [samples.recovery(cause={"rank": rank, "pod": "a"}, detectedAt=at.format(rank)) for rank in range(20)]
    found = page(fleet(jobs=(read_job(samples.job(recoveries=many)),), pods=()), JOB, samples.NOW)
    assert list(found["lanes"]) == [str(rank) for rank in range(4, 20)]
    assert found["span"][""].more_lanes == 4  # type: ignore[attr-defined]


# Changes --------------------------------------------------------------------------------------------------------------


def test_changes_have_the_rows_that_differ_and_the_keys_that_are_gone() -> None:
    before: Page = {"jobs": {"a": 1, "b": 2, "c": 3}, "pods": {"x": 1}}
    after: Page = {"jobs": {"a": 1, "b": 5, "d": 4}}
    (only,) = changes(before, after, 10)
    assert (only.set, only.gone) == ({"jobs": {"b": 5, "d": 4}}, {"jobs": ["c"], "pods": ["x"]})


def test_equal_pages_have_no_changes() -> None:
    assert list(changes({"jobs": {"a": 1}}, {"jobs": {"a": 1}}, 10)) == []


def test_many_changes_come_in_parts() -> None:
    after: Page = {
        "jobs": {str(number): number for number in range(3)},
        "pods": {str(number): number for number in range(4)},
    }
    parts = list(changes({"jobs": {"gone": 1}}, after, 3))
    assert [sum(map(len, part.set.values())) for part in parts] == [3, 3, 1]
    assert [part.gone for part in parts] == [{"jobs": ["gone"]}, {}, {}]


@pytest.mark.parametrize("is_complete", [False, True])
def test_a_page_shows_whether_all_objects_have_been_read(is_complete: bool) -> None:
    shown = page(Fleet(is_complete=is_complete), PageAddress("fleet"), samples.NOW)
    assert shown["state"] == {"": DashboardState(is_complete, ())}


@pytest.mark.parametrize(
    ("outcome", "ended_at"), [("Suspended", samples.NOW - 60), ("Unknown", samples.NOW - 60), ("Failed", None)]
)
def test_only_the_failure_of_a_job_ends_a_pause_at_the_end_of_the_picture(outcome: str, ended_at: float | None) -> None:
    """A pause that ended with a suspension would cover the training after it."""
    lost = samples.recovery_object() | {"outcome": outcome, "resumedAt": None, "pauseSeconds": None}
    found = page(fleet(recoveries=(read_recovery(lost),)), JOB, samples.NOW)["faults"]
    (line,) = [line for line in found.values() if isinstance(line, FaultLine) and line.outcome == outcome]
    assert (line.ended_at, line.is_open) == (ended_at, False)
