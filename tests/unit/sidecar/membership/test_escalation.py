"""The ladder of recoveries in office: who is given up, who is not, what it costs, and what is told."""

from __future__ import annotations

import pytest

from tests.unit.sidecar.membership.driven import Driven, running
from understudy_protocol import membership as m
from understudy_protocol.observer import End, NodeFact, Nodes
from understudy_protocol.words import CloseReason, Fault, RoundToken, Strategy, Verdict, WorkersState
from understudy_sidecar.membership.events import Dropped, Told

SUCCESSION_S = 0.5
GATHER_S = 0.02

EVERYBODY = ("active-0", "active-1", "active-2", "spare-0", "spare-1")
TWICE = "pod active-1 failed twice within 1 h"


def job(**given: object) -> Driven:
    """Three actives and a spare that coordinates nothing; a second fault of a pod is one too many."""
    return running(3, max_in_place=10, **{"in_place_max_per_pod": 1, **given})  # type: ignore[arg-type]


def fails_and_restarts(office: Driven, name: str) -> None:
    """Its worker fails, and the next round steps."""
    office.worker_fails(name)
    office.answers(*(x for x in EVERYBODY if x in office.sent))
    seated = office.assigned()
    office.started(*seated)
    office.stepped(next(iter(seated)))
    office.now += 0.1


def charged(office: Driven) -> int:
    return sum(offence.charged for offence in office.coordinator.desk.offences.within(office.now))


# A pod that fails again


def test_a_pod_that_fails_twice_gives_its_ranks_to_a_spare_and_is_told_why() -> None:
    office = job()
    fails_and_restarts(office, "active-1")
    # when its worker fails again, and everybody else proves to be there
    office.worker_fails("active-1")
    assert office.assigned() == {}
    office.answers("active-0", "active-2")
    # then a spare has its ranks, and the operator is to replace the pod
    assert office.assigned() == {"active-0": 0, "spare-0": 1, "active-2": 2}
    assert office.take("active-1", m.GivenUp) == [m.GivenUp(office.coordinator.office, TWICE)]
    assert office.hung_up == ["active-1"]
    assert office.lost() == {"active-1": "Process"}
    recovery = office.recovery()
    assert (recovery.strategy, recovery.cause.pod, recovery.reason) == (Strategy.SPARE_SWAP, "active-1", TWICE)


def test_its_first_fault_says_how_many_restarts_are_left() -> None:
    office = job()
    fails_and_restarts(office, "active-1")
    assert (office.recovery().strategy, office.recovery().reason) == (Strategy.IN_PLACE, "restart 1 of 10 within 1 h")


def test_faults_of_different_pods_give_nobody_up() -> None:
    office = job()
    for name in ("active-0", "active-1", "active-2"):
        fails_and_restarts(office, name)
    assert office.lost() == {}
    assert charged(office) == 3


def test_what_is_older_than_the_window_does_not_count() -> None:
    office = job()
    fails_and_restarts(office, "active-1")
    office.later(3601.0, *EVERYBODY[:4])
    fails_and_restarts(office, "active-1")
    assert office.lost() == {}
    assert office.recovery().reason == "restart 1 of 10 within 1 h"


def test_without_a_spare_the_round_waits_for_the_pod_that_the_operator_makes() -> None:
    office = job(spares=0)
    fails_and_restarts(office, "active-1")
    office.worker_fails("active-1")
    office.answers("active-0", "active-2")
    assert office.assigned() == {}
    assert office.lost() == {"active-1": "Process"}
    office.later(5.0, "active-0", "active-2")
    office.join("spare-1")
    assert office.assigned() == {"active-0": 0, "spare-1": 1, "active-2": 2}
    recovery = office.recovery()
    assert (recovery.strategy, recovery.reason) == (Strategy.POD_RECREATE, f"{TWICE}; no spare was available")


def test_an_elastic_job_waits_for_its_spare_timeout_only() -> None:
    office = job(spares=0, min_actives=2, spare_timeout_s=30.0)
    fails_and_restarts(office, "active-1")
    office.worker_fails("active-1")
    office.answers("active-0", "active-2")
    office.later(31.0, "active-0", "active-2")
    assert office.assigned() == {"active-0": 0, "active-2": 1}
    assert office.recovery().reason == f"{TWICE}; no pod was available for its ranks within 30 s"


