"""Who coordinates, in which epoch and why; the label and the lines that follow. Elections: test_elections.py."""

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
from understudy_operator.plan.answers import NO_ANSWERS
from understudy_operator.plan.coordination import FAREWELL, Office, plan_label, plan_link, plan_office
from understudy_operator.plan.faults.verdicts import Finding
from understudy_operator.plan.intents import Callee, Follow, PatchPod, Unfollow
from understudy_operator.plan.observed import Coordination, Node, Observed
from understudy_protocol import pod as names
from understudy_protocol import words
from understudy_protocol.membership import Seat
from understudy_protocol.observer import Appoint, End, NodeFact, Refused
from understudy_protocol.words import CloseReason, FaultClass

REFUSED_S = 1.0
UNREACHABLE_S = 8.0

NEW_JOB = a_job()
AT = int(NOW)  # an epoch is the time of its appointment
#: Appointed, and not heard yet: there are no voters.
RUNNING = a_job(status=in_round(3, coordinator="s", epoch=4, term=0))


def appointed(given: Observed) -> tuple[str, int, str]:
    office = plan_office(given, NOW)
    return ("" if office.pod is None else office.pod.name), office.epoch, office.reason


# The first ----------------------------------------------------------------------------------------------------------


def test_a_pod_that_says_it_has_to_be_replaced_is_not_appointed():
    refused = Refused("not in office", replaced="its sidecar cannot store its state")
    given = observed(NEW_JOB, (A0, A1, S), coordination=Coordination(answers=NO_ANSWERS.refused(S.uid, refused, NOW)))
    assert appointed(given)[0] != "s"


def test_the_first_coordinator_is_the_oldest_spare_that_is_ready():
    younger, not_up = a_pod("younger", created_at=NOW), starting(a_pod("not-up", created_at=0.0))
    assert appointed(observed(NEW_JOB, (A0, A1, younger, S, not_up))) == ("s", int(NOW), "the job starts")


@pytest.mark.parametrize("spare", [pending(S), starting(S), ended(S), terminating(S)])
def test_while_no_spare_is_ready_all_actives_have_to_be(spare: Any):
    assert appointed(observed(NEW_JOB, (A0, starting(A1), spare))) == ("", 0, "")
    assert appointed(observed(NEW_JOB, (A1, A0, spare))) == ("a0", int(NOW), "the job starts")


def test_a_spare_gets_a_moment_to_come_up_before_an_active_coordinates():
    # given all actives up, and the spare a little later, as its image is pulled
    young = replace(NEW_JOB, created_at=NOW - 3)
    assert appointed(observed(young, (A0, A1, starting(S)))) == ("", 0, "")
    assert appointed(observed(young, (A0, A1, S))) == ("s", int(NOW), "the job starts")
    # then nobody waits for it for long, nor where none is wanted
    assert appointed(observed(replace(young, created_at=NOW - 10), (A0, A1, starting(S))))[0] == "a0"
    assert appointed(observed(replace(a_job(spares=0), created_at=NOW), (A0, A1)))[0] == "a0"


def test_nobody_coordinates_from_a_node_that_is_not_ready():
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
    "node": ({"not_ready": [S.node], "answered": [A0, A1, T]}, "node node-s of the coordinator's pod s is not ready"),
    "unreachable": (
        {"searches_since": NOW - UNREACHABLE_S, "answered": [A0, A1, T]},
        "the coordinator's pod s could not be reached for 8 s",
    ),
}


@pytest.mark.parametrize("case", UNFIT)
def test_a_successor_is_appointed_in_the_next_epoch(case: str):
    given, reason = UNFIT[case]
    assert appointed(observed(RUNNING, **given)) == ("a0", int(NOW), reason)


@pytest.mark.parametrize("case", UNFIT)
def test_the_successor_is_a_spare_where_one_waits(case: str):
    given, reason = UNFIT[case]
    pods = (*given.get("pods", (A0, A1, S)), T)
    assert appointed(observed(RUNNING, **(given | {"pods": pods}))) == ("t", int(NOW), reason)


