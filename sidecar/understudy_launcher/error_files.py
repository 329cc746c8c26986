"""Where a worker may leave the text of its failure (torch's `@record` writes it), and what it says.

One file a worker and round, in the shared folder (mode 0777, whatever uid the trainer has) or, failing that, in the
temporary folder. Where neither can be written there is none, and a failure's message is its exit code.
"""

import contextlib
import json
import os
import tempfile
from typing import Any, Optional

MESSAGE_LIMIT = 500
_READ_LIMIT = 1 << 20


def make_folder(shared_folder: str) -> Optional[str]:
    """A folder of our own that we can write to, or None."""
    name = f"errors-{os.getuid()}"
    for parent in (shared_folder, tempfile.gettempdir):
        with contextlib.suppress(OSError):
            folder = os.path.join(parent if isinstance(parent, str) else parent(), name)
            if not os.path.isdir(folder):
                os.mkdir(folder, mode=0o700)
            if os.access(folder, os.W_OK | os.X_OK):
                return folder
    return None


def fresh_path(folder: str, token: str, local_rank: int) -> str:
    """The file of one worker of one round; what a former launcher left there is gone."""
    path = os.path.join(folder, f"{token}-{local_rank}.json")
    forget(path)
    return path


def forget(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def message_of(path: Optional[str]) -> Optional[str]:
    """The first line of what the worker wrote, bounded; None where it wrote nothing that we understand."""
    if path is None:
        return None
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            content = json.loads(file.read(_READ_LIMIT))
    except (OSError, ValueError):
        return None
    return _first_line(content)


def _first_line(content: Any) -> Optional[str]:
    message = content.get("message") if isinstance(content, dict) else None
    if isinstance(message, dict):
        message = message.get("message")
    if not isinstance(message, str) or not message.strip():
        return None
    return message.strip().splitlines()[0][:MESSAGE_LIMIT]
