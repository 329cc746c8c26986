"""The resources of a part of a session: CPU of controllers and API server, requests, bytes, the system's memory."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from benchmarks.operator import audit
from benchmarks.operator.cluster import Cluster
from benchmarks.operator.exposition import api_bytes
from benchmarks.operator.programs import Program
from benchmarks.operator.settings import User


@dataclass
class Meter:
    """Measures from `begin` to `end`. Counts the system's own user, and the users that work for either system."""

    cluster: Cluster
    program: Program
    user: User
    _before: tuple[float, ...] = field(init=False)
    _bytes: float = field(init=False)
    _log: int = field(init=False)
    last: audit.Requests = field(init=False)

    async def begin(self) -> None:
        self._bytes = await self._api_bytes()
        self._log = self.cluster.files.audit_log.stat().st_size
        self._before = self._cpu_s()

    async def end(self) -> dict[str, float]:
        own, controllers, api_server, others = (
            after - before for after, before in zip(self._cpu_s(), self._before, strict=True)
        )
        log = self.cluster.files.audit_log
        self.last = await asyncio.to_thread(audit.read, log, self._log, log.stat().st_size)
        return {
            "api_writes": audit.total(self.last, self.users, audit.WRITES),
            "api_reads": audit.total(self.last, self.users, audit.READS),
            "api_mb": (await self._api_bytes() - self._bytes) / 1e6,
            "cpu_s": own,
            "controller_manager_cpu_s": controllers,
            "api_server_cpu_s": api_server,
            "others_cpu_s": others,
            "peak_rss_mb": self.program.usage.peak_rss_mb,
        }

    @property
    def users(self) -> tuple[User, ...]:
        return (self.user, User.CONTROLLER_MANAGER, User.AGENTS)

    def _cpu_s(self) -> tuple[float, ...]:
        """Of the system's own program, the controller manager, the API server, and all others together."""
        cluster = self.cluster
        single = (program.usage.cpu_s for program in (self.program, cluster.controller_manager, cluster.api_server))
        return (*single, sum(program.usage.cpu_s for program in cluster.others))

    async def _api_bytes(self) -> float:
        return api_bytes(await self.cluster.kube.text("/metrics"))
