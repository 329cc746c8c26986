"""A child process that replaces the operator: appoints the coordinator, and follows it as the operator does.

It receives every snapshot, and decodes one only on request: the measurement includes the coordinator's cost of
reporting, but not the operator's cost of reading. It also replaces the launchers of whole sidecars.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from benchmarks.child import LINE_BYTES, Answer, run, serve
from benchmarks.rendezvous import job
from understudy_protocol import handshake, launcher, pod, wire
from understudy_protocol.enums import NO_ROUND, WorkersState
from understudy_protocol.frames import ProtocolError
from understudy_protocol.handshake import Call, HandshakeCaller, Role
from understudy_protocol.observer import Appoint
from understudy_protocol.upgrade import check_answer, request
from understudy_sidecar.link import Link

POLL_S = 0.05
SNAPSHOT_BYTES = 64 << 20
_HANDSHAKE = wire.message_types(handshake)
_LAUNCHER = wire.message_types(launcher)


class Observer(Link):
    """A link that calls as the operator, appoints the called sidecar, and forwards each message to on_snapshot."""

    def __init__(self, host: str, on_snapshot: Callable[[bytes], None]) -> None:
        super().__init__(0, masks=True)
        self._host, self._on_snapshot = host, on_snapshot
        self._caller = HandshakeCaller(job.KEY, Role.OBSERVER, job.UID, Call("", host), job.OPERATOR)
        self._token = b""
        self._proven = False

    def on_connected(self) -> None:
        head, self._token = request(self._host, pod.COORDINATOR_PORT, pod.MEMBERSHIP_PATH)
        self.write_head(head)

    def on_head(self, head: bytes) -> None:
        check_answer(head, self._token)
        self.send(self._caller.hello)

    def on_text(self, text: bytes) -> None:
        if self._proven:
            self._on_snapshot(text)
        else:
            _, session = self._caller.finish(wire.decode(text, _HANDSHAKE))
            self.seal_with(session)
            self.send_encoded(b"")
            self.peer_proved(SNAPSHOT_BYTES)
            self.send(Appoint(job.EPOCH, -1, {}))
            self._proven = True

    def on_protocol_error(self, error: ProtocolError | wire.WireError) -> None:
        raise error

    def on_ended(self, silent: bool) -> None:
        pass  # the coordinator was killed


class OperatorStandIn:
    def __init__(self) -> None:
        self._newest = b""
        self._last_snapshot = asyncio.Event()
        self._launchers: list[asyncio.Task[None]] = []

    async def appoint(self, host: str) -> Answer:
        """Returns when the sidecar is the coordinator."""
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: Observer(host, self._on_snapshot), host, pod.COORDINATOR_PORT)
        await self._until(lambda: b'"type":"Snapshot"' in self._newest[:200])
        return {}

    async def is_settled(self, number: int, members: int) -> Answer:
        """Returns when all members of the round run their workers, and the coordinator knows it."""
        await self._until(lambda: _runs(json.loads(self._newest), number, members))
        return {"round": json.loads(self._newest)["token"]["round"]}

    async def standbys_known(self, standbys: int) -> Answer:
        """Returns when a snapshot has so many standby coordinators, and a voter configuration."""
        await self._until(lambda: _can_choose(json.loads(self._newest), standbys))
        return {}

    async def launch(self, socket: str) -> Answer:
        """Replace the launcher that a sidecar waits for."""
        reader, writer = await asyncio.open_unix_connection(socket, limit=LINE_BYTES)
        writer.write(_line(launcher.LauncherHello(1, NO_ROUND, None, WorkersState.IDLE, 4000)))
        self._launchers.append(asyncio.create_task(_launcher(reader, writer)))
        return {}

    def _on_snapshot(self, message: bytes) -> None:
        self._newest = message
        self._last_snapshot.set()

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not (self._newest and holds()):  # the runner enforces the limit
            self._last_snapshot.clear()
            await self._last_snapshot.wait()


def _runs(snapshot: dict[str, Any], number: int, members: int) -> bool:
    running = [x for x in snapshot.get("members", []) if x["workers"] == "Running" and x["group_rank"] is not None]
    return len(running) >= members and bool(snapshot["token"]["round"] >= number)


def _can_choose(snapshot: dict[str, Any], standbys: int) -> bool:
    return len(snapshot.get("standby_coordinators", [])) >= standbys and bool(snapshot.get("voters"))


async def _launcher(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while line := await reader.readline():
        message = wire.decode(line, _LAUNCHER)
        if isinstance(message, launcher.StartWorkers):
            writer.write(_line(launcher.WorkersStarted(message.token)))
        elif isinstance(message, launcher.Ping):
            writer.write(_line(launcher.Pong(message.number)))


def _line(message: object) -> bytes:
    return wire.encode(message).encode() + b"\n"


async def _main() -> None:
    operator = OperatorStandIn()
    await serve(
        {
            "appoint": operator.appoint,
            "settled": operator.is_settled,
            "standbys_known": operator.standbys_known,
            "launch": operator.launch,
        }
    )


if __name__ == "__main__":
    run(_main())
