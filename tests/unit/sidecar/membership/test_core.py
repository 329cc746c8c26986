"""The state machines of one sidecar together: the appointments that it accepts, the state that it keeps after its
leadership, and the messages that it sends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from understudy_protocol import membership as m
from understudy_protocol.enums import NO_ROUND, CloseReason, ConfigVersion, RoundToken, Term, Verdict, WorkersState
from understudy_protocol.hard_state import HardState
from understudy_protocol.launcher import ExitLauncher, LauncherHello, Ping, Terminating, WorkersStarted
from understudy_protocol.observer import Appoint, End, Observe, Refused, Snapshot, Superseded
from understudy_protocol.pod import JobShape
from understudy_protocol.snapshots import CopyHolder, CopyPlan
from understudy_sidecar.membership import events as e
from understudy_sidecar.membership.core import Core, CoreEffect, CoreEvent, FromObserver, HardStateNotStored, ObserverUp
from understudy_sidecar.membership.member_state import Identity
from understudy_sidecar.membership.round_state import RoundPhase
from understudy_sidecar.membership.voter import Voter

GIVEN_UP_EXIT_CODE = 84

SHAPE = JobShape("job-uid", "ns", "job", 2, 1, 10, 3600.0)
ME = Identity("uid", "pod-0", "node-0", "10.0.0.1", 0)
ROUND = RoundToken(1, 1, 0)
OPERATOR = 1  # the number of its connection


class Driven:
    """A core, the hard state that it has stored, and all effects since the last call."""

    def __init__(self, hard_state: HardState | None = None, cpu_clock: Callable[[], float] = lambda: 0.0) -> None:
        self.now = 1000.0
        self.volume_full = False
        self.stored = hard_state or HardState()
        self.core = Core(SHAPE, ME, self.stored, self.now, cpu_clock=cpu_clock)
        self.effects: list[CoreEffect] = []

    def do(self, *events: CoreEvent) -> None:
        for event in events:
            for effect in self.core.handle(event, self.now):
                if isinstance(effect, e.RecordHardState) and self.volume_full:
                    self.do(HardStateNotStored("/state: No space left on device"))
                    break
                if isinstance(effect, e.RecordHardState):
                    self.stored = effect.hard_state
                self.effects.append(effect)

    def appoint(self, *epochs: int) -> Driven:
        self.do(*[FromObserver(OPERATOR, Appoint(epoch, -1, {})) for epoch in epochs])
        return self

    def epoch(self) -> int | None:
        return None if self.core.coordinator is None else self.core.coordinator.term.epoch

    def sent(self) -> list[object]:
        """Messages to the operator since the last call."""
        effects, self.effects = self.effects, []
        return [x.message for x in effects if isinstance(x, e.Broadcast) and OPERATOR in x.links]


@pytest.mark.parametrize(("epochs", "epoch"), [((), None), ((1,), 1), ((3, 4), 4), ((4, 3), 4), ((4, 4), 4)])
def test_the_newest_epoch_counts(epochs: tuple[int, ...], epoch: int | None) -> None:
    assert Driven().appoint(*epochs).epoch() == epoch


def test_a_repeated_appointment_keeps_the_coordinator_and_its_state() -> None:
    driven = Driven().appoint(1)
    before = driven.core.coordinator
    assert driven.appoint(1).core.coordinator is before


@pytest.mark.parametrize(
    ("appoint", "stays"),
    [
        (Appoint(2, 0, {}), True),  # the operator does not know the round's coordinator
        (Appoint(2, 0, {}, coordinator_uid=ME.pod_uid), True),
        (Appoint(2, 0, {}, coordinator_uid="another"), False),
        (Appoint(2, 1, {}), False),
    ],
)
def test_a_coordinator_keeps_what_it_knows_unless_another_one_has_formed_a_round_meanwhile(
    appoint: Appoint, stays: bool
) -> None:
    """Found by the simulation (seed 1481139): it continued its own round, whose only rank holder was gone, for ever."""
    # given a coordinator of the job's first round, which has number 0
    driven = Driven().appoint(1)
    driven.do(ObserverUp(OPERATOR))
    driven.do(*[e.Received(7 + index, replace(join(f"uid-{index}"), index=index)) for index in range(2)])
    first = driven.core.coordinator
    assert first is not None
    assert (first.token.round, first.phase) == (0, RoundPhase.RUNNING)
    # when the operator appoints it for another epoch
    driven.do(FromObserver(OPERATOR, appoint))
    # then it coordinates that epoch, and forms no round that the other one may have formed
    now = driven.core.coordinator
    assert driven.epoch() == 2
    assert now is not None
    assert (now is first) == stays
    assert now.phase is (RoundPhase.RUNNING if stays else RoundPhase.REBUILDING)
    assert now.token.round == appoint.at_least_round


def test_a_restarted_sidecar_does_not_coordinate_its_earlier_epoch_again() -> None:
    """Found by the simulation (seed 2): two coordinators of one epoch, the second of which knew of no round."""
    stored = Driven().appoint(2).stored
    assert Driven(stored).appoint(2).epoch() is None
    assert Driven(stored).appoint(2, 3).epoch() == 3


def test_a_coordinator_that_stepped_down_may_be_appointed_again_in_a_newer_epoch() -> None:
    driven = Driven().appoint(1)
    driven.do(FromObserver(OPERATOR, Superseded(Term(1, 2), "another", "10.0.0.2")))
    assert driven.epoch() is None
    assert driven.appoint(1).epoch() is None
    assert driven.appoint(2).epoch() == 2


def test_a_superseded_coordinator_takes_no_part_in_another_election_of_its_older_epoch() -> None:
    """Found by the simulation (seed 609346): its members elected one in the older epoch, and none had all ranks."""
    # given a coordinator
    driven = Driven().appoint(1)
    # when the operator reports that it has appointed another one
    driven.do(FromObserver(OPERATOR, Superseded(Term(2, 1), "another", "10.0.0.2")))
    # then this sidecar steps down, and votes for nobody in the older epoch, also after a restart
    assert driven.epoch() is None
    assert driven.stored.term == Term(2, 1)
    assert not Voter(driven.stored).grant_vote(m.RequestVote(Term(1, 2), ConfigVersion(1, 1, 1), "another"))


def test_a_sidecar_that_does_not_coordinate_follows_the_appointment_that_the_operator_reports() -> None:
    driven = Driven()
    driven.do(FromObserver(OPERATOR, Superseded(Term(2, 1), "another", "10.0.0.2")))
    assert driven.stored.term == Term(2, 1)
    # and an older one changes nothing
    driven.do(FromObserver(OPERATOR, Superseded(Term(1, 5), "a third", "10.0.0.3")))
    assert driven.stored.term == Term(2, 1)


def test_a_tick_is_due_when_the_member_has_to_ping_its_launcher() -> None:
    # given a sidecar without a coordinator, whose launcher has connected
    driven = Driven()
    driven.do(e.LauncherUp(LauncherHello(1, NO_ROUND, None, WorkersState.IDLE, 4000)))
    due = driven.core.deadline()
    assert due is not None
    # when the next tick is due
    driven.now = due
    driven.do(e.Tick())
    # then the member pings its launcher
    assert e.ToLauncher(Ping(1)) in driven.effects
    assert (driven.core.deadline() or 0.0) > due


def test_the_hard_state_is_stored_before_anything_that_follows_from_it() -> None:
    driven = Driven()
    driven.do(ObserverUp(OPERATOR))
    driven.effects.clear()
    driven.now += 1.0
    driven.appoint(1)
    kinds = [type(effect) for effect in driven.effects]
    assert kinds.index(e.RecordHardState) < kinds.index(e.Broadcast)


def test_observers_receive_the_end_at_once() -> None:
    """A coordinator whose members had all answered ended before its next snapshot was due."""
    # given an observer that has just received a snapshot
    driven = Driven().appoint(1)
    driven.do(ObserverUp(OPERATOR))
    assert driven.sent()
    # when the job ends at the same time
    driven.do(FromObserver(7, End(CloseReason.DELETED, "the job was deleted")))
    # then the next effects report the end
    (reported,) = driven.sent()
    assert isinstance(reported, Snapshot)
    assert reported.closed is not None
    assert reported.closed.reason is CloseReason.DELETED


def test_an_observer_that_asks_without_end_gets_few_snapshots() -> None:
    # given a coordinator, and an observer that has received a snapshot
    driven = Driven().appoint(1)
    driven.do(ObserverUp(OPERATOR))
    assert len(driven.sent()) == 1
    # when it sends a thousand messages, and nothing has changed
    driven.do(*[FromObserver(OPERATOR, Observe())] * 1000)
    # then one snapshot, when the next one is due, answers them all
    assert driven.sent() == []
    deadline = driven.core.deadline()
    assert deadline == 1000.2
    driven.now = deadline
    driven.do(e.Tick())
    assert [type(message) for message in driven.sent()] == [Snapshot]
    # and nothing more follows
    driven.now += 1.0
    driven.do(e.Tick())
    assert driven.sent() == []


def test_observers_receive_the_state_of_each_coordinator_that_this_sidecar_becomes() -> None:
    # given an observer of a coordinator
    driven = Driven().appoint(1)
    driven.do(ObserverUp(OPERATOR))
    assert [type(message) for message in driven.sent()] == [Snapshot]
    # when it steps down and is appointed again before the next message is due
    driven.do(FromObserver(7, Superseded(Term(1, 2), "another", "10.0.0.2")))
    driven.appoint(2)
    driven.now += 1.0
    driven.do(e.Tick())
    # then the observer receives the state of the new coordinator
    (reported,) = driven.sent()
    assert isinstance(reported, Snapshot)
    assert reported.token.epoch == 2


def test_a_snapshot_that_takes_long_makes_the_next_one_wait_in_proportion() -> None:
    driven = Driven().appoint(1)
    driven.do(ObserverUp(OPERATOR))
    driven.core.snapshot_took(0.1)
    driven.do(FromObserver(OPERATOR, Observe()))
    assert driven.core.deadline() == pytest.approx(1002.0)


def test_computing_a_snapshot_counts_like_encoding_and_writing_it() -> None:
    # given a coordinator whose snapshot takes 30 ms to compute
    cpu = iter((0.0, 0.03))
    driven = Driven(cpu_clock=lambda: next(cpu)).appoint(1)
    driven.do(ObserverUp(OPERATOR))
    # and 20 ms to encode and to write
    driven.core.snapshot_took(0.02)
    # then the next one is due when the first has taken a twentieth of the time
    driven.do(FromObserver(OPERATOR, Observe()))
    assert driven.core.deadline() == pytest.approx(1001.0)


# A hard state that cannot be stored


def joined() -> Driven:
    """A member of another sidecar's job."""
    driven = Driven()
    driven.do(e.LauncherUp(LauncherHello(1, NO_ROUND, None, WorkersState.IDLE, 4000)), e.LinkUp(e.SERVICE))
    driven.do(e.FromCoordinator(m.Welcome(NO_ROUND, Term(1, 1), pod_uid="other", ip="10.0.0.9")))
    driven.effects.clear()
    return driven


