"""A job that loses several pods at once, its coordinator among them: the operator knows which pods have ended. If they
were the majority, it appoints a coordinator, and the pods that wait for an election join it at once. An elected
coordinator waits for none of them.
"""

from __future__ import annotations

import random

import pytest

from tests.simulation.cluster import Setup
from tests.simulation.test_scenarios import Job


@pytest.mark.parametrize("seed", range(1, 9))
def test_spares_take_the_ranks_of_a_lost_majority_within_5_s(seed: int) -> None:
    """Found by the simulation: it took 11 s, and longer if two spares waited in the candidate pools of each other."""
    # given a job of two active pods and five spares
    job = Job(Setup(actives=2, spares=5, machines=12, steps=40000), seed=seed)
    coordinator, round_before = job.coordinator_pod(), job.token
    others = [pod for pod in job.cluster.pods if pod is not coordinator]
    active = next(pod for pod in others if pod in job.cluster.seated())
    # when four of these seven pods are deleted, among them the coordinator and an active pod
    lost = random.Random(seed).sample([pod for pod in others if pod is not active], 2)
    for pod in (coordinator, active, *lost):
        pod.kill()
    # then the next round has started workers
    job.until(lambda: job.token > round_before, 5.0)


@pytest.mark.parametrize("seed", range(1, 9))
def test_an_elected_coordinator_does_not_wait_for_pods_that_have_ended(seed: int) -> None:
    """It waited 12 s for the active pod, which could have been in the candidate pool of another pod."""
    # given a job of three active pods and four spares
    job = Job(Setup(actives=3, spares=4, machines=12, steps=40000), seed=seed)
    coordinator, round_before = job.coordinator_pod(), job.token
    active = next(pod for pod in job.cluster.seated() if pod is not coordinator)
    # when the coordinator and an active pod are deleted, and the others are a majority
    for pod in (coordinator, active):
        pod.kill()
    # then the next round has started workers
    job.until(lambda: job.token > round_before, 3.5)
