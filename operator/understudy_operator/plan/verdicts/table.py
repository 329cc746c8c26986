"""The table of fault sources: the built-in rows, changed by the rows of the chart's values (faults.sources).

Rules: a row with the name of a built-in one replaces it completely; with `enabled: false` it removes it. A row that is
invalid or can never match is rejected with its number, field and fix, and the operator does not start: with a source
that is silently ignored, pods would save checkpoints on hardware that is known to be broken.
"""

import json
import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from understudy_operator.plan.times.durations import seconds
from understudy_operator.plan.verdicts.built_in import BUILT_IN
from understudy_operator.plan.verdicts.fault_sources import FaultSource, Polarity, SignalKind, plain
from understudy_operator.plan.verdicts.xids import FATAL
from understudy_protocol.enums import FaultClass

#: A row of the values outweighs all built-in ones except annotations.
PRECEDENCE = 50
_TIMED = (SignalKind.CONDITION, SignalKind.TAINT)
_KEY = re.compile(r"[-A-Za-z0-9._/*]+")
_STATUSES = ("True", "False", "Unknown")
Duration = Annotated[str, msgspec.Meta(pattern=r"^(?=.*[1-9])([0-9]+h)?([0-9]+m)?([0-9]+s)?$")]


class _Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    name: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
    signal: SignalKind | None = None
    keys: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    excepted: tuple[str, ...] = msgspec.field(default=(), name="exceptValues")
    polarity: Polarity = Polarity.FAULTY
    fault_class: FaultClass | None = msgspec.field(default=None, name="class")
    precedence: Annotated[int, msgspec.Meta(ge=0, le=1000)] = PRECEDENCE
    xids: Literal["Fatal"] | tuple[Annotated[int, msgspec.Meta(ge=1, le=999)], ...] = ()
    expires_after: Duration | None = None
    until: str = ""
    grace: Duration | None = None
    enabled: bool = True


_LIST = 'set it to a list of strings; quote numbers, "True" and "False"'
_DURATION = "set it to a duration such as 90s, 10m or 1h30m"
#: The fix for a field of another type.
_FIXES = {
    "name": "set it to at most 63 lower-case letters, digits and '-'",
    "signal": "set it to Condition, Label, Annotation, Taint or Cordon",
    "keys": _LIST,
    "values": _LIST,
    "exceptValues": _LIST,
    "polarity": "set it to Faulty or Healthy",
    "class": "set it to Hardware, Maintenance or Preemption",
    "precedence": "set it to a whole number from 0 to 1000: the highest precedence counts if sources disagree",
    "xids": "set it to Fatal, or to a list of Xid codes such as [79, 119]",
    "expiresAfter": _DURATION,
    "until": "set it to the key of an annotation of the node",
    "grace": _DURATION,
    "enabled": "set it to true or false",
}
#: The field in an error of msgspec.
_FIELD = re.compile(r"(?:field `|\$\.)(?P<field>\w+)")


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
    for number, raw in enumerate(rows):
        row = _read(number, raw)
        if row.name in seen:
            raise InvalidRow(
                number, "name", f"{row.name!r} is already the name of source {seen[row.name]}", "rename one of them"
            )
        seen[row.name] = number
        if row.enabled:
            table[row.name] = _source(number, row)
        elif row.name in table:
            del table[row.name]
        else:
            problem, fix = f"there is no built-in source {row.name!r} to remove", f"set it to one of {', '.join(table)}"
            raise InvalidRow(number, "name", problem, fix)
    return tuple(table.values())


def _read(number: int, raw: Any) -> _Row:
    if not isinstance(raw, dict):
        raise InvalidRow(number, "", f"is a {type(raw).__name__}", "set it to a source with name, signal and keys")
    try:
        return msgspec.convert(raw, _Row)
    except msgspec.ValidationError as error:
        found = _FIELD.search(str(error))
        field = "" if found is None else found["field"]
        if field not in _FIXES:
            fix = f"remove it, or use one of {', '.join(_FIXES)}"
            raise InvalidRow(number, field, "is unknown", fix) from None
        problem = f"is {raw[field]!r}" if field in raw else "is missing"
        raise InvalidRow(number, field, problem, _FIXES[field]) from None


def _source(number: int, row: _Row) -> FaultSource:
    """Checks the rules for several fields."""
    kind, vouches = row.signal, row.polarity is Polarity.HEALTHY
    if kind is None:
        raise InvalidRow(number, "signal", "is missing", _FIXES["signal"])
    if vouches and row.fault_class is not None:
        raise InvalidRow(number, "class", "a source with polarity Healthy has no class", "remove it")
    if not vouches and row.fault_class is None:
        raise InvalidRow(number, "class", "is missing", _FIXES["class"])
    if kind is SignalKind.CORDON:
        _check_cordon(number, row)
    else:
        _check_keys(number, row, kind)
    if row.expires_after is not None and kind not in _TIMED:
        problem = f"the node does not record how long a {kind.value.lower()} has existed"
        raise InvalidRow(number, "expiresAfter", problem, "remove it, or name an annotation with the time in until")
    return FaultSource(
        name=row.name,
        kind=kind,
        keys=row.keys,
        values=_values(number, row, kind),
        excepted=row.excepted,
        polarity=row.polarity,
        fault_class=row.fault_class or FaultClass.HARDWARE,
        precedence=row.precedence,
        xids=FATAL if isinstance(row.xids, str) else frozenset(row.xids),
        expires_after_s=None if row.expires_after is None else seconds(row.expires_after),
        until=row.until,
        grace_s=None if row.grace is None else seconds(row.grace),
    )


def _check_cordon(number: int, row: _Row) -> None:
    if row.keys or row.values or row.excepted:
        raise InvalidRow(number, "keys", "a cordon has neither keys nor values", "remove keys, values and exceptValues")
    if row.xids:
        raise InvalidRow(number, "xids", "a cordon has no Xid", "remove it")


def _check_keys(number: int, row: _Row, kind: SignalKind) -> None:
    fix = f"set it to a list of {kind.value.lower()} keys such as [example.com/bad]; * stands for any characters"
    if not row.keys or not all(key.strip("*") for key in row.keys):
        raise InvalidRow(number, "keys", "matches everything" if row.keys else "is missing", fix)
    for key in row.keys:
        if not _KEY.fullmatch(key):
            raise InvalidRow(number, "keys", f"{key!r} is not a valid key", fix)


def _values(number: int, row: _Row, kind: SignalKind) -> tuple[str, ...]:
    """The values that count."""
    values = row.values
    if kind is SignalKind.CONDITION:
        for field, listed in (("values", values), ("exceptValues", row.excepted)):
            for value in listed:
                if plain(value) not in map(plain, _STATUSES):
                    fix = f"use {', '.join(_STATUSES[:-1])} or {_STATUSES[-1]}"
                    raise InvalidRow(number, field, f"{value!r} is not a status of a condition", fix)
        values = values or ("True",)
    if values and {plain(value) for value in values} <= {plain(value) for value in row.excepted}:
        raise InvalidRow(number, "exceptValues", f"excludes all values ({', '.join(values)})", "remove one of them")
    return values
