"""The handshake of a caller and a sidecar: accepted callers, facts that each side learns, and invalid handshakes."""

from __future__ import annotations

import base64
import json
import time
from dataclasses import fields, is_dataclass, replace
from pathlib import Path

import pytest

from understudy_protocol import copies, enums, hard_state, membership, snapshots, wire
from understudy_protocol.handshake import (
    Answer,
    Call,
    HandshakeCalled,
    HandshakeCaller,
    Hello,
    NotProven,
    Role,
    _about,
)
from understudy_protocol.noise import public_key
from understudy_protocol.sessions import Cipher, NotAuthentic, Session, SharedKeyCalled, SharedKeyCaller, _keys

RECORDED = Path(__file__).parent / "recorded" / "v2-handshake.jsonl"
KEY, OTHER_KEY, JOB = bytes(range(32)), bytes(32), "job-uid"
OPERATOR, OTHER_PRIVATE_KEY = bytes(range(32, 64)), bytes(range(64, 96))
IP = "10.0.0.7"
OPERATORS = (Role.OBSERVER, Role.CLAIMANT)
MEMBERS = (Role.MEMBER, Role.PEER)


def caller(
    role: Role = Role.MEMBER, key: bytes = KEY, job: str = JOB, called: str = IP, operator: bytes | None = None
) -> HandshakeCaller:
    return HandshakeCaller(key, role, job, Call("uid-of-the-caller", called), operator)


def sidecar(role: Role = Role.MEMBER) -> HandshakeCalled:
    operator = None if role in MEMBERS else public_key(OPERATOR)
    return HandshakeCalled(KEY, role, JOB, "uid-of-the-sidecar", IP, operator)


def own_key(role: Role) -> bytes | None:
    """The private key of a rightful caller."""
    return None if role in MEMBERS else OPERATOR


def agree(ours: Session, theirs: Session) -> bool:
    """Whether each side can open the messages of the other one."""
    try:
        return theirs.open(ours.seal(b"a")) == b"a" and ours.open(theirs.seal(b"b")) == b"b"
    except NotAuthentic:
        return False


def refuses(called: HandshakeCalled, hello: Hello, ours: HandshakeCaller) -> bool:
    """Whether the sidecar, or else the caller, stops: then no message of the caller is opened."""
    try:
        answer, _, _ = called.answer(hello)
        ours.finish(answer)
    except NotProven:
        return True
    return False


# Which callers are accepted


@pytest.mark.parametrize(
    ("role", "called"), [*((role, IP) for role in Role), (Role.MEMBER, "")], ids=lambda value: str(value) or "a Service"
)
def test_two_sides_that_know_their_keys_get_a_session_and_each_others_identity(role: Role, called: str) -> None:
    ours = caller(role, called=called, operator=own_key(role))
    answer, call, theirs = sidecar(role).answer(ours.hello)
    pod_uid, session = ours.finish(answer)

    assert call == Call("uid-of-the-caller", called)
    assert pod_uid == "uid-of-the-sidecar"
    assert agree(session, theirs)


@pytest.mark.attack(
    "C1", "passes on a handshake of the operator that names no address", before="any pod of the job accepted it"
)
@pytest.mark.parametrize("role", [Role.OBSERVER, Role.CLAIMANT])
def test_in_the_roles_of_the_operator_a_caller_has_to_name_the_address(role: Role) -> None:
    with pytest.raises(NotProven, match=r"it called address '', which is not this pod's"):
        sidecar(role).answer(caller(role, called="", operator=own_key(role)).hello)


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize(("key", "job"), [(OTHER_KEY, JOB), (KEY, "another-job")], ids=["key", "job"])
def test_a_caller_with_another_key_or_job_is_refused(role: Role, key: bytes, job: str) -> None:
    ours = caller(role, key, job, operator=own_key(role))
    assert refuses(sidecar(role), ours.hello, ours)


@pytest.mark.parametrize("made_for", Role)
@pytest.mark.parametrize("wanted", Role)
def test_a_hello_counts_for_its_own_role_alone(made_for: Role, wanted: Role) -> None:
    if made_for is wanted:
        return
    ours = caller(made_for, operator=own_key(made_for))
    assert refuses(sidecar(wanted), replace(ours.hello, role=wanted), ours)


def test_a_hello_counts_for_its_own_job_alone() -> None:
    ours = caller(job="another-job")
    assert refuses(sidecar(), replace(ours.hello, job_uid=JOB), ours)


