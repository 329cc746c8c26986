"""Pods that failed before they could take part, and when the operator creates their replacements.

A node with broken devices rejects each pod that the scheduler assigns to it, and from an image without a shell no pod
can start. Without a pause, replacements would follow each other at once until a person intervenes.

Rules: a pod has failed to start if its containers could not, or if it failed before the job's first round. Each new pod
has the number of failures in a row before it; the next one follows after 1, 2, 4 … s, at most LONGEST_S. The operator
delays as many pods as have failed, or all if that may be the fault of the template. It ignores pods that were created
more than WINDOW_S ago, so after a pod has run for a while the count starts from 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from understudy_operator.plan.facts.cluster_objects import Pod
from understudy_operator.plan.facts.malformed import number_in
from understudy_operator.plan.facts.observed import Observed
from understudy_operator.plan.facts.pods import Pods, cached_with_pods
from understudy_operator.plan.times.reconcile_clock import is_due
from understudy_protocol import pod as names
from understudy_protocol.pauses import growing_pause_s

FIRST_S = 1.0
LONGEST_S = 60.0
WINDOW_S = 600.0
#: If so many have failed at once, the template is at fault and not the nodes. Not all failed pods are kept.
ALL = 5


@dataclass(frozen=True)
class StartBackoff:
    """The pods that are not recreated yet."""

    indexes: frozenset[int] = frozenset()  # of active pods, before the first round
    spares: int = 0
    delays_all: bool = False


def plan_start_backoff(observed: Observed, now: float) -> StartBackoff:
    newest = _newest(observed, now)
    if not newest or is_due(max(pod.created_at for pod in newest) + start_pause_s(_in_a_row(newest[0])), now):
        return StartBackoff()
    if not observed.before_first_round:
        return StartBackoff(frozenset(), len(newest), len(newest) >= ALL)
    indexes = frozenset(pod.index for pod in newest if pod.index is not None)
    return StartBackoff(indexes, sum(pod.spare for pod in newest), len(newest) >= ALL)


def failed_in_a_row(observed: Observed, now: float) -> int:
    """For the annotation of the pods that are created now."""
    newest = _newest(observed, now)
    return _in_a_row(newest[0]) if newest else 0


def start_pause_s(in_a_row: int) -> float:
    return growing_pause_s(FIRST_S, LONGEST_S, in_a_row)


def describe_failed_starts(observed: Observed, now: float) -> str:
    """A message; "" if no pod has failed to start, or if all desired pods have started since."""
    newest, world = _newest(observed, now), observed.job.world
    if not newest or observed.live.number_started >= world.actives + world.spares:
        return ""
    pod = newest[-1]
    message = f"pod {pod.name} failed before it could take part: {pod.failure or 'its status gives no reason'}"
    if observed.job.injected is not None:
        return message  # the pods' controller creates the next one
    return f"{message} (the operator creates the next one {start_pause_s(_in_a_row(pod)):g} s after it)"


def _newest(observed: Observed, now: float) -> Sequence[Pod]:
    """The pods with the highest count of failures, in the order of their creation."""
    early = observed.before_first_round
    failed = [
        pod
        for pod in _failed(observed.pods)
        if (early or not pod.could_start) and not is_due(pod.created_at + WINDOW_S, now)
    ]
    most = max((_in_a_row(pod) for pod in failed), default=0)
    return sorted((pod for pod in failed if _in_a_row(pod) == most), key=lambda pod: (pod.created_at, pod.name))


@cached_with_pods
def _failed(pods: Pods) -> Pods:
    return pods.where(lambda pod: pod.phase == "Failed")


def _in_a_row(pod: Pod) -> int:
    return (number_in(pod.annotations.get(names.ANNOTATION_FAILED_STARTS)) or 0) + 1
