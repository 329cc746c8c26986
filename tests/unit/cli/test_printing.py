"""Live output without a terminal: each change is printed once."""

import pytest
from rich.text import Text

from understudy_cli.printing import Frame, draw


def frame(text: str) -> Frame:
    """A frame with an age."""
    return lambda now: Text(f"{text}, age {now:.6f}")


def test_a_frame_is_printed_again_only_if_more_than_its_ages_has_changed(capsys: pytest.CaptureFixture[str]) -> None:
    draw(iter([frame("Running"), frame("Running"), frame("Recovering"), frame("Running")]))
    printed = [line.partition(",")[0] for line in capsys.readouterr().out.split("\n") if line]
    assert printed == ["Running", "Recovering", "Running"]
