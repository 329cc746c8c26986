"""One WebSocket, of either side: whole messages in and out of a TCP connection, without a task or a queue of its own.

Rules: `send` never waits; all replies to one read go out in one write. If more than UNSENT_BYTES wait when the next
message comes, the peer reads too slowly: the link is cut and logged once. The longest waiting message is not counted.
The peer may call again, and no other link waits for it. A protocol error ends only this connection. Server and client
subclass `Link`; CallerLinks uses its upper half.

After `seal_with` all messages are encrypted, both ways; a message that was changed on its way ends the connection. A
close frame is not encrypted: an attacker that can forge one can cut the connection anyway. Pings and pongs are ignored.

Until `peer_proved`, a peer costs almost nothing: the link reads at most UNPROVEN_BYTES, including the head and control
frames, does not log the peer's end, and closes the connection at once if the peer breaks a rule.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import Iterator
from typing import Any, cast

from understudy_protocol import compiled, wire
from understudy_protocol.frames import CloseCode, Frames, Opcode, ProtocolError, close_frame, frame
from understudy_protocol.sessions import NotAuthentic, Session
from understudy_protocol.upgrade import NotUpgraded, take_head
from understudy_sidecar.tcp import Counters, counters, has_unread, was_silent

UNPROVEN_BYTES = 1024
UNSENT_BYTES = 1 << 20
#: How long a peer may take to read the last messages and to close its side after a hangup.
HANGUP_S = 3.0
log = logging.getLogger(__name__)


class Link(asyncio.Protocol):
    """number: never used again in this process. peer: its address, for logs. masks: this side is the caller."""

    def __init__(self, number: int, *, masks: bool) -> None:
        self.number = number
        self.peer = "?"
        self._masks = masks
        self._received = bytearray()
        self._frames = Frames(self._received, masked=not masks, limit=UNPROVEN_BYTES)
        self._session: Session | None = None
        self._head_pending = True
        self._is_proven = False
        self._bytes_read = 0  # bytes read from the peer, until it is proven
        self._reading = False
        self._replies: list[bytes] = []  # to the data that is being read: they go out in one write
        self._longest_unsent = 0  # bytes of a message
        self._transport: asyncio.Transport | None = None
        self._is_ending = False  # hung up or cut: no more reads or sends
        self._has_ended = False
        self._cut_off: asyncio.TimerHandle | None = None
        self._waiter: asyncio.Future[None] | None = None

    # For users of the link --------------------------------------------------------------------------------------------

    def send(self, message: Any) -> None:
        self.send_encoded(compiled.encode(message))

    def send_encoded(self, message: bytes) -> None:
        """Send an encoded message: one for many links is encoded only once. A no-op after the end."""
        self._write(message)

    def ping(self) -> None:
        """Send a packet that the peer's kernel has to acknowledge, and that the peer's process ignores."""
        if not self._is_ending and self._transport is not None:
            self._transport.write(frame(Opcode.PING, b"", masked=self._masks))

    def unsent(self) -> int:
        """The number of bytes that the peer has not read yet: a frequent sender checks this first."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def has_unread(self) -> bool:
        """Whether this process has not read all bytes from the peer yet: then the peer is not late."""
        return self._transport is not None and has_unread(self._transport)

    def counters(self) -> Counters | None:
        """The kernel's counters of the connection (tcp.py); None once it has ended."""
        return None if self._transport is None else counters(self._transport.get_extra_info("socket"))

    def hangup(self, code: CloseCode = CloseCode.NORMAL, reason: str = "") -> None:
        """Send all pending messages and a close frame, then end; no more reads or sends."""
        self._send_and_end(close_frame(code, reason, masked=self._masks))

    def cut(self) -> None:
        """End at once, and drop all pending messages."""
        self._is_ending = True
        self._replies.clear()
        if self._transport is not None:
            self._transport.abort()

    def sealed(self, message: Any) -> bytes:
        """The next message as bytes: the caller sends them on the socket that it has taken over."""
        return self._framed(compiled.encode(message))

    @contextlib.contextmanager
    def taken_over(self) -> Iterator[int]:
        """A duplicate of the socket, for another process. This link ends, and leaves the connection open.

        Only while the peer waits for an answer: bytes that this link has read already are lost.
        """
        fd = os.dup(self.transport.get_extra_info("socket").fileno())
        try:
            self.cut()
            yield fd
        finally:
            os.close(fd)

    async def flushed(self, limit_s: float) -> None:
        """Hang up, and wait until all is sent and the connection has ended, or the limit has passed."""
        self.hangup()
        if not self._has_ended:
            self._waiter = self._waiter or asyncio.get_running_loop().create_future()
            await asyncio.wait({self._waiter}, timeout=limit_s)

    def has_ended(self) -> bool:
        """Whether the connection has ended."""
        return self._has_ended

    # For the server and the client -----------------------------------------------------------------------------------

    @property
    def transport(self) -> asyncio.Transport:
        """The transport, while the connection is open."""
        assert self._transport is not None
        return self._transport

    def on_connected(self) -> None:
        """The TCP connection is open."""

    def on_head(self, head: bytes) -> None:
        """The peer's HTTP head has arrived; frames follow. Raises ProtocolError."""
        raise NotImplementedError

    def on_text(self, text: bytes) -> None:
        """A message has arrived. Raises ProtocolError or WireError."""
        raise NotImplementedError

    def on_protocol_error(self, error: ProtocolError | wire.WireError) -> None:
        """The peer broke the protocol; the link hangs up next."""
        raise NotImplementedError

    def on_ended(self, silent: bool) -> None:
        """The connection has ended. silent: no kernel closed it; the peer's machine stopped responding."""
        raise NotImplementedError

    def write_head(self, head: bytes) -> None:
        self._replies.append(head)
        if not self._reading:
            self._write_answers()

    def seal_with(self, session: Session) -> None:
        """Encrypt all messages from now on, both ways."""
        self._session = session
        self._frames.message = Opcode.BINARY

    def peer_proved(self, message_bytes: int) -> None:
        """The peer has proved the key: from now on its messages may have `message_bytes` bytes."""
        self._is_proven = True
        self._frames.limit = message_bytes

    # asyncio.Protocol ------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport is not a subclass
        address = transport.get_extra_info("peername")
        self.peer = str(address[0]) if address else "?"
        self.on_connected()

    def data_received(self, data: bytes) -> None:
        if self._is_ending:
            return
        self._received += data
        self._reading = True
        try:
            self._read()
        except (ProtocolError, wire.WireError) as error:
            self._received.clear()
            self.on_protocol_error(error)
            self._reject(error)
        finally:
            self._reading = False
            self._write_answers()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None and self._is_proven and not self._is_ending:
            log.info("%s: the connection broke: %s", self.peer, exc)
        self._is_ending = self._has_ended = True
        self._transport = None
        if self._cut_off is not None:
            self._cut_off.cancel()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        self.on_ended(was_silent(exc))

    def _read(self) -> None:
        if self._head_pending:
            before = len(self._received)
            head = take_head(self._received, UNPROVEN_BYTES)
            if head is None:
                return
            self._head_pending = False
            self._bytes_read = before - len(self._received)
            self.on_head(head)
        while not self._is_ending and (message := self._next_message()) is not None:
            self._take(*message)

    def _next_message(self) -> tuple[int, bytes] | None:
        """Raises ProtocolError."""
        if self._is_proven:
            return self._frames.take()
        before = len(self._received)
        message = self._frames.take()
        left = len(self._received)
        self._bytes_read += before - left
        # Bytes after a whole message may have been sent after the proof.
        if self._bytes_read + (left if message is None else 0) > UNPROVEN_BYTES:
            raise ProtocolError(f"expected at most {UNPROVEN_BYTES} bytes before a proof of the key", CloseCode.TOO_BIG)
        return message

    def _take(self, opcode: int, payload: bytes) -> None:
        if opcode == self._frames.message:
            self.on_text(payload if self._session is None else self._decrypt(self._session, payload))
        elif opcode == Opcode.CLOSE:
            self.hangup()

    def _decrypt(self, session: Session, sealed: bytes) -> bytes:
        try:
            return session.open(sealed)
        except NotAuthentic as error:
            reason = str(error) if self._is_proven else "it does not know the job's key"
            raise ProtocolError(reason, CloseCode.POLICY) from error

    def _write(self, message: bytes) -> None:
        if self._is_ending or self._transport is None:
            return
        waiting = self._transport.get_write_buffer_size()
        # A standby coordinator of a large job gets a leader snapshot of some MB, and with it the next message.
        longest = self._longest_unsent if waiting else 0
        self._longest_unsent = max(longest, len(message))
        if waiting > UNSENT_BYTES + longest:
            limit = UNSENT_BYTES + longest
            log.warning("%s reads too slowly: %d bytes unsent, limit %d; disconnected", self.peer, waiting, limit)
            self.cut()
        elif self._reading:
            self._replies.append(self._framed(message))
        else:
            self._transport.write(self._framed(message))

    def _framed(self, message: bytes) -> bytes:
        payload = message if self._session is None else self._session.seal(message)
        return frame(self._frames.message, payload, masked=self._masks)

    def _write_answers(self) -> None:
        if self._replies and self._transport is not None:
            self._transport.write(b"".join(self._replies))
            self._replies.clear()

    def _reject(self, error: ProtocolError | wire.WireError) -> None:
        match error:
            case NotUpgraded():
                self._send_and_end(error.answer)
            case ProtocolError():
                self.hangup(error.code, self._reason(error))
            case wire.WireError():
                self.hangup(CloseCode.POLICY, self._reason(error))

    def _reason(self, error: Exception) -> str:
        """Empty for a proven peer: a close frame is not encrypted, and errors quote the peer's messages."""
        return "" if self._is_proven and self._session is not None else str(error)

    def _send_and_end(self, data: bytes) -> None:
        """Send FIN after the last byte, instead of a close: the launcher may have the socket too, and keep it open."""
        if self._is_ending or self._transport is None:
            return
        self._is_ending = True
        self._replies.append(data)
        self._write_answers()
        if not self._is_proven:
            self._transport.close()  # only these few bytes were written: the kernel has them
            return
        self._transport.write_eof()
        self._cut_off = asyncio.get_running_loop().call_later(HANGUP_S, self.cut)
