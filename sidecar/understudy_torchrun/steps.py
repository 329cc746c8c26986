"""The pipe on which the first worker tells its steps: by path, because torchrun's workers inherit no files.

One a round, so that no line of an older one is read. We hold its write end too: a pipe that nobody writes to is
readable all the time. Where none can be made, steps are not told, and the log says so.
"""

import os
import shutil
import tempfile
import time
from typing import Callable, Optional

from understudy_launcher.events import StepsRead
from understudy_launcher.steps import StepLines

_READ = 1 << 16


class StepFifo:
    """`watch` and `unwatch` hear of the pipe that is to be selected for reading."""

    def __init__(
        self, watch: Callable[[int], None], unwatch: Callable[[int], None], log: Callable[[str], None]
    ) -> None:
        self._watch, self._unwatch, self._log = watch, unwatch, log
        self._folder: Optional[str] = None
        self._fd: Optional[int] = None
        self._lines = StepLines()

    def begin(self, token: str) -> str:
        """Its path; "" where there is none."""
        self.end()
        try:
            self._folder = tempfile.mkdtemp(prefix="understudy-steps-")
            path = os.path.join(self._folder, token)
            os.mkfifo(path, 0o600)
            self._fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            self._log(f"no pipe for the workers' steps ({error}): step() tells nothing")
            return ""
        self._lines = StepLines()
        self._watch(self._fd)
        return path

    def read(self) -> Optional[StepsRead]:
        if self._fd is None:
            return None
        try:
            steps = self._lines.feed(os.read(self._fd, _READ))
        except BlockingIOError:
            return None
        return StepsRead(0, *steps[-1], len(steps), time.time()) if steps else None

    def end(self) -> None:
        if self._fd is not None:
            self._unwatch(self._fd)
            os.close(self._fd)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._fd = self._folder = None
