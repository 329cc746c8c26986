"""Delays the exceptions of signal handlers, such as KeyboardInterrupt, until work has come to its end.

A handler runs as usual, at once and in the main thread; only the exception that it raises is delayed. `except` alone
cannot do this, because a handler can raise between any two calls, also inside the `except`.
"""

import signal
import threading
from collections.abc import Iterable
from types import CodeType, FrameType
from typing import Any, Callable, Optional

Handler = Callable[[int, Optional[FrameType]], Any]


class Interruptions:
    """is_holding: whether exceptions are delayed now. In functions of `closed`, and in their callees, they always are.

    pending_error: the first delayed one, until it is raised. cancel: called for each delayed one.
    """

    def __init__(self, closed: Iterable[CodeType] = ()) -> None:
        self.is_holding = False
        self.pending_error: Optional[BaseException] = None
        self.cancel: Callable[[], None] = lambda: None
        self._closed = frozenset(closed)
        self._ours: dict[signal.Signals, _InFront] = {}

    def install(self) -> None:
        """Wrap the current handlers, also those that were set since the last call."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in signal.valid_signals():
            handler = signal.getsignal(number)
            if callable(handler) and handler is not self._ours.get(number):
                self._ours[number] = ours = _InFront(self, handler)
                signal.signal(number, ours)

    def raise_kept(self, error: Optional[BaseException] = None) -> None:
        """Raise the delayed exception, if there is one. error: the error of the work, which becomes its cause."""
        kept = self.pending_error
        if kept is not None:
            self.pending_error = None
            raise kept from error

    def leave(self) -> None:
        """Restore the handlers, and raise the delayed exception."""
        for number, ours in self._ours.items():
            before = ours.handler
            if signal.getsignal(number) is ours:
                signal.signal(number, before)
        self.raise_kept()

    def keep(self, error: BaseException, frame: Optional[FrameType]) -> None:
        """Delay an exception that was raised in this frame, or raise it."""
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
