"""The process `logs`: reads the workers' pipes and writes whole lines with their prefix. See log_process.py.

Rules: it reads each pipe to its end. Once the launcher has ended, it reads only the bytes that are in the pipes then,
because a process that keeps a pipe open may write forever. It blocks when the log blocks, and buffers only unfinished
lines.
"""

import array
import contextlib
import fcntl
import os
import select
import selectors
import signal
import socket
import struct
import sys
import termios
import time
import traceback
from dataclasses import dataclass
from typing import NoReturn, Optional

from understudy_launcher import forked
from understudy_launcher.lines import LinePrefixer

_READ_BYTES = 1 << 16
_PACKET_BYTES = 256


def become(control: int) -> NoReturn:
    """Runs in the fork."""
    try:
        forked.begin("logs", [control], signal.SIG_IGN)  # it ends when all pipes are read
        Writer(socket.socket(fileno=control)).serve()
    except BaseException:  # noqa: BLE001 - the fork must never run the launcher's code
        traceback.print_exc(file=sys.stderr)
    finally:
        os._exit(0)


@dataclass
class _Stream:
    stream: int
    lines: LinePrefixer
    copy: int = -1  # a file that gets the same bytes


class Writer:
    """`control`: the socket that delivers the pipes' read ends."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ)
        self._streams: dict[int, _Stream] = {}

    def serve(self) -> None:
        """Return when the launcher has ended and all bytes that were in the pipes then are written."""
        while True:
            for key, _ in self._selector.select(self._timeout(time.monotonic())):
                if key.fd != self._control.fileno():
                    self._read(key.fd, _READ_BYTES)
                elif not self._receive():
                    self._drain()
                    return
            self._hold_no_longer(time.monotonic())

    def _receive(self) -> bool:
        """Receive another pipe. False if the launcher has closed its end."""
        numbers = array.array("i")
        try:
            packet, ancillary, _, _ = self._control.recvmsg(_PACKET_BYTES, socket.CMSG_LEN(2 * numbers.itemsize))
        except ConnectionError:
            return False
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                numbers.frombytes(data)
        for fd in numbers[:1]:
            copy = numbers[1] if len(numbers) > 1 else -1
            self._streams[fd] = _Stream(int(packet[:1]), LinePrefixer(packet[1:]), copy)
            self._selector.register(fd, selectors.EVENT_READ)
        return bool(packet)

    def _read(self, fd: int, size: int) -> int:
        """The number of bytes read; 0 if the pipe is empty or has ended."""
        stream = self._streams[fd]
        try:
            chunk = os.read(fd, size)
        except BlockingIOError:
            return 0
        if chunk:
            if stream.copy >= 0:
                _write(stream.copy, chunk)
            _write(stream.stream, stream.lines.feed(chunk, time.monotonic()))
            return len(chunk)
        _write(stream.stream, stream.lines.end())
        self._selector.unregister(fd)
        os.close(fd)
        if stream.copy >= 0:
            os.close(stream.copy)
        del self._streams[fd]
        return 0

    def _drain(self) -> None:
        """Read only the bytes that are in the pipes now: a process that still has a pipe open may write forever."""
        left = {fd: _bytes_in(fd) for fd in self._streams}
        for fd, stream in list(self._streams.items()):
            while left[fd] > 0 and (read := self._read(fd, min(left[fd], _READ_BYTES))):
                left[fd] -= read
            _write(stream.stream, stream.lines.end())

    def _hold_no_longer(self, now: float) -> None:
        for stream in self._streams.values():
            due = stream.lines.due()
            if due is not None and now >= due:
                _write(stream.stream, stream.lines.end())

    def _timeout(self, now: float) -> Optional[float]:
        dues = [due for due in (stream.lines.due() for stream in self._streams.values()) if due is not None]
        return max(0.0, min(dues) - now) if dues else None


def _bytes_in(pipe: int) -> int:
    (count,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, struct.pack("i", 0)))
    return int(count)


def _write(stream: int, text: bytes) -> None:
    """Write all of it. If the log has no reader any more, the workers must not notice."""
    with contextlib.suppress(OSError):
        while text:
            try:
                text = text[os.write(stream, text) :]
            except BlockingIOError:  # a program of the container, such as ssh, has made the log non-blocking
                _wait_for_room(stream)


def _wait_for_room(stream: int) -> None:
    poll = select.poll()
    poll.register(stream, select.POLLOUT)
    poll.poll()
