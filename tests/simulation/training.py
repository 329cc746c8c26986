"""The training itself: workers that step together or not at all, and their shared checkpoint.

- A round's workers start to step when all its ranks live and reach each other, from the newest checkpoint.
- A step needs all of them. If a peer was killed, the others fail soon (its kernel closes the connection). If a peer is
  silent, frozen or hung, they hang; if a peer never came, they stay in their rendezvous.
- With snapshots, each step saves one in the memory of each rank's pod (snapshots.py), and a round continues from the
  one that its coordinator has chosen.
- The checkpoint has a fencing token (UNDERSTUDY_ROUND): once a round has begun, saves of older rounds are rejected.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from tests.simulation.network import Machine, reachable
from tests.simulation.world import Rule, Violation, World
from understudy_protocol.enums import NO_ROUND, RoundToken
from understudy_protocol.launcher import StartWorkers
from understudy_protocol.snapshots import RestoreChoice, SavedStep

if TYPE_CHECKING:
    from tests.simulation.snapshots import SimulatedMemory

INIT_S = (0.05, 0.4)
STEP_S = (0.25, 0.5)
PEER_FAILURE_S = (0.05, 0.3)  # a Python process needs that long to end with its traceback
EXIT_JITTER_S = (0.0, 0.4)
SAVE_EVERY = 5
NOTHING = SavedStep(NO_ROUND, -1)
A_PEER_FAILED = "exit code 1: a peer has gone"


class Numbers(Enum):
    """The numbers of the steps that a script reports."""

    SCRIPT = "the script calls step(n)"
    ROUND = "an optimizer without a number makes them: they are counted from the start of the round"
    OPTIMIZER = "an optimizer with a number makes them: they are counted if the round restores no checkpoint"

    def number(self, step: int, first: int) -> tuple[int, bool]:
        """What is reported, and whether it is counted. first: the first step of the round."""
        is_counted = self is Numbers.ROUND or (self is Numbers.OPTIMIZER and first == 1)
        return (step - first + 1 if is_counted else step), is_counted


@dataclass(eq=False)
class SimulatedWorker:
    """A training process. `on_exit(code, signal, message)` reports its end to its launcher."""

    start: StartWorkers
    local_rank: int
    pod: str
    machine: Machine
    on_step: Callable[[int], None]
    on_exit: Callable[[int | None, str | None, str], None]
    alive: bool = True
    stuck: bool = False  # does not react to SIGTERM, nor to its peers' end
    unkillable: bool = False  # nor to SIGKILL: it sleeps in the kernel as soon as a fault comes
    killed: bool = False  # it got SIGKILL, but may be unkillable
    signaled: bool = False  # it got a signal of its launcher
    raised: tuple[str, float] | None = None  # text and time of its exception, once its script has ended with one
    stepped: bool = False
    hung: bool = False  # lives, and makes no more steps
    code: int | None = None  # its exit code, once it has ended by itself
    failed_updates: int = 0  # of weights, in a row
    done: bool = False  # has made all its steps, and is about to exit 0
    memory: SimulatedMemory | None = None  # in a job with snapshots
    choice: RestoreChoice | None = None  # what load() returns; None: it waits

    @property
    def rank(self) -> int:
        return self.start.rank_offset + self.local_rank

    @property
    def token(self) -> RoundToken:
        return self.start.token

    def end(self, code: int | None, signal: str | None, message: str = "") -> None:
        if self.alive:
            self.alive, self.code = False, code
            self.on_exit(code, signal, message or (f"exit code {code}" if signal is None else f"killed by {signal}"))


@dataclass(eq=False)
class Group:
    """The workers of one round."""

    token: RoundToken
    world_size: int
    workers: dict[int, SimulatedWorker] = field(default_factory=dict)
    running: bool = False  # past its rendezvous
    broken: bool = False
    step: int = 0
    next_step_due: bool = False  # a step is in progress
    stepped_at: float | None = None  # the newest step


class Training:
    """snapshots: load() in each worker waits for the choice, and each step saves a snapshot."""

    def __init__(self, world: World, steps: int, *, snapshots: bool = False) -> None:
        self.world, self.steps, self._snapshots = world, steps, snapshots
        self.choices: dict[RoundToken, RestoreChoice] = {}  # of the rounds whose workers have got one
        self.unfetchable: set[tuple[RoundToken, SavedStep]] = set()  # by round: copies that could not be fetched
        self._stale: dict[SavedStep, RoundToken] = {}  # snapshots that a round saved after this newer one had stepped
        self.groups: dict[RoundToken, Group] = {}
        self.checkpoint = (0, RoundToken(0, 0, -1))
        self.newest_stepped = RoundToken(0, 0, -1)
        self.stepped_at: float | None = None
        self.stepped_in: dict[RoundToken, float] = {}  # when each round made its newest step
        self.steps_at: dict[RoundToken, list[float]] = {}  # when each round made its steps
        self._steppers: dict[RoundToken, dict[str, Machine]] = {}  # the pods of each round that has stepped
        self.began_to_step: dict[RoundToken, float] = {}  # when each round made its first step
        self.paused_before: dict[RoundToken, list[float]] = {}  # seconds from each last step before to its first
        self.total_steps = 0
        self.newest_step = 0  # of all rounds
        self.steps_s = 0.0  # the time in which steps were made, after the first one of each round
        self.new_steps_s = 0.0  # the part of it in which they were made for the first time
        self.stale_saves = 0
        self.stale_savers: set[str] = set()  # pods
        self.newest_since = 0.0  # when the newest round first stepped
        self.stale_for_s = 0.0  # the longest time after that in which an older round stepped
        self.exits: dict[RoundToken, dict[int, int | None]] = {}  # exit codes of a round's workers, by rank
        self._stores: dict[tuple[str, int], RoundToken | None] = {}  # the newest round that used each one
        self._store_ports = itertools.count(40000)
        self.last_step_made: Callable[[], None] = lambda: None
        self.has_ended: Callable[[str], bool] = lambda pod: False

    def new_store(self, ip: str) -> int:
        """Return the port at which it listens."""
        port = next(self._store_ports)
        self._stores[ip, port] = None
        return port

    def end_store(self, ip: str, port: int) -> None:
        del self._stores[ip, port]

    def join(self, worker: SimulatedWorker) -> None:
        """A spawned worker looks for its peers, unless it was killed before."""
        if not worker.alive:
            return
        group = self._group(worker)
        self._check_store(worker, group)
        if worker.rank in group.workers and group.workers[worker.rank].alive:
            raise Violation(Rule.A_RANK_HAS_ONE_WORKER, f"rank {worker.rank} of round {worker.token} runs twice")
        group.workers[worker.rank] = worker
        if len(group.workers) == group.world_size:
            self.world.after(self.world.between(*INIT_S), lambda: self.resume(group))

    def _check_store(self, worker: SimulatedWorker, group: Group) -> None:
        """All workers of a round use one store. Keys of two rounds in one store differ only by their round numbers."""
        start = worker.start
        where = (start.master_addr, start.master_port)
        for other in group.workers.values():
            theirs = (other.start.master_addr, other.start.master_port)
            if (theirs, other.start.agent_store) != (where, start.agent_store):
                raise Violation(
                    Rule.A_ROUND_HAS_ONE_STORE,
                    f"the workers of round {worker.token} look for their store in different places",
                )
        if start.agent_store and where in self._stores:
            used_by = self._stores[where] or worker.token
            if used_by != worker.token and used_by.round == worker.token.round:
                raise Violation(
                    Rule.A_STORE_SERVES_ONE_ROUND,
                    f"the store at {where} serves round {used_by} and round {worker.token}",
                )
            self._stores[where] = max(used_by, worker.token)

    def _group(self, worker: SimulatedWorker) -> Group:
        return self.groups.setdefault(worker.token, Group(worker.token, worker.start.world_size))

    def resume(self, group: Group) -> None:
        """Continue if all are there: after a rendezvous, a thaw, or the end of a cut."""
        if group.broken or group.next_step_due or not self._group_is_ready(group):
            return
        if not group.running:
            group.running = True
            group.step = self._restored_step(group)
            self.checkpoint = (group.step, max(self.checkpoint[1], group.token))
        if group.step >= self.steps:
            self._finish(group)
            return
        group.next_step_due = True
        self.world.after(self.world.between(*STEP_S), lambda: self._step(group))

    def chosen(self, worker: SimulatedWorker, choice: RestoreChoice) -> None:
        """load() in the worker returns."""
        worker.choice = choice
        self.choices[worker.token] = choice
        self.resume(self._group(worker))

    def _restored_step(self, group: Group) -> int:
        workers = list(group.workers.values())
        choices = {worker.choice for worker in workers}
        choice = choices.pop()
        if choice is None:
            return self.checkpoint[0]
        held = [worker.memory.held(worker) for worker in workers if worker.memory is not None]
        common = set.intersection(*held)
        if choices or (choice.saved is not None and choice.saved not in common):
            raise Violation(
                Rule.A_ROUND_RESTORES_ONE_SNAPSHOT, f"round {group.token} restores {choice}, {choices} of {held}"
            )
        if choice.saved is not None and group.token > self.newest_stepped:  # else this round is stale itself
            self._check_history(group, choice.saved)
        self._check_newest(group, choice, self._available(workers))
        return self.checkpoint[0] if choice.saved is None else choice.saved.step

    def _check_history(self, group: Group, saved: SavedStep) -> None:
        """The newest round that has stepped continues this snapshot, or has saved it before any newer round stepped."""
        known = [token for token in self._steppers if not self._is_of_another_epoch_and_out_of_reach(token, group)]
        if self._stale.get(saved) in known or not self._is_of_history(saved, max(known)):
            raise Violation(
                Rule.NO_STALE_SNAPSHOT_IS_RESTORED, f"round {group.token} restores {saved}, after {self.choices}"
            )

    def _is_of_another_epoch_and_out_of_reach(self, stepped: RoundToken, group: Group) -> bool:
        """The operator did not know that round when it began the newer epoch, whose pods do not know it either, and
        reach no running pod of it: both trainings continue what they know, see protocol.md.
        """
        own = min(token.round for token in (*self.choices, *self.groups) if token.epoch == group.token.epoch)
        workers = group.workers.values()
        is_known = any(worker.memory is not None and worker.memory.replaced >= stepped for worker in workers)
        if stepped.epoch == group.token.epoch or own > stepped.round or is_known:
            return False
        theirs = [machine for pod, machine in self._steppers[stepped].items() if not self.has_ended(pod)]
        return not any(reachable(their, worker.machine) for their in theirs for worker in workers)

    def _is_of_history(self, saved: SavedStep, newest_known: RoundToken) -> bool:
        """From the newest round that has stepped back to the rounds that it continues."""
        token, newest = newest_known, math.inf
        while saved.token < token:
            choice = self.choices.get(token)
            if choice is None or choice.saved is None:
                return False
            token, newest = choice.saved.token, choice.saved.step
        return saved.token > token or saved.step <= newest

    def _available(self, workers: list[SimulatedWorker]) -> set[SavedStep]:
        """The snapshots that each rank has in its own pod, or in another pod of the round."""
        available = []
        nproc = 1 + max(worker.local_rank for worker in workers)
        for worker in workers:
            assert worker.memory is not None
            copied = {
                saved
                for other in workers
                if other.memory is not None
                for kept in other.memory.kept_of(nproc, worker.start.world_size)
                if kept.group_rank == worker.rank // nproc
                for saved in kept.whole
            }
            available.append(worker.memory.held(worker) | copied)
        return set.intersection(*available)

    def _check_newest(self, group: Group, choice: RestoreChoice, common: set[SavedStep]) -> None:
        """Of the newest round that has stepped, or on the way to the snapshot that this round, or one after it, has
        restored. A pod reports no snapshot from before a round in which another pod had its ranks: it cannot know
        whether that round has stepped.
        """
        failed = {saved for token, saved in self.unfetchable if token == group.token}
        before = max((x for x in self.choices if self.newest_stepped <= x < group.token), default=None)
        restored = NOTHING if before is None else self.choices[before].saved or NOTHING
        of_newest = {x for x in common if x.token == self.newest_stepped == before}
        on_the_way = {x for x in common if x.token == restored.token and x.step <= restored.step}
        newest = max((of_newest | on_the_way) - failed, default=None)
        if newest is None or "may be the cause" in choice.reason:
            return
        if any(x.memory is not None and x.memory.replaced > newest.token for x in group.workers.values()):
            return
        if choice.saved is None or choice.saved < newest:
            raise Violation(
                Rule.THE_NEWEST_SNAPSHOT_IS_RESTORED, f"round {group.token} restores {choice}, and all have {newest}"
            )

    def machines_changed(self) -> None:
        """A machine thawed, or is back on the network."""
        self.groups = {
            token: group for token, group in self.groups.items() if any(w.alive for w in group.workers.values())
        }
        for group in self.groups.values():
            self.resume(group)
            for ended in [w for w in group.workers.values() if not w.alive and not w.done]:
                self._notify_peers(group, ended)

    def raises(self, worker: SimulatedWorker) -> None:
        """Its process is about to end, and has closed its connections."""
        if worker.alive:
            group = self._group(worker)
            group.broken = True
            self._notify_peers(group, worker)

    def lost_power(self, worker: SimulatedWorker) -> None:
        """The worker is dead, and no kernel reports it to its peers."""
        worker.alive = False
        self._group(worker).broken = True

    def left(self, worker: SimulatedWorker) -> None:
        """A worker has ended: its peers notice if its kernel can report it."""
        self.exits.setdefault(worker.token, {})[worker.rank] = worker.code
        group = self._group(worker)
        if not worker.done:
            group.broken = True
            if group.running or worker.rank == 0:  # before the rendezvous only the store's host is missed
                self._notify_peers(group, worker)

    def _notify_peers(self, group: Group, ended: SimulatedWorker) -> None:
        for peer in group.workers.values():
            if peer.alive and not peer.done:
                delay = self.world.between(*PEER_FAILURE_S)
                self.world.after(delay, lambda peer=peer: self._peer_notices(peer, ended))  # type: ignore[misc]

    def _peer_notices(self, peer: SimulatedWorker, ended: SimulatedWorker) -> None:
        if peer.alive and not peer.stuck and not peer.done and reachable(peer.machine, ended.machine):
            peer.machine.post(lambda: peer.end(1, None, A_PEER_FAILED))

    def _group_is_ready(self, group: Group) -> bool:
        workers = list(group.workers.values())
        if len(workers) < group.world_size:
            return False
        first, start = workers[0].machine, workers[0].start
        if not group.running and start.agent_store and (start.master_addr, start.master_port) not in self._stores:
            return False
        if not group.running and self._snapshots and any(w.choice is None for w in workers):
            return False
        return all(w.alive and not w.hung and not w.machine.frozen and reachable(first, w.machine) for w in workers)

    def _step(self, group: Group) -> None:
        group.next_step_due = False
        if group.broken or not self._group_is_ready(group):
            return
        self._check_step(group)
        group.step += 1
        self.total_steps += 1
        self._steppers[group.token] = {worker.pod: worker.machine for worker in group.workers.values()}
        if group.token > self.newest_stepped:
            self.newest_stepped, self.newest_since = group.token, self.world.now
        elif group.token < self.newest_stepped:
            # A sidecar that was killed on a frozen machine restarts at the thaw, with a new lease.
            since = max(self.newest_since, *(worker.machine.thawed_at for worker in group.workers.values()))
            self.stale_for_s = max(self.stale_for_s, self.world.now - since)
        if (group.step % SAVE_EVERY == 0 or group.step == self.steps) and not self._save(group):
            return  # a step that could not be saved is not reported
        if group.token not in self.stepped_in:
            self.paused_before[group.token] = [self.world.now - at for at in self._last_steps(group)]
            self.began_to_step[group.token] = self.world.now
        self._add_time(group)
        self.stepped_at = self.stepped_in[group.token] = self.world.now
        self.steps_at.setdefault(group.token, []).append(self.world.now)
        for worker in group.workers.values():
            worker.stepped = True
            worker.on_step(group.step)
            if worker.memory is not None:
                worker.memory.save(worker, group.step)
                if group.token < self.newest_stepped:
                    self._stale[SavedStep(group.token, group.step)] = self.newest_stepped
        self.resume(group)

    def _add_time(self, group: Group) -> None:
        step_s = 0.0 if group.stepped_at is None else self.world.now - group.stepped_at
        self.steps_s += step_s
        if group.step > self.newest_step:
            self.newest_step = group.step
            self.new_steps_s += step_s
        group.stepped_at = self.world.now

    def _last_steps(self, group: Group) -> list[float]:
        """Last steps of the newest round, and of rounds that step while cut off from another: their pods know no other.

        A round's own pods do not know a round that none of them was in, if no pod that is left reports it.
        """
        newest = [] if self.stepped_at is None else [self.stepped_at]
        beside = [
            at
            for token, at in self.stepped_in.items()
            if any(token < newer and began < at for newer, began in self.began_to_step.items())
        ]
        lives = {x.token for x in self.groups.values() if x is not group and x.running and not x.broken}
        before = [at for token, at in self.stepped_in.items() if token not in lives]
        pods = {worker.pod for worker in group.workers.values()}
        own = [at for token, at in self.stepped_in.items() if self._steppers[token].keys() & pods]
        return newest + beside + [max(known) for known in (before, own) if known]

    def _check_step(self, group: Group) -> None:
        tokens = {worker.token for worker in group.workers.values() if worker.alive}
        if tokens != {group.token} or sorted(group.workers) != list(range(group.world_size)):
            raise Violation(
                Rule.A_STEP_HAS_ALL_RANKS_OF_ITS_ROUND, f"a step of round {group.token} with workers of {tokens}"
            )

    def _save(self, group: Group) -> bool:
        """Whether the save counts. If not, the worker that saves ends with an error (examples/ddp: StaleRound), then
        its peers.
        """
        step, token = self.checkpoint
        if group.token < token:
            self.stale_saves += 1
            saver = group.workers[0]
            self.stale_savers.add(saver.pod)
            saver.machine.post(lambda: saver.end(1, None, "StaleRound"))
            return False
        if group.step < step:
            raise Violation(Rule.CHECKPOINTS_ONLY_GROW, f"round {group.token} saves step {group.step} over step {step}")
        self.checkpoint = (group.step, group.token)
        return True

    def _finish(self, group: Group) -> None:
        self.last_step_made()
        for worker in group.workers.values():
            worker.done = True
            delay = self.world.between(*EXIT_JITTER_S)
            self.world.after(delay, lambda w=worker: w.machine.post(lambda: w.end(0, None)))  # type: ignore[misc]
