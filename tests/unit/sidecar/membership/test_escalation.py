"""The coordinator's restart policy ladder: the pods that it evicts, the faults that it charges, and its reports."""

from __future__ import annotations

import pytest

from tests.unit.sidecar.membership.driven import DrivenCoordinator, running
from understudy_protocol import membership as m
from understudy_protocol.enums import CloseReason, ConfigVersion, Fault, RoundToken, Strategy, Verdict, WorkersState
from understudy_protocol.observer import End, NodeFact, Nodes
from understudy_sidecar.membership.events import Dropped, FromOperator

CONFIG_CHANGE_S = 0.5
GATHER_S = 0.02

ALL_MEMBERS = ("active-0", "active-1", "active-2", "spare-0", "spare-1")
TWICE = "pod active-1 failed twice within 1 h"


def job(**given: object) -> DrivenCoordinator:
    """Three active members and a spare that does not coordinate; a second fault of a pod evicts it."""
    return running(3, max_in_place=10, **{"in_place_max_per_pod": 1, **given})  # type: ignore[arg-type]


def fails_and_restarts(driven: DrivenCoordinator, name: str) -> None:
    """Its worker fails, and the next round makes steps."""
    driven.fail_worker(name)
    driven.answer_heartbeats(*(x for x in ALL_MEMBERS if x in driven.sent))
    assigned = driven.assigned()
    driven.report_started(*assigned)
    driven.report_step(next(iter(assigned)))
    driven.now += 0.1


def failed_at_the_start(name: str) -> DrivenCoordinator:
    """Its worker has failed twice, the second time before the first step of a round: the next one waits a second."""
    driven = running(3, max_in_place=10, backoff_max_s=60.0)
    driven.fail_worker(name)
    driven.report_started(*driven.assigned())
    driven.later(0.1)
    driven.fail_worker(name, "a peer has gone")
    return driven


def charged(driven: DrivenCoordinator) -> int:
    return sum(fault.is_charged for fault in driven.coordinator.state.fault_history.in_window(driven.now))


# A pod that fails again


def test_a_pod_that_fails_twice_gives_its_ranks_to_a_spare_and_receives_the_reason() -> None:
    driven = job()
    fails_and_restarts(driven, "active-1")
    # when its worker fails again, and all other members answer
    driven.fail_worker("active-1")
    assert driven.assigned() == {}
    driven.answer_heartbeats("active-0", "active-2")
    # then a spare has its ranks, and the operator is to replace the pod
    assert driven.assigned() == {"active-0": 0, "spare-0": 1, "active-2": 2}
    assert driven.take("active-1", m.Evicted) == [m.Evicted(driven.coordinator.term, TWICE)]
    assert driven.hung_up == ["active-1"]
    assert driven.lost_pods() == {"active-1": "Process"}
    recovery = driven.recovery()
    assert (recovery.strategy, recovery.cause.pod, recovery.reason) == (Strategy.SPARE_SWAP, "active-1", TWICE)


def test_the_first_fault_reports_how_many_restarts_are_left() -> None:
    driven = job()
    fails_and_restarts(driven, "active-1")
    assert (driven.recovery().strategy, driven.recovery().reason) == (Strategy.IN_PLACE, "restart 1 of 10 within 1 h")


def test_faults_of_different_pods_evict_no_pod() -> None:
    driven = job()
    for name in ("active-0", "active-1", "active-2"):
        fails_and_restarts(driven, name)
    assert driven.lost_pods() == {}
    assert charged(driven) == 3


def test_a_fault_that_is_older_than_the_window_does_not_count() -> None:
    driven = job()
    fails_and_restarts(driven, "active-1")
    driven.later(3601.0, *ALL_MEMBERS[:4])
    fails_and_restarts(driven, "active-1")
    assert driven.lost_pods() == {}
    assert driven.recovery().reason == "restart 1 of 10 within 1 h"


def test_without_a_spare_the_round_waits_for_the_pod_that_the_operator_creates() -> None:
    driven = job(spares=0)
    fails_and_restarts(driven, "active-1")
    driven.fail_worker("active-1")
    driven.answer_heartbeats("active-0", "active-2")
    assert driven.assigned() == {}
    assert driven.lost_pods() == {"active-1": "Process"}
    driven.later(5.0, "active-0", "active-2")
    driven.join("spare-1")
    assert driven.assigned() == {"active-0": 0, "spare-1": 1, "active-2": 2}
    recovery = driven.recovery()
    assert (recovery.strategy, recovery.reason) == (Strategy.POD_RECREATE, f"{TWICE}; no spare was available")


