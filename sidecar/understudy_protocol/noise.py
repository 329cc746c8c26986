"""The Noise handshake with which the operator opens a session: it proves that it has the operator's key. Without I/O.

Source: The Noise Protocol Framework, revision 34, https://noiseprotocol.org/noise.html; its protocol
Noise_KNpsk0_25519_AESGCM_SHA256. Both sides prove that they know the pre-shared key, and the initiator proves that it
has the private key whose public half the responder knows.

Each session has keys of its own, from an X25519 exchange of two ephemeral keys. So a recorded session stays unreadable
if the pre-shared key or the initiator's private key is stolen later. X25519, AES-GCM, HMAC and SHA-256 are those of
`cryptography` and of Python; this module calls them in the order of the specification. One difference: a message of a
session may be longer than 65,535 bytes, as AES-GCM allows.
"""

import hashlib
import hmac
from typing import Optional

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from understudy_protocol.sessions import Cipher, NotAuthentic, Session, parts

_NAME = b"Noise_KNpsk0_25519_AESGCM_SHA256"


class _Transcript:
    """Noise's SymmetricState: the hash of all messages so far, and the key that depends on them."""

    __slots__ = ("_chain", "_cipher", "_hash")

    def __init__(self, prologue: bytes) -> None:
        self._hash = self._chain = _NAME  # it has 32 bytes, so Noise uses it in place of its hash
        self._cipher: Optional[Cipher] = None
        self.add(prologue)

    def copy(self) -> "_Transcript":
        """Copy a transcript whose cipher has not been used yet."""
        other = _Transcript.__new__(_Transcript)
        other._chain, other._hash, other._cipher = self._chain, self._hash, None
        return other

    def add(self, data: bytes) -> None:
        self._hash = hashlib.sha256(self._hash + data).digest()

    def add_psk(self, psk: bytes) -> None:
        """Creates no cipher: an ephemeral key follows before any encryption, and creates one."""
        self._chain, hashed, _ = _derived(self._chain, psk, 3)
        self.add(hashed)

    def add_ephemeral(self, public: bytes) -> None:
        self.add(public)
        self.add_secret(public)

    def add_secret(self, secret: bytes) -> None:
        self._chain, key = _derived(self._chain, secret, 2)
        self._cipher = Cipher(key)

    def seal(self, text: bytes) -> bytes:
        assert self._cipher is not None, "an ephemeral key came first"
        sealed = self._cipher.seal(text, self._hash)
        self.add(sealed)
        return sealed

    def open(self, sealed: bytes) -> bytes:
        """Raises NotAuthentic."""
        assert self._cipher is not None, "an ephemeral key came first"
        text = self._cipher.open(sealed, self._hash)
        self.add(sealed)
        return text

    def split(self) -> tuple[Cipher, Cipher]:
        """The ciphers of the initiator's messages, and of the responder's."""
        first, second = _derived(self._chain, b"", 2)
        return Cipher(first), Cipher(second)


class Initiator:
    """The calling side. psk: 32 bytes. static: its private X25519 key, 32 bytes."""

    def __init__(self, psk: bytes, prologue: bytes, static: bytes, ephemeral: Optional[bytes] = None) -> None:
        self._static = X25519PrivateKey.from_private_bytes(static)
        self._ephemeral = _private(ephemeral)
        self._transcript = _new_transcript(psk, prologue, _public(self._static))

    def opening(self, payload: bytes) -> bytes:
        """The first message. All processes with the key can read its payload, and an attacker can send it again."""
        public = _public(self._ephemeral)
        self._transcript.add_ephemeral(public)
        return public + self._transcript.seal(payload)

    def finish(self, answer: bytes) -> tuple[bytes, Session]:
        """The payload of the responder's message, and the session. Raises NotAuthentic."""
        public, sealed = parts(answer)
        self._transcript.add_ephemeral(public)
        self._transcript.add_secret(_exchanged(self._ephemeral, public))
        self._transcript.add_secret(_exchanged(self._static, public))
        payload = self._transcript.open(sealed)
        sends, receives = self._transcript.split()
        return payload, Session(sends, receives)


class Responder:
    """The called side, for any number of handshakes. static: the initiator's public X25519 key."""

    def __init__(self, psk: bytes, prologue: bytes, static: bytes) -> None:
        self._static = static
        self._begun = _new_transcript(psk, prologue, static)

    def read(self, opening: bytes) -> "NoiseOpening":
        """Raises NotAuthentic."""
        public, sealed = parts(opening)
        transcript = self._begun.copy()
        transcript.add_ephemeral(public)
        return NoiseOpening(transcript.open(sealed), transcript, public, self._static)


class NoiseOpening:
    """An opening that was made with the key. An attacker may have recorded it, and sent it again."""

    def __init__(self, payload: bytes, transcript: _Transcript, public: bytes, static: bytes) -> None:
        self.payload = payload
        self._transcript, self._public, self._static = transcript, public, static

    def answer(self, payload: bytes, ephemeral: Optional[bytes] = None) -> tuple[bytes, Session]:
        """The second message, and the session: only the process that made the opening can send in it.

        Raises NotAuthentic if the public key in the opening belongs to no private key.
        """
        own = _private(ephemeral)
        public = _public(own)
        self._transcript.add_ephemeral(public)
        self._transcript.add_secret(_exchanged(own, self._public))
        self._transcript.add_secret(_exchanged(own, self._static))
        message = public + self._transcript.seal(payload)
        receives, sends = self._transcript.split()
        return message, Session(sends, receives)


def public_key(private: bytes) -> bytes:
    """The public half of a private X25519 key; both of 32 bytes."""
    return _public(X25519PrivateKey.from_private_bytes(private))


def _new_transcript(psk: bytes, prologue: bytes, static: bytes) -> _Transcript:
    transcript = _Transcript(prologue)
    transcript.add(static)
    transcript.add_psk(psk)
    return transcript


def _private(raw: Optional[bytes]) -> X25519PrivateKey:
    """Tests with the examples of the specification pass raw keys."""
    return X25519PrivateKey.generate() if raw is None else X25519PrivateKey.from_private_bytes(raw)


def _public(private: X25519PrivateKey) -> bytes:
    return private.public_key().public_bytes_raw()


def _exchanged(private: X25519PrivateKey, public: bytes) -> bytes:
    """Raises NotAuthentic for a public key of small order, because its result is no secret."""
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise NotAuthentic("the public key is invalid") from None


def _derived(chain: bytes, secret: bytes, count: int) -> list[bytes]:
    """Noise's HKDF: `count` outputs of 32 bytes."""
    key = hmac.digest(chain, secret, "sha256")
    outputs, last = [], b""
    for number in range(1, count + 1):
        last = hmac.digest(key, last + bytes((number,)), "sha256")
        outputs.append(last)
    return outputs
