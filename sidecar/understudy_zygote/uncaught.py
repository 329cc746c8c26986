"""Reports the exception that ends a worker while its process ends: a fork (script.py), or a fresh process (`watch`).

The exception's text is written to torch's error file, unless torch's `@record` has written that. Then a byte in the
worker's bell (understudy_torch/progress.py) makes the launcher read the file at once, because the process may need some
time to end.

Rules: nothing here raises an exception, or keeps a process from its end. A forked child of the worker reports nothing.
In a fresh process this module imports nothing at first that Python has not imported itself: a script may have a module
of the same name. The hook passes each exception on to the previous hook. It reports only an exception that ends the
process, because a script may call sys.excepthook and continue. A script that replaces sys.excepthook without calling
the previous hook ends unreported.
"""

import os
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Optional

_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
_STEP_FD, _STEP_FOLDER = "UNDERSTUDY_STEP_FD", "UNDERSTUDY_STEP_FOLDER"
#: The first word of a page: see understudy_torch/progress.py.
_MAGIC = 0x75_6E_64_73_74_65_70_31


def watch() -> None:
    """Report the exception that ends this process."""
    worker, previous = os.getpid(), sys.excepthook

    def on_exception(kind: type[BaseException], error: BaseException, trace: "Optional[TracebackType]") -> None:
        try:
            if not issubclass(kind, KeyboardInterrupt) and _ends_the_script(error):
                report(error, worker)
        except Exception:  # noqa: BLE001, S110 - the script has replaced __main__
            pass
        previous(kind, error, trace)

    sys.excepthook = on_exception


def report(error: BaseException, worker: int) -> None:
    """worker: the process that has started the script. The exception of its forked child does not end it."""
    if os.getpid() != worker:
        return
    try:
        try:
            _write_error_file(error)
        finally:
            _ring_bell()
    except Exception:  # noqa: BLE001, S110 - a file of @record, no text, or a closed bell
        pass


def _ends_the_script(error: BaseException) -> bool:
    """The interpreter has called the hook (it sets last_value before), and not while the script runs."""
    if getattr(sys, "last_value", None) is not error:
        return False
    frame, main = sys._getframe(), vars(sys.modules["__main__"])
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_globals is main and frame.f_code.co_name == "<module>":
            return False
    return True


def _write_error_file(error: BaseException) -> None:
    import json
    import time
    import traceback

    callstack = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    details = {"py_callstack": callstack, "timestamp": str(int(time.time()))}
    error_text = {"message": f"{type(error).__name__}: {error}", "extraInfo": details}
    with open(os.environ[_ERROR_FILE], "x", encoding="utf-8") as file:
        json.dump({"message": error_text}, file)


def _ring_bell() -> None:
    """Only a pipe and a page: the script may have closed them, and other files may have their numbers."""
    numbers = os.environ.get(_STEP_FD)
    if numbers is None:
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC
        bell, is_ours = os.open(os.path.join(os.environ[_STEP_FOLDER], "bell"), flags), True
    else:
        bell, page = map(int, numbers.split(","))
        is_ours = os.pread(page, 8, 0) == _MAGIC.to_bytes(8, sys.byteorder)
    if is_ours and stat.S_ISFIFO(os.fstat(bell).st_mode):
        os.write(bell, b"!")
