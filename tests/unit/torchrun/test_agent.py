"""Between torchrun's agent and the supervisor: the agent's calls, and their answers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.launcher.driven import start, steps, token
from understudy_launcher import events as e
from understudy_launcher.phases import OnSigterm
from understudy_protocol import launcher as m
from understudy_protocol.enums import NO_ROUND, Drill, Verdict, WorkersState
from understudy_torchrun import rendezvous_calls as c
from understudy_torchrun.agent import Agent, AgentState

UNCLEAR_S = 2.0
PATIENCE_S = 2.0

PORT, STORE = 29400, 29500
KILL, TERM = c.SignalWorkers(e.Aim.KILL_GROUP), c.SignalWorkers(e.Aim.TERM_WORKER)
SIGTERM = e.AskedToEnd("SIGTERM")
FAULTY = e.AskedToEnd("SIGTERM", "Xid 79")
GO_ON, INTERRUPT = c.ContinueTraining(), c.Interrupt()


def died(rank: int, number: str = "SIGKILL") -> e.WorkerEnded:
    return e.WorkerEnded(rank, None, number, 137, f"killed by {number}", 1000.0)


def exited(rank: int, code: int = 0) -> e.WorkerEnded:
    return e.WorkerEnded(rank, code, None, code, f"exit code {code}", 1000.0)


def unseen(rank: int) -> e.WorkerEnded:
    """The agent has reaped it before the session could read its status."""
    return e.WorkerEnded(rank, None, None, 0, "RuntimeError: from its error file", 1000.0)


class Driven:
    """An agent of two workers that a test plays, with the test's own clock."""

    def __init__(self, **options: Any) -> None:
        self.now = 100.0
        self.agent = Agent(1, 2, 30.0, **options)
        assert self.do(e.LauncherStarted()) == [e.ReservePort(), e.MakeStore()]
        assert self.do(e.PortReserved(PORT), e.StoreReady(STORE)) == [
            e.Report(m.NextPort(PORT)),
            e.Report(m.NextPort(PORT, STORE)),
        ]

    def do(self, *events: Any) -> list[c.Effect]:
        effects = [effect for event in events for effect in self.agent.handle(event, self.now)]
        return [effect for effect in effects if not isinstance(effect, e.Log)]

    def wants_round(self) -> list[c.Effect]:
        return self.do(c.WantsRound(1000.0))

    def looks_around(self) -> list[c.Effect]:
        return self.do(c.PollsMembers())

    def succeeds(self) -> list[c.Effect]:
        return self.do(c.WorkersSucceeded(1000.0))

    def later(self, seconds: float) -> list[c.Effect]:
        until, effects = self.now + seconds, []
        while (due := self.agent.deadline()) is not None and due <= until:
            self.now = max(self.now, due)
            effects += self.do(e.Tick())
            assert self.agent.deadline() != due, "a Tick must move its deadline"
        self.now = until
        return effects

    def hello(self) -> m.LauncherHello:
        (first, *_) = self.do(e.Connected())
        assert isinstance(first, e.Report)
        assert isinstance(first.message, m.LauncherHello)
        return first.message


def running(number: int = 0, **options: Any) -> Driven:
    driven = Driven(**options)
    driven.wants_round()
    assert c.BeginRound(start(number)) in driven.do(start(number))
    assert reports(driven.do(c.WorkersSeen([0, 1]))) == [m.WorkersStarted(token(number))]
    assert driven.looks_around() == [GO_ON]
    return driven


def reports(effects: list[c.Effect]) -> list[Any]:
    return [effect.message for effect in effects if isinstance(effect, e.Report)]


def answers(effects: list[c.Effect]) -> list[Any]:
    return [effect for effect in effects if isinstance(effect, c.ANSWERS)]


# Rounds ---------------------------------------------------------------------------------------------------------------


def test_a_round_begins_when_the_agent_waits_for_it() -> None:
    driven = Driven()
    assert driven.wants_round() == []
    assert driven.hello() == m.LauncherHello(1, NO_ROUND, None, WorkersState.IDLE, PORT, False, STORE)
    effects = driven.do(start(0))
    assert answers(effects) == [c.BeginRound(start(0))]
    assert reports(effects) == [], "torchrun has started no worker yet"


