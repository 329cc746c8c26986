"""Fresh, Updating, Uncertain: the weights of a replica, as far as they can be known."""

from __future__ import annotations

import pytest

from understudy_rollout.weights import (
    Abandon,
    Begin,
    Commit,
    Event,
    EventRejected,
    Group,
    JoinGroup,
    UpdateCall,
    Weights,
    WeightsLost,
    WeightsState,
    WeightsStatus,
)

NEVER_UPDATED = "no update has reached this server yet"

GROUP = Group("10.0.0.7", 29500, 9, "of-this-update")


def after(*events: Event, fresh: str = "") -> Weights:
    weights = Weights.fresh(fresh) if fresh else Weights()
    for event in events:
        weights.handle(event)
    return weights


def seen(weights: Weights) -> tuple[WeightsState, str]:
    return weights.state, weights.version


def test_a_server_without_an_update_is_uncertain_unless_its_initial_version_is_given() -> None:
    assert seen(after()) == (WeightsState.UNCERTAIN, "")
    assert after().reason == NEVER_UPDATED
    assert seen(after(fresh="base")) == (WeightsState.FRESH, "base")


def test_a_completed_update_sets_its_version() -> None:
    assert seen(after(Begin("u", "7"))) == (WeightsState.UPDATING, "7")
    assert seen(after(Begin("u", "7"), Commit("u"))) == (WeightsState.FRESH, "7")


def test_an_update_that_touched_nothing_restores_the_previous_state() -> None:
    assert seen(after(Begin("u", "7"), Abandon("u", False, "why"), fresh="6")) == (WeightsState.FRESH, "6")
    weights = after(Begin("t", "6"), Abandon("t", True, "torn"), Begin("u", "7"), Abandon("u", False, "why"))
    assert (weights.state, weights.reason) == (WeightsState.UNCERTAIN, "torn")


def test_an_update_that_failed_in_its_transfer_leaves_uncertain_weights() -> None:
    weights = after(Begin("u", "7"), Abandon("u", True, "the transfer failed"), fresh="6")
    assert (weights.state, weights.version, weights.reason) == (WeightsState.UNCERTAIN, "", "the transfer failed")


def test_only_an_update_ends_uncertain() -> None:
    torn = (Begin("t", "6"), Abandon("t", True, "torn"))
    assert seen(after(*torn, Begin("u", "7"))) == (WeightsState.UPDATING, "7")
    assert seen(after(*torn, Begin("u", "7"), Commit("u"))) == (WeightsState.FRESH, "7")


def test_an_update_after_an_unfinished_one_does_not_trust_the_weights() -> None:
    # given a trainer that died in its update, and the next trainer's update, which fails before it touches anything
    weights = after(Begin("dead", "7"), Begin("u", "8"), Abandon("u", False, "why"), fresh="6")
    assert weights.state is WeightsState.UNCERTAIN
    assert weights.reason == "update dead to version 7 did not finish"


def test_a_repeated_event_is_already_done() -> None:
    assert seen(after(Begin("u", "7"), Begin("u", "7"), Commit("u"), Commit("u"))) == (WeightsState.FRESH, "7")
    assert seen(after(Begin("u", "7"), *[Abandon("u", True, "torn")] * 2)) == (WeightsState.UNCERTAIN, "")


def test_an_older_update_that_touched_nothing_is_rejected_and_changes_nothing() -> None:
    weights = after(Begin("old", "6"), Begin("u", "7"))
    with pytest.raises(EventRejected, match="update u runs"):
        weights.handle(Abandon("old", False, "why"))
    assert seen(weights) == (WeightsState.UPDATING, "7")


LATE = [UpdateCall("old", (1, 2, 3)), JoinGroup("old", GROUP), Commit("old"), Abandon("old", True, "why")]


@pytest.mark.parametrize("event", LATE)
def test_a_late_event_of_an_older_update_is_rejected_and_the_weights_are_uncertain(event: Event) -> None:
    weights = after(Begin("old", "6", (1, 2, 3)), Begin("u", "7", (1, 2, 4)), Commit("u"))
    with pytest.raises(EventRejected, match=r"update old( of round 1\.2\.3)? does not run here \(it is Fresh\)"):
        weights.handle(event)
    assert seen(weights) == (WeightsState.UNCERTAIN, "")
    assert "continued after a newer update had replaced it" in weights.reason


