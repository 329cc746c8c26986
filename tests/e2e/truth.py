"""Compares the status of a job with the fault that a test caused and with the steps seen from outside. Pure.

Rules:
- A fault adds one entry to `recoveries`, which is `lastRecovery` too. A test that stops no training expects none.
- `pauseSeconds` is the time from the last step before the fault to the first step after it, of one pod that made both.
  The pod's own report of its steps, which the operator never reads, is the measurement. `resumedAt` is that first step.
- `lostSteps` are the steps of earlier rounds from the first step after the fault on, if the steps have numbers. Those
  that were made within UNREPORTED_S of the last one may be missing in it, because no pod had reported them.
- A script that reports no steps has neither: its recovery ends with `runningAt`.
- A time may differ by 10 % of the pause, or by 0.2 s if that is more.
- `detectedAt` is between the fault and the first step after it, and at most DETECTED_WITHIN_S after the fault or the
  last step, whichever is later. A fault that needs time before it stops a process has this time too. From then on the
  operator has REPORTED_WITHIN_S to write the phase Recovering, and as long after the first step to write Running. In
  e2e runs on two busy cores it took at most 0.5 s.
- A status with phase Running has no open recovery, and the job has no other phase than these two. A new coordinator
  that does not know yet whether training continues may have Recovering without a fault.
- A restart of the whole job also has the phases of a job that starts. Its recovery ends with `runningAt`, because the
  coordinator that has seen the earlier steps ends with it.
- Of the counters, `recoveriesByStrategy` has one more of the entry's strategy, `restarts` one more after a restart of
  the job, and `members` and `spares` are the same numbers as before. `round` is that of the newest step. `coordinator`
  is not older than the round, and its pod is not one that the fault has ended.
- `progress.step` is a step that the training has made, if the steps have numbers. `progress.at` is the time at which
  the coordinator received its report, at most a second later.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import Any

from tests.e2e.report import Entry, Token

Raw = dict[str, Any]
Steps = Mapping[str, Sequence["Step"]]

ALLOWED_S, ALLOWED_SHARE = 0.2, 0.1
#: By the kind of fault. The coordinator detects the end of a process at once, and a pod may take a while to end. A node
#: that does not respond is lost after 10 s and a ping of 3 s at the latest, and the tests set no longer step timeout.
#: A weight update fails by its trainer's own time limits: the tests pass the time at which it logged the failure.
DETECTED_WITHIN_S = {"Process": 2.0, "Pod": 5.0, "Node": 15.0, "Hang": 15.0, "WeightUpdate": 2.0}
REPORTED_WITHIN_S = 2.0
RECEIVED_WITHIN_S = 1.0
UNREPORTED_S = 0.5
JOB_RESTART = "JobRestart"
#: Before the first round after a restart of the job.
RESTARTS = ("Restarting", "Pending", "Starting")


@dataclass(frozen=True)
class Fault:
    """A fault that a test causes, as status should report it.

    rank: of the worker, or the first one of the pod. strategies: any of them is right. reported_within_s: inf if no
    operator runs. signal, exit_code: of the worker, if the test knows them. ended: the uid of the pod, if the fault
    ends it or cuts it off. effective_within_s: the time between the test's action and the end of the process. ranks:
    any of so many is right, from `rank` on.
    """

    kind: str
    strategies: tuple[str, ...]
    pod: str
    node: str
    rank: int
    reported_within_s: float = REPORTED_WITHIN_S
    signal: str | None = None
    exit_code: int | None = None
    ended: str | None = None
    effective_within_s: float = 0.0
    ranks: int = 1

    @property
    def detected_within_s(self) -> float:
        return self.effective_within_s + DETECTED_WITHIN_S[self.kind]

    @property
    def restarts_job(self) -> bool:
        return self.strategies == (JOB_RESTART,)


@dataclass(frozen=True)
class Step:
    """A completed step. at: Unix seconds. number: None if the training does not record it."""

    round: Token
    at: float
    number: int | None = None


@dataclass(frozen=True)
class Sample:
    """A status that was read while the fault lasted. The times are Unix seconds."""

    requested_at: float
    received_at: float
    status: Raw

    @property
    def phase(self) -> str:
        return str(self.status.get("phase"))


@dataclass(frozen=True)
class Observed:
    """at: just before the fault. known: `detectedAt` of the earlier entries. steps: by pod; None without step().

    before: the status before the fault. Without it no counter is compared: the test causes another fault meanwhile.
    """

    at: float
    known: Collection[str]
    steps: Steps | None
    samples: Sequence[Sample] = ()
    before: Raw | None = None


@dataclass(frozen=True)
class Pause:
    """The pause of the training on one pod."""

    last: float
    first: float

    @property
    def seconds(self) -> float:
        return self.first - self.last

    @property
    def allowed_s(self) -> float:
        return max(ALLOWED_S, ALLOWED_SHARE * self.seconds)


def steps_by_pod(report: Iterable[Entry]) -> Steps:
    """The steps of all workers. The last one before a fault may be made by some pods and not by the others."""
    steps: dict[str, list[Step]] = {}
    for entry in report:
        if entry.event == "step":
            steps.setdefault(entry.host, []).append(Step(entry.token, entry.time, entry.step))
    return steps


def new_entries(status: Raw, known: Collection[str]) -> list[Raw]:
    return [entry for entry in status.get("recoveries", ()) if entry["detectedAt"] not in known]


def is_open(entry: Raw) -> bool:
    return "resumedAt" not in entry and "runningAt" not in entry


def pauses(steps: Steps, at: float) -> list[Pause]:
    """The pauses of each pod that made steps in the round of the fault, or an earlier one, and in a later one."""
    rounds = [step.round for step in chain(*steps.values()) if step.at <= at]
    if not rounds:
        return []
    broken, found = max(rounds), []
    for of_pod in steps.values():
        before = [step.at for step in of_pod if step.round <= broken]
        after = [step.at for step in of_pod if step.round > broken]
        if before and after:
            found.append(Pause(max(before), min(after)))
    if not found:  # the only pod with ranks was lost; all pods of the tests have one clock
        lasts = [step.at for step in chain(*steps.values()) if step.round <= broken]
        firsts = [step.at for step in chain(*steps.values()) if step.round > broken]
        found += [Pause(max(lasts), min(firsts))] if firsts else []
    return found


def differences(fault: Fault | None, observed: Observed, status: Raw) -> list[str]:
    """A sentence for each field that differs from the facts. fault: None if no training stops."""
    entries = new_entries(status, observed.known)
    found = [] if len(entries) == (fault is not None) else [_count(fault, entries)]
    paused = pauses(observed.steps or {}, observed.at)
    if fault is not None and entries:
        entry = next((entry for entry in entries if entry["cause"].get("pod") == fault.pod), entries[-1])
        found += _of_entry(fault, entry, status)
        if fault.restarts_job or observed.steps is None:
            found += _without_steps(observed, entry)
        elif not paused:
            found.append("seconds: unknown from outside, because no pod has reported steps before and after the fault")
        else:
            found += [*_of_times(fault, observed, entry, paused), *_of_lost_steps(observed.steps, observed.at, entry)]
    if observed.before is not None:
        strategy = entries[-1].get("strategy") if fault is not None and entries else None
        found += _of_counts(strategy, observed.before, status)
        found += _of_coordinator(fault, observed.steps or {}, status)
        found += _of_progress(fault, observed.steps or {}, status)
    return found + list(dict.fromkeys(_of_phases(fault, observed, paused)))


def _differs(field: str, expected: object, reported: object) -> str:
    return f"{field}: expected {expected}, status reports {reported}"


def _count(fault: Fault | None, entries: Sequence[Raw]) -> str:
    blamed = ", ".join(f"{entry['fault']} of {entry['cause'].get('pod') or 'no pod'}" for entry in entries)
    return _differs("recoveries", "one new entry" if fault else "no new entry", blamed or "none")


def _of_entry(fault: Fault, entry: Raw, status: Raw) -> Iterator[str]:
    cause = entry["cause"]
    for field, expected, reported in (
        ("fault", (fault.kind,), entry["fault"]),
        ("strategy", fault.strategies, entry.get("strategy")),
        ("cause.pod", (fault.pod,), cause.get("pod")),
        ("cause.node", (fault.node,), cause.get("node")),
        ("cause.rank", range(fault.rank, fault.rank + fault.ranks), cause.get("rank")),
        ("cause.signal", (fault.signal,), cause.get("signal") if fault.signal is not None else None),
        ("cause.exitCode", (fault.exit_code,), cause.get("exitCode") if fault.exit_code is not None else None),
    ):
        if reported not in expected:
            yield _differs(field, " or ".join(map(str, expected)), reported)
    newest = status.get("lastRecovery", {}).get("detectedAt")
    if newest != entry["detectedAt"]:
        yield _differs("lastRecovery.detectedAt", f"that of the entry, {entry['detectedAt']}", newest)
    if not is_open(entry) and status.get("phase") != "Running":
        yield _differs("phase", "Running in the status in which the recovery has ended", status.get("phase"))


def _without_steps(observed: Observed, entry: Raw) -> Iterator[str]:
    for field in ("pauseSeconds", "resumedAt"):
        if field in entry:
            yield _differs(field, "none, because no pod has reported steps before and after the fault", entry[field])
    if "runningAt" not in entry:
        yield _differs("runningAt", "a time", "none")
    elif unix(entry["runningAt"]) < observed.at - ALLOWED_S:
        yield _differs("runningAt", f"a time after the fault at {observed.at:.3f}", f"{unix(entry['runningAt']):.3f}")


def _of_times(fault: Fault, observed: Observed, entry: Raw, paused: Sequence[Pause]) -> Iterator[str]:
    """The pause of any pod is right: status has that of one of them."""
    seconds = entry.get("pauseSeconds")
    pause = min(paused, key=lambda one: abs(one.seconds - (seconds or 0.0)))
    if seconds is None or abs(seconds - pause.seconds) > pause.allowed_s:
        yield _differs("pauseSeconds", f"{pause.seconds:.3f} ± {pause.allowed_s:.3f}", seconds)
    resumed_at = unix(entry["resumedAt"]) if "resumedAt" in entry else None
    if resumed_at is None or abs(resumed_at - pause.first) > pause.allowed_s:
        yield _differs("resumedAt", f"{pause.first:.3f} ± {pause.allowed_s:.3f}", resumed_at)
    detected_at = unix(entry["detectedAt"])
    latest = min(max(observed.at, pause.last) + fault.detected_within_s, pause.first + ALLOWED_S)
    if not observed.at - ALLOWED_S <= detected_at <= latest:
        between = f"a time from {observed.at:.3f}, of the fault, to {latest:.3f}"
        yield _differs("detectedAt", between, f"{detected_at:.3f}")


def _of_lost_steps(steps: Steps, at: float, entry: Raw) -> Iterator[str]:
    """Whether it has this field is not compared: a new coordinator may not know the steps of the earlier rounds."""
    numbered = [(step, step.number) for step in chain(*steps.values()) if step.number is not None]
    rounds = [step.round for step, _ in numbered if step.at <= at]
    if "lostSteps" not in entry or not rounds:
        return
    made = [(step.at, number) for step, number in numbered if step.round <= max(rounds)]
    first = min((step.at, number) for step, number in numbered if step.round > max(rounds))[1]
    last_at = max(made)[0]
    most = max(number for _, number in made)
    least = max((number for made_at, number in made if made_at <= last_at - UNREPORTED_S), default=0)
    least, most = (max(0, newest - first + 1) for newest in (least, most))
    if not least <= entry["lostSteps"] <= most:
        yield _differs("lostSteps", f"{least} to {most}", entry["lostSteps"])


def _of_counts(strategy: str | None, before: Raw, status: Raw) -> Iterator[str]:
    """strategy: of the new entry; None if there is none."""
    then, now = (raw.get("recoveriesByStrategy", {}) for raw in (before, status))
    grown = {name: now.get(name, 0) - then.get(name, 0) for name in sorted(then.keys() | now.keys())}
    grown = {name: count for name, count in grown.items() if count}
    expected = {strategy[0].lower() + strategy[1:]: 1} if strategy else {}
    if grown != expected:
        yield _differs(
            "recoveriesByStrategy", f"{expected or 'nothing'} more than before", f"{grown or 'nothing'} more"
        )
    restarts = before.get("restarts", 0) + (strategy == JOB_RESTART)
    if status.get("restarts", 0) != restarts:
        yield _differs("restarts", restarts, status.get("restarts", 0))
    for field, name in (("members", "desired"), ("members", "active"), ("spares", "desired")):
        then, now = (raw.get(field, {}).get(name) for raw in (before, status))
        if then != now:
            yield _differs(f"{field}.{name}", f"{then}, as before", now)
    if strategy == "InPlace" and before.get("spares") != status.get("spares"):
        yield _differs("spares", f"{before.get('spares')}, as before", status.get("spares"))


def _of_coordinator(fault: Fault | None, steps: Steps, status: Raw) -> Iterator[str]:
    coordinator = status.get("coordinator", {})
    if fault is not None and fault.ended is not None and coordinator.get("podUID") == fault.ended:
        yield _differs("coordinator.podUID", f"another pod than {fault.pod}, which has ended", coordinator["podUID"])
    newest = max((step.round for step in chain(*steps.values())), default=None)
    if newest is None:
        return
    if status.get("round") != newest[2]:
        yield _differs("round", f"{newest[2]}, that of the newest step", status.get("round"))
    term = coordinator.get("epoch", 0), coordinator.get("term", 0)
    if term < newest[:2]:
        yield _differs("coordinator", f"epoch {newest[0]}, term {newest[1]} or newer, which formed the round", term)


def _of_progress(fault: Fault | None, steps: Steps, status: Raw) -> Iterator[str]:
    """After a restart of the job, status may be compared before the first step."""
    numbered = [step for step in chain(*steps.values()) if step.number is not None]
    if not numbered:
        return
    if "progress" not in status:
        if fault is None or not fault.restarts_job:
            yield _differs("progress", "the newest step", None)
        return
    number, at = status["progress"]["step"], unix(status["progress"]["at"])
    made_at = [step.at for step in numbered if step.number == number]
    if not any(made - ALLOWED_S <= at <= made + RECEIVED_WITHIN_S for made in made_at):
        times = ", ".join(f"{made:.3f}" for made in made_at) or "never"
        yield _differs(f"progress.at of step {number}", f"{times}, or up to {RECEIVED_WITHIN_S:g} s later", f"{at:.3f}")


def _of_phases(fault: Fault | None, observed: Observed, paused: Sequence[Pause]) -> Iterator[str]:
    for sample in observed.samples:
        starts = fault is not None and fault.restarts_job and sample.phase in RESTARTS
        if sample.phase not in ("Running", "Recovering") and not starts:
            yield _differs("phase", "Running or Recovering", sample.phase)
        elif sample.phase == "Running" and is_open(sample.status.get("lastRecovery", {"resumedAt": ""})):
            yield _differs("phase", "Recovering while lastRecovery is open", sample.phase)
    if fault is None or fault.restarts_job or not paused:
        return
    stopped, resumed = max(observed.at, *(one.last for one in paused)), min(one.first for one in paused)
    reported_at = stopped + fault.detected_within_s + fault.reported_within_s
    for sample in observed.samples:
        if sample.phase == "Running" and sample.requested_at > reported_at and sample.received_at < resumed:
            yield _differs("phase", f"Recovering from {reported_at - stopped:g} s on", sample.phase)
        if sample.phase == "Recovering" and sample.requested_at > resumed + fault.reported_within_s:
            yield _differs("phase", f"Running {fault.reported_within_s:g} s after the first step", sample.phase)


def unix(rfc3339: str) -> float:
    return datetime.fromisoformat(rfc3339).timestamp()
