"""The supervisor's rules, one by one, without processes: events in, effects out.

Drains and closes with a grace are in test_supervise_graces.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.launcher.driven import (
    KILL_LEFTOVERS,
    PORT,
    Driven,
    ended,
    failed,
    finished,
    kills,
    running,
    start,
    steps,
    terms,
    token,
)
from understudy_launcher import events as e
from understudy_launcher.phases import LauncherPhase
from understudy_protocol import launcher as m
from understudy_protocol.enums import NO_ROUND, WorkersState
from understudy_protocol.snapshots import MadeStep, SavedSteps

LEFTOVERS = -2
LOOK_EVERY_S = 0.25
ENDED_BY_SIGTERM = 143
KILLED_AT_GRACE_END = 137
LEAVE_WITHIN_S = 1.0
WARMUP = -1

# Starting and replacing -----------------------------------------------------------------------------------------------


def test_the_first_round_starts_at_once() -> None:
    driven = Driven()
    assert driven.do(start(0)) == [e.Spawn(start(0)), e.Report(m.WorkersStarted(token(0)))]


def test_the_member_with_rank_0_releases_its_port_and_reserves_another() -> None:
    driven = Driven()
    first = start(0, rank_offset=0)
    assert driven.do(first) == [
        e.ReleasePort(),
        e.Spawn(first),
        e.Report(m.WorkersStarted(token(0))),
        e.ReservePort(),
    ]


@pytest.mark.parametrize("before", [running, failed])
def test_a_newer_round_waits_until_no_process_of_the_old_one_is_left(before: Any) -> None:
    driven = before()
    left = [0, 1] if before is running else [0]
    assert driven.do(start(1)) == kills(*left)
    assert driven.hello().workers is WorkersState.STARTING
    assert driven.do(*[ended(rank, 137, "SIGKILL") for rank in left]) == kills(*left)
    gone = [e.GroupEmptied(rank) for rank in left]
    assert driven.do(*gone[:-1]) == []
    assert driven.do(gone[-1]) == [e.Spawn(start(1)), e.Report(m.WorkersStarted(token(1)))]


def test_exceptions_of_replaced_workers_are_read_before_the_workers_are_killed() -> None:
    # given a worker that has raised an exception, and whose process still runs
    driven = running(7)
    driven.raised = [e.WorkerRaised(1, "ValueError: a wrong digest", 0.4, "line 7")]
    # when the next round replaces it
    first, *others = driven.supervisor.handle(start(8), driven.now)
    # then its exception is read first, and reported for its own round
    assert first == e.ReadExceptions()
    assert [x for x in others if isinstance(x, e.Signal)] == [KILL_LEFTOVERS, *kills(0, 1)]
    raised = m.WorkerRaised(token(7), 1, "ValueError: a wrong digest", 0.4, "line 7")
    assert driven.do(*driven.raised) == [e.Report(raised)]
    assert driven.phase is LauncherPhase.STARTING


def test_an_exception_ends_nothing() -> None:
    driven = running()
    raised = e.WorkerRaised(1, "ValueError: a wrong digest", 0.0)
    assert driven.do(raised) == [e.Report(m.WorkerRaised(token(0), 1, "ValueError: a wrong digest", 0.0))]
    assert driven.phase is LauncherPhase.RUNNING
    assert driven.hello().workers is WorkersState.RUNNING


def test_children_that_outlive_their_worker_delay_the_next_round() -> None:
    driven = running()
    driven.do(start(1), ended(0, 137, "SIGKILL"), ended(1, 137, "SIGKILL"), e.GroupEmptied(0))
    assert driven.phase is LauncherPhase.STARTING


def test_a_finished_round_is_replaced_at_once() -> None:
    driven = finished()
    assert driven.do(start(1)) == [e.Spawn(start(1)), e.Report(m.WorkersStarted(token(1)))]


def test_the_newest_waiting_round_is_started() -> None:
    driven = running()
    driven.do(start(1), start(2), ended(0, 137, "SIGKILL"), ended(1, 137, "SIGKILL"), e.GroupEmptied(0))
    assert driven.do(e.GroupEmptied(1)) == [e.Spawn(start(2)), e.Report(m.WorkersStarted(token(2)))]


@pytest.mark.parametrize("late", [start(3), start(2), start(9, term=0)], ids=["equal", "older round", "older term"])
def test_a_round_that_is_not_newer_is_dropped_with_a_line(late: m.StartWorkers) -> None:
    driven = running(3)
    assert driven.do(late) == []
    assert driven.phase is LauncherPhase.RUNNING
    assert f"ignored StartWorkers of round={late.token}" in driven.log[-1]


def test_a_newer_term_wins_over_a_higher_round() -> None:
    driven = running(3)
    assert driven.do(start(0, term=2)) == kills(0, 1)


def unkillable(local_rank: int | None, pid: int, seconds: float) -> e.Effect:
    return e.Report(m.Unkillable(token(1), local_rank, pid, seconds, "D"))


def test_a_worker_that_outlives_its_kill_is_reported_every_five_seconds() -> None:
    driven = running()
    driven.do(start(1), ended(0, 137, "SIGKILL"), e.GroupEmptied(0))
    assert driven.later(4.9) == []
    driven.now += 0.1
    assert driven.do(e.Tick()) == [*kills(1), e.FindSurvivors()]
    stuck = e.SurvivorsFound((e.Survivor(1, 77, "D", "python"),))
    assert driven.do(stuck) == [unkillable(1, 77, 5.0)]
    survivor = "python pid=77 local_rank=1 state=D"
    assert driven.log[-1].endswith(f"alive 5 s after SIGKILL, probably stuck in the kernel: {survivor}")
    driven.now += 5.0
    assert driven.do(e.Tick()) == [*kills(1), e.FindSurvivors()]
    assert driven.do(stuck) == [unkillable(1, 77, 10.0)]
    driven.do(ended(1, 137, "SIGKILL"), e.GroupEmptied(1))
    assert driven.phase is LauncherPhase.RUNNING
    assert driven.supervisor.deadline() is None
    assert driven.do(stuck) == [], "a late look"


def test_a_leftover_and_a_warm_up_that_outlive_their_kill_have_no_local_rank() -> None:
    driven = Driven(warmup=True)
    driven.leftovers = True
    driven.do(start(1))
    assert e.FindSurvivors() in driven.later(5.0)
    found = e.SurvivorsFound((e.Survivor(WARMUP, 7, "D", "python"), e.Survivor(None, 8, "D", "python")))
    assert driven.do(found) == [unkillable(None, 7, 5.0), unkillable(None, 8, 5.0)]


def test_at_most_sixteen_processes_that_outlive_their_kill_are_reported() -> None:
    driven = running()
    driven.do(start(1))
    driven.later(5.0)
    many = tuple(e.Survivor(0, pid, "D", "python") for pid in range(100, 400))
    assert driven.do(e.SurvivorsFound(many)) == [unkillable(0, pid, 5.0) for pid in range(100, 116)]


# Leftovers: processes that have left their worker's group -------------------------------------------------------------


@pytest.mark.parametrize("before", [running, failed, finished])
def test_a_round_waits_until_leftovers_of_the_previous_one_have_ended(before: Any) -> None:
    driven = before()
    driven.leftovers = True
    assert KILL_LEFTOVERS in driven.do(start(1))
    assert driven.do(e.LeftoversFound(("sleep pid=7", "python pid=8"))) == []
    assert driven.log[-1].endswith("outside their process groups: sleep pid=7, python pid=8")
    driven.do(e.GroupEmptied(0), e.GroupEmptied(1))
    assert driven.phase is LauncherPhase.STARTING
    assert driven.do(e.GroupEmptied(LEFTOVERS)) == [e.Spawn(start(1)), e.Report(m.WorkersStarted(token(1)))]


def test_leftovers_are_not_looked_for_before_there_were_workers() -> None:
    driven = Driven()
    driven.leftovers = True
    assert KILL_LEFTOVERS not in driven.do(start(0))
    assert driven.phase is LauncherPhase.RUNNING


def test_leftovers_of_a_warm_up_are_killed_too() -> None:
    driven = Driven(warmup=True)
    driven.do(ended(WARMUP), e.GroupEmptied(WARMUP))
    driven.leftovers = True
    assert driven.do(start(0)) == [KILL_LEFTOVERS]
    assert driven.do(e.GroupEmptied(LEFTOVERS))[0] == e.Spawn(start(0))


def test_a_member_has_stopped_only_when_no_leftover_runs() -> None:
    driven = finished()
    driven.leftovers = True
    assert driven.do(m.StopWorkers("fenced")) == [KILL_LEFTOVERS]
    (hello,) = driven.do(e.GroupEmptied(LEFTOVERS))
    assert isinstance(hello, e.Report)
    assert driven.phase is LauncherPhase.IDLE


def test_a_daemon_of_finished_workers_runs_until_the_next_round_or_exit() -> None:
    driven = running()
    driven.leftovers = True
    effects = driven.do(ended(0), e.GroupEmptied(0), ended(1), e.GroupEmptied(1))
    assert KILL_LEFTOVERS not in effects
    assert driven.later(3600) == []


def test_a_leftover_that_outlives_its_kill_delays_the_exit_for_a_bounded_time() -> None:
    driven = finished()
    driven.leftovers = True
    assert driven.do(m.ExitLauncher(0, "Succeeded")) == [KILL_LEFTOVERS]
    assert driven.later(LEAVE_WITHIN_S) == [e.Exit(0, "Succeeded")]


# Ends of workers ------------------------------------------------------------------------------------------------------


def test_a_failed_worker_is_reported_and_its_children_killed_but_not_its_neighbors() -> None:
    driven = running()
    exited = m.WorkerExited(token(0), 1, 3, None, "exit code 3", 1000.0)
    assert driven.do(ended(1, 3)) == [*kills(1), e.Report(exited)]
    assert driven.hello().workers is WorkersState.FAILED


def test_a_failed_worker_is_reported_with_its_traceback() -> None:
    exited = m.WorkerExited(token(0), 1, 3, None, "exit code 3", 1000.0, "Traceback")
    assert running().do(replace(ended(1, 3), traceback="Traceback"))[-1] == e.Report(exited)


def test_a_signal_is_a_failure_too() -> None:
    driven = running()
    exited = m.WorkerExited(token(0), 0, None, "SIGSEGV", "killed by SIGSEGV", 1000.0)
    assert driven.do(ended(0, 139, "SIGSEGV")) == [*kills(0), e.Report(exited)]


def test_each_failure_of_a_round_is_reported() -> None:
    driven = failed()
    assert driven.do(ended(0, 1))[1] == e.Report(m.WorkerExited(token(0), 0, 1, None, "exit code 1", 1000.0))


def test_all_workers_exiting_0_is_the_end_of_the_round() -> None:
    driven = running()
    assert driven.do(ended(1)) == kills(1)
    assert driven.do(ended(0)) == [*kills(0), e.Report(m.WorkersFinished(token(0)))]
    assert driven.hello().workers is WorkersState.FINISHED


def test_a_round_with_a_failure_never_finishes() -> None:
    driven = failed()
    assert driven.do(ended(0)) == kills(0)
    assert driven.phase is LauncherPhase.FAILED


@pytest.mark.parametrize("order", [start(1), m.StopWorkers("standby"), m.ExitLauncher(0, "Succeeded")])
def test_a_worker_that_the_launcher_kills_has_not_failed(order: e.Event) -> None:
    driven = running()
    driven.do(order)
    assert driven.do(ended(0, 137, "SIGKILL"), ended(1, 3)) == kills(0, 1)


# Stopping -------------------------------------------------------------------------------------------------------------


def test_stopped_workers_are_killed_and_the_sidecar_gets_a_report_of_their_end() -> None:
    driven = running()
    assert driven.do(m.StopWorkers("fenced")) == kills(0, 1)
    driven.do(ended(0, 137, "SIGKILL"), ended(1, 137, "SIGKILL"), e.GroupEmptied(1))
    idle = m.LauncherHello(1, token(0), 1, WorkersState.IDLE, PORT)
    assert driven.do(e.GroupEmptied(0)) == [e.Report(idle)]


def test_a_stop_cancels_a_waiting_round() -> None:
    driven = running()
    driven.do(start(1), m.StopWorkers("fenced"), ended(0, 137, "SIGKILL"), ended(1, 137, "SIGKILL"))
    driven.do(e.GroupEmptied(0), e.GroupEmptied(1))
    assert driven.phase is LauncherPhase.IDLE
    assert driven.do(start(1)) == [], "the canceled round is not newer than itself"
    assert driven.do(start(2))[0] == e.Spawn(start(2))


def test_a_stop_without_workers_is_answered_at_once() -> None:
    idle = m.LauncherHello(1, NO_ROUND, None, WorkersState.IDLE, PORT)
    assert Driven().do(m.StopWorkers("standby")) == [e.Report(idle)]


# The sidecar's connection ---------------------------------------------------------------------------------------------


def test_the_first_hello_has_no_round() -> None:
    assert Driven().hello() == m.LauncherHello(1, NO_ROUND, None, WorkersState.IDLE, PORT)


def test_a_sidecar_that_reconnects_gets_the_state_and_workers_keep_running() -> None:
    driven = running(7)
    assert driven.do(e.Connected()) == [e.Report(m.LauncherHello(1, token(7), 1, WorkersState.RUNNING, PORT))]


def test_a_sidecar_that_reconnects_gets_the_failures_of_the_round() -> None:
    driven = failed()
    failure = m.WorkerExited(token(0), 1, 3, None, "exit code 3", 1000.0)
    hello = m.LauncherHello(1, token(0), 1, WorkersState.FAILED, PORT)
    assert driven.do(e.Connected()) == [e.Report(hello), e.Report(failure)]
    driven.do(start(1))
    assert driven.do(e.Connected())[1:] == [], "an old round's failures are not reported"


def test_a_sidecar_that_reconnects_gets_the_remaining_grace() -> None:
    driven = running()
    driven.do(e.AskedToEnd("SIGTERM"))
    driven.later(10)
    assert driven.do(e.Connected())[1] == e.Report(m.Terminating(18.0))


# Steps ----------------------------------------------------------------------------------------------------------------


def stepped(effects: list[e.Effect]) -> list[tuple[int, float]]:
    messages = [effect.message for effect in effects if isinstance(effect, e.Report)]
    return [(message.step, round(message.median_step_s, 3)) for message in messages if isinstance(message, m.Stepped)]


def test_the_first_step_is_reported_at_once_and_the_newest_of_the_rest_each_half_second() -> None:
    driven = running()
    assert stepped(driven.do(steps(10, at=100.0))) == [(10, 0.0)]
    reported = []
    for number in range(11, 20, 4):  # each read finds four steps
        driven.pages = [steps(number + 3, reports=4, at=driven.now + 0.5)]
        reported += stepped(driven.later(0.5))
    assert reported == [(14, 0.125), (18, 0.125), (22, 0.125)]


def test_steps_are_not_read_before_a_worker_has_stepped() -> None:
    driven = running()
    assert driven.supervisor.deadline() is None
    driven.do(steps(1, rank=1))
    assert driven.supervisor.deadline() == driven.now + LOOK_EVERY_S


def test_the_newest_step_of_each_worker_is_known() -> None:
    driven = running()
    driven.do(steps(1, rank=1))
    driven.pages = [steps(7, rank=0), steps(6, rank=1)]
    assert stepped(driven.later(0.5)) == [(7, 0.0)]
    round_steps = driven.supervisor._round.steps
    assert round_steps is not None
    assert {rank: read.step for rank, read in round_steps.newest.items()} == {0: 7, 1: 6}


def test_the_start_of_the_workers_is_reported_with_the_newest_step_of_the_round_before() -> None:
    # given workers of round 0 that have made steps, also while they are stopped for round 1
    driven = running()
    driven.do(steps(8))
    driven.do(start(1), steps(9, rank=1))
    # when those of round 1 start
    effects = driven.do(*[replace(ended(rank), exit_code=None, signal="SIGKILL") for rank in (0, 1)])
    effects += driven.do(e.GroupEmptied(0), e.GroupEmptied(1))
    # then the round of the step is the one that has made it
    assert e.Report(m.WorkersStarted(token(1), SavedSteps((), MadeStep(token(0), 9)))) in effects


def test_the_last_step_before_a_pause_is_reported_by_the_timer() -> None:
    driven = running()
    driven.do(steps(1, at=100.0))
    driven.now += 0.1
    driven.do(steps(2, at=100.1))
    assert stepped(driven.later(0.1)) == []
    assert stepped(driven.later(0.1)) == [(2, 0.1)]
    assert driven.later(60) == []


def test_the_last_step_before_a_workers_end_is_reported_with_it() -> None:
    driven = running()
    driven.do(steps(1, at=100.0))
    driven.now += 0.1
    driven.do(steps(2, at=100.1))
    assert stepped(driven.do(ended(0), ended(1))) == [(2, 0.1)]


def test_the_median_counts_each_report_of_a_batch() -> None:
    driven = running()
    driven.do(steps(1, at=100.0))
    driven.now += 1.0
    assert stepped(driven.do(steps(101, reports=10, at=101.0))) == [(101, 0.1)]


def test_the_median_is_that_of_the_last_twenty_intervals_of_the_round() -> None:
    driven = running()
    driven.do(steps(0, at=driven.now))
    for number, interval_s in enumerate([50.0] * 11 + [1.0] * 10, start=1):
        driven.now += interval_s
        reported = stepped(driven.do(steps(number, at=driven.now)))
    assert reported == [(21, 25.5)], "ten of 50 s and ten of 1 s"
    driven.do(start(1), *[ended(rank, 137, "SIGKILL") for rank in (0, 1)], e.GroupEmptied(0), e.GroupEmptied(1))
    assert stepped(driven.do(steps(22))) == [(22, 0.0)], "a new round knows none"


def test_only_the_steps_of_the_first_local_worker_are_reported() -> None:
    assert running().do(steps(1, rank=1)) == []


def test_a_round_that_is_over_reports_no_steps() -> None:
    driven = running()
    driven.do(steps(1))
    driven.now += 0.1
    driven.do(steps(2), start(1))
    assert stepped(driven.do(steps(3)) + driven.later(1)) == []


@pytest.mark.parametrize("ask", [m.DrainWorkers(token(0), 20.0), e.AskedToEnd("SIGTERM")])
def test_a_step_that_is_finished_before_the_save_is_reported(ask: e.Event) -> None:
    # given workers that have got SIGTERM and finish their first step before they save
    driven = running()
    driven.do(ask)
    # then that step is reported at once, and a later one with the worker's end
    assert stepped(driven.do(steps(1, at=100.0))) == [(1, 0.0)]
    driven.now += 0.1
    assert stepped(driven.do(steps(2, at=100.1), ended(0), ended(1))) == [(2, 0.1)]


# Exit on the sidecar's order ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "code", "expected"),
    [
        (finished, 0, 0),
        (finished, 81, 81),
        (failed, 81, 3),
        (failed, 0, 0),
        (Driven, 0, 0),
        (Driven, 81, 81),
    ],
)
def test_the_exit_code_is_the_first_failed_workers_unless_the_job_succeeded(
    before: Any, code: int, expected: int
) -> None:
    driven = before()
    effects = driven.do(m.ExitLauncher(code, "closed"))
    if before is failed:
        assert effects == kills(0)
        effects = driven.do(ended(0, 137, "SIGKILL"), e.GroupEmptied(0))
    assert effects[-1] == e.Exit(expected, "closed")


def test_an_old_rounds_failure_does_not_count() -> None:
    driven = failed()
    driven.do(start(1), ended(0, 137, "SIGKILL"), e.GroupEmptied(0))
    driven.do(ended(0), e.GroupEmptied(0), ended(1), e.GroupEmptied(1))
    assert driven.do(m.ExitLauncher(81, "closed")) == [e.Exit(81, "closed")]


def test_of_several_failures_the_first_counts_and_a_signal_as_128_plus_its_number() -> None:
    driven = running()
    driven.do(ended(1, 137, "SIGKILL"), e.GroupEmptied(1), ended(0, 1), e.GroupEmptied(0))
    assert driven.do(m.ExitLauncher(81, "closed")) == [e.Exit(137, "closed")]


def test_a_worker_that_outlives_its_kill_delays_the_exit_for_a_bounded_time() -> None:
    driven = running()
    assert driven.do(m.ExitLauncher(0, "closed")) == kills(0, 1)
    assert driven.later(LEAVE_WITHIN_S - 0.1) == []
    assert driven.later(0.2) == [e.Exit(0, "closed")]


# SIGTERM --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("before", "code"), [(Driven, ENDED_BY_SIGTERM), (finished, ENDED_BY_SIGTERM)])
def test_sigterm_without_workers_ends_the_launcher_at_once(before: Any, code: int) -> None:
    effects = before().do(e.AskedToEnd("SIGTERM"))
    assert effects == [e.Report(m.Terminating(30.0)), e.Exit(code, "SIGTERM, and no workers ran")]


def test_sigterm_is_sent_only_to_the_workers_and_their_code_is_kept() -> None:
    driven = running()
    assert driven.do(e.AskedToEnd("SIGTERM")) == [e.Report(m.Terminating(30.0)), *terms(0, 1)]
    assert driven.do(ended(0), e.GroupEmptied(0)) == kills(0)
    assert driven.do(ended(1, 5)) == kills(1)
    assert driven.do(e.GroupEmptied(1)) == [e.Exit(5, "SIGTERM, and all workers have ended")]


def test_no_launcher_exits_0_after_sigterm() -> None:
    driven = running()
    driven.do(e.AskedToEnd("SIGTERM"), ended(0), e.GroupEmptied(0), ended(1))
    assert driven.do(e.GroupEmptied(1)) == [e.Exit(ENDED_BY_SIGTERM, "SIGTERM, and all workers have ended")]


def test_only_the_remaining_workers_get_sigterm_and_the_first_failure_counts() -> None:
    driven = failed()
    assert driven.do(e.AskedToEnd("SIGTERM"))[1:] == terms(0)
    driven.do(ended(0, 1))
    assert driven.do(e.GroupEmptied(0)) == [e.Exit(3, "SIGTERM, and all workers have ended")]


def test_a_killed_shells_children_get_the_signal_that_killed_the_shell() -> None:
    driven = running(nproc=1)
    driven.do(e.AskedToEnd("SIGTERM"))
    assert driven.do(ended(0, 143, "SIGTERM")) == [e.Signal(0, e.Aim.TERM_GROUP)]
    assert driven.phase is LauncherPhase.SAVING
    assert driven.do(e.GroupEmptied(0)) == [e.Exit(143, "SIGTERM, and all workers have ended")]


@pytest.mark.parametrize(("grace_s", "margin_s"), [(30.0, 2.0), (600.0, 2.0), (5.0, 0.5), (0.0, 0.0)])
def test_shortly_before_the_end_of_the_grace_the_workers_are_killed(grace_s: float, margin_s: float) -> None:
    driven = running(grace_s=grace_s)
    driven.do(e.AskedToEnd("SIGTERM"), ended(0), e.GroupEmptied(0))
    if grace_s:
        assert driven.later(grace_s - margin_s - 0.01) == []
    assert driven.later(0.02) == kills(1)
    driven.do(ended(1, 137, "SIGKILL"))
    expected = e.Exit(KILLED_AT_GRACE_END, "the workers did not end within the grace period")
    assert driven.do(e.GroupEmptied(1)) == [expected]


def test_a_worker_stuck_in_the_kernel_cannot_delay_the_exit_beyond_the_grace() -> None:
    driven = running(nproc=1)
    driven.do(e.AskedToEnd("SIGTERM"))
    assert [type(effect) for effect in driven.later(30.0)] == [e.Signal, e.Exit]


def test_a_second_sigterm_changes_nothing() -> None:
    driven = running()
    driven.do(e.AskedToEnd("SIGTERM"))
    driven.later(10)
    before = driven.supervisor.deadline()
    assert driven.do(e.AskedToEnd("SIGTERM"), e.AskedToEnd("SIGINT")) == []
    assert driven.supervisor.deadline() == before


@pytest.mark.parametrize("order", [start(1), m.StopWorkers("standby")])
def test_sigterm_while_dead_workers_are_awaited_saves_nothing(order: e.Event) -> None:
    driven = running()
    driven.do(order)
    assert terms(0)[0] not in driven.do(e.AskedToEnd("SIGTERM"))
    driven.do(ended(0, 137, "SIGKILL"), ended(1, 137, "SIGKILL"), e.GroupEmptied(0))
    assert driven.do(e.GroupEmptied(1)) == [e.Exit(ENDED_BY_SIGTERM, "SIGTERM, and no workers ran")]


def test_no_round_starts_after_sigterm() -> None:
    driven = running()
    driven.do(e.AskedToEnd("SIGTERM"))
    assert driven.do(start(1)) == []
    assert driven.log[-1].endswith("does not start round=0.1.1: the launcher is shutting down")


@pytest.mark.parametrize("code", [0, 3])
def test_after_sigterm_no_workers_end_is_reported(code: int) -> None:
    driven = running()
    driven.do(e.AskedToEnd("SIGTERM"))
    effects = driven.do(ended(0, code), e.GroupEmptied(0), ended(1, code), e.GroupEmptied(1))
    assert not [effect for effect in effects if isinstance(effect, e.Report)]


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (m.StopWorkers("fenced"), e.Exit(ENDED_BY_SIGTERM, "fenced")),
        (m.ExitLauncher(0, "Succeeded"), e.Exit(0, "Succeeded")),
        (m.ExitLauncher(81, "Failed"), e.Exit(81, "Failed")),
    ],
)
def test_the_sidecars_order_ends_a_save(order: e.Event, expected: e.Exit) -> None:
    driven = running(nproc=1)
    driven.do(e.AskedToEnd("SIGTERM"))
    assert driven.do(order) == kills(0)
    assert driven.do(ended(0, 137, "SIGKILL"), e.GroupEmptied(0))[-1] == expected


def test_every_log_line_names_its_round() -> None:
    driven = running(4)
    driven.do(ended(0, 1), start(5), m.StopWorkers("fenced"), e.AskedToEnd("SIGTERM"))
    assert driven.log
    assert all(line.startswith("round=0.1.") for line in driven.log)


def test_the_first_step_of_a_round_reports_how_long_the_pod_has_made_none() -> None:
    # given workers that have made steps, the last one at 140 s
    driven = running()
    driven.do(steps(7, rank=0, at=139.0), steps(7, rank=1, at=140.0))
    # when the next round's workers make their first step
    driven.now = 150.0
    driven.do(start(1), ended(0, signal="SIGKILL"), ended(1, signal="SIGKILL"), e.GroupEmptied(0), e.GroupEmptied(1))
    effects = driven.do(steps(1, rank=0, at=152.5))
    # then its report has the pause by the launcher's own clock
    (report,) = [x.message for x in effects if isinstance(x, e.Report) and isinstance(x.message, m.Stepped)]
    assert (report.token, report.pause_s) == (token(1), 12.5)
    # and the hello reports that the round has made steps
    (hello,) = [x.message for x in driven.do(e.Connected()) if isinstance(x, e.Report)][:1]
    assert hello.stepped == token(1)


def test_a_launcher_that_reads_late_reports_the_time_of_the_first_step() -> None:
    """Found by the simulation (seed 105442): a stopped launcher reported the pause until a later step."""
    driven = running()
    driven.do(steps(7, rank=0, at=140.0))
    driven.do(start(1), ended(0, signal="SIGKILL"), ended(1, signal="SIGKILL"), e.GroupEmptied(0), e.GroupEmptied(1))
    driven.now = 154.25
    effects = driven.do(e.StepsRead(0, 3, 100, 3, 1000.0, 153.5, 152.5))
    (report,) = [x.message for x in effects if isinstance(x, e.Report) and isinstance(x.message, m.Stepped)]
    assert (report.pause_s, report.since_first_s) == (12.5, 1.75)


def test_a_report_about_collectives_is_passed_on_in_its_round() -> None:
    # given a round whose worker has reported when it entered collectives
    driven = running()
    read = e.CollectivesRead(1, 20, 100, (1, 2), (3, 4))
    # then the sidecar gets it with the round's token
    assert driven.do(read) == [e.Report(m.CollectiveTimes(token(0), 1, 20, 100, (1, 2), (3, 4)))]
    # and not once the workers are stopped
    driven.do(m.StopWorkers("the fence"))
    assert driven.do(read) == []


def test_a_step_that_is_read_only_when_its_worker_is_killed_counts() -> None:
    driven = running()
    driven.do(steps(7, rank=0, at=139.0))
    driven.do(start(1), steps(9, rank=0, at=140.5), ended(0, signal="SIGKILL"), ended(1, signal="SIGKILL"))
    driven.do(e.GroupEmptied(0), e.GroupEmptied(1))
    effects = driven.do(steps(1, rank=0, at=142.0))
    (report,) = [x.message for x in effects if isinstance(x, e.Report) and isinstance(x.message, m.Stepped)]
    assert report.pause_s == 1.5
