"""The example under a stock torchrun (launcher.mode Torchrun): the story's faults, and its end.

Each test is an act on the job that the tests before it left running.
"""

from collections.abc import Iterator

import pytest

from tests.cluster import Cluster
from tests.e2e import acts
from tests.e2e.lanes import NAMESPACE, create_namespace
from tests.e2e.success import ended_badly, exit_codes, finish_and_watch_exits, wait_for_end
from tests.e2e.training import CHECKOUT, Training
from tests.e2e.undisturbed import check_losses
from tests.e2e.waiting import wait_until

pytestmark = pytest.mark.timeout(400)

#: A namespace of its own: the example's claim is bound to one folder per namespace.
OWN_NAMESPACE = f"{NAMESPACE}-torchrun"
WORLD_SIZE = 3


@pytest.fixture(scope="module")
def training(cluster: Cluster) -> Iterator[Training]:
    create_namespace(cluster, OWN_NAMESPACE)
    folder = CHECKOUT / "build" / "e2e-storage-torchrun"
    training = Training(cluster, folder, OWN_NAMESPACE, name="torchrun", torchrun=True)
    yield training
    training.discard()
    check_losses(training)


def test_torchrun_gets_its_round_and_its_workers_report_their_steps(training: Training) -> None:
    training.apply()
    acts.settle(training)
    # then torchrun is pid 1 of every trainer, with the command of the manifest
    for pod in training.pods():
        name = pod["metadata"]["name"]
        command = training.cluster.kubectl(
            "-n", OWN_NAMESPACE, "exec", name, "-c", "trainer", "--", "cat", "/proc/1/cmdline"
        )
        assert "torch.distributed.run" in command
    status = training.status()
    assert status["members"] == {"desired": 3, "active": 3, "ready": 3}
    assert status["spares"] == {"desired": 1, "ready": 1, "claimed": 0}
    assert status["progress"]["total"] == training.steps
    assert acts.world_size(training) == WORLD_SIZE


def test_a_killed_worker_restarts_in_place(training: Training) -> None:
    act = acts.kill_worker(training)
    assert act.pods_after == act.pods_before
    assert acts.restarts(training) == 0
    assert (act.fault, act.strategy) == ("Process", "InPlace")
    assert acts.world_size(training) == WORLD_SIZE


def test_a_deleted_pod_is_replaced_by_the_spare(training: Training) -> None:
    act = acts.delete_pod(training)
    assert act.strategy == "SpareSwap"
    assert acts.world_size(training) == WORLD_SIZE
    wait_until("the deleted pod is gone", lambda: act.victim.uid not in acts.uids(training), 60)
    acts.settle(training)


def test_a_powered_off_node_is_replaced(training: Training) -> None:
    act = acts.power_off_node(training)
    assert (act.fault, act.strategy) == ("Node", "SpareSwap")
    assert acts.world_size(training) == WORLD_SIZE
    wait_until(
        "the dead node's pod is gone", lambda: act.victim.uid not in acts.uids(training), 90, seen=training.pods_text
    )
    acts.settle(training)
    training.cluster.restore(act.victim.node)


def test_success_ends_every_torchrun_with_0_including_the_spares(training: Training) -> None:
    exits = finish_and_watch_exits(training, 120)
    status = wait_for_end(training)
    codes = exit_codes(training)
    assert not ended_badly(codes)
    assert {name.split("/")[0] for name in codes} >= {name.split("/")[0] for name in exits.containers}
    assert status["phase"] == "Succeeded"
    assert not [pod for pod in training.pods() if pod["status"]["phase"] in ("Running", "Pending")]
