"""The undos that an update owes after each of its steps."""

from __future__ import annotations

import pytest

from understudy_rollout.update_steps import STEPS, UNDO_ORDER, OutOfOrder, ReplicaWeights, Step, Undo, UpdateProgress


def upto(step: Step, *, done: bool) -> UpdateProgress:
    progress = UpdateProgress()
    for each in STEPS[: STEPS.index(step)]:
        progress = progress.begin(each).end()
    progress = progress.begin(step)
    return progress.end() if done else progress


def test_a_step_that_has_begun_is_undone_whether_it_is_done_or_not() -> None:
    for done in (False, True):
        assert upto(Step.RELEASE_KV, done=done).owed == (Undo.RESUME_KV, Undo.RESUME_GENERATION, Undo.SETTLE)


def test_an_undo_is_owed_until_its_step_is_done_on_all_replicas() -> None:
    assert Undo.LEAVE_GROUP in upto(Step.LEAVE_GROUP, done=False).owed
    assert Undo.LEAVE_GROUP not in upto(Step.LEAVE_GROUP, done=True).owed


def test_nothing_is_owed_before_the_first_step_and_after_the_last() -> None:
    assert UpdateProgress().owed == ()
    assert upto(Step.OPEN, done=True).owed == ()


@pytest.mark.parametrize("step", STEPS)
def test_undos_come_in_one_order(step: Step) -> None:
    owed = upto(step, done=False).owed
    assert list(owed) == sorted(owed, key=UNDO_ORDER.index)
    assert owed[-1] is Undo.SETTLE, "admission is settled last: by then the engine can generate"


def test_weights_are_mixed_from_the_start_of_the_transfer_to_the_end_of_finalize() -> None:
    weights = {step: (upto(step, done=False).replica_weights, upto(step, done=True).replica_weights) for step in STEPS}
    assert weights[Step.BUILD_GROUP] == (ReplicaWeights.OLD, ReplicaWeights.OLD)
    assert weights[Step.TRANSFER] == (ReplicaWeights.MIXED, ReplicaWeights.MIXED)
    assert weights[Step.FINALIZE] == (ReplicaWeights.MIXED, ReplicaWeights.NEW)
    assert weights[Step.RESUME_KV] == (ReplicaWeights.NEW, ReplicaWeights.NEW)


def test_steps_are_taken_in_their_order_and_once() -> None:
    with pytest.raises(OutOfOrder, match="'release the KV cache' cannot begin"):
        UpdateProgress().begin(Step.RELEASE_KV)
    with pytest.raises(OutOfOrder, match="is not done"):
        UpdateProgress().begin(Step.CLOSE).begin(Step.STOP)
    with pytest.raises(OutOfOrder):
        upto(Step.OPEN, done=True).begin(Step.OPEN)
