"""Objects that cannot be read. A tenant decides what is in the objects that it creates, so readers expect anything.

A reader raises Malformed. The store catches it, leaves that object out of everything that reconciles see, logs it once,
and counts it; apply/malformed_events.py writes an Event on the object. A message names the field and what is wrong with
it.
"""

from typing import Any

#: Digits of a number in a text. All numbers that the operator writes fit in 64 bits; Python raises for 4,300 digits.
DIGITS = 18


class Malformed(ValueError):
    """The object is left out."""


class PartlyMalformed(Malformed):
    """The object counts without its malformed fields. fact: what the reader made of the other ones."""

    def __init__(self, message: str, fact: Any) -> None:
        super().__init__(message)
        self.fact = fact


def number_in(text: object) -> int | None:
    """The number that a label, an annotation or a variable has; None if it is none."""
    if isinstance(text, str) and len(text) <= DIGITS and text.isascii() and text.isdecimal():
        return int(text)
    return None
