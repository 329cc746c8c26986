"""`make attack`: the results of the attacks as a table: attack, before, now. Arguments: JUnit files.

A test that performs an attack has the marker `attack(item, attacker, before=...)`: a section of the security review,
the attacker's action, and the effect that it had before the fix. The tests of one attack share a row, and the row
says:

    refused          all of them passed
    another text     all of them passed, and a test has measured this: record_property("now", text)
    NOT REFUSED      one of them failed; the row names it
    not run          all of them were skipped, for this reason
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

ITEM, ATTACKER, BEFORE, NOW = "attack", "attacker", "before", "now"
REFUSED, NOT_REFUSED, NOT_RUN = "refused", "NOT REFUSED", "not run"
COLUMNS = ("ATTACK", "BEFORE", "NOW")


@dataclass(frozen=True)
class Attacked:
    """A test that performed an attack. error: its first line; "" if it passed or was skipped."""

    item: str
    attacker: str
    before: str
    test: str
    now: str = ""
    error: str = ""
    skipped: str = ""


@dataclass(frozen=True)
class Row:
    attack: str
    before: str
    now: str

    @property
    def is_refused(self) -> bool:
        return not self.now.startswith((NOT_REFUSED, NOT_RUN))


def read(files: Iterable[Path]) -> Iterator[Attacked]:
    for file in files:
        for case in ElementTree.parse(file).iter("testcase"):
            lines = {str(x.get("name")): str(x.get("value")) for x in case.iter("property")}
            if ITEM not in lines:
                continue
            failed = next((x for x in case if x.tag in ("failure", "error")), None)
            skipped = case.find("skipped")
            yield Attacked(
                lines[ITEM],
                lines[ATTACKER],
                lines[BEFORE],
                f"{case.get('classname')}::{case.get('name')}",
                lines.get(NOW, ""),
                "" if failed is None else (failed.get("message") or "failed").splitlines()[0],
                "" if skipped is None else skipped.get("message") or "skipped",
            )


def rows(tests: Iterable[Attacked]) -> list[Row]:
    """One row for each attack, in the order of the review's sections."""
    attacks: dict[tuple[str, str], list[Attacked]] = {}
    for test in tests:
        attacks.setdefault((test.item, test.attacker), []).append(test)
    return [
        Row(f"{item} {attacker}", found[0].before, _now(found)) for (item, attacker), found in sorted(attacks.items())
    ]


def _now(found: Sequence[Attacked]) -> str:
    if failed := next((test for test in found if test.error), None):
        return f"{NOT_REFUSED}: {failed.test}: {failed.error}"
    if all(test.skipped for test in found):
        return f"{NOT_RUN}: {found[0].skipped}"
    return "; ".join(dict.fromkeys(test.now for test in found if test.now)) or REFUSED


def table(found: Sequence[Row]) -> str:
    lines = [COLUMNS, *((row.attack, row.before, row.now) for row in found)]
    widths = [max(len(line[column]) for line in lines) for column in range(2)]
    return "\n".join(f"{line[0]:<{widths[0]}}  {line[1]:<{widths[1]}}  {line[2]}" for line in lines)


def main(files: Sequence[str]) -> int:
    found = rows(read(Path(file) for file in files))
    if not found:
        print(f"no attack was run: {', '.join(files)} has no test with the marker attack", file=sys.stderr)
        return 1
    print(table(found))
    refused = sum(row.is_refused for row in found)
    print(f"{refused} of {len(found)} attacks are refused or contained")
    return 0 if refused == len(found) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
