"""The sidecar's WebSocket server: members and the operator call here.

Rules: the server trusts no message, and stores almost nothing, before both sides have proved the job's key
(handshake.py, link.py). A caller has HANDSHAKE_S for that. The number of callers without a proof, in total and from one
address, is limited by the job's size (`max_waiting`) and by the open files; waiting_connections.py decides which of
them is closed when more come. An error ends one connection, and is logged once for each kind and address
(rejection_log.py). The server does not know which pod is the leader: it passes every caller that knows the key to its
handler.
"""

import asyncio
import itertools
import logging
import resource
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from understudy_protocol import adoption, compiled, copies, handshake, membership, observer, pod, wire
from understudy_protocol.adoption import Adopt
from understudy_protocol.frames import CloseCode, ProtocolError
from understudy_protocol.handshake import Call, HandshakeCalled, Hello, Role
from understudy_protocol.order import Order
from understudy_protocol.upgrade import accept
from understudy_sidecar.link import Link
from understudy_sidecar.rejection_log import RejectionLog
from understudy_sidecar.tcp import watch_peer
from understudy_sidecar.waiting_connections import WaitingConnections

#: The most bytes of a message of a member, the operator and a claimant.
MEMBER_BYTES = 64 * 1024
OBSERVER_BYTES = 4 << 20
CLAIMANT_BYTES = 4 << 20
PEER_BYTES = 4096
HANDSHAKE_S = 5.0
RESERVED_FILES = 64  # for all files other than calls
LISTEN_BACKLOG = 4096
#: Callers without a proof, for any size of the job: about 2 kB each.
MAX_WAITING = 16_384

_HANDSHAKE = wire.message_types(handshake)
_MEMBERSHIP = wire.message_types(membership)
_OBSERVER = wire.message_types(observer)
_ADOPTION = wire.message_types(adoption)
_COPIES = {cls.__name__: cls for cls in copies.FROM_CALLER}
log = logging.getLogger(__name__)


class CallerHandler(Protocol):
    """Receives the callers that have proved the key. After `on_dropped` and `on_observer_dropped` a link is not used
    again.
    """

    def add(self, link: Link) -> None: ...
    def on_message(self, link: Link, message: object) -> None: ...
    def on_dropped(self, link: Link, silent: bool) -> None: ...
    def add_observer(self, link: Link) -> None: ...
    def on_observer_message(self, link: Link, message: object) -> None: ...
    def on_observer_dropped(self, link: Link) -> None: ...


class Claimable(Protocol):
    """A pool's spare: its answer to the operator's claim for a job."""

    @property
    def pool_uid(self) -> str: ...

    @property
    def key(self) -> bytes: ...

    def adopt(self, order: Order) -> adoption.Adopted: ...


class PeerHandler(Protocol):
    """Receives the members that call about copies of snapshots, each with its one message. pod_uid: the caller's."""

    def on_peer(self, link: Link, pod_uid: str, message: copies.SendCopies | copies.RequestCopy) -> None: ...


class CallerNotProven(ProtocolError):
    """A caller that cannot show that it belongs to this job."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, CloseCode.POLICY)


@dataclass(frozen=True)
class SidecarIdentity:
    """The sidecar's own facts for a handshake, and the key of the operator that it accepts."""

    pod_uid: str
    ip: str
    operator_key: bytes  # public, 32 bytes


def max_waiting(members: int) -> tuple[int, int]:
    """The most callers without a proof, in total and from one address, in a job of this many members.

    All members may call at once, from one address if there is a proxy or SNAT. Meanwhile the server may not have seen
    the end of their abandoned calls. Spares, candidates and the operator call too.
    """
    return min(MAX_WAITING, 512 + 4 * members), min(MAX_WAITING, 128 + 2 * members)


