"""Raw dicts to and from the API server, over the connection of `kubernetes.aio`.

The library's typed models silently drop unknown fields, so this module uses only paths and JSON. A request that is
answered with 429 is sent again at the time that the server names. A creation that met a conflict on a quota is sent
again, too. Callers handle all other errors.
"""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec
from kubernetes.aio import client
from kubernetes.aio.client.exceptions import ApiException

from understudy_operator.runtime import decoding
from understudy_operator.runtime.clock import jittered

Raw = dict[str, Any]
Query = Sequence[tuple[str, str]]
#: Reduces an item of a list to its kept fields; None: the list goes on without the item.
Keep = Callable[[Raw], Raw | None]
#: Called for each request: method, path, result (Ok, the status of an error, or NoAnswer), seconds.
OnResponse = Callable[[str, str, str, float], None]
FIELD_MANAGER = "understudy-operator"
#: Longer than an admission webhook may take, 30 s: otherwise a creation that waits for one would never get its answer.
REQUEST_S = 35.0
#: Items of a page of a list. If the page has more than ANSWER_BYTES, it is requested again with fewer items.
PAGE, SMALLER = 500, 8
#: Limit for an answer. etcd accepts objects of 1.5 MiB; 500 pods of an ordinary job have 5 MB.
ANSWER_BYTES = 32 << 20
#: How often a request is sent that is answered with 429, and the pause if the answer names none.
ATTEMPTS = 5
RETRY_AFTER_S = 1.0
LONGEST_RETRY_AFTER_S = 30.0
#: How often a list starts again if its next page has expired (410).
LISTS = 3
#: The timeout of a watch in the request; and the silence after which it ends. The API server sends a bookmark a minute.
WATCH_S = 300
SILENCE_S = 100.0
#: Status of an answer after which only a new list helps.
GONE = 410


def in_namespaces(path: str, namespaces: Sequence[str]) -> tuple[str, ...]:
    """The collection's path for all namespaces if `namespaces` is empty, else one path for each namespace."""
    group, _, plural = path.rpartition("/")
    return tuple(f"{group}/namespaces/{name}/{plural}" for name in namespaces) or (path,)


def namespace_in(path: str) -> str:
    """The namespace of a collection; empty if it covers all namespaces."""
    _, found, after = path.partition("/namespaces/")
    return after.partition("/")[0] if found else ""


class ApiError(Exception):
    """An error answer of the API server: HTTP status, reason and message."""

    def __init__(self, status: int, reason: str, message: str, retry_after_s: float = RETRY_AFTER_S) -> None:
        super().__init__(message)
        self.status, self.reason, self.retry_after_s = status, reason, retry_after_s

    @property
    def is_gone(self) -> bool:
        """The version from which a list or a watch should continue is too old: a new list is needed."""
        return self.status == GONE

    @property
    def is_quota_conflict(self) -> bool:
        """A creation was not done, because other requests changed the quota at the same time."""
        return self.status == 409 and self.reason == "Conflict"

    @property
    def is_uid_conflict(self) -> bool:
        """The object was replaced by another one of its name: the sent uid is that of the old object."""
        return self.status == 422 and "metadata.uid" in str(self)


class TooLong(ApiError):
    """The answer was too long, and was not read to its end."""

    def __init__(self, message: str) -> None:
        super().__init__(500, "TooLong", message)


class NotLeading(Exception):
    """A write was not sent, because another replica may lead by now."""


#: Errors of a request without an answer. The API server may have executed it.
NO_ANSWER = (aiohttp.ClientError, OSError, TimeoutError)
#: Errors of a request that are not bugs of the operator.
API_FAILURES = (ApiError, NotLeading, *NO_ANSWER)


@dataclass(frozen=True)
class ObjectList:
    items: list[Raw]
    version: str  # a watch continues from it


