"""Arbitrary JSON in place of the API server's objects: ordinary objects in which some fields are arbitrary."""

import copy
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

Raw = dict[str, Any]
Path = tuple[str | int, ...]
#: Values that have broken readers, or may break them.
ODD: list[Any] = [
    None,
    "",
    "eight",
    "-1",
    "1.5",
    "9" * 30,
    "9" * 5000,
    "²",
    "٣",
    "true",
    "a/b/c",
    "pods/9/9",
    "soon",
    "0001-01-01T00:00:00Z",
    "9999-12-31T23:59:59Z",
    "2036-11-20T10:00:00.000000Z",
    "0000-00-00T00:00:00Z",
    "2026-11-20T10:00:00",
    "[" * 3000,
    "{}",
    "bm90IGpzb24=",
    -1,
    2**31,
    2**63,
    10**400,
    -(10**400),
    1.5,
    1e300,
    -1e300,
    True,
    [],
    {},
    [None],
    [{}],
    [[]],
    {"": ""},
    {"type": "Ready"},
    {"name": "x"},
    {"metadata": {}},
]
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=12),
)
JSON = st.one_of(
    st.sampled_from(ODD),
    st.recursive(
        LEAVES,
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
        max_leaves=6,
    ),
)


def paths(raw: Any, at: Path = ()) -> Iterator[Path]:
    """The paths of all its fields."""
    entries: list[tuple[str | int, Any]] = []
    if isinstance(raw, dict):
        entries = list(raw.items())
    elif isinstance(raw, list):
        entries = list(enumerate(raw))
    for key, value in entries:
        yield (*at, key)
        yield from paths(value, (*at, key))


def changed(raw: Any, path: Path, value: Any, how: str) -> Any:
    """With this value at this path, without the field, or with the field's value twice if it is an item of a list."""
    made = copy.deepcopy(raw)
    holder = made
    for key in path[:-1]:
        try:
            holder = holder[key]
        except (KeyError, IndexError, TypeError):
            return made  # another change has removed it
    try:
        if how == "remove":
            del holder[path[-1]]
        elif how == "repeat" and isinstance(holder, list):
            holder.append(copy.deepcopy(holder[path[-1]]))  # type: ignore[index]
        else:
            holder[path[-1]] = value
    except (KeyError, IndexError, TypeError):
        return made
    return made


@st.composite
def spoiled(draw: st.DrawFn, ordinary: Any) -> Any:
    """One in ten is no such object at all; the others have up to three arbitrary fields."""
    if draw(st.integers(0, 9)) == 0:
        return draw(JSON)
    raw, fields = ordinary, list(paths(ordinary))
    for _ in range(draw(st.integers(1, 3))):
        how = draw(st.sampled_from(["replace", "replace", "replace", "remove", "repeat"]))
        raw = changed(raw, draw(st.sampled_from(fields)), draw(JSON), how)
    return raw