@pytest.mark.parametrize("event", LATE)
@pytest.mark.parametrize("end", [Commit("u"), Abandon("u", False, "why"), Abandon("u", True, "why")])
def test_an_update_that_meets_a_late_event_cannot_be_committed_but_undone(event: Event, end: Event) -> None:
    # given a running update, and a late event
    weights = after(Begin("old", "6"), Begin("u", "7"))
    with pytest.raises(EventRejected, match="update u runs"):
        weights.handle(event)
    assert weights.state is WeightsState.UNCERTAIN
    # then its own calls are accepted, to undo it
    weights.handle(UpdateCall("u"))
    # and however it ends, the weights stay Uncertain
    if isinstance(end, Commit):
        with pytest.raises(EventRejected, match=r"update u cannot be committed: update old.* may have written"):
            weights.handle(end)
    else:
        weights.handle(end)
    assert (weights.state, weights.update) == (WeightsState.UNCERTAIN, "")
    # until an update without a late event
    weights.handle(Begin("next", "8"))
    weights.handle(Commit("next"))
    assert seen(weights) == (WeightsState.FRESH, "8")


@pytest.mark.parametrize("end", [Commit("u"), Abandon("u", False, "why")])
def test_a_call_of_the_update_that_ended_last_is_rejected_and_changes_nothing(end: Event) -> None:
    weights = after(Begin("u", "7"), end, fresh="7")
    with pytest.raises(EventRejected, match=r"update u of round 0\.0\.0 has already ended here"):
        weights.handle(UpdateCall("u"))
    assert seen(weights) == (WeightsState.FRESH, "7")


@pytest.mark.parametrize("end", [Abandon("u", True, "why"), Abandon("u", False, "why"), Begin("dead", "8")])
def test_an_update_finds_a_group_that_may_not_have_been_left(end: Event) -> None:
    weights = after(Begin("u", "7"), JoinGroup("u", GROUP), end, Begin("next", "9"))
    assert weights.previous().group == GROUP


@pytest.mark.parametrize("end", [Commit("u"), WeightsLost("its server is another one")])
def test_no_update_finds_a_group_that_was_left_or_lost(end: Event) -> None:
    weights = after(Begin("u", "7"), JoinGroup("u", GROUP), end, Begin("next", "9"))
    assert weights.previous().group is None


def test_an_update_finds_the_previous_weights() -> None:
    assert after(Begin("u", "7"), fresh="6").previous().weights == WeightsStatus(WeightsState.FRESH, "6", "")
    assert after(Begin("u", "7"), Begin("v", "8"), fresh="6").previous().weights.state is WeightsState.UNCERTAIN


def test_a_commit_after_the_loss_of_the_engine_is_rejected() -> None:
    weights = after(Begin("u", "7"), WeightsLost("connection refused"))
    assert (weights.state, weights.reason) == (WeightsState.UNCERTAIN, "connection refused")
    with pytest.raises(EventRejected, match="it is Uncertain"):
        weights.handle(Commit("u"))


def test_an_update_may_be_abandoned_before_its_begin_and_cannot_begin_afterwards() -> None:
    # given a Begin that is delayed until its trainer has given up
    weights = after(Abandon("u", False, "cancelled"), fresh="6")
    with pytest.raises(EventRejected, match="has already ended here"):
        weights.handle(Begin("u", "7"))
    assert seen(weights) == (WeightsState.FRESH, "6")


def test_a_replaced_trainer_is_fenced_off() -> None:
    weights = after(Begin("new", "9", (1, 2, 4)), Commit("new"))
    with pytest.raises(EventRejected, match=r"round 1\.2\.3, and a trainer of the newer round 1\.2\.4 has replaced"):
        weights.handle(Begin("old", "8", (1, 2, 3)))
    assert seen(weights) == (WeightsState.FRESH, "9")
    weights.handle(Begin("same round", "10", (1, 2, 4)))
