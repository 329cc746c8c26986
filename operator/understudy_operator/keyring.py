"""All keys of the operator, derived from one master secret by HKDF-SHA256 (RFC 5869). Pure.

Whoever knows the master secret can derive each of them; from a derived key nobody learns another one. So the operator
reads no Secret of a job, and a Secret that was deleted is made again with the same content.
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

    def of_job(self, uid: str, attempt: int) -> str:
        """The membership key of one attempt of a job, as 64 hexadecimal digits.

        attempt: the coordinator epoch at which the attempt began, as LABEL_ATTEMPT has it; 0 for the first one.
        """
        return self._derived("job", uid, str(attempt)).hex()

    def of_pool(self, uid: str) -> str:
        """The key that the warm spares of a pool share with the operator, as 64 hexadecimal digits."""
        return self._derived("pool", uid).hex()

    def operator(self) -> bytes:
        """The operator's private X25519 key, 32 bytes: it proves to sidecars that the operator calls."""
        return self._derived("operator")

    def operator_public(self) -> str:
        """The public half of `operator`, as 64 hexadecimal digits: each Secret has it in pod.OPERATOR_KEY_FILE."""
        return X25519PrivateKey.from_private_bytes(self.operator()).public_key().public_bytes_raw().hex()

    def _derived(self, *purpose: str) -> bytes:
        # As JSON, so that no two different lists give the same bytes.
        info = json.dumps(["understudy", *purpose]).encode()
        return HKDF(SHA256(), KEY_BYTES, salt=None, info=info).derive(self._master)
