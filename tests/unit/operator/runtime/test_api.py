"""How the client handles a busy API server, a cancelled request and a lost lease."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from kubernetes.aio.client import ApiClient

from understudy_operator.runtime.api import Api, ApiError, NotLeading, ObjectList, Query, Raw

ATTEMPTS = 5
PAGE = 500

Answer = Raw | Exception
ONE: Raw = {"metadata": {"name": "one"}}
TWO: Raw = {"metadata": {"name": "two"}}


class Scripted(Api):
    """Returns these answers in turn, and records the requests."""

    def __init__(self, *answers: Answer, may_write: Callable[[], bool] = lambda: True) -> None:
        super().__init__(None, may_write)
        self.answers = list(answers)
        self.sent: list[tuple[str, dict[str, str]]] = []
        self.blocked, self.requests = asyncio.Event(), asyncio.Event()
        self.blocked.set()

    async def send(self, method: str, path: str, query: Query, body: Mapping[str, Any] | None, content: str) -> Raw:
        del path, body, content
        self.sent.append((method, dict(query)))
        self.requests.set()
        await self.blocked.wait()
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that the client asked for; none of them is waited."""
    pauses: list[float] = []

    async def sleep(pause_s: float) -> None:
        pauses.append(pause_s)

    monkeypatch.setattr("understudy_operator.runtime.api.asyncio.sleep", sleep)
    return pauses


def busy(after_s: float = 2.0) -> ApiError:
    return ApiError(429, "TooManyRequests", "busy", after_s)


async def test_a_request_is_repeated_after_the_pause_of_a_busy_server_and_not_before(slept: list[float]):
    client = Scripted(busy(2.0), busy(8.0), {"kind": "Pod"})
    assert await client.create("/api/v1/pods", {}) == {"kind": "Pod"}
    assert len(client.sent) == 3
    assert 1.5 <= slept[0] <= 2.5
    assert 6.0 <= slept[1] <= 10.0


async def test_a_request_to_a_server_that_stays_busy_fails_in_the_end(slept: list[float]):
    client = Scripted(*(busy() for _ in range(ATTEMPTS)))
    with pytest.raises(ApiError) as refusal:
        await client.get("/api/v1/nodes/n")
    assert (refusal.value.status, len(client.sent), len(slept)) == (429, ATTEMPTS, ATTEMPTS - 1)


async def test_a_creation_that_conflicts_with_another_one_in_a_quota_is_repeated(slept: list[float]):
    words = 'Operation cannot be fulfilled on resourcequotas "team": the object has been modified'
    client = Scripted(ApiError(409, "Conflict", words), {"kind": "Pod"})
    assert await client.create("/api/v1/pods", {}) == {"kind": "Pod"}
    assert len(slept) == 1


class NoAnswer(ApiClient):
    """Records how long a request may take."""

    patience_s: object = None

    async def call_api(self, *_: Any, _request_timeout: object = None, **__: Any) -> Any:
        self.patience_s = _request_timeout
        raise TimeoutError


async def test_a_creation_may_take_longer_than_an_admission_webhook():
    """With failurePolicy Ignore, the API server creates the object after the 30 s that a webhook may take. Without its
    answer, the creation is sent again, and waits again.
    """
    client = NoAnswer()
    with pytest.raises(TimeoutError):
        await Api(client).create("/api/v1/namespaces/research/pods", {})
    assert client.patience_s == 35.0


async def test_a_creation_of_an_existing_object_is_not_repeated():
    client = Scripted(ApiError(409, "AlreadyExists", "it exists"))
    with pytest.raises(ApiError):
        await client.create("/api/v1/pods", {})
    assert len(client.sent) == 1


async def test_no_other_refusal_is_retried():
    client = Scripted(ApiError(409, "Conflict", "no"))
    with pytest.raises(ApiError):
        await client.replace("/x", {})
    assert len(client.sent) == 1


async def test_a_list_comes_in_pages_and_is_consistent():
    client = Scripted(
        {"items": [ONE], "metadata": {"continue": "next"}}, {"items": [TWO], "metadata": {"resourceVersion": "7"}}
    )
    assert await client.list("/api/v1/pods", "label") == ObjectList([ONE, TWO], "7")
    requests = [query for _, query in client.sent]
    assert requests == [
        {"limit": str(PAGE), "labelSelector": "label"},
        {"limit": str(PAGE), "labelSelector": "label", "continue": "next"},
    ]


async def test_a_list_whose_next_page_has_expired_is_restarted():
    first: Raw = {"items": [ONE], "metadata": {"continue": "next"}}
    client = Scripted(first, ApiError(410, "Expired", "too old"), {"items": [ONE, TWO], "metadata": {}})
    assert (await client.list("/api/v1/pods")).items == [ONE, TWO]


async def test_a_standby_reads_and_writes_nothing():
    client = Scripted({"items": [], "metadata": {}}, may_write=lambda: False)
    await client.get("/api/v1/nodes/n")
    for write in (client.create, client.replace, client.merge, client.delete):
        with pytest.raises(NotLeading):
            await write("/x", {})
    assert len(client.sent) == 1


async def test_a_replica_that_lost_the_lease_while_it_waited_writes_nothing(slept: list[float]):
    leads = [True, False]
    client = Scripted(busy(), {}, may_write=lambda: leads.pop(0))
    with pytest.raises(NotLeading):
        await client.create("/x", {})
    assert len(client.sent) == 1


async def test_a_write_whose_caller_is_cancelled_is_waited_for_at_a_clean_stop():
    client = Scripted({"kind": "Pod"})
    client.blocked.clear()
    caller = asyncio.create_task(client.create("/x", {}))
    await client.requests.wait()
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    assert not await client.wait_for_writes(0.01)
    client.blocked.set()
    assert await client.wait_for_writes(1.0)


async def test_a_write_is_cancelled_when_the_lease_is_lost():
    client = Scripted({"kind": "Pod"})
    client.blocked.clear()
    caller = asyncio.create_task(client.create("/x", {}))
    await client.requests.wait()
    client.cancel_writes()
    await asyncio.gather(caller, return_exceptions=True)
    assert await client.wait_for_writes(1.0)
    assert len(client.answers) == 1  # the request was cancelled before its answer
