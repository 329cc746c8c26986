"""docs/reference/fields.md and names.md agree with the code, and each name has a text."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path

import pytest

from scripts import reference_docs, reference_names, reference_texts
from scripts.protocol_docs import PageError
from scripts.reference_docs import COMMAND, PAGES, launcher_exits, local_exits, main
from scripts.reference_names import JOB, Name, Place, UnknownName
from understudy_operator.plan.status import conditions


def test_the_pages_are_up_to_date() -> None:
    assert main(["--check"]) == 0, f"run `{COMMAND}` and commit it"


def test_a_stale_part_is_named_with_the_command_that_fixes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("fields.md", "names.md"):
        shutil.copy(PAGES / name, tmp_path)
    page = tmp_path / "names.md"
    page.write_text(page.read_text(encoding="utf-8").replace("`Recovering` |", "`Mending` |"), encoding="utf-8")
    assert main(["--check"], tmp_path) == 1
    assert (
        f"names.md: the part 'phases' differs from the code: run `{COMMAND}` and commit it" in capsys.readouterr().err
    )
    assert main([], tmp_path) == 0
    assert page.read_text(encoding="utf-8") == (PAGES / "names.md").read_text(encoding="utf-8")


def test_conditions_and_events_of_the_code_are_found() -> None:
    assert Name(JOB, "Normal", "Recovered") in reference_names.events()
    assert Name(JOB, "Warning", "NodeAvoided") in reference_names.events()
    assert Name(JOB, "QuotaReserved", "WaitingForQuota") in reference_names.all_conditions()
    assert Name("HotSparePool", "Ready", "Preempted") in reference_names.all_conditions()
    assert Name(JOB, "Blocked", "QuotaExceeded") in reference_names.all_conditions()


def test_an_expression_whose_values_are_not_known_is_an_error() -> None:
    function = ast.parse("def decide():\n    yield Event('Normal', computed(), '')").body[0]
    assert isinstance(function, ast.FunctionDef)
    argument = ast.parse("computed()", mode="eval").body
    with pytest.raises(UnknownName, match=r"the values of `computed\(\)` are not known: add .* to COMPUTED"):
        Place(conditions, function).values(argument)


def test_a_name_without_a_text_and_a_text_without_a_name_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PageError, match="the phase Paused has no text"):
        reference_docs.described(("phase", "meaning"), ["Paused"], reference_texts.PHASES)
    with pytest.raises(PageError, match="the code has no phase Running"):
        reference_docs.described(("phase", "meaning"), ["Pending"], {"Pending": "", "Running": ""})


def test_the_exit_codes_are_those_of_the_programs() -> None:
    assert launcher_exits() == [0, 1, 64, 70, 78, 81, 82, 83, 84, 85, 127, 137, 143]
    assert local_exits() == [0, 1, 2, 130]
