"""The recoveries that a write of a job's status ends: each counts once, for any writer and whatever answer the write
got.
"""

from typing import Any

import pytest

from understudy_operator.metrics.ended import EndCounter, EndedRecovery, Ends, ends
from understudy_operator.plan.facts.status import JobStatus, read_job_status

AT = "2026-11-22T04:00:00.000000Z"
OPEN = {"fault": "Process", "round": 1, "cause": {"pod": "p"}, "detectedAt": AT}
FIXED = {**OPEN, "strategy": "InPlace"}
DONE = {**FIXED, "resumedAt": AT, "pauseSeconds": 0.8}
RECOVERED = Ends((EndedRecovery("Process", "InPlace", "Recovered", 0.8),))


def status(*recoveries: dict[str, Any], **fields: Any) -> JobStatus:
    return read_job_status({"status": {"recoveries": list(recoveries), **fields}})[0]


def test_a_recovery_ends_with_the_write_that_reports_when_training_continued():
    assert ends(status(FIXED), status(DONE)) == RECOVERED
    assert ends(status(), status(DONE)) == RECOVERED  # it began and ended between two writes


def test_a_write_that_repeats_an_end_or_reports_a_fix_ends_no_recovery():
    assert ends(status(DONE), status(DONE, OPEN)) == Ends()
    assert ends(status(OPEN), status(FIXED)) == Ends()


def test_two_recoveries_of_one_moment_count_as_two():
    assert len(ends(status(FIXED, FIXED), status(DONE, DONE)).recoveries) == 2


def test_a_job_that_fails_ends_open_recoveries_without_seconds():
    failed = ends(status(DONE, OPEN), status(DONE, OPEN, terminalState="Failed"))
    assert failed == Ends((EndedRecovery("Process", "None", "Failed", None),))
    # only once
    assert ends(status(OPEN, terminalState="Failed"), status(OPEN, terminalState="Failed")) == Ends()


def test_a_restart_of_the_job_is_the_strategy_of_the_recovery_that_it_ends():
    restarted = {**DONE, "strategy": "JobRestart"}
    assert ends(status(OPEN), status(restarted)).recoveries[0].strategy == "JobRestart"


def test_a_failed_weight_update_counts_once_and_the_next_one_again():
    def update(name: str) -> JobStatus:
        return status(rollouts={"failure": {"update": name}})

    assert ends(status(), update("1")).failed_updates == 1
    assert ends(update("1"), update("1")).failed_updates == 0
    assert ends(update("1"), update("2")).failed_updates == 1
    assert ends(update("1"), status(rollouts={})).failed_updates == 0


# Answers -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def counter() -> EndCounter:
    counter = EndCounter()
    counter.on_write("1", status(FIXED), status(DONE))
    return counter


def test_a_write_counts_and_later_reads_of_it_do_not(counter: EndCounter):
    assert counter.on_written(done=True) == RECOVERED
    assert counter.on_read("2", status(DONE)) == Ends()


def test_a_write_that_lost_a_conflict_with_another_replica_counts_nothing(counter: EndCounter):
    assert counter.on_written(done=False) == Ends()
    assert counter.on_read("2", status(DONE)) == Ends()


def test_an_unanswered_write_counts_once_it_is_observed_in_the_job(counter: EndCounter):
    assert counter.on_read("1", status(FIXED)) == Ends()  # the watch is behind
    assert counter.on_read("2", status(DONE)) == RECOVERED
    assert counter.on_read("3", status(DONE)) == Ends()


def test_an_unanswered_write_counts_if_its_repetition_conflicts_with_it(counter: EndCounter):
    assert counter.on_read("1", status(FIXED)) == Ends()
    counter.on_write("1", status(FIXED), status(DONE))
    assert counter.on_written(done=False) == Ends()
    assert counter.on_read("2", status(DONE)) == RECOVERED


def test_an_unanswered_write_that_was_not_done_counts_nothing(counter: EndCounter):
    assert counter.on_read("2", status(FIXED)) == Ends()
    counter.on_write("2", status(FIXED), status(DONE))
    assert counter.on_written(done=True) == RECOVERED
