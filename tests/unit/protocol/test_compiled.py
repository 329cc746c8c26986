"""The CPU time to read a message of an attacker is proportional to its bytes, whatever they are."""

import time

import pytest

from understudy_protocol import compiled, observer, wire

_OBSERVER = wire.message_types(observer)
BYTES = 1 << 20
#: CPU time, on a slow machine too. An ordinary message takes about 0.01 s, and the attack took minutes.
LIMIT_S = 2.0
#: With a number of 19 digits, so that strings and numbers are distinguished.
HEAD = b'{"a":1234567890123456789,"b":'
SHAPES = {
    "escaped quotes": HEAD + b'"' + b'\\"' * (BYTES // 2),
    "escaped quotes and a last backslash": HEAD + b'"' + b'\\"' * (BYTES // 2) + b"\\",
    "quotes": HEAD + b'"' * BYTES,
    "backslashes": HEAD + b'"' + b"\\" * BYTES,
    "escaped line ends": HEAD + b'"' + b'\\\n\\"' * (BYTES // 4),
    "open strings": HEAD + b'"\\' * (BYTES // 2),
    "digits": HEAD + b"7" * BYTES,
    "digits in a string": HEAD + b'"' + b"7" * BYTES,
    "points and digits": HEAD + b".7" * (BYTES // 2),
    "brackets": HEAD + b"[" * BYTES,
    "braces": HEAD + b'{"":' * (BYTES // 4),
    "commas": HEAD + b"[" + b"1," * (BYTES // 2),
    "no ASCII": HEAD + b'"' + b"\xff" * BYTES,
}


@pytest.mark.attack(
    "B2",
    "sends a message of escaped quotes without an end from a pod of its own job",
    before="24 KB stopped the operator for 8 s, 1 MiB for half an hour",
)
@pytest.mark.parametrize("message", SHAPES.values(), ids=SHAPES.keys())
def test_a_message_of_a_mebibyte_takes_little_cpu_time_whatever_it_contains(message: bytes) -> None:
    # given a message of some shape
    began = time.thread_time()
    # when the operator reads it, then it refuses it soon
    with pytest.raises(wire.WireError):
        compiled.decode_untrusted(message, _OBSERVER)
    assert time.thread_time() - began < LIMIT_S


@pytest.mark.parametrize(
    ("text", "is_read"),
    [
        (b'"1234567890123456789"', True),
        (b'"\\"1234567890123456789"', True),
        (b'"\\\\",1234567890123456789', False),
        (b'"",1234567890123456789', False),
        (b"-1234567890123456789", False),
        (b"123456789012345678", True),
        (b"0.12345678901234567891", True),
    ],
)
def test_digits_in_strings_are_no_numbers(text: bytes, is_read: bool) -> None:
    message = b'{"type":"Later","a":[%s]}' % text
    if is_read:
        assert compiled.decode_untrusted(message, _OBSERVER) == wire.Unknown("Later")
    else:
        with pytest.raises(wire.WireError, match="18 digits"):
            compiled.decode_untrusted(message, _OBSERVER)
