"""SIGTERM under torchrun: a thread of ours gets it first, and decides whether torchrun's own handler runs.

torchrun sets its handler again whenever it starts workers. We replace it at torchrun's next call, which reports that
start; in the few milliseconds before, both handlers act. torch 2.6 does not report the start: there the next call is a
poll of the rendezvous, 0.1 s later. Pid 1 gets only signals that it handles, so our handler is set from the start, also
while torchrun waits for its first round.
"""

import signal
import threading
from typing import Any

#: Exit code if no other handler was set, as in a shell.
ENDED_BY_SIGTERM = 143


class HeldSignals:
    """Must be created in the main thread; elsewhere no signal can be held back, and torchrun handles it."""

    def __init__(self, wakeup: int) -> None:
        """wakeup: the write end of the thread's pipe, to which Python writes each signal's number."""
        self._made_in_main = _in_main()
        self._previous_handler: Any = signal.SIG_DFL
        self.given_back = not self._made_in_main
        self._passed = False
        self._echoes = 0  # signals of our own that will appear in the wakeup pipe
        if self._made_in_main:
            signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
            self.take_over()

    def take_over(self) -> None:
        """Replace the handler that torchrun has set since the last call. Only the main thread can."""
        if self._made_in_main and _in_main() and signal.getsignal(signal.SIGTERM) != self._on_sigterm:
            self._previous_handler = signal.signal(signal.SIGTERM, self._on_sigterm)

    def give_back(self) -> None:
        """Restore the original handling of signals. Only the main thread can."""
        if not self.given_back and _in_main():
            signal.set_wakeup_fd(-1)
            if signal.getsignal(signal.SIGTERM) == self._on_sigterm:
                signal.signal(signal.SIGTERM, self._previous_handler)
            self.given_back = True

    def pass_on(self) -> None:
        """Let the original handler handle the signal, once. Works in any thread."""
        if self._made_in_main and signal.getsignal(signal.SIGTERM) == self._on_sigterm:
            self._passed, self._echoes = True, self._echoes + 1
            ident = threading.main_thread().ident
            assert ident is not None
            signal.pthread_kill(ident, signal.SIGTERM)

    def is_echo(self) -> bool:
        """Whether the received SIGTERM is one that pass_on has sent."""
        if self._echoes:
            self._echoes -= 1
            return True
        return False

    def _on_sigterm(self, number: int, frame: Any) -> None:
        if not self._passed:
            return  # the thread has got it from the pipe
        self._passed = False
        if callable(self._previous_handler):
            self._previous_handler(number, frame)
        else:
            raise SystemExit(ENDED_BY_SIGTERM)


def _in_main() -> bool:
    return threading.current_thread() is threading.main_thread()
