"""How claims are written: with a resourceVersion, repeated if there was no answer, and released again."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.unit.operator.fake_api import FakeApi, Raw, owned_by
from tests.unit.operator.given import NOW
from understudy_operator.apply.executor import Executor
from understudy_operator.observe.store import Kind, Store
from understudy_operator.plan.intents import ClaimPod, ClaimWarm, ReleaseClaim
from understudy_operator.runtime.api import ApiError
from understudy_operator.runtime.clock import Clock
from understudy_protocol import pod as names

PATH = "/api/v1/namespaces/research/pods/shared-a"
KEY = ("research", "shared-a")


class Server(FakeApi):
    """Raises `before` in place of a merge, and `after` once a merge is done: its answer is lost."""

    def __init__(self) -> None:
        super().__init__()
        self.before: Exception | None = None
        self.after: Exception | None = None

    async def merge(self, path: str, body: Mapping[str, Any]) -> Raw:
        if self.before is not None:
            raise self.before
        raw = await super().merge(path, body)
        if self.after is not None:
            raise self.after
        return raw


class Given:
    def __init__(self) -> None:
        self.api, self.store = Server(), Store()
        self.executor = Executor(self.api, self.store, Clock())
        labels = {names.LABEL_POOL: "shared", names.LABEL_JOB_UID: "pool-uid"}
        owned = {"ownerReferences": owned_by("pool-uid", "HotSparePool")}
        metadata = {"namespace": "research", "name": "shared-a", "uid": "uid-a", "labels": labels, **owned}
        self.spare = self.put({"kind": "Pod", "metadata": metadata, "spec": {}, "status": {}})

    def put(self, raw: Raw) -> Raw:
        self.spare = self.api.put(PATH, raw)
        self.store.put(Kind.POD, self.spare)
        return self.spare

    def claim(self, job_uid: str = "job-uid") -> ClaimPod:
        version = self.spare["metadata"]["resourceVersion"]
        return ClaimPod("shared-a", "uid-a", version, ("other/finalizer",), job_uid, "llm", NOW, "a pod was lost")

    def claim_warm(self, job_uid: str = "job-uid") -> ClaimWarm:
        version = self.spare["metadata"]["resourceVersion"]
        labels = {names.LABEL_JOB_UID: job_uid, names.LABEL_POOL: None, names.LABEL_POOL_UID: "pool-uid"}
        notes = {names.ANNOTATION_WARM_POOL_UID: "pool-uid"}
        return ClaimWarm("shared-a", "uid-a", version, job_uid, labels, notes, owned_by(job_uid)[0], "a pod was lost")

    def release(self) -> ReleaseClaim:
        metadata = self.api.objects[PATH]["metadata"]
        return ReleaseClaim("shared-a", "uid-a", metadata["resourceVersion"], tuple(metadata["finalizers"]), "over")

    def claimants(self) -> tuple[str | None, str | None]:
        """The claimant in the API server, and in the store."""
        known = self.store.get(Kind.POD, KEY)
        present = self.api.objects[PATH]["metadata"]["labels"].get(names.LABEL_CLAIMED_BY_UID)
        return present, None if known is None else known["metadata"]["labels"].get(names.LABEL_CLAIMED_BY_UID)


@pytest.fixture
def given() -> Given:
    return Given()


async def test_a_claim_is_the_jobs_uid_and_a_finalizer_in_one_write(given: Given):
    # when a job claims a spare
    await given.executor.pools.claims("research", "job-uid", [given.claim()])

    # then pod and store have the claim, and the store also finds the pod by the job
    assert given.claimants() == ("job-uid", "job-uid")
    metadata = given.api.objects[PATH]["metadata"]
    assert metadata["finalizers"] == ["other/finalizer", names.FINALIZER_CLAIM]
    assert metadata["annotations"][names.ANNOTATION_CLAIMED_BY] == "llm"
    assert [call for call in given.api.calls if call[0] != "GET"] == [("PATCH", PATH)]
    for owner in ("job-uid", "pool-uid"):
        assert len(given.store.of_job(Kind.POD, ("research", owner))) == 1


async def test_of_two_claims_with_the_same_version_the_first_succeeds_and_the_second_is_rejected(given: Given):
    first, second = given.claim("job-1"), given.claim("job-2")
    await given.executor.pools.claims("research", "job-uid", [first, second])
    assert given.claimants() == ("job-1", "job-1")


async def test_a_spare_that_is_gone_is_forgotten(given: Given):
    del given.api.objects[PATH]
    await given.executor.pools.claims("research", "job-uid", [given.claim()])
    assert given.store.get(Kind.POD, KEY) is None


@pytest.mark.parametrize("lost", [TimeoutError(), OSError("reset"), ApiError(504, "Timeout", "not in time")])
@pytest.mark.parametrize("done", [False, True], ids=["not done", "done"])
async def test_an_unanswered_claim_is_repeated_unchanged(given: Given, lost: Exception, done: bool):
    # given a claim without an answer
    given.api.before, given.api.after = (None, lost) if done else (lost, None)
    with pytest.raises(type(lost)):
        await given.executor.pools.claims("research", "job-uid", [given.claim()])

    # when the job's next reconcile repeats unanswered claims, then it fails until there is an answer
    if not done:
        with pytest.raises(type(lost)):
            await given.executor.pools.resolve_unanswered("job-uid")

    # and with an answer the claim is made once
    given.api.before = given.api.after = None
    await given.executor.pools.resolve_unanswered("job-uid")
    assert given.claimants() == ("job-uid", "job-uid")
    calls = len(given.api.calls)
    await given.executor.pools.resolve_unanswered("job-uid")
    assert len(given.api.calls) == calls, "nothing is open any more"


@pytest.mark.parametrize("message", ['failed calling webhook "a": refused', 'admission webhook "a" denied the request'])
@pytest.mark.parametrize("kind", ["Replace", "Warm"])
async def test_a_claim_that_a_webhook_prevents_is_a_rejection_and_is_not_repeated(
    given: Given, message: str, kind: str
) -> None:
    # given a webhook for pods that does not respond, or that denies each change with an error of its own
    given.api.before = ApiError(500, "InternalError", message)
    claim = given.claim() if kind == "Replace" else given.claim_warm()

    # when a job claims a spare
    refusals = await given.executor.pools.claims("research", "job-uid", [claim])

    # then the claim is rejected, and the next reconcile has nothing to repeat
    assert [(refusal.key, refusal.message) for refusal in refusals] == [("claim Pod shared-a", message)]
    await given.executor.pools.resolve_unanswered("job-uid")


async def test_a_claim_that_another_job_was_faster_with_is_not_repeated_forever(given: Given):
    given.api.before = TimeoutError()
    with pytest.raises(TimeoutError):
        await given.executor.pools.claims("research", "job-uid", [given.claim("job-1")])
    given.api.before = None
    await given.executor.pools.claims("research", "job-uid", [given.claim("job-2")])
    await given.executor.pools.resolve_unanswered("job-1")
    assert given.claimants() == ("job-2", "job-2")


async def test_a_release_keeps_finalizers_of_others(given: Given):
    await given.executor.pools.claims("research", "job-uid", [given.claim()])
    await given.executor.pools.claims("research", "job-uid", [given.release()])
    assert given.claimants() == (None, None)
    metadata = given.api.objects[PATH]["metadata"]
    assert metadata["finalizers"] == ["other/finalizer"]
    assert names.ANNOTATION_CLAIMED_BY not in metadata["annotations"]


async def test_a_spare_that_has_ended_and_has_no_finalizer_left_is_gone_at_once(given: Given):
    # given a claimed spare whose kubelet has confirmed its end
    await given.executor.pools.claims("research", "job-uid", [given.claim()])
    raw = given.api.objects[PATH]
    raw["metadata"] |= {
        "deletionTimestamp": "2026-11-20T10:00:00Z",
        "deletionGracePeriodSeconds": 0,
        "finalizers": [names.FINALIZER_CLAIM],
    }
    given.put(raw)

    # when its claim is released
    await given.executor.pools.claims("research", "job-uid", [given.release()])

    # then the store removes it without waiting for the watch
    assert given.store.get(Kind.POD, KEY) is None
    assert given.store.of_job(Kind.POD, ("research", "job-uid")) == []


# Warm ----------------------------------------------------------------------------------------------------------------


async def test_a_warm_claim_turns_the_spare_into_a_pod_of_the_job_in_one_write():
    given = Given()
    await given.executor.pools.claims("research", "job-uid", [given.claim_warm()])
    for raw in (given.api.objects[PATH], given.store.get(Kind.POD, KEY)):
        assert raw is not None
        metadata = raw["metadata"]
        assert metadata["labels"] == {names.LABEL_JOB_UID: "job-uid", names.LABEL_POOL_UID: "pool-uid"}
        assert metadata["ownerReferences"] == owned_by("job-uid")
        assert metadata["annotations"] == {names.ANNOTATION_WARM_POOL_UID: "pool-uid"}
        assert not metadata.get("finalizers")


async def test_of_two_warm_claims_one_is_rejected_and_its_store_has_the_other():
    given = Given()
    one, other = given.claim_warm("job-uid"), given.claim_warm("other-uid")
    await given.executor.pools.claims("research", "job-uid", [one])
    await given.executor.pools.claims("research", "job-uid", [other])
    raw = given.store.get(Kind.POD, KEY)
    assert raw is not None
    assert raw["metadata"]["labels"][names.LABEL_JOB_UID] == "job-uid"


async def test_an_unanswered_warm_claim_is_repeated_before_anything_else():
    given = Given()
    given.api.after = ApiError(504, "Timeout", "no answer")
    with pytest.raises(ApiError):
        await given.executor.pools.claims("research", "job-uid", [given.claim_warm()])
    given.api.after = None
    await given.executor.pools.resolve_unanswered("job-uid")
    raw = given.store.get(Kind.POD, KEY)
    assert raw is not None
    assert raw["metadata"]["labels"][names.LABEL_JOB_UID] == "job-uid"
