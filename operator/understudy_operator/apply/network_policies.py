"""Keeps a NetworkPolicy for each job (plan/network_policy.py), while this replica leads, where the chart says so.

Rules: a job has its policy within EVERY_S of being there; nothing waits for it, since the network takes a moment to
follow anyway. All of them are listed each LIST_S: what was deleted or changed by hand is set right then.
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping
from typing import Any

from understudy_operator.apply.api import TROUBLE, Api, ApiError
from understudy_operator.apply.pace import Pace
from understudy_operator.clock import Clock, jittered
from understudy_operator.observe.read import read_job
from understudy_operator.observe.read_injected import read_injected
from understudy_operator.observe.store import Key, Kind, Store, key_of
from understudy_operator.plan.network_policy import Rules, missing, set_right
from understudy_operator.plan.observed import Job
from understudy_protocol import pod as names

EVERY_S = 1.0
LIST_S = 60.0
GROUP = "/apis/networking.k8s.io/v1"
log = logging.getLogger(__name__)


class NetworkPolicies:
    """rules: what every policy has beside its own job's pods; None: there are to be none."""

    def __init__(self, api: Api, rules: Rules | None, store: Store, clock: Clock, pace: Pace) -> None:
        self._api, self._rules, self._store, self._clock, self._pace = api, rules, store, clock, pace
        self._there: dict[Key, Mapping[str, Any]] = {}
        self._listed_at: float | None = None
        self._jobs: dict[Key, tuple[str, Job]] = {}  # by version of the object: few change from look to look

    async def run(self) -> None:
        while self._rules is not None:
            try:
                await self.look()
            except TROUBLE as error:
                self._listed_at = None  # list them anew
                log.warning("the jobs' NetworkPolicies could not be kept, which is tried again: %r", error)
            await asyncio.sleep(jittered(EVERY_S))

    async def look(self) -> None:
        """Once."""
        assert self._rules is not None, "there are to be some"
        jobs = list(self._read_jobs())
        now = self._clock.steady()
        if self._listed_at is None or now - self._listed_at >= LIST_S:
            listed = await self._api.list(f"{GROUP}/networkpolicies", names.LABEL_JOB_UID)
            self._there, self._listed_at = {key_of(raw): raw for raw in listed.items}, now
            for changed in set_right(jobs, self._there, self._rules):
                await self._replace(changed)
        for manifest in missing(jobs, self._there, self._rules):
            await self._create(manifest)

    def _read_jobs(self) -> Iterator[Job]:
        read: dict[Key, tuple[str, Job]] = {}
        for kind, reader in ((Kind.JOB, read_job), (Kind.INJECTED, read_injected)):
            for raw in self._store.all(kind):
                key, version = key_of(raw), raw["metadata"]["resourceVersion"]
                known = self._jobs.get(key)
                read[key] = known if known is not None and known[0] == version else (version, reader(raw))
        self._jobs = read
        return (job for _, job in read.values())

    async def _create(self, manifest: Mapping[str, Any]) -> None:
        key = key_of(manifest)
        await self._pace.turn()
        try:
            self._there[key] = await self._api.create(f"{GROUP}/namespaces/{key[0]}/networkpolicies", manifest)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
            self._there[key] = manifest  # whose it is, the next list tells
            return
        log.info("%s/%s has a NetworkPolicy", *key)

    async def _replace(self, changed: Mapping[str, Any]) -> None:
        namespace, name = key_of(changed)
        await self._pace.turn()
        try:
            raw = await self._api.replace(f"{GROUP}/namespaces/{namespace}/networkpolicies/{name}", changed)
        except ApiError as error:
            if error.status not in (404, 409):
                raise
            return  # it has changed again, or is gone: the next list tells
        self._there[namespace, name] = raw
        log.info("%s/%s: its NetworkPolicy was changed, and is as it should be again", namespace, name)
