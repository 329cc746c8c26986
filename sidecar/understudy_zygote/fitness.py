"""Whether this process may be forked; if not, the module or thread that prevents it.

Rules: a fork copies one thread, and every lock in its current state. So a process with a second thread is not forked,
except to check whether the thread ends at a fork, as OpenBLAS's threads do. If CUDA is initialized, a fork cannot use
it and becomes a fresh process. Both are checked after each import, so that the module is known. Threads of C have a
name of up to 15 bytes in /proc; Python's threads have their own names.
"""

import os
import sys
import threading
from collections.abc import Sequence
from typing import Callable

from understudy_zygote import child

_TASKS = "/proc/self/task"
_MAX_NAMED = 5
_LONGEST_NAME = 60


class ForkSafety:
    def __init__(self) -> None:
        self._importer_of = dict.fromkeys(_threads(), "")  # by thread: the module whose import started it
        self.cuda_importer = ""  # the module whose import initialized CUDA; "": none did

    def imported(self, module: str) -> None:
        for thread in _threads():
            self._importer_of.setdefault(thread, module)
        if not self.cuda_importer and "torch.cuda" in sys.modules and _answer_of_fork(child.cuda_is_spoiled):
            self.cuda_importer = module

    def unsafe_reason(self) -> str:
        """Why this process must not be forked; "" if it may be."""
        others = _lasting_threads()
        return _thread_reason(others, [self._importer_of.get(thread, "") for thread in others]) if others else ""

    def unsafe_import(self) -> str:
        """The effect of the last import that prevents forks; "" if there is none."""
        others = _lasting_threads()
        if others:
            what, named = _described(others)
            return f"its import starts {what} ({named}), and a process with threads cannot be forked safely"
        return "its import initializes CUDA, which does not work in forked processes" if self.cuda_importer else ""


def _lasting_threads() -> list[int]:
    """The other threads of this process that do not end when it forks."""
    if len(_threads()) == 1:
        return []
    _answer_of_fork(lambda: False)
    return [thread for thread in _threads() if thread != os.getpid()]


def _described(threads: Sequence[int]) -> tuple[str, str]:
    named = ", ".join(_name(thread) for thread in threads[:_MAX_NAMED])
    return ("a thread" if len(threads) == 1 else f"{len(threads)} threads"), named


def _thread_reason(threads: Sequence[int], importers: Sequence[str]) -> str:
    what, named = _described(threads)
    modules = ", ".join(sorted({module for module in importers if module}))
    if not modules:
        return (
            f"{what} ({named}) started after the imports, and a process with threads cannot be forked safely. Find the "
            "module that starts them, and remove it from launcher.preload"
        )
    return (
        f"the import of {modules} starts {what} ({named}), and a process with threads cannot be forked safely. Remove "
        "the module from launcher.preload, or configure it to start no threads during its import"
    )


def _threads() -> list[int]:
    return [int(name) for name in os.listdir(_TASKS)]


def _name(thread: int) -> str:
    for one in threading.enumerate():
        if one.native_id == thread:
            return one.name[:_LONGEST_NAME]
    try:
        with open(f"{_TASKS}/{thread}/comm", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return "already ended"


def _answer_of_fork(question: Callable[[], bool]) -> bool:
    """The answer of a fork that only evaluates the question."""
    pid = os.fork()
    if pid == 0:
        answer = 0
        try:
            answer = int(question())
        finally:
            os._exit(answer)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
