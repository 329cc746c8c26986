"""Workers that make no steps any more: who is named, and what follows."""

from __future__ import annotations

import pytest

from tests.unit.sidecar.membership.driven import Driven, running
from understudy_protocol import membership as m
from understudy_protocol.words import NO_ROUND, CloseReason, Fault, RoundToken, Strategy, WorkersState
from understudy_sidecar.membership.desk import State

GATHER_S = 3.0
STACKS_S = 8.0

EVERYBODY = ("active-0", "active-1", "active-2", "spare-0")


def hangs(office: Driven, name: str, step: int, *, local_rank: int = 0, at: float = 5.0, round_: int = 0) -> None:
    token = RoundToken(office.token.epoch, office.token.term, office.token.round - round_)
    office.hear(name, m.Hung(token, local_rank, step, at, 600.2))


def test_once_all_have_told_the_slowest_is_the_cause_and_all_restart_in_place() -> None:
    office = running(3, nproc=2)
    hangs(office, "active-0", 121)
    hangs(office, "active-2", 120, local_rank=1, at=9.0)
    assert office.assigned() == {}
    hangs(office, "active-1", 121)
    assert office.assigned() == {"active-0": 0, "active-1": 1, "active-2": 2}
    recovery = office.recovery()
    assert (recovery.fault, recovery.strategy) == (Fault.HANG, Strategy.IN_PLACE)
    assert (recovery.cause.rank, recovery.cause.pod) == (5, "active-2")
    assert recovery.cause.message == "no step for 600 s; slowest: rank 5 at step 120 (others: 121)"


def test_of_those_with_one_step_it_is_who_made_it_first() -> None:
    office = running(3)
    hangs(office, "active-0", 120, at=7.0)
    hangs(office, "active-1", 120, at=6.0)
    hangs(office, "active-2", 124, at=8.0)
    assert office.recovery().cause.message == "no step for 600 s; slowest: rank 1 at step 120 (others: 120 to 124)"


def test_who_does_not_tell_is_waited_for_a_moment_only() -> None:
    """A script may well report the steps of rank 0 alone."""
    office = running(3)
    hangs(office, "active-0", 120)
    office.later(GATHER_S - 0.1, *EVERYBODY)
    assert office.coordinator.state is State.RUNNING
    office.later(0.2, *EVERYBODY)
    assert office.recovery().cause.message == "no step for 600 s; slowest: rank 0 at step 120"
    assert office.lost() == {}


def test_who_has_finished_is_not_waited_for() -> None:
    office = running(2)
    office.hear("active-0", m.Finished(office.token))
    hangs(office, "active-1", 120)
    assert office.recovery().fault is Fault.HANG


def test_a_worker_that_fails_meanwhile_is_a_consequence() -> None:
    """It has waited in its collective for as long as that may take."""
    office = running(3)
    hangs(office, "active-1", 120)
    office.worker_fails("active-0", "collective timed out")
    (recovery,) = office.coordinator.snapshot().recoveries
    assert (recovery.fault, recovery.cause.rank) == (Fault.HANG, 1)


def test_a_step_takes_it_back() -> None:
    office = running(2)
    hangs(office, "active-0", 120)
    office.stepped("active-0", 121)
    office.later(2 * GATHER_S, "active-0", "active-1", "spare-0")
    assert office.coordinator.state is State.RUNNING
    assert office.coordinator.snapshot().recoveries == ()
    office.worker_fails("active-1")
    assert office.recovery().fault is Fault.PROCESS


def test_it_costs_a_restart_of_the_budget_and_with_none_left_the_hung_pod_is_given_up() -> None:
    office = running(2, max_in_place=1)
    for _ in range(2):
        office.started("active-0", "active-1")
        office.sent.clear()
        hangs(office, "active-0", 120)
        hangs(office, "active-1", 119)
    # whoever else is there has answered
    office.answers("active-0")
    assert office.assigned() == {"active-0": 0, "spare-0": 1}
    assert office.recovery().reason == "the budget of 1 restarts within 1 h is spent"
    hangs(office, "active-0", 120, at=4.0)
    hangs(office, "spare-0", 120)
    office.answers(*list(office.sent))  # a majority confirms that the coordinator is followed
    assert office.coordinator.closed is not None
    assert office.coordinator.closed.reason is CloseReason.FAILED
    assert "rank 0 on active-0: no step for 600 s" in office.coordinator.closed.message


