"""Keeps a NetworkPolicy for each job (plan/manifests/network_policy.py) if the chart enables it.

Rules: a job gets its policy within EVERY_S. No job waits for its policy, because the network needs a moment to apply it
anyway. All policies are listed each LIST_S; deleted or changed ones are restored then. If the API server rejects a
policy (a quota, a namespace in deletion), it is retried after the next list. If the request fails (an admission webhook
that does not answer), it is retried after RETRY_S. Other jobs get theirs meanwhile. A watched namespace whose list is
forbidden is skipped until the next list. If another owner's object has the name of a job's policy, the job gets an
event after the second list: the policy of a deleted job of that name is deleted within a minute.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from understudy_operator.apply.network_policies import PolicyExecutor
from understudy_operator.apply.pace import Pace
from understudy_operator.observe.network_policies import PolicyList
from understudy_operator.observe.read_injected import jobs
from understudy_operator.observe.store import Key, Raw, Store, job_kind, key_of
from understudy_operator.plan.facts.job import Job
from understudy_operator.plan.facts.ownership import object_uid
from understudy_operator.plan.leadership.shard import SINGLE_SHARD, Shard
from understudy_operator.plan.manifests.network_policy import (
    Rules,
    jobs_without_policy,
    missing_policies,
    name_taken_event,
    outdated_policies,
)
from understudy_operator.runtime.api import API_FAILURES, Api, ApiError
from understudy_operator.runtime.clock import Clock, jittered

EVERY_S = 1.0
RETRY_S = 5.0
LIST_S = 60.0
log = logging.getLogger(__name__)

T = TypeVar("T")
#: For jobs: yields the policies to write, or jobs.
Plan = Callable[[Iterable[Job], Mapping[Key, Raw], Rules], Iterator[T]]


class NetworkPolicies:
    """rules: every policy's rules besides that for its own job's pods. namespaces: the watched ones; empty: all."""

    def __init__(
        self,
        api: Api,
        rules: Rules,
        store: Store,
        clock: Clock,
        pace: Pace,
        namespaces: Sequence[str] = (),
        shard: Shard = SINGLE_SHARD,
    ) -> None:
        self._list, self._executor = PolicyList(api, namespaces, shard), PolicyExecutor(api, pace)
        self._rules, self._store, self._clock = rules, store, clock
        self._existing: dict[Key, Raw] = {}
        self._listed_at: float | None = None
        self._paused_until: dict[Key, float] = {}  # policies that were rejected or failed since the last list
        self._jobs_without_policy: set[str] = set()  # uids of jobs, at the last list
        self._written: set[str] = set()  # those of them that have their event

    async def run(self) -> None:
        while True:
            try:
                await self.run_once()
            except API_FAILURES as error:
                self._listed_at = None  # list them again
                log.warning("the NetworkPolicies of the jobs could not be reconciled; retrying: %r", error)
            await asyncio.sleep(jittered(EVERY_S))

    async def run_once(self) -> None:
        """List if due, and write the missing and outdated policies."""
        now = self._clock.steady()
        listed: dict[Key, Raw] | None = None
        if self._listed_at is None or now - self._listed_at >= LIST_S:
            listed = await self._list.list()
        current_jobs = [job for job in jobs(self._store) if job.namespace not in self._list.forbidden]
        if listed is not None:
            self._existing, self._listed_at, self._paused_until = listed, now, {}
            for changed in self._of_each(current_jobs, outdated_policies):
                await self._replace(changed)
        for manifest in self._of_each(current_jobs, missing_policies):
            if self._paused_until.get(key_of(manifest), now) <= now:
                await self._create(manifest)
        if listed is not None:
            await self._report_taken_names(current_jobs)

    async def _report_taken_names(self, current_jobs: Iterable[Job]) -> None:
        before = self._jobs_without_policy
        jobs = {object_uid(job): job for job in self._of_each(current_jobs, jobs_without_policy)}
        self._jobs_without_policy = set(jobs)
        self._written &= self._jobs_without_policy
        for uid in (before & self._jobs_without_policy) - self._written:
            try:
                await self._executor.report(jobs[uid], name_taken_event(jobs[uid]))
            except ApiError as error:
                if error.status == 429:
                    raise
                log.info("retrying the event on %s/%s in a minute: %r", jobs[uid].namespace, jobs[uid].name, error)
                continue
            self._written.add(uid)

    def _of_each(self, jobs: Iterable[Job], plan: Plan[T]) -> Iterator[T]:
        """The plan for each job separately: a job with an error does not keep others from their policies."""
        for job in jobs:
            key = (job.namespace, job.name)
            planned = list[T]()
            with self._store.contain_errors(job_kind(key), self._store.get(job_kind(key), key) or {}):
                planned += plan([job], self._existing, self._rules)
            yield from planned

    async def _create(self, manifest: Raw) -> None:
        try:
            self._existing[key_of(manifest)] = await self._executor.create(manifest)
        except ApiError as error:
            self._refuses(key_of(manifest), error)

    async def _replace(self, changed: Raw) -> None:
        try:
            raw = await self._executor.replace(changed)
        except ApiError as error:
            self._refuses(key_of(changed), error)
            return
        if raw is not None:
            self._existing[key_of(changed)] = raw

    def _refuses(self, key: Key, error: ApiError) -> None:
        """Raises the error if it does not concern this one policy."""
        if error.status == 429:
            raise error
        pause_s = RETRY_S if error.status >= 500 else LIST_S
        self._paused_until[key] = self._clock.steady() + pause_s
        log.warning("%s/%s: the API server rejects its NetworkPolicy; retrying in %g s: %s", *key, pause_s, error)
