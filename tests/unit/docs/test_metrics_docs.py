"""docs/reference/metrics.md is what the code says; a part that is not is named, with the command that mends it."""

from pathlib import Path

import pytest

from scripts.metrics_docs import COMMAND, PAGE, main


def test_the_page_is_what_the_code_states():
    assert main(["--check"]) == 0


def test_a_stale_part_is_named_with_what_fixes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    page = tmp_path / "metrics.md"
    page.write_text(PAGE.read_text(encoding="utf-8").replace("`understudy_leader` |", "`understudy_chief` |"))
    assert main(["--check"], page) == 1
    assert capsys.readouterr().err == (
        f"metrics.md: the part 'operator' differs from the code: run `{COMMAND}` and commit it\n"
    )
    assert main([], page) == 0
    assert page.read_text(encoding="utf-8") == PAGE.read_text(encoding="utf-8")
