"""Fields of JSON objects, checked: a field of another type counts as missing. Pure."""

import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from understudy_cli.untrusted import MESSAGE_LENGTH, log_line, one_line

Raw = Mapping[str, Any]


def get(raw: object, *path: str) -> object:
    """The value at the path; None if there is none."""
    for name in path:
        raw = raw.get(name) if isinstance(raw, Mapping) else None
    return raw


def text(raw: object, *path: str, limit: int = MESSAGE_LENGTH) -> str:
    """A text in one line without control characters; "" if the field is missing."""
    value = get(raw, *path)
    return one_line(value, limit) if isinstance(value, str) else ""


def number(raw: object, *path: str) -> int | None:
    value = get(raw, *path)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def count(raw: object, *path: str) -> int:
    return number(raw, *path) or 0


def decimal(raw: object, *path: str) -> float | None:
    value = get(raw, *path)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def flag(raw: object, *path: str) -> bool:
    return get(raw, *path) is True


def time(raw: object, *path: str) -> float | None:
    """Unix seconds of a time in RFC 3339."""
    value = get(raw, *path)
    if not isinstance(value, str) or len(value) > 40:
        return None
    try:
        at = datetime.fromisoformat(value)
        return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def table(raw: object, *path: str) -> Raw:
    value = get(raw, *path)
    return value if isinstance(value, Mapping) else {}


def entries(raw: object, *path: str) -> Iterator[Raw]:
    """The objects of a list."""
    value = get(raw, *path)
    yield from (entry for entry in (value if isinstance(value, list) else ()) if isinstance(entry, Mapping))


def texts(raw: object, *path: str) -> tuple[str, ...]:
    """The texts of a list."""
    value = get(raw, *path)
    found = value if isinstance(value, list) else ()
    return tuple(one_line(entry) for entry in found if isinstance(entry, str))


def words(raw: object, *path: str) -> dict[str, str]:
    """An object whose values are texts, such as labels."""
    return {one_line(name): one_line(value) for name, value in table(raw, *path).items() if isinstance(value, str)}


def lines(raw: object, *path: str, most: int = 60) -> tuple[str, ...]:
    """A text of several lines, such as a traceback: its last lines."""
    value = get(raw, *path)
    found = value[-most * MESSAGE_LENGTH :].splitlines()[-most:] if isinstance(value, str) else []
    return tuple(log_line(line)[:MESSAGE_LENGTH].rstrip() for line in found)


def pem_text(content: bytes) -> str:
    """Certificates for the module ssl, which accepts ASCII alone. Comments between them may have other characters."""
    return content.decode("ascii", errors="ignore")
