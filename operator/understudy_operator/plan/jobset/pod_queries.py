"""Pods of child Jobs: when the operator lists them, and how the job reports them.

The operator does not watch these pods: they belong to the Job controller, and there may be thousands. Instead it lists
a few while a Job waits for pods, and reports why they wait.

Rules: the operator lists Pending pods if a Job that is older than SLOW_S has pods that are not ready, and the pods on
nodes that are not ready while pods of a Job end. It repeats this after EVERY_S. While the listed pods explain the wait,
or there is none, the pause doubles each time, up to SELDOM_S. A Job that has no pods yet is no reason for a list: if
thousands of Jobs wait for the Job controller, the lists would take most of the API server's time.
A pod that is Terminating on a dead node is reported, and not removed by force: nothing fences its containers, which may
still run, and no kubelet reports their end.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from understudy_operator.plan.facts import keys
from understudy_operator.plan.facts.cluster_objects import ChildJob, Node, Pod
from understudy_operator.plan.facts.observed import Observed
from understudy_operator.plan.jobset.stuck import describe_slow_start
from understudy_operator.plan.jobset.views import is_current
from understudy_operator.plan.times.reconcile_clock import is_due

SLOW_S = 1.0
EVERY_S = 2.5
SELDOM_S = 30.0
#: Limits on the nodes of one query, and on the pods read from each answer.
NODES = 3
PODS = 20
MAX_REPORTED = 3
#: The Job controller creates all pods within so long after it has started the Job, unless a request fails.
MISSING_S = 3.0
#: The Job controller starts a new Job within so long.
NOT_STARTED_S = 30.0


@dataclass(frozen=True)
class PodQueries:
    """Field selectors of the lists to request now."""

    selectors: tuple[str, ...] = ()


def plan_pod_queries(children: Iterable[ChildJob], nodes: Mapping[str, Node], now: float) -> PodQueries:
    active = [child for child in children if not child.ended]
    waits = any(_waits_for_a_pod(child) and is_due(child.created_at + SLOW_S, now) for child in active)
    ends = any(child.deleting or child.terminating for child in active)
    down = sorted(node.name for node in nodes.values() if not node.ready)[:NODES] if ends else []
    pending = ["status.phase=Pending"] if waits else []
    return PodQueries((*pending, *(f"spec.nodeName={name}" for name in down)))


def query_pause_s(before_s: float, pods: Sequence[Pod]) -> float:
    """Seconds until the next query."""
    explained = any(pod.trouble or pod.deleting_since is not None for pod in pods)
    return min(max(2 * before_s, EVERY_S), SELDOM_S) if explained or not pods else EVERY_S


def describe_job_pods(observed: Observed, now: float) -> list[str]:
    """Messages about the pods that child Jobs wait for. None for an injected job: its Jobs' pods are members."""
    if observed.job.injected is not None:
        return []
    pods = observed.job_pods
    alive = [pod for pod in pods if pod.alive]
    lines = [f"pod {pod.name}: {pod.trouble}" for pod in alive if pod.trouble][:MAX_REPORTED]
    lines += filter(None, (describe_slow_start(pod, now) for pod in alive))
    lines += list(_on_dead_nodes(observed))[:MAX_REPORTED]
    return [*lines, *list(_missing(observed, now))[:MAX_REPORTED]]


def _waits(child: ChildJob) -> bool:
    may_start = not child.suspended and not child.deleting and not child.is_failing
    return may_start and child.ready + child.succeeded < child.desired_pods


def _waits_for_a_pod(child: ChildJob) -> bool:
    """Whether it waits, and has a pod that is not ready."""
    return _waits(child) and child.active > child.ready


def _on_dead_nodes(observed: Observed) -> Iterator[str]:
    for pod in observed.job_pods:
        if pod.deleting_since is not None and pod.node and not pod.is_done and not observed.node_ready(pod.node):
            yield (
                f"Job {pod.labels.get(keys.JOB_NAME, '')} waits for pod {pod.name}, which is Terminating on node "
                f"{pod.node} and may still run, because the node is not ready: delete the node, or give it the taint "
                "node.kubernetes.io/out-of-service"
            )


def _missing(observed: Observed, now: float) -> Iterator[str]:
    for child in observed.children:
        if child.ended or not is_current(observed, child) or not _waits(child):
            continue
        count = child.active + child.succeeded
        if count >= child.desired_pods:
            continue
        if not child.started_at and is_due(child.created_at + NOT_STARTED_S, now):
            yield (
                f"Job {child.name} was created {NOT_STARTED_S:g} s ago, but the Job controller has not started it: see "
                "the events of the Job, and check that kube-controller-manager runs"
            )
        if child.started_at and is_due(child.started_at + MISSING_S, now):
            reason = "see the events of the Job (a quota or an admission webhook may reject its pods)"
            if child.failed:
                reason = (
                    f"{child.failed} of its pods have failed, and the Job controller pauses before it creates others"
                )
            yield f"Job {child.name} has {count} of {child.desired_pods} pods: {reason}"
