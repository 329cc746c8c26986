"""The table of fault sources: the built-in rows, changed by the rows of the chart's values (faults.sources).

Rules: a row with the name of a built-in one replaces it completely; with `enabled: false` it removes it. A row that is
invalid or can never match is rejected with its number, field and fix, and the operator does not start: with a source
that is silently ignored, pods would save checkpoints on hardware that is known to be broken.
"""

import json
import re
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, TypeVar

from understudy_operator.plan.times.durations import seconds
from understudy_operator.plan.verdicts.built_in import BUILT_IN
from understudy_operator.plan.verdicts.sources import FaultSource, Polarity, SignalKind, plain
from understudy_operator.plan.verdicts.xids import FATAL
from understudy_protocol.enums import FaultClass

#: A row of the values outweighs all built-in ones except annotations.
PRECEDENCE = 50
PRECEDENCES = range(1001)
_FIELDS = (
    "name",
    "signal",
    "keys",
    "values",
    "exceptValues",
    "polarity",
    "class",
    "precedence",
    "xids",
    "expiresAfter",
    "until",
    "grace",
    "enabled",
)
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_DURATION = re.compile(r"(?=.*[1-9])([0-9]+h)?([0-9]+m)?([0-9]+s)?")
_TIMED = (SignalKind.CONDITION, SignalKind.TAINT)
_KEY = re.compile(r"[-A-Za-z0-9._/*]+")
_STATUSES = ("True", "False", "Unknown")
Row = Mapping[str, Any]
E = TypeVar("E", bound=Enum)


class InvalidRow(ValueError):
    """Names the wrong row and field of faults.sources, and the fix."""

    def __init__(self, number: int, field: str, problem: str, fix: str) -> None:
        where = f"faults.sources[{number}]" + (f".{field}" if field else "")
        super().__init__(f"{where}: {problem}; {fix}")


def table_of(text: str, built_in: Sequence[FaultSource] = BUILT_IN) -> tuple[FaultSource, ...]:
    """The whole table, for faults.sources as JSON; "" for no rows. Raises InvalidRow, or ValueError if the JSON is
    not a list.
    """
    try:
        rows = json.loads(text) if text.strip() else []
    except ValueError as error:
        raise ValueError(f"faults.sources is not JSON: {error}; set it to a list of sources") from error
    if not isinstance(rows, list):
        raise ValueError(f"faults.sources is a {type(rows).__name__}; set it to a list of sources")
    table = {source.name: source for source in built_in}
    seen: dict[str, int] = {}
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise InvalidRow(number, "", f"is a {type(row).__name__}", "set it to a source with name, signal and keys")
        name = _name(number, row)
        if name in seen:
            raise InvalidRow(
                number, "name", f"{name!r} is already the name of source {seen[name]}", "rename one of them"
            )
        seen[name] = number
        if _enabled(number, row, name, table):
            table[name] = _source(number, row, name)
        else:
            del table[name]
    return tuple(table.values())


def _enabled(number: int, row: Row, name: str, table: Mapping[str, FaultSource]) -> bool:
    enabled = row.get("enabled", True)
    if not isinstance(enabled, bool):
        raise InvalidRow(number, "enabled", f"is {enabled!r}", "set it to true or false")
    if not enabled and name not in table:
        names = ", ".join(table)
        raise InvalidRow(number, "name", f"there is no built-in source {name!r} to remove", f"set it to one of {names}")
    return enabled


def _source(number: int, row: Row, name: str) -> FaultSource:
    for field in row:
        if field not in _FIELDS:
            raise InvalidRow(number, str(field), "is unknown", f"remove it, or use one of {', '.join(_FIELDS)}")
    kind = _one_of(number, row, "signal", SignalKind)
    polarity = _one_of(number, row, "polarity", Polarity, Polarity.FAULTY)
    vouches = polarity is Polarity.HEALTHY
    if vouches and "class" in row:
        raise InvalidRow(number, "class", "a source with polarity Healthy has no class", "remove it")
    default = FaultClass.HARDWARE if vouches else None
    keys = _keys(number, row, kind)
    values, excepted = _values(number, row, kind)
    return FaultSource(
        name=name,
        kind=kind,
        keys=keys,
        values=values,
        excepted=excepted,
        polarity=polarity,
        fault_class=_one_of(number, row, "class", FaultClass, default),
        precedence=_precedence(number, row),
        xids=_xids(number, row, kind),
        expires_after_s=_expires_after_s(number, row, kind),
        until=_text(number, row, "until"),
        grace_s=_duration(number, row, "grace"),
    )


