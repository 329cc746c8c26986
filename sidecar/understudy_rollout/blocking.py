"""For trainers without an event loop, and for calls that block.

`with BlockingWeightUpdate(replicas, trainer, version=…) as update:` is WeightUpdate for a synchronous trainer. The
update runs on an event loop in a thread of its own, the same for all of them, so connections stay open between
updates. Ctrl-C cancels the update and waits until it is undone; a second one does not cut that short.

`await in_thread(call, …)` runs a blocking call, such as a broadcast of torch's, beside the loop. A thread cannot be
ended: when the waiting is cancelled the call goes on alone, in a daemon thread, until something makes it return.
"""

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType
from typing import Any, Callable, Optional, TypeVar

from understudy_rollout.engine import Tensor
from understudy_rollout.update import WeightUpdate

T = TypeVar("T")


class BlockingWeightUpdate:
    """Takes what WeightUpdate takes. Engines and trainer are still asynchronous: `in_thread` makes them so."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._update = WeightUpdate(*args, **kwargs)

    @property
    def id(self) -> str:
        return self._update.id

    def __enter__(self) -> "BlockingWeightUpdate":
        run(self._update.__aenter__())
        return self

    def transfer(self, tensors: Sequence[Tensor]) -> None:
        run(self._update.transfer(tensors))

    def load(self, path: str) -> None:
        run(self._update.load(path))

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        run(self._update.__aexit__(kind, error, trace))


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run it on the loop of the updates' thread, to its end: an interruption cancels it, and is raised afterwards."""
    loop = _loop()
    result: Future[T] = Future()
    started: Future[asyncio.Task[T]] = Future()
    loop.call_soon_threadsafe(_start, loop, work, started, result)
    interrupted: Optional[BaseException] = None
    while True:
        try:
            value = result.result()
            break
        except BaseException as error:  # noqa: BLE001 (Ctrl-C too: it is raised when the update is undone)
            if result.done():
                raise (interrupted or error) from None
            if interrupted is None:
                loop.call_soon_threadsafe(started.result().cancel)
            interrupted = error
    if interrupted is not None:
        raise interrupted
    return value


async def in_thread(call: Callable[..., T], *args: Any) -> T:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def tell(value: Optional[T], error: Optional[BaseException]) -> None:
        if done.done():
            return  # nobody waits any more
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(value)  # type: ignore[arg-type]

    def work() -> None:
        value, error = None, None
        try:
            value = call(*args)
        except BaseException as failure:  # noqa: BLE001 (it is raised where it is awaited)
            error = failure
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(tell, value, error)

    threading.Thread(target=work, name=f"understudy-rollout {call!r}", daemon=True).start()
    return await done


def _start(
    loop: asyncio.AbstractEventLoop,
    work: Coroutine[Any, Any, T],
    started: "Future[asyncio.Task[T]]",
    result: "Future[T]",
) -> None:
    task = loop.create_task(work)
    started.set_result(task)
    task.add_done_callback(lambda task: _hand_over(task, result))


def _hand_over(task: "asyncio.Task[T]", result: "Future[T]") -> None:
    if task.cancelled():
        result.set_exception(asyncio.CancelledError())
        return
    error = task.exception()
    if error is not None:
        result.set_exception(error)
    else:
        result.set_result(task.result())


_starting = threading.Lock()
_running: list[asyncio.AbstractEventLoop] = []


def _loop() -> asyncio.AbstractEventLoop:
    with _starting:
        if not _running:
            loop = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="understudy-rollout", daemon=True).start()
            _running.append(loop)
        return _running[0]
