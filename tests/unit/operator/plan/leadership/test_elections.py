"""The operator appoints no coordinator as long as members may elect one; and the proofs that they cannot."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.operator.given import (
    A0,
    A1,
    IMAGE,
    NOW,
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
    pending,
    status_of,
    terminating,
)
from understudy_operator.plan.facts.cluster_objects import Node, Pod, Stay
from understudy_operator.plan.facts.observed import Observed
from understudy_operator.plan.intents import Callee, CreatePod, DeletePod, Follow
from understudy_operator.plan.leadership.coordination import Leadership, plan_leadership, plan_link
from understudy_operator.plan.reconcile import reconcile
from understudy_protocol.observer import Snapshot

RESPONDING_S = 2.0
UNREACHABLE_S = 8.0

AT = int(NOW)
T, U = a_pod("t"), a_pod("u")
PODS = (A0, A1, S, T, U)
ALL_MEMBERS = [member(A0, 0), member(A1, 1), member(S, None), member(T, None), member(U, None)]
JOB = a_job(status=in_round(3, epoch=4), spares=3)
NONE_IS_NAMED = ", and no pod that responds has a coordinator"
VOTERS_LEFT = "2 of 5 voters are left, but an election needs 3" + NONE_IS_NAMED
CANDIDATES_ENDED = (
    "no coordinator was found for 8 s, and the pods of the last coordinator and of all its standby coordinators have "
    "ended"
)


def snapshot_of(**changes: Any) -> Snapshot:
    """The coordinator's last snapshot: five voters, two of which are its standby coordinators."""
    ordinary: dict[str, Any] = {"number": 3, "epoch": 4, "standby_coordinators": [T, U], "voters": PODS}
    return a_snapshot(ALL_MEMBERS, **(ordinary | changes))


def alone(pods: tuple[Pod, ...] = PODS, for_s: float = UNREACHABLE_S, **changes: Any) -> Observed:
    """For a while the operator has found no coordinator, although it has asked all pods that exist."""
    ordinary: dict[str, Any] = {
        "snapshot": snapshot_of(),
        "searches_since": NOW - for_s,
        "responders": [x for x in pods if not x.ended],
    }
    return observed(changes.pop("job", JOB), pods, **(ordinary | changes))


def appointed(given: Observed) -> tuple[str, int, str]:
    term = plan_leadership(given, NOW)
    return ("" if term.pod is None else term.pod.name), term.epoch, term.reason


# As long as an election may succeed ---------------------------------------------------------------------------------

ELECTABLE: Mapping[str, Observed] = {
    "the coordinator is on the line": observed(JOB, PODS, snapshot_of()),
    "its pod is being deleted: it transfers its leadership": observed(
        JOB, (A0, A1, terminating(S), T, U), snapshot_of()
    ),
    "its node is not ready, and it is on the line": observed(JOB, PODS, snapshot_of(), not_ready=[S.node]),
    "its pod has ended, and its standby coordinators have not": alone((A0, A1, ended(S), T, U)),
    "its standby coordinators have ended, and its own pod has not": alone((A0, A1, S, ended(T), ended(U))),
    "its pod is gone, and its standby coordinators are not": alone((A0, A1, T, U)),
    "one of its standby coordinators is left": alone((A0, A1, ended(S), ended(T), U)),
    "nodes are not ready: nothing on them has provably ended": alone(not_ready=[x.node for x in (S, T, U)]),
    "pods on dead nodes were deleted by force": alone(
        (A0, A1), nodes={x.node: Node(x.node, x in (A0, A1)) for x in PODS}
    ),
    "a majority is there": alone((A0, A1, ended(S), ended(T), U)),
    "all voters have ended, a moment ago": alone((A0, ended(A1), ended(S), ended(T), ended(U)), RESPONDING_S - 0.1),
    "all have ended, and the first pod has answered a moment ago": alone(
        (A0, ended(A1), ended(S), ended(T), ended(U)), responding_since=NOW - RESPONDING_S + 0.1
    ),
    "all have ended a moment ago, and a pod has answered before": alone(
        (A0, ended(A1), ended(S), ended(T), ended(U)), RESPONDING_S - 0.1, responding_since=NOW - 60.0
    ),
    "all have ended, and no pod answers": alone((A0, ended(A1), ended(S), ended(T), ended(U)), responders=[]),
    "the only candidates have ended, and a majority may know others": alone(
        (A0, A1, ended(S), ended(T), U), UNREACHABLE_S - 0.1, snapshot=snapshot_of(standby_coordinators=[T])
    ),
    "no coordinator has responded for a while": alone(for_s=59.9),
}


