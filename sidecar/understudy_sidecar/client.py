"""The member's connection to the coordinator: calls it, proves the key, exchanges messages.

Rules: it tries the addresses in turn. It skips one that takes TCP_S to connect (a pulled cable) or ANSWER_S to answer
(the kernel of a frozen machine accepts calls that no process answers). A coordinator that gets ten thousand calls at
once is slow, but answers step by step. membership/calling.py has the order and the pauses. A dial() continues until a
link is up, or until another dial() replaces it. The client never dials by itself.
"""

import asyncio
import functools
import logging
from collections.abc import Callable
from typing import NamedTuple

from understudy_protocol import compiled, handshake, membership, pod, wire
from understudy_protocol.frames import CloseCode, ProtocolError
from understudy_protocol.handshake import Call, HandshakeCaller, NotProven, Role
from understudy_protocol.upgrade import check_answer, request
from understudy_sidecar.clock import Alarm, now
from understudy_sidecar.link import Link
from understudy_sidecar.machine_watch import MachineWatch
from understudy_sidecar.membership.calling import Dialing
from understudy_sidecar.tcp import end_everywhere, watch_peer

TCP_S = 1.0
ANSWER_S = 3.0
#: How long `watch` lasts.
WATCH_S = 0.5
#: If a timer fires later than this, this process was slow, and not the peer.
LATE_TIMER_S = 0.25
#: Different failures of an address that one dial logs: an error may quote the answer, which the address chooses.
LOGGED_FAILURES = 5
#: A standby coordinator gets a leader snapshot: two lists of voters, and all rank holders. 0.2 to 0.5 kB a member.
MESSAGE_BYTES = 16 << 20

_MEMBERSHIP = wire.message_types(membership)
_HANDSHAKE = wire.message_types(handshake)
log = logging.getLogger(__name__)


class Address(NamedTuple):
    host: str
    port: int
    is_pod: bool = True  # the pod's own IP address, and not that of a Service
    address: str = ""  # of the pod, as in messages; "": the host


class CoordinatorClient:
    """on_up(called): connected to this pod's address, or to this host of a Service, and both sides have proved the key.
    on_message(message). on_down(silent): the peer or the network has ended an up link.

    on_socket(fd): the socket of an up link, for a duplicate of it; None when that link has ended or was closed.
    on_unreachable(): see `watch`.
    """

    def __init__(
        self,
        key: bytes,
        job_uid: str,
        pod_uid: str,
        on_up: Callable[[str], None],
        on_message: Callable[[object], None],
        on_down: Callable[[bool], None],
        on_socket: Callable[[int | None], None],
        on_unreachable: Callable[[], None],
    ) -> None:
        self.key, self.job_uid, self.pod_uid = key, job_uid, pod_uid
        self.on_message = on_message
        self._on_up, self._on_down, self._on_socket = on_up, on_down, on_socket
        self._call: ClientLink | None = None  # the one that is up
        self._dialing: _Dialing | None = None
        self._calls = 0  # that were up
        self._watch = MachineWatch(lambda links: on_unreachable())

    def dial(self, addresses: tuple[Address, ...]) -> None:
        """Call until one answers; replaces a call that is in progress or up (no on_down follows). With no address it
        calls nobody.
        """
        self.hangup()
        if addresses:
            self._dialing = _Dialing(self, addresses)

    def send(self, message: object) -> None:
        if self._call is not None:
            self._call.send(message)

    def hangup(self) -> None:
        """Stop dialing, and end an up link after its pending messages; no on_down follows."""
        if self._dialing is not None:
            self._dialing.stop()
            self._dialing = None
        call = self._forget_call()
        if call is not None:
            call.hangup()

    def watch(self) -> None:
        """Watch for a moment whether the peer's machine acknowledges packets.

        A packet is sent only if the machine has not acknowledged a keepalive: with a live one, this costs it nothing.
        """
        call = self._call
        if call is None or (seen := call.counters()) is None:
            return
        if seen.probes > 0 and not seen.in_flight:
            call.ping()
        self._watch.begin({self._calls: call}, WATCH_S)

    async def flushed(self, limit_s: float) -> None:
        """Hang up, and wait until all pending messages are sent, or the limit has passed."""
        call = self._call
        self.hangup()
        if call is not None:
            await call.flushed(limit_s)

    def _forget_call(self) -> "ClientLink | None":
        call, self._call = self._call, None
        if call is not None:
            self._watch.begin({}, 0.0)
            self._on_socket(None)
        return call

    # For the call ----------------------------------------------------------------------------------------------------

    def is_up(self, call: "ClientLink") -> None:
        self._call, self._dialing = call, None
        self._calls += 1
        self._on_socket(call.fileno())
        self._on_up(call.called)

    def is_down(self, call: "ClientLink", silent: bool) -> None:
        if self._call is call:
            self._forget_call()
            self._on_down(silent)


