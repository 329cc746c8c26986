"""The operator's handshake, against the published test vector and against attacks.

noise_vectors.json: the protocol's vectors of cacophony, https://github.com/haskell-cryptography/cacophony.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from understudy_protocol.noise import Initiator, Responder, public_key
from understudy_protocol.sessions import NotAuthentic, Session

VECTORS = json.loads((Path(__file__).parent / "noise_vectors.json").read_text())
PSK, OTHER_PSK = bytes(range(32)), bytes(32)
OPERATOR, OTHER_PRIVATE_KEY = bytes(range(1, 33)), bytes(range(2, 34))
PUBLIC = public_key(OPERATOR)


def handshake(initiator: Initiator, responder: Responder) -> tuple[Session, Session]:
    opened = responder.read(initiator.opening(b"hello"))
    answer, theirs = opened.answer(b"welcome")
    payload, ours = initiator.finish(answer)
    assert (opened.payload, payload) == (b"hello", b"welcome")
    return ours, theirs


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["protocol_name"])
def test_each_message_is_that_of_the_published_vector(vector: dict[str, Any]) -> None:
    def raw(name: str) -> bytes:
        return bytes.fromhex(vector[name])

    payloads = [bytes.fromhex(message["payload"]) for message in vector["messages"]]
    expected = [bytes.fromhex(message["ciphertext"]) for message in vector["messages"]]
    psk, prologue = bytes.fromhex(vector["init_psks"][0]), raw("init_prologue")
    initiator = Initiator(psk, prologue, raw("init_static"), raw("init_ephemeral"))
    opening = initiator.opening(payloads[0])
    opened = Responder(psk, prologue, raw("resp_remote_static")).read(opening)
    answer, theirs = opened.answer(payloads[1], raw("resp_ephemeral"))
    welcome, ours = initiator.finish(answer)
    sealed = [side.seal(text) for side, text in zip((ours, theirs, ours, theirs), payloads[2:], strict=True)]

    assert [opening, answer, *sealed] == expected
    assert [opened.payload, welcome] == payloads[:2]
    assert [theirs.open(sealed[0]), ours.open(sealed[1])] == payloads[2:4]


def test_there_is_a_vector() -> None:
    assert [vector["protocol_name"] for vector in VECTORS] == ["Noise_KNpsk0_25519_AESGCM_SHA256"]


@pytest.mark.parametrize(
    "initiator",
    [
        Initiator(OTHER_PSK, b"job", OPERATOR),
        Initiator(PSK, b"another job", OPERATOR),
        Initiator(PSK, b"job", OTHER_PRIVATE_KEY),
    ],
    ids=["another key", "another prologue", "another private key"],
)
def test_an_opening_with_another_key_or_prologue_is_not_read(initiator: Initiator) -> None:
    with pytest.raises(NotAuthentic):
        Responder(PSK, b"job", PUBLIC).read(initiator.opening(b"hello"))


def test_a_holder_of_the_key_that_uses_the_operators_public_key_gets_no_session() -> None:
    # given an opening that names the operator's public key, which every sidecar knows
    forger, responder = Initiator(PSK, b"job", OTHER_PRIVATE_KEY), Responder(PSK, b"job", PUBLIC)
    forger._transcript = Responder(PSK, b"job", PUBLIC)._begun.copy()

    # when a sidecar answers it
    answer, theirs = responder.read(forger.opening(b"hello")).answer(b"welcome")

    # then the forger cannot read the answer, and none of its messages is opened
    with pytest.raises(NotAuthentic):
        forger.finish(answer)
    with pytest.raises(NotAuthentic):
        theirs.open(bytes(16))


def test_an_opening_that_is_sent_again_opens_no_session() -> None:
    initiator, responder = Initiator(PSK, b"job", OPERATOR), Responder(PSK, b"job", PUBLIC)
    opening = initiator.opening(b"hello")
    first, _ = responder.read(opening).answer(b"welcome")
    _, ours = initiator.finish(first)
    again, theirs = responder.read(opening).answer(b"welcome")

    assert again != first
    with pytest.raises(NotAuthentic):
        theirs.open(ours.seal(b"recorded"))


def test_no_byte_of_a_handshake_can_be_changed() -> None:
    responder = Responder(PSK, b"job", PUBLIC)
    opening = Initiator(PSK, b"job", OPERATOR).opening(b"hello")
    for position in range(len(opening)):
        with pytest.raises(NotAuthentic):
            responder.read(flipped(opening, position)).answer(b"welcome")
    for position in range(32 + 16 + len(b"welcome")):
        initiator = Initiator(PSK, b"job", OPERATOR)
        answer, _ = responder.read(initiator.opening(b"hello")).answer(b"welcome")
        with pytest.raises(NotAuthentic):
            initiator.finish(flipped(answer, position))


@pytest.mark.parametrize("size", [0, 31, 47])
def test_a_short_handshake_is_not_read(size: int) -> None:
    with pytest.raises(NotAuthentic):
        Responder(PSK, b"job", PUBLIC).read(bytes(size))
    with pytest.raises(NotAuthentic):
        Initiator(PSK, b"job", OPERATOR).finish(bytes(size))


def test_a_public_key_of_small_order_is_refused() -> None:
    # given an opening with the public key 0 by a holder of the pre-shared key
    insider = Initiator(PSK, b"job", OPERATOR)
    insider._transcript.add_ephemeral(bytes(32))
    opening = bytes(32) + insider._transcript.seal(b"hello")

    with pytest.raises(NotAuthentic):
        Responder(PSK, b"job", PUBLIC).read(opening).answer(b"welcome")


def flipped(message: bytes, position: int) -> bytes:
    return message[:position] + bytes((message[position] ^ 1,)) + message[position + 1 :]
