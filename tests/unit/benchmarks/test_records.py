"""Samples become records of one shape, which include the runs that did not finish."""

from __future__ import annotations

import pytest

from benchmarks.records import Record, Sample, sum_up


def sample(run: int, seconds: float, **more: float) -> Sample:
    return Sample("understudy", "next-round", 64, run, {"seconds": seconds, **more})


def unfinished(run: int, after_s: float) -> Sample:
    return Sample("understudy", "next-round", 64, run, unfinished="nobody came", after_s=after_s)


def test_equal_runs_are_one_record_per_metric() -> None:
    records = sum_up([sample(0, 3.0, rss_mb=40.0), sample(1, 1.0, rss_mb=50.0), sample(2, 2.0, rss_mb=41.0)])

    assert records == [
        Record("understudy", "next-round", 64, "seconds", "s", 2.0, 1.0, 3.0, 3),
        Record("understudy", "next-round", 64, "rss_mb", "MB", 41.0, 40.0, 50.0, 3),
    ]


def test_systems_and_sizes_are_kept_apart() -> None:
    given = [Sample(system, "first-round", size, 0, {"seconds": 1.0}) for system in "ab" for size in (1, 2)]

    assert [(x.system, x.size, x.runs) for x in sum_up(given)] == [("a", 1, 1), ("a", 2, 1), ("b", 1, 1), ("b", 2, 1)]


def test_a_run_that_did_not_finish_was_longer_than_all_that_did() -> None:
    (record,) = sum_up([sample(0, 3.0), unfinished(1, 220.0), sample(2, 1.0)])

    assert (record.median, record.min, record.max, record.runs) == (3.0, 1.0, None, 3)


def test_if_no_run_finished_the_record_has_their_least_time() -> None:
    (record,) = sum_up([unfinished(0, 220.0)])

    assert (record.metric, record.median, record.min, record.max) == ("seconds", None, 220.0, None)


def test_if_most_runs_did_not_finish_the_record_has_their_number_and_least_time() -> None:
    (record,) = sum_up([sample(0, 4.8), unfinished(1, 60.0), unfinished(2, 90.0)])

    assert (record.median, record.min, record.max, record.runs, record.unfinished) == (None, 60.0, None, 3, 2)


def test_a_metric_without_a_unit_is_refused() -> None:
    with pytest.raises(KeyError, match="parsecs"):
        sum_up([sample(0, 1.0, parsecs=12.0)])
