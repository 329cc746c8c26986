"""Fresh, Updating, Uncertain: which weights a replica holds, as far as anybody can know."""

from __future__ import annotations

import pytest

from understudy_rollout.weights import NEVER_UPDATED, Abandon, Begin, Commit, Lost, Refused, State, Weights


def after(*events: Begin | Commit | Abandon | Lost, fresh: str = "") -> Weights:
    weights = Weights.fresh(fresh) if fresh else Weights()
    for event in events:
        weights.handle(event)
    return weights


def seen(weights: Weights) -> tuple[State, str]:
    return weights.state, weights.version


def test_a_server_that_has_seen_no_update_is_uncertain_unless_it_is_told_what_it_holds() -> None:
    assert seen(after()) == (State.UNCERTAIN, "")
    assert after().reason == NEVER_UPDATED
    assert seen(after(fresh="base")) == (State.FRESH, "base")


def test_an_update_that_comes_to_its_end_leaves_its_version() -> None:
    assert seen(after(Begin("u", "7"))) == (State.UPDATING, "7")
    assert seen(after(Begin("u", "7"), Commit("u"))) == (State.FRESH, "7")


def test_an_update_that_touched_nothing_leaves_what_was_there() -> None:
    assert seen(after(Begin("u", "7"), Abandon("u", False, "why"), fresh="6")) == (State.FRESH, "6")
    weights = after(Begin("t", "6"), Abandon("t", True, "torn"), Begin("u", "7"), Abandon("u", False, "why"))
    assert (weights.state, weights.reason) == (State.UNCERTAIN, "torn")


def test_an_update_that_failed_in_its_transfer_leaves_nobody_knows_what() -> None:
    weights = after(Begin("u", "7"), Abandon("u", True, "the transfer failed"), fresh="6")
    assert (weights.state, weights.version, weights.reason) == (State.UNCERTAIN, "", "the transfer failed")


def test_only_an_update_ends_uncertain() -> None:
    torn = (Begin("t", "6"), Abandon("t", True, "torn"))
    assert seen(after(*torn, Begin("u", "7"))) == (State.UPDATING, "7")
    assert seen(after(*torn, Begin("u", "7"), Commit("u"))) == (State.FRESH, "7")


def test_an_update_over_one_that_had_no_end_does_not_trust_what_that_left() -> None:
    # given a trainer that died in its update, and the next one's, which fails before it touches anything
    weights = after(Begin("dead", "7"), Begin("u", "8"), Abandon("u", False, "why"), fresh="6")
    assert weights.state is State.UNCERTAIN
    assert weights.reason == "update dead to version 7 had no end"


def test_a_repetition_is_done_already() -> None:
    assert seen(after(Begin("u", "7"), Begin("u", "7"), Commit("u"), Commit("u"))) == (State.FRESH, "7")
    assert seen(after(Begin("u", "7"), *[Abandon("u", True, "torn")] * 2)) == (State.UNCERTAIN, "")


@pytest.mark.parametrize("event", [Commit("old"), Abandon("old", True, "why"), Abandon("old", False, "why")])
def test_another_updates_end_is_refused_while_one_runs(event: Commit | Abandon) -> None:
    weights = after(Begin("old", "6"), Begin("u", "7"))
    with pytest.raises(Refused, match="update u runs"):
        weights.handle(event)
    assert seen(weights) == (State.UPDATING, "7")


def test_a_commit_after_the_engine_was_lost_is_refused() -> None:
    weights = after(Begin("u", "7"), Lost("connection refused"))
    assert (weights.state, weights.reason) == (State.UNCERTAIN, "connection refused")
    with pytest.raises(Refused, match="it is Uncertain"):
        weights.handle(Commit("u"))


def test_an_update_may_be_abandoned_before_it_was_heard_of_and_does_not_begin_afterwards() -> None:
    # given a Begin that is still on its way when its trainer gives up
    weights = after(Abandon("u", False, "cancelled"), fresh="6")
    with pytest.raises(Refused, match="has ended here already"):
        weights.handle(Begin("u", "7"))
    assert seen(weights) == (State.FRESH, "6")


def test_a_trainer_that_was_replaced_is_fenced_off() -> None:
    weights = after(Begin("new", "9", (1, 2, 4)), Commit("new"))
    with pytest.raises(Refused, match=r"round 1\.2\.3, and there was one of round 1\.2\.4: a newer trainer"):
        weights.handle(Begin("old", "8", (1, 2, 3)))
    assert seen(weights) == (State.FRESH, "9")
    weights.handle(Begin("same round", "10", (1, 2, 4)))
