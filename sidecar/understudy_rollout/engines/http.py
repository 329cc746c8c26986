"""Requests to one server. It takes no time limit of its own: those are the update's, which cancels.

Rules: an answer that is no success is EngineRefused, with what the server said. A request that never left here is
NotDelivered: the server has surely not done it. Of any other failure nobody knows. Each request has a connection of its
own: uvicorn hangs up after an error without having said so, and what undoes that would meet it. So nothing here belongs
to an event loop, and there is nothing to close.

A server that is given as its Gateway is asked through that: calls carry the update and its fence, and the gateway
passes on those of the update that runs. A call that finds no gateway waits GATEWAY_BACK_S for it: containers restart.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Optional, Protocol, Union

import aiohttp

from understudy_rollout.failures import AdmissionRefused, EngineRefused, EngineUnreachable

MAX_ERROR_CHARACTERS = 500
#: Of a call that a gateway passes on: the update that calls.
UPDATE_HEADER, FENCE_HEADER = "Understudy-Update", "Understudy-Fence"
#: Of an answer that is the gateway's and not the server's: why the server has not answered.
NOT_ANSWERED_HEADER = "Understudy-Not-Answered"
REFUSED, NOT_DELIVERED, BROKEN_OFF = "refused", "not-delivered", "broken-off"
GATEWAY_BACK_S = 5.0
ASK_AGAIN_S = 0.1


class NotDelivered(EngineUnreachable):
    """The server could not be connected to: it has surely not got the request."""


class _NobodyListens(NotDelivered):
    """At the address that was asked, be it the server's or its gateway's."""


class Refused(EngineRefused):
    def __init__(self, message: str, status: int, answer: str) -> None:
        super().__init__(message)
        self.status, self.answer = status, answer


class NotAdmitted(AdmissionRefused, NotDelivered):
    """The gateway has not passed it on: another update has taken over."""


class CallAdmission(Protocol):
    """The way to a server through its gateway."""

    engine_url: str

    def call_headers(self) -> Mapping[str, str]:
        """Which update calls. Raises AdmissionRefused if that was refused before."""

    def refused(self) -> None:
        """The call was."""


class EngineServer:
    """at: http://host:port, or a Gateway to go through."""

    def __init__(self, at: Union[str, CallAdmission], headers: Optional[Mapping[str, str]] = None) -> None:
        self.admission = None if isinstance(at, str) else at
        url = at if isinstance(at, str) else at.engine_url
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"url: expected http://host:port of the server; got {url!r}")
        self.url = url.rstrip("/")
        self._headers = dict(headers or {})
        self._gateway_gone = self.admission is None  # it was waited for, and has not answered since

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
        end = asyncio.get_running_loop().time() + GATEWAY_BACK_S
        while True:
            try:
                return await self._request_once(method, path, body, params)
            except _NobodyListens:
                if self._gateway_gone or asyncio.get_running_loop().time() >= end:
                    self._gateway_gone = True
                    raise
            await asyncio.sleep(ASK_AGAIN_S)

    async def _request_once(
        self, method: str, path: str, body: Optional[Mapping[str, Any]], params: Optional[Mapping[str, str]]
    ) -> str:
        what = f"{method} {self.url}{path}"
        headers = self._headers if self.admission is None else {**self._headers, **self.admission.call_headers()}
        try:
            async with (
                _session(headers) as session,
                session.request(method, self.url + path, json=body, params=params) as response,
            ):
                answer = await response.text()
        except aiohttp.ClientConnectorError as error:
            raise _NobodyListens(f"{what}: {error}") from error
        except (aiohttp.ClientError, OSError) as error:
            raise EngineUnreachable(f"{what}: {type(error).__name__} {error}".rstrip()) from error
        self._gateway_gone = self.admission is None
        if response.status < 300:
            return answer
        text = f"{what}: the server answered {response.status}: {answer.strip()[:MAX_ERROR_CHARACTERS]}"
        if self.admission is not None:
            self._check_answered(self.admission, response.headers.get(NOT_ANSWERED_HEADER), text)
        raise Refused(text, response.status, answer)

    def _check_answered(self, admission: CallAdmission, not_answered: Optional[str], told: str) -> None:
        if not_answered == REFUSED:
            admission.refused()
            raise NotAdmitted(told)
        if not_answered == NOT_DELIVERED:
            raise NotDelivered(told)
        if not_answered == BROKEN_OFF:
            raise EngineUnreachable(told)


def _session(headers: Mapping[str, str]) -> aiohttp.ClientSession:
    """For one request."""
    connector = aiohttp.TCPConnector(force_close=True)
    no_limit = aiohttp.ClientTimeout(total=None)
    return aiohttp.ClientSession(
        connector=connector, timeout=no_limit, headers=headers, cookie_jar=aiohttp.DummyCookieJar()
    )


def bearer(api_key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}
