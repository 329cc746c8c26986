"""One sidecar: the member's machine between its edges, the office, and the end.

Rules: it ends by itself once the job is closed, its launcher has exited and (if it coordinates) every member knows; on
SIGTERM it announces the leave and stays while its launcher lives. It always exits 0 then: the pod's result is the
trainer container's.
"""

import asyncio
import logging
import signal
from typing import Any

from aiohttp import web

from understudy_protocol import pod
from understudy_sidecar import records
from understudy_sidecar.alarm import Alarm
from understudy_sidecar.client import CoordinatorClient
from understudy_sidecar.clock import now
from understudy_sidecar.launcher_link import LauncherLink
from understudy_sidecar.membership.events import (
    Dial,
    Finish,
    FromCoordinator,
    FromLauncher,
    HangupCoordinator,
    LauncherDown,
    LauncherUp,
    LeaveAsked,
    LinkDown,
    LinkUp,
    MemberEffect,
    MemberEvent,
    RecordClose,
    Say,
    Tick,
    ToCoordinator,
    ToLauncher,
)
from understudy_sidecar.membership.member import Member, State
from understudy_sidecar.office import Office
from understudy_sidecar.server import Server
from understudy_sidecar.settings import Settings

LISTEN_BACKLOG = 4096
LAST_WORDS_S = 1.0
#: The adjourning coordinator's own limit is 3 s; this one only guards against a bug in it.
ADJOURN_LIMIT_S = 5.0
log = logging.getLogger(__name__)


class Sidecar:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._finished = asyncio.Event()
        self._terminated = asyncio.Event()
        self._member = Member(settings.pod_uid, settings.pod_name, settings.node, settings.ip, settings.index, now())
        self._alarm = Alarm(lambda: self._handle(Tick()))
        self._office = Office(settings.shape, settings.pod_uid, settings.folder, self._redial)
        self._client = CoordinatorClient(
            self._coordinator_address,
            settings.key,
            settings.shape.uid,
            lambda: self._handle(LinkUp()),
            lambda message: self._handle(FromCoordinator(message)),
            lambda: self._handle(LinkDown()),
        )
        self._launcher = LauncherLink(
            lambda hello: self._handle(LauncherUp(hello)),
            lambda message: self._handle(FromLauncher(message)),
            lambda: self._handle(LauncherDown()),
        )

    async def run(self) -> None:
        """Serve until the job has ended, or the pod has."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._on_sigterm)
        folder = self._settings.folder
        if records.recorded_close(folder) is not None:
            log.info("the job was closed before this start: nothing to do")
            return
        records.install_launcher(folder)
        unix_server = await self._launcher.listen(folder / pod.LAUNCHER_SOCKET)
        runners = [await self._listen(*server) for server in self._servers()]
        log.info("listens as %s on %s", self._settings.pod_name, self._settings.node)
        await self._until_over()
        await self._client.flushed(LAST_WORDS_S)
        unix_server.close()
        for runner in runners:
            await runner.cleanup()

    def _servers(self) -> list[tuple[web.Application, int]]:
        server = Server(self._office, self._settings.key, self._settings.shape.uid)
        health = web.Application()
        health.router.add_get("/started", _ok)
        return [(server.app(), pod.COORDINATOR_PORT), (health, pod.HEALTH_PORT)]

    async def _listen(self, app: web.Application, port: int) -> web.AppRunner:
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=LAST_WORDS_S)
        await runner.setup()
        await web.TCPSite(runner, port=port, backlog=LISTEN_BACKLOG).start()
        return runner

    async def _until_over(self) -> None:
        ends = [asyncio.create_task(self._finished.wait()), asyncio.create_task(self._terminated.wait())]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
        if self._member.closed is not None and self._office.coordinator is not None:
            try:
                await asyncio.wait_for(self._office.adjourned.wait(), ADJOURN_LIMIT_S)
            except TimeoutError:
                log.error("the coordinator did not adjourn within %g s", ADJOURN_LIMIT_S)

    def _on_sigterm(self) -> None:
        """The kubelet ends a sidecar after the trainer container, so its launcher is gone by now, or killed soon."""
        self._handle(LeaveAsked("the sidecar got SIGTERM", self._settings.grace_s))
        self._terminated.set()

    def _coordinator_address(self) -> tuple[str, int]:
        if self._office.coordinator is not None:
            return "127.0.0.1", pod.COORDINATOR_PORT
        return self._settings.coordinator_host, self._settings.coordinator_port

    def _redial(self) -> None:
        """This sidecar has taken office: its own member belongs to it now."""
        if self._member.state is State.JOINED:
            self._client.hangup()
            self._handle(LinkDown())

    def _handle(self, event: MemberEvent) -> None:
        for effect in self._member.handle(event, now()):
            self._do(effect)
        self._alarm.set(self._member.deadline())

    def _do(self, effect: MemberEffect) -> None:
        match effect:
            case ToCoordinator(message):
                self._client.send(message)
            case ToLauncher(message):
                self._launcher.send(message)
            case Dial():
                self._client.dial()
            case HangupCoordinator(reason):
                log.info("hangs up: %s", reason)
                self._client.hangup()
            case RecordClose(close):
                records.record_close(self._settings.folder, close)
            case Finish():
                self._finished.set()
            case Say(text):
                log.info("member: %s", text)


async def _ok(_request: Any) -> web.Response:
    return web.Response(text="ok")
