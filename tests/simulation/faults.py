"""Faults: a schedule drawn from a seed, and the functions that inject them.

The target of a fault is drawn when the fault strikes, among all possible targets. Faults come at the first start,
during training, right after another fault (during its recovery), and at the very end of the training.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from tests.simulation.cluster import Setup, SimulatedCluster
from tests.simulation.network import Machine
from tests.simulation.pods import Pod
from tests.simulation.training import SimulatedWorker
from understudy_protocol.enums import Drill
from understudy_protocol.membership import Replicas
from understudy_protocol.rollouts import UpdateFailure
from understudy_sidecar.membership.events import FromWorker

#: kind -> weight
KINDS = {
    "worker killed": 4,
    "worker exits 1": 3,
    "worker hangs": 3,
    "zygote killed": 1,
    "pod killed": 4,
    "trainer killed": 1,
    "sidecar killed": 3,
    "sidecar hangs": 2,
    "launcher stops": 5,
    "state volume full": 2,
    "worker unkillable": 2,
    "power off": 3,
    "cut off": 3,
    "frozen": 3,
    "pod deleted": 2,
    "pod on a faulty node deleted": 2,
    "spare deleted": 1,
    "coordinator killed": 2,
    "coordinator's sidecar killed": 2,
    "coordinator's sidecar hangs": 1,
    "operator down": 2,
    "operator cut off": 1,
    "partition": 2,
    "asymmetric partition": 2,
    "slow network": 2,
    "clock set": 1,
}
#: Seconds that training may stop for faults that last longer. In a job of two pods no majority is left, and the
#: operator appoints a coordinator after 60 s. How long a job may wait for a start depends on when the round was formed
#: (invariants.py).
HELD_UP_S = {"launcher stops": 60.0, "worker unkillable": 60.0, "start never comes": 0.0}
SLOWEST_S = 2.0
CLOCK_S = 5000.0
#: Longer than silence.py needs to find a silent member.
STEP_TIMEOUT_S = 20.0

MANY, MANY_SHARE = 40, 0.02
#: A quarter of the schedules is about coordinators: several fail, one soon after the other.
ELECTIONS = {
    "coordinator killed": 3,
    "coordinator's sidecar killed": 3,
    "coordinator's sidecar hangs": 3,
    "sidecar killed": 2,
    "partition": 4,
    "asymmetric partition": 3,
    "frozen": 2,
    "operator down": 3,
    "worker killed": 2,
    "slow network": 2,
}
ELECTIONS_SHARE = 0.25
LAST_FAULT_S = 30.0
#: A sixth is about the ladder: pods and ranks that fail repeatedly, together with other faults.
LADDER_SHARE = 1 / 6
BAD_POD, BAD_RANK = "worker of the bad pod dies", "worker of the bad rank dies"
UPDATE_FAILS, UPDATE_FAILS_TRAINER_ENDS, UPDATE_IS_WHOLE = (
    "weight update fails",
    "weight update fails, and the trainer with it",
    "weight update is whole",
)
#: An eighth has rollouts, whose weights rank 0 updates, together with all other faults.
UPDATES_SHARE = 1 / 8
UPDATES = {UPDATE_FAILS: 3, UPDATE_FAILS_TRAINER_ENDS: 2, UPDATE_IS_WHOLE: 2}
BESIDE = {
    "worker killed": 2,
    "worker exits 1": 2,
    "two workers killed": 3,
    "two pods killed": 3,
    "worker dies on a faulty node": 3,
    "pod deleted": 3,
    "pod killed": 2,
    "coordinator killed": 2,
    "coordinator's sidecar killed": 2,
    "power off": 1,
    "frozen": 1,
    "sidecar hangs": 1,
    "operator down": 1,
    "slow network": 1,
}
#: In a tenth, nodes get findings in jobs that swap proactively, together with other faults.
BAD_NODES_SHARE = 1 / 10
BAD_NODE = "node turns bad"
#: In a tenth, users drain pods.
DRAINS_SHARE = 1 / 10
DRAINED = "pod drained by a user"
#: In a tenth, drills break workers.
DRILLS_SHARE = 1 / 10
DRILL = "drill"
#: In a tenth, startTimeout is set, and workers hang before their first step.
STARTS_SHARE = 1 / 10
START_TIMEOUT_S = 25.0
HANGS_AT_START = "worker hangs before its first step"
#: In a tenth, the operator is down for minutes, and the members of a small job lose their coordinator at different
#: times.
LEADERLESS_SHARE = 1 / 10
APART_BY = {"asymmetric partition": 3, "sidecar killed": 1, "slow network": 1, "partition": 1}
#: In a fifth, the pods share the addresses of their machines, and listen on ports of their own.
HOST_NETWORK_SHARE = 1 / 5
#: In a twentieth, the workers of a pod are never started, though its launcher responds (a hung call under torchrun).
NO_STARTS_SHARE = 1 / 20
NO_START = "start never comes"
AT_THE_END = -1.0
RAISED = "ValueError: a wrong digest"


@dataclass(frozen=True)
class Fault:
    at: float  # seconds after the start, or AT_THE_END of the training
    kind: str
    lasts_s: float = 0.0

    @property
    def waited_for_s(self) -> float:
        """The part of the fault's duration for which training may stop."""
        return min(self.lasts_s, HELD_UP_S.get(self.kind, self.lasts_s))

    def __str__(self) -> str:
        when = "at the end" if self.at == AT_THE_END else f"{self.at:7.3f} s"
        return f"{when}: {self.kind}" + (f" for {self.lasts_s:.1f} s" if self.lasts_s else "")