def test_one_that_comes_back_is_told_again_and_gets_no_ranks() -> None:
    office = job()
    fails_and_restarts(office, "active-1")
    fails_and_restarts(office, "active-1")
    office.sent.clear()
    office.join("active-1", office.token, 1, WorkersState.FAILED)
    assert office.take("active-1", m.GivenUp) == [m.GivenUp(office.coordinator.office, TWICE)]
    assert office.take("active-1", m.Welcome) == []
    office.drop("active-0")
    assert office.assigned() == {}
    assert office.lost() == {"active-1": "Process", "active-0": "Pod"}


# The rank's own fault


def test_a_rank_that_always_fails_costs_one_spare_and_then_the_budget_and_the_job() -> None:
    office = running(3, spares=2, max_in_place=4, in_place_max_per_pod=1)
    holders = ["active-1"]
    while office.coordinator.closed is None:
        office.worker_fails(holders[-1])
        office.answers(*(x for x in EVERYBODY if x != holders[-1] and x in office.sent))
        seated = office.assigned()
        if seated:
            holders.append(next(name for name, rank in seated.items() if rank == 1))
            office.started(*seated)
            office.stepped("active-0")
    assert holders == ["active-1", "active-1", "spare-0", "spare-0", "spare-0"]
    close = office.coordinator.closed
    assert close.reason is CloseReason.FAILED
    assert close.message == (
        "the budget of 4 restarts within 1 h is spent, and rank 1 failed on another pod as well; "
        "recoveries so far: InPlace 3, SpareSwap 1; the last failure: rank 1 on spare-0: exit code 1"
    )


# The budget


def test_with_the_budget_spent_one_more_pod_is_given_up_and_then_the_job() -> None:
    office = running(3, max_in_place=2)
    fails_and_restarts(office, "active-0")
    fails_and_restarts(office, "active-1")
    fails_and_restarts(office, "active-2")
    spent = "the budget of 2 restarts within 1 h is spent"
    assert (office.recovery().strategy, office.recovery().reason) == (Strategy.SPARE_SWAP, spent)
    assert office.lost() == {"active-2": "Process"}
    office.worker_fails("active-0", "out of memory")
    office.answers(*list(office.sent))  # a majority confirms that the coordinator is followed
    assert office.coordinator.closed is not None
    why = "a pod has already been replaced because of that"
    assert office.coordinator.closed.message.startswith(f"{spent}, and {why}; ")
    assert office.coordinator.closed.message.endswith("the last failure: rank 0 on active-0: out of memory")


def test_a_lost_pod_a_drained_one_and_one_that_leaves_a_faulty_node_cost_nothing() -> None:
    office = running(3, spares=3, max_in_place=0)
    office.drop("active-0")
    assert office.recovery().reason == "its pod is lost"
    office.started(*office.assigned())
    # when a pod is asked to end, and workers fail of it
    office.hear("active-1", m.Leaving("the trainer container got SIGTERM", 30.0))
    office.worker_fails("active-2", "a peer has gone")
    for name in ("active-2", "spare-0"):
        office.hear(name, m.Drained(office.token))
    office.hear("active-1", m.Gone("its launcher has ended"))
    assert office.recovery().reason == "its pod was asked to end"
    office.started(*office.assigned())
    office.hear("active-2", m.Leaving("the trainer container got SIGTERM", 30.0, Verdict.FAULTY))
    office.started(*office.assigned())
    assert (office.coordinator.closed, charged(office)) == (None, 0)
    assert [x.cause.pod for x in office.coordinator.snapshot().recoveries] == ["active-0", "active-1", "active-2"]


def test_a_fault_on_a_faulty_node_gives_the_pod_up_at_once_and_costs_nothing() -> None:
    office = job()
    office.do(Told(Nodes((NodeFact("node-of-active-1", faulty="Xid 79"),))))
    office.worker_fails("active-1")
    office.answers("active-0", "active-2")
    assert office.assigned() == {"active-0": 0, "spare-0": 1, "active-2": 2}
    assert office.recovery().reason == "node node-of-active-1 is Faulty: Xid 79"
    assert charged(office) == 0


# Nobody innocent


