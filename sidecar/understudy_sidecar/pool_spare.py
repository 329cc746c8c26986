"""The sidecar of a pool's spare: it waits, warm, until a job claims it, and is that job's sidecar from then on.

Rules: it is a member of no job. It asks its launcher whether the spare is ready (membership/pool_spare.py), and reports
that to the kubelet. A caller that knows the pool's key may claim it once for a job: the order has the job's key, so it
is stored, before the answer, in a folder that the trainer container does not mount. Then the job's sidecar begins in
this process, with the stored order; a restarted process does the same. It answers all later claims with the job's uid.
"""

import asyncio
import logging
import signal
from collections.abc import Mapping
from dataclasses import dataclass

from understudy_protocol import adoption, logs, pod
from understudy_protocol.order import Order
from understudy_sidecar import health, records
from understudy_sidecar.app import Sidecar
from understudy_sidecar.clock import Alarm, now
from understudy_sidecar.launcher_link import LauncherLink
from understudy_sidecar.membership.events import FromLauncher, LauncherDown, LauncherUp, Tick, ToLauncher
from understudy_sidecar.membership.pool_spare import Event, PoolSpare
from understudy_sidecar.server import Server
from understudy_sidecar.settings import Settings, SpareSettings, read_spare, settings_of_claimed, sidecar_identity

#: Seconds for the answer to be sent: the job waits.
FLUSH_LIMIT_S = 0.2
log = logging.getLogger(__name__)


async def run(env: Mapping[str, str]) -> None:
    """Raises SettingsError."""
    settings = read_spare(env)
    logs.of_process(pod=settings.pod_name)
    order = records.recorded_order(settings.state)
    if order is None:
        order = await PoolSpareSidecar(settings).run()
    if order is not None:
        logs.of_process(namespace=order.shape.namespace, job=order.shape.name)
        log.info("claimed by job %s/%s", order.shape.namespace, order.shape.name)
        await Sidecar(job_settings(settings, order)).run()


def job_settings(settings: SpareSettings, order: Order) -> Settings:
    return settings_of_claimed(settings, order, ClaimedSpare(settings.pool_uid, settings.key, order.shape.uid))


@dataclass(frozen=True)
class ClaimedSpare:
    """Answers claims on a spare that a job has already claimed."""

    pool_uid: str
    key: bytes
    job_uid: str

    def adopt(self, order: Order) -> adoption.Adopted:
        del order
        return adoption.Adopted(self.job_uid)


class PoolSpareSidecar:
    def __init__(self, settings: SpareSettings) -> None:
        self._settings = settings
        self.pool_uid, self.key = settings.pool_uid, settings.key
        self._pool_spare = PoolSpare()
        self._order: Order | None = None
        self._claimed = asyncio.Event()
        self._alarm = Alarm(lambda: self._handle(Tick()))
        self._launcher = LauncherLink(
            lambda hello: self._handle(LauncherUp(hello)),
            lambda message: self._handle(FromLauncher(message)),
            lambda: self._handle(LauncherDown()),
        )

    async def run(self) -> Order | None:
        """Wait for a claim; None if the pod ends before that."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._claimed.set)
        settings = self._settings
        records.install_launcher(settings.folder, settings.shipped)
        unix_server = await self._launcher.listen(settings.folder / pod.LAUNCHER_SOCKET)
        server = Server(None, sidecar_identity(settings), b"", "", self)
        await server.listen(settings.port, settings.listen)
        health_port = pod.health_port(settings.port)
        probes = await health.listen(health_port, settings.listen, why_not_ready=self._why_not_ready)
        log.info("waits as pod %s on node %s until a job claims it", settings.pod_name, settings.node)
        await self._claimed.wait()
        self._alarm.set(None)
        unix_server.close()
        self._launcher.hang_up()
        probes.close()
        await server.close(FLUSH_LIMIT_S)
        return self._order

    def adopt(self, order: Order) -> adoption.Adopted:
        if self._order is None:
            records.record_order(self._settings.state, order)
            self._order = order
            self._claimed.set()
        return adoption.Adopted(self._order.shape.uid)

    def _why_not_ready(self) -> str:
        return self._pool_spare.why_not_ready

    def _handle(self, event: Event) -> None:
        if self._claimed.is_set():
            return
        for effect in self._pool_spare.handle(event, now()):
            if isinstance(effect, ToLauncher):
                self._launcher.send(effect.message)
            else:
                log.info("spare: %s", effect.text)
        self._alarm.set(self._pool_spare.deadline())


def is_pooled(env: Mapping[str, str]) -> bool:
    return bool(env.get(pod.ENV_POOL))
