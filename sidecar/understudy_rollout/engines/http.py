"""Requests to one server. It takes no time limit of its own: those are the update's, which cancels.

Rules: an answer that is no success is EngineRefused, with what the server said. A request that never left here is
NotDelivered: the server has surely not done it. Of any other failure nobody knows. Each request has a connection of its
own: uvicorn hangs up after an error without having said so, and what undoes that would meet it. So nothing here belongs
to an event loop, and there is nothing to close.
"""

from collections.abc import Mapping
from typing import Any, Optional

import aiohttp

from understudy_rollout.failures import EngineRefused, EngineUnreachable

TOLD_CHARACTERS = 500


class NotDelivered(EngineUnreachable):
    """The server could not be connected to: it has surely not got the request."""


class Refused(EngineRefused):
    def __init__(self, message: str, status: int, answer: str) -> None:
        super().__init__(message)
        self.status, self.answer = status, answer


class Server:
    def __init__(self, url: str, headers: Optional[Mapping[str, str]] = None) -> None:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"url: expected http://host:port of the server; seen {url!r}")
        self.url = url.rstrip("/")
        self._headers = dict(headers or {})

    async def post(
        self, path: str, body: Optional[Mapping[str, Any]] = None, params: Optional[Mapping[str, str]] = None
    ) -> str:
        """The answer's text."""
        return await self._request("POST", path, body, params)

    async def get(self, path: str) -> str:
        return await self._request("GET", path, None, None)

    async def _request(
        self, method: str, path: str, body: Optional[Mapping[str, Any]], params: Optional[Mapping[str, str]]
    ) -> str:
        what = f"{method} {self.url}{path}"
        try:
            async with (
                _session(self._headers) as session,
                session.request(method, self.url + path, json=body, params=params) as response,
            ):
                answer = await response.text()
        except aiohttp.ClientConnectorError as error:
            raise NotDelivered(f"{what}: {error}") from error
        except (aiohttp.ClientError, OSError) as error:
            raise EngineUnreachable(f"{what}: {type(error).__name__} {error}".rstrip()) from error
        if response.status >= 300:
            told = answer.strip()[:TOLD_CHARACTERS]
            raise Refused(f"{what}: the server answered {response.status}: {told}", response.status, answer)
        return answer


def _session(headers: Mapping[str, str]) -> aiohttp.ClientSession:
    """For one request."""
    connector = aiohttp.TCPConnector(force_close=True)
    no_limit = aiohttp.ClientTimeout(total=None)
    return aiohttp.ClientSession(
        connector=connector, timeout=no_limit, headers=headers, cookie_jar=aiohttp.DummyCookieJar()
    )


def bearer(api_key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}
