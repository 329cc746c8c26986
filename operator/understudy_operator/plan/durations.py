"""Go durations, as the API writes them."""

_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def seconds(duration: str) -> float:
    """A Go duration such as 90s, 1h or 1h30m, in seconds."""
    total, number, unit = 0.0, "", ""
    for char in f"{duration}0":
        if (char.isdigit() or char == ".") and unit:
            total += float(number) * _UNITS_S[unit]
            number, unit = "", ""
        if char.isdigit() or char == ".":
            number += char
        else:
            unit += char
    return total
