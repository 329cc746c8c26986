"""Unix seconds as the API writes times."""

from datetime import UTC, datetime


def micro_time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def whole_seconds(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def unix(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
