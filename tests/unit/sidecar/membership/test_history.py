"""What one coordinator leaves to the next: offences, who was given up, recoveries that last, and rounds that failed."""

from __future__ import annotations

import pytest

from tests.unit.sidecar.membership.driven import START, Driven, running
from understudy_protocol import compiled
from understudy_protocol import membership as m
from understudy_protocol.observer import Cause, Recovery
from understudy_protocol.recovery import History, Offence
from understudy_protocol.words import ElectorateVersion, Fault, Office, RoundToken, Strategy, WorkersState
from understudy_sidecar.membership.desk import State

MESSAGE_LIMIT = 500
SUCCESSION_S = 0.5
FAULTY_TOLD = 200
INHERITED = 100
SETTLE_S = 12.0
MEMBER_BYTES = 64 * 1024

V1 = ElectorateVersion(1, 1, 1)
ROUND = RoundToken(1, 1, 3)
RUNNING, FAILED = WorkersState.RUNNING, WorkersState.FAILED
FORMER = Office(1, 1)
GONE = Cause(1, "active-1", "node-of-active-1", None, None, "its connection ended")
BAD = Cause(1, "active-1", "node-of-active-1", 1, None, "exit code 1")
EVERYBODY = ("active-0", "active-1", "spare-0")


def lasting(fault: Fault, cause: Cause, *, of_round: int = 4, strategy: Strategy | None = None) -> Recovery:
    return Recovery(of_round, fault, strategy, cause, START - 5.0, None, "as was told")


def history(number: int = 1, **given: object) -> History:
    facts: dict[str, object] = {"offences": (), "given_up": {}, "open": (), "failed_starts": 0}
    return History(FORMER, number, **{**facts, **given})  # type: ignore[arg-type]


def elected(known: History, **given: object) -> Driven:
    estate = m.Estate(V1, tuple(f"uid-{x}" for x in EVERYBODY), (), "uid-office", (), {"InPlace": 2}, known)
    return Driven(2, elected=estate, **given)  # type: ignore[arg-type]


def claims(office: Driven, first: WorkersState = RUNNING, second: WorkersState | None = RUNNING) -> None:
    """All that are there join. second: None: active-1 does not come."""
    office.join("spare-0")
    office.join("active-0", ROUND, 0, first)
    if second is not None:
        office.join("active-1", ROUND, 1, second)


# What is told


def test_heirs_are_told_all_that_counts() -> None:
    office = running(in_place_max_per_pod=1)
    office.later(SUCCESSION_S + 0.1, *EVERYBODY)
    office.worker_fails("active-1")
    office.later(SUCCESSION_S + 0.1, *EVERYBODY)
    office.started("active-0", "active-1")
    office.worker_fails("active-1")  # right at the start
    office.answers("active-0")
    office.later(SUCCESSION_S + 0.1, *EVERYBODY)
    first, *_, last = (estate.history for estate in office.take("spare-0", m.Estate))
    assert (first.office, first.number < last.number) == (office.coordinator.office, True)
    assert [(x.pod_uid, x.rank, x.given_up) for x in last.offences] == [
        ("uid-active-1", 1, False),
        ("uid-active-1", 1, True),
    ]
    assert last.given_up == {"uid-active-1": "pod active-1 failed twice within 1 h"}
    assert [x.reason for x in last.open] == ["restart 1 of 2 within 1 h", "pod active-1 failed twice within 1 h"]
    assert last.failed_starts == 1


def test_what_it_has_told_itself_does_not_come_back_after_it_was_taken_back() -> None:
    """Found by the simulation (seed 4907): a heir was frozen, and brought a charge that was the pod's loss since."""
    # given a failure that was told to the heirs, and that turned out to be the loss of its pod
    office = running()
    office.worker_fails("active-1")
    office.later(SUCCESSION_S + 0.1, *EVERYBODY)
    told = office.take("spare-0", m.Estate)[-1].history
    assert told is not None
    (offence,) = told.offences
    office.coordinator.desk.offences.take_back(offence.at)
    # when a heir comes back with what it was told
    office.join("spare-1", history=told)
    # then that stays taken back
    assert office.coordinator.desk.offences.within(office.now) == []


