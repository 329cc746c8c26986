"""The sidecar's WebSocket server: members and the operator call here.

Rules: nothing is believed, and next to nothing kept, before both sides proved the job's key (handshake.py, link.py). A
caller has HANDSHAKE_S for that, whatever it sends. How many callers may be without a proof, in all and from one
address, follows from the job's size (`most_waiting`) and from the files that can be opened; waiting_connections.py
decides which of them is closed when more come. What fails here ends one connection, and is logged once a kind and
address (complaints.py). The server does not know which pod is the leader: it hands every caller that knows the key to
the hall.
"""

import asyncio
import itertools
import logging
import resource
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from understudy_protocol import adoption, compiled, handshake, membership, observer, pod, wire
from understudy_protocol.adoption import Adopt
from understudy_protocol.frames import Broken, CloseCode
from understudy_protocol.handshake import Call, Called, Hello, Role
from understudy_protocol.order import Order
from understudy_protocol.upgrade import accept
from understudy_sidecar.complaints import Complaints
from understudy_sidecar.link import Link
from understudy_sidecar.tcp import watch_peer
from understudy_sidecar.waiting_connections import WaitingConnections

#: The most bytes that a message of a member, the operator and a claimant may have.
MEMBER_BYTES = 64 * 1024
OBSERVER_BYTES = 4 << 20
CLAIMANT_BYTES = 4 << 20
HANDSHAKE_S = 5.0
FILES_KEPT = 64  # for everything that is no call
LISTEN_BACKLOG = 4096
#: Callers without a proof, however large the job is: about 2 kB each.
MOST_WAITING = 16_384

_HANDSHAKE = wire.message_types(handshake)
_MEMBERSHIP = wire.message_types(membership)
_OBSERVER = wire.message_types(observer)
_ADOPTION = wire.message_types(adoption)
log = logging.getLogger(__name__)


class Hall(Protocol):
    """Who receives the callers that proved the key. After `dropped` and `observer_gone` a link is not used again."""

    def add(self, link: Link) -> None: ...
    def received(self, link: Link, message: object) -> None: ...
    def dropped(self, link: Link, silent: bool) -> None: ...
    def observer(self, link: Link) -> None: ...
    def asked(self, link: Link, message: object) -> None: ...
    def observer_gone(self, link: Link) -> None: ...


class Claims(Protocol):
    """Of a pool's spare: what is answered to the operator, who says for which job it was claimed."""

    @property
    def pool_uid(self) -> str: ...

    @property
    def key(self) -> bytes: ...

    def adopt(self, order: Order) -> adoption.Adopted: ...


class NotProven(Broken):
    """A caller that cannot show that it belongs to this job."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, CloseCode.POLICY)


@dataclass(frozen=True)
class Me:
    """What a sidecar says of itself in a handshake, and by what it knows the operator."""

    pod_uid: str
    ip: str
    operator_key: bytes  # public, 32 bytes


def most_waiting(members: int) -> tuple[int, int]:
    """How many callers may be without a proof at once, in all and from one address, in a job of so many members.

    All members may call at once, from one address if a proxy or SNAT is before them, while the calls that they gave up
    are not seen to have ended; and there are spares, candidates and the operator.
    """
    return min(MOST_WAITING, 512 + 4 * members), min(MOST_WAITING, 128 + 2 * members)


class Server:
    """office: None while there is no job. claims: of a pod that is a pool's spare, or was. members: the job's size."""

    def __init__(
        self, office: Hall | None, me: Me, key: bytes, job_uid: str, claims: Claims | None = None, *, members: int = 0
    ) -> None:
        self.office, self.claims = office, claims
        self._called: dict[Role, Called] = {}
        if office is not None:
            self._called[Role.MEMBER] = Called(key, Role.MEMBER, job_uid, me.pod_uid, me.ip)
            self._called[Role.OBSERVER] = Called(key, Role.OBSERVER, job_uid, me.pod_uid, me.ip, me.operator_key)
        if claims is not None:
            pool = (claims.pool_uid, me.pod_uid, me.ip, me.operator_key)
            self._called[Role.CLAIMANT] = Called(claims.key, Role.CLAIMANT, *pool)
        self.complaints = Complaints(log)
        self.waiting = WaitingConnections(*most_waiting(members), HANDSHAKE_S)
        self.callers: set[Caller] = set()
        self._most_callers = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - FILES_KEPT
        self._numbers = itertools.count(1)
        self._server: asyncio.Server | None = None

    async def listen(self, port: int, host: str | None = None) -> int:
        """Take calls on all addresses, or on one; the port (0 chooses a free one)."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._caller, host, port, backlog=LISTEN_BACKLOG, start_serving=False)
        for listener in self._server.sockets:
            watch_peer(listener)  # each connection that it accepts has its options, at no call of its own
        await self._server.start_serving()
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self, limit_s: float) -> None:
        """Take no more calls, and hang up on everybody; at most so long for what was sent to go out."""
        if self._server is not None:
            self._server.close()
        await asyncio.gather(*(caller.flushed(limit_s) for caller in tuple(self.callers)))
        for caller in tuple(self.callers):
            caller.cut()

    def called(self, role: Role) -> Called:
        """Raises NotProven where no caller of that role is expected."""
        if role in self._called:
            return self._called[role]
        raise NotProven("this pod is no spare of a pool" if role is Role.CLAIMANT else "no job has claimed this spare")

    def came(self, caller: "Caller") -> None:
        self.callers.add(caller)
        self.waiting.add(caller)
        if len(self.callers) > self._most_callers:
            self.waiting.evict_one("no more files can be opened, and it has proved no key yet")

    def _caller(self) -> "Caller":
        return Caller(next(self._numbers), self)