@pytest.mark.parametrize(
    ("steps", "gathers_s"),
    [
        pytest.param({"active-0": 17, "active-1": 17, "active-2": 18}, 0.0, id="two are at the lowest step"),
        pytest.param({"active-0": 17, "active-1": 18}, GATHER_S, id="one has told nothing"),
    ],
)
def test_a_pod_is_not_given_up_where_another_may_be_the_one_that_hangs(steps: dict[str, int], gathers_s: float) -> None:
    """Found by the simulation (seed 910): all were at one step, and the pod of the first rank was given up for it."""
    # given a job in which no pod may cost a restart in place
    office = running(3, in_place_max_per_pod=0)
    # when its workers hang
    for name, step in steps.items():
        hangs(office, name, step)
    office.later(gathers_s, *EVERYBODY)
    # then all restart in place, and the budget is charged, but no pod's own share
    assert office.assigned() == {"active-0": 0, "active-1": 1, "active-2": 2}
    assert office.lost() == {}
    failed = "pod active-0 failed once within 1 h, but it is not known which pod hangs"
    assert office.recovery().reason == f"restart 1 of 2 within 1 h; {failed}"
    (offence,) = office.coordinator.desk.offences.within(office.now)
    assert (offence.charged, offence.pod_uid) == (True, "")


def test_it_is_given_up_where_all_others_are_a_step_ahead_or_have_finished() -> None:
    office = running(3, in_place_max_per_pod=0)
    office.hear("active-0", m.Finished(office.token))
    hangs(office, "active-1", 17)
    hangs(office, "active-2", 16)
    office.answers("active-0", "active-1")
    assert office.lost() == {"active-2": "Process"}


def test_what_is_told_of_a_round_that_is_over_is_dropped() -> None:
    office = running(2)
    office.worker_fails("active-0")
    assert office.assigned() == {"active-0": 0, "active-1": 1}
    for name in ("active-0", "active-1"):
        hangs(office, name, 120, round_=1)
    assert office.coordinator.state is State.RUNNING
    assert [x.fault for x in office.coordinator.snapshot().recoveries] == [Fault.PROCESS]


def test_nor_does_it_count_once_the_round_is_broken() -> None:
    office = running(2, spares=0)
    hangs(office, "active-0", 120)
    office.drop("active-1")
    office.later(2 * GATHER_S, "active-0")
    assert [x.fault for x in office.coordinator.snapshot().recoveries] == [Fault.POD]


def test_a_member_that_leaves_is_the_cause_of_what_hangs() -> None:
    office = running(3)
    office.hear("active-0", m.Leaving("deleted", 30.0))
    hangs(office, "active-1", 120)
    hangs(office, "active-2", 120)
    office.later(GATHER_S + 1, *EVERYBODY)
    assert office.coordinator.snapshot().recoveries == ()


def test_so_is_one_that_is_silent() -> None:
    office = running(3)
    office.drop("active-0", silent=True)
    office.stepped("active-1")  # the training is not known to stand still
    hangs(office, "active-1", 120)
    hangs(office, "active-2", 120)
    office.later(GATHER_S, *EVERYBODY)
    assert office.lost() == {"active-0": "Node"}
    assert office.recovery().cause.pod == "active-0"


def test_one_that_proves_to_have_been_lost_before_revises_it() -> None:
    office = running(3)
    office.later(1.0)
    for name in ("active-1", "active-2"):
        hangs(office, name, 120)
    office.later(GATHER_S)
    assert office.recovery().fault is Fault.HANG
    office.drop("active-0")  # it never said a word since, nor acknowledged the new round
    (recovery,) = office.coordinator.snapshot().recoveries
    assert (recovery.fault, recovery.cause.pod) == (Fault.POD, "active-0")


def test_the_question_that_a_stall_brings_loses_nobody_who_answers() -> None:
    """Long before the step timeout the training has stood still for three of its steps."""
    office = running(3)
    office.later(600.0, *EVERYBODY)
    assert (office.lost(), office.coordinator.state) == ({}, State.RUNNING)
    for name in EVERYBODY[:3]:
        hangs(office, name, 120)
    assert office.recovery().fault is Fault.HANG
    office.started(*EVERYBODY[:3])
    office.stepped("active-0", pause_s=600.2)
    assert office.recovery().resumed_at is not None


