"""Workers that may save before they end: drains, closes with a grace, the pod's end, and combinations."""

from __future__ import annotations

from collections.abc import Callable

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
    terms,
    token,
)
from understudy_launcher import events as e
from understudy_launcher.phases import LauncherPhase
from understudy_protocol import launcher as m
from understudy_protocol.enums import NO_ROUND, WorkersState

COMPLAIN_EVERY_S = 5.0
LEFTOVERS = -2
ENDED_BY_SIGTERM = 143
KILLED_AT_GRACE_END = 137

CLOSED, DELETED = 82, 83
SIGTERM = e.AskedToEnd("SIGTERM")


def drain(number: int = 0, grace_s: float = 10.0) -> m.DrainWorkers:
    return m.DrainWorkers(token(number), grace_s)


def drained(number: int = 0) -> e.Effect:
    return e.Report(m.WorkersDrained(token(number)))


def close(grace_s: float = 10.0, code: int = CLOSED) -> m.ExitLauncher:
    return m.ExitLauncher(code, "Suspended", grace_s)


def gone(*ranks: int, code: int = 0, signal: str | None = None) -> list[e.Event]:
    """The end of workers, and of all their children."""
    return [event for rank in ranks for event in (ended(rank, code, signal), e.GroupEmptied(rank))]


def draining(**options: int) -> Driven:
    driven = running(**options)
    assert driven.do(drain()) == terms(*range(options.get("nproc", 2)))
    assert driven.phase is LauncherPhase.DRAINING
    return driven


def stopping() -> Driven:
    driven = running()
    driven.do(m.StopWorkers("standby"))
    return driven


def starting() -> Driven:
    """Round 1 waits for the end of round 0."""
    driven = running()
    driven.do(start(1))
    return driven


def saving() -> Driven:
    driven = running()
    driven.do(SIGTERM)
    assert driven.phase is LauncherPhase.SAVING
    return driven


def closing(grace_s: float = 10.0) -> Driven:
    driven = running()
    assert driven.do(close(grace_s)) == terms(0, 1)
    assert driven.phase is LauncherPhase.CLOSING
    return driven


def exits(effects: list[e.Effect]) -> list[int]:
    return [effect.code for effect in effects if isinstance(effect, e.Exit)]


# Drains ---------------------------------------------------------------------------------------------------------------


def test_a_member_has_drained_only_when_no_leftover_runs() -> None:
    driven = draining()
    driven.leftovers = True
    assert driven.do(*gone(0, 1))[-1] == KILL_LEFTOVERS
    assert driven.do(e.GroupEmptied(LEFTOVERS)) == [drained()]
    assert driven.phase is LauncherPhase.IDLE


def test_drained_workers_save_and_end_and_the_launcher_takes_the_next_round() -> None:
    driven = draining()
    assert driven.do(ended(0), e.GroupEmptied(0), ended(1)) == kills(0, 1), "their children"
    assert driven.do(e.GroupEmptied(1)) == [drained()]
    assert driven.hello().workers is WorkersState.IDLE
    assert driven.do(start(1))[0] == e.Spawn(start(1))


@pytest.mark.parametrize(("code", "signal"), [(0, None), (3, None), (143, "SIGTERM"), (139, "SIGSEGV")])
def test_however_a_drained_worker_ends_it_is_no_fault(code: int, signal: str | None) -> None:
    driven = draining()
    effects = driven.do(*gone(0, 1, code=code, signal=signal))
    assert [effect for effect in effects if isinstance(effect, e.Report)] == [drained()]
    assert driven.do(m.ExitLauncher(81, "Failed")) == [e.Exit(81, "Failed")], "and it does not set the exit code"


def test_a_worker_that_has_not_saved_when_the_grace_is_over_is_killed() -> None:
    driven = draining()
    driven.do(*gone(0))
    assert driven.later(9.9) == []
    assert driven.later(0.2) == kills(1)
    assert driven.do(*gone(1, code=137, signal="SIGKILL"))[-1] == drained()
    assert driven.phase is LauncherPhase.IDLE


