"""Which spares a job claims from its pool, and how it carries out a claim after any earlier steps of any operator."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from tests.unit.operator.given import (
    A0,
    A1,
    IMAGE,
    NOW,
    TEMPLATE,
    XID_79,
    S,
    a_job,
    a_pod,
    a_snapshot,
    ended,
    in_round,
    lost,
    member,
    observed,
    pending,
    starting,
    terminating,
)
from tests.unit.operator.given_pool import OLD, a_spare, a_view, not_ready
from understudy_operator.plan.capacity.failed_starts import start_pause_s
from understudy_operator.plan.capacity.gang import SCHEDULERS_MARKS
from understudy_operator.plan.facts import queue as kueue
from understudy_operator.plan.facts.cluster_objects import Node, Pod
from understudy_operator.plan.facts.observed import Observed
from understudy_operator.plan.facts.refusals import Refusal, RefusalKind
from understudy_operator.plan.intents import ClaimPod, CreatePod, DeletePod, Plan, ReleaseClaim, intent_key
from understudy_operator.plan.reconcile import reconcile
from understudy_operator.plan.verdicts.findings import Finding
from understudy_operator.plan.world.retries import Retries
from understudy_protocol import pod as names
from understudy_protocol.enums import Fault, FaultClass

CLAIMED_GRACE_S = 1
BOUND_S = 10.0
PREEMPTING_S = 60.0
TRY_AGAIN_S = 10.0

P, Q = a_spare("p"), a_spare("q", created_at=NOW - 60)
CORDON = Finding("cordon", FaultClass.MAINTENANCE, "the node is cordoned", known_to_scheduler=True)


def one_lost(
    *pool: Pod,
    claimed: Iterable[Pod] = (),
    pods: Iterable[Pod] = (A0,),
    at: float = NOW,
    desired: int = 1,
    **changes: Any,
) -> Observed:
    """A job without spares that has lost its second pod. The pool that it names has these pods; the job has claimed
    `claimed`.
    """
    pods, claimed = tuple(pods), tuple(claimed)
    job = a_job(status=in_round(3, "a0"), spares=0, pool="shared")
    snapshot = a_snapshot(
        [member(A0, 0)], number=3, coordinator=A0, lost=[lost(A1, Fault.NODE, NOW)], waiting_for="1 of 2 pods"
    )
    given = observed(job, pods, snapshot, claimed=claimed, pool=a_view(*pool, desired=desired))
    nodes = {pod.node: Node(pod.node, True) for pod in (*pods, *pool, *claimed) if pod.node}
    return replace(given, **{"nodes": nodes, **changes})


def plan(given: Observed, now: float = NOW) -> Plan:
    return reconcile(given, IMAGE, now)


def claims(given: Observed, now: float = NOW) -> list[str]:
    return [intent.name for intent in plan(given, now).claims if isinstance(intent, ClaimPod)]


def releases(given: Observed, now: float = NOW) -> list[str]:
    return [intent.name for intent in plan(given, now).claims if isinstance(intent, ReleaseClaim)]


def creations(given: Observed, now: float = NOW) -> list[CreatePod]:
    return [intent for intent in plan(given, now).pods if isinstance(intent, CreatePod)]


def deletions(given: Observed, now: float = NOW) -> dict[str, int | None]:
    return {intent.name: intent.grace_s for intent in plan(given, now).pods if isinstance(intent, DeletePod)}


def condition(given: Observed, now: float = NOW) -> tuple[str, str]:
    status = plan(given, now).status or given.job.status
    (found,) = [entry for entry in status.conditions if entry.type == "PoolAvailable"]
    return found.status, found.reason


def in_the_place_of(spare: Pod, **changes: Any) -> Pod:
    """The pod of the job that replaces this spare."""
    annotations = {names.ANNOTATION_CLAIMED_POD_UID: spare.uid}
    return a_pod("new", annotations=annotations, **{"created_at": NOW, **changes})


# When a claim is made -------------------------------------------------------------------------------------------------


def test_for_a_lost_rank_without_an_own_spare_the_job_claims_one_of_the_pool_and_creates_no_pod():
    given = one_lost(P)
    (claim,) = plan(given).claims
    assert isinstance(claim, ClaimPod)
    assert (claim.uid, claim.version, claim.job_uid) == (P.uid, P.version, "job-uid")
    assert creations(given) == []


def test_a_job_does_not_wait_for_a_spare_whose_claim_is_refused():
    # given a pool whose first spare to claim is protected by a policy
    (claim,) = plan(one_lost(P, Q)).claims
    assert claim.name == "p"
    paused = {intent_key(claim): NOW + 5}
    # then the job claims another spare
    assert claims(one_lost(P, Q, paused=paused)) == ["q"]
    # and without another spare, the job creates a pod after its spare timeout
    given = one_lost(P, paused=paused)
    result = plan(given).status or given.job.status
    assert (creations(given), condition(given)) == ([], ("False", "ClaimRejected"))
    waited = replace(given, job=replace(given.job, status=result))
    assert len(creations(waited, NOW + given.job.world.spare_timeout_s)) == 1


def test_claims_that_a_policy_refuses_are_retried_now_and_then():
    retries, requests = Retries(), 0
    for tick in range(1200):  # one minute of a job that changes all the time
        now = NOW + tick * 0.05
        tried = plan(one_lost(P, Q, paused=retries.paused(now)), now)
        refusals = [Refusal("no", RefusalKind.ADMISSION, intent_key(claim)) for claim in tried.claims]
        requests += len(refusals)
        retries = retries.after(tried.claims, refusals, now).keep_wanted(tried, now)
    assert 60 / TRY_AGAIN_S <= requests <= 2 * (60 / TRY_AGAIN_S + 6)


def test_a_job_uses_its_own_spares_first():
    # given a job whose spare can take the lost rank
    job = a_job(status=in_round(3, "s"), spares=1, pool="shared")
    snapshot = a_snapshot([member(A0, 0), member(S, 1)], number=3, lost=[lost(A1)])
    given = observed(job, (A0, S), snapshot, pool=a_view(P))
    given = replace(given, nodes={**given.nodes, P.node: Node(P.node, True)})

    # then the job creates another spare itself, and claims nothing
    assert (claims(given), len(creations(given))) == ([], 1)


def test_a_pod_that_is_connected_counts_although_the_watch_has_not_reported_that_it_runs():
    # given two pods that have the job's ranks according to the coordinator; according to the store one has not started
    job = a_job(status=in_round(3, "a0"), spares=0, pool="shared")
    snapshot = a_snapshot([member(A0, 0), member(S, 1)], number=3, coordinator=A0, lost=[lost(A1)])
    for unheard in (starting(S), replace(pending(S), trouble="Unschedulable: 0/3 nodes are available")):
        given = observed(job, (A0, unheard), snapshot, pool=a_view(P))
        given = replace(given, nodes={**given.nodes, P.node: Node(P.node, True)})

        # then no rank is vacant
        assert claims(given) == []


@pytest.mark.parametrize(
    "spare", [not_ready(P), terminating(P), ended(P), a_spare("p", claimed_by="other-uid")], ids=str
)
def test_a_spare_that_is_not_ready_or_has_another_claimant_is_not_claimed(spare: Pod):
    assert claims(one_lost(spare)) == []


def test_a_spare_on_a_node_that_is_faulty_or_not_ready_is_not_claimed():
    for node in (Node(P.node, False), Node(P.node, True, findings=(XID_79,)), Node(P.node, True, findings=(CORDON,))):
        given = one_lost(P)
        assert claims(replace(given, nodes={**given.nodes, P.node: node})) == []


def test_the_spare_near_the_lost_pod_is_claimed_first_then_one_of_an_old_template_then_the_oldest():
    given = one_lost(P, Q)
    assert claims(given) == ["p"]
    assert claims(one_lost(P, a_spare("q", template=OLD, created_at=NOW))) == ["q"]
    racks = {
        node: Node(node, True, labels={"rack": "r2" if node in (Q.node, A1.node) else "r1"}) for node in given.nodes
    }
    racks[A1.node] = Node(A1.node, False, labels={"rack": "r2"})
    job = a_job(status=in_round(3, "a0"), spares=0, pool="shared", topology_key="rack")
    assert claims(replace(given, job=job, nodes=racks)) == ["q"]


def test_a_spare_on_a_node_that_has_failed_jobs_is_claimed_last_and_with_require_never():
    given = replace(one_lost(P, Q), offenders={P.node: "it has failed 3 jobs"})
    assert claims(given) == ["q"]
    assert claims(replace(one_lost(P), offenders=given.offenders)) == ["p"]
    strict = replace(given.job, spec=replace(given.job.spec, world=replace(given.job.world, avoid_nodes="Require")))
    only = replace(one_lost(P), offenders=given.offenders, job=strict)
    assert claims(only) == []


def test_no_spare_is_claimed_for_pods_whose_start_is_delayed_after_a_failure():
    # given a pod that replaced a spare and could not start on its node
    failed = replace(
        ended(a_pod("f", node=Q.node, annotations={names.ANNOTATION_CLAIMED_POD_UID: "uid-of-another"})),
        could_start=False,
        created_at=NOW,
    )
    given = one_lost(P, pods=(A0, failed))

    # then the job claims the next spare when the delay is over
    assert claims(given) == []
    assert claims(given, NOW + start_pause_s(1)) == ["p"]


def test_a_pod_that_replaces_a_spare_is_in_no_queue_and_has_no_marks_of_a_gang():
    # given a job in Kueue's queue, whose template is marked for a gang scheduler, and a claim whose spare has ended
    taken = ended(a_spare("p", claimed_by="job-uid", deleting_since=NOW))
    given = one_lost(claimed=[taken])
    marked = {**TEMPLATE, "metadata": {"annotations": dict.fromkeys(SCHEDULERS_MARKS, "llm")}}
    job = a_job(status=in_round(3, "a0"), spares=0, pool="shared", pod_template=marked)
    job = replace(job, queue=kueue.Queue("research"))

    # when the job's pod is created
    (made,) = [intent.manifest for intent in plan(replace(given, job=job)).pods if isinstance(intent, CreatePod)]

    # then the pod is not in the gang, and no other pod is created in its place
    values = {**made["metadata"]["labels"], **made["metadata"]["annotations"]}
    assert values[names.ANNOTATION_CLAIMED_POD_UID] == taken.uid
    assert not values.keys() & {kueue.QUEUE, kueue.GROUP_NAME, *SCHEDULERS_MARKS}


def test_no_spare_is_claimed_before_the_first_round():
    job = a_job(spares=0, pool="shared")
    given = replace(one_lost(P), job=job, coordination=observed(job).coordination)
    assert (claims(given), len(creations(given))) == ([], 1)


def test_no_spare_is_claimed_or_released_while_rank_holders_are_unknown():
    given = replace(one_lost(P, claimed=[a_spare("q", claimed_by="job-uid")]), coordination=observed().coordination)
    assert plan(given).claims == ()


# Waiting for the refill -----------------------------------------------------------------------------------------------


def test_a_job_that_finds_the_pool_empty_reports_it_and_waits_for_its_refill():
    given = one_lost(not_ready(P))
    assert condition(given) == ("False", "PoolEmpty")
    assert creations(given, NOW + 29) == []
    (event,) = [event for event in plan(given).events if event.reason == "PoolEmpty"]
    assert (event.type, event.message) == (
        "Warning",
        "pool shared has no spare to claim: the job waits until the operator creates one",
    )


def pool_status(given: Observed, now: float = NOW) -> Observed:
    """The job with the status that it has at that time."""
    status = plan(given, now).status or given.job.status
    return replace(
        given, job=replace(given.job, status=structs.replace(given.job.status, conditions=status.conditions))
    )


def without_report(given: Observed) -> Observed:
    """No coordinator has reported the loss."""
    assert given.snapshot is not None
    snapshot = replace(given.snapshot, lost=())
    return replace(given, coordination=replace(given.coordination, snapshot=snapshot))


@pytest.mark.parametrize("known", [True, False], ids=["a reported loss", "a loss that no coordinator has reported"])
def test_a_job_creates_its_own_pod_after_the_spare_timeout(known: bool):
    given = pool_status(one_lost(not_ready(P)) if known else without_report(one_lost(not_ready(P))))
    assert creations(given, NOW + 29) == []
    assert len(creations(given, NOW + 31)) == 1


def test_a_job_does_not_wait_for_a_pool_that_does_not_exist_or_has_no_replicas():
    for given in (one_lost(desired=0), replace(one_lost(), pool=a_view(exists=False, desired=0))):
        assert len(creations(given)) == 1
    assert condition(replace(one_lost(), pool=a_view(exists=False, desired=0))) == ("False", "PoolNotFound")


def test_a_refill_is_claimed_even_if_the_jobs_own_pod_waits_for_a_node():
    waits = replace(pending(a_pod("own")), trouble="Unschedulable: no node")
    given = one_lost(P, pods=(A0, waits))
    assert (claims(given, NOW + 60), creations(given, NOW + 60)) == (["p"], [])


# How a claim is carried out -------------------------------------------------------------------------------------------

MINE = a_spare("p", claimed_by="job-uid")


def test_a_claimed_spare_is_deleted_at_once_and_nothing_more_is_claimed_or_created():
    given = one_lost(Q, claimed=[MINE])
    assert (claims(given), creations(given)) == ([], [])
    assert deletions(given) == {"p": CLAIMED_GRACE_S}
    assert condition(given) == ("True", "SpareClaimed")


def test_the_job_waits_while_the_claimed_spare_ends_and_occupies_its_devices():
    given = one_lost(claimed=[terminating(MINE)])
    assert (plan(given).claims, creations(given), deletions(given)) == ((), [], {})


def test_own_spares_that_are_recreated_at_the_same_time_cover_no_vacant_rank():
    # given a job with one spare, which has lost a pod and the spare that had taken its ranks, and recreates its spare
    job = a_job(status=in_round(3, "a0"), spares=1, pool="shared")
    own = starting(a_pod("own"))

    # then it claims one of the pool's spares, or waits for the refill, and creates no other pod itself
    for spare, claimed in ((P, ["p"]), (not_ready(P), [])):
        given = replace(one_lost(spare, pods=(A0, own)), job=job)
        assert (claims(given), creations(given)) == (claimed, [])

    # and it keeps the claim, also once its own pod has started: the later of the two becomes its spare
    for mine in (own, a_pod("own")):
        given = replace(one_lost(Q, pods=(A0, mine), claimed=[terminating(MINE)]), job=job)
        assert (claims(given), releases(given), creations(given)) == ([], [], [])


def test_own_spares_are_recreated_once_the_jobs_pod_has_the_claimed_spares_place():
    """On a full cluster they would take its node, and no pod of the same priority could preempt them."""
    # given a job with one spare, which has lost a pod and the spare that had taken its ranks
    job = a_job(status=in_round(3, "a0"), spares=1, pool="shared")
    claimed = ended(terminating(MINE))
    waiting = replace(pending(in_the_place_of(claimed)), trouble="Unschedulable: Insufficient cpu")
    placed = starting(in_the_place_of(claimed))

    # then it creates no spare while a pool's spare is claimed or ends, or the job's pod has no node yet
    for given in (one_lost(P), one_lost(claimed=[terminating(MINE)]), one_lost(claimed=[claimed], pods=(A0, waiting))):
        assert creations(replace(given, job=job)) == []

    # and creates one as soon as that pod has its node, or finds no room there
    present = replace(one_lost(claimed=[claimed], pods=(A0, placed)), job=job)
    assert [made.reason for made in creations(present)] == ["a spare is missing (2 pods are alive)"]
    stuck = replace(one_lost(claimed=[claimed], pods=(A0, waiting)), job=job)
    assert creations(stuck, NOW + BOUND_S)


def test_the_jobs_pod_is_created_for_the_spares_node_once_the_kubelet_has_confirmed_the_spares_end():
    given = one_lost(claimed=[ended(terminating(MINE))])
    (made,) = creations(given)
    fields = made.manifest["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert fields["nodeSelectorTerms"] == [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [MINE.node]}]}
    ]
    metadata = made.manifest["metadata"]
    assert metadata["labels"][names.LABEL_POOL_UID] == "pool-uid"
    assert metadata["annotations"][names.ANNOTATION_CLAIMED_POD_UID] == MINE.uid
    assert releases(given) == []
    assert [other.manifest["metadata"]["name"] for other in creations(replace(given, entropy="other"))] == [
        metadata["name"]
    ], "a repeated creation has the same name"


def test_the_spares_finalizer_is_removed_once_the_jobs_pod_exists():
    claimed = ended(terminating(MINE))
    given = one_lost(claimed=[claimed], pods=(A0, in_the_place_of(claimed)))
    assert (releases(given), creations(given)) == (["p"], [])


def test_the_later_of_two_claims_for_one_rank_is_released():
    later = a_spare("o", claimed_by="job-uid", at=NOW + 1)
    assert releases(one_lost(claimed=[later, MINE])) == ["o"]


def test_a_claim_that_is_not_needed_any_more_is_released():
    back = one_lost(claimed=[MINE], pods=(A0, A1))
    snapshot = a_snapshot([member(A0, 0), member(A1, 1)], number=4, coordinator=A0)
    given = replace(back, coordination=observed(snapshot=snapshot).coordination)
    assert (releases(given), deletions(given)) == (["p"], {})


def test_a_claim_on_a_node_that_dies_is_released_and_another_spare_is_claimed():
    given = one_lost(Q, claimed=[terminating(MINE)])
    given = replace(given, nodes={**given.nodes, MINE.node: Node(MINE.node, False)})
    assert (releases(given), claims(given)) == (["p"], ["q"])


def test_a_pod_that_finds_no_room_in_the_spares_place_is_reported_and_costs_no_second_spare():
    # given a pod of the job that the scheduler finds no room for
    stuck = replace(pending(in_the_place_of(MINE)), trouble="Unschedulable: Insufficient cpu", created_at=NOW)
    given = one_lost(Q, pods=(A0, stuck))

    # then the job waits for it, and after a while creates another pod, for any node
    assert (claims(given), creations(given)) == ([], [])
    assert claims(given, NOW + BOUND_S) == []
    assert condition(given, NOW + BOUND_S) == ("False", "Unschedulable")
    assert len(creations(pool_status(given, NOW + BOUND_S), NOW + BOUND_S + 31)) == 1


def test_a_pod_for_which_others_are_preempted_in_the_spares_place_is_waited_for():
    # given a pod of the job whose node another pod has taken; the scheduler preempts that pod
    coming = replace(
        pending(in_the_place_of(MINE)), trouble="Unschedulable: Insufficient cpu", nominated_node=MINE.node
    )
    given = one_lost(Q, pods=(A0, coming))

    # then the job creates, claims and reports nothing else, for a limited time
    assert (claims(given, NOW + BOUND_S), creations(given, NOW + BOUND_S)) == ([], [])
    assert condition(given, NOW + BOUND_S) == ("True", "NoSpareNeeded")
    assert condition(given, NOW + PREEMPTING_S) == ("False", "Unschedulable")


def test_a_pod_that_found_no_room_is_deleted_first_once_all_ranks_are_taken():
    stuck = replace(pending(in_the_place_of(MINE)), trouble="Unschedulable: Insufficient cpu", created_at=NOW - 60)
    job = a_job(status=in_round(4, "a0"), spares=1, pool="shared")
    new = replace(pending(a_pod("own")), created_at=NOW)
    snapshot = a_snapshot([member(A0, 0), member(A1, 1)], number=4, coordinator=A0)
    given = observed(job, (A0, A1, stuck, new), snapshot, pool=a_view(P))
    assert list(deletions(given)) == [stuck.name]
