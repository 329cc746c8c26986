"""A pod that cannot start is recreated, but not as fast as it fails."""

from dataclasses import replace

import pytest

from tests.unit.operator.given import (
    A0,
    A1,
    IMAGE,
    NOW,
    WAITING,
    S,
    a_job,
    a_pod,
    a_snapshot,
    condition,
    ended,
    in_round,
    lost,
    member,
    observed,
    status_of,
)
from understudy_operator.plan.facts.cluster_objects import Pod
from understudy_operator.plan.facts.observed import Observed
from understudy_operator.plan.intents import CreatePod
from understudy_operator.plan.world.members import plan_members
from understudy_protocol import pod as names

ALL = 5
WINDOW_S = 600.0

REASON = "UnexpectedAdmissionError: no healthy devices present"


def refused(name: str, index: int | None = None, before: int = 0, ago: float = 0.0) -> Pod:
    """A pod that the kubelet rejected, after `before` failed starts."""
    annotations = {names.ANNOTATION_FAILED_STARTS: str(before)} if before else {}
    pod = a_pod(name, index, created_at=NOW - ago, annotations=annotations)
    return replace(ended(pod), sidecar_ran=False, could_start=False, failure=REASON)


def created(given: Observed) -> dict[str, str]:
    """By index, or "spare": the number of failed starts in the new pod's annotation."""
    manifests = [x.manifest for x in plan_members(given, IMAGE, NOW) if isinstance(x, CreatePod)]
    result = [manifest["metadata"]["annotations"] for manifest in manifests]
    return {x.get(names.ANNOTATION_GROUP_RANK, "spare"): x.get(names.ANNOTATION_FAILED_STARTS, "") for x in result}


@pytest.mark.parametrize(("before", "pause_s"), [(0, 1), (1, 2), (2, 4), (5, 32), (6, 60), (5000, 60)])
def test_the_pause_doubles_with_each_failed_start(before: int, pause_s: float):
    def after(ago: float) -> dict[str, str]:
        return created(observed(a_job(), (A0, refused("a1", 1, before, ago), S)))

    assert after(pause_s - 0.1) == {}
    assert after(pause_s) == {"1": str(before + 1)}


def test_a_failed_start_does_not_delay_other_pods():
    assert created(observed(a_job(parallelism=3), (refused("a1", 1), S))) == {"0": "1", "2": "1"}


def test_no_pod_is_created_if_many_fail_to_start_at_once():
    failed = [refused(f"a{i}", i) for i in range(ALL)]
    assert created(observed(a_job(parallelism=8), (*failed, S))) == {}


def test_a_rejected_spare_delays_one_spare():
    swapped = a_snapshot([member(A0, 0), member(S, 1)], number=1, lost=[lost(A1)])
    given = observed(a_job(status=in_round(1), spares=2), (A0, ended(A1), S, refused("n")), swapped)
    spares = [x for x in plan_members(given, IMAGE, NOW) if isinstance(x, CreatePod)]
    assert len(spares) == 1


def test_before_the_first_round_each_failed_pod_counts_as_a_failed_start_and_later_only_one_that_could_not_start():
    failed = replace(ended(a_pod("a1", 1, created_at=NOW)), failure="container trainer ended with exit code 127")
    assert created(observed(a_job(), (A0, failed, S))) == {}
    given = observed(a_job(status=in_round(1)), (A0, failed, S), a_snapshot([member(A0, 0), member(S, 1)], number=1))
    assert created(given) == {"spare": ""}


def test_failed_starts_of_long_ago_are_forgotten():
    assert created(observed(a_job(), (A0, refused("a1", 1, 6, WINDOW_S), S))) == {"1": ""}


def test_a_failed_start_is_reported_until_all_pods_have_started():
    def message(*pods: Pod) -> str:
        snapshot = a_snapshot([member(A0, None)], number=-1, waiting_for=WAITING)
        return str(condition(status_of(observed(a_job(), pods, snapshot)), "Ready")["message"])

    assert message(A0, refused("a1", 1, 2), S) == (
        f"waiting for {WAITING}; pod a1 failed before it could take part: {REASON} (the operator "
        "creates the next one 4 s after it)"
    )
    assert message(A0, refused("a1", 1, 2), A1, S) == f"waiting for {WAITING}"
