"""docs/explanation/asked.md names existing tests."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_each_row_has_a_link_and_existing_tests():
    page = (ROOT / "docs/explanation/asked.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ")][1:]
    assert rows
    for row in rows:
        requests, _, shown = row.strip("| ").split(" | ")
        assert "https://github.com/" in requests, row
        tests = re.findall(r"(tests/\S+\.py)::(\w+)", shown)
        assert tests, row
        for file, name in tests:
            assert re.search(rf"def {name}\(", (ROOT / file).read_text(encoding="utf-8")), f"{file} has no {name}"
