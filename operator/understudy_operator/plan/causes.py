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
from understudy_protocol.words import Fault

Entry = Mapping[str, Any]
_JOINT = "; "


def explained(entries: Sequence[Entry], before: Sequence[Entry], pods: Iterable[Pod]) -> list[Entry]:
    """The entries of status with what the pods say of themselves. before: as status has them now."""
    known = identified(before)
    says = {pod.name: why for pod in pods if (why := pod.out_of_memory or pod.disruption)}
    losses = {
        entry["cause"].get("pod"): identity
        for identity, entry in identified(entries).items()
        if entry["fault"] != Fault.PROCESS.value
    }
    told = []
    for identity, entry in identified(entries).items():
        pod = entry["cause"].get("pod")
        why = says.get(pod, "") if losses.get(pod) == identity else ""
        if why and not entry["cause"]["message"].startswith(why):
            told.append(_with_message(entry, why + _JOINT + entry["cause"]["message"]))
        elif adds_to(known.get(identity), entry):
            told.append(_with_message(entry, known[identity]["cause"]["message"]))
        else:
            told.append(entry)
    return told


def adds_to(more: Entry | None, less: Entry | None) -> bool:
    """Whether both tell of the same fault, and one of them in more words."""
    if more is None or less is None or more["cause"].get("pod") != less["cause"].get("pod"):
        return False
    return str(more["cause"].get("message", "")).endswith(f"{_JOINT}{less['cause'].get('message', '')}")


def _with_message(entry: Entry, message: str) -> Entry:
    return {**entry, "cause": {**entry["cause"], "message": message}}