@pytest.mark.parametrize("case", ELECTABLE)
def test_no_coordinator_is_appointed_while_members_may_elect_one(case: str):
    term = plan_leadership(ELECTABLE[case], NOW)
    assert (term.epoch, term.term, term.reason) == (4, 1, "")


# Proofs that none can succeed ---------------------------------------------------------------------------------------


def soon(pods: tuple[Pod, ...] = PODS, **changes: Any) -> Observed:
    """All pods that exist have answered, and the operator has found no coordinator since then."""
    return alone(pods, RESPONDING_S, **changes)


HOPELESS: Mapping[str, tuple[Observed, str]] = {
    "the coordinator and all standby coordinators have ended": (
        soon((A0, A1, ended(S), ended(T), ended(U))),
        VOTERS_LEFT,
    ),
    "the only candidates have ended, and a majority is left": (
        alone((A0, A1, ended(S), ended(T), U), snapshot=snapshot_of(standby_coordinators=[T])),
        CANDIDATES_ENDED,
    ),
    "less than a majority is left": (soon((A0, ended(A1), ended(S), ended(T), U)), VOTERS_LEFT),
    "their objects are gone, on nodes that are ready": (soon((A0, A1)), VOTERS_LEFT),
    "their nodes are gone": (soon(nodes={x.node: Node(x.node, True) for x in (A0, A1)}), VOTERS_LEFT),
    "their nodes are out of service": (
        soon(nodes={x.node: Node(x.node, x in (A0, A1), out_of_service=x not in (A0, A1)) for x in PODS}),
        VOTERS_LEFT,
    ),
    "their objects and their nodes are gone": (
        soon((A0, A1), nodes={x.node: Node(x.node, True) for x in (A0, A1)}),
        VOTERS_LEFT,
    ),
    "no coordinator has responded for twice the coordinatorLossTimeout": (
        alone(for_s=60.0),
        "no coordinator was found for 60 s, twice the coordinatorLossTimeout",
    ),
}


@pytest.mark.parametrize("case", HOPELESS)
def test_a_coordinator_is_appointed_if_no_election_can_succeed(case: str):
    given, reason = HOPELESS[case]
    term = plan_leadership(given, NOW)
    assert (term.epoch, term.term, term.reason) == (AT, 0, reason)
    assert term.pod is not None


def test_a_lost_members_node_is_known_from_the_coordinators_last_snapshot():
    # given a member that was lost before, and is still a voter
    last = replace(snapshot_of(lost=[lost(U)]), members=tuple(ALL_MEMBERS[:-1]))
    given = alone((A0, A1), snapshot=last, nodes={x.node: Node(x.node, True) for x in PODS})
    assert appointed(given)[2] == VOTERS_LEFT
    # and a voter whose node no snapshot reports may run
    forgotten = replace(last, lost=())
    assert appointed(alone((A0, A1), snapshot=forgotten, nodes=given.nodes))[2] == ""
    # unless the operator has seen its pod on a node that is ready
    stay = Stay(U.name, U.uid, U.node, since=0.0, until=NOW)
    assert appointed(alone((A0, A1), snapshot=forgotten, nodes=given.nodes, past_stays=(stay,)))[2] == VOTERS_LEFT
    not_ready = {**given.nodes, U.node: Node(U.node, False)}
    assert appointed(alone((A0, A1), snapshot=forgotten, nodes=not_ready, past_stays=(stay,)))[2] == ""


def test_the_end_of_a_pod_without_a_node_is_not_proven():
    assert appointed(alone((A0, A1, ended(S), ended(T), pending(U))))[2] == ""


