"""Parallel calls to several sides with a time limit, and work that no cancellation interrupts.

Rules: the first error cancels the other calls; their errors are added to it as notes. No call keeps running, unless it
ignores its cancellation: after CANCEL_LIMIT_S it is no longer awaited, and its name is logged.
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
    """Make these calls in parallel. calls: by the name of the side. Raises the first error, with notes."""
    ended: dict[asyncio.Task[None], None] = {}  # in the order in which they ended
    tasks = {asyncio.ensure_future(_made(call)): side for side, call in calls.items()}
    for task in tasks:
        task.add_done_callback(ended.setdefault)
    try:
        await asyncio.wait(tasks, timeout=limit_s, return_when=asyncio.FIRST_EXCEPTION)
        running = [task for task in tasks if not task.done()]
        failed = _failure(what, tasks, _all_done(tasks, ended))
        if failed is None and running:
            late = ", ".join(tasks[task] for task in running)
            failed = StepTimedOut(f"{what}, {late}: no answer within {limit_s:g} s (`timeouts` sets the limits)")
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


async def run_uninterrupted(*works: Call) -> Optional[asyncio.CancelledError]:
    """Do these in parallel, each to its end. Return a cancellation that came meanwhile, for the caller to raise.

    asyncio.run cancels every task when its main ends, and a second Ctrl-C ends main. Work that is canceled in that way
    is done again, so it must be idempotent.
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
        task.add_done_callback(_error)  # else asyncio warns that the exception was never retrieved
        log.error(
            "%s, %s: still running %g s after it was cancelled; no longer awaited", what, tasks[task], CANCEL_LIMIT_S
        )


def _all_done(
    tasks: Mapping["asyncio.Task[None]", str], ended: Mapping["asyncio.Task[None]", None]
) -> list["asyncio.Task[None]"]:
    """A task that has just ended has not run its callbacks yet: it comes last."""
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
