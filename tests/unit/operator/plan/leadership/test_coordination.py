"""The pod that the operator appoints, the epoch and the reason; the label, and the lines that follow. Elections:
test_elections.py.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.operator.given import (
    A0,
    A1,
    AN_HOUR_AGO,
    NOW,
    SUCCEEDED,
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
from understudy_operator.plan.facts.cluster_objects import Node
from understudy_operator.plan.facts.observed import Coordination, Observed
from understudy_operator.plan.facts.pod_answers import NO_ANSWERS
from understudy_operator.plan.intents import Callee, Follow, PatchPod, Unfollow
from understudy_operator.plan.leadership.coordination import (
    JOB_DELETED,
    Leadership,
    plan_label,
    plan_leadership,
    plan_link,
)
from understudy_operator.plan.verdicts.findings import Finding
from understudy_protocol import enums
from understudy_protocol import pod as names
from understudy_protocol.enums import CloseReason, FaultClass
from understudy_protocol.membership import RankHolder
from understudy_protocol.observer import Appoint, End, NodeFact, Refused

REFUSED_S = 1.0
UNREACHABLE_S = 8.0

NEW_JOB = a_job()
AT = int(NOW)  # an epoch is the time of its appointment
#: Appointed, and it has not reported yet: there are no voters.
RUNNING = a_job(status=in_round(3, coordinator="s", epoch=4, term=0))


def appointed(given: Observed) -> tuple[str, int, str]:
    term = plan_leadership(given, NOW)
    return ("" if term.pod is None else term.pod.name), term.epoch, term.reason


# The first appointment ----------------------------------------------------------------------------------------------


def test_a_pod_that_states_it_has_to_be_replaced_is_not_appointed():
    refused = Refused("not the coordinator", replacement_reason="its sidecar cannot store its state")
    given = observed(
        NEW_JOB, (A0, A1, S), coordination=Coordination(answers=NO_ANSWERS.with_refusal(S.uid, refused, NOW))
    )
    assert appointed(given)[0] != "s"


def test_the_first_coordinator_is_the_oldest_spare_that_is_ready():
    younger, not_up = a_pod("younger", created_at=NOW), starting(a_pod("not-up", created_at=0.0))
    assert appointed(observed(NEW_JOB, (A0, A1, younger, S, not_up))) == ("s", int(NOW), "the job starts")


@pytest.mark.parametrize("spare", [pending(S), starting(S), ended(S), terminating(S)])
def test_without_a_ready_spare_all_actives_have_to_be_ready(spare: Any):
    assert appointed(observed(NEW_JOB, (A0, starting(A1), spare))) == ("", 0, "")
    assert appointed(observed(NEW_JOB, (A1, A0, spare))) == ("a0", int(NOW), "the job starts")


def test_a_spare_gets_some_time_to_start_before_an_active_is_appointed():
    # given a job whose actives have all started, and whose spare starts a little later because its image is pulled
    young = replace(NEW_JOB, created_at=NOW - 3)
    assert appointed(observed(young, (A0, A1, starting(S)))) == ("", 0, "")
    assert appointed(observed(young, (A0, A1, S))) == ("s", int(NOW), "the job starts")
    # then the operator waits for a limited time, and not at all if no spare is declared
    assert appointed(observed(replace(young, created_at=NOW - 10), (A0, A1, starting(S))))[0] == "a0"
    assert appointed(observed(replace(a_job(spares=0), created_at=NOW), (A0, A1)))[0] == "a0"


def test_no_pod_on_a_node_that_is_not_ready_is_appointed():
    assert appointed(observed(NEW_JOB, (A0, A1, S), not_ready=[S.node])) == ("a0", int(NOW), "the job starts")


def test_a_job_without_spares_starts_with_the_first_index():
    job = a_job(spares=0)
    assert appointed(observed(job, (A1, A0))) == ("a0", int(NOW), "the job starts")


# Its successor ------------------------------------------------------------------------------------------------------

T = a_pod("t")
UNFIT: Mapping[str, tuple[dict[str, Any], str]] = {
    "gone": ({"pods": (A0, A1)}, "the coordinator's pod is gone"),
    "ended": ({"pods": (A0, A1, ended(S))}, "the coordinator's pod s has ended"),
    "deleting": ({"pods": (A0, A1, terminating(S))}, "the coordinator's pod s is being deleted"),
    "node": ({"not_ready": [S.node], "responders": [A0, A1, T]}, "node node-s of the coordinator's pod s is not ready"),
    "unreachable": (
        {"searches_since": NOW - UNREACHABLE_S, "responders": [A0, A1, T]},
        "the coordinator's pod s could not be reached for 8 s",
    ),
}


@pytest.mark.parametrize("case", UNFIT)
def test_a_successor_is_appointed_in_the_next_epoch(case: str):
    given, reason = UNFIT[case]
    assert appointed(observed(RUNNING, **given)) == ("a0", int(NOW), reason)


@pytest.mark.parametrize("case", UNFIT)
def test_the_successor_is_a_spare_if_one_waits(case: str):
    given, reason = UNFIT[case]
    pods = (*given.get("pods", (A0, A1, S)), T)
    assert appointed(observed(RUNNING, **(given | {"pods": pods}))) == ("t", int(NOW), reason)


def test_a_promoted_spare_counts_as_active_and_a_returned_active_as_spare():
    promoted = replace(a_pod("t"), labels={names.LABEL_ROLE: names.ROLE_ACTIVE})
    returned = replace(A1, labels={names.LABEL_ROLE: names.ROLE_SPARE})
    assert appointed(observed(RUNNING, (A0, promoted, returned)))[0] == "a1"


@pytest.mark.parametrize("case", ["node", "unreachable"])
def test_a_coordinator_that_may_live_is_replaced_only_if_all_other_pods_have_answered_or_stopped(case: str):
    """Found by the simulation (seed 42299): it trained with members that the operator could not reach either."""
    given, reason = UNFIT[case]
    silent = given | {"responders": [A0]}
    assert appointed(observed(RUNNING, **silent))[2] == ""
    assert appointed(observed(RUNNING, **(silent | {"searches_since": NOW - 60.0})))[2] == reason


def test_a_pod_that_has_lost_the_leadership_may_be_appointed_again_in_a_new_epoch():
    # given a coordinator whose sidecar was restarted
    def refused(seconds: float, named: str = "") -> Observed:
        return observed(RUNNING, responders=[S], searches_since=NOW - seconds, named=named)

    assert appointed(refused(REFUSED_S - 0.1)) == ("s", 4, "")  # otherwise appointments never end
    assert appointed(refused(REFUSED_S)) == ("s", int(NOW), "pod s is not the coordinator: not the coordinator")
    assert appointed(refused(REFUSED_S, named=A0.uid))[2] == ""  # the operator asks that pod first


def test_a_member_that_is_lost_is_not_appointed():
    snapshot = a_snapshot([member(A1, 1)], lost=[lost(A0)])
    assert appointed(observed(RUNNING, (A0, A1), snapshot)) == ("a1", int(NOW), "the coordinator's pod is gone")


def test_an_epoch_is_higher_than_the_previous_one_whatever_the_clock_shows():
    ahead = a_job(status=in_round(3, coordinator="s", epoch=AT + 60, term=0))
    assert appointed(observed(ahead, (A0, A1)))[:2] == ("a0", AT + 61)


FIT: Mapping[str, dict[str, Any]] = {
    "nothing is wrong": {},
    "it was not found for a moment only": {"searches_since": NOW - UNREACHABLE_S + 0.1},
    "no search has begun": {"coordination": Coordination()},
}


@pytest.mark.parametrize("case", FIT)
def test_the_coordinator_stays_in_its_epoch_when(case: str):
    assert appointed(observed(RUNNING, **FIT[case])) == ("s", 4, "")


def test_the_coordinator_that_was_found_takes_precedence_over_status():
    snapshot = a_snapshot(coordinator=A1, epoch=4, term=3)
    assert plan_leadership(observed(RUNNING, snapshot=snapshot), NOW) == Leadership(4, 3, A1, "")
    # but an older one changes nothing
    newer = a_job(status=in_round(3, coordinator="a0", epoch=5))
    assert plan_leadership(observed(newer, snapshot=snapshot), NOW) == Leadership(5, 1, A0, "")


def test_a_coordinator_without_voters_on_the_line_stays_until_its_pod_is_lost():
    snapshot = a_snapshot(epoch=4)
    for_long = Coordination(snapshot, S.uid, NOW - 3600)
    assert plan_leadership(observed(RUNNING, coordination=for_long), NOW) == Leadership(4, 1, S, "")
    deleted = observed(RUNNING, (A0, A1, terminating(S)), snapshot)
    assert appointed(deleted) == ("a0", AT, "the coordinator's pod s is being deleted")


def test_the_leadership_does_not_change_without_an_eligible_pod():
    assert appointed(observed(RUNNING, (starting(A0), pending(A1), ended(S)))) == ("s", 4, "")


@pytest.mark.parametrize(
    "given",
    [
        {"snapshot": a_snapshot(closed=SUCCEEDED), "pods": (A0, A1, ended(S))},
        {"job": a_job(status=in_round(3, epoch=4, terminalState="Failed")), "pods": (A0, A1)},
        {"job": a_job(status=in_round(3, epoch=4), deleting=True), "pods": (A0, A1, terminating(S))},
    ],
)
def test_no_pod_is_appointed_after_the_end_of_the_job(given: dict[str, Any]):
    term = plan_leadership(observed(**({"job": RUNNING} | given)), NOW)
    assert (term.epoch, term.reason) == (4, "")


# The label, which the Service selects -------------------------------------------------------------------------------


def test_the_label_moves_with_the_leadership():
    labelled = replace(S, labels={**S.labels, names.LABEL_COORDINATOR: "true"})
    given = observed(RUNNING, (A0, A1, labelled))
    assert plan_label(given, Leadership(4, 1, labelled, "")) == ()
    assert plan_label(given, Leadership(5, 0, A0, "…")) == (
        PatchPod("a0", {names.LABEL_COORDINATOR: "true"}),
        PatchPod("s", {names.LABEL_COORDINATOR: None}),
    )


def test_without_a_service_each_pod_keeps_the_label_that_it_was_created_with():
    # given a job of one pod whose coordinator is lost, and the pod that replaces it
    lost, new = (replace(pod, labels={**pod.labels, names.LABEL_COORDINATOR: "true"}) for pod in (A0, A1))
    given = observed(RUNNING, (lost, new), coordinator_address="")
    # then no label is moved
    assert plan_label(given, Leadership(4, 1, lost, "")) == ()
    assert plan_label(given, Leadership(5, 0, new, "…")) == ()


# The operator's own lines -------------------------------------------------------------------------------------------


def follow_of(given: Observed, leadership: Leadership) -> Follow:
    link = plan_link(given, leadership, NOW)
    assert isinstance(link, Follow)
    return link


def pods_of(callees: tuple[Callee, ...]) -> list[str]:
    return [callee.pod_uid.removeprefix("uid-") for callee in callees]


ALL_RUN = ("uid-a0", "uid-a1", "uid-s")


def test_an_appointment_has_the_pods_that_may_join():
    given = observed(a_job(status=in_round(3)), pods=(A0, ended(A1), S, starting(a_pod("new"))))
    appoint = follow_of(given, Leadership(AT, 0, A0, "…")).first[0].appoint
    assert appoint is not None
    assert appoint.running_pods == ("uid-a0", "uid-s")


def test_an_appointment_has_the_rank_holders_and_the_last_coordinator():
    # given a round whose pods no coordinator can name
    snapshot = a_snapshot([member(A0, 0), member(A1, 1), member(S, None)], number=3, coordinator=A1)
    rank_holders = (RankHolder(0, "uid-a0", "a0", A0.node), RankHolder(1, "uid-a1", "a1", A1.node))
    for pods, responses, first in [
        # all pods may run: a node may have lost its power a moment ago
        ((A0, A1, S), [], rank_holders),
        # the pod with rank 1 has ended, or only the pod with rank 0 has answered: rank 1 is named first
        ((A0, ended(A1), S), [], rank_holders[::-1]),
        ((A0, A1, S), [A0], rank_holders[::-1]),
    ]:
        given = observed(a_job(status=in_round(3)), pods, snapshot, searches_since=NOW - 60, responders=responses)
        appoint = follow_of(given, Leadership(AT, 0, S, "…")).first[0].appoint
        assert appoint is not None
        assert (appoint.rank_holders, appoint.coordinator_uid) == (first, "uid-a1")
    # and the appointment names none if the operator has not heard of the newest round
    older = observed(a_job(status=in_round(4)), (A0, A1, S), snapshot, searches_since=NOW - 60)
    appoint = follow_of(older, Leadership(AT, 0, S, "…")).first[0].appoint
    assert appoint is not None
    assert (appoint.rank_holders, appoint.coordinator_uid) == ((), "")


def test_an_appointment_names_at_most_100_pods():
    pods = [a_pod(f"a{number}", number) for number in range(150)]
    snapshot = a_snapshot([member(pod, number) for number, pod in enumerate(pods)], number=3)
    present = [ended(pod) if pod.index == 149 else pod for pod in pods]
    given = observed(a_job(status=in_round(3), parallelism=150), present, snapshot, searches_since=NOW - 60)
    appoint = follow_of(given, Leadership(AT, 0, pods[0], "…")).first[0].appoint
    assert appoint is not None
    assert [rank_holder.group_rank for rank_holder in appoint.rank_holders] == [149, *range(99)]


def test_a_pod_whose_sidecar_restarts_and_one_that_has_answered_may_join():
    restarted = replace(A1, sidecar_started=False)
    with_lost_member = a_snapshot(lost=[lost(A0)])
    given = observed(pods=(A0, restarted, S), snapshot=with_lost_member, searches_since=NOW - 60, responders=[A0])
    appoint = follow_of(given, Leadership(AT, 0, S, "…")).first[0].appoint
    assert appoint is not None
    assert appoint.running_pods == ALL_RUN


def test_the_appointed_pod_is_called_first_with_the_round_and_counts_of_status():
    status = in_round(3, epoch=4, term=0, recoveriesByStrategy={"inPlace": 2, "spareSwap": 1})
    given = observed(a_job(status=status))
    follow = follow_of(given, Leadership(4, 0, S, ""))
    assert follow.first[0] == Callee("uid-s", S.ip, Appoint(4, 3, {"InPlace": 2, "SpareSwap": 1}, ALL_RUN))
    assert follow.term == enums.Term(4, 0)


def test_the_first_appointment_has_no_previous_round():
    assert follow_of(observed(NEW_JOB), Leadership(1, 0, S, "")).first[0].appoint == Appoint(1, -1, {}, ALL_RUN)


def test_an_appointment_has_the_newest_round_even_if_status_does_not_have_it_yet():
    given = observed(a_job(status=in_round(3)), snapshot=a_snapshot(number=5))
    appoint = follow_of(given, Leadership(AT, 0, A0, "…")).first[0].appoint
    assert appoint is not None
    assert (appoint.epoch, appoint.at_least_round, appoint.running_pods) == (AT, 5, ALL_RUN)


def test_a_coordinator_that_has_responded_is_not_appointed_again():
    assert follow_of(observed(), Leadership(1, 1, S, "")).first == (Callee("uid-s", S.ip),)
    assert follow_of(observed(), Leadership(1, 7, A0, "")).first == (Callee("uid-a0", A0.ip),)


def test_standby_coordinators_come_after_the_last_coordinator_then_all_pods_whose_sidecar_runs():
    snapshot = a_snapshot(standby_coordinators=[A1, a_pod("gone"), a_pod("u"), A0], voters=[A0, A1, S])
    pods = (A0, A1, S, starting(a_pod("new")), a_pod("t"), ended(a_pod("u")), terminating(a_pod("v")))
    follow = follow_of(observed(pods=pods, snapshot=snapshot, searches_since=NOW), Leadership(1, 1, S, ""))
    assert pods_of(follow.first) == ["s", "a1", "a0"]
    assert pods_of(follow.others) == ["a0", "a1", "s", "t", "v"]
    assert follow.running == {pod.uid: pod.ip for pod in pods if pod.uid != "uid-u"}
    # and the last coordinator is not called once it has ended
    assert pods_of(follow_of(observed(pods=(A0, ended(S))), Leadership(1, 1, ended(S), "")).first) == []


def test_pods_with_host_network_are_called_at_their_ports():
    pods = tuple(replace(pod, ip="10.9.0.1", port=24000 + 2 * n) for n, pod in enumerate((A0, A1, S)))
    follow = follow_of(observed(pods=pods, searches_since=NOW), Leadership(1, 1, pods[2], ""))
    assert [callee.address for callee in follow.first] == ["10.9.0.1:24004"]
    assert {callee.address for callee in follow.others} == {"10.9.0.1:24000", "10.9.0.1:24002", "10.9.0.1:24004"}
    assert follow.running["uid-a1"] == "10.9.0.1:24002"


def test_a_message_may_have_1_mib_and_1_kib_for_each_pod_that_the_job_declares():
    assert follow_of(observed(), Leadership(1, 1, S, "")).message_bytes == (1 << 20) + 3 * 1024
    job = a_job(status=in_round(0), parallelism=1000, spares=24)
    assert follow_of(observed(job), Leadership(1, 1, S, "")).message_bytes == (2 << 20)


@pytest.mark.attack(
    "B2",
    "makes a PyTorchJob of 2,000,000,000 replicas, whose pod sends a message without end",
    before="the limit of a message was 1,907 GiB, and the operator kept all of it",
)
def test_the_message_limit_does_not_grow_beyond_20000_pods():
    job = a_job(status=in_round(0), parallelism=2_000_000_000, spares=24)
    assert follow_of(observed(job), Leadership(1, 1, S, "")).message_bytes == (1 << 20) + 20_000 * 1024


def test_while_the_coordinator_is_on_the_line_only_its_standby_coordinators_are_called():
    snapshot = a_snapshot(standby_coordinators=[A1], voters=[A0, A1, S])
    follow = follow_of(observed(snapshot=snapshot), Leadership(1, 1, S, ""))
    assert (pods_of(follow.first), follow.others) == (["s", "a1"], ())


def test_a_running_pod_that_is_no_member_is_called_too():
    snapshot = a_snapshot([member(A0, 0), member(S, None)], voters=[A0, S])
    given = observed(pods=(A0, A1, S, starting(a_pod("new"))), snapshot=snapshot)
    assert pods_of(follow_of(given, Leadership(1, 1, S, "")).others) == ["a1"]


def test_all_pods_are_called_while_the_coordinator_has_no_majority_also_those_it_believes_lost():
    snapshot = a_snapshot([member(S, None)], voters=[A0, A1, S], lost=[lost(A0), lost(A1)])
    assert pods_of(follow_of(observed(snapshot=snapshot), Leadership(1, 1, S, "")).others) == ["a0", "a1", "s"]


def test_a_pod_without_an_address_is_not_called():
    pods = (A0, replace(A1, ip=""), S)
    follow = follow_of(observed(pods=pods, searches_since=NOW), Leadership(4, 1, replace(S, ip=""), ""))
    assert (pods_of(follow.first), pods_of(follow.others)) == ([], ["a0", "s"])


def test_no_pod_is_called_before_the_first_appointment():
    assert plan_link(observed(NEW_JOB), Leadership(0, 0, None, ""), NOW) is None


def test_the_lines_end_with_the_job():
    gone = (ended(A0), ended(A1), ended(S))
    closed = observed(pods=gone, snapshot=a_snapshot(closed=SUCCEEDED))
    assert plan_link(closed, Leadership(4, 1, S, ""), NOW) == Unfollow()


def test_pods_that_run_after_the_close_receive_it():
    """Found by the simulation (seed 200535): a coordinator that had been stopped closed the job, and no pod received
    the close.
    """
    given = observed(pods=(A0, ended(A1), S), snapshot=a_snapshot(closed=SUCCEEDED))
    others = follow_of(given, Leadership(4, 1, S, "")).others
    assert [(x.pod_uid, x.greeting) for x in others] == [
        (uid, End(SUCCEEDED.reason, SUCCEEDED.message)) for uid in ("uid-a0", "uid-s")
    ]


def test_a_job_that_is_deleted_is_closed_unless_its_pods_are_to_stay():
    deleted = plan_link(observed(a_job(deleting=True)), Leadership(4, 1, S, ""), NOW)
    assert deleted == JOB_DELETED == Unfollow(End(CloseReason.DELETED, "the TrainingJob was deleted"))
    orphaning = replace(a_job(deleting=True), orphans=True)
    assert plan_link(observed(orphaning), Leadership(4, 1, S, ""), NOW) == Unfollow()


# The node facts that the coordinator gets ---------------------------------------------------------------------------


def test_the_coordinator_gets_the_domain_of_each_node_of_the_jobs_pods():
    racks = {A0.node: {"rack": "x"}, A1.node: {}, S.node: {"rack": "y"}, "node-other": {"rack": "z"}, "node-e": {}}
    nodes = {name: Node(name, True, labels=labels) for name, labels in racks.items()}
    pods = (A0, A1, S, pending(a_pod("p")), ended(a_pod("e")), replace(a_pod("t"), node=A0.node))
    given = observed(a_job(status=in_round(0), topology_key="rack"), pods, nodes=nodes)
    result = (NodeFact("node-a0", "x"), NodeFact("node-a1", ""), NodeFact("node-s", "y"))
    assert follow_of(given, Leadership(1, 1, S, "")).nodes == result


def test_the_coordinator_gets_no_domains_without_a_topology_key():
    assert follow_of(observed(), Leadership(1, 1, S, "")).nodes == ()


def test_the_coordinator_gets_the_findings_about_nodes():
    nodes = {x.node: Node(x.node, True, findings=(XID_79,) if x is A1 else ()) for x in (A0, A1, S)}
    fact = NodeFact("node-a1", "", "nvsentinel-xid: Xid 79", None, FaultClass.HARDWARE)
    assert follow_of(observed(nodes=nodes), Leadership(1, 1, S, "")).nodes == (fact,)


def test_a_node_that_will_be_shut_down_is_distinguished_from_broken_hardware():
    """A sidecar that reads only `hardware_finding`, as older versions do, lets its workers save."""
    spot = Finding("gke-termination", FaultClass.PREEMPTION, "taint x", NOW + 30, 15.0)
    given = observed(nodes={A1.node: Node(A1.node, True, findings=(spot,))})
    (fact,) = follow_of(given, Leadership(1, 1, S, "")).nodes
    assert (fact.hardware_finding, fact.leaving_reason) == ("", "gke-termination: taint x")
    assert (fact.fault_class, fact.grace_s, fact.until) == (FaultClass.PREEMPTION, 15.0, NOW + 30)


def test_an_expired_finding_is_not_sent():
    gone = replace(XID_79, until=NOW)
    given = observed(nodes={A1.node: Node(A1.node, True, findings=(gone,))})
    assert follow_of(given, Leadership(1, 1, S, "")).nodes == ()


def test_age_decides_between_spares_whatever_their_names():
    first, second = a_pod("z", created_at=AN_HOUR_AGO), a_pod("b", created_at=NOW)
    assert appointed(observed(NEW_JOB, (A0, A1, second, first)))[0] == "z"


def test_an_epoch_is_newer_than_the_last_one_even_if_the_clock_was_set_back():
    job = a_job(status=in_round(3, coordinator="s", epoch=int(NOW) + 100, term=0))
    assert appointed(observed(job, (A0, A1)))[1] == int(NOW) + 101
