"""The handshake at the start of a connection to a sidecar. All messages after it are encrypted (sessions.py).

The caller sends `Hello`, the sidecar sends `Answer`, and the caller sends its first encrypted message, which is empty.
That message proves that the caller knows the key, and that it made this Hello itself and did not record it. Until then
the sidecar does nothing for the caller. The messages of the caller's role follow.

- A member proves that it knows the job's membership key (sessions.py). The operator proves in addition that it has the
  operator's private key (noise.py), so that the membership key alone does not make a pod the operator. The key of a
  pool's spare is the pool's.
- The caller reports the uid of its pod and the address that it has called. A sidecar with another address rejects the
  Hello, so that a relay cannot pass a handshake on to another sidecar. The sidecar reports the uid of its pod.
- Both sides prove the role, the uid and _PROTOCOL as well.
"""

import base64
import binascii
import json
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Optional

from understudy_protocol.noise import Initiator, Responder
from understudy_protocol.sessions import NotAuthentic, Session, SharedKeyCalled, SharedKeyCaller

#: Changes with each incompatible change of the handshake.
_PROTOCOL = "understudy membership 1"
#: Most characters of a pod's uid or an address in a handshake.
_LONGEST = 128


class Role(str, Enum):
    """The role of a caller."""

    MEMBER = "member"
    PEER = "peer"  # a member that sends or requests copies of snapshots
    OBSERVER = "observer"  # the operator, of a job
    CLAIMANT = "claimant"  # the operator, of a pool's spare: uid and key are the pool's


@dataclass(frozen=True)
class Hello:
    """The caller's first message: its role and its job."""

    role: Role
    job_uid: str
    handshake: str  # the first message of sessions.py or noise.py, in base64


@dataclass(frozen=True)
class Answer:
    """The answer to a Hello that was made for this job and with its key."""

    handshake: str  # the second message of sessions.py or noise.py, in base64


class NotProven(Exception):
    """The peer could not prove that it knows the key, or it is not the called pod."""


class Call(NamedTuple):
    """The caller's pod, and the address that it calls. Not a message."""

    pod_uid: str  # its own; "" of the operator
    called: str  # the IP address that it has called; "" if that is a Service's


class HandshakeCaller:
    """The caller's side of one handshake. operator: the operator's private key, for roles that need it."""

    def __init__(self, key: bytes, role: Role, job_uid: str, call: Call, operator: Optional[bytes] = None) -> None:
        about = _about(role, job_uid)
        self._side = SharedKeyCaller(key, about) if operator is None else Initiator(key, about, operator)
        self.hello = Hello(role, job_uid, _text(self._side.opening(_packed(call.pod_uid, call.called))))

    def finish(self, answer: object) -> tuple[str, Session]:
        """The uid of the pod that answered, and the session. Next the caller sends `session.seal(b"")`.

        Raises NotProven.
        """
        if not isinstance(answer, Answer):
            raise NotProven("expected an Answer to the Hello")
        try:
            payload, session = self._side.finish(_bytes(answer.handshake))
            (pod_uid,) = _unpacked(payload, 1)
        except NotAuthentic as error:
            raise NotProven("it does not know the job's key") from error
        return pod_uid, session


class HandshakeCalled:
    """The sidecar's side, for all callers of one role. operator: the operator's public key, for roles that need it.

    pod_uid, ip: of this pod.
    """

    def __init__(
        self, key: bytes, role: Role, job_uid: str, pod_uid: str, ip: str, operator: Optional[bytes] = None
    ) -> None:
        self._job_uid = job_uid
        self._addresses = ("", ip) if role is Role.MEMBER else (ip,)  # only members call Services
        self._answers = _packed(pod_uid)
        about = _about(role, job_uid)
        self._side = SharedKeyCalled(key, about) if operator is None else Responder(key, about, operator)

    def answer(self, hello: Hello) -> tuple[Answer, Call, Session]:
        """Raises NotProven. The caller has proved nothing until its first, empty encrypted message is opened."""
        if hello.job_uid != self._job_uid:
            raise NotProven(f"it belongs to job {hello.job_uid[:64]!r}, and this pod to another job")
        try:
            opened = self._side.read(_bytes(hello.handshake))
            call = Call(*_unpacked(opened.payload, 2))
            if call.called not in self._addresses:
                raise NotProven(f"it called address {call.called[:64]!r}, which is not this pod's")
            answer, session = opened.answer(self._answers)
        except NotAuthentic as error:
            raise NotProven("it does not know the job's key") from error
        return Answer(_text(answer)), call, session


def _about(role: Role, job_uid: str) -> bytes:
    return json.dumps([_PROTOCOL, role.value, job_uid]).encode()


def _packed(*texts: str) -> bytes:
    return json.dumps(texts).encode()


def _unpacked(payload: bytes, count: int) -> list[str]:
    """Raises NotProven: a peer with the key may send anything."""
    try:
        texts = json.loads(payload)
    except (ValueError, RecursionError):
        texts = None
    if not isinstance(texts, list) or len(texts) != count:
        raise NotProven(f"expected {count} strings in its handshake")
    if not all(isinstance(text, str) and len(text) <= _LONGEST for text in texts):
        raise NotProven(f"expected strings of at most {_LONGEST} characters in its handshake")
    return texts


def _text(message: bytes) -> str:
    return base64.b64encode(message).decode()


def _bytes(text: str) -> bytes:
    """Raises NotAuthentic."""
    try:
        return base64.b64decode(text.encode(), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        raise NotAuthentic("the handshake is not base64") from None
