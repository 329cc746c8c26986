"""A worker's fault is reported to a coordinator that may be cut off: the ladder waits until a majority has answered."""

from __future__ import annotations

from tests.unit.sidecar.membership.driven import DrivenCoordinator, running
from understudy_protocol import membership as m
from understudy_protocol.enums import CloseReason, Fault, Strategy, WorkersState
from understudy_protocol.observer import Appoint
from understudy_protocol.recovery import CountedFault
from understudy_sidecar.membership.events import Tick
from understudy_sidecar.membership.round_state import RoundPhase

LATE_S = 1.0
CONFIG_CHANGE_S = 0.5

ACTIVES = ("active-0", "active-1", "active-2")
ALL_MEMBERS = (*ACTIVES, "spare-0", "spare-1")
DISCONNECTED = m.Disconnecting("the coordinator was not heard for 15 s")


def committed(**given: object) -> DrivenCoordinator:
    """Three active members and two spares; any three of them are a majority."""
    driven = running(3, spares=2, **given)
    driven.later(CONFIG_CHANGE_S + 0.1)
    acknowledge(driven)
    assert len(driven.coordinator.snapshot().voters) == len(ALL_MEMBERS)
    driven.sent.clear()
    return driven


def acknowledge(driven: DrivenCoordinator) -> None:
    for name in list(driven.sent):
        for change in driven.take(name, m.ConfigChange):
            driven.receive(name, m.ConfigChangeAck(change.config_version))


def frozen(**given: object) -> DrivenCoordinator:
    """It has hung for so long that its members look for another coordinator."""
    driven = committed(**given)
    due = driven.coordinator.deadline()
    assert due is not None
    driven.now = due + LATE_S + 20.0
    return driven


def cut_off(driven: DrivenCoordinator, *names: str) -> None:
    for name in names:
        driven.drop(name, silent=True)


def charged(driven: DrivenCoordinator) -> int:
    return sum(fault.is_charged for fault in driven.coordinator.state.fault_history.in_window(driven.now))


def charges_of_standbys(driven: DrivenCoordinator) -> list[tuple[CountedFault, ...]]:
    """The charges in each leader snapshot."""
    snapshots = [snapshot for name in list(driven.sent) for snapshot in driven.take(name, m.LeaderSnapshot)]
    return [tuple(fault for fault in x.history.counted_faults if fault.is_charged) for x in snapshots]


def test_a_coordinator_that_was_replaced_during_its_freeze_charges_nothing() -> None:
    """Found by the simulation (seed 6254): a standby coordinator brought the charge to the new coordinator."""
    # given members that follow another coordinator by now, except one that was frozen for as long
    driven = frozen()
    for name in ("active-0", "active-2", "spare-0", "spare-1"):
        driven.receive(name, DISCONNECTED)
    # when the worker of that member fails, because its peers have gone
    driven.fail_worker("active-1", "a peer has gone")
    driven.later(1.0, "active-1")
    # then the round is over, and nothing is charged, here or by the standby coordinators
    assert driven.coordinator.phase is RoundPhase.WAITING
    assert charged(driven) == 0
    assert set(charges_of_standbys(driven)) <= {()}
    # and in the end no other member is left
    driven.later(20.0, "active-1")
    assert driven.step_down_reason
    assert charged(driven) == 0


def test_a_minority_does_not_end_the_job_for_a_spent_budget() -> None:
    driven = committed(max_in_place=0)
    driven.fail_worker("active-2")
    driven.answer_heartbeats("active-0", "active-1")
    assert driven.lost_pods() == {"active-2": "Process"}
    driven.later(CONFIG_CHANGE_S + 0.1)
    acknowledge(driven)
    # given a coordinator that is cut off from most of its voters, and whose budget is spent
    cut_off(driven, "active-0", "spare-0", "spare-1")
    # when a worker on its side fails, then the job does not end
    driven.fail_worker("active-1", "a peer has gone")
    driven.later(10.0, "active-1")
    assert driven.coordinator.closed is None
    # but it ends once the others are back, if the worker failed by itself
    for name in ("active-0", "spare-0", "spare-1"):
        driven.join(name, driven.token, 0 if name == "active-0" else None)
    driven.answer_heartbeats(*list(driven.sent))  # none was lost before
    driven.answer_heartbeats(*list(driven.sent))  # a majority confirms that the coordinator is followed
    assert driven.coordinator.closed is not None
    assert driven.coordinator.closed.reason is CloseReason.FAILED


