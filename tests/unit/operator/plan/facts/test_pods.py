"""What decisions find in the pods of a job, and how often they search."""

import gc
import weakref

from tests.unit.operator.given import A0, A1, S, a_pod, ended, pending, terminating
from understudy_operator.plan.facts.cluster_objects import Pod
from understudy_operator.plan.facts.pods import NO_PODS, Pods, cached_with_pods
from understudy_protocol import pod as names

WAITS = pending(a_pod("w"))


def test_pods_are_found_by_uid_name_and_node():
    beside_a0 = a_pod("b0", node=A0.node)
    pods = Pods((A0, beside_a0, S, WAITS))
    assert pods.by_uid == {"uid-a0": A0, "uid-b0": beside_a0, "uid-s": S, "uid-w": WAITS}
    assert pods.by_name == {"a0": A0, "b0": beside_a0, "s": S, "w": WAITS}
    assert pods.by_node == {"node-a0": (A0, beside_a0), "node-s": (S,), "": (WAITS,)}
    assert pods.without_node == (WAITS,)
    assert Pods((A0,)).without_node == ()


def test_pods_are_found_by_their_state_in_their_order():
    done, leaving = ended(a_pod("d")), terminating(A1)
    pods = Pods((WAITS, S, leaving, done, A0))
    assert pods.alive == (WAITS, S, A0)
    assert pods.unended == (WAITS, S, leaving, A0)
    assert pods.deleting == (leaving,)
    assert pods.spares == (WAITS, S, done)
    assert pods.number_started == 3


def test_pods_are_found_by_the_names_of_their_annotations_and_labels():
    drained = a_pod("d", annotations={names.ANNOTATION_DRAIN: ""}, labels={names.LABEL_COORDINATOR: "true"})
    pods = Pods((A0, drained))
    assert pods.with_annotation(names.ANNOTATION_DRAIN) == (drained,)
    assert pods.with_label(names.LABEL_COORDINATOR) == (drained,)
    assert pods.with_annotation(names.ANNOTATION_NODE_VERDICT) == ()


def test_pods_are_selected_by_uid_in_their_order():
    pods = Pods((A0, A1, S))
    assert pods.with_uids({"uid-s", "uid-a0", "uid-gone"}) == (A0, S)
    assert pods.without_uids({"uid-a0", "uid-gone"}) == (A1, S)
    assert pods.with_uids(()) == ()


def test_a_search_that_finds_all_pods_returns_the_same_object():
    """What later decisions find in it is kept, too."""
    pods = Pods((A0, A1, S))
    assert pods.alive is pods
    assert pods.without_uids({"uid-gone"}) is pods
    assert pods.with_uids(pods.by_uid) is pods


def test_a_result_is_kept_with_the_pods_and_for_its_arguments():
    searched: list[tuple[Pods, str]] = []

    @cached_with_pods
    def on_node(pods: Pods, node: str) -> Pods:
        searched.append((pods, node))
        return pods.where(lambda pod: pod.node == node)

    first, same = Pods((A0, A1)), Pods((A0, A1))
    assert [on_node(first, "node-a0"), on_node(first, "node-a0"), on_node(first, "node-a1")] == [(A0,), (A0,), (A1,)]
    assert on_node(same, "node-a0") == (A0,)
    assert searched == [(first, "node-a0"), (first, "node-a1"), (same, "node-a0")]


def test_pods_that_are_replaced_are_freed_at_once():
    """A job of thousands of pods has new ones at each change, and the garbage collector rarely runs."""

    class Result:
        pass

    pods, result = Pods((A0, A1, S)), Result()
    assert pods.alive is pods
    assert pods.unended.without_node == ()
    pods.found["a result"], kept = result, weakref.ref(result)
    gc.disable()
    try:
        del pods, result
        assert kept() is None
    finally:
        gc.enable()


def test_no_result_is_kept_with_the_empty_pods_that_all_jobs_share():
    @cached_with_pods
    def mounting(pods: Pods, secret: str) -> tuple[Pod, ...]:
        return tuple(pod for pod in pods if secret in pod.secrets)

    for job in range(3):
        assert mounting(NO_PODS, f"secret-of-{job}") == ()
    assert NO_PODS.found == {}
