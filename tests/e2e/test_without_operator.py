"""Faults while no operator runs: members recover by themselves, and status names the faults once an operator is back.

One outage of the operator for all jobs of this file, because no other test can run beside it.
"""

from collections.abc import Iterator

import pytest

from tests.cluster import Cluster
from tests.e2e import acts
from tests.e2e.acts import running
from tests.e2e.compared import Comparison, fault_of
from tests.e2e.lanes import NAMESPACE
from tests.e2e.plain import PlainJob
from tests.e2e.test_coordinators import actives, coordinator, elected, kill, workers_of
from tests.e2e.training import CHECKOUT, Training
from tests.e2e.truth import Fault
from tests.e2e.undisturbed import check_losses
from tests.e2e.waiting import wait_until

pytestmark = [pytest.mark.timeout(400), pytest.mark.alone]

WORLD_SIZE = 6


@pytest.fixture
def training(cluster: Cluster) -> Iterator[Training]:
    """Real torch: six ranks on three pods, and a spare."""
    training = Training(cluster, CHECKOUT / "build" / "e2e-storage-operator", NAMESPACE, name="no-operator")
    training.apply()
    yield training
    training.discard()
    check_losses(training)


@pytest.fixture
def job(cluster: Cluster) -> Iterator[PlainJob]:
    """Two active pods and two spares, one of which coordinates."""
    job = PlainJob(cluster, NAMESPACE, "no-operator-no-coordinator", spares=2)
    job.apply_until_a_spare_coordinates()
    job.wait_for_voters()
    yield job
    job.discard()


def test_jobs_recover_without_the_operator_and_status_names_the_faults_afterwards(
    training: Training, job: PlainJob
) -> None:
    before, lost = job.status(), coordinator(job)
    workers = {pod["metadata"]["name"]: workers_of(job, [pod]) for pod in actives(job)}
    survivors = [pod for pod in job.pods() if pod["metadata"]["uid"] != lost["metadata"]["uid"]]

    def logs() -> dict[str, str]:
        return {pod["metadata"]["name"]: job.sidecar_log(pod) for pod in survivors}

    def successor() -> str | None:
        lines = ("elected as coordinator", "in effect: 3 voters")
        return next((name for name, log in logs().items() if all(words in log for words in lines)), None)

    compared: list[tuple[Comparison, Fault]] = []

    def kill_the_coordinator_then_an_active() -> None:
        kill(job, lost)
        elected_pod = wait_until("a member is elected, and three members vote", successor, 30, seen=logs)
        assert all(running(pid) for pids in workers.values() for pid in pids)
        # not the new coordinator: its loss would cause another election
        victim = next(pod for pod in actives(job) if pod["metadata"]["name"] != elected_pod)
        others = [pid for name, pids in workers.items() if name != victim["metadata"]["name"] for pid in pids]
        compared.append((Comparison(job), fault_of(victim, "Pod", "SpareSwap")))
        kill(job, victim)
        wait_until("the round of the killed pod ends", lambda: not any(map(running, others)), 30, seen=logs)

    # given a training with real torch, and a job; when no operator runs, and a pod of the training is killed, then the
    # job's coordinator, and after the election one of its active pods
    act = acts.kill_containers_without_operator(training, meanwhile=kill_the_coordinator_then_an_active)

    # then a spare took the killed pod's ranks while no operator ran
    assert act.operator_pods_at_swap == 0
    assert act.strategy == "SpareSwap"
    assert acts.world_size(training) == WORLD_SIZE
    # and once the operator is back, the job's status names the elected coordinator and the recovery
    elected(job, before)
    ((comparison, fault),) = compared
    comparison.check(fault)
    assert job.status()["round"] > before["round"]
