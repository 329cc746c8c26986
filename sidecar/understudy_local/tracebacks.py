"""Python's tracebacks in the output of many workers: each is shown once in full, and then in one line. Pure.

Rules: two tracebacks are equal if their frames and the exception's type are. A traceback waits for its last line, the
exception; if it becomes too long for that, it is shown in full. Other lines are shown at once.
"""

import re

MAX_LINES = 1000
REMEMBERED = 100
_PREFIX = re.compile(r"\[rank \d+\] ")
_HEAD = "Traceback (most recent call last):"


class Tracebacks:
    """For the stderr of all workers. The prefix of a line identifies its worker."""

    def __init__(self) -> None:
        self._pending: dict[str, list[str]] = {}  # by prefix
        self._shown: set[str] = set()

    def feed(self, line: str) -> list[str]:
        """The lines to show after a worker has written this line."""
        match = _PREFIX.match(line)
        prefix = match[0] if match else ""
        text = line[len(prefix) :]
        pending = self._pending.get(prefix)
        if pending is None:
            if text != _HEAD:
                return [line]
            self._pending[prefix] = [text]
            return []
        pending.append(text)
        if text.startswith(" ") and len(pending) < MAX_LINES:
            return []
        del self._pending[prefix]
        return [prefix + shown for shown in self._once(pending)]

    def rest(self) -> list[str]:
        """The waiting lines, at the end of the run."""
        lines = [prefix + text for prefix, pending in self._pending.items() for text in pending]
        self._pending.clear()
        return lines

    def _once(self, traceback: list[str]) -> list[str]:
        *frames, exception = traceback
        key = "\n".join([*frames, exception.partition(":")[0]])
        if key in self._shown:
            return [f"{exception} (its traceback is above)"]
        if len(self._shown) < REMEMBERED:
            self._shown.add(key)
        return traceback
