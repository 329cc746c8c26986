"""`exit_on_fault()`: the launcher's reaction to SIGTERM, for a script that runs without the launcher.

Rules: on a faulty node the process ends at once, with exit code 1 and one line with the reason, because a save on dying
hardware hangs or corrupts the checkpoint. On any other node SIGTERM has its previous effect. The main thread may be
stuck in a collective that never returns, so a thread receives the signal through Python's wakeup file and ends the
process. If another wakeup file was set before, the thread forwards the signals to it. A fork has no such thread, and
does not write its own signals into the file of its parent.
"""

import contextlib
import ctypes
import json
import os
import signal
import stat
import threading
import time
from typing import Any, Callable, Optional, Union

FOLDER = "/understudy"
VERDICT_FILE = "verdict.json"  # both also in understudy_protocol.pod, which workers do not have
ENV_FOLDER = "UNDERSTUDY_FOLDER"
LIMIT_BYTES = 1 << 16
EXIT_CODE = 1

Handler = Union[Callable[[int, Any], Any], int, signal.Handlers, None]
_SIGACTION_BYTES = 256  # more than any libc's struct sigaction


class ExitOnFault:
    """The installed handler. `faulty` returns why the process must end, or ""."""

    def __init__(self, faulty: Callable[[], str]) -> None:
        self._read_finding = faulty
        self._is_exiting = threading.Lock()
        self._previous_handler = _Sigaction()
        self._handler: Handler = signal.getsignal(signal.SIGTERM)
        signal.signal(signal.SIGTERM, self._on_sigterm)
        read_end, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(read_end, True)
        previous = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        os.register_at_fork(after_in_child=lambda: _end_wakeups(write_end))
        threading.Thread(target=self._listen, args=(read_end, previous), name="exit_on_fault", daemon=True).start()

    def _listen(self, read_end: int, previous: int) -> None:
        while numbers := os.read(read_end, 4096):
            if signal.SIGTERM in numbers:
                self._exit_if_faulty()
            if previous >= 0:
                with contextlib.suppress(OSError):
                    os.write(previous, numbers)

    def _on_sigterm(self, number: int, frame: Any) -> None:
        """Runs in the main thread, once that executes Python code again."""
        self._exit_if_faulty()
        if callable(self._handler):
            self._handler(number, frame)
        elif self._handler != signal.SIG_IGN:  # the default, or a handler that was set from C
            self._previous_handler.restore()
            os.kill(os.getpid(), number)

    def _exit_if_faulty(self) -> None:
        why = self._read_finding()
        if why:
            self._is_exiting.acquire()  # never released: a second thread waits here until the process exits
            text = f"understudy: SIGTERM, and no checkpoint is tried: the node is faulty: {why}\n"
            os.write(2, text.encode(errors="replace"))
            os._exit(EXIT_CODE)


def _end_wakeups(fd: int) -> None:
    """Runs in a fork."""
    with contextlib.suppress(ValueError):  # a fork of a subinterpreter
        current = signal.set_wakeup_fd(-1)
        if current != fd:  # another one has replaced it
            signal.set_wakeup_fd(current)


def exit_on_fault(folder: Optional[str] = None) -> None:
    """Exit at once when SIGTERM arrives on a faulty node. Call it in the main thread, after other handlers are set.

    folder: where `verdict.json` is; the pod's shared folder if unset. Raises ValueError outside the main thread.
    """
    where = os.path.join(folder or os.environ.get(ENV_FOLDER) or FOLDER, VERDICT_FILE)
    ExitOnFault(lambda: read_hardware_finding(where, time.time()))


def read_hardware_finding(path: str, now: float) -> str:
    """Why no checkpoint is tried; "" if one may be: the file reports no fault, is missing, broken or expired."""
    try:
        verdict = json.loads(_read(path))
        if verdict["verdict"] != "Faulty" or (verdict.get("until") is not None and now >= verdict["until"]):
            return ""
        return str(verdict.get("reason") or "the node health verdict has no reason")
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return ""


def _read(path: str) -> bytes:
    """Read only a regular file, without waiting for a FIFO: as understudy_protocol.files, which workers do not have."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return os.read(fd, LIMIT_BYTES) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    finally:
        os.close(fd)


class _Sigaction:
    """The kernel's current action for SIGTERM, which includes a handler that was set from C."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._saved = ctypes.create_string_buffer(_SIGACTION_BYTES)
        self._libc.sigaction(signal.SIGTERM, None, self._saved)

    def restore(self) -> None:
        self._libc.sigaction(signal.SIGTERM, self._saved, None)
