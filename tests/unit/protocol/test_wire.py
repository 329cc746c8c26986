"""Messages to text and back: ignored fields, dropped messages, and errors that name their cause."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
import typing
from enum import Enum
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.protocol.readers import READERS, Reader
from understudy_protocol import compiled, handshake, launcher, membership, observer, wire
from understudy_protocol.enums import NO_ROUND, CloseReason, RoundToken, WorkersState
from understudy_protocol.membership import Close, Join, Port
from understudy_protocol.observer import MemberView, Snapshot
from understudy_protocol.pod import JobShape

VERSION = 2

MODULES = (handshake, launcher, membership, observer)
KNOWN = {name: cls for module in MODULES for name, cls in wire.message_types(module).items()}


def strategy(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a field's type."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Union:
        return st.none() | strategy(arguments[0])
    if origin is tuple:
        return st.lists(strategy(arguments[0]), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(st.text(max_size=5), strategy(arguments[1]), max_size=3)
    if dataclasses.is_dataclass(hint):
        return messages(typing.cast(type[Any], hint))
    if issubclass(hint, Enum):
        return st.sampled_from(list(hint))
    plain: dict[type, st.SearchStrategy[Any]] = {
        bool: st.booleans(),
        int: st.integers(-(2**63), 2**63 - 1),
        str: st.text(max_size=20),
        float: st.floats(allow_nan=False, allow_infinity=False),
    }
    return plain[hint]


def messages(cls: type[Any]) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(cls)
    return st.builds(cls, **{field.name: strategy(hints[field.name]) for field in dataclasses.fields(cls)})


@pytest.mark.parametrize("name", sorted(KNOWN))
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_every_message_is_restored_unchanged(name: str, data: st.DataObject) -> None:
    message = data.draw(messages(KNOWN[name]))
    text, compact = wire.encode(message), compiled.encode(message)
    assert "\n" not in text
    assert b"\n" not in compact
    assert json.loads(text) == json.loads(compact)
    for read in READERS:
        assert read(text, KNOWN) == read(compact, KNOWN) == message


def test_the_wire_form_is_readable() -> None:
    assert json.loads(wire.encode(Close(CloseReason.SUCCEEDED, "done"))) == {
        "v": VERSION,
        "type": "Close",
        "reason": "Succeeded",
        "message": "done",
    }


def test_an_unknown_field_is_ignored(read: Reader) -> None:
    assert read('{"v":9,"type":"Port","master_port":1,"from_the_future":{}}', KNOWN) == Port(1)


def test_an_unknown_type_is_no_error(read: Reader) -> None:
    assert read('{"v":9,"type":"FromTheFuture","x":1}', KNOWN) == wire.Unknown("FromTheFuture")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("no json", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "`type`"),
        ('{"v":1}', "`type`"),
        ('{"type":7}', "`type`"),
        ('{"type":"Port"}', "Port.master_port is missing"),
        ('{"type":"Port","master_port":"1"}', "Port.master_port: expected int"),
        ('{"type":"Port","master_port":true}', "Port.master_port: expected int"),
        ('{"type":"Port","master_port":1.5}', "Port.master_port: expected int"),
        ('{"type":"Close","reason":"Bored","message":""}', "Close.reason: expected one of"),
        ('{"type":"Ack","token":[1,2,3]}', "Ack.token: expected an object"),
        ('{"type":"Ack","token":{"epoch":1,"term":1}}', "Ack.token.round is missing"),
        ('{"type":"Appoint","epoch":1,"at_least_round":0,"recoveries_by_strategy":[]}', "expected an object"),
        ('{"type":"Leaving","reason":"","grace_s":"soon"}', "Leaving.grace_s: expected float"),
        ('{"type":"Leaving","reason":"","grace_s":true}', "Leaving.grace_s: expected float"),
        ('{"type":"Leaving","reason":"","grace_s":NaN}', "NaN is not a JSON number"),
        ('{"type":"Leaving","reason":"","grace_s":-Infinity}', "-Infinity is not a JSON number"),
        ('{"type":"Leaving","reason":"","grace_s":1e999}', "Leaving.grace_s: expected float (finite)"),
        ('{"type":"Leaving","reason":"","grace_s":1%s}' % ("0" * 400), "Leaving.grace_s: expected float (finite)"),
        ('{"type":"Port","master_port":9223372036854775808}', "Port.master_port: expected int of at most 64 bits"),
        ('{"type":"Close","reason":["Failed"],"message":""}', "Close.reason: expected one of"),
        ('{"type":"Answer","handshake":"\\ud800"}', "surrogates not allowed"),
        ('{"type":"Answer","handshake":' + "[" * 900 + "]" * 900 + "}", "Answer.handshake: expected str, got a list"),
        ('{"type":"Hello","role":"king","job_uid":"","handshake":""}', "Hello.role: expected one of"),
        ('{"type":"Nodes","facts":[{"node":"a"},{"node":1}]}', "Nodes.facts[1].node: expected str, got 1"),
        (
            '{"type":"Appoint","epoch":1,"at_least_round":0,"recoveries_by_strategy":{"x":"y"}}',
            "_strategy[x]: expected int",
        ),
    ],
)
def test_an_error_names_its_field(text: str, names: str, read: Reader) -> None:
    with pytest.raises(wire.WireError, match=re.escape(names)):
        read(text, KNOWN)


def test_an_error_stays_short_whatever_the_peer_sent(read: Reader) -> None:
    """Errors are logged: a peer must not fill a log with one message."""
    with pytest.raises(wire.WireError) as wrong:
        read('{"type":"Port","master_port":"%s"}' % ("x" * 60_000), KNOWN)
    assert len(str(wrong.value)) < 200


def test_half_a_surrogate_pair_is_refused_and_a_whole_one_is_not(read: Reader) -> None:
    """JSON can contain half of a surrogate pair, which cannot be logged, hashed or written to a file."""
    assert read('{"type":"Gone","reason":"\\ud83d\\ude00"}', KNOWN).reason == "\U0001f600"
    with pytest.raises(wire.WireError):
        read('{"type":"Gone","reason":"\\ud83d"}', KNOWN)


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
def test_a_number_that_json_lacks_is_not_sent(number: float) -> None:
    with pytest.raises(ValueError, match="cannot be sent"):
        wire.encode(membership.Leaving("", number))


@pytest.mark.parametrize("text", [b'{"type":"Port","master_port":1}', '{"type":"Port","master_port":1}'])
def test_bytes_and_text_are_the_same(text: str | bytes, read: Reader) -> None:
    assert read(text, KNOWN) == Port(1)


def test_bytes_that_are_no_text_are_an_ordinary_error(read: Reader) -> None:
    with pytest.raises(wire.WireError):
        read(b"\xff\xfe\x00garbage", KNOWN)


def test_a_number_too_long_for_the_parser_is_an_ordinary_error(read: Reader) -> None:
    with pytest.raises(wire.WireError):
        read('{"type":"Port","master_port":' + "9" * 5000 + "}", KNOWN)


def test_an_integer_is_a_number_of_seconds_too(read: Reader) -> None:
    leaving = read('{"type":"Leaving","reason":"","grace_s":30}', KNOWN)
    assert isinstance(leaving.grace_s, float)


def test_nested_messages_tuples_and_nones(read: Reader) -> None:
    token = RoundToken(1, 2, 3)
    view = MemberView("u", "p", "n", None, 4, WorkersState.RUNNING)
    snapshot = Snapshot(token, "u", (view,), (), (), {"InPlace": 1}, None, "", Close(CloseReason.FAILED, "…"))
    assert read(wire.encode(snapshot), KNOWN) == snapshot


def test_a_newer_joins_fields_do_not_disturb_an_older_coordinator(read: Reader) -> None:
    join = Join("u", "p", "n", "10.0.0.1", None, NO_ROUND, None, WorkersState.IDLE, 4000)
    body = json.loads(wire.encode(join))
    body["zone"] = "eu-1a"
    body["token"]["attempt"] = 7
    assert read(json.dumps(body), KNOWN) == join


def test_a_plain_object_is_read_the_same_way() -> None:
    shape = JobShape("uid", "ns", "job", 4, 8, 10, 3600.0, replica_groups=((0, 1), (2, 3)))
    written = json.loads(json.dumps(dataclasses.asdict(shape)))
    assert wire.from_plain(JobShape, {**written, "more": 1}) == shape


def test_tokens_are_ordered_by_epoch_then_term_then_round() -> None:
    ordered = [NO_ROUND, RoundToken(1, 1, 9), RoundToken(1, 2, 0), RoundToken(2, 1, -1), RoundToken(2, 1, 0)]
    assert all(older < newer for older, newer in itertools.pairwise(ordered))
    assert str(RoundToken(1, 2, 3)) == "1.2.3"
    assert RoundToken(1, 2, 3).next_round() == RoundToken(1, 2, 4)
