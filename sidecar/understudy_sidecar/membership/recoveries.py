"""The recovery log: each fault, its cause, the strategy and its reason, and when training stepped again.

Rules: the first fault of a round is its cause, and its consequences within the round get no entry. A member that was
lost, or had left, before or at the same time replaces the cause: its peers' workers only failed because of that. A
fault during an open recovery gets its own entry; the next step ends them all. A recovery that is open when the
coordinator changes stays open in the next term, as the same entry. If members report later that its round has stepped,
it ended with the last step before the next pause at the latest. Failures that are reported after the first one and
before the next round is formed are consequences of the newest entry: texts of members, so their number and length are
limited.

The first step of the new round ends a recovery. A job whose workers have never reported a step may have a script that
never does: there the start of all workers ends it (`running_at`), and a later step is added.

For the account of the job's time, an entry also has when pods for the vacant ranks had joined (`vacant_until`), and
when the training had made the lost steps again (`caught_up_at`).
"""

from collections import Counter, deque
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from understudy_protocol.enums import Fault, Strategy, Tier
from understudy_protocol.observer import Cause, Consequence, Recovery
from understudy_protocol.recovery import MAX_CONSEQUENCE_CHARS, MAX_CONSEQUENCES

MAX_RECOVERIES = 10
#: The next coordinator also reports a recovery for this long after its end.
ENDED_S = 30.0
#: The reason of a worker's fault without one: a coordinator that counts a fault adds a reason.
NOT_COUNTED = "the previous coordinator was lost before it charged the fault"
WORKER_FAULTS = (Fault.PROCESS, Fault.HANG)


