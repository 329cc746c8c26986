"""What the handlers of signals raise, such as KeyboardInterrupt, kept back while work has to come to its end.

A handler is called as ever, at once, in the main thread, where Python calls them; only what it raises there waits. By
`except` alone this cannot be had: a handler can raise between any two calls, in the `except` itself, too.
"""

import signal
import threading
from collections.abc import Iterable
from types import CodeType, FrameType
from typing import Any, Callable, Optional

Handler = Callable[[int, Optional[FrameType]], Any]


class Interruptions:
    """held: whether they are kept back now; in functions of `closed`, and what these call, they always are.

    kept: the first that was, until it is raised. cancel: called with each that is kept back.
    """

    def __init__(self, closed: Iterable[CodeType] = ()) -> None:
        self.is_holding = False
        self.pending_error: Optional[BaseException] = None
        self.cancel: Callable[[], None] = _nothing
        self._closed = frozenset(closed)
        self._ours: dict[signal.Signals, _InFront] = {}

    def install(self) -> None:
        """Stand in front of the handlers that there are; of those, too, that were set since it was called last."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in signal.valid_signals():
            handler = signal.getsignal(number)
            if callable(handler) and handler is not self._ours.get(number):
                self._ours[number] = ours = _InFront(self, handler)
                signal.signal(number, ours)

    def raise_kept(self, error: Optional[BaseException] = None) -> None:
        """If there is one. error: what the work has failed with, which is its cause then."""
        kept = self.pending_error
        if kept is not None:
            self.pending_error = None
            raise kept from error

    def leave(self) -> None:
        """Stand aside; raises what is still kept."""
        for number, ours in self._ours.items():
            before = ours.handler
            if signal.getsignal(number) is ours:
                signal.signal(number, before)
        self.raise_kept()

    def keep(self, error: BaseException, frame: Optional[FrameType]) -> None:
        """Keep back what was raised in this frame, or raise it."""
        if not self.is_holding and not self._is_closed(frame):
            raise error
        if self.pending_error is None:
            self.pending_error = error
        self.cancel()

    def _is_closed(self, frame: Optional[FrameType]) -> bool:
        while frame is not None:
            if frame.f_code in self._closed:
                return True
            frame = frame.f_back
        return False


class _InFront:
    def __init__(self, interruptions: Interruptions, handler: Handler) -> None:
        self.handler = handler
        self._interruptions = interruptions

    def __call__(self, number: int, frame: Optional[FrameType]) -> None:
        try:
            self.handler(number, frame)
        except BaseException as error:  # noqa: BLE001
            self._interruptions.keep(error, frame)


def _nothing() -> None:
    pass
