"""The member's rules, one by one: its reports to the coordinator and to its launcher, and when it leaves either."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from understudy_protocol import launcher as l
from understudy_protocol import membership as m
from understudy_protocol.enums import (
    NO_CONFIG,
    NO_ROUND,
    CloseReason,
    Drill,
    FaultClass,
    RoundToken,
    Term,
    Verdict,
    WorkersState,
)
from understudy_protocol.hard_state import HardState
from understudy_protocol.snapshots import MadeStep, RestoreChoice, SavedStep, SavedSteps, SnapshotAge
from understudy_sidecar.membership import events as e
from understudy_sidecar.membership.liveness import LeaderLease
from understudy_sidecar.membership.member import Member
from understudy_sidecar.membership.member_state import Identity, MembershipState
from understudy_sidecar.membership.voter import Voter

DEFAULT_HEARTBEAT_S = 5.0
HEARTBEATS = 3
LINGER_S = 3.0

HEARD_S = HEARTBEATS * DEFAULT_HEARTBEAT_S
FENCE_S = 30.0
SERVICE_ONLY = e.Dial((e.SERVICE,))
R0, R1 = RoundToken(1, 1, 0), RoundToken(1, 1, 1)
WELCOME = m.Welcome(NO_ROUND, Term(1, 1), pod_uid="uid-coordinator", ip="10.0.0.9")
SUCCEEDED = m.Close(CloseReason.SUCCEEDED, "all done")


class DrivenMember:
    """A member and the time. `do` returns the effects but the log lines, and the records of a launcher's end.

    launcher_responds: pings are answered, and not among the effects.
    """

    def __init__(
        self,
        index: int | None = 0,
        hard_state: HardState = HardState(),  # noqa: B008 - it is frozen
        closed: m.Close | None = None,
        *,
        launcher_known: bool = True,
    ) -> None:
        self.now = 1000.0
        self.launcher_responds = True
        me = Identity("uid", "pod-0", "node-0", "10.0.0.1", index)
        self.member = Member(me, Voter(hard_state), self.now, closed, launcher_known=launcher_known)

    def do(self, *events: e.MemberEvent) -> list[Any]:
        effects = [effect for event in events for effect in self.member.handle(event, self.now)]
        if self.launcher_responds and pings(effects):
            effects = [effect for effect in effects if not pings([effect])]
            effects += self.report(l.Pong(1))
        ended = e.RecordLauncher(False)
        return [effect for effect in effects if not isinstance(effect, e.Log) and effect != ended]

    def hear(self, message: Any) -> list[Any]:
        return self.do(e.FromCoordinator(message))

    def heartbeat(self, number: int = 1) -> list[Any]:
        """The coordinator sends a heartbeat, and confirms the answer at once."""
        return self.hear(m.Heartbeat(number, R0)) + self.hear(m.LeaseRenewal(number))

    def report(self, message: Any) -> list[Any]:
        return self.do(e.FromLauncher(message))

    def later(self, seconds: float) -> list[Any]:
        until, effects = self.now + seconds, []
        while (due := self.member.deadline()) is not None and due <= until:
            self.now = max(self.now, due)
            effects += self.do(e.Tick())
            assert self.member.deadline() != due, "a Tick must move its deadline"
        self.now = until
        return effects


def hello(
    token: RoundToken = NO_ROUND, rank: int | None = None, workers: WorkersState = WorkersState.IDLE
) -> l.LauncherHello:
    return l.LauncherHello(1, token, rank, workers, 4000)


def assign(token: RoundToken, rank: int = 0) -> m.Assign:
    return m.Assign(token, rank, 2, rank * 8, 16, "10.0.0.1", 4000, "first round")


def start(token: RoundToken, rank: int = 0) -> e.ToLauncher:
    return e.ToLauncher(l.StartWorkers(token, rank, 2, rank * 8, 16, "10.0.0.1", 4000))


def joined(token: RoundToken = NO_ROUND, workers: WorkersState = WorkersState.IDLE) -> DrivenMember:
    driven = DrivenMember()
    driven.do(e.LauncherUp(hello(token, None if token == NO_ROUND else 0, workers)), e.LinkUp(e.SERVICE))
    driven.hear(WELCOME)
    return driven


def running() -> DrivenMember:
    driven = joined()
    driven.hear(assign(R0))
    driven.report(l.WorkersStarted(R0))
    return driven


def pings(effects: list[Any]) -> list[l.Ping]:
    return [x.message for x in effects if isinstance(x, e.ToLauncher) and isinstance(x.message, l.Ping)]


def stops(effects: list[Any]) -> bool:
    return any(isinstance(x, e.ToLauncher) and isinstance(x.message, l.StopWorkers) for x in effects)


# Evicted

EVICTED = m.Evicted(Term(1, 1), "pod pod-0 failed twice within 1 h")
EXIT_84 = e.ToLauncher(l.ExitLauncher(84, "replaced: pod pod-0 failed twice within 1 h"))


def test_a_pod_that_is_evicted_ends_its_launcher_and_calls_no_host() -> None:
    driven = running()
    driven.report(l.WorkerExited(R0, 0, 1, None, "exit code 1", 0.0))
    assert driven.hear(EVICTED) == [e.HangupCoordinator("replaced: pod pod-0 failed twice within 1 h"), EXIT_84]
    assert driven.do(e.LinkDown()) == []
    assert driven.later(10 * FENCE_S) == []
    assert driven.do(e.LauncherDown()) == [e.Finish()]


def test_an_eviction_may_answer_the_join() -> None:
    driven = DrivenMember()
    driven.do(e.LauncherUp(hello(R0, 0, WorkersState.FAILED)), e.LinkUp(e.SERVICE))
    assert driven.hear(EVICTED) == [e.HangupCoordinator("replaced: pod pod-0 failed twice within 1 h"), EXIT_84]


def test_a_coordinator_of_an_older_term_cannot_evict_a_member() -> None:
    driven = DrivenMember(hard_state=HardState(Term(1, 2)))
    driven.do(e.LauncherUp(hello(R0, 0, WorkersState.RUNNING)), e.LinkUp(e.SERVICE))
    effects = driven.hear(EVICTED)
    assert EXIT_84 not in effects
    assert any(isinstance(effect, e.Dial) for effect in effects)


def test_a_launcher_that_connects_after_the_eviction_receives_it_again() -> None:
    driven = running()
    driven.hear(EVICTED)
    assert EXIT_84 in driven.do(e.LauncherUp(hello(R0, 0, WorkersState.RUNNING)))


# Joining


def test_a_member_counts_only_with_its_launcher() -> None:
    driven = DrivenMember()
    assert driven.do(e.LinkUp(e.SERVICE)) == [e.HangupCoordinator("no launcher is connected")]
    assert driven.do(e.LauncherUp(hello())) == [SERVICE_ONLY]
    identity = ("uid", "pod-0", "node-0", "10.0.0.1", 0)
    join = m.Join(*identity, NO_ROUND, None, WorkersState.IDLE, 4000, store_port=0)
    assert driven.do(e.LinkUp(e.SERVICE)) == [e.ToCoordinator(join)]


def test_a_restarted_sidecar_learns_from_the_launcher_which_round_runs() -> None:
    driven = DrivenMember()
    driven.do(e.LauncherUp(hello(R1, 3, WorkersState.RUNNING)))
    (sent,) = driven.do(e.LinkUp(e.SERVICE))
    assert (sent.message.token, sent.message.group_rank, sent.message.workers) == (R1, 3, WorkersState.RUNNING)


def test_a_lost_connection_is_replaced_by_one_call() -> None:
    driven = joined()
    # its last coordinator may be the only sidecar that is left
    assert driven.do(e.LinkDown()) == [e.Dial(("10.0.0.9", e.SERVICE))]


def test_the_launcher_keeps_the_connection_to_the_coordinator_and_no_other() -> None:
    """The launcher keeps the connection of the sidecar's last process, which is the membership, until this one is
    welcome.
    """
    driven = DrivenMember()
    driven.do(e.LauncherUp(hello(R1, 3, WorkersState.RUNNING)))
    assert e.KeepLink() not in driven.do(e.LinkUp("10.0.0.2"))
    assert e.KeepLink() not in driven.hear(m.Redirect("uid-coordinator", "10.0.0.9"))
    assert e.KeepLink() not in driven.do(e.LinkUp("10.0.0.9"))
    assert e.KeepLink() in driven.hear(WELCOME)
    assert e.KeepLink() in driven.do(e.LauncherUp(hello(R1, 3, WorkersState.RUNNING))), "another connection of its own"


def test_a_member_that_has_voted_waits_for_that_candidate_alone() -> None:
    driven = joined()
    driven.do(e.LinkDown(), e.LinkUp("10.0.0.2"))
    assert driven.member.may_vote_here
    driven.hear(m.RequestVote(Term(1, 2), NO_CONFIG, "uid-2"))
    assert not driven.member.may_vote_here
    driven.do(e.LinkDown())
    assert driven.member.may_vote_here


def test_a_coordinator_of_a_new_term_is_offered_a_new_store() -> None:
    driven = DrivenMember()
    driven.do(e.LauncherUp(hello()), e.LinkUp(e.SERVICE))
    driven.report(l.NextPort(4000, 5000))
    renew = e.ToLauncher(l.RenewStore())
    assert renew not in driven.hear(WELCOME), "the first one has it from the Join"
    driven.do(e.LinkDown(), e.LinkUp(e.SERVICE))
    assert e.ToCoordinator(m.Port(4000, 5000)) in driven.hear(WELCOME), "the same term again"
    driven.do(e.LinkDown(), e.LinkUp("10.0.0.2"))
    assert renew in driven.hear(m.Welcome(NO_ROUND, Term(1, 2), pod_uid="uid-2", ip="10.0.0.2"))
    assert driven.member.store_port == 0
    assert driven.report(l.NextPort(4000, 5001)) == [e.ToCoordinator(m.Port(4000, 5001))]


# Rounds


def test_an_assignment_is_started_and_acknowledged() -> None:
    driven = joined()
    assert driven.hear(assign(R0, 1)) == [start(R0, 1), e.ToCoordinator(m.Ack(R0))]


def test_a_repeated_assignment_is_only_acknowledged_and_an_older_one_is_dropped() -> None:
    driven = joined()
    driven.hear(assign(R1))
    assert driven.hear(assign(R1)) == [e.ToCoordinator(m.Ack(R1))]
    assert driven.hear(assign(R0)) == []


@pytest.mark.parametrize(
    ("report", "reported"),
    [
        (l.WorkersStarted(R0), m.Started(R0)),
        (l.WorkersFinished(R0), m.Finished(R0)),
        (
            l.WorkerExited(R0, 3, None, "SIGKILL", "killed by SIGKILL", 7.0, "Traceback"),
            m.WorkerFailed(R0, 3, None, "SIGKILL", "killed by SIGKILL", 7.0, "Traceback"),
        ),
        (l.WorkerRaised(R0, 1, "ValueError", 0.5, "line 7"), m.WorkerRaised(R0, 1, "ValueError", 0.5, "line 7", 999.5)),
        (
            l.Stepped(R0, 5, 100, 0.5, 7.0, 3.0, True, 1.5),
            m.Progress(R0, 5, 100, 0.5, 7.0, 3.0, is_counted=True, since_first_s=1.5),
        ),
        (l.Hung(R0, 1, 5, 7.0, 600.0), m.Hung(R0, 1, 5, 7.0, 600.0)),
        (l.CollectiveTimes(R0, 1, 20, 7, (1, 2), (3, 4)), m.CollectiveTimes(R0, 1, 20, 7, (1, 2), (3, 4))),
        (l.NextPort(4001), m.Port(4001)),
    ],
    ids=lambda message: type(message).__name__,
)
def test_reports_of_the_launcher_are_passed_on(report: Any, reported: Any) -> None:
    driven = joined()
    driven.hear(assign(R0))
    assert driven.report(report) == [e.ToCoordinator(reported)]


@pytest.mark.parametrize(
    "report",
    [
        l.WorkersStarted(R0),
        l.WorkersFinished(R0),
        l.WorkerExited(R0, 0, 1, None, "", 0.0),
        l.CollectiveTimes(R0, 1, 20, 7, (1, 2), (3, 4)),
    ],
    ids=str,
)
def test_reports_of_the_launcher_about_an_older_round_are_dropped(report: Any) -> None:
    driven = running()
    driven.hear(assign(R1))
    assert driven.report(report) == []
    assert driven.member.workers is WorkersState.STARTING


def test_the_exception_of_a_replaced_worker_is_reported_but_none_of_a_round_that_the_pod_does_not_know() -> None:
    driven = running()
    driven.hear(assign(R1))
    raised = m.WorkerRaised(R0, 0, "ValueError", 0.5, at=999.5)
    assert driven.report(l.WorkerRaised(R0, 0, "ValueError", 0.5)) == [e.ToCoordinator(raised)]
    assert driven.report(l.WorkerRaised(replace(R1, round=9), 0, "ValueError", 0.4)) == []
    assert driven.member.workers is WorkersState.STARTING


def test_each_coordinator_gets_the_first_exception_of_the_round_with_its_age() -> None:
    """Found by the simulation (seed 1352110): the coordinator was killed when a worker raised an exception."""
    # given two exceptions in the newest round
    driven = running()
    driven.report(l.WorkerRaised(R0, 0, "ValueError", 0.5))
    driven.report(l.WorkerRaised(R0, 1, "KeyError", 0.1))
    # when the member joins a coordinator again
    driven.do(e.LinkDown(False))
    driven.now += 0.25
    driven.do(e.LinkUp("10.0.0.2"))
    # then it sends the first one
    raised = e.ToCoordinator(m.WorkerRaised(R0, 0, "ValueError", 0.75, at=999.5))
    assert driven.hear(WELCOME)[-1] == raised
    # and none after the next round has begun
    driven.hear(assign(R1))
    driven.do(e.LinkDown(False), e.LinkUp("10.0.0.2"))
    assert not any(isinstance(getattr(x, "message", None), m.WorkerRaised) for x in driven.hear(WELCOME))


def test_only_rank_0_reports_more_than_its_first_step() -> None:
    driven = joined()
    driven.hear(assign(R0, rank=1))
    assert len(driven.report(l.Stepped(R0, 1, None, 0.5, 7.0))) == 1
    assert driven.report(l.Stepped(R0, 2, None, 0.5, 8.0)) == []


def test_a_step_is_reported_with_the_newest_snapshot_and_the_newest_copied_one_of_its_round() -> None:
    # given the pod has copied step 3 in this round, which it has saved at 995
    driven = joined()
    driven.hear(assign(R0))
    driven.now = 1000.0
    stepped = replace(l.Stepped(R0, 5, None, 0.5, 7.0), snapshot=SnapshotAge(4, 2.0))
    assert sent_progress(driven, stepped) == (SnapshotAge(4, 2.0), None)
    driven.do(e.SnapshotCopied(SavedStep(R0, 3), 995.0))
    assert sent_progress(driven, stepped) == (SnapshotAge(4, 2.0), SnapshotAge(3, 5.0))
    # when other pods are to keep the copies
    driven.do(e.SnapshotCopied(SavedStep(NO_ROUND, -1), 0.0))
    assert sent_progress(driven, stepped) == (SnapshotAge(4, 2.0), None)
    # and when the next round begins
    driven.do(e.SnapshotCopied(SavedStep(R0, 4), 998.0))
    driven.hear(assign(R1))
    assert sent_progress(driven, replace(stepped, token=R1)) == (SnapshotAge(4, 2.0), None)


def sent_progress(driven: DrivenMember, stepped: l.Stepped) -> tuple[SnapshotAge | None, SnapshotAge | None]:
    (effect,) = driven.report(stepped)
    assert isinstance(effect, e.ToCoordinator)
    assert isinstance(effect.message, m.Progress)
    return effect.message.snapshot, effect.message.copied


def test_every_member_reports_a_step_after_a_reported_hang() -> None:
    """Found by the simulation (seed 703874): a training that made steps again counted as hanging."""
    driven = joined()
    driven.hear(assign(R0, rank=1))
    driven.report(l.Stepped(R0, 1, None, 0.5, 7.0))
    assert len(driven.report(l.Hung(R0, 0, 1, 7.0, 60.0))) == 1
    assert len(driven.report(l.Stepped(R0, 2, None, 0.5, 70.0))) == 1
    assert driven.report(l.Stepped(R0, 3, None, 0.5, 71.0)) == []


def test_the_launcher_writes_the_stacks_of_the_running_round_when_the_coordinator_asks() -> None:
    driven = joined()
    driven.hear(assign(R0, rank=1))
    assert e.ToLauncher(l.WriteStacks(R0)) in driven.hear(m.WriteStacks(R0))
    assert driven.report(l.Hung(R0, 0, -1, 0.0, 600.0)) == [e.ToCoordinator(m.Hung(R0, 0, -1, 0.0, 600.0))]
    assert driven.hear(m.WriteStacks(R1)) == []


def test_the_launcher_breaks_a_worker_of_the_running_round_alone() -> None:
    driven = joined()
    driven.hear(assign(R0, rank=1))
    assert e.ToLauncher(l.BreakWorker(R0, Drill.HANG)) in driven.hear(m.BreakWorker(R0, Drill.HANG))
    assert driven.hear(m.BreakWorker(R1, Drill.HANG)) == []


def test_a_member_that_is_set_to_standby_stops_its_workers_and_waits() -> None:
    driven = running()
    assert stops(driven.hear(m.Standby(R1)))
    assert driven.member.group_rank is None
    assert not stops(driven.hear(m.Standby(R1)))


def test_a_standby_member_claims_no_rank_when_its_workers_have_ended() -> None:
    driven = running()
    driven.hear(m.Standby(R1))
    driven.report(hello(R0, 0, WorkersState.IDLE))  # "no workers run", about the last round
    assert driven.member.group_rank is None


# Silence


def test_a_coordinator_that_sends_no_message_is_left_and_another_is_called() -> None:
    """Found by the simulation (seed 169): members stayed with a frozen coordinator that had long been replaced."""
    driven = joined()
    assert driven.later(HEARD_S - 1) == []
    effects = driven.later(2)
    disconnecting, *rest = effects
    assert isinstance(disconnecting.message, m.Disconnecting)
    assert [type(x) for x in rest] == [e.HangupCoordinator, e.Dial]
    assert driven.member.state is MembershipState.DISCONNECTED


def test_a_member_in_a_candidate_pool_reports_that_it_leaves_for_another_host() -> None:
    """Found on a real cluster: leadership was transferred to the standby coordinator of a pod whose own member waited
    in its candidate pool. The new coordinator welcomed it with all others, but it hung up to call again before it
    received that. So it counted as lost, and all members restarted.
    """
    driven = running()
    driven.hear(m.Redirect("uid-own", "10.0.0.1"))
    driven.do(e.LinkUp("10.0.0.1"))
    disconnecting, hangup, dial = driven.do(e.LeadershipAssumed())
    assert isinstance(disconnecting.message, m.Disconnecting)
    assert [type(x) for x in (hangup, dial)] == [e.HangupCoordinator, e.Dial]


@pytest.mark.parametrize(("host", "stays"), [("10.0.0.1", True), ("10.0.0.2", False)])
def test_a_member_whose_own_sidecar_is_elected_keeps_the_connection_to_it(host: str, stays: bool) -> None:
    """Found by a scenario: the round was formed at once, and its coordinator lost its own member, which called
    again.
    """
    driven = running()
    driven.hear(m.Redirect("uid-own", host))
    driven.do(e.LinkUp(host))
    effects = driven.do(e.LeadershipAssumed(elected=True))
    assert any(isinstance(x, e.HangupCoordinator) for x in effects) is not stays


def test_a_launcher_that_connects_after_its_own_sidecar_was_elected_joins_it_at_once() -> None:
    """It called the coordinator's Service, which had no endpoint yet. With one voter less, a loss cost the majority."""
    driven = DrivenMember()
    assert driven.do(e.LeadershipAssumed()) == []
    (dial,) = driven.do(e.LauncherUp(hello()))
    assert dial == e.Dial((driven.member.identity.ip, e.SERVICE))


