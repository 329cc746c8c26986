"""Text that only two who know the same key can read and make: what a claimed spare is told, its job's key included.

The sidecar's image has no cipher, and needs none for one message a connection. From the shared key and a context two
keys are derived by HMAC-SHA256; the first one makes a key stream (HMAC of a counter, a pseudorandom function in counter
mode), the second one proves the ciphertext (encrypt, then MAC). That is sound as long as no context is used twice: both
sides put a fresh nonce into it. So a sealed text can be neither read, changed, nor replayed on another connection or to
another pod.
"""

import base64
import binascii
import hmac
from collections.abc import Sequence

TAG_BYTES = 32


class NotSealed(ValueError):
    """It was sealed with another key, for somebody else, or was changed on its way."""


def seal(key: bytes, context: Sequence[str], text: str) -> str:
    """context: who seals what for whom, with a fresh nonce of each; never the same for two texts."""
    hidden = _with_stream(_derived(key, "hide", context), text.encode())
    return base64.b64encode(_proof(key, context, hidden) + hidden).decode()


def unseal(key: bytes, context: Sequence[str], sealed: str) -> str:
    """Raises NotSealed."""
    try:
        whole = base64.b64decode(sealed.encode(), validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise NotSealed(f"it is no base64: {error}") from error
    tag, hidden = whole[:TAG_BYTES], whole[TAG_BYTES:]
    if not hmac.compare_digest(_proof(key, context, hidden), tag):
        raise NotSealed("it was not sealed with this key for this pod and connection")
    return _with_stream(_derived(key, "hide", context), hidden).decode()


def _proof(key: bytes, context: Sequence[str], hidden: bytes) -> bytes:
    return hmac.digest(_derived(key, "prove", context), hidden, "sha256")


def _derived(key: bytes, purpose: str, context: Sequence[str]) -> bytes:
    # Length-prefixed, so that no two different contexts give the same bytes.
    text = "".join(f"{len(part)}:{part}" for part in ("sealed", purpose, *context))
    return hmac.digest(key, text.encode(), "sha256")


def _with_stream(key: bytes, data: bytes) -> bytes:
    blocks = range((len(data) + TAG_BYTES - 1) // TAG_BYTES)
    stream = b"".join(hmac.digest(key, number.to_bytes(8, "big"), "sha256") for number in blocks)[: len(data)]
    return (int.from_bytes(data, "big") ^ int.from_bytes(stream, "big")).to_bytes(len(data), "big")
