"""What a pod's own status knows about its loss, and the coordinator cannot: that its container ran out of memory, or
that somebody took it away (preemption, a drain, Kueue), and why.

Rules: a pod ends once, so what its container says belongs to the newest of its losses. The kubelet tells it a moment
after the coordinator has told the loss, and takes it along with the pod: once told it stays. A worker that ran out of
memory alone is told by its launcher, in its own message.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from understudy_operator.plan.observed import Pod
from understudy_operator.plan.recoveries import identified
from understudy_protocol.enums import Fault

Entry = Mapping[str, Any]
_JOINT = "; "


def explain_causes(entries: Sequence[Entry], before: Sequence[Entry], pods: Iterable[Pod]) -> list[Entry]:
    """The entries of status with what the pods say of themselves. before: as status has them now."""
    recorded = identified(before)
    reasons = {pod.name: reason for pod in pods if (reason := pod.out_of_memory or pod.disruption)}
    losses = {
        entry["cause"].get("pod"): identity
        for identity, entry in identified(entries).items()
        if entry["fault"] != Fault.PROCESS.value
    }
    explained = []
    for identity, entry in identified(entries).items():
        pod = entry["cause"].get("pod")
        reason = reasons.get(pod, "") if losses.get(pod) == identity else ""
        if reason and not entry["cause"]["message"].startswith(reason):
            explained.append(_with_message(entry, reason + _JOINT + entry["cause"]["message"]))
        elif adds_to(recorded.get(identity), entry):
            explained.append(_with_message(entry, recorded[identity]["cause"]["message"]))
        else:
            explained.append(entry)
    return explained


def adds_to(more: Entry | None, less: Entry | None) -> bool:
    """Whether both tell of the same fault, and one of them in more words."""
    if more is None or less is None or more["cause"].get("pod") != less["cause"].get("pod"):
        return False
    return str(more["cause"].get("message", "")).endswith(f"{_JOINT}{less['cause'].get('message', '')}")


def _with_message(entry: Entry, message: str) -> Entry:
    return {**entry, "cause": {**entry["cause"], "message": message}}