@dataclass
class RecoveryLog:
    counts: Counter[str] = field(default_factory=Counter)
    open: list[Recovery] = field(default_factory=list)
    begun: Counter[str] = field(default_factory=Counter)  # by fault, as first detected
    _pods: set[str] = field(default_factory=set)  # that are the causes of open entries
    _worker_entries: list[int] = field(default_factory=list)  # indices of the open entries about workers
    _done: deque[Recovery] = field(default_factory=lambda: deque(maxlen=MAX_RECOVERIES))
    _stepped: int = -1  # the newest round that had stepped when the newest one was formed
    _repeats_until: int | None = None  # the newest step before the faults, until the training has made it again

    def begin(self, fault: Fault, cause: Cause, next_round: int, now: float, reason: str = "") -> None:
        self.begun[fault.value] += 1
        self._add(Recovery(next_round, fault, None, cause, now, None, reason))

    def _add(self, entry: Recovery) -> None:
        """O(1), and so are the lookups of `newest_worker_fault`, `has_entry` and `on_loss` for a pod without an entry:
        thousands of members may be lost at the same moment.
        """
        if entry.fault in WORKER_FAULTS:
            self._worker_entries.append(len(self.open))
        self._pods.add(entry.cause.pod)
        self.open.append(entry)

    def _set_open(self, entries: Iterable[Recovery]) -> None:
        """With other causes, or other faults."""
        self.open, self._pods, self._worker_entries = [], set(), []
        for entry in entries:
            self._add(entry)

    def revise(self, fault: Fault, cause: Cause, reason: str = "") -> None:
        """Replace the cause of `newest_worker_fault`: a lost member, not a worker."""
        entry = self.newest_worker_fault()
        assert entry is not None
        revised = replace(_with_new_cause(entry, cause), fault=fault, strategy=None, reason=reason)
        self._set_open([revised if x is entry else x for x in self.open])

    def set_reason(self, at: float, reason: str) -> None:
        """Set the reason for the strategy of the open entry that began at `at`."""
        self.open = [replace(entry, reason=reason) if entry.detected_at == at else entry for entry in self.open]

    def set_cause(self, at: float, cause: Cause) -> None:
        """Set another worker as the cause of the open entry that began at `at`: it failed earlier."""
        is_revised = [entry.detected_at == at and entry.fault in WORKER_FAULTS for entry in self.open]
        entries = zip(self.open, is_revised, strict=True)
        self._set_open([_with_new_cause(entry, cause) if revised else entry for entry, revised in entries])

    def add_consequence(self, cause: Cause) -> bool:
        """Add a worker's failure to the newest entry without a round. Whether an entry has changed.

        If the cause is the exception of a worker that had not ended, the entry gets its exit code.
        """
        index = next((i for i in reversed(range(len(self.open))) if self.open[i].strategy is None), None)
        if index is None:
            return False
        before = self.open[index]
        is_cause = _worker(cause) == _worker(before.cause)
        if not is_cause:
            self.open[index] = _with_consequence(before, cause)
        elif before.fault is Fault.PROCESS and before.cause.exit_code is None and before.cause.signal is None:
            self.open[index] = replace(before, cause=cause)
        return self.open[index] != before

    def newest_worker_fault(self) -> Recovery | None:
        """The newest open entry about a worker, if no round was formed between it and the newest entry about a pod or a
        worker. A failed weight update may follow it.
        """
        newest = next((entry for entry in reversed(self.open) if entry.fault is not Fault.WEIGHT_UPDATE), None)
        workers = (self.open[index] for index in reversed(self._worker_entries))
        return next((entry for entry in workers if newest is not None and entry.round == newest.round), None)

    def has_entry(self, pod: str, reason: str) -> bool:
        """Whether an open entry is for this pod and reason, and has no round yet."""
        wanted = (pod, reason, None)
        return pod in self._pods and any((x.cause.pod, x.reason, x.strategy) == wanted for x in self.open)

    def without_round(self) -> Recovery | None:
        """The newest open entry for which no round has been formed."""
        return next((entry for entry in reversed(self.open) if entry.strategy is None), None)

    def restore_counts(self, counts: Mapping[str, int]) -> None:
        self.counts.update(counts)

    def restore(self, entries: Iterable[Recovery]) -> None:
        """Take the open recoveries of the previous coordinator's history."""
        self._set_open(
            replace(entry, reason=NOT_COUNTED) if entry.fault in WORKER_FAULTS and not entry.reason else entry
            for entry in entries
        )

    def on_round_continued(self, round_number: int) -> None:
        """The newest round of the members has this number: it recovered all entries that were open when it was formed.

        A recovery by a later round, which no member knows, still waits for its round.
        """
        entries = [entry for entry in self.open if entry.strategy is not None or entry.round > round_number]
        self._set_open([replace(entry, strategy=None) if entry.round > round_number else entry for entry in entries])

    def on_round(
        self,
        round_number: int,
        strategy: Strategy,
        reason: str = "",
        restarted_in_place: Container[str] = (),
        vacant_until: float | None = None,
        stepped: int = -1,
    ) -> None:
        """The next round was assigned: it recovers all entries without a strategy.

        reason: added to the entry's own. restarted_in_place: pods whose workers restart in place, whatever the
        strategy. stepped: the newest round that has stepped, as far as members report.
        """
        self._stepped = stepped
        self.open = [
            entry
            if entry.strategy is not None
            else replace(
                self._with_round(entry, round_number, strategy, reason, restarted_in_place), vacant_until=vacant_until
            )
            for entry in self.open
        ]

    def _with_round(
        self, entry: Recovery, round_number: int, strategy: Strategy, reason: str, restarted_in_place: Container[str]
    ) -> Recovery:
        if entry.fault in WORKER_FAULTS and entry.cause.pod in restarted_in_place:
            return replace(entry, round=round_number, strategy=Strategy.IN_PLACE)
        reasons = (entry.reason, "" if reason in entry.reason else reason)
        return replace(entry, round=round_number, strategy=strategy, reason="; ".join(filter(None, reasons)))

    def on_loss(self, pod: str, reason: str) -> None:
        """A pod whose workers were to be restarted is lost."""
        if pod not in self._pods:
            return
        self.open = [
            replace(entry, reason="; ".join(filter(None, (entry.reason, reason))))
            if entry.strategy is None and entry.fault in WORKER_FAULTS and entry.cause.pod == pod
            else entry
            for entry in self.open
        ]

    def on_restore(self, round_number: int, tier: Tier, reason: str, lost_steps: int | None) -> None:
        """This round restores the training from this tier.

        An open recovery may be of an earlier round, in which another fault came before the restore.
        """
        changes: dict[str, Any] = {"tier": tier, "tier_reason": reason, "lost_steps": lost_steps}
        self.open = [replace(entry, **changes) if entry.tier is None else entry for entry in self.open]
        self._revise_round(round_number, **changes)

    def _revise_round(self, round_number: int, **changes: Any) -> None:
        def revised(entry: Recovery) -> Recovery:
            return replace(entry, **changes) if entry.round == round_number else entry

        self.open = [revised(entry) for entry in self.open]
        self._done = deque([revised(entry) for entry in self._done], maxlen=MAX_RECOVERIES)

    def strategies_used(self) -> str:
        """The strategies so far, and how often each was used."""
        counts = self.counts + Counter(entry.strategy.value for entry in self.open if entry.strategy is not None)
        return ", ".join(
            f"{strategy.value} {counts[strategy.value]}" for strategy in Strategy if counts[strategy.value]
        )

    def awaits_step(self, round_number: int) -> bool:
        """Whether a step of this round ends a recovery, or adds to one."""
        return bool(self.open) or any(x.round == round_number and x.resumed_at is None for x in self._done)

    def on_first_step(self, round_number: int, lost_steps: int) -> None:
        """This round has made its first step, and repeats a number of steps that were made before the fault.

        If the round has restored a snapshot, the number is known already.
        """

        def counted(entry: Recovery) -> Recovery:
            return replace(entry, lost_steps=lost_steps) if entry.lost_steps is None else entry

        self.open = [counted(entry) for entry in self.open]
        done = [counted(entry) if entry.round == round_number else entry for entry in self._done]
        self._done = deque(done, maxlen=MAX_RECOVERIES)

    def begin_repeating(self, first_step: int | None) -> None:
        """The round has made this step first. If steps were lost, it has to make them again. None: its number is not
        known, so the end of the repeated steps is not known either.
        """
        if first_step is None:
            self._repeats_until = None
            return
        lost = max((entry.lost_steps or 0 for entry in self.open), default=0)
        if lost:
            newest = first_step + lost - 1
            self._repeats_until = newest if self._repeats_until is None else max(self._repeats_until, newest)

    def on_progress(self, round_number: int, step: int, at: float) -> bool:
        """The round has made this step. Whether the training has just made all lost steps again."""
        if self._repeats_until is None or step < self._repeats_until:
            return False
        self._repeats_until = None
        self._revise_round(round_number, caught_up_at=at)
        return True

    def on_step(self, round_number: int, at: float, pause_s: float | None = None) -> list[Recovery]:
        """This round has made its first step: return the recoveries that it ends."""
        self._done = deque(
            [_resumed(x, at, pause_s) if x.round == round_number else x for x in self._done], maxlen=MAX_RECOVERIES
        )
        return self._end([self._ended_by_step(entry, at, pause_s) for entry in self.open])

    def _ended_by_step(self, entry: Recovery, at: float, pause_s: float | None) -> Recovery:
        paused_at = None if pause_s is None else at - pause_s
        has_stepped = entry.strategy is not None and entry.round <= self._stepped
        if has_stepped and paused_at is not None and paused_at > entry.detected_at:
            return _resumed(entry, paused_at, None)
        return _resumed(entry, at, pause_s)

    def on_running(self, at: float) -> list[Recovery]:
        """All workers run, and the script reports no steps: return the recoveries that this ends."""
        return self._end([replace(entry, running_at=at) for entry in self.open])

    def _end(self, done: list[Recovery]) -> list[Recovery]:
        self.counts.update(entry.strategy.value for entry in done if entry.strategy is not None)
        self._done.extend(done)
        self._set_open(())
        return done

    def restore_ended(self, entries: Iterable[Recovery]) -> None:
        """Take the recoveries that ended shortly before the previous coordinator did."""
        known = {entry.detected_at for entry in self._done}
        self._done.extend(entry for entry in entries if entry.detected_at not in known)

    def open_in_brief(self, limit: int) -> tuple[Recovery, ...]:
        """The newest open entries for a next coordinator, without the texts that only describe them."""
        return tuple(map(_in_brief, self.open[-limit:]))

    def ended_in_brief(self, limit: int, now: float) -> tuple[Recovery, ...]:
        """The newest entries that have ended within ENDED_S, likewise."""
        ended = [(entry, entry.running_at if entry.resumed_at is None else entry.resumed_at) for entry in self._done]
        recent = [entry for entry, at in ended if at is not None and at >= now - ENDED_S]
        return tuple(map(_in_brief, recent[len(recent) - min(limit, len(recent)) :]))

    def newest(self) -> tuple[Recovery, ...]:
        """The newest ten, oldest first, including the open ones."""
        return tuple([*self._done, *self.open][-MAX_RECOVERIES:])