def test_a_worker_that_outlives_the_kill_after_a_drain_is_named_and_killed_again() -> None:
    driven = draining()
    driven.do(*gone(0))
    driven.later(10.0)
    assert driven.later(COMPLAIN_EVERY_S) == [*kills(1), e.FindSurvivors()]
    assert driven.phase is LauncherPhase.DRAINING


def test_the_children_of_a_shell_are_drained_too() -> None:
    driven = draining(nproc=1)
    assert driven.do(ended(0, 143, "SIGTERM")) == [e.Signal(0, e.Aim.TERM_GROUP)]
    assert driven.do(e.GroupEmptied(0)) == [drained()]


def test_a_training_that_ends_during_a_drain_has_drained() -> None:
    driven = running()
    driven.do(*gone(0))
    assert driven.do(drain()) == terms(1)
    assert driven.do(*gone(1))[-1] == drained()
    assert driven.hello().workers is WorkersState.IDLE


def test_a_round_that_was_reported_as_finished_stays_finished() -> None:
    driven = finished()
    assert driven.do(drain()) == [drained()]
    assert driven.hello().workers is WorkersState.FINISHED


def test_a_drain_waits_for_the_children_of_a_finished_round() -> None:
    driven = running(nproc=1)
    assert driven.do(ended(0))[-1] == e.Report(m.WorkersFinished(token(0)))
    assert driven.do(drain()) == []
    assert driven.do(e.GroupEmptied(0)) == [drained()]
    assert driven.hello().workers is WorkersState.FINISHED


def test_the_neighbors_in_a_failed_round_are_drained_and_the_failure_remains() -> None:
    driven = failed()
    assert driven.do(drain()) == terms(0)
    assert driven.do(*gone(0))[-1] == drained()
    assert exits(driven.do(m.ExitLauncher(81, "Failed"))) == [3]


def test_a_worker_that_failed_gets_no_sigterm_while_its_children_are_killed() -> None:
    driven = running()
    driven.do(ended(1, 3))
    assert driven.do(drain()) == terms(0)


def test_a_round_in_which_all_workers_have_failed_has_drained() -> None:
    driven = failed()
    driven.do(*gone(0, code=1))
    assert driven.do(drain()) == [drained()]
    assert driven.phase is LauncherPhase.IDLE


@pytest.mark.parametrize(("before", "number"), [(Driven, 0), (running, 7), (draining, 7), (saving, 7)])
def test_a_round_that_never_ran_here_has_drained(before: Callable[[], Driven], number: int) -> None:
    driven = before()
    phase = driven.phase
    assert driven.do(drain(number)) == [drained(number)]
    assert driven.phase is phase


def test_an_older_round_has_drained_and_the_newer_one_keeps_running() -> None:
    driven = running(3)
    assert driven.do(drain(2)) == [drained(2)]
    assert driven.phase is LauncherPhase.RUNNING


def test_a_round_that_waits_for_the_old_ones_end_is_canceled() -> None:
    driven = starting()
    assert driven.do(drain(1)) == []
    assert driven.do(*gone(0, 1, code=137, signal="SIGKILL"))[-1] == drained(1)
    assert driven.phase is LauncherPhase.IDLE


def test_a_newer_round_kills_workers_that_save_and_the_drain_stays_unanswered() -> None:
    driven = draining()
    assert driven.do(start(1)) == kills(0, 1)
    effects = driven.do(*gone(0, 1, code=137, signal="SIGKILL"))
    assert effects[-2:] == [e.Spawn(start(1)), e.Report(m.WorkersStarted(token(1)))]
    assert drained() not in effects
    assert driven.later(60) == [], "the drain's grace no longer counts"


@pytest.mark.parametrize("order", [drain(1), SIGTERM])
def test_the_workers_of_the_next_round_have_a_grace_of_their_own(order: e.Event) -> None:
    driven = draining()
    driven.do(*gone(0, 1), start(1))
    driven.later(60)
    driven.do(order)
    assert driven.later(9) == []


def test_a_drain_that_is_repeated_can_only_shorten_the_grace() -> None:
    driven = draining()
    assert driven.do(drain(grace_s=60), drain(grace_s=5)) == []
    assert driven.later(4.9) == []
    assert driven.do(drain(grace_s=60)) == []
    assert driven.later(0.2) == kills(0, 1)