def test_heartbeats_keep_the_coordinator() -> None:
    driven = joined()
    for _ in range(5):
        assert driven.later(HEARD_S - 1) == []
        assert driven.heartbeat() == [e.ToCoordinator(m.HeartbeatAck(1))]


def test_an_answer_says_how_long_ago_the_workers_made_a_step_in_the_heartbeats_round() -> None:
    driven = running()
    driven.report(l.Stepped(R0, 1, None, 0.5, 7.0))
    driven.now += 1.0
    assert driven.hear(m.Heartbeat(1, R0)) == [e.ToCoordinator(m.HeartbeatAck(1, 1.0))]
    assert driven.hear(m.Heartbeat(2, R1)) == [e.ToCoordinator(m.HeartbeatAck(2))]


def test_the_fence_stops_the_workers_when_no_coordinator_is_heard() -> None:
    driven = running()
    driven.do(e.LinkDown())
    assert not stops(driven.later(FENCE_S - 1))
    assert stops(driven.later(2))
    assert driven.member.workers is WorkersState.IDLE


@pytest.mark.attack(
    "C1",
    "a relay holds back messages of a coordinator that is dead by now, and lets them through one by one",
    before="the member followed it, and trained on, for as long as they lasted",
)
@pytest.mark.parametrize("late", [m.Heartbeat(7, R0), m.LeaseRenewal(1), m.WriteStacks(R0)])
def test_messages_that_come_late_do_not_extend_the_lease(late: Any) -> None:
    # given a member whose coordinator has confirmed an answer
    driven = running()
    driven.heartbeat(1)
    # when only messages arrive that the coordinator sent before
    effects = []
    for _ in range(40):
        effects += driven.later(1.0) + driven.hear(late)
        if driven.now < 1000.0 + HEARD_S:
            assert driven.member.state is MembershipState.JOINED
    # then the member looks for another coordinator after 15 s, and its workers end after 30 s
    reason = "the coordinator has confirmed no heartbeat for 15 s"
    assert e.ToCoordinator(m.Disconnecting(reason)) in effects
    assert e.HangupCoordinator(reason) in effects
    assert stops(effects)


