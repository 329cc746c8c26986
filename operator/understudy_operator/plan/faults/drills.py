"""Drills: a user asks the operator to break a job on purpose (spec.drills), by an annotation of the TrainingJob, or of
a pod of an injected job. Pure.

The value of the annotation understudy.dev/drill is "FAULT TIME", such as "Process 2026-11-26T04:30:00Z".

Rules:
- Each value is decided once: status.drill records it, with the pods to break, or why nothing is broken. As for an
  appointment, status is written first. So a drill is never repeated, also if the operator is killed.
- A drill begins within ACT_S after its time, or not at all: the operator may have been away, or the annotation was
  copied with a manifest.
- The job has to train undisturbed. If a worker is to be broken, the budget needs a restart, and a hang needs hang
  detection: otherwise the drill could end the job, or would never be noticed.
- Pods are deleted without a grace period, which needs no rights of the user on nodes. For a worker the coordinator gets
  an order (understudy_sidecar/membership/drills.py).
- The recovery of a deleted pod gets the reason "a drill" here, because the coordinator does not know of the deletion.
  A loss of that pod at another time keeps its reason.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from understudy_operator.plan.facts.cluster_objects import Pod
from understudy_operator.plan.facts.observed import Observed
from understudy_operator.plan.facts.recoveries import AT_WORK, identified
from understudy_operator.plan.facts.status import DrillStatus, RecoveryStatus
from understudy_operator.plan.intents import DeletePod
from understudy_operator.plan.times.reconcile_clock import is_due
from understudy_operator.plan.times.rfc3339 import micro_time, parse_time
from understudy_protocol.enums import Drill, Fault
from understudy_protocol.observer import DrillOrder
from understudy_protocol.pod import ANNOTATION_DRILL
from understudy_protocol.recovery import DRILL_REASON

ACT_S = 60.0
#: How far the clock of the user may be ahead of the operator's.
AHEAD_S = 60.0
#: The end of a worker or pod is reported within this time; a hang takes the step timeout longer.
DETECTED_S = 60.0
#: How far the clock of a coordinator may be behind the operator's.
CLOCKS_DIFFER_S = 10.0
REQUEST_CHARACTERS = 64
_REQUEST = re.compile(r"([A-Za-z]{1,16}) (\S{1,40})")
_OF_WORKERS = (Drill.PROCESS, Drill.HANG)


@dataclass(frozen=True)
class _Request:
    drill: Drill
    at: float


def plan_drill(observed: Observed, now: float) -> DrillStatus | None:
    """The newest drill, as status should record it; None if there was none."""
    text, known = _requested(observed, now)[:REQUEST_CHARACTERS], observed.job.status.drill
    if not text or (known is not None and known.request == text):
        return known
    found = DrillStatus(request=text, at=micro_time(now))
    request = _read(text)
    if request is None:
        kinds = ", ".join(drill.value for drill in Drill)
        return replace(found, refusal=f"annotation understudy.dev/drill is not FAULT TIME; FAULT is one of {kinds}")
    found = replace(found, fault=request.drill)
    refusal = _refusal(observed, request, now)
    pods = () if refusal else _pods_to_break(observed, request.drill)
    if not refusal and not pods:
        refusal = "the pod to break is not known at the moment: try again"
    if refusal:
        return replace(found, refusal=refusal)
    return replace(found, pods=tuple(pod.name for pod in pods), node=pods[0].node, round=_round(observed))


def drill_deletions(observed: Observed, drill: DrillStatus | None, now: float) -> Iterator[DeletePod]:
    """drill: as status records it after this reconcile."""
    if drill is None or drill.fault is None or drill.fault in _OF_WORKERS or not _may_act(drill, now):
        return
    for pod in _named(observed, drill):
        if _is_older(pod, drill) and not pod.ended and pod.deleting_since is None:
            yield DeletePod(pod.name, pod.uid, 0, f"{DRILL_REASON} ({drill.fault.value})", pod.version)


def _named(observed: Observed, drill: DrillStatus) -> Iterator[Pod]:
    """The pods to break that exist."""
    return filter(None, map(observed.pods.by_name.get, drill.pods))


def _is_older(pod: Pod, drill: DrillStatus) -> bool:
    """A PyTorchJob recreates a deleted pod under the same name. Creation times are whole seconds."""
    return drill.at is not None and pod.created_at <= parse_time(drill.at) - 1.0


def drill_order(observed: Observed, drill: DrillStatus | None, now: float) -> DrillOrder | None:
    """For the coordinator; None if there is nothing to break."""
    if drill is None or drill.fault is None or drill.fault not in _OF_WORKERS or not _may_act(drill, now):
        return None
    pod = next(_named(observed, drill), None)
    if pod is None or observed.snapshot is None or drill.round != _round(observed):
        return None
    within_s = DETECTED_S + (observed.job.world.step_timeout_s if drill.fault is Drill.HANG else 0.0)
    return DrillOrder(observed.snapshot.token, pod.uid, drill.fault, within_s)


def mark_drills(
    entries: Sequence[RecoveryStatus], before: Sequence[RecoveryStatus], drill: DrillStatus | None
) -> list[RecoveryStatus]:
    """The entries of status, with the reason of those that a drill has caused. before: those that status has now."""
    recorded = identified(before)
    marked = []
    for identity, entry in identified(entries).items():
        known = recorded.get(identity)
        was_marked = known is not None and is_drill(known) and known.cause.pod == entry.cause.pod
        was_recorded = known is not None and (known.fault, known.cause.pod) == (entry.fault, entry.cause.pod)
        if (was_marked or (not was_recorded and _has_caused(drill, entry))) and not is_drill(entry):
            entry = replace(entry, reason="; ".join(filter(None, (DRILL_REASON, entry.reason))))
        marked.append(entry)
    return marked


def _has_caused(drill: DrillStatus | None, entry: RecoveryStatus) -> bool:
    """Whether the drill has deleted the pod, at about the time at which the coordinator detected the loss."""
    if drill is None or drill.at is None or drill.fault in _OF_WORKERS or entry.cause.pod not in drill.pods:
        return False
    after_s = parse_time(entry.detected_at) - parse_time(drill.at)
    return entry.fault in (Fault.POD, Fault.NODE) and -CLOCKS_DIFFER_S <= after_s < ACT_S + DETECTED_S


def is_drill(entry: RecoveryStatus) -> bool:
    return entry.reason.startswith(DRILL_REASON)


def _requested(observed: Observed, now: float) -> str:
    """Users may not change an InjectedJob. So each of its pods may have a request, and keeps it.

    The newest request of this minute counts, unless status has a newer one. A malformed request counts only if status
    has none and there is no other: otherwise it would hide all others for as long as its pod exists.
    """
    job, known = observed.job, observed.job.status.drill
    if job.injected is None:
        return job.drill_request
    annotated = observed.pods.with_annotation(ANNOTATION_DRILL)
    texts = [text[:REQUEST_CHARACTERS] for pod in annotated if (text := pod.annotations[ANNOTATION_DRILL])]
    read = [(request.at, text) for text in texts if (request := _read(text)) and _is_timely(request, now)]
    if known is None:
        return max(read)[1] if read else max(texts, default="")
    handled = _read(known.request)
    if handled is not None and known.at is not None and _is_timely(handled, parse_time(known.at)):
        read = [(at, text) for at, text in read if at > handled.at]
    return max(read)[1] if read else known.request


def _read(text: str) -> _Request | None:
    match = _REQUEST.fullmatch(text)
    drill = None if match is None else next((x for x in Drill if x.value.lower() == match[1].lower()), None)
    if match is None or drill is None:
        return None
    try:
        return _Request(drill, parse_time(match[2]))
    except ValueError:
        return None


def _refusal(observed: Observed, request: _Request, now: float) -> str:
    """Why nothing is broken, and the fix."""
    job = observed.job
    if not job.spec.drills_allowed and job.injected is not None:
        annotation = "annotation understudy.dev/drills of the pod template is not Allowed"
        return f"{annotation}: set it, and create the {job.injected.target_kind} again"
    if not job.spec.drills_allowed:
        return "spec.drills is Forbidden: set it to Allowed"
    if job.spec.world is None:
        return "the job has no launcher, so nothing recovers it from a fault"
    if not _is_timely(request, now):
        return f"the request is of another time than now: a drill begins within {ACT_S:g} s or not at all"
    if job.terminal or observed.close is not None:
        return "the job has ended"
    snapshot = observed.snapshot
    if snapshot is None or not observed.coordination.coordinator_uid or observed.lacks_majority:
        return "the operator has no connection to a coordinator with a majority: try again when the job is Running"
    holders = [member for member in snapshot.members if member.group_rank is not None]
    trains = bool(holders) and all(member.workers in AT_WORK for member in holders) and not snapshot.waiting_for
    if not trains or any(entry.is_open for entry in job.status.recoveries) or job.spec.suspend:
        return "the job does not train undisturbed: try again when its phase is Running"
    if request.drill not in _OF_WORKERS:
        return ""
    if not snapshot.restarts_left:
        return "the budget of restarts is spent (recovery.inPlace): try again later, or raise maxRestarts"
    if request.drill is Drill.HANG and not job.world.step_timeout_s:
        return "nothing would detect the hang: set faults.hang.stepTimeout"
    if request.drill is Drill.HANG and snapshot.progress is None:
        return "nothing would detect the hang: the script reports no steps. Call understudy_torch.step() in each step"
    return ""


def _is_timely(request: _Request, now: float) -> bool:
    return now - ACT_S < request.at <= now + AHEAD_S


def _pods_to_break(observed: Observed, drill: Drill) -> tuple[Pod, ...]:
    """The pod with the highest group rank, preferably not the coordinator's; for a node all pods of the job there."""
    snapshot, pods = observed.snapshot, observed.live.by_uid
    if snapshot is None:
        return ()
    if drill is Drill.COORDINATOR:
        return tuple(pod for uid, pod in pods.items() if uid == snapshot.pod_uid)
    holders = [
        (x.pod_uid == snapshot.pod_uid, -x.group_rank, x.pod_uid) for x in snapshot.members if x.group_rank is not None
    ]
    target = next((pods[uid] for _, _, uid in sorted(holders) if uid in pods), None)
    if target is None:
        return ()
    return tuple(pod for pod in pods.values() if pod.node == target.node) if drill is Drill.NODE else (target,)


def _round(observed: Observed) -> int:
    return -1 if observed.snapshot is None else observed.snapshot.token.round


def _may_act(drill: DrillStatus, now: float) -> bool:
    return not drill.refusal and drill.at is not None and not is_due(parse_time(drill.at) + ACT_S, now)
