"""Changes and deletions of pods that an API server rejects: they are reported and retried, and delay nothing else."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.integration.operator.kube import Kube, Raw
from tests.integration.operator.test_refusals import PODS, a_policy, blocked, in_force, until_free
from tests.integration.operator.test_stuck import FINALIZER, lost, uids, until_another
from tests.integration.operator.training import NAME, Training, is_spare, node_of
from understudy_protocol import pod as names
from understudy_protocol.enums import CloseReason
from understudy_protocol.observer import End

pytestmark = pytest.mark.timeout(120)

WORDS = "labels are the audit's"
OTHER = "other"
UNCHANGED = "object.metadata.labels == oldObject.metadata.labels"


@asynccontextmanager
async def protected(kube: Kube) -> AsyncIterator[None]:
    """The labels of pods cannot be changed."""
    updates = {**PODS, "operations": ["UPDATE"]}
    policy, binding = a_policy(kube, "labels", updates, UNCHANGED, WORDS)
    async with in_force(kube, validatingadmissionpolicies=policy, validatingadmissionpolicybindings=binding):
        probe = {
            "metadata": {"name": "probe", "labels": {"a": "b"}},
            "spec": {"containers": [{"name": "c", "image": "x"}]},
        }
        await kube.call("POST", "pods", probe)

        async def in_effect() -> bool:
            """The API server needs a moment to apply a new rule."""
            change = {"metadata": {"labels": {"at": str(time.monotonic_ns())}}}
            try:
                await kube.call("PATCH", "pods/probe", change, dryRun="All")
            except AssertionError as error:
                return WORDS in str(error)
            return False

        await kube.until("labels of pods are protected", in_effect)
        await kube.call("DELETE", "pods/probe", {"gracePeriodSeconds": 0})
        yield


async def label_of(kube: Kube, pod: Raw) -> bool:
    return is_spare(await kube.call("GET", f"pods/{pod['metadata']['name']}"))


async def test_a_pod_whose_labels_may_not_be_changed_is_reported_and_all_else_continues(training: Training, kube: Kube):
    # given a job that runs, and a policy that protects the labels of its pods
    a0, a1, spare = await training.start()
    async with protected(kube):
        # when a node dies, and the spare has its rank
        await training.set_node_ready(node_of(a1), ready=False)
        await training.report(1, [(a0, 0), (spare, 1)], lost=(lost(a1),))

        # then the dead pod is deleted, another spare is created, and status reports the round and the rejection
        new = await until_another(training, kube, uids([a0, a1, spare]))
        assert WORDS in await blocked(training, kube, "AdmissionDenied")

        async def dead_pod_is_removed() -> bool:
            return uids(await kube.list("pods")) == uids([a0, spare, new])

        await kube.until("the dead pod is removed", dead_pod_is_removed)
        assert (await training.status())["round"] == 1
        assert await training.condition("Invalid") == ("False", "")
        assert await label_of(kube, spare)

        # and one event reports it, however often it is retried
        await training.report(2, [(a0, 0), (spare, 1), (new, None)], lost=(lost(a1),))
        assert len(await training.until_events("Rejected")) == 1

    # when the policy is gone, then the labels follow
    async def relabelled() -> bool:
        return not await label_of(kube, spare)

    await kube.until("the label has the rank", relabelled)
    await until_free(training, kube)


@pytest.mark.parametrize("propagation", ["Background", "Foreground"])
async def test_a_deleted_job_is_released_although_its_pods_may_not_be_changed(
    training: Training, kube: Kube, propagation: str
):
    # given a job with a rejected change of a pod, and another pod with a third party's finalizer
    a0, a1, spare = await training.start()
    await kube.call("PATCH", f"pods/{a0['metadata']['name']}", {"metadata": {"finalizers": [FINALIZER]}})
    async with protected(kube):
        await training.remove(a1)
        await training.report(1, [(a0, 0), (spare, 1)])
        await blocked(training, kube, "AdmissionDenied")

        # when it is deleted
        await kube.call("DELETE", f"trainingjobs/{NAME}", {"propagationPolicy": propagation})

        # then its coordinator gets the end and its line is closed, and only the garbage collector's finalizer keeps the
        # object
        async def let_go() -> bool:
            return not training.coordinator.observers

        await kube.until("the coordinator is let go", let_go)
        (end,) = [message for message in training.coordinator.received if isinstance(message, End)]
        assert end.reason is CloseReason.DELETED
        present = await kube.list("trainingjobs")
        finalizers = [job["metadata"].get("finalizers") for job in present]
        assert finalizers == ([["foregroundDeletion"]] if propagation == "Foreground" else [])

        # and the operator does nothing more about its pods, which the garbage collector deletes
        before = await kube.list("pods")
        await another_job(training, kube)
        assert await pods_of(kube, NAME) == before


async def another_job(training: Training, kube: Kube) -> None:
    """Created and reconciled meanwhile, in the same namespace."""
    await training.apply(lambda job: job["metadata"].update(name=OTHER))
    await kube.until("pods of another job", lambda: pods_of(kube, OTHER))


async def pods_of(kube: Kube, job: str) -> list[Raw]:
    return [pod for pod in await kube.list("pods") if pod["metadata"]["labels"].get(names.LABEL_JOB) == job]
