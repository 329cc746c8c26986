"""Waiting for a condition with a limit. When the limit is reached, the message has the last observed state."""

import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
Raw = dict[str, Any]

EVERY_S = 0.1


class NotInTime(AssertionError):
    """A condition did not come true: the condition, the limit, and the last state."""


def wait_until(
    description: str, condition: Callable[[], T], limit_s: float, *, seen: Callable[[], object] | None = None
) -> T:
    """The first truthy value of `condition`. Raises NotInTime after limit_s seconds, with `seen()` in the message."""
    end = time.monotonic() + limit_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= end:
            state = seen() if seen is not None else value
            raise NotInTime(f"waited {limit_s:g} s in vain until {description}; last seen:\n{state}")
        time.sleep(EVERY_S)


def wait_for_status(
    description: str,
    status: Callable[[], Raw],
    condition: Callable[[Raw], Any],
    limit_s: float,
    *,
    seen: Callable[[], object],
) -> Raw:
    """The first status that fulfills the condition. Raises NotInTime, as wait_until."""

    def met() -> tuple[Raw] | None:
        result = status()
        return (result,) if condition(result) else None

    found = wait_until(description, met, limit_s, seen=seen)
    assert found is not None
    return found[0]
