"""Pods that do not end or do not start, although neither the API server nor a container reports an error.

Rules: a message reports a state that lasts too long, and stays the same while it lasts. The plan does not act on it
here: the world ignores a Terminating pod from the moment of its deletion. Only messages about waits mention it.
"""

from collections.abc import Iterable, Iterator

from understudy_operator.plan.facts.cluster_objects import Pod
from understudy_operator.plan.facts.observed import Observed
from understudy_operator.plan.facts.pods import Pods, cached_with_pods
from understudy_operator.plan.times.reconcile_clock import is_due

#: In addition to the grace period: a healthy kubelet takes a moment to report that all containers have ended.
OVERDUE_S = 30.0
#: Between a pod's node and its first container.
SLOW_START_S = 60.0
#: A finalizer may be removed in a moment.
FINALIZER_S = 5.0
MAX_REPORTED = 3


def stuck_ends(observed: Observed, now: float) -> list[str]:
    """Messages about pods that do not end."""
    pods = (*observed.pods.deleting, *observed.previous_pods.deleting)
    return list(_some(_not_ending(observed, pod, now) for pod in pods))


def stuck_starts(observed: Observed, now: float) -> list[str]:
    """Messages about pods that do not start."""
    return list(_some(describe_slow_start(pod, now) for pod in _waiting(observed.live)))


@cached_with_pods
def _waiting(pods: Pods) -> Pods:
    """Those that have a node, and no container yet."""
    return pods.where(lambda pod: pod.waiting_since > 0.0)


def describe_leftovers(observed: Observed) -> str:
    """The Jobs and pods of the previous attempt that a restart waits for, for messages."""
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
    """A message about a pod that does not start; "" if it has started, or reports itself why not."""
    waits = bool(pod.node) and pod.phase == "Pending" and bool(pod.waiting_since) and not pod.trouble
    if not waits or not is_due(pod.waiting_since + SLOW_START_S, now):
        return ""
    return (
        f"pod {pod.name} has been on node {pod.node} for more than {SLOW_START_S:g} s, and none of its containers "
        "runs: see the events of the pod (often the image is still being pulled, or a volume cannot be mounted)"
    )


def _some(messages: Iterable[str]) -> Iterator[str]:
    """The first few messages."""
    yield from list(filter(None, messages))[:MAX_REPORTED]
