"""Noise handshakes with a key that both sides know, and the encrypted sessions that follow. Without I/O.

Source: The Noise Protocol Framework, revision 34, https://noiseprotocol.org/noise.html. Two of its protocols:

    Noise_NNpsk0_25519_AESGCM_SHA256    both sides prove that they know the pre-shared key
    Noise_KNpsk0_25519_AESGCM_SHA256    and the initiator proves that it has a private key whose public half is known

Each session has keys of its own, from an X25519 exchange of two keys that are made for it: a recorded session stays
unreadable when the pre-shared key is found later. X25519, AES-GCM, HMAC and SHA-256 are those of `cryptography` and of
Python; this module puts them in the order that the specification gives. One difference: a message of a session may be
longer than 65,535 bytes, as AES-GCM allows.
"""

import hashlib
import hmac
from typing import Optional

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES = 32
TAG_BYTES = 16
_NN = b"Noise_NNpsk0_25519_AESGCM_SHA256"
_KN = b"Noise_KNpsk0_25519_AESGCM_SHA256"


class NotAuthentic(Exception):
    """What came was not made by somebody who knows the key, or it was changed, repeated or left out on its way."""


class _Cipher:
    """One direction of a session, or a key of a handshake: each message takes the next number."""

    __slots__ = ("_aead", "_next")

    def __init__(self, key: bytes) -> None:
        self._aead = AESGCM(key)
        self._next = 0

    def seal(self, text: bytes, transcript: bytes = b"") -> bytes:
        return self._aead.encrypt(self._number(), text, transcript)

    def open(self, sealed: bytes, transcript: bytes = b"") -> bytes:
        """Raises NotAuthentic."""
        try:
            return self._aead.decrypt(self._number(), sealed, transcript)
        except InvalidTag:
            raise NotAuthentic("a message cannot be opened with the session's key") from None

    def _number(self) -> bytes:
        number = self._next
        self._next = number + 1
        return number.to_bytes(12, "big")


class Session:
    """The messages that follow a handshake. Both sides seal and open them in the same order, each once."""

    __slots__ = ("_receives", "_sends")

    def __init__(self, sends: _Cipher, receives: _Cipher) -> None:
        self._sends, self._receives = sends, receives

    def seal(self, text: bytes) -> bytes:
        """TAG_BYTES longer than the text."""
        return self._sends.seal(text)

    def open(self, sealed: bytes) -> bytes:
        """The next text of the other side. Raises NotAuthentic; then nothing that follows can be opened."""
        return self._receives.open(sealed)


class _Transcript:
    """Noise's SymmetricState: what both sides have sent, and the key that follows from it."""

    __slots__ = ("_chain", "_cipher", "_hash")

    def __init__(self, name: bytes, prologue: bytes) -> None:
        self._hash = self._chain = name  # of 32 bytes, as a hash has
        self._cipher: Optional[_Cipher] = None
        self.add(prologue)

    def copy(self) -> "_Transcript":
        """Of one that has no cipher yet in use."""
        other = _Transcript.__new__(_Transcript)
        other._chain, other._hash, other._cipher = self._chain, self._hash, None
        return other

    def add(self, data: bytes) -> None:
        self._hash = hashlib.sha256(self._hash + data).digest()

    def add_psk(self, psk: bytes) -> None:
        """The cipher that would follow is replaced by that of an ephemeral key before it is used."""
        self._chain, hashed, _ = _derived(self._chain, psk, 3)
        self.add(hashed)

    def add_ephemeral(self, public: bytes) -> None:
        self.add(public)
        self.add_secret(public)

    def add_secret(self, secret: bytes) -> None:
        self._chain, key = _derived(self._chain, secret, 2)
        self._cipher = _Cipher(key)

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

    def split(self) -> tuple[_Cipher, _Cipher]:
        """For what the initiator sends, and what the responder sends."""
        first, second = _derived(self._chain, b"", 2)
        return _Cipher(first), _Cipher(second)