def test_an_elastic_job_waits_for_its_spare_timeout_only() -> None:
    driven = job(spares=0, min_actives=2, spare_timeout_s=30.0)
    fails_and_restarts(driven, "active-1")
    driven.fail_worker("active-1")
    driven.answer_heartbeats("active-0", "active-2")
    driven.later(31.0, "active-0", "active-2")
    assert driven.assigned() == {"active-0": 0, "active-2": 1}
    assert driven.recovery().reason == f"{TWICE}; no pod was available for its ranks within 30 s"


def test_an_evicted_member_that_comes_back_is_evicted_again_and_gets_no_ranks() -> None:
    driven = job()
    fails_and_restarts(driven, "active-1")
    fails_and_restarts(driven, "active-1")
    driven.sent.clear()
    driven.join("active-1", driven.token, 1, WorkersState.FAILED)
    assert driven.take("active-1", m.Evicted) == [m.Evicted(driven.coordinator.term, TWICE)]
    assert driven.take("active-1", m.Welcome) == []
    driven.drop("active-0")
    assert driven.assigned() == {}
    assert driven.lost_pods() == {"active-1": "Process", "active-0": "Pod"}


# The rank's own fault


def test_a_rank_that_always_fails_costs_one_spare_and_then_the_budget_and_the_job() -> None:
    driven = running(3, spares=2, max_in_place=4, in_place_max_per_pod=1)
    holders = ["active-1"]
    while driven.coordinator.closed is None:
        driven.fail_worker(holders[-1])
        driven.answer_heartbeats(*(x for x in ALL_MEMBERS if x != holders[-1] and x in driven.sent))
        assigned = driven.assigned()
        if assigned:
            holders.append(next(name for name, rank in assigned.items() if rank == 1))
            driven.report_started(*assigned)
            driven.report_step("active-0")
    assert holders == ["active-1", "active-1", "spare-0", "spare-0", "spare-0"]
    close = driven.coordinator.closed
    assert close.reason is CloseReason.FAILED
    assert close.message == (
        "the budget of 4 restarts within 1 h is spent, and rank 1 failed on another pod as well; "
        "recoveries so far: InPlace 3, SpareSwap 1; the last failure: rank 1 on spare-0: exit code 1"
    )


# The budget


def test_with_the_budget_spent_one_more_pod_is_evicted_and_then_the_job_fails() -> None:
    driven = running(3, max_in_place=2)
    fails_and_restarts(driven, "active-0")
    fails_and_restarts(driven, "active-1")
    fails_and_restarts(driven, "active-2")
    spent = "the budget of 2 restarts within 1 h is spent"
    assert (driven.recovery().strategy, driven.recovery().reason) == (Strategy.SPARE_SWAP, spent)
    assert driven.lost_pods() == {"active-2": "Process"}
    driven.fail_worker("active-0", "out of memory")
    driven.answer_heartbeats(*list(driven.sent))  # none was lost before
    driven.answer_heartbeats(*list(driven.sent))  # a majority confirms that the coordinator is followed
    assert driven.coordinator.closed is not None
    why = "a pod has already been replaced because of that"
    assert driven.coordinator.closed.message.startswith(f"{spent}, and {why}; ")
    assert driven.coordinator.closed.message.endswith("the last failure: rank 0 on active-0: out of memory")


def with_a_spent_budget() -> DrivenCoordinator:
    """One more worker fault of any pod ends the job."""
    driven = running(3, spares=2, max_in_place=1)
    fails_and_restarts(driven, "active-0")
    fails_and_restarts(driven, "active-1")
    assert driven.lost_pods() == {"active-1": "Process"}
    return driven


