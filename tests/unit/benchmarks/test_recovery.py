"""The plan of bench-recovery, and what is read of the ranks' words."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.child import Unfinished
from benchmarks.recovery.plan import HOPELESS, RUNS, Case, System, plan
from benchmarks.recovery.told import Told


def test_each_system_has_its_runs_in_turns() -> None:
    worker = [x for x in plan(cases=[Case.WORKER]) if (x.system, x.case) not in HOPELESS]
    of_ours = [x for x in worker if x.system is System.UNDERSTUDY]
    assert sum(x.runs for x in of_ours) == RUNS
    assert [x.first_run for x in of_ours] == [0, 4, 8]
    assert [x.system for x in worker[:3]] == [System.UNDERSTUDY, System.TORCHRUN_OPTOUT, System.NVRX]


def test_what_never_recovers_is_tried_once() -> None:
    for system, case in HOPELESS:
        assert [x.runs for x in plan() if (x.system, x.case) == (system, case)] == [1]


def test_a_part_can_be_chosen() -> None:
    (session,) = plan(cases=[Case.NODE], systems=[System.UNDERSTUDY], runs=3)
    assert (session.runs, session.spares) == (3, 1)


def test_a_fault_is_over_when_the_last_rank_says_so_for_the_first_time_after_it(tmp_path: Path) -> None:
    told = Told(tmp_path / "told", ranks=2)
    told.path.write_text("step 0 10 1.0\nstep 1 11 1.5\nstep 0 12 3.0\nstep 1 13 4.0\nstep 0 12 5.0\n")
    assert told.last_of_all("step", 2.0, 1.0, lambda: "") == 4.0
    assert told.pid_of(1) == 13


def test_a_system_that_has_ended_is_not_waited_for(tmp_path: Path) -> None:
    told = Told(tmp_path / "told", ranks=2)
    told.path.write_text("step 0 10 1.0\n")
    with pytest.raises(Unfinished, match="step of 1 of 2 ranks: all its launchers have ended"):
        told.last_of_all("step", 0.0, 1e12, lambda: "all its launchers have ended")