# Before the first step

START_TIMEOUT_S = 600.0


def starting(*started: str, start_timeout_s: float = START_TIMEOUT_S, **given: object) -> Driven:
    """Three actives whose first round has been formed; the workers of these have started."""
    office = Driven(3, start_timeout_s=start_timeout_s, **given)  # type: ignore[arg-type]
    for name in EVERYBODY:
        office.join(name)
    for name in EVERYBODY[:3]:
        office.hear(name, m.Ack(office.token))
    for name in started:
        office.hear(name, m.Started(office.token))
    office.sent.clear()
    return office


def asked(office: Driven) -> list[str]:
    """The pods whose launchers are to write stacks."""
    return [name for name in office.sent if office.take(name, m.WriteStacks) == [m.WriteStacks(office.token)]]


def wrote_stacks(office: Driven, name: str, started_s: float = 600.0, local_rank: int = 0) -> None:
    """started_s: seconds since the start of its workers."""
    office.hear(name, m.Hung(office.token, local_rank, -1, 0.0, started_s))


def test_a_round_without_a_step_hangs_after_the_start_timeout() -> None:
    # given a round whose workers have all started
    office = starting(*EVERYBODY[:3], nproc=2)
    office.later(START_TIMEOUT_S - 0.1, *EVERYBODY)
    assert asked(office) == []
    # when no worker has made a step in time
    office.later(0.2, *EVERYBODY)
    # then all launchers are asked for the stacks of their workers
    assert sorted(asked(office)) == ["active-0", "active-1", "active-2"]
    wrote_stacks(office, "active-0", 599.9)
    wrote_stacks(office, "active-1", 599.2, local_rank=1)
    assert office.assigned() == {}
    wrote_stacks(office, "active-2", 599.8)
    # and the rank that started last is the first suspect of a hang, from which all recover in place
    assert office.assigned() == {"active-0": 0, "active-1": 1, "active-2": 2}
    recovery = office.recovery()
    assert (recovery.fault, recovery.strategy) == (Fault.HANG, Strategy.IN_PLACE)
    assert (recovery.cause.rank, recovery.cause.pod) == (3, "active-1")
    assert recovery.cause.message == (
        "no step for 600 s since the start; first suspect: rank 3 (its workers started last); "
        "unset faults.hang.startTimeout if the script never calls step()"
    )


def test_a_pod_whose_workers_alone_have_not_started_is_replaced_and_nothing_is_charged() -> None:
    """Found by the simulation (seed 304095): its launcher started no workers, and the job failed for a spent budget."""
    office = starting("active-0", "active-1")
    office.later(START_TIMEOUT_S, *EVERYBODY)
    wrote_stacks(office, "active-0")
    wrote_stacks(office, "active-1")
    office.later(STACKS_S - 0.1, *EVERYBODY)
    assert office.coordinator.snapshot().recoveries == ()
    office.later(0.2, *EVERYBODY)
    recovery = office.recovery()
    assert (recovery.fault, recovery.cause.rank, recovery.cause.pod) == (Fault.POD, 2, "active-2")
    assert recovery.cause.message == "its workers have not started within 608 s"
    assert office.lost() == {"active-2": "Pod"}
    assert office.coordinator.desk.offences.within(office.now) == []


def test_of_two_pods_whose_workers_have_not_started_one_is_the_first_suspect() -> None:
    office = starting("active-0")
    office.later(START_TIMEOUT_S, *EVERYBODY)
    wrote_stacks(office, "active-0")
    office.later(STACKS_S + 0.1, *EVERYBODY)
    assert office.recovery().fault is Fault.HANG
    assert "first suspect: rank 1 (its workers have not started)" in office.recovery().cause.message


def test_so_is_one_whose_launcher_does_not_answer() -> None:
    office = starting(*EVERYBODY[:3])
    office.later(START_TIMEOUT_S, *EVERYBODY)
    wrote_stacks(office, "active-0")
    wrote_stacks(office, "active-2")
    office.later(STACKS_S + 0.1, *EVERYBODY)
    assert "first suspect: rank 1 (its launcher did not answer)" in office.recovery().cause.message


