"""Go durations, as in the API and in annotations."""

import re

_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)"


def seconds(duration: str) -> float:
    """A Go duration such as 90s, 1h or 1h30m, in seconds. Raises ValueError."""
    if not re.fullmatch(f"(?:{_PART})+", duration):
        raise ValueError(f"{duration!r} is not a duration such as 90s or 1h30m")
    return sum(float(number) * _UNITS_S[unit] for number, unit in re.findall(_PART, duration))