def test_time_proves_nothing_if_the_coordinator_loss_timeout_is_off():
    off = a_job(status=in_round(3, epoch=4), spares=3, fence_s=0.0)
    assert appointed(alone(for_s=86_400.0, job=off))[2] == ""
    assert appointed(alone((A0, A1), for_s=86_400.0, job=off))[2] == VOTERS_LEFT


def test_the_time_is_twice_the_jobs_coordinator_loss_timeout():
    patient = a_job(status=in_round(3, epoch=4), spares=3, fence_s=300.0)
    assert appointed(alone(for_s=599.9, job=patient))[2] == ""
    assert appointed(alone(for_s=600.0, job=patient))[1] == AT


# The appointed pod --------------------------------------------------------------------------------------------------


def test_only_pods_that_have_answered_are_appointed_spares_first():
    assert appointed(alone(for_s=60.0, responders=[A1, U]))[0] == "u"
    assert appointed(alone(for_s=60.0, responders=[A1, A0]))[0] == "a0"
    assert appointed(alone(for_s=60.0, responders=[])) == ("s", 4, "")
    assert appointed(alone((A0, terminating(A1), S, T, U), for_s=60.0, responders=[A1])) == ("s", 4, "")


def test_a_pod_that_answers_exists_whatever_the_last_coordinator_reported():
    words = replace(snapshot_of(lost=[lost(A0), lost(A1)]), members=(member(S, None),))
    assert appointed(alone((A0, A1, ended(S), ended(T), ended(U)), snapshot=words)) == ("a0", AT, VOTERS_LEFT)


def test_an_operator_that_was_disconnected_itself_asks_the_pods_first():
    soon = alone(for_s=90.0, responding_since=NOW - RESPONDING_S + 0.1)
    assert appointed(soon)[2] == ""
    assert appointed(alone(for_s=90.0, responding_since=NOW - RESPONDING_S))[1] == AT


# The members' answers -----------------------------------------------------------------------------------------------


def test_a_coordinator_that_members_follow_exists_although_the_operator_cannot_reach_it():
    pods = (A0, ended(A1), ended(S), ended(T), U)
    followed = alone(pods, for_s=3600.0, responders=[A0], named=U.uid)
    assert appointed(followed)[2] == ""
    assert message(followed) == (
        "the pods follow coordinator u, which the operator cannot reach, so status does not change: allow the operator "
        "to connect to port 8478 of the job's pods"
    )
    hosts = replace(followed, job=replace(followed.job, spec=a_job(host_network=True).spec))
    assert message(hosts).endswith("allow the operator to connect to ports 24000-24999 of the job's pods")
    # but not if that one has ended, which its members are about to detect
    assert appointed(alone(pods, named=S.uid))[2] == VOTERS_LEFT


def test_members_may_know_voters_before_the_operator_does():
    # given an appointed pod that has not reported, or had no voters when it did
    appointee = a_job(status=in_round(3, coordinator="s", epoch=5, term=0))
    new = snapshot_of(epoch=5, voters=(), standby_coordinators=())
    pods = (A0, A1, ended(S), T, U)
    for given in ({"job": appointee}, {"snapshot": new}):
        assert appointed(alone(pods, config_epoch=4, **given))[2] == "the coordinator's pod s has ended"
        assert appointed(alone(pods, config_epoch=5, **given))[2] == ""
        assert appointed(alone(pods, 60.0, config_epoch=5, **given))[1] == AT
    # and the operator does not know its voters
    assert appointed(alone((A0, A1), config_epoch=5, snapshot=new))[2] == ""


# An operator that was restarted -------------------------------------------------------------------------------------


def test_an_operator_that_was_restarted_waits_until_the_time_is_over():
    # given no snapshot of the coordinator, and no pod that could have coordinated
    gone = (A0, A1)
    assert appointed(alone(gone, snapshot=None))[2] == ""
    assert appointed(alone(gone, for_s=59.9, snapshot=None))[2] == ""
    assert appointed(alone(gone, for_s=60.0, snapshot=None))[:2] == ("a0", AT)


