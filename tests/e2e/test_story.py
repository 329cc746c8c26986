"""One training job recovers from fault after fault: the demo's acts, with assertions.

Each test is an act on the job that the tests before it left running, and compares status with the fault that it causes
(truth.py). The assertions are about results, never about speed: `make bench-recovery` measures that. The act without an
operator is in test_without_operator.py.
"""

from collections.abc import Iterator

import pytest

from tests.cluster import Cluster
from tests.e2e import acts
from tests.e2e.lanes import NAMESPACE
from tests.e2e.success import ended_badly, exit_codes, finish_and_watch_exits, wait_for_end
from tests.e2e.training import CHECKOUT, Training
from tests.e2e.undisturbed import check_losses
from tests.e2e.waiting import wait_until

pytestmark = pytest.mark.timeout(400)

WORLD_SIZE = 6
FENCE_TIMEOUT = "15s"
#: A copy may be of the step before the newest, and the newest one may be on its way.
LOST_WITH_A_POD = 3
#: Longer than the fence timeout, so that the workers have lost their round when they thaw.
FREEZE_S = 20.0


@pytest.fixture(scope="module")
def training(cluster: Cluster) -> Iterator[Training]:
    training = Training(cluster, CHECKOUT / "build" / "e2e-storage", NAMESPACE, fence_timeout=FENCE_TIMEOUT)
    yield training
    training.discard()


def test_an_applied_job_steps_on_all_ranks_and_kubectl_reports_it(training: Training) -> None:
    # when the example is applied
    training.apply()
    acts.settle(training)
    # then it runs with all pods, and kubectl shows that
    status = training.status()
    assert status["members"] == {"desired": 3, "active": 3, "ready": 3}
    assert status["spares"] == {"desired": 1, "ready": 1, "claimed": 0}
    header, row = training.cluster.kubectl("-n", NAMESPACE, "get", "tj", "ddp").splitlines()
    columns = ["NAME", "PHASE", "READY", "SPARES", "RECOVERIES", "LAST", "FAULT", "STEP", "AGE"]
    assert header.split() == columns
    assert row.split()[:5] == ["ddp", "Running", "3/3", "1", "0"]


def test_a_killed_worker_restarts_in_place(training: Training) -> None:
    act = acts.kill_worker(training)
    # no pod was created or restarted, and the round grew by one
    assert act.pods_after == act.pods_before
    assert acts.restarts(training) == 0
    assert training.status()["round"] == act.round_before + 1
    # training continued from a snapshot in memory: at most one step was lost
    assert 0 <= act.lost_steps <= 1
    assert act.recovery["restoredFrom"] == "Memory"
    # and status names the cause
    assert (act.fault, act.strategy) == ("Process", "InPlace")
    assert act.recovery["cause"]["signal"] == "SIGKILL"


def test_a_deleted_pod_is_replaced_by_the_spare(training: Training) -> None:
    act = acts.delete_pod(training)
    assert (act.fault, act.strategy) == ("Pod", "SpareSwap")
    # training continued from a snapshot, of which another pod kept a copy
    assert act.recovery["restoredFrom"] == "Peer"
    assert 0 <= act.lost_steps <= LOST_WITH_A_POD
    # the same world, from the existing pods; and a new spare is created
    assert acts.world_size(training) == WORLD_SIZE
    acts.settle(training)
    assert len(set(acts.uids(training)) - set(act.pods_before)) == 1
    assert act.victim.uid not in acts.uids(training)


def test_a_powered_off_node_is_replaced_although_nothing_reports_its_end(training: Training) -> None:
    act = acts.power_off_node(training)
    assert (act.fault, act.strategy) == ("Node", "SpareSwap")
    assert acts.world_size(training) == WORLD_SIZE
    # the pod of the dead node is deleted, long before the 300 s eviction, and a new spare is ready on another node
    wait_until(
        "the dead node's pod is gone", lambda: act.victim.uid not in acts.uids(training), 90, seen=training.pods_text
    )
    acts.settle(training)
    training.cluster.restore(act.victim.node)


def test_thawed_workers_end_themselves_and_write_nothing(training: Training) -> None:
    act, thaw = acts.freeze_node(training, FREEZE_S)
    assert (act.fault, act.strategy) == ("Node", "SpareSwap")
    # then the thawed workers end, and their round has no more steps or checkpoints than at the freeze
    wait_until("the thawed workers end", lambda: not any(map(acts.running, thaw.pids)), 30, seen=training.pods_text)
    assert len([entry for entry in training.report() if entry.token == thaw.token]) == thaw.report_at_freeze
    assert acts.checkpoints_of(training, thaw.token) == thaw.checkpoints_at_thaw


def test_success_ends_every_container_with_0(training: Training) -> None:
    exits = finish_and_watch_exits(training, 120)
    status = wait_for_end(training)
    # then every container exits 0, including the spare's
    codes = exit_codes(training)
    assert not ended_badly(codes)
    assert {name.split("/")[0] for name in codes} >= {name.split("/")[0] for name in exits.containers}
    assert status["phase"] == "Succeeded"
    assert {c["type"] for c in status["conditions"] if c["status"] == "True"} == {"Completed", "FaultTolerant"}
    assert not [pod for pod in training.pods() if pod["status"]["phase"] in ("Running", "Pending")]


def test_the_loss_of_every_step_is_that_of_a_run_without_faults(training: Training) -> None:
    assert training.report()[-1].event == "done"
    check_losses(training)


def test_deleting_the_job_leaves_no_objects(training: Training) -> None:
    training.delete()

    def left() -> str:
        return training.cluster.kubectl(
            "-n", NAMESPACE, "get", "pods,services,secrets", "-l", "understudy.dev/job-name=ddp", "-o", "name"
        ).strip()

    wait_until("nothing of the job is left", lambda: not left(), 30, seen=left)
