"""The newest collective of each process group on request: on one signal, a thread writes them to stderr in one line.

At a hang, all ranks may wait in the same line of the script. torch's flight recorder has the collective that each rank
has entered last. So `why` finds the rank that has not entered the one in which the others wait
(understudy_cli/views/collectives.py).

The thread waits in a read of a pipe, into which faulthandler writes on the signal: that needs no lock of the
interpreter, and no handler in Python, which would run only in the main thread. If the main thread keeps the
interpreter's lock, the thread writes nothing.

The line, with one part for each group, groups with an incomplete collective first:

    understudy collectives: 0/default_pg gloo:all_reduce=6 waits all_reduce=6, 1/undefined gloo:broadcast=3

That is the group's name and description, the newest collective with its number in the group, and the oldest one that is
not complete. Completed collectives are retired by torch in their order, so older entries than a retired one are
complete, also if torch has not marked them: it does not mark the parts of coalesced collectives.

Rules: no thread in a process without torch.distributed, or whose job wants no reports of collectives. No failure.
"""

import contextlib
import importlib
import os
import re
import time
from typing import Any, Optional

from understudy_torch import collectives, stacks

#: A real-time signal (SIGRTMAX-5): the one below that of the stacks.
SIGNAL = 59
#: faulthandler writes in many pieces. Without this wait, each could be a request.
_REST_S = 0.05
MOST_GROUPS = 16
LINE_BYTES = 4096  # PIPE_BUF: the kernel does not split such a line
_PREFIX = "understudy collectives: "
_FROM = 200  # high, as the numbers of the step page: a script that closes files, and opens others, gets low ones
_NOT_A_NAME = re.compile(r"[^A-Za-z0-9_.:+-]")
_NAME_LENGTH = 48
_PIPE_CAPACITY = 1 << 16

_thread_of = 0  # the process whose thread waits; a fork has none


def report_on_signal() -> int:
    """Start the thread. Return the signal, or 0 if torch has no flight recorder or the process uses it otherwise."""
    with contextlib.suppress(Exception):  # no thread, no file: the training must not fail for this
        if collectives.has_flight_recorder():
            return _start()
    return 0


def _start() -> int:
    global _thread_of
    if _thread_of == os.getpid():
        return SIGNAL
    if not _thread_of and not stacks.is_free(SIGNAL):
        return 0
    import _thread
    import faulthandler

    importlib.import_module("json")  # not in the thread, while another thread may hang in an import
    wakes, woken_by = map(_high, os.pipe())
    os.set_blocking(woken_by, False)
    _thread.start_new_thread(_report, (wakes,))  # one frame in the stacks, which log_lines.py drops
    # Of all threads: the kernel may choose one of torch's own threads for the signal, which has no stack in Python.
    faulthandler.register(SIGNAL, file=woken_by, all_threads=True, chain=False)
    _thread_of = os.getpid()
    return SIGNAL


def _high(low: int) -> int:
    import fcntl

    try:
        high = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, _FROM)
    except OSError:  # RLIMIT_NOFILE is lower
        return low
    os.close(low)
    return high


def _report(wakes: int) -> None:
    with contextlib.suppress(Exception):
        while os.read(wakes, 1):
            time.sleep(_REST_S)
            os.read(wakes, _PIPE_CAPACITY)
            text = line(collectives.read_flight_recorders())
            if text:
                os.write(stacks.STDERR, text)


def line(recorded: list[Any]) -> bytes:
    """Empty if no process group has a collective."""
    newest: dict[tuple[str, str], _Group] = {}
    for entry in collectives.entries(recorded):
        name = entry.get("profiling_name")
        group, description = collectives.group(entry)
        number, at = entry.get("collective_seq_id"), entry.get("time_created_ns")
        backend, _, operation = name.partition(":") if isinstance(name, str) else ("", "", "")
        is_known = backend in collectives.BACKENDS and operation and group and entry.get("is_p2p") is False
        if is_known and type(number) is int and type(at) is int and number >= 0:
            of_group = newest.setdefault((backend, group), _Group(backend, group, description))
            of_group.add(operation, number, at, entry.get("retired") is True)
    groups = sorted(newest.values(), key=lambda each: (each.waits() is None, -each.at))
    text = _PREFIX
    for number, each in enumerate(groups[:MOST_GROUPS]):
        more = f"{', ' if number else ''}{each}"
        if len(text) + len(more) >= LINE_BYTES:
            break
        text += more
    return f"{text}\n".encode("ascii") if groups else b""


class _Group:
    """The entries of one group."""

    def __init__(self, backend: str, name: str, description: str) -> None:
        self.at = 0  # of the newest entry
        self._backend, self._name, self._description = backend, name, description
        self._entered: dict[int, str] = {}  # operations by number
        self._retired = -1  # the newest that is complete

    def add(self, operation: str, number: int, at: int, is_retired: bool) -> None:
        self._entered[number] = operation
        self.at = max(self.at, at)
        if is_retired:
            self._retired = max(self._retired, number)

    def waits(self) -> Optional[int]:
        """The oldest collective that is not complete."""
        return min((number for number in self._entered if number > self._retired), default=None)

    def __str__(self) -> str:
        last, waits = max(self._entered), self.waits()
        text = f"{_name(self._name)}/{_name(self._description)} {self._backend}:{_name(self._entered[last])}={last}"
        return text if waits is None else f"{text} waits {_name(self._entered[waits])}={waits}"


def _name(text: str) -> str:
    return _NOT_A_NAME.sub("_", text[:_NAME_LENGTH]) or "_"
