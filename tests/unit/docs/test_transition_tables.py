"""A transition table is read completely or refused, agrees with the enum of its states, and is drawn unchanged."""

from __future__ import annotations

from enum import Enum

import pytest

from scripts.transition_tables import Table, TableError, diagram, read_table, wrong_states


class Door(Enum):
    """The states of the tables below."""

    OPEN = "open"
    SHUT = "shut"
    LOCKED = "locked"


CODE = """

class Machine:
    def __init__(self) -> None:
        self.state = State.OPEN

    def shut(self) -> None:
        self.state = State.SHUT
"""
DOOR = (
    '''"""A door.

    state        event             next    what it does
    -----------  ----------------  ------  --------------------
    OPEN         pushed            SHUT    falls into the latch
    OPEN, SHUT   kicked            OPEN
    SHUT         the key is turned LOCKED  Click
    OPEN … SHUT  nobody comes for  SHUT    a guard pulls it to,
                 an hour                   and goes home
    any          burnt: by fire    -       Ash

Rules: none.
"""
'''
    + CODE
)


OTHERS = (
    '''"""A door.

    state         event            next      what it does
    ------------  ---------------  --------  --------------
    OPEN          pushed           SHUT
    other states  pushed           as it is  creaks
    SHUT          a key is turned  LOCKED
    SHUT          … twice          -         the key breaks
"""
'''
    + CODE
)


def module(*rows: str, headings: str = "state   event   next    what it does", dashes: str = "") -> str:
    lines = [headings, dashes or "------  ------  ------  ------------", *rows]
    return '"""A door.\n\n' + "\n".join(f"    {line}" for line in lines) + f'\n"""\n{CODE}'


def table_of(source: str) -> Table:
    table = read_table(source, "door.py")
    assert table is not None
    return table


def test_each_row_is_cut_where_the_dashes_state() -> None:
    # given a table with cells that fill their column, are empty, and continue in the next line
    # when it is read
    table = table_of(DOOR)
    # then every cell is found, with the line on which its row begins
    assert table.title == "A door."
    assert table.headings == ("state", "event", "next", "what it does")
    assert [(row.line, row.state, row.event, row.next, row.effect) for row in table.rows] == [
        (5, "OPEN", "pushed", "SHUT", "falls into the latch"),
        (6, "OPEN, SHUT", "kicked", "OPEN", ""),
        (7, "SHUT", "the key is turned", "LOCKED", "Click"),
        (8, "OPEN … SHUT", "nobody comes for an hour", "SHUT", "a guard pulls it to, and goes home"),
        (10, "any", "burnt: by fire", "-", "Ash"),
    ]


def test_the_constructors_name_the_enum() -> None:
    assert table_of(DOOR).enum_name == "State"
    assert table_of(DOOR.replace("State.", "DoorState.")).enum_name == "DoorState"
    phases = module("OPEN    pushed  SHUT    falls", headings="phase   event   next    effects")
    assert table_of(phases.replace("self.state = State", "self.phase = DoorPhase")).enum_name == "DoorPhase"


def test_a_machine_begins_in_the_state_of_its_constructor() -> None:
    # given a machine whose constructor sets one of two states, and another field
    made = """
class Machine:
    @classmethod
    def found(cls, ajar: bool) -> None:
        machine = cls()
        machine.state, machine.bell = State.OPEN if ajar else State.SHUT, State.LOCKED
"""
    # then exactly these two states are initial
    table = table_of(DOOR.replace(CODE, made))
    assert table.starts == ("OPEN", "SHUT")
    assert diagram(table).splitlines()[1:3] == ["    [*] --> OPEN", "    [*] --> SHUT"]
    # and an annotated assignment counts too
    assert table_of(DOOR.replace("self.state = State.OPEN", "self.state: State = State.LOCKED")).starts == ("LOCKED",)
    # and so does an argument of that name
    assert table_of(DOOR.replace("self.state = State.OPEN", "self.of = Of(state=State.SHUT)")).starts == ("SHUT",)


