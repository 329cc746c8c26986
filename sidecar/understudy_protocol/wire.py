"""JSON text <-> frozen dataclasses.

Rules: every message carries `v` (the protocol's version) and `type` (the class's name). An unknown field is ignored
and an unknown type decodes to `Unknown`, which the receiver logs and drops, so that old and new sidecars mix during a
rolling upgrade. A known field of a wrong type is an error that names the field: `decode` does not guess. Its
result is safe to use: all numbers are finite and have at most 64 bits, and all texts can be encoded.

A coordinator of ten thousand members spends much of its time here, so each class's fields are looked up once: its
writer and its reader are created on first use, and kept.
"""

import dataclasses
import json
import math
import typing
from collections.abc import Mapping
from enum import Enum
from json.encoder import encode_basestring_ascii
from typing import Any, Callable, Union

VERSION = 2


class WireError(ValueError):
    """A frame that is no message. The text has the observed and the expected value."""


@dataclasses.dataclass(frozen=True)
class Unknown:
    """A message of a type that this version does not know."""

    type: str


def encode(message: Any) -> str:
    """One message as a line of JSON (no newline inside)."""
    cls = type(message)
    fields = _WRITERS[cls](message)[1:-1]
    return f'{{"v":{VERSION},"type":"{cls.__name__}"{"," if fields else ""}{fields}}}'


def decode(text: Union[str, bytes], known: Mapping[str, type[Any]]) -> Any:
    """The message in `text`, one of the classes in `known` (by name), or `Unknown`.

    Raises WireError if the text is no JSON object, has no type, or a field is missing or of a wrong type.
    """
    body = _parse(text)
    if not isinstance(body, dict) or not isinstance(body.get("type"), str):
        raise WireError(f"expected a JSON object with a `type`, got {text[:80]!r}")
    cls = known.get(body["type"])
    if cls is None:
        return Unknown(body["type"])
    return from_plain(cls, body)


def from_plain(cls: type[Any], body: Mapping[str, Any], where: str = "") -> Any:
    """A `cls` from a JSON object; ignores unknown fields. Raises WireError."""
    try:
        return _READERS[cls](body)
    except _Mismatch as wrong:
        path = "".join(reversed(wrong.path))
        raise WireError(f"{where or cls.__name__}{path}{wrong}") from None


def message_types(module: Any) -> dict[str, type[Any]]:
    """The dataclasses defined in a module, by name: an argument `known` of `decode`."""
    return {
        name: value
        for name, value in vars(module).items()
        if dataclasses.is_dataclass(value) and isinstance(value, type) and value.__module__ == module.__name__
    }


# Text to JSON -----------------------------------------------------------------------------------------------------


