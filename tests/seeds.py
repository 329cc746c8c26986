"""Finds a seed in which a simulation breaks, beginning with the seed that broke it in the last run."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from tests.cluster.paths import Paths

V = TypeVar("V", bound=Exception)


def find_seed(
    name: str, seeds: int, run: Callable[[int], object], violation: type[V], counts: Callable[[V], bool]
) -> int | None:
    """The first of `seeds` seeds with which `run` raises a violation that counts; None if no seed does.

    A rare schedule can take thousands of seeds to find, so the cache keeps the found seed under this name. If a change
    of the code makes that seed useless, all other seeds are tried.
    """
    file = Paths.from_environment().cache / "seeds" / re.sub(r"\W+", "-", name)
    for seed in _in_order(_read(file), seeds):
        try:
            run(seed)
        except violation as raised:
            if not counts(raised):
                continue
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(str(seed))
            return seed
    return None


def _in_order(first: int | None, seeds: int) -> Iterator[int]:
    if first is not None and first < seeds:
        yield first
    yield from (seed for seed in range(seeds) if seed != first)


def _read(file: Path) -> int | None:
    return int(text) if file.exists() and (text := file.read_text()).isdecimal() else None
