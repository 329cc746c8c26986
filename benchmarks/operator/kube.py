"""The benchmark's requests to the API server: raw dicts over aiohttp, with a user that is not counted."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any

import aiohttp

from benchmarks.operator.settings import URL, Files, User

Raw = dict[str, Any]
CONNECTIONS = 64
REQUEST_S = 60.0


class Refused(Exception):
    """The API server rejected the request."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status, self.message = status, message


class Kube:
    def __init__(self, files: Files, user: User = User.BENCHMARK) -> None:
        self._session = aiohttp.ClientSession(
            URL,
            headers={"Authorization": f"Bearer {files.tokens[user]}", "User-Agent": f"understudy-bench/{user}"},
            connector=aiohttp.TCPConnector(
                ssl=ssl.create_default_context(cafile=str(files.certificate)), limit=CONNECTIONS
            ),
            timeout=aiohttp.ClientTimeout(total=REQUEST_S),
        )

    async def __aenter__(self) -> Kube:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._session.close()

    async def call(self, method: str, path: str, body: Raw | None = None, **query: str) -> Raw:
        """Raises Refused."""
        content = "application/strategic-merge-patch+json" if method == "PATCH" else "application/json"
        data = None if body is None else json.dumps(body)
        async with self._session.request(
            method, path, data=data, params=query, headers={"Content-Type": content}
        ) as response:
            text = await response.text()
            if response.status >= 300:
                raise Refused(response.status, _message(text))
            raw: Raw = json.loads(text)
            return raw

    async def exists(self, path: str) -> bool:
        """False also while the API server asks to retry later, as it does for a kind that it has just learned."""
        try:
            await self.call("GET", path)
        except Refused as error:
            if error.status not in (404, 429):
                raise
            return False
        return True

    async def text(self, path: str) -> str:
        async with self._session.get(path) as response:
            return await response.text()

    async def watch(self, path: str, after: str) -> AsyncIterator[bytes]:
        """All changes after that resourceVersion, one line each, until the API server ends it; "": all objects."""
        query = {"watch": "true", "timeoutSeconds": "7200"} | ({"resourceVersion": after} if after else {})
        async with self._session.get(path, params=query, timeout=aiohttp.ClientTimeout(total=None)) as response:
            if response.status >= 300:
                raise Refused(response.status, _message(await response.text()))
            remaining = b""
            async for chunk in response.content.iter_any():
                *lines, remaining = (remaining + chunk).split(b"\n")
                for line in lines:
                    yield line
                await asyncio.sleep(0)  # other tasks must run even if thousands of pods change without a pause


def _message(text: str) -> str:
    try:
        return str(json.loads(text).get("message", text))
    except (ValueError, AttributeError):
        return text[:500]