def test_a_member_that_was_asked_to_end_before_its_answer_ends_no_job() -> None:
    """Found by the simulation (seed 708422): the peer's failure came before the member's Leaving."""
    # given a budget that is spent, and a worker that fails because a peer leaves
    driven = with_a_spent_budget()
    driven.fail_worker("active-0", "a peer has gone")
    assert driven.coordinator.snapshot().waiting_for == "answers of 2 members before the job fails"
    # when a majority has answered, and then the leaving member's messages arrive
    driven.answer_heartbeats("active-0", "spare-0", "spare-1")
    assert driven.coordinator.closed is None
    driven.receive("active-2", m.Leaving("the trainer container got SIGTERM", 30.0))
    driven.answer_heartbeats("active-2")
    driven.receive("active-2", m.Gone("its launcher has ended"))
    # then it is the cause, its ranks go to another pod, and the job trains on
    assert driven.coordinator.closed is None
    assert driven.assigned() == {"active-0": 0, "spare-0": 1, "spare-1": 2}
    assert (driven.recovery().fault, driven.recovery().cause.pod) == (Fault.POD, "active-2")


def test_a_member_that_does_not_answer_ends_no_job() -> None:
    driven = with_a_spent_budget()
    driven.fail_worker("active-0", "a peer has gone")
    driven.later(3.1, "active-0", "spare-0", "spare-1")
    assert driven.coordinator.closed is None
    assert driven.lost_pods() == {"active-1": "Process", "active-2": "Node"}
    assert driven.assigned() == {"active-0": 0, "spare-0": 1, "spare-1": 2}


def test_a_lost_pod_a_drained_pod_and_a_pod_that_leaves_a_faulty_node_are_not_charged() -> None:
    driven = running(3, spares=3, max_in_place=0)
    driven.drop("active-0")
    assert driven.recovery().reason == "its pod is lost"
    driven.report_started(*driven.assigned())
    # when a pod is asked to end, and workers fail because of that
    driven.receive("active-1", m.Leaving("the trainer container got SIGTERM", 30.0))
    driven.fail_worker("active-2", "a peer has gone")
    for name in ("active-2", "spare-0"):
        driven.receive(name, m.Drained(driven.token))
    driven.receive("active-1", m.Gone("its launcher has ended"))
    assert driven.recovery().reason == "its pod was asked to end"
    driven.report_started(*driven.assigned())
    driven.receive("active-2", m.Leaving("the trainer container got SIGTERM", 30.0, Verdict.FAULTY))
    driven.report_started(*driven.assigned())
    assert (driven.coordinator.closed, charged(driven)) == (None, 0)
    assert [x.cause.pod for x in driven.coordinator.snapshot().recoveries] == ["active-0", "active-1", "active-2"]


def test_a_fault_on_a_faulty_node_evicts_the_pod_at_once_and_is_not_charged() -> None:
    driven = job()
    driven.do(FromOperator(Nodes((NodeFact("node-of-active-1", hardware_finding="Xid 79"),))))
    driven.fail_worker("active-1")
    driven.answer_heartbeats("active-0", "active-2")
    assert driven.assigned() == {"active-0": 0, "spare-0": 1, "active-2": 2}
    assert driven.recovery().reason == "node node-of-active-1 is Faulty: Xid 79"
    assert charged(driven) == 0


# No innocent pod is evicted


def test_a_member_that_was_lost_before_is_the_cause_and_no_pod_is_evicted() -> None:
    driven = job()
    fails_and_restarts(driven, "active-1")
    driven.later(0.1)
    driven.fail_worker("active-1", "a peer has gone")
    driven.answer_heartbeats("active-2")
    driven.drop("active-0")
    assert driven.assigned() == {"spare-0": 0, "active-1": 1, "active-2": 2}
    assert (driven.recovery().fault, driven.recovery().cause.pod) == (Fault.POD, "active-0")
    assert charged(driven) == 1
    assert driven.take("active-1", m.Evicted) == []


def test_a_member_whose_last_message_was_delayed_is_the_cause_if_it_is_lost_before_its_answer() -> None:
    """Found by the simulation (seed 629003): the slow network delivered its last step after the peer's failure."""
    driven = job()
    fails_and_restarts(driven, "active-1")
    driven.fail_worker("active-1", "a peer has gone")
    driven.later(0.1)
    driven.report_step("active-0")
    driven.answer_heartbeats("active-2")
    driven.drop("active-0")
    assert driven.assigned() == {"spare-0": 0, "active-1": 1, "active-2": 2}
    assert (driven.recovery().fault, driven.recovery().cause.pod) == (Fault.POD, "active-0")
    assert charged(driven) == 1


