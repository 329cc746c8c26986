"""Writes the NetworkPolicies of jobs."""

import logging
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from understudy_operator.apply.events import send_event
from understudy_operator.apply.pace import Pace
from understudy_operator.observe.network_policies import GROUP
from understudy_operator.observe.store import key_of
from understudy_operator.plan.facts.job import Job
from understudy_operator.plan.facts.ownership import owner_reference
from understudy_operator.plan.intents import Event
from understudy_operator.runtime.api import Api, ApiError
from understudy_protocol import pod as names

Raw = Mapping[str, Any]
log = logging.getLogger(__name__)


class PolicyExecutor:
    """All writes return the policy as it is now, and raise ApiError if the API server rejects it."""

    def __init__(self, api: Api, pace: Pace) -> None:
        self._api, self._pace = api, pace

    async def create(self, manifest: Raw) -> Raw:
        namespace, name = key_of(manifest)
        try:
            async with self._turn(manifest):
                raw = await self._api.create(f"{GROUP}/namespaces/{namespace}/networkpolicies", manifest)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
            return {"metadata": {"namespace": namespace, "name": name}}  # the next list shows its owner
        log.info("%s/%s has a NetworkPolicy", namespace, name)
        return raw

    async def replace(self, changed: Raw) -> Raw | None:
        """None if it has changed again, or is gone."""
        namespace, name = key_of(changed)
        try:
            async with self._turn(changed):
                raw = await self._api.replace(f"{GROUP}/namespaces/{namespace}/networkpolicies/{name}", changed)
        except ApiError as error:
            if error.status not in (404, 409):
                raise
            return None
        log.info("%s/%s: its NetworkPolicy was changed; restored it", namespace, name)
        return raw

    async def report(self, job: Job, event: Event) -> None:
        await send_event(self._api, self._pace, {**owner_reference(job), "namespace": job.namespace}, event)

    def _turn(self, manifest: Raw) -> AbstractAsyncContextManager[None]:
        metadata = manifest["metadata"]
        return self._pace.turn(metadata["namespace"], metadata["labels"][names.LABEL_JOB_UID])
