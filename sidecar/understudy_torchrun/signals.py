"""SIGTERM under torchrun: heard by a thread of ours first, and torchrun's own handler's only when that says so.

torchrun sets its handler anew whenever it starts workers; we put ours in front of it again at its next call, while it
tells of their start. Between the two, a few milliseconds, both act. torch 2.6 does not report the start: there it is
the next poll of the rendezvous, 0.1 s later. Pid 1 gets no signal that it has not asked for: so
ours is there from the start, also while torchrun waits for its first round.
"""

import signal
import threading
from typing import Any

#: Exit code where nobody has a better handler, as a shell has it.
ENDED_BY_SIGTERM = 143


class HeldSignals:
    """Made in the main thread; elsewhere nothing can be held back, and torchrun does what it does."""

    def __init__(self, wakeup: int) -> None:
        """wakeup: the write end of the thread's pipe, in which each signal's number appears."""
        self._made_in_main = _in_main()
        self._former_handler: Any = signal.SIG_DFL
        self.given_back = not self._made_in_main
        self._passed = False
        self._echoes = 0  # of our own, that the wakeup pipe shows
        if self._made_in_main:
            signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
            self.take_over()

    def take_over(self) -> None:
        """What is set now, torchrun has set since the last time. Only the main thread can."""
        if self._made_in_main and _in_main() and signal.getsignal(signal.SIGTERM) != self._on_sigterm:
            self._former_handler = signal.signal(signal.SIGTERM, self._on_sigterm)

    def give_back(self) -> None:
        """Let the process have its signals as if we had not been there. Only the main thread can."""
        if not self.given_back and _in_main():
            signal.set_wakeup_fd(-1)
            if signal.getsignal(signal.SIGTERM) == self._on_sigterm:
                signal.signal(signal.SIGTERM, self._former_handler)
            self.given_back = True

    def pass_on(self) -> None:
        """In any thread: let the handler that was there before have it, unless that has had it."""
        if self._made_in_main and signal.getsignal(signal.SIGTERM) == self._on_sigterm:
            self._passed, self._echoes = True, self._echoes + 1
            ident = threading.main_thread().ident
            assert ident is not None
            signal.pthread_kill(ident, signal.SIGTERM)

    def is_echo(self) -> bool:
        """Whether the SIGTERM that was heard is one that was passed on."""
        if self._echoes:
            self._echoes -= 1
            return True
        return False

    def _on_sigterm(self, number: int, frame: Any) -> None:
        if not self._passed:
            return  # the thread has heard of it
        self._passed = False
        if callable(self._former_handler):
            self._former_handler(number, frame)
        else:
            raise SystemExit(ENDED_BY_SIGTERM)


def _in_main() -> bool:
    return threading.current_thread() is threading.main_thread()
