"""Where a worker may leave the text and the time of its failure (torch's `@record` writes both), and what it says.

One file a worker and round, in the shared folder (mode 0777, whatever uid the trainer has) or, failing that, in the
temporary folder. Where neither can be written there is none, and a failure's message is its exit code. A script may
put anything there: only a regular file of at most a mebibyte is read, in a folder that is this user's own.

The time is that of the exception. It tells which worker failed first where an abort ends many at once: they end, and
are reaped, in any order. torch writes whole seconds, so the file's own time makes it exact if it agrees.
"""

import contextlib
import json
import math
import os
import stat
import tempfile
from dataclasses import dataclass
from typing import Any, Optional

from understudy_protocol import files

MESSAGE_LIMIT = 500
_READ_LIMIT = 1 << 20
_WRITTEN_WITHIN_S = 2.0  # of the beginning of the second that torch writes
_CLOCKS_DIFFER_S = 1.0  # whole seconds are earlier than the truth


@dataclass(frozen=True)
class Failure:
    """What a worker wrote. message: the first line, bounded. at: when the exception was raised, by its clock."""

    message: Optional[str] = None
    at: Optional[float] = None

    def time_of(self, started_at: float, ended_at: float) -> float:
        """When the worker failed: while it ran, or else when it was seen to have ended."""
        if self.at is None or not started_at - _CLOCKS_DIFFER_S <= self.at <= ended_at:
            return ended_at
        return max(self.at, started_at)


NOTHING = Failure()


def make_folder(shared_folder: str) -> Optional[str]:
    """A folder of our own that we can write to, or None."""
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
    """Not a link: the launcher removes files there."""
    found = os.lstat(path)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


def fresh_path(folder: str, token: str, local_rank: int) -> str:
    """The file of one worker of one round; what a former launcher left there is gone."""
    path = os.path.join(folder, f"{token}-{local_rank}.json")
    forget(path)
    return path


def forget(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def read(path: Optional[str]) -> Failure:
    """What the worker wrote, as far as we understand it."""
    if path is None:
        return NOTHING
    try:
        with files.opened(path) as fd:
            content = json.loads(files.read_at_most(fd, _READ_LIMIT).decode(errors="replace"))
            written_at = os.fstat(fd).st_mtime
    except (OSError, ValueError, RecursionError):
        return NOTHING
    return Failure(_first_line(content), _time(content, written_at))


def _first_line(content: Any) -> Optional[str]:
    message = content.get("message") if isinstance(content, dict) else None
    if isinstance(message, dict):
        message = message.get("message")
    if not isinstance(message, str) or not message.strip():
        return None
    return message.strip().splitlines()[0][:MESSAGE_LIMIT]


def _time(content: Any, written_at: float) -> Optional[float]:
    for key in ("message", "extraInfo", "timestamp"):
        content = content.get(key) if isinstance(content, dict) else None
    try:
        second = float(content) if isinstance(content, (str, int, float)) else math.nan
    except (ValueError, OverflowError):
        return None
    if not math.isfinite(second):
        return None
    return written_at if second <= written_at < second + _WRITTEN_WITHIN_S else second
