"""The account of a job's time (`status.goodput`): the part of each second, and the cost of faults.

The account continues from status, over all coordinators, attempts and operators. A reconcile adds what the facts show:
the recoveries, the first step of the round, the newest step, the state of the job. Status has the seconds until
`since`, and the part that has run since then, so only changes of the part are written.

Rules:
- The parts are disjoint and without gaps: `enter` ends one part and begins the next at the same time. Times of other
  clocks are limited to those between `since` and now.
- Faults whose recoveries overlap are one pause of the training, and the first of them is its cause. The pause begins
  with the last step before the fault, and ends with the next step. If the script has never reported a step, it begins
  with the fault, and ends when all workers run.
- The last step is known if a pod has measured the pause, or if the coordinator that reports the fault has seen it.
  Otherwise the time from the newest step in status to the fault is Unknown. So no pause counts as productive.
- The sidecar of rank 0 reports the steps. If it is down when a fault is detected, the pause begins with the last step
  that it has reported.
- If no pod has measured when a pause ended, it lasts until the last step before the next one.
- Recoveries that ended while no operator ran, and that no coordinator reports any more, appear in the counts alone:
  the time in which they must have been is Unknown.
- Steps that are counted from the start of their round are new steps: their numbers show neither what was lost nor what
  is repeated. From the first such step after a pause on, the account says that repeated steps are unknown.
- The wait for quota in a queue is Suspended, because no pod of the gang occupies a node.
- The time before the first step is Starting, and after a suspension too. If all workers run before the first step, the
  script may be one that reports none: their time is WithoutSteps, until a step shows that it was Starting.
- The cost of faults is the time of all workers: GPU-seconds, or rank-seconds without GPUs.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import asdict, replace

from understudy_operator.plan.capacity.queueing import QUOTA_RESERVED, WAITS, gang_waits_for_quota
from understudy_operator.plan.facts.counts import TrainingSize, training_size
from understudy_operator.plan.facts.observed import Observed
from understudy_operator.plan.facts.recoveries import all_at_work, is_of_rollouts
from understudy_operator.plan.facts.reported_conditions import condition
from understudy_operator.plan.facts.status import (
    Goodput,
    JobStatus,
    LostTime,
    PartSeconds,
    ProgressStatus,
    RecoveryStatus,
    StrategyCounts,
)
from understudy_operator.plan.times.rfc3339 import micro_time, parse_time
from understudy_protocol.enums import Fault, Strategy
from understudy_protocol.goodput import LOST, STEPPING, Part
from understudy_protocol.observer import Recovery, StepProgress

#: Entries of lost time, by fault and node. Beyond this, an entry has no node.
MAX_LOST = 32
RUNNING = (*STEPPING, Part.WITHOUT_STEPS)
_BROKEN = (Part.RESTART, Part.CAPACITY)


def plan_goodput(observed: Observed, status: JobStatus, now: float) -> Goodput | None:
    """The account until now. status: of this reconcile, without the account. None for a job without a launcher."""
    job = observed.job
    if job.spec.world is None:
        return None
    before = job.status.goodput
    if before is None:
        created = micro_time(job.created_at)
        before = Goodput(start_time=created, since=created, part=Part.STARTING)
    if before.part is None:
        return before  # the job has ended
    account, facts = _Account(before, now), _Facts(observed, status, parse_time(before.since))
    if _size_may_differ(observed, before):
        account.measure(training_size(observed))
    _add_training(account, facts)
    _add_job(account, facts, observed)
    return account.goodput(status)


def _size_may_differ(observed: Observed, before: Goodput) -> bool:
    """Cheap, because every reconcile asks. During a pause, pods are missing."""
    snapshot = observed.snapshot
    if snapshot is None or snapshot.actives * observed.job.world.nproc_per_node in (0, before.ranks):
        return False
    return all_at_work(snapshot)


def without_ratio(status: JobStatus) -> JobStatus:
    """For comparisons: the ratio follows the progress."""
    return status if status.goodput is None else replace(status, goodput=replace(status.goodput, ettr=None))


# Facts ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Pause:
    """The training stands still, because of these faults. Times in Unix seconds.

    until: its end; None: it has not ended. paused_at: the last step before it, as measured by a pod; None: not known.
    vacant_until: until then, no pod could take a vacant rank. caught_up_at: when the lost steps were made again.
    """

    entries: tuple[RecoveryStatus, ...]
    until: float | None
    paused_at: float | None
    vacant_until: float | None
    caught_up_at: float | None

    @property
    def detected_at(self) -> float:
        return parse_time(self.entries[0].detected_at)

    @property
    def cause(self) -> "tuple[Fault, str]":
        return self.entries[0].fault, self.entries[0].cause.node

    @property
    def lost_steps(self) -> int | None:
        """None: not known."""
        return max((x.lost_steps for x in self.entries if x.lost_steps is not None), default=None)


class _Facts:
    """The facts of a reconcile about the time since the previous reconcile."""

    def __init__(self, observed: Observed, status: JobStatus, since: float) -> None:
        """since: of the account."""
        before, self.snapshot = observed.job.status, observed.snapshot
        self.status, self.before = status, before
        progress = None if self.snapshot is None else self.snapshot.progress
        if progress is not None:
            progress = StepProgress(progress.step, progress.total, _as_in_status(progress.at), progress.is_counted)
        self.progress = progress
        since_step = None if self.snapshot is None else self.snapshot.stepping_since
        self.stepping_since = None if since_step is None else _as_in_status(since_step)
        recorded = [] if before.progress is None or before.progress.at is None else [parse_time(before.progress.at)]
        self.recorded_step_at = max(recorded, default=None)
        self.has_stepped_before = before.progress is not None
        self.steps = [x for x in (before.progress, progress) if x is not None]
        self.has_steps = status.progress is not None
        recoveries = () if self.snapshot is None else self.snapshot.recoveries
        reported: dict[str, Recovery] = {micro_time(x.detected_at): x for x in recoveries}
        entries = [x for x in status.recoveries if not is_of_rollouts(x) and not _ended_without_step(x, since)]
        self.pauses = tuple(self._pauses(entries, reported))

    def newest_step_before(self, at: float) -> float | None:
        """The time of the newest step until then that the operator has seen."""
        seen = [] if self.progress is None else [self.progress.at]
        seen += [] if self.recorded_step_at is None else [self.recorded_step_at]
        return max((step_at for step_at in seen if step_at <= at), default=None)

    def was_made_before(self, pause: _Pause) -> bool:
        """Whether the newest step that the coordinator reports was made in the round that the fault has ended."""
        assert self.progress is not None
        is_same_round = self.stepping_since is not None and self.stepping_since <= pause.detected_at
        return is_same_round or self.progress.at <= pause.detected_at

    def missed_recoveries(self) -> int:
        """Recoveries that have ended since the previous status, and that no coordinator reports any more."""
        if self.snapshot is None:
            return 0
        recorded = {x.detected_at: x for x in self.before.recoveries}
        ended = [
            x
            for x in self.status.recoveries
            if x.strategy in _STRATEGIES
            and not x.is_open
            and (x.detected_at not in recorded or recorded[x.detected_at].is_open)
        ]
        return _count(self.status.recoveries_by_strategy) - _count(self.before.recoveries_by_strategy) - len(ended)

    def _pauses(self, entries: Iterable[RecoveryStatus], reported: Mapping[str, Recovery]) -> Iterator[_Pause]:
        group = list[RecoveryStatus]()
        for entry in sorted(entries, key=lambda x: x.detected_at):
            until = self._end(group)
            if group and until is not None and parse_time(entry.detected_at) >= until:
                yield self._pause(group, until, reported)
                group = []
            elif group and (stepped_at := _step_between(group, entry, reported)) is not None:
                yield self._pause(group, stepped_at, reported)
                group = []
            group.append(entry)
        if group:
            yield self._pause(group, self._end(group), reported)

    def _pause(
        self, entries: Sequence[RecoveryStatus], until: float | None, reported: Mapping[str, Recovery]
    ) -> _Pause:
        found = [reported[x.detected_at] for x in entries if x.detected_at in reported]
        return _Pause(
            tuple(entries),
            until,
            min(_measured(entries, reported), default=None),
            max((x.vacant_until for x in found if x.vacant_until is not None), default=None),
            max((x.caught_up_at for x in found if x.caught_up_at is not None), default=None),
        )

    def _end(self, entries: Sequence[RecoveryStatus]) -> float | None:
        """None: not yet. A recovery may end with the start of all workers, before a step."""
        if not entries or any(entry.is_open for entry in entries):
            return None
        detected_at = parse_time(entries[-1].detected_at)
        ends = [parse_time(x.resumed_at) for x in entries if x.resumed_at is not None]
        if not self.has_steps:
            ends += [parse_time(x.running_at) for x in entries if x.running_at is not None]
        elif self.progress is not None:
            steps = [at for at in (self.stepping_since, self.progress.at) if at is not None and at > detected_at]
            ends = ends or [min(steps, default=-1.0)]
        return max((at for at in ends if at >= detected_at), default=None)


def _measured(entries: Iterable[RecoveryStatus], reported: Mapping[str, Recovery]) -> list[float]:
    """The last step before the pause, for each of these recoveries of which a pod has measured it."""
    found = [reported[x.detected_at] for x in entries if x.detected_at in reported]
    return [x.resumed_at - x.pause_s for x in found if x.resumed_at is not None and x.pause_s is not None]


def _step_between(
    entries: Sequence[RecoveryStatus], entry: RecoveryStatus, reported: Mapping[str, Recovery]
) -> float | None:
    """The last step before `entry`, if it came after the faults of `entries` and no pod has measured their pause: their
    coordinator was lost before it could report the end of the pause.
    """
    if _measured(entries, reported):
        return None
    return next((at for at in _measured([entry], reported) if at > parse_time(entries[-1].detected_at)), None)


def _as_in_status(at: float) -> float:
    """To the microsecond, as times of faults: a step may come in the same moment as the fault."""
    return parse_time(micro_time(at))


_STRATEGIES = {strategy.value for strategy in Strategy}


def _ended_without_step(entry: RecoveryStatus, since: float) -> bool:
    """Whether it ended before, with the start of the workers. Its next step is not that of a later round."""
    return entry.resumed_at is None and entry.running_at is not None and parse_time(entry.running_at) <= since


def _count(counts: StrategyCounts) -> int:
    """Without restarts of the job, which the operator itself counts."""
    return sum(number or 0 for name, number in asdict(counts).items() if name != "job_restart")


# The account ----------------------------------------------------------------------------------------------------------


class _Account:
    def __init__(self, before: Goodput, now: float) -> None:
        self._before, self.now = before, now
        self._since = parse_time(before.since)
        self._seconds = before.seconds.by_part()
        self._part: Part | None = before.part
        self._cause = None if before.fault is None else (before.fault, before.node)
        self._lost = {(entry.fault, entry.node): entry for entry in before.lost}
        self._size = TrainingSize(before.gpus, before.ranks)
        self.newest_step, self._is_repeated_unknown = before.newest_step, before.is_repeated_unknown

    @property
    def part(self) -> Part | None:
        return self._part

    @property
    def since(self) -> float:
        return self._since

    @property
    def has_been_productive(self) -> bool:
        return self._seconds[Part.PRODUCTIVE] > 0

    def measure(self, size: TrainingSize | None) -> None:
        """The training has this size now; None: not known."""
        self._size = size or self._size

    def enter(self, part: Part | None, at: float) -> None:
        """The part before ends at that time. None: the job ends."""
        at = max(self._since, min(at, self.now))
        assert self._part is not None, "a job that has ended has no further parts"
        self._seconds[self._part] += at - self._since
        self._add_lost(self._part, at - self._since)
        self._part, self._since = part, at
        if part not in LOST:
            self._cause = None

    def relabel(self, part: Part) -> None:
        """The time since `since` went to another part."""
        self._part = part

    def blame(self, cause: tuple[Fault, str]) -> None:
        """The cause of the current part, and of the following parts of the same fault."""
        self._cause = cause

    def on_first_step(self) -> None:
        """The script reports steps, so the time before was not without them."""
        self._seconds[Part.STARTING] += self._seconds[Part.WITHOUT_STEPS]
        self._seconds[Part.WITHOUT_STEPS] = 0.0
        if self._part is Part.WITHOUT_STEPS:
            self._part = Part.STARTING

    def remember_steps(self, reported: Sequence[StepProgress | ProgressStatus]) -> None:
        """They were made before the pause that begins."""
        if any(progress.is_counted for progress in reported):
            self.newest_step = None
        elif reported:
            steps = [progress.step for progress in reported]
            self.newest_step = max(steps if self.newest_step is None else [*steps, self.newest_step])

    def remember_lost_steps(self, first: StepProgress | None, lost: int | None) -> None:
        """A round that has begun with this step has to make so many again; the operator may have seen none of them."""
        if lost and first is not None and not first.is_counted and self.newest_step is not None:
            self.newest_step = max(self.newest_step, first.step + lost - 1)

    def step_from(self, at: float, *, is_behind: bool | None) -> None:
        """Steps are made from then on. is_behind: they were made before; None: not known."""
        self._is_repeated_unknown = self._is_repeated_unknown or is_behind is None
        self.enter(Part.REPEATED if is_behind else Part.PRODUCTIVE, at)

    def _add_lost(self, part: Part, seconds: float) -> None:
        if part not in LOST or self._cause is None or seconds <= 0:
            return
        key = self._cause
        if key not in self._lost and len(self._lost) >= MAX_LOST:
            key = (key[0], "")
        entry = self._lost.get(key) or LostTime(*key)
        entry = replace(entry, seconds=round(entry.seconds + seconds, 3))
        if self._size.devices:
            entry = replace(entry, gpu_seconds=round((entry.gpu_seconds or 0.0) + seconds * self._size.devices, 3))
        else:
            entry = replace(entry, rank_seconds=round((entry.rank_seconds or 0.0) + seconds * self._size.ranks, 3))
        self._lost[key] = entry

    def goodput(self, status: JobStatus) -> Goodput:
        fault, node = self._cause or (None, "")
        return Goodput(
            start_time=self._before.start_time,
            part=self._part,
            since=micro_time(self._since),
            seconds=PartSeconds.of(self._seconds),
            ettr=_ratio(self._seconds, self._part, self._since, status),
            gpus=self._size.devices,
            ranks=self._size.ranks,
            fault=fault,
            node=node,
            newest_step=self.newest_step,
            is_repeated_unknown=self._is_repeated_unknown,
            lost=tuple(self._lost[key] for key in sorted(self._lost, key=lambda x: (x[0].value, x[1]))),
        )


def _ratio(seconds: Mapping[Part, float], part: Part | None, since: float, status: JobStatus) -> float | None:
    """Until the newest step in status, or until `since`: readers that need it for the present compute it."""
    productive_s, wall_s = seconds[Part.PRODUCTIVE], sum(seconds.values())
    if part in STEPPING and status.progress is not None and status.progress.at is not None:
        more_s = max(0.0, parse_time(status.progress.at) - since)
        productive_s, wall_s = productive_s + (more_s if part is Part.PRODUCTIVE else 0.0), wall_s + more_s
    has_stepped = part in STEPPING or productive_s > 0
    return round(productive_s / wall_s, 4) if has_stepped and wall_s > 0 else None


# What the facts add ---------------------------------------------------------------------------------------------------


def _add_training(account: _Account, facts: _Facts) -> None:
    if account.part is Part.SUSPENDED:
        return
    _add_unseen(account, facts)
    for pause in facts.pauses:
        if pause.until is None or pause.until > account.since:
            _add_pause(account, facts, pause)
    if account.part is Part.REPEATED and facts.pauses:
        _end_repeating(account, facts, facts.pauses[-1])
    is_paused = any(pause.until is None for pause in facts.pauses)
    if not is_paused and account.part not in STEPPING:
        _begin_running(account, facts)


def _add_unseen(account: _Account, facts: _Facts) -> None:
    running, seen_at = account.part, facts.recorded_step_at
    if running not in RUNNING or facts.missed_recoveries() <= 0:
        return
    seen_at = account.since if seen_at is None else max(account.since, seen_at)
    known = [pause.detected_at for pause in facts.pauses]
    known += [] if facts.stepping_since is None else [facts.stepping_since]
    known += [] if facts.progress is None else [facts.progress.at]
    account.enter(Part.UNKNOWN, seen_at)
    account.enter(running, min((at for at in known if at > seen_at), default=seen_at))


def _add_pause(account: _Account, facts: _Facts, pause: _Pause) -> None:
    if account.part in RUNNING:
        _begin_pause(account, facts, pause)
    elif account.part in _BROKEN and account.since < pause.detected_at and pause.until is not None:
        # It began with the newest step in status, because the last step was not known.
        account.relabel(Part.UNKNOWN if pause.paused_at is None else Part.PRODUCTIVE)
        _add_detection(account, pause, pause.paused_at)
    if account.part in _BROKEN and account.since >= pause.detected_at:
        _add_restart(account, facts, pause)
    if pause.until is not None:
        if facts.has_steps:
            account.step_from(pause.until, is_behind=_repeats_after(account, facts, pause))
            account.remember_lost_steps(facts.progress, pause.lost_steps)
        else:
            account.enter(Part.WITHOUT_STEPS, pause.until)
        if pause.caught_up_at is not None and account.part is Part.REPEATED:
            account.enter(Part.PRODUCTIVE, pause.caught_up_at)
    if account.part is Part.REPEATED:
        account.blame(pause.cause)


def _begin_pause(account: _Account, facts: _Facts, pause: _Pause) -> None:
    account.remember_steps(facts.steps)
    if account.part is Part.WITHOUT_STEPS:
        _add_detection(account, pause, pause.detected_at)
    elif pause.paused_at is not None:
        _add_detection(account, pause, pause.paused_at)
    elif pause.until is None and facts.progress is not None and facts.was_made_before(pause):
        _add_detection(account, pause, facts.progress.at)
    else:
        seen_at = facts.newest_step_before(pause.detected_at)
        account.enter(Part.RESTART, account.since if seen_at is None else seen_at)
        account.blame(pause.cause)
        if pause.until is not None:
            account.relabel(Part.UNKNOWN)
            _add_detection(account, pause, None)


def _add_detection(account: _Account, pause: _Pause, paused_at: float | None) -> None:
    """The training paused at this time; None if the time is not known."""
    if paused_at is not None:
        account.enter(Part.DETECTION, paused_at)
        account.blame(pause.cause)
    account.enter(Part.RESTART, pause.detected_at)
    account.blame(pause.cause)


def _add_restart(account: _Account, facts: _Facts, pause: _Pause) -> None:
    if pause.vacant_until is not None and pause.vacant_until > account.since:
        account.relabel(Part.CAPACITY)
        account.enter(Part.RESTART, pause.vacant_until)
    elif pause.until is None:
        account.relabel(Part.CAPACITY if _lacks_pods(facts, pause) else Part.RESTART)
    else:
        account.relabel(Part.RESTART)


def _lacks_pods(facts: _Facts, pause: _Pause) -> bool:
    """Whether ranks are vacant, and there is no pod for one of them."""
    snapshot = facts.snapshot
    if snapshot is None or pause.entries[-1].strategy is not None or not snapshot.waiting_for:
        return False
    return len(snapshot.members) < (snapshot.actives or facts.status.members.desired)


def _repeats_after(account: _Account, facts: _Facts, pause: _Pause) -> bool | None:
    """Whether the round after the pause repeats steps. None: not known."""
    return _is_behind(account, facts) if pause.lost_steps is None else pause.lost_steps > 0


def _is_behind(account: _Account, facts: _Facts) -> bool | None:
    """Whether the newest step was made before. None: not known, because steps are counted."""
    progress, newest = facts.progress, account.newest_step
    if progress is None or not facts.has_stepped_before:
        return False
    if newest is None and not account.has_been_productive and not any(step.is_counted for step in facts.steps):
        return False  # no pause has begun: the step in status is of this round, and was reported with an early time
    return None if progress.is_counted or newest is None else progress.step < newest


def _end_repeating(account: _Account, facts: _Facts, pause: _Pause) -> None:
    if pause.until is None:
        return
    if pause.caught_up_at is not None:
        account.enter(Part.PRODUCTIVE, pause.caught_up_at)
    elif facts.progress is not None and not (is_behind := _is_behind(account, facts)):
        account.step_from(facts.progress.at, is_behind=is_behind)


def _begin_running(account: _Account, facts: _Facts) -> None:
    """The first step since the part has begun; or all workers run, and the script has never reported a step."""
    progress, snapshot = facts.progress, facts.snapshot
    if progress is not None and progress.at > account.since:
        account.on_first_step()
        since = facts.stepping_since
        at = progress.at if since is None or since < account.since else since
        account.step_from(at, is_behind=_is_behind(account, facts))
    elif snapshot is None or facts.has_steps or account.part is Part.WITHOUT_STEPS:
        return
    elif all_at_work(snapshot):
        account.enter(Part.WITHOUT_STEPS, account.now)


def _add_job(account: _Account, facts: _Facts, observed: Observed) -> None:
    """The end of the job, and of its attempts."""
    status, now = facts.status, account.now
    last_step_at = facts.newest_step_before(now)
    stopped_at = now if last_step_at is None or account.part not in STEPPING else last_step_at
    if status.terminal_state:
        end = now if status.completion_time is None else parse_time(status.completion_time)
        if account.part in STEPPING:
            account.enter(Part.ENDING, stopped_at)
        account.enter(None, end)
    elif observed.job.spec.suspend or gang_waits_for_quota(observed):
        if account.part is not Part.SUSPENDED:
            account.remember_steps(facts.steps)
            account.enter(Part.SUSPENDED, stopped_at)
    elif account.part is Part.SUSPENDED:
        _end_suspension(account, facts)
    elif status.coordinator.former_epoch != facts.before.coordinator.former_epoch and account.part in RUNNING:
        account.remember_steps(facts.steps)
        account.enter(Part.STARTING, stopped_at)


def _end_suspension(account: _Account, facts: _Facts) -> None:
    """A wait for quota may interrupt a pause that a fault has begun: the rest of this pause is lost to the fault."""
    queued = condition(facts.before, QUOTA_RESERVED)
    causes = [pause.cause for pause in facts.pauses if pause.until is None]
    if queued is not None and queued.reason == WAITS and causes:
        account.enter(Part.RESTART, account.now)
        account.blame(causes[-1])
    else:
        account.enter(Part.STARTING, account.now)
