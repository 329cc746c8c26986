"""Claims of warm spares: when a claim is Warm, its write, the order to the spare, and spares that cannot be adopted."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.operator.given import (
    A0,
    A1,
    ADDRESS,
    IMAGE,
    NOW,
    SUCCEEDED,
    TEMPLATE,
    a_job,
    a_snapshot,
    a_status,
    in_round,
    lost,
    member,
    observed,
    terminating,
)
from tests.unit.operator.given_pool import OLD
from tests.unit.operator.given_warm import a_warm_pool, a_warm_spare, a_warm_view, claimed_warm
from understudy_operator.plan.facts.cluster_objects import Node, Pod
from understudy_operator.plan.facts.observed import Observed
from understudy_operator.plan.facts.pods import Pods
from understudy_operator.plan.facts.pool_facts import Adoption, PoolView
from understudy_operator.plan.intents import AdoptSpare, ClaimPod, ClaimWarm, DeletePod, PatchPod, Plan
from understudy_operator.plan.pool.adopting import plan_adoptions
from understudy_operator.plan.reconcile import reconcile
from understudy_protocol import pod as names
from understudy_protocol.enums import Fault

ADOPT_WITHIN_S = 10.0
REPLACE_FOR_S = 60.0

P, Q = a_warm_spare("p"), a_warm_spare("q", created_at=NOW - 60)
W = claimed_warm()


def one_lost(view: PoolView, pods: Iterable[Pod] = (A0,), **changes: Any) -> Observed:
    """A job without spares that has lost its second pod."""
    pods = tuple(pods)
    job = a_job(status=in_round(3, "a0"), spares=0, pool="shared", **changes.pop("world", {}))
    snapshot = a_snapshot(
        [member(A0, 0)], number=3, coordinator=A0, lost=[lost(A1, Fault.NODE, NOW)], waiting_for="1 of 2 pods"
    )
    given = observed(job, pods, snapshot, pool=view)
    nodes = {pod.node: Node(pod.node, True) for pod in (*pods, *view.pods)}
    return replace(given, **{"nodes": nodes, **changes})


def plan(given: Observed, now: float = NOW) -> Plan:
    return reconcile(given, IMAGE, now)


def condition(given: Observed, now: float = NOW) -> tuple[str, str, str]:
    status = plan(given, now).status or given.job.status
    (found,) = [entry for entry in status.conditions if entry.type == "PoolAvailable"]
    return found.status, found.reason, found.message


def deletions(given: Observed, now: float = NOW) -> dict[str, str]:
    return {step.name: step.reason for step in plan(given, now).pods if isinstance(step, DeletePod)}


def annotated(given: Observed, now: float = NOW) -> list[str]:
    steps = [step for step in plan(given, now).pods if isinstance(step, PatchPod)]
    return [step.name for step in steps if names.ANNOTATION_ADOPTED_AT in step.annotations]


# The claim ------------------------------------------------------------------------------------------------------------


def test_a_spare_that_equals_the_jobs_own_becomes_a_pod_of_the_job_in_one_write() -> None:
    (claim,) = plan(one_lost(a_warm_view(P))).claims
    assert isinstance(claim, ClaimWarm)
    assert (claim.uid, claim.version, claim.job_uid, claim.owner["uid"]) == (P.uid, "11", "job-uid", "job-uid")
    assert claim.labels[names.LABEL_JOB_UID] == "job-uid"
    assert claim.labels[names.LABEL_POOL_UID] == "pool-uid"
    assert claim.labels[names.LABEL_ROLE] == names.ROLE_SPARE
    assert claim.labels[names.LABEL_POOL] is None
    assert claim.annotations[names.ANNOTATION_WARM_POOL_UID] == "pool-uid"


def test_a_spare_that_is_claimed_in_a_later_attempt_gets_that_attempts_label() -> None:
    status = in_round(3, "a0", epoch=9)
    status["coordinator"]["formerEpoch"] = 5
    given = one_lost(a_warm_view(P))
    pods = tuple(replace(pod, labels={**pod.labels, names.LABEL_ATTEMPT: "5"}, attempt=5) for pod in given.pods)
    snapshot = a_snapshot([member(A0, 0)], number=3, epoch=9, coordinator=A0, lost=[lost(A1)], waiting_for="1 of 2")
    coordination = replace(given.coordination, snapshot=snapshot)
    given = replace(given, job=replace(given.job, status=a_status(status)), pods=Pods(pods), coordination=coordination)
    (claim,) = plan(given).claims
    assert isinstance(claim, ClaimWarm)
    assert claim.labels[names.LABEL_ATTEMPT] == "5"


@pytest.mark.parametrize(
    "view",
    [
        a_warm_view(a_warm_spare("p", template=OLD)),
        a_warm_view(a_warm_spare("p", secret="another")),
        a_warm_view(a_warm_spare("p", ip="")),
    ],
    ids=["an old template", "another key", "no address"],
)
def test_a_spare_that_cannot_be_adopted_is_claimed_for_its_place(view: PoolView) -> None:
    (claim,) = plan(one_lost(view)).claims
    assert isinstance(claim, ClaimPod)


def test_a_job_with_another_spec_claims_places_and_reports_the_reason() -> None:
    # given a job with another number of workers in each pod
    given = one_lost(a_warm_view(P), world={"nproc_per_node": 4})
    (claim,) = plan(given).claims
    assert isinstance(claim, ClaimPod)

    # then its condition and its event name the field
    spare = a_warm_spare("p", finalizers=(names.FINALIZER_CLAIM,))
    spare = replace(spare, labels={**spare.labels, names.LABEL_CLAIMED_BY_UID: "job-uid"})
    later = one_lost(a_warm_view(), world={"nproc_per_node": 4}, claimed=(spare,))
    later = replace(later, nodes={**later.nodes, spare.node: Node(spare.node, True)})
    result = condition(later)
    assert result[:2] == ("True", "SpareClaimed")
    assert "Replace and not Warm, because launcher.nprocPerNode is 4, and 8 in the pool" in result[2]
    assert any(event.message == result[2] for event in plan(later).events)


def test_a_spare_of_the_newest_template_comes_first_because_it_can_be_claimed_warm() -> None:
    old = a_warm_spare("old", template=OLD, created_at=NOW - 7200)
    (claim,) = plan(one_lost(a_warm_view(old, Q))).claims
    assert claim.name == "q"


# The order to the spare -----------------------------------------------------------------------------------------------


def test_a_claimed_spare_gets_the_order_of_its_job_and_the_condition_reports_warm() -> None:
    given = one_lost(a_warm_view(), (A0, W))
    (order,) = plan(given).adopt
    assert isinstance(order, AdoptSpare)
    assert (order.pod_uid, order.address, order.pool_uid) == (W.uid, W.ip, "pool-uid")
    assert (order.shape.uid, order.coordinator, order.take_over.command) == ("job-uid", ADDRESS, ("python", "train.py"))
    assert condition(given)[1:] == (
        "SpareClaimed",
        "claimed Warm from pool shared, so these spares join the job as they are: w on node-w",
    )


def test_a_claimed_warm_spare_covers_the_lost_rank_so_no_other_pod_is_claimed_or_created() -> None:
    given = one_lost(a_warm_view(P), (A0, W))
    assert plan(given).claims == ()
    assert [step for step in plan(given).pods if not isinstance(step, PatchPod)] == []


def test_an_adopted_spare_is_annotated_and_not_called_again() -> None:
    given = one_lost(a_warm_view(), (A0, W), adoptions={W.uid: Adoption(NOW - 1, adopted=True)})
    assert annotated(given) == ["w"]
    assert plan(given).adopt == ()
    assert plan(one_lost(a_warm_view(), (A0, claimed_warm(adopted=True)))).adopt == ()


def test_a_new_leader_knows_an_adopted_spare_from_the_coordinators_report() -> None:
    # given an operator that has sent no order, and a pod that trains
    given = one_lost(a_warm_view(), (A0, W))
    snapshot = a_snapshot([member(A0, 0), member(W, 1)], number=4, coordinator=A0)
    given = replace(given, coordination=replace(given.coordination, snapshot=snapshot))

    # then it does not delete the pod, however long ago it was claimed
    assert annotated(given, NOW + 1000) == ["w"]
    assert "w" not in deletions(given, NOW + 1000)


def test_a_spare_that_this_operator_has_just_begun_to_call_is_not_deleted_yet() -> None:
    given = one_lost(a_warm_view(), (A0, claimed_warm(at=NOW - 1000)))
    assert deletions(given) == {}
    assert len(plan(given).adopt) == 1


def test_a_spare_that_cannot_be_adopted_is_deleted_and_the_next_claim_is_replace() -> None:
    # given a spare that the operator could not reach for ten seconds
    tried = {
        W.uid: Adoption(NOW - ADOPT_WITHIN_S, failure="the operator could not send the job to 10.1.0.1: TimeoutError()")
    }
    given = one_lost(a_warm_view(P), (A0, W), adoptions=tried)
    assert "the operator could not send the job to 10.1.0.1" in deletions(given)["w"]

    # when the spare is terminating
    after = one_lost(a_warm_view(P), (A0, terminating(W)), adoptions=tried)

    # then the job claims another place, and after a while a warm spare again
    (claim,) = plan(after).claims
    assert isinstance(claim, ClaimPod)
    (later,) = plan(after, NOW + REPLACE_FOR_S).claims
    assert isinstance(later, ClaimWarm)


def test_a_suspended_or_ended_job_sends_no_order() -> None:
    given = one_lost(a_warm_view(), (A0, W))
    suspended = replace(given, job=replace(given.job, spec=replace(given.job.spec, suspend=True)))
    closed = a_snapshot([member(A0, 0)], number=3, coordinator=A0, closed=SUCCEEDED)
    ended = replace(given, coordination=replace(given.coordination, snapshot=closed))
    assert plan_adoptions(given, NOW) != ()
    assert [plan_adoptions(suspended, NOW), plan_adoptions(ended, NOW)] == [(), ()]
    assert [plan(suspended).adopt, plan(ended).adopt] == [(), ()]


def test_spares_of_a_pool_without_a_launcher_are_claimed_for_their_place() -> None:
    pool = a_warm_pool(launcher=None, template=TEMPLATE)
    (claim,) = plan(one_lost(a_warm_view(P, pool=pool))).claims
    assert isinstance(claim, ClaimPod)