def test_a_member_whose_launcher_had_ended_is_the_cause_although_its_report_comes_while_the_next_round_waits() -> None:
    """Found by the simulation (seed 1365675): its slow network delivered the report half a second late."""
    driven = failed_at_the_start("active-1")
    assert (driven.assigned(), charged(driven)) == ({}, 2)
    # when another member, which has sent nothing since, reports that its launcher has ended
    driven.later(0.5)
    driven.receive("active-0", m.Gone("its launcher has ended"))
    # then it is the cause, its peer's failure is not charged, and a spare has its ranks at once
    assert (driven.recovery().fault, driven.recovery().cause.pod) == (Fault.POD, "active-0")
    assert charged(driven) == 1
    assert driven.assigned() == {"spare-0": 0, "active-1": 1, "active-2": 2}


def test_a_member_is_the_cause_although_an_older_message_of_it_comes_while_the_next_round_waits() -> None:
    """Found by the simulation (seed 1568065): the answer of a deleted pod to a voter configuration was delayed."""
    driven = failed_at_the_start("active-1")
    # when answers arrive that another member may have sent before, and then its connection ends
    driven.later(0.2)
    driven.receive("active-0", m.ConfigChangeAck(ConfigVersion(1, 1, 1)))
    driven.receive("active-0", m.HeartbeatAck(driven.coordinator.state.heartbeat - 1))
    driven.later(0.1)
    driven.drop("active-0")
    # then it is the cause, and its peer's failure is not charged
    assert (driven.recovery().fault, driven.recovery().cause.pod) == (Fault.POD, "active-0")
    assert charged(driven) == 1


@pytest.mark.parametrize("is_answer", [True, False])
def test_a_launcher_that_ends_after_an_answer_to_the_failure_of_a_peer_is_another_fault(is_answer: bool) -> None:
    # given a failure, and another member that has answered a heartbeat since, or has reported that its worker ended too
    driven = failed_at_the_start("active-1")
    driven.later(0.1)
    if is_answer:
        driven.answer_heartbeats("active-0")
    else:
        driven.fail_worker("active-0", "a peer has gone")
    # when its launcher ends
    driven.receive("active-0", m.Gone("its launcher has ended"))
    # then both are faults
    reported = [(x.fault, x.cause.pod) for x in driven.coordinator.snapshot().recoveries]
    assert reported[-2:] == [(Fault.PROCESS, "active-1"), (Fault.POD, "active-0")]
    assert charged(driven) == 2


def test_a_member_that_was_lost_before_is_the_cause_although_another_one_was_lost_in_between() -> None:
    """Found by the simulation (seed 874383): a frozen coordinator found the messages of many seconds at once."""
    # given a coordinator that did not run, and a member that disconnected meanwhile
    driven = running(3, spares=3, max_in_place=10)
    driven.later(0.1, *ALL_MEMBERS)
    driven.now += 20.0
    driven.drop("active-0")
    driven.fail_worker("active-1", "a peer has gone")
    # when a third one is lost, and then the disconnected one does not come back
    driven.answer_heartbeats("active-1", "active-2", "spare-0", "spare-1", "spare-2")
    driven.receive("active-2", m.Gone("its sidecar cannot store its state"))
    driven.later(2.1, "active-1", "spare-0", "spare-1", "spare-2")
    # then it is the cause of the worker's failure, and nothing is charged
    reported = [(x.fault, x.cause.pod) for x in driven.coordinator.snapshot().recoveries]
    assert reported == [(Fault.POD, "active-0"), (Fault.POD, "active-2")]
    assert charged(driven) == 0


def test_a_member_that_does_not_answer_is_the_cause() -> None:
    driven = job()
    fails_and_restarts(driven, "active-1")
    driven.later(0.1)
    driven.fail_worker("active-1", "a peer has gone")
    assert "before pod active-1 is replaced" in driven.coordinator.snapshot().waiting_for
    driven.later(3.1, "active-1", "active-2", "spare-0")
    assert driven.lost_pods() == {"active-0": "Node"}
    assert driven.assigned() == {"spare-0": 0, "active-1": 1, "active-2": 2}


