"""A HotSparePool and its spares, whose kubelets the test plays; and the steps by which a job claims a spare."""

import time
from typing import Any

from tests.integration.operator.kube import Kube, Raw
from tests.integration.operator.training import Training, node_of
from understudy_protocol import pod as names
from understudy_protocol.enums import Fault
from understudy_protocol.observer import Lost

TEMPLATE: Raw = {"spec": {"containers": [{"name": "hold", "image": "example.com/pause:1"}]}}


class Pool:
    """The pool `shared`; the test plays its pods' kubelets."""

    def __init__(self, kube: Kube, training: Training) -> None:
        self.kube, self._training = kube, training

    async def apply(self, replicas: int = 1, **changes: Any) -> None:
        spec = {"replicas": replicas, "template": TEMPLATE, **changes}
        body = {"apiVersion": "understudy.dev/v1alpha1", "kind": "HotSparePool", "metadata": {"name": "shared"}}
        await self.kube.call("POST", "hotsparepools", {**body, "spec": spec})

    async def change(self, **spec: Any) -> None:
        await self.kube.call("PATCH", "hotsparepools/shared", {"spec": spec})

    async def status(self) -> Raw:
        status: Raw = (await self.kube.call("GET", "hotsparepools/shared")).get("status", {})
        return status

    async def spares(self) -> list[Raw]:
        return [pod for pod in await self.kube.list("pods") if names.LABEL_POOL in pod["metadata"].get("labels", {})]

    async def until_spares(self, count: int) -> list[Raw]:
        """Wait for this many spares without a claim or a deletion."""

        async def look() -> list[Raw]:
            spares = [
                pod
                for pod in await self.spares()
                if names.LABEL_CLAIMED_BY_UID not in pod["metadata"]["labels"]
                and "deletionTimestamp" not in pod["metadata"]
            ]
            return spares if len(spares) == count else []

        return await self.kube.until(f"{count} spares", look)

    async def run(self, pod: Raw) -> None:
        """Run it on a node of its own, and set it Ready."""
        await self._training.run(pod)
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        name = pod["metadata"]["name"]
        await self.kube.call("PATCH", f"pods/{name}/status", {"status": {"conditions": [ready]}})

    async def end(self, pod: Raw) -> None:
        """As a kubelet does once all containers have ended: first the phase, then the object, unless a finalizer keeps
        it.
        """
        name = pod["metadata"]["name"]
        await self.kube.call("PATCH", f"pods/{name}/status", {"status": {"phase": "Failed"}})
        await self.kube.call("DELETE", f"pods/{name}", {"gracePeriodSeconds": 0})

    async def until(self, description: str, **wanted: Any) -> Raw:
        async def look() -> Raw | None:
            status = await self.status()
            return status if wanted.items() <= status.items() else None

        found = await self.kube.until(description, look)
        assert found is not None
        return found


def lost(pod: Raw) -> Lost:
    metadata = pod["metadata"]
    return Lost(metadata["uid"], metadata["name"], node_of(pod), Fault.NODE, "silent", time.time())


def names_pool(job: Raw) -> None:
    job["spec"]["spares"] = {"replicas": 1, "pool": "shared"}


async def claimed(pool: Pool) -> Raw:
    async def look() -> Raw | None:
        found = [pod for pod in await pool.spares() if names.LABEL_CLAIMED_BY_UID in pod["metadata"]["labels"]]
        return found[0] if found and "deletionTimestamp" in found[0]["metadata"] else None

    spare = await pool.kube.until("the spare is claimed, and deleted", look)
    assert spare is not None
    return spare


async def of_pool(kube: Kube) -> list[Raw]:
    """The job's pods that replace a spare."""
    return [pod for pod in await kube.list("pods") if names.LABEL_POOL_UID in pod["metadata"].get("labels", {})]
