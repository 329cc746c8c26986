"""Rejected writes: when they are retried, and their message in status meanwhile."""

import time
from itertools import pairwise

import pytest

from understudy_operator.plan.facts.refusals import Refusal, RefusalKind
from understudy_operator.plan.intents import CREATE_POD, CreatePod, Intent, PatchPod, Plan, intent_key
from understudy_operator.plan.world.retries import Retries, is_same_refusal, without_paused

FORGET_AFTER_S = 20.0
RETRIES_PER_S = 20.0
TRY_AGAIN_S = 10.0
REWORD_AFTER_S = 60.0

CREATION, PATCH, OTHER = CreatePod({"kind": "Pod"}, "it is missing"), PatchPod("a"), PatchPod("b")
NOW = 1_790_000_000.0


def refusal(words: str = "no", intent: Intent = PATCH, kind: RefusalKind = RefusalKind.ADMISSION) -> Refusal:
    return Refusal(words, kind, intent_key(intent))


def pause_s(retries: Retries, intent: Intent = PATCH, now: float = NOW) -> float:
    return retries.paused(now)[intent_key(intent)] - now


def test_pauses_grow_up_to_a_limit():
    retries, pauses = Retries(), []
    for _ in range(8):
        retries = retries.after([PATCH], [refusal()], NOW)
        pauses.append(pause_s(retries))
    assert pauses == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, TRY_AGAIN_S, TRY_AGAIN_S]


def test_a_write_into_a_namespace_that_is_being_deleted_is_not_retried_for_a_minute():
    """300 jobs sent 2,539 requests while the API server deleted their namespace, within 80 s."""
    retries = Retries().after([PATCH], [refusal("being terminated", kind=RefusalKind.NAMESPACE)], NOW)
    assert pause_s(retries) == 60.0


def test_a_successful_write_has_no_pause_and_no_report():
    refused = Retries().after([PATCH, OTHER], [refusal(), refusal("not that", OTHER)], NOW)
    assert [x.message for x in refused.refusals] == ["no", "not that"]
    done = refused.after([PATCH], [], NOW + 1)
    assert ([x.message for x in done.refusals], list(done.paused(NOW))) == (["not that"], [intent_key(OTHER)])


def test_a_refusal_of_a_write_that_is_no_longer_planned_is_not_reported():
    refused = Retries().after([PATCH, CREATION], [refusal(), refusal("full", CREATION, RefusalKind.QUOTA)], NOW)
    assert refused.keep_wanted(Plan(pods=(PATCH,), paused_writes=frozenset({CREATE_POD})), NOW) == refused
    assert [x.message for x in refused.keep_wanted(Plan(pods=(PATCH,)), NOW).refusals] == ["no"]
    assert refused.keep_wanted(Plan(), NOW + 0.25 + FORGET_AFTER_S) == Retries()


def test_a_write_that_is_planned_again_is_not_retried_sooner():
    """Otherwise two plans that alternate would each try their write in every reconcile."""
    refused = Retries().after([PATCH], [refusal()], NOW).keep_wanted(Plan(pods=(OTHER,)), NOW)
    assert (refused.refusals, pause_s(refused)) == ((), 0.25)
    again = refused.after([PATCH], [refusal()], NOW + 0.1)
    assert pause_s(again, now=NOW + 0.1) == 0.5
    assert [x.message for x in again.refusals] == ["no"]


def test_a_pause_applies_to_all_writes_of_its_key_and_to_no_others():
    retries = Retries().after([PATCH, CREATION], [refusal(intent=CREATION)], NOW)
    plan = Plan(pods=(PATCH, CREATION, CREATION), remove="its time is over")
    kept = without_paused(plan, retries.paused(NOW), NOW + 0.2)
    assert (kept.pods, kept.remove, kept.paused_writes) == ((PATCH,), "its time is over", frozenset({CREATE_POD}))
    assert without_paused(plan, retries.paused(NOW), NOW + 0.25) == plan


def test_a_clock_that_was_set_back_ends_all_pauses():
    retries = Retries().after([PATCH], [refusal()], NOW)
    assert retries.paused(NOW - 3600) == {}


def test_each_refusal_is_reported_once_in_a_stable_order():
    refused = [refusal("no"), refusal("no", OTHER), refusal("full", CREATION, RefusalKind.QUOTA)]
    retries = Retries().after([PATCH, OTHER, CREATION], refused, NOW)
    again = retries.after([PATCH], [refusal("no")], NOW + 1)
    assert [(x.message, x.key) for x in again.refusals] == [("no", ""), ("full", "")]


def test_the_rate_of_retries_is_limited():
    patches = [PatchPod(f"pod-{number}") for number in range(2000)]
    retries = Retries().after(patches, [refusal(intent=patch) for patch in patches], NOW)
    assert pause_s(retries, patches[0]) == 2000 / RETRIES_PER_S


ID = 'admission webhook "w" denied the request: no (request 8f14e45f-ceea-467f, 2026-11-22T10:00:{:02d}Z, pod {})'


def test_messages_that_differ_only_in_an_id_or_a_time_stay_unchanged_for_a_while():
    retries = Retries()
    for second in range(50):
        retries = retries.after([PATCH], [refusal(ID.format(second, f"x-{second}f"))], NOW + second)
        assert retries.refusals == (Refusal(ID.format(0, "x-0f"), RefusalKind.ADMISSION),)
    newest = ID.format(59, "x-59f")
    assert retries.after([PATCH], [refusal(newest)], NOW + REWORD_AFTER_S).refusals == (
        Refusal(newest, RefusalKind.ADMISSION),
    )


@pytest.mark.parametrize(
    "other",
    [refusal(ID.format(1, "a1").replace("no", "never")), refusal(ID.format(1, "a1"), kind=RefusalKind.WEBHOOK)],
    ids=["words", "why"],
)
def test_another_refusal_is_reported_at_once_with_the_same_pause(other: Refusal):
    retries = Retries().after([PATCH], [refusal(ID.format(0, "a0"))], NOW)
    later = retries.after([PATCH], [other], NOW + 1)
    assert [(x.message, x.kind) for x in later.refusals] == [(other.message, other.kind)]
    assert pause_s(later, now=NOW + 1) == 0.5


def test_quota_messages_with_other_numbers_are_the_same_refusal():
    quotas = [f"exceeded quota: team, requested: pods=1, used: pods={n}, limited: pods=9" for n in (8, 9)]
    assert all(is_same_refusal(one, other) for one, other in pairwise(quotas))
    assert not is_same_refusal(quotas[0], quotas[0].replace("team", "others"))
    assert not is_same_refusal("", quotas[0])


@pytest.mark.attack(
    "A1",
    "gives a pod template a variable whose name has 200 KB, which the API server quotes as it refuses the pod",
    before="comparing two refusals took the square of its length: 2.5 s for 16,000 characters",
)
@pytest.mark.parametrize("word", ["a" * 1_000_000, "a " * 500_000, "a1" * 500_000, ".-" * 500_000, "é" * 1_000_000])
def test_comparing_messages_takes_cpu_time_in_proportion_to_their_length(word: str):
    began = time.thread_time()
    assert is_same_refusal(f"Invalid value: {word} at 1", f"Invalid value: {word} at 2")
    # 2 MB each
    assert time.thread_time() - began < 2.0
