"""loop.py of the launcher in simulated time: the real supervisor between its sidecar and its workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.network import End
from tests.simulation.process import Alarm, Process
from tests.simulation.training import Worker
from understudy_launcher import events as e
from understudy_launcher.supervise import Supervisor
from understudy_protocol.launcher import TO_LAUNCHER, StartWorkers

if TYPE_CHECKING:
    from tests.simulation.pods import Pod

SPAWN_S = (0.03, 0.2)
KILL_S = (0.001, 0.02)
SAVE_S = (0.1, 2.0)
GROUP_POLL_S = 0.1
FIRST_RETRY_S = 0.05
LONGEST_RETRY_S = 1.0
#: The share of workers that react neither to SIGTERM nor to the end of their peers, and of those that SIGTERM kills.
STUCK = 0.05
UNTRAPPED = 0.2


class Launcher(Process):
    """The trainer container's pid 1, and its workers."""

    def __init__(self, pod: Pod) -> None:
        super().__init__(pod.world, pod.machine)
        self.pod, self._training = pod, pod.cluster.training
        self.supervisor = Supervisor(1, pod.cluster.shape.nproc_per_node, pod.grace_s)
        self.workers: dict[int, Worker] = {}
        self._untrapped: set[int] = set()  # local ranks
        self._link: End | None = None
        self._port = 20000
        self._alarm = Alarm(self, self.supervisor.deadline, lambda: self.handle(e.Tick()))
        self.handle(e.Started())
        self._connect(FIRST_RETRY_S)

    def handle(self, event: e.Event) -> None:
        if self.alive:
            for effect in self.supervisor.handle(event, self.now()):
                self._do(effect)
            self._alarm.set()

    def die(self) -> None:
        """The container ends: whoever is left gets SIGKILL."""
        self.alive = False
        if self._link is not None:
            self._link.close()
        for worker in self.workers.values():
            worker.end(None, "SIGKILL")

    def _do(self, effect: e.Effect) -> None:
        if isinstance(effect, e.Report):
            if self._link is not None:
                self._link.send(effect.message)
        elif isinstance(effect, e.Signal):
            self._signal(effect)
        elif isinstance(effect, e.Spawn):
            for local_rank in range(self.pod.cluster.shape.nproc_per_node):
                self._spawn(effect.start, local_rank)
        elif isinstance(effect, e.ReservePort):
            self._port += 1
            port = self._port
            self.later(0.0, lambda: self.handle(e.PortReserved(port)))
        elif isinstance(effect, e.Log):
            self.world.say(self.pod.name, effect.text)
        elif isinstance(effect, e.Exit) and self.alive:
            self.pod.launcher_exited(effect.code, effect.reason)

    # Workers --------------------------------------------------------------------------------------------------------

    def _spawn(self, start: StartWorkers, local_rank: int) -> None:
        def stepped(step: int) -> None:
            if local_rank == 0 and self.pod.cluster.reports_steps:
                self.post(lambda: self.handle(e.StepsRead(0, step, None, 1, self.world.now)))

        def exited(code: int | None, signal: str | None, message: str) -> None:
            self._training.left(worker)
            self.post(lambda: self._reap(worker, code, signal, message))

        worker = Worker(start, local_rank, self.pod.name, self.machine, stepped, exited)
        fate = self.world.rng.random()
        worker.stuck = fate < STUCK
        self._untrapped.discard(local_rank)
        if fate >= 1 - UNTRAPPED:
            self._untrapped.add(local_rank)
        self.workers[local_rank] = worker
        self.pod.spawned(worker)
        delay = self.world.between(*SPAWN_S)
        self.world.after(delay, lambda: self.machine.post(lambda: self._training.join(worker)))

    def _reap(self, worker: Worker, code: int | None, signal: str | None, said: str) -> None:
        shell = {"SIGKILL": 137, "SIGTERM": 143}[signal] if signal is not None else code
        assert shell is not None
        self.handle(e.WorkerEnded(worker.local_rank, code, signal, shell, said, self.world.now))
        emptied = e.GroupEmptied(worker.local_rank)
        self.later(self.world.between(0.0, GROUP_POLL_S), lambda: self.handle(emptied))

    def _signal(self, signal: e.Signal) -> None:
        worker = self.workers.get(signal.local_rank)
        if worker is None or not worker.alive:
            return
        if signal.aim is e.Aim.KILL_GROUP:
            self._end(worker, KILL_S, None, "SIGKILL")
        elif signal.local_rank in self._untrapped:
            self._end(worker, KILL_S, None, "SIGTERM")
        elif not worker.stuck:
            self._end(worker, SAVE_S, 0, None)

    def _end(self, worker: Worker, within_s: tuple[float, float], code: int | None, signal: str | None) -> None:
        delay = self.world.between(*within_s)
        self.world.after(delay, lambda: self.machine.post(lambda: worker.end(code, signal)))

    # The unix socket (sidecar_link.py) ------------------------------------------------------------------------------

    def _connect(self, retry_s: float) -> None:
        sidecar = self.pod.sidecar
        if sidecar is None or not sidecar.alive:
            self.later(retry_s, lambda: self._connect(min(LONGEST_RETRY_S, 2 * retry_s)))
            return
        self._link, theirs = self.pod.network.connect(self.machine, self.machine)
        sidecar.launcher_connected(theirs)
        self.listen(self._link, self._hear, lambda silent: self._lost_sidecar())
        self.handle(e.Connected())

    def _hear(self, message: object) -> None:
        """What holds a socket is not modelled as a message: pods.py keeps it from the end of the sidecar on."""
        assert isinstance(message, TO_LAUNCHER), message
        self.handle(message)  # type: ignore[arg-type]

    def _lost_sidecar(self) -> None:
        self._link = None
        self._connect(FIRST_RETRY_S)
