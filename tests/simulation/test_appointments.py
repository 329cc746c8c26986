"""A job that loses the majority of its pods at once: the operator appoints a coordinator once it knows that they have
ended, and the pods that wait for an election join it at once.
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
