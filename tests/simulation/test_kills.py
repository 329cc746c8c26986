"""A coordinator is killed after each single message of a round: training continues, or a newer round steps."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.cluster import Setup, SimulatedCluster
from tests.simulation.sidecars import SimulatedSidecar
from tests.simulation.test_scenarios import Job

SETUP = Setup(actives=3, spares=2, machines=8, steps=400)
WITHIN_S = 20.0

Fault = Callable[[Job], None]


def _worker(job: Job) -> None:
    job.cluster.end_worker(job.members[1].workers()[0], 1, None)


def _pod(job: Job) -> None:
    job.members[1].kill()


def _leave(job: Job) -> None:
    entry = next(x for x in job.cluster.objects() if x.pod is job.members[1])
    job.cluster.api.delete_by_user(entry)


def _kill_after(job: Job, messages: int) -> Callable[[], bool]:
    """Kill the coordinator after this many messages, from now on; the result reports whether that happened."""
    cluster: SimulatedCluster = job.cluster
    left = messages

    def sent(sidecar: SimulatedSidecar, message: object) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            job.world.log(sidecar.pod.name, f"FAULT: it is killed after {type(message).__name__}")
            sidecar.pod.kill()

    cluster.on_coordinator_sent = sent
    return lambda: left <= 0


@pytest.mark.parametrize("operator_up", [True, False], ids=["with operator", "without operator"])
@pytest.mark.parametrize("fault", [_worker, _pod, _leave])
def test_the_coordinator_dies_after_its_nth_message(fault: Fault, operator_up: bool) -> None:
    for messages in range(1, 40):
        job = Job(SETUP, seed=messages)
        job.later(2.0)  # until the voter configuration is committed
        if not operator_up:
            job.cluster.operator.go_down()
        killed = _kill_after(job, messages)
        fault(job)
        job.next_round_steps(WITHIN_S + (30.0 if fault is _leave else 0.0))
        job.later(3.0)
        if not killed():
            assert messages > 5, "a round has more messages than that"
            return


def test_all_pods_exit_0_if_the_coordinator_dies_after_its_nth_close() -> None:
    """A pod that got the close passes it on, or the operator does: all pods end with the right code."""
    for messages in range(1, 12):
        job = Job(Setup(actives=3, spares=2, machines=8, steps=12), seed=messages)
        job.until(lambda job=job: job.training.checkpoint[0] == 12, 60.0)  # type: ignore[misc]
        _kill_after(job, messages)
        job.until(lambda job=job: all(pod.ended for pod in job.cluster.pods if not pod.was_killed), 60.0)  # type: ignore[misc]
        codes = {pod.name: pod.exit_code for pod in job.cluster.pods if not pod.was_killed and not pod.asked_to_end}
        assert set(codes.values()) == {0}, codes
