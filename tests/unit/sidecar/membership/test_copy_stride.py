"""The stride of copies: the newest step that all pods have as a copy stays young, although one link is slower."""

from __future__ import annotations

import pytest

from understudy_sidecar.membership.copy_stride import StrideNeed, all_have_saved, is_due

SAVES = 2000
TICKS = 20  # of a save


def needs(*saves: int) -> list[int | None]:
    """After each copy that lasted so many saves."""
    need, found = StrideNeed(), []
    for x in saves:
        need.on_copied(x)
        found.append(need.stride)
    return found


class Pod:
    """It saves each step, and another pod keeps its two newest copies."""

    def __init__(self, copy_saves: float) -> None:
        self.ticks = round(copy_saves * TICKS)
        self.need, self.kept = StrideNeed(), [0, 0]
        self.sending = self.sent = self.ends_at = 0

    def tick(self, now: int, stride: int) -> None:
        newest = now // TICKS
        if self.sending and now >= self.ends_at:
            self.kept.append(self.sending)
            self.need.on_copied(newest - self.sending)
            self.sending = 0
        if not self.sending and newest > self.sent and is_due(newest, stride, self.sent):
            self.sending = self.sent = newest
            self.ends_at = now + self.ticks
            self.kept = self.kept[-1:]


def ages(*copy_saves: float, agree: bool = True) -> list[int]:
    """The age of the newest copy that all pods have, in saves, at each tick after the first tenth. copy_saves: how many
    saves a copy of each pod lasts. agree: all pods have the largest stride that one of them needs.
    """
    pods, found = [Pod(x) for x in copy_saves], []
    for now in range(TICKS, SAVES * TICKS):
        stride = max(pod.need.stride or 1 for pod in pods) if agree else 1
        for pod in pods:
            pod.tick(now, stride)
        if now > SAVES * TICKS // 10:
            common = set.intersection(*(set(pod.kept) for pod in pods))
            found.append(now // TICKS - max(common, default=0))
    return found


def test_without_a_common_stride_the_newest_common_copy_gets_arbitrarily_old() -> None:
    assert max(ages(0.5, 5.3, agree=False)) == SAVES - 1
    assert max(ages(1.4, 2.3, agree=False)) > 5


@pytest.mark.parametrize(
    ("copy_saves", "oldest"), [((0.5, 0.9), 1), ((0.5, 1.4), 3), ((0.5, 5.3), 21), ((2.2, 30.0, 0.1), 93)]
)
def test_the_newest_common_copy_is_at_most_a_stride_and_a_copy_old(copy_saves: tuple[float, ...], oldest: int) -> None:
    assert max(ages(*copy_saves)) == oldest


def test_a_stride_is_the_smallest_power_of_two_with_room_for_two_copies() -> None:
    assert [needs(x, x)[1] for x in (0, 1, 2, 3, 4, 5, 8, 9)] == [1, 2, 4, 8, 8, 16, 16, 32]
    assert needs(1 << 40, 1 << 40)[1] == 1 << 16


def test_a_need_grows_at_the_second_slow_copy_and_falls_when_only_one_of_16_copies_was_slow() -> None:
    assert needs(0, 2, 2, *[1] * 14, 1) == [1, 1, *[4] * 15, 2]
    assert StrideNeed().stride is None


def test_one_slow_copy_of_16_changes_nothing() -> None:
    assert needs(7) == [1]
    assert needs(0, 7, *[0] * 16) == [1] * 18


def test_copies_from_before_a_larger_stride_count() -> None:
    by_stride = [{serial for serial in range(1, 100) if is_due(serial, stride, serial - 1)} for stride in (1, 2, 4, 8)]
    assert by_stride[3] == {1, 9, 17, 25, 33, 41, 49, 57, 65, 73, 81, 89, 97}
    assert by_stride[3] < by_stride[2] < by_stride[1] < by_stride[0]


def test_a_process_that_misses_all_steps_of_a_stride_copies_another_one() -> None:
    assert [is_due(serial, 8, 1) for serial in (9, 10, 33, 34)] == [True, False, True, True]


def test_the_copies_of_a_pod_begin_when_all_of_its_ranks_have_saved() -> None:
    assert not all_have_saved({}, {}, nproc=2)
    assert not all_have_saved({0: 9}, {0: 1, 1: 1}, nproc=2)
    assert all_have_saved({0: 9, 1: 9}, {0: 1, 1: 1}, nproc=2)
    # and they continue after a connection broke between them
    assert all_have_saved({1: 9}, {0: 9, 1: 1}, nproc=2)