def join(uid: str) -> m.Join:
    return m.Join(uid, uid, "node", "10.0.0.5", None, NO_ROUND, None, WorkersState.IDLE, 4000)


REASON = "its sidecar cannot store its state in /state: No space left on device"


def test_a_sidecar_that_cannot_store_its_hard_state_reports_the_reason_and_ends_its_pod() -> None:
    # given a member whose state volume is full
    driven = joined()
    driven.volume_full = True
    # when a coordinator of a newer term welcomes it, which it would have to store
    driven.do(e.LinkDown(), e.LinkUp("10.0.0.9"))
    driven.effects.clear()
    driven.do(e.FromCoordinator(m.Welcome(NO_ROUND, Term(1, 2), pod_uid="other", ip="10.0.0.9")))
    # then it reports why it leaves, hangs up, and makes no further call. Its launcher exits, so that the pod is
    # replaced
    assert e.ToCoordinator(m.Gone(REASON)) in driven.effects
    assert e.HangupCoordinator(f"replaced: {REASON}") in driven.effects
    assert e.ToLauncher(ExitLauncher(GIVEN_UP_EXIT_CODE, f"replaced: {REASON}")) in driven.effects
    assert not [x for x in driven.effects if isinstance(x, e.Dial)]
    # and it neither coordinates nor votes
    driven.effects.clear()
    driven.do(e.Received(7, join("uid-caller")))
    assert driven.effects == [e.Hangup(7, "its sidecar cannot store its state")]
    assert driven.appoint(2).epoch() is None


