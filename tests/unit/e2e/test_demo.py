"""The demo fails, with an exit code and a message, if a loss differs from that of a run without faults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e import demo
from tests.e2e.report import Entry
from tests.e2e.success import Exits

LOSSES = [4.0, 3.0]


class PlayedTraining:
    """A training that has ended, with these losses of its two steps."""

    namespace, steps, world_size = "demo", 2, 6

    def __init__(self, *losses: float) -> None:
        self.losses = losses

    def delete(self) -> None:
        pass

    def report(self) -> list[Entry]:
        return [Entry("step", step, loss, (1, 1, 0), float(step)) for step, loss in enumerate(self.losses, 1)]


class Shell:
    """A cluster that has only the commands and logs that the demo needs."""

    def kubectl(self, *_words: str, check: bool = True) -> str:
        return ""

    def logs(self, folder: Path) -> Path:
        return folder


def exit_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *losses: float) -> int:
    """The evidence of a demo whose acts have run, with these losses."""
    replaced: dict[str, Any] = {
        "prepare": Shell,
        "Cluster": Shell,
        "CHECKOUT": tmp_path,
        "RESULT": tmp_path / "demo.json",
        "Training": lambda *_: PlayedTraining(*losses),
        "play": lambda _: ([], Exits({"worker": 1.0}, {"trainer": 2.0})),
        "exit_codes": lambda _: {"trainer": 0},
        "undisturbed_losses": lambda *_: LOSSES,
    }
    for name, value in replaced.items():
        monkeypatch.setattr(demo, name, value)
    return demo.main()


def test_the_losses_of_a_run_without_faults_pass(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(monkeypatch, tmp_path, 4.0, 3.0) == 0
    assert "the loss of every step is that of an undisturbed run" in capsys.readouterr().out


@pytest.mark.parametrize("losses", [(4.0, 3.0001), (4.0001, 3.0)])
def test_another_loss_of_any_step_fails_the_demo(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], losses: tuple[float, float]
) -> None:
    assert exit_code(monkeypatch, tmp_path, *losses) == 1
    printed = capsys.readouterr()
    assert "the losses are not those of an undisturbed run" in printed.err
    assert "expected a loss of" in printed.err
    assert "is that of an undisturbed run" not in printed.out
