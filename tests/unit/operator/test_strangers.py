"""What somebody can do to a job from another namespace, by objects that say they are the job's: nothing.

Whoever knows the job's uid can label what they like in their own namespace, and the operator sees all namespaces.
"""

import asyncio
import base64
from typing import Any

import pytest

from tests.unit.operator.fake_api import CREATED, Raw, owned_by
from tests.unit.operator.test_worker import FakeLink, World, at_work, links, world
from understudy_operator.observe.read_pool import key_id_of, pods_of_pool
from understudy_operator.observe.read_secret import key_of_pool
from understudy_operator.observe.store import Kind, Store
from understudy_protocol import pod as names
from understudy_protocol import wire
from understudy_protocol.membership import Close
from understudy_protocol.words import CloseReason

__all__ = ["links", "world"]  # fixtures

ATTACKER = "attacker"
FAILED = wire.encode(Close(CloseReason.FAILED, "said by nobody of the job"))


def forged(kind: str, name: str, uid: str, **more: Any) -> Raw:
    labels = {names.LABEL_JOB: "llm", names.LABEL_JOB_UID: uid}
    metadata: Raw = {"namespace": ATTACKER, "name": name, "uid": f"forged-{name}", "labels": labels}
    metadata |= {"creationTimestamp": CREATED, "resourceVersion": "1", "ownerReferences": owned_by(uid)}
    return {"kind": kind, "metadata": metadata, **more}


def a_finished_pod(uid: str) -> Raw:
    """It carries what an operator that was away takes for the proof of the job's end."""
    ended = {"name": names.SIDECAR_CONTAINER, "state": {"terminated": {"exitCode": 0, "message": FAILED}}}
    return forged(
        "Pod",
        "llm-workers-0-0-aaaaa",
        uid,
        spec={"nodeName": "n"},
        status={"phase": "Failed", "initContainerStatuses": [ended]},
    )


def a_secret(uid: str) -> Raw:
    key = base64.b64encode(b"known to the attacker").decode()
    return forged("Secret", "aa-membership", uid, data={names.KEY_FILE: key})


@pytest.fixture
def attacked(world: World) -> World:
    world.store.put(Kind.POD, a_finished_pod("job-uid"))
    world.store.put(Kind.SECRET, a_secret("job-uid"))
    return world


async def test_a_job_is_made_whole_and_is_not_ended_by_a_pod_that_says_it_has_ended(attacked: World):
    attacked.apply_job()
    async with at_work(attacked):
        await attacked.until(lambda: len(attacked.api.of_kind("Pod")) == 2)
        attacked.wake()
        await asyncio.sleep(0.05)
    assert "terminalState" not in attacked.status()
    assert not [path for _, path in attacked.api.calls if ATTACKER in path]


async def test_a_secret_that_is_deleted_comes_back_with_the_jobs_own_key(attacked: World, links: list[FakeLink]):
    attacked.apply_job()
    path = "/api/v1/namespaces/research/secrets/llm-membership"
    async with at_work(attacked):
        await attacked.until(lambda: len(attacked.api.of_kind("Pod")) == 2)
        before = attacked.api.objects[path]["data"]
        attacked.store.put(Kind.SECRET, a_secret("job-uid"))
        attacked.store.remove(Kind.SECRET, attacked.api.objects.pop(path))
        attacked.wake()
        await attacked.until(lambda: path in attacked.api.objects)
    assert attacked.api.objects[path]["data"] == before


def test_a_pools_spares_are_told_under_its_own_key_and_are_its_own_pods():
    store, pool = Store(), ("research", "pool-uid")
    store.put(Kind.SECRET, a_secret("pool-uid"))
    store.put(Kind.POD, a_finished_pod("pool-uid"))
    assert (key_of_pool(store, pool), key_id_of(store, pool), pods_of_pool(store, pool)) == ("", "", ())