def test_a_sidecar_that_cannot_store_its_state_reports_that_its_pod_has_to_be_replaced() -> None:
    driven = Driven()
    driven.do(HardStateNotStored("/understudy-state: No space left on device"))
    driven.do(ObserverUp(OPERATOR))
    (reported,) = driven.sent()
    assert isinstance(reported, Refused)
    assert (
        reported.replacement_reason
        == "its sidecar cannot store its state in /understudy-state: No space left on device"
    )


def test_a_sidecar_reports_that_it_has_no_launcher_until_one_connects_and_after_its_end() -> None:
    driven = Driven()
    driven.do(ObserverUp(OPERATOR))
    hello = LauncherHello(1, NO_ROUND, None, WorkersState.IDLE, 4000)
    reports = []
    for event in (e.Tick(), e.LauncherUp(hello), e.LauncherDown()):
        driven.now += 1.0
        driven.do(event)
        reported = driven.sent()[-1]
        assert isinstance(reported, Refused)
        reports.append(reported.lacks_launcher)
    assert reports == [True, False, True]


def test_a_coordinator_that_cannot_store_an_appointment_steps_down() -> None:
    driven = Driven().appoint(1)
    driven.volume_full = True
    driven.appoint(2)
    assert driven.epoch() is None


def test_a_coordinator_whose_launcher_did_not_respond_before_its_appointment_reports_its_own_pod_as_lost() -> None:
    """Found by the simulation (seed 57): its member does not join, so no other pod reported the loss."""
    # given a member whose launcher has been stopped for 15 s
    driven = joined()
    for _ in range(4):
        driven.now += 5.0
        driven.do(e.FromCoordinator(m.Heartbeat(1, NO_ROUND)), e.Tick())
    driven.effects.clear()
    # when the operator appoints its sidecar
    driven.appoint(2)
    # then the coordinator reports this pod as lost, with the reason
    assert driven.core.coordinator is not None
    (lost,) = driven.core.coordinator.snapshot().lost
    assert (lost.pod_uid, lost.pod_name, lost.node) == ("uid", "pod-0", "node-0")
    assert lost.reason == "its launcher has not responded for 15 s"


