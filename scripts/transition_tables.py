"""Read the transition table in a module's docstring, check it against the enum of its states, and draw it.

A table has the columns `state` (or `phase`), `event`, `next` and `what it does` (or `effects`), over a line of dashes
that marks where they begin. The state of a row is one state, or `A, B`, or `A … B` (in the enum's order), or `any`, or
`other states` (those without a row for this event). The next state is one state, or `A, B`, or `as it is`, or `-` if
the machine ends. A line that has only an event or an effect continues the row above; an event after `…` continues the
event above. A machine begins in the states that its constructors (`__init__` and class methods) assign to `.state` or
`.phase`, or pass as `state=` or `phase=`. The enum is the one that they name: SomeState, or SomePhase.

A line that does not fit is rejected with its file, its number and the expected form. Nothing is guessed or skipped.
"""

import ast
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

HEADINGS = (("state", "phase"), ("event",), ("next",), ("what it does", "effects"))
DASHES = re.compile(r"\s*-{2,}(\s+-{2,})+\s*")
FIRST_HEADING = re.compile(r"\s*(state|phase)\s{2,}\S")
SEVERAL = ("any", "other states", "other phases")
SAME, END = "as it is", "-"
STATE_FORMS = "a state, `A, B`, `A … B`, `any` or `other states`"
NEXT_FORMS = f"a state, `A, B`, `{SAME}` or `{END}`"


class TableError(Exception):
    """A table that cannot be read: where, the expected form, and the actual text."""


@dataclass(frozen=True)
class Row:
    line: int
    state: str
    event: str
    next: str
    effect: str


@dataclass(frozen=True)
class Table:
    file: str
    title: str  # the first paragraph of the docstring
    headings: tuple[str, ...]
    rows: tuple[Row, ...]
    enum_name: str
    starts: tuple[str, ...]  # states in which the machine may begin


@dataclass(frozen=True)
class Line:
    """One line of a docstring, with its place in its file."""

    file: str
    number: int
    text: str

    def error(self, expected: str) -> TableError:
        return TableError(f"{self.file}:{self.number}: expected {expected}; got {self.text.strip()!r}")


def read_table(source: str, file: str) -> Table | None:
    """The transition table in the docstring of a module's source; None if there is none."""
    lines = _docstring(source, file)
    rulers = [i for i, line in enumerate(lines) if DASHES.fullmatch(line.text)]
    for i, line in enumerate(lines):
        if FIRST_HEADING.match(line.text) and i + 1 not in rulers:
            raise line.error("a line of dashes below the headings of a table")
    if not rulers:
        return None
    if len(rulers) > 1:
        raise lines[rulers[1]].error("one table in a module's docstring, and no second one")
    ruler = lines[rulers[0]]
    columns = [match.start() for match in re.finditer("-+", ruler.text)]
    headings = _headings(lines[rulers[0] - 1], columns)
    rows = tuple(_rows(lines[rulers[0] + 1 :], columns))
    if not rows:
        raise ruler.error("rows below it")
    title = " ".join(line.text.strip() for line in itertools.takewhile(lambda line: line.text, lines))
    starts = tuple(dict.fromkeys(_starts(ast.parse(source), headings[0])))
    if not starts:
        raise ruler.error(f"a constructor to assign the first .{headings[0]}, besides the table")
    enums = sorted({enum for enum, _ in starts})
    if len(enums) > 1:
        raise ruler.error(f"one enum in the constructors, besides the table, and not {' and '.join(enums)}")
    return Table(file, title, headings, rows, enums[0], tuple(state for _, state in starts))


def _docstring(source: str, file: str) -> list[Line]:
    body = ast.parse(source).body
    if not body or ast.get_docstring(ast.Module(body[:1], [])) is None:
        return []
    first, last = body[0].lineno, body[0].end_lineno
    texts = source.split("\n")[first - 1 : last]
    return [Line(file, first + i, text.replace('"""', "   ").rstrip()) for i, text in enumerate(texts)]


def _headings(line: Line, starts: Sequence[int]) -> tuple[str, ...]:
    cells = _cells(line, starts)
    if len(cells) != len(HEADINGS) or any(c not in words for c, words in zip(cells, HEADINGS, strict=True)):
        raise line.error("the headings " + ", ".join(" or ".join(words) for words in HEADINGS))
    return tuple(cells)


