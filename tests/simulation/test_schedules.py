"""Schedules that random draws rarely produce: two voter configurations, simultaneous failures, and storms of rounds."""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import pytest

from tests.simulation import network
from tests.simulation.cluster import Setup
from tests.simulation.pods import Pod
from tests.simulation.sidecars import SimulatedSidecar
from tests.simulation.test_scenarios import Job
from understudy_protocol import membership as m
from understudy_protocol import pod as names
from understudy_sidecar.membership import config_change
from understudy_sidecar.membership.coordinator import Coordinator
from understudy_sidecar.membership.core import CoreEvent
from understudy_sidecar.membership.events import FromCoordinator, LinkDown, Received

#: Longer than a coordinator without a majority leads, and than workers run without a coordinator.
CUT_OFF_S = 60.0


def coordinator_of(pod: Pod) -> Coordinator | None:
    return pod.sidecar.coordinator if pod.sidecar is not None else None


def sidecar_of(pod: Pod) -> SimulatedSidecar:
    assert pod.sidecar is not None
    return pod.sidecar


class Change:
    """Voters S: a, b, c, x, y. c coordinates, and proposes P1: S and d to i, which share a node.

    hear(change, pod): whether the pod receives P1. No acknowledgement of it is counted.
    """

    def __init__(self, hear: Callable[[Change, Pod], bool]) -> None:
        self.job = Job(Setup(actives=5, spares=0, machines=6, steps=4000))
        self.cluster = self.job.cluster
        self.job.later(2.0)  # until S is committed
        self.c = self.job.coordinator_pod()
        self.b, self.a, self.x, self.y = (pod for pod in self.job.members if pod is not self.c)
        self.new_machine = next(x for x in self.cluster.machines if not self.cluster.on_machine(x))
        self._hears = hear
        self._filter_c()
        self._add_six()
        coordinator = coordinator_of(self.c)
        assert coordinator is not None
        first = coordinator.state.config_changes.standbys[0].pod_uid
        self.d = next(pod for pod in self.cluster.pods if pod.uid == first)
        self.cluster.operator.go_down()

    def _filter_c(self) -> None:
        sidecar = sidecar_of(self.c)
        handle, send = sidecar.handle, sidecar._send

        def without_acknowledgements(event: CoreEvent) -> None:
            if not (isinstance(event, Received) and isinstance(event.message, m.ConfigChangeAck)):
                handle(event)

        def some_hear(number: int, message: object) -> None:
            pod = self._pod_of(number)
            about = isinstance(message, m.ConfigChange | m.LeaderSnapshot)
            if pod is None or pod is self.c or not about or self._hears(self, pod):
                send(number, message)

        sidecar.handle, sidecar._send = without_acknowledgements, some_hear  # type: ignore[method-assign]

    def _pod_of(self, link: int) -> Pod | None:
        coordinator = coordinator_of(self.c)
        member = None if coordinator is None else coordinator.state.roster.by_link(link)
        return next((pod for pod in self.cluster.pods if member is not None and pod.uid == member.uid), None)

    def _add_six(self) -> None:
        """Add all six in one proposal."""
        coordinator = coordinator_of(self.c)
        assert coordinator is not None
        state = coordinator.state
        state.config_changes.due = self.job.world.now + 1000.0
        self.cluster.operator.spares = 6
        with mock.patch.object(self.cluster.api, "_schedule", return_value=self.new_machine):
            self.cluster.operator.enqueue()
            self.job.until(lambda: len(state.roster.connected) == 11 and self.job._is_warm(), 60.0)
        state.config_changes.due = self.job.world.now
        self.job.until(
            lambda: all(x.hard_state.config_version.serial == 2 for x in self.cluster.pods if self._hears(self, x)),
            15.0,
        )
        assert state.voter_configs.pending is not None

    def machines(self, *pods: Pod) -> list[network.Machine]:
        return [pod.machine for pod in pods]

    def part(self, *pods: Pod) -> None:
        self.cluster.part(self.machines(*pods), [self.new_machine])

    def d_is_elected(self, limit_s: float) -> None:
        self.job.until(lambda: (x := coordinator_of(self.d)) is not None and x.term.number == 2, limit_s)


def test_a_pending_change_that_all_pods_stored_allows_one_coordinator() -> None:
    # given a change that all pods have stored, and of which c has counted no acknowledgement
    change = Change(lambda change, pod: True)
    # when c loses contact with d to i, only b receives its next proposal, and c dies
    change._hears = lambda change, pod: pod is change.b
    change.part(change.c, change.b)
    change.job.later(15.0)
    change.c.kill()
    # and d is elected, and then cut off from all of S
    change.d_is_elected(20.0)
    change.part(change.a, change.x, change.y)
    change.job.later(CUT_OFF_S)
    # then there is no coordinator, because there is no majority of both lists
    assert change.cluster.leader() is None
    # and when the network and the operator are up again, training continues
    change.cluster.operator.come_up()
    change.cluster.rejoin(change.machines(change.a, change.b, change.c, change.x, change.y), [change.new_machine])
    change.job.next_round_steps(120.0)


