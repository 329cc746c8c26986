"""The API server is down for three minutes, and jobs recover: no kubectl, kubelet or operator can do anything."""

import os
import signal
import time
from collections.abc import Iterator
from functools import partial

import pytest

from tests.cluster import Cluster
from tests.e2e import acts
from tests.e2e.lanes import NAMESPACE
from tests.e2e.report import Token, first_step_after, newest_step
from tests.e2e.training import CHECKOUT, Training
from tests.e2e.truth import Fault, Observed, differences, new_entries
from tests.e2e.undisturbed import check_losses
from tests.e2e.waiting import wait_for_status, wait_until

pytestmark = [pytest.mark.timeout(900), pytest.mark.alone, pytest.mark.nightly]

OUTAGE_S = 180.0
RECOVERS_S = 60.0


@pytest.fixture
def training(cluster: Cluster) -> Iterator[Training]:
    """Real torch: six ranks on three pods, and a spare."""
    training = Training(cluster, CHECKOUT / "build" / "e2e-storage-no-api", NAMESPACE, name="no-api-server")
    training.apply()
    yield training
    training.discard()
    check_losses(training)


@pytest.fixture
def api_server(cluster: Cluster) -> Iterator[None]:
    """It runs again after the test, also after one that failed."""
    yield
    cluster.restore_control_plane()


@pytest.mark.usefixtures("api_server")
def test_a_job_recovers_while_the_api_server_is_down_and_status_reports_it_afterwards(
    cluster: Cluster, training: Training
) -> None:
    # given a training with a spare on a node of its own, and two pods that do not coordinate
    acts.give_spare_a_node(training)
    first = acts.choose_victim(training, (1, 2, 0))
    second = acts.choose_victim(training, tuple({0, 1, 2} - {first.rank}))
    worker = acts.worker_pids(training, first.pod)[0]
    containers = cluster.container_pids(training.namespace, second.pod)
    known = {entry["detectedAt"] for entry in training.status().get("recoveries", ())}

    # when the API server stops
    cluster.stop_control_plane("kube-apiserver")
    stopped_at = time.time()
    # and a worker is killed
    worker_killed_at, token = time.time(), newest_round(training)
    os.kill(worker, signal.SIGKILL)
    # then its pod restarts in place
    steps_after(training, token)
    training_steps(training, 6)
    # and when all containers of another pod are killed
    pod_killed_at, token = time.time(), newest_round(training)
    for pid in containers.values():
        os.kill(pid, signal.SIGKILL)
    # then the spare takes its ranks, and the training goes on for the rest of the three minutes
    steps_after(training, token)
    wait_until("three minutes have passed", lambda: time.time() >= stopped_at + OUTAGE_S, OUTAGE_S + 10)
    training_steps(training, 6)
    assert not cluster.api.ready()

    # and once the API server is back, status reports both faults as they were
    cluster.restore_control_plane()

    def both(status: dict[str, object]) -> bool:
        return len(new_entries(status, known)) == 2 and status.get("phase") == "Running"

    status = wait_for_status("status reports both faults", training.status, both, 60, seen=training.pods_text)
    newest = status["lastRecovery"]["detectedAt"]
    (oldest,) = {entry["detectedAt"] for entry in new_entries(status, known)} - {newest}
    reported = {entry["detectedAt"]: entry for entry in new_entries(status, known)}
    steps, ranks = training.reported_steps(), training.workers
    restarted = Fault("Process", ("InPlace",), first.pod, first.node, first.rank * ranks)
    replaced = Fault("Pod", ("SpareSwap",), second.pod, second.node, second.rank * ranks)
    before = {**status, "lastRecovery": reported[oldest]}
    assert differences(restarted, Observed(worker_killed_at, known | {newest}, steps), before) == []
    assert differences(replaced, Observed(pod_killed_at, known | {oldest}, steps), status) == []
    # and the job has all its pods again
    acts.settle(training)


def newest_round(training: Training) -> Token:
    return training.report()[-1].token


def steps_after(training: Training, token: Token) -> None:
    """Wait until a newer round has made a step."""
    wait_until("a newer round steps", partial(first_step_of_newer, training, token), RECOVERS_S)


def first_step_of_newer(training: Training, token: Token) -> bool:
    return first_step_after(training.report(), token) is not None


def training_steps(training: Training, steps: int) -> None:
    """Wait until the training has made so many steps more."""
    start = newest_step(training.report())
    wait_until(f"{steps} steps more", lambda: newest_step(training.report()) >= start + steps, RECOVERS_S)