def test_after_a_drain_another_one_is_answered_at_once() -> None:
    driven = draining()
    driven.do(*gone(0, 1))
    assert driven.do(drain()) == [drained()]


def test_a_stop_ends_a_drain_and_both_are_answered() -> None:
    driven = draining()
    assert driven.do(m.StopWorkers("fenced")) == kills(0, 1)
    idle = m.LauncherHello(1, token(0), 1, WorkersState.IDLE, PORT)
    assert driven.do(*gone(0, 1, code=137, signal="SIGKILL"))[-2:] == [drained(), e.Report(idle)]


def test_workers_that_are_stopped_already_have_drained_when_they_are_gone() -> None:
    driven = stopping()
    assert driven.do(drain()) == []
    assert drained() in driven.do(*gone(0, 1, code=137, signal="SIGKILL"))


def test_a_sidecar_that_reconnects_gets_the_state_of_a_running_drain() -> None:
    driven = draining()
    assert driven.do(e.Connected()) == [
        e.Report(m.LauncherHello(1, token(0), 1, WorkersState.RUNNING, PORT, is_draining=True))
    ]


def test_a_sidecar_that_reconnects_gets_the_end_of_a_drain() -> None:
    driven = draining()
    driven.do(*gone(0, 1))
    idle = m.LauncherHello(1, token(0), 1, WorkersState.IDLE, PORT, is_draining=False)
    assert driven.do(e.Connected()) == [e.Report(idle), drained()]
    driven.do(start(1))
    assert driven.do(e.Connected())[1:] == [], "until there is a newer round"


def test_a_sidecar_that_reconnects_gets_failures_before_the_end_of_a_drain() -> None:
    driven = failed()
    driven.do(drain(), *gone(0))
    failure = m.WorkerExited(token(0), 1, 3, None, "exit code 3", 1000.0)
    assert driven.do(e.Connected())[1:] == [e.Report(failure), drained()]


# A close with a grace -------------------------------------------------------------------------------------------------


def test_closed_workers_save_and_the_launcher_exits_with_the_closes_code() -> None:
    driven = closing()
    assert driven.do(*gone(0), ended(1, 5)) == kills(0, 1)
    assert driven.do(e.GroupEmptied(1)) == [e.Exit(CLOSED, "Suspended, and all workers have ended")]


def test_a_worker_that_has_not_saved_when_the_closes_grace_is_over_is_killed() -> None:
    driven = closing()
    driven.do(*gone(0))
    assert driven.later(9.9) == []
    assert driven.later(0.2) == kills(1)
    why = "Suspended; the workers did not end within the grace period"
    assert driven.do(*gone(1, code=137, signal="SIGKILL"))[-1] == e.Exit(CLOSED, why)


def test_a_worker_that_had_failed_does_not_overrule_a_close_with_a_grace() -> None:
    driven = failed()
    assert driven.do(close()) == terms(0)
    assert exits(driven.do(*gone(0, code=143, signal="SIGTERM"))) == [CLOSED]


@pytest.mark.parametrize("before", [Driven, finished])
def test_a_close_with_a_grace_does_not_wait_if_no_worker_runs(before: Callable[[], Driven]) -> None:
    assert before().do(close()) == [e.Exit(CLOSED, "Suspended")]


def test_the_code_of_a_close_with_a_grace_counts_although_no_worker_is_left() -> None:
    driven = failed()
    driven.do(*gone(0, code=1))
    assert exits(driven.do(close())) == [CLOSED]


@pytest.mark.parametrize("before", [starting, stopping])
def test_workers_that_are_killed_already_save_nothing_before_a_close(before: Callable[[], Driven]) -> None:
    driven = before()
    assert driven.do(close()) == kills(0, 1)
    assert exits(driven.do(*gone(0, 1, code=137, signal="SIGKILL"))) == [CLOSED]


def test_a_close_without_a_grace_kills_at_once() -> None:
    driven = running()
    assert driven.do(close(grace_s=0)) == kills(0, 1)


