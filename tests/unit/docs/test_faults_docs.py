"""docs/how-to/faults.md has a row for each built-in source, with the fields that it reads and a link to their
description.
"""

import re
from pathlib import Path

from understudy_operator.plan.verdicts.built_in import BUILT_IN
from understudy_operator.plan.verdicts.fault_sources import FaultSource, Polarity
from understudy_operator.plan.verdicts.xids import FATAL
from understudy_protocol.enums import FaultClass

PAGE = (Path(__file__).resolve().parents[3] / "docs/how-to/faults.md").read_text(encoding="utf-8")
SECTION = PAGE.split("## The built-in sources")[1].split("\n## ")[0]
ROW = re.compile(r"^\| `([-a-z]+)` \| (.+?) \| (\S+) \| (.+?) \|$", re.MULTILINE)


def rows() -> dict[str, tuple[str, str, str]]:
    return {name: (signal, result, where) for name, signal, result, where in ROW.findall(SECTION)}


def test_each_built_in_row_exists_in_the_order_of_the_table():
    assert list(rows()) == [source.name for source in BUILT_IN]


def test_the_fields_of_a_row_are_those_of_its_source():
    for source in BUILT_IN:
        signal, result, _ = rows()[source.name]
        for word in (*source.keys, *find_row(source)):
            assert f"`{word}`" in signal, (source.name, word)
        if source.polarity is Polarity.FAULTY:
            assert result == source.fault_class.value, source.name
        else:
            assert result not in [fault_class.value for fault_class in FaultClass], source.name
        if source.grace_s is not None:
            assert f"{source.grace_s:.0f} s" in signal, source.name


def find_row(source: FaultSource) -> tuple[str, ...]:
    """A condition is written as the word for its status."""
    return source.values if source.kind.value == "Label" else ()


def test_each_row_links_a_description_of_its_source_in_a_version():
    described = dict(re.findall(r"^- \*\*(.+?)\*\*: (.+(?:\n  .+)*)", SECTION, re.MULTILINE))
    for name, (_, _, where) in rows().items():
        if where == "here":
            assert name.startswith("annotation")
            continue
        for project in where.split(", "):
            assert project in described, (name, project)
    for project, text in described.items():
        assert "https://" in text, project
        assert re.search(r"v?\d+\.\d+|20\d\d-\d\d-\d\d|`[0-9a-f]{7}`", text), project
    assert {project for _, _, where in rows().values() for project in where.split(", ")} - {"here"} == set(described)


def test_the_fatal_xids_are_those_of_the_code():
    (result,) = re.findall(r"Fatal Xids: ([^.]+)\.", SECTION)
    codes: set[int] = set()
    for part in result.split(", "):
        first, _, last = part.partition(" to ")
        codes |= set(range(int(first), int(last or first) + 1))
    assert codes == FATAL


def test_each_precedence_is_reported():
    result = set(map(int, re.findall(r"^\| (\d+) \| ", SECTION, re.MULTILINE)))
    assert result >= {source.precedence for source in BUILT_IN}
