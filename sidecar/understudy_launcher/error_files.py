"""The files in which workers write the text and the time of a failure (as torch's `@record` does), and their content.

One file per worker and round: in the log folder of the torchrun whose job the launcher runs, or in the shared folder
(mode 0777, for any uid of the trainer), or else in the temporary folder. If none is writable there is no file, and the
failure's message is its exit code. A script can write anything there, so the launcher reads only regular files of at
most 1 MiB.

The file of a worker that runs already has an exception as soon as the script has ended with it. The process may need
some time to end, and the peers that lose their connection to it may end first.

The time is that of the exception. It shows which worker failed first when an abort ends many at once, because workers
end and are reaped in any order. torch writes whole seconds; the file's mtime gives the exact time if both agree.
"""

import contextlib
import json
import math
import os
import stat
import tempfile
import time
from dataclasses import dataclass
from typing import Any, Optional

from understudy_launcher.events import WorkerRaised
from understudy_protocol import files
from understudy_protocol.recovery import MAX_MESSAGE_CHARS, MAX_TRACEBACK_CHARS

_READ_LIMIT = 1 << 20
_WRITTEN_WITHIN_S = 2.0  # after the start of the second that torch writes
_CLOCKS_DIFFER_S = 1.0  # torch rounds down to whole seconds


@dataclass(frozen=True)
class Failure:
    """The content of an error file. message: the first line, truncated. at: when the exception was raised, Unix
    seconds. traceback: its end, with the frames that raised the exception; "" if the file has none.
    """

    message: Optional[str] = None
    at: Optional[float] = None
    traceback: str = ""

    def time_of(self, started_at: float, ended_at: float) -> float:
        """When the worker failed: the file's time if the worker ran then, else `ended_at`."""
        if self.at is None or not started_at - _CLOCKS_DIFFER_S <= self.at <= ended_at:
            return ended_at
        return max(self.at, started_at)


NOTHING = Failure()


def make_folder(shared_folder: str) -> Optional[str]:
    """A writable folder that this user owns, or None."""
    name = f"errors-{os.getuid()}"
    for parent in (shared_folder, tempfile.gettempdir):
        with contextlib.suppress(OSError):
            folder = os.path.join(parent if isinstance(parent, str) else parent(), name)
            if not os.path.isdir(folder):
                os.mkdir(folder, mode=0o700)
            if _is_own_folder(folder) and os.access(folder, os.W_OK | os.X_OK):
                return folder
    return None


def _is_own_folder(path: str) -> bool:
    """A link is rejected, because the launcher removes files in this folder."""
    found = os.lstat(path)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


def fresh_path(folder: str, token: str, local_rank: int) -> str:
    """The path for one worker of one round. A file that an earlier launcher left there is deleted."""
    path = os.path.join(folder, f"{token}-{local_rank}.json")
    forget(path)
    return path


def forget(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def read(path: Optional[str]) -> Failure:
    """The parts of the worker's file that can be parsed."""
    if path is None:
        return NOTHING
    try:
        with files.opened(path) as fd:
            content = json.loads(files.read_at_most(fd, _READ_LIMIT).decode(errors="replace"))
            written_at = os.fstat(fd).st_mtime
    except (OSError, ValueError, RecursionError):
        return NOTHING
    return Failure(_first_line(content), _time(content, written_at), _traceback(content))


def raised(path: Optional[str], local_rank: int, started_at: float) -> Optional[WorkerRaised]:
    """The exception of a worker that runs; None if its file has none."""
    failure, now = read(path), time.time()
    if failure.message is None:
        return None
    return WorkerRaised(local_rank, failure.message, now - failure.time_of(started_at, now), failure.traceback)


def _first_line(content: Any) -> Optional[str]:
    message = content.get("message") if isinstance(content, dict) else None
    if isinstance(message, dict):
        message = message.get("message")
    if not isinstance(message, str) or not message.strip():
        return None
    first = _sendable(message).strip().splitlines()[0]
    return first[:MAX_MESSAGE_CHARS].removesuffix(":")  # of an exception without a text


def _sendable(text: str) -> str:
    """Escapes halves of surrogate pairs: the sidecar rejects messages with them. Python decodes a file name that is not
    UTF-8 to such halves.
    """
    return text.encode(errors="backslashreplace").decode()


def _traceback(content: Any) -> str:
    """Whole lines, unless the last one alone is too long."""
    text = _inside(content, "message", "extraInfo", "py_callstack")
    if not isinstance(text, str):
        return ""
    text = _sendable(text).strip("\n")
    if len(text) <= MAX_TRACEBACK_CHARS:
        return text
    end = text[-MAX_TRACEBACK_CHARS:]
    return end.partition("\n")[2] or end


def _inside(content: Any, *keys: str) -> Any:
    """The value at this path of nested objects; None if there is none."""
    for key in keys:
        content = content.get(key) if isinstance(content, dict) else None
    return content


def _time(content: Any, written_at: float) -> Optional[float]:
    content = _inside(content, "message", "extraInfo", "timestamp")
    try:
        second = float(content) if isinstance(content, (str, int, float)) else math.nan
    except (ValueError, OverflowError):
        return None
    if not math.isfinite(second):
        return None
    return written_at if second <= written_at < second + _WRITTEN_WITHIN_S else second