@pytest.mark.parametrize("role", OPERATORS)
@pytest.mark.parametrize("operator", [None, OTHER_PRIVATE_KEY], ids=["no key", "another key"])
def test_the_membership_key_alone_does_not_prove_that_a_caller_is_the_operator(
    role: Role, operator: bytes | None
) -> None:
    with pytest.raises(NotProven):
        sidecar(role).answer(caller(role, operator=operator).hello)


@pytest.mark.parametrize("role", Role)
def test_a_sidecar_that_was_not_called_refuses(role: Role) -> None:
    with pytest.raises(NotProven, match=r"it called address '10\.0\.0\.8', which is not this pod's"):
        sidecar(role).answer(caller(role, called="10.0.0.8", operator=own_key(role)).hello)


def test_the_refusal_of_another_job_does_not_name_this_one() -> None:
    with pytest.raises(NotProven) as refused:
        sidecar().answer(caller(job="another-job").hello)
    assert "another-job" in str(refused.value)
    assert JOB not in str(refused.value).replace("another-job", "")


# Attacks without the key


@pytest.mark.parametrize("role", Role)
def test_a_hello_that_is_sent_again_gets_another_session(role: Role) -> None:
    # given a session whose messages an attacker has recorded
    ours, called = caller(role, operator=own_key(role)), sidecar(role)
    answer, _, _ = called.answer(ours.hello)
    _, session = ours.finish(answer)
    proof = session.seal(b"")
    # when the Hello is sent again
    again, _, theirs = called.answer(ours.hello)
    # then the recorded proof does not open
    assert again != answer
    with pytest.raises(NotAuthentic):
        theirs.open(proof)


def test_an_answer_to_another_hello_is_refused() -> None:
    answer, _, _ = sidecar().answer(caller().hello)
    with pytest.raises(NotProven, match="does not know the job's key"):
        caller().finish(answer)


@pytest.mark.parametrize("other", [caller().hello, wire.Unknown("FromTheFuture"), None])
def test_another_message_is_no_answer(other: object) -> None:
    with pytest.raises(NotProven, match="expected an Answer to the Hello"):
        caller().finish(other)


def test_a_hello_of_the_operator_shows_the_role_and_the_job_and_no_more() -> None:
    hello = caller(Role.OBSERVER, operator=OPERATOR).hello
    assert (hello.role, hello.job_uid) == (Role.OBSERVER, JOB)
    sent = base64.b64decode(hello.handshake)
    assert b"uid-of-the-caller" not in sent
    assert IP.encode() not in sent


@pytest.mark.parametrize("role", MEMBERS)
def test_a_hello_of_a_member_shows_the_uid_of_its_pod_and_the_called_address(role: Role) -> None:
    hello = caller(role).hello
    assert (hello.role, hello.job_uid) == (role, JOB)
    assert base64.b64decode(hello.handshake)[32:] == b'["uid-of-the-caller", "10.0.0.7"]'


@pytest.mark.parametrize(("role", "most_ms"), [(Role.MEMBER, 0.2), (Role.OBSERVER, 1.0)])
def test_an_answer_to_a_hello_takes_little_cpu_time(role: Role, most_ms: float) -> None:
    hello, called = caller(role, operator=own_key(role)).hello, sidecar(role)
    before = time.thread_time()
    for _ in range(200):
        called.answer(hello)
    assert (time.thread_time() - before) / 200 < most_ms / 1000


@pytest.mark.parametrize("role", MEMBERS)
def test_a_thief_of_the_key_reads_a_recorded_session_of_members(role: Role) -> None:
    """A limit that docs/explanation/security.md states. The operator's sessions are the next test."""
    # given a recorded session of two members, and the key, which was stolen later
    ours = caller(role)
    answer, _, theirs = sidecar(role).answer(ours.hello)
    _, session = ours.finish(answer)
    recorded = [session.seal(b""), session.seal(b"from the caller")], [theirs.seal(b"from the sidecar")]
    # when the thief derives the session's keys from the recorded Hello and Answer
    opening, answered = base64.b64decode(ours.hello.handshake), base64.b64decode(answer.handshake)
    of_caller, of_sidecar = _keys(KEY, _about(role, JOB), opening, answered[:32])
    # then all messages open
    sealed_by_caller, sealed_by_sidecar = Cipher(of_caller), Cipher(of_sidecar)
    assert sealed_by_sidecar.open(answered[32:]) == b'["uid-of-the-sidecar"]'
    assert sealed_by_sidecar.open(recorded[1][0]) == b"from the sidecar"
    assert [sealed_by_caller.open(x) for x in recorded[0]] == [b"", b"from the caller"]