@pytest.mark.parametrize(("drill", "aim"), [(Drill.PROCESS, e.Aim.KILL_GROUP), (Drill.HANG, e.Aim.STOP_GROUP)])
def test_a_drill_breaks_one_worker_at_once_and_the_others_run_on(drill: Drill, aim: e.Aim) -> None:
    driven = running()
    driven.do(steps(1, rank=1))
    assert driven.do(m.BreakWorker(token(0), drill)) == [e.Signal(1, aim)]
    assert driven.looks_around() == [GO_ON]


# The start of the workers ---------------------------------------------------------------------------------------------


def starting(number: int = 0) -> Driven:
    """An agent that starts a round's workers."""
    driven = Driven()
    driven.wants_round()
    assert reports(driven.do(start(number))) == []
    return driven


def test_workers_are_reported_as_started_once_all_of_them_have_been_seen() -> None:
    driven = starting()
    assert reports(driven.do(c.WorkersSeen([1]))) == []
    assert reports(driven.do(c.WorkersSeen([0]))) == [m.WorkersStarted(token(0))]
    assert reports(driven.looks_around()) == [], "reported once"


def test_workers_that_cannot_be_seen_are_reported_as_started_by_the_agents_next_call() -> None:
    driven = starting()
    assert driven.later(60.0) == []
    assert driven.looks_around() == [e.Report(m.WorkersStarted(token(0))), GO_ON]


def test_a_step_shows_that_workers_run() -> None:
    driven = starting()
    read = e.StepsRead(0, 7, 100, 1, 1000.0, driven.now)
    assert [type(message) for message in reports(driven.do(read))] == [m.WorkersStarted, m.Stepped]


def test_reports_about_collectives_are_passed_on_except_those_of_the_previous_workers() -> None:
    read = e.CollectivesRead(0, 20, 100, (1, 2), (3, 4))
    driven = starting()
    assert m.CollectiveTimes(token(0), 0, 20, 100, (1, 2), (3, 4)) in reports(driven.do(read))
    # given workers that have ended for a newer round, which the agent has not begun yet
    driven = running()
    driven.looks_around()
    driven.do(start(1))
    driven.looks_around()
    assert INTERRUPT in driven.do(died(0), died(1))
    assert driven.do(read) == []


def test_workers_that_exit_0_before_they_are_seen_have_run() -> None:
    driven = starting()
    assert reports(driven.do(c.WorkersSeen([1]), exited(0))) == [m.WorkersStarted(token(0))]


def test_a_worker_that_fails_before_all_are_seen_ends_the_start() -> None:
    # given a round of which one worker has been seen
    driven = starting()
    driven.do(c.WorkersSeen([0]))
    # when it fails, then the failure is reported, and no start
    assert [type(message) for message in reports(driven.do(died(0)))] == [m.WorkerExited]
    # and a start is not reported after the failure either
    assert reports(driven.do(c.WorkersSeen([1]))) == []
    assert reports(driven.wants_round()) == []


def test_an_agent_that_calls_again_without_workers_has_failed_to_start_them() -> None:
    driven = starting()
    assert [type(message) for message in reports(driven.wants_round())] == [m.WorkerExited]


def test_a_sidecar_that_connects_before_the_workers_are_seen_gets_starting() -> None:
    driven = starting()
    assert driven.hello().workers is WorkersState.STARTING
    driven.do(c.WorkersSeen([0, 1]))
    assert driven.hello().workers is WorkersState.RUNNING


def test_a_round_that_ends_before_its_workers_are_seen_is_not_reported_as_started() -> None:
    driven = starting()
    driven.do(m.StopWorkers("fenced"))
    effects = driven.looks_around()
    assert [type(message) for message in reports(effects)] == [m.LauncherHello]
    assert answers(effects) == [INTERRUPT]
    assert reports(driven.do(c.WorkersSeen([0, 1]))) == []


