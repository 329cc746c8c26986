"""Drills: which worker the launcher breaks, and that its end is reported like any other."""

from __future__ import annotations

import pytest

from tests.unit.launcher.driven import Driven, ended, kills, running, start, steps, token
from understudy_launcher import events as e
from understudy_protocol import launcher as m
from understudy_protocol.enums import Drill


def reports(effects: list[e.Effect], kind: type) -> list[object]:
    return [effect.message for effect in effects if isinstance(effect, e.Report) and isinstance(effect.message, kind)]


def test_process_kills_the_group_of_the_last_worker_and_its_end_is_a_failure() -> None:
    driven = running()
    assert driven.do(m.BreakWorker(token(0), Drill.PROCESS)) == kills(1)
    (failure,) = reports(driven.do(ended(1, 137, "SIGKILL")), m.WorkerExited)
    assert isinstance(failure, m.WorkerExited)
    assert (failure.local_rank, failure.signal) == (1, "SIGKILL")


def test_hang_stops_the_group_of_a_worker_that_has_made_a_step() -> None:
    driven = running(step_timeout_s=60.0)
    assert driven.do(m.BreakWorker(token(0), Drill.HANG)) == [], "hang detection would not find it"
    driven.do(steps(7, rank=0, at=driven.now))
    assert driven.do(m.BreakWorker(token(0), Drill.HANG)) == [e.Signal(0, e.Aim.STOP_GROUP)]


@pytest.mark.parametrize("drill", [Drill.PROCESS, Drill.HANG])
def test_workers_of_another_round_are_not_broken(drill: Drill) -> None:
    driven = running()
    assert driven.do(m.BreakWorker(token(1), drill)) == []
    failed = running()
    failed.do(ended(0, 1))
    assert failed.do(m.BreakWorker(token(0), drill)) == []
    idle = Driven()
    assert idle.do(m.BreakWorker(token(0), drill)) == []
    assert start(0).token == token(0)