def test_a_spare_that_has_taken_a_rank_is_no_spare_any_more_and_a_returned_active_is_one():
    promoted = replace(a_pod("t"), labels={names.LABEL_ROLE: names.ROLE_ACTIVE})
    returned = replace(A1, labels={names.LABEL_ROLE: names.ROLE_SPARE})
    assert appointed(observed(RUNNING, (A0, promoted, returned)))[0] == "a1"


@pytest.mark.parametrize("case", ["node", "unreachable"])
def test_one_that_may_live_is_succeeded_only_when_all_others_have_answered_or_have_stopped(case: str):
    """Found by the simulation (seed 42299): it trained with those whom the operator could not reach either."""
    given, reason = UNFIT[case]
    silent = given | {"answered": [A0]}
    assert appointed(observed(RUNNING, **silent))[2] == ""
    assert appointed(observed(RUNNING, **(silent | {"searches_since": NOW - 60.0})))[2] == reason


def test_one_that_has_lost_the_office_may_take_it_again_in_a_new_epoch():
    # given its sidecar was restarted
    def refused(seconds: float, named: str = "") -> Observed:
        return observed(RUNNING, answered=[S], searches_since=NOW - seconds, named=named)

    assert appointed(refused(REFUSED_S - 0.1)) == ("s", 4, "")  # it would be a hurry without an end
    assert appointed(refused(REFUSED_S)) == ("s", int(NOW), "pod s is not the coordinator: not in office")
    assert appointed(refused(REFUSED_S, named=A0.uid))[2] == ""  # that one is asked first


def test_a_member_that_is_lost_is_not_appointed():
    snapshot = a_snapshot([member(A1, 1)], lost=[lost(A0)])
    assert appointed(observed(RUNNING, (A0, A1), snapshot)) == ("a1", int(NOW), "the coordinator's pod is gone")


def test_an_epoch_is_higher_than_the_one_before_whatever_the_clock_says():
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


def test_who_is_found_in_office_is_the_coordinator_whatever_status_said():
    told = a_snapshot(coordinator=A1, epoch=4, term=3)
    assert plan_office(observed(RUNNING, snapshot=told), NOW) == Office(4, 3, A1, "")
    # and an older one changes nothing
    newer = a_job(status=in_round(3, coordinator="a0", epoch=5))
    assert plan_office(observed(newer, snapshot=told), NOW) == Office(5, 1, A0, "")


def test_a_coordinator_without_voters_on_the_line_stays_until_its_pod_is_lost():
    told = a_snapshot(epoch=4)
    for_long = Coordination(told, S.uid, NOW - 3600)
    assert plan_office(observed(RUNNING, coordination=for_long), NOW) == Office(4, 1, S, "")
    deleted = observed(RUNNING, (A0, A1, terminating(S)), told)
    assert appointed(deleted) == ("a0", AT, "the coordinator's pod s is being deleted")


def test_without_anybody_who_could_the_office_stays_as_it_is():
    assert appointed(observed(RUNNING, (starting(A0), pending(A1), ended(S)))) == ("s", 4, "")


@pytest.mark.parametrize(
    "given",
    [
        {"snapshot": a_snapshot(closed=SUCCEEDED), "pods": (A0, A1, ended(S))},
        {"job": a_job(status=in_round(3, epoch=4, terminalState="Failed")), "pods": (A0, A1)},
        {"job": a_job(status=in_round(3, epoch=4), deleting=True), "pods": (A0, A1, terminating(S))},
    ],
)
def test_after_the_end_of_the_job_nobody_is_appointed(given: dict[str, Any]):
    office = plan_office(observed(**({"job": RUNNING} | given)), NOW)
    assert (office.epoch, office.reason) == (4, "")


# The label, which the Service selects -------------------------------------------------------------------------------


def test_the_label_moves_with_the_office():
    labelled = replace(S, labels={**S.labels, names.LABEL_COORDINATOR: "true"})
    given = observed(RUNNING, (A0, A1, labelled))
    assert plan_label(given, Office(4, 1, labelled, "")) == ()
    assert plan_label(given, Office(5, 0, A0, "…")) == (
        PatchPod("a0", {names.LABEL_COORDINATOR: "true"}),
        PatchPod("s", {names.LABEL_COORDINATOR: None}),
    )


