"""The functions of wire.py, compiled: for processes that read and write tens of thousands of messages.

msgspec decodes a correct message in a sixth of the time. If it rejects a message, wire.py decodes it, or raises the
error. So only wire.py defines what a message is. The launcher, which runs under the user's own interpreter, has no
msgspec.
"""

import re
from collections.abc import Mapping
from typing import Any, Union

import msgspec

from understudy_protocol import wire


class _Head(msgspec.Struct):
    type: str


class _Decoders(dict[type[Any], "msgspec.json.Decoder[Any]"]):
    """By the class of a message; created on first use."""

    def __missing__(self, cls: type[Any]) -> "msgspec.json.Decoder[Any]":
        self[cls] = msgspec.json.Decoder(cls)
        return self[cls]


class _Prefixes(dict[type[Any], bytes]):
    """The first bytes of each message of a class."""

    def __missing__(self, cls: type[Any]) -> bytes:
        self[cls] = f'{{"v":{wire.VERSION},"type":"{cls.__name__}",'.encode()
        return self[cls]


_HEAD = msgspec.json.Decoder(_Head)
_DECODERS = _Decoders()
_PREFIXES = _Prefixes()
_ENCODER = msgspec.json.Encoder()
_ODD = (msgspec.MsgspecError, KeyError, ValueError, RecursionError)
#: msgspec accepts integers of any size; wire.py rejects those of more than 64 bits.
_LONG_NUMBER = re.compile(rb"(?<![.0-9])[0-9]{19}")
#: A fast search comes first: with all digits replaced by zeros, 19 digits are 19 zeros. The expression takes longer
#: than all other work of decoding.
_ZEROS, _AS_ZERO = b"0" * 19, bytes.maketrans(b"123456789", b"000000000")
#: Linear: the possessive repetitions never backtrack. A string without an end matches to the end of the message, so no
#: search begins again inside of it.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)


def encode(message: Any) -> bytes:
    """One message as a line of JSON in UTF-8. Its numbers must be finite: others become null, which readers reject."""
    body = _ENCODER.encode(message)
    prefix = _PREFIXES[type(message)]
    return prefix + body[1:] if len(body) > len(b"{}") else prefix[:-1] + b"}"


def decode(text: Union[str, bytes], known: Mapping[str, type[Any]]) -> Any:
    """As wire.decode, its errors too."""
    data = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    try:
        cls = known[_HEAD.decode(data).type]
        if not _has_long_number(data):
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
        raise wire.WireError(f"invalid message: {str(error)[:200]}") from None


def _has_long_number(data: bytes) -> bool:
    return _ZEROS in data.translate(_AS_ZERO) and _LONG_NUMBER.search(data) is not None
