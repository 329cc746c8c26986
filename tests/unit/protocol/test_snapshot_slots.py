"""load() of a snapshot in memory: only a snapshot that has changed is discarded."""

from __future__ import annotations

import mmap
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.snapshot_rounds import Rounds, token
from understudy_protocol import snapshot_slots
from understudy_protocol.enums import RoundToken
from understudy_protocol.snapshot_slots import DamagedSnapshotError, Pack, Part, SnapshotSlots, load_in_process
from understudy_protocol.snapshot_storage import SnapshotStorageError, StorageChoice, agreed_choice
from understudy_protocol.snapshots import SavedStep

PAGE = 4096
STATE = b"the state"
SAVED = SavedStep(token(0), 7)


def pack(state: bytes) -> tuple[bytes, list[Any]]:
    """A structure without arrays."""
    return state, []


def unpack(structure: bytes) -> tuple[bytes, list[Any]]:
    return structure, []


@pytest.fixture
def rounds() -> Iterator[Rounds]:
    """Round 0 has saved step 7, and round 1 restores it."""
    made = Rounds(1 << 20)
    made.next()
    assert worker(made).save(7, STATE, pack)
    assert restore(made) == (SAVED,)
    yield made
    made.close()


def worker(rounds: Rounds) -> SnapshotSlots:
    return SnapshotSlots(rounds.memory.files[0], (0, 1, rounds.number))


def restore(rounds: Rounds) -> tuple[SavedStep, ...]:
    """The next round, which restores step 7. Return the snapshots that it could restore."""
    found = rounds.next()
    rounds.choose(SAVED)
    return found


@pytest.mark.parametrize("error", [ModuleNotFoundError("ml_dtypes"), MemoryError(), KeyError("dtype")])
def test_a_snapshot_that_a_script_cannot_unpack_is_kept(rounds: Rounds, error: Exception) -> None:
    def fail(_structure: bytes) -> tuple[bytes, list[Any]]:
        raise error

    with pytest.raises(type(error)) as raised:
        worker(rounds).load(fail)
    assert raised.value is error
    # and the next round restores it
    assert restore(rounds) == (SAVED,)
    assert worker(rounds).load(unpack) == STATE


def test_saves_have_the_same_numbers_in_all_ranks_although_one_rank_has_stored_nothing(rounds: Rounds) -> None:
    of_rank = worker(rounds)
    assert of_rank.load(unpack) == STATE
    assert [of_rank.save(step, STATE, pack) for step in (8, -1, 9)] == [True, False, True]
    headers = [header for header in rounds.memory._slots()[0] if header is not None]
    assert sorted((header.saved.step, header.serial) for header in headers) == [(8, 1), (9, 3)]


def steps(rounds: Rounds) -> set[int]:
    """Of the snapshots in both slots."""
    return {header.saved.step for header in rounds.memory._slots()[0] if header is not None}


@pytest.mark.parametrize("step", [8, 3])
def test_a_step_that_is_not_larger_than_the_last_saved_one_is_not_stored(
    rounds: Rounds, capfd: pytest.CaptureFixture[str], step: int
) -> None:
    """Else a round could restore the snapshot of a step that the training has left, and ranks could restore different
    states under one name.
    """
    of_rank = worker(rounds)
    assert of_rank.load(unpack) == STATE
    # given a training that counts its steps from 0 in each epoch
    assert [of_rank.save(n, STATE, pack) for n in (7, 8, step, step, 9)] == [True, True, False, False, True]
    assert steps(rounds) == {8, 9}
    assert capfd.readouterr().err == (
        f"understudy: snapshot.save({step}) has stored nothing: step 8 was saved before, and of two snapshots, the one "
        "with the larger step is the newer one: count the steps from the start of the training, and not of an epoch\n"
    )


def test_a_step_that_the_operator_cannot_read_is_not_stored(rounds: Rounds, capfd: pytest.CaptureFixture[str]) -> None:
    of_rank = worker(rounds)
    assert of_rank.load(unpack) == STATE
    assert [of_rank.save(step, STATE, pack) for step in (1 << 53, (1 << 53) - 1)] == [False, True]
    assert capfd.readouterr().err == (
        "understudy: snapshot.save(9007199254740992) has stored nothing: its step is 9007199254740992: expected a "
        "whole number from 0 to 2^53 - 1\n"
    )


