"""JSON text <-> frozen dataclasses.

Rules: every message carries `v` (the protocol's version) and `type` (the class's name). An unknown field is ignored
and an unknown type decodes to `Unknown`, which the receiver logs and drops, so that old and new sidecars mix during a
rolling upgrade. A known field of a wrong type is an error that names it: nothing is guessed.
"""

import dataclasses
import json
import typing
from collections.abc import Mapping
from enum import Enum
from typing import Any, Union

VERSION = 2


class WireError(ValueError):
    """A frame that is no message: what was seen, and what was expected."""


@dataclasses.dataclass(frozen=True)
class Unknown:
    """A message of a type that this version does not know."""

    type: str


def encode(message: Any) -> str:
    """One message as a line of JSON (no newline inside)."""
    body = _plain(message)
    return json.dumps({"v": VERSION, "type": type(message).__name__, **body}, separators=(",", ":"))


def decode(text: Union[str, bytes], known: Mapping[str, type[Any]]) -> Any:
    """The message in `text`, one of the classes in `known` (by name), or `Unknown`.

    Raises WireError where the text is no JSON object, has no type, or a field is missing or of a wrong type.
    """
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WireError(f"not JSON ({error}): {text[:80]!r}") from error
    if not isinstance(body, dict) or not isinstance(body.get("type"), str):
        raise WireError(f"expected a JSON object with a `type`, got {text[:80]!r}")
    cls = known.get(body["type"])
    if cls is None:
        return Unknown(body["type"])
    return from_plain(cls, body)


def from_plain(cls: type[Any], body: Mapping[str, Any], where: str = "") -> Any:
    """A `cls` out of a JSON object; fields that it does not have are ignored. Raises WireError."""
    where = where or cls.__name__
    values: dict[str, Any] = {}
    for field, hint in _fields(cls):
        if field.name in body:
            values[field.name] = _value(hint, body[field.name], f"{where}.{field.name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise WireError(f"{where}.{field.name} is missing")
    return cls(**values)


def message_types(module: Any) -> dict[str, type[Any]]:
    """The dataclasses defined in a module, by name: what `decode` takes as `known`."""
    return {
        name: value
        for name, value in vars(module).items()
        if dataclasses.is_dataclass(value) and isinstance(value, type) and value.__module__ == module.__name__
    }


_FIELDS: dict[type[Any], list[tuple[Any, Any]]] = {}


def _fields(cls: type[Any]) -> list[tuple[Any, Any]]:
    if cls not in _FIELDS:
        hints = typing.get_type_hints(cls)
        _FIELDS[cls] = [(field, hints[field.name]) for field in dataclasses.fields(cls)]
    return _FIELDS[cls]


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _value(hint: Any, value: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Union:  # Optional[T]
        return None if value is None else _value(arguments[0], value, where)
    if origin is tuple:
        if not isinstance(value, list):
            raise WireError(f"{where}: expected a list, got {value!r}")
        return tuple(_value(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is dict:
        if not isinstance(value, dict):
            raise WireError(f"{where}: expected an object, got {value!r}")
        return {str(key): _value(arguments[1], item, f"{where}[{key}]") for key, item in value.items()}
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, dict):
            raise WireError(f"{where}: expected an object, got {value!r}")
        return from_plain(typing.cast(type[Any], hint), value, where)
    return _scalar(hint, value, where)


def _scalar(hint: Any, value: Any, where: str) -> Any:
    if isinstance(hint, type) and issubclass(hint, Enum):
        try:
            return hint(value)
        except ValueError:
            raise WireError(f"{where}: expected one of {[item.value for item in hint]}, got {value!r}") from None
    if hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value
    raise WireError(f"{where}: expected {hint.__name__}, got {value!r}")
