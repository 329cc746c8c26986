"""Workers that make no more steps: which one is named as the cause, and the recovery that follows."""

from __future__ import annotations

import pytest

from tests.unit.sidecar.membership.driven import DrivenCoordinator, running
from understudy_protocol import membership as m
from understudy_protocol.enums import NO_ROUND, CloseReason, Fault, RoundToken, Strategy, WorkersState
from understudy_sidecar.membership.round_state import RoundPhase

GATHER_S = 3.0
STACKS_S = 8.0

ALL_MEMBERS = ("active-0", "active-1", "active-2", "spare-0")


def hangs(
    driven: DrivenCoordinator, name: str, step: int, *, local_rank: int = 0, at: float = 5.0, round_: int = 0
) -> None:
    token = RoundToken(driven.token.epoch, driven.token.term, driven.token.round - round_)
    driven.receive(name, m.Hung(token, local_rank, step, at, 600.2))


def test_once_all_have_reported_the_slowest_is_the_cause_and_all_restart_in_place() -> None:
    driven = running(3, nproc=2)
    hangs(driven, "active-0", 121)
    hangs(driven, "active-2", 120, local_rank=1, at=9.0)
    assert driven.assigned() == {}
    hangs(driven, "active-1", 121)
    assert driven.assigned() == {"active-0": 0, "active-1": 1, "active-2": 2}
    recovery = driven.recovery()
    assert (recovery.fault, recovery.strategy) == (Fault.HANG, Strategy.IN_PLACE)
    assert (recovery.cause.rank, recovery.cause.pod) == (5, "active-2")
    assert recovery.cause.message == "no step for 600 s; slowest: rank 5 at step 120 (others: 121)"


def test_among_ranks_at_the_same_step_the_one_that_made_it_first_is_the_cause() -> None:
    driven = running(3)
    hangs(driven, "active-0", 120, at=7.0)
    hangs(driven, "active-1", 120, at=6.0)
    hangs(driven, "active-2", 124, at=8.0)
    assert driven.recovery().cause.message == "no step for 600 s; slowest: rank 1 at step 120 (others: 120 to 124)"


def test_a_member_that_does_not_report_delays_the_decision_only_for_a_moment() -> None:
    """A script may well report the steps of rank 0 alone."""
    driven = running(3)
    hangs(driven, "active-0", 120)
    driven.later(GATHER_S - 0.1, *ALL_MEMBERS)
    assert driven.coordinator.phase is RoundPhase.RUNNING
    driven.later(0.2, *ALL_MEMBERS)
    assert driven.recovery().cause.message == "no step for 600 s; slowest: rank 0 at step 120"
    assert driven.lost_pods() == {}


def test_a_member_that_has_finished_does_not_delay_the_decision() -> None:
    driven = running(2)
    driven.receive("active-0", m.Finished(driven.token))
    hangs(driven, "active-1", 120)
    assert driven.recovery().fault is Fault.HANG


def test_a_worker_that_fails_meanwhile_is_a_consequence() -> None:
    """It has waited in its collective until the collective timed out."""
    driven = running(3)
    hangs(driven, "active-1", 120)
    driven.fail_worker("active-0", "collective timed out")
    (recovery,) = driven.coordinator.snapshot().recoveries
    assert (recovery.fault, recovery.cause.rank) == (Fault.HANG, 1)


def test_a_step_withdraws_the_report_of_a_hang() -> None:
    driven = running(2)
    hangs(driven, "active-0", 120)
    driven.report_step("active-0", 121)
    driven.later(2 * GATHER_S, "active-0", "active-1", "spare-0")
    assert driven.coordinator.phase is RoundPhase.RUNNING
    assert driven.coordinator.snapshot().recoveries == ()
    driven.fail_worker("active-1")
    assert driven.recovery().fault is Fault.PROCESS


def test_a_hang_is_charged_and_with_the_budget_spent_the_hung_pod_is_evicted() -> None:
    driven = running(2, max_in_place=1)
    for _ in range(2):
        driven.report_started("active-0", "active-1")
        driven.sent.clear()
        hangs(driven, "active-0", 120)
        hangs(driven, "active-1", 119)
    # all other members have answered
    driven.answer_heartbeats("active-0")
    assert driven.assigned() == {"active-0": 0, "spare-0": 1}
    assert driven.recovery().reason == "the budget of 1 restarts within 1 h is spent"
    hangs(driven, "active-0", 120, at=4.0)
    hangs(driven, "spare-0", 120)
    driven.answer_heartbeats(*list(driven.sent))  # none was lost before
    driven.answer_heartbeats(*list(driven.sent))  # a majority confirms that the coordinator is followed
    assert driven.coordinator.closed is not None
    assert driven.coordinator.closed.reason is CloseReason.FAILED
    assert "rank 0 on active-0: no step for 600 s" in driven.coordinator.closed.message


