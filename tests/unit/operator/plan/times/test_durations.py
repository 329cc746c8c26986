"""Go durations."""

import pytest

from understudy_operator.plan.times.durations import seconds


@pytest.mark.parametrize(
    ("duration", "expected"),
    [("90s", 90.0), ("1h", 3600.0), ("1h30m", 5400.0), ("2h3m4s", 7384.0), ("500ms", 0.5), ("1.5h", 5400.0)],
)
def test_go_durations_are_read(duration: str, expected: float):
    assert seconds(duration) == expected


@pytest.mark.parametrize("text", ["", "90", "s", "1d", "-1s", " 1s", "1h 30m", "1..5h", "1e3s"])
def test_an_invalid_duration_is_an_error_that_quotes_it(text: str):
    with pytest.raises(ValueError, match="is not a duration such as 90s or 1h30m"):
        seconds(text)
