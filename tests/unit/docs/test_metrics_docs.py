"""docs/reference/metrics.md agrees with the code; the check names a stale part, with the command that fixes it."""

from pathlib import Path

import pytest

from scripts.metrics_docs import COMMAND, PAGE, main


def test_the_page_agrees_with_the_code():
    assert main(["--check"]) == 0


def test_a_stale_part_is_named_with_the_command_that_fixes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    page = tmp_path / "metrics.md"
    page.write_text(PAGE.read_text(encoding="utf-8").replace("`understudy_leader` |", "`understudy_chief` |"))
    assert main(["--check"], page) == 1
    assert capsys.readouterr().err == (
        f"metrics.md: the part 'operator' differs from the code: run `{COMMAND}` and commit it\n"
    )
    assert main([], page) == 0
    assert page.read_text(encoding="utf-8") == PAGE.read_text(encoding="utf-8")
