"""The member's connection to the coordinator: dials, proves the key, hands messages to and fro.

Rules: the addresses are tried in turn, each for at most CONNECT_S (TCP_S to connect: a pulled cable answers nothing,
and a frozen machine's kernel takes the call that nobody will answer). After the last one it waits, 50 ms doubling to
1 s, and starts again, until a link is up or another dial() replaces this one. It never dials by itself.
"""

import asyncio
import contextlib
import logging
import secrets
import socket
from collections.abc import Callable

from understudy_protocol import handshake, membership, pod, wire
from understudy_protocol.handshake import Caller, NotProven, Role
from understudy_sidecar.frames import Broken
from understudy_sidecar.link import Link
from understudy_sidecar.upgrade import check_answer, request

CONNECT_S = 3.0
TCP_S = 1.0
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
        self._on_socket(call.socket.fileno())
        self._on_up(call.host)

    def is_down(self, call: "_Call") -> None:
        if self._call is call:
            self._let_go()
            self._on_down()

    # Dialing ---------------------------------------------------------------------------------------------------------

    async def _dial(self, addresses: tuple[Address, ...]) -> None:
        delay, said = FIRST_RETRY_S, ""
        while True:
            for host, port in addresses:
                try:
                    async with asyncio.timeout(CONNECT_S):
                        await self._try(host, port)
                    return
                except (OSError, ValueError, Broken) as error:  # ValueError: an address that is none
                    why = f"{host}:{port}: {error or type(error).__name__}"
                    if why != said:
                        said = why
                        log.info("no coordinator yet: %s", why)
            await asyncio.sleep(delay)
            delay = min(2 * delay, LONGEST_RETRY_S)

    async def _try(self, host: str, port: int) -> None:
        """One call, until it is up. Raises where it does not come to that."""
        loop = asyncio.get_running_loop()
        with contextlib.ExitStack() as undo:
            sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
            undo.callback(sock.close)
            sock.setblocking(False)
            async with asyncio.timeout(TCP_S):
                await loop.sock_connect(sock, (host, port))
            call = _Call(self, sock, host, port)
            undo.callback(call.result.cancel)
            undo.callback(call.cut)
            await loop.create_connection(lambda: call, sock=sock)
            await call.result
            undo.pop_all()


class _Call(Link):
    """One call: the head of the upgrade, then Hello, Challenge and Prove, then the coordinator's messages."""

    def __init__(self, client: CoordinatorClient, sock: socket.socket, host: str, port: int) -> None:
        super().__init__(0, masks=True, limit=MESSAGE_BYTES)
        self.socket, self.host, self._port = sock, host, port
        self.result: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # of the handshake
        self._client = client
        self._caller = Caller(client.key, Role.MEMBER, client.job_uid, secrets.token_hex(handshake.NONCE_BYTES))
        self._token = b""
        self._up = False

    def connected(self) -> None:
        head, self._token = request(self.host, self._port, pod.MEMBERSHIP_PATH)
        self.write_head(head)

    def head_received(self, head: bytes) -> None:
        check_answer(head, self._token)
        self.send(self._caller.hello)

    def text_received(self, text: bytes) -> None:
        if self._up:
            self._on_message(wire.decode(text, _MEMBERSHIP))
            return
        try:
            prove = self._caller.answer(wire.decode(text, _HANDSHAKE))
        except NotProven as error:
            raise Broken(str(error)) from error
        self.send(prove)
        self._up = True
        self.result.set_result(None)
        self._client.is_up(self)

    def broke(self, error: Broken | wire.WireError) -> None:
        if self._up:
            log.warning("hangs up on the coordinator: %s", error)
        elif not self.result.done():
            self.result.set_exception(error)

    def ended(self, silent: bool) -> None:
        # The launcher may hold a duplicate of the socket: without this the coordinator would not hear of the end.
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        if self._up:
            self._client.is_down(self)
        elif not self.result.done():
            self.result.set_exception(ConnectionError("it hung up"))

    def _on_message(self, message: object) -> None:
        if isinstance(message, wire.Unknown):
            log.info("the coordinator sent the unknown type %.64r: dropped", message.type)
        else:
            self._client.on_message(message)