def _in_brief(entry: Recovery) -> Recovery:
    return replace(entry, cause=replace(entry.cause, traceback=""), consequences=(), consequence_count=0)


def _worker(failure: Cause | Consequence) -> tuple[int | None, str]:
    return failure.rank, failure.pod


def _with_new_cause(entry: Recovery, cause: Cause) -> Recovery:
    """With an earlier failure as the cause: the previous cause is the first consequence."""
    others = tuple(x for x in entry.consequences if _worker(x) != _worker(cause))
    count = entry.consequence_count - (len(entry.consequences) - len(others))
    former = _with_consequence(replace(entry, consequences=(), consequence_count=count), entry.cause)
    return replace(former, cause=cause, consequences=(*former.consequences, *others)[:MAX_CONSEQUENCES])


def _with_consequence(entry: Recovery, cause: Cause) -> Recovery:
    """A failure without a rank is not listed, and neither is one that the entry has already."""
    if cause.rank is None or _worker(cause) in map(_worker, entry.consequences):
        return entry
    entry = replace(entry, consequence_count=entry.consequence_count + 1)
    if len(entry.consequences) >= MAX_CONSEQUENCES:
        return entry
    signal = None if cause.signal is None else cause.signal[:MAX_CONSEQUENCE_CHARS]
    listed = Consequence(cause.rank, cause.pod, cause.exit_code, signal, cause.message[:MAX_CONSEQUENCE_CHARS])
    return replace(entry, consequences=(*entry.consequences, listed))


def _resumed(entry: Recovery, at: float, pause_s: float | None) -> Recovery:
    return entry if entry.resumed_at is not None else replace(entry, resumed_at=at, pause_s=pause_s)
