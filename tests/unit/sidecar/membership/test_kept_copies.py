"""Which copies a pod keeps, and in which slot of its memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from understudy_protocol.enums import RoundToken
from understudy_protocol.snapshot_files import Header
from understudy_protocol.snapshots import CopyOwner, CopyPlan, FetchedStep, KeptSteps, SavedStep
from understudy_sidecar.membership.kept_copies import KeptCopies, fetched_steps

R0, R1 = RoundToken(1, 1, 0), RoundToken(1, 1, 1)
WORLD = 8
Memory = dict[int, list[Header | None]]


def memory(sets: int, nproc: int = 1) -> Memory:
    return {file: [None, None] for file in range(sets * nproc)}


def header(rank: int, step: int, token: RoundToken = R0, world_size: int = WORLD) -> Header:
    return Header(SavedStep(token, step), rank, world_size, b"digest", 100)


def keeping(*group_ranks: int, sets: int = 1, nproc: int = 1, token: RoundToken = R0) -> tuple[KeptCopies, Memory]:
    kept, slots = KeptCopies(sets, nproc), memory(sets, nproc)
    kept.plan(token, plan(*group_ranks), slots)
    return kept, slots


def plan(*group_ranks: int) -> CopyPlan:
    return CopyPlan(WORLD, (), tuple(CopyOwner(rank, f"uid-{rank}") for rank in group_ranks))


def store(kept: KeptCopies, slots: Memory, group_rank: int, found: Header) -> tuple[int, int] | None:
    place = kept.place(group_rank, found, slots)
    if place is not None:
        slots[place[0]][place[1]] = found
    return place


def test_a_copy_replaces_the_older_one() -> None:
    kept, slots = keeping(3)
    assert [store(kept, slots, 3, header(3, step)) for step in (7, 8, 9)] == [(0, 0), (0, 1), (0, 0)]
    assert kept.kept(slots, WORLD) == (KeptSteps(3, (SavedStep(R0, 8), SavedStep(R0, 9))),)


def test_a_copy_that_was_cut_leaves_the_newer_one() -> None:
    kept, slots = keeping(3)
    store(kept, slots, 3, header(3, 7))
    store(kept, slots, 3, header(3, 8))
    slots[0][0] = None  # cleared for step 9
    assert kept.kept(slots, WORLD) == (KeptSteps(3, (SavedStep(R0, 8),)),)
    assert kept.place(3, header(3, 10), slots) == (0, 0)


def test_a_pod_with_several_ranks_has_a_copy_once_each_rank_has_it() -> None:
    kept, slots = keeping(1, nproc=2)
    store(kept, slots, 1, header(2, 7))
    assert kept.kept(slots, WORLD) == (KeptSteps(1, ()),)
    assert kept.find(1, SavedStep(R0, 7), WORLD, slots) == []
    store(kept, slots, 1, header(3, 7))
    assert kept.kept(slots, WORLD) == (KeptSteps(1, (SavedStep(R0, 7),)),)
    assert kept.find(1, SavedStep(R0, 7), WORLD, slots) == [(0, 0), (1, 0)]


@pytest.mark.parametrize(
    "other", [header(4, 7), header(3, 7, R1), header(3, 7, world_size=4)], ids=["rank", "round", "world size"]
)
def test_a_copy_of_another_rank_round_or_world_is_not_stored(other: Header) -> None:
    kept, slots = keeping(3)
    assert kept.place(3, other, slots) is None


def test_a_copy_between_the_two_that_are_kept_replaces_the_older_one() -> None:
    kept, slots = keeping(3)
    for step in (6, 8):
        store(kept, slots, 3, header(3, step))
    assert store(kept, slots, 3, header(3, 7)) == (0, 0)
    assert kept.kept(slots, WORLD) == (KeptSteps(3, (SavedStep(R0, 7), SavedStep(R0, 8))),)


def test_a_copy_that_is_kept_already_or_older_than_both_is_not_stored() -> None:
    kept, slots = keeping(3)
    store(kept, slots, 3, header(3, 8))
    assert store(kept, slots, 3, header(3, 8)) is None
    store(kept, slots, 3, header(3, 7))
    assert [store(kept, slots, 3, header(3, step)) for step in (6, 7, 8)] == [None, None, None]


def test_an_owner_keeps_its_memory_from_plan_to_plan() -> None:
    kept, slots = keeping(3, 5, sets=2)
    store(kept, slots, 3, header(3, 7))
    store(kept, slots, 5, header(5, 7))
    kept.plan(R1, plan(5, 3), slots)
    assert kept.kept(slots, WORLD) == (KeptSteps(3, (SavedStep(R0, 7),)), KeptSteps(5, (SavedStep(R0, 7),)))
    assert store(kept, slots, 5, header(5, 8, R1)) == (1, 1)


def test_the_copies_of_a_former_owner_stay_until_the_first_copy_of_the_next_one() -> None:
    kept, slots = keeping(3)
    store(kept, slots, 3, header(3, 7))
    store(kept, slots, 3, header(3, 8))
    kept.plan(R1, plan(5), slots)
    assert kept.kept(slots, WORLD) == (KeptSteps(3, (SavedStep(R0, 7), SavedStep(R0, 8))), KeptSteps(5, ()))
    # then the older one goes first
    assert store(kept, slots, 5, header(5, 9, R1)) == (0, 0)
    assert kept.kept(slots, WORLD) == (KeptSteps(5, (SavedStep(R1, 9),)),)


def test_copies_for_a_world_of_another_size_are_not_reported() -> None:
    kept, slots = keeping(3)
    store(kept, slots, 3, header(3, 7))
    assert kept.kept(slots, 4) == (KeptSteps(3, ()),)


def test_another_process_finds_the_copies_that_an_earlier_one_has_stored() -> None:
    kept, slots = keeping(3)
    store(kept, slots, 3, header(3, 7))
    again = KeptCopies(1, 1)
    again.plan(R0, plan(3), slots)
    assert again.kept(slots, WORLD) == (KeptSteps(3, (SavedStep(R0, 7),)),)


@pytest.mark.parametrize(
    ("token", "group_rank", "uid", "reason"),
    [
        (R0, 3, "uid-3", ""),
        (R1, 3, "uid-3", "it belongs to round 1.1.1, and this pod keeps copies of round 1.1.0"),
        (R0, 4, "uid-4", "this pod keeps no copies of pod uid-4 with group rank 4"),
        (R0, 3, "uid-4", "this pod keeps no copies of pod uid-4 with group rank 3"),
    ],
)
def test_only_owners_in_the_plan_are_accepted(token: RoundToken, group_rank: int, uid: str, reason: str) -> None:
    assert keeping(3)[0].rejection(token, group_rank, uid) == reason


def test_an_owner_for_which_there_is_no_memory_is_rejected() -> None:
    kept, _ = keeping(3, 5, sets=1)
    assert kept.rejection(R0, 5, "uid-5") == "this pod has no memory for its copies"


def test_a_fetched_snapshot_has_the_round_of_its_fetch_and_is_whole_for_each_rank() -> None:
    # given a pod with ranks 2 and 3, which has fetched step 7 for round 1, and has saved step 6 itself
    fetched, saved = SavedStep(R0, 7), [header(rank, 6) for rank in (2, 3)]
    of_2, of_3 = [replace(header(rank, 7), fetched_for=R1) for rank in (2, 3)]
    own: Memory = {0: [of_2, saved[0]], 1: [saved[1], of_3]}
    assert fetched_steps(own, group_rank=1, nproc=2, world_size=WORLD) == (FetchedStep(R1, fetched),)
    # then it does not count if one rank lacks it, or for other ranks, or in another world
    assert fetched_steps({0: [of_2, None], 1: [saved[1], None]}, group_rank=1, nproc=2, world_size=WORLD) == ()
    assert fetched_steps(own, group_rank=0, nproc=2, world_size=WORLD) == ()
    assert fetched_steps(own, group_rank=1, nproc=2, world_size=6) == ()
    # nor without memory
    assert fetched_steps({}, group_rank=1, nproc=2, world_size=WORLD) == ()
