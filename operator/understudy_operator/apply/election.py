"""Acquires and renews a Lease, or waits for it: the edge of plan/leadership/lease_election.py.

The client library has an election (kubernetes.aio.leaderelection). It is not used: its calls have no time limit, so a
leader whose API server hangs continues for minutes; network errors end it; it never releases the Lease; and it writes
local time as UTC.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

from understudy_operator.plan.leadership.lease_election import (
    Lease,
    LeaseCandidate,
    LeaseTimes,
    ReadLease,
    ReadOtherLeases,
    Step,
    Wait,
    WriteLease,
)
from understudy_operator.plan.leadership.other_layouts import OtherLayouts
from understudy_operator.plan.leadership.shard import LISTED_ANNOTATION, SINGLE_SHARD, Shard
from understudy_operator.runtime.api import API_FAILURES, NO_ANSWER, Api, ApiError, Raw
from understudy_operator.runtime.clock import Clock

log = logging.getLogger(__name__)


class Election:
    """Runs until canceled. `on_elected` is called when this replica becomes the leader, `on_lost` when it has lost the
    Lease. lease: namespace and name of the Lease of a single shard.
    """

    def __init__(
        self,
        api: Api,
        lease: tuple[str, str],
        identity: str,
        clock: Clock,
        on_elected: Callable[[], None],
        on_lost: Callable[[], Awaitable[None]],
        times: LeaseTimes,
        shard: Shard = SINGLE_SHARD,
    ) -> None:
        self._api, self._clock, self._shard = api, clock, shard
        self._namespace, self._base = lease
        self._name = shard.lease_name(self._base)
        self._others, self._reported = OtherLayouts(), ""  # the held Lease of another layout in the last log line
        self._candidate, self._call_s = LeaseCandidate(identity, times), times.call
        self._on_elected, self._on_lost = on_elected, on_lost
        self._leading = False

    def leads(self) -> bool:
        """Whether reconciles may begin. Compares the clock, because the timers of a frozen process do not run."""
        return self._candidate.leads(self._clock.steady())

    def may_write_for_s(self) -> float:
        """How long a running reconcile may send writes."""
        return self._candidate.may_write_for_s(self._clock.steady())

    async def run(self) -> None:
        while True:
            step = self._candidate.next(self._clock.steady())
            # While this replica leads, no step may last longer than its leadership.
            left_s = max(0.0, self._candidate.leads_until - self._clock.steady()) if self._leading else None
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._do(step)
            await self._notify()

    async def release(self) -> None:
        """Release the Lease if this replica has it. Call it after the last write."""
        if write := self._candidate.release(self._clock.steady()):
            self._leading = False
            try:
                async with asyncio.timeout(self._call_s):
                    await self._write(write)
                log.info("released the lease %s/%s", self._namespace, self._name)
            except API_FAILURES as error:
                log.warning("could not release the lease, which expires by itself: %r", error)

    async def _do(self, step: Step) -> None:
        if isinstance(step, Wait):
            await asyncio.sleep(step.seconds)
            return
        sent_at = self._clock.steady()
        try:
            async with asyncio.timeout(self._call_s):
                if isinstance(step, ReadLease):
                    self._candidate.on_lease_read(await self._read_lease(), self._clock.steady())
                elif isinstance(step, ReadOtherLeases):
                    await self._read_other_leases()
                else:
                    self._candidate.on_lease_written(await self._write(step), sent_at, self._clock.steady())
        except ApiError as error:
            self._candidate.on_failure(self._clock.steady())
            if error.status != 409:  # another replica was faster: not an error
                log.warning("the lease %s/%s: %s", self._namespace, self._name, error)
        except NO_ANSWER as error:
            self._candidate.on_failure(self._clock.steady())
            log.warning("the lease %s/%s could not be reached: %r", self._namespace, self._name, error)
        finally:
            self._api.cancel_writes()  # a late renewal is useless

    async def _notify(self) -> None:
        leads = self.leads()
        if leads and not self._leading:
            self._leading = True
            log.info("this replica is the leader: it holds the lease %s/%s", self._namespace, self._name)
            self._on_elected()
        elif self._leading and not leads:
            self._leading = False
            log.warning("this replica is on standby: it has lost the lease %s/%s", self._namespace, self._name)
            await self._on_lost()

    @property
    def _path(self) -> str:
        return f"/apis/coordination.k8s.io/v1/namespaces/{self._namespace}/leases"

    async def _read_lease(self) -> Lease | None:
        try:
            return _read(await self._api.get(f"{self._path}/{self._name}"))
        except ApiError as error:
            if error.status != 404:
                raise
            return None

    async def _read_other_leases(self) -> None:
        requested_at = self._clock.steady()
        listed = await self._api.list(self._path, keep=self._of_other_layout)
        now = self._clock.steady()
        leases = {raw["metadata"]["name"]: _read(raw) for raw in listed.items}
        held = self._others.held_lease(leases, requested_at, now)
        if held and held != self._reported:
            self._warn(held)
        self._reported = held
        self._candidate.on_other_leases_read(is_one_held=bool(held), now=now)
        if self._candidate.leads(now):
            for name, lease in leases.items():
                if lease.holder:  # and it has expired
                    await self._release_expired(name, lease)

    def _warn(self, held: str) -> None:
        """A Lease and its Deployment have the same name."""
        if self._shard.has_lease_name(self._base, held):
            log.warning(
                "the lease %s/%s is held by a pod with another list of namespaces than this one. This replica waits "
                "until the rolling update has replaced that pod: kubectl -n %s rollout status deployment/%s",
                self._namespace,
                held,
                self._namespace,
                held,
            )
            return
        log.warning(
            "the lease %s/%s is held, and its operator has another number of shards than this one. This replica waits "
            "until that operator has stopped. If it does not stop, delete the Deployment %s",
            self._namespace,
            held,
            held,
        )

    def _of_other_layout(self, raw: Raw) -> Raw | None:
        metadata = raw["metadata"]
        listed = (metadata.get("annotations") or {}).get(LISTED_ANNOTATION, "")
        return raw if self._shard.is_of_other_layout(self._base, metadata["name"], listed) else None

    async def _release_expired(self, name: str, lease: Lease) -> None:
        try:
            await self._send(name, replace(lease, holder="", duration_s=1.0), lease)
            log.info("released the lease %s/%s, which had expired", self._namespace, name)
        except ApiError as error:
            log.info("could not release the lease %s/%s, which has expired: %s", self._namespace, name, error)

    async def _write(self, write: WriteLease) -> Lease:
        return await self._send(self._name, write.lease, write.replaces)

    async def _send(self, name: str, lease: Lease, replaces: Lease | None) -> Lease:
        """replaces: the version to update; None: create the Lease."""
        now = datetime.fromtimestamp(self._clock.wall(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        lease = replace(lease, acquired=lease.acquired or now)
        metadata: Raw = {"name": name, "namespace": self._namespace}
        if self._shard.listed:
            metadata["annotations"] = {LISTED_ANNOTATION: self._shard.listed}
        body: Raw = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": {
                "holderIdentity": lease.holder,
                "leaseDurationSeconds": int(lease.duration_s),
                "leaseTransitions": lease.transitions,
                "acquireTime": lease.acquired,
                "renewTime": now,
            },
        }
        if replaces is None:
            return _read(await self._api.create(self._path, body))
        body["metadata"] = {**metadata, "resourceVersion": replaces.version}
        return _read(await self._api.replace(f"{self._path}/{name}", body))


def _read(raw: Raw) -> Lease:
    spec = raw.get("spec") or {}
    return Lease(
        spec.get("holderIdentity") or "",
        float(spec.get("leaseDurationSeconds") or 0.0),
        raw["metadata"]["resourceVersion"],
        spec.get("acquireTime") or "",
        int(spec.get("leaseTransitions") or 0),
    )
