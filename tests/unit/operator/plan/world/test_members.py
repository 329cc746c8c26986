"""The pods that the operator creates, deletes and patches, derived from its observation."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from tests.unit.operator.given import (
    A0,
    A1,
    AN_HOUR_AGO,
    FAILED,
    IMAGE,
    NOW,
    SUCCEEDED,
    XID_79,
    S,
    a_group,
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
from understudy_operator.plan.facts.cluster_objects import Node, Pod
from understudy_operator.plan.facts.observed import Observed
from understudy_operator.plan.facts.pod_answers import NO_ANSWERS
from understudy_operator.plan.facts.pods import Pods
from understudy_operator.plan.facts.secret_writes import SecretWrites
from understudy_operator.plan.facts.spec import ReplicatedJob
from understudy_operator.plan.faults.avoidance import avoided_by
from understudy_operator.plan.intents import CreatePod, DeletePod, PatchPod, PodIntent
from understudy_operator.plan.world.members import plan_members
from understudy_protocol import pod as names
from understudy_protocol.enums import Fault, FaultClass
from understudy_protocol.observer import Refused

SUSPECT_S = 60.0
FAILED_PODS_KEPT = 5
RETURN_S = 15.0
RANKS_KNOWN_S = 30.0

AVOIDED_FIELD = "metadata.name"


def planned(given: Observed) -> tuple[PodIntent, ...]:
    return plan_members(given, IMAGE, NOW)


def created(given: Observed) -> list[str]:
    """The created pods: the index of an active, or "spare"."""
    manifests = [intent.manifest for intent in planned(given) if isinstance(intent, CreatePod)]
    return [m["metadata"]["annotations"].get(names.ANNOTATION_GROUP_RANK, "spare") for m in manifests]


def deleted(given: Observed) -> dict[str, int | None]:
    """The deleted pods, with their grace periods."""
    return {intent.name: intent.grace_s for intent in planned(given) if isinstance(intent, DeletePod)}


def patched(given: Observed) -> list[PatchPod]:
    return [intent for intent in planned(given) if isinstance(intent, PatchPod)]


def reasons(given: Observed) -> list[str]:
    return [intent.reason for intent in planned(given) if isinstance(intent, CreatePod | DeletePod)]


# Before the first round ---------------------------------------------------------------------------------------------


def test_a_new_job_gets_a_pod_for_each_index_and_its_spares():
    given = observed(a_job(parallelism=3, spares=2), pods=())
    assert created(given) == ["0", "1", "2", "spare", "spare"]
    assert reasons(given)[0] == "group rank 0 has no pod"
    assert reasons(given)[-1] == "a spare is missing (0 pods are alive)"


@pytest.mark.parametrize(
    ("missing", "given"),
    [
        ("no Service has an address yet", {"coordinator_address": ""}),
        ("the key is not there yet", {"secret_writes": SecretWrites()}),
        ("the job is being deleted", {"job": a_job(deleting=True)}),
    ],
)
def test_no_pod_is_created_while(missing: str, given: dict[str, object]):
    assert created(observed(**{"job": a_job(), "pods": (), **given})) == [], missing  # type: ignore[arg-type]


@pytest.mark.parametrize("end_state", [ended(A1), terminating(A1), None])
def test_before_the_first_round_a_lost_pod_is_replaced_by_one_of_the_same_index(end_state: Pod | None):
    pods = (A0, S) if end_state is None else (A0, end_state, S)
    assert created(observed(a_job(), pods)) == ["1"]


def test_before_the_first_round_a_lost_spare_is_replaced_by_a_spare():
    assert created(observed(a_job(), (A0, A1, ended(S)))) == ["spare"]


def test_starting_pods_are_not_replaced():
    assert planned(observed(a_job(), (pending(A0), starting(A1), pending(S)))) == ()


def test_a_pod_that_cannot_start_because_its_node_is_down_is_removed_and_replaced():
    given = observed(a_job(), (A0, starting(A1), S), not_ready=[A1.node])
    assert created(given) == ["1"]
    assert deleted(given) == {"a1": 0}
    assert "node node-a1 is not ready" in reasons(given)[0]


def test_before_the_first_round_a_pod_that_had_started_on_a_node_that_died_since_is_replaced():
    given = observed(a_job(), (A0, A1, S), not_ready=[A1.node])
    assert created(given) == ["1"]
    assert deleted(given) == {"a1": 0}


def test_before_the_first_round_surplus_spares_are_deleted_so_that_actives_find_room():
    pods = (pending(A0), pending(A1), S, a_pod("t"), pending(a_pod("u")))
    given = observed(a_job(spares=1, status=in_round(-1, coordinator="s")), pods)
    assert deleted(given) == {"t": None, "u": None}


# After the first round ----------------------------------------------------------------------------------------------

NEW_SPARE = pending(a_pod("n", created_at=NOW))
A1_LOST = a_snapshot([member(A0, 0), member(S, 1)], number=1, lost=[lost(A1)])

AFTER_A_LOSS: dict[str, tuple[Iterable[Pod], Iterable[str], int]] = {
    # the pods, the nodes that are not Ready, and the number of new spares
    "its pod still seems to run": ((A0, A1, S), (), 1),
    "its pod has ended": ((A0, ended(A1), S), (), 1),
    "its pod is Terminating": ((A0, terminating(A1), S), (), 1),
    "its pod is gone": ((A0, S), (), 1),
    "its node is not ready": ((A0, A1, S), [A1.node], 1),
    "its replacement is Pending": ((A0, terminating(A1), S, NEW_SPARE), (), 0),
    "its replacement starts": ((A0, A1, S, starting(a_pod("n"))), (), 0),
    "its replacement runs": ((A0, ended(A1), S, a_pod("n")), (), 0),
    "its replacement has ended too": ((A0, ended(A1), S, ended(a_pod("n"))), (), 1),
    "the spare that took its place is gone too": ((A0, ended(A1), terminating(S)), (), 2),
}


@pytest.mark.parametrize("case", AFTER_A_LOSS)
def test_after_the_first_round_a_lost_pod_is_replaced_by_exactly_one_spare(case: str):
    pods, not_ready, needed = AFTER_A_LOSS[case]
    given = observed(a_job(status=in_round(1)), pods, A1_LOST, not_ready=not_ready)
    assert created(given) == ["spare"] * needed


def test_two_pods_that_are_lost_at_once_are_replaced_by_two_spares():
    snapshot = a_snapshot([member(S, None)], lost=[lost(A0), lost(A1)], waiting_for="2 of 2 pods")
    assert created(observed(pods=(A0, A1, S), snapshot=snapshot)) == ["spare", "spare"]


def test_a_thousand_pods_that_are_lost_at_once_are_replaced_in_one_reconcile():
    """For instance the pods on the nodes of a network switch."""
    pods = [a_pod(f"a{i}", i) for i in range(2000)]
    left, gone = pods[:1000], [ended(pod) for pod in pods[1000:]]
    rank_holders = [member(pod, pod.index) for pod in left]
    snapshot = a_snapshot(
        rank_holders, lost=[lost(pod) for pod in gone], coordinator=left[0], waiting_for="1000 of 2000 pods"
    )
    job = a_job(status=in_round(0, coordinator="a0"), parallelism=2000, spares=0)
    assert created(observed(job, (*left, *gone), snapshot)) == ["spare"] * 1000


def test_the_newest_round_of_status_and_coordinator_counts():
    without_a1 = (A0, S)
    assert created(observed(a_job(status=in_round(3)), without_a1)) == ["spare"]
    assert created(observed(a_job(), without_a1, a_snapshot(number=0))) == ["spare"]


def test_a_job_that_lost_its_default_launcher_while_it_was_suspended_loses_its_pods():
    # given a job whose template was changed so that it can have no launcher any more
    done = ended(a_pod("done", 3), SUCCEEDED)
    given = observed(a_job(spec={"world": None}), (A0, A1, done), previous_pods=(replace(A0, name="earlier"),))
    # then the pods of its world are deleted, and those that have ended stay for their logs
    assert deleted(given) == {"a0": None, "a1": None, "earlier": None}
    assert set(reasons(given)) == {"the job has no launcher any more (see condition FaultTolerant)"}


@pytest.mark.parametrize(("ago", "goes"), [(9.9, False), (10.0, True)])
def test_a_pod_whose_ports_are_taken_on_all_nodes_is_replaced_by_one_with_other_ports(ago: float, goes: bool):
    waiting = replace(pending(A1), trouble="Unschedulable: no free ports", lacks_port_since=NOW - ago)
    given = observed(a_job(host_network=True), (A0, waiting, S))
    assert deleted(given) == ({"a1": 0} if goes else {})


def test_nothing_changes_without_a_loss():
    assert planned(observed(snapshot=a_snapshot())) == ()


def test_a_node_that_is_not_ready_is_no_loss_while_its_member_is_connected():
    assert planned(observed(snapshot=a_snapshot(), not_ready=[A1.node])) == ()


def test_a_pod_on_a_dead_node_that_a_new_coordinator_does_not_know_is_replaced():
    # given a dead node that had the coordinator and an active; the next coordinator does not know that active
    snapshot = a_snapshot([member(A0, 0), member(S, None)], epoch=2, waiting_for="1 of 2 pods (group ranks 1)")
    given = observed(pods=(A0, A1, S), snapshot=snapshot, not_ready=[A1.node])
    assert created(given) == ["spare"]
    assert deleted(given) == {"a1": 0}  # neither the API server nor the coordinator reports its loss


def test_a_member_does_not_count_as_lost_while_a_new_coordinator_collects_members():
    asking = a_snapshot([member(A0, None)], number=4, epoch=2)
    given = observed(a_job(status=in_round(4)), (A0, A1, S), asking, not_ready=[A1.node])
    assert planned(given) == ()


def test_a_lost_pod_on_a_ready_node_has_some_time_to_come_back():
    def after(seconds: float) -> Observed:
        snapshot = a_snapshot([member(A0, 0), member(S, 1)], lost=[lost(A1, at=NOW - seconds)])
        return observed(snapshot=snapshot)

    assert deleted(after(RETURN_S - 0.1)) == {}
    assert deleted(after(RETURN_S)) == {"a1": None}
    assert "it was lost (Pod): its connection ended" in reasons(after(RETURN_S))


def test_a_pod_lost_with_its_node_is_deleted_at_once():
    snapshot = a_snapshot([member(A0, 0), member(S, 1)], lost=[lost(A1, Fault.NODE)])
    assert deleted(observed(snapshot=snapshot)) == {"a1": None}


@pytest.mark.parametrize(("ago", "goes"), [(RETURN_S - 1, False), (RETURN_S, True)])
def test_a_pod_that_states_it_has_to_be_replaced_and_does_not_end_is_deleted(ago: float, goes: bool):
    """Found by the simulation (seed 44125): its launcher was stopped, and no coordinator was left to report it."""
    answers = NO_ANSWERS.with_refusal(
        "uid-s", Refused("not the coordinator", replacement_reason="no space left on device"), NOW - ago
    )
    given = observed(snapshot=a_snapshot([member(A0, 0), member(A1, 1)]))
    given = replace(given, coordination=replace(given.coordination, answers=answers))
    assert ("s" in deleted(given)) == goes
    # but not if the pod is a member of a coordinator again
    returned = a_snapshot([member(A0, 0), member(A1, 1), member(S, None)])
    assert deleted(replace(given, coordination=replace(given.coordination, snapshot=returned))) == {}


def test_the_last_snapshot_of_a_coordinator_that_has_stepped_down_does_not_keep_a_pod_that_has_to_be_replaced():
    """Found by the simulation (seed 585497): the only pod was that coordinator, and could not store its state."""
    answers = NO_ANSWERS.with_refusal(
        "uid-a0", Refused("not the coordinator", replacement_reason="no space left on device"), NOW - RETURN_S
    )
    given = observed(snapshot=a_snapshot([member(A0, 0), member(A1, 1), member(S, None)]))
    searching = replace(given.coordination, answers=answers, coordinator_uid="")
    assert "a0" in deleted(replace(given, coordination=searching))


def test_a_pods_replacement_reason_does_not_count_once_its_connection_has_ended():
    answers = NO_ANSWERS.with_refusal(
        "uid-s", Refused("not the coordinator", replacement_reason="no space left on device"), NOW - 60
    )
    given = observed(snapshot=a_snapshot([member(A0, 0), member(A1, 1)]))
    assert deleted(replace(given, coordination=replace(given.coordination, answers=answers.on_lines(())))) == {}


@pytest.mark.parametrize(
    ("reported_s", "started_s", "is_deleted"),
    [(120, 120, True), (119, 300, False), (300, 119, False), (300, None, False)],
)
def test_a_pod_whose_launcher_hangs_before_it_connects_is_replaced_after_2_minutes(
    reported_s: float, started_s: float | None, is_deleted: bool
):
    """Found by the simulation (seed 1236444): the job waited for its first round until the launcher resumed."""
    # given a pod that has no launcher
    refused = Refused("not the coordinator", lacks_launcher=True)
    answers = NO_ANSWERS.with_refusal("uid-s", refused, NOW, NOW - reported_s)
    # and whose trainer container runs, if it has started
    stuck = replace(S, trainer_started_at=0.0 if started_s is None else NOW - started_s)
    given = observed(pods=(A0, A1, stuck), snapshot=a_snapshot([member(A0, 0), member(A1, 1)], coordinator=A0))
    given = replace(given, coordination=replace(given.coordination, answers=answers))
    assert ("s" in deleted(given)) == is_deleted
    # but not once a launcher has connected
    connected = answers.with_refusal("uid-s", Refused("not the coordinator"), NOW)
    assert deleted(replace(given, coordination=replace(given.coordination, answers=connected))) == {}


@pytest.mark.parametrize(
    ("mode", "command"),
    [("Torchrun", ["torchrun", "train.py"]), ("Auto", ["sh", "-c", "prepare && torchrun train.py"])],
)
def test_a_script_may_prepare_for_any_time_before_it_calls_torchrun(mode: str, command: list[str]):
    answers = NO_ANSWERS.with_refusal("uid-s", Refused("not the coordinator", lacks_launcher=True), NOW, NOW - 600)
    template = {"spec": {"containers": [{"name": "trainer", "command": command}]}}
    job = a_job(status=in_round(0), mode=mode, pod_template=template)
    given = observed(
        job, (A0, A1, replace(S, trainer_started_at=NOW - 600)), a_snapshot([member(A0, 0), member(A1, 1)])
    )
    assert deleted(replace(given, coordination=replace(given.coordination, answers=answers))) == {}


@pytest.mark.parametrize(("known_s", "is_deleted"), [(120, True), (119, False)])
def test_a_coordinator_whose_own_launcher_hangs_is_replaced_too(known_s: float, is_deleted: bool):
    """It reports its members, and is not one of them."""
    stuck = replace(S, trainer_started_at=NOW - 600)
    given = observed(pods=(A0, A1, stuck), snapshot=a_snapshot([member(A0, 0), member(A1, 1)], coordinator=S))
    given = replace(given, coordination=replace(given.coordination, since=NOW - known_s))
    assert ("s" in deleted(given)) == is_deleted
    # but not if its member has joined, or is reported as lost and may return
    joined = a_snapshot([member(A0, 0), member(A1, 1), member(S, None)], coordinator=S)
    assert deleted(replace(given, coordination=replace(given.coordination, snapshot=joined))) == {}
    missing = a_snapshot([member(A0, 0), member(A1, 1)], coordinator=S, lost=[lost(S, Fault.POD, NOW - 1)])
    assert deleted(replace(given, coordination=replace(given.coordination, snapshot=missing))) == {}


def test_if_one_of_several_replicated_jobs_calls_torchrun_no_pod_is_replaced_for_a_missing_launcher():
    def a_named_group(name: str, *command: str) -> ReplicatedJob:
        return a_group(name, 1, 1, {"spec": {"containers": [{"name": "trainer", "command": [*command]}]}})

    groups = (a_named_group("a", "python3", "train.py"), a_named_group("b", "sh", "-c", "prepare && torchrun train.py"))
    answers = NO_ANSWERS.with_refusal("uid-s", Refused("not the coordinator", lacks_launcher=True), NOW, NOW - 600)
    job = a_job(status=in_round(0), mode="Auto", groups=groups, spec={"replicated_jobs": groups})
    given = observed(
        job, (A0, A1, replace(S, trainer_started_at=NOW - 600)), a_snapshot([member(A0, 0), member(A1, 1)])
    )
    assert deleted(replace(given, coordination=replace(given.coordination, answers=answers))) == {}


def test_losses_reported_by_a_coordinator_without_a_majority_do_not_count():
    # given a coordinator with two voters of five: it may be disconnected, and the others may train under another one
    voters = [A0, A1, S, a_pod("t"), a_pod("u")]

    def is_reported(*heard: Pod, fault: Fault = Fault.NODE) -> Observed:
        views = [member(pod, rank) for rank, pod in enumerate(heard)]
        gone = [lost(pod, fault, NOW - 60) for pod in voters if pod not in heard]
        return observed(pods=voters, snapshot=a_snapshot(views, lost=gone, voters=voters))

    assert deleted(is_reported(A0, S)) == {}
    assert deleted(is_reported(A0, S, a_pod("new"), a_pod("newer"))) == {}  # the new pods are not voters yet
    assert deleted(is_reported(A0, S, A1)) == {"t": None, "u": None}
    # but a pod whose end it has observed has ended
    assert deleted(is_reported(A0, S, fault=Fault.POD)) == {"a1": None, "t": None, "u": None}


def test_a_terminating_pod_is_force_deleted_only_on_a_node_that_is_not_ready():
    pods = (A0, terminating(A1), S)
    assert deleted(observed(pods=pods, not_ready=[A1.node])) == {"a1": 0}
    assert deleted(observed(pods=pods)) == {}


def test_a_terminating_pod_is_force_deleted_if_its_node_is_gone():
    gone = replace(observed(pods=(A0, terminating(A1), S)), nodes={})
    assert deleted(gone) == {"a1": 0}


# Changes of spares, and surplus pods --------------------------------------------------------------------------------


def test_more_spares_are_created_when_more_are_wanted():
    job = a_job(status=in_round(0), spares=3)
    assert created(observed(job, snapshot=a_snapshot())) == ["spare", "spare"]


def with_spares(*spares: Pod, wanted: int, coordinator: str = "a0", **snapshot: str) -> Observed:
    views = [member(A0, 0), member(A1, 1), *(member(x, None) for x in spares if x.sidecar_started)]
    job = a_job(status=in_round(0, coordinator=coordinator), spares=wanted)
    return observed(job, (A0, A1, *spares), a_snapshot(views, **snapshot))  # type: ignore[arg-type]


def test_of_surplus_spares_those_that_have_not_started_are_deleted_first_then_the_youngest():
    old, young, unstarted = a_pod("old"), a_pod("young", created_at=AN_HOUR_AGO + 60), starting(a_pod("unstarted"))
    assert deleted(with_spares(old, young, unstarted, wanted=2)) == {"unstarted": None}
    assert deleted(with_spares(old, young, unstarted, wanted=1)) == {"unstarted": None, "young": None}
    assert reasons(with_spares(old, wanted=0)) == ["the job has more spares than it needs (0)"]


def test_the_coordinator_stays_when_fewer_spares_are_wanted():
    assert deleted(with_spares(S, wanted=0, coordinator="s")) == {}
    assert deleted(with_spares(S, a_pod("t"), wanted=0, coordinator="s")) == {"t": None}


def test_a_spare_that_was_just_elected_stays_before_status_reports_it():
    old, young = a_pod("old"), a_pod("young", created_at=NOW)
    elected = replace(with_spares(old, young, wanted=0).coordination, coordinator_uid=young.uid)
    assert deleted(replace(with_spares(old, young, wanted=0), coordination=elected)) == {"old": None}


def test_a_rank_holder_stays_even_if_it_was_created_as_a_spare():
    # given that a1 came back after the spare s had taken its rank, and that a new spare was created to replace it
    new = a_pod("new", created_at=NOW)
    snapshot = a_snapshot([member(A0, 0), member(S, 1), member(A1, None), member(new, None)])
    given = observed(a_job(status=in_round(1, coordinator="a0")), (A0, A1, S, new), snapshot)
    assert deleted(given) == {"new": None}


def test_a_surplus_spare_is_deleted_only_at_the_observed_version_because_it_may_have_a_rank_by_now():
    # given two spares before the first round and during it, of which one is surplus
    seen = replace(a_pod("t", created_at=NOW), version="11")
    before = observed(a_job(), (A0, A1, S, seen))
    running = with_spares(S, seen, wanted=1)

    # then the younger one is deleted under a resourceVersion precondition
    for given in (before, running):
        (delete,) = [intent for intent in planned(given) if isinstance(intent, DeletePod)]
        assert (delete.name, delete.version) == ("t", "11")


def test_a_spare_with_a_rank_stays_although_no_coordinator_has_reported_the_first_round():
    # given an operator with the newest pods, the job as it was before its first round, and no coordinator
    with_ranks = replace(a_pod("t", created_at=NOW), annotations={names.ANNOTATION_GROUP_RANK: "1"})
    assert deleted(observed(a_job(), (A0, S, with_ranks))) == {}


@pytest.mark.parametrize(
    "snapshot",
    [
        None,
        a_snapshot(waiting_for="1 of 2 pods (group ranks 1)"),
        a_snapshot([member(A0, None), member(S, None)], number=4, epoch=2),  # new: no ranks yet
    ],
)
def test_no_pod_is_surplus_while_rank_holders_are_unknown(snapshot: None):
    job = a_job(status=in_round(4), spares=0)
    assert deleted(observed(job, (A0, A1, S, a_pod("t")), snapshot)) == {}


# Silent nodes -------------------------------------------------------------------------------------------------------


def avoided(given: Observed) -> list[str]:
    (create,) = [intent for intent in planned(given) if isinstance(intent, CreatePod)]
    affinity = create.manifest["spec"].get("affinity", {}).get("nodeAffinity", {})
    terms = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms", [])
    return [value for term in terms for field in term.get("matchFields", ()) for value in field["values"]]


@pytest.mark.parametrize(
    ("fault", "ago", "nodes"),
    [
        (Fault.NODE, 0.0, ["node-a1"]),
        (Fault.NODE, SUSPECT_S - 0.1, ["node-a1"]),
        (Fault.NODE, SUSPECT_S, []),
        (Fault.POD, 0.0, []),
    ],
)
def test_a_new_pod_avoids_a_node_that_stopped_responding_a_moment_ago(fault: Fault, ago: float, nodes: list[str]):
    snapshot = a_snapshot([member(A0, 0), member(S, 1)], lost=[lost(A1, fault, NOW - ago)])
    assert avoided(observed(snapshot=snapshot)) == nodes


@pytest.mark.parametrize(
    ("node", "nodes"),
    [
        (Node("node-a1", True, since=NOW - 1), []),  # it was down, and has come back
        (Node("node-a1", True, since=NOW - 100), ["node-a1"]),  # Kubernetes has not detected its loss yet
        (Node("node-a1", False, since=NOW - 1), ["node-a1"]),
    ],
)
def test_a_node_that_has_become_ready_again_since_is_not_avoided(node: Node, nodes: list[str]):
    snapshot = a_snapshot([member(A0, 0), member(S, 1)], lost=[lost(A1, Fault.NODE, NOW - 20)])
    given = observed(snapshot=snapshot)
    assert avoided(replace(given, nodes={**given.nodes, node.name: node})) == nodes


def test_a_new_pod_avoids_a_node_on_which_it_would_get_no_rank():
    given = observed(snapshot=a_snapshot([member(A0, 0), member(S, 1)], lost=[lost(A1, Fault.POD, NOW)]))
    faulty = Node("node-x", True, since=NOW - 100, findings=(XID_79,))
    assert avoided(replace(given, nodes={**given.nodes, "node-x": faulty})) == ["node-x"]


def test_a_pod_that_waits_for_a_node_is_recreated_when_a_node_that_it_avoids_is_healthy_again():
    """Otherwise it waits as long as there is no other node for it."""
    keeps_off = {names.ANNOTATION_AVOIDED_NODES: "node-x"}
    waits = pending(a_pod("t", annotations=keeps_off, trouble="Unschedulable: 0/3 nodes are available"))
    given = observed(pods=(A0, A1, S, waits), snapshot=a_snapshot(), job=a_job(status=in_round(0), spares=2))
    well, faulty = Node("node-x", True), Node("node-x", True, findings=(XID_79,))
    assert deleted(replace(given, nodes={**given.nodes, "node-x": well})) == {"t": 0}
    assert deleted(replace(given, nodes={**given.nodes, "node-x": faulty})) == {}
    pulls = starting(a_pod("t", annotations=keeps_off, trouble="container trainer: ImagePullBackOff"))
    assert deleted(observed(pods=(A0, A1, S, pulls), snapshot=a_snapshot(), job=given.job)) == {}


def annotations_of_new(given: Observed) -> dict[str, str]:
    """The annotations of the one pod that is created."""
    (create,) = [intent for intent in planned(given) if isinstance(intent, CreatePod)]
    return dict(create.manifest["metadata"]["annotations"])


@pytest.mark.parametrize("count", [1, 10, 100, 900])
def test_a_waiting_pod_is_recreated_when_one_of_many_nodes_that_it_avoids_is_healthy_again(count: int):
    # given faulty nodes, and a pod that was created meanwhile
    broken = {f"node-{number:03d}": Node(f"node-{number:03d}", True, findings=(XID_79,)) for number in range(count)}
    lost_one = a_snapshot([member(A0, 0), member(S, 1)], lost=[lost(A1)])
    given = observed(pods=(A0, S), snapshot=lost_one, job=a_job(status=in_round(0)))
    given = replace(given, nodes={**given.nodes, **broken})
    waits = pending(a_pod("t", annotations=annotations_of_new(given), trouble="Unschedulable: 0/3"))
    given = replace(given, pods=Pods((A0, S, waits)))
    assert deleted(given) == {}
    # when the last of them is healthy again, but not yet Ready
    last = f"node-{count - 1:03d}"
    starts = {**given.nodes, last: Node(last, ready=False)}
    assert deleted(replace(given, nodes=starts)) == {}
    # then the pod is recreated as soon as that node is Ready
    well = replace(given, nodes={**given.nodes, last: Node(last, ready=True)})
    assert deleted(well) == {"t": 0}
    assert last not in avoided_by(a_pod("u", annotations=annotations_of_new(replace(well, pods=Pods((A0, S))))))


def test_an_operator_that_does_not_know_the_silent_nodes_recreates_no_pod():
    """Its predecessor has created this pod."""
    waits = pending(a_pod("t", annotations={names.ANNOTATION_AVOIDED_NODES: "node-a1"}, trouble="Unschedulable: 0/3"))
    given = observed(pods=(A0, A1, S, waits), job=a_job(status=in_round(0), spares=2))
    assert deleted(given) == {}
    silent = a_snapshot(lost=[lost(replace(A1, uid="previous"), Fault.NODE, NOW - 1)])
    assert deleted(replace(given, coordination=replace(given.coordination, snapshot=silent))) == {}
    assert deleted(replace(given, coordination=replace(given.coordination, snapshot=a_snapshot()))) == {"t": 0}


def test_a_deleted_node_is_no_reason_to_recreate_a_pod():
    waits = pending(a_pod("t", annotations={names.ANNOTATION_AVOIDED_NODES: "gone"}, trouble="Unschedulable: 0/3"))
    job = a_job(spares=2, status=in_round(0))
    assert deleted(observed(pods=(A0, A1, S, waits), snapshot=a_snapshot(), job=job)) == {}


def test_the_annotation_with_avoided_nodes_stays_within_the_size_limit():
    name = "node-" + "x" * 240 + "-{:05d}"  # about the maximum length of a node's name
    broken = {name.format(number): Node(name.format(number), True, findings=(XID_79,)) for number in range(3000)}
    given = observed(pods=(A0, S), snapshot=a_snapshot([member(A0, 0), member(S, 1)], lost=[lost(A1)]))
    result = annotations_of_new(replace(given, nodes={**given.nodes, **broken}))
    assert sum(len(key) + len(text) for key, text in result.items()) < 256 * 1024


def test_a_pod_without_a_rank_on_broken_hardware_is_replaced():
    """It would never get a rank, and the job would wait for it."""
    broken = {**observed().nodes, S.node: Node(S.node, True, findings=(XID_79,))}
    assert deleted(observed(nodes=broken, snapshot=a_snapshot())) == {"s": None}
    assert (
        deleted(observed(nodes=broken, snapshot=a_snapshot(), job=a_job(status=in_round(0), avoid_nodes="Off"))) == {}
    )
    goes = {
        **observed().nodes,
        S.node: Node(S.node, True, findings=(replace(XID_79, fault_class=FaultClass.MAINTENANCE),)),
    }
    assert deleted(observed(nodes=goes, snapshot=a_snapshot())) == {}


def test_a_pod_with_a_rank_on_broken_hardware_keeps_training():
    broken = {**observed().nodes, A1.node: Node(A1.node, True, findings=(XID_79,))}
    assert deleted(observed(nodes=broken, snapshot=a_snapshot())) == {}


def test_no_pod_on_broken_hardware_is_deleted_while_a_new_coordinator_collects_rank_holders():
    broken = {**observed().nodes, A1.node: Node(A1.node, True, findings=(XID_79,))}
    asks = a_snapshot([member(x, None) for x in (A0, A1, S)], waiting_for="the members of the previous round")
    assert deleted(observed(nodes=broken, snapshot=asks)) == {}
    waits = a_snapshot([member(A0, 0), member(A1, None), member(S, None)], waiting_for="1 of 2 pods")
    given = observed(nodes=broken, snapshot=waits)
    long_found = replace(given, coordination=replace(given.coordination, since=NOW - RANKS_KNOWN_S))
    assert deleted(long_found) == {"a1": None}


# Failed pods, and the end -------------------------------------------------------------------------------------------


def test_the_newest_failed_pods_stay_for_their_logs():
    failed = [ended(a_pod(f"f{i}", created_at=AN_HOUR_AGO + i)) for i in range(FAILED_PODS_KEPT + 2)]
    given = observed(pods=(A0, A1, S, *failed), snapshot=a_snapshot())
    assert deleted(given) == {"f0": None, "f1": None}


def test_a_failed_pod_that_is_being_deleted_is_not_deleted_again():
    failed = [ended(a_pod(f"f{i}", created_at=AN_HOUR_AGO + i)) for i in range(FAILED_PODS_KEPT)]
    given = observed(pods=(A0, A1, S, terminating(ended(a_pod("old", created_at=0.0))), *failed))
    assert deleted(given) == {}


@pytest.mark.parametrize("close", [SUCCEEDED, FAILED])
def test_after_the_close_no_pod_is_created_and_ending_pods_are_not_deleted(close: type):
    given = observed(pods=(A0, ended(A1)), snapshot=a_snapshot(closed=close))  # type: ignore[arg-type]
    assert planned(given) == ()


def test_after_the_close_pods_that_have_not_started_are_deleted():
    given = observed(pods=(ended(A0), ended(A1), pending(S)), snapshot=a_snapshot(closed=SUCCEEDED))
    assert deleted(given) == {"s": 0}
    assert reasons(given) == ["the job has ended before it started"]


def closed_since(
    seconds: float,
    mode: str,
    state: str = "Completed",
    command: str = "python train.py",
    rank: int | None = 1,
    *,
    pod: Pod = A1,
    snapshot: bool = True,
) -> Observed:
    """A job that has ended, and whose pod a1, which had this group rank in the last round, has not."""
    conditions = [{"type": state, "status": "True", "message": ""}]
    status = in_round(0, terminalState=state, conditions=conditions)
    template = {"spec": {"containers": [{"name": "trainer", "command": command.split()}]}}
    job = a_job(pod_template=template, mode=mode, status=status, completed_at=NOW - seconds)
    close = SUCCEEDED if state == "Completed" else FAILED
    last = a_snapshot([member(A0, 0), member(A1, rank)], closed=close)
    return observed(job, (ended(A0), pod, ended(S)), last if snapshot else None)


def test_a_pod_that_does_not_end_within_30_s_of_the_close_is_deleted():
    assert deleted(closed_since(29.9, "Wrap")) == {}
    assert deleted(closed_since(30.0, "Wrap")) == {"a1": None}
    assert deleted(closed_since(30.0, "Auto")) == {"a1": None}


def test_a_script_that_continues_after_its_torchrun_is_not_deleted_if_the_job_has_succeeded():
    assert deleted(closed_since(3600.0, "Torchrun")) == {}
    assert deleted(closed_since(3600.0, "Auto", command="torchrun train.py")) == {}
    assert deleted(closed_since(3600.0, "Auto", command="bash run.sh")) == {}
    assert deleted(closed_since(30.0, "Auto", "Failed", "torchrun train.py")) == {"a1": None}
    assert deleted(closed_since(30.0, "Torchrun", "Failed")) == {"a1": None}


def test_a_pod_without_ranks_has_no_script_that_may_continue():
    """Found by the simulation (seed 24): a pod that was lost because its launcher was stopped stayed without end."""
    spare = replace(A1, annotations={}, labels={names.LABEL_ROLE: names.ROLE_SPARE})
    for mode in ("Torchrun", "Auto"):
        # given an operator that has the last snapshot
        assert deleted(closed_since(30.0, mode, command="torchrun train.py", rank=None)) == {"a1": None}
        # and one that has just started, and knows only the pods' annotations
        assert deleted(closed_since(30.0, mode, command="torchrun train.py", snapshot=False)) == {}
        assert deleted(closed_since(30.0, mode, command="torchrun train.py", snapshot=False, pod=spare)) == {"a1": None}


def test_after_the_close_pods_on_a_dead_node_are_force_deleted():
    given = observed(pods=(A0, terminating(A1)), snapshot=a_snapshot(closed=SUCCEEDED), not_ready=[A0.node, A1.node])
    assert deleted(given) == {"a0": 0, "a1": 0}


@pytest.mark.parametrize("state", ["Completed", "Failed"])
def test_a_job_that_has_ended_gets_no_new_pods_when_its_finished_ones_are_gone(state: str):
    # given an operator that has just started: only status shows that the job has ended
    assert planned(observed(a_job(status=in_round(5, terminalState=state)), pods=())) == ()


# Labels -------------------------------------------------------------------------------------------------------------


def test_labels_follow_the_ranks():
    snapshot = a_snapshot([member(A0, 0), member(S, 1), member(A1, None)], number=1)
    assert patched(observed(a_job(status=in_round(1)), snapshot=snapshot)) == [
        PatchPod("a1", {names.LABEL_ROLE: "spare"}, {names.ANNOTATION_GROUP_RANK: None}),
        PatchPod("s", {names.LABEL_ROLE: "active"}, {names.ANNOTATION_GROUP_RANK: "1"}),
    ]


@pytest.mark.parametrize(
    "snapshot",
    [
        a_snapshot([member(A0, None), member(A1, None), member(S, None)], number=-1),  # before the first round
        a_snapshot([member(A0, None), member(A1, None), member(S, None)], number=4, epoch=2),  # a new coordinator
    ],
)
def test_labels_stay_while_no_member_has_a_rank(snapshot: None):
    number = 4 if snapshot is not None and snapshot.token.round == 4 else -1
    assert patched(observed(a_job(status=in_round(number)), snapshot=snapshot)) == []


@pytest.mark.parametrize("end_state", [ended(S), terminating(S)])
def test_labels_of_a_pod_that_has_ended_stay(end_state: Pod):
    snapshot = a_snapshot([member(A0, 0), member(S, 1)], number=1)
    assert patched(observed(a_job(status=in_round(1)), (A0, end_state), snapshot)) == []


def test_a_pod_that_was_created_since_its_node_stopped_responding_has_some_time_to_connect():
    # given a spare that was scheduled to a node which this operator believes to be silent
    new = replace(starting(a_pod("new")), created_at=NOW - 1)
    silent = replace(Node(new.node, False), since=NOW - 30)
    given = observed(pods=(A0, A1, S, new), snapshot=a_snapshot())
    assert deleted(replace(given, nodes={**given.nodes, new.node: silent})) == {}
    # but not forever, and not if the pod is older
    old = replace(new, created_at=NOW - 20)
    given = observed(pods=(A0, A1, S, old), snapshot=a_snapshot())
    assert deleted(replace(given, nodes={**given.nodes, new.node: silent})) == {"new": 0}
    before = replace(new, created_at=NOW - 31)
    given = observed(pods=(A0, A1, S, before), snapshot=a_snapshot())
    assert deleted(replace(given, nodes={**given.nodes, new.node: silent})) == {"new": 0}
