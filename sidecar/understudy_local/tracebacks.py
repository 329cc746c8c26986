"""Python's tracebacks among the lines of many workers: each is shown once, and in one line from then on. Pure.

Rules: two tracebacks are the same if their frames and the exception's type are. A traceback is held back until its last
line, the exception; if it becomes too long for that it is shown as it is. Other lines pass at once.
"""

import re

MAX_LINES = 1000
REMEMBERED = 100
_PREFIX = re.compile(r"\[rank \d+\] ")
_HEAD = "Traceback (most recent call last):"


class Tracebacks:
    """Of the stderr of all workers. A worker is known by the prefix of its lines."""

    def __init__(self) -> None:
        self._pending: dict[str, list[str]] = {}  # by prefix
        self._shown: set[str] = set()

    def feed(self, line: str) -> list[str]:
        """What is to be shown once a worker has written this line."""
        match = _PREFIX.match(line)
        prefix = match[0] if match else ""
        text = line[len(prefix) :]
        held = self._pending.get(prefix)
        if held is None:
            if text != _HEAD:
                return [line]
            self._pending[prefix] = [text]
            return []
        held.append(text)
        if text.startswith(" ") and len(held) < MAX_LINES:
            return []
        del self._pending[prefix]
        return [prefix + shown for shown in self._once(held)]

    def rest(self) -> list[str]:
        """What is held back: nothing follows."""
        lines = [prefix + text for prefix, held in self._pending.items() for text in held]
        self._pending.clear()
        return lines

    def _once(self, held: list[str]) -> list[str]:
        *frames, exception = held
        key = "\n".join([*frames, exception.partition(":")[0]])
        if key in self._shown:
            return [f"{exception} (its traceback is above)"]
        if len(self._shown) < REMEMBERED:
            self._shown.add(key)
        return held
