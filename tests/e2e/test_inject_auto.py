"""An unmodified JobSet manifest with torchrun in bash, and the label alone: the launcher forks torchrun's workers.

test_inject.py runs the same job through all faults every night.
"""

from collections.abc import Iterator

import pytest

from tests.cluster import Cluster
from tests.e2e import acts
from tests.e2e.injected import NAMESPACE, InjectedTraining, label_namespace
from tests.e2e.success import ended_badly, exit_codes, wait_for_end
from tests.e2e.training import CHECKOUT
from tests.e2e.undisturbed import check_losses

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def training(cluster: Cluster, jobsets: None) -> Iterator[InjectedTraining]:
    del jobsets
    namespace = f"{NAMESPACE}-auto"  # the example's claim is bound to one folder per namespace
    label_namespace(cluster, namespace)
    folder = CHECKOUT / "build" / "e2e-storage-inject-auto"
    training = InjectedTraining(cluster, folder, namespace, name="ddp", kind="JobSet", bash=True, label_alone=True)
    training.apply()
    yield training
    training.discard()
    check_losses(training)


def test_the_pods_run_the_command_of_the_manifest_and_their_workers_are_forks(training: InjectedTraining) -> None:
    acts.settle(training)
    for pod in acts.running_pods(training):
        words = ("-n", training.namespace, "exec", pod["metadata"]["name"], "-c", "trainer", "--")
        command = training.cluster.kubectl(*words, "sh", "-c", "cat /proc/[0-9]*/cmdline")
        assert "understudy_zygote" in command
        assert "wait.py" in command, "torchrun has passed its job, and waits"
    assert not [x for x in training.status()["conditions"] if (x["type"], x["status"]) == ("WorkersForked", "False")]


def test_a_killed_worker_of_torchrun_restarts_in_place(training: InjectedTraining) -> None:
    """`make bench-injection` measures how long it takes."""
    act = acts.kill_worker(training)
    assert (act.fault, act.strategy) == ("Process", "InPlace")
    assert act.pods_after == act.pods_before


def test_all_pods_exit_0_when_the_training_has_succeeded(training: InjectedTraining) -> None:
    training.finish()
    wait_for_end(training)
    assert not ended_badly(exit_codes(training))