def test_one_that_was_lost_before_is_the_cause_and_nobody_is_given_up() -> None:
    office = job()
    fails_and_restarts(office, "active-1")
    office.later(0.1)
    office.worker_fails("active-1", "a peer has gone")
    office.answers("active-2")
    office.drop("active-0")
    assert office.assigned() == {"spare-0": 0, "active-1": 1, "active-2": 2}
    assert (office.recovery().fault, office.recovery().cause.pod) == (Fault.POD, "active-0")
    assert charged(office) == 1
    assert office.take("active-1", m.GivenUp) == []


def test_so_is_one_that_does_not_answer() -> None:
    office = job()
    fails_and_restarts(office, "active-1")
    office.later(0.1)
    office.worker_fails("active-1", "a peer has gone")
    assert "before pod active-1 is replaced" in office.coordinator.snapshot().waiting_for
    office.later(3.1, "active-1", "active-2", "spare-0")
    assert office.lost() == {"active-0": "Node"}
    assert office.assigned() == {"spare-0": 0, "active-1": 1, "active-2": 2}


def test_where_another_ones_worker_failed_earlier_nobody_is_given_up() -> None:
    """Its word was on the way for longer."""
    office = job()
    fails_and_restarts(office, "active-1")
    office.worker_fails("active-1", "a peer has gone", at=office.now)
    office.worker_fails("active-0", "exit code 1", at=office.now - 0.2)
    office.answers("active-0", "active-2")
    assert office.assigned() == {"active-0": 0, "active-1": 1, "active-2": 2}
    assert office.recovery().reason.endswith("but it is not known which pod failed first")
    assert charged(office) == 2


def test_but_that_its_peers_fail_after_it_keeps_nobody() -> None:
    office = job()
    fails_and_restarts(office, "active-1")
    office.worker_fails("active-1", at=office.now)
    office.worker_fails("active-0", "a peer has gone", at=office.now + 0.2)
    office.answers("active-0", "active-2")
    assert office.lost() == {"active-1": "Process"}


def test_one_that_is_lost_after_it_has_answered_is_a_fault_of_its_own() -> None:
    office = job(spares=2)
    fails_and_restarts(office, "active-1")
    office.worker_fails("active-1")
    office.answers("active-0", "active-2")
    office.later(0.1)
    office.drop("active-0")  # it has not acknowledged the next round
    told = [(x.fault, x.cause.pod) for x in office.coordinator.snapshot().recoveries]
    assert told[1:] == [(Fault.PROCESS, "active-1"), (Fault.POD, "active-0")]
    assert charged(office) == 2


def test_one_whose_pod_ends_by_itself_meanwhile_costs_nothing() -> None:
    """A kernel that is out of memory may take the whole container."""
    office = job()
    fails_and_restarts(office, "active-1")
    office.worker_fails("active-1", "killed by SIGKILL")
    office.hear("active-1", m.Gone("its launcher has ended"))
    office.answers("active-0", "active-2")
    assert office.assigned() == {"active-0": 0, "spare-0": 1, "active-2": 2}
    assert (office.recovery().fault, charged(office)) == (Fault.POD, 1)


def test_the_jobs_end_comes_first() -> None:
    office = job()
    fails_and_restarts(office, "active-1")
    office.worker_fails("active-1")
    office.do(Told(End(CloseReason.SUSPENDED, "suspended")))
    office.answers("active-0", "active-2")
    assert office.take("active-1", m.GivenUp) == []


# Several faults at once, and during a recovery


def test_pods_that_are_lost_at_once_are_one_round_and_an_entry_each() -> None:
    office = job(spares=2)
    office.at_once(Dropped(office.link("active-0"), silent=False))
    office.now += GATHER_S / 2
    office.drop("active-1")
    assert office.assigned() == {"spare-0": 0, "spare-1": 1, "active-2": 2}
    assert (office.token.round, charged(office)) == (1, 0)
    assert [x.cause.pod for x in office.coordinator.snapshot().recoveries] == ["active-0", "active-1"]


def test_two_workers_that_die_at_once_are_one_round_and_one_charge() -> None:
    office = job()
    office.worker_fails("active-1", "killed by SIGKILL")
    office.worker_fails("active-2", "killed by SIGKILL", RoundToken(1, 1, 0))
    assert office.token.round == 1
    assert charged(office) == 1


def test_a_fault_before_the_round_has_started_everywhere_is_not_charged_twice() -> None:
    office = job(backoff_max_s=0.0)
    office.worker_fails("active-1")
    office.started("active-1")  # the others' workers are not there yet
    office.worker_fails("active-1")
    assert charged(office) == 1
    assert office.recovery().reason == "active-1 failed again before the round had started everywhere"
    assert office.token.round == 2


