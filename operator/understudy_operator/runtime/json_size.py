"""The memory that untrusted JSON takes. Pure.

An empty list takes 2 bytes of JSON and 56 of memory, an empty object 64. So callers count the values before decoding.
"""

from typing import Any

import msgspec

#: An item of an object: its slot, its name and an empty value.
BYTES_PER_VALUE = 100
#: A character, if a text has one beyond Latin-1. Once such a text was encoded, Python keeps the encoding, too.
BYTES_PER_CHARACTER = 5
#: Statuses that were not sent through an API server have texts of a str subclass (plan/times/rfc3339.py).
_ENCODE = msgspec.json.Encoder(enc_hook=str).encode


def values_in(data: bytes | msgspec.Raw) -> int:
    """Commas, brackets and braces, also in strings: at least the number of values minus one."""
    text = bytes(data)
    return sum(text.count(character) for character in (b",", b"[", b"{"))


def memory_of(decoded: Any) -> int:
    """An upper estimate in bytes, from the value's JSON."""
    text = _ENCODE(decoded)
    return len(text) * (1 if text.isascii() else BYTES_PER_CHARACTER) + BYTES_PER_VALUE * values_in(text)