def test_a_pending_change_that_some_pods_did_not_store_allows_one_coordinator() -> None:
    # given a coordinator with one standby coordinator, b for S and d for P1, which only d to i receive
    with mock.patch.object(config_change, "MAX_STANDBY_COORDINATORS", 1):
        change = Change(lambda change, pod: pod.machine is change.new_machine)
    # when c dies, and b is cut off, and the Service leads to d
    change.c.kill()
    change.cluster.cut(change.b.machine)
    for entry in change.cluster.objects():
        entry.labels.pop(names.LABEL_COORDINATOR, None)
        if entry.pod is change.d:
            entry.labels[names.LABEL_COORDINATOR] = ""
    # then d is elected by S and by P1
    change.d_is_elected(40.0)
    # and when d to i are cut off instead of b, then b is elected under S, and d steps down
    change.part(change.a, change.x, change.y, change.b)
    change.cluster.heal(change.b.machine)
    change.job.until(lambda: (x := coordinator_of(change.b)) is not None and x.term.number > 2, 60.0)
    change.job.until(lambda: coordinator_of(change.d) is None, CUT_OFF_S)


def test_the_worker_that_failed_first_is_blamed_although_another_one_is_reported_before() -> None:
    # given pods whose workers do not end with their peers, and a network without delays
    with mock.patch.object(network, "LATENCY_S", (0.001, 0.010)):
        job = Job(Setup(actives=3, spares=0, machines=8, steps=400))
        second = job.coordinator_pod()
        first = next(pod for pod in job.members if pod is not second)
        for worker in job.cluster.workers:
            worker.stuck = True
        # when a worker fails whose sidecar is paused for a moment, and then one beside the coordinator
        sidecar_of(first).stop()
        job.cluster.end_worker(first.workers()[0], 1, None)
        job.later(0.15)
        job.cluster.end_worker(second.workers()[0], 1, None)
        job.later(0.0025)
        sidecar_of(first).go_on()
        job.next_round_steps()
    # then the first one is the cause
    assert job.recovery().cause.pod == first.name


@pytest.mark.parametrize("zygotes", [pytest.param(True, id="forks"), pytest.param(False, id="fresh processes")])
def test_a_worker_whose_process_ends_long_after_its_exception_is_the_cause(zygotes: bool) -> None:
    # given a job in its second round, whose workers end as soon as a peer has gone
    job = Job(Setup(actives=3, spares=0, machines=8, steps=400, zygotes=zygotes))
    first, second, _ = job.members
    job.cluster.end_worker(second.workers()[0], None, "SIGKILL")
    job.next_round_steps()
    for worker in job.cluster.workers:
        worker.stuck = False
    # when a worker raises an exception, loses its connections 0.2 s later, and ends after a second
    (worker,) = first.workers()
    assert job.cluster.is_fork(worker) is zygotes
    job.cluster.raise_exception(worker, "ValueError: a wrong digest", disconnects_s=0.2, ends_s=1.0)
    # then the next round does not wait for its end
    assert job.next_round_steps() < 2.0
    # and the exception is the cause, and its pod is charged
    assert (job.recovery().cause.pod, job.recovery().cause.message) == (first.name, "ValueError: a wrong digest")
    leader = coordinator_of(job.coordinator_pod())
    assert leader is not None
    counted = leader.state.fault_history.in_window(leader.state.now)
    assert [fault.pod_uid for fault in counted if fault.is_charged] == [second.uid, first.uid]


def test_a_worker_that_fails_after_each_first_step_does_not_cost_a_round_a_second() -> None:
    """Rounds that have stepped restart without the backoff of failed starts; invariants.py has the limit."""
    job = Job(Setup(actives=3, spares=0, machines=8, steps=4000, max_in_place=1000))
    for _ in range(30):
        job.cluster.end_worker(job.cluster.seated()[0].workers()[0], 1, None)
        job.next_round_steps()


def break_at_each_assignment(pod: Pod) -> None:
    """Its kernel closes the connection, and it calls again. On a cluster a full volume did this."""
    sidecar = sidecar_of(pod)
    handle = sidecar.handle

    def breaking(event: CoreEvent) -> None:
        if isinstance(event, FromCoordinator) and isinstance(event.message, m.Assign):
            sidecar._client.hangup()
            handle(LinkDown())
        else:
            handle(event)

    sidecar.handle = breaking  # type: ignore[method-assign]


def test_a_pod_that_is_lost_at_the_start_of_each_round_costs_a_few_rounds_only() -> None:
    # given a job without spares and operator, and a pod whose connection breaks whenever it is assigned ranks
    job = Job(Setup(actives=3, spares=0, machines=8, steps=4000))
    job.cluster.operator.go_down()
    sick = next(pod for pod in job.members if pod is not job.coordinator_pod())
    break_at_each_assignment(sick)
    # when a round is formed with it, and it returns repeatedly
    job.cluster.end_worker(sick.workers()[0], 1, None)
    job.later(20.0)
    # then the rounds follow each other more and more slowly, and no other pod is lost
    assert 5 <= job.token.round - job.round <= 10
    coordinator = coordinator_of(job.coordinator_pod())
    assert coordinator is not None
    assert set(coordinator.state.losses.counts) == {sick.uid}


def test_a_pod_that_was_lost_is_not_preferred_to_a_spare_although_it_was_created_for_the_rank() -> None:
    # given a job whose coordinator has a rank
    job = Job(Setup(actives=3, spares=3, machines=8, steps=4000))
    job.members[0].kill()
    job.next_round_steps()
    assert job.coordinator_pod() in job.cluster.seated()
    # and a pod whose connection breaks whenever it is assigned ranks, and whose rank a spare has taken
    sick = job.members[1]
    break_at_each_assignment(sick)
    job.cluster.end_worker(sick.workers()[0], 1, None)
    job.next_round_steps()
    job.until(lambda: sick in job.cluster.waiting(), 5.0)
    successor = job.cluster.seated()[1]
    # when that spare is lost
    job.round = job.token.round
    successor.kill()
    job.next_round_steps()
    # then another spare takes the rank, in the next round
    assert job.token.round == job.round + 1
    assert sick not in job.cluster.seated()