class Index:
    """A whole number of another class, as numpy and torch have them."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __index__(self) -> int:
        return self.number

    def __repr__(self) -> str:
        return f"Index({self.number})"


def test_a_whole_number_of_another_class_is_a_step(rounds: Rounds) -> None:
    of_rank = worker(rounds)
    assert of_rank.load(unpack) == STATE
    given: list[Any] = [Index(8), 9, Index(9)]
    assert [of_rank.save(step, STATE, pack) for step in given] == [True, True, False]
    assert steps(rounds) == {8, 9}


class Silent:
    """Neither a number nor a text."""

    def __index__(self) -> int:
        raise RuntimeError("more than one element")

    def __repr__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("step", "shown"),
    [
        (10**5000, "a number of 16610 bits"),
        (-(1 << 63), "a number of 64 bits"),
        (Index(1 << 70), "Index(1180591620717411303424)"),
        (-1, "-1"),
        (Index(-1), "Index(-1)"),
        (True, "True"),
        (3.0, "3.0"),
        (None, "None"),
        ("7", "'7'"),
        ("7" * 99, "a builtins.str"),
        (Silent(), "a tests.unit.protocol.test_snapshot_slots.Silent"),
    ],
    ids=type,
)
def test_any_other_step_fails_only_its_save(
    rounds: Rounds, capfd: pytest.CaptureFixture[str], step: Any, shown: str
) -> None:
    of_rank = worker(rounds)
    assert of_rank.load(unpack) == STATE
    assert [of_rank.save(n, STATE, pack) for n in (step, step, 8)] == [False, False, True]
    assert capfd.readouterr().err == (
        f"understudy: snapshot.save({shown}) has stored nothing: its step is {shown}: expected a whole number from 0 "
        "to 2^53 - 1\n"
    )


def blocked(began: threading.Event, until: threading.Event) -> Pack:
    """A save that waits within its copy, but not forever."""

    def copy(_memory: mmap.mmap, _offset: int) -> bytes:
        began.set()
        until.wait(0.5)
        return b""

    return lambda state: (state, [Part(0, copy)])


def test_saves_of_two_threads_leave_both_snapshots_whole(rounds: Rounds) -> None:
    of_rank, began, other_began = worker(rounds), threading.Event(), threading.Event()
    of_rank.load(unpack)
    # given a thread that saves step 8 when the main thread saves step 9
    saving = threading.Thread(target=of_rank.save, args=(8, STATE, blocked(began, other_began)))
    saving.start()
    assert began.wait(10.0)
    assert of_rank.save(9, STATE, blocked(other_began, began))
    saving.join()
    assert steps(rounds) == {8, 9}


def test_a_fork_can_save_although_a_thread_of_its_parent_was_saving(rounds: Rounds) -> None:
    of_rank, began, forked = worker(rounds), threading.Event(), threading.Event()
    of_rank.load(unpack)
    saving = threading.Thread(target=of_rank.save, args=(8, STATE, blocked(began, forked)))
    saving.start()
    assert began.wait(10.0)
    pid = os.fork()
    if pid == 0:
        signal.alarm(10)
        os._exit(0 if of_rank.save(9, STATE, pack) else 1)
    forked.set()
    assert os.waitpid(pid, 0)[1] == 0
    saving.join()


class Tee:
    """As scripts replace sys.stderr to write to a file, too: without flush()."""

    def write(self, text: str) -> None:
        """Does nothing."""


@pytest.mark.parametrize("stderr", [Tee(), None], ids=["replaced", "closed"])
def test_a_message_that_cannot_be_written_does_not_end_the_training(
    rounds: Rounds, monkeypatch: pytest.MonkeyPatch, stderr: Tee | None
) -> None:
    monkeypatch.setattr(sys, "stderr", stderr)
    assert not worker(rounds).save(-1, STATE, pack)


def test_a_snapshot_that_has_changed_is_discarded(rounds: Rounds) -> None:
    for slot in (0, 1):
        os.pwrite(rounds.memory.files[0], b"T", PAGE + slot * (PAGE + (1 << 20)) + PAGE)
    with pytest.raises(DamagedSnapshotError, match="its structure has changed"):
        worker(rounds).load(unpack)
    assert restore(rounds) == ()


SAVED_ON_STORAGE = "0000000007.0000000001.0000000000-1000-of-2"


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Of a job of two ranks, with a complete snapshot. This process is a worker of a pod without memory for them."""
    monkeypatch.setattr(snapshot_slots, "_looked", False)
    monkeypatch.delenv("UNDERSTUDY_SNAPSHOT_FD", raising=False)
    for name, value in (("SNAPSHOT_STORAGE_PATH", str(tmp_path)), ("ROUND", "7.1.4")):
        monkeypatch.setenv(f"UNDERSTUDY_{name}", value)
    monkeypatch.setenv("WORLD_SIZE", "2")
    (tmp_path / SAVED_ON_STORAGE).mkdir()
    for rank in "01":
        (tmp_path / SAVED_ON_STORAGE / rank).touch()
    return tmp_path


def choice_of(folder: Path, rank: int) -> StorageChoice:
    """In a pod with memory."""
    return agreed_choice(str(folder), RoundToken(7, 1, 4), rank, 2, None, lambda _text: None)


def test_a_rank_without_memory_fails_if_the_others_restore_a_snapshot_on_storage(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the training would continue from a mixture of states."""
    monkeypatch.setenv("RANK", "1")
    assert choice_of(folder, 0).name == SAVED_ON_STORAGE
    with pytest.raises(SnapshotStorageError, match="no memory for snapshots, so rank 1 cannot restore"):
        load_in_process(unpack)


def test_no_rank_restores_a_snapshot_on_storage_if_rank_0_has_no_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    assert load_in_process(unpack) is None
    assert choice_of(folder, 1) == StorageChoice("", "rank 0 has no memory for snapshots, so no rank restores one")


def test_a_rank_without_memory_trains_if_the_others_restore_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    (folder / SAVED_ON_STORAGE / "1").unlink()
    assert choice_of(folder, 0).name == ""
    assert load_in_process(unpack) is None