def test_no_failure_is_reported_after_a_close_with_a_grace() -> None:
    effects = closing().do(*gone(0, code=1))
    assert not [effect for effect in effects if isinstance(effect, e.Report)]


def test_no_round_starts_after_a_close_with_a_grace() -> None:
    driven = closing()
    assert driven.do(start(1)) == []
    assert driven.phase is LauncherPhase.CLOSING


def test_a_stop_ends_the_save_of_a_closed_job() -> None:
    driven = closing()
    assert driven.do(m.StopWorkers("fenced")) == kills(0, 1)
    assert exits(driven.do(*gone(0, 1, code=137, signal="SIGKILL"))) == [CLOSED]


@pytest.mark.parametrize("order", [close(), SIGTERM])
def test_children_of_workers_that_have_ended_by_themselves_save_nothing(order: e.Event) -> None:
    driven = running(nproc=1)
    driven.do(ended(0))
    assert kills(0)[0] in driven.do(order)
    assert driven.phase is LauncherPhase.LEAVING


def test_a_second_close_can_only_shorten_the_grace() -> None:
    driven = closing()
    assert driven.do(close(60), close(5)) == []
    assert driven.later(4.9) == []
    assert driven.do(close(60)) == []
    assert driven.later(0.2) == kills(0, 1)


@pytest.mark.parametrize("grace_s", [0.0, 5.0])
def test_a_later_close_does_not_change_the_code_of_the_first(grace_s: float) -> None:
    driven = closing()
    driven.do(close(grace_s, DELETED))
    assert exits(driven.do(*gone(0, 1))) == [CLOSED]


def test_a_second_close_without_a_grace_kills_at_once() -> None:
    driven = closing()
    assert driven.do(close(0.0, DELETED)) == kills(0, 1)


def test_a_close_after_the_launcher_began_to_leave_changes_nothing() -> None:
    driven = running()
    driven.do(m.ExitLauncher(81, "Failed"))
    assert driven.do(close()) == []
    assert exits(driven.do(*gone(0, 1, code=137, signal="SIGKILL"))) == [81]


# A drain and a close --------------------------------------------------------------------------------------------------


def test_a_close_replaces_a_drain_and_its_grace() -> None:
    driven = draining()
    assert driven.do(close(60)) == [], "SIGTERM comes once"
    assert driven.later(59) == []
    assert driven.later(1.1) == kills(0, 1)


def test_a_drain_that_a_close_has_overtaken_is_answered_before_the_exit() -> None:
    driven = draining()
    driven.do(close())
    effects = driven.do(*gone(0, 1))
    assert effects[-2:] == [drained(), e.Exit(CLOSED, "Suspended, and all workers have ended")]


def test_a_close_waits_for_the_training_of_a_drained_shell() -> None:
    driven = draining(nproc=1)
    driven.do(ended(0, 143, "SIGTERM"))
    assert driven.do(close()) == []
    assert driven.phase is LauncherPhase.CLOSING


def test_a_close_after_a_drains_kill_waits_for_no_save() -> None:
    driven = draining()
    driven.later(10.1)
    assert driven.do(close()) == kills(0, 1)
    assert exits(driven.do(*gone(0, 1, code=137, signal="SIGKILL"))) == [CLOSED]


@pytest.mark.parametrize(("code", "expected"), [(0, 0), (81, 81)])
def test_a_close_without_a_grace_ends_a_drain(code: int, expected: int) -> None:
    driven = draining()
    assert driven.do(close(0.0, code)) == kills(0, 1)
    effects = driven.do(*gone(0, 1, code=137, signal="SIGKILL"))
    assert effects[-2:] == [drained(), e.Exit(expected, "Suspended")]


def test_a_drain_does_not_shorten_a_closes_grace_and_is_answered() -> None:
    driven = closing()
    assert driven.do(drain(grace_s=1)) == []
    assert driven.later(9) == []
    assert drained() in driven.do(*gone(0, 1))