@pytest.mark.parametrize(
    ("steps", "gathers_s"),
    [
        pytest.param({"active-0": 17, "active-1": 17, "active-2": 18}, 0.0, id="two are at the lowest step"),
        pytest.param({"active-0": 17, "active-1": 18}, GATHER_S, id="one has not reported"),
    ],
)
def test_a_pod_is_not_evicted_if_another_may_be_the_one_that_hangs(steps: dict[str, int], gathers_s: float) -> None:
    """Found by the simulation (seed 910): all were at one step, and the pod of the first rank was evicted for it."""
    # given a job in which no pod may cost a restart in place
    driven = running(3, in_place_max_per_pod=0)
    # when its workers hang
    for name, step in steps.items():
        hangs(driven, name, step)
    driven.later(gathers_s, *ALL_MEMBERS)
    # then all restart in place, and the budget is charged, but not the pod's own share
    assert driven.assigned() == {"active-0": 0, "active-1": 1, "active-2": 2}
    assert driven.lost_pods() == {}
    failed = "pod active-0 failed once within 1 h, but it is not known which pod hangs"
    assert driven.recovery().reason == f"restart 1 of 2 within 1 h; {failed}"
    (fault,) = driven.coordinator.state.fault_history.in_window(driven.now)
    assert (fault.is_charged, fault.pod_uid) == (True, "")


def test_a_hung_pod_is_evicted_if_all_others_are_a_step_ahead_or_have_finished() -> None:
    driven = running(3, in_place_max_per_pod=0)
    driven.receive("active-0", m.Finished(driven.token))
    hangs(driven, "active-1", 17)
    hangs(driven, "active-2", 16)
    driven.answer_heartbeats("active-0", "active-1")
    assert driven.lost_pods() == {"active-2": "Process"}


def test_reports_about_an_earlier_round_are_dropped() -> None:
    driven = running(2)
    driven.fail_worker("active-0")
    assert driven.assigned() == {"active-0": 0, "active-1": 1}
    for name in ("active-0", "active-1"):
        hangs(driven, name, 120, round_=1)
    assert driven.coordinator.phase is RoundPhase.RUNNING
    assert [x.fault for x in driven.coordinator.snapshot().recoveries] == [Fault.PROCESS]


def test_a_report_does_not_count_once_the_round_is_broken() -> None:
    driven = running(2, spares=0)
    hangs(driven, "active-0", 120)
    driven.drop("active-1")
    driven.later(2 * GATHER_S, "active-0")
    assert [x.fault for x in driven.coordinator.snapshot().recoveries] == [Fault.POD]


def test_a_member_that_leaves_is_the_cause_of_a_hang() -> None:
    driven = running(3)
    driven.receive("active-0", m.Leaving("deleted", 30.0))
    hangs(driven, "active-1", 120)
    hangs(driven, "active-2", 120)
    driven.later(GATHER_S + 1, *ALL_MEMBERS)
    assert driven.coordinator.snapshot().recoveries == ()


def test_a_silent_member_is_the_cause_of_a_hang() -> None:
    driven = running(3)
    driven.drop("active-0", silent=True)
    driven.report_step("active-1")  # the coordinator does not know that the training has stopped
    hangs(driven, "active-1", 120)
    hangs(driven, "active-2", 120)
    driven.later(GATHER_S, *ALL_MEMBERS)
    assert driven.lost_pods() == {"active-0": "Node"}
    assert driven.recovery().cause.pod == "active-0"


def test_a_member_that_turns_out_to_have_been_lost_before_becomes_the_cause() -> None:
    driven = running(3)
    driven.later(1.0)
    for name in ("active-1", "active-2"):
        hangs(driven, name, 120)
    driven.later(GATHER_S)
    assert driven.recovery().fault is Fault.HANG
    driven.drop("active-0")  # it has sent no message since, and has not acknowledged the new round
    (recovery,) = driven.coordinator.snapshot().recoveries
    assert (recovery.fault, recovery.cause.pod) == (Fault.POD, "active-0")


def test_the_pings_after_a_stall_lose_no_member_that_answers() -> None:
    """The training has stalled for three of its steps long before the step timeout."""
    driven = running(3)
    driven.later(600.0, *ALL_MEMBERS)
    assert (driven.lost_pods(), driven.coordinator.phase) == ({}, RoundPhase.RUNNING)
    for name in ALL_MEMBERS[:3]:
        hangs(driven, name, 120)
    assert driven.recovery().fault is Fault.HANG
    driven.report_started(*ALL_MEMBERS[:3])
    driven.report_step("active-0", pause_s=600.2)
    assert driven.recovery().resumed_at is not None


