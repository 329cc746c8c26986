"""Executes a plan's intents for pools and claims, and puts the answers into the store at once, as for pods.

A claim is one write with the pod's resourceVersion as precondition: if two jobs claim the same pod, one claim is
rejected. A claim without an answer may have been done, or may still be done. It is sent again unchanged until it gets
an answer, before anything else is decided for its job (`resolve_unanswered`). Otherwise the job could claim a second
pod for the same rank.
"""

import logging
from collections.abc import Sequence

from understudy_operator.apply.pace import Pace
from understudy_operator.apply.subject import refresh_object, refusals_of
from understudy_operator.observe.store import Kind, Raw, Store
from understudy_operator.plan.facts.refusals import Refusal, RefusalKind, read_refusal
from understudy_operator.plan.intents import ClaimIntent, ClaimPod, ClaimWarm, ReleaseClaim
from understudy_operator.plan.times.rfc3339 import micro_time
from understudy_operator.runtime.api import Api, ApiError, NotLeading
from understudy_protocol import pod as names

log = logging.getLogger(__name__)


class PoolExecutor:
    def __init__(self, api: Api, store: Store, pace: Pace) -> None:
        self._api, self._store, self._pace = api, store, pace
        #: By job uid and pod uid. The first item is the namespace.
        self._unanswered: dict[str, dict[str, tuple[str, ClaimPod | ClaimWarm]]] = {}

    async def resolve_unanswered(self, job_uid: str) -> None:
        """Find out the result of claims without an answer. Raises if there is still none."""
        for namespace, claim in list(self._unanswered.get(job_uid, {}).values()):
            await self._claim(namespace, claim)

    def forget(self, job_uid: str | None = None) -> None:
        """Forget the unanswered claims of this job; of all jobs, if none is named."""
        if job_uid is None:
            self._unanswered.clear()
        else:
            self._unanswered.pop(job_uid, None)

    async def claims(self, namespace: str, uid: str, intents: Sequence[ClaimIntent]) -> list[Refusal]:
        """Execute all intents. Returns the API server's rejections. A claim that lost to another one is not among them:
        the store shows that the pod is claimed.

        uid: of the job or the pool whose claims these are.
        """
        refusals: list[Refusal] = []
        for intent in intents:
            try:
                if isinstance(intent, ReleaseClaim):
                    await self._release(namespace, uid, intent)
                else:
                    await self._claim(namespace, intent)
            except ApiError as error:
                if _may_be_done(error) and not isinstance(intent, ReleaseClaim):
                    raise
                refusals += refusals_of(error, intent)
        return refusals

    async def _claim(self, namespace: str, claim: ClaimPod | ClaimWarm) -> None:
        unanswered = self._unanswered.setdefault(claim.job_uid, {})
        unanswered[claim.uid] = (namespace, claim)
        try:
            done = await self._merge(namespace, claim.job_uid, claim, _claim_metadata(claim))
        except (ApiError, NotLeading) as error:
            if not isinstance(error, ApiError) or not _may_be_done(error):
                self._forget_unanswered(claim)
            raise
        self._forget_unanswered(claim)
        if done:
            log.info("%s/%s claimed: %s", namespace, claim.name, claim.reason)

    async def _release(self, namespace: str, uid: str, release: ReleaseClaim) -> None:
        labels = {names.LABEL_CLAIMED_BY_UID: None}
        annotations = {names.ANNOTATION_CLAIMED_BY: None, names.ANNOTATION_CLAIMED_AT: None}
        finalizers = [name for name in release.finalizers if name != names.FINALIZER_CLAIM]
        body = {"finalizers": finalizers or None, "labels": labels, "annotations": annotations}
        if await self._merge(namespace, uid, release, body):
            log.info("%s/%s released: %s", namespace, release.name, release.reason)

    async def _merge(self, namespace: str, uid: str, intent: ClaimIntent, metadata: Raw) -> bool:
        """Whether it was done. If not, the store now has the pod's current version."""
        path = f"/api/v1/namespaces/{namespace}/pods/{intent.name}"
        fields: Raw = {"uid": intent.uid, "resourceVersion": intent.version, **metadata}
        try:
            async with self._pace.turn(namespace, uid):
                answer = await self._api.merge(path, {"metadata": fields})
        except ApiError as error:
            if error.status not in (404, 409):
                raise
            metadata = {"namespace": namespace, "name": intent.name, "uid": intent.uid}
            await refresh_object(self._api, self._store, Kind.POD, path, metadata)
            return False
        if answer["metadata"].get("deletionGracePeriodSeconds") == 0 and not answer["metadata"].get("finalizers"):
            self._store.remove(Kind.POD, answer)  # its end is confirmed, and no finalizer keeps it
        else:
            self._store.put(Kind.POD, answer)
        return True

    def _forget_unanswered(self, claim: ClaimPod | ClaimWarm) -> None:
        unanswered = self._unanswered.get(claim.job_uid, {})
        unanswered.pop(claim.uid, None)
        if not unanswered:
            self._unanswered.pop(claim.job_uid, None)


def _may_be_done(error: ApiError) -> bool:
    """Whether the API server may have executed the write. A webhook that does not respond prevents it."""
    refusal = read_refusal(error.status, str(error))
    return refusal is not None and refusal.kind is RefusalKind.SERVER


def _claim_metadata(claim: ClaimPod | ClaimWarm) -> Raw:
    """The patch of the pod's metadata."""
    if isinstance(claim, ClaimWarm):
        return {"labels": claim.labels, "annotations": claim.annotations, "ownerReferences": [claim.owner]}
    others = [name for name in claim.finalizers if name != names.FINALIZER_CLAIM]
    return {
        "finalizers": [*others, names.FINALIZER_CLAIM],
        "labels": {names.LABEL_CLAIMED_BY_UID: claim.job_uid},
        "annotations": {
            names.ANNOTATION_CLAIMED_BY: claim.job_name,
            names.ANNOTATION_CLAIMED_AT: micro_time(claim.at),
        },
    }