def test_with_10000_members_messages_that_come_late_do_not_extend_the_lease_beyond_30_s() -> None:
    # given the heartbeat of a coordinator of 10,000 members
    driven = joined()
    driven.hear(replace(WELCOME, heartbeat_s=10.0))
    driven.hear(assign(R0))
    driven.report(l.WorkersStarted(R0))
    driven.heartbeat(1)
    began = driven.now
    # when only messages arrive that it sent before
    hung_up_at: list[float] = []
    for _ in range(40):
        effects = driven.later(1.0) + driven.hear(m.Heartbeat(7, R0))
        hung_up_at += [driven.now - began for x in effects if isinstance(x, e.HangupCoordinator)]
    # then the member hangs up after 30 s
    assert hung_up_at == [30.0]


def test_a_lease_counts_from_the_answer_that_the_coordinator_confirms() -> None:
    driven, disconnecting = (
        running(),
        e.ToCoordinator(m.Disconnecting("the coordinator has confirmed no heartbeat for 15 s")),
    )
    driven.later(5.0)
    driven.hear(m.Heartbeat(1, R0))
    driven.later(9.0)
    driven.hear(m.LeaseRenewal(1))
    effects = driven.later(HEARD_S - 9.0 - 0.1)
    assert disconnecting not in effects
    assert disconnecting in driven.later(0.2)


