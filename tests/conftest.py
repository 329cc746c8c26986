"""Attacks: the arguments of a test's marker `attack` go into its JUnit properties, from which tests/attacks.py makes a
table. Skips: a skip that tests/skips.py does not permit is a failure.
"""

import pytest

from tests.attacks import ATTACKER, BEFORE, ITEM
from tests.skips import pytest_make_collect_report, pytest_runtest_makereport

__all__ = ["pytest_collection_modifyitems", "pytest_make_collect_report", "pytest_runtest_makereport"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for marker in item.iter_markers("attack"):
            item.user_properties += properties(*marker.args, **marker.kwargs)


def properties(item: str, attacker: str, *, before: str) -> list[tuple[str, object]]:
    return [(ITEM, item), (ATTACKER, attacker), (BEFORE, before)]
