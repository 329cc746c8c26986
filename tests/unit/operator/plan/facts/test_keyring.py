"""The keys that are derived from one master secret: all of them, and no two are equal."""

import hashlib
import hmac
import json

import pytest

from understudy_operator.plan.facts.keyring import Keyring
from understudy_protocol.handshake import Call, HandshakeCalled, HandshakeCaller, NotProven, Role

MASTER = bytes(range(32))
RING = Keyring(MASTER)


def rfc_5869(master: bytes, info: list[str]) -> bytes:
    """HKDF-SHA256 of 32 bytes without a salt: extract, and one block of expand."""
    pseudorandom = hmac.new(bytes(32), master, hashlib.sha256).digest()
    return hmac.new(pseudorandom, json.dumps(info).encode() + b"\x01", hashlib.sha256).digest()


def test_the_derivation_of_the_tests_is_that_of_the_rfc() -> None:
    """Its test case 3, with empty salt and info: the first 32 of its 42 bytes."""
    pseudorandom = hmac.new(bytes(32), b"\x0b" * 22, hashlib.sha256).digest()
    assert pseudorandom.hex() == "19ef24a32c717b167f33a91d6f648bdf96596776afdb6377ac434c1c293ccb04"
    first = hmac.new(pseudorandom, b"\x01", hashlib.sha256).hexdigest()
    assert first == "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d"


def test_each_key_is_derived_by_hkdf_over_its_purpose() -> None:
    derived = {
        RING.of_job("research", "uid", 1790000000): ["understudy", "job", "research", "uid", "1790000000"],
        RING.of_pool("research", "uid"): ["understudy", "pool", "research", "uid"],
        RING.of_rollouts("research", "uid"): ["understudy", "rollouts", "research", "uid"],
        RING.operator().hex(): ["understudy", "operator"],
    }
    assert list(derived) == [rfc_5869(MASTER, info).hex() for info in derived.values()]
    assert len(derived) == 4


def test_the_keys_of_a_master_secret_do_not_change() -> None:
    """Another derivation would disconnect an upgraded operator from all running pods."""
    assert [RING.of_job("research", "uid", 0), RING.operator_public()] == [
        "2e9dfb2cce4aad93b69265a336ff2842e3813ea64ab134bafb65553a4f51cf97",
        "b509b4be26d9f2e06b717e735c91f1205ab1ba531c42edeb09b48eba872a550f",
    ]


@pytest.mark.attack(
    "C3", "joins a job, or claims a spare, with a master secret that was replaced", before="refused, too"
)
def test_a_thief_of_a_master_secret_that_was_replaced_gets_no_session() -> None:
    # given pods that were created after the replacement, and a thief that derives each of their keys from the old
    # secret
    stolen, now = RING, Keyring(bytes(range(1, 33)))
    call = Call("uid-of-the-thief", "10.0.0.7")
    for role, others, own in (
        (Role.MEMBER, stolen.of_job("research", "uid", 1), now.of_job("research", "uid", 1)),
        (Role.OBSERVER, stolen.of_job("research", "uid", 1), now.of_job("research", "uid", 1)),
        (Role.CLAIMANT, stolen.of_pool("research", "uid"), now.of_pool("research", "uid")),
    ):
        operators = role is not Role.MEMBER
        pod = HandshakeCalled(
            bytes.fromhex(own),
            role,
            "uid",
            "uid-of-the-pod",
            "10.0.0.7",
            bytes.fromhex(now.operator_public()) if operators else None,
        )
        thief = HandshakeCaller(bytes.fromhex(others), role, "uid", call, stolen.operator() if operators else None)
        # then no pod accepts the thief's handshake
        with pytest.raises(NotProven):
            thief.finish(pod.answer(thief.hello)[0])


@pytest.mark.attack("C3", "a thief of a key that tries it on other jobs, pools and gateways", before="keys were random")
def test_no_other_job_attempt_namespace_or_master_secret_has_the_same_key() -> None:
    keys = [
        RING.of_job("research", "uid", 0),
        RING.of_job("research", "uid", 1),
        RING.of_job("research", "uid-1", 0),
        RING.of_job("other", "uid", 0),
        RING.of_job("research", "another", 0),
        RING.of_pool("research", "uid"),
        RING.of_pool("other", "uid"),
        RING.of_rollouts("research", "uid"),
        Keyring(MASTER + b"\n").of_job("research", "uid", 0),
    ]
    assert len(set(keys)) == len(keys)


def test_names_that_contain_the_separator_do_not_collide() -> None:
    assert RING.of_job('a", "b', "c", 0) != RING.of_job("a", 'b", "c', 0)


@pytest.mark.parametrize("bytes_", [0, 31])
def test_a_master_secret_of_fewer_than_32_bytes_is_refused(bytes_: int) -> None:
    with pytest.raises(ValueError, match=f"at least 32 bytes, got {bytes_}"):
        Keyring(b"x" * bytes_)
