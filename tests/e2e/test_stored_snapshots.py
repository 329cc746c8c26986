"""Snapshots on storage: a training that was suspended has no snapshot in memory, and continues from one on storage."""

import json
from collections.abc import Iterator

import pytest

from tests.cluster import Cluster
from tests.e2e.lanes import NAMESPACE
from tests.e2e.report import newest_round
from tests.e2e.training import CHECKOUT, Raw, Training
from tests.e2e.undisturbed import check_losses
from tests.e2e.waiting import wait_until
from understudy_protocol.snapshot_storage import is_complete, stored_steps

pytestmark = pytest.mark.timeout(300)

EVERY = 10


class StoredTraining(Training):
    def _localize(self, job: Raw) -> None:
        super()._localize(job)
        job["spec"]["snapshots"]["storage"] = {"path": "/checkpoints/snapshots", "every": EVERY}

    def complete_steps(self) -> list[int]:
        """Steps of the snapshots on storage that have the files of all ranks, newest first."""
        folder = self.folder / "snapshots"
        steps = stored_steps(str(folder)) if folder.exists() else []
        return [stored.saved.step for stored in steps if is_complete(str(folder), stored)]

    def suspend(self, *, suspended: bool) -> None:
        patch = json.dumps({"spec": {"suspend": suspended}})
        self.cluster.kubectl("-n", self.namespace, "patch", "tj", self.name, "--type=merge", "-p", patch)


@pytest.fixture
def training(cluster: Cluster) -> Iterator[StoredTraining]:
    training = StoredTraining(cluster, CHECKOUT / "build" / "e2e-storage-snapshots", NAMESPACE, name="stored")
    training.pace_s = 0.2
    training.apply()
    yield training
    training.discard()
    check_losses(training)


def test_a_suspended_training_continues_from_its_newest_snapshot_on_storage(training: StoredTraining) -> None:
    # given a training with two snapshots on storage
    wait_until("two are complete", lambda: len(training.complete_steps()) >= 2, 120, seen=training.pods_text)
    # when it is suspended
    training.suspend(suspended=True)
    training.wait_for_status("it is suspended", lambda status: status.get("phase") == "Suspended", 60)
    wait_until("its pods are gone", lambda: not training.pods(), 60, seen=training.pods_text)
    stored, before = training.complete_steps()[0], newest_round(training.report())[-1].token
    assert stored % EVERY == 0
    # and resumed
    training.suspend(suspended=False)
    # then it repeats only the steps since that snapshot
    wait_until(
        "it trains again", lambda: newest_round(training.report())[-1].token > before, 120, seen=training.pods_text
    )
    first = newest_round(training.report())[0]
    assert (first.event, first.step) == ("resumed", stored)