def test_heartbeats_that_are_never_confirmed_fill_no_memory() -> None:
    lease = LeaderLease(0.0)
    for number in range(100):
        lease.on_answer(number, float(number))
    lease.on_confirmation(91)
    assert lease.renewed_at == 0.0  # forgotten: the newest eight are kept
    lease.on_confirmation(92)
    assert lease.renewed_at == 92.0


def test_a_new_coordinator_in_time_prevents_the_fence() -> None:
    driven = running()
    driven.do(e.LinkDown())
    driven.later(FENCE_S - 1)
    driven.do(e.LinkUp(e.SERVICE))
    driven.hear(WELCOME)
    assert not stops(driven.later(HEARD_S - 1))


def test_there_is_no_fence_without_running_workers() -> None:
    driven = joined()
    driven.do(e.LinkDown())
    assert driven.later(10 * FENCE_S) == []


# The end


def test_a_close_is_acknowledged_recorded_and_passed_on_once() -> None:
    driven = running()
    exit_launcher = e.ToLauncher(l.ExitLauncher(0, "Succeeded: all done"))
    assert driven.hear(SUCCEEDED) == [e.RecordClose(SUCCEEDED), e.ToCoordinator(m.CloseAck()), exit_launcher]
    assert driven.hear(m.Close(CloseReason.FAILED, "too late")) == [e.ToCoordinator(m.CloseAck())]
    driven.hear(m.ShutdownComplete())
    assert driven.do(e.LauncherDown()) == [e.Finish()]


def test_if_the_coordinator_could_not_inform_all_members_the_sidecar_stays_a_while_for_callers() -> None:
    driven = running()
    driven.hear(SUCCEEDED)
    driven.do(e.LinkDown())
    assert driven.do(e.LauncherDown()) == []
    assert driven.later(LINGER_S - 0.5) == []
    assert driven.later(1) == [e.Finish()]


def test_spares_of_a_failed_job_exit_with_a_distinct_code() -> None:
    driven = joined()
    effects = driven.hear(m.Close(CloseReason.FAILED, "budget"))
    assert e.ToLauncher(l.ExitLauncher(81, "Failed: budget")) in effects


