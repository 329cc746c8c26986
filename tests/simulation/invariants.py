"""The invariants after every event: those of docs/contributors/design.md, one function each; 3 is in
election_invariants.py, 8 in ladder_invariants.py.

The training checks invariant 5 (a worker talks only to workers of its own round, with all ranks) at each step, and the
sidecar's alarm detects a busy loop of Ticks. The invariants at the end of a run are at the bottom.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import chain

from tests.simulation.api_server import EVICTION_S
from tests.simulation.cluster import SimulatedCluster
from tests.simulation.election_invariants import ElectionInvariants
from tests.simulation.ladder_invariants import LadderInvariants
from tests.simulation.pods import GRACE_S
from tests.simulation.sidecars import SimulatedSidecar
from tests.simulation.training import A_PEER_FAILED, SimulatedWorker
from tests.simulation.world import Rule, Violation
from understudy_protocol.enums import NO_ROUND, CloseReason, Fault, RoundToken, Strategy, Term
from understudy_protocol.observer import Recovery
from understudy_sidecar.membership.recoveries import NOT_COUNTED
from understudy_sidecar.membership.round_state import RoundPhase

#: How long a job may wait for a pod whose workers do not start, after the round was formed.
START_LIMIT_S = 240.0
#: A step or a close follows a fault within this time (including a new pod, and a deletion with its grace).
BOUNDED_S = 120.0
#: A member without a coordinator has stopped its workers after this time.
FENCED_S = 30.0 + 3.0
#: The largest difference between a reported pause of the training and the true one.
PAUSE_ERROR_S = 0.2
#: The most rounds of one coordinator in this time.
MOST_ROUNDS, RATE_WITHIN_S = 20, 30.0
#: Standby coordinators know the pods of a round this long after its first step.
NAMED_AFTER_S = 3.0
#: After the close every launcher that responds has exited within this time. The operator deletes one that does not exit
#: after 30 s, and it gets SIGKILL after a grace period of 30 s.
EXIT_S = 75.0


@dataclass
class Invariants:
    cluster: SimulatedCluster
    _workers: list[SimulatedWorker] = field(default_factory=list)  # that have been checked; their ranks never change
    _member_tokens: dict[SimulatedSidecar, RoundToken] = field(default_factory=dict)
    _launcher_tokens: dict[str, RoundToken] = field(default_factory=dict)
    _coordinator_tokens: dict[SimulatedSidecar, tuple[Term, int]] = field(default_factory=dict)
    _snapshot: RoundToken = NO_ROUND
    _coordinators_by_term: dict[tuple[int, int], object] = field(default_factory=dict)
    _rounds: dict[RoundToken, tuple[object, int, str, int]] = field(default_factory=dict)
    _places: dict[tuple[RoundToken, int], str] = field(default_factory=dict)
    _success_seen: bool = False
    _nobody_until: float = 0.0
    _formed: dict[object, list[float]] = field(default_factory=dict)  # when each coordinator formed its rounds
    _reported_by_appointed: set[float] = field(default_factory=set)  # recoveries, by their begin
    _stale_since: dict[SimulatedWorker, float] = field(default_factory=dict)
    _ladder: LadderInvariants = field(init=False)
    elections: ElectionInvariants = field(init=False)

    def __post_init__(self) -> None:
        self.elections = ElectionInvariants(self.cluster)
        self._ladder = LadderInvariants(self.cluster)

    def check(self) -> None:
        self.no_rank_is_held_twice()
        self.tokens_only_grow()
        self.elections.check()
        self.a_round_is_assigned_in_one_term_with_one_world()
        self.snapshots_only_grow()
        self.a_launcher_exits_0_only_after_success()
        self.no_stale_round_steps_for_long()
        self.each_holder_of_copies_has_its_plan()
        self._ladder.check()

    def no_rank_is_held_twice(self) -> None:
        """1. By live workers, anywhere. (Each step checks that every rank has a worker.)"""
        cluster = self.cluster
        cluster.workers = [worker for worker in cluster.workers if worker.alive]
        if cluster.workers == self._workers:
            return
        self._workers = cluster.workers.copy()  # new ones are appended to the list
        ranks = {(worker.token, worker.rank) for worker in cluster.workers}
        if len(ranks) < len(cluster.workers):
            raise Violation(
                Rule.A_RANK_HAS_ONE_WORKER,
                f"a rank has two workers: {[(w.pod, str(w.token), w.rank) for w in cluster.workers]}",
            )

    def tokens_only_grow(self) -> None:
        """2. For every member, launcher and term."""
        for pod in self.cluster.pods:
            sidecar, launcher = pod.sidecar, pod.launcher
            if sidecar is not None and sidecar.alive:
                token, before = sidecar.member.token, self._member_tokens.get(sidecar)
                if token is not before:
                    self._grows(before, token, f"member {pod.name}")
                    self._member_tokens[sidecar] = token
            if launcher is not None and launcher.alive and launcher.workers:
                token = max([worker.token for worker in launcher.workers.values()])
                before = self._launcher_tokens.get(pod.uid)
                if token is not before:
                    self._grows(before, token, f"launcher {pod.name}")
                    self._launcher_tokens[pod.uid] = token
        for sidecar in self.cluster.leaders:
            coordinator = sidecar.coordinator
            if coordinator is not None:
                term, number = coordinator.term, coordinator.state.round.number
                newest = self._coordinator_tokens.get(sidecar)
                if newest is not None and newest[0] == term and number < newest[1]:
                    raise Violation(Rule.TOKENS_ONLY_GROW, f"rounds of term {term} shrink: {newest[1]} -> {number}")
                self._coordinator_tokens[sidecar] = (term, number)

    def each_holder_of_copies_has_its_plan(self) -> None:
        """9. A pod accepts copies only from the pods in its plan, so both need the newest placement. A member whose
        newest plan came from the previous coordinator is not checked. The order of holders has no effect.
        """
        for sidecar in self.cluster.leaders:
            coordinator = sidecar.coordinator
            if coordinator is None or coordinator.state.round.phase is not RoundPhase.RUNNING:
                continue
            for uid, plan in coordinator.state.copies.plans.items():
                member = coordinator.state.roster.members.get(uid)
                sent = None if member is None or member.link is None else sidecar.sent_plans.get(member.link)
                if sent is not None and ({*sent.holders}, sent.owners) != ({*plan.holders}, plan.owners):
                    raise Violation(Rule.EACH_HOLDER_HAS_ITS_PLAN, f"{uid} has {sent}, and its plan is {plan}")

    def snapshots_only_grow(self) -> None:
        """2. For the operator, until the job is closed: an operator that restarts then may find only an older
        coordinator, which stood still.
        """
        for snapshot in self.cluster.snapshots:
            if not self.cluster.closed():
                self._grows(self._snapshot, snapshot.token, "snapshots")
            self._snapshot = max(self._snapshot, snapshot.token)
            for recovery in snapshot.recoveries:
                self.no_innocent_worker_is_blamed(recovery)
                self.a_training_worker_does_not_hang(recovery)
                self.each_strategy_has_its_reason(recovery)
                self.a_pause_is_as_long_as_training_stood_still(recovery)
                if snapshot.token.term == 1:
                    self._reported_by_appointed.add(recovery.detected_at)
                elif recovery.detected_at not in self._reported_by_appointed:
                    self.a_lost_pod_has_a_name(recovery)
        self.cluster.snapshots.clear()

    def no_innocent_worker_is_blamed(self, recovery: Recovery) -> None:
        """No worker is the cause that only failed because a peer had ended, if no worker had failed by itself.

        If the reports of several failures arrive more than 20 ms apart, the first report is the cause.
        """
        if recovery.resumed_at is None or recovery.cause.message != A_PEER_FAILED or self.cluster.clocks_differ:
            return
        if not any(recovery.detected_at - BOUNDED_S < at <= recovery.detected_at for at in self.cluster.worker_faults):
            raise Violation(
                Rule.NO_INNOCENT_WORKER_IS_BLAMED,
                f"round {recovery.round}: {recovery.cause.pod} is the cause, and only its peer had ended",
            )

    def a_training_worker_does_not_hang(self, recovery: Recovery) -> None:
        """The round that is reported as hung has made no step for the step timeout, or none at all."""
        cluster = self.cluster
        if recovery.fault is not Fault.HANG or recovery.detected_at in cluster.hangs:
            return
        cluster.hangs.add(recovery.detected_at)
        stepped = cluster.training.stepped_in
        if "since the start" in recovery.cause.message:
            # A coordinator that no living pod knows may have had another round of that number.
            hung = max((token for token in self._rounds if token.round == recovery.round - 1), default=NO_ROUND)
            if not cluster.clocks_differ and stepped.get(hung, recovery.detected_at) < recovery.detected_at:
                raise Violation(
                    Rule.A_TRAINING_ROUND_DOES_NOT_HANG,
                    f"round {recovery.round - 1} is reported as hung before its first step, and has stepped",
                )
            return
        # The round may have stepped later, before the operator got the report of a coordinator that was cut off.
        steps_at = chain(*(times for token, times in cluster.training.steps_at.items() if token.round < recovery.round))
        newest = max((at for at in steps_at if at <= recovery.detected_at), default=0.0)
        if not cluster.clocks_differ and recovery.detected_at - newest < cluster.step_timeout_s:
            raise Violation(
                Rule.A_TRAINING_ROUND_DOES_NOT_HANG,
                f"{recovery.cause.pod} is reported as hung, {recovery.detected_at - newest:.1f} s after a step",
            )

    def a_lost_pod_has_a_name(self, recovery: Recovery) -> None:
        """For an elected coordinator, because standby coordinators get the pods of each round."""
        if recovery.cause.pod:
            return
        began = [at for token, at in self.cluster.training.began_to_step.items() if token.round == recovery.round - 1]
        if not began or recovery.detected_at - max(began) < NAMED_AFTER_S or self.cluster.clocks_differ:
            return
        raise Violation(
            Rule.A_LOST_POD_HAS_A_NAME, f"round {recovery.round}: no pod is named in {recovery.cause.message!r}"
        )

    def a_pause_is_as_long_as_training_stood_still(self, recovery: Recovery) -> None:
        """Even if several coordinators led during the pause."""
        if recovery.pause_s is None:
            return
        before = self.cluster.training.paused_before
        paused = [s for token, pauses in before.items() if token.round >= recovery.round for s in pauses]
        if not any(abs(recovery.pause_s - s) < PAUSE_ERROR_S for s in paused):
            raise Violation(
                Rule.PAUSES_ARE_TRUE,
                f"round {recovery.round}: a pause of {recovery.pause_s:.2f} s is reported, it was {paused}",
            )

    def each_strategy_has_its_reason(self, recovery: Recovery) -> None:
        """8. For faults of workers, if a coordinator has decided about them."""
        if recovery.fault not in (Fault.PROCESS, Fault.HANG) or recovery.strategy is None:
            return
        if recovery.reason.startswith(NOT_COUNTED):
            return
        in_place = re.match(r"(a drill: )?restart \d+ of \d+ |.* failed again before", recovery.reason)
        upward = re.match(r"pod .* failed |the budget .* is spent|node .* is Faulty|(.*; )?its pod ", recovery.reason)
        if not (in_place if recovery.strategy is Strategy.IN_PLACE else upward):
            raise Violation(
                Rule.EACH_STRATEGY_HAS_ITS_REASON,
                f"{recovery.strategy.value} for a fault of {recovery.cause.pod}: {recovery.reason!r}",
            )

    def a_round_is_assigned_in_one_term_with_one_world(self) -> None:
        """3."""
        for coordinator, member, assign, has_majority in self.cluster.assignments:
            if assign.token not in self._rounds and not has_majority:
                raise Violation(
                    Rule.A_ROUND_NEEDS_A_MAJORITY,
                    f"round {assign.token} is formed without a majority of its voters",
                )
            holder = self._coordinators_by_term.setdefault((assign.token.epoch, assign.token.term), coordinator)
            if holder is not coordinator:
                raise Violation(
                    Rule.A_TERM_HAS_ONE_COORDINATOR, f"two coordinators assign in epoch and term of {assign.token}"
                )
            if assign.token not in self._rounds:
                self._rounds_are_few(coordinator)
            world = (coordinator, assign.world_size, assign.master_addr, assign.master_port)
            if self._rounds.setdefault(assign.token, world) != world:
                raise Violation(
                    Rule.A_ROUND_HAS_ONE_WORLD,
                    f"round {assign.token} is assigned with two worlds: {self._rounds[assign.token]}, {world}",
                )
            if self._places.setdefault((assign.token, assign.group_rank), member) != member:
                raise Violation(
                    Rule.A_GROUP_RANK_HAS_ONE_MEMBER,
                    f"group rank {assign.group_rank} of round {assign.token} is given to two members",
                )
        self.cluster.assignments.clear()

    def a_launcher_exits_0_only_after_success(self) -> None:
        """4. And a success means that all steps were made."""
        for pod in self.cluster.pods:
            close = pod.recorded_close
            if close is not None and close.reason is CloseReason.SUCCEEDED:
                self.a_success_is_one()
            elif pod.exit_code == 0 and not pod.asked_to_end:
                raise Violation(Rule.ONLY_A_SUCCESS_EXITS_0, f"{pod.name} exits 0 before the close")

    def a_success_is_one(self) -> None:
        """All steps were made, and all workers of some round exited 0."""
        if self._success_seen:
            return
        self._success_seen = True
        training, world = self.cluster.training, self.cluster.setup.actives * self.cluster.setup.nproc
        if training.checkpoint[0] < training.steps:
            raise Violation(Rule.A_SUCCESS_MADE_ALL_STEPS, f"closed as succeeded at step {training.checkpoint[0]}")
        if not any(len(codes) == world and set(codes.values()) == {0} for codes in training.exits.values()):
            raise Violation(
                Rule.A_SUCCESS_MADE_ALL_STEPS,
                f"closed as succeeded, and in no round all workers exited 0: {training.exits}",
            )

    def no_stale_round_steps_for_long(self) -> None:
        """5. A round that was replaced while its members were cut off steps at most until its lease has expired.

        The training rejects its saves meanwhile, because its token is older.
        """
        if self.cluster.training.stale_for_s > FENCED_S:
            raise Violation(
                Rule.A_STALE_ROUND_ENDS,
                f"a round steps {self.cluster.training.stale_for_s:.1f} s after a newer one has",
            )

    def _rounds_are_few(self, coordinator: object) -> None:
        """Each round kills healthy workers, whatever ended the one before."""
        now, formed = self.cluster.world.now, self._formed.setdefault(coordinator, [])
        formed.append(now)
        if sum(at > now - RATE_WITHIN_S for at in formed) > MOST_ROUNDS:
            raise Violation(
                Rule.ROUNDS_ARE_FEW,
                f"{len(formed)} rounds of one coordinator, more than {MOST_ROUNDS} in {RATE_WITHIN_S:g} s",
            )

    def _grows(self, before: RoundToken | None, now: RoundToken, owner: str) -> None:
        if before is not None and now < before:
            raise Violation(Rule.TOKENS_ONLY_GROW, f"{owner}: round {before} is followed by {now}")

    # At times, and at the end ---------------------------------------------------------------------------------------

    def a_fault_is_followed_by_a_step(self, faults_over_at: float) -> None:
        """6. Or by a close."""
        training, now = self.cluster.training, self.cluster.world.now
        if self.nobody_can_become_leader() and now - faults_over_at < EVICTION_S + BOUNDED_S:
            self._nobody_until = now
        held_at = (x.launcher.start_held_at for x in self.cluster.pods if x.launcher is not None and x.launcher.alive)
        if any(at is not None and now - at < START_LIMIT_S for at in held_at):
            self._nobody_until = now
        since = max(training.stepped_at or 0.0, faults_over_at, self._nobody_until, self.cluster.hung_at_start)
        if not self.cluster.closed() and now - since > BOUNDED_S:
            raise Violation(Rule.A_FAULT_IS_FOLLOWED_BY_A_STEP, f"no step and no close for {now - since:.0f} s")

    def workers_of_older_rounds_end(self) -> None:
        """5. If their machine runs and has a network: because of their coordinator, or of the fence.

        A worker that sleeps in the kernel after SIGKILL cannot end. A worker that is stuck beside a failed one makes no
        step: it ends with the next round of its pod.
        """
        now, newest = self.cluster.world.now, self.cluster.training.newest_stepped
        workers = [x for x in self.cluster.workers if x.alive and not (x.unkillable and x.killed)]
        broken = {token for token, group in self.cluster.training.groups.items() if group.broken}
        newest_of: dict[str, RoundToken] = {}
        for x in workers:
            newest_of[x.pod] = max(newest_of.get(x.pod, x.token), x.token)
        stale = {
            x
            for x in workers
            if x.token < newest and x.machine.is_responding and (x.token not in broken or x.token < newest_of[x.pod])
        }
        self._stale_since = {worker: self._stale_since.get(worker, now) for worker in stale}
        for worker, since in self._stale_since.items():
            if now - since > FENCED_S + GRACE_S:
                raise Violation(
                    Rule.A_STALE_ROUND_ENDS, f"a worker of round {worker.token} lives on {worker.pod} in round {newest}"
                )

    def nobody_can_become_leader(self) -> bool:
        """Pods died with their machines before a coordinator was appointed, or all pods died: the operator then waits.

        No coordinator reports that they are lost until the node controller evicts them.
        """
        objects = self.cluster.objects()
        dead = [x for x in objects if x.pod.ended or not x.pod.machine.on]
        return any(not x.pod.machine.on for x in dead) and (len(dead) == len(objects) or not self.cluster.leaders)

    def all_hear_of_the_close(self, closed_at: float) -> None:
        """4. closed_at: when all could get it: the first pod had it, and no fault was left.

        If that pod dies with it, the others form a round of their own, and that round ends with a close.
        """
        for pod in self.cluster.pods:
            if pod.reported_at > closed_at + EVICTION_S + BOUNDED_S:
                raise Violation(
                    Rule.ALL_HEAR_OF_THE_CLOSE,
                    f"{pod.name} gets the close after {pod.reported_at - closed_at:.0f} s",
                )

    def the_end_is_right(self) -> None:
        cluster = self.cluster
        found = cluster.closes()
        closes = {close.reason for close in found}
        if len(closes) != 1:
            raise Violation(Rule.THERE_IS_ONE_CLOSE, f"closed with {closes or 'nothing'}")
        failures = len(cluster.worker_faults) + cluster.training.stale_saves + len(cluster.hangs)
        failed = [close for close in found if close.reason is CloseReason.FAILED]
        if any(close.message.startswith(Fault.WEIGHT_UPDATE.value) for close in failed):
            if not cluster.final_updates:
                raise Violation(
                    Rule.A_FAILURE_HAS_SPENT_ITS_RETRIES,
                    "failed for a weight update, and each one that failed might have been tried again",
                )
        elif failed and failures <= cluster.setup.max_in_place:
            raise Violation(Rule.A_FAILURE_HAS_SPENT_ITS_RETRIES, f"failed, and only {failures} workers did")
        elif any(" is spent, and " not in close.message for close in failed):
            raise Violation(Rule.A_FAILURE_NAMES_ITS_REASON, "failed, and the reason does not name why the ladder ends")
        for pod in cluster.pods:
            if pod.machine.is_responding and pod.launcher is not None and pod.launcher.alive:
                raise Violation(Rule.ALL_EXIT_AFTER_THE_CLOSE, f"{pod.name} still runs {EXIT_S:g} s after the close")

    def every_launcher_that_got_the_close_exits_with_it(self) -> None:
        """4. Pods that were not hit by a fault, evicted for a full volume, or deleted exit 0 after a success.

        A pod that was evicted before may exit as evicted, or with the code of its failed worker: its launcher or its
        sidecar was stopped meanwhile, and the launcher gets that order first.
        """
        for pod in self.cluster.pods:
            close = pod.recorded_close
            if (
                close is not None
                and not pod.asked_to_end
                and not pod.was_killed
                and not pod.store_failed
                and not (pod.was_evicted and pod.exit_code != 0)
                and (close.reason is CloseReason.SUCCEEDED) != (pod.exit_code == 0)
            ):
                raise Violation(
                    Rule.EXIT_CODES_FOLLOW_THE_CLOSE,
                    f"{pod.name} exits {pod.exit_code} after close({close.reason.value})",
                )
