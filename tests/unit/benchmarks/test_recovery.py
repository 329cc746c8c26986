"""The plan of bench-recovery, the sessions that remain of it, and the reports of the ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.child import Unfinished
from benchmarks.journal import Journal
from benchmarks.records import Record, Sample
from benchmarks.recovery.goals import GOALS
from benchmarks.recovery.headline import headline_rows
from benchmarks.recovery.plan import SYSTEMS, Case, Session, System, missing, plan
from benchmarks.recovery.reports import Reports
from benchmarks.recovery.systems import nodes_of

UNDERSTUDY = System.UNDERSTUDY


def test_each_system_has_its_runs_in_turns() -> None:
    worker = plan(cases=[Case.WORKER])
    of_ours = [x for x in worker if x.system is UNDERSTUDY]
    assert sum(x.runs for x in of_ours) == 12
    assert [x.first_run for x in of_ours] == [0, 4, 8]
    assert [x.system for x in worker[:9]] == list(System)
    assert [x.system for x in worker[9:18]] == list(System)


def test_a_system_that_never_recovers_is_tried_three_times() -> None:
    """A session ends with its first run that does not finish, so there are three of each."""
    starts = plan()
    for case, systems in SYSTEMS.items():
        for system in systems:
            sessions = [x for x in starts if (x.system, x.case) == (system, case)]
            assert len(sessions) >= 3 or case is Case.SIGTERM_FAULTY, (system, case)


def test_each_peer_has_its_store_on_another_node_too_if_a_node_is_lost() -> None:
    peers = {system for system in SYSTEMS[Case.NODE] if not system.startswith("understudy")}
    assert set(SYSTEMS[Case.NODE_STORE_APART]) == peers
    assert nodes_of(Session(System.NVRX, Case.NODE, 0, 1)) == 5
    assert nodes_of(Session(System.NVRX, Case.NODE_STORE_APART, 0, 1)) == 6


def test_a_part_can_be_chosen() -> None:
    (session,) = plan(cases=[Case.NODE], systems=[UNDERSTUDY], runs=3)
    assert (session.runs, session.spares) == (3, 1)
    assert plan(cases=[Case.WORKER_GRACE], systems=[System.NVRX]) == []


def test_a_power_off_has_three_minutes_and_a_lost_worker_one() -> None:
    assert {x.limit_s for x in plan(cases=[Case.NODE, Case.COORDINATOR, Case.NODE_STORE_APART])} == {180.0}
    assert {x.limit_s for x in plan(cases=[Case.WORKER, Case.WORKER_STORE_APART])} == {60.0}


def test_completed_measurements_are_not_repeated(tmp_path: Path) -> None:
    # given a whole session, an interrupted one, one that ended with a run that did not finish, and one without samples
    journal = Journal(tmp_path / "recovery.json", {}, resume=False)
    journal.add(Sample("understudy", "worker", 4, run, {"first_step_s": 1.0}) for run in (0, 1, 2, 3, 4, 5))
    journal.add([Sample("nvrx", "worker", 4, 0, {}, "never", ("first_step_s",), 60.0)])
    sessions = plan(cases=[Case.WORKER], systems=[UNDERSTUDY, System.NVRX], runs=8)
    # then only the others remain
    assert missing(sessions, journal) == [
        Session(UNDERSTUDY, Case.WORKER, 6, 2),
        Session(System.NVRX, Case.WORKER, 4, 4),
    ]


def test_every_goal_has_a_measurement() -> None:
    for goal in GOALS:
        systems = SYSTEMS[Case(goal.case)]
        assert UNDERSTUDY in systems
        assert not goal.peer or System(goal.peer) in systems


def test_the_headline_has_the_faults_and_systems_that_were_measured() -> None:
    def record(system: str, case: str, median: float | None, runs: int = 12) -> Record:
        return Record(system, case, 4, "first_all_reduce_s", "s", median, 60.0, median, runs)

    rows = headline_rows(
        [
            record("nvrx", "coordinator-power-off", None, runs=3),
            record("understudy", "coordinator-power-off", 4.321),
            record("understudy", "worker", 0.1234),
            record("understudy", "spare-exit", 0.1),
        ],
        "2026-11-25",
    )

    assert rows == [
        ("fault (measured 2026-11-25)", "Understudy", "NVRx ft_launcher"),
        ("SIGKILL to one worker", "0.123 s", ""),
        (
            "power-off of the node that hosts the coordinator (Understudy) or the store (others)",
            "4.32 s",
            "not within 60 s (3 tries)",
        ),
    ]


def test_a_fault_is_over_when_the_last_rank_has_reported_a_step_after_it(tmp_path: Path) -> None:
    result = Reports(tmp_path / "reports", ranks=2)
    result.path.write_text("step 0 10 1.0\nstep 1 11 1.5\nstep 0 12 3.0\nstep 1 13 4.0\nstep 0 12 5.0\n")
    assert result.last_of_all("step", 2.0, 1.0, lambda: "") == 4.0
    assert result.pid_of(1) == 13


def test_the_runner_does_not_wait_for_a_system_that_has_ended(tmp_path: Path) -> None:
    result = Reports(tmp_path / "reports", ranks=2)
    result.path.write_text("step 0 10 1.0\n")
    with pytest.raises(Unfinished, match="step of 1 of 2 ranks: all its launchers have ended"):
        result.last_of_all("step", 0.0, 1e12, lambda: "all its launchers have ended")
