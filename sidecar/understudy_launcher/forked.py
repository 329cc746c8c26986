"""The first actions of a fork of the launcher that does not exec: it closes the launcher's files, above all its copy of
the sidecar's connection, and resets the launcher's signal handlers.
"""

import contextlib
import os
import signal
from collections.abc import Collection

_STDERR = 2


def begin(name: str, keep: Collection[int], on_end_signals: signal.Handlers) -> None:
    """name: as `ps` shows it. keep: the descriptors that the fork needs besides its outputs."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, on_end_signals)
    os.setsid()
    for fd in os.listdir("/proc/self/fd"):
        if int(fd) > _STDERR and int(fd) not in keep:
            with contextlib.suppress(OSError):
                os.close(int(fd))
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as comm:
        comm.write(name)
