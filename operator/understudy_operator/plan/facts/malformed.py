"""Objects that cannot be read. Tenants choose the content of the objects that they create, so readers expect anything.

A reader raises Malformed. The store catches it, hides that object from all reconciles, logs it once, and counts it;
apply/malformed_events.py writes an Event on the object. A message names the field and the problem.
"""

from typing import Any

#: Digits of a number in a text. All numbers that the operator writes fit in 64 bits; Python raises for 4,300 digits.
DIGITS = 18


class Malformed(ValueError):
    """The object is ignored."""


class PartlyMalformed(Malformed):
    """The object counts without its malformed fields. fact: read from the other fields."""

    def __init__(self, message: str, fact: Any) -> None:
        super().__init__(message)
        self.fact = fact


def number_in(text: object) -> int | None:
    """The number in a label, an annotation or a variable; None if the text is not a number."""
    if isinstance(text, str) and len(text) <= DIGITS and text.isascii() and text.isdecimal():
        return int(text)
    return None
