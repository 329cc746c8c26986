"""Requests to one server, without a time limit of their own: the update cancels them.

Rules: an error answer raises EngineRefused with the server's text. So does a redirect: a login page would answer with
success. A request that could not be delivered raises NotDelivered: the server has certainly not executed it. After any
other failure that is unknown. Each request has its own connection, because uvicorn closes a connection after an error
without notice, and the undo would use such a connection. So nothing here is bound to an event loop, and nothing needs a
close.

If the server is given as its Gateway, requests go through the gateway: they carry the update and its fence, and the
gateway forwards those of the running update. A call that finds no gateway waits GATEWAY_BACK_S for it, because
containers restart.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Optional, Protocol, Union

import aiohttp

from understudy_rollout.failures import AdmissionRefused, EngineRefused, EngineUnreachable

MAX_ERROR_CHARACTERS = 500
#: Headers of a call through a gateway: the calling update.
UPDATE_HEADER, FENCE_HEADER = "Understudy-Update", "Understudy-Fence"
#: Header of an answer of the gateway itself: why the server has not answered.
NOT_ANSWERED_HEADER = "Understudy-Not-Answered"
REFUSED, NOT_DELIVERED, BROKEN_OFF = "refused", "not-delivered", "broken-off"
GATEWAY_BACK_S = 5.0
ASK_AGAIN_S = 0.1


class NotDelivered(EngineUnreachable):
    """The connection failed: the server has certainly not got the request."""


class _NobodyListens(NotDelivered):
    """Nothing listens at the requested address, of the server or of its gateway."""


class EngineErrorAnswer(EngineRefused):
    def __init__(self, message: str, status: int, answer: str) -> None:
        super().__init__(message)
        self.status, self.answer = status, answer


class NotAdmitted(AdmissionRefused, NotDelivered):
    """The gateway has not forwarded it: another update has replaced this one."""


class CallAdmission(Protocol):
    """The path to a server through its gateway."""

    engine_url: str

    def call_headers(self) -> Mapping[str, str]:
        """Headers with the calling update. Raises AdmissionRefused if the update was rejected before."""

    def refused(self) -> None:
        """The gateway has rejected the call."""


class EngineServer:
    """at: http://host:port, or a Gateway in front of it."""

    def __init__(self, at: Union[str, CallAdmission], headers: Optional[Mapping[str, str]] = None) -> None:
        self.admission = None if isinstance(at, str) else at
        url = at if isinstance(at, str) else at.engine_url
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"url: expected http://host:port of the server; got {url!r}")
        self.url = url.rstrip("/")
        self._headers = dict(headers or {})
        self._gateway_gone = self.admission is None  # a call has waited for it, and it has not answered since

    async def post(
        self, path: str, body: Optional[Mapping[str, Any]] = None, params: Optional[Mapping[str, str]] = None
    ) -> str:
        """Return the text of the answer."""
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
                session.request(method, self.url + path, json=body, params=params, allow_redirects=False) as response,
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
        raise EngineErrorAnswer(text, response.status, answer)

    def _check_answered(self, admission: CallAdmission, not_answered: Optional[str], text: str) -> None:
        if not_answered == REFUSED:
            admission.refused()
            raise NotAdmitted(text)
        if not_answered == NOT_DELIVERED:
            raise NotDelivered(text)
        if not_answered == BROKEN_OFF:
            raise EngineUnreachable(text)


def _session(headers: Mapping[str, str]) -> aiohttp.ClientSession:
    """For one request."""
    connector = aiohttp.TCPConnector(force_close=True)
    no_limit = aiohttp.ClientTimeout(total=None)
    return aiohttp.ClientSession(
        connector=connector, timeout=no_limit, headers=headers, cookie_jar=aiohttp.DummyCookieJar()
    )


def bearer(api_key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}