def draw_setup(rng: random.Random) -> Setup:
    actives, spares = rng.randint(1, 6), rng.randint(0, 3)
    if rng.random() < MANY_SHARE:
        actives, spares = rng.randint(7, MANY), rng.randint(0, 6)
    pods = actives + spares
    machines = pods + 3 if rng.random() < 0.7 else pods // 2 + 4  # in the second case pods share a machine
    return Setup(
        actives,
        spares,
        nproc=rng.randint(1, 2),
        machines=machines,
        steps=rng.randint(20, 50),
        max_in_place=rng.choice([2, 5, 10]),
        reports_steps=rng.random() < 0.85,
        slow_start_s=rng.choice([0.0, 0.0, 0.0, 45.0]),
        zygotes=rng.random() < 0.7,
        step_timeout_s=rng.choice([0.0, STEP_TIMEOUT_S]),
        replica_groups=rng.choice([(), tuple((rank, rank + 1) for rank in range(0, actives - 1, 2))]),
    )


def draw_faults(rng: random.Random, most: int = 5) -> list[Fault]:
    if rng.random() < 0.05:  # a script with a bug: it fails repeatedly
        return [Fault(5.0 + 3.0 * number, "worker exits 1") for number in range(rng.randint(2, 8))]
    kinds, most = (ELECTIONS, 2 * most) if rng.random() < ELECTIONS_SHARE else (KINDS, most)
    faults = []
    at = rng.uniform(0.0, LAST_FAULT_S)
    for _ in range(rng.randint(1, most)):
        kind = rng.choices(list(kinds), list(kinds.values()))[0]
        faults.append(Fault(AT_THE_END if rng.random() < 0.15 else at, kind, _lasts(rng, kind)))
        soon = at + rng.choice([0.0, rng.uniform(0.0, 0.5), rng.uniform(0.0, 5.0)])  # within the recovery
        at = soon if rng.random() < 0.5 else rng.uniform(0.0, LAST_FAULT_S)
    return sorted(faults, key=lambda fault: (fault.at == AT_THE_END, fault.at))


def draw_ladder(rng: random.Random) -> list[Fault]:
    """A pod or a rank that fails every few seconds while it exists; and other faults, some at the same time."""
    faults = []
    if rng.random() < 0.8:
        kind, every_s = rng.choice([BAD_POD, BAD_RANK]), rng.choice([0.3, 2.0, 5.0])
        faults += [Fault(5.0 + every_s * number, kind) for number in range(rng.randint(2, 15))]
    for _ in range(rng.randint(0, 5)):
        at = rng.choice([rng.choice(faults).at, rng.uniform(0.0, LAST_FAULT_S)] if faults else [LAST_FAULT_S / 2])
        kind = rng.choices(list(BESIDE), list(BESIDE.values()))[0]
        faults.append(Fault(at + rng.choice([0.0, 0.0, rng.uniform(0.0, 1.0)]), kind, _lasts(rng, kind)))
    return sorted(faults, key=lambda fault: fault.at) or [Fault(5.0, "worker killed")]


