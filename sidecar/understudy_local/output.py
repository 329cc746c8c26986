"""The output of a run: the lines that it prints, and the lines that it writes only to its log files.

A worker's lines are printed and logged. If many workers, or one worker repeatedly, print the same traceback, only the
first is printed in full, and the others as one line (tracebacks.py). Lines of launchers and sidecars are logged, in one
file for each node, and printed with --verbose. Events of the job are printed as lines that begin with `understudy:`.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Protocol, TextIO

from understudy_local.process import Sink
from understudy_local.tracebacks import Tracebacks

_LAUNCHER = "understudy launcher: "


class Screen(Protocol):
    """Where lines are printed: a terminal with a live view, or plain stdout and stderr."""

    def line(self, text: str, *, error: bool) -> None: ...
    def ours(self, text: str, *, warning: bool) -> None: ...


class Plain:
    """Prints each line at once."""

    def line(self, text: str, *, error: bool) -> None:
        stream = sys.stderr if error else sys.stdout
        with reader_may_have_ended(stream):
            _write(stream, text)

    def ours(self, text: str, *, warning: bool) -> None:
        with reader_may_have_ended(sys.stderr):
            _write(sys.stderr, f"understudy: {text}")


class LocalOutput:
    def __init__(self, screen: Screen, *, verbose: bool) -> None:
        self._screen, self._verbose = screen, verbose
        self._files: dict[Path, TextIO] = {}
        self._tracebacks = Tracebacks()

    def of_pod(self, node: str, log: Path) -> tuple[Sink, Sink]:
        """The sinks for a pod's sidecar and for its launcher, whose output includes the workers' lines."""
        if log not in self._files:
            self._files[log] = log.open("a", buffering=1, encoding="utf-8")
        return partial(self._sidecar, node, self._files[log]), partial(self._launcher, node, self._files[log])

    def event(self, kind: str, reason: str, message: str) -> None:
        """kind: Normal or Warning, as in Kubernetes."""
        self._screen.ours(f"{reason}: {message}", warning=kind == "Warning")

    def note(self, text: str) -> None:
        self._screen.ours(text, warning=False)

    def close(self) -> None:
        for line in self._tracebacks.rest():
            self._screen.line(line, error=True)
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _sidecar(self, node: str, file: TextIO, line: str, *, error: bool) -> None:
        _write(file, f"sidecar: {line}")
        if self._verbose:
            self._screen.line(f"{node} sidecar: {line}", error=error)

    def _launcher(self, node: str, file: TextIO, line: str, *, error: bool) -> None:
        _write(file, line)
        if not line.startswith(_LAUNCHER):
            for shown in self._tracebacks.feed(line) if error else [line]:
                self._screen.line(shown, error=error)
        elif self._verbose:
            self._screen.line(f"{node} launcher: {line[len(_LAUNCHER) :]}", error=error)


@contextlib.contextmanager
def reader_may_have_ended(stream: TextIO) -> Iterator[None]:
    """If the terminal or the reader of the pipe has ended, the stream leads to /dev/null from now on: an error must
    neither end the run without its grace period nor keep lines out of the log files.
    """
    try:
        yield
    except OSError:
        with open(os.devnull, "wb") as nothing:
            os.dup2(nothing.fileno(), stream.fileno())


def _write(file: TextIO, line: str) -> None:
    if not file.closed:
        file.write(f"{line}\n")
        file.flush()
