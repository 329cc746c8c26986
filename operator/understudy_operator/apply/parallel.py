"""Sends many requests in parallel, with a limit."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from understudy_operator.plan.facts.refusals import Refusal

FIRST_AT_ONCE = 4
#: Half of the writes that a namespace may have on their way (pace.py), so that one job does not take all places.
AT_ONCE = 64
#: If the other ready tasks take longer than this, fewer calls run at once: a task of another job waits for them at each
#: of its steps.
BUSY_S = 0.005
T = TypeVar("T")


async def in_parallel(calls: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Await all of them, AT_ONCE at a time. Then raise the first error, if there was one."""
    places = asyncio.Semaphore(AT_ONCE)

    async def one(call: Coroutine[Any, Any, T]) -> T:
        async with places:
            return await call

    try:
        results = await asyncio.gather(*(one(call) for call in calls), return_exceptions=True)
    finally:
        for call in calls:
            call.close()  # one that was canceled before its turn has not begun
    done = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        done.append(result)
    return done


async def slow_start(
    items: Sequence[T], do: Callable[[T], Awaitable[Refusal | None]], now: Callable[[], float] = time.monotonic
) -> list[Refusal]:
    """Call `do` for each item, in order, a few at a time; each success allows one more at once.

    So a mistake that all items share costs a few requests, and one slow answer delays no other item. It also allows one
    less if the event loop needs more than BUSY_S for the tasks that are ready: with hundreds of requests on their way,
    a task of another job would wait for a second. After a rejection or an error no other item begins. Returns each
    rejection once. Raises the first error when all running calls have ended.
    """
    left, refusals, errors = deque(items), dict[Refusal, None](), list[Exception]()
    lanes = min(FIRST_AT_ONCE, len(left))

    async def lane() -> None:
        nonlocal lanes
        while left and not refusals and not errors:
            try:
                refusal = await do(left.popleft())
            except Exception as error:  # noqa: BLE001 (it is raised when the others have ended)
                errors.append(error)
                return
            if refusal is not None:
                refusals[refusal] = None
            elif left:
                began = now()
                await asyncio.sleep(0)  # until all other ready tasks have run once
                is_busy = now() - began > BUSY_S
                if is_busy and lanes > FIRST_AT_ONCE:
                    lanes -= 1
                    return
                if not is_busy and lanes < AT_ONCE:
                    lanes += 1
                    running.create_task(lane())

    async with asyncio.TaskGroup() as running:
        for _ in range(lanes):
            running.create_task(lane())
    if errors:
        raise errors[0]
    return list(refusals)