def test_a_round_that_is_ordered_first_waits_for_the_agent() -> None:
    driven = Driven()
    assert answers(driven.do(start(0))) == []
    assert answers(driven.wants_round()) == [c.BeginRound(start(0))]


def test_a_newer_round_replaces_one_that_the_agent_has_not_begun() -> None:
    driven = Driven()
    driven.do(start(0), start(1))
    assert answers(driven.wants_round()) == [c.BeginRound(start(1))]


def test_rank_0_s_store_is_replaced_by_another_and_stays_while_its_round_runs() -> None:
    driven = Driven()
    driven.wants_round()
    effects = driven.do(start(0, rank_offset=0, store=STORE))
    assert e.MakeStore((STORE,)) in effects
    assert m.NextPort(PORT, 0) in reports(effects), "it is offered to no later round"
    assert reports(driven.do(e.StoreReady(STORE + 1))) == [m.NextPort(PORT, STORE + 1)]


def test_without_a_store_the_reserved_port_is_released_for_rank_0() -> None:
    driven = Driven()
    driven.wants_round()
    effects = driven.do(start(0, rank_offset=0))
    assert effects.index(e.ReleasePort()) < effects.index(c.BeginRound(start(0, rank_offset=0)))


def test_while_workers_run_the_agent_continues_and_steps_are_reported() -> None:
    driven = running()
    assert driven.looks_around() == [GO_ON]
    assert reports(driven.do(e.StepsRead(0, 7, 100, 1, 1000.0, driven.now))) == [
        m.Stepped(token(0), 7, 100, 0.0, 1000.0)
    ]


def test_a_step_that_is_read_late_does_not_count_for_the_next_round() -> None:
    # given workers that have ended for a newer round, which the agent has not begun yet
    driven = running()
    driven.looks_around()
    driven.do(start(1))
    driven.looks_around()
    assert INTERRUPT in driven.do(died(0), died(1))
    # when a step of the old round is read only now
    # then it does not count as the newer round's first step, which would end the recovery
    assert driven.do(e.StepsRead(0, 7, 100, 1, 1000.0, driven.now)) == []
    assert c.BeginRound(start(1)) in driven.wants_round()
    assert m.Stepped(token(1), 8, 100, 0.0, 1000.0) in reports(driven.do(e.StepsRead(0, 8, 100, 1, 1000.0, driven.now)))


def test_a_newer_round_interrupts_the_agent_which_then_begins_it() -> None:
    driven = running()
    read = [e.ReadExceptions()]
    assert driven.do(start(1)) == read, "a worker that dies before the agent polls costs it a restart"
    assert driven.looks_around() == [KILL]
    assert driven.do(died(0)) == []
    effects = driven.do(died(1))
    assert answers(effects) == [INTERRUPT]
    assert reports(effects) == [], "no failure, and no start before the agent starts the workers"
    assert answers(driven.wants_round()) == [c.BeginRound(start(1))]
    assert reports(driven.do(c.WorkersSeen([0, 1]))) == [m.WorkersStarted(token(1))]


def test_an_agent_that_does_not_poll_delays_signals_only_for_a_time() -> None:
    driven = running()
    driven.do(start(1))
    assert driven.later(PATIENCE_S) == [KILL]
    assert answers(driven.wants_round()) == [c.BeginRound(start(1))], "the agent has noticed their ends"


def test_workers_that_are_not_watched_are_ended_by_the_agent() -> None:
    driven = Driven()
    driven.wants_round()
    driven.do(start(0), start(1))
    assert driven.looks_around() == [KILL, INTERRUPT]


def test_an_older_round_is_dropped() -> None:
    driven = running(3)
    assert driven.do(start(2)) == []
    assert driven.looks_around() == [GO_ON]


# Failures -------------------------------------------------------------------------------------------------------------


def test_a_worker_that_is_seen_to_fail_is_reported_at_once() -> None:
    driven = running()
    effects = driven.do(died(1))
    assert reports(effects) == [m.WorkerExited(token(0), 1, None, "SIGKILL", "killed by SIGKILL", 1000.0)]
    assert driven.hello().workers is WorkersState.FAILED