class Initiator:
    """The side that calls. psk: KEY_BYTES. static: its private X25519 key, if it proves one (KN); KEY_BYTES."""

    def __init__(
        self, psk: bytes, prologue: bytes, static: Optional[bytes] = None, ephemeral: Optional[bytes] = None
    ) -> None:
        self._static = None if static is None else X25519PrivateKey.from_private_bytes(static)
        self._ephemeral = _private(ephemeral)
        self._transcript = _begun(psk, prologue, None if self._static is None else _public(self._static))

    def opening(self, payload: bytes) -> bytes:
        """The first message. Its payload can be read by whoever knows the key, and may be repeated by anybody."""
        public = _public(self._ephemeral)
        self._transcript.add_ephemeral(public)
        return public + self._transcript.seal(payload)

    def finish(self, answer: bytes) -> tuple[bytes, Session]:
        """The payload of the responder's message, and the session. Raises NotAuthentic."""
        public, sealed = _parts(answer)
        self._transcript.add_ephemeral(public)
        self._transcript.add_secret(_exchanged(self._ephemeral, public))
        if self._static is not None:
            self._transcript.add_secret(_exchanged(self._static, public))
        payload = self._transcript.open(sealed)
        sends, receives = self._transcript.split()
        return payload, Session(sends, receives)


class Responder:
    """The side that is called, for any number of handshakes. static: the initiator's public key (KN); None: NN."""

    def __init__(self, psk: bytes, prologue: bytes, static: Optional[bytes] = None) -> None:
        self._static = static
        self._begun = _begun(psk, prologue, static)

    def read(self, opening: bytes) -> "Opened":
        """Raises NotAuthentic."""
        public, sealed = _parts(opening)
        transcript = self._begun.copy()
        transcript.add_ephemeral(public)
        return Opened(transcript.open(sealed), transcript, public, self._static)


class Opened:
    """An opening that was made by somebody who knows the key. It may be an old one, sent again by somebody else."""

    def __init__(self, payload: bytes, transcript: _Transcript, public: bytes, static: Optional[bytes]) -> None:
        self.payload = payload
        self._transcript, self._public, self._static = transcript, public, static

    def answer(self, payload: bytes, ephemeral: Optional[bytes] = None) -> tuple[bytes, Session]:
        """The second message, and the session: whoever can send in it is the one who made the opening.

        Raises NotAuthentic where the opening has a public key that no private key belongs to.
        """
        own = _private(ephemeral)
        public = _public(own)
        self._transcript.add_ephemeral(public)
        self._transcript.add_secret(_exchanged(own, self._public))
        if self._static is not None:
            self._transcript.add_secret(_exchanged(own, self._static))
        message = public + self._transcript.seal(payload)
        receives, sends = self._transcript.split()
        return message, Session(sends, receives)


def public_key(private: bytes) -> bytes:
    """The public half of a private X25519 key; both of KEY_BYTES."""
    return _public(X25519PrivateKey.from_private_bytes(private))


def _begun(psk: bytes, prologue: bytes, static: Optional[bytes]) -> _Transcript:
    transcript = _Transcript(_NN if static is None else _KN, prologue)
    if static is not None:
        transcript.add(static)
    transcript.add_psk(psk)
    return transcript


def _private(raw: Optional[bytes]) -> X25519PrivateKey:
    """Raw ones are for tests with the specification's examples."""
    return X25519PrivateKey.generate() if raw is None else X25519PrivateKey.from_private_bytes(raw)


def _public(private: X25519PrivateKey) -> bytes:
    return private.public_key().public_bytes_raw()


def _exchanged(private: X25519PrivateKey, public: bytes) -> bytes:
    """Raises NotAuthentic for a public key of small order, with which anybody could know the result."""
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise NotAuthentic("the public key is no key") from None


def _parts(message: bytes) -> tuple[bytes, bytes]:
    """The ephemeral public key, and the sealed payload."""
    if len(message) < KEY_BYTES + TAG_BYTES:
        raise NotAuthentic(f"expected a handshake of at least {KEY_BYTES + TAG_BYTES} bytes, got {len(message)}")
    return message[:KEY_BYTES], message[KEY_BYTES:]


def _derived(chain: bytes, secret: bytes, count: int) -> list[bytes]:
    """HKDF of Noise: so many outputs of 32 bytes."""
    key = hmac.digest(chain, secret, "sha256")
    outputs, last = [], b""
    for number in range(1, count + 1):
        last = hmac.digest(key, last + bytes((number,)), "sha256")
        outputs.append(last)
    return outputs