def draw_updates(rng: random.Random) -> list[Fault]:
    at, faults = rng.uniform(3.0, LAST_FAULT_S), []
    for _ in range(rng.randint(1, 4)):
        faults.append(Fault(at, rng.choices(list(UPDATES), list(UPDATES.values()))[0]))
        at += rng.choice([0.0, rng.uniform(0.0, 0.5), rng.uniform(0.0, 5.0)])
    return faults


def draw_beside(rng: random.Random, faults: list[Fault], kind: str) -> list[Fault]:
    """Add faults of this kind to these faults: at any time, or at the time of another fault."""
    times = [fault.at for fault in faults if fault.at != AT_THE_END] or [LAST_FAULT_S / 2]
    for _ in range(rng.randint(1, 4)):
        times.append(rng.choice([rng.choice(times) + rng.choice([0.0, rng.uniform(0.0, 0.5)]), rng.uniform(3.0, 30.0)]))
    added = [Fault(at, kind) for at in times[-rng.randint(1, 4) :]]
    return sorted([*faults, *added], key=lambda fault: (fault.at == AT_THE_END, fault.at))


def draw_starts(rng: random.Random, faults: list[Fault]) -> list[Fault]:
    starts = [Fault(rng.uniform(0.0, LAST_FAULT_S), HANGS_AT_START) for _ in range(rng.randint(1, 2))]
    return sorted([*faults, *starts], key=lambda fault: (fault.at == AT_THE_END, fault.at))


def draw_leaderless(rng: random.Random) -> list[Fault]:
    """The coordinator fails while the operator is down for long; just before, some members alone have lost it."""
    at, faults = rng.uniform(5.0, LAST_FAULT_S), []
    faults.append(Fault(at, "operator down", rng.uniform(200.0, 400.0)))
    for _ in range(rng.randint(1, 2)):
        apart = rng.choices(list(APART_BY), list(APART_BY.values()))[0]
        lasts_s = rng.uniform(2.5, 6.0)
        faults.append(Fault(at + rng.uniform(0.1, 1.0), apart, lasts_s if apart != "sidecar killed" else 0.0))
        at += rng.uniform(2.0, 6.0)
        faults.append(Fault(at, rng.choice(["coordinator killed", "coordinator's sidecar hangs"]), lasts_s))
    return sorted(faults, key=lambda fault: fault.at)


def draw_no_start(rng: random.Random, faults: list[Fault]) -> list[Fault]:
    never = Fault(rng.uniform(0.0, LAST_FAULT_S), NO_START, rng.uniform(600.0, 900.0))
    return sorted([*faults, never], key=lambda fault: (fault.at == AT_THE_END, fault.at))


def _lasts(rng: random.Random, kind: str) -> float:
    match kind:
        case "frozen" | "sidecar hangs" | "coordinator's sidecar hangs" | "operator cut off" | "state volume full":
            return rng.uniform(5.0, 60.0)
        case "launcher stops" | "worker unkillable":
            return rng.choice([rng.uniform(5.0, 30.0), rng.uniform(150.0, 400.0)])
        case "slow network":
            return rng.uniform(5.0, 30.0)
        case "cut off" | "partition" | "asymmetric partition":
            return rng.choice([rng.uniform(0.2, 6.0), rng.uniform(5.0, 60.0), rng.uniform(30.0, 150.0)])
        case "operator down":
            return rng.uniform(2.0, 40.0)
    return 0.0


