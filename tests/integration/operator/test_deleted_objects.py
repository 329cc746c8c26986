"""A Secret or a Service that somebody deletes by hand under running pods."""

import pytest

from tests.integration.operator.kube import Kube, Raw
from tests.integration.operator.process import OperatorProcess
from tests.integration.operator.training import NAME, Training
from understudy_protocol import pod as names

pytestmark = pytest.mark.timeout(120)

SECRET, SERVICE, HOSTNAMES = f"secrets/{NAME}-membership", f"services/{NAME}-coordinator", f"services/{NAME}"


async def again(kube: Kube, path: str, uid: str) -> Raw:
    """The object of that name, once it is another one."""

    async def look() -> Raw | None:
        plural, name = path.split("/")
        found = [raw for raw in await kube.list(plural) if raw["metadata"]["name"] == name]
        return found[0] if found and found[0]["metadata"]["uid"] != uid else None

    raw = await kube.until(f"{path} is there again", look)
    assert raw is not None
    return raw


async def test_they_come_back_with_the_same_key_and_at_the_same_address(training: Training, kube: Kube):
    # given a job that runs
    pods = await training.start()
    before = {path: await kube.call("GET", path) for path in (SECRET, SERVICE, HOSTNAMES)}

    # when all are deleted
    for path in before:
        await kube.call("DELETE", path)
    after = {path: await again(kube, path, raw["metadata"]["uid"]) for path, raw in before.items()}

    # then nothing has changed for pods that run, or that are made from now on
    assert after[SECRET]["data"] == before[SECRET]["data"]
    assert after[SERVICE]["spec"]["clusterIP"] == before[SERVICE]["spec"]["clusterIP"]
    assert {pod["metadata"]["uid"] for pod in await training.pods()} == {pod["metadata"]["uid"] for pod in pods}
    assert len(training.coordinator.appointments) == 1
    assert (await training.status())["phase"] == "Running"


async def test_a_key_that_nobody_knows_any_more_is_told_and_the_job_begins_anew_once_its_pods_are_gone(
    training: Training, kube: Kube, operator: OperatorProcess
):
    # given a job that runs, and whose Secret is deleted while no operator is there
    pods = await training.start()
    secret = await kube.call("GET", SECRET)
    operator.kill()
    await kube.call("DELETE", SECRET)
    operator.start()

    # then its pods are left alone, no other key is made, and the condition says what to do
    async def told() -> bool:
        status, message = await training.condition("Blocked")
        return status == "True" and "restore the Secret from a copy, or delete the job's pods" in message

    await kube.until("condition Blocked", told)
    assert {pod["metadata"]["uid"] for pod in await training.pods()} == {pod["metadata"]["uid"] for pod in pods}

    # when somebody deletes the pods
    for pod in pods:
        await training.remove(pod)

    # then there is a new key, and pods that have it
    new = await again(kube, SECRET, secret["metadata"]["uid"])
    assert new["data"] != secret["data"]
    made = await training.until_pods(3)
    assert all(pod["metadata"]["labels"][names.LABEL_JOB] == NAME for pod in made)
