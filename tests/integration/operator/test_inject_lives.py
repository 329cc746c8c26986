"""The lifecycle of an injected job against a real API server: a second job of the same name, a suspension.

No controller creates pods of Jobs or collects garbage here: the test does both.
"""

import base64
import json
from functools import partial
from typing import Any

import pytest

from tests.integration.operator.kube import Kube
from tests.integration.operator.test_inject import (
    a_job,
    injected,
    pods_of,
    webhook,  # noqa: F401 (a fixture)
)
from understudy_protocol import pod as names

NO_LIMIT = 2**31 - 1

pytestmark = pytest.mark.usefixtures("webhook")

Raw = dict[str, Any]


async def secret_of(kube: Kube, pod: Raw) -> Raw | None:
    """The Secret that the pod waits for, once it exists."""
    (volume,) = [x for x in pod["spec"]["volumes"] if x["name"] == names.POD_VOLUME]
    wanted = volume["projected"]["sources"][0]["secret"]["name"]
    return next((x for x in await kube.list("secrets") if x["metadata"]["name"] == wanted), None)


async def collect_services(kube: Kube) -> None:
    """As the garbage collector does; to be called repeatedly: the operator recreates one until it observes the end."""
    owners = {x["metadata"]["uid"] for x in await kube.list("injectedjobs")}
    for service in await kube.list("services"):
        if not owners & {owner["uid"] for owner in service["metadata"]["ownerReferences"]}:
            await kube.call("DELETE", f"services/{service['metadata']['name']}")


@pytest.mark.attack("C3", "pods of a Job that was deleted, beside a new Job of its name", before="refused, too")
async def test_a_job_that_is_deleted_and_applied_again_at_once_shares_nothing_with_its_predecessor(kube: Kube) -> None:
    # given a Job, whose pods have their Secret
    _, (pod, *_) = await injected(kube)
    first = await kube.until("the first one's Secret", lambda: secret_of(kube, pod))
    assert first is not None
    # when it is deleted and applied again, and its pods are created while objects of the first one still exist
    await kube.call("DELETE", "jobs/train", {"propagationPolicy": "Background"})  # as kubectl does
    await kube.until("the Job is gone", lambda: gone(kube, "jobs"))
    job = await kube.call("POST", "jobs", a_job())
    (other, *_) = await pods_of(kube, job)
    # then changes for the first one do not affect the second one
    first_uid = pod["metadata"]["labels"][names.LABEL_JOB_UID]
    with pytest.raises(AssertionError, match=r"422.*metadata\.uid"):
        await kube.call("PATCH", "jobs/train", {"metadata": {"uid": first_uid}, "spec": {"backoffLimit": 0}})
    # and its pods wait
    assert await secret_of(kube, other) is None
    # and have their own Secret as soon as the first one's InjectedJob is gone
    await kube.call("DELETE", "injectedjobs/job.train")

    async def secret_of_the_second() -> Raw | None:
        await collect_services(kube)
        return await secret_of(kube, other)

    second = await kube.until("the second one's Secret", secret_of_the_second)
    assert second is not None
    assert second["data"][names.KEY_FILE] != first["data"][names.KEY_FILE]
    result = json.loads(base64.b64decode(second["data"][names.JOB_FILE]))
    assert result["shape"]["uid"] == job["metadata"]["uid"]


async def test_a_job_that_is_suspended_is_reported_as_such_until_it_is_resumed(kube: Kube) -> None:
    # given a Job that the operator manages
    await injected(kube)

    async def limit() -> bool:
        return bool((await kube.call("GET", "jobs/train"))["spec"]["backoffLimit"] == NO_LIMIT)

    await kube.until("the Job leaves faults to the ladder", limit)
    # when it is suspended, and resumed, then its InjectedJob reports it
    for suspended, phase, condition in ((True, "Suspended", "True"), (False, "Pending", "False")):
        await kube.call("PATCH", "jobs/train", {"spec": {"suspend": suspended}})
        await kube.until(f"the phase is {phase}", partial(has_event, kube, phase, condition))


async def has_event(kube: Kube, phase: str, condition: str) -> bool:
    status = (await kube.call("GET", "injectedjobs/job.train")).get("status", {})
    result = [x["status"] for x in status.get("conditions", ()) if x["type"] == "Suspended"]
    return (status.get("phase"), result) == (phase, [condition])


async def gone(kube: Kube, plural: str) -> bool:
    return not await kube.list(plural)
