"""The pods of one job or one pool, and what decisions find in them.

A job may have thousands of pods, and almost all of them need nothing. Reconciles share one `Pods` until one of the pods
changes. So a search that depends only on the pods is done once, and not in each reconcile of a job that just trains.
"""

from collections.abc import Callable, Collection, Mapping
from functools import cached_property, wraps
from typing import Any, TypeVar, TypeVarTuple, cast

from understudy_operator.plan.facts.cluster_objects import Pod

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
#: A kept result: the pods themselves. A reference to them would keep them until the next garbage collection.
_THEMSELVES = object()


def cached_with_pods(function: Callable[["Pods", *Ts], T]) -> Callable[["Pods", *Ts], T]:
    """A function whose results depend only on its arguments, and are kept with the pods. They must not be changed, and
    may be the pods, but not contain them.
    """

    @wraps(function)
    def cached(pods: "Pods", *at: *Ts) -> T:
        if not pods:
            return function(pods, *at)  # the same object belongs to many jobs
        key = (function, *at)
        if key not in pods.found:
            result = function(pods, *at)
            pods.found[key] = _THEMSELVES if result is pods else result
        kept: Any = pods.found[key]
        answer: T = cast("Any", pods) if kept is _THEMSELVES else kept
        return answer

    return cached


class Pods(tuple[Pod, ...]):
    """Immutable, in the order in which they are given. Several threads may read it: the same facts are found again."""

    @cached_property
    def found(self) -> dict[Any, Any]:
        """Results by the function that has found them, and its arguments (cached_with_pods)."""
        return {}

    @cached_property
    def by_uid(self) -> Mapping[str, Pod]:
        return {pod.uid: pod for pod in self}

    @cached_property
    def by_name(self) -> Mapping[str, Pod]:
        return {pod.name: pod for pod in self}

    @cached_property
    def by_node(self) -> Mapping[str, tuple[Pod, ...]]:
        """By the name of their node; those without a node are under ""."""
        found: dict[str, list[Pod]] = {}
        for pod in self:
            found.setdefault(pod.node, []).append(pod)
        return {node: tuple(pods) for node, pods in found.items()}

    @cached_property
    def number_started(self) -> int:
        """The number of those whose sidecar runs."""
        return sum(pod.sidecar_started for pod in self)

    @property
    @cached_with_pods
    def alive(self) -> "Pods":
        return self.where(lambda pod: pod.alive)

    @property
    @cached_with_pods
    def unended(self) -> "Pods":
        return self.where(lambda pod: not pod.ended)

    @property
    @cached_with_pods
    def deleting(self) -> "Pods":
        return self.where(lambda pod: pod.deleting_since is not None)

    @property
    @cached_with_pods
    def without_node(self) -> "Pods":
        return self.where(lambda pod: not pod.node)

    @property
    @cached_with_pods
    def spares(self) -> "Pods":
        """Those that were created as spares."""
        return self.where(lambda pod: pod.spare)

    @cached_with_pods
    def with_annotation(self, name: str) -> "Pods":
        return self.where(lambda pod: name in pod.annotations)

    @cached_with_pods
    def with_label(self, name: str) -> "Pods":
        return self.where(lambda pod: name in pod.labels)

    def with_uids(self, uids: Collection[str]) -> "Pods":
        return self.where(lambda pod: pod.uid in uids) if uids else NO_PODS

    def without_uids(self, uids: Collection[str]) -> "Pods":
        return self.where(lambda pod: pod.uid not in uids) if uids else self

    def where(self, holds: Callable[[Pod], bool]) -> "Pods":
        """Itself if it holds for all of them."""
        found = Pods(pod for pod in self if holds(pod))
        return self if len(found) == len(self) else found


NO_PODS = Pods()
