"""The same as wire.py, compiled: for the processes that read and write messages by the ten thousand.

msgspec reads what is as it should be, in a sixth of the time. Whatever it refuses goes to wire.py, which says what is
wrong, or knows better: so there is one rule for what a message is, and it is wire.py's. The launcher, which runs under
the user's own interpreter, has no msgspec.
"""

import re
from collections.abc import Mapping
from typing import Any, Union

import msgspec

from understudy_protocol import wire


class _Head(msgspec.Struct):
    type: str


class _Decoders(dict[type[Any], "msgspec.json.Decoder[Any]"]):
    """By the class of a message; made when it is first asked for."""

    def __missing__(self, cls: type[Any]) -> "msgspec.json.Decoder[Any]":
        self[cls] = msgspec.json.Decoder(cls)
        return self[cls]


class _Prefixes(dict[type[Any], bytes]):
    """How a message of a class begins."""

    def __missing__(self, cls: type[Any]) -> bytes:
        self[cls] = f'{{"v":{wire.VERSION},"type":"{cls.__name__}",'.encode()
        return self[cls]


_HEAD = msgspec.json.Decoder(_Head)
_DECODERS = _Decoders()
_PREFIXES = _Prefixes()
_ENCODER = msgspec.json.Encoder()
_ODD = (msgspec.MsgspecError, KeyError, ValueError, RecursionError)
#: msgspec reads integers of any size; wire.py refuses those of more than 64 bits.
_LONG_NUMBER = re.compile(rb"(?<![.0-9])[0-9]{19}")
#: Linear: no repetition gives back what it has matched. A string without an end is matched to the end of the message,
#: so that no search begins again inside of it.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)


def encode(message: Any) -> bytes:
    """One message as a line of JSON in UTF-8. Its numbers have to be finite: others become null, which no one reads."""
    body = _ENCODER.encode(message)
    prefix = _PREFIXES[type(message)]
    return prefix + body[1:] if len(body) > len(b"{}") else prefix[:-1] + b"}"


def decode(text: Union[str, bytes], known: Mapping[str, type[Any]]) -> Any:
    """As wire.decode, its errors too."""
    data = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    try:
        cls = known[_HEAD.decode(data).type]
        if _LONG_NUMBER.search(data) is None:
            return _DECODERS[cls].decode(data)
    except _ODD:
        pass
    return wire.decode(text, known)


def decode_untrusted(data: bytes, known: Mapping[str, type[Any]]) -> Any:
    """As decode, by msgspec alone, so that a message of an attacker costs no more than an ordinary one of its length.

    wire.py first builds every value of a message, also of fields that do not exist: 6 MB of `[],` take it 150 MB and
    0.9 s. Raises WireError.
    """
    if _LONG_NUMBER.search(data) is not None and _LONG_NUMBER.search(_STRING.sub(b"", data)) is not None:
        raise wire.WireError("expected numbers of at most 18 digits, got a longer one")
    try:
        name = _HEAD.decode(data).type
        return _DECODERS[known[name]].decode(data) if name in known else wire.Unknown(name[:64])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise wire.WireError(f"no message: {str(error)[:200]}") from None
