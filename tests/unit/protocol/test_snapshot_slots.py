"""load() of a snapshot in memory: only a snapshot that has changed is discarded."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.snapshot_rounds import Rounds, token
from understudy_protocol.snapshot_slots import DamagedSnapshotError, SnapshotSlots
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
