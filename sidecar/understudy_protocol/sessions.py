"""Encrypted sessions, and the handshake that opens one between two sides that know the same key. Without I/O.

The handshake: the caller sends a nonce and a payload in clear, and the sidecar answers with its own nonce and an
encrypted payload. The session has a key for each direction, both by HKDF-SHA256 (RFC 5869) from the shared key. The
salt is both nonces; the info is the prologue, which both sides have to agree on, and the caller's payload. So a session
opens only if both sides know the key and agree on all of this, and no recorded message fits into another session.
Messages are encrypted with AES-256-GCM, and both sides count them.

An attacker who steals the shared key later can read recorded sessions. noise.py prevents that, at six times the cost.
HKDF and AES-GCM are those of `cryptography`.
"""

import os
from typing import Optional

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

KEY_BYTES = 32
NONCE_BYTES = 32
TAG_BYTES = 16
_SHA256 = SHA256()


class NotAuthentic(Exception):
    """A message was not made with the key, or was changed, repeated or removed on its way."""


class Cipher:
    """One direction of a session, or a key of a handshake: each message takes the next number. key: KEY_BYTES."""

    __slots__ = ("_aead", "_next")

    def __init__(self, key: bytes) -> None:
        self._aead = AESGCM(key)
        self._next = 0

    def seal(self, text: bytes, about: Optional[bytes] = None) -> bytes:
        number = self._next
        self._next = number + 1
        return self._aead.encrypt(number.to_bytes(12, "big"), text, about)

    def open(self, sealed: bytes, about: Optional[bytes] = None) -> bytes:
        """Raises NotAuthentic."""
        number = self._next
        self._next = number + 1
        try:
            return self._aead.decrypt(number.to_bytes(12, "big"), sealed, about)
        except InvalidTag:
            raise NotAuthentic("a message cannot be opened with the session's key") from None

    def seal_into(self, text: memoryview, sealed: memoryview) -> None:
        """The same for large blocks. sealed: TAG_BYTES longer than the text."""
        number = self._next
        self._next = number + 1
        self._aead.encrypt_into(number.to_bytes(12, "big"), text, None, sealed)

    def open_into(self, sealed: memoryview, text: memoryview) -> None:
        """Raises NotAuthentic."""
        number = self._next
        self._next = number + 1
        try:
            self._aead.decrypt_into(number.to_bytes(12, "big"), sealed, None, text)
        except InvalidTag:
            raise NotAuthentic("a block cannot be opened with its key") from None


def record_cipher(key: bytes, about: bytes, nonce: bytes) -> Cipher:
    """For one record that is kept, and may be opened by any process that knows the key. nonce: never used again."""
    return Cipher(HKDF(_SHA256, KEY_BYTES, salt=nonce, info=about).derive(key))


class Session:
    """The messages after a handshake. Both sides encrypt and decrypt them in the same order, each once."""

    __slots__ = ("_receives", "_sends")

    def __init__(self, sends: Cipher, receives: Cipher) -> None:
        self._sends, self._receives = sends, receives

    def seal(self, text: bytes) -> bytes:
        """The encrypted text, which is TAG_BYTES longer."""
        return self._sends.seal(text)

    def open(self, sealed: bytes) -> bytes:
        """The next text of the other side. Raises NotAuthentic; after that no message can be opened."""
        return self._receives.open(sealed)


class SharedKeyCaller:
    """The calling side. key: KEY_BYTES. about: the prologue, which both sides have to agree on."""

    def __init__(self, key: bytes, about: bytes) -> None:
        self._key, self._about = key, about
        self._opening = os.urandom(NONCE_BYTES)

    def opening(self, payload: bytes) -> bytes:
        """The first message. An attacker can read its payload, and send it again."""
        self._opening += payload
        return self._opening

    def finish(self, answer: bytes) -> tuple[bytes, Session]:
        """The payload of the other side's message, and the session. Raises NotAuthentic."""
        nonce, sealed = parts(answer)
        caller, called = _keys(self._key, self._about, self._opening, nonce)
        session = Session(Cipher(caller), Cipher(called))
        return session.open(sealed), session


class SharedKeyCalled:
    """The called side, for any number of handshakes. The arguments are those of SharedKeyCaller."""

    def __init__(self, key: bytes, about: bytes) -> None:
        self._key, self._about = key, about

    def read(self, opening: bytes) -> "SharedKeyOpening":
        """Raises NotAuthentic if the opening is malformed. It proves nothing about its sender yet."""
        if len(opening) < NONCE_BYTES:
            raise NotAuthentic(f"expected a handshake of at least {NONCE_BYTES} bytes, got {len(opening)}")
        return SharedKeyOpening(self._key, self._about, opening)


class SharedKeyOpening:
    """An opening that proves nothing about its sender."""

    def __init__(self, key: bytes, about: bytes, opening: bytes) -> None:
        self.payload = opening[NONCE_BYTES:]
        self._key, self._about, self._opening = key, about, opening

    def answer(self, payload: bytes) -> tuple[bytes, Session]:
        """The second message, and the session: only a process with the key that made the opening can send in it."""
        nonce = os.urandom(NONCE_BYTES)
        caller, called = _keys(self._key, self._about, self._opening, nonce)
        session = Session(Cipher(called), Cipher(caller))
        return nonce + session.seal(payload), session


def parts(message: bytes) -> tuple[bytes, bytes]:
    """The nonce or public key at the start of a handshake message, and its encrypted part. Raises NotAuthentic."""
    if len(message) < NONCE_BYTES + TAG_BYTES:
        raise NotAuthentic(f"expected a handshake of at least {NONCE_BYTES + TAG_BYTES} bytes, got {len(message)}")
    return message[:NONCE_BYTES], message[NONCE_BYTES:]


def _keys(key: bytes, about: bytes, opening: bytes, nonce: bytes) -> tuple[bytes, bytes]:
    """The keys of the caller's messages, and of the sidecar's."""
    salt = opening[:NONCE_BYTES] + nonce
    info = len(about).to_bytes(4, "big") + about + opening[NONCE_BYTES:]
    both = HKDF(_SHA256, 2 * KEY_BYTES, salt=salt, info=info).derive(key)
    return both[:KEY_BYTES], both[KEY_BYTES:]