def test_a_coordinator_whose_launcher_has_not_connected_since_the_sidecar_restarted_reports_its_own_pod_as_lost() -> (
    None
):
    """Found by the simulation (seed 303078): no other pod reported the loss, and the job waited for its first round."""
    # given a sidecar that restarted while its launcher was stopped, and that the operator has appointed
    driven = Driven()
    driven.core = Core(SHAPE, ME, driven.stored, driven.now, launcher_known=True)
    driven.do(ObserverUp(OPERATOR))
    driven.appoint(2)
    assert driven.core.coordinator is not None
    # when the launcher does not connect for 15 s
    driven.now += 14.9
    driven.do(e.Tick())
    assert driven.core.coordinator.snapshot().lost == ()
    driven.now += 0.2
    driven.do(e.Tick())
    # then the coordinator reports its own pod as lost, with the reason
    (lost,) = driven.core.coordinator.snapshot().lost
    assert (lost.pod_uid, lost.reason) == ("uid", "its launcher has not connected for 15 s")


# Delayed calls, and the end


def dialed(driven: Driven) -> list[tuple[str, ...]]:
    """The hosts to call, since the last call."""
    effects, driven.effects = driven.effects, []
    return [x.hosts for x in effects if isinstance(x, e.Dial)]


def disconnected() -> Driven:
    """A member whose connection to the last host that it knows has just ended: it pauses before it calls again."""
    driven = Driven()
    driven.do(e.LauncherUp(LauncherHello(1, NO_ROUND, None, WorkersState.IDLE, 4000)), e.LinkUp(e.SERVICE))
    driven.effects.clear()
    driven.do(e.LinkDown())
    return driven


def test_a_delayed_call_is_made_by_the_tick_at_its_time() -> None:
    driven = disconnected()
    assert dialed(driven) == []
    assert driven.core.deadline() == 1000.25
    driven.now = 1000.24
    driven.do(e.Tick())
    assert dialed(driven) == []
    driven.now = 1000.25
    driven.do(e.Tick())
    assert dialed(driven) == [(e.SERVICE,)]
    # and only once
    driven.now = 1001.0
    driven.do(e.Tick())
    assert dialed(driven) == []


def test_a_delayed_call_is_not_made_after_a_hangup() -> None:
    driven = disconnected()
    # when the launcher ends
    driven.do(e.LauncherDown())
    # then the member calls no host
    driven.now += 1.0
    driven.do(e.Tick())
    assert dialed(driven) == []


