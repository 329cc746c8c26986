"""Where a pool's spares are placed. tests/unit/operator/pool_scenarios has their creations and deletions."""

import tracemalloc
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.operator.given import NOW, XID_79, ended
from tests.unit.operator.given_pool import OLD, SPARE_TEMPLATE, a_pool, a_spare, observed_pool, without_room
from understudy_operator.plan.facts.cluster_objects import Node, Pod
from understudy_operator.plan.facts.pods import Pods
from understudy_operator.plan.intents import CreatePod, DeletePod
from understudy_operator.plan.manifests.node_affinity import PREFERRED, REQUIRED
from understudy_operator.plan.pool.holding import plan_spares
from understudy_operator.plan.verdicts.findings import Finding
from understudy_protocol import pod as names
from understudy_protocol.enums import FaultClass

UNREADY_S = 600.0

CORDON = Finding("cordon", FaultClass.MAINTENANCE, "the node is cordoned", known_to_scheduler=True)
LEAVES = Finding("gke-maintenance", FaultClass.MAINTENANCE, "ONGOING")
ENDED = Finding("annotation", FaultClass.HARDWARE, "fixed", until=NOW)
KEPT_BY_FINALIZER = {"bad": (XID_79,), "cordoned": (CORDON,), "leaves": (LEAVES,), "fixed": (ENDED,), "well": ()}
NODES = {name: Node(name, True, findings=findings) for name, findings in KEPT_BY_FINALIZER.items()}


def kept_off(tolerations: list[dict[str, str]]) -> list[str]:
    """The nodes that the first spare of a pool avoids, with these tolerations in its template."""
    template: Any = {"spec": {**SPARE_TEMPLATE["spec"], "tolerations": tolerations}}
    (made,) = plan_spares(observed_pool(a_pool(replicas=1, template=template), nodes=NODES), 1, NOW)
    assert isinstance(made, CreatePod)
    affinity = made.manifest["spec"].get("affinity", {}).get("nodeAffinity", {})
    return [
        name
        for term in affinity.get(REQUIRED, {}).get("nodeSelectorTerms", ())
        for field in term["matchFields"]
        for name in field["values"]
    ]


@pytest.mark.attack(
    "A1",
    "creates a pool of 1,000 spares whose template has 75,000 values",
    before="the plan had all manifests, of 5 GB: the operator was killed, again after each restart",
)
def test_a_plan_does_not_have_the_manifests_of_its_spares():
    # given a pool of 200 spares, whose template has 500 variables
    variables = [{"name": f"V{number}", "value": ""} for number in range(500)]
    template: Any = {"spec": {"containers": [{"name": "trainer", "env": variables}]}}
    given = observed_pool(a_pool(replicas=200, template=template))
    tracemalloc.start()
    try:
        # when the operator plans to create them
        intents = plan_spares(given, 200, NOW)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # then the plan takes 1 MB at most: a manifest takes 0.2 MB, and is made when it is sent
    assert len(intents) == 200
    assert peak < 1 << 20


def test_a_spare_uses_a_node_that_has_failed_jobs_only_if_no_other_one_is_free():
    # given two nodes in the memory, one of which is gone
    given = replace(observed_pool(a_pool(replicas=1), nodes=NODES), offenders=frozenset({"well", "gone"}))

    # then a spare prefers all other nodes, and is not excluded from these
    (made,) = plan_spares(given, 1, NOW)
    assert rather_not_on(made) == ["well"]
    assert isinstance(made, CreatePod)
    assert made.manifest["metadata"]["annotations"][names.ANNOTATION_AVOIDED_NODES] == "bad,leaves"


def test_a_spare_prefers_other_nodes_than_one_on_which_a_spare_has_ended_by_itself():
    """Its devices may be lost although the node does not report it."""
    unfit = ended(a_spare("p", node="well"))
    (made,) = plan_spares(observed_pool(a_pool(replicas=1), [unfit], nodes=NODES), 1, NOW)
    assert rather_not_on(made) == ["well"]
    (made,) = plan_spares(observed_pool(a_pool(replicas=1), nodes=NODES), 1, NOW)
    assert rather_not_on(made) == []


