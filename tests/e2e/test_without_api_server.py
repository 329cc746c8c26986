"""The API server is down for three minutes, the operator's processes are killed, and jobs recover without either."""

import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.e2e import acts
from tests.e2e.compared import Comparison
from tests.e2e.installation import NAMESPACE as SYSTEM
from tests.e2e.installation import OPERATOR_PODS
from tests.e2e.lanes import NAMESPACE
from tests.e2e.objects import listed
from tests.e2e.plain import STEP_FILE, PlainJob
from tests.e2e.report import Token, first_step_after, newest_step
from tests.e2e.test_coordinators import actives, coordinator, workers_of
from tests.e2e.training import CHECKOUT, Raw, Training
from tests.e2e.truth import Fault, Observed, differences, new_entries
from tests.e2e.undisturbed import check_losses
from tests.e2e.waiting import wait_for_status, wait_until

pytestmark = [pytest.mark.timeout(900), pytest.mark.alone, pytest.mark.nightly]

OUTAGE_S = 180.0
RECOVERS_S = 60.0
#: From the API server's return until status is current: the kubelet waits before it restarts the operator.
RETURNS_S = 180.0


@pytest.fixture
def api_server(cluster: Cluster) -> Iterator[None]:
    """Restarts it after the test, also after a failed one."""
    yield
    cluster.restore_control_plane()


@pytest.fixture
def training(cluster: Cluster, api_server: None) -> Iterator[Training]:
    """Real torch: six ranks on three pods, and a spare. Deleted once the API server is back."""
    del api_server
    training = Training(cluster, CHECKOUT / "build" / "e2e-storage-no-api", NAMESPACE, name="no-api-server")
    training.apply()
    yield training
    training.discard()
    check_losses(training)


@pytest.fixture
def job(cluster: Cluster, api_server: None) -> Iterator[PlainJob]:
    """Two active pods, and a spare that coordinates."""
    del api_server
    job = PlainJob(cluster, NAMESPACE, "no-api-server-no-coordinator")
    job.apply_until_a_spare_coordinates()
    job.wait_for_voters()
    yield job
    job.discard()