def test_a_sidecar_that_receives_the_close_before_its_launcher_connects_waits_for_it() -> None:
    """Found by the simulation (seed 902787): the operator sent the close to a sidecar that had just restarted. The
    sidecar ended at once, and its launcher waited forever.
    """
    driven = DrivenMember()
    assert driven.do(e.ClosedByOperator(SUCCEEDED)) == [e.RecordClose(SUCCEEDED)]
    assert driven.later(LINGER_S - 0.5) == []
    assert driven.do(e.LauncherUp(hello())) == [e.ToLauncher(l.ExitLauncher(0, "Succeeded: all done"))]
    assert driven.later(LINGER_S + 1) == [], "it may save"
    assert driven.do(e.LauncherDown()) == []
    assert driven.later(LINGER_S) == [e.Finish()]


def test_a_sidecar_that_restarts_after_the_close_sends_it_to_its_launcher() -> None:
    driven = DrivenMember(closed=SUCCEEDED)
    assert driven.do(e.LauncherUp(hello(R0, 0))) == [e.ToLauncher(l.ExitLauncher(0, "Succeeded: all done"))]
    assert driven.later(LINGER_S + 1) == []
    driven.do(e.LauncherDown())
    assert driven.later(LINGER_S) == [e.Finish()]


def test_if_no_launcher_connects_after_the_close_the_sidecar_ends() -> None:
    driven = DrivenMember(closed=SUCCEEDED)
    assert driven.later(LINGER_S) == [e.Finish()]


def test_a_launcher_that_connects_after_the_close_receives_it() -> None:
    driven = running()
    driven.hear(SUCCEEDED)
    assert driven.do(e.LauncherUp(hello(R0, 0))) == [e.ToLauncher(l.ExitLauncher(0, "Succeeded: all done"))]


def test_a_member_without_its_launcher_reports_that_it_is_gone() -> None:
    driven = running()
    gone = e.ToCoordinator(m.Gone("its launcher has ended"))
    assert driven.do(e.LauncherDown()) == [gone, e.HangupCoordinator("the launcher has ended")]
    assert driven.member.state is MembershipState.NO_LAUNCHER
    assert driven.member.deadline() is None


def test_a_leave_is_announced_once_and_again_on_every_new_connection() -> None:
    driven = running()
    leaving = e.ToCoordinator(m.Leaving("the trainer container got SIGTERM", 30.0))
    assert driven.report(l.Terminating(30.0)) == [leaving]
    assert driven.do(e.LeaveRequested("the sidecar got SIGTERM", 30.0)) == []
    driven.do(e.LinkDown())
    (join,) = driven.do(e.LinkUp(e.SERVICE))
    assert join.message.leaving == leaving.message


@pytest.mark.parametrize("silent", [True, False])
def test_a_join_reports_whether_the_machine_of_the_previous_coordinator_stopped_responding(silent: bool) -> None:
    # given a member whose connection to its coordinator ends, closed by a kernel or not
    driven = running()
    driven.do(e.LinkDown(silent))
    # when it calls another one
    (join,) = driven.do(e.LinkUp(e.SERVICE))
    # then its Join reports that
    assert join.message.disconnected_silently is silent


def replicas_report(token: RoundToken, fresh: int = 2) -> m.Replicas:
    return m.Replicas(token, 0, fresh, 0, 0, "step-1")


def test_the_state_of_rollouts_that_a_worker_reports_goes_to_the_coordinator_and_to_each_new_one() -> None:
    # given a member in a round
    driven = joined(R0, WorkersState.RUNNING)
    reported = replicas_report(R0)
    assert driven.do(e.FromWorker(reported)) == [e.ToCoordinator(reported)]
    # when it has to look for another coordinator
    driven.do(e.LinkDown())
    newer = replicas_report(R0, fresh=1)
    assert driven.do(e.FromWorker(newer)) == []
    driven.do(e.LinkUp("10.0.0.8"))
    # then that one receives the newest state
    effects = driven.hear(m.Welcome(R0, Term(1, 2), pod_uid="uid-standby", ip="10.0.0.8"))
    assert [x.message for x in effects if isinstance(x, e.ToCoordinator) and isinstance(x.message, m.Replicas)] == [
        newer
    ]


def test_a_report_of_a_worker_of_an_earlier_round_is_dropped() -> None:
    driven = joined(R1, WorkersState.RUNNING)
    assert driven.do(e.FromWorker(replicas_report(R0))) == []


# Node health verdicts -------------------------------------------------------------------------------------------------

BROKEN = m.NodeVerdict(Verdict.FAULTY, "gpu-xid: Xid 79", None, FaultClass.HARDWARE, at=100.0)
WITHDRAWN = m.NodeVerdict(Verdict.UNKNOWN, at=200.0)


def verdicts(effects: list[Any]) -> list[m.NodeVerdict]:
    return [effect.verdict for effect in effects if isinstance(effect, e.RecordVerdict)]


def test_the_verdict_in_the_pods_annotation_counts_until_a_newer_one_arrives() -> None:
    driven = joined()
    assert verdicts(driven.do(e.VerdictAnnotated(BROKEN))) == [BROKEN]
    assert verdicts(driven.hear(WITHDRAWN)) == [WITHDRAWN]
    assert verdicts(driven.do(e.VerdictAnnotated(BROKEN))) == []  # the kubelet is late
    assert verdicts(driven.do(e.VerdictAnnotated(replace(BROKEN, at=300.0)))) == [replace(BROKEN, at=300.0)]


def test_the_annotation_counts_without_a_coordinator_too() -> None:
    assert verdicts(DrivenMember().do(e.VerdictAnnotated(BROKEN))) == [BROKEN]


def test_an_older_verdict_of_a_coordinator_does_not_withdraw_it() -> None:
    driven = joined()
    driven.do(e.VerdictAnnotated(WITHDRAWN))
    assert verdicts(driven.hear(BROKEN)) == []


def test_a_verdict_of_an_older_operator_has_no_time_and_counts() -> None:
    driven = joined()
    driven.hear(BROKEN)
    untimed = m.NodeVerdict(Verdict.UNKNOWN)
    assert verdicts(driven.hear(untimed)) == [untimed]


def test_the_next_coordinator_receives_the_verdict() -> None:
    driven = joined()
    driven.hear(BROKEN)
    driven.do(e.LinkDown())
    (join,) = [x.message for x in driven.do(e.LinkUp("10.0.0.9")) if isinstance(x, e.ToCoordinator)]
    assert isinstance(join, m.Join)
    assert join.verdict == BROKEN


