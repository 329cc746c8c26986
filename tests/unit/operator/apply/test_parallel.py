"""Many requests at once: the number grows with each success, up to a limit."""

import asyncio
import itertools
from collections.abc import Callable

import pytest

from tests.unit.idle import run_until_idle
from understudy_operator.apply.parallel import slow_start
from understudy_operator.plan.facts.refusals import Refusal

AT_ONCE = 64
FIRST_AT_ONCE = 4


class Server:
    """Answers a request when the test asks it to."""

    def __init__(self) -> None:
        self.requests: list[int] = []
        self.waiting: dict[int, asyncio.Future[Refusal | None]] = {}
        self.most_at_once = 0

    async def do(self, item: int) -> Refusal | None:
        self.requests.append(item)
        self.waiting[item] = asyncio.get_running_loop().create_future()
        self.most_at_once = max(self.most_at_once, len(self.waiting))
        try:
            return await self.waiting[item]
        finally:
            del self.waiting[item]

    async def answer(self, *items: int, refusal: Refusal | None = None) -> None:
        for item in items or tuple(self.waiting):
            self.waiting[item].set_result(refusal)
        await run_until_idle()


async def begun(server: Server, count: int, now: Callable[[], float] = lambda: 0.0) -> asyncio.Task[list[Refusal]]:
    task = asyncio.create_task(slow_start(range(count), server.do, now))
    await run_until_idle()
    return task


async def test_each_success_allows_one_more_request_at_a_time() -> None:
    # given many requests
    server = Server()
    task = await begun(server, 1000)
    assert server.requests == list(range(FIRST_AT_ONCE))

    # when one is answered, then two more are sent
    await server.answer(0)
    assert len(server.waiting) == FIRST_AT_ONCE + 1

    # and as more are answered, the number at a time stays below the limit
    while not task.done():
        await server.answer()
    assert task.result() == []
    assert server.requests == list(range(1000))
    assert server.most_at_once == AT_ONCE


async def test_a_busy_event_loop_lowers_the_number_to_the_first_one() -> None:
    # given 20 requests at a time
    server, seconds = Server(), 0.0
    ticks = itertools.count()
    task = await begun(server, 1000, lambda: next(ticks) * seconds)
    while len(server.waiting) < 20:
        await server.answer(next(iter(server.waiting)))

    # when the ready tasks need 6 ms from now on, then each answer allows one less, and never less than four
    seconds = 0.006
    for expected in [*range(19, FIRST_AT_ONCE - 1, -1), FIRST_AT_ONCE, FIRST_AT_ONCE]:
        await server.answer(next(iter(server.waiting)))
        assert len(server.waiting) == expected

    # and when they need no time, it grows again
    seconds = 0.0
    await server.answer(next(iter(server.waiting)))
    assert len(server.waiting) == FIRST_AT_ONCE + 1
    while not task.done():
        await server.answer()
    assert server.requests == list(range(1000))


async def test_a_slow_answer_delays_no_other_request() -> None:
    # given one request that is not answered
    server = Server()
    task = await begun(server, 100)

    # when all others are answered
    while len(server.waiting) > 1:
        await server.answer(*(item for item in server.waiting if item != 2))

    # then all requests have been sent
    assert len(server.requests) == 100
    await server.answer(2)
    assert await task == []


async def test_no_request_is_sent_after_a_refusal_which_is_reported_once() -> None:
    server, refusal = Server(), Refusal("no")
    task = await begun(server, 100)
    await server.answer(refusal=refusal)
    assert await task == [refusal]
    assert server.requests == list(range(FIRST_AT_ONCE))


async def test_an_error_is_raised_when_all_running_requests_have_ended() -> None:
    # given one request that fails
    server = Server()
    task = await begun(server, 100)
    server.waiting[1].set_exception(TimeoutError())
    await run_until_idle()
    assert not task.done()

    # when the others are answered, then the error is raised, and no request was sent after it
    await server.answer(0, 2, 3)
    with pytest.raises(TimeoutError):
        await task
    assert server.requests == list(range(FIRST_AT_ONCE))


async def test_a_cancelled_task_sends_no_other_request() -> None:
    server = Server()
    task = await begun(server, 100)
    task.cancel()
    await run_until_idle()
    assert task.cancelled()
    assert (server.requests, server.waiting) == (list(range(FIRST_AT_ONCE)), {})


async def test_an_empty_list_sends_no_request() -> None:
    assert await slow_start([], Server().do) == []
