"""docs/explanation/security.md: each claim names existing tests, and one of them performs an attack."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/explanation/security.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| claim")]
NAMED = re.compile(r"`([a-z0-9_/]+\.py)::(test_[a-z0-9_]+)`")
#: Beginnings of the claims that no test attacks, with the reason.
WITHOUT_ATTACK = {
    "No process of Understudy writes a Secret": "no caller has a part in it: our own process would write",
    "Containers of the operator and the webhook run": "the API server admits them, whoever calls",
}


@cache
def is_attack_by_name(file: str) -> dict[str, bool]:
    """The names of the tests, and whether each has the marker of an attack."""
    tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
    tests = [x for x in tree.body if isinstance(x, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {x.name: any("pytest.mark.attack(" in ast.unparse(y) for y in x.decorator_list) for x in tests}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[2:60])
def test_each_claim_names_existing_tests(row: str) -> None:
    claim, tests = row.strip("| ").split(" | ")
    named = NAMED.findall(tests)
    assert claim.endswith(".")
    assert named
    assert NAMED.sub("", tests).strip(", ") == "", "nothing but tests is named there"
    assert [f"{file}::{name}" for file, name in named if name not in is_attack_by_name(file)] == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[2:60])
def test_each_claim_names_a_test_that_performs_an_attack(row: str) -> None:
    attacks = [name for file, name in NAMED.findall(row) if is_attack_by_name(file).get(name)]
    is_listed = row.removeprefix("| ").startswith(tuple(WITHOUT_ATTACK))
    assert bool(attacks) is not is_listed, "mark a test of an attack, or correct WITHOUT_ATTACK"


def test_each_section_states_its_limits() -> None:
    sections = PAGE.split("\n## ")[1:]
    assert len(sections) == 5
    assert [section.splitlines()[0] for section in sections if "**Not defended**" not in section] == []