# The launcher responds, or does not


def test_a_launcher_that_does_not_respond_takes_its_pod_out_of_the_job() -> None:
    # given a member whose launcher was stopped: its connection stays
    driven = running()
    driven.launcher_responds = False
    # when it has not answered for 15 s, however the coordinator's heartbeats are answered
    effects: list[Any] = []
    for _ in range(15):
        driven.heartbeat()
        effects += driven.later(1.0)
    # then the member has pinged it, and leaves with the reason
    assert len(pings(effects)) == 3
    reason = "its launcher has not responded for 15 s"
    assert e.ToCoordinator(m.Gone(reason, launcher_is_alive=True)) in effects
    assert e.HangupCoordinator(reason) in effects
    assert driven.member.state is MembershipState.NO_LAUNCHER


def test_a_launcher_that_does_not_respond_is_ended_with_the_job() -> None:
    """Found by the simulation (seed 20): it responded again after the close, and started workers of an old round."""
    # given a member that has left because its launcher does not respond
    driven = running()
    driven.launcher_responds = False
    for _ in range(15):
        driven.heartbeat()
        driven.later(1.0)
    assert driven.member.state is MembershipState.NO_LAUNCHER
    # when the operator sends it the close, then its launcher has to exit
    assert e.ToLauncher(l.ExitLauncher(0, "Succeeded: all done")) in driven.do(e.ClosedByOperator(SUCCEEDED))


def test_the_next_coordinator_receives_that_a_launcher_stopped_responding_without_a_coordinator() -> None:
    """Found by the simulation (seed 43130): the loss of that pod was not reported, and the job waited for it."""
    # given a member that looks for a coordinator, and whose launcher does not respond for 15 s
    driven = running()
    driven.launcher_responds = False
    driven.do(e.LinkDown())
    driven.later(15.0)
    assert driven.member.state is MembershipState.DISCONNECTED
    # when it finds one, then its Join has the reason why it can take part in no round
    (join,) = [x.message for x in driven.do(e.LinkUp("10.0.0.9")) if isinstance(x, e.ToCoordinator)]
    assert isinstance(join, m.Join)
    assert (join.unable_reason, join.token) == ("its launcher has not responded for 15 s", R0)
    # and once the coordinator knows, the member does not call again
    assert e.HangupCoordinator("its launcher has not responded for 15 s") in driven.hear(WELCOME)
    state: MembershipState = driven.member.state
    assert state is MembershipState.NO_LAUNCHER


def test_a_launcher_that_responds_again_before_a_coordinator_is_found_stays_in_the_job() -> None:
    driven = running()
    driven.launcher_responds = False
    driven.do(e.LinkDown())
    driven.later(15.0)
    driven.report(l.Pong(3))
    (join,) = [x.message for x in driven.do(e.LinkUp("10.0.0.9")) if isinstance(x, e.ToCoordinator)]
    assert isinstance(join, m.Join)
    assert join.unable_reason == ""
    driven.hear(WELCOME)
    assert driven.member.state is MembershipState.JOINED


def test_that_a_launcher_has_connected_is_stored_once() -> None:
    driven = DrivenMember(launcher_known=False)
    assert e.RecordLauncher(True) in driven.do(e.LauncherUp(hello()))
    assert e.RecordLauncher(True) not in driven.do(e.LauncherUp(hello()))
    # and so is the end of its connection: its container may restart
    assert e.RecordLauncher(False) in driven.member.handle(e.LauncherDown(), driven.now)
    assert e.RecordLauncher(True) in driven.do(e.LauncherUp(hello()))


def test_a_launcher_that_does_not_connect_to_a_restarted_sidecar_causes_the_replacement_of_its_pod() -> None:
    """Found by the simulation (seed 68763): it was stopped before the job had a coordinator, and its loss was not
    reported.
    """
    # given a sidecar that restarts, and a launcher that was connected before
    driven = DrivenMember(launcher_known=True)
    # when it does not connect for 15 s
    driven.later(14.9)
    assert driven.member.unable_reason == ""
    driven.later(0.1)
    # then the operator receives the reason why the pod has to be replaced
    assert driven.member.unable_reason == "its launcher has not connected for 15 s"
    # until it connects after all
    driven.do(e.LauncherUp(hello()))
    assert driven.member.unable_reason == ""
    # and a launcher that has not started yet is not expected
    fresh = DrivenMember(launcher_known=False)
    fresh.later(600.0)
    assert fresh.member.unable_reason == ""


def test_a_close_that_comes_before_the_called_sidecar_answers_ends_the_wait_for_it() -> None:
    """Found by the simulation (seed 80261): the sidecar looped until its stopped launcher responded."""
    # given a member that calls a sidecar, and whose launcher does not respond
    driven = running()
    driven.launcher_responds = False
    driven.do(e.LinkDown())
    # when the operator sends it the close before the call is answered
    driven.do(e.ClosedByOperator(SUCCEEDED), e.LinkUp("10.0.0.9"))
    # then no deadline passes without an effect
    driven.later(60.0)


def test_a_member_that_knows_no_standby_coordinator_calls_back_the_callers_of_its_sidecar() -> None:
    """Found by the simulation (seed 86500): its sidecar had restarted before it received any."""
    driven = DrivenMember()
    driven.do(e.LauncherUp(hello()))
    assert driven.do(e.CalledBy("10.0.0.7")) == [
        e.HangupCoordinator("called by 10.0.0.7, and no standby coordinator is known"),
        e.Dial(("10.0.0.7", e.SERVICE)),
    ]
    # only once, as long as that call lasts
    assert driven.do(e.CalledBy("10.0.0.7")) == []
    # and not if it knows any, or is connected
    knows = DrivenMember(hard_state=HardState(standby_coordinators=(m.StandbyCoordinator("uid-h", "10.0.0.8"),)))
    knows.do(e.LauncherUp(hello()))
    assert knows.do(e.CalledBy("10.0.0.7")) == []
    assert joined().do(e.CalledBy("10.0.0.7")) == []


def test_any_message_of_the_launcher_is_an_answer() -> None:
    driven = running()
    driven.launcher_responds = False
    for number in range(20):
        driven.heartbeat()
        driven.report(l.Pong(number) if number % 2 else l.Stepped(R0, number, None, 0.0, 0.0))
        driven.later(4.0)
    assert driven.member.state is MembershipState.JOINED