# The operator's own lines -------------------------------------------------------------------------------------------


def follow_of(given: Observed, office: Office) -> Follow:
    link = plan_link(given, office, NOW)
    assert isinstance(link, Follow)
    return link


def pods_of(callees: tuple[Callee, ...]) -> list[str]:
    return [callee.pod_uid.removeprefix("uid-") for callee in callees]


ALL_RUN = ("uid-a0", "uid-a1", "uid-s")


def test_the_appointee_is_told_who_may_come_to_it():
    given = observed(a_job(status=in_round(3)), pods=(A0, ended(A1), S, starting(a_pod("new"))))
    appoint = follow_of(given, Office(AT, 0, A0, "…")).first[0].appoint
    assert appoint is not None
    assert appoint.may_come == ("uid-a0", "uid-s")


def test_the_appointee_is_told_which_pods_held_the_ranks_and_which_one_coordinated():
    # given a round of which no coordinator can name the pods
    told = a_snapshot([member(A0, 0), member(A1, 1), member(S, None)], number=3, coordinator=A1)
    seats = (Seat(0, "uid-a0", "a0", A0.node), Seat(1, "uid-a1", "a1", A1.node))
    for pods, answered, first in [
        # all pods may run: the node of one may have lost its power a moment ago
        ((A0, A1, S), [], seats),
        # the pod with rank 1 has ended, or only the pod with rank 0 has answered: it is named first
        ((A0, ended(A1), S), [], seats[::-1]),
        ((A0, A1, S), [A0], seats[::-1]),
    ]:
        given = observed(a_job(status=in_round(3)), pods, told, searches_since=NOW - 60, answered=answered)
        appoint = follow_of(given, Office(AT, 0, S, "…")).first[0].appoint
        assert appoint is not None
        assert (appoint.seats, appoint.holder) == (first, "uid-a1")
    # and none if the operator has not heard of the newest round
    older = observed(a_job(status=in_round(4)), (A0, A1, S), told, searches_since=NOW - 60)
    appoint = follow_of(older, Office(AT, 0, S, "…")).first[0].appoint
    assert appoint is not None
    assert (appoint.seats, appoint.holder) == ((), "")


def test_an_appointment_names_a_hundred_pods_at_most():
    pods = [a_pod(f"a{number}", number) for number in range(150)]
    told = a_snapshot([member(pod, number) for number, pod in enumerate(pods)], number=3)
    there = [ended(pod) if pod.index == 149 else pod for pod in pods]
    given = observed(a_job(status=in_round(3), parallelism=150), there, told, searches_since=NOW - 60)
    appoint = follow_of(given, Office(AT, 0, pods[0], "…")).first[0].appoint
    assert appoint is not None
    assert [seat.group_rank for seat in appoint.seats] == [149, *range(99)]


def test_a_sidecar_that_is_restarted_may_come_and_one_that_has_answered():
    restarted = replace(A1, sidecar_started=False)
    doubted = a_snapshot(lost=[lost(A0)])
    given = observed(pods=(A0, restarted, S), snapshot=doubted, searches_since=NOW - 60, answered=[A0])
    appoint = follow_of(given, Office(AT, 0, S, "…")).first[0].appoint
    assert appoint is not None
    assert appoint.may_come == ALL_RUN


def test_the_appointee_is_called_first_with_what_status_tells():
    status = in_round(3, epoch=4, term=0, recoveriesByStrategy={"inPlace": 2, "spareSwap": 1})
    given = observed(a_job(status=status))
    follow = follow_of(given, Office(4, 0, S, ""))
    assert follow.first[0] == Callee("uid-s", S.ip, Appoint(4, 3, {"InPlace": 2, "SpareSwap": 1}, ALL_RUN))
    assert follow.office == words.Office(4, 0)


def test_the_first_appointment_tells_that_no_round_was_before():
    assert follow_of(observed(NEW_JOB), Office(1, 0, S, "")).first[0].appoint == Appoint(1, -1, {}, ALL_RUN)