def test_members_that_hung_up_during_the_freeze_may_return_and_keep_their_ranks() -> None:
    """Found by the simulation (seed 43039): the coordinator gave the ranks of such a member away without a majority."""
    # given a coordinator that was frozen, and two members that hung up during the freeze
    driven = frozen()
    driven.do(Tick())
    for name in ("active-0", "spare-0"):
        driven.drop(name)
    # when one of them connects again, then it is still an active member of the running round
    driven.join("active-0", driven.token, 0, WorkersState.RUNNING)
    assert driven.coordinator.state.roster.members["uid-active-0"].group_rank == 0
    assert driven.lost_pods() == {}
    # and the other one is lost if it does not return within 2 s after a majority has answered
    driven.answer_heartbeats("active-0", "active-1", "active-2", "spare-1")
    driven.later(1.9, "active-0", "active-1", "active-2", "spare-1")
    assert driven.lost_pods() == {}
    driven.later(0.2, "active-0", "active-1", "active-2", "spare-1")
    assert driven.lost_pods() == {"spare-0": "Pod"}


def test_a_fault_is_charged_when_a_majority_has_answered() -> None:
    driven = frozen()
    driven.fail_worker("active-1")
    assert (charged(driven), driven.assigned()) == (0, {})
    driven.now += 0.5
    driven.answer_heartbeats("active-0", "active-2")
    assert charged(driven) == 0
    driven.answer_heartbeats("spare-0")
    assert charged(driven) == 1
    assert driven.assigned() == {"active-0": 0, "active-1": 1, "active-2": 2}
    recovery = driven.recovery()
    assert (recovery.fault, recovery.strategy, recovery.cause.pod) == (Fault.PROCESS, Strategy.IN_PLACE, "active-1")
    assert recovery.reason == "restart 1 of 2 within 1 h"


def test_a_member_that_was_silent_before_is_the_cause() -> None:
    driven = frozen()
    cut_off(driven, "active-0")
    driven.fail_worker("active-1", "a peer has gone")
    driven.answer_heartbeats("active-1", "active-2", "spare-0")
    assert driven.lost_pods() == {"active-0": "Node"}
    # then the next round waits for the answers of a majority: the coordinator itself may be cut off
    assert driven.assigned() == {}
    driven.answer_heartbeats("active-1", "active-2", "spare-0")
    assert driven.assigned() == {"spare-0": 0, "active-1": 1, "active-2": 2}
    (entry,) = driven.coordinator.snapshot().recoveries
    assert (entry.fault, entry.cause.pod) == (Fault.NODE, "active-0")
    assert charged(driven) == 0


def test_a_silent_member_is_replaced_once_a_majority_has_answered() -> None:
    """Found by the simulation (seed 654437): a coordinator that was cut off alone, and noticed the silence of one
    member first, took the ranks itself, while the others went on.
    """
    # given a coordinator with a majority, as far as it knows
    driven = committed()
    # when a member is silent
    cut_off(driven, "active-0")
    driven.fail_worker("active-1", "a peer has gone")
    # then no round is formed before a majority has answered
    assert driven.lost_pods() == {"active-0": "Node"}
    driven.answer_heartbeats("active-1")
    assert driven.assigned() == {}
    driven.answer_heartbeats("active-2", "spare-0")
    assert driven.assigned() == {"spare-0": 0, "active-1": 1, "active-2": 2}


def test_a_member_that_reports_only_then_that_it_leaves_is_the_cause() -> None:
    driven = frozen()
    driven.fail_worker("active-1", "a peer has gone")
    driven.receive("active-0", m.Leaving("the trainer container got SIGTERM", 30.0))
    driven.answer_heartbeats(*ALL_MEMBERS)
    (entry,) = driven.coordinator.snapshot().recoveries
    assert (entry.fault, entry.cause.pod) == (Fault.POD, "active-0")
    assert charged(driven) == 0


