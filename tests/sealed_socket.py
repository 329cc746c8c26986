"""The sidecar's side of a connection on aiohttp, for fakes in tests and benchmarks: a handshake, then messages."""

from __future__ import annotations

from aiohttp import WSMsgType, web

from understudy_protocol import compiled, handshake, wire
from understudy_protocol.handshake import HandshakeCalled, Hello, NotProven
from understudy_protocol.sessions import NotAuthentic, Session

_HANDSHAKE = wire.message_types(handshake)


class SealedSocket:
    """A connection after its handshake: all messages are encrypted."""

    def __init__(self, socket: web.WebSocketResponse, session: Session) -> None:
        self._socket, self._session = socket, session

    async def receive(self) -> bytes | None:
        """The next message that is not empty; None if the caller has disconnected. Raises NotAuthentic.

        An empty message is a keepalive, and is answered with an empty message.
        """
        while (frame := await self._socket.receive()).type is WSMsgType.BINARY:
            if text := self._session.open(frame.data):
                return text
            await self.send(b"")
        return None

    async def send(self, text: bytes) -> None:
        await self._socket.send_bytes(self._session.seal(text))

    async def close(self) -> None:
        await self._socket.close()


async def receive_hello(socket: web.WebSocketResponse) -> Hello:
    """Raises NotProven."""
    frame = await socket.receive()
    hello = compiled.decode(frame.data, _HANDSHAKE) if frame.type is WSMsgType.TEXT else None
    if not isinstance(hello, Hello):
        raise NotProven(f"the first message is {hello!r}, a frame of type {frame.type.name}: expected a Hello")
    return hello


async def seal(socket: web.WebSocketResponse, called: HandshakeCalled, hello: Hello) -> SealedSocket:
    """Answer the Hello, and wait for the message that proves that the Hello is not a replay. Raises NotProven."""
    answer, _, session = called.answer(hello)
    await socket.send_str(compiled.encode(answer).decode())
    frame = await socket.receive()
    try:
        proof = session.open(frame.data) if frame.type is WSMsgType.BINARY else None
    except NotAuthentic as error:
        raise NotProven(str(error)) from error
    if proof != b"":
        raise NotProven("the first sealed message is not empty")
    return SealedSocket(socket, session)
