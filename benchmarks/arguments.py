"""Lists on a benchmark's command line, `--cases create,delete`. Pure."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T", bound=str)


def listed(choices: Iterable[T]) -> Callable[[str], tuple[T, ...]]:
    """A reader of some of these, separated by commas. It raises ArgumentTypeError with the known ones."""
    known = {str(choice): choice for choice in choices}

    def read(text: str) -> tuple[T, ...]:
        unknown = [item for item in text.split(",") if item not in known]
        if unknown:
            raise ArgumentTypeError(f"there is no {unknown[0]!r}: some of {','.join(known)}, with commas between")
        return tuple(known[item] for item in text.split(","))

    return read


def sizes(text: str) -> tuple[int, ...]:
    """Numbers above 0, separated by commas. Raises ArgumentTypeError."""
    wrong = [item for item in text.split(",") if not (item.isdecimal() and int(item) > 0)]
    if wrong:
        raise ArgumentTypeError(f"{wrong[0]!r} is no size: numbers above 0, with commas between")
    return tuple(int(item) for item in text.split(","))


def some_of(choices: Iterable[str]) -> str:
    """A list's choices for `--help`."""
    return f"of {','.join(choices)}"