def test_a_join_that_brings_all_of_it_is_not_too_long_for_a_coordinator() -> None:
    office = running()
    office.later(SUCCESSION_S + 0.1, *EVERYBODY)
    desk = office.coordinator.desk
    long_name, long_message = "n" * 63, "ü" * MESSAGE_LIMIT
    cause = Cause(99999, long_name, long_name, None, "SIGKILL", long_message)
    for number in range(300):
        uid = f"{number:036}"
        desk.offences.add(Offence(office.now + number / 1000, uid, 99999))
        desk.offences.give_up(uid, f"node {long_name} is Faulty: {'ü' * FAULTY_TOLD}")
        desk.book.begin(Fault.PROCESS, cause, number, office.now + number / 1000, long_message)
    desk.inherit_later(office.now)
    office.later(SUCCESSION_S + 0.1, *EVERYBODY)
    history = office.take("spare-0", m.Estate)[-1].history
    assert len(history.offences) == INHERITED
    join = m.Join("u" * 36, long_name, long_name, "10.0.0.1", 1, ROUND, 1, RUNNING, 4000, history=history)
    assert len(compiled.encode(join)) < MEMBER_BYTES


def test_of_two_recoveries_that_wait_for_their_round_each_pod_that_is_gone_is_told_as_lost() -> None:
    """Found by the simulation (seed 83528): the older one was told to be a replacement without a reason."""
    # given that a worker of active-0 failed, and then active-1 and the coordinator on active-0 were lost
    worker = Cause(0, "active-0", "node-of-active-0", 1, None, "exit code 1")
    open_ = (lasting(Fault.PROCESS, worker), lasting(Fault.POD, GONE))
    office = elected(history(open=open_))
    # when neither of them comes to the next coordinator
    office.join("spare-0")
    office.later(SETTLE_S + 1, "spare-0")
    # then the first recovery says that its pod is lost, too
    first, second = office.coordinator.snapshot().recoveries
    assert (first.cause.pod, first.reason) == ("active-0", "as was told; its pod is lost")
    assert second.cause.pod == "active-1"


def test_a_failure_that_was_not_charged_is_not_charged_by_the_next_coordinator_if_a_pod_is_missing() -> None:
    """Found by the simulation (seed 105289): the worker had failed because the other pod was gone."""
    # given a coordinator that had no majority when a worker of active-0 failed, and told so
    worker = Cause(0, "active-0", "node-of-active-0", 1, None, "a peer has gone")
    uncounted = Recovery(4, Fault.PROCESS, None, worker, START - 5.0, None, "")
    seats = (m.Seat(0, "uid-active-0", "active-0", "node-0"), m.Seat(1, "uid-active-1", "active-1", "node-1"))
    voters = tuple(f"uid-{x}" for x in EVERYBODY)
    estate = m.Estate(V1, voters, (), "uid-office", (), {}, history(open=(uncounted,)), ROUND, seats)
    office = Driven(2, elected=estate)
    # when active-1 does not come to the next one
    office.join("spare-0")
    office.join("active-0", ROUND, 0, FAILED)
    office.later(SETTLE_S + 1, "spare-0", "active-0")
    # then nothing is charged, and the lost pod is the cause
    assert office.coordinator.desk.offences.within(office.now) == []
    assert [x.cause.pod for x in office.coordinator.snapshot().recoveries] == ["active-1"]


# Who has been at fault


def test_a_pod_that_has_failed_under_the_former_coordinator_has_failed_once() -> None:
    office = elected(history(offences=(Offence(START - 10, "uid-active-1", 1),)), in_place_max_per_pod=1)
    claims(office)
    office.worker_fails("active-1")
    office.answers("active-0")
    assert office.assigned() == {"active-0": 0, "spare-0": 1}


def test_an_appointed_one_hears_of_it_from_a_former_heir() -> None:
    known = history(offences=(Offence(START - 10, "uid-active-1", 1),))
    office = Driven(2, epoch=2, at_least_round=3, in_place_max_per_pod=1)
    office.join("spare-0", history=known)
    office.join("active-0", ROUND, 0, RUNNING)
    office.join("active-1", ROUND, 1, RUNNING)
    office.worker_fails("active-1")
    office.answers("active-0")
    assert office.assigned() == {"active-0": 0, "spare-0": 1}


def test_the_newest_that_comes_counts_and_nothing_is_counted_twice() -> None:
    offences = (Offence(START - 10, "uid-active-1", 1), Offence(START - 9, "uid-active-0", 0))
    office = elected(history(2, offences=offences, failed_starts=2))
    office.join("spare-0", history=history(1, offences=offences[:1], failed_starts=1))
    office.join("active-0", ROUND, 0, RUNNING, history=history(3, offences=offences, failed_starts=3))
    assert office.coordinator.desk.offences.within(office.now) == list(offences)
    assert office.coordinator.desk.backoff.failures == 3