def test_a_launcher_that_responds_again_brings_its_pod_back() -> None:
    driven = running()
    driven.launcher_responds = False
    driven.later(14.0)
    driven.heartbeat()
    driven.later(2.0)
    assert driven.member.state is MembershipState.NO_LAUNCHER
    (called,) = [x for x in driven.report(l.Pong(3)) if isinstance(x, e.Dial)]
    assert called.hosts


def test_a_sidecar_that_was_frozen_itself_gives_the_launcher_time() -> None:
    driven = running()
    driven.launcher_responds = False
    driven.now += 60.0  # both were frozen
    driven.heartbeat()
    assert not [x for x in driven.later(10.0) if isinstance(x, e.ToCoordinator) and isinstance(x.message, m.Gone)]


def test_a_worker_that_outlives_sigkill_takes_its_pod_out_of_the_job_until_it_has_ended() -> None:
    # given a member whose launcher cannot start the next round, because a killed worker sleeps in the kernel
    driven = running()
    driven.hear(assign(R1))
    assert driven.report(l.Unkillable(R1, 1, 4711, 5.0, "D")) == []
    # when the worker is still alive 15 s after SIGKILL
    effects = driven.report(l.Unkillable(R1, 1, 4711, 15.0, "D"))
    # then the member leaves, and names the process
    reason = "the worker of local rank 1 (pid 4711, state D) is alive 15 s after SIGKILL: it is stuck in the kernel"
    assert effects == [e.ToCoordinator(m.Gone(reason, 1, launcher_is_alive=True)), e.HangupCoordinator(reason)]
    assert driven.report(l.Unkillable(R1, 1, 4711, 20.0, "D")) == []
    # and when it has ended after all, the member calls again
    assert [x for x in driven.report(l.WorkersStarted(R1)) if isinstance(x, e.Dial)]


def test_a_member_without_a_coordinator_is_able_again_once_the_unkillable_process_has_ended() -> None:
    driven = running()
    driven.do(e.LinkDown())
    driven.report(l.Unkillable(R0, 1, 4711, 15.0, "D"))
    assert driven.member.unable_reason
    driven.report(l.WorkersDrained(R0))
    assert driven.member.unable_reason == ""


def test_each_coordinator_receives_the_reason_why_workers_are_not_forked() -> None:
    # given a launcher whose workers start as new processes
    driven = running()
    assert driven.report(l.ForkFallback("a thread")) == [e.ToCoordinator(m.ForkFallback("a thread"))]
    # when another coordinator welcomes this member, then it receives the reason, too
    assert e.ToCoordinator(m.ForkFallback("a thread")) in driven.hear(WELCOME)
    # and when workers are forked again, or another launcher reports no reason, the coordinator receives that
    assert driven.report(l.ForkFallback("")) == [e.ToCoordinator(m.ForkFallback(""))]
    assert not [x for x in driven.hear(WELCOME) if x == e.ToCoordinator(m.ForkFallback(""))]
    driven.report(l.ForkFallback("a thread"))
    assert e.ToCoordinator(m.ForkFallback("")) in driven.report(hello(R0, 0, WorkersState.RUNNING))


def test_the_pod_of_rank_0_sends_each_coordinator_the_modules_that_it_has_learned() -> None:
    driven = running()
    learned = e.ToCoordinator(m.Learned(("transformers",)))
    assert driven.report(l.Learned(("transformers",))) == [learned]
    assert learned in driven.hear(WELCOME)


def test_a_member_keeps_the_counts_of_its_snapshots_on_storage_for_the_metrics() -> None:
    driven = running()
    assert driven.member.stored is None
    assert driven.report(l.SnapshotsStored(3, 1, 3000, 7.5)) == []
    assert driven.member.stored == l.SnapshotsStored(3, 1, 3000, 7.5)


def test_a_pod_of_another_rank_does_not_send_them() -> None:
    driven = joined()
    driven.hear(assign(R0, rank=1))
    assert driven.report(l.Learned(("transformers",))) == []


def test_a_spare_lets_its_launcher_import_modules() -> None:
    assert joined().hear(m.Preload(("transformers",))) == [e.ToLauncher(l.Preload(("transformers",)))]


# Snapshots


SAVED = SavedSteps((SavedStep(R0, 7),), MadeStep(R0, 8))
CHOICE = RestoreChoice(SavedStep(R0, 7))


def with_snapshots() -> DrivenMember:
    """Its workers of round 1 have been started, with the snapshots of round 0."""
    driven = joined()
    driven.hear(m.Assign(R1, 0, 2, 0, 2, "10.0.0.1", 1, "first round"))
    assert driven.report(l.WorkersStarted(R1, SAVED)) == [e.ToCoordinator(m.Started(R1, SAVED))]
    return driven


def test_the_choice_is_passed_to_the_launcher_once() -> None:
    driven = with_snapshots()
    assert driven.hear(m.Restore(R1, CHOICE)) == [e.ToLauncher(l.Restore(R1, CHOICE))]
    assert driven.hear(m.Restore(R1, RestoreChoice(None, "another"))) == []


def test_the_choice_for_an_older_round_is_ignored() -> None:
    assert with_snapshots().hear(m.Restore(R0, CHOICE)) == []


def test_a_join_reports_the_snapshots_and_the_choice() -> None:
    driven = with_snapshots()
    driven.hear(m.Restore(R1, CHOICE))
    driven.do(e.LinkDown())
    sent = [x.message for x in driven.do(e.LinkUp("10.0.0.9")) if isinstance(x, e.ToCoordinator)]
    assert [x.saved for x in sent if isinstance(x, m.Join)] == [replace(SAVED, choice=CHOICE)]


def test_a_launcher_that_missed_the_choice_gets_it_with_its_hello() -> None:
    driven = with_snapshots()
    driven.hear(m.Restore(R1, CHOICE))
    hello = l.LauncherHello(1, R1, 0, WorkersState.RUNNING, 1, saved=SAVED)
    assert e.ToLauncher(l.Restore(R1, CHOICE)) in driven.report(hello)
    known = replace(hello, saved=replace(SAVED, choice=CHOICE))
    assert e.ToLauncher(l.Restore(R1, CHOICE)) not in driven.report(known)


def test_the_snapshots_of_an_older_round_are_forgotten() -> None:
    driven = with_snapshots()
    driven.hear(m.Assign(RoundToken(1, 1, 2), 0, 2, 0, 2, "10.0.0.1", 1, "a fault"))
    assert driven.hear(m.Restore(RoundToken(1, 1, 2), CHOICE)) == []


