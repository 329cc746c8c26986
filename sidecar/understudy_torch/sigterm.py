"""`exit_on_fault()`: the launcher's decision about SIGTERM, for a script that runs without the launcher.

Rules: on a node that is known to be faulty the process ends at once, with exit code 1 and one line that says why: a
save on dying hardware hangs, or breaks what it writes. On any other SIGTERM does what it did before. The decision needs
no main thread, which may sit in a collective that never returns: a thread hears of the signal through Python's wakeup
file and ends the process. What others had set as that file is written on.
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
VERDICT_FILE = "verdict.json"  # understudy_protocol.pod has both too; that package is not here
ENV_FOLDER = "UNDERSTUDY_FOLDER"
LIMIT_BYTES = 1 << 16
EXIT_CODE = 1

Handler = Union[Callable[[int, Any], Any], int, signal.Handlers, None]
_SIGACTION_BYTES = 256  # more than any libc's struct sigaction


class ExitOnFault:
    """What is installed. `faulty` says why the process is to end, or ""."""

    def __init__(self, faulty: Callable[[], str]) -> None:
        self._read_finding = faulty
        self._is_exiting = threading.Lock()
        self._former_handler = _Sigaction()
        self._handler: Handler = signal.getsignal(signal.SIGTERM)
        signal.signal(signal.SIGTERM, self._on_sigterm)
        heard, told = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(heard, True)
        former = signal.set_wakeup_fd(told, warn_on_full_buffer=False)
        threading.Thread(target=self._listen, args=(heard, former), name="exit_on_fault", daemon=True).start()

    def _listen(self, heard: int, former: int) -> None:
        while numbers := os.read(heard, 4096):
            if signal.SIGTERM in numbers:
                self._exit_if_faulty()
            if former >= 0:
                with contextlib.suppress(OSError):
                    os.write(former, numbers)

    def _on_sigterm(self, number: int, frame: Any) -> None:
        """In the main thread, once that runs Python again."""
        self._exit_if_faulty()
        if callable(self._handler):
            self._handler(number, frame)
        elif self._handler != signal.SIG_IGN:  # the default, or a handler that is none of Python's
            self._former_handler.restore()
            os.kill(os.getpid(), number)

    def _exit_if_faulty(self) -> None:
        why = self._read_finding()
        if why:
            self._is_exiting.acquire()  # once: who comes second waits here for the end
            text = f"understudy: SIGTERM, and no checkpoint is tried: the node is faulty: {why}\n"
            os.write(2, text.encode(errors="replace"))
            os._exit(EXIT_CODE)


def exit_on_fault(folder: Optional[str] = None) -> None:
    """End at once when SIGTERM comes on a faulty node. Call it in the main thread, after other handlers are set.

    folder: where `verdict.json` is; the pod's shared folder unless given. Raises ValueError outside the main thread.
    """
    where = os.path.join(folder or os.environ.get(ENV_FOLDER) or FOLDER, VERDICT_FILE)
    ExitOnFault(lambda: read_hardware_finding(where, time.time()))


def read_hardware_finding(path: str, now: float) -> str:
    """Why no checkpoint is to be tried; "" if one may be: the file says so, is missing, broken or has expired."""
    try:
        verdict = json.loads(_read(path))
        if verdict["verdict"] != "Faulty" or (verdict.get("until") is not None and now >= verdict["until"]):
            return ""
        return str(verdict.get("reason") or "the node health verdict has no reason")
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return ""


def _read(path: str) -> bytes:
    """Of a regular file alone, without waiting for a FIFO: as understudy_protocol.files does, which is not here."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return os.read(fd, LIMIT_BYTES) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    finally:
        os.close(fd)


class _Sigaction:
    """What SIGTERM does now, as the kernel knows it: also a handler that was set from C."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._saved = ctypes.create_string_buffer(_SIGACTION_BYTES)
        self._libc.sigaction(signal.SIGTERM, None, self._saved)

    def restore(self) -> None:
        self._libc.sigaction(signal.SIGTERM, self._saved, None)