def _rows(lines: Sequence[Line], starts: Sequence[int]) -> Iterator[Row]:
    row: Row | None = None
    for line in lines:
        if not line.text:
            break
        state, event, following, effect = _cells(line, starts)
        if row is not None and not state and not following:
            row = replace(row, event=f"{row.event} {event}".strip(), effect=f"{row.effect} {effect}".strip())
            continue
        if not (state and event and following):
            raise line.error("a state, an event and the next state")
        if row is not None:
            yield row
        row = Row(line.number, state, event, following, effect)
    if row is not None:
        yield row


def _cells(line: Line, starts: Sequence[int]) -> list[str]:
    """The line, cut where the columns begin."""
    for start in starts:
        before = line.text[:start] if start == starts[0] else line.text[start - 1 : start]
        if before.strip():
            raise line.error(f"a column to begin at character {start + 1}, where the dashes begin, and a space before")
    return [line.text[start:end].strip() for start, end in zip(starts, [*starts[1:], None], strict=True)]


def _starts(module: ast.Module, attribute: str) -> Iterator[tuple[str, str]]:
    """Pairs of an enum's name and the name of a state in it."""
    for function in ast.walk(module):
        if isinstance(function, ast.FunctionDef) and (
            function.name == "__init__" or "classmethod" in map(ast.unparse, function.decorator_list)
        ):
            assigned = [x for target, x in _assignments(function) if getattr(target, "attr", None) == attribute]
            passed = [x.value for x in ast.walk(function) if isinstance(x, ast.keyword) and x.arg == attribute]
            for value in (*assigned, *passed):
                yield from re.findall(rf"\b(\w*{attribute.capitalize()})\.(\w+)", ast.unparse(value))


def _assignments(function: ast.FunctionDef) -> Iterator[tuple[ast.expr, ast.expr]]:
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    yield from zip(target.elts, node.value.elts, strict=False)
                else:
                    yield target, node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            yield node.target, node.value


def wrong_states(table: Table, states: type[Enum]) -> list[str]:
    """Unknown states in a table, and states that it never names."""
    names = list(states.__members__)
    known = f"{table.enum_name} has {', '.join(names)}"
    wrong = []
    named: set[str] = set()
    for row in table.rows:
        of = [] if row.state in SEVERAL else re.split(", | … ", row.state)
        to = [] if row.next in (SAME, END) else row.next.split(", ")
        named.update(of, to)
        for tokens, forms in ((of, STATE_FORMS), (to, NEXT_FORMS)):
            wrong += [
                f"{table.file}:{row.line}: expected {forms}; got {token!r}, and {known}"
                for token in tokens
                if token not in names
            ]
        if "…" in row.state and [name for name in names if name in of] != of:
            where = f"{table.file}:{row.line}"
            wrong.append(f"{where}: expected `A … B` in the order of the states; got {row.state!r}, and {known}")
    missing = [name for name in names if name not in named]
    if missing:
        wrong.append(f"{table.file}: the transition table never names {', '.join(missing)}, and {known}")
    return wrong


def diagram(table: Table) -> str:
    """The table as a Mermaid diagram. States that a row does not list one by one are one dashed box."""
    arrows: dict[tuple[str, str], list[str]] = {}
    boxes: dict[str, str] = {}
    event = ""
    for row in table.rows:
        event = event if row.event.startswith("… ") else row.event
        sources = row.state.split(", ")
        if row.state in SEVERAL or "…" in row.state:
            sources = [re.sub(r"\W+", "_", row.state)]
            boxes[sources[0]] = row.state
        for source in sources:
            for target in _targets(row.next, source):
                arrows.setdefault((source, target), []).append(_label(row.event.replace("…", event, 1)))
    lines = ["stateDiagram-v2", *(f"    [*] --> {state}" for state in table.starts)]
    lines += [f'    state "{states}" as {box}' for box, states in boxes.items()]
    lines += [f"    {source} --> {target}: {'<br>or '.join(events)}" for (source, target), events in arrows.items()]
    if boxes:
        lines += ["    classDef several stroke-dasharray: 4", f"    class {','.join(boxes)} several"]
    return "\n".join(lines)


def _targets(following: str, source: str) -> list[str]:
    if following == SAME:
        return [source]
    return ["[*]"] if following == END else following.split(", ")


def _label(text: str) -> str:
    """These characters end a label in Mermaid, or have a meaning in it. Their numeric codes have none."""
    return re.sub(r'[:;#<>"]', lambda match: f"#{ord(match[0])};", text)
