"""What JSON of somebody else takes of memory, before it is decoded. Pure.

An empty list takes 2 bytes of JSON and 56 of memory, an empty object 64. So whoever decodes counts the values first.
"""


def values_in(data: bytes | memoryview) -> int:
    """Commas, brackets and braces, also those in strings: at least as many as there are values but one."""
    text = bytes(data)
    return sum(text.count(character) for character in (b",", b"[", b"{"))
