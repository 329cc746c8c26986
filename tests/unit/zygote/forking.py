"""A zygote that a test controls through the launcher's own side of it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import understudy_zygote
from tests.unit.launcher.fake_sidecar import LIMIT_S, wait_for
from understudy_launcher import events as e
from understudy_launcher.command_parser import python_program
from understudy_launcher.zygote import ForkRequest, ForkServerHandle, WorkerStatus, ZygoteMessage

MODULE = str(Path(understudy_zygote.__file__).parent / "__main__.py")


@dataclass(frozen=True)
class Run:
    """A program's output and its exit code."""

    out: str
    err: str
    code: int


def fresh(*command: str, env: Mapping[str, str] | None = None) -> Run:
    whole = {**os.environ, **(env or {})}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=whole)
    return Run(done.stdout, done.stderr, done.returncode)


class Forking:
    """A zygote for one command, ready or ended. It and its forks write to separate files."""

    def __init__(
        self,
        *command: str,
        preload: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        limit_s: float = LIMIT_S,
    ) -> None:
        program = python_program(command)
        assert program is not None
        self._limit_s = limit_s
        self._messages: list[ZygoteMessage] = []
        self._files = [tempfile.TemporaryFile() for _ in range(2)]  # noqa: SIM115 - closed in end()
        self.watched: list[int] = []
        self.zygote = ForkServerHandle(program, command, MODULE, self.watched.append, self.watched.remove)
        with _as_stdio(self._files):
            self._messages += self.zygote.start({**os.environ, **(env or {})}, preload)
        self.start = self.hear(e.ZygoteReady, e.ZygoteLost)

    def hear(self, *kinds: type[ZygoteMessage]) -> ZygoteMessage:
        """The zygote's next message of one of these kinds."""
        return self._hear(lambda message: isinstance(message, kinds))

    def _hear(self, is_it: Callable[[ZygoteMessage], bool]) -> ZygoteMessage:
        def found() -> ZygoteMessage | None:
            self._messages += self.zygote.receive()
            return next(filter(is_it, self._messages), None)

        message = wait_for(found, f"its message; the output of the zygote and its forks:\n{self.said()}", self._limit_s)
        assert message is not None
        self._messages.remove(message)
        return message

    def fork(self, *local_ranks: int, **env: str) -> list[int]:
        """Return the pids of the workers."""
        read_end, write_end = os.pipe()
        try:
            pids = self.zygote.fork(dict.fromkeys(local_ranks, ForkRequest(env, (write_end, read_end))))
        finally:
            os.close(write_end)
            os.close(read_end)
        return [pids[rank] for rank in local_ranks if rank in pids]

    def code(self, pid: int) -> int:
        """Wait for a worker's end. Return its exit code."""
        ended = self._hear(lambda message: isinstance(message, WorkerStatus) and message.pid == pid)
        assert isinstance(ended, WorkerStatus)
        return os.waitstatus_to_exitcode(ended.status)

    def run(self, **env: str) -> Run:
        """Fork a worker, and wait for its end."""
        before = [len(text) for text in self.said()]
        (pid,) = self.fork(0, **env)
        code = self.code(pid)
        out, err = (text[start:] for text, start in zip(self.said(), before, strict=True))
        return Run(out, err, code)

    def said(self) -> tuple[str, str]:
        """All output so far, to stdout and to stderr."""
        out, err = (os.pread(file.fileno(), 1 << 20, 0).decode() for file in self._files)
        return out, err

    def close(self) -> None:
        self.zygote.end()
        for file in self._files:
            file.close()


@contextlib.contextmanager
def _as_stdio(files: Sequence[IO[bytes]]) -> Iterator[None]:
    kept = [os.dup(number) for number in (1, 2)]
    for number, file in enumerate(files, 1):
        os.dup2(file.fileno(), number)
    yield
    for number, copy in enumerate(kept, 1):
        os.dup2(copy, number)
        os.close(copy)
