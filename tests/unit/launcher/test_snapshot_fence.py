"""Which snapshots of a pod count when a round starts, and which slot a round restores."""

from __future__ import annotations

from tests.unit.launcher.driven import start, token
from understudy_launcher.snapshot_fence import NewestSnapshot, SnapshotFence
from understudy_protocol.snapshot_files import Header
from understudy_protocol.snapshots import SavedStep

#: `start` gives local rank 0 the rank 2 of 4.
RANK, WORLD_SIZE = 2, 4


def header(round_: int, step: int, *, rank: int = RANK, world_size: int = WORLD_SIZE, saved_ns: int = 0) -> Header:
    return Header(SavedStep(token(round_), step), rank, world_size, b"digest", saved_ns=saved_ns)


def saved(round_: int, step: int) -> SavedStep:
    return SavedStep(token(round_), step)


def after_round_0() -> SnapshotFence:
    """The workers of round 0 have run."""
    fence, nothing = SnapshotFence(), list[Header | None]()
    assert fence.whole(start(0), {0: nothing}) == ()
    return fence


def test_the_next_round_can_restore_what_the_round_before_has_saved() -> None:
    assert after_round_0().whole(start(1), {0: [header(0, 8), header(0, 7)]}) == (saved(0, 7), saved(0, 8))


def test_a_slot_without_a_header_does_not_count() -> None:
    assert after_round_0().whole(start(1), {0: [None, header(0, 7)]}) == (saved(0, 7),)


def test_a_pod_has_a_snapshot_if_each_of_its_ranks_has_it() -> None:
    slots: dict[int, list[Header | None]] = {0: [header(0, 7), header(0, 8)], 1: [header(0, 7, rank=3), None]}
    assert after_round_0().whole(start(1), slots) == (saved(0, 7),)


def test_a_snapshot_of_another_rank_or_of_a_world_of_another_size_does_not_count() -> None:
    assert after_round_0().whole(start(1), {0: [header(0, 8, rank=1), header(0, 7, world_size=6)]}) == ()


def test_what_the_first_round_finds_does_not_count() -> None:
    assert SnapshotFence().whole(start(0), {0: [header(0, 8), None]}) == ()


def test_what_an_older_round_writes_after_it_was_replaced_does_not_count() -> None:
    # given round 1 has started with the snapshots of round 0
    fence = after_round_0()
    fence.whole(start(1), {0: [header(0, 8), header(0, 7)]})
    # when a process of round 0 that has escaped writes step 9
    found = fence.whole(start(2), {0: [header(0, 9), header(0, 8)]})
    # then only what counted before does
    assert found == (saved(0, 8),)


def test_the_snapshots_of_a_round_without_a_choice_count_in_the_next_round() -> None:
    fence = after_round_0()
    fence.whole(start(1), {0: [header(0, 8), header(0, 7)]})
    assert fence.whole(start(2), {0: [header(0, 8), header(0, 7)]}) == (saved(0, 7), saved(0, 8))


def test_after_a_choice_the_older_snapshots_of_its_round_count_too() -> None:
    fence, slots = after_round_0(), {0: [header(0, 8), header(0, 7)]}
    fence.whole(start(1), slots)
    assert fence.choose(saved(0, 8), slots) == {0: 0}
    # when the rank has discarded the chosen one, because it is damaged
    assert fence.whole(start(2), {0: [None, header(0, 7)]}) == (saved(0, 7),)


def test_an_older_snapshot_that_did_not_count_before_the_choice_does_not_count_after_it() -> None:
    # given a process of round 0 that has escaped writes step 6 after round 1 has started
    fence = after_round_0()
    fence.whole(start(1), {0: [header(0, 8), header(0, 7)]})
    fence.choose(saved(0, 8), {0: [header(0, 8), header(0, 6)]})
    assert fence.whole(start(2), {0: [header(0, 8), header(0, 6)]}) == (saved(0, 8),)


def test_after_a_choice_a_snapshot_of_an_earlier_round_does_not_count() -> None:
    """The round of the choice may have restored an older step, and made this one again."""
    fence = after_round_0()
    fence.whole(start(1), {0: [header(0, 7), None]})
    slots = {0: [header(0, 7), header(1, 8)]}
    assert fence.whole(start(2), slots) == (saved(0, 7), saved(1, 8))
    fence.choose(saved(1, 8), slots)
    assert fence.whole(start(3), slots) == (saved(1, 8),)


