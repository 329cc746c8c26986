"""Objects in another namespace that claim to belong to a job have no effect on it.

A user who knows the job's uid can label any object in another namespace, and the operator watches all namespaces.
"""

import asyncio
import base64
from typing import Any

import pytest

from tests.unit.operator.controllers.test_job_worker import FakeLink, World, at_work, links, run_pods, virtual, world
from tests.unit.operator.fake_api import CREATED, Raw, owned_by
from tests.unit.operator.given import IMAGE, KEYRING
from tests.unit.operator.plan.injection.test_injected_job import stored
from tests.unit.virtual_time import in_virtual_time
from tests.unit.webhook.golden import pod as golden_pod
from understudy_operator.apply import adoption_link
from understudy_operator.apply.adoption_link import AdoptionKeys
from understudy_operator.observe.read_pool import pods_of_pool
from understudy_operator.observe.store import Kind, Store
from understudy_operator.plan.injection.injected_pods import inject
from understudy_operator.plan.intents import AdoptSpare
from understudy_protocol import pod as names
from understudy_protocol import wire
from understudy_protocol.enums import CloseReason
from understudy_protocol.membership import Close

__all__ = ["links", "world"]  # fixtures

ATTACKER = "attacker"
INJECTED = f"/apis/understudy.dev/v1alpha1/namespaces/{ATTACKER}/injectedjobs"
FAILED = wire.encode(Close(CloseReason.FAILED, "a foreign close"))


def forged(kind: str, name: str, uid: str, **more: Any) -> Raw:
    labels = {names.LABEL_JOB: "llm", names.LABEL_JOB_UID: uid}
    metadata: Raw = {"namespace": ATTACKER, "name": name, "uid": f"forged-{name}", "labels": labels}
    metadata |= {"creationTimestamp": CREATED, "resourceVersion": "1", "ownerReferences": owned_by(uid)}
    return {"kind": kind, "metadata": metadata, **more}


def a_finished_pod(uid: str) -> Raw:
    """A pod with the fields that prove the job's end to an operator that was down."""
    ended = {"name": names.SIDECAR_CONTAINER, "state": {"terminated": {"exitCode": 0, "message": FAILED}}}
    return forged(
        "Pod",
        "llm-workers-0-0-aaaaa",
        uid,
        spec={"nodeName": "n"},
        status={"phase": "Failed", "initContainerStatuses": [ended]},
    )


@pytest.fixture
def attacked(world: World) -> World:
    world.store.put(Kind.POD, a_finished_pod("job-uid"))
    return world


@pytest.mark.attack("B4", "gives pods of another namespace the labels of a job", before="refused, too")
@in_virtual_time
async def test_a_job_gets_its_pods_and_is_not_ended_by_a_foreign_pod_that_reports_its_end(attacked: World):
    attacked.apply_job()
    async with at_work(attacked, virtual()):
        await attacked.until(lambda: len(attacked.api.of_kind("Pod")) == 2)
        attacked.enqueue()
        await asyncio.sleep(60.0)
    assert "terminalState" not in attacked.status()
    assert not [path for _, path in attacked.api.calls if ATTACKER in path]


async def test_the_key_of_a_job_is_derived_from_its_own_uid_and_namespace(attacked: World, links: list[FakeLink]):
    # given a job, and a foreign Secret with the labels of the job's own
    attacked.apply_job()
    key = base64.b64encode(b"known to the attacker").decode()
    secret = forged("Secret", "llm-job-uid-membership", "job-uid", data={names.KEY_FILE: key})
    attacked.api.put(f"/api/v1/namespaces/{ATTACKER}/secrets/llm-job-uid-membership", secret)
    # when the operator has created the objects that the pods need, and calls the pods
    async with at_work(attacked):
        await attacked.until(lambda: len(attacked.api.of_kind("Pod")) == 2)
        run_pods(attacked)
        await attacked.until(lambda: bool(links))
    # then both use the job's own key
    expected = KEYRING.of_job("research", "job-uid", 0)
    made = attacked.api.objects["/api/v1/namespaces/research/secrets/llm-job-uid-membership"]["data"]
    assert base64.b64decode(made[names.KEY_FILE]).decode() == expected
    assert [link.key for link in links] == [expected]


@pytest.mark.attack(
    "C3",
    "an object in another namespace that names the uid of a job",
    before="keys were random, and each in a Secret of the job's own namespace",
)
@in_virtual_time
async def test_an_injected_job_of_another_namespace_that_names_the_uid_of_a_job_gets_another_key(world: World):
    """Its uid is in the spec of its InjectedJob, and the API server does not check that field."""
    # given an InjectedJob with the uid of a job of namespace research as that of its target, and a pod of it
    raw, pod = stored(), inject(golden_pod("job"), IMAGE).pod
    raw["metadata"]["namespace"] = pod["metadata"]["namespace"] = ATTACKER
    raw["spec"]["target"]["uid"] = "job-uid"
    pod["metadata"] |= {"name": "train-0-a", "uid": "forged", "ownerReferences": owned_by("job-uid", "Job")}
    pod["metadata"]["labels"] |= {"batch.kubernetes.io/controller-uid": "job-uid", names.LABEL_JOB_UID: "job-uid"}
    world.store.put(Kind.INJECTED, world.api.put(f"{INJECTED}/job.train", raw))
    world.store.put(Kind.POD, world.api.put(f"/api/v1/namespaces/{ATTACKER}/pods/train-0-a", pod))
    # when the operator creates the Secret that the pod waits for
    async with at_work(world, virtual(), (ATTACKER, "job.train")):
        await world.until(lambda: bool(world.api.of_kind("Secret")))
    # then it has the key of another job
    (secret,) = world.api.of_kind("Secret")
    assert secret["metadata"]["namespace"] == ATTACKER
    key = base64.b64decode(secret["data"][names.KEY_FILE]).decode()
    assert len(key) == 64
    assert key not in {KEYRING.of_job("research", "job-uid", attempt) for attempt in range(10)}


@pytest.mark.attack(
    "C3", "a pod names the uid of another namespace's pool", before="each key was in a Secret of its own namespace"
)
@in_virtual_time
async def test_a_pod_that_names_the_pool_of_another_namespace_does_not_get_its_key(
    world: World, links: list[FakeLink], monkeypatch: pytest.MonkeyPatch
):
    """The pool's uid is in the annotation of a claimed spare, which users can write."""
    used: list[AdoptionKeys] = []

    async def adopt(_: AdoptSpare, keys: AdoptionKeys) -> str:
        used.append(keys)
        return ""

    monkeypatch.setattr(adoption_link, "adopt", adopt)
    # given a job of namespace research, whose editor annotates a pod as a former spare of another namespace's pool
    world.apply_job()
    async with at_work(world, virtual()):
        await world.until(lambda: len(world.api.of_kind("Pod")) == 2)
        for raw in world.api.of_kind("Pod"):
            raw["metadata"]["annotations"][names.ANNOTATION_WARM_POOL_UID] = "pool-uid"
        run_pods(world)
        # when the operator calls this pod
        await world.until(lambda: bool(used))
    # then the operator uses a key of the pod's own namespace
    assert used[0].line.membership.hex() == KEYRING.of_pool("research", "pool-uid")
    assert used[0].line.membership.hex() != KEYRING.of_pool("victims", "pool-uid")
    del links


def test_a_pools_spares_are_its_own_pods():
    store, pool = Store(), ("research", "pool-uid")
    store.put(Kind.POD, a_finished_pod("pool-uid"))
    assert pods_of_pool(store, pool) == ()
