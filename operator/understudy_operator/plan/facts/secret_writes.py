"""Whether to create a Secret, although the operator reads none.

Rules: this process remembers which Secrets it has created or deleted. A Secret for which the API server answered
AlreadyExists counts as created. But an exhausted quota rejects a Secret before the API server notices that it exists.
So a process that has just started concludes from pods that a Secret exists: the operator creates pods only after the
Secret that they mount; injected pods are created before their Secret, but their sidecars start only once the kubelet
has found the Secret. If a pod waits on its node for AGAIN_S before its volumes are mounted, somebody may have deleted
the Secret: the operator recreates it, at most every AGAIN_S.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from understudy_operator.plan.facts.cluster_objects import Pod
from understudy_operator.plan.facts.pods import Pods, cached_with_pods
from understudy_operator.plan.times.reconcile_clock import is_due

AGAIN_S = 30.0


@dataclass(frozen=True)
class SecretWrites:
    """This process's writes of the Secrets of one job or one pool, by their names. No name is in both."""

    created: Mapping[str, float] = field(default_factory=dict)  # time of the creation, or of AlreadyExists
    deleted: frozenset[str] = frozenset()

    def after_creation(self, name: str, now: float) -> "SecretWrites":
        return SecretWrites({**self.created, name: now}, self.deleted - {name})

    def after_deletion(self, name: str) -> "SecretWrites":
        return SecretWrites({x: at for x, at in self.created.items() if x != name}, self.deleted | {name})


NO_WRITES = SecretWrites()


def can_be_mounted(name: str, writes: SecretWrites, *pods: Pods, injected: bool = False) -> bool:
    """Whether the Secret exists, as far as this process can know. injected: another controller creates the pods."""
    if name in writes.created:
        return True
    if name in writes.deleted:
        return False
    return any(pod.sidecar_ran or (pod.alive and not injected) for some in pods for pod in _mounting(some, name))


def is_to_be_created(name: str, writes: SecretWrites, now: float, *pods: Pods, injected: bool = False) -> bool:
    """Whether the Secret does not exist, or pods have waited for it so long that somebody may have deleted it."""
    if not can_be_mounted(name, writes, *pods, injected=injected):
        return True
    if not any(_waits(pod, now) for some in pods for pod in _without_volumes(some) if name in pod.secrets):
        return False
    created = writes.created.get(name, now - AGAIN_S)
    return created > now or is_due(created + AGAIN_S, now)  # a clock that was set back delays nothing


@cached_with_pods
def _mounting(pods: Pods, name: str) -> Pods:
    return pods.where(lambda pod: name in pod.secrets)


@cached_with_pods
def _without_volumes(pods: Pods) -> Pods:
    """Those that wait on their nodes until their volumes are mounted."""
    return pods.where(lambda pod: pod.alive and pod.waiting_since > 0.0 and not pod.volumes_mounted)


def _waits(pod: Pod, now: float) -> bool:
    return is_due(pod.waiting_since + AGAIN_S, now)
