"""Pauses between attempts."""


def doubled(first_s: float, times: int, longest_s: float) -> float:
    """The pause after `times` doublings of the first one, up to the longest."""
    return min(first_s * 2.0 ** min(times, 30), longest_s)
