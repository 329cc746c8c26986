"""Which snapshot on storage a round restores: the newest complete one of its size, as rank 0 finds it."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from understudy_protocol import snapshot_storage
from understudy_protocol.enums import RoundToken
from understudy_protocol.snapshot_storage import StorageChoice, agreed_choice, choose

ROUND = RoundToken(7, 1, 4)


def silent(_text: str) -> None:
    pass


def store(folder: Path, name: str, *ranks: str) -> None:
    (folder / name).mkdir()
    for rank in ranks:
        (folder / name / rank).touch()


FIRST = "0000000007.0000000001.0000000000-1000-of-2"
SECOND = "0000000007.0000000001.0000000000-2000-of-2"
OF_NEWER_ROUND = "0000000007.0000000001.0000000003-1500-of-2"


def test_the_newest_step_of_the_newest_round_is_chosen(tmp_path: Path) -> None:
    store(tmp_path, FIRST, "0", "1")
    store(tmp_path, SECOND, "0", "1")
    assert choose(str(tmp_path), 2, None) == StorageChoice(SECOND)
    # a newer round may repeat steps: its snapshot continues the training
    store(tmp_path, OF_NEWER_ROUND, "0", "1")
    assert choose(str(tmp_path), 2, None) == StorageChoice(OF_NEWER_ROUND)


def test_a_snapshot_without_the_file_of_a_rank_does_not_count(tmp_path: Path) -> None:
    store(tmp_path, FIRST, "0", "1")
    store(tmp_path, SECOND, "0", ".1")  # rank 1 has not ended its file
    assert choose(str(tmp_path), 2, None) == StorageChoice(FIRST)
    (tmp_path / FIRST / "1").rename(tmp_path / FIRST / "1.damaged")
    assert choose(str(tmp_path), 2, None) == StorageChoice(
        "", f"no snapshot in {tmp_path} has the files of all 2 ranks"
    )


def test_a_file_with_the_name_of_a_snapshot_does_not_count(tmp_path: Path) -> None:
    store(tmp_path, FIRST, "0", "1")
    (tmp_path / SECOND).touch()
    assert choose(str(tmp_path), 2, None) == StorageChoice(FIRST)


@pytest.mark.parametrize(
    "make",
    [os.mkfifo, os.mkdir, lambda path: os.symlink("nowhere", path)],
    ids=["a pipe", "a directory", "a link to nothing"],
)
def test_a_snapshot_with_something_else_in_place_of_a_file_does_not_count(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    store(tmp_path, FIRST, "0", "1")
    store(tmp_path, SECOND, "0")
    make(tmp_path / SECOND / "1")
    assert choose(str(tmp_path), 2, None) == StorageChoice(FIRST)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["a pipe", "a directory"])
def test_something_else_in_place_of_a_choice_does_not_count(tmp_path: Path, make: Callable[[Path], None]) -> None:
    store(tmp_path, FIRST, "0", "1")
    make(tmp_path / "choice-7.1.3")
    assert agreed_choice(str(tmp_path), ROUND, 0, 2, None, silent) == StorageChoice(FIRST)


def test_a_world_of_another_size_restores_none_and_gives_the_reason(tmp_path: Path) -> None:
    store(tmp_path, FIRST, "0", "1")
    assert choose(str(tmp_path), 3, None) == StorageChoice(
        "", f"the snapshots in {tmp_path} are of 2 ranks, and this round has 3"
    )


def test_newer_snapshots_of_another_size_are_named_if_an_older_one_is_restored(tmp_path: Path) -> None:
    # given a job that has saved with 2 ranks, has shrunk to 1 rank and saved again, and grows
    store(tmp_path, FIRST, "0", "1")
    store(tmp_path, "0000000007.0000000001.0000000002-5000-of-1", "0")
    reason = "the newer snapshot of step 5000 is of 1 ranks, and is not restored"
    assert choose(str(tmp_path), 2, None) == StorageChoice(FIRST, reason)
    # then all ranks learn it
    ranks = [agreed_choice(str(tmp_path), ROUND, rank, 2, None, silent) for rank in (0, 1)]
    assert ranks == [StorageChoice(FIRST, reason)] * 2
    # until the larger world has saved a newer one
    store(tmp_path, OF_NEWER_ROUND, "0", "1")
    assert choose(str(tmp_path), 2, None) == StorageChoice(OF_NEWER_ROUND)


def test_a_suspect_step_and_newer_ones_are_not_restored(tmp_path: Path) -> None:
    store(tmp_path, FIRST, "0", "1")
    store(tmp_path, SECOND, "0", "1")
    assert choose(str(tmp_path), 2, 2000) == StorageChoice(FIRST)
    assert choose(str(tmp_path), 2, 1000) == StorageChoice(
        "", f"no complete snapshot in {tmp_path} is older than step 1000"
    )


def names_of(folder: Path, *suspects: int | None, ranks: int = 2) -> list[str]:
    """The snapshots that consecutive rounds from 7.1.4 on restore. suspects: before_step of each."""
    tokens = [RoundToken(7, 1, 4 + number) for number in range(len(suspects))]
    chosen = [
        agreed_choice(str(folder), token, 0, ranks, suspect, silent)
        for token, suspect in zip(tokens, suspects, strict=True)
    ]
    return [choice.name for choice in chosen]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_snapshot_after_which_the_training_fails_at_the_same_step_again_is_suspect_too(
    tmp_path: Path, ranks: int
) -> None:
    """Its state may be wrong as well: each failure would restore it again."""
    older, newer = FIRST.replace("of-2", f"of-{ranks}"), SECOND.replace("of-2", f"of-{ranks}")
    for name in (older, newer):
        store(tmp_path, name, "0", "1")
    # given a state that is wrong from step 1990 on, and fails at step 2013
    assert names_of(tmp_path, 2012, 2011, 2012, 2012, ranks=ranks) == [newer, older, "", ""]


def test_a_snapshot_after_which_the_training_gets_further_is_not_suspect(tmp_path: Path) -> None:
    store(tmp_path, FIRST, "0", "1")
    store(tmp_path, SECOND, "0", "1")
    assert names_of(tmp_path, 2012, 2500) == [SECOND, SECOND]
    assert names_of(tmp_path, None, 2500) == [SECOND, SECOND]


def test_a_suspect_step_stays_so_for_the_next_rounds(tmp_path: Path) -> None:
    store(tmp_path, FIRST, "0", "1")
    store(tmp_path, SECOND, "0", "1")
    # given a round that restores an older step, and then others that find nothing in memory
    assert names_of(tmp_path, 2000, None, None) == [FIRST, FIRST, FIRST]
    # when the training has stored a snapshot since, then this one counts, whatever its step
    since = "0000000007.0000000001.0000000006-2100-of-2"
    store(tmp_path, since, "0", "1")
    later = [RoundToken(7, 1, number) for number in (8, 9)]
    assert [agreed_choice(str(tmp_path), token, 0, 2, None, silent).name for token in later] == [since, since]


def test_a_folder_without_snapshots_gives_the_reason(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    assert choose(str(tmp_path), 2, None) == StorageChoice("", f"{tmp_path} has no snapshot")


def test_all_ranks_restore_the_choice_of_rank_0(tmp_path: Path) -> None:
    # given rank 1, which waits
    store(tmp_path, FIRST, "0", "1")
    found: list[StorageChoice] = []
    waiting = threading.Thread(target=lambda: found.append(agreed_choice(str(tmp_path), ROUND, 1, 2, None, silent)))
    waiting.start()
    # when rank 0 chooses, and a newer snapshot becomes complete after that
    assert agreed_choice(str(tmp_path), ROUND, 0, 2, None, silent) == StorageChoice(FIRST)
    store(tmp_path, SECOND, "0", "1")
    waiting.join(10.0)
    # then rank 1 has the same
    assert found == [StorageChoice(FIRST)]
    assert agreed_choice(str(tmp_path), ROUND, 1, 2, None, silent) == StorageChoice(FIRST)


def test_the_choice_of_an_older_round_is_removed(tmp_path: Path) -> None:
    older = RoundToken(7, 1, 3)
    for token in (older, ROUND):
        agreed_choice(str(tmp_path), token, 0, 2, None, silent)
    assert [path.name for path in tmp_path.iterdir()] == ["choice-7.1.4"]


def test_on_a_full_volume_a_choice_takes_the_room_of_an_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(tmp_path, FIRST, "0", "1")
    store(tmp_path, SECOND, "0", "1")
    older = RoundToken(7, 1, 3)
    assert agreed_choice(str(tmp_path), older, 0, 2, 2000, silent) == StorageChoice(FIRST)

    # given a volume that has room for one choice
    def opened(path: str, mode: str = "r", **options: Any) -> Any:
        if "w" in mode and (tmp_path / "choice-7.1.3").exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        return open(path, mode, **options)

    monkeypatch.setattr(snapshot_storage, "open", opened, raising=False)
    # then the next round has its choice, and the suspicion of the older one counts in it, and in the round after that
    for token, rank in ((ROUND, 0), (ROUND, 1), (RoundToken(7, 1, 5), 0)):
        assert agreed_choice(str(tmp_path), token, rank, 2, None, silent) == StorageChoice(FIRST)


def test_a_replaced_round_does_not_remove_the_choice_of_a_newer_one(tmp_path: Path) -> None:
    """Its rank 0 may be cut off from the coordinator, and reach the storage. The ranks of the newer round wait."""
    newer = RoundToken(7, 1, 10)
    chosen = agreed_choice(str(tmp_path), newer, 0, 2, None, silent)
    agreed_choice(str(tmp_path), RoundToken(7, 1, 9), 0, 2, None, silent)
    assert agreed_choice(str(tmp_path), newer, 1, 2, None, silent) == chosen


def test_a_wait_for_rank_0_ends_with_both_possible_causes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_storage, "WAIT_S", 0.2)
    with pytest.raises(snapshot_storage.SnapshotStorageError, match=r"must be the same .*, and rank 0 must call"):
        agreed_choice(str(tmp_path), ROUND, 1, 2, None, silent)


def test_all_ranks_report_the_same_error_of_a_folder_that_cannot_be_created(tmp_path: Path) -> None:
    """So the rule applies that ends a job whose ranks all fail alike. Else each restart fails in the same way."""
    (tmp_path / "file").touch()
    errors = []
    for rank in range(2):
        with pytest.raises(snapshot_storage.SnapshotStorageError) as caught:
            agreed_choice(str(tmp_path / "file" / "folder"), ROUND, rank, 2, None, silent)
        errors.append(str(caught.value))
    assert errors[0] == errors[1]


def test_no_rank_waits_for_the_choice_in_a_folder_that_cannot_be_created_or_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_storage, "WAIT_S", 0.2)
    with pytest.raises(snapshot_storage.SnapshotStorageError, match=r"No such file or directory: /proc/self/new\."):
        agreed_choice("/proc/self/new", ROUND, 1, 2, None, silent)
    # the kernel lets nobody write to /proc/sys, not even root
    with pytest.raises(snapshot_storage.SnapshotStorageError, match=r"workers cannot write there: /proc/sys\. Mount"):
        agreed_choice("/proc/sys", ROUND, 1, 2, None, silent)


def test_a_folder_that_cannot_be_created_is_an_error_with_the_field(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        snapshot_storage.SnapshotStorageError,
        match=r"spec\.snapshots\.storage\.path: Not a directory: .*Mount a volume",
    ):
        agreed_choice(str(tmp_path / "file" / "folder"), ROUND, 0, 2, None, silent)
