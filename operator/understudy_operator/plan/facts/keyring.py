"""All keys of the operator, derived from one master secret by HKDF-SHA256 (RFC 5869). Pure.

Each key can be derived from the master secret. No other key can be derived from a derived key. So the operator reads no
Secret of a job, and creates a deleted Secret again with the same content.
"""

import json

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

KEY_BYTES = 32


class Keyring:
    """master: at least 32 random bytes. Raises ValueError for fewer."""

    def __init__(self, master: bytes) -> None:
        if len(master) < KEY_BYTES:
            raise ValueError(f"expected a master secret of at least {KEY_BYTES} bytes, got {len(master)}")
        self._master = master
        self._operator = self._derived("operator")
        private = X25519PrivateKey.from_private_bytes(self._operator)
        self._operator_public = private.public_key().public_bytes_raw().hex()

    def of_job(self, namespace: str, uid: str, attempt: int) -> str:
        """The membership key of one attempt of a job, as 64 hexadecimal digits.

        namespace: the spec of an InjectedJob contains the uid of the injected job. An InjectedJob of another namespace
        that names the same uid gets another key.
        attempt: Job.attempt.
        """
        return self._derived("job", namespace, uid, str(attempt)).hex()

    def of_pool(self, namespace: str, uid: str) -> str:
        """The key that the warm spares of a pool share with the operator, as 64 hexadecimal digits.

        namespace: the annotation of a claimed spare names the uid, and users can write annotations.
        """
        return self._derived("pool", namespace, uid).hex()

    def of_rollouts(self, namespace: str, uid: str) -> str:
        """The token that gateways and trainers of a job share, as 64 hexadecimal digits."""
        return self._derived("rollouts", namespace, uid).hex()

    def operator(self) -> bytes:
        """The operator's private X25519 key, 32 bytes: with it the operator proves its identity to sidecars."""
        return self._operator

    def operator_public(self) -> str:
        """The public half of `operator`, as 64 hexadecimal digits. Each Secret with a key contains it, too."""
        return self._operator_public

    def _derived(self, *purpose: str) -> bytes:
        # As JSON, so that no two different lists give the same bytes.
        info = json.dumps(["understudy", *purpose]).encode()
        return HKDF(SHA256(), KEY_BYTES, salt=None, info=info).derive(self._master)