# Before the first step

START_TIMEOUT_S = 600.0


def starting(*started: str, start_timeout_s: float = START_TIMEOUT_S, **given: object) -> DrivenCoordinator:
    """Three active members whose first round has been formed; the workers of these have started."""
    driven = DrivenCoordinator(3, start_timeout_s=start_timeout_s, **given)  # type: ignore[arg-type]
    for name in ALL_MEMBERS:
        driven.join(name)
    for name in ALL_MEMBERS[:3]:
        driven.receive(name, m.Ack(driven.token))
    for name in started:
        driven.receive(name, m.Started(driven.token))
    driven.sent.clear()
    return driven


def asked(driven: DrivenCoordinator) -> list[str]:
    """The pods whose launchers are to write stacks."""
    return [name for name in driven.sent if driven.take(name, m.WriteStacks) == [m.WriteStacks(driven.token)]]


def wrote_stacks(driven: DrivenCoordinator, name: str, started_s: float = 600.0, local_rank: int = 0) -> None:
    """started_s: seconds since the start of its workers."""
    driven.receive(name, m.Hung(driven.token, local_rank, -1, 0.0, started_s))


def test_a_round_without_a_step_hangs_after_the_start_timeout() -> None:
    # given a round whose workers have all started
    driven = starting(*ALL_MEMBERS[:3], nproc=2)
    driven.later(START_TIMEOUT_S - 0.1, *ALL_MEMBERS)
    assert asked(driven) == []
    # when no worker has made a step in time
    driven.later(0.2, *ALL_MEMBERS)
    # then all launchers are asked for the stacks of their workers
    assert sorted(asked(driven)) == ["active-0", "active-1", "active-2"]
    wrote_stacks(driven, "active-0", 599.9)
    wrote_stacks(driven, "active-1", 599.2, local_rank=1)
    assert driven.assigned() == {}
    wrote_stacks(driven, "active-2", 599.8)
    # and the rank that started last is the first suspect of a hang, and all restart in place
    assert driven.assigned() == {"active-0": 0, "active-1": 1, "active-2": 2}
    recovery = driven.recovery()
    assert (recovery.fault, recovery.strategy) == (Fault.HANG, Strategy.IN_PLACE)
    assert (recovery.cause.rank, recovery.cause.pod) == (3, "active-1")
    assert recovery.cause.message == (
        "no step for 600 s since the start; first suspect: rank 3 (its workers started last); "
        "unset faults.hang.startTimeout if the script reports no steps"
    )


def test_a_pod_whose_workers_alone_have_not_started_is_replaced_and_nothing_is_charged() -> None:
    """Found by the simulation (seed 304095): its launcher started no workers, and the job failed for a spent budget."""
    driven = starting("active-0", "active-1")
    driven.later(START_TIMEOUT_S, *ALL_MEMBERS)
    wrote_stacks(driven, "active-0")
    wrote_stacks(driven, "active-1")
    driven.later(STACKS_S - 0.1, *ALL_MEMBERS)
    assert driven.coordinator.snapshot().recoveries == ()
    driven.later(0.2, *ALL_MEMBERS)
    recovery = driven.recovery()
    assert (recovery.fault, recovery.cause.rank, recovery.cause.pod) == (Fault.POD, 2, "active-2")
    assert recovery.cause.message == "its workers have not started within 608 s"
    assert driven.lost_pods() == {"active-2": "Pod"}
    assert driven.coordinator.state.fault_history.in_window(driven.now) == []


def test_of_two_pods_whose_workers_have_not_started_one_is_the_first_suspect() -> None:
    driven = starting("active-0")
    driven.later(START_TIMEOUT_S, *ALL_MEMBERS)
    wrote_stacks(driven, "active-0")
    driven.later(STACKS_S + 0.1, *ALL_MEMBERS)
    assert driven.recovery().fault is Fault.HANG
    assert "first suspect: rank 1 (its workers have not started)" in driven.recovery().cause.message


def test_a_pod_whose_launcher_does_not_answer_is_the_first_suspect() -> None:
    driven = starting(*ALL_MEMBERS[:3])
    driven.later(START_TIMEOUT_S, *ALL_MEMBERS)
    wrote_stacks(driven, "active-0")
    wrote_stacks(driven, "active-2")
    driven.later(STACKS_S + 0.1, *ALL_MEMBERS)
    assert "first suspect: rank 1 (its launcher did not answer)" in driven.recovery().cause.message


