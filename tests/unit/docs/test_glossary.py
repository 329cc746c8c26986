"""A word has the same meaning on every page for users: docs/reference/glossary.md defines it."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[3] / "docs"
GLOSSARY = DOCS / "reference/glossary.md"
#: A table of words: its heading and its rows.
TABLE = re.compile(r"^\| word \| meaning \|\n\|---\|---\|\n((?:\| .+ \|\n)+)", re.MULTILINE)


def words(page: Path) -> dict[str, str]:
    rows = "".join(TABLE.findall(page.read_text(encoding="utf-8")))
    return dict(row.strip("| ").split(" | ") for row in rows.splitlines())


@pytest.mark.parametrize("name", ["workers", "spares", "faults", "inject"])
def test_a_table_of_words_repeats_the_glossary(name: str) -> None:
    page, glossary = words(DOCS / f"how-to/{name}.md"), words(GLOSSARY)
    assert page
    assert {word: meaning for word, meaning in page.items() if glossary.get(word) != meaning} == {}