class Faults:
    """Injects the scheduled faults. `over_at` is when the effect of the last one (a freeze, a cut) has ended."""

    def __init__(self, cluster: SimulatedCluster, schedule: list[Fault]) -> None:
        self.cluster, self.world = cluster, cluster.world
        self.over_at = cluster.world.now
        self.struck: list[str] = []
        self._exceptions = random.Random(f"exceptions-{cluster.world.seed}")
        self._bad_pod: Pod | None = None
        self._bad_rank = self.world.rng.randrange(cluster.setup.actives * cluster.setup.nproc)
        self._at_the_end = [fault for fault in schedule if fault.at == AT_THE_END]
        cluster.training.last_step_made = self._training_ends
        for fault in schedule:
            if fault.at != AT_THE_END:
                self.world.after(fault.at, lambda fault=fault: self.strike(fault))  # type: ignore[misc]

    def _training_ends(self) -> None:
        faults, self._at_the_end = self._at_the_end, []
        for fault in faults:
            self.world.after(self.world.between(0.0, 0.7), lambda fault=fault: self.strike(fault))  # type: ignore[misc]

    def strike(self, fault: Fault) -> None:
        hands: dict[str, Callable[[], object]] = {
            "worker killed": lambda: self._end_worker(None, "SIGKILL"),
            "worker exits 1": self._fail_worker,
            "worker hangs": self._hang_worker,
            HANGS_AT_START: self._hang_at_start,
            NO_START: lambda: self._on_pod(lambda pod: self._start_nothing(pod, fault.lasts_s)),
            UPDATE_FAILS: lambda: self._update(fails=True),
            UPDATE_FAILS_TRAINER_ENDS: lambda: self._update(fails=True, ends=True),
            UPDATE_IS_WHOLE: lambda: self._update(fails=False),
            "zygote killed": self._kill_zygote,
            BAD_POD: self._fail_bad_pod,
            BAD_RANK: self._fail_bad_rank,
            "two workers killed": lambda: self._end_workers(2),
            "two pods killed": self._kill_two,
            "worker dies on a faulty node": self._fail_on_faulty_node,
            "pod killed": lambda: self._on_pod(lambda pod: self._kill(pod)),
            "trainer killed": lambda: self._on_pod(lambda pod: self._kill_trainer(pod)),
            "sidecar hangs": lambda: self._on_pod(lambda pod: self._hang(pod, fault.lasts_s)),
            "state volume full": lambda: self._on_pod(lambda pod: self._fill_volume(pod, fault.lasts_s)),
            "worker unkillable": lambda: self._make_unkillable(fault.lasts_s),
            "launcher stops": lambda: self._on_pod(lambda pod: self._stop_launcher(pod, fault.lasts_s)),
            "coordinator's sidecar hangs": lambda: self._on_coordinator(lambda pod: self._hang(pod, fault.lasts_s)),
            "sidecar killed": lambda: self._on_pod(lambda pod: pod.kill_sidecar()),
            "power off": self._power_off,
            "cut off": lambda: self._for_a_while(self.cluster.cut, self.cluster.heal, fault.lasts_s),
            "frozen": lambda: self._for_a_while(self.cluster.freeze, self.cluster.thaw, fault.lasts_s),
            "pod deleted": lambda: self._delete(self.cluster.seated()),
            "pod on a faulty node deleted": lambda: self._delete(self.cluster.seated(), faulty="Xid 79"),
            "spare deleted": lambda: self._delete(self.cluster.waiting()),
            "coordinator killed": lambda: self._on_coordinator(self._kill),
            "coordinator's sidecar killed": lambda: self._on_coordinator(lambda pod: pod.kill_sidecar()),
            "operator down": lambda: self._operator_down(fault.lasts_s),
            "partition": lambda: self._part(fault.lasts_s, whole=True),
            "asymmetric partition": lambda: self._part(fault.lasts_s, whole=False),
            "slow network": lambda: self._slow(fault.lasts_s),
            "clock set": self._set_clock,
            BAD_NODE: self._turn_bad,
            DRILL: self._drill,
            DRAINED: lambda: self._on_pod(self.cluster.drain),
            "operator cut off": lambda: self._cut_operator(fault.lasts_s),
        }
        self.struck.append(str(fault))
        hands[fault.kind]()
        self.over_at = max(self.over_at, self.world.now + fault.waited_for_s)

    # Injections -----------------------------------------------------------------------------------------------------

    def _disturbed(self) -> None:
        self.cluster.disturbances.append(self.world.now)

    def _end_worker(self, code: int | None, signal: str | None) -> None:
        if workers := self._workers():
            self.cluster.end_worker(self.world.rng.choice(workers), code, signal)

    def _fail_worker(self) -> None:
        """It raises an exception. A fork may need some time to end: the exception of a fresh process would be known too
        late to prevent the eviction of a peer.
        """
        workers, draws = self._workers(), self._exceptions
        if not workers:
            return
        worker, ends_slowly = self.world.rng.choice(workers), draws.random() < 0.5
        if ends_slowly and self.cluster.is_fork(worker):
            disconnects_s = draws.uniform(0.0, 0.5)
            ends_s = disconnects_s + draws.uniform(0.0, 1.0)
            self.cluster.raise_exception(worker, RAISED, disconnects_s=disconnects_s, ends_s=ends_s)
        else:
            self.cluster.end_worker(worker, 1, None)

    def _workers(self) -> list[SimulatedWorker]:
        return [w for pod in self.cluster.seated() if not pod.machine.frozen for w in pod.workers()]

    def _end_workers(self, number: int) -> None:
        workers = self._workers()
        for worker in self.world.rng.sample(workers, min(number, len(workers))):
            self.cluster.end_worker(worker, None, "SIGKILL")

    def _fail_bad_pod(self) -> None:
        """A GPU is broken and has no finding: workers of its pod die as long as the pod has ranks."""
        seated = self.cluster.seated()
        if self._bad_pod is None and seated:
            self._bad_pod = self.world.rng.choice(seated)
        if self._bad_pod in seated and not self._bad_pod.machine.frozen:
            self.cluster.end_worker(self.world.rng.choice(self._bad_pod.workers()), None, "SIGKILL")

    def _fail_bad_rank(self) -> None:
        """The script has a bug."""
        for worker in self._workers():
            if worker.rank == self._bad_rank:
                self.cluster.end_worker(worker, 1, None)
                return

    def _kill_two(self) -> None:
        pods = self._live()
        for pod in self.world.rng.sample(pods, min(2, len(pods))):
            self._disturbed()
            self._kill(pod)

    def _fail_on_faulty_node(self) -> None:
        """A worker fails on a node that got a Faulty verdict just before; the cluster has other nodes."""
        if workers := self._workers():
            worker = self.world.rng.choice(workers)
            sound = [machine for machine in self.cluster.machines if machine.on and not machine.hardware_finding]
            if len(sound) > self.cluster.setup.actives + 1:
                worker.machine.hardware_finding = "Xid 79"
                self.cluster.operator.enqueue()
            self.world.after(1.0, lambda: self.cluster.end_worker(worker, None, "SIGKILL") if worker.alive else None)

    def _turn_bad(self) -> None:
        """The node of a pod, active or spare, gets a finding; the cluster has other nodes."""
        machines = [machine for machine in self.cluster.machines if machine.on and not machine.hardware_finding]
        sound = [machine for machine in machines if not machine.leaving_reason]
        pods = [pod for pod in self._live() if pod.machine in sound]
        if pods and len(sound) > self.cluster.setup.actives + 1:
            self._disturbed()
            pod = self.world.rng.choice(pods)
            kind = self.world.rng.choice(["faulty", "maintenance"])
            if kind == "faulty":
                pod.machine.hardware_finding = "Xid 79"
            else:
                pod.machine.leaving_reason = "maintenance"
            self.world.log(pod.machine.name, f"FAULT: it turns bad ({kind})")
            self.cluster.operator.enqueue()

    def _drill(self) -> None:
        """A hang only with a step timeout: otherwise it would not be detected."""
        if seated := [pod for pod in self.cluster.seated() if not pod.machine.frozen]:
            may_hang = self.cluster.step_timeout_s and self.cluster.reports_steps
            kinds = [Drill.PROCESS, Drill.HANG] if may_hang else [Drill.PROCESS]
            self.cluster.order_drill(self.world.rng.choice(seated), self.world.rng.choice(kinds))

    def _hang_worker(self) -> None:
        """Hang a worker with a step timeout: otherwise the hang would not be detected."""
        pods = [pod for pod in self.cluster.seated() if not pod.machine.frozen]
        workers = [worker for pod in pods for worker in pod.workers() if worker.stepped and not worker.done]
        if workers and self.cluster.step_timeout_s and self.cluster.reports_steps:
            worker = self.world.rng.choice(workers)
            self.world.log(worker.pod, f"FAULT: its worker of rank {worker.rank} hangs")
            self.cluster.fails(worker.pod)
            worker.hung = worker.stuck = True

    def _hang_at_start(self) -> None:
        """Hang a worker of the next round, which follows at once."""
        self.cluster.hang_at_start += 1
        self._end_worker(1, None)

    def _update(self, *, fails: bool, ends: bool = False) -> None:
        """Rank 0 reports a weight update. A worker that raises reports before it ends."""
        worker = next((worker for worker in self._workers() if worker.rank == 0), None)
        pod = next((pod for pod in self.cluster.seated() if worker in pod.workers()), None)
        retries = self.cluster.setup.update_retries
        if worker is None or pod is None or pod.sidecar is None or retries is None:
            return
        worker.failed_updates = worker.failed_updates + 1 if fails else 0
        update, now = f"update-{len(self.struck)}", self.world.now
        failure = UpdateFailure(update, "v", "rollout-1 is gone", worker.failed_updates, now) if fails else None
        counts = (0, 0, 2) if fails else (2, 0, 0)
        report = Replicas(worker.token, worker.rank, *counts, "v", failure)
        self.world.log(pod.name, f"FAULT: a weight update {'fails' if fails else 'succeeds'}")
        if fails and worker.failed_updates > retries:
            self.cluster.final_updates.append(now)
        sidecar = pod.sidecar
        sidecar.post(lambda: sidecar.handle(FromWorker(report)))
        if ends:
            self.cluster.end_worker(worker, 1, None)

    def _kill_zygote(self) -> None:
        launchers = [pod.launcher for pod in self._live() if pod.launcher is not None and pod.launcher.zygote]
        if launchers:
            launcher = self.world.rng.choice(launchers)
            self.world.log(launcher.pod.name, "FAULT: its zygote is killed, and its forks with it")
            self.cluster.fails(launcher.pod.name)
            launcher.kill_zygote()

    def _live(self) -> list[Pod]:
        return [p for p in self.cluster.pods if p.sidecar_ran and not p.ended and p.machine.on and not p.machine.frozen]

    def _on_pod(self, strike: Callable[[Pod], None]) -> None:
        if pods := self._live():
            self._disturbed()
            strike(self.world.rng.choice(pods))

    def _on_coordinator(self, strike: Callable[[Pod], None]) -> None:
        leader = self.cluster.leader()
        if leader is not None and leader.pod in self._live():
            self._disturbed()
            strike(leader.pod)

    def _kill(self, pod: Pod) -> None:
        self.world.log(pod.name, "FAULT: all its processes are killed")
        pod.kill()

    def _kill_trainer(self, pod: Pod) -> None:
        """An OOM kill of the container: launcher and workers, not the sidecar."""
        self.world.log(pod.name, "FAULT: its trainer container is killed")
        pod.was_killed = True
        pod.launcher_exited(137, "killed with its container")

    def _hang(self, pod: Pod, lasts_s: float) -> None:
        sidecar = pod.sidecar
        if sidecar is not None and sidecar.alive:
            self.world.log(pod.name, "FAULT: its sidecar hangs")
            sidecar.stop()
            self.world.after(lasts_s, sidecar.go_on)

    def _stop_launcher(self, pod: Pod, lasts_s: float) -> None:
        """SIGSTOP: its workers continue, and its connections stay."""
        launcher = pod.launcher
        if launcher is not None and launcher.alive:
            self.world.log(pod.name, f"FAULT: its launcher is stopped for {lasts_s:.1f} s")
            launcher.stop()
            self.world.after(lasts_s, launcher.go_on)

    def _start_nothing(self, pod: Pod, lasts_s: float) -> None:
        """The launcher starts no workers; a worker fails at the same moment, so that the next round follows."""
        launcher = pod.launcher
        if launcher is None or not launcher.alive:
            return
        self.world.log(pod.name, f"FAULT: its launcher starts no workers for {lasts_s:.1f} s")
        launcher.starts_nothing = True
        self.cluster.fails(pod.name)

        def starts_again() -> None:
            launcher.starts_nothing = False

        self.world.after(lasts_s, starts_again)
        self._end_worker(1, None)

    def _make_unkillable(self, lasts_s: float) -> None:
        """A worker of another pod is killed at the same moment, so that the next round must kill this one."""
        workers = self._workers()
        if len({worker.pod for worker in workers}) < 2:
            return
        stuck = self.world.rng.choice(workers)
        self.world.log(stuck.pod, f"FAULT: its worker of rank {stuck.rank} cannot be killed for {lasts_s:.1f} s")
        stuck.unkillable = stuck.stuck = True
        self._disturbed()

        def wakes_up() -> None:
            stuck.unkillable = False
            if stuck.killed:
                stuck.end(None, "SIGKILL")

        self.world.after(lasts_s, wakes_up)
        others = [worker for worker in workers if worker.pod != stuck.pod]
        self.cluster.end_worker(self.world.rng.choice(others), None, "SIGKILL")

    def _fill_volume(self, pod: Pod, lasts_s: float) -> None:
        self.world.log(pod.name, f"FAULT: its state volume is full for {lasts_s:.1f} s")
        pod.volume_full = True

        def has_room() -> None:
            pod.volume_full = False

        self.world.after(lasts_s, has_room)

    def _cut_operator(self, lasts_s: float) -> None:
        if not self.cluster.operator.machine.cut:
            self._disturbed()
            self.cluster.cut_operator()
            self.world.after(lasts_s, self.cluster.heal_operator)

    def _power_off(self) -> None:
        """Only while the cluster has room for the job elsewhere."""
        on = [machine for machine in self.cluster.machines if machine.on]
        busy = [machine for machine in on if self.cluster.on_machine(machine)]
        if len(on) * 2 > self.cluster.setup.actives + 2 and busy:
            self._disturbed()
            self.cluster.power_off(self.world.rng.choice(busy))

    def _for_a_while(self, begin: Callable[[Machine], None], end: Callable[[Machine], None], lasts_s: float) -> None:
        whole = [
            machine for machine in self.cluster.machines if machine.is_responding and self.cluster.on_machine(machine)
        ]
        if whole:
            machine = self.world.rng.choice(whole)
            self._disturbed()
            begin(machine)

            def over() -> None:
                if machine.on:
                    self._disturbed()
                    end(machine)

            self.world.after(lasts_s, over)

    def _part(self, lasts_s: float, *, whole: bool) -> None:
        """Some machines and all others; or some and a few others, which both reach the rest."""
        machines = self.cluster.machines[:]
        self.world.rng.shuffle(machines)
        size = self.world.rng.randint(1, max(1, len(machines) // 2))
        group, others = machines[:size], machines[size:]
        if not whole:
            others = others[: self.world.rng.randint(1, max(1, len(others) // 2))]
        elif self.world.rng.random() < 0.5:
            others = [*others, self.cluster.operator.machine]
        self._disturbed()
        self.cluster.part(group, others)

        def over() -> None:
            self._disturbed()
            self.cluster.rejoin(group, others)

        self.world.after(lasts_s, over)

    def _slow(self, lasts_s: float) -> None:
        machine = self.world.rng.choice(self.cluster.machines)
        self._disturbed()
        self.world.log(machine.name, "FAULT: its network is slow")
        machine.slow_s = self.world.between(0.1, SLOWEST_S)

        def over() -> None:
            machine.slow_s = 0.0
            self._disturbed()

        self.world.after(lasts_s, over)

    def _set_clock(self) -> None:
        """Processes that start on the machine from now on have another time."""
        machine = self.world.rng.choice(self.cluster.machines)
        machine.clock_ahead_s += self.world.between(-CLOCK_S, CLOCK_S)
        self.world.log(machine.name, f"FAULT: its clock is {machine.clock_ahead_s:+.0f} s off")
        self.cluster.clocks_differ = True

    def _delete(self, pods: list[Pod], faulty: str = "") -> None:
        uids = {pod.uid for pod in pods}
        entries = [x for x in self.cluster.objects() if x.pod.uid in uids and x.deleting_since is None]
        if entries:
            self._disturbed()
            entry = self.world.rng.choice(entries)
            entry.pod.faulty = faulty
            if faulty:  # its workers are killed, and a sidecar that hangs reports no failure
                self.cluster.fails(entry.pod.name)
            self.world.log(entry.pod.name, f"FAULT: its pod is deleted{' on a faulty node' if faulty else ''}")
            self.cluster.api.delete_by_user(entry)

    def _operator_down(self, lasts_s: float) -> None:
        if self.cluster.operator.up:
            self._disturbed()
            self.cluster.operator.go_down()
            self.world.after(lasts_s, self.cluster.operator.come_up)
