"""docs/security.md: each claim names tests, and these are there."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/security.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| claim")]
NAMED = re.compile(r"`([a-z0-9_/]+\.py)::(test_[a-z0-9_]+)`")


@cache
def names_in(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
    return frozenset(x.name for x in tree.body if isinstance(x, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[2:60])
def test_each_claim_names_tests_that_there_are(row: str) -> None:
    claim, tests = row.strip("| ").split(" | ")
    named = NAMED.findall(tests)
    assert claim.endswith(".")
    assert named
    assert NAMED.sub("", tests).strip(", ") == "", "nothing but tests is named there"
    assert [f"{file}::{name}" for file, name in named if name not in names_in(file)] == []


def test_each_section_says_what_is_not_defended() -> None:
    sections = PAGE.split("\n## ")[1:]
    assert len(sections) == 5
    assert [section.splitlines()[0] for section in sections if "**Not defended**" not in section] == []
