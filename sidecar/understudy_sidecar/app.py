"""One sidecar: the core (membership/core.py) between its edges, and its end.

Rules: the core decides when the process ends. Its exit code is then always 0: the pod's result is the trainer
container's.
"""

import asyncio
import logging
import signal
import time

from understudy_protocol import pod
from understudy_protocol.addresses import split_port
from understudy_protocol.launcher import LauncherHello
from understudy_sidecar import health, records
from understudy_sidecar.caller_links import CallerLinks
from understudy_sidecar.client import Address, CoordinatorClient
from understudy_sidecar.clock import Alarm, now
from understudy_sidecar.copy_commands import Setup
from understudy_sidecar.copy_link import CopyLink
from understudy_sidecar.launcher_link import LauncherLink
from understudy_sidecar.membership.core import Core, CoreEvent, HardStateNotStored
from understudy_sidecar.membership.events import (
    SERVICE,
    Broadcast,
    CoordinatorUnreachable,
    Dial,
    FetchCopy,
    FlushCopies,
    FromCoordinator,
    FromLauncher,
    FromWorker,
    Hangup,
    HangupCoordinator,
    KeepLink,
    LauncherDown,
    LauncherUp,
    LeaveRequested,
    LinkDown,
    LinkUp,
    Log,
    MemberEffect,
    PlanCopies,
    RecordClose,
    RecordHardState,
    RecordLauncher,
    RecordVerdict,
    Send,
    Tick,
    ToCoordinator,
    ToLauncher,
    VerdictAnnotated,
    WatchCoordinator,
    WatchMachines,
)
from understudy_sidecar.membership.member_state import Identity
from understudy_sidecar.metrics import CoordinatorMetrics, text_of, text_of_stored
from understudy_sidecar.rollouts_link import RolloutsLink
from understudy_sidecar.server import Server
from understudy_sidecar.settings import Settings, sidecar_identity
from understudy_sidecar.verdicts import AnnotationFile, Verdicts, watch_node_file

FLUSH_LIMIT_S = 1.0
_OF_CALLERS = (Send, Broadcast, Hangup, WatchMachines)
log = logging.getLogger(__name__)