def _name(number: int, row: Row) -> str:
    name = row.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        fix = "set it to at most 63 lower-case letters, digits and '-'"
        raise InvalidRow(number, "name", f"is {name!r}" if "name" in row else "is missing", fix)
    return name


def _one_of(number: int, row: Row, field: str, of: type[E], default: E | None = None) -> E:
    if field not in row and default is not None:
        return default
    words = [str(entry.value) for entry in of]
    value = row.get(field)
    if value not in words:
        problem = f"is {value!r}" if field in row else "is missing"
        raise InvalidRow(number, field, problem, f"set it to {', '.join(words[:-1])} or {words[-1]}")
    return of(value)


def _keys(number: int, row: Row, kind: SignalKind) -> tuple[str, ...]:
    keys = _texts(number, row, "keys")
    if kind is SignalKind.CORDON:
        if keys or "values" in row or "exceptValues" in row:
            raise InvalidRow(
                number, "keys", "a cordon has neither keys nor values", "remove keys, values and exceptValues"
            )
        return ()
    fix = f"set it to a list of {kind.value.lower()} keys such as [example.com/bad]; * stands for any characters"
    if not keys or not all(key.strip("*") for key in keys):
        raise InvalidRow(number, "keys", "is missing or matches everything" if "keys" in row else "is missing", fix)
    for key in keys:
        if not _KEY.fullmatch(key):
            raise InvalidRow(number, "keys", f"{key!r} is not a valid key", fix)
    return keys


def _values(number: int, row: Row, kind: SignalKind) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The values that count, and the excepted ones."""
    values, excepted = _texts(number, row, "values"), _texts(number, row, "exceptValues")
    if kind is SignalKind.CONDITION:
        for field, listed in (("values", values), ("exceptValues", excepted)):
            for value in listed:
                if plain(value) not in map(plain, _STATUSES):
                    fix = f"use {', '.join(_STATUSES[:-1])} or {_STATUSES[-1]}"
                    raise InvalidRow(number, field, f"{value!r} is not a status of a condition", fix)
        values = values or ("True",)
    if values and {plain(value) for value in values} <= {plain(value) for value in excepted}:
        raise InvalidRow(number, "exceptValues", f"excludes all values ({', '.join(values)})", "remove one of them")
    return values, excepted


def _texts(number: int, row: Row, field: str) -> tuple[str, ...]:
    value = row.get(field, [])
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise InvalidRow(
            number, field, f"is {value!r}", 'set it to a list of strings; quote numbers, "True" and "False"'
        )
    return tuple(value)


def _text(number: int, row: Row, field: str) -> str:
    value = row.get(field, "")
    if not isinstance(value, str):
        raise InvalidRow(number, field, f"is {value!r}", "set it to the key of an annotation of the node")
    return value


def _precedence(number: int, row: Row) -> int:
    value = row.get("precedence", PRECEDENCE)
    if not isinstance(value, int) or isinstance(value, bool) or value not in PRECEDENCES:
        fix = f"set it to a whole number from 0 to {PRECEDENCES[-1]}: the highest precedence counts if sources disagree"
        raise InvalidRow(number, "precedence", f"is {value!r}", fix)
    return value


def _xids(number: int, row: Row, kind: SignalKind) -> frozenset[int]:
    value = row.get("xids", [])
    if kind is SignalKind.CORDON and value:
        raise InvalidRow(number, "xids", "a cordon has no Xid", "remove it")
    if value == "Fatal":
        return FATAL
    if not isinstance(value, list) or not all(type(code) is int and 0 < code < 1000 for code in value):
        raise InvalidRow(
            number, "xids", f"is {value!r}", "set it to Fatal, or to a list of Xid codes such as [79, 119]"
        )
    return frozenset(value)


def _expires_after_s(number: int, row: Row, kind: SignalKind) -> float | None:
    value = _duration(number, row, "expiresAfter")
    if value is not None and kind not in _TIMED:
        problem = f"the node does not record how long a {kind.value.lower()} has existed"
        raise InvalidRow(number, "expiresAfter", problem, "remove it, or name an annotation with the time in until")
    return value


def _duration(number: int, row: Row, field: str) -> float | None:
    if field not in row:
        return None
    value = row[field]
    if not isinstance(value, str) or not _DURATION.fullmatch(value):
        raise InvalidRow(number, field, f"is {value!r}", "set it to a duration such as 90s, 10m or 1h30m")
    return seconds(value)
