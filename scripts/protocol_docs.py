"""Write the generated parts of docs/contributors/protocol.md from the code; --check only names stale ones.

A part is between `<!-- generated: NAME -->` and `<!-- end -->`; the text around it is written by hand. Messages come
from understudy_protocol (message_tables.py), state machines from every module of MACHINES whose docstring has a
transition table (transition_tables.py). If the code contradicts itself, the program fails and writes nothing.
"""

import argparse
import importlib
import re
import sys
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from types import ModuleType

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.message_tables import (
    MessageError,
    all_directions,
    markdown,
    message_table,
    parts,
    parts_table,
    wrong_directions,
)
from scripts.transition_tables import Table, TableError, diagram, read_table, wrong_states
from understudy_protocol import wire

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/contributors/protocol.md"
SOURCES = ROOT / "sidecar"
MACHINES = tuple(
    SOURCES / name
    for name in ("understudy_sidecar/membership", "understudy_launcher", "understudy_torchrun", "understudy_rollout")
)
COMMAND = "scripts/py scripts/protocol_docs.py"

BEGIN = re.compile(r"<!-- generated: (.+) -->")
END = "<!-- end -->"


class PageError(Exception):
    """The page lacks a part, or has an unknown one; or the code contradicts itself."""


def main(arguments: list[str], page: Path = PAGE) -> int:
    parser = argparse.ArgumentParser(description="Write the generated parts of docs/contributors/protocol.md.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a part is stale")
    options = parser.parse_args(arguments)
    text = page.read_text(encoding="utf-8")
    try:
        filled, stale = fill(text, generated())
    except (MessageError, TableError, PageError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    if not options.check:
        page.write_text(filled, encoding="utf-8")
        return 0
    for name in stale:
        sys.stderr.write(f"{page.name}: the part {name!r} differs from the code: run `{COMMAND}` and commit it\n")
    return 1 if stale else 0


def generated() -> dict[str, str]:
    """Every generated part of the page, by its name."""
    modules = all_directions()
    machines = list(find_machines())
    wrong = wrong_directions(modules) + [text for table, states in machines for text in wrong_states(table, states)]
    if wrong:
        raise PageError("\n".join(wrong))
    return {
        "version": f"`v` is {wire.VERSION} now.",
        **{module.__name__.split(".")[-1]: message_table(directed) for module, directed in modules.items()},
        "parts": parts_table(parts(modules)),
        "machines": "\n\n".join(machine_section(table) for table, _ in machines),
    }


def find_machines() -> Iterator[tuple[Table, type[Enum]]]:
    """Every transition table, and the enum of its states."""
    for path in (path for folder in MACHINES for path in sorted(folder.glob("*.py"))):
        table = read_table(path.read_text(encoding="utf-8"), str(path.relative_to(ROOT)))
        if table is None:
            continue
        module = importlib.import_module(".".join(path.relative_to(SOURCES).with_suffix("").parts))
        yield table, states_of(table, module)


def states_of(table: Table, module: ModuleType) -> type[Enum]:
    """The enum that the table's first heading names, defined or imported in the table's module."""
    states = getattr(module, table.enum_name, None)
    if not (isinstance(states, type) and issubclass(states, Enum)):
        raise PageError(f"{table.file}: expected an enum {table.enum_name} with the table's states; got {states}")
    return states


def machine_section(table: Table) -> str:
    rows = [(_code(row.state), row.event, _code(row.next), row.effect) for row in table.rows]
    heading = f"### [{Path(table.file).name}](../../{table.file})"
    return f"{heading}\n\n{table.title}\n\n```mermaid\n{diagram(table)}\n```\n\n{markdown(table.headings, rows)}"


def _code(states: str) -> str:
    return re.sub(r"\w+", lambda name: f"`{name[0]}`" if name[0].isupper() else name[0], states)


def fill(text: str, wanted: Mapping[str, str]) -> tuple[str, list[str]]:
    """The page with the wanted parts, and the names of the parts that differed."""
    lines = iter(enumerate(text.splitlines(), start=1))
    filled: list[str] = []
    stale: list[str] = []
    left = dict(wanted)
    for number, line in lines:
        filled.append(line)
        begin = BEGIN.fullmatch(line)
        if begin is None:
            continue
        if begin[1] not in left:
            raise PageError(f"line {number}: expected one of {', '.join(left) or 'no more parts'}; got {line}")
        new = ["", *left.pop(begin[1]).split("\n"), ""]
        old = _until_end(lines, number, line)
        if new != old:
            stale.append(begin[1])
        filled += [*new, END]
    if left:
        raise PageError(f"expected the lines `<!-- generated: NAME -->` and `{END}` for {', '.join(left)}; got none")
    return "\n".join(filled) + "\n", stale


def _until_end(lines: Iterator[tuple[int, str]], begin: int, first: str) -> list[str]:
    old: list[str] = []
    for number, line in lines:
        if line == END:
            return old
        if BEGIN.fullmatch(line):
            raise PageError(f"line {number}: expected `{END}` of line {begin} ({first}) before; got {line}")
        old.append(line)
    raise PageError(f"line {begin}: expected `{END}` somewhere below {first}; got the end of the page")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