class Sidecar:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._process_may_end, self._is_over = asyncio.Event(), asyncio.Event()  # as in the core
        identity = Identity(
            settings.pod_uid,
            settings.pod_name,
            settings.node,
            settings.address,
            settings.index,
            settings.grace_s,
            settings.shape.fence_s,
            settings.shape.launcher_timeout_s,
            warm=settings.take_over is not None,
        )
        self._verdicts = Verdicts(settings.folder, settings.state, settings.nologin)
        closed = records.recorded_close(settings.state)
        hard_state = records.recorded_hard_state(settings.state)
        launcher_known = records.recorded_launcher(settings.state)
        self._core = Core(
            settings.shape,
            identity,
            hard_state,
            now(),
            closed,
            self._verdicts.newest,
            launcher_known=launcher_known,
            cpu_clock=time.thread_time,
        )
        self._alarm = Alarm(lambda: self._handle(Tick()))
        self._metrics = CoordinatorMetrics()
        self._socket: int | None = None  # of the link to the called sidecar
        self._caller_links = CallerLinks(self._handle, self._core.snapshot_took)
        self._client = CoordinatorClient(
            settings.key,
            settings.shape.uid,
            settings.pod_uid,
            lambda host: self._handle(LinkUp(self._describe_host(host))),
            lambda message: self._handle(FromCoordinator(message)),
            lambda silent: self._handle(LinkDown(silent)),
            self._on_socket,
            lambda: self._handle(CoordinatorUnreachable()),
        )
        self._launcher = LauncherLink(
            self._on_launcher,
            lambda message: self._handle(FromLauncher(message)),
            lambda: self._handle(LauncherDown()),
        )
        self._copies: CopyLink | None = None
        if settings.shape.snapshot_copies:
            setup = Setup(settings.key.hex(), settings.shape.uid, settings.pod_uid, settings.shape.nproc_per_node)
            self._copies = CopyLink(setup, self._handle)
        self._rollouts = RolloutsLink(lambda replicas: self._handle(FromWorker(replicas)))

    async def run(self) -> None:
        """Serve until the job or the pod has ended."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._on_sigterm)
        folder = self._settings.folder
        records.install_launcher(folder, self._settings.shipped, self._settings.variables)
        unix_server = await self._launcher.listen(folder / pod.LAUNCHER_SOCKET)
        workers = None
        if self._settings.shape.on_failed_update is not None:
            workers = await self._rollouts.listen(folder / pod.ROLLOUTS_SOCKET)
        shape = self._settings.shape
        key, claims = self._settings.key, self._settings.claims
        server = Server(
            self._caller_links,
            sidecar_identity(self._settings),
            key,
            shape.uid,
            claims,
            members=shape.actives,
            peers=self._copies,
        )
        if self._copies is not None:
            await self._copies.start(folder / pod.COPIES_SOCKET)
        port = self._settings.port
        await server.listen(port, self._settings.listen)
        probes = await health.listen(pod.health_port(port), self._settings.listen, metrics=self._metrics_text)
        node_file = watch_node_file(self._settings.nologin, self._on_node_file)
        annotation = AnnotationFile(
            self._settings.verdict_file, lambda verdict: self._handle(VerdictAnnotated(verdict))
        )
        annotation.start()
        log.info("listens as pod %s on node %s", self._settings.pod_name, self._settings.node)
        await self._until_over()
        await self._client.flushed(FLUSH_LIMIT_S)
        annotation.stop()
        if node_file is not None:
            node_file.stop()
        unix_server.close()
        if workers is not None:
            workers.close()
        if self._copies is not None:
            await self._copies.close()
        await server.close(FLUSH_LIMIT_S)
        probes.close()

    def _metrics_text(self) -> bytes:
        copies = b"" if self._copies is None else text_of(self._copies.counts)
        return self._metrics.text(self._core.coordinator) + copies + text_of_stored(self._core.member.stored)

    def _on_node_file(self, exists: bool) -> None:
        log.info("%s %s on the node", self._settings.nologin, "exists" if exists else "does not exist")
        self._verdicts.on_node_file(exists)

    async def _until_over(self) -> None:
        await self._process_may_end.wait()
        limit_s = self._core.end_limit_s
        try:
            await asyncio.wait_for(self._is_over.wait(), limit_s)
        except TimeoutError:
            log.error("the shutdown has not completed within %g s; the sidecar exits", limit_s)

    def _on_sigterm(self) -> None:
        """The kubelet ends a sidecar after the trainer container, so its launcher has ended, or is killed soon."""
        self._handle(LeaveRequested("the sidecar got SIGTERM", self._settings.grace_s))

    def _on_launcher(self, hello: LauncherHello) -> None:
        if self._settings.take_over is not None:
            self._launcher.send(self._settings.take_over)
        self._handle(LauncherUp(hello))

    def _on_socket(self, fd: int | None) -> None:
        self._socket = fd
        if fd is None:
            self._launcher.drop_socket()

    def _handle(self, event: CoreEvent) -> None:
        at = now()
        try:
            for effect in self._core.handle(event, at):
                if isinstance(effect, _OF_CALLERS):
                    self._caller_links.enqueue(effect)
                else:
                    self._do(effect)
        except records.CannotStore as error:  # the effects that follow rely on it
            self._handle(HardStateNotStored(str(error)))
            return
        self._caller_links.flush()
        if self._core.coordinator is not None:
            self._metrics.update(self._core.coordinator, at)
        self._alarm.set(self._core.deadline())
        if self._core.process_may_end:
            self._process_may_end.set()
        if self._core.is_over:
            self._is_over.set()

    def _do(self, effect: MemberEffect) -> None:
        match effect:
            case ToCoordinator(message):
                self._client.send(message)
            case RecordLauncher(connected):
                records.record_launcher(self._settings.state, connected)
            case RecordVerdict(verdict):
                self._verdicts.on_verdict(verdict)
            case KeepLink():
                assert self._socket is not None, "the member is connected"
                self._launcher.hold_socket(self._socket)
            case ToLauncher(message):
                self._launcher.send(message)
            case PlanCopies() | FetchCopy() | FlushCopies():
                assert self._copies is not None, "a job without copies has no plan for them"
                self._copies.do(effect)
            case Dial() | HangupCoordinator() | WatchCoordinator():
                self._do_call(effect)
            case RecordClose(close):
                records.record_close(self._settings.state, close)
            case RecordHardState(hard_state):
                records.record_hard_state(self._settings.state, hard_state)
            case Log(text):
                log.info("%s", text)

    def _do_call(self, effect: Dial | HangupCoordinator | WatchCoordinator) -> None:
        match effect:
            case Dial(hosts):
                self._client.dial(tuple(self._address(host) for host in hosts if host != SERVICE or self._has_service))
            case HangupCoordinator(reason):
                log.info("closes the connection to the coordinator: %s", reason)
                self._client.hangup()
            case WatchCoordinator():
                self._client.watch()

    @property
    def _has_service(self) -> bool:
        return bool(self._settings.coordinator_host)

    def _address(self, host: str) -> Address:
        if host == SERVICE:
            return Address(self._settings.coordinator_host, self._settings.coordinator_port, is_pod=False)
        return Address(*split_port(host), address=host)

    def _describe_host(self, host: str) -> str:
        return SERVICE if host == self._settings.coordinator_host else host