@pytest.mark.parametrize(
    ("started", "answering", "lost"),
    [
        pytest.param(("active-0", "active-2"), ("active-0", "active-2"), {"active-1": "Pod"}, id="it has not started"),
        pytest.param(("active-0",), ("active-0",), {}, id="nor has another one"),
        pytest.param(("active-0", "active-1"), ("active-0",), {}, id="another one does not answer"),
        pytest.param(ALL_MEMBERS[:3], ("active-0", "active-2"), {}, id="it does not answer"),
        pytest.param(ALL_MEMBERS[:3], ALL_MEMBERS[:3], {}, id="all answer"),
    ],
)
def test_a_pod_is_evicted_only_if_its_workers_alone_have_not_started(
    started: tuple[str, ...], answering: tuple[str, ...], lost: dict[str, str]
) -> None:
    driven = starting(*started, in_place_max_per_pod=0)
    driven.later(START_TIMEOUT_S, *ALL_MEMBERS)
    for name in answering:
        wrote_stacks(driven, name)
    while not driven.coordinator.snapshot().recoveries:
        driven.later(0.5, *ALL_MEMBERS)
    driven.answer_heartbeats(*ALL_MEMBERS)
    assert driven.lost_pods() == lost


def test_a_step_of_one_rank_is_enough() -> None:
    """A script may report the steps of one rank alone."""
    driven = starting(*ALL_MEMBERS[:3])
    driven.report_step("active-1")
    driven.later(2 * START_TIMEOUT_S, *ALL_MEMBERS)
    assert (asked(driven), driven.coordinator.snapshot().recoveries) == ([], ())


def test_a_step_while_stacks_are_written_withdraws_the_hang() -> None:
    driven = starting(*ALL_MEMBERS[:3])
    driven.later(START_TIMEOUT_S, *ALL_MEMBERS)
    wrote_stacks(driven, "active-0")
    driven.report_step("active-1")
    wrote_stacks(driven, "active-2")
    driven.later(2 * START_TIMEOUT_S, *ALL_MEMBERS)
    assert driven.coordinator.snapshot().recoveries == ()


def test_a_worker_that_fails_while_stacks_are_written_is_a_consequence() -> None:
    driven = starting(*ALL_MEMBERS[:3])
    driven.later(START_TIMEOUT_S, *ALL_MEMBERS)
    wrote_stacks(driven, "active-0")
    driven.fail_worker("active-0", "the rendezvous timed out")
    (recovery,) = driven.coordinator.snapshot().recoveries
    assert (recovery.fault, recovery.cause.pod) == (Fault.HANG, "active-1")


def test_a_script_that_never_calls_step_runs_on_without_a_start_timeout() -> None:
    driven = starting(*ALL_MEMBERS[:3], start_timeout_s=0.0)
    driven.later(10_000.0, *ALL_MEMBERS)
    assert (asked(driven), driven.coordinator.phase) == ([], RoundPhase.RUNNING)


def test_the_next_round_has_the_same_time_again() -> None:
    driven = starting(*ALL_MEMBERS[:3])
    driven.report_step("active-0")
    driven.fail_worker("active-0")
    driven.report_started(*ALL_MEMBERS[:3])
    driven.sent.clear()
    driven.later(START_TIMEOUT_S - 0.1, *ALL_MEMBERS)
    assert asked(driven) == []
    driven.later(0.2, *ALL_MEMBERS)
    assert sorted(asked(driven)) == ["active-0", "active-1", "active-2"]
    for name in ALL_MEMBERS[:3]:
        wrote_stacks(driven, name)
    assert driven.recovery().cause.message == (
        "no step for 600 s since the start; first suspect: rank 0 (its workers started last)"
    )


@pytest.mark.parametrize("stepped", [False, True])
def test_a_new_coordinator_gives_a_round_that_has_not_stepped_the_same_time_from_then_on(stepped: bool) -> None:
    token = RoundToken(1, 1, 3)
    driven = DrivenCoordinator(2, epoch=2, at_least_round=3, start_timeout_s=START_TIMEOUT_S)
    for rank in (0, 1):
        driven.join(f"active-{rank}", token, rank, WorkersState.RUNNING, stepped=token if stepped else NO_ROUND)
    driven.sent.clear()
    driven.later(START_TIMEOUT_S + 1.0, "active-0", "active-1")
    assert sorted(asked(driven)) == ([] if stepped else ["active-0", "active-1"])


def test_a_coordinator_without_a_majority_decides_nothing() -> None:
    driven = starting(*ALL_MEMBERS[:3])
    driven.later(START_TIMEOUT_S - 5.0, *ALL_MEMBERS)
    for name in ("active-1", "active-2", "spare-0"):
        driven.drop(name, silent=True)
    driven.later(6.0, "active-0")
    assert (asked(driven), driven.coordinator.snapshot().recoveries) == ([], ())