def test_if_the_worker_of_another_pod_failed_earlier_no_pod_is_evicted() -> None:
    """Its report took longer to arrive."""
    driven = job()
    fails_and_restarts(driven, "active-1")
    driven.fail_worker("active-1", "a peer has gone", at=driven.now)
    driven.fail_worker("active-0", "exit code 1", at=driven.now - 0.2)
    driven.answer_heartbeats("active-0", "active-2")
    assert driven.assigned() == {"active-0": 0, "active-1": 1, "active-2": 2}
    assert driven.recovery().reason.endswith("but it is not known which pod failed first")
    assert charged(driven) == 2


def test_a_pod_is_evicted_although_its_peers_fail_after_it() -> None:
    driven = job()
    fails_and_restarts(driven, "active-1")
    driven.fail_worker("active-1", at=driven.now)
    driven.fail_worker("active-0", "a peer has gone", at=driven.now + 0.2)
    driven.answer_heartbeats("active-0", "active-2")
    assert driven.lost_pods() == {"active-1": "Process"}


def test_the_loss_of_a_member_after_its_answer_is_another_fault() -> None:
    driven = job(spares=2)
    fails_and_restarts(driven, "active-1")
    driven.fail_worker("active-1")
    driven.answer_heartbeats("active-0", "active-2")
    driven.later(0.1)
    driven.drop("active-0")  # it has not acknowledged the next round
    reported = [(x.fault, x.cause.pod) for x in driven.coordinator.snapshot().recoveries]
    assert reported[1:] == [(Fault.PROCESS, "active-1"), (Fault.POD, "active-0")]
    assert charged(driven) == 2


def test_a_pod_that_ends_by_itself_before_its_eviction_is_not_charged() -> None:
    """A kernel that is out of memory may take the whole container."""
    driven = job()
    fails_and_restarts(driven, "active-1")
    driven.fail_worker("active-1", "killed by SIGKILL")
    driven.receive("active-1", m.Gone("its launcher has ended"))
    driven.answer_heartbeats("active-0", "active-2")
    assert driven.assigned() == {"active-0": 0, "spare-0": 1, "active-2": 2}
    assert (driven.recovery().fault, charged(driven)) == (Fault.POD, 1)


def test_the_end_of_the_job_comes_first() -> None:
    driven = job()
    fails_and_restarts(driven, "active-1")
    driven.fail_worker("active-1")
    driven.do(FromOperator(End(CloseReason.SUSPENDED, "suspended")))
    driven.answer_heartbeats("active-0", "active-2")
    assert driven.take("active-1", m.Evicted) == []


# Several faults at once, and during a recovery


def test_pods_that_are_lost_at_once_are_one_round_and_an_entry_each() -> None:
    driven = job(spares=2)
    driven.at_once(Dropped(driven.link("active-0"), silent=False))
    driven.now += GATHER_S / 2
    driven.drop("active-1")
    assert driven.assigned() == {"spare-0": 0, "spare-1": 1, "active-2": 2}
    assert (driven.token.round, charged(driven)) == (1, 0)
    assert [x.cause.pod for x in driven.coordinator.snapshot().recoveries] == ["active-0", "active-1"]


def test_two_workers_that_die_at_once_are_one_round_and_one_charge() -> None:
    driven = job()
    driven.fail_worker("active-1", "killed by SIGKILL")
    driven.fail_worker("active-2", "killed by SIGKILL", RoundToken(1, 1, 0))
    assert driven.token.round == 1
    assert charged(driven) == 1


def test_a_fault_before_the_round_has_started_everywhere_is_not_charged_twice() -> None:
    driven = job(backoff_max_s=0.0)
    driven.fail_worker("active-1")
    driven.report_started("active-1")  # the others' workers have not started yet
    driven.fail_worker("active-1")
    assert charged(driven) == 1
    assert driven.recovery().reason == "active-1 failed again before the round had started everywhere"
    assert driven.token.round == 2


def test_a_second_fault_before_the_round_has_started_everywhere_is_another_fault() -> None:
    """Otherwise a script that ends at once would never end the job."""
    driven = job(backoff_max_s=0.0)
    for _ in range(3):
        driven.fail_worker("active-1")
        driven.report_started("active-1")
    driven.answer_heartbeats("active-0", "active-2")
    assert driven.lost_pods() == {"active-1": "Process"}


