"""The two processes of a run: the keeper, which the user starts, and its child, which runs the job.

Rules: if one of the two is killed, the other one ends all processes of the run (orphans.py). The keeper only forwards
signals and waits. The child has its own session, so that a terminal's Ctrl-C reaches it once, through the keeper. It
detects the keeper's end through a pipe. If both are killed at the same moment, processes that workers have started
remain: see docs/reference/local.md.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Callable

from understudy_launcher import prctl
from understudy_local.orphans import end_descendants

#: The kernel ends a killed process within milliseconds, unless it sleeps uninterruptibly.
END_WITHIN_S = 10.0
_FORWARDED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def guard(run: Callable[[int], int]) -> int:
    """Run it in a child process. Return its exit code, as in a shell.

    run: gets a file that ends with the keeper. It starts with the forwarded signals blocked, and unblocks them
    (`handle_signals`) once it has handlers for them.
    """
    trouble = prctl.become_subreaper()
    if trouble:
        _log(f"cannot become a subreaper ({trouble}): processes that workers start may outlive the run")
    forwarded = set(_FORWARDED_SIGNALS)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # by nohup
        forwarded.remove(signal.SIGHUP)
    for number in forwarded:  # a shell without job control makes background commands ignore SIGINT
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, {*forwarded, signal.SIGCHLD})
    alive, end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(end)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        return _run(run, alive)
    os.close(alive)
    status = _wait(child, {*forwarded, signal.SIGCHLD})
    code = os.waitstatus_to_exitcode(status)
    _end_what_is_left()
    if code < 0:
        _log(f"the run was killed by {signal.Signals(-code).name}: all processes that it started are killed, too")
    return code if code >= 0 else 128 - code


def handle_signals() -> None:
    """Called in the process of the run, once it has its handlers."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED_SIGNALS)


def _run(run: Callable[[int], int], alive: int) -> int:
    os.setsid()
    prctl.become_subreaper()
    try:
        return run(alive)
    finally:
        _end_what_is_left()


def _wait(child: int, awaited: set[signal.Signals]) -> int:
    """The child's wait status."""
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status
        number = signal.sigwait(awaited)
        if number != signal.SIGCHLD:
            os.kill(child, number)


def _end_what_is_left() -> None:
    left = end_descendants(END_WITHIN_S)
    if left:
        pids = ", ".join(str(pid) for pid in left)
        _log(f"pid {pids} still alive {END_WITHIN_S:g} s after SIGKILL, stuck in the kernel: the run ends without them")


def _log(text: str) -> None:
    with contextlib.suppress(OSError):  # the terminal may have been closed
        print(f"understudy: {text}", file=sys.stderr, flush=True)  # noqa: T201 - a command line