def test_neighbors_that_the_agent_ends_have_not_failed() -> None:
    driven = running()
    driven.do(died(1))
    assert driven.do(died(0, "SIGTERM")) == []


def test_the_next_round_does_not_wait_until_the_agent_has_ended_the_neighbors() -> None:
    driven = running()
    driven.do(died(1))
    replaced = driven.do(start(1))
    assert replaced == [e.ReadExceptions(), KILL], "the agent may wait 30 s for a worker that ignores SIGTERM"
    assert answers(driven.wants_round()) == [c.BeginRound(start(1))]


def test_an_agent_that_calls_without_an_order_has_a_failed_worker() -> None:
    driven = running()
    (report,) = reports(driven.wants_round())
    reason = "a worker failed; see the error that torchrun logged"
    assert report == m.WorkerExited(token(0), 0, None, None, reason, 1000.0)
    assert answers(driven.do(start(1))) == [c.BeginRound(start(1))]


def test_the_error_file_of_a_worker_that_was_reaped_too_soon_is_reported_at_the_next_call() -> None:
    driven = running()
    assert driven.do(unseen(1)) == [], "it may have exited 0"
    (report,) = reports(driven.wants_round())
    assert (report.local_rank, report.message) == (1, "RuntimeError: from its error file")


def test_a_worker_reaped_too_soon_has_failed_if_the_agent_does_not_call() -> None:
    """The agent ends the neighbors, and one that ignored SIGTERM delayed the next round for 30 s."""
    driven = running()
    driven.do(unseen(1))
    (report,) = reports(driven.later(UNCLEAR_S))
    assert (report.local_rank, report.message) == (1, "RuntimeError: from its error file")
    assert driven.do(start(1)) == [e.ReadExceptions(), KILL]
    assert answers(driven.wants_round()) == [c.BeginRound(start(1))]


@pytest.mark.parametrize("neighbor", [died(0, "SIGTERM"), exited(0, 1)], ids=["by torchrun", "lost its peer"])
def test_a_worker_reaped_too_soon_has_failed_if_its_neighbor_fails_next(
    neighbor: e.WorkerEnded,
) -> None:
    driven = running()
    (report,) = reports(driven.do(unseen(1), neighbor))
    assert (report.local_rank, report.message) == (1, "RuntimeError: from its error file")
    assert not [report for report in reports(driven.later(2 * UNCLEAR_S)) if isinstance(report, m.WorkerExited)]


@pytest.mark.parametrize("call", [c.PollsMembers(), c.WorkersSucceeded(1000.0)])
def test_a_worker_reaped_too_soon_has_exited_0_if_the_agent_continues(call: c.Call) -> None:
    driven = running()
    driven.do(unseen(1), call)
    assert not [report for report in reports(driven.later(2 * UNCLEAR_S)) if isinstance(report, m.WorkerExited)]


def test_a_worker_fails_after_one_that_was_reaped_too_soon_and_had_exited_0() -> None:
    driven = running()
    driven.do(unseen(1), c.PollsMembers())
    (report,) = reports(driven.do(exited(0, 1)))
    assert (report.local_rank, report.message) == (0, "exit code 1")


def test_a_failure_is_reported_again_to_a_sidecar_that_reconnects() -> None:
    driven = running()
    driven.do(died(1))
    driven.wants_round()
    assert [type(report) for report in reports(driven.do(e.Connected()))] == [m.LauncherHello, m.WorkerExited]


def test_exit_0_of_one_worker_is_not_reported() -> None:
    driven = running()
    assert driven.do(exited(0)) == []
    assert driven.looks_around() == [GO_ON]


# Success --------------------------------------------------------------------------------------------------------------


def test_workers_have_finished_when_the_agent_enters_its_barrier_and_it_waits_for_the_close() -> None:
    driven = running()
    driven.do(exited(0), exited(1))
    assert driven.succeeds() == [e.Report(m.WorkersFinished(token(0)))]
    assert driven.do(m.ExitLauncher(0, "Succeeded")) == [c.LeaveRendezvous(0, "Succeeded")]


