"""A simulated pod: a sidecar, a launcher (the real supervisor) and its workers, under a kubelet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tests.simulation.launchers import Launcher
from tests.simulation.network import End, Machine, Network
from tests.simulation.sidecars import SimulatedSidecar
from tests.simulation.training import Numbers, SimulatedWorker, Training
from understudy_launcher import events as e
from understudy_protocol.addresses import with_port
from understudy_protocol.hard_state import HardState
from understudy_protocol.membership import Assign, Close
from understudy_protocol.pod import JobShape
from understudy_sidecar.membership.coordinator import Coordinator

GRACE_S = 30.0


class SimulatedPods(Protocol):
    """The part of the cluster that a pod needs."""

    shape: JobShape
    training: Training
    network: Network
    reports_steps: bool  # whether the training script makes steps that are reported
    numbers: Numbers
    zygotes: bool  # whether workers are forked
    worker_faults: list[float]  # when workers ended for another reason than a peer's end
    step_timeout_s: float  # 0: workers never hang
    hang_at_start: int  # the number of workers, of those spawned next, that make no step
    hung_at_start: float

    def fails(self, pod: str) -> None: ...
    def ends_during_save(self) -> bool: ...
    def is_damaged(self, pod: Pod) -> bool: ...
    def coordinator_pod(self) -> Pod | None: ...
    def pod_at(self, address: str) -> Pod | None: ...
    def link_number(self) -> int: ...
    def became_leader(self, sidecar: SimulatedSidecar) -> None: ...
    def coordinator_sent(self, sidecar: SimulatedSidecar, message: object) -> None: ...
    def assigned(self, coordinator: Coordinator, member: str, assign: Assign) -> None: ...


class Pod:
    """The processes of a pod; api_server.py has the pod's object."""

    def __init__(
        self, cluster: SimulatedPods, uid: str, name: str, machine: Machine, index: int | None, ip: str, port: int
    ) -> None:
        self.cluster, self.uid, self.name, self.machine, self.index = cluster, uid, name, machine, index
        self.ip, self.port, self.address = ip, port, with_port(ip, port)
        self.network, self.world = cluster.network, cluster.network.world
        self.grace_s = GRACE_S
        self._grace_ends_at: float | None = None  # the kubelet kills all processes of the pod, which is being deleted
        self.sidecar: SimulatedSidecar | None = None
        self.launcher: Launcher | None = None
        self.trainer_started_at = 0.0  # when its kubelet started the launcher
        self.recorded_close: Close | None = None  # this one and the next two are in the emptyDir
        self.hard_state = HardState()
        self.launcher_known = False
        self.volume_full = False  # no hard state can be stored
        self.reported_at = 0.0  # when its sidecar recorded the close
        self.was_abandoned = False  # its object was removed while its kubelet could not end it
        self.store_failed = False  # since then it is evicted, even if its launcher gets the close first
        self.was_evicted = False  # its launcher got that order, and exits with that code even if the close comes later
        self.exit_code: int | None = None  # of the trainer container
        self.asked_to_end = self.was_killed = False
        self.faulty = ""  # reason of the verdict in verdict.json, which its launcher reads
        self.sidecar_ran = False
        self.changed: Callable[[], None] = lambda: None
        self.spawned: Callable[[SimulatedWorker], None] = lambda worker: None
        self._held: End | None = None  # the dead sidecar's connection, of which the launcher has a duplicate

    @property
    def effective_close(self) -> Close | None:
        """The recorded close, unless no process outside of the pod can read it any more."""
        return None if self.was_abandoned else self.recorded_close

    @property
    def ended(self) -> bool:
        """The trainer container has ended: the pod is Succeeded or Failed."""
        return self.exit_code is not None

    def workers(self) -> list[SimulatedWorker]:
        return [] if self.launcher is None else [w for w in self.launcher.workers.values() if w.alive]

    def hold_socket(self, end: End) -> None:
        """The sidecar has ended: no process reads from the connection, and FIN is sent when the launcher ends too."""
        self.release_socket()
        if self.launcher is None or not self.launcher.alive:
            end.close()
            return
        end.on_message, end.on_end = lambda message: None, lambda silent: None
        self._held = end

    def release_socket(self) -> None:
        if self._held is not None:
            self._held.close()
            self._held = None

    # The kubelet ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the sidecar, which is an init container, and then the trainer."""
        self._post(self._start_sidecar)
        self.world.after(self.world.between(0.1, 0.5), lambda: self._post(self._start_launcher))

    def _post(self, work: Callable[[], None]) -> None:
        self.machine.post(work)

    def _start_sidecar(self) -> None:
        if not self.ended and (self.sidecar is None or not self.sidecar.alive):
            self.sidecar_ran = True
            self.sidecar = SimulatedSidecar(self)
            self.changed()

    def _start_launcher(self) -> None:
        if not self.ended and self.launcher is None and not self.asked_to_end:
            self.launcher, self.trainer_started_at = Launcher(self), self.world.now

    def launcher_exited(self, code: int, reason: str) -> None:
        """The trainer container has ended; after it the kubelet ends the sidecar, which is a native one."""
        if self.ended:
            return
        self.world.log(self.name, f"the launcher exits {code}: {reason}")
        self.exit_code = code
        if self.launcher is not None:
            self.launcher.die()
        self.release_socket()
        self.changed()
        self.world.after(self.world.between(0.05, 1.0), lambda: self._post(self._end_sidecar))

    def _end_sidecar(self) -> None:
        if self.sidecar is not None and self.sidecar.alive:
            self.sidecar.terminate()
            limit_s = self.sidecar.core.end_limit_s
            if self._grace_ends_at is not None:
                limit_s = max(0.0, min(limit_s, self._grace_ends_at - self.world.now))
            self.world.after(limit_s, lambda: self._post(self._kill_sidecar_for_good))

    def _kill_sidecar_for_good(self) -> None:
        if self.sidecar is not None and self.sidecar.alive:
            self.sidecar.die()

    def kill_sidecar(self) -> None:
        """Kill only its process; the kubelet starts it again."""
        if self.sidecar is not None and self.sidecar.alive:
            self.world.log(self.name, "FAULT: its sidecar is killed")
            self.sidecar.die()
            self.changed()
            if not self.ended:
                self.world.after(self.world.between(1.0, 2.0), lambda: self._post(self._start_sidecar))

    def kill(self) -> None:
        """Kill all processes at once."""
        if self.ended:
            return
        self.was_killed = True
        if self.sidecar is not None:
            self.sidecar.die()
        self.launcher_exited(137, "killed with the pod")

    def delete(self, grace_s: float | None = None) -> None:
        """SIGTERM to the trainer, SIGKILL after the grace period."""
        if self.asked_to_end:
            return
        self.asked_to_end = True
        grace = self.grace_s if grace_s is None else grace_s
        self._grace_ends_at = self.world.now + grace
        if self.launcher is None:
            self.kill()
            return
        launcher = self.launcher
        launcher.post(lambda: launcher.handle(e.AskedToEnd("SIGTERM", self.faulty)))
        self.world.after(grace, lambda: self._post(self.kill))

    def lose_power(self) -> None:
        self.was_killed = True
        for worker in self.workers():
            self.cluster.training.lost_power(worker)
        for process in (self.sidecar, self.launcher):
            if process is not None:
                process.alive = False
