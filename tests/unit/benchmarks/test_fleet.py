"""make bench-fleet: the mix of jobs, the rate and the places of faults, and the table with the extrapolation."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.fleet.__main__ import arguments, fleets
from benchmarks.fleet.fleet import fleet_node
from benchmarks.fleet.plan import Case, Fleet, strikes
from benchmarks.fleet.table import cost_rows, extrapolation_rows
from benchmarks.records import Record
from benchmarks.tables import Row
from understudy_operator.plan.leadership.shard import Shard

LARGE = Fleet(5_000, 500, 20_000)
SMALL = LARGE.part(10)


@pytest.mark.parametrize("fleet", [LARGE, SMALL, Fleet(20, 10, 100), Fleet(1, 3, 3), Fleet(1, 3, 5)])
def test_a_fleet_has_its_number_of_jobs_and_of_pods(fleet: Fleet) -> None:
    assert len(fleet.job_sizes) == fleet.jobs
    assert sum(fleet.job_sizes) == fleet.pods
    assert min(fleet.job_sizes) >= 1


def test_too_few_pods_are_an_error() -> None:
    with pytest.raises(ValueError, match="20 pods are too few for 30 jobs of this mix"):
        fleets(arguments(["--jobs", "30", "--pods", "20", "--divisor", "1"]))


def test_both_fleets_have_the_same_mix_of_jobs() -> None:
    assert SMALL.job_sizes * 10 == LARGE.job_sizes
    assert SMALL.job_sizes[:10] == [6, 6, 6, 7, 6, 24, 25, 25, 98, 197]


def test_each_namespace_has_jobs_of_all_sizes_and_each_shard_has_half_of_them() -> None:
    sizes = Counter[str]()
    for job, pods in enumerate(LARGE.job_sizes):
        sizes[LARGE.namespace_of(job)] += pods
    assert len(sizes) == LARGE.namespaces
    assert set(sizes.values()) == {2_000}
    owners = Counter(Shard(0, 2, LARGE.listed_shards).owns(namespace) for namespace in sizes)
    assert owners == {True: 5, False: 5}


def test_the_rate_of_faults_is_that_of_llama_3_for_as_many_gpus() -> None:
    # 419 faults in 54 days on 16,384 GPUs, of which each pod has 8
    assert Fleet(256, 1, 2_048).faults_per_s(1.0) * 54 * 86_400 == pytest.approx(419)
    assert LARGE.faults_per_s(1_000.0) == pytest.approx(0.877, abs=0.001)


def test_every_second_fault_loses_a_pod_and_all_are_in_the_time_of_the_case() -> None:
    found = strikes(LARGE, 0.5, 60.0)
    assert len(found) == 30
    assert [x.loses_pod for x in found] == [False, True] * 15
    times = [x.at_s for x in found]
    assert times == sorted(times)
    assert 0 <= times[0] < times[-1] <= 60


def test_a_short_case_has_one_fault() -> None:
    assert len(strikes(SMALL, 0.001, 1.0)) == 1


def test_faults_of_both_fleets_hit_jobs_of_the_same_sizes() -> None:
    def sizes(fleet: Fleet) -> list[int]:
        return [fleet.job_sizes[x.job] for x in strikes(fleet, 1.0, 100.0)]

    assert sizes(LARGE) == sizes(SMALL)


def test_faults_hit_jobs_in_proportion_to_their_pods() -> None:
    hits = Counter(LARGE.job_sizes[x.job] for x in strikes(LARGE, 1.0, 400.0))
    assert hits[197] == pytest.approx(197, abs=4)  # of 400: a tenth of the jobs has 197 of 400 pods


def test_a_node_has_the_fields_of_a_typical_one_and_room_for_its_share_of_the_pods_and_one_more() -> None:
    assert [Fleet(nodes, 10, pods).pods_of_a_node for nodes, pods in ((2000, 8000), (2000, 8001))] == [5, 6]
    raw = fleet_node(7, 5)
    assert len(raw["metadata"]["labels"]) > 10
    assert {"conditions", "images", "allocatable", "capacity"} <= raw["status"].keys()
    assert raw["status"]["allocatable"]["pods"] == "5"


# The table --------------------------------------------------------------------------------------------------------


def records(cost_of_large: float = 1.0) -> list[Record]:
    """Two fleets: the base takes 1 % and 50 MB, a node 0.001 % and 0.01 MB, a pod 0.002 % and 0.02 MB, and a label
    change of all nodes 1 %. Then 30 faults in 100 s take 20 ms and two writes each.
    """
    found = []
    for fleet, factor in ((SMALL, 1.0), (LARGE, cost_of_large)):
        nodes, pods = fleet.nodes, fleet.pods
        empty, idle = 1 + 0.001 * nodes, 1 + 0.001 * nodes + 0.002 * pods
        fault = {"measured_s": 100.0, "faults": 30.0, "cpu_s": idle + 1 + 30 * 0.02 * factor, "writes_per_s": 0.7}
        values = {
            Case.EMPTY: {"cpu_percent": empty, "rss_mb": 50 + 0.01 * nodes},
            Case.IDLE: {"cpu_percent": idle, "rss_mb": 50 + 0.01 * nodes + 0.02 * pods, "nodes": nodes}
            | {"all_programs_mb": 1_000 + 0.2 * pods},
            Case.LABELS: {"cpu_percent": idle + 1, "writes_per_s": 0.1},
            Case.FAULTS: fault,
            Case.VERDICTS: fault | {"writes_per_s": 0.1 + 0.03 * fleet.jobs},
        }
        found += [
            Record("understudy", case, pods, metric, "", x, x, x, 1)
            for case, metrics in values.items()
            for metric, x in metrics.items()
        ]
    return found


def by_name(rows: list[Row]) -> dict[str, tuple[str, ...]]:
    return {row[0]: row[1:] for row in rows}


def test_the_cost_of_a_fault_is_what_it_adds_and_its_ratio_is_that_of_the_fleets() -> None:
    rows = by_name(cost_rows(records(cost_of_large=1.5)))
    assert rows["cost"] == ("2,000 pods", "20,000 pods", "ratio")
    assert rows["CPU time of a fault, ms"] == ("20", "30", "1.5")
    assert rows["API writes of a fault"] == ("2", "2", "1")
    assert rows["API writes of a verdict"] == ("5", "50", "10")
    assert rows["memory of the operator, MB"] == ("95", "500", "5.26")
    assert rows["memory of all programs, MB"] == ("1,400", "5,000", "3.57")


def test_a_case_that_was_not_measured_has_no_cost() -> None:
    left = [x for x in records() if x.case != Case.VERDICTS]
    assert {row[0] for row in cost_rows(records())} - {row[0] for row in cost_rows(left)} == {
        "CPU time of a verdict, ms",
        "API writes of a verdict",
    }


def test_shards_do_not_count_in_the_costs_of_one_process() -> None:
    shard = Record("one of 2 shards", Case.FAULTS, LARGE.pods, "cpu_s", "", 900.0, 900.0, 900.0, 2)
    assert cost_rows([*records(), shard]) == cost_rows(records())


def test_the_extrapolation_adds_the_parts_of_the_base_the_nodes_and_the_pods() -> None:
    rows = by_name(extrapolation_rows(records()))
    assert rows["operator"][3:] == ("measured", "EXTRAPOLATED to 100,000 pods")
    assert rows["memory, MB"] == ("50", "0.01", "0.02", "500", "2,300")
    # the base, 0.001 % for each node, and 0.002 % with the label changes, which are 1 % at 20,000 pods, for each pod
    assert rows["CPU without faults, %"] == ("1", "0.001", "0.00205", "47", "231")
    # 0.3 faults a second of 20 ms, and five times as many in a fleet that is five times as large
    assert rows["CPU of faults, %"][3:] == ("0.600", "3")
    assert rows["pods that fill one core"][-1] == "42,000"


def test_without_two_fleets_nothing_is_extrapolated() -> None:
    assert len(extrapolation_rows([x for x in records() if x.size == LARGE.pods])) == 1
    assert len(extrapolation_rows([])) == 1