def test_more_workers_than_the_job_sets_have_finished_when_all_have() -> None:
    driven = running()
    driven.do(c.WorkersSeen([2, 3]))
    assert driven.do(exited(0), exited(1)) == []
    assert reports(driven.succeeds()) == [m.WorkersFinished(token(0))]


def test_a_round_after_success_needs_another_agent() -> None:
    driven = running()
    driven.succeeds()
    assert driven.do(start(1)) == [c.RestartRendezvous()]


def test_a_job_that_fails_after_this_ones_success_is_no_success() -> None:
    driven = running()
    driven.succeeds()
    assert driven.do(m.ExitLauncher(81, "Failed")) == [c.LeaveRendezvous(81, "Failed")]


# Orders to stop -------------------------------------------------------------------------------------------------------


def test_stopped_workers_are_killed_and_the_agent_waits_for_another_round() -> None:
    driven = running()
    driven.do(m.StopWorkers("fenced"))
    assert driven.looks_around() == [KILL]
    driven.do(died(0))
    effects = driven.do(died(1))
    assert [report.workers for report in reports(effects)] == [WorkersState.IDLE]
    assert answers(effects) == [INTERRUPT]
    assert driven.wants_round() == []


def test_drained_workers_get_sigterm_and_their_time_before_the_agent_is_interrupted() -> None:
    driven = running()
    driven.do(m.DrainWorkers(token(0), 20.0))
    assert driven.looks_around() == [TERM]
    driven.do(exited(0))
    assert driven.agent.state is AgentState.POLL
    effects = driven.do(exited(1))
    assert reports(effects) == [m.WorkersDrained(token(0))], "and not finished, though they exited 0"
    assert answers(effects) == [INTERRUPT]
    assert driven.wants_round() == []


def test_drained_workers_that_do_not_end_are_killed() -> None:
    driven = running()
    driven.do(m.DrainWorkers(token(0), 20.0))
    driven.looks_around()
    assert driven.later(19.9) == []
    assert KILL in driven.later(0.2)


def test_a_drained_training_that_succeeds_before_the_agent_polls_has_drained() -> None:
    driven = running()
    driven.do(m.DrainWorkers(token(0), 20.0))
    assert reports(driven.succeeds()) == [m.WorkersDrained(token(0))]


def test_a_round_that_has_not_begun_is_drained_at_once() -> None:
    driven = Driven()
    driven.do(start(0))
    assert reports(driven.do(m.DrainWorkers(token(0), 20.0))) == [m.WorkersDrained(token(0))]
    assert driven.wants_round() == []


# The close ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 81])
def test_a_spare_leaves_with_the_codes_of_the_close(code: int) -> None:
    driven = Driven()
    driven.wants_round()
    assert driven.do(m.ExitLauncher(code, "closed")) == [c.LeaveRendezvous(code, "closed")]


def test_a_close_before_the_agents_call_waits_for_it() -> None:
    driven = Driven()
    assert driven.do(m.ExitLauncher(81, "Failed")) == []
    assert driven.wants_round() == [c.LeaveRendezvous(81, "Failed")]


def test_a_failed_job_kills_running_workers() -> None:
    driven = running()
    driven.do(m.ExitLauncher(81, "Failed"))
    assert driven.looks_around() == [KILL]
    assert driven.do(died(0), died(1)) == [c.LeaveRendezvous(81, "Failed")]


def test_the_code_of_the_worker_that_failed_is_kept() -> None:
    driven = running()
    driven.do(exited(1, 3))
    driven.wants_round()
    assert driven.do(m.ExitLauncher(81, "Failed")) == [c.LeaveRendezvous(3, "Failed")]


def test_a_suspended_job_lets_workers_save() -> None:
    driven = running()
    driven.do(m.ExitLauncher(82, "Suspended", 20.0))
    assert driven.looks_around() == [TERM]
    assert [left.code for left in answers(driven.do(exited(0), exited(1)))] == [82]


