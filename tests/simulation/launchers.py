"""loop.py of the launcher in simulated time: the real supervisor between its sidecar and its workers."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from tests.simulation.network import End
from tests.simulation.process import Alarm, Process
from tests.simulation.snapshots import SimulatedMemory
from tests.simulation.training import SimulatedWorker
from understudy_launcher import events as e
from understudy_launcher.groups import LEFTOVERS
from understudy_launcher.supervise import Supervisor
from understudy_protocol.launcher import TO_LAUNCHER, StartWorkers

if TYPE_CHECKING:
    from tests.simulation.pods import Pod

SPAWN_S = (0.03, 0.2)
FORK_S = (0.01, 0.05)
IMPORT_S = (0.1, 4.0)
STORE_S = (0.01, 0.1)
#: The share of zygotes that cannot fork.
UNFIT = 0.03
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
        self.zygote = 0  # its number; 0: none runs
        self.starts_nothing = False  # it responds, but never starts the workers of a round
        self.start_held_at: float | None = None  # when it last got a StartWorkers that it ignored
        self.warm = not pod.cluster.zygotes  # workers start without delay
        self._zygotes = 0
        self._stores: list[int] = []  # ports; at most the one in use, and the next
        zygotes = pod.cluster.zygotes
        nproc, timeout_s = pod.cluster.shape.nproc_per_node, pod.cluster.step_timeout_s
        self.memory: SimulatedMemory | None = None
        if pod.cluster.shape.snapshots:
            self.memory = SimulatedMemory(nproc, pod.cluster.shape.snapshot_copies)
        self.supervisor = Supervisor(
            1,
            nproc,
            pod.grace_s,
            zygote=zygotes,
            step_timeout_s=timeout_s,
            snapshots=self.memory is not None,
        )
        self.workers: dict[int, SimulatedWorker] = {}
        self._pages: dict[int, e.StepsRead] = {}  # by local rank: steps that workers have reported since the last read
        self._first_at: dict[int, float] = {}  # by local rank: when its worker made its first step
        self._untrapped: set[int] = set()  # local ranks
        self._forked: set[int] = set()  # local ranks
        self._link: End | None = None
        self._port = 20000
        self._alarm = Alarm(self, self.supervisor.deadline, lambda: self.handle(e.Tick()))
        self.handle(e.LauncherStarted())
        self._connect(FIRST_RETRY_S)

    def handle(self, event: e.Event) -> None:
        if self.alive:
            for effect in self.supervisor.handle(event, self.now()):
                self._do(effect)
            self._alarm.set()

    def die(self) -> None:
        """The container ends: all remaining processes get SIGKILL."""
        self.alive = False
        self._end_stores(())
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
        elif isinstance(effect, (e.Spawn, e.ReadSnapshots, e.ChooseSnapshot)):
            self._do_with_workers(effect)
        elif isinstance(effect, (e.StartZygote, e.EndZygote, e.MakeStore)):
            self._do_with_zygote(effect)
        elif isinstance(effect, e.ReservePort):
            self._port += 1
            port = self._port
            self.later(0.0, lambda: self.handle(e.PortReserved(port)))
        elif isinstance(effect, e.FindSurvivors):
            found = [x for x in self.workers.values() if x.alive and x.killed]
            survivors = tuple(e.Survivor(x.local_rank, 100 + x.rank, "D", "python") for x in found)
            self.later(0.0, lambda: self.handle(e.SurvivorsFound(survivors)))
        elif isinstance(effect, e.ReadSteps):
            self.later(0.0, self._read_steps)
        elif isinstance(effect, e.ReadExceptions):
            self._read_exceptions()
        elif isinstance(effect, e.Log):
            self.world.log(self.pod.name, effect.text)
        elif isinstance(effect, e.Exit) and self.alive:
            self.pod.launcher_exited(effect.code, effect.reason)

    def _do_with_workers(self, effect: e.Spawn | e.ReadSnapshots | e.ChooseSnapshot) -> None:
        if isinstance(effect, e.Spawn):
            for local_rank in range(self.pod.cluster.shape.nproc_per_node):
                self._spawn(effect.start, local_rank, warm=effect.is_warmup_done)
            return
        assert self.memory is not None
        if isinstance(effect, e.ReadSnapshots):
            read = e.SnapshotsRead(effect.start.token, self.memory.start(effect.start))
            self.later(0.0, lambda: self.handle(read))
            return
        self.memory.choose(effect.choice)
        for worker in self.workers.values():
            if worker.alive:
                if effect.choice.saved is not None and self.pod.cluster.is_damaged(self.pod):
                    self._discard(worker)
                self._training.chosen(worker, effect.choice)

    def _discard(self, worker: SimulatedWorker) -> None:
        """load() in the worker finds its own snapshot damaged."""
        assert self.memory is not None
        self.memory.discard(worker.local_rank)
        self.world.log(self.pod.name, f"FAULT: the snapshot of rank {worker.rank} is damaged")
        self.pod.cluster.fails(self.pod.name)
        worker.end(1, None)

    # The zygote -----------------------------------------------------------------------------------------------------

    def _do_with_zygote(self, effect: e.StartZygote | e.EndZygote | e.MakeStore) -> None:
        number = self.zygote
        if isinstance(effect, e.StartZygote):
            self._zygotes += 1
            self.zygote = number = self._zygotes
            self.later(self.world.between(*IMPORT_S), lambda: self._imported(number))
        elif isinstance(effect, e.EndZygote):
            self.zygote = 0
        else:
            self._end_stores(effect.keep)
            self.later(self.world.between(*STORE_S), lambda: self._store_listens(number))

    def _imported(self, number: int) -> None:
        if number != self.zygote:
            return
        self.warm = True
        if self.world.rng.random() < UNFIT:
            self.zygote = 0
            self.handle(e.ZygoteLost("a module that it has imported runs a thread", is_final=True))
        else:
            self.handle(e.ZygoteReady(1.0, {}))

    def _store_listens(self, number: int) -> None:
        if number == self.zygote:
            port = self._training.new_store(self.pod.ip)
            self._stores.append(port)
            self.handle(e.StoreReady(port))

    def _end_stores(self, keep: Collection[int]) -> None:
        """End all stores except those at these ports."""
        for port in [port for port in self._stores if port not in keep]:
            self._stores.remove(port)
            self._training.end_store(self.pod.ip, port)

    def kill_zygote(self) -> None:
        self.zygote = 0
        self._end_stores(())
        self.post(lambda: self.handle(e.ZygoteLost("it has ended", is_final=False)))
        for local_rank in sorted(self._forked):
            self.workers[local_rank].end(None, "SIGKILL")
        self._forked.clear()

    # Workers --------------------------------------------------------------------------------------------------------

    def _spawn(self, start: StartWorkers, local_rank: int, *, warm: bool) -> None:
        warm = warm and bool(self.zygote)  # a zygote that has just ended forks nothing
        if start.agent_store and start.rank_offset + local_rank == 0 and start.master_port not in self._stores:
            why = "the store of this round ended before the workers started"
            self.pod.cluster.worker_faults.append(self.world.now)
            gone = e.WorkerEnded(local_rank, 1, None, 1, why, self.world.now)
            self.later(0.0, lambda: self.handle(gone))
            self.later(0.0, lambda: self.handle(e.GroupEmptied(local_rank)))
            return

        first_step: int | None = None

        def stepped(step: int) -> None:
            nonlocal first_step
            if self.pod.cluster.reports_steps:
                is_first, first_step = first_step is None, step if first_step is None else first_step
                self._write(local_rank, *self.pod.cluster.numbers.number(step, first_step))
                if is_first:
                    self.post(self._read_steps)

        def exited(code: int | None, signal: str | None, message: str) -> None:
            if self.memory is not None and worker.stepped and self.pod.cluster.ends_during_save():
                self.memory.interrupt_save(worker)
            self._training.left(worker)
            self.post(lambda: self._reap(worker, code, signal, message))

        worker = SimulatedWorker(start, local_rank, self.pod.name, self.machine, stepped, exited, memory=self.memory)
        fate = self.world.rng.random()
        worker.stuck = fate < STUCK
        if self.pod.cluster.hang_at_start:
            self.pod.cluster.hang_at_start -= 1
            self.pod.cluster.hung_at_start = self.world.now
            self.world.log(self.pod.name, f"FAULT: its worker of rank {worker.rank} hangs before its first step")
            self.pod.cluster.fails(self.pod.name)
            worker.hung = worker.stuck = True
        self._untrapped.discard(local_rank)
        self._pages.pop(local_rank, None)
        self._first_at.pop(local_rank, None)
        if fate >= 1 - UNTRAPPED:
            self._untrapped.add(local_rank)
        self.workers[local_rank] = worker
        (self._forked.add if warm else self._forked.discard)(local_rank)
        self.pod.spawned(worker)
        delay = self.world.between(*(FORK_S if warm else SPAWN_S))
        self.world.after(delay, lambda: self.machine.post(lambda: self._training.join(worker)))

    def _write(self, local_rank: int, step: int, is_counted: bool) -> None:
        """step() in the worker."""
        reports = 1 + (self._pages[local_rank].reports if local_rank in self._pages else 0)
        first_at = self._first_at.setdefault(local_rank, self.now())
        now = self.now()
        self._pages[local_rank] = e.StepsRead(local_rank, step, None, reports, now, now, first_at, is_counted)

    def _read_steps(self) -> None:
        pages, self._pages = self._pages, {}
        for read in pages.values():
            self.handle(read)

    def has_forked(self, worker: SimulatedWorker) -> bool:
        return worker.local_rank in self._forked

    def on_raised(self, worker: SimulatedWorker) -> None:
        """An exception is in the error file of a worker. A fork also rings its bell."""
        if self.has_forked(worker):
            self.post(self._read_exceptions)

    def _read_exceptions(self) -> None:
        for worker in self.workers.values():
            if worker.alive and not worker.signaled and worker.raised is not None:
                (text, at), worker.raised = worker.raised, None
                raised = e.WorkerRaised(worker.local_rank, text, self.world.now - at)
                self.later(0.0, lambda raised=raised: self.handle(raised))  # type: ignore[misc]

    def _reap(self, worker: SimulatedWorker, code: int | None, signal: str | None, message: str) -> None:
        self._read_steps()
        shell = {"SIGKILL": 137, "SIGTERM": 143}[signal] if signal is not None else code
        assert shell is not None
        self.handle(e.WorkerEnded(worker.local_rank, code, signal, shell, message, self.world.now))
        emptied = e.GroupEmptied(worker.local_rank)
        self.later(self.world.between(0.0, GROUP_POLL_S), lambda: self.handle(emptied))

    def _signal(self, signal: e.Signal) -> None:
        if signal.local_rank == LEFTOVERS:  # simulated workers leave none: this only takes the time of the check
            self.later(0.0, lambda: self.handle(e.GroupEmptied(LEFTOVERS)))
            return
        worker = self.workers.get(signal.local_rank)
        if worker is None or not worker.alive:
            return
        worker.signaled = True
        if worker.unkillable:
            worker.killed = worker.killed or signal.aim is e.Aim.KILL_GROUP
        elif signal.aim is e.Aim.STOP_GROUP:
            worker.hung = worker.stuck = True
        elif signal.aim is e.Aim.KILL_GROUP:
            self._end(worker, KILL_S, None, "SIGKILL")
        elif signal.local_rank in self._untrapped:
            self._end(worker, KILL_S, None, "SIGTERM")
        elif not worker.stuck:
            self._end(worker, SAVE_S, 0, None)

    def _end(
        self, worker: SimulatedWorker, within_s: tuple[float, float], code: int | None, signal: str | None
    ) -> None:
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
        self.listen(self._link, self._on_sidecar_message, lambda silent: self._lost_sidecar())
        self.handle(e.Connected())

    def _on_sidecar_message(self, message: object) -> None:
        """HoldSocket has no effect here: pods.py models the duplicate from the end of the sidecar on."""
        assert isinstance(message, TO_LAUNCHER), message
        if self.starts_nothing and isinstance(message, StartWorkers):
            self.start_held_at = self.world.now
            for worker in self.workers.values():
                worker.end(None, "SIGKILL")
            return
        self.handle(message)  # type: ignore[arg-type]

    def _lost_sidecar(self) -> None:
        self._link = None
        self._connect(FIRST_RETRY_S)
