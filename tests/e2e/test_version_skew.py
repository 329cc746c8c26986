"""Two builds with different protocols in one training: the release is upgraded and rolled back while it trains."""

from collections.abc import Iterator

import pytest

from tests.cluster import Cluster
from tests.e2e import acts
from tests.e2e.installation import NAMESPACE as SYSTEM
from tests.e2e.installation import RELEASE, install, operator_node
from tests.e2e.lanes import NAMESPACE
from tests.e2e.previous_build import previous_build
from tests.e2e.training import CHECKOUT, Training
from tests.e2e.undisturbed import check_losses

pytestmark = [pytest.mark.timeout(1200), pytest.mark.alone, pytest.mark.nightly]


@pytest.fixture
def training(cluster: Cluster) -> Iterator[Training]:
    """Real torch: six ranks on three pods, and a spare, all of the previous build."""
    previous = previous_build()
    install(cluster, print, chart=str(previous / "charts" / "understudy"), checkout=previous)
    operator_node(cluster)
    training = Training(cluster, CHECKOUT / "build" / "e2e-storage-skew", NAMESPACE, name="skew")
    training.apply()
    yield training
    training.discard()
    install(cluster, print)
    operator_node(cluster)
    check_losses(training)


def sidecars(training: Training) -> dict[str, int]:
    """The number of the job's pods with each image of the sidecar."""
    images = [pod["spec"]["initContainers"][0]["image"] for pod in acts.running_pods(training)]
    return {image: images.count(image) for image in sorted(set(images))}


def test_a_training_recovers_with_pods_and_operators_of_two_builds(cluster: Cluster, training: Training) -> None:
    # given a training of the previous build
    acts.settle(training)
    assert len(sidecars(training)) == 1
    # when the release is upgraded, then the new operator manages the sidecars of the previous build
    install(cluster, print)
    operator_node(cluster)
    assert acts.kill_worker(training).strategy == "InPlace"
    # and when a pod is lost, the new spare is of the new build
    acts.delete_pod(training)
    acts.settle(training)
    assert sorted(sidecars(training).values()) == [1, 3]
    # then this spare takes the ranks of the next lost pod
    acts.delete_pod(training)
    acts.settle(training)
    assert sorted(sidecars(training).values()) == [2, 2]
    # and pods of both builds elect a coordinator
    acts.delete_coordinator(training)
    acts.settle(training)
    assert len(sidecars(training)) == 2
    # when the release is rolled back, then the previous operator manages both
    cluster.helm("rollback", RELEASE, "--namespace", SYSTEM, "--wait", "--timeout", "90s")
    operator_node(cluster)
    assert acts.kill_worker(training).strategy == "InPlace"
    acts.delete_coordinator(training)
    acts.settle(training)
    assert len(sidecars(training)) == 2
