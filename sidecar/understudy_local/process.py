"""One process of a run: it ends with this process, and its output is read by lines. Also kills orphans.

Rules: it leads its own session, so only this process gets a terminal's Ctrl-C. The kernel kills it when this process
ends. A line that is longer than LINE_BYTES is split; an unfinished last line is read when the process has ended.
"""

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Protocol

import psutil

from understudy_launcher.prctl import dies_with_parent
from understudy_local.orphans import kill_children

LINE_BYTES = 64 * 1024
#: A grandchild may keep a pipe open forever.
LAST_LINES_S = 0.5
_running: set[int] = set()  # pids of started processes, until they are reaped
_starting: set[object] = set()  # calls of `start` that have no pid yet


class Sink(Protocol):
    """Takes a line of a process. error: it was written to stderr."""

    def __call__(self, line: str, *, error: bool) -> None: ...


class ChildProcess:
    """A process that was started."""

    def __init__(self, process: Process, readers: Iterable[Awaitable[None]]) -> None:
        self._process = process
        self._readers = [asyncio.ensure_future(reader) for reader in readers]

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def runs(self) -> bool:
        return self._process.returncode is None

    async def ended(self) -> int:
        """Wait for its end and its last lines. Return its exit code, as in a shell."""
        code = await self._process.wait()
        _running.discard(self.pid)
        _, late = await asyncio.wait(self._readers, timeout=LAST_LINES_S)
        for reader in late:
            reader.cancel()
        return code if code >= 0 else 128 - code

    def terminate(self) -> None:
        self._send(signal.SIGTERM)

    def kill_tree(self) -> None:
        """SIGKILL to it first, so that it starts no more processes, and then to all its descendants."""
        tree: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            tree = psutil.Process(self.pid).children(recursive=True) if self.runs else []
        self._send(signal.SIGKILL)
        for process in tree:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def _send(self, number: signal.Signals) -> None:
        if self.runs:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)


async def start(command: Sequence[str], env: Mapping[str, str], sink: Sink) -> ChildProcess:
    """Raises OSError if it cannot be started."""
    # Our own pipes: with asyncio's, the process would count as running until the last grandchild has closed them.
    out, out_end = os.pipe()
    err, err_end = os.pipe()
    this = object()
    _starting.add(this)
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=out_end,
            stderr=err_end,
            env=dict(env),
            start_new_session=True,
            preexec_fn=dies_with_parent(),  # safe: this process has one thread
        )
    except OSError:
        os.close(out)
        os.close(err)
        raise
    else:
        _running.add(process.pid)
    finally:
        _starting.discard(this)
        os.close(out_end)
        os.close(err_end)
    return ChildProcess(
        process,
        [_read(out, lambda line: sink(line, error=False)), _read(err, lambda line: sink(line, error=True))],
    )


def end_orphans() -> bool:
    """SIGKILL to the orphans of killed launchers. Return whether to call again soon."""
    return bool(_starting) or kill_children(_running)


async def _read(fd: int, take: Callable[[str], None]) -> None:
    stream = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(stream)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, os.fdopen(fd, "rb", 0))
    try:
        await _read_lines(stream, take)
    finally:
        transport.close()


async def _read_lines(stream: asyncio.StreamReader, take: Callable[[str], None]) -> None:
    unread = b""
    while chunk := await stream.read(LINE_BYTES):
        *lines, unread = (unread + chunk).split(b"\n")
        for line in lines:
            take(line.decode(errors="replace"))
        if len(unread) >= LINE_BYTES:
            take(unread.decode(errors="replace"))
            unread = b""
    if unread:
        take(unread.decode(errors="replace"))
