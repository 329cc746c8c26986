"""What is sealed can be read by who has the key, for whom it was meant, and by nobody else."""

from __future__ import annotations

import base64

import pytest

from understudy_protocol.sealing import TAG_BYTES, NotSealed, seal, unseal

KEY = b"the pool's key"
CONTEXT = ("adopt", "pool-uid", "pod-uid", "n1", "n2")


@pytest.mark.parametrize("text", ["", "x", "the job's key é €", "k" * 100_000], ids=["empty", "one", "some", "much"])
def test_what_was_sealed_is_read(text: str) -> None:
    assert unseal(KEY, CONTEXT, seal(KEY, CONTEXT, text)) == text


@pytest.mark.parametrize(
    ("key", "context"),
    [
        (b"another", CONTEXT),
        (KEY, (*CONTEXT[:2], "another-pod", *CONTEXT[3:])),
        (KEY, (*CONTEXT[:4], "another nonce")),
        (KEY, ("adopt", "pool-uid", "pod-uid", "n1n2")),
        (KEY, ("adoptpool-uid", "", "pod-uid", "n1", "n2")),
    ],
)
def test_neither_another_key_nor_another_context_reads_it(key: bytes, context: tuple[str, ...]) -> None:
    with pytest.raises(NotSealed):
        unseal(key, context, seal(KEY, CONTEXT, "the job's key"))


def test_no_bit_of_it_can_be_changed() -> None:
    whole = base64.b64decode(seal(KEY, CONTEXT, "python train.py"))
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 1
        with pytest.raises(NotSealed):
            unseal(KEY, CONTEXT, base64.b64encode(changed).decode())


@pytest.mark.parametrize("sealed", ["", "AAAA", "not base64!", "é", base64.b64encode(bytes(TAG_BYTES)).decode()])
def test_what_is_nothing_of_the_kind_is_refused(sealed: str) -> None:
    with pytest.raises(NotSealed):
        unseal(KEY, CONTEXT, sealed)


def test_the_text_is_not_in_it_and_no_two_contexts_hide_it_alike() -> None:
    text = "a" * 64
    one, other = (base64.b64decode(seal(KEY, context, text)) for context in (CONTEXT, ("b", *CONTEXT[1:])))
    assert text.encode() not in one
    assert one[TAG_BYTES:] != other[TAG_BYTES:]
    assert one[TAG_BYTES : TAG_BYTES + 32] != one[TAG_BYTES + 32 :], "no block is hidden as another one"