class Caller(Link):
    """One call: the head of the upgrade, then the handshake, then the messages of its role."""

    def __init__(self, number: int, server: Server) -> None:
        super().__init__(number, masks=False)
        self._server = server
        self._call: Call | None = None  # once it has said it
        self._wanted: Role | None = None
        self._role: Role | None = None  # once proven
        self._next: Callable[[bytes], None] = self._on_hello

    def connected(self) -> None:
        self._server.came(self)

    def head_received(self, head: bytes) -> None:
        self.write_head(accept(head, pod.MEMBERSHIP_PATH))

    def text_received(self, text: bytes) -> None:
        if text or self._role is None:
            self._next(text)
        else:
            self.send_encoded(b"")  # it asks whether anybody is there

    def broke(self, error: Broken | wire.WireError) -> None:
        self._server.complaints.about(self.peer, type(error).__name__, f"was rejected: {error}")

    def ended(self, silent: bool) -> None:
        self._server.callers.discard(self)
        self._server.waiting.remove(self)
        if self._role is Role.MEMBER:
            self._office.dropped(self, silent)
        elif self._role is Role.OBSERVER:
            self._office.observer_gone(self)

    @property
    def _office(self) -> Hall:
        assert self._server.office is not None, "only a job's sidecar has a key to prove"
        return self._server.office

    def evict(self, reason: str) -> None:
        self._server.complaints.about(self.peer, "no handshake", f"was rejected: {reason}")
        self.cut()

    def _on_hello(self, text: bytes) -> None:
        hello = compiled.decode(text, _HANDSHAKE)
        if not isinstance(hello, Hello):
            raise NotProven("the first message has to be a Hello")
        try:
            answer, self._call, session = self._server.called(hello.role).answer(hello)
        except handshake.NotProven as error:
            raise NotProven(str(error)) from error
        self._wanted = hello.role
        self.send(answer)
        self.seal_with(session)
        self._next = self._on_proof

    def _on_proof(self, text: bytes) -> None:
        """The caller's first sealed message: it could be opened, so the Hello was not a recorded one."""
        if text:
            raise NotProven("its first encrypted message has to be empty")
        self._server.waiting.remove(self)
        self._role = self._wanted
        match self._role:
            case Role.MEMBER:
                self.peer_proved(MEMBER_BYTES)
                self._next = self._on_member
                self._office.add(self)
            case Role.OBSERVER:
                self.peer_proved(OBSERVER_BYTES)
                self._next = self._on_observer
                self._office.observer(self)
            case Role.CLAIMANT:
                self.peer_proved(CLAIMANT_BYTES)
                self._next = self._on_claimant

    def _on_member(self, text: bytes) -> None:
        message = compiled.decode(text, _MEMBERSHIP)
        if isinstance(message, membership.Join) and self._call is not None and message.pod_uid != self._call.pod_uid:
            raise NotProven(f"it joins as pod {message.pod_uid[:64]!r}, but is pod {self._call.pod_uid[:64]!r}")
        if not self._unknown(message):
            self._office.received(self, message)

    def _on_observer(self, text: bytes) -> None:
        message = compiled.decode(text, _OBSERVER)
        if not self._unknown(message):
            self._office.asked(self, message)

    def _on_claimant(self, text: bytes) -> None:
        message = compiled.decode(text, _ADOPTION)
        if isinstance(message, Adopt):
            assert self._server.claims is not None, "its key was proven"
            self.send(self._server.claims.adopt(message.order))
        self.hangup()

    def _unknown(self, message: object) -> bool:
        if not isinstance(message, wire.Unknown):
            return False
        about = f"sent a message of the unknown type {message.type[:64]!r}, which is ignored"
        self._server.complaints.about(self.peer, about, about)
        return True
