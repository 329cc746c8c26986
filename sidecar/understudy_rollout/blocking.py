"""For trainers without an event loop, and for blocking calls.

`with BlockingWeightUpdate(replicas, trainer, version=…) as update:` is WeightUpdate for a synchronous trainer. All
updates run on one event loop in its own thread, so connections stay open between updates. Ctrl-C, or any other
exception of a signal handler, cancels the update and is raised when the update is undone; a second one does not
interrupt the undo.

`await in_thread(call, …)` runs a blocking call, such as a broadcast of torch, in a thread. A thread cannot be killed:
if the await is cancelled, the call continues in a daemon thread until it returns.
"""

import asyncio
import os
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType
from typing import Any, Callable, Generic, Optional, TypeVar

from understudy_rollout.engine import Tensor
from understudy_rollout.interruptions import Interruptions
from understudy_rollout.update import WeightUpdate

T = TypeVar("T")
Work = Callable[[], Coroutine[Any, Any, T]]


class BlockingWeightUpdate:
    """Takes the arguments of WeightUpdate. Engines and trainer must be asynchronous: `in_thread` makes them so."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._update = WeightUpdate(*args, **kwargs)
        self._interruptions = Interruptions(_CLOSED)
        self._entered = False

    @property
    def id(self) -> str:
        return self._update.id

    def __enter__(self) -> "BlockingWeightUpdate":
        try:
            _run(self._enter, self._interruptions)
        except BaseException as error:
            self._leave(error)
            raise
        return self

    def transfer(self, tensors: Sequence[Tensor]) -> None:
        _run(lambda: self._update.transfer(tensors), self._interruptions)

    def load(self, path: str) -> None:
        _run(lambda: self._update.load(path), self._interruptions)

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self._leave(error)

    async def _enter(self) -> None:
        await self._update.__aenter__()
        self._entered = True

    def _leave(self, error: Optional[BaseException]) -> None:
        try:
            if self._entered:  # also if the interruption came right after it
                _run(lambda: self._update.__aexit__(None, error, None), self._interruptions)
        finally:
            self._interruptions.leave()


_CLOSED = (BlockingWeightUpdate.__enter__.__code__, BlockingWeightUpdate.__exit__.__code__)


def _run(work: Work[T], interruptions: Interruptions) -> T:
    """Run it on the updates' loop, to its end. An interruption cancels it and is raised afterwards."""
    interruptions.install()
    interruptions.is_holding = True
    try:
        call = _Call(_loop(), work)
        call.start()
        interruptions.cancel = call.cancel
        if interruptions.pending_error is not None:  # it came before the call could be canceled
            call.cancel()
        error = call.result.exception()
    finally:
        interruptions.is_holding = False
    interruptions.raise_kept(error)
    return call.result.result()


class _Call(Generic[T]):
    """A coroutine on another thread's loop. result: set when it has ended."""

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Work[T]) -> None:
        self.result: Future[T] = Future()
        self._loop, self._work = loop, work
        self._task: Optional[asyncio.Task[T]] = None
        self._cancelled = False

    def start(self) -> None:
        self._loop.call_soon_threadsafe(self._start)

    def cancel(self) -> None:
        """Call it after start. Only the first call has an effect."""
        self._loop.call_soon_threadsafe(self._cancel)

    def _start(self) -> None:
        self._task = self._loop.create_task(self._work())
        self._task.add_done_callback(self._hand_over)

    def _cancel(self) -> None:
        assert self._task is not None
        if not self._cancelled:
            self._cancelled = True
            # after its first step: else the coroutine never starts, and cannot undo
            self._loop.call_soon(self._task.cancel)

    def _hand_over(self, task: "asyncio.Task[T]") -> None:
        if task.cancelled():
            self.result.set_exception(asyncio.CancelledError())
            return
        error = task.exception()
        if error is not None:
            self.result.set_exception(error)
        else:
            self.result.set_result(task.result())


async def in_thread(call: Callable[..., T], *args: Any) -> T:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def set_outcome(value: Optional[T], error: Optional[BaseException]) -> None:
        if done.done():
            return  # the await was canceled
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(value)  # type: ignore[arg-type]

    def work() -> None:
        value, error = None, None
        try:
            value = call(*args)
        except BaseException as failure:  # noqa: BLE001 (the await raises it)
            error = failure
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(set_outcome, value, error)

    threading.Thread(target=work, name=f"understudy-rollout {call!r}", daemon=True).start()
    return await done


_starting = threading.Lock()
_running: list[asyncio.AbstractEventLoop] = []


def _loop() -> asyncio.AbstractEventLoop:
    with _starting:
        if not _running:
            loop = asyncio.new_event_loop()
            threading.Thread(target=_run_for_ever, args=[loop], name="understudy-rollout", daemon=True).start()
            _running.append(loop)
        return _running[0]


def _forget_loop() -> None:
    """A forked process does not have the thread of the loop."""
    global _starting
    _starting = threading.Lock()
    _running.clear()


os.register_at_fork(after_in_child=_forget_loop)


def _run_for_ever(loop: asyncio.AbstractEventLoop) -> None:
    while True:
        with suppress(SystemExit, KeyboardInterrupt):  # such an exception of a task stops the loop; the task keeps it
            loop.run_forever()
