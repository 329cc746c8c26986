"""Pods that neither end nor begin: what the job is held up by, where no API answer and no container says so.

Rules: told is what lasts longer than it should, in words that stay the same for as long as it lasts. Nothing is done
about it here: a pod that is Terminating counts for nothing in the world from the moment of its deletion, whether or not
it ever ends. Only what waits for it says so.
"""

from collections.abc import Iterable, Iterator

from understudy_operator.plan.observed import Observed, Pod
from understudy_operator.plan.reconcile_clock import is_due

#: Beyond its grace period: a kubelet that is well takes a moment to tell that all containers have ended.
OVERDUE_S = 30.0
#: Between a pod's node and its first container.
SLOW_START_S = 60.0
#: A finalizer may be removed in a moment.
FINALIZER_S = 5.0
MAX_REPORTED = 3


def stuck_ends(observed: Observed, now: float) -> list[str]:
    """Which pods do not end, in words."""
    pods = (*observed.pods, *observed.previous_pods)
    return list(_some(_not_ending(observed, pod, now) for pod in pods if pod.deleting_since is not None))


def stuck_starts(observed: Observed, now: float) -> list[str]:
    """Which pods do not start, in words."""
    return list(_some(describe_slow_start(pod, now) for pod in observed.live() if pod.waiting_since))


def describe_leftovers(observed: Observed) -> str:
    """What a restart that waits for its predecessor waits for."""
    jobs = [f"Job {child.name}" for child in observed.children if child.attempt < observed.job.restarts]
    pods = [f"pod {pod.name}" for pod in observed.previous_pods if not pod.is_done]
    leftovers = [*jobs, *pods]
    more = f" and {len(leftovers) - MAX_REPORTED} more" if len(leftovers) > MAX_REPORTED else ""
    return ", ".join(leftovers[:MAX_REPORTED]) + more


def _not_ending(observed: Observed, pod: Pod, now: float) -> str:
    if pod.deleting_since is None:
        return ""
    if pod.blocking_finalizers and is_due(pod.deleting_since + FINALIZER_S, now):
        finalizers = ", ".join(pod.blocking_finalizers)
        return f"pod {pod.name} has ended, but its object stays until its finalizers are removed: {finalizers}"
    overdue = is_due(pod.deleting_since + pod.grace_s + OVERDUE_S, now)
    if overdue and not pod.is_done and pod.node and observed.node_ready(pod.node):
        return (
            f"pod {pod.name} has not ended within its grace period: node {pod.node} is Ready, but its kubelet does not "
            "end the pod; if the node is broken, delete it or give it the taint node.kubernetes.io/out-of-service"
        )
    return ""


def describe_slow_start(pod: Pod, now: float) -> str:
    """Of a pod that is to run; "" of one that does, or that says itself what is wrong."""
    waits = bool(pod.node) and pod.phase == "Pending" and bool(pod.waiting_since) and not pod.trouble
    if not waits or not is_due(pod.waiting_since + SLOW_START_S, now):
        return ""
    return (
        f"pod {pod.name} has been on node {pod.node} for more than {SLOW_START_S:g} s, and none of its containers "
        "runs: see the events of the pod (often the image is still being pulled, or a volume cannot be mounted)"
    )


def _some(messages: Iterable[str]) -> Iterator[str]:
    """The first few of them."""
    yield from list(filter(None, messages))[:MAX_REPORTED]
