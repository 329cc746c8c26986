"""A field of another type counts as missing."""

import pytest

from understudy_cli import fields

OBJECT = {
    "metadata": {"name": "llm", "labels": {"a": "b", "c": 3}},
    "count": 3,
    "truth": True,
    "share": 0.5,
    "endless": float("nan"),
    "at": "2026-11-20T12:00:00Z",
    "list": [{"x": 1}, "text", None],
}


def test_fields_are_read_by_their_path() -> None:
    assert fields.text(OBJECT, "metadata", "name") == "llm"
    assert fields.number(OBJECT, "count") == 3
    assert fields.decimal(OBJECT, "share") == 0.5
    assert fields.flag(OBJECT, "truth") is True
    assert fields.time(OBJECT, "at") == 1795176000.0
    assert list(fields.entries(OBJECT, "list")) == [{"x": 1}]
    assert fields.texts(OBJECT, "list") == ("text",)
    assert fields.words(OBJECT, "metadata", "labels") == {"a": "b"}


def test_a_field_of_another_type_counts_as_missing() -> None:
    assert fields.text(OBJECT, "count") == ""
    assert fields.number(OBJECT, "truth") is None
    assert fields.count(OBJECT, "metadata") == 0
    assert fields.decimal(OBJECT, "endless") is None
    assert fields.text(OBJECT, "count", "deeper") == ""
    assert fields.text([OBJECT], "metadata") == ""
    assert dict(fields.table(OBJECT, "list")) == {}


@pytest.mark.parametrize("text", ["yesterday", "", "2026-13-40T00:00:00Z", "9" * 100, 5])
def test_a_text_that_is_no_time_is_missing(text: object) -> None:
    assert fields.time({"at": text}, "at") is None


def test_the_last_lines_of_a_text_are_kept_without_control_characters() -> None:
    lines = "".join(f"line {number}\x1b[31m\n" for number in range(100))
    assert fields.lines({"traceback": lines}, "traceback", most=2) == ("line 98", "line 99")