class _Dialing:
    """One dial(): address after address, until a call is up or this is stopped."""

    def __init__(self, client: CoordinatorClient, addresses: tuple[Address, ...]) -> None:
        self._client, self._order = client, Dialing(addresses)
        self._logged_failures: dict[Address, set[str]] = {}
        self._call: ClientLink | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._try_next()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._call is not None:
            self._call.abandon()

    def _try_next(self) -> None:
        wait_s, address = self._order.next()
        if wait_s:
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._try, address)
        else:
            self._try(address)

    def _try(self, address: Address) -> None:
        self._call = ClientLink(self._client, address, functools.partial(self._failed, address))
        self._call.start()

    def _failed(self, address: Address, why: str) -> None:
        logged = self._logged_failures.setdefault(address, set())
        if why not in logged and len(logged) < LOGGED_FAILURES:
            logged.add(why)
            is_last = len(logged) == LOGGED_FAILURES
            more = " (further failures of this address are not logged)" if is_last else ""
            log.info("no coordinator found yet: %s%s", why, more)
        self._try_next()


class ClientLink(Link):
    """One call: the head of the upgrade, then the handshake, then the coordinator's messages.

    on_failed(why): the call has not come up, and never will.
    """

    def __init__(self, client: CoordinatorClient, address: Address, on_failed: Callable[[str], None]) -> None:
        super().__init__(0, masks=True)
        self.called, self._host, self._port = address.address or address.host, address.host, address.port
        self._client, self._on_failed = client, on_failed
        call = Call(client.pod_uid, self.called if address.is_pod else "")
        self._caller = HandshakeCaller(client.key, Role.MEMBER, client.job_uid, call)
        self._answered_by = ""  # the uid of the pod at the other end of the session
        self._token = b""
        self._is_over = False  # it is up, or has failed: Link handles the rest
        self._is_up = False  # both sides have proved the key
        self._connecting: asyncio.Task[object] | None = None
        self._alarm = Alarm(self._on_time)
        self._limit_s = self._due = 0.0
        self._is_extended = False  # the limit of this step was extended

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._allow(TCP_S)
        self._connecting = loop.create_task(loop.create_connection(lambda: self, self._host, self._port), name="call")
        self._connecting.add_done_callback(self._on_connecting_ended)

    def abandon(self) -> None:
        """End the call unless it is up. A connection that already has a transport ends through that."""
        if self._is_up:
            return
        self._is_over = True
        self._alarm.set(None)
        if self._connecting is not None and self._transport is None:
            self._connecting.cancel()
        self.cut()

    def fileno(self) -> int:
        return int(self.transport.get_extra_info("socket").fileno())

    # How long it may take --------------------------------------------------------------------------------------------

    def _allow(self, limit_s: float) -> None:
        """Set the time limit for the peer's next answer."""
        self._is_extended = False
        self._limit_s, self._due = limit_s, now() + limit_s
        self._alarm.set(self._due)

    def _on_time(self) -> None:
        """Fail the call, unless this process was late itself: it was not scheduled, or has not read the answer yet.

        Unread bytes extend the limit only once a step: a peer that sends without end always has some.
        """
        if now() > self._due + LATE_TIMER_S:
            self._allow(self._limit_s)
        elif self.has_unread() and not self._is_extended:
            self._allow(self._limit_s)
            self._is_extended = True
        else:
            self._fail(f"no answer within {self._limit_s:g} s")

    def _on_connecting_ended(self, connecting: "asyncio.Task[object]") -> None:
        error = None if connecting.cancelled() else connecting.exception()
        if error is not None:
            self._fail(str(error) or type(error).__name__)

    def _fail(self, why: str) -> None:
        if not self._is_over:
            self.abandon()
            self._on_failed(f"{self._host}:{self._port}: {why}")

    # Link ------------------------------------------------------------------------------------------------------------

    def on_connected(self) -> None:
        if self._is_over:
            self.cut()  # abandoned while it was connecting
            return
        self._allow(ANSWER_S)
        watch_peer(self.transport.get_extra_info("socket"))
        head, self._token = request(self._host, self._port, pod.MEMBERSHIP_PATH)
        self.write_head(head)

    def on_head(self, head: bytes) -> None:
        check_answer(head, self._token)
        self._allow(ANSWER_S)
        self.send(self._caller.hello)

    def on_text(self, text: bytes) -> None:
        if self._is_up:
            self._on_message(compiled.decode(text, _MEMBERSHIP))
            return
        try:
            self._answered_by, session = self._caller.finish(compiled.decode(text, _HANDSHAKE))
        except NotProven as error:
            raise ProtocolError(str(error)) from error
        self.seal_with(session)
        self.send_encoded(b"")
        self.peer_proved(MESSAGE_BYTES)
        self._is_over = self._is_up = True
        self._alarm.set(None)
        self._client.is_up(self)

    def on_protocol_error(self, error: ProtocolError | wire.WireError) -> None:
        if self._is_up:
            log.warning("closes the connection to the coordinator: %s", error)
        else:
            self._fail(str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        end_everywhere(self.transport)  # the launcher may have a duplicate of the socket
        super().connection_lost(exc)

    def on_ended(self, silent: bool) -> None:
        if self._is_up:
            self._client.is_down(self, silent)
        else:
            self._fail("it closed the connection")

    def _on_message(self, message: object) -> None:
        if isinstance(message, wire.Unknown):
            log.info("ignored a message from the coordinator of the unknown type %.64r", message.type)
        elif isinstance(message, membership.Welcome | membership.RequestVote) and message.pod_uid != self._answered_by:
            raise ProtocolError(
                f"pod {self._answered_by[:64]!r} claims to be pod {message.pod_uid[:64]!r}", CloseCode.POLICY
            )
        else:
            self._client.on_message(message)