@pytest.mark.parametrize(
    ("started", "answering", "lost"),
    [
        pytest.param(("active-0", "active-2"), ("active-0", "active-2"), {"active-1": "Pod"}, id="it has not started"),
        pytest.param(("active-0",), ("active-0",), {}, id="nor has another one"),
        pytest.param(("active-0", "active-1"), ("active-0",), {}, id="another one does not answer"),
        pytest.param(EVERYBODY[:3], ("active-0", "active-2"), {}, id="it does not answer"),
        pytest.param(EVERYBODY[:3], EVERYBODY[:3], {}, id="all answer"),
    ],
)
def test_a_pod_is_given_up_only_if_its_workers_alone_have_not_started(
    started: tuple[str, ...], answering: tuple[str, ...], lost: dict[str, str]
) -> None:
    office = starting(*started, in_place_max_per_pod=0)
    office.later(START_TIMEOUT_S, *EVERYBODY)
    for name in answering:
        wrote_stacks(office, name)
    while not office.coordinator.snapshot().recoveries:
        office.later(0.5, *EVERYBODY)
    office.answers(*EVERYBODY)
    assert office.lost() == lost


def test_a_step_of_one_rank_is_enough() -> None:
    """A script may report the steps of one rank alone."""
    office = starting(*EVERYBODY[:3])
    office.stepped("active-1")
    office.later(2 * START_TIMEOUT_S, *EVERYBODY)
    assert (asked(office), office.coordinator.snapshot().recoveries) == ([], ())


def test_a_step_while_stacks_are_written_takes_it_back() -> None:
    office = starting(*EVERYBODY[:3])
    office.later(START_TIMEOUT_S, *EVERYBODY)
    wrote_stacks(office, "active-0")
    office.stepped("active-1")
    wrote_stacks(office, "active-2")
    office.later(2 * START_TIMEOUT_S, *EVERYBODY)
    assert office.coordinator.snapshot().recoveries == ()


def test_a_worker_that_fails_while_stacks_are_written_is_a_consequence() -> None:
    office = starting(*EVERYBODY[:3])
    office.later(START_TIMEOUT_S, *EVERYBODY)
    wrote_stacks(office, "active-0")
    office.worker_fails("active-0", "the rendezvous timed out")
    (recovery,) = office.coordinator.snapshot().recoveries
    assert (recovery.fault, recovery.cause.pod) == (Fault.HANG, "active-1")


def test_a_script_that_never_calls_step_runs_on_without_a_start_timeout() -> None:
    office = starting(*EVERYBODY[:3], start_timeout_s=0.0)
    office.later(10_000.0, *EVERYBODY)
    assert (asked(office), office.coordinator.state) == ([], State.RUNNING)


def test_the_next_round_has_the_same_time_again() -> None:
    office = starting(*EVERYBODY[:3])
    office.stepped("active-0")
    office.worker_fails("active-0")
    office.started(*EVERYBODY[:3])
    office.sent.clear()
    office.later(START_TIMEOUT_S - 0.1, *EVERYBODY)
    assert asked(office) == []
    office.later(0.2, *EVERYBODY)
    assert sorted(asked(office)) == ["active-0", "active-1", "active-2"]
    for name in EVERYBODY[:3]:
        wrote_stacks(office, name)
    assert office.recovery().cause.message == (
        "no step for 600 s since the start; first suspect: rank 0 (its workers started last)"
    )


@pytest.mark.parametrize("stepped", [False, True])
def test_a_new_coordinator_gives_a_round_that_has_not_stepped_the_same_time_from_then_on(stepped: bool) -> None:
    token = RoundToken(1, 1, 3)
    office = Driven(2, epoch=2, at_least_round=3, start_timeout_s=START_TIMEOUT_S)
    for rank in (0, 1):
        office.join(f"active-{rank}", token, rank, WorkersState.RUNNING, stepped=token if stepped else NO_ROUND)
    office.sent.clear()
    office.later(START_TIMEOUT_S + 1.0, "active-0", "active-1")
    assert sorted(asked(office)) == ([] if stepped else ["active-0", "active-1"])


def test_a_coordinator_without_a_majority_decides_nothing() -> None:
    office = starting(*EVERYBODY[:3])
    office.later(START_TIMEOUT_S - 5.0, *EVERYBODY)
    for name in ("active-1", "active-2", "spare-0"):
        office.drop(name, silent=True)
    office.later(6.0, "active-0")
    assert (asked(office), office.coordinator.snapshot().recoveries) == ([], ())
