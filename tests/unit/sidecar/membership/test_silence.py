"""When a silent member is suspected, and when it is lost."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.sidecar.membership.driven import DrivenCoordinator, running
from understudy_protocol import membership as m
from understudy_protocol.enums import Fault, RoundToken, Strategy, WorkersState
from understudy_sidecar.membership.events import Tick, Unreachable
from understudy_sidecar.membership.silence import SilenceTimeouts, SilenceWatch
from understudy_sidecar.membership.stall import StepWatch

HEARTBEATS = 3
LEAST_STALL_S = 1.0
REPORT_EVERY_S = 0.25
LEAST_LATE_S = 0.5
CONFIG_CHANGE_S = 0.5
LATE_ACK_S = 0.5

PATIENCE = SilenceTimeouts(answer_s=3.0, silent_after_s=10.0, heartbeat_s=5.0, probe_again_s=5.0)
ALL_MEMBERS = ("active-0", "active-1", "spare-0")
STALL_S = LEAST_STALL_S + REPORT_EVERY_S
LATE_S = LEAST_LATE_S + REPORT_EVERY_S
R0 = RoundToken(1, 1, 0)


def steps_for(driven: DrivenCoordinator, seconds: float, *answering: str) -> None:
    """The training continues: rank 0 reports steps four times a second."""
    for _ in range(int(seconds / REPORT_EVERY_S)):
        driven.later(REPORT_EVERY_S, *answering)
        driven.report_step("active-0")


def test_a_silent_connection_is_no_loss_while_the_training_continues() -> None:
    driven = running()
    driven.drop("active-1", silent=True)
    steps_for(driven, PATIENCE.silent_after_s - 1, *ALL_MEMBERS)
    assert driven.lost_pods() == {}


def test_a_silent_member_is_lost_after_a_while() -> None:
    driven = running()
    driven.drop("active-1", silent=True)
    steps_for(driven, PATIENCE.silent_after_s + 1, *ALL_MEMBERS)
    assert driven.lost_pods() == {"active-1": "Node"}
    assert driven.assigned() == {"active-0": 0, "spare-0": 1}


def test_a_silent_member_is_lost_when_the_training_stalls() -> None:
    driven = running()
    driven.drop("active-1", silent=True)
    driven.later(STALL_S + 0.1, *ALL_MEMBERS)
    assert driven.lost_pods() == {"active-1": "Node"}
    assert (driven.recovery().fault, driven.recovery().strategy) == (Fault.NODE, Strategy.SPARE_SWAP)


def test_a_silent_member_is_lost_when_workers_of_its_peers_fail() -> None:
    driven = running()
    driven.drop("active-1", silent=True)
    driven.fail_worker("active-0")
    assert driven.lost_pods() == {"active-1": "Node"}
    assert driven.recovery().cause.pod == "active-1"
    assert [x.pod for x in driven.recovery().consequences] == ["active-0"]


def test_a_suspected_member_that_comes_back_in_time_is_not_lost() -> None:
    driven = running()
    driven.drop("active-1", silent=True)
    driven.join("active-1", driven.token, 1, WorkersState.RUNNING)
    steps_for(driven, 2 * PATIENCE.silent_after_s, *ALL_MEMBERS)
    assert driven.lost_pods() == {}


def test_a_silent_spare_is_lost_after_a_while() -> None:
    driven = running()
    driven.drop("spare-0", silent=True)
    steps_for(driven, PATIENCE.silent_after_s - 1, *ALL_MEMBERS)
    assert driven.lost_pods() == {}
    steps_for(driven, 2, *ALL_MEMBERS)
    assert driven.lost_pods() == {"spare-0": "Node"}
    assert driven.coordinator.snapshot().recoveries == ()


def test_when_the_training_stalls_every_active_member_is_pinged_and_a_frozen_one_is_lost() -> None:
    driven = running()
    driven.later(STALL_S + PATIENCE.answer_s + 0.1, "active-0", "spare-0")
    assert driven.lost_pods() == {"active-1": "Node"}
    assert "stalled" in driven.recovery().cause.message


@pytest.mark.parametrize(("stepped_s", "goes_on"), [(0.1, True), (STALL_S - 0.1, False)])
def test_a_silent_rank_0_is_not_lost_in_a_stall_while_the_others_make_steps(stepped_s: float, goes_on: bool) -> None:
    # given a round in which rank 0 reports each step
    driven = running()
    # when only its sidecar ends, and another member has made its last step this long ago when the training stalls
    driven.stepped_s["active-1"] = stepped_s
    driven.later(STALL_S + PATIENCE.answer_s + 0.1, "active-1", "spare-0")
    # then it is lost only if the others stopped when its reports did
    assert driven.lost_pods() == ({} if goes_on else {"active-0": "Node"})


def test_an_answer_that_takes_long_does_not_show_that_the_others_make_steps() -> None:
    # given a training that stalls because rank 0 is frozen, so that the others made their last step as early as it
    driven = running()
    driven.later(STALL_S + 0.1, "spare-0")
    # when the answer of another member is on its way for 2 s
    _early, probe = driven.take("active-1", m.Heartbeat)
    driven.later(2.0, "spare-0")
    driven.receive("active-1", m.HeartbeatAck(probe.number, STALL_S))
    driven.later(PATIENCE.answer_s, "active-1", "spare-0")
    # then rank 0 is lost nevertheless
    assert driven.lost_pods() == {"active-0": "Node"}


def test_a_hung_sidecar_of_rank_0_is_lost_after_three_heartbeats_although_the_others_make_steps() -> None:
    driven = running()
    driven.stepped_s["active-1"] = 0.1
    driven.later(PATIENCE.heartbeat_s * HEARTBEATS - 1, "active-1", "spare-0")
    assert driven.lost_pods() == {}
    driven.later(PATIENCE.heartbeat_s + 1, "active-1", "spare-0")
    assert driven.lost_pods() == {"active-0": "Node"}


def unreachable(driven: DrivenCoordinator, *names: str) -> None:
    """The kernel reports that the machines of these pods acknowledge no packet."""
    driven.do(Unreachable(frozenset(driven.link(name) for name in names)))


def test_in_a_stall_a_member_is_lost_as_soon_as_its_machine_acknowledges_no_packet() -> None:
    driven = running()
    driven.later(STALL_S + 0.01, "active-0", "spare-0")
    assert driven.watched == ["active-0", "active-1"]
    unreachable(driven, "active-1")
    assert driven.lost_pods() == {"active-1": "Node"}
    assert driven.recovery().cause.message == "the training stalled, and its machine acknowledges no packet"
    driven.answer_heartbeats("active-0", "spare-0")  # a majority confirms that the coordinator itself is not cut off
    assert driven.assigned() == {"active-0": 0, "spare-0": 1}


def test_if_a_step_is_late_a_member_is_lost_as_soon_as_its_machine_acknowledges_no_packet() -> None:
    # given a training whose steps take 0.3 s
    driven = running()
    driven.report_step("active-0", median_step_s=0.3)
    # when the next one is late: twice the median, and the time between reports
    driven.later(0.84, "active-0", "spare-0")
    assert driven.watched == []
    driven.later(0.02, "active-0", "spare-0")
    assert driven.watched == ["active-0", "active-1"]
    unreachable(driven, "active-1")
    # then the member is lost, before the training counts as stalled
    assert driven.lost_pods() == {"active-1": "Node"}
    assert driven.recovery().cause.message == "a step was late, and its machine acknowledges no packet"


def test_a_late_step_is_no_loss_if_the_machines_acknowledge_packets() -> None:
    """As in a save or an evaluation, on a node whose processes get no CPU time: no process of active-1 answers."""
    driven = running()
    driven.report_step("active-0", median_step_s=4.0)
    driven.later(8.0 + REPORT_EVERY_S + PATIENCE.answer_s + 0.9, "active-0", "spare-0")
    driven.do(Tick())
    assert driven.watched == ["active-0", "active-1"]
    assert driven.lost_pods() == {}


def test_late_steps_cause_at_most_one_ping_in_5_s_and_a_stall_always_causes_one() -> None:
    # given a training in which each step is late
    driven = running()
    before = driven.coordinator.state.heartbeat
    for _ in range(27):
        driven.later(1.0, *ALL_MEMBERS)
        driven.report_step("active-0")
    # then, in 27 s, there are six pings, and five regular heartbeats
    assert driven.coordinator.state.heartbeat - before == 11
    # when it stalls while no ping for a late step is due
    driven.watched = []
    driven.later(STALL_S - 0.01, *ALL_MEMBERS)
    assert driven.watched == []
    driven.later(0.02, *ALL_MEMBERS)
    # then the members are pinged
    assert driven.watched == ["active-0", "active-1"]


def test_a_member_that_has_answered_for_a_late_step_is_asked_again_in_a_stall() -> None:
    driven = running()
    driven.later(LATE_S + 0.01, *ALL_MEMBERS)
    driven.later(LEAST_STALL_S - LEAST_LATE_S, "active-0", "spare-0")
    unreachable(driven, "active-1")
    assert driven.lost_pods() == {"active-1": "Node"}


def test_a_member_that_got_no_assignment_is_lost_as_soon_as_its_machine_acknowledges_no_packet() -> None:
    # given a worker that fails because the machine of another one has no power; the coordinator does not know that yet
    driven = running(spares=2)
    driven.fail_worker("active-0", "a peer has gone")
    assert driven.token.round == 1
    driven.receive("active-0", m.Ack(driven.token))
    driven.later(LATE_ACK_S + 0.1)
    assert driven.watched == ["active-1"]
    # when its kernel acknowledges nothing
    unreachable(driven, "active-1")
    # then it is lost, and is the cause
    reason = "it did not acknowledge its assignment, and its machine acknowledges no packet"
    assert driven.lost_pods() == {"active-1": "Node"}
    assert (driven.recovery().fault, driven.recovery().cause.message) == (Fault.NODE, reason)


def test_a_machine_that_acknowledges_no_packet_is_no_loss_if_the_training_continues() -> None:
    driven = running()
    driven.later(STALL_S + 0.01, "active-0", "spare-0")
    driven.report_step("active-0")
    unreachable(driven, "active-1")
    assert driven.lost_pods() == {}


def test_a_member_that_has_answered_is_not_lost_for_its_packets() -> None:
    driven = running()
    driven.later(STALL_S + 0.01, *ALL_MEMBERS)
    unreachable(driven, "active-1")
    assert driven.lost_pods() == {}


def test_a_coordinator_that_reaches_no_majority_of_machines_counts_none_of_them_as_lost() -> None:
    # given a coordinator with four voters
    driven = running(3)
    driven.later(CONFIG_CHANGE_S + 0.1, "active-0", "active-1", "active-2", "spare-0")
    assert len(driven.coordinator.snapshot().voters) == 4
    # when the machines of two of them acknowledge no packet, then its own network may be broken
    driven.report_step("active-0")
    driven.later(STALL_S + 0.01, "active-0")
    unreachable(driven, "active-1", "active-2")
    assert driven.lost_pods() == {}
    # but one of them is lost
    unreachable(driven, "active-1")
    assert driven.lost_pods() == {"active-1": "Node"}


def test_a_stall_in_which_all_members_answer_is_no_fault() -> None:
    driven = running()
    driven.later(60.0, *ALL_MEMBERS)
    assert driven.lost_pods() == {}
    assert driven.assigned() == {}


def test_a_member_that_answers_no_heartbeat_is_lost_although_the_training_continues() -> None:
    driven = running()
    steps_for(driven, PATIENCE.heartbeat_s * (HEARTBEATS + 1) + 1, "active-0", "spare-0")
    assert driven.lost_pods() == {"active-1": "Node"}


def test_a_heartbeat_lost_before_the_coordinator_was_frozen_does_not_count() -> None:
    # given a member that has left three heartbeats unanswered
    driven = running()
    steps_for(driven, PATIENCE.heartbeat_s * HEARTBEATS, "active-0", "spare-0")
    assert driven.lost_pods() == {}
    # when the coordinator is frozen for a minute, and the training continues
    driven.now += 60.0
    driven.report_step("active-0")
    driven.answer_heartbeats("active-0", "spare-0")
    assert any("did not run for" in line for line in driven.logged)
    # then the next heartbeat is the first unanswered one, and the fourth loses the member
    steps_for(driven, PATIENCE.heartbeat_s * (HEARTBEATS - 1) + 1, "active-0", "spare-0")
    assert driven.lost_pods() == {}
    steps_for(driven, PATIENCE.heartbeat_s, "active-0", "spare-0")
    assert driven.lost_pods() == {"active-1": "Node"}


@pytest.mark.attack(
    "C1",
    "a relay holds back messages of a member that is dead by now, and lets them through one by one",
    before="the member counted as there for as long as they lasted",
)
@pytest.mark.parametrize(
    "late", [m.HeartbeatAck(1), m.HeartbeatAck(1000), m.Port(4000), m.Progress(R0, 7, None, 0.1, 0.0)]
)
def test_messages_that_come_late_do_not_show_that_a_member_is_there(late: Any) -> None:
    # given a member that has answered a heartbeat
    driven = running()
    steps_for(driven, PATIENCE.heartbeat_s, *ALL_MEMBERS)
    # when only messages arrive that it sent before, while the training continues
    for _ in range(HEARTBEATS + 1):
        steps_for(driven, PATIENCE.heartbeat_s, "active-0", "spare-0")
        if not driven.lost_pods():
            driven.receive("active-1", late)
    # then it is lost
    assert driven.lost_pods() == {"active-1": "Node"}


def test_three_heartbeats_fit_into_the_lease() -> None:
    assert [SilenceWatch(PATIENCE, lease_s=lease_s).heartbeat_s_of(10_000) for lease_s in (0.0, 30.0, 10.0)] == [
        10.0,
        10.0,
        10.0 / 3,
    ]


def test_the_first_member_of_a_large_job_expects_the_heartbeats_of_a_large_job() -> None:
    # given a job of 8,000 pods, whose members get a heartbeat every 8 s once they are all connected
    driven = DrivenCoordinator(actives=8000)
    # when the first one joins
    driven.join("active-0")
    # then it does not miss three heartbeats before 24 s are over
    assert [welcome.heartbeat_s for welcome in driven.take("active-0", m.Welcome)] == [8.0]


def test_an_assignment_that_is_not_acknowledged_in_time_is_a_loss() -> None:
    driven = running()
    driven.fail_worker("active-0")
    driven.assigned()
    driven.report_started("active-0")
    driven.later(PATIENCE.answer_s + 0.1, "active-0", "spare-0")
    assert driven.lost_pods() == {"active-1": "Node"}
    assert driven.assigned() == {"active-0": 0, "spare-0": 1}
    assert driven.recovery().cause.pod == "active-1"  # it was lost before, so no innocent worker is charged


def test_a_pause_of_the_coordinator_does_not_shorten_the_time_to_acknowledge_in_a_large_job() -> None:
    # given a round of 1,000 pods, which have 4 s to acknowledge it
    driven = running(actives=1000, spares=0)
    names = [f"active-{number}" for number in range(1000)]
    driven.later(0.1, *names)
    driven.report_started(*names[1:])
    # when the coordinator is not scheduled for 3 s, and all pods answer except one
    driven.now += 3.0
    driven.later(3.9, *names[1:])
    # then the pod has 4 s again
    assert driven.lost_pods() == {}
    driven.later(0.2, *names[1:])
    assert driven.lost_pods() == {"active-0": "Node"}


def test_an_acknowledgement_that_arrives_after_the_end_of_its_round_counts() -> None:
    """Found by the simulation: healthy pods were lost, because no pod was available for the ranks of another pod."""
    # given a round of three pods without a spare, of which one is lost before another one has acknowledged
    driven = running(actives=3, spares=0)
    driven.fail_worker("active-2")
    driven.report_started("active-0")
    driven.drop("active-1")
    # when its acknowledgement arrives
    driven.receive("active-2", m.Ack(driven.token))
    # then it is not lost while the next round waits for a pod
    driven.later(10.0, "active-0", "active-2")
    assert driven.lost_pods() == {"active-1": "Pod"}


def test_a_late_answer_to_a_probe_of_an_older_round_changes_nothing() -> None:
    driven = running()
    driven.later(STALL_S + 0.1)
    assert driven.take("active-1", m.Heartbeat)
    driven.receive("active-0", m.HeartbeatAck(1))
    driven.receive("active-1", m.HeartbeatAck(1))
    driven.later(PATIENCE.answer_s)
    assert driven.token == RoundToken(1, 1, 0)


def test_a_step_is_late_after_two_median_steps_and_the_training_stalls_after_three() -> None:
    watch = StepWatch()
    assert (watch.late_at(), watch.stalls_at()) == (None, None)
    watch.on_step(0.1, 100.0)
    assert (watch.late_at(), watch.stalls_at()) == (100.75, 101.25)
    watch.on_step(10.0, 110.0)
    assert (watch.late_at(), watch.stalls_at()) == (130.25, 140.25)
    watch.new_round()
    assert (watch.late_at(), watch.stalls_at()) == (None, None)
