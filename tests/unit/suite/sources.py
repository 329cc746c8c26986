"""The tests' own files, as syntax trees."""

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]


def trees(*folders: str, containing: str) -> Iterator[tuple[str, ast.Module]]:
    """Path below tests/ and syntax tree of each Python file in these folders that contains this text."""
    for folder in folders:
        for path in sorted((TESTS / folder).rglob("*.py")):
            text = path.read_text()
            if containing in text:
                yield str(path.relative_to(TESTS)), ast.parse(text)