def test_before_the_first_round_there_are_no_voters():
    starting = a_job(status=in_round(-1, epoch=4))
    assert appointed(alone((A0, A1), 0.0, job=starting, snapshot=None)) == ("a0", AT, "the coordinator's pod is gone")


def test_answers_about_a_previous_leadership_do_not_count():
    # given a predecessor of this operator that has heard of a newer term
    newer = a_job(status=in_round(3, coordinator="s", epoch=4, term=2))
    assert appointed(alone((A0, A1), job=newer))[2] == ""
    assert appointed(alone((A0, A1), job=newer, snapshot=snapshot_of(term=2)))[2] == VOTERS_LEFT


def test_a_new_epoch_has_no_voters_until_it_reports_them():
    appointee = a_job(status=in_round(3, coordinator="s", epoch=5, term=0))
    assert appointed(alone((A0, A1, ended(S), T, U), 0.0, job=appointee))[2] == "the coordinator's pod s has ended"
    without = snapshot_of(epoch=5, voters=(), standby_coordinators=())
    assert appointed(alone((A0, A1, ended(S), T, U), 0.0, snapshot=without))[2] == "the coordinator's pod s has ended"


# Messages -----------------------------------------------------------------------------------------------------------


def message(given: Observed) -> str:
    text: str = condition(status_of(given, Leadership(4, 1, S, "")), "Ready")["message"]
    return text


def test_a_job_without_a_coordinator_reports_the_reason_of_its_wait():
    assert message(alone(for_s=UNREACHABLE_S - 0.1)) == ""
    assert message(alone()) == (
        "waiting for a coordinator: the pods elect one if a majority of them is left; otherwise the operator appoints "
        "one when the missing pods have ended, or when their nodes are deleted or have the taint "
        "node.kubernetes.io/out-of-service, or 60 s after the last coordinator was lost"
    )
    off = a_job(status=in_round(3, epoch=4), spares=3, fence_s=0.0)
    assert message(alone(job=off)).endswith("out-of-service (coordinatorLossTimeout is Off: there is no time limit)")
    assert message(observed(JOB, PODS, snapshot_of())) == ""
    assert message(alone(snapshot=None)).startswith("waiting for a coordinator: ")
    assert message(alone(job=a_job(status=in_round(-1)), snapshot=None)) == "the workers of 0 of 2 pods run"


# One of two voters is no majority: the operator has the casting vote --------------------------------------------------

FEW_JOB = a_job(parallelism=1, spares=1, status=in_round(3, epoch=4))
NEW = a_pod("new")
WITNESS_S = 3.0


def few(
    pods: tuple[Pod, ...] = (A0, S), for_s: float = 0.0, *, voters: tuple[Pod, ...] = (A0, S), **changes: Any
) -> Observed:
    """The coordinator s and the active a0 vote; the operator has lost the coordinator `for_s` seconds ago."""
    members = [member(A0, 0), member(S, None)][: len(voters)]
    coordinator = S if S in voters else A0
    last = a_snapshot(members, number=3, epoch=4, coordinator=coordinator, standby_coordinators=voters, voters=voters)
    ordinary: dict[str, Any] = {"snapshot": last, "searches_since": NOW - for_s}
    return observed(changes.pop("job", FEW_JOB), pods, **(ordinary | changes))