def test_an_appointment_is_above_the_newest_round_also_where_status_has_not_told_it_yet():
    given = observed(a_job(status=in_round(3)), snapshot=a_snapshot(number=5))
    appoint = follow_of(given, Office(AT, 0, A0, "…")).first[0].appoint
    assert appoint is not None
    assert (appoint.epoch, appoint.at_least_round, appoint.may_come) == (AT, 5, ALL_RUN)


def test_who_was_heard_in_office_is_not_appointed_again():
    assert follow_of(observed(), Office(1, 1, S, "")).first == (Callee("uid-s", S.ip),)
    assert follow_of(observed(), Office(1, 7, A0, "")).first == (Callee("uid-a0", A0.ip),)


def test_heirs_come_after_the_last_coordinator_then_everybody_whose_sidecar_runs():
    told = a_snapshot(heirs=[A1, a_pod("gone"), a_pod("u"), A0], electorate=[A0, A1, S])
    pods = (A0, A1, S, starting(a_pod("new")), a_pod("t"), ended(a_pod("u")), terminating(a_pod("v")))
    follow = follow_of(observed(pods=pods, snapshot=told, searches_since=NOW), Office(1, 1, S, ""))
    assert pods_of(follow.first) == ["s", "a1", "a0"]
    assert pods_of(follow.others) == ["a0", "a1", "s", "t", "v"]
    assert follow.running == {pod.uid: pod.ip for pod in pods if pod.uid != "uid-u"}
    # nor is the last coordinator called once it has ended
    assert pods_of(follow_of(observed(pods=(A0, ended(S))), Office(1, 1, ended(S), "")).first) == []


def test_a_message_may_have_1_mib_and_1_kib_for_each_pod_that_the_job_declares():
    assert follow_of(observed(), Office(1, 1, S, "")).message_bytes == (1 << 20) + 3 * 1024
    job = a_job(status=in_round(0), parallelism=1000, spares=24)
    assert follow_of(observed(job), Office(1, 1, S, "")).message_bytes == (2 << 20)


@pytest.mark.attack(
    "B2",
    "makes a PyTorchJob of 2,000,000,000 replicas, whose pod sends a message without end",
    before="the limit of a message was 1,907 GiB, and the operator kept all of it",
)
def test_no_message_may_have_more_than_one_of_a_job_of_20000_pods():
    job = a_job(status=in_round(0), parallelism=2_000_000_000, spares=24)
    assert follow_of(observed(job), Office(1, 1, S, "")).message_bytes == (1 << 20) + 20_000 * 1024


def test_while_the_coordinator_is_on_the_line_only_its_heirs_are_kept_in_mind():
    told = a_snapshot(heirs=[A1], electorate=[A0, A1, S])
    follow = follow_of(observed(snapshot=told), Office(1, 1, S, ""))
    assert (pods_of(follow.first), follow.others) == (["s", "a1"], ())


def test_who_runs_and_is_no_member_of_the_coordinators_is_asked_too():
    told = a_snapshot([member(A0, 0), member(S, None)], electorate=[A0, S])
    given = observed(pods=(A0, A1, S, starting(a_pod("new"))), snapshot=told)
    assert pods_of(follow_of(given, Office(1, 1, S, "")).others) == ["a1"]


def test_everybody_is_called_while_the_coordinator_hears_no_majority_also_whom_it_believes_lost():
    told = a_snapshot([member(S, None)], electorate=[A0, A1, S], lost=[lost(A0), lost(A1)])
    assert pods_of(follow_of(observed(snapshot=told), Office(1, 1, S, "")).others) == ["a0", "a1", "s"]


def test_a_pod_without_an_address_is_not_called():
    pods = (A0, replace(A1, ip=""), S)
    follow = follow_of(observed(pods=pods, searches_since=NOW), Office(4, 1, replace(S, ip=""), ""))
    assert (pods_of(follow.first), pods_of(follow.others)) == ([], ["a0", "s"])


def test_before_the_first_appointment_there_is_nobody_to_call():
    assert plan_link(observed(NEW_JOB), Office(0, 0, None, ""), NOW) is None


