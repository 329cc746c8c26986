"""The pods of a job that the operator remembers once their objects are gone, and for how long."""

from tests.unit.operator.given import A0, A1, AN_HOUR_AGO, NOW, S, a_pod, pending
from understudy_operator.observe.gone_pods import GonePods
from understudy_operator.plan.facts.cluster_objects import Stay


def test_a_pod_that_is_gone_is_remembered_with_its_node_for_ten_minutes():
    gone = GonePods()
    assert gone.update((A0, A1, S), NOW) == ()
    assert gone.update((A0, S), NOW + 1) == (Stay("a1", "node-a1", AN_HOUR_AGO, NOW + 1),)
    assert gone.update((A0, S), NOW + 600) != ()
    assert gone.update((A0, S), NOW + 602) == ()


def test_a_pod_without_a_node_is_not_remembered():
    gone = GonePods()
    gone.update((A0, pending(a_pod("p"))), NOW)
    assert gone.update((A0,), NOW + 1) == ()


def test_pods_of_a_previous_job_are_not_remembered():
    gone = GonePods()
    gone.update((A0,), NOW)
    gone.update((), NOW)
    gone.clear()
    assert gone.update((S,), NOW) == ()