@pytest.mark.parametrize(
    "source",
    ["", "x = 1\n", '"""A door.\n\nRules: it may be open, or shut -- one of both.\n"""\n', "# state   event   next\n"],
    ids=["empty", "no docstring", "no table", "a comment"],
)
def test_a_module_without_a_table_has_none(source: str) -> None:
    assert read_table(source, "door.py") is None


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        pytest.param(
            module("OPEN    pushed  SHUT    falls", headings="state   event   then    what it does"),
            "door.py:3: expected the headings state or phase, event, next, what it does or effects; got 'state   event",
            id="another heading",
        ),
        pytest.param(
            module("OPEN    pushed  SHUT", headings="state   event   next", dashes="------  ------  ------"),
            "door.py:3: expected the headings",
            id="a column is missing",
        ),
        pytest.param(
            module("OPEN    pushed  SHUT    falls", dashes="======  ======  ======"),
            "door.py:3: expected a line of dashes below the headings",
            id="no dashes",
        ),
        pytest.param(
            module("OPEN    pushed  SHUT    falls", "SHUT in         OPEN    swings"),
            "door.py:6: expected a state, an event and the next state; got 'SHUT in ",
            id="an event in the column of states",
        ),
        pytest.param(
            module("OPEN   pushed   SHUT    falls"),
            "door.py:5: expected a column to begin at character 13",
            id="a cell begins too early",
        ),
        pytest.param(
            module("OPEN    pushed by somebody  SHUT    falls"),
            "door.py:5: expected a column to begin at character 21",
            id="a cell is too long",
        ),
        pytest.param(
            module("OPEN    pushed  SHUT    falls").replace("    OPEN", "so  OPEN"),
            "door.py:5: expected a column to begin at character 5",
            id="something before the first column",
        ),
        pytest.param(
            module("OPEN    pushed"),
            "door.py:5: expected a state, an event and the next state; got 'OPEN    pushed'",
            id="nothing comes next",
        ),
        pytest.param(
            module("        pushed  SHUT    falls"),
            "door.py:5: expected a state, an event and the next state",
            id="no state",
        ),
        pytest.param(
            DOOR.replace(CODE, ""), "door.py:4: expected a constructor to assign the first .state", id="no beginning"
        ),
        pytest.param(
            DOOR.replace("State.OPEN", "DoorState.OPEN if ajar else LockState.SHUT"),
            "door.py:4: expected one enum in the constructors, besides the table, and not DoorState and LockState",
            id="two enums",
        ),
        pytest.param(module(), "door.py:4: expected rows below it", id="no rows"),
        pytest.param(
            module(
                "OPEN    pushed  SHUT    falls", "", "state   event   next    what it does", "-----   -----   -----"
            ),
            "door.py:8: expected one table",
            id="a second table",
        ),
    ],
)
def test_a_table_that_cannot_be_read_is_refused_with_its_line(source: str, expected: str) -> None:
    with pytest.raises(TableError) as error:
        read_table(source, "door.py")
    assert str(error.value).startswith(expected)


def test_a_table_that_names_exactly_the_states_passes() -> None:
    assert wrong_states(table_of(DOOR), Door) == []


@pytest.mark.parametrize(
    ("row", "wrong"),
    [
        (
            "AJAR    pushed  SHUT    falls",
            "door.py:7: expected a state, `A, B`, `A … B`, `any` or `other states`; got 'AJAR'",
        ),
        (
            "SHUT    pulled  AJAR    swings",
            "door.py:7: expected a state, `A, B`, `as it is` or `-`; got 'AJAR'",
        ),
        (
            "SHUT    pulled  any     swings",
            "door.py:7: expected a state, `A, B`, `as it is` or `-`; got 'any'",
        ),
    ],
)
def test_an_unknown_state_is_named(row: str, wrong: str) -> None:
    # given a table that names all states, and one more
    table = table_of(module("OPEN    pushed  SHUT    falls", "SHUT    locked  LOCKED  clicks", row))
    # then the error names the row and the valid states
    assert wrong_states(table, Door) == [f"{wrong}, and State has OPEN, SHUT, LOCKED"]


def test_a_range_against_the_order_of_the_states_is_refused() -> None:
    table = table_of(DOOR.replace("OPEN … SHUT", "SHUT … OPEN"))
    assert wrong_states(table, Door) == [
        "door.py:8: expected `A … B` in the order of the states; got 'SHUT … OPEN', and State has OPEN, SHUT, LOCKED"
    ]


def test_a_missing_state_is_named() -> None:
    # given a table whose `any` would cover a state that no row names
    table = table_of(module("OPEN    pushed  SHUT    falls", "any     burnt   -       ash"))
    # then the error names it
    assert wrong_states(table, Door) == [
        "door.py: the transition table never names LOCKED, and State has OPEN, SHUT, LOCKED"
    ]


def test_the_diagram_has_an_arrow_for_each_row() -> None:
    # several states at once are one dashed box; a colon would end a label
    assert diagram(table_of(DOOR)).splitlines() == [
        "stateDiagram-v2",
        "    [*] --> OPEN",
        '    state "OPEN … SHUT" as OPEN_SHUT',
        '    state "any" as any',
        "    OPEN --> SHUT: pushed",
        "    OPEN --> OPEN: kicked",
        "    SHUT --> OPEN: kicked",
        "    SHUT --> LOCKED: the key is turned",
        "    OPEN_SHUT --> SHUT: nobody comes for an hour",
        "    any --> [*]: burnt#58; by fire",
        "    classDef several stroke-dasharray: 4",
        "    class OPEN_SHUT,any several",
    ]


def test_a_row_may_be_about_the_other_states_without_a_transition() -> None:
    # given a row of all the states that have no row with its event
    table = table_of(OTHERS)
    # then it passes, and is drawn as a box that leads to itself
    assert wrong_states(table, Door) == []
    assert "    other_states --> other_states: pushed" in diagram(table).splitlines()


def test_an_event_that_continues_the_one_above_is_drawn_complete() -> None:
    drawn = diagram(table_of(OTHERS)).splitlines()
    assert "    SHUT --> LOCKED: a key is turned" in drawn
    assert "    SHUT --> [*]: a key is turned twice" in drawn


def test_events_between_the_same_states_share_an_arrow() -> None:
    table = table_of(
        module("OPEN    pushed  SHUT    falls", "OPEN    pulled  SHUT    falls", "SHUT    locked  -       clicks")
    )
    assert "    OPEN --> SHUT: pushed<br>or pulled" in diagram(table).splitlines()
    assert "class" not in diagram(table)
