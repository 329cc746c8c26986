"""Causes of a loss that a pod's own status has, and the coordinator cannot know: its container ran out of memory, or
the pod was disrupted (preemption, a drain, Kueue), with the reason.

Rules: a pod ends once, so the state of its container belongs to the newest of its losses. The kubelet reports it a
moment after the coordinator has reported the loss, and it disappears with the pod: so status keeps it. If only a worker
ran out of memory, its launcher reports that in its own message.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from understudy_operator.plan.facts.pods import Pods
from understudy_operator.plan.facts.recoveries import identified
from understudy_operator.plan.facts.status import RecoveryStatus
from understudy_protocol.enums import Fault

_JOINT = "; "


def explain_causes(
    entries: Sequence[RecoveryStatus], before: Sequence[RecoveryStatus], pods: Pods
) -> list[RecoveryStatus]:
    """The entries of status with the causes from the pods' status. before: the entries that status has now."""
    recorded = identified(before)
    losses = {
        entry.cause.pod: identity for identity, entry in identified(entries).items() if entry.fault is not Fault.PROCESS
    }
    explained = []
    for identity, entry in identified(entries).items():
        pod = pods.by_name.get(entry.cause.pod)
        is_its_loss = pod is not None and losses.get(pod.name) == identity
        reason = pod.out_of_memory or pod.disruption if pod is not None and is_its_loss else ""
        if reason and not entry.cause.message.startswith(reason):
            explained.append(_with_message(entry, reason + _JOINT + entry.cause.message))
        elif adds_to(recorded.get(identity), entry):
            explained.append(_with_message(entry, recorded[identity].cause.message))
        else:
            explained.append(entry)
    return explained


def adds_to(more: RecoveryStatus | None, less: RecoveryStatus | None) -> bool:
    """Whether both describe the same fault, and `more` has a longer cause."""
    if more is None or less is None or more.cause.pod != less.cause.pod:
        return False
    return more.cause.message.endswith(f"{_JOINT}{less.cause.message}")


def _with_message(entry: RecoveryStatus, message: str) -> RecoveryStatus:
    return replace(entry, cause=replace(entry.cause, message=message))