def test_a_fault_of_another_pod_during_a_recovery_is_charged() -> None:
    driven = job()
    driven.fail_worker("active-1")
    driven.report_started("active-1")
    driven.fail_worker("active-2")
    assert charged(driven) == 2


# The coordinator's own pod


def committed(driven: DrivenCoordinator) -> DrivenCoordinator:
    driven.coordinator.state.pod_uid = "uid-active-1"
    driven.later(CONFIG_CHANGE_S + 0.1, *ALL_MEMBERS[:4])
    assert driven.coordinator.snapshot().voters
    return driven


def test_a_coordinator_that_evicts_its_own_pod_transfers_its_leadership_and_state_to_a_standby_coordinator() -> None:
    driven = committed(job())
    fails_and_restarts(driven, "active-1")
    driven.sent.clear()
    driven.fail_worker("active-1")
    driven.answer_heartbeats("active-0", "active-2")
    assert driven.take("active-1", m.Evicted)[0].reason == TWICE
    assert driven.take("active-2", m.Redirect)[0].pod_uid == "uid-spare-0"
    assert driven.step_down_reason
    history = driven.take("spare-0", m.LeaderSnapshot)[-1].history
    assert history.evicted == {"uid-active-1": TWICE}
    assert [(x.pod_uid, x.caused_eviction) for x in history.counted_faults] == [
        ("uid-active-1", False),
        ("uid-active-1", True),
    ]


def test_a_coordinator_does_not_evict_its_own_pod_if_no_other_member_would_know_of_it() -> None:
    """A job of one pod would never end: each recreated pod starts without any history."""
    driven = running(1, spares=0, max_in_place=2, in_place_max_per_pod=1)
    driven.coordinator.state.pod_uid = "uid-active-0"
    for _ in range(2):
        fails_and_restarts(driven, "active-0")
    driven.fail_worker("active-0")
    assert driven.lost_pods() == {}
    driven.answer_heartbeats(*list(driven.sent))  # a majority confirms that the coordinator is followed
    assert driven.coordinator.closed is not None
    assert (
        "without it the other pods cannot elect a coordinator that knows of the replacement"
        in driven.coordinator.closed.message
    )


def test_a_failure_that_a_restarted_sidecar_reports_prevents_an_eviction() -> None:
    """Found by the simulation (seed 105144): a sidecar and its worker had been killed at the same time."""
    # given a pod that is to be replaced, and another pod that the coordinator pings
    driven = running(3, in_place_max_per_pod=0)
    driven.fail_worker("active-1", "a peer has gone")
    driven.answer_heartbeats("active-0")
    # when the other one comes back on a new connection, and its worker has failed at an unknown time
    driven.join("active-2", driven.token, 2, WorkersState.FAILED)
    # then no pod is replaced
    assert driven.lost_pods() == {}
    assert driven.recovery().reason.endswith("it is not known which pod failed first")


def test_a_coordinator_does_not_evict_its_own_pod_if_the_others_could_not_elect_a_coordinator() -> None:
    """Found by the simulation (seed 96974): two of four voters were left, and the operator was away."""
    # given four voters, one of which does not respond, and a coordinator whose own pod has failed once
    driven = running(3, in_place_max_per_pod=1)
    driven.coordinator.state.pod_uid = "uid-active-0"
    driven.later(CONFIG_CHANGE_S + 0.1, "active-0", "active-1", "active-2", "spare-0")
    fails_and_restarts(driven, "active-0")
    driven.drop("spare-0", silent=True)
    # when it fails once more, then the pod stays
    driven.fail_worker("active-0")
    assert driven.lost_pods() == {}
    assert (
        "without it the other pods cannot elect a coordinator that knows of the replacement" in driven.recovery().reason
    )


@pytest.mark.parametrize("workers", [WorkersState.FAILED, WorkersState.IDLE])
def test_a_pod_is_not_evicted_for_a_fault_of_the_time_without_a_coordinator(workers: WorkersState) -> None:
    driven = DrivenCoordinator(2, epoch=2, at_least_round=3, in_place_max_per_pod=0)
    driven.join("spare-0")
    driven.join("active-0", RoundToken(1, 1, 3), 0, WorkersState.RUNNING)
    driven.join("active-1", RoundToken(1, 1, 3), 1, workers)
    assert driven.assigned() == {"active-0": 0, "active-1": 1}