def test_no_message_between_members_has_a_field_for_a_key() -> None:
    modules = (membership, copies, snapshots, hard_state, enums)
    classes = [x for module in modules for x in vars(module).values() if isinstance(x, type) and is_dataclass(x)]
    assert membership.Join in classes
    assert [(x.__name__, y.name) for x in classes for y in fields(x) if "key" in y.name or "secret" in y.name] == []


@pytest.mark.attack(
    "C2",
    "a thief of the membership key that reads a recorded session of the operator",
    before="messages were not encrypted",
)
@pytest.mark.parametrize("role", OPERATORS)
def test_a_thief_of_the_key_cannot_read_a_recorded_session_of_the_operator(role: Role) -> None:
    # given a recorded session of the operator, and the key, which was stolen later
    ours = caller(role, operator=OPERATOR)
    answer, _, theirs = sidecar(role).answer(ours.hello)
    _, session = ours.finish(answer)
    recorded = [session.seal(b""), session.seal(b"from the operator"), theirs.seal(b"from the sidecar")]
    # when the thief takes the part of either side
    as_operator = caller(role, operator=OPERATOR)
    _, call, as_sidecar = sidecar(role).answer(ours.hello)
    # then only the payload of the Hello opens
    assert call == Call("uid-of-the-caller", IP)
    with pytest.raises(NotProven):
        as_operator.finish(answer)
    for message in recorded:
        with pytest.raises(NotAuthentic):
            as_sidecar.open(message)


GARBAGE = ["", "A", "AAAA", "é" * 64, "\ud800", "A" * 64, base64.b64encode(bytes(64)).decode()]


@pytest.mark.parametrize("noise", GARBAGE)
def test_garbage_is_no_handshake_and_no_error_of_another_kind(noise: str) -> None:
    with pytest.raises(NotProven):
        sidecar().answer(Hello(Role.MEMBER, JOB, noise))
    with pytest.raises(NotProven):
        caller().finish(Answer(noise))


# Attacks with the key

PAYLOADS = {
    "no-json": b"\xff",
    "deep": b"[" * 100_000,
    "no-list": b'{"a":"b","c":"d"}',
    "too-few": b"[]",
    "too-many": b'["a","b","c"]',
    "no-texts": b"[1,2]",
    "one-no-text": b"[null]",
    "too-long": json.dumps(["a", "b" * 129]).encode(),
    "one-too-long": json.dumps(["b" * 129]).encode(),
}


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
def test_a_payload_that_is_no_list_of_short_texts_is_refused(payload: bytes) -> None:
    prologue = json.dumps(["understudy membership 1", "member", JOB]).encode()
    opening = SharedKeyCaller(KEY, prologue).opening(payload)
    with pytest.raises(NotProven, match="in its handshake"):
        sidecar().answer(Hello(Role.MEMBER, JOB, base64.b64encode(opening).decode()))

    ours = caller()
    answer, _ = SharedKeyCalled(KEY, prologue).read(base64.b64decode(ours.hello.handshake)).answer(payload)
    with pytest.raises(NotProven, match="in its handshake"):
        ours.finish(Answer(base64.b64encode(answer).decode()))


def test_a_called_address_that_would_break_a_line_of_the_log_is_quoted() -> None:
    with pytest.raises(NotProven) as refused:
        sidecar().answer(caller(called="10.0.0.8\nforged: line \ud800").hello)
    assert "\n" not in str(refused.value)
    assert str(refused.value).isascii()


# Versions and limits


def test_a_recorded_handshake_of_version_2_is_read() -> None:
    line, _ = RECORDED.read_text().splitlines()
    hello = wire.decode(line, {"Hello": Hello})
    _, call, _ = HandshakeCalled(KEY, Role.MEMBER, JOB, "uid-2", IP).answer(hello)
    assert call == Call("uid-1", IP)


def test_the_longest_hello_fits_into_the_limit_before_the_proof() -> None:
    longest = HandshakeCaller(
        KEY, Role.CLAIMANT, "j" * 64, Call("p" * 64, "2001:0db8:0000:0000:0000:0000:255.255.255.255"), KEY
    )
    assert len(wire.encode(longest.hello)) < 600, "of 1,024 bytes, less the head of the upgrade"
