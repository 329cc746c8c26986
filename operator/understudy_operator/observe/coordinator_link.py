"""The operator's WebSocket to one job's coordinator: appoints at the start, then receives snapshots.

Runs until cancelled; dials again whenever the link ends. What it learns goes into `coordination`, and `on_change` is
called: it decides nothing.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import replace

import aiohttp
from yarl import URL

from understudy_operator.plan.intents import Follow
from understudy_operator.plan.observed import Coordination
from understudy_protocol import handshake, observer, wire
from understudy_protocol import pod as names
from understudy_protocol.handshake import Caller, NotProven, Role
from understudy_protocol.observer import Appoint, Refused, Snapshot

CONNECT_S = 3.0
RETRY_S = 0.5
SILENT_S = 3.0
SNAPSHOT_BYTES = 64 * 1024 * 1024

_HANDSHAKE = wire.message_types(handshake)
_OBSERVER = wire.message_types(observer)
log = logging.getLogger(__name__)


class CoordinatorLink:
    def __init__(
        self, follow: Follow, job_uid: str, key: bytes, before: Coordination, on_change: Callable[[], None]
    ) -> None:
        self.follow = follow
        self.coordination = Coordination(snapshot=before.snapshot, followed_uid=follow.pod_uid)
        self._job_uid, self._key, self._on_change = job_uid, key, on_change
        self._task = asyncio.create_task(self._run(), name=f"coordinator-link {follow.pod_uid}")

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def _learn(self, **changes: object) -> None:
        self.coordination = replace(self.coordination, **changes)  # type: ignore[arg-type]
        self._on_change()

    async def _run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                try:
                    await self._talk(session)
                except (aiohttp.ClientError, OSError, wire.WireError, NotProven, TimeoutError) as error:
                    log.debug("coordinator %s: %s", self.follow.ip, error)
                if self.coordination.unreachable_since is None:
                    self._learn(unreachable_since=time.time())
                await asyncio.sleep(RETRY_S)

    async def _talk(self, session: aiohttp.ClientSession) -> None:
        url = URL.build(scheme="http", host=self.follow.ip, port=names.COORDINATOR_PORT, path=names.MEMBERSHIP_PATH)
        # The ping finds a peer whose machine has gone without a word.
        async with session.ws_connect(url, heartbeat=SILENT_S, max_msg_size=SNAPSHOT_BYTES) as socket:
            await asyncio.wait_for(self._authenticate(socket), CONNECT_S)
            appoint = Appoint(self.follow.epoch, self.follow.at_least_round, dict(self.follow.recoveries_by_strategy))
            await socket.send_str(wire.encode(appoint))
            async for frame in socket:
                match wire.decode(frame.data, _OBSERVER):
                    case Snapshot() as snapshot:
                        self._learn(snapshot=snapshot, unreachable_since=None, refused="")
                    case Refused(reason):
                        self._learn(refused=reason, unreachable_since=None)

    async def _authenticate(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        caller = Caller(self._key, Role.OBSERVER, self._job_uid, secrets.token_hex(handshake.NONCE_BYTES))
        await socket.send_str(wire.encode(caller.hello))
        frame = await socket.receive()
        challenge = wire.decode(frame.data, _HANDSHAKE) if frame.type is aiohttp.WSMsgType.TEXT else None
        await socket.send_str(wire.encode(caller.answer(challenge)))
