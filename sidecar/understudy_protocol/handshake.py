"""The mutual proof of the job's key, before any other message on a coordinator's connection.

Caller -> `Hello(role, nonce)`; coordinator -> `Challenge(nonce, proof)`; caller -> `Prove(proof)`; then the role's own
messages. Each proof is an HMAC-SHA256 over who proves, the caller's role, the job's uid and both nonces: the key never
crosses the wire, nothing can be replayed (fresh nonces) nor reflected (the side is part of what is proven).
"""

import hmac
from dataclasses import dataclass
from enum import Enum

NONCE_BYTES = 16


class Role(str, Enum):
    """What a caller wants to be."""

    MEMBER = "member"
    OBSERVER = "observer"
    CLAIMANT = "claimant"  # of a pool's spare: uid and key are the pool's


@dataclass(frozen=True)
class Hello:
    """The caller's first message: what it wants to be, and in which job."""

    role: Role
    job_uid: str
    nonce: str


@dataclass(frozen=True)
class Challenge:
    """The answer to a Hello of the same job: the sidecar proves the key first."""

    nonce: str
    proof: str


@dataclass(frozen=True)
class Prove:
    """The caller's answer to a Challenge whose proof holds; the role's own messages follow it."""

    proof: str


def caller_proof(key: bytes, role: Role, job_uid: str, caller_nonce: str, server_nonce: str) -> str:
    return _proof(key, "caller", role.value, job_uid, caller_nonce, server_nonce)


def server_proof(key: bytes, role: Role, job_uid: str, caller_nonce: str, server_nonce: str) -> str:
    return _proof(key, "server", role.value, job_uid, caller_nonce, server_nonce)


class NotProven(Exception):
    """The other side of a connection could not prove that it knows the job's key."""


class Caller:
    """The caller's side of one handshake: send `hello`, then what `answer` makes of the Challenge that comes back."""

    def __init__(self, key: bytes, role: Role, job_uid: str, nonce: str) -> None:
        self.hello = Hello(role, job_uid, nonce)
        self._key = key

    def answer(self, challenge: object) -> Prove:
        """Raises NotProven where who answered is not one of this job's sidecars."""
        if not isinstance(challenge, Challenge):
            raise NotProven("no Challenge came back")
        parts = (self._key, self.hello.role, self.hello.job_uid, self.hello.nonce, challenge.nonce)
        if not same(server_proof(*parts), challenge.proof):
            raise NotProven("it does not know the job's key")
        return Prove(caller_proof(*parts))


def same(expected: str, given: str) -> bool:
    """Whether two proofs are equal, in constant time."""
    return hmac.compare_digest(expected.encode(), given.encode())


def _proof(key: bytes, *parts: str) -> str:
    # Length-prefixed, so that no two different lists of parts give the same bytes.
    text = "".join([f"{len(part)}:{part}" for part in parts])
    return hmac.digest(key, text.encode(), "sha256").hex()