def test_the_snapshots_of_a_pod_that_lost_its_ranks_are_not_reported() -> None:
    # given the pod trained in round 0, and round 1 gave its ranks to another one
    driven = joined(R0, WorkersState.RUNNING)
    driven.hear(m.Standby(R1))
    # when it gets ranks again, and a new coordinator may not know of round 1
    newer = RoundToken(2, 1, 1)
    driven.hear(m.Assign(newer, 0, 2, 0, 2, "10.0.0.1", 1, "a fault"))
    reported = driven.report(l.WorkersStarted(newer, SAVED))
    assert reported == [e.ToCoordinator(m.Started(newer, replace(SAVED, whole=())))]


# The coordinator's machine

LOOK = e.WatchCoordinator()
LOST = e.ToCoordinator(m.Disconnecting("the coordinator's machine acknowledges no packet, and a step is late"))


def stepping(rank: int = 1) -> DrivenMember:
    """A member whose workers have just made a step, and make one every 0.1 s."""
    driven = joined()
    driven.hear(assign(R0, rank))
    driven.report(l.WorkersStarted(R0))
    driven.report(stepped(1))
    return driven


def stepped(step: int) -> l.Stepped:
    return l.Stepped(R0, step, None, 0.1, 1000.0)


def test_a_member_looks_at_the_machine_of_its_coordinator_for_3_s_after_a_step_is_late() -> None:
    driven = stepping()
    # given a training whose next step is late after twice its median step, at least 0.5 s, and the time of a report
    assert LOOK not in driven.later(0.74)
    # when it is late
    assert driven.later(0.02) == [LOOK]
    assert driven.later(3.0).count(LOOK) == 12
    # then the member looks no more: a long save makes a step as late
    assert LOOK not in driven.later(4.0)
    # until a step is made, and the next one is late
    driven.report(stepped(2))
    assert LOOK in driven.later(0.8)


def test_a_member_whose_step_is_late_leaves_a_coordinator_whose_machine_acknowledges_no_packet() -> None:
    # given a member whose step is late
    driven = stepping()
    driven.later(0.8)
    # when the machine of its coordinator does not respond
    sent, *others = driven.do(e.CoordinatorUnreachable())
    # then it calls the next host before its kernel ends the connection
    assert sent == LOST
    assert others[-1] == e.Dial(("10.0.0.9", e.SERVICE))
    # and its Join reports both
    (join,) = driven.do(e.LinkUp(e.SERVICE))
    assert (join.message.disconnected_silently, join.message.has_stopped) == (True, True)


def test_a_member_whose_workers_make_steps_stays() -> None:
    """The training may run over another network."""
    driven = stepping()
    driven.later(0.7)
    assert driven.do(e.CoordinatorUnreachable()) == []


def test_drained_workers_that_save_are_not_late() -> None:
    driven = stepping()
    driven.hear(m.Drain(R0, 60.0))
    assert LOOK not in driven.later(4.0)
    assert driven.do(e.CoordinatorUnreachable()) == []


def test_a_waiting_member_looks_if_another_member_has_lost_the_same_coordinator() -> None:
    # given a spare
    driven = joined()
    assert driven.do(e.CoordinatorUnreachable()) == []
    # when a member calls its sidecar, because the machine of the coordinator of this term went silent
    assert driven.do(e.CalledBy("10.0.0.7", Term(1, 1))) == [LOOK]
    assert driven.member.doubts_coordinator
    # then it leaves this coordinator too if that machine does not respond
    effects = driven.do(e.CoordinatorUnreachable())
    assert e.Dial(("10.0.0.9", e.SERVICE)) in effects
    assert not driven.member.doubts_coordinator
    (join,) = driven.do(e.LinkUp(e.SERVICE))
    assert join.message.disconnected_silently


def test_a_member_that_looks_in_vain_for_a_second_stays() -> None:
    driven = joined()
    driven.do(e.CalledBy("10.0.0.7", Term(1, 1)))
    assert driven.later(0.99) == [LOOK, LOOK, LOOK]
    assert driven.member.doubts_coordinator
    driven.later(0.02)
    assert not driven.member.doubts_coordinator
    assert driven.do(e.CoordinatorUnreachable()) == []


@pytest.mark.parametrize("term", [None, Term(1, 2)], ids=["a kernel closed its connection", "of another coordinator"])
def test_other_callers_cause_no_look(term: Term | None) -> None:
    driven = joined()
    assert driven.do(e.CalledBy("10.0.0.7", term)) == []
    assert not driven.member.doubts_coordinator


def test_a_called_member_whose_workers_make_steps_leaves_only_when_a_step_is_late() -> None:
    driven = stepping()
    driven.later(0.7)
    driven.do(e.CalledBy("10.0.0.7", Term(1, 1)))
    assert driven.do(e.CoordinatorUnreachable()) == []
    driven.later(0.1)
    assert LOST in driven.do(e.CoordinatorUnreachable())


def test_the_first_step_after_a_join_of_a_stopped_training_is_sent_by_each_member() -> None:
    # given a member that is not of rank 0, and has joined another coordinator while its step was late
    driven = stepping(rank=1)
    driven.later(0.8)
    driven.do(e.LinkDown(True), e.LinkUp("10.0.0.9"))
    driven.hear(replace(WELCOME, term=Term(1, 2)))
    # when it makes steps
    first, second = driven.report(stepped(2)), driven.report(stepped(3))
    # then it sends the first one, which shows that the training goes on
    assert [x.message.step for x in first] == [2]
    assert second == []


def test_a_step_before_the_welcome_is_reported_by_another_join() -> None:
    driven = stepping(rank=1)
    driven.later(0.8)
    driven.do(e.LinkDown(True))
    (before,) = driven.do(e.LinkUp("10.0.0.9"))
    driven.report(stepped(2))
    joins = [x.message for x in driven.hear(replace(WELCOME, term=Term(1, 2))) if isinstance(x, e.ToCoordinator)]
    after = next(x for x in joins if isinstance(x, m.Join))
    assert (before.message.has_stopped, after.has_stopped) == (True, False)


def test_a_coordinator_whose_process_alone_hangs_may_return() -> None:
    """Its kernel acknowledges packets, so the workers of its pod may train."""
    # given a member whose step is late, and whose coordinator confirms no heartbeat
    driven = stepping()
    driven.later(HEARD_S)
    # when it calls another one
    (join,) = driven.do(e.LinkUp(e.SERVICE))
    # then its Join does not report that the training has stopped with a machine
    assert (join.message.disconnected_silently, join.message.has_stopped) == (True, False)
