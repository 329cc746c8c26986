"""Which pod coordinates, and in which epoch.

Rules: the first coordinator is a spare if there is one (the member least likely to fail with the training). Promoted,
it stays coordinator. Another is appointed, in a higher epoch that is written to status first, once its pod has ended
or is being deleted, its node is not ready, the operator could not reach it for UNREACHABLE_S, or its sidecar was
restarted and has lost the office. Members follow the newest epoch only, and a round needs every rank, so two
coordinators that both believe to be in office cannot both train.

An epoch is the Unix time of its appointment: a job that is deleted and created anew on the same storage has newer
rounds than all that its predecessor wrote there, so UNDERSTUDY_ROUND fences across jobs of a name, too.
"""

from dataclasses import dataclass

from understudy_operator.plan.intents import Follow, PatchPod, Unfollow
from understudy_operator.plan.observed import Observed, Pod
from understudy_protocol import pod as names

UNREACHABLE_S = 8.0
#: How long after its creation a job waits for a spare to be up before an active coordinates.
SPARE_PATIENCE_S = 10.0


@dataclass(frozen=True)
class Office:
    """Who coordinates now, as it goes into status. reason: why somebody new was appointed, "" if nobody was."""

    epoch: int
    pod: Pod | None
    reason: str


def plan_office(observed: Observed, now: float) -> Office:
    """The office after this pass."""
    current = observed.job.status.get("coordinator", {})
    epoch = int(current.get("epoch", 0))
    holder = next((pod for pod in observed.pods if pod.uid == current.get("podUID")), None)
    if observed.close is not None or observed.job.deleting:
        return Office(epoch, holder, "")
    unfit = _unfit(observed, holder, now) if epoch else "the job starts"
    if not unfit:
        return Office(epoch, holder, "")
    successor = _choose(observed, holder, now)
    if successor is None:
        return Office(epoch, holder, "")
    return Office(max(epoch + 1, int(now)), successor, unfit)


def plan_link(observed: Observed, office: Office) -> Follow | Unfollow | None:
    """The operator's own link to the coordinator."""
    if observed.close is not None or observed.job.deleting:
        return Unfollow()
    if office.pod is None or not office.pod.ip:
        return None
    counts = observed.job.status.get("recoveriesByStrategy", {})
    by_strategy = {name[0].upper() + name[1:]: int(count) for name, count in counts.items()}
    return Follow(office.pod.uid, office.pod.ip, office.epoch, observed.job.round, by_strategy)


def plan_label(observed: Observed, office: Office) -> tuple[PatchPod, ...]:
    """The Service selects by this label, so that members find the coordinator."""
    patches = []
    for pod in observed.pods:
        is_holder = office.pod is not None and pod.uid == office.pod.uid
        if is_holder and pod.labels.get(names.LABEL_COORDINATOR) != "true":
            patches.append(PatchPod(pod.name, {names.LABEL_COORDINATOR: "true"}))
        if not is_holder and names.LABEL_COORDINATOR in pod.labels:
            patches.append(PatchPod(pod.name, {names.LABEL_COORDINATOR: None}))
    return tuple(patches)


def _unfit(observed: Observed, holder: Pod | None, now: float) -> str:
    """Why the holder of the office cannot go on; "" if it can."""
    if holder is None:
        return "the coordinator's pod is gone"
    if holder.ended:
        return f"the coordinator's pod {holder.name} has ended"
    if holder.deleting_since is not None:
        return f"the coordinator's pod {holder.name} is being deleted"
    if not observed.node_ready(holder.node):
        return f"node {holder.node} of the coordinator's pod {holder.name} is not ready"
    link = observed.coordination
    if link.followed_uid != holder.uid:
        return ""
    if link.refused:
        return f"{holder.name} does not coordinate: {link.refused}"
    if link.unreachable_since is not None and now - link.unreachable_since >= UNREACHABLE_S:
        return f"the coordinator's pod {holder.name} could not be reached for {UNREACHABLE_S:g} s"
    return ""


def _choose(observed: Observed, former: Pod | None, now: float) -> Pod | None:
    spec = observed.job.spec
    # One that has just been refused may take office again in a new epoch; one that is out of reach may not.
    excluded = former.uid if former is not None and not observed.coordination.refused else None
    ready = [
        pod for pod in observed.live() if pod.sidecar_started and observed.node_ready(pod.node) and pod.uid != excluded
    ]
    spares = sorted((pod for pod in ready if _waits(pod)), key=lambda pod: pod.created_at)
    if spares:
        return spares[0]
    first = not observed.job.status.get("coordinator")
    if first and spec.spares and now - observed.job.created_at < SPARE_PATIENCE_S:
        return None
    if len(ready) >= spec.actives or not first:  # the first waits for everybody
        return min(ready, key=lambda pod: (pod.index is None, pod.index or 0, pod.name), default=None)
    return None


def _waits(pod: Pod) -> bool:
    return pod.labels.get(names.LABEL_ROLE) == names.ROLE_SPARE
