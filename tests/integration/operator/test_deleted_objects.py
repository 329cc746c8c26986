"""A Secret or a Service that is deleted by hand under running pods."""

import pytest

from tests.integration.operator.kube import Kube, Raw
from tests.integration.operator.process import OperatorProcess
from tests.integration.operator.test_stuck import bind, set_pod_status, until_another
from tests.integration.operator.training import NAME, Training, secret_name
from understudy_protocol import pod as names

pytestmark = pytest.mark.timeout(120)

SERVICE, HOSTNAMES = f"services/{NAME}-coordinator", f"services/{NAME}"


async def again(kube: Kube, path: str, uid: str) -> Raw:
    """The new object of that name."""

    async def look() -> Raw | None:
        plural, name = path.split("/")
        found = [raw for raw in await kube.list(plural) if raw["metadata"]["name"] == name]
        return found[0] if found and found[0]["metadata"]["uid"] != uid else None

    raw = await kube.until(f"{path} is there again", look)
    assert raw is not None
    return raw


async def test_services_are_recreated_at_the_same_address(training: Training, kube: Kube):
    # given a job that runs
    pods = await training.start()
    before = {path: await kube.call("GET", path) for path in (SERVICE, HOSTNAMES)}

    # when both are deleted
    for path in before:
        await kube.call("DELETE", path)
    after = {path: await again(kube, path, raw["metadata"]["uid"]) for path, raw in before.items()}

    # then nothing has changed for running or new pods
    assert after[SERVICE]["spec"]["clusterIP"] == before[SERVICE]["spec"]["clusterIP"]
    assert {pod["metadata"]["uid"] for pod in await training.pods()} == {pod["metadata"]["uid"] for pod in pods}
    assert len(training.coordinator.appointments) == 1
    assert (await training.status())["phase"] == "Running"


async def test_a_secret_is_recreated_with_the_same_key_when_a_pod_waits_for_it(
    training: Training, kube: Kube, operator: OperatorProcess
):
    # given a job that runs, and whose Secret is deleted while no operator runs
    pods = await training.start()
    path = f"secrets/{secret_name(await kube.call('GET', f'trainingjobs/{NAME}'))}"
    before = await kube.call("GET", path)
    operator.kill()
    await kube.call("DELETE", path)
    operator.start()

    # when a pod is lost, then there is a new one, although the Secret is gone
    await training.remove(pods[1])
    new = await until_another(training, kube, {pod["metadata"]["uid"] for pod in pods})

    # and when that has waited on its node for half a minute
    await bind(training, kube, new)
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-11-20T10:00:00Z"}
    await set_pod_status(kube, new, conditions=[scheduled])

    # then the Secret exists again, with the same key
    assert (await again(kube, path, before["metadata"]["uid"]))["data"] == before["data"]


@pytest.mark.attack(
    "C3", "a thief of a job's key in the next attempt of the job", before="all attempts of a job had one key"
)
async def keys_of(kube: Kube) -> list[Raw]:
    """The Secrets with keys."""
    return [secret for secret in await kube.list("secrets") if names.KEY_FILE in secret["data"]]


async def test_a_suspended_job_has_no_key_and_a_resumed_one_another_key(training: Training, kube: Kube):
    # given a job whose pods are not scheduled yet
    await training.apply()
    await training.until_pods(3)
    (before,) = await keys_of(kube)

    # when it is suspended
    await kube.call("PATCH", f"trainingjobs/{NAME}", {"spec": {"suspend": True}})

    async def none() -> bool:
        return await keys_of(kube) == []

    await kube.until("the Secret is deleted", none)

    # and resumed
    await kube.call("PATCH", f"trainingjobs/{NAME}", {"spec": {"suspend": False}})

    async def one() -> list[Raw]:
        return await keys_of(kube)

    (after,) = await kube.until("the Secret of the next attempt", one)
    attempt = (await training.status())["coordinator"]["formerEpoch"]
    assert after["metadata"]["name"] == f"{before['metadata']['name']}-{attempt}"
    assert after["data"]["key"] != before["data"]["key"]
    assert after["data"]["operator.pub"] == before["data"]["operator.pub"]