CASTING_VOTES: Mapping[str, tuple[Observed, tuple[str, str]]] = {
    "the other voter has ended": (few((A0, ended(S)), responders=[A0]), ("a0", "the other voter has ended")),
    "it responds to neither for 3 s": (
        few(for_s=WITNESS_S, responders=[A0]),
        ("a0", "s did not respond to the operator and to the other pod for 3 s"),
    ),
    "both respond, and elect none for 3 s": (
        few(for_s=WITNESS_S, responders=[A0, S]),
        ("s", "the voters respond, but have elected no coordinator within 3 s"),
    ),
    "the only voter responds, and does not elect itself for 3 s": (
        few((A0,), for_s=WITNESS_S, voters=(A0,), responders=[A0]),
        ("a0", "the voters respond, but have elected no coordinator within 3 s"),
    ),
    "the only voter has ended": (
        few((ended(A0), NEW), voters=(A0,), responders=[NEW]),
        ("new", "no voter is left: they have ended, or their nodes are not ready"),
    ),
    "the node of the only voter is not ready": (
        few((A0, NEW), for_s=UNREACHABLE_S, voters=(A0,), responders=[NEW], not_ready=[A0.node]),
        ("new", "no voter is left: they have ended, or their nodes are not ready"),
    ),
}
NO_CASTING_VOTES: Mapping[str, Observed] = {
    "the other one is searched for since a moment": few(for_s=WITNESS_S - 0.1, responders=[A0]),
    "the other one coordinates the one that responds": few(for_s=WITNESS_S, responders=[A0], named=S.uid),
    "no pod responds: the operator may be disconnected": few(for_s=WITNESS_S),
    "the only voter does not respond, and its node is ready": few((A0, NEW), voters=(A0,), responders=[NEW], for_s=7.9),
    "the node of the only voter is not ready, and the connection to it has just ended": few(
        (A0, NEW), voters=(A0,), responders=[NEW], not_ready=[A0.node], for_s=7.9
    ),
    "the only voter responds: its sidecar has restarted, and elects itself": few((A0,), voters=(A0,), responders=[A0]),
    "three vote, and two respond": few((A0, S, T), voters=(A0, S, T), responders=[A0, T], for_s=7.9),
}


@pytest.mark.parametrize("case", CASTING_VOTES)
def test_the_operator_decides_for_one_of_two_voters(case: str):
    given, (name, reason) = CASTING_VOTES[case]
    assert appointed(given) == (name, AT, reason)


@pytest.mark.parametrize("case", NO_CASTING_VOTES)
def test_the_operator_waits_while_the_other_voter_may_coordinate(case: str):
    assert plan_leadership(NO_CASTING_VOTES[case], NOW).reason == ""


@pytest.mark.parametrize(
    ("lacks_quorum", "voters", "reason"),
    [
        (True, (A0, S), "the other voter is lost, and one of two voters is no majority"),
        (False, (A0, S), ""),
        (True, (A0, S, T), ""),
    ],
)
def test_a_coordinator_that_has_lost_the_only_other_voter_is_appointed_again_at_once(
    lacks_quorum: bool, voters: tuple[Pod, ...], reason: str
):
    # given a coordinator that is connected to the operator
    snapshot = a_snapshot([member(S, None)], number=3, epoch=4, standby_coordinators=voters, voters=voters)
    given = observed(FEW_JOB, (A0, S), replace(snapshot, lacks_quorum=lacks_quorum))
    term = plan_leadership(given, NOW)
    assert term.reason == reason
    assert term.epoch == (AT if reason else 4)
    if reason:  # then it does not wait for the pod that it has lost
        (callee,) = appointees(given, term)
        assert callee.appoint is not None
        assert (callee.pod_uid, callee.appoint.running_pods) == ("uid-s", ("uid-s",))


def test_an_appointed_pod_does_not_wait_for_a_voter_that_has_not_responded():
    given = few(for_s=WITNESS_S, responders=[A0])
    (callee,) = appointees(given, plan_leadership(given, NOW))
    assert callee.appoint is not None
    assert callee.appoint.running_pods == ("uid-a0",)


def test_an_appointed_pod_learns_how_long_ago_the_coordinator_was_lost():
    given = few(for_s=WITNESS_S, responders=[A0])
    given = replace(given, coordination=replace(given.coordination, lost_at=NOW - 5.0))
    (callee,) = appointees(given, plan_leadership(given, NOW))
    assert callee.appoint is not None
    assert callee.appoint.coordinator_lost_s == 5.0


