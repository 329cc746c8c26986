"""The two processes of a run. The one that the user starts, the keeper, starts the other one, which runs the job.

Rules: whichever of the two is killed, the other one ends everything that the run has started (orphans.py). The keeper
decides nothing: it passes signals on and waits. The other process has a session of its own, so that a terminal's Ctrl-C
reaches it once, by way of the keeper. It learns of the keeper's end from a pipe.
If both are killed at the same moment, processes that workers have started remain: docs/reference/local.md says so.
"""

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
    """Runs it in another process: its exit code, as a shell has it.

    run: takes a file that ends with the keeper. It starts with the signals that the keeper passes on blocked, and
    unblocks them (`handle_signals`) once it handles them.
    """
    trouble = prctl.become_subreaper()
    if trouble:
        _say(f"cannot become a subreaper ({trouble}): processes that workers start may outlive the run")
    heard = set(_FORWARDED_SIGNALS)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # by nohup
        heard.remove(signal.SIGHUP)
    for number in heard:  # a shell without job control has commands in the background ignore SIGINT
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, {*heard, signal.SIGCHLD})
    alive, end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(end)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        return _run(run, alive)
    os.close(alive)
    status = _wait(child, {*heard, signal.SIGCHLD})
    code = os.waitstatus_to_exitcode(status)
    _end_what_is_left()
    if code < 0:
        _say(f"the run was killed by {signal.Signals(-code).name}: all processes that it started are killed, too")
    return code if code >= 0 else 128 - code


def handle_signals() -> None:
    """In the process of the run, once it handles them."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED_SIGNALS)


def _run(run: Callable[[int], int], alive: int) -> int:
    os.setsid()
    prctl.become_subreaper()
    try:
        return run(alive)
    finally:
        _end_what_is_left()


def _wait(child: int, heard: set[signal.Signals]) -> int:
    """Its wait status."""
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status
        number = signal.sigwait(heard)
        if number != signal.SIGCHLD:
            os.kill(child, number)


def _end_what_is_left() -> None:
    left = end_descendants(END_WITHIN_S)
    if left:
        pids = ", ".join(str(pid) for pid in left)
        _say(f"pid {pids} still alive {END_WITHIN_S:g} s after SIGKILL, stuck in the kernel: the run ends without them")


def _say(text: str) -> None:
    print(f"understudy: {text}", file=sys.stderr)  # noqa: T201 - a command line