RAISED = e.WorkerRaised(1, "ValueError: no data", 0.25, "Traceback")


def test_the_exception_of_a_worker_that_runs_is_reported() -> None:
    driven = running()
    assert reports(driven.do(RAISED)) == [m.WorkerRaised(token(0), 1, "ValueError: no data", 0.25, "Traceback")]
    assert driven.looks_around() == [GO_ON], "the round goes on until the process has ended"


def test_the_exception_of_a_worker_that_the_next_ones_replace_is_none() -> None:
    # given workers that have ended for a newer round, which the agent has not begun yet
    driven = running()
    driven.looks_around()
    driven.do(start(1))
    driven.looks_around()
    assert INTERRUPT in driven.do(died(0), died(1))
    assert driven.do(RAISED) == []


# SIGTERM --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("event", [SIGTERM, FAULTY])
def test_an_exception_after_sigterm_is_none(event: e.AskedToEnd) -> None:
    driven = running()
    driven.do(event)
    assert driven.do(RAISED) == []


def test_torchrun_ends_workers_that_may_save() -> None:
    driven = running()
    assert driven.do(SIGTERM) == [e.Report(m.Terminating(30.0)), c.ForwardSignal()]
    ends = driven.do(exited(0), exited(1))
    assert not [effect for effect in ends if not isinstance(effect, e.Signal)], "it exits by itself then"


def test_torchrun_gets_no_longer_than_the_grace() -> None:
    driven = running()
    driven.do(SIGTERM)
    assert KILL in driven.later(28.5)


def test_no_round_starts_after_sigterm() -> None:
    driven = running()
    driven.do(SIGTERM)
    assert driven.do(start(1)) == []


@pytest.mark.parametrize(
    ("policy", "event"), [(OnSigterm.AUTO, FAULTY), (OnSigterm.NEVER, FAULTY), (OnSigterm.NEVER, SIGTERM)]
)
def test_workers_on_a_faulty_node_end_at_once(policy: OnSigterm, event: e.AskedToEnd) -> None:
    driven = running(on_sigterm=policy)
    verdict = Verdict.FAULTY if event.hardware_finding else Verdict.UNKNOWN
    assert driven.do(event) == [e.Report(m.Terminating(0.0, verdict)), KILL]
    (end,) = driven.do(died(0), died(1))
    assert isinstance(end, c.ExitNow)
    assert end.code == 1
    assert "no checkpoint is tried" in end.reason


def test_a_worker_that_sleeps_in_the_kernel_delays_the_exit_by_a_second_only() -> None:
    driven = running()
    driven.do(FAULTY)
    assert [effect.code for effect in driven.later(1.0) if isinstance(effect, c.ExitNow)] == [1]


def test_on_sigterm_always_saves_on_a_faulty_node_too() -> None:
    assert c.ForwardSignal() in running(on_sigterm=OnSigterm.ALWAYS).do(FAULTY)


@pytest.mark.parametrize(("event", "code"), [(SIGTERM, 143), (FAULTY, 1)])
def test_an_agent_that_waits_for_a_round_exits_on_sigterm(event: e.AskedToEnd, code: int) -> None:
    driven = Driven()
    driven.wants_round()
    (left,) = answers(driven.do(event))
    assert left.code == code


def test_workers_that_save_in_a_drain_get_no_second_sigterm() -> None:
    driven = running()
    driven.do(m.DrainWorkers(token(0), 20.0))
    driven.looks_around()
    assert driven.do(SIGTERM) == [e.Report(m.Terminating(30.0))]
    driven.do(exited(0))
    assert [left.code for left in answers(driven.do(exited(1)))] == [143]


def test_an_agent_that_a_signal_has_taken_out_of_its_call_is_away() -> None:
    driven = running()
    driven.do(m.DrainWorkers(token(0), 20.0))
    driven.looks_around()
    driven.do(c.HandlerClosed())
    assert driven.agent.state is AgentState.AWAY
