"""A raw Secret of a job or a pool -> its membership key, and the address that an injected job's pods are given.

A Secret without a key that can be read counts as there: the operator does not replace what somebody has written.
"""

import base64
import binascii
import json
from dataclasses import dataclass

from understudy_operator.observe.store import Key, Kind, Owner, Raw, Store
from understudy_operator.plan.malformed import PartlyMalformed
from understudy_protocol import pod as names


@dataclass(frozen=True)
class MembershipSecret:
    key: str  # as the sidecars read it from the mounted file: keys are printable; "" if there is none
    address: str  # of the coordinator's Service; "" if the job is not injected


def read_secret(raw: Raw) -> MembershipSecret:
    """Raises PartlyMalformed. Its message names fields, and has nothing of what is in them."""
    data, wrong = raw.get("data", {}), list[str]()
    key = _decoded(data.get(names.KEY_FILE, ""))
    if not key or not key.isprintable():
        key = ""
        wrong.append(f"data[{names.KEY_FILE}]: expected a membership key, in base64")
    address = ""
    if names.INJECTED_FILE in data:
        address = _address(_decoded(data[names.INJECTED_FILE]))
        if not address:
            wrong.append(f"data[{names.INJECTED_FILE}]: expected JSON with the coordinator's address, in base64")
    secret = MembershipSecret(key, address)
    if wrong:
        raise PartlyMalformed(f"{'; '.join(wrong)}. Restore the Secret from a copy", secret)
    return secret


def secret_at(store: Store, key: Key) -> MembershipSecret | None:
    return store.fact(Kind.SECRET, key, read_secret)


def last_secret_of(store: Store, job: Owner) -> MembershipSecret | None:
    """The job's Secret as it was last seen, whether or not it is still there."""
    raw = store.last_secret(job)
    if raw is None:
        return None
    try:
        return read_secret(raw)
    except PartlyMalformed as error:
        found: MembershipSecret = error.fact
        return found


def key_of_pool(store: Store, pool: Owner) -> str:
    """The key that its warm spares know; "" if there is none."""
    return next((secret.key for secret in store.facts_of_job(Kind.SECRET, pool, read_secret) if secret.key), "")


def _decoded(text: object) -> str:
    """ "" if it cannot be decoded."""
    try:
        return base64.b64decode(text, validate=True).decode() if isinstance(text, str) else ""
    except (binascii.Error, ValueError):
        return ""


def _address(text: str) -> str:
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    address = told.get("coordinator") if isinstance(told, dict) else None
    return address if isinstance(address, str) else ""