def test_but_the_second_time_it_is_another_fault() -> None:
    """Or a script that ends at once would never end the job."""
    office = job(backoff_max_s=0.0)
    for _ in range(3):
        office.worker_fails("active-1")
        office.started("active-1")
    office.answers("active-0", "active-2")
    assert office.lost() == {"active-1": "Process"}


def test_another_pods_fault_during_a_recovery_is_charged() -> None:
    office = job()
    office.worker_fails("active-1")
    office.started("active-1")
    office.worker_fails("active-2")
    assert charged(office) == 2


# A coordinator's own pod


def settled(office: Driven) -> Driven:
    office.coordinator.desk.pod_uid = "uid-active-1"
    office.later(SUCCESSION_S + 0.1, *EVERYBODY[:4])
    assert office.coordinator.snapshot().electorate
    return office


def test_a_coordinator_that_gives_its_own_pod_up_leaves_its_office_and_what_it_knows_to_an_heir() -> None:
    office = settled(job())
    fails_and_restarts(office, "active-1")
    office.sent.clear()
    office.worker_fails("active-1")
    office.answers("active-0", "active-2")
    assert office.take("active-1", m.GivenUp)[0].reason == TWICE
    assert office.take("active-2", m.Elsewhere)[0].pod_uid == "uid-spare-0"
    assert office.resigned
    history = office.take("spare-0", m.Estate)[-1].history
    assert history.given_up == {"uid-active-1": TWICE}
    assert [(x.pod_uid, x.given_up) for x in history.offences] == [("uid-active-1", False), ("uid-active-1", True)]


def test_but_not_where_nobody_would_know_of_it() -> None:
    """A job of one pod would go on for ever: each pod that is made anew knows of nothing."""
    office = running(1, spares=0, max_in_place=2, in_place_max_per_pod=1)
    office.coordinator.desk.pod_uid = "uid-active-0"
    for _ in range(2):
        fails_and_restarts(office, "active-0")
    office.worker_fails("active-0")
    assert office.lost() == {}
    office.answers(*list(office.sent))  # a majority confirms that the coordinator is followed
    assert office.coordinator.closed is not None
    assert (
        "without it the other pods cannot elect a coordinator that knows of the replacement"
        in office.coordinator.closed.message
    )


def test_nor_while_a_restarted_sidecar_brings_a_failure_of_its_own() -> None:
    """Found by the simulation (seed 105144): a sidecar and its worker had been killed at the same time."""
    # given a pod that is to be replaced, and another one that is asked whether it is there
    office = running(3, in_place_max_per_pod=0)
    office.worker_fails("active-1", "a peer has gone")
    office.answers("active-0")
    # when that one comes back on a new connection, and its worker has failed, nobody knows when
    office.join("active-2", office.token, 2, WorkersState.FAILED)
    # then nobody is replaced
    assert office.lost() == {}
    assert office.recovery().reason.endswith("it is not known which pod failed first")


def test_nor_where_the_others_could_not_elect_a_coordinator() -> None:
    """Found by the simulation (seed 96974): two of four voters were left, and the operator was away."""
    # given four voters, one of which does not respond, and a coordinator whose own pod has failed once
    office = running(3, in_place_max_per_pod=1)
    office.coordinator.desk.pod_uid = "uid-active-0"
    office.later(SUCCESSION_S + 0.1, "active-0", "active-1", "active-2", "spare-0")
    fails_and_restarts(office, "active-0")
    office.drop("spare-0", silent=True)
    # when it fails once more, then it stays
    office.worker_fails("active-0")
    assert office.lost() == {}
    assert (
        "without it the other pods cannot elect a coordinator that knows of the replacement" in office.recovery().reason
    )


@pytest.mark.parametrize("workers", [WorkersState.FAILED, WorkersState.IDLE])
def test_a_pod_is_not_given_up_for_what_happened_while_nobody_was_in_office(workers: WorkersState) -> None:
    office = Driven(2, epoch=2, at_least_round=3, in_place_max_per_pod=0)
    office.join("spare-0")
    office.join("active-0", RoundToken(1, 1, 3), 0, WorkersState.RUNNING)
    office.join("active-1", RoundToken(1, 1, 3), 1, workers)
    assert office.assigned() == {"active-0": 0, "active-1": 1}