class Api:
    """may_write: whether this process may write now; asked before each write. on_response: called for each request that
    has ended and was not canceled.

    A write whose caller is canceled continues: it may have been done already, and its answer should arrive before
    another replica leads (`wait_for_writes`). A replica that has lost the lease does not wait (`cancel_writes`).
    """

    def __init__(
        self,
        api_client: client.ApiClient | None,
        may_write: Callable[[], bool] = lambda: True,
        on_response: OnResponse = lambda *_: None,
    ) -> None:
        self._client, self._may_write, self._on_response = api_client, may_write, on_response
        self._writes: set[asyncio.Task[Raw]] = set()

    async def wait_for_writes(self, limit_s: float) -> bool:
        """Wait for the writes that are on their way. Returns whether all of them were answered."""
        if self._writes:
            await asyncio.wait(self._writes, timeout=limit_s)
        return not self._writes

    def cancel_writes(self) -> None:
        for write in self._writes:
            write.cancel()

    async def get(self, path: str) -> Raw:
        return await self._call("GET", path)

    async def _pages(self, path: str, selector: str, keep: Keep) -> ObjectList:
        items: list[Raw] = []
        limit, token = PAGE, ""
        while True:
            query = [("limit", str(limit)), ("labelSelector", selector), ("continue", token)]
            try:
                page = await self._call("GET", path, query=query)
            except TooLong:
                if limit == 1:
                    raise
                limit = max(1, limit // SMALLER)
                continue
            items += (kept for item in page["items"] if (kept := keep(item)) is not None)
            token, limit = page["metadata"].get("continue", ""), min(PAGE, 2 * limit)
            if not token:
                return ObjectList(items, page["metadata"].get("resourceVersion", ""))

    async def list_first(self, path: str, selector: str, fields: str, limit: int) -> list[Raw]:
        """The first items. Not from the API server's cache (resourceVersion 0), which would return all of them."""
        query = [("labelSelector", selector), ("fieldSelector", fields), ("limit", str(limit))]
        return list((await self._call("GET", path, query=query))["items"])

    async def list(self, path: str, selector: str = "", keep: Keep = lambda raw: raw) -> ObjectList:
        """All items of one moment after this call, page by page. keep: reduces or drops each item."""
        for _ in range(LISTS - 1):
            try:
                return await self._pages(path, selector, keep)
            except ApiError as error:
                if not error.is_gone:
                    raise
        return await self._pages(path, selector, keep)

    async def watch(self, path: str, selector: str, version: str) -> AsyncGenerator[decoding.WatchEvent]:
        """The changes since that version, until the API server ends the watch. Raises ApiError, or one of NO_ANSWER."""
        query = [("watch", "true"), ("allowWatchBookmarks", "true"), ("timeoutSeconds", str(WATCH_S))]
        query += [("resourceVersion", version), ("labelSelector", selector)]
        async with aclosing(self.lines(path, [(name, value) for name, value in query if value])) as lines:
            async for line in lines:
                try:
                    event = decoding.decode_watch_event(line)
                except msgspec.DecodeError as error:
                    raise ApiError(GONE, "Undecodable", f"a line of the watch of {path}: {error}") from error
                if event.type == "ERROR":
                    raise _error(0, bytes(event.object), {})
                yield event

    async def create(self, path: str, body: Mapping[str, Any]) -> Raw:
        query = [("fieldManager", FIELD_MANAGER), ("fieldValidation", "Strict")]
        return await self._call("POST", path, query=query, body=body)

    async def dry_run(self, path: str, body: Mapping[str, Any]) -> None:
        """Raises the ApiError that the creation would raise."""
        query = [("fieldManager", FIELD_MANAGER), ("fieldValidation", "Strict"), ("dryRun", "All")]
        await self._call("POST", path, query=query, body=body)

    async def replace(self, path: str, body: Mapping[str, Any]) -> Raw:
        return await self._call("PUT", path, query=[("fieldManager", FIELD_MANAGER)], body=body)

    async def merge(self, path: str, body: Mapping[str, Any]) -> Raw:
        return await self._call(
            "PATCH", path, query=[("fieldManager", FIELD_MANAGER)], body=body, content="application/merge-patch+json"
        )

    async def delete(self, path: str, body: Mapping[str, Any]) -> Raw:
        return await self._call("DELETE", path, body=body)

    async def _call(
        self,
        method: str,
        path: str,
        *,
        query: Query = (),
        body: Mapping[str, Any] | None = None,
        content: str = "application/json",
    ) -> Raw:
        for _ in range(ATTEMPTS - 1):
            try:
                return await self._send_if_allowed(method, path, query, body, content)
            except ApiError as error:
                if not (error.status == 429 or (method == "POST" and error.is_quota_conflict)):
                    raise
                await asyncio.sleep(jittered(min(error.retry_after_s, LONGEST_RETRY_AFTER_S)))
        return await self._send_if_allowed(method, path, query, body, content)

    async def _send_if_allowed(
        self, method: str, path: str, query: Query, body: Mapping[str, Any] | None, content: str
    ) -> Raw:
        parameters = [(name, value) for name, value in query if value]
        if method == "GET":
            return await self._timed(method, path, parameters, body, content)
        if not self._may_write():
            raise NotLeading(f"{method} {path} was not sent: this replica is not the leader")
        write = asyncio.create_task(self._timed(method, path, parameters, body, content), name=f"{method} {path}")
        self._writes.add(write)
        write.add_done_callback(self._on_write_done)
        return await asyncio.shield(write)

    def _on_write_done(self, write: asyncio.Task[Raw]) -> None:
        self._writes.discard(write)
        if not write.cancelled():
            write.exception()  # its caller may be gone

    async def _timed(self, method: str, path: str, query: Query, body: Mapping[str, Any] | None, content: str) -> Raw:
        began, result = time.monotonic(), "Ok"
        try:
            return await self.send(method, path, query, body, content)
        except ApiError as error:
            result = str(error.status)
            raise
        except NO_ANSWER:
            result = "NoAnswer"
            raise
        except asyncio.CancelledError:
            result = ""
            raise
        finally:
            if result:
                self._on_response(method, path, result, time.monotonic() - began)

    async def send(self, method: str, path: str, query: Query, body: Mapping[str, Any] | None, content: str) -> Raw:
        """One request and its answer. Raises an ApiError, or one of NO_ANSWER."""
        response = await self._request(method, path, query, body, content, REQUEST_S)
        text = await _read(response)
        if not 200 <= response.status <= 299:
            raise _error(response.status, text or b"", response.headers)
        try:
            return decoding.decoder(method, path)(text)  # type: ignore[no-any-return]
        except msgspec.DecodeError as error:
            raise ApiError(500, "Undecodable", f"the answer to {method} {path}: {error}") from error

    async def lines(self, path: str, query: Query) -> AsyncGenerator[bytes]:
        """The lines of a streamed answer, one by one. Raises an ApiError, or one of NO_ANSWER."""
        patience = aiohttp.ClientTimeout(total=None, sock_connect=REQUEST_S, sock_read=SILENCE_S)
        async with await self._request("GET", path, query, None, "application/json", patience) as response:
            if response.status != 200:
                raise _error(response.status, await response.read(), response.headers)
            parts: list[bytes] = []
            async for chunk in response.content.iter_any():
                *ends, rest = chunk.split(b"\n")
                for end in ends:
                    yield b"".join([*parts, end])
                    parts = []
                parts.append(rest)
                await asyncio.sleep(0)  # other tasks must run even if thousands of pods change without a pause

    async def _request(
        self,
        method: str,
        path: str,
        query: Query,
        body: Mapping[str, Any] | None,
        content: str,
        patience: float | aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        assert self._client is not None
        # The body is JSON already. param_serialize would copy it item by item.
        method, url, headers, *_ = await self._client.param_serialize(
            method,
            path,
            query_params=list(query),
            # Not compressed: that would cost both sides more than the transfer.
            header_params={"Accept": "application/json", "Accept-Encoding": "identity", "Content-Type": content},
            auth_settings=["BearerToken"],
        )
        try:
            answer = await self._client.call_api(method, url, headers, body, _request_timeout=patience)
        except ApiException as error:
            raise _error(error.status or 0, error.body or "", error.headers or {}) from error
        response: aiohttp.ClientResponse = answer.response
        return response


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """Raises TooLong at the limit."""
    parts, count = list[bytes](), 0
    async for part in response.content.iter_any():
        parts.append(part)
        count += len(part)
        if count > ANSWER_BYTES:
            response.close()
            raise TooLong(f"the answer of {response.method} {response.url.path} has more than {ANSWER_BYTES} bytes")
    return b"".join(parts)


def _error(status: int, body: str | bytes, headers: Mapping[str, str]) -> ApiError:
    try:
        details = json.loads(body)
        status = status or int(details.get("code", 0))
        reason, message = str(details.get("reason", "")), str(details.get("message", ""))
        after = headers.get("Retry-After") or details.get("details", {}).get("retryAfterSeconds")
    except (ValueError, AttributeError, TypeError, RecursionError):
        reason, message, after = "", str(body)[:500], headers.get("Retry-After")
    return ApiError(status, reason, message, _seconds(after))


def _seconds(retry_after: object) -> float:
    """The header's value in seconds; the default if it is missing or a date."""
    try:
        after_s = float(str(retry_after))
    except ValueError:
        return RETRY_AFTER_S
    return after_s if 0.0 <= after_s <= LONGEST_RETRY_AFTER_S else LONGEST_RETRY_AFTER_S