def test_a_pod_that_the_former_one_has_given_up_is_no_member_of_the_next() -> None:
    office = elected(history(given_up={"uid-active-1": "it failed twice"}))
    claims(office, FAILED, FAILED)
    assert office.take("active-1", m.GivenUp)[0].reason == "it failed twice"
    assert office.assigned() == {"active-0": 0, "spare-0": 1}, "nobody waits for it"


def test_also_where_that_is_heard_of_after_it_has_come() -> None:
    office = Driven(2, epoch=2, at_least_round=3)
    office.join("active-1", ROUND, 1, FAILED)
    office.join("spare-0", history=history(given_up={"uid-active-1": "it failed twice"}))
    assert office.take("active-1", m.GivenUp)
    office.join("active-0", ROUND, 0, FAILED)
    office.later(SETTLE_S + 1, "active-0", "spare-0")
    assert office.assigned() == {"active-0": 0, "spare-0": 1}


# What lasts


def test_a_recovery_that_the_former_one_had_begun_is_one_entry_with_its_cause() -> None:
    """Given a pod was lost, and the coordinator resigned before there was anybody to take its ranks."""
    office = elected(history(open=(lasting(Fault.POD, GONE),)))
    office.join("active-0", ROUND, 0, RUNNING, stepped=ROUND)
    office.later(SETTLE_S + 1, "active-0")
    office.join("spare-0")
    assert office.assigned() == {"active-0": 0, "spare-0": 1}
    office.started("active-0", "spare-0")
    office.stepped("active-0", pause_s=20.0)
    (recovery,) = office.coordinator.snapshot().recoveries
    assert (recovery.cause, recovery.detected_at, recovery.round) == (GONE, START - 5.0, 4)
    assert recovery.strategy is Strategy.POD_RECREATE
    assert recovery.resumed_at is not None


def test_a_failure_that_the_former_one_had_told_is_neither_told_nor_charged_again() -> None:
    told = lasting(Fault.PROCESS, BAD)
    office = elected(history(open=(told,), offences=(Offence(told.detected_at, "uid-active-1", 1),)))
    claims(office, FAILED, FAILED)
    assert office.assigned() == {"active-0": 0, "active-1": 1}
    assert len(office.coordinator.snapshot().recoveries) == 1
    assert len(office.coordinator.desk.offences.within(office.now)) == 1


def test_one_that_it_had_told_and_not_charged_is_charged_to_no_pod() -> None:
    office = elected(history(open=(lasting(Fault.PROCESS, BAD),)), in_place_max_per_pod=0)
    claims(office, FAILED, FAILED)
    assert office.assigned() == {"active-0": 0, "active-1": 1}
    assert [x.pod_uid for x in office.coordinator.desk.offences.within(office.now)] == [""]


def test_a_recovery_whose_round_trains_ends_with_its_next_step() -> None:
    office = elected(history(open=(lasting(Fault.POD, GONE, of_round=3, strategy=Strategy.SPARE_SWAP),)))
    claims(office)
    assert office.coordinator.state is State.RUNNING
    office.stepped("active-0")
    (recovery,) = office.coordinator.snapshot().recoveries
    assert (recovery.strategy, recovery.resumed_at) == (Strategy.SPARE_SWAP, office.now)


def test_one_that_was_mended_before_anybody_was_told_is_not_told_anew() -> None:
    office = elected(history(open=(lasting(Fault.POD, GONE, of_round=3),)))
    claims(office)
    assert office.coordinator.snapshot().recoveries == ()


def test_what_breaks_beside_it_is_an_entry_of_its_own() -> None:
    office = elected(history(open=(lasting(Fault.POD, GONE, of_round=3, strategy=Strategy.SPARE_SWAP),)))
    claims(office, RUNNING, FAILED)
    assert [x.fault for x in office.coordinator.snapshot().recoveries] == [Fault.POD, Fault.PROCESS]


# Rounds that fail right at their start


@pytest.mark.parametrize(("failed", "pause_s"), [(0, 0.02), (2, 4.02)])
def test_the_next_one_goes_on_with_the_pauses(failed: int, pause_s: float) -> None:
    """And the 20 ms in which the failures of a round are gathered."""
    office = elected(history(failed_starts=failed), max_in_place=10)
    claims(office)
    before = office.now
    office.worker_fails("active-1")
    while not office.assigned():
        office.later(0.5, *EVERYBODY)
    assert office.now - before == pytest.approx(pause_s)


def test_unless_the_round_steps() -> None:
    office = elected(history(failed_starts=2), max_in_place=10)
    claims(office)
    office.stepped("active-0")
    office.worker_fails("active-1")
    assert office.assigned()