def test_jobs_recover_while_the_api_server_is_down_and_status_reports_it_afterwards(
    cluster: Cluster, training: Training, job: PlainJob
) -> None:
    # given a training with a spare on a node of its own, and two pods that do not coordinate
    acts.give_spare_a_node(training)
    first = acts.choose_victim(training, (1, 2, 0))
    second = acts.choose_victim(training, tuple({0, 1, 2} - {first.rank}))
    worker = acts.worker_pids(training, first.pod)[0]
    containers = cluster.container_pids(training.namespace, second.pod)
    before = training.status()
    known = {entry["detectedAt"] for entry in before.get("recoveries", ())}
    # and a job whose coordinator has no ranks
    comparison, lost = Comparison(job), coordinator(job)
    workers = {pod["metadata"]["name"]: workers_of(job, [pod]) for pod in actives(job)}
    trainers = [cluster.container_pids(job.namespace, name)["trainer"] for name in workers]
    coordinators = cluster.container_pids(job.namespace, lost["metadata"]["name"])
    operators = operator_pids(cluster)

    # when the API server stops, and the operator's processes, and the job's coordinator, are killed
    cluster.stop_control_plane("kube-apiserver")
    stopped_at = time.time()
    kill_all([*operators, *coordinators.values()])
    # and a worker is killed
    worker_killed_at, token = time.time(), newest_round(training)
    os.kill(worker, signal.SIGKILL)
    # then its pod restarts in place
    steps_after(training, token)
    training_steps(training, 6)
    # and when all containers of another pod are killed
    pod_killed_at, token = time.time(), newest_round(training)
    kill_all(containers.values())
    # then the spare takes its ranks, and the training continues for the rest of the three minutes
    steps_after(training, token)
    wait_until("three minutes have passed", lambda: time.time() >= stopped_at + OUTAGE_S, OUTAGE_S + 10)
    training_steps(training, 6)
    assert not cluster.api.ready()
    # and the job without its coordinator trains on, with the same workers
    wait_until("each worker of the job steps on", partial(have_stepped, trainers, made(trainers)), RECOVERS_S)
    assert all(acts.running(pid) for pids in workers.values() for pid in pids)

    # and once the API server is back, status reports both faults truthfully
    cluster.restore_control_plane()

    def both(status: dict[str, object]) -> bool:
        return len(new_entries(status, known)) == 2 and status.get("phase") == "Running"

    status = wait_for_status("status reports both faults", training.status, both, RETURNS_S, seen=training.pods_text)
    newest = status["lastRecovery"]["detectedAt"]
    (oldest,) = {entry["detectedAt"] for entry in new_entries(status, known)} - {newest}
    reported = {entry["detectedAt"]: entry for entry in new_entries(status, known)}
    steps, ranks = training.reported_steps(), training.workers
    restarted = Fault("Process", ("InPlace",), first.pod, first.node, first.rank * ranks, signal="SIGKILL")
    replaced = Fault("Pod", ("SpareSwap",), second.pod, second.node, second.rank * ranks)
    earlier = {**status, "lastRecovery": reported[oldest]}
    assert differences(restarted, Observed(worker_killed_at, known | {newest}, steps), earlier) == []
    assert differences(replaced, Observed(pod_killed_at, known | {oldest}, steps), status) == []
    then = counts(before)
    assert counts(status) == {**then, "inPlace": then["inPlace"] + 1, "spareSwap": then["spareSwap"] + 1}, then
    # and both jobs have all their pods again
    acts.settle(training)

    # and the other job's status names the coordinator that its members have elected, and no fault
    was = comparison.before["coordinator"]
    now = job.wait_for("the elected coordinator", partial(is_later_term, was), RETURNS_S)["coordinator"]
    assert now["podUID"] != was["podUID"]
    job.wait_until_whole()
    comparison.check(None)


def operator_pids(cluster: Cluster) -> list[int]:
    names = [pod["metadata"]["name"] for pod in listed(cluster, SYSTEM, "pods", OPERATOR_PODS)]
    return [pid for name in names for pid in cluster.container_pids(SYSTEM, name).values()]


def kill_all(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # it ended with another process of its pod
            os.kill(pid, signal.SIGKILL)


def made(trainers: Iterable[int]) -> list[int]:
    """The number of steps that the workers of each of these containers have made."""
    return [len(Path(f"/proc/{pid}/root{STEP_FILE}").read_text().splitlines()) for pid in trainers]


def have_stepped(trainers: Iterable[int], steps: Iterable[int]) -> bool:
    """Whether the workers of these containers have made more steps than these."""
    return all(now > before for now, before in zip(made(trainers), steps, strict=True))


def counts(status: Raw) -> dict[str, int]:
    """The recoveries of a job by strategy, with 0 for each strategy without any."""
    reported = status.get("recoveriesByStrategy", {})
    return {name: reported.get(name, 0) for name in ("inPlace", "spareSwap", "podRecreate", "jobRestart")}


def is_later_term(was: Raw, status: Raw) -> bool:
    """Whether status has a later coordinator than `was`, elected in the same epoch."""
    now = status.get("coordinator", {})
    return bool(now.get("epoch") == was["epoch"] and now.get("term", 0) > was.get("term", 0))


def newest_round(training: Training) -> Token:
    return training.report()[-1].token


def steps_after(training: Training, token: Token) -> None:
    """Wait until a newer round has made a step."""
    wait_until("a newer round steps", partial(first_step_of_newer, training, token), RECOVERS_S)


def first_step_of_newer(training: Training, token: Token) -> bool:
    return first_step_after(training.report(), token) is not None


def training_steps(training: Training, steps: int) -> None:
    """Wait until the training has made so many more steps."""
    start = newest_step(training.report())
    wait_until(f"{steps} steps more", lambda: newest_step(training.report()) >= start + steps, RECOVERS_S)