# An elected coordinator ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pods", "waiting_for", "sent"),
    [
        pytest.param((A0, T, U), "the members", ("uid-a1", "uid-s"), id="both no longer exist"),
        pytest.param((A0, ended(A1), S, T, U), "the members", ("uid-a1",), id="one has ended, and one may join"),
        pytest.param((A0, terminating(A1), T, U), "the members", ("uid-s",), id="one may hand over its snapshot"),
        pytest.param((A0, T, U), "", (), id="it waits for no member"),
    ],
)
def test_a_new_coordinator_learns_which_voters_have_ended(
    pods: tuple[Pod, ...], waiting_for: str, sent: tuple[str, ...]
):
    # given a coordinator that three of five voters have joined
    joined = [member(A0, 0), member(T, None), member(U, None)]
    snapshot = a_snapshot(joined, number=3, epoch=4, term=2, coordinator=T, voters=PODS, waiting_for=waiting_for)
    given = observed(JOB, pods, snapshot)
    # when the operator follows it
    link = plan_link(given, plan_leadership(given, NOW), NOW)
    # then it is sent those that cannot join any more
    assert isinstance(link, Follow)
    assert link.ended_pods == sent


def test_a_voter_that_is_a_spare_of_a_pool_exists():
    joined = [member(A0, 0), member(T, None), member(U, None)]
    snapshot = a_snapshot(joined, number=3, epoch=4, term=2, coordinator=T, voters=PODS, waiting_for="the members")
    given = observed(JOB, (A0, T, U), snapshot, claimed=(S,))
    link = plan_link(given, plan_leadership(given, NOW), NOW)
    assert isinstance(link, Follow)
    assert link.ended_pods == ("uid-a1",)


@pytest.mark.parametrize(
    ("others_ready", "for_s", "is_deleted"),
    [
        pytest.param(True, UNREACHABLE_S, True, id="another node is ready"),
        pytest.param(False, UNREACHABLE_S, False, id="no node is: the operator may be cut off"),
        pytest.param(True, 7.9, False, id="the connection to the pod has just ended"),
    ],
)
def test_the_only_pod_is_replaced_if_its_node_is_not_ready_and_the_operator_does_not_reach_it_for_8_s(
    others_ready: bool, for_s: float, is_deleted: bool
):
    given = few(
        (A0,), for_s, voters=(A0,), job=a_job(parallelism=1, spares=0, status=in_round(3, epoch=4)), not_ready=[A0.node]
    )
    given = replace(given, nodes={**given.nodes, "other": Node("other", others_ready)})
    deletions = [intent.name for intent in reconcile(given, IMAGE, NOW).pods if isinstance(intent, DeletePod)]
    assert deletions == (["a0"] if is_deleted else [])


def test_the_pod_that_replaces_the_only_pod_is_appointed_at_once():
    """Found by an e2e test: the job waited for 60 s, because the pod had left the job, and its node was forgotten."""
    # given a pod that left the job before it ended, and was deleted
    job = a_job(parallelism=1, spares=0, status=in_round(3, epoch=4))
    left = a_snapshot((), number=3, epoch=4, coordinator=A0, voters=(A0,))
    stay = Stay(A0.name, A0.uid, A0.node, since=0.0, until=NOW)
    nodes = {x.node: Node(x.node, True) for x in (A0, T)}
    # when the new pod answers
    given = alone((T,), 0.1, job=job, snapshot=left, nodes=nodes, past_stays=(stay,))
    # then it becomes the coordinator
    assert appointed(given) == (T.name, AT, "no voter is left: they have ended, or their nodes are not ready")


@pytest.mark.parametrize(("for_s", "deleted", "created"), [(59.9, [], 0), (60.0, ["a0", "a1"], 2)])
def test_pods_on_dead_nodes_are_replaced_once_no_election_can_succeed(for_s: float, deleted: list[str], created: int):
    """Found by the simulation (seed 521485): no pod could be appointed, and none was created."""
    # given five voters, of which three answer, and follow no coordinator
    given = alone(for_s=for_s, responders=[S, T, U], not_ready=[A0.node, A1.node])
    pods = reconcile(given, IMAGE, NOW).pods
    assert [intent.name for intent in pods if isinstance(intent, DeletePod)] == deleted
    assert sum(isinstance(intent, CreatePod) for intent in pods) == created


def appointees(given: Observed, term: Leadership) -> list[Callee]:
    link = plan_link(given, term, NOW)
    assert isinstance(link, Follow)
    return [callee for callee in link.first if callee.appoint is not None]