def test_a_spare_that_waits_for_room_is_recreated_when_a_node_that_it_avoids_is_healthy_again():
    # given a spare that was created while two nodes were broken
    given = observed_pool(a_pool(replicas=1), nodes=NODES)
    (made,) = plan_spares(given, 1, NOW)
    assert isinstance(made, CreatePod)
    annotations = made.manifest["metadata"]["annotations"]
    assert annotations[names.ANNOTATION_AVOIDED_NODES] == "bad,leaves"
    waits = replace(without_room(a_spare("p")), annotations=annotations)

    # then it waits as long as they are broken
    assert plan_spares(replace(given, pods=Pods((waits,))), 1, NOW) == ()

    # and no longer
    fixed = replace(given, pods=Pods((waits,)), nodes={**NODES, "bad": Node("bad", True)})
    (drop,) = plan_spares(fixed, 1, NOW)
    assert drop == DeletePod("p", waits.uid, 0, "it waits for a node, and bad may be used again", waits.version)


@pytest.mark.parametrize(("result", "grace_s"), [({}, 1), ({"terminationGracePeriodSeconds": 20}, 20)])
def test_a_placeholder_ends_within_1_s_unless_its_template_has_a_grace_period(result: dict[str, int], grace_s: int):
    pool = a_pool(replicas=1, template={"spec": {**SPARE_TEMPLATE["spec"], **result}})
    (made,) = plan_spares(observed_pool(pool), 1, NOW)
    assert isinstance(made, CreatePod)
    assert made.manifest["spec"]["terminationGracePeriodSeconds"] == grace_s


def rather_not_on(made: CreatePod | DeletePod) -> list[str]:
    """The nodes to which the spare prefers all others."""
    assert isinstance(made, CreatePod)
    wishes = made.manifest["spec"].get("affinity", {}).get("nodeAffinity", {}).get(PREFERRED, ())
    return [name for wish in wishes for field in wish["preference"]["matchFields"] for name in field["values"]]


def test_a_spare_avoids_nodes_where_no_job_would_claim_it():
    assert kept_off([]) == ["bad", "leaves"]  # the scheduler excludes the cordoned one


@pytest.mark.parametrize(
    ("toleration", "blind"),
    [
        ({"operator": "Exists"}, True),
        ({"operator": "Exists", "effect": "NoSchedule"}, True),
        ({"operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "nvidia.com/gpu", "operator": "Exists"}, False),
    ],
)
def test_a_spare_that_tolerates_every_taint_avoids_cordoned_nodes(toleration: dict[str, str], blind: bool):
    """Otherwise the scheduler would place it there, the operator would delete it because no job would claim it, and so
    on.
    """
    assert kept_off([toleration]) == (["bad", "cordoned", "leaves"] if blind else ["bad", "leaves"])


@pytest.mark.parametrize("count", [1, 100])
def test_a_spare_that_waits_is_recreated_when_one_of_many_nodes_that_it_avoids_is_healthy_again(count: int):
    # given a spare that was created while some nodes were faulty, and finds no other one
    broken = {f"node-{number}": Node(f"node-{number}", True, findings=(XID_79,)) for number in range(count)}
    given = observed_pool(a_pool(replicas=1), nodes=broken)
    (made,) = plan_spares(given, 1, NOW)
    assert isinstance(made, CreatePod)
    waits = without_room(a_spare("t"))
    given = replace(given, pods=Pods((replace(waits, annotations=made.manifest["metadata"]["annotations"]),)))
    assert plan_spares(given, 1, NOW) == ()
    # when one of them is healthy again
    fixed = replace(given, nodes={**broken, "node-0": Node("node-0", True)})
    # then the spare is recreated
    (gone,) = plan_spares(fixed, 1, NOW)
    assert isinstance(gone, DeletePod)
    assert (gone.name, gone.grace_s, gone.reason) == ("t", 0, "it waits for a node, and node-0 may be used again")


@pytest.mark.parametrize(
    "spare",
    [
        a_spare("p"),
        a_spare("p", template=OLD, ready=False),
        a_spare("p", node="bad"),
        replace(a_spare("p"), ready=False, unready_since=NOW - UNREADY_S),
    ],
    ids=["one too many", "of an old template", "on a broken node", "never ready"],
)
def test_a_spare_is_deleted_only_if_no_job_has_claimed_it_since_it_was_observed(spare: Pod):
    """A Warm claim makes it a pod of the job, and it may train by the time that the deletion arrives."""
    nodes = {**NODES, spare.node: NODES.get(spare.node, Node(spare.node, True))}
    given = observed_pool(a_pool(replicas=0), [spare], nodes=nodes)
    deletions = [step for step in plan_spares(given, 0, NOW) if isinstance(step, DeletePod)]
    assert deletions
    assert {step.version for step in deletions} == {spare.version}
