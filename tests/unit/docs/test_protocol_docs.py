"""docs/contributors/protocol.md agrees with the code; the check names a stale part, with the command that fixes it."""

from __future__ import annotations

import re
from enum import Enum
from pathlib import Path
from types import ModuleType

import pytest

from scripts import protocol_docs
from scripts.message_tables import all_directions
from scripts.protocol_docs import COMMAND, MACHINES, PAGE, SOURCES, PageError, fill, find_machines, generated, main
from scripts.transition_tables import Table, wrong_states
from understudy_protocol.membership import Join

PAGE_OF_TWO = """# A page

<!-- generated: words -->

old words

<!-- end -->
prose
<!-- generated: numbers -->

1

<!-- end -->
"""


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """A copy of the page that agrees with the code."""
    copy = tmp_path / "protocol.md"
    copy.write_text(PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    assert main([], copy) == 0
    return copy


@pytest.mark.parametrize(("table", "states"), [pytest.param(*found, id=found[0].file) for found in find_machines()])
def test_a_machines_table_names_its_states_and_no_others(table: Table, states: type[Enum]) -> None:
    assert wrong_states(table, states) == [], "the table at the top of the file must name each state of its enum"


def test_every_enum_of_states_has_a_table() -> None:
    # given the enums of states in the folders of the machines, wherever they are defined
    defined = {
        ".".join(path.relative_to(SOURCES).with_suffix("").parts)
        for folder in MACHINES
        for path in folder.glob("*.py")
        if re.search(r"^class \w*(State|Phase)\(Enum\)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    # then each of them belongs to a machine whose table was found
    assert {states.__module__ for _, states in find_machines()} == defined
    assert len(defined) >= 3


def test_a_page_that_matches_the_code_passes(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"], page) == 0
    assert capsys.readouterr().err == ""


def test_a_stale_part_is_named_with_the_command_that_fixes_it(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # given a page with a manual change of one generated part, and of the prose
    text = page.read_text(encoding="utf-8")
    stale = text.replace("| `Join` | to the coordinator |", "| `Join` | to whom it may concern |") + "A last word.\n"
    page.write_text(stale, encoding="utf-8")
    # when it is checked
    code = main(["--check"], page)
    # then only that part is named, and no file is written
    assert code == 1
    assert capsys.readouterr().err == (
        f"protocol.md: the part 'membership' differs from the code: run `{COMMAND}` and commit it\n"
    )
    assert page.read_text(encoding="utf-8") == stale
    # and the command fixes the part, and keeps the prose
    assert main([], page) == 0
    assert page.read_text(encoding="utf-8") == text + "A last word.\n"


def test_a_machine_that_contradicts_its_enum_fails_the_check(
    page: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # given a machine whose enum has a state more than its table
    (table, states), *_ = find_machines()
    more = Enum("State", [*states.__members__, "ASLEEP"])  # type: ignore[misc]
    monkeypatch.setattr(protocol_docs, "find_machines", lambda: iter([(table, more)]))
    # then the check and the generator both refuse it
    for arguments in ([], ["--check"]):
        assert main(arguments, page) == 1
        assert "never names ASLEEP" in capsys.readouterr().err


def test_a_message_without_a_direction_fails_the_check(
    page: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # given a protocol in which no peer receives a Join
    directed = {module: [to for to in pairs if to[1] is not Join] for module, pairs in all_directions().items()}
    monkeypatch.setattr(protocol_docs, "all_directions", lambda: directed)
    # then the check and the generator both refuse it
    for arguments in ([], ["--check"]):
        assert main(arguments, page) == 1
        assert "expected Join in one tuple TO_…" in capsys.readouterr().err


@pytest.mark.parametrize("states", [None, "OPEN"], ids=["none", "no enum"])
def test_a_table_without_an_enum_is_refused(states: object) -> None:
    (table, _), *_ = find_machines()
    module = ModuleType("door")
    vars(module)[table.enum_name] = states
    with pytest.raises(PageError, match=f"{table.file}: expected an enum {table.enum_name}"):
        protocol_docs.states_of(table, module)


def test_every_part_of_the_page_has_a_generator() -> None:
    assert all(text.strip() for text in generated().values())


def test_a_part_is_replaced_and_the_rest_stays() -> None:
    filled, stale = fill(PAGE_OF_TWO, {"words": "new\nwords", "numbers": "1"})
    assert stale == ["words"]
    assert filled == PAGE_OF_TWO.replace("old words", "new\nwords")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            PAGE_OF_TWO.replace(": words", ": wrods"),
            "line 3: expected one of words, numbers; got <!--",
        ),
        (PAGE_OF_TWO.replace(": numbers", ": words"), "line 9: expected one of numbers; got <!--"),
        (PAGE_OF_TWO.split("prose")[0], "expected the lines `<!-- generated: NAME -->` and `<!-- end -->` for numbers"),
        (PAGE_OF_TWO.replace("<!-- end -->\nprose", ""), "line 8: expected `<!-- end -->` of line 3"),
        (PAGE_OF_TWO.removesuffix("<!-- end -->\n"), "line 9: expected `<!-- end -->` somewhere below"),
    ],
    ids=["a part that there is not", "a part twice", "no place for a part", "a part within a part", "no end"],
)
def test_a_page_that_does_not_fit_is_refused_with_its_line(text: str, expected: str) -> None:
    with pytest.raises(PageError) as error:
        fill(text, {"words": "w", "numbers": "1"})
    assert str(error.value).startswith(expected)
