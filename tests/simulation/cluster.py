"""One job on one simulated cluster: machines, pods, the operator, and the data that the invariants need."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.simulation.api_server import ApiServer, PodObject
from tests.simulation.launchers import Launcher
from tests.simulation.network import Machine, Network
from tests.simulation.operator_model import OperatorModel
from tests.simulation.pods import GRACE_S, Pod
from tests.simulation.sidecars import SimulatedSidecar
from tests.simulation.training import Numbers, SimulatedWorker, Training
from tests.simulation.world import World
from understudy_protocol import pod as names
from understudy_protocol.enums import NO_TERM, Drill, OnFailedUpdate, Proactive
from understudy_protocol.membership import Assign, Close
from understudy_protocol.observer import DrillOrder, Snapshot
from understudy_protocol.pod import JobShape
from understudy_sidecar.membership.coordinator import Coordinator
from understudy_sidecar.membership.voter_config import Tally

#: The share of ends of workers.
ENDS_DURING_SAVE = 0.1
#: A drill is detected within this time.
DRILL_S = 60.0


@dataclass(frozen=True)
class Setup:
    actives: int = 2
    spares: int = 1
    nproc: int = 1
    machines: int = 6
    steps: int = 40
    max_in_place: int = 10
    max_per_pod: int | None = None  # restarts in place that one pod's workers may cause; None: any number
    reports_steps: bool = True  # whether the training script makes steps that are reported
    numbers: Numbers = Numbers.SCRIPT
    slow_start_s: float = 0.0  # at most, for a pod's images
    zygotes: bool = True  # whether workers are forked
    replica_groups: tuple[tuple[int, ...], ...] = ()  # group ranks with the same shards
    step_timeout_s: float = 0.0  # a worker without a step for this time hangs; 0: never
    start_timeout_s: float = 0.0  # a round without a step for this time after its start hangs; 0: never
    update_retries: int | None = None  # consecutive failed weight updates that the trainer may retry; None: no rollouts
    proactive: Proactive = Proactive.OFF
    host_network: bool = False  # whether the pods of a machine share its address, and listen on different ports
    snapshots: bool = False  # in memory, at each step
    copies: int = 0  # of each snapshot, in other pods
    damaged: float = 0.0  # the share of ranks that find their own snapshot damaged when they restore it


@dataclass
class SimulatedCluster:
    world: World
    setup: Setup
    pods: list[Pod] = field(default_factory=list)
    workers: list[SimulatedWorker] = field(default_factory=list)  # all that were ever spawned, until they are seen dead
    leaders: list[SimulatedSidecar] = field(default_factory=list)  # every sidecar that ever led, once a term
    #: Not checked yet: the coordinator, the pod uid of the member, its assignment, and whether there was a majority.
    assignments: list[tuple[Coordinator, str, Assign, bool]] = field(default_factory=list)
    snapshots: list[Snapshot] = field(default_factory=list)  # likewise
    clocks_differ: bool = False
    hang_at_start: int = 0  # the number of workers, of those spawned next, that make no step
    hung_at_start: float = 0.0  # when the newest of these was spawned
    appointments: list[int] = field(default_factory=list)  # epochs
    worker_faults: list[float] = field(default_factory=list)  # when workers ended for another reason than a peer's end
    culprits: set[str] = field(default_factory=set)  # names of the pods of such workers
    hangs: set[float] = field(default_factory=set)  # those that coordinators have reported
    final_updates: list[float] = field(default_factory=list)  # when workers reported a failure that ends the job
    drained: set[str] = field(default_factory=set)  # names of pods that a user drains
    damaged: list[Pod] = field(default_factory=list)  # that find each snapshot damaged which they restore
    disturbances: list[float] = field(default_factory=list)  # when any other fault was injected
    on_coordinator_sent: Callable[[SimulatedSidecar, object], None] = lambda sidecar, message: None
    _links: int = 0

    def __post_init__(self) -> None:
        setup = self.setup
        self.shape = JobShape(
            "job-uid",
            "ns",
            "job",
            setup.actives,
            setup.nproc,
            setup.max_in_place,
            3600.0,
            grace_s=GRACE_S,
            replica_groups=setup.replica_groups,
            in_place_max_per_pod=setup.max_per_pod,
            on_failed_update=None if setup.update_retries is None else OnFailedUpdate.RESTART_JOB,
            update_retries=setup.update_retries or 0,
            proactive=setup.proactive,
            start_timeout_s=setup.start_timeout_s,
            snapshots=setup.snapshots,
            snapshot_copies=setup.copies,
        )
        self._saves = random.Random(f"saves-{self.world.seed}")
        self._damages = random.Random(f"damages-{self.world.seed}")
        self.reports_steps, self.zygotes, self.numbers = setup.reports_steps, setup.zygotes, setup.numbers
        self.step_timeout_s = setup.step_timeout_s
        self.network = Network(self.world)
        self.training = Training(self.world, setup.steps, snapshots=setup.snapshots)
        self.training.has_ended = lambda name: all(pod.ended for pod in self.pods if pod.name == name)
        self.machines = [Machine(f"node-{number}") for number in range(setup.machines)]
        self.api = ApiServer(self, setup.slow_start_s)
        self.operator = OperatorModel(self, self.api, setup.spares)
        self.operator.start()

    def drain(self, pod: Pod) -> None:
        """A user drains this pod."""
        entry = self.api.objects.get(pod.name)
        if entry is not None:
            self.world.log(pod.name, "FAULT: a user drains it")
            self.drained.add(pod.name)
            entry.annotations[names.ANNOTATION_DRAIN] = "a new kernel"
            self.operator.enqueue()

    def order_drill(self, pod: Pod, drill: Drill) -> None:
        """The operator orders a drill on this pod, in the round that it knows."""
        coordination = self.operator.coordination
        if coordination.snapshot is not None and pod.launcher is not None:
            self.world.log(pod.name, f"FAULT: a drill ({drill.value})")
            self.worker_faults.append(self.world.now)
            self.operator.drill = DrillOrder(coordination.snapshot.token, pod.uid, drill, DRILL_S)
            self.operator.enqueue()

    # For pods -------------------------------------------------------------------------------------------------------

    def coordinator_pod(self) -> Pod | None:
        """The pod that the Service selects: endpoints follow the label, and exclude pods that have ended."""
        if not self.operator.has_service:
            return None
        labelled = (x for x in self.api.objects.values() if names.LABEL_COORDINATOR in x.labels)
        return next((x.pod for x in labelled if x.phase not in ("Succeeded", "Failed")), None)

    def pod_at(self, address: str) -> Pod | None:
        return next((pod for pod in reversed(self.pods) if pod.address == address), None)

    def link_number(self) -> int:
        self._links += 1
        return self._links

    def became_leader(self, sidecar: SimulatedSidecar) -> None:
        self.leaders.append(sidecar)

    def coordinator_sent(self, sidecar: SimulatedSidecar, message: object) -> None:
        self.on_coordinator_sent(sidecar, message)

    def assigned(self, coordinator: Coordinator, member: str, assign: Assign) -> None:
        voters = coordinator.state.voter_configs.newest
        has_majority = not voters.exists or Tally(voters, coordinator.state.roster.connected).has_majority()
        self.assignments.append((coordinator, member, assign, has_majority))

    # For the operator -----------------------------------------------------------------------------------------------

    def new_pod(self, made_as: str, index: int | None, machine: Machine) -> Pod:
        number = len(self.pods)
        ip, port = f"10.0.1.{number}", 8478
        if self.setup.host_network:
            ip, port = f"10.0.2.{machine.name.removeprefix('node-')}", 24000 + 2 * number
        pod = Pod(self, f"uid-{number}", f"{made_as}-{number}", machine, index, ip, port)
        pod.spawned = lambda worker: self.workers.append(worker)  # a new list after each check
        self.pods.append(pod)
        return pod

    def snapshot_seen(self, snapshot: Snapshot) -> None:
        self.snapshots.append(snapshot)

    def appointed(self, epoch: int) -> None:
        self.appointments.append(epoch)

    # For faults and scenarios ---------------------------------------------------------------------------------------

    def fails(self, pod: str) -> None:
        """A fault makes workers of this pod fail by themselves."""
        self.worker_faults.append(self.world.now)
        self.culprits.add(pod)

    def ends_during_save(self) -> bool:
        """Whether a worker that ends was saving a snapshot."""
        return self._saves.random() < ENDS_DURING_SAVE

    def is_damaged(self, pod: Pod) -> bool:
        """Whether load() in a worker finds the snapshot of its own rank damaged."""
        return self._damages.random() < self.setup.damaged or pod in self.damaged

    def end_worker(self, worker: SimulatedWorker, code: int | None, signal: str | None) -> None:
        self.world.log(worker.pod, f"FAULT: its worker of rank {worker.rank} ends ({signal or code})")
        self.fails(worker.pod)
        worker.end(code, signal)

    def is_fork(self, worker: SimulatedWorker) -> bool:
        return self._launcher_of(worker).has_forked(worker)

    def _launcher_of(self, worker: SimulatedWorker) -> Launcher:
        launcher = next(pod.launcher for pod in self.pods if pod.name == worker.pod)
        assert launcher is not None
        return launcher

    def raise_exception(self, worker: SimulatedWorker, text: str, *, disconnects_s: float, ends_s: float) -> None:
        """The script of a worker ends with an exception. Its process closes its connections, and then ends, after these
        times.
        """
        self.world.log(worker.pod, f"FAULT: its worker of rank {worker.rank} raises an exception, and ends slowly")
        self.fails(worker.pod)
        worker.raised, worker.hung, worker.stuck = (text, self.world.now), True, True
        self._launcher_of(worker).on_raised(worker)
        self.world.after(disconnects_s, lambda: self.training.raises(worker))
        self.world.after(ends_s, lambda: worker.end(1, None, text))

    def objects(self) -> list[PodObject]:
        return list(self.api.objects.values())

    def seated(self) -> list[Pod]:
        """The pods with a rank of the newest round, by rank."""
        running = [pod for pod in self.pods if pod.workers() and pod.machine.on]
        newest = max((worker.token for pod in running for worker in pod.workers()), default=None)
        holders = [pod for pod in running if pod.workers()[0].token == newest]
        return sorted(holders, key=lambda pod: pod.workers()[0].rank)

    def waiting(self) -> list[Pod]:
        """Pods that have joined and have no rank."""
        return [
            pod
            for pod in self.pods
            if pod.sidecar is not None and pod.sidecar.alive and not pod.ended and not pod.workers()
        ]

    def leader(self) -> SimulatedSidecar | None:
        """The newest living coordinator."""
        living = [x for x in self.leaders if x.alive and x.coordinator is not None and x.pod.machine.on]
        return max(living, key=lambda x: x.coordinator.term if x.coordinator else NO_TERM, default=None)

    def closed(self) -> bool:
        return bool(self.closes())

    def closes(self) -> list[Close]:
        """Those of all pods; if no process can read one any more, the one that the operator has recorded."""
        closes = [pod.effective_close for pod in self.pods if pod.effective_close is not None]
        recorded = self.operator.recorded_close
        return closes or ([] if recorded is None else [recorded])

    def on_machine(self, machine: Machine) -> list[Pod]:
        return [pod for pod in self.pods if pod.machine is machine]

    def power_off(self, machine: Machine) -> None:
        self.world.log(machine.name, "FAULT: its power is off")
        for pod in self.on_machine(machine):
            pod.lose_power()
        self.network.power_off(machine)

    def cut(self, machine: Machine) -> None:
        self.world.log(machine.name, "FAULT: it is off the network")
        self.network.cut(machine)

    def heal(self, machine: Machine) -> None:
        self.world.log(machine.name, "is on the network again")
        self.network.heal(machine)
        self._back(machine)

    def part(self, group: list[Machine], others: list[Machine]) -> None:
        names = ", ".join(machine.name for machine in group)
        self.world.log("network", f"FAULT: {names} and {len(others)} others do not reach each other")
        self.network.part(group, others)

    def rejoin(self, group: list[Machine], others: list[Machine]) -> None:
        self.world.log("network", f"{', '.join(machine.name for machine in group)} reach all others again")
        self.network.join(group, others)
        for machine in group:
            self._back(machine)

    def cut_operator(self) -> None:
        """Cut the operator off from all pods, but not from the API server."""
        self.world.log("operator", "FAULT: it reaches no pod")
        self.network.cut(self.operator.machine)

    def heal_operator(self) -> None:
        self.world.log("operator", "it reaches pods again")
        self.network.heal(self.operator.machine)

    def freeze(self, machine: Machine) -> None:
        self.world.log(machine.name, "FAULT: it freezes")
        self.network.freeze(machine)

    def thaw(self, machine: Machine) -> None:
        self.world.log(machine.name, "thaws")
        self.network.thaw(machine)
        self._back(machine)

    def _back(self, machine: Machine) -> None:
        if machine.is_responding:
            self.api.machine_answers(machine)
        self.training.machines_changed()


def new_cluster(seed: int, setup: Setup) -> SimulatedCluster:
    return SimulatedCluster(World(seed), setup)