class Server:
    """handler: None while there is no job. claims: of a pod that is or was a pool's spare. members: the job's size.

    peers: of a job that wants copies of its snapshots.
    """

    def __init__(
        self,
        handler: CallerHandler | None,
        identity: SidecarIdentity,
        key: bytes,
        job_uid: str,
        claims: Claimable | None = None,
        *,
        members: int = 0,
        peers: PeerHandler | None = None,
    ) -> None:
        self.handler, self.claims, self.peers = handler, claims, peers
        self._called: dict[Role, HandshakeCalled] = {}
        if handler is not None:
            self._called[Role.MEMBER] = HandshakeCalled(key, Role.MEMBER, job_uid, identity.pod_uid, identity.ip)
            self._called[Role.OBSERVER] = HandshakeCalled(
                key, Role.OBSERVER, job_uid, identity.pod_uid, identity.ip, identity.operator_key
            )
        if peers is not None:
            self._called[Role.PEER] = HandshakeCalled(key, Role.PEER, job_uid, identity.pod_uid, identity.ip)
        if claims is not None:
            pool = (claims.pool_uid, identity.pod_uid, identity.ip, identity.operator_key)
            self._called[Role.CLAIMANT] = HandshakeCalled(claims.key, Role.CLAIMANT, *pool)
        self.complaints = RejectionLog(log)
        self.waiting_connections = WaitingConnections(*max_waiting(members), HANDSHAKE_S)
        self.callers: set[ServerLink] = set()
        self._max_callers = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - RESERVED_FILES
        self._numbers = itertools.count(1)
        self._server: asyncio.Server | None = None

    async def listen(self, port: int, host: str | None = None) -> int:
        """Accept calls on all addresses, or on one; return the port (0 chooses a free one)."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._caller, host, port, backlog=LISTEN_BACKLOG, start_serving=False)
        for listener in self._server.sockets:
            watch_peer(listener)  # accepted connections inherit its options, without a system call for each
        await self._server.start_serving()
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self, limit_s: float) -> None:
        """Accept no more calls, and hang up on all; wait at most `limit_s` for pending messages."""
        if self._server is not None:
            self._server.close()
        await asyncio.gather(*(caller.flushed(limit_s) for caller in tuple(self.callers)))
        for caller in tuple(self.callers):
            caller.cut()

    def called_side(self, role: Role) -> HandshakeCalled:
        """Raises CallerNotProven if no caller of that role is expected."""
        if role in self._called:
            return self._called[role]
        reasons = {
            Role.CLAIMANT: "this pod is no spare of a pool",
            Role.PEER: "this job has no copies of snapshots",
        }
        raise CallerNotProven(reasons.get(role, "no job has claimed this spare"))

    def on_connected(self, caller: "ServerLink") -> None:
        self.callers.add(caller)
        self.waiting_connections.add(caller)
        if len(self.callers) > self._max_callers:
            self.waiting_connections.evict_one("no more files can be opened, and it has proved no key yet")

    def _caller(self) -> "ServerLink":
        return ServerLink(next(self._numbers), self)


class ServerLink(Link):
    """One call: the head of the upgrade, then the handshake, then the messages of its role."""

    def __init__(self, number: int, server: Server) -> None:
        super().__init__(number, masks=False)
        self._server = server
        self._call: Call | None = None  # after its Hello
        self._claimed_role: Role | None = None
        self._role: Role | None = None  # once proven
        self._on_text: Callable[[bytes], None] = self._on_hello

    def on_connected(self) -> None:
        self._server.on_connected(self)

    def on_head(self, head: bytes) -> None:
        self.write_head(accept(head, pod.MEMBERSHIP_PATH))

    def on_text(self, text: bytes) -> None:
        if text or self._role is None:
            self._on_text(text)
        else:
            self.send_encoded(b"")  # a keepalive of the caller

    def on_protocol_error(self, error: ProtocolError | wire.WireError) -> None:
        self._server.complaints.log(self.peer, type(error).__name__, f"was rejected: {error}")

    def on_ended(self, silent: bool) -> None:
        self._server.callers.discard(self)
        self._server.waiting_connections.remove(self)
        if self._role is Role.MEMBER:
            self._handler.on_dropped(self, silent)
        elif self._role is Role.OBSERVER:
            self._handler.on_observer_dropped(self)

    @property
    def _handler(self) -> CallerHandler:
        assert self._server.handler is not None, "only a job's sidecar has a key to prove"
        return self._server.handler

    def evict(self, reason: str) -> None:
        self._server.complaints.log(self.peer, "no handshake", f"was rejected: {reason}")
        self.cut()

    def _on_hello(self, text: bytes) -> None:
        hello = compiled.decode(text, _HANDSHAKE)
        if not isinstance(hello, Hello):
            raise CallerNotProven("the first message has to be a Hello")
        try:
            answer, self._call, session = self._server.called_side(hello.role).answer(hello)
        except handshake.NotProven as error:
            raise CallerNotProven(str(error)) from error
        self._claimed_role = hello.role
        self.send(answer)
        self.seal_with(session)
        self._on_text = self._on_proof

    def _on_proof(self, text: bytes) -> None:
        """The caller's first encrypted message: it can be decrypted, so the Hello was not a replay."""
        if text:
            raise CallerNotProven("its first encrypted message has to be empty")
        self._server.waiting_connections.remove(self)
        self._role = self._claimed_role
        match self._role:
            case Role.MEMBER:
                self.peer_proved(MEMBER_BYTES)
                self._on_text = self._on_member
                self._handler.add(self)
            case Role.OBSERVER:
                self.peer_proved(OBSERVER_BYTES)
                self._on_text = self._on_observer
                self._handler.add_observer(self)
            case Role.PEER:
                self.peer_proved(PEER_BYTES)
                self._on_text = self._on_peer
            case Role.CLAIMANT:
                self.peer_proved(CLAIMANT_BYTES)
                self._on_text = self._on_claimant

    def _on_member(self, text: bytes) -> None:
        message = compiled.decode(text, _MEMBERSHIP)
        if isinstance(message, membership.Join) and self._call is not None and message.pod_uid != self._call.pod_uid:
            raise CallerNotProven(f"it joins as pod {message.pod_uid[:64]!r}, but is pod {self._call.pod_uid[:64]!r}")
        if not self._ignore_unknown(message):
            self._handler.on_message(self, message)

    def _on_observer(self, text: bytes) -> None:
        message = compiled.decode(text, _OBSERVER)
        if not self._ignore_unknown(message):
            self._handler.on_observer_message(self, message)

    def _on_claimant(self, text: bytes) -> None:
        message = compiled.decode(text, _ADOPTION)
        if isinstance(message, Adopt):
            assert self._server.claims is not None, "its key was proven"
            self.send(self._server.claims.adopt(message.order))
        self.hangup()

    def _on_peer(self, text: bytes) -> None:
        message = compiled.decode(text, _COPIES)
        if isinstance(message, wire.Unknown):
            self.hangup()
            return
        assert self._server.peers is not None, "it has proved the role"
        assert self._call is not None, "it has proved the role"
        self._server.peers.on_peer(self, self._call.pod_uid, message)

    def _ignore_unknown(self, message: object) -> bool:
        if not isinstance(message, wire.Unknown):
            return False
        about = f"sent a message of the unknown type {message.type[:64]!r}, which is ignored"
        self._server.complaints.log(self.peer, about, about)
        return True
