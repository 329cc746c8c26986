"""Go durations, as in the API and in annotations; and the growing pauses between retries."""

import re

_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)"


def growing_pause_s(first_s: float, longest_s: float, in_a_row: int) -> float:
    """The pause after so many failures in a row: it doubles with each failure."""
    return min(first_s * 2.0 ** min(in_a_row - 1, 10), longest_s)


def seconds(duration: str) -> float:
    """A Go duration such as 90s, 1h or 1h30m, in seconds. Raises ValueError."""
    if not re.fullmatch(f"(?:{_PART})+", duration):
        raise ValueError(f"{duration!r} is not a duration such as 90s or 1h30m")
    return sum(float(number) * _UNITS_S[unit] for number, unit in re.findall(_PART, duration))