def test_a_drain_of_a_launcher_that_exits_is_answered_if_all_workers_end_in_time() -> None:
    driven = running()
    driven.do(m.ExitLauncher(81, "Failed"))
    assert driven.do(drain()) == []
    assert driven.do(*gone(0, 1, code=137, signal="SIGKILL"))[-2:] == [drained(), e.Exit(81, "Failed")]


# The pod's end --------------------------------------------------------------------------------------------------------


def terminating(grace_s: float = 30.0) -> e.Effect:
    return e.Report(m.Terminating(grace_s))


def test_sigterm_during_a_drain_is_reported_and_the_workers_get_no_second_one() -> None:
    driven = draining()
    assert driven.do(SIGTERM) == [terminating()]
    effects = driven.do(*gone(0, 1))
    assert effects[-2:] == [drained(), e.Exit(ENDED_BY_SIGTERM, "SIGTERM, and all workers have ended")]


@pytest.mark.parametrize(("drain_s", "pod_s", "kill_s"), [(10.0, 30.0, 10.0), (60.0, 30.0, 28.0)])
def test_the_earlier_end_of_a_drains_and_the_pods_grace_counts(drain_s: float, pod_s: float, kill_s: float) -> None:
    for first, second in ((drain(grace_s=drain_s), SIGTERM), (SIGTERM, drain(grace_s=drain_s))):
        driven = running(grace_s=pod_s)
        driven.do(first, second)
        assert driven.later(kill_s - 0.1) == []
        assert driven.later(0.2) == kills(0, 1)
        effects = driven.do(*gone(0, 1, code=137, signal="SIGKILL"))
        assert effects[-2] == drained()
        assert exits(effects) == [KILLED_AT_GRACE_END]


def test_sigterm_waits_for_the_training_of_a_drained_shell() -> None:
    driven = draining(nproc=1)
    driven.do(ended(0, 143, "SIGTERM"))
    assert driven.do(SIGTERM) == [terminating()]
    assert driven.phase is LauncherPhase.SAVING


def test_sigterm_after_a_drains_kill_waits_for_no_save() -> None:
    driven = draining()
    driven.later(10.1)
    assert driven.do(SIGTERM) == [terminating(), *kills(0, 1)]


def test_sigterm_after_a_drain_ends_the_launcher_at_once() -> None:
    driven = draining()
    driven.do(*gone(0, 1, code=143, signal="SIGTERM"))
    assert driven.do(SIGTERM) == [terminating(), e.Exit(ENDED_BY_SIGTERM, "SIGTERM, and no workers ran")]


def test_a_drain_while_the_pod_ends_sends_no_second_signal_and_is_answered_before_the_exit() -> None:
    driven = saving()
    assert driven.do(drain()) == []
    effects = driven.do(*gone(0, 1))
    assert effects[-2:] == [drained(), e.Exit(ENDED_BY_SIGTERM, "SIGTERM, and all workers have ended")]


def test_sigterm_while_a_closed_job_saves_is_reported_and_the_closes_code_remains() -> None:
    driven = closing()
    assert driven.do(SIGTERM) == [terminating()]
    assert driven.phase is LauncherPhase.CLOSING
    assert driven.do(e.Connected())[1:] == [terminating(28.0)]
    assert exits(driven.do(*gone(0, 1, code=1))) == [CLOSED]


@pytest.mark.parametrize(("close_s", "kill_s"), [(10.0, 10.0), (60.0, 28.0)])
def test_a_close_gives_no_more_time_than_the_pod_has(close_s: float, kill_s: float) -> None:
    for first, second in ((close(close_s), SIGTERM), (SIGTERM, close(close_s))):
        driven = running()
        driven.do(first, second)
        assert driven.later(kill_s - 0.1) == []
        assert driven.later(0.2) == kills(0, 1)


def test_a_close_while_the_pod_ends_sends_no_second_signal_and_sets_the_exit_code() -> None:
    driven = saving()
    driven.do(*gone(0, code=5))
    assert driven.do(close()) == []
    assert exits(driven.do(*gone(1, code=143, signal="SIGTERM"))) == [CLOSED]


def test_before_any_round_there_is_nothing_to_drain() -> None:
    driven = Driven()
    assert driven.do(m.DrainWorkers(NO_ROUND, 1.0)) == [e.Report(m.WorkersDrained(NO_ROUND))]


