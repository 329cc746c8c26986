"""Sessions of two sides that know the same key: each opens exactly the messages that the other one has sealed."""

import hmac
from collections.abc import Callable

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tests.unit.protocol.test_noise import flipped
from understudy_protocol.sessions import NotAuthentic, Session, SharedKeyCalled, SharedKeyCaller

KEY, OTHER_KEY = bytes(range(32)), bytes(32)
Arranged = Callable[[bytes, bytes, bytes], list[bytes]]


def handshake(caller: SharedKeyCaller, called: SharedKeyCalled) -> tuple[Session, Session]:
    opened = called.read(caller.opening(b"hello"))
    answer, theirs = opened.answer(b"welcome")
    payload, ours = caller.finish(answer)
    assert (opened.payload, payload) == (b"hello", b"welcome")
    return ours, theirs


def sessions() -> tuple[Session, Session]:
    return handshake(SharedKeyCaller(KEY, b"job"), SharedKeyCalled(KEY, b"job"))


def test_both_sides_read_the_messages_that_the_other_one_seals() -> None:
    ours, theirs = sessions()

    assert theirs.open(ours.seal(b"a")) == b"a"
    assert ours.open(theirs.seal(b"b" * 70_000)) == b"b" * 70_000
    assert theirs.open(ours.seal(b"")) == b""


def test_the_keys_are_those_of_rfc_5869() -> None:
    # given a handshake, and its keys by HKDF as the RFC has it
    caller = SharedKeyCaller(KEY, b"job")
    opening = caller.opening(b"hello")
    answer, theirs = SharedKeyCalled(KEY, b"job").read(opening).answer(b"welcome")
    _, ours = caller.finish(answer)
    extracted = hmac.digest(opening[:32] + answer[:32], KEY, "sha256")
    info = b"\0\0\0\3jobhello"
    first = hmac.digest(extracted, info + b"\1", "sha256")
    second = hmac.digest(extracted, first + info + b"\2", "sha256")

    # then the caller's messages are AES-256-GCM under the first one, and the sidecar's under the second one
    assert ours.seal(b"x") == AESGCM(first).encrypt(bytes(12), b"x", None)
    assert answer[32:] == AESGCM(second).encrypt(bytes(12), b"welcome", None)
    assert theirs.seal(b"y") == AESGCM(second).encrypt(bytes(11) + b"\1", b"y", None)


@pytest.mark.parametrize(
    "caller",
    [SharedKeyCaller(OTHER_KEY, b"job"), SharedKeyCaller(KEY, b"another job")],
    ids=["another key", "about something else"],
)
def test_a_caller_with_another_key_or_context_gets_no_session(caller: SharedKeyCaller) -> None:
    answer, theirs = SharedKeyCalled(KEY, b"job").read(caller.opening(b"hello")).answer(b"welcome")

    with pytest.raises(NotAuthentic):
        caller.finish(answer)
    with pytest.raises(NotAuthentic):
        theirs.open(bytes(16))


def test_the_plain_text_of_the_caller_cannot_be_changed() -> None:
    caller = SharedKeyCaller(KEY, b"job")
    opening = caller.opening(b"hello")
    for position in range(len(opening)):
        answer, _ = SharedKeyCalled(KEY, b"job").read(flipped(opening, position)).answer(b"welcome")
        with pytest.raises(NotAuthentic):
            caller.finish(answer)


def test_no_byte_of_an_answer_can_be_changed() -> None:
    for position in range(32 + 16 + len(b"welcome")):
        caller = SharedKeyCaller(KEY, b"job")
        answer, _ = SharedKeyCalled(KEY, b"job").read(caller.opening(b"hello")).answer(b"welcome")
        with pytest.raises(NotAuthentic):
            caller.finish(flipped(answer, position))


def test_an_opening_that_is_sent_again_opens_no_session() -> None:
    caller, called = SharedKeyCaller(KEY, b"job"), SharedKeyCalled(KEY, b"job")
    opening = caller.opening(b"hello")
    first, _ = called.read(opening).answer(b"welcome")
    _, ours = caller.finish(first)
    again, theirs = called.read(opening).answer(b"welcome")

    assert again != first
    with pytest.raises(NotAuthentic):
        theirs.open(ours.seal(b"recorded"))


@pytest.mark.parametrize("size", [0, 31])
def test_a_short_opening_is_not_read(size: int) -> None:
    with pytest.raises(NotAuthentic):
        SharedKeyCalled(KEY, b"job").read(bytes(size))


@pytest.mark.parametrize("size", [0, 31, 47])
def test_a_short_answer_is_not_read(size: int) -> None:
    with pytest.raises(NotAuthentic):
        SharedKeyCaller(KEY, b"job").finish(bytes(size))


@pytest.mark.parametrize(
    "arranged",
    [
        lambda first, second, back: [flipped(first, 0)],
        lambda first, second, back: [first, first],
        lambda first, second, back: [second],
        lambda first, second, back: [back],
        lambda first, second, back: [first[:15]],
    ],
    ids=["changed", "repeated", "sent before another one", "sent back", "short"],
)
def test_a_session_does_not_open_an_earlier_message(arranged: Arranged) -> None:
    ours, theirs = sessions()
    first, second, back = ours.seal(b"1"), ours.seal(b"2"), theirs.seal(b"3")

    *before, last = arranged(first, second, back)
    for sealed in before:
        theirs.open(sealed)
    with pytest.raises(NotAuthentic):
        theirs.open(last)
