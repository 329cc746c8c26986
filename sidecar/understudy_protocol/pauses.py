"""Pauses between attempts."""


def growing_pause_s(first_s: float, longest_s: float, in_a_row: int) -> float:
    """The pause after a number of consecutive failures: it doubles with each failure."""
    return min(first_s * 2.0 ** min(in_a_row - 1, 30), longest_s)
