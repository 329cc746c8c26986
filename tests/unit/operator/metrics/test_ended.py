"""Which recoveries a write of a job's status has ended: each once, whoever wrote it, whatever became of the answer."""

from typing import Any

import pytest

from understudy_operator.metrics.ended import Ended, Ends, Ledger, ends

AT = "2026-11-22T04:00:00.000000Z"
OPEN = {"fault": "Process", "round": 1, "cause": {"pod": "p"}, "detectedAt": AT}
MENDED = {**OPEN, "strategy": "InPlace"}
DONE = {**MENDED, "resumedAt": AT, "seconds": 0.8}
RECOVERED = Ends((Ended("Process", "InPlace", "Recovered", 0.8),))


def status(*recoveries: dict[str, Any], **told: Any) -> dict[str, Any]:
    return {"recoveries": list(recoveries), **told}


def test_a_recovery_ends_with_the_write_that_tells_when_training_went_on():
    assert ends(status(MENDED), status(DONE)) == RECOVERED
    assert ends({}, status(DONE)) == RECOVERED  # it began and ended between two writes


def test_and_not_with_one_that_tells_it_again_or_tells_how_it_is_mended():
    assert ends(status(DONE), status(DONE, OPEN)) == Ends()
    assert ends(status(OPEN), status(MENDED)) == Ends()


def test_two_of_one_moment_are_two():
    assert len(ends(status(MENDED, MENDED), status(DONE, DONE)).recoveries) == 2


def test_a_job_that_fails_ends_what_was_open_without_seconds():
    failed = ends(status(DONE, OPEN), status(DONE, OPEN, terminalState="Failed"))
    assert failed == Ends((Ended("Process", "None", "Failed", None),))
    # and once
    assert ends(status(OPEN, terminalState="Failed"), status(OPEN, terminalState="Failed")) == Ends()


def test_a_restart_of_the_job_is_the_strategy_of_what_it_has_mended():
    restarted = {**DONE, "strategy": "JobRestart"}
    assert ends(status(OPEN), status(restarted)).recoveries[0].strategy == "JobRestart"


def test_a_failed_weight_update_counts_once_and_the_next_one_again():
    def update(name: str) -> dict[str, Any]:
        return {"rollouts": {"failure": {"update": name}}}

    assert ends({}, update("1")).failed_updates == 1
    assert ends(update("1"), update("1")).failed_updates == 0
    assert ends(update("1"), update("2")).failed_updates == 1
    assert ends(update("1"), {"rollouts": {}}).failed_updates == 0


# Answers -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def ledger() -> Ledger:
    ledger = Ledger()
    ledger.writes("1", status(MENDED), status(DONE))
    return ledger


def test_a_write_that_was_done_counts_and_what_follows_does_not(ledger: Ledger):
    assert ledger.wrote(done=True) == RECOVERED
    assert ledger.seen("2", status(DONE)) == Ends()


def test_a_write_that_was_refused_because_another_replica_was_faster_counts_nothing(ledger: Ledger):
    assert ledger.wrote(done=False) == Ends()
    assert ledger.seen("2", status(DONE)) == Ends()


def test_one_without_an_answer_counts_once_the_job_is_seen_to_tell_it(ledger: Ledger):
    assert ledger.seen("1", status(MENDED)) == Ends()  # the watch is behind
    assert ledger.seen("2", status(DONE)) == RECOVERED
    assert ledger.seen("3", status(DONE)) == Ends()


def test_and_if_it_is_sent_again_and_refused_for_itself(ledger: Ledger):
    assert ledger.seen("1", status(MENDED)) == Ends()
    ledger.writes("1", status(MENDED), status(DONE))
    assert ledger.wrote(done=False) == Ends()
    assert ledger.seen("2", status(DONE)) == RECOVERED


def test_one_without_an_answer_that_was_not_done_counts_nothing(ledger: Ledger):
    assert ledger.seen("2", status(MENDED)) == Ends()
    ledger.writes("2", status(MENDED), status(DONE))
    assert ledger.wrote(done=True) == RECOVERED