# The worker grace: a round replaces healthy workers -------------------------------------------------------------------


def handled(*ranks: int) -> list[e.Effect]:
    return [e.Signal(rank, e.Aim.TERM_HANDLER) for rank in ranks]


def replacing() -> Driven:
    """Local rank 1 has failed, and round 1 waits for local rank 0, which has 10 s."""
    driven = running(worker_grace_period_s=10.0)
    driven.do(ended(1, 3), e.GroupEmptied(1))
    assert driven.do(start(1)) == handled(0)
    assert driven.phase is LauncherPhase.REPLACING
    return driven


def spawned(number: int) -> list[e.Effect]:
    return [e.Spawn(start(number)), e.Report(m.WorkersStarted(token(number)))]


def test_without_a_worker_grace_healthy_workers_are_killed_at_once() -> None:
    driven = running(worker_grace_period_s=0.0)
    driven.do(ended(1, 3), e.GroupEmptied(1))
    assert driven.do(start(1)) == kills(0)


def test_the_round_starts_as_soon_as_the_healthy_workers_have_ended() -> None:
    driven = replacing()
    assert driven.hello().workers is WorkersState.STARTING
    assert driven.do(*gone(0))[-2:] == spawned(1)


def test_a_worker_that_does_not_end_within_the_worker_grace_is_killed() -> None:
    driven = replacing()
    assert driven.later(9.9) == []
    assert driven.later(0.1) == kills(0)
    assert driven.do(*gone(0, code=137, signal="SIGKILL"))[-2:] == spawned(1)


def test_the_end_of_a_replaced_worker_is_not_reported() -> None:
    driven = replacing()
    assert driven.do(ended(0, 134, "SIGABRT")) == kills(0)


def test_a_newer_round_replaces_a_waiting_one_and_does_not_extend_the_grace() -> None:
    driven = replacing()
    driven.later(6.0)
    assert driven.do(start(2)) == []
    assert driven.later(4.0) == kills(0)
    assert driven.do(*gone(0, code=137, signal="SIGKILL"))[-2:] == spawned(2)


def test_a_fence_ends_the_worker_grace_at_once() -> None:
    assert replacing().do(m.StopWorkers("no coordinator for 30 s")) == kills(0)


@pytest.mark.parametrize(
    "order", [drain(1, grace_s=3.0), SIGTERM, close(grace_s=3.0)], ids=["drain", "SIGTERM", "close"]
)
def test_no_worker_gets_sigterm_twice_or_more_time(order: e.Event) -> None:
    driven = replacing()
    assert terms(0)[0] not in driven.do(order)
    assert kills(0)[0] in driven.later(10.0)


def test_workers_that_were_all_lost_or_have_all_finished_have_no_worker_grace() -> None:
    both_failed = running(worker_grace_period_s=10.0)
    both_failed.do(*gone(0, code=1), *gone(1, code=1))
    assert both_failed.do(start(1)) == spawned(1)


def test_a_job_that_fails_gives_its_healthy_workers_the_grace_and_keeps_the_failed_ones_code() -> None:
    driven = running(worker_grace_period_s=10.0)
    driven.do(ended(1, 3), e.GroupEmptied(1))
    assert driven.do(close(grace_s=0.0, code=81)) == handled(0)
    assert exits(driven.do(*gone(0))) == [3]


def test_a_job_that_has_succeeded_waits_for_no_worker() -> None:
    driven = running(worker_grace_period_s=10.0)
    assert driven.do(close(grace_s=0.0, code=0)) == kills(0, 1)


def test_a_warm_spare_has_the_worker_grace_of_its_job() -> None:
    driven = Driven()
    driven.do(e.CommandReplaced(10.0), start(0))
    assert driven.do(start(1)) == handled(0, 1)


def test_a_leftover_of_replaced_workers_delays_the_round() -> None:
    driven = replacing()
    driven.leftovers = True
    assert driven.do(*gone(0))[-1] == KILL_LEFTOVERS
    assert driven.do(e.GroupEmptied(LEFTOVERS)) == spawned(1)
