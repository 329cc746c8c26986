from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.zygote.forking import Forking

Make = Callable[..., Forking]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of processes that a test starts."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def forking() -> Iterator[Make]:
    """Creates zygotes for commands of this Python."""
    made: list[Forking] = []

    def make(*words: str, **options: Any) -> Forking:
        made.append(Forking(sys.executable, *words, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()
