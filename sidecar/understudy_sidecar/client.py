"""The member's connection to the coordinator: dials, proves the key, hands messages to and fro.

Rules: the addresses are tried in turn. One that takes TCP_S to connect (a pulled cable) or ANSWER_S to answer (a frozen
machine's kernel takes the call that nobody will answer) is given up; a coordinator that is called by ten thousand at
once is slow, but answers step by step. After the last address it waits, 50 ms doubling to 1 s, and starts again, until
a link is up or another dial() replaces this one. It never dials by itself.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable

from understudy_protocol import handshake, membership, pod, wire
from understudy_protocol.handshake import Caller, NotProven, Role
from understudy_sidecar.alarm import Alarm
from understudy_sidecar.clock import now
from understudy_sidecar.frames import Broken
from understudy_sidecar.link import Link
from understudy_sidecar.tcp import end_everywhere, watch_peer
from understudy_sidecar.upgrade import check_answer, request

TCP_S = 1.0
ANSWER_S = 3.0
#: A timer that fires later than this tells of this process (see _Patience).
LATE_S = 0.25
FIRST_RETRY_S = 0.05
LONGEST_RETRY_S = 1.0
#: An heir is sent the whole electorate.
MESSAGE_BYTES = 4 << 20

_MEMBERSHIP = wire.message_types(membership)
_HANDSHAKE = wire.message_types(handshake)
log = logging.getLogger(__name__)

Address = tuple[str, int]


class CoordinatorClient:
    """on_up(host): linked, both sides proved the key. on_message(message). on_down(): an up link has ended by itself.

    on_socket(fd): the socket of an up link, for a duplicate of it; None when that link has ended or was hung up on.
    """

    def __init__(
        self,
        key: bytes,
        job_uid: str,
        on_up: Callable[[str], None],
        on_message: Callable[[object], None],
        on_down: Callable[[], None],
        on_socket: Callable[[int | None], None],
    ) -> None:
        self.key, self.job_uid = key, job_uid
        self.on_message = on_message
        self._on_up, self._on_down, self._on_socket = on_up, on_down, on_socket
        self._call: _Call | None = None  # the one that is up
        self._dialing: asyncio.Task[None] | None = None

    def dial(self, addresses: tuple[Address, ...]) -> None:
        """Call until one answers; replaces the call that is under way, or up (no on_down follows)."""
        self.hangup()
        self._dialing = asyncio.create_task(self._dial(addresses), name="dial")

    def send(self, message: object) -> None:
        if self._call is not None:
            self._call.send(message)

    def hangup(self) -> None:
        """Stop dialing, and end an up link after what was sent; no on_down follows."""
        if self._dialing is not None:
            self._dialing.cancel()
            self._dialing = None
        call = self._let_go()
        if call is not None:
            call.hangup()

    async def flushed(self, limit_s: float) -> None:
        """Hang up, and wait until all that was sent is out, or the limit has passed."""
        call = self._call
        self.hangup()
        if call is not None:
            await call.flushed(limit_s)

    def close(self) -> None:
        """For the end of this client."""
        self.hangup()

    def _let_go(self) -> "_Call | None":
        call, self._call = self._call, None
        if call is not None:
            self._on_socket(None)
        return call

    # For the call ----------------------------------------------------------------------------------------------------

    def is_up(self, call: "_Call") -> None:
        self._call, self._dialing = call, None
        self._on_socket(call.fileno())
        self._on_up(call.host)

    def is_down(self, call: "_Call") -> None:
        if self._call is call:
            self._let_go()
            self._on_down()

    # Dialing ---------------------------------------------------------------------------------------------------------

    async def _dial(self, addresses: tuple[Address, ...]) -> None:
        delay, said = FIRST_RETRY_S, set[str]()
        while True:
            for host, port in addresses:
                try:
                    return await self._try(host, port)
                except (OSError, ValueError, Broken) as error:  # ValueError: an address that is none
                    why = f"{host}:{port}: {error or type(error).__name__}"
                    if why not in said:
                        said.add(why)
                        log.info("no coordinator yet: %s", why)
            await asyncio.sleep(delay)
            delay = min(2 * delay, LONGEST_RETRY_S)

    async def _try(self, host: str, port: int) -> None:
        """One call, until it is up. Raises where it does not come to that."""
        async with asyncio.timeout(None) as limit:
            call = _Call(self, host, port, limit)
            try:
                await asyncio.get_running_loop().create_connection(lambda: call, host, port)
                await call.result
            except asyncio.CancelledError:
                if not call.up:
                    raise
            finally:
                call.end_unless_up()


class _Patience:
    """How long the peer may take for its next answer. What this process itself takes does not count.

    A timer that fires late tells that this process was frozen or has too much to do; what was not read yet tells that
    the peer has answered.
    """

    def __init__(self, timeout: asyncio.Timeout, has_answered: Callable[[], bool]) -> None:
        self._timeout, self._has_answered = timeout, has_answered
        self._alarm = Alarm(self._on_time)
        self._limit_s = self._due = 0.0

    def allow(self, limit_s: float) -> None:
        """From now on, in place of what was allowed before."""
        self._limit_s, self._due = limit_s, now() + limit_s
        self._alarm.set(self._due)

    def stop(self) -> None:
        self._alarm.set(None)

    def _on_time(self) -> None:
        if now() > self._due + LATE_S or self._has_answered():
            self.allow(self._limit_s)
        else:
            self._timeout.reschedule(asyncio.get_running_loop().time())


class _Call(Link):
    """One call: the head of the upgrade, then Hello, Challenge and Prove, then the coordinator's messages."""

    def __init__(self, client: CoordinatorClient, host: str, port: int, limit: asyncio.Timeout) -> None:
        super().__init__(0, masks=True, limit=MESSAGE_BYTES)
        self.host, self._port = host, port
        self.up = False  # both sides have proved the key
        self.result: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # of the handshake
        self._client = client
        self._caller = Caller(client.key, Role.MEMBER, client.job_uid, secrets.token_hex(handshake.NONCE_BYTES))
        self._token = b""
        self._patience = _Patience(limit, self.unread)
        self._patience.allow(TCP_S)

    def end_unless_up(self) -> None:
        """The dialing is over."""
        self._patience.stop()
        if not self.up:
            self.result.cancel()
            self.cut()

    def fileno(self) -> int:
        return int(self.transport.get_extra_info("socket").fileno())

    def connected(self) -> None:
        self._patience.allow(ANSWER_S)
        watch_peer(self.transport.get_extra_info("socket"))
        head, self._token = request(self.host, self._port, pod.MEMBERSHIP_PATH)
        self.write_head(head)

    def head_received(self, head: bytes) -> None:
        check_answer(head, self._token)
        self._patience.allow(ANSWER_S)
        self.send(self._caller.hello)

    def text_received(self, text: bytes) -> None:
        if self.up:
            self._on_message(wire.decode(text, _MEMBERSHIP))
            return
        try:
            prove = self._caller.answer(wire.decode(text, _HANDSHAKE))
        except NotProven as error:
            raise Broken(str(error)) from error
        self.send(prove)
        self.up = True
        self._patience.stop()
        self.result.set_result(None)
        self._client.is_up(self)

    def broke(self, error: Broken | wire.WireError) -> None:
        if self.up:
            log.warning("hangs up on the coordinator: %s", error)
        elif not self.result.done():
            self.result.set_exception(error)

    def connection_lost(self, exc: Exception | None) -> None:
        end_everywhere(self.transport)  # the launcher may hold the same socket
        super().connection_lost(exc)

    def ended(self, silent: bool) -> None:
        if self.up:
            self._client.is_down(self)
        elif not self.result.done():
            self.result.set_exception(ConnectionError("it hung up"))

    def _on_message(self, message: object) -> None:
        if isinstance(message, wire.Unknown):
            log.info("the coordinator sent the unknown type %.64r: dropped", message.type)
        else:
            self._client.on_message(message)
