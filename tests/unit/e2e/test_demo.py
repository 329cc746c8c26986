"""The demo fails, with an exit code and a message, if a loss differs from that of a run without faults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e import demo
from tests.e2e.report import Entry
from tests.e2e.success import Exits

LOSSES = [4.0, 3.0]
#: Of 100 s.
STATUS: dict[str, Any] = {
    "completionTime": "2026-11-20T10:01:40.000000Z",
    "goodput": {
        "startTime": "2026-11-20T10:00:00.000000Z",
        "seconds": {"productive": 80.0, "restart": 12.0, "starting": 7.5},
        "ettr": 0.8,
    },
}


class PlayedTraining:
    """A training that has ended, with these losses of its two steps."""

    namespace, steps, world_size = "demo", 2, 6

    def __init__(self, *losses: float) -> None:
        self.losses = losses

    def delete(self) -> None:
        pass

    def status(self) -> dict[str, Any]:
        return STATUS

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


def test_the_parts_of_the_jobs_time_are_printed() -> None:
    assert demo.account(STATUS) == (
        "the job's time, 100.0 s: productive 80.0 s, restart 12.0 s, starting 7.5 s; ETTR 0.800"
    )


def test_parts_that_are_not_the_wall_time_fail_the_demo() -> None:
    seconds = {**STATUS["goodput"]["seconds"], "starting": 6.9}
    with pytest.raises(AssertionError, match=r"are 98.9 s, its wall time is 100.0 s"):
        demo.account({**STATUS, "goodput": {**STATUS["goodput"], "seconds": seconds}})
