"""Unix seconds and the times of the API.

Every number can be written: times before 1970 and after the year 9999 become the nearest time that RFC 3339 has. A text
that is not a time is a ValueError.
"""

from datetime import UTC, datetime

#: 9999-12-31T23:59:59Z.
LAST = 253402300799.0


class Time(str):
    """A valid time in RFC 3339."""

    __slots__ = ()


def micro_time(at: float) -> Time:
    return Time(_time(at).strftime("%Y-%m-%dT%H:%M:%S.%fZ"))


def whole_seconds(at: float) -> Time:
    return Time(_time(at).strftime("%Y-%m-%dT%H:%M:%SZ"))


def parse_time(text: str) -> float:
    """Raises ValueError. A time without a zone is in UTC."""
    if not isinstance(text, str):
        raise ValueError(f"expected a time such as 2026-11-20T10:00:00Z, got {type(text).__name__}")
    at = datetime.fromisoformat(text)
    return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp()


def _time(at: float) -> datetime:
    return datetime.fromtimestamp(min(max(0.0, at), LAST), UTC)  # in this order NaN becomes 0