def _reject_number(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


_JSON = json.JSONDecoder(parse_constant=_reject_number)


def _parse(text: Union[str, bytes]) -> Any:
    try:
        body = _JSON.decode(text if isinstance(text, str) else text.decode())
        if "\\u" in text if isinstance(text, str) else b"\\u" in text:
            # JSON can contain half of a surrogate pair, which UTF-8 cannot encode.
            json.dumps(body, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise WireError(f"not JSON ({error}): {text[:80]!r}") from error
    return body


# Values to text ---------------------------------------------------------------------------------------------------

_Writer = Callable[[Any], str]


def _write_float(value: float) -> str:
    if not math.isfinite(value):
        raise ValueError(f"{value} cannot be sent: JSON has only finite numbers")
    return repr(value)


def _write_list(values: Any) -> str:
    return f"[{','.join([_WRITERS[type(value)](value) for value in values])}]"


def _write_dict(values: Mapping[str, Any]) -> str:
    pairs = [f"{encode_basestring_ascii(key)}:{_WRITERS[type(value)](value)}" for key, value in values.items()]
    return f"{{{','.join(pairs)}}}"


def _enum_writer(cls: type[Enum]) -> _Writer:
    texts = {item: json.dumps(item.value) for item in cls}
    return texts.__getitem__


def _object_writer(cls: type[Any]) -> _Writer:
    names = [(field.name, f'"{field.name}":') for field in dataclasses.fields(cls)]

    def write(value: Any) -> str:
        parts = []
        for name, key in names:
            item = getattr(value, name)
            parts.append(key + _WRITERS[type(item)](item))
        return f"{{{','.join(parts)}}}"

    return write


class _Writers(dict[type[Any], _Writer]):
    """By the class of a value; the writers of messages and enums are created on first use."""

    def __missing__(self, cls: type[Any]) -> _Writer:
        if issubclass(cls, Enum):
            self[cls] = _enum_writer(cls)
        elif dataclasses.is_dataclass(cls):
            self[cls] = _object_writer(cls)
        else:
            raise TypeError(f"{cls.__name__} is not a type for a message's field")
        return self[cls]


_WRITERS = _Writers(
    {
        int: int.__repr__,
        str: encode_basestring_ascii,
        float: _write_float,
        bool: lambda value: "true" if value else "false",
        type(None): lambda _: "null",
        tuple: _write_list,
        list: _write_list,
        dict: _write_dict,
    }
)


# JSON to values ---------------------------------------------------------------------------------------------------

_Reader = Callable[[Any], Any]
_INT_LIMIT = 1 << 63


class _Mismatch(Exception):
    """The text has the expected and the observed value. path: the field, the innermost part first."""

    def __init__(self, text: str, *path: str) -> None:
        super().__init__(text)
        self.path = list(path)


def _expected(what: str, value: Any) -> _Mismatch:
    seen = "an object" if isinstance(value, dict) else "a list" if isinstance(value, list) else repr(value)[:80]
    return _Mismatch(f": expected {what}, got {seen}")


def _read_str(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise _expected("str", value)


def _read_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise _expected("bool", value)


def _read_int(value: Any) -> int:
    if type(value) is int and -_INT_LIMIT <= value < _INT_LIMIT:
        return value
    raise _expected("int of at most 64 bits", value)


def _read_float(value: Any) -> float:
    if type(value) is float and math.isfinite(value):
        return value
    if type(value) is int and -_INT_LIMIT <= value < _INT_LIMIT:
        return float(value)
    raise _expected("float (finite)", value)


def _enum_reader(cls: type[Enum]) -> _Reader:
    items = {item.value: item for item in cls}

    def read(value: Any) -> Enum:
        if isinstance(value, str) and value in items:
            return items[value]
        raise _expected(f"one of {list(items)}", value)

    return read


def _optional_reader(read_one: _Reader) -> _Reader:
    return lambda value: None if value is None else read_one(value)


def _tuple_reader(read_one: _Reader) -> _Reader:
    def read(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise _expected("a list", value)
        made: list[Any] = []
        try:
            for item in value:
                made.append(read_one(item))
        except _Mismatch as wrong:
            wrong.path.append(f"[{len(made)}]")
            raise
        return tuple(made)

    return read


def _dict_reader(read_one: _Reader) -> _Reader:
    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _expected("an object", value)
        made = {}
        for key, item in value.items():
            try:
                made[key] = read_one(item)
            except _Mismatch as wrong:
                wrong.path.append(f"[{key[:80]}]")
                raise
        return made

    return read


def _object_reader(cls: type[Any]) -> _Reader:
    hints = typing.get_type_hints(cls)
    fields = [
        (
            field.name,
            _READERS[hints[field.name]],
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING,
        )
        for field in dataclasses.fields(cls)
    ]

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _expected("an object", value)
        made = {}
        for name, read_one, needed in fields:
            if name in value:
                try:
                    made[name] = read_one(value[name])
                except _Mismatch as wrong:
                    wrong.path.append(f".{name}")
                    raise
            elif needed:
                raise _Mismatch(" is missing", f".{name}")
        return cls(**made)

    return read


class _Readers(dict[Any, _Reader]):
    """By the declared type of a field."""

    def __missing__(self, hint: Any) -> _Reader:
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin is Union:  # Optional[T]
            made = _optional_reader(self[arguments[0]])
        elif origin is tuple:
            made = _tuple_reader(self[arguments[0]])
        elif origin is dict:
            made = _dict_reader(self[arguments[1]])
        elif dataclasses.is_dataclass(hint):
            made = _object_reader(typing.cast("type[Any]", hint))
        else:
            made = _enum_reader(hint)
        self[hint] = made
        return made


_READERS = _Readers({str: _read_str, bool: _read_bool, int: _read_int, float: _read_float})
