"""Every message has one direction, and its table lists its fields as JSON has them."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from scripts.message_tables import (
    MessageError,
    all_directions,
    directions,
    fields,
    message_table,
    parts,
    parts_table,
    wrong_directions,
)

LETTERS = '''
from dataclasses import dataclass
from enum import Enum
from typing import Optional


class Weight(Enum):
    """How heavy."""

    LIGHT = "Light"
    HEAVY = "Heavy"


@dataclass(frozen=True)
class Stamp:
    """Paid | not paid."""

    cents: int
    weight: Weight


@dataclass(frozen=True)
class Letter:
    """When somebody
    writes.

    It may take days.
    """

    stamp: Stamp
    pages: tuple[str, ...]
    marks: dict[str, float]
    answered: Optional[bool]
    late: bool = False


@dataclass(frozen=True)
class Receipt:
    """The answer to a Letter."""


TO_READER = (Letter,)
TO_WRITER = (Receipt,)
'''


@pytest.fixture
def letters(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of messages that a test may change."""
    module = ModuleType("letters")
    monkeypatch.setitem(sys.modules, "letters", module)
    exec(LETTERS, vars(module))
    return module


def wrong(module: ModuleType) -> list[str]:
    return wrong_directions({module: directions(module)})


def test_every_message_of_the_protocol_has_one_direction() -> None:
    assert wrong_directions(all_directions()) == []


def test_messages_with_one_direction_and_their_parts_pass(letters: Any) -> None:
    assert wrong(letters) == []


def test_the_table_lists_the_rights_of_each_account(letters: Any) -> None:
    assert message_table(directions(letters)).splitlines() == [
        "| message | direction | fields | when |",
        "|---|---|---|---|",
        "| `Letter` | to the reader | `stamp: Stamp`, `pages: [string]`, `marks: {string: number}`, "
        "`answered: bool or null`, `late?: bool` | When somebody writes. |",
        "| `Receipt` | to the writer | none | The answer to a Letter. |",
    ]


def test_each_part_of_a_message_has_a_table_of_its_own(letters: Any) -> None:
    assert parts_table(parts({letters: directions(letters)})).splitlines()[2:] == [
        r"| `Stamp` | `cents: int`, `weight: Weight` | Paid \| not paid. |",
        '| `Weight` | `"Light"`, `"Heavy"` | How heavy. |',
    ]


def test_a_message_that_is_part_of_another_stays_a_message(letters: Any) -> None:
    letters.TO_WRITER = (letters.Receipt, letters.Stamp)
    assert [cls.__name__ for cls in parts({letters: directions(letters)})] == ["Weight"]
    assert wrong(letters) == []


def test_a_message_without_a_direction_is_named(letters: Any) -> None:
    letters.TO_WRITER = ()
    assert wrong(letters) == [
        "sidecar/letters.py: expected Receipt in one tuple TO_…; it is in none, and is part of no message"
    ]


def test_a_message_with_two_directions_is_named(letters: Any) -> None:
    letters.TO_WRITER = (letters.Receipt, letters.Letter)
    assert wrong(letters) == ["sidecar/letters.py: expected Letter in one tuple TO_…; it is in TO_READER and TO_WRITER"]


def test_a_message_that_is_listed_twice_in_a_tuple_is_named(letters: Any) -> None:
    letters.TO_WRITER = (letters.Receipt, letters.Receipt)
    assert wrong(letters) == [
        "sidecar/letters.py: expected Receipt in one tuple TO_…; it is in TO_WRITER and TO_WRITER"
    ]


def test_a_message_of_another_module_is_named(letters: Any) -> None:
    # given a direction of a class that this module has only imported
    letters.Receipt.__module__ = "elsewhere"
    # then the error names it: `decode` knows only the classes that a module defines
    assert wrong(letters) == [
        "sidecar/letters.py: TO_WRITER has Receipt, which is not defined here: no program would decode it"
    ]


def test_a_module_without_directions_is_refused() -> None:
    with pytest.raises(MessageError, match=r"sidecar/silent\.py: expected tuples TO_"):
        directions(ModuleType("silent"))


def test_a_message_that_does_not_state_when_is_refused(letters: Any) -> None:
    letters.Receipt.__doc__ = "Receipt()"  # the docstring that a dataclass gets if it has none
    with pytest.raises(MessageError, match=r"sidecar/letters\.py: Receipt: expected a docstring"):
        message_table(directions(letters))


def test_a_type_that_no_reader_supports_is_refused(letters: Any) -> None:
    letters.Stamp.__annotations__["cents"] = complex
    with pytest.raises(MessageError, match="complex"):
        fields(letters.Stamp)
