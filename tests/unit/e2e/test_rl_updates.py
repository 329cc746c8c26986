"""The trainer's log, as the kubelet stores it, has its updates and the steps after them."""

from __future__ import annotations

from tests.e2e.rl import WholeUpdates, steps_of, updates_in
from tests.e2e.truth import Step

LOG = """\
2026-11-25T04:00:00.500000000Z understudy launcher: round 1.0.0: workers started
2026-11-25T04:00:01.500000000Z [rank 0] update 1 whole | rollout-0=Fresh:1 rollout-1=Fresh:1
2026-11-25T04:00:02.250000000Z [rank 0] update 2 failed: no answer | rollout-0=Uncertain:1
2026-11-25T04:00:03.000000000Z [rank 0] the update 3 whole thing
2026-11-25T04:00:04.000000000Z [rank 0] update 1 whole | rollout-0=Fresh:1 rollout-1=Fresh:1
"""
AT = 1795579200.0


def test_updates_have_their_time_and_outcome() -> None:
    assert updates_in(LOG.replace("the update 3", "an upgrade")) == [
        (AT + 1.5, 1, "whole"),
        (AT + 2.25, 2, "failed"),
        (AT + 4.0, 1, "whole"),
    ]


def test_a_trainer_that_restarts_is_in_the_next_round() -> None:
    updates = [(AT, 1, "whole"), (AT + 1, 2, "failed"), (AT + 2, 1, "whole"), (AT + 3, 2, "whole")]
    first, second = (0, 0, 0), (0, 0, 1)
    assert steps_of(updates) == [Step(first, AT), Step(first, AT + 1), Step(second, AT + 2), Step(second, AT + 3)]


def rollouts(version: str, fresh: int = 2) -> dict[str, object]:
    return {"rollouts": {"version": version, "fresh": fresh}}


def test_updates_are_made_when_both_replicas_have_the_version_that_follows() -> None:
    updates = WholeUpdates(oldest=29, number=2)
    assert [updates.are_made(rollouts(version)) for version in ("29", "30", "31")] == [False, False, True]
    assert not updates.are_made(rollouts("31", fresh=1))


def test_after_a_restart_of_the_job_the_updates_count_from_its_first_version() -> None:
    updates = WholeUpdates(oldest=29, number=2)
    # and a status without rollout servers, while the pods are created, counts for nothing
    seen = [{}, rollouts("", fresh=0), rollouts("1"), rollouts("2"), rollouts("3")]
    assert [updates.are_made(status) for status in seen] == [False, False, False, False, True]
