"""`drill`: whether a job can be broken on purpose, and the cost of such a fault. Pure.

The operator decides about a request, breaks the job, and records that in status.drill
(understudy_operator/plan/faults/drills.py).
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from understudy_cli.command_errors import NotPossible
from understudy_cli.facts import INJECTED_JOB, DrillRecord, Job, Pod, Recovery
from understudy_cli.views.phrases import NONE, precise
from understudy_protocol import enums
from understudy_protocol.recovery import DRILL_REASON

#: What the user confirms.
BREAKS = {
    enums.Drill.PROCESS: "kills one worker",
    enums.Drill.POD: "deletes one pod without a grace period",
    enums.Drill.COORDINATOR: "deletes the pod of the coordinator without a grace period",
    enums.Drill.HANG: "stops one worker, until hang detection finds it",
    enums.Drill.NODE: "deletes all pods of the job on one node without a grace period (the node itself stays as it is)",
}
#: In place of a strategy, if no pod with ranks was broken.
ELECTION = "Election"


@dataclass(frozen=True)
class DrillRow:
    """One broken pod or worker. The durations begin when the operator has decided."""

    broken: str
    detected_after: str
    first_step_after: str
    steps_lost: str
    strategy: str


@dataclass(frozen=True)
class DrillResult:
    fault: str
    rows: tuple[DrillRow, ...]
    remark: str


def check_drill(job: Job) -> None:
    """Raises NotPossible with the fix. The operator checks these and further conditions."""
    if job.has_ended:
        raise NotPossible(f"job {job.name} has ended")
    if not job.allows_drills and job.kind == INJECTED_JOB:
        raise NotPossible(
            f"job {job.name} does not allow drills. If it may be broken on purpose: set the annotation "
            "understudy.dev/drills: Allowed in its pod template, and create it again"
        )
    if not job.allows_drills:
        raise NotPossible(
            f"job {job.name} does not allow drills. If it may be broken on purpose: kubectl patch tj {job.name} "
            f'-n {job.namespace} --type merge -p \'{{"spec":{{"drills":"Allowed"}}}}\''
        )


def pod_to_annotate(job: Job, pods: Iterable[Pod]) -> Pod:
    """The pod with the lowest rank takes the request for an injected job; any other could. Raises NotPossible."""
    ranked = [pod for pod in pods if pod.group_rank is not None]
    if not ranked:
        raise NotPossible(f"job {job.name} does not train now: no pod has ranks")
    return min(ranked, key=lambda pod: (pod.group_rank, pod.name))


def result(
    job: Job, drill: DrillRecord, before: Sequence[Pod], recoveries: Iterable[Recovery], known: Collection[float | None]
) -> DrillResult | None:
    """None until all recoveries have ended. before: the pods at the request. known: when earlier faults were found."""
    ranks = {pod.name for pod in before if pod.group_rank is not None}
    newest = [recovery for recovery in recoveries if recovery.detected_at not in known and is_drill(recovery)]
    fault = drill.request.partition(" ")[0]
    if fault in (enums.Drill.PROCESS.value, enums.Drill.HANG.value):
        expected = 1
    else:
        newest = [recovery for recovery in newest if recovery.cause.pod in drill.pods]
        expected = len(ranks.intersection(drill.pods))
    if len(newest) < expected or any(recovery.is_open for recovery in newest):
        return None
    if newest:
        return DrillResult(fault, tuple(_row(recovery, drill) for recovery in newest), "")
    coordinator = next((pod.name for pod in before if pod.is_coordinator), "")
    if coordinator in drill.pods and job.coordinator in (coordinator, ""):
        return None  # no other pod coordinates yet
    rows = tuple(DrillRow(f"pod {pod}", NONE, NONE, "0", ELECTION) for pod in drill.pods)
    return DrillResult(fault, rows, f"no pod with ranks was broken: training went on; {job.coordinator} coordinates")


def is_drill(recovery: Recovery) -> bool:
    return recovery.reason.startswith(DRILL_REASON)


def late(job: Job, drill: DrillRecord | None, limit_s: float, program: str) -> str:
    if drill is None:
        return f"the operator has not answered within {limit_s:g} s, and breaks nothing any more: {program} doctor"
    return f"the job has not recovered within {limit_s:g} s: {program} why {job.name}"


def _row(recovery: Recovery, drill: DrillRecord) -> DrillRow:
    worker = "" if recovery.cause.rank is None else f"rank {recovery.cause.rank}, "
    node = f" on {recovery.cause.node}" if recovery.cause.node else ""
    return DrillRow(
        broken=f"{worker}pod {recovery.cause.pod}{node}",
        detected_after=_after(recovery.detected_at, drill),
        first_step_after=_after(recovery.resumed_at, drill),
        steps_lost=NONE if recovery.lost_steps is None else str(recovery.lost_steps),
        strategy=recovery.strategy or NONE,
    )


def _after(at: float | None, drill: DrillRecord) -> str:
    return NONE if at is None or drill.at is None else precise(max(0.0, at - drill.at))
