"""Restarts a crashed sidecar process inside its container, so that the crash does not restart the container.

A Job counts container restarts, and may fail because of them (restarts of init containers count towards backoffLimit).
Rules: if the child exits with 0, or with 2 (wrong settings, so it would exit again), this process exits with the same
code. After every other exit it restarts the child, after 0.1 s; the pause doubles each time the child lives for less
than STEADY_S, up to MAX_PAUSE_S. It forwards SIGTERM to the child, and exits with the child's code.

This module imports nothing that only the child needs: this process is small, and runs as long as the pod.
"""

import logging
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from understudy_protocol.pauses import growing_pause_s

FIRST_S = 0.1
MAX_PAUSE_S = 5.0
STEADY_S = 60.0
MISCONFIGURED = 2
log = logging.getLogger(__name__)


def run(command: Sequence[str]) -> int:
    """Run the child; return the container's exit code."""
    return _Supervisor(command).run()


class _Supervisor:
    def __init__(self, command: Sequence[str]) -> None:
        self._command = list(command)
        self._child = 0
        self._asked_to_end = False
        self._failures = 0  # in a row
        signal.signal(signal.SIGTERM, self._on_sigterm)

    def run(self) -> int:
        while True:
            began = time.monotonic()
            code = self._run_once()
            if code in (0, MISCONFIGURED) or self._asked_to_end:
                return max(code, 0)
            if time.monotonic() - began >= STEADY_S:
                self._failures = 0
            self._failures += 1
            pause_s = growing_pause_s(FIRST_S, MAX_PAUSE_S, self._failures)
            log.error("the sidecar process ended with %s; it restarts in %g s", _describe_exit(code), pause_s)
            self._sleep(pause_s)
            if self._asked_to_end:
                return 0

    def _run_once(self) -> int:
        """The child's exit code, or minus the number of the signal that ended it."""
        with _sigterm_blocked():
            self._child = os.posix_spawn(self._command[0], self._command, os.environ, setsigmask=[])
        if self._asked_to_end:
            self._end_child()
        while True:
            # As pid 1 it also reaps orphaned processes.
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
            assert ended is not None, "waitid blocks until a child ends"
            with _sigterm_blocked():
                _, status = os.waitpid(ended.si_pid, 0)
                if ended.si_pid == self._child:
                    self._child = 0
                    return os.waitstatus_to_exitcode(status)

    def _sleep(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._asked_to_end and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 0.1))

    def _on_sigterm(self, _: int, __: FrameType | None) -> None:
        self._asked_to_end = True
        self._end_child()

    def _end_child(self) -> None:
        if self._child:
            os.kill(self._child, signal.SIGTERM)


@contextmanager
def _sigterm_blocked() -> Iterator[None]:
    """Block SIGTERM while the child's pid is not known yet, or may already belong to another process."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _describe_exit(code: int) -> str:
    return f"code {code}" if code >= 0 else signal.Signals(-code).name