def test_the_eviction_of_its_pod_is_decided_only_then() -> None:
    driven = frozen(in_place_max_per_pod=0)
    driven.fail_worker("active-1")
    driven.answer_heartbeats("active-0", "active-1", "active-2")
    driven.answer_heartbeats("active-0", "active-2")
    assert driven.lost_pods() == {"active-1": "Process"}
    assert driven.recovery().strategy is Strategy.SPARE_SWAP


def test_an_earlier_failure_of_another_worker_is_known_then() -> None:
    driven = frozen(in_place_max_per_pod=0)
    driven.fail_worker("active-1", "a peer has gone", at=driven.now)
    driven.fail_worker("active-0", "exit code 1", at=driven.now - 0.2)
    driven.answer_heartbeats(*ALL_MEMBERS)
    assert driven.lost_pods() == {}
    assert driven.recovery().reason.endswith("but it is not known which pod failed first")
    assert charged(driven) == 1


def test_no_pod_is_evicted_if_a_member_returns_whose_workers_have_ended_meanwhile() -> None:
    """Found by the simulation (seed 1332480): their sidecars had stopped them, because the coordinator had hung."""
    # given a coordinator that hung, whose members look for another one
    driven = frozen(in_place_max_per_pod=0)
    for name in ("active-0", "active-2", "spare-0"):
        driven.receive(name, DISCONNECTED)
    # when a worker loses its peers, and their members return
    driven.fail_worker("active-1", "a peer has gone")
    driven.join("active-0", driven.token, 0, WorkersState.IDLE)
    assert driven.recovery().reason == ""
    driven.join("active-2", driven.token, 2, WorkersState.IDLE)
    driven.answer_heartbeats("active-0", "active-1", "active-2")
    # then its pod is not to blame, and keeps its ranks
    assert driven.recovery().reason.endswith("but it is not known which pod failed first")
    assert driven.assigned() == {"active-0": 0, "active-1": 1, "active-2": 2}


def test_a_pod_that_has_gone_by_then_is_not_charged() -> None:
    driven = frozen()
    driven.fail_worker("active-1")
    driven.now += 0.1
    driven.answer_heartbeats("active-1")
    driven.receive("active-1", m.Gone("its launcher has ended"))
    driven.answer_heartbeats("active-0", "active-2", "spare-0")
    assert charged(driven) == 0
    assert driven.assigned() == {"active-0": 0, "spare-0": 1, "active-2": 2}
    assert {(x.cause.pod, x.reason) for x in driven.coordinator.snapshot().recoveries} == {
        ("active-1", "its pod is lost")
    }


def test_an_appointment_makes_the_fault_count() -> None:
    """There is no voter configuration whose majority could follow another coordinator."""
    driven = frozen()
    driven.fail_worker("active-1")
    driven.coordinator.appoint(Appoint(2, 0, {}), driven.now)
    assert charged(driven) == 1
    assert driven.coordinator.phase is RoundPhase.RUNNING


def test_a_pause_of_the_coordinator_does_not_shorten_the_time_to_answer_in_a_large_job() -> None:
    # given a coordinator of 1,000 pods, which have 4 s to answer before one of them is evicted
    driven = running(actives=1000, spares=0, max_in_place=0)
    names = [f"active-{number}" for number in range(1000)]
    driven.later(0.1, *names)
    driven.report_started(*names)
    driven.report_step("active-0", median_step_s=60.0)
    driven.fail_worker("active-7")
    driven.later(0.1)
    assert driven.coordinator.snapshot().waiting_for == "answers of 999 members before pod active-7 is replaced"
    # when it is not scheduled for 2 s, and all pods answer except one
    driven.now += 2.0
    driven.later(3.9, *names[1:])
    # then the pod has 4 s again
    assert driven.lost_pods() == {}
    driven.later(0.2, *names[1:])
    assert driven.lost_pods() == {"active-0": "Node"}
