"""Snapshots in memory, fault by fault: what the next round restores, and what it must not."""

from __future__ import annotations

from tests.simulation.cluster import Setup
from tests.simulation.test_scenarios import Job
from understudy_protocol.enums import Tier


def job(actives: int = 3, spares: int = 1, steps: int = 400) -> Job:
    return Job(Setup(actives, spares, machines=8, steps=steps, snapshots=True))


def test_a_killed_worker_costs_at_most_one_step() -> None:
    given = job(steps=4000)
    for number in range(10):
        before = given.training.groups[given.token].step
        victim = given.cluster.seated()[number % 3]
        given.cluster.end_worker(victim.workers()[0], None, "SIGKILL")
        given.next_round_steps()
        # then its first step repeats the last one, or follows it
        assert given.training.groups[given.token].step in (before, before + 1)
        assert (given.recovery().tier, given.recovery().lost_steps in (0, 1)) == (Tier.MEMORY, True)
        given.later(4.0)  # more steps than SUSPECT_STEPS


def test_a_lost_pod_leads_to_storage_with_the_reason() -> None:
    given = job()
    victim = given.members[1]
    victim.kill()
    given.next_round_steps()
    assert given.recovery().tier is Tier.STORAGE
    assert "has no snapshot of its ranks" in given.recovery().tier_reason
    # and the snapshots after it are restored again
    given.later(4.0)
    given.cluster.end_worker(given.cluster.seated()[0].workers()[0], None, "SIGKILL")
    given.next_round_steps()
    assert given.recovery().tier is Tier.MEMORY


def test_the_next_coordinator_answers_the_workers_that_wait_for_the_choice() -> None:
    # given the coordinator is lost when the next round has started, and its workers wait
    given = job(spares=2)
    given.later(2.0)
    given.cluster.end_worker(given.members[0].workers()[0], None, "SIGKILL")
    given.until(lambda: given.token.round == given.round + 1, 5.0)
    assert all(worker.choice is None for worker in given.cluster.workers)
    given.coordinator_pod().kill_sidecar()
    # then training continues from a snapshot
    given.next_round_steps(30.0)
    assert {tier.saved is None for tier in given.training.choices.values()} == {True, False}


def test_pods_that_were_cut_off_and_come_back_do_not_bring_a_state_that_the_training_has_left() -> None:
    # given two pods that are cut off train on, while two spares train in their place
    given = job(actives=2, spares=3, steps=4000)
    cluster, old = given.cluster, given.members
    given.later(2.0)
    assert given.coordinator_pod() not in old
    cluster.operator.go_down()
    apart = [pod.machine for pod in old]
    others = [machine for machine in cluster.machines if machine not in apart]
    cluster.part(apart, others)
    given.next_round_steps()
    newer = given.training.newest_stepped
    assert not {worker.pod for worker in given.training.groups[newer].workers.values()} & {pod.name for pod in old}
    given.later(5.0)
    # when they come back, and all other pods are lost
    cluster.rejoin(apart, others)
    given.later(15.0)
    for pod in set(cluster.pods) - set(old):
        pod.kill()
    cluster.operator.come_up()
    # then they do not restore what they had saved: the training checks it
    given.until(lambda: given.training.newest_stepped > newer and set(cluster.seated()) & set(old) != set(), 180.0)