def test_a_member_that_loses_its_own_coordinator_calls_it_last() -> None:
    """Found by the simulation (seed 1544592): a job of one pod stood still for ever after its node was frozen."""
    # given a coordinator whose own member has joined it
    driven = Driven().appoint(1)
    driven.do(e.LauncherUp(LauncherHello(1, NO_ROUND, None, WorkersState.IDLE, 4000)), e.LinkUp("10.0.0.1"))
    driven.do(e.FromCoordinator(m.Welcome(NO_ROUND, Term(1, 1), 5.0, pod_uid="uid", ip="10.0.0.1")))
    driven.effects.clear()
    # when both do not run for 15 s, so that the coordinator has confirmed no heartbeat
    driven.now += 15.0
    driven.do(e.Tick())
    # then it also calls itself, because a job of one pod has no Service
    driven.now += 0.25
    driven.do(e.Tick())
    assert dialed(driven) == [(e.SERVICE, "10.0.0.1")]
    # and not after it has stepped down
    driven.do(FromObserver(OPERATOR, Superseded(Term(1, 2), "another", "10.0.0.2")))
    driven.do(e.LinkUp("10.0.0.1"), e.LinkDown())
    driven.now += 1.0
    driven.do(e.Tick())
    assert dialed(driven)[-1] == (e.SERVICE,)


def ends(driven: Driven) -> tuple[bool, bool]:
    return driven.core.process_may_end, driven.core.is_over


CLOSE = m.Close(CloseReason.DELETED, "the job was deleted")


def test_a_member_of_a_closed_job_ends_when_its_launcher_has_ended_and_all_others_know() -> None:
    driven = joined()
    driven.do(e.FromCoordinator(CLOSE), e.FromCoordinator(m.ShutdownComplete()))
    assert ends(driven) == (False, False)
    driven.do(e.LauncherDown())
    assert ends(driven) == (True, True)


def test_a_sidecar_that_gets_sigterm_ends_at_once() -> None:
    driven = joined()
    driven.do(e.LeaveRequested("the sidecar got SIGTERM", 30.0))
    assert ends(driven) == (True, True)
    assert e.ToCoordinator(m.Leaving("the sidecar got SIGTERM", 30.0)) in driven.effects


def leaving_with_copies() -> Driven:
    """A pod that was asked to end, and copies its newest snapshots; its launcher has ended."""
    driven = joined()
    plan = CopyPlan(1, (CopyHolder("uid-1", "10.0.0.5"),))
    driven.do(e.FromCoordinator(m.Assign(ROUND, 0, 1, 0, 1, "10.0.0.1", 4000, "first round", copies=plan)))
    driven.do(e.CopiesPlanned(ROUND, ()), e.FromLauncher(WorkersStarted(ROUND)))
    driven.do(e.FromLauncher(Terminating(30.0, Verdict.UNKNOWN)), e.LauncherDown())
    driven.do(e.LeaveRequested("the sidecar got SIGTERM", 30.0))
    return driven


def test_a_sidecar_that_gets_sigterm_ends_when_the_newest_snapshots_are_copied() -> None:
    driven = leaving_with_copies()
    # no longer than the pod's grace period
    assert (ends(driven), driven.core.end_limit_s) == ((True, False), 30.0)
    driven.do(e.CopiesFlushed(ROUND))
    assert (ends(driven), driven.core.end_limit_s) == ((True, True), 5.0)


def test_a_sidecar_whose_pod_was_replaced_meanwhile_does_not_wait_for_copies() -> None:
    driven = leaving_with_copies()
    driven.do(e.FromCoordinator(m.Evicted(Term(1, 1), "its pod is drained; its grace is over")))
    assert ends(driven) == (True, True)


def test_a_coordinator_of_a_closed_job_that_gets_sigterm_ends_when_all_members_know() -> None:
    # given a coordinator with a member
    driven = joined().appoint(2)
    driven.do(e.Received(7, join("uid-caller")))
    # when the job is closed, its own member has received that too, and its pod ends
    driven.do(FromObserver(OPERATOR, End(CloseReason.DELETED, "the job was deleted")))
    driven.do(e.LinkUp("10.0.0.1"), e.FromCoordinator(CLOSE), e.LeaveRequested("the sidecar got SIGTERM", 30.0))
    # then it stays until the member has acknowledged the close
    assert ends(driven) == (True, False)
    driven.do(e.Received(7, m.CloseAck()))
    assert ends(driven) == (True, True)
