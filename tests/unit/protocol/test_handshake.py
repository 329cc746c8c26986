"""The mutual proof of the job's key: what an outsider who hears and speaks can do with it."""

import itertools

import pytest

from understudy_protocol.handshake import Role, caller_proof, same, server_proof

KEY, JOB = b"0123456789abcdef", "job-uid"
HERS, MINE = "caller-nonce", "server-nonce"
TRUE = caller_proof(KEY, Role.MEMBER, JOB, HERS, MINE)


def test_both_sides_that_know_the_key_agree() -> None:
    assert same(TRUE, caller_proof(KEY, Role.MEMBER, JOB, HERS, MINE))


@pytest.mark.parametrize(
    "forged",
    [
        caller_proof(b"another key", Role.MEMBER, JOB, HERS, MINE),
        caller_proof(KEY, Role.OBSERVER, JOB, HERS, MINE),
        caller_proof(KEY, Role.MEMBER, "another-job", HERS, MINE),
        caller_proof(KEY, Role.MEMBER, JOB, HERS, "nonce of an earlier call"),
        caller_proof(KEY, Role.MEMBER, JOB, MINE, HERS),
        server_proof(KEY, Role.MEMBER, JOB, HERS, MINE),
        "",
        TRUE.upper(),
    ],
    ids=["wrong-key", "other-role", "other-job", "replayed", "swapped", "reflected", "empty", "upper-case"],
)
def test_nothing_else_passes(forged: str) -> None:
    assert not same(TRUE, forged)


def test_a_proof_cannot_be_shifted_between_its_parts() -> None:
    parts = [("a", "bc", "d"), ("ab", "c", "d"), ("a", "b", "cd"), ("a", "1:b", "cd"), ("a1:", "b", "cd")]
    proofs = [caller_proof(KEY, Role.MEMBER, *each) for each in parts]
    assert all(a != b for a, b in itertools.combinations(proofs, 2))


def test_a_proof_that_is_no_ascii_is_wrong_and_no_error() -> None:
    assert not same(TRUE, "é" * 64)
