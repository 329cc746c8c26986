"""The messages of understudy_protocol as Markdown, and the check that each message has one direction.

Each module lists its messages by receiver in tuples (TO_COORDINATOR, TO_MEMBER, …). Each class has a docstring with the
occasion on which it is sent. A message is in exactly one tuple of its module. A class in no tuple must be part of a
message.
"""

import dataclasses
import sys
import typing
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from types import ModuleType
from typing import Any

from understudy_protocol import adoption, handshake, launcher, membership, observer, wire

#: Pairs of the tuple's name and a class in it.
Directions = Sequence[tuple[str, type[Any]]]
HANDSHAKE: Directions = (("TO_SIDECAR", handshake.Hello), ("TO_CALLER", handshake.Answer))
SCALARS = {str: "string", int: "int", float: "number", bool: "bool"}


class MessageError(Exception):
    """A message that cannot be described: where, the expected value, and the actual one."""


def all_directions() -> dict[ModuleType, Directions]:
    """Every message, by module. The handshake has no tuples: its messages have one order."""
    return {
        handshake: HANDSHAKE,
        **{module: directions(module) for module in (membership, observer, adoption, launcher)},
    }


def directions(module: ModuleType) -> Directions:
    tuples = {name: value for name, value in vars(module).items() if name.startswith("TO_")}
    if not tuples:
        raise MessageError(f"{_file(module)}: expected tuples TO_… with the messages of each receiver; got none")
    return [(name, cls) for name, classes in tuples.items() for cls in classes]


def wrong_directions(modules: Mapping[ModuleType, Directions]) -> list[str]:
    """Messages in no tuple that are part of no message, in several tuples, or in a tuple of another module."""
    kept = parts(modules)
    wrong = []
    for module, directed in modules.items():
        defined = wire.message_types(module)
        wrong += [
            f"{_file(module)}: {direction} has {cls.__name__}, which is not defined here: no program would decode it"
            for direction, cls in directed
            if defined.get(cls.__name__) is not cls
        ]
        for name, cls in defined.items():
            found = [direction for direction, each in directed if each is cls]
            if len(found) > 1 or (not found and cls not in kept):
                where = " and ".join(found) or "none, and is part of no message"
                wrong.append(f"{_file(module)}: expected {name} in one tuple TO_…; it is in {where}")
    return wrong


def parts(modules: Mapping[ModuleType, Directions]) -> list[type[Any]]:
    """The parts of messages that are not messages: dataclasses and enums, and their own parts in turn; by name."""
    messages = {cls for directed in modules.values() for _, cls in directed}
    found: set[type[Any]] = set()
    waiting = [hint for cls in messages for hint in typing.get_type_hints(cls).values()]
    while waiting:
        hint = waiting.pop()
        waiting += typing.get_args(hint)
        if hint in found or not isinstance(hint, type):
            continue
        if dataclasses.is_dataclass(hint):
            waiting += typing.get_type_hints(hint).values()
        if dataclasses.is_dataclass(hint) or issubclass(hint, Enum):
            found.add(hint)
    return sorted(found - messages, key=lambda cls: cls.__name__)


def message_table(directed: Directions) -> str:
    rows = [
        (f"`{cls.__name__}`", direction.lower().replace("to_", "to the "), fields(cls), sentence(cls))
        for direction, cls in directed
    ]
    return markdown(("message", "direction", "fields", "when"), rows)


def parts_table(classes: Iterable[type[Any]]) -> str:
    rows = [(f"`{cls.__name__}`", fields(cls), sentence(cls)) for cls in classes]
    return markdown(("name", "fields or values", "what it is"), rows)


def fields(cls: type[Any]) -> str:
    if issubclass(cls, Enum):
        return ", ".join(f'`"{item.value}"`' for item in cls)
    hints = typing.get_type_hints(cls)
    cells = [
        f"`{field.name}{'?' if _may_be_missing(field) else ''}: {type_name(hints[field.name])}`"
        for field in dataclasses.fields(cls)
    ]
    return ", ".join(cells) or "none"


def _may_be_missing(field: "dataclasses.Field[Any]") -> bool:
    return field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING


def type_name(hint: Any) -> str:
    """A field's JSON type."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Union and arguments[1:] == (type(None),):
        return f"{type_name(arguments[0])} or null"
    if origin is tuple and arguments[1:] == (...,):
        return f"[{type_name(arguments[0])}]"
    if origin is dict:
        return f"{{{type_name(arguments[0])}: {type_name(arguments[1])}}}"
    if hint in SCALARS:
        return SCALARS[hint]
    if isinstance(hint, type) and (dataclasses.is_dataclass(hint) or issubclass(hint, Enum)):
        return hint.__name__
    raise MessageError(f"expected a type that understudy_protocol.wire reads; got {hint}")


def sentence(cls: type[Any]) -> str:
    """The first paragraph of a class's docstring."""
    text = cls.__doc__ or ""
    if not text or text.startswith(f"{cls.__name__}("):  # a dataclass without a docstring gets its signature
        where = f"{_file(sys.modules[cls.__module__])}: {cls.__name__}"
        raise MessageError(f"{where}: expected a docstring that says in one sentence when it is sent; got none")
    return " ".join(text.split("\n\n")[0].split())


def markdown(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join((_row(headings), "|" + "---|" * len(headings), *map(_row, rows)))


def _row(cells: Iterable[str]) -> str:
    escaped = (cell.replace("|", r"\|") for cell in cells)
    return "|" + "".join(f" {cell} |" if cell else " |" for cell in escaped)


def _file(module: ModuleType) -> str:
    return "/".join(("sidecar", *module.__name__.split("."))) + ".py"
