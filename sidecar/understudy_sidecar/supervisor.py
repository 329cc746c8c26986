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
from collections.abc import Sequence

from understudy_protocol.pauses import growing_pause_s

FIRST_S = 0.1
MAX_PAUSE_S = 5.0
STEADY_S = 60.0
MISCONFIGURED = 2
#: They stay blocked, so none is lost between two calls, or reaches the child twice.
_WAITED_FOR = (signal.SIGTERM, signal.SIGCHLD)
log = logging.getLogger(__name__)


def run(command: Sequence[str]) -> int:
    """Run the child; return the container's exit code."""
    return _Supervisor(command).run()


class _Supervisor:
    def __init__(self, command: Sequence[str]) -> None:
        self._command = list(command)
        self._asked_to_end = False
        self._failures = 0  # in a row
        signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED_FOR)

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
            if signal.sigtimedwait([signal.SIGTERM], pause_s) is not None:
                return 0

    def _run_once(self) -> int:
        """The child's exit code, or minus the number of the signal that ended it."""
        child = os.posix_spawn(self._command[0], self._command, os.environ, setsigmask=[])
        while (code := _reap(child)) is None:
            if signal.sigwaitinfo(_WAITED_FOR).si_signo == signal.SIGTERM:
                self._asked_to_end = True
                os.kill(child, signal.SIGTERM)  # not reaped yet, so its pid belongs to no other process
        return code


def _reap(child: int) -> int | None:
    """The child's exit code, or minus the number of its signal; None while it runs. As pid 1, the supervisor also reaps
    orphaned processes.
    """
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == child:
            return os.waitstatus_to_exitcode(status)
        if pid == 0:
            return None


def _describe_exit(code: int) -> str:
    return f"code {code}" if code >= 0 else signal.Signals(-code).name