def test_after_a_choice_only_the_chosen_snapshot_counts_beside_older_and_new_ones() -> None:
    fence, slots = after_round_0(), {0: [header(0, 8), header(0, 7)]}
    fence.whole(start(1), slots)
    assert fence.choose(saved(0, 7), slots) == {0: 1}
    assert fence.whole(start(2), slots) == (saved(0, 7),)


def test_a_snapshot_that_was_fetched_since_is_chosen_and_counts_in_the_next_round() -> None:
    fence, fetched = after_round_0(), {0: [header(0, 8), header(0, 6)]}
    assert fence.whole(start(1), {0: [header(0, 8), None]}) == (saved(0, 8),)
    assert fence.choose(saved(0, 6), fetched) == {0: 1}
    assert fence.whole(start(2), fetched) == (saved(0, 6),)


def test_a_snapshot_that_was_fetched_for_another_rank_is_not_chosen() -> None:
    fence = after_round_0()
    fence.whole(start(1), {0: [None, None]})
    assert fence.choose(saved(0, 6), {0: [header(0, 6, rank=1), None]}) == {}


def test_a_round_that_restores_storage_gives_all_snapshots_up() -> None:
    fence, slots = after_round_0(), {0: [header(0, 8), header(0, 7)]}
    fence.whole(start(1), slots)
    assert fence.choose(None, slots) == {}
    assert fence.whole(start(2), {0: [header(1, 3), header(0, 7)]}) == (saved(1, 3),)


def test_each_rank_has_the_chosen_snapshot_in_a_slot_of_its_own() -> None:
    fence = after_round_0()
    slots = {0: [header(0, 8), header(0, 7)], 1: [header(0, 7, rank=3), header(0, 8, rank=3)]}
    fence.whole(start(1), slots)
    assert fence.choose(saved(0, 8), slots) == {0: 0, 1: 1}


# The newest one, for reports


def newest_step(fence: SnapshotFence, headers: list[Header | None]) -> int | None:
    newest = fence.newest({0: headers})
    return None if newest is None else newest.saved.step


def test_before_the_first_save_there_is_no_newest_snapshot() -> None:
    assert SnapshotFence().newest({0: [header(0, 8), None]}) is None  # before the first round
    assert after_round_0().newest({0: [None, None]}) is None
    assert after_round_0().newest({}) is None


def test_the_newest_snapshot_is_the_one_that_all_ranks_have_since_the_last_of_them_has_saved_it() -> None:
    fence = after_round_0()
    first: list[Header | None] = [header(0, 8, saved_ns=50), header(0, 7, saved_ns=20)]
    second: list[Header | None] = [header(0, 7, rank=3, saved_ns=30), None]
    assert fence.newest({0: first, 1: second}) == NewestSnapshot(saved(0, 7), 30)


def test_the_newest_snapshot_does_not_become_older_while_its_slot_is_written() -> None:
    # given slot 0 with step 5 is being copied, so that all saves write into slot 1
    fence = after_round_0()
    assert newest_step(fence, [header(0, 5), header(0, 8)]) == 8
    # when step 9 is being written
    assert newest_step(fence, [header(0, 5), None]) == 8
    assert newest_step(fence, [header(0, 5), header(0, 9)]) == 9


def test_after_a_restore_the_newest_snapshot_is_the_restored_one_until_the_first_save() -> None:
    # given round 0 has saved steps 7 and 8 here, and another pod has no step 8
    fence = after_round_0()
    slots: list[Header | None] = [header(0, 8), header(0, 7)]
    assert newest_step(fence, slots) == 8
    fence.whole(start(1), {0: slots})
    assert newest_step(fence, slots) == 8  # a script may make a step before the choice
    # when round 1 restores step 7
    fence.choose(saved(0, 7), {0: slots})
    assert newest_step(fence, slots) == 7
    # then it saves step 8 again
    assert fence.newest({0: [header(1, 8, saved_ns=9), header(0, 7)]}) == NewestSnapshot(saved(1, 8), 9)


def test_a_round_that_restores_none_has_no_newest_snapshot_until_its_first_save() -> None:
    fence = after_round_0()
    slots: list[Header | None] = [header(0, 8), header(0, 7)]
    fence.whole(start(1), {0: slots})
    fence.choose(None, {0: slots})
    assert newest_step(fence, slots) is None
    assert newest_step(fence, [header(1, 1), header(0, 7)]) == 1


def test_a_process_of_an_older_round_saves_no_newest_snapshot() -> None:
    fence = after_round_0()
    fence.whole(start(1), {0: [header(0, 8), None]})
    assert newest_step(fence, [header(0, 8), header(0, 9)]) == 8
