"""A watch's streamed answer from a real HTTP server: the client yields each line as it arrives, in any fragments."""

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager

import pytest
from aiohttp import web
from kubernetes.aio import client

from understudy_operator.runtime.api import Api, ApiError

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def served(handler: Handler) -> AsyncIterator[Api]:
    app = web.Application()
    app.router.add_get("/{path:.*}", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0]
    api_client = client.ApiClient(client.Configuration(host=f"http://{host}:{port}"))
    try:
        yield Api(api_client)
    finally:
        await api_client.close()
        await runner.cleanup()


def pieces(*parts: bytes) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for part in parts:
            await response.write(part)
            await asyncio.sleep(0)
        return response

    return answer


async def read_lines(api: Api) -> list[tuple[str, bytes]]:
    async with aclosing(api.watch("/api/v1/pods", "app=a", "7")) as events:
        return [(event.type, bytes(event.object)) async for event in events]


async def test_lines_are_yielded_whole_however_they_are_fragmented() -> None:
    parts = (b'{"type": "ADDED", "obj', b'ect": {"a": 1}}\n{"type": "DELETED", "object": {}}\n{"typ', b'e": "')
    async with served(pieces(*parts, b'BOOKMARK", "object": {}}\n')) as api:
        assert await read_lines(api) == [("ADDED", b'{"a": 1}'), ("DELETED", b"{}"), ("BOOKMARK", b"{}")]


async def test_the_client_sends_the_query_of_a_watch() -> None:
    requests: dict[str, str] = {}

    async def answer(request: web.Request) -> web.StreamResponse:
        requests.update(request.query)
        return web.Response()

    async with served(answer) as api:
        assert await read_lines(api) == []
    assert (requests["watch"], requests["allowWatchBookmarks"]) == ("true", "true")
    assert (requests["labelSelector"], requests["resourceVersion"]) == ("app=a", "7")


async def test_a_version_that_is_gone_is_reported_as_such_before_the_first_line_and_after() -> None:
    status = b'{"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}'

    async def refuse(request: web.Request) -> web.StreamResponse:
        del request
        return web.Response(status=410, body=status)

    for handler in (refuse, pieces(b'{"type": "ERROR", "object": ' + status + b"}\n")):
        async with served(handler) as api:
            with pytest.raises(ApiError, match="too old") as refused:
                await read_lines(api)
            assert refused.value.is_gone


async def test_other_refusals_are_errors() -> None:
    async def refuse(request: web.Request) -> web.StreamResponse:
        del request
        return web.Response(status=403, body=b'{"reason": "Forbidden", "message": "may not watch"}')

    async with served(refuse) as api:
        with pytest.raises(ApiError, match="may not watch"):
            await read_lines(api)


MIB = 1 << 20
ITEMS = 70


async def items_of_a_mebibyte(request: web.Request) -> web.StreamResponse:
    """ITEMS of them, in pages of the requested size; the token is the number of the next one."""
    begin = int(request.query.get("continue", "0"))
    end = min(ITEMS, begin + int(request.query["limit"]))
    response = web.StreamResponse()
    await response.prepare(request)
    token = f'"continue":"{end}"' if end < ITEMS else '"resourceVersion":"7"'
    await response.write(f'{{"metadata":{{{token}}},"items":['.encode())
    for number in range(begin, end):
        comma = b"," if number > begin else b""
        await response.write(comma + b'{"metadata":{"name":"%d"},"spec":{"x":"%s"}}' % (number, b"x" * MIB))
    await response.write(b"]}")
    return response


@pytest.mark.attack(
    "A1",
    "creates 500 objects of 1.4 MB, which come in one page of a list",
    before="the operator read 700 MB at once, at each list",
)
async def test_a_list_is_read_in_pages_of_at_most_32_mib() -> None:
    # given an API server with 70 MiB of objects
    async with served(items_of_a_mebibyte) as api:
        # when the client lists them, and keeps little of each
        tracemalloc.start()
        try:
            listed = await api.list("/apis/x/v1/things", keep=lambda raw: {"metadata": raw["metadata"]})
            most = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    # then the client has all of them, and only a few pages were in memory at a time
    assert [raw["metadata"]["name"] for raw in listed.items] == [str(number) for number in range(ITEMS)]
    assert most < 80 * MIB


async def test_an_answer_that_is_too_long_for_one_object_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("understudy_operator.runtime.api.ANSWER_BYTES", MIB)
    async with served(items_of_a_mebibyte) as api:
        with pytest.raises(ApiError, match="the answer of GET /apis/x/v1/things has more than 1048576 bytes"):
            await api.list("/apis/x/v1/things")
