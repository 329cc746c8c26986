"""A job of one or two voters loses a pod: given the operator, it recovers as fast as a larger job."""

from __future__ import annotations

import pytest

from tests.simulation.cluster import Setup
from tests.simulation.pods import Pod
from tests.simulation.test_scenarios import Job
from understudy_protocol.enums import Strategy

#: Of which 40 s pass until the node is not Ready.
ONE_POD_LIMIT_S = 50.0


def job_of(actives: int, spares: int, seed: int) -> Job:
    return Job(Setup(actives=actives, spares=spares, machines=8, steps=4000), seed=seed)


def other_pod(job: Job) -> Pod:
    return next(pod for pod in job.members if pod is not job.coordinator_pod())


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(
    ("spares", "what", "limit_s", "strategy"),
    [
        (1, "pod", 1.5, Strategy.SPARE_SWAP),
        (1, "node", 6.0, Strategy.SPARE_SWAP),
        (0, "pod", 9.0, Strategy.POD_RECREATE),
        (0, "node", 12.0, Strategy.POD_RECREATE),
    ],
)
def test_a_coordinator_that_loses_the_only_other_voter_continues(
    seed: int, spares: int, what: str, limit_s: float, strategy: Strategy
) -> None:
    # given a job of two pods, one of which may be a spare
    job = job_of(2 - spares, spares, seed)
    lost = other_pod(job)
    # when the pod that does not coordinate is lost
    if what == "pod":
        lost.kill()
    else:
        job.cluster.power_off(lost.machine)
    # then another pod takes its ranks
    assert job.next_round_steps(limit_s) < limit_s
    assert (job.recovery().cause.pod, job.recovery().strategy) == (lost.name, strategy)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(("what", "limit_s"), [("pod", 9.0), ("node", 17.0)])
def test_the_pod_that_is_left_coordinates_when_the_only_other_one_is_lost(seed: int, what: str, limit_s: float) -> None:
    # given a job of two active pods
    job = job_of(2, 0, seed)
    lost = job.coordinator_pod()
    # when the coordinator's pod is lost
    if what == "pod":
        lost.kill()
    else:
        job.cluster.power_off(lost.machine)
    # then a new pod takes its ranks, and the recovery has the true time and strategy
    paused_s = job.next_round_steps(limit_s)
    job.later(1.0)
    recovery = job.recovery()
    assert (recovery.cause.pod, recovery.strategy) == (lost.name, Strategy.POD_RECREATE)
    assert recovery.pause_s == pytest.approx(paused_s, abs=1.0)


class YoungJob(Job):
    """Ends its start at the moment at which a voter configuration is in effect for the first time."""

    def _is_warm(self) -> bool:
        leader = self.cluster.leader()
        return leader is not None and leader.coordinator is not None and leader.coordinator.has_voters


@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5, 6])
def test_the_operator_knows_the_voters_as_soon_as_they_decide(seed: int) -> None:
    """Found by an e2e test: the report of the voters was due 0.2 s later, and the job waited for twice the
    coordinatorLossTimeout.
    """
    # given a job of two active pods whose voter configuration has just come into effect
    job = YoungJob(Setup(actives=2, spares=0, machines=8, steps=4000), seed=seed, steps=0)
    job.later(0.05)
    # when the node of its coordinator loses power
    job.cluster.power_off(job.coordinator_pod().machine)
    # then it trains again as soon as an older job would
    assert job.next_round_steps(17.0) < 17.0


def test_training_does_not_stop_when_the_node_of_a_spare_that_coordinates_is_lost() -> None:
    # given a job of an active pod and a spare, which coordinates
    job = job_of(1, 1, 1)
    # when its node loses power, for longer than a pod trains without a coordinator
    job.cluster.power_off(job.coordinator_pod().machine)
    job.later(45.0)
    # then the same round makes steps
    assert job.token.round == job.round
    assert job.steps_again(2.0) < 2.0


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_only_pod_is_replaced_once_its_node_is_not_ready(seed: int) -> None:
    # given a job of one pod
    job = job_of(1, 0, seed)
    lost = job.members[0]
    # when its node loses power
    job.cluster.power_off(lost.machine)
    # then a new pod trains, and the recovery began when the operator lost the pod
    assert job.next_round_steps(ONE_POD_LIMIT_S) < ONE_POD_LIMIT_S
    job.later(1.0)
    recovery = job.recovery()
    assert (recovery.cause.pod, recovery.strategy) == (lost.name, Strategy.POD_RECREATE)
    assert recovery.detected_at - 1_000_000.0 < job.struck_at + 6.0


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_only_pod_trains_soon_after_its_node_was_frozen(seed: int) -> None:
    """Found by the simulation (seed 1544592): without a Service, its member called nobody for 15 s, or for ever if no
    voter configuration was in effect.
    """
    # given a job of one pod
    job = job_of(1, 0, seed)
    leader = job.cluster.leader()
    assert leader is not None
    coordinator = leader.coordinator
    # when its node freezes for longer than a pod trains without a coordinator, and thaws
    job.cluster.freeze(leader.machine)
    job.later(40.0)
    job.cluster.thaw(leader.machine)
    # then the pod trains, and its coordinator is the same one
    job.later(2.0)
    assert job.steps_again(10.0) < 10.0
    assert leader.coordinator is coordinator
