"""Live output without a terminal: each change is printed once. A table in a narrow terminal."""

import io
import sys

import pytest
from rich.text import Text

from tests.unit.cli import samples
from understudy_cli import render
from understudy_cli.printing import Frame, draw, show
from understudy_cli.reading import read_job
from understudy_cli.render import OutputFormat
from understudy_cli.views import jobs


def frame(text: str) -> Frame:
    """A frame with an age."""
    return lambda now: Text(f"{text}, age {now:.6f}")


def test_a_frame_is_printed_again_only_if_more_than_its_ages_has_changed(capsys: pytest.CaptureFixture[str]) -> None:
    draw(iter([frame("Running"), frame("Running"), frame("Recovering"), frame("Running")]))
    printed = [line.partition(",")[0] for line in capsys.readouterr().out.split("\n") if line]
    assert printed == ["Running", "Recovering", "Running"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("columns", [20, 40, 60, 200])
def test_a_narrow_terminal_shows_all_columns(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    rows = jobs.job_rows([read_job(samples.job())], samples.NOW)
    show(rows, OutputFormat.TABLE, lambda: render.jobs(rows, wide=False, all_namespaces=False))
    assert {"llm", "2/2", "1200/5000", "2m", "3h"} <= set(terminal.getvalue().split())