def test_the_lines_end_with_the_job():
    gone = (ended(A0), ended(A1), ended(S))
    closed = observed(pods=gone, snapshot=a_snapshot(closed=SUCCEEDED))
    assert plan_link(closed, Office(4, 1, S, ""), NOW) == Unfollow()


def test_pods_that_run_after_the_close_are_told_of_it():
    """Found by the simulation (seed 200535): a coordinator that had stood still closed the job, and nobody heard it."""
    given = observed(pods=(A0, ended(A1), S), snapshot=a_snapshot(closed=SUCCEEDED))
    told = follow_of(given, Office(4, 1, S, "")).others
    assert [(x.pod_uid, x.greeting) for x in told] == [
        (uid, End(SUCCEEDED.reason, SUCCEEDED.message)) for uid in ("uid-a0", "uid-s")
    ]


def test_a_job_that_is_deleted_is_closed_unless_its_pods_are_to_stay():
    deleted = plan_link(observed(a_job(deleting=True)), Office(4, 1, S, ""), NOW)
    assert deleted == FAREWELL == Unfollow(End(CloseReason.DELETED, "the TrainingJob was deleted"))
    orphaning = replace(a_job(deleting=True), orphans=True)
    assert plan_link(observed(orphaning), Office(4, 1, S, ""), NOW) == Unfollow()


# What the coordinator is told of nodes ------------------------------------------------------------------------------


def test_the_coordinator_is_told_the_domain_of_each_node_of_the_jobs_pods():
    racks = {A0.node: {"rack": "x"}, A1.node: {}, S.node: {"rack": "y"}, "node-other": {"rack": "z"}, "node-e": {}}
    nodes = {name: Node(name, True, labels=labels) for name, labels in racks.items()}
    pods = (A0, A1, S, pending(a_pod("p")), ended(a_pod("e")), replace(a_pod("t"), node=A0.node))
    given = observed(a_job(status=in_round(0), topology_key="rack"), pods, nodes=nodes)
    told = (NodeFact("node-a0", "x"), NodeFact("node-a1", ""), NodeFact("node-s", "y"))
    assert follow_of(given, Office(1, 1, S, "")).nodes == told


def test_without_a_topology_key_it_is_told_nothing_of_nodes():
    assert follow_of(observed(), Office(1, 1, S, "")).nodes == ()


def test_but_what_is_held_against_them():
    nodes = {x.node: Node(x.node, True, findings=(XID_79,) if x is A1 else ()) for x in (A0, A1, S)}
    fact = NodeFact("node-a1", "", "nvsentinel-xid: Xid 79", None, FaultClass.HARDWARE)
    assert follow_of(observed(nodes=nodes), Office(1, 1, S, "")).nodes == (fact,)


def test_a_node_that_goes_is_told_apart_from_one_whose_hardware_is_broken():
    """Whoever reads only `faulty`, as older sidecars do, lets its workers save."""
    spot = Finding("gke-termination", FaultClass.PREEMPTION, "taint x", NOW + 30, 15.0)
    given = observed(nodes={A1.node: Node(A1.node, True, findings=(spot,))})
    (fact,) = follow_of(given, Office(1, 1, S, "")).nodes
    assert (fact.faulty, fact.going) == ("", "gke-termination: taint x")
    assert (fact.fault_class, fact.grace_s, fact.until) == (FaultClass.PREEMPTION, 15.0, NOW + 30)


def test_what_has_expired_is_not_told():
    gone = replace(XID_79, until=NOW)
    given = observed(nodes={A1.node: Node(A1.node, True, findings=(gone,))})
    assert follow_of(given, Office(1, 1, S, "")).nodes == ()


def test_age_decides_between_spares_whatever_their_names():
    first, second = a_pod("z", created_at=AN_HOUR_AGO), a_pod("b", created_at=NOW)
    assert appointed(observed(NEW_JOB, (A0, A1, second, first)))[0] == "z"


def test_an_epoch_is_newer_than_the_last_one_even_where_the_clock_went_back():
    job = a_job(status=in_round(3, coordinator="s", epoch=int(NOW) + 100, term=0))
    assert appointed(observed(job, (A0, A1)))[1] == int(NOW) + 101
