"""The processes of a benchmark: a runner sends requests, a child answers; JSON lines over stdin and stdout.

Rules: every request has a time limit. A child ends when its stdin is closed, so none outlives its runner. A child's
other output goes to a log file, whose end is in the error if the child fails. Times are time.monotonic(), which all
processes of a machine share.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]
LOGS = CHECKOUT / "build" / "bench" / "logs"
END_S = 5.0
LINE_BYTES = 16 * 1024 * 1024

Answer = dict[str, Any]


class ChildFailed(Exception):
    """A child ended, or answered with an error."""


class Unfinished(Exception):
    """A run did not finish within its time limit."""

    def __init__(self, seen: str, after_s: float) -> None:
        super().__init__(seen)
        self.after_s = after_s


class Child:
    """One process, from its start to its end. The context manager ends it on exit."""

    def __init__(
        self,
        name: str,
        module: str,
        *arguments: str,
        python: str = sys.executable,
        env: Mapping[str, str] | None = None,
        nice: int = 0,
        inside: tuple[str, ...] = (),
    ) -> None:
        """inside: a program that starts the child, with its arguments."""
        LOGS.mkdir(parents=True, exist_ok=True)
        self.name, self.log, self._buffer = name, LOGS / f"{name}.log", b""
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                [*inside, "nice", "-n", str(nice), python, "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=CHECKOUT,
                env={**os.environ, **(env or {})},
                bufsize=0,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._stdout, selectors.EVENT_READ)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, do: str, **fields: Any) -> None:
        """Send a request without waiting. `answer` waits."""
        try:
            self._stdin.write(json.dumps({"do": do, **fields}).encode() + b"\n")
        except BrokenPipeError as error:
            raise self._failure() from error

    def answer(self, limit_s: float) -> Answer:
        """The child's next line. Raises ChildFailed, Unfinished."""
        deadline = time.monotonic() + limit_s
        while b"\n" not in self._buffer:
            if not self._selector.select(max(0.0, deadline - time.monotonic())):
                log = self.log.relative_to(CHECKOUT)  # this text is stored with the results
                raise Unfinished(f"{self.name} did not answer within {limit_s:.0f} s; its log: {log}", limit_s)
            read = os.read(self._stdout.fileno(), 1 << 16)
            if not read:
                raise self._failure()
            self._buffer += read
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer: Answer = json.loads(line)
        if "error" in answer:
            raise ChildFailed(f"{self.name}: {answer['error']}")
        return answer

    def ask(self, do: str, limit_s: float, **fields: Any) -> Answer:
        self.send(do, **fields)
        return self.answer(limit_s)

    def await_start(self, limit_s: float) -> None:
        """For a child that reports, without a request, when it is ready. Raises ChildFailed."""
        try:
            self.answer(limit_s)
        except Unfinished as error:
            raise ChildFailed(f"{self.name} did not start: {error}") from error

    def prepare(self, do: str, limit_s: float, **fields: Any) -> Answer:
        """Like `ask`, before a measurement: a missing answer is a failure, not a result."""
        try:
            return self.ask(do, limit_s, **fields)
        except Unfinished as error:
            raise ChildFailed(str(error)) from error

    def kill(self) -> None:
        """SIGKILL: its kernel closes its connections."""
        self._process.kill()
        self._process.wait()

    def end(self, limit_s: float = END_S) -> None:
        """Close its stdin, so it ends by itself. If it has not ended within the limit, kill it."""
        if not self._stdin.closed:
            self._stdin.close()
        try:
            self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end(END_S if kind is None else 0.0)
        self._stdout.close()
        self._selector.close()

    def _failure(self) -> ChildFailed:
        try:
            status = self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            return ChildFailed(f"{self.name} closed its output; its log: {self.log}")
        lines = "\n".join("    " + line for line in self.log.read_text(errors="replace").splitlines()[-15:])
        return ChildFailed(f"{self.name} ended with status {status}:\n{lines}\n  all of it: {self.log}")


# In the child -----------------------------------------------------------------------------------------------------


def commands() -> Iterator[Answer]:
    """The runner's requests, for a child that waits for nothing else."""
    for line in sys.stdin:
        yield json.loads(line)


def reply(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run it on uvloop, as a sidecar does. (Programs without uvloop, such as the peers' Python, do not use this.)"""
    loop = importlib.import_module("uvloop")
    with asyncio.Runner(loop_factory=loop.new_event_loop) as runner:
        runner.run(main)


async def serve(handlers: Mapping[str, Callable[..., Awaitable[Answer]]]) -> None:
    """Answer the runner's requests one by one, until stdin closes. A request's fields are the handler's arguments."""
    reader = asyncio.StreamReader(limit=LINE_BYTES)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        requests = json.loads(line)
        reply(**await handlers[requests.pop("do")](**requests))
