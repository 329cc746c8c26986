"""Noise handshakes and sessions, against the published test vectors and against what an attacker can do to them.

noise_vectors.json: the two protocols' vectors of cacophony, https://github.com/haskell-cryptography/cacophony.
"""

import json
from pathlib import Path

import pytest

from understudy_protocol.noise import Initiator, Responder, public_key
from understudy_protocol.sessions import NotAuthentic, Session

VECTORS = json.loads((Path(__file__).parent / "noise_vectors.json").read_text())
PSK, OTHER_PSK = bytes(range(32)), bytes(32)
OPERATOR, SOMEBODY = bytes(range(1, 33)), bytes(range(2, 34))


def handshake(initiator: Initiator, responder: Responder) -> tuple[Session, Session]:
    opened = responder.read(initiator.opening(b"hello"))
    answer, theirs = opened.answer(b"welcome")
    payload, ours = initiator.finish(answer)
    assert (opened.payload, payload) == (b"hello", b"welcome")
    return ours, theirs


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["protocol_name"])
def test_each_message_is_that_of_the_published_vector(vector: dict) -> None:
    def raw(name: str) -> bytes | None:
        return bytes.fromhex(vector[name]) if name in vector else None

    payloads = [bytes.fromhex(message["payload"]) for message in vector["messages"]]
    expected = [bytes.fromhex(message["ciphertext"]) for message in vector["messages"]]
    psk, prologue = bytes.fromhex(vector["init_psks"][0]), bytes.fromhex(vector["init_prologue"])
    initiator = Initiator(psk, prologue, raw("init_static"), raw("init_ephemeral"))
    opening = initiator.opening(payloads[0])
    opened = Responder(psk, prologue, raw("resp_remote_static")).read(opening)
    answer, theirs = opened.answer(payloads[1], raw("resp_ephemeral"))
    welcome, ours = initiator.finish(answer)
    sealed = [side.seal(text) for side, text in zip((ours, theirs, ours, theirs), payloads[2:], strict=True)]

    assert [opening, answer, *sealed] == expected
    assert [opened.payload, welcome] == payloads[:2]
    assert [theirs.open(sealed[0]), ours.open(sealed[1])] == payloads[2:4]


def test_both_sides_read_what_the_other_one_seals() -> None:
    ours, theirs = handshake(Initiator(PSK, b"job"), Responder(PSK, b"job"))

    assert theirs.open(ours.seal(b"a")) == b"a"
    assert ours.open(theirs.seal(b"b" * 70_000)) == b"b" * 70_000
    assert theirs.open(ours.seal(b"")) == b""


@pytest.mark.parametrize(
    "initiator",
    [
        Initiator(OTHER_PSK, b"job"),
        Initiator(PSK, b"another job"),
        Initiator(PSK, b"job", OPERATOR),
    ],
    ids=["another key", "another prologue", "another protocol"],
)
def test_an_opening_of_somebody_else_is_not_read(initiator: Initiator) -> None:
    with pytest.raises(NotAuthentic):
        Responder(PSK, b"job").read(initiator.opening(b"hello"))


def test_the_key_alone_does_not_make_an_operator() -> None:
    responder = Responder(PSK, b"job", public_key(OPERATOR))
    handshake(Initiator(PSK, b"job", OPERATOR), responder)

    with pytest.raises(NotAuthentic):
        responder.read(Initiator(PSK, b"job", SOMEBODY).opening(b"hello"))
    with pytest.raises(NotAuthentic):
        responder.read(Initiator(PSK, b"job").opening(b"hello"))


def test_who_knows_the_key_and_the_operators_public_key_reads_no_answer_to_an_opening_of_its_own() -> None:
    # Given an opening that pretends to be of the operator, whose public key everybody may know.
    forger = Initiator(PSK, b"job", SOMEBODY)
    forger._transcript = Responder(PSK, b"job", public_key(OPERATOR))._begun.copy()
    responder = Responder(PSK, b"job", public_key(OPERATOR))

    # When it is answered.
    answer, theirs = responder.read(forger.opening(b"hello")).answer(b"welcome")

    # Then the forger cannot read the answer, and has no session.
    with pytest.raises(NotAuthentic):
        forger.finish(answer)
    with pytest.raises(NotAuthentic):
        theirs.open(bytes(16))


def test_an_opening_that_is_sent_again_opens_no_session() -> None:
    initiator, responder = Initiator(PSK, b"job"), Responder(PSK, b"job")
    opening = initiator.opening(b"hello")
    first, _ = responder.read(opening).answer(b"welcome")
    _, ours = initiator.finish(first)
    again, theirs = responder.read(opening).answer(b"welcome")

    assert again != first
    with pytest.raises(NotAuthentic):
        theirs.open(ours.seal(b"recorded"))


def test_no_bit_of_a_handshake_can_be_changed() -> None:
    responder = Responder(PSK, b"job")
    opening = Initiator(PSK, b"job").opening(b"hello")
    for position in range(len(opening)):
        with pytest.raises(NotAuthentic):
            responder.read(_flipped(opening, position)).answer(b"welcome")
    for position in range(32 + 16 + len(b"welcome")):
        initiator = Initiator(PSK, b"job")
        answer, _ = responder.read(initiator.opening(b"hello")).answer(b"welcome")
        with pytest.raises(NotAuthentic):
            initiator.finish(_flipped(answer, position))


@pytest.mark.parametrize("size", [0, 31, 47])
def test_a_short_handshake_is_not_read(size: int) -> None:
    with pytest.raises(NotAuthentic):
        Responder(PSK, b"job").read(bytes(size))
    with pytest.raises(NotAuthentic):
        Initiator(PSK, b"job").finish(bytes(size))


def test_a_public_key_of_small_order_is_refused() -> None:
    # Given an opening with the key 0 by somebody who knows the pre-shared key.
    insider = Initiator(PSK, b"job")
    insider._transcript.add_ephemeral(bytes(32))
    opening = bytes(32) + insider._transcript.seal(b"hello")

    with pytest.raises(NotAuthentic):
        Responder(PSK, b"job").read(opening).answer(b"welcome")


def _changed(sealed: bytes) -> bytes:
    return _flipped(sealed, 0)


def _flipped(message: bytes, position: int) -> bytes:
    # Not bit 7 of byte 31: X25519 ignores it, and the transcript does not.
    return message[:position] + bytes((message[position] ^ 1,)) + message[position + 1 :]


def test_no_message_of_a_session_can_be_changed_repeated_reordered_left_out_or_sent_back() -> None:
    def opens_after(arrange) -> bool:
        ours, theirs = handshake(Initiator(PSK, b"job"), Responder(PSK, b"job"))
        first, second, back = ours.seal(b"1"), ours.seal(b"2"), theirs.seal(b"3")
        try:
            for sealed in arrange(first, second, back):
                theirs.open(sealed)
        except NotAuthentic:
            return False
        return True

    assert opens_after(lambda first, second, back: [first, second])
    assert not opens_after(lambda first, second, back: [_changed(first)])
    assert not opens_after(lambda first, second, back: [first, first])
    assert not opens_after(lambda first, second, back: [second, first])
    assert not opens_after(lambda first, second, back: [second])
    assert not opens_after(lambda first, second, back: [back])
    assert not opens_after(lambda first, second, back: [first[:15]])
