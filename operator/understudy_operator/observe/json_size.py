"""What JSON of somebody else takes of memory. Pure.

An empty list takes 2 bytes of JSON and 56 of memory, an empty object 64. So whoever decodes counts the values first.
"""

from typing import Any

import msgspec

#: An item of an object: its place there, its name and an empty value.
BYTES_PER_VALUE = 100
#: Of a character, where a text has one beyond Latin-1; and once it was encoded, Python keeps that, too.
BYTES_PER_CHARACTER = 5
#: Statuses that were not sent through an API server have texts of a class of their own (plan/rfc3339.py).
_ENCODE = msgspec.json.Encoder(enc_hook=str).encode


def values_in(data: bytes | msgspec.Raw) -> int:
    """Commas, brackets and braces, also those in strings: at least as many as there are values but one."""
    text = bytes(data)
    return sum(text.count(character) for character in (b",", b"[", b"{"))


def memory_of(decoded: Any) -> int:
    """An estimate in bytes, by its JSON: at least what it takes."""
    text = _ENCODE(decoded)
    return len(text) * (1 if text.isascii() else BYTES_PER_CHARACTER) + BYTES_PER_VALUE * values_in(text)
