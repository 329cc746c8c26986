"""Attacks: the arguments of a test's marker `attack` go into its JUnit properties, of which tests/attacks.py makes a
table.
"""

import pytest

from tests.attacks import ATTACKER, BEFORE, ITEM


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for marker in item.iter_markers("attack"):
            item.user_properties += properties(*marker.args, **marker.kwargs)


def properties(item: str, attacker: str, *, before: str) -> list[tuple[str, object]]:
    return [(ITEM, item), (ATTACKER, attacker), (BEFORE, before)]
