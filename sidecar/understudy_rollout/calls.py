"""Calls to many sides at once, each within its time, and work that no cancellation cuts short.

Rules: the first error ends the others' calls; what these raise is noted on it. Nothing is left running, unless a call
does not let go when it is cancelled: it is waited for CANCEL_LIMIT_S, and then left alone and named.
"""

import asyncio
import logging
from collections.abc import Awaitable, Iterable, Mapping
from functools import partial
from typing import Callable, Optional

from understudy_rollout.failures import StepTimedOut, UpdateFailed, describe, note

CANCEL_LIMIT_S = 2.0
MAX_CANCELS = 3
Call = Callable[[], Awaitable[None]]
log = logging.getLogger(__name__)


async def run_together(what: str, calls: Mapping[str, Call], limit_s: float) -> None:
    """Make these calls in parallel. calls: by the name of the side. Raises what failed first, with notes."""
    ended: dict[asyncio.Task[None], None] = {}  # in the order in which they ended
    tasks = {asyncio.ensure_future(_made(call)): who for who, call in calls.items()}
    for task in tasks:
        task.add_done_callback(ended.setdefault)
    try:
        await asyncio.wait(tasks, timeout=limit_s, return_when=asyncio.FIRST_EXCEPTION)
        running = [task for task in tasks if not task.done()]
        failed = _failure(what, tasks, _all_done(tasks, ended))
        if failed is None and running:
            failed = timed_out(what, ", ".join(tasks[task] for task in running), limit_s)
    except asyncio.CancelledError as cancelled:
        note(cancelled, f"cancelled while: {what}")
        failed = cancelled
    if failed is None:
        return
    again = await run_uninterrupted(partial(_abandon_tasks, what, tasks))
    if again is not None and not isinstance(failed, asyncio.CancelledError):
        note(failed, f"and cancelled while: {what}")
    for task in _all_done(tasks, ended):
        error = _error(task)
        if error is not None and error is not failed:
            note(failed, f"and {what}, {tasks[task]}: {describe(error)}")
    raise failed


async def run_with_limit(what: str, target: str, call: Call, limit_s: float) -> None:
    """One call within its time."""
    await run_together(what, {target: call}, limit_s)


def timed_out(what: str, target: str, limit_s: float) -> StepTimedOut:
    return StepTimedOut(f"{what}, {target}: no answer within {limit_s:g} s (`timeouts` sets the limits)")


async def run_uninterrupted(*works: Call) -> Optional[asyncio.CancelledError]:
    """Do these in parallel, each to its end. Returns the cancellation that came meanwhile, for the caller to raise.

    asyncio.run cancels every task when its main ends, and a second Ctrl-C ends main: a work that is cut short in that
    way is done again. So a work must bear repetition.
    """
    cancelled: Optional[asyncio.CancelledError] = None
    running = {asyncio.ensure_future(_made(work)): (work, MAX_CANCELS - 1) for work in works}
    ended: list[asyncio.Task[None]] = []
    while running:
        try:
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError as error:
            cancelled = error
            continue
        for task in done:
            work, tries = running.pop(task)
            if tries and (task.cancelled() or not isinstance(task.exception(), (Exception, type(None)))):
                running[asyncio.ensure_future(_made(work))] = (work, tries - 1)
            else:
                ended.append(task)
    for task in ended:
        task.result()
    return cancelled


async def _made(call: Call) -> None:
    await call()


async def _abandon_tasks(what: str, tasks: Mapping["asyncio.Task[None]", str]) -> None:
    running = {task for task in tasks if not task.done()}
    for task in running:
        task.cancel()
    if not running:
        return
    _, stuck = await asyncio.wait(running, timeout=CANCEL_LIMIT_S)
    for task in stuck:
        task.add_done_callback(_error)  # or asyncio complains that nobody has asked
        log.error(
            "%s, %s: still running %g s after it was cancelled; no longer awaited", what, tasks[task], CANCEL_LIMIT_S
        )


def _all_done(
    tasks: Mapping["asyncio.Task[None]", str], ended: Mapping["asyncio.Task[None]", None]
) -> list["asyncio.Task[None]"]:
    """A task that ended just now has not told its callbacks yet: it comes last."""
    return [*ended, *(task for task in tasks if task.done() and task not in ended)]


def _failure(
    what: str, tasks: Mapping["asyncio.Task[None]", str], ended: Iterable["asyncio.Task[None]"]
) -> Optional[BaseException]:
    for task in ended:
        if task.cancelled():
            return UpdateFailed(f"{what}, {tasks[task]}: the call cancelled itself")
        error = task.exception()
        if error is not None:
            note(error, f"{what}, {tasks[task]}")
            return error
    return None


def _error(task: "asyncio.Task[None]") -> Optional[BaseException]:
    return None if task.cancelled() else task.exception()
