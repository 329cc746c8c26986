"""Simulates the agents in a JobSet's pods for its restart in place, as far as the API server sees it.

There is one agent in each pod, with the strategy InPlaceRestart. A pod that starts writes the number of its attempt
into an annotation of its own: 0, or after a fault one more than status.currentInPlaceRestartAttempt. If the controller
sees a number above the others', it sets status.previousInPlaceRestartAttempt. Every agent up to that number then
restarts its pod's containers, and writes the new number. When all numbers are equal, the controller sets the current
one, for which all agents have waited. The kubelets' writes about restarted containers are not simulated.
"""

from __future__ import annotations

import time

from benchmarks.operator.cluster import in_parallel
from benchmarks.operator.kube import Kube
from benchmarks.operator.watches import Watches

ATTEMPT = "jobset.sigs.k8s.io/in-place-restart-attempt"


class Agents:
    """The agents of one job."""

    def __init__(self, kube: Kube, namespace: str, watches: Watches) -> None:
        self._kube, self._namespace, self._watches = kube, namespace, watches

    async def start(self, limit_s: float) -> None:
        """Start all of them for the first time."""
        await self._write(0, self._pods())
        await self._until("currentInPlaceRestartAttempt", 0, limit_s)

    async def restart(self, limit_s: float) -> float:
        """One agent has failed. Returns the seconds until the controller lets all of them continue."""
        first, *others = self._pods()
        start = time.monotonic()
        await self._write(1, [first])
        await self._until("previousInPlaceRestartAttempt", 0, limit_s)
        await self._write(1, others)
        return await self._until("currentInPlaceRestartAttempt", 1, limit_s) - start

    def _pods(self) -> list[str]:
        return [pod.metadata.name for pod in self._watches.pods.present.values()]

    async def _write(self, attempt: int, pods: list[str]) -> None:
        body = {"metadata": {"annotations": {ATTEMPT: str(attempt)}}}
        path = f"/api/v1/namespaces/{self._namespace}/pods"
        await in_parallel(lambda pod: self._kube.call("PATCH", f"{path}/{pod}", body), pods)

    async def _until(self, name: str, wanted: int, limit_s: float) -> float:
        def is_reported() -> bool:
            return [status.get(name) for status in self._watches.jobs.statuses()] == [wanted]

        return await self._watches.until(f"status.{name} is {wanted}", is_reported, limit_s)
