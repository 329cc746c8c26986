"""Who coordinates, in which epoch and why; the label and the link that follow."""

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
from understudy_operator.plan.coordination import UNREACHABLE_S, Office, plan_label, plan_link, plan_office
from understudy_operator.plan.intents import Follow, PatchPod, Unfollow
from understudy_operator.plan.observed import Observed
from understudy_protocol import pod as names

NEW_JOB = a_job()
AT = int(NOW)  # an epoch is the time of its appointment
RUNNING = a_job(status=in_round(3, coordinator="s", epoch=4))


def appointed(given: Observed) -> tuple[str, int, str]:
    office = plan_office(given, NOW)
    return ("" if office.pod is None else office.pod.name), office.epoch, office.reason


# The first ----------------------------------------------------------------------------------------------------------


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

UNFIT: Mapping[str, tuple[dict[str, Any], str]] = {
    "gone": ({"pods": (A0, A1)}, "the coordinator's pod is gone"),
    "ended": ({"pods": (A0, A1, ended(S))}, "the coordinator's pod s has ended"),
    "deleting": ({"pods": (A0, A1, terminating(S))}, "the coordinator's pod s is being deleted"),
    "node": ({"not_ready": [S.node]}, "node node-s of the coordinator's pod s is not ready"),
    "unreachable": (
        {"unreachable_since": NOW - UNREACHABLE_S},
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
    pods = (*given.get("pods", (A0, A1, S)), a_pod("t"))
    assert appointed(observed(RUNNING, **(given | {"pods": pods}))) == ("t", int(NOW), reason)


def test_a_spare_that_has_taken_a_rank_is_no_spare_any_more_and_a_returned_active_is_one():
    promoted = replace(a_pod("t"), labels={names.LABEL_ROLE: names.ROLE_ACTIVE})
    returned = replace(A1, labels={names.LABEL_ROLE: names.ROLE_SPARE})
    assert appointed(observed(RUNNING, (A0, promoted, returned)))[0] == "a1"


def test_one_that_has_lost_the_office_may_take_it_again_in_a_new_epoch():
    # given its sidecar was restarted
    given = observed(RUNNING, refused="this sidecar is not in office")
    assert appointed(given) == ("s", int(NOW), "s does not coordinate: this sidecar is not in office")


def test_a_member_that_is_lost_is_not_appointed():
    snapshot = a_snapshot([member(A1, 1)], lost=[lost(A0)])
    assert appointed(observed(RUNNING, (A0, A1), snapshot)) == ("a1", int(NOW), "the coordinator's pod is gone")


def test_an_epoch_is_higher_than_the_one_before_whatever_the_clock_says():
    ahead = a_job(status=in_round(3, coordinator="s", epoch=AT + 60))
    assert appointed(observed(ahead, (A0, A1)))[:2] == ("a0", AT + 61)


FIT: Mapping[str, dict[str, Any]] = {
    "nothing is wrong": {},
    "it was unreachable for a moment only": {"unreachable_since": NOW - UNREACHABLE_S + 0.1},
    "another one was unreachable, before it": {"unreachable_since": NOW - 60, "followed": A0},
    "another one refused, before it": {"refused": "this sidecar is not in office", "followed": A0},
}


@pytest.mark.parametrize("case", FIT)
def test_the_coordinator_stays_in_its_epoch_when(case: str):
    assert appointed(observed(RUNNING, **FIT[case])) == ("s", 4, "")


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
    assert plan_label(given, Office(4, labelled, "")) == ()
    assert plan_label(given, Office(5, A0, "…")) == (
        PatchPod("a0", {names.LABEL_COORDINATOR: "true"}),
        PatchPod("s", {names.LABEL_COORDINATOR: None}),
    )


# The operator's own link --------------------------------------------------------------------------------------------


def test_the_link_goes_to_the_office_with_what_status_tells():
    status = in_round(3, recoveriesByStrategy={"inPlace": 2, "spareSwap": 1})
    given = observed(a_job(status=status))
    follow = plan_link(given, Office(4, S, ""))
    assert follow == Follow("uid-s", S.ip, 4, at_least_round=3, recoveries_by_strategy={"InPlace": 2, "SpareSwap": 1})


def test_the_first_link_tells_that_no_round_was_before():
    assert plan_link(observed(NEW_JOB), Office(1, S, "")) == Follow("uid-s", S.ip, 1, -1, {})


@pytest.mark.parametrize("office", [Office(0, None, ""), Office(4, replace(S, ip=""), "")])
def test_without_an_address_the_link_stays_as_it_is(office: Office):
    assert plan_link(observed(RUNNING), office) is None


@pytest.mark.parametrize("given", [{"snapshot": a_snapshot(closed=SUCCEEDED)}, {"job": a_job(deleting=True)}])
def test_the_link_ends_with_the_job(given: dict[str, Any]):
    assert plan_link(observed(**given), Office(4, S, "")) == Unfollow()


def test_age_decides_between_spares_whatever_their_names():
    first, second = a_pod("z", created_at=AN_HOUR_AGO), a_pod("b", created_at=NOW)
    assert appointed(observed(NEW_JOB, (A0, A1, second, first)))[0] == "z"


def test_an_epoch_is_newer_than_the_last_one_even_where_the_clock_went_back():
    job = a_job(status=in_round(3, coordinator="s", epoch=int(NOW) + 100))
    assert appointed(observed(job, (A0, A1)))[1] == int(NOW) + 101
