"""The API server's client for tests: raw dicts over aiohttp, and waits with a timeout."""

import asyncio
import json
import ssl
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import aiohttp
import pytest

if TYPE_CHECKING:
    from tests.integration.conftest import ApiServer

Raw = dict[str, Any]
T = TypeVar("T")
LIMIT_S = 40.0
POLL_S = 0.05
GROUPS = {
    "trainingjobs": "/apis/understudy.dev/v1alpha1",
    "hotsparepools": "/apis/understudy.dev/v1alpha1",
    "injectedjobs": "/apis/understudy.dev/v1alpha1",
    "recoveries": "/apis/understudy.dev/v1alpha1",
    "events": "/apis/events.k8s.io/v1",
    "jobs": "/apis/batch/v1",
}


class Runs(Protocol):
    """An operator, or all of its replicas."""

    @property
    def runs(self) -> bool: ...

    def log(self) -> str: ...


class Kube:
    """One namespace of an API server. A wait that times out, or an operator that ends, prints the known state."""

    def __init__(self, server: "ApiServer", namespace: str, operator: Runs) -> None:
        self.namespace = namespace
        self._operator = operator
        context = ssl.create_default_context(cafile=str(server.certificate))
        self._session = aiohttp.ClientSession(
            server.url,
            headers={"Authorization": f"Bearer {server.token}"},
            connector=aiohttp.TCPConnector(ssl=context),
        )

    async def close(self) -> None:
        await self._session.close()

    async def call(self, method: str, path: str, body: Raw | None = None, **query: str) -> Raw:
        """Any request; the path is relative to the namespace unless it begins with a slash."""
        content = "application/merge-patch+json" if method == "PATCH" else "application/json"
        async with self._session.request(
            method, self._path(path), data=json.dumps(body), params=query, headers={"Content-Type": content}
        ) as response:
            text = await response.text()
            assert response.status < 300, f"{method} {path}: {response.status}: {text}"
            raw: Raw = json.loads(text)
            return raw

    async def list(self, path: str) -> list[Raw]:
        items: list[Raw] = (await self.call("GET", path))["items"]
        return items

    async def text(self, path: str) -> str:
        async with self._session.get(path) as response:
            return await response.text()

    async def until(self, description: str, read: Callable[[], Awaitable[T]]) -> T:
        """Poll until there is a value, and return it."""
        deadline = time.monotonic() + LIMIT_S
        while not (found := await read()):
            if time.monotonic() > deadline or not self._operator.runs:
                await self._give_up(description)
            await asyncio.sleep(POLL_S)
        return found

    async def _give_up(self, description: str) -> None:
        parts = [f"{description}: not within {LIMIT_S:g} s", self._operator.log()]
        for path in ("trainingjobs", "pods"):
            for raw in await self.list(path):
                metadata = {name: raw["metadata"].get(name) for name in ("name", "labels", "deletionTimestamp")}
                parts.append(f"{path}: {json.dumps({'metadata': metadata, 'status': raw.get('status')})}")
        pytest.fail("\n".join(parts), pytrace=False)

    def _path(self, path: str) -> str:
        if path.startswith("/"):
            return path
        plural = path.split("/")[0]
        group = GROUPS.get(plural, "/api/v1")
        return f"{group}/namespaces/{self.namespace}/{path}"
