"""The files in which torchrun's workers report their steps."""

from __future__ import annotations

from pathlib import Path

from understudy_torchrun.steps import TorchrunSteps


def test_the_files_are_removed_once_even_if_two_threads_end_them() -> None:
    # given files, and a second call of end() during the first one, as at the program's end
    ends: list[int] = []

    def unwatch(bell: int) -> None:
        ends.append(bell)
        steps.end()

    steps = TorchrunSteps(1, lambda bell: None, unwatch, lambda text: None)
    folder = Path(steps.begin())
    # then the bell is unregistered once, and the folder is deleted
    steps.end()
    assert len(ends) == 1
    assert not folder.exists()
