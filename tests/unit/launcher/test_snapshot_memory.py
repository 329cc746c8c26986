"""The launcher's files for snapshots: their sizes, the orders in them, and the headers that workers write."""

from __future__ import annotations

import os
import signal
import socket
import struct
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.launcher.driven import start, token
from understudy_launcher.snapshot_memory import SnapshotMemory
from understudy_protocol.snapshot_files import read_header
from understudy_protocol.snapshots import RestoreChoice, SavedStep, SnapshotAge

PAGE, SLOT = 4096, 8192
#: The order page, and two slots with a header page each.
FILE = PAGE + 2 * (PAGE + SLOT)
MAGIC = 0x756E64736E617031
RANK, WORLD_SIZE = 2, 4


@pytest.fixture
def memory() -> Iterator[SnapshotMemory]:
    made = SnapshotMemory(1, SLOT - 1, 3)
    yield made
    for file in made.files.values():
        os.close(file)


def header(round_: int, step: int, saved_at: int = 0, rank: int = RANK) -> bytes:
    """saved_at: in Unix seconds."""
    place = (0, 1, round_, step, rank, WORLD_SIZE)
    body = struct.pack("<12q32s24x", MAGIC, *place, 0, 0, 0, 0, saved_at * 10**9, b"d" * 32)
    return body + struct.pack("<q", zlib.crc32(body))


def save(memory: SnapshotMemory, slot: int, data: bytes) -> None:
    os.pwrite(memory.files[0], data, PAGE + slot * (PAGE + SLOT))


def order(memory: SnapshotMemory) -> tuple[int, ...]:
    return struct.unpack("<12q", os.pread(memory.files[0], 96, 0))


def test_a_file_has_a_sealed_size_for_two_slots(memory: SnapshotMemory) -> None:
    file = memory.files[0]
    assert os.fstat(file).st_size == FILE
    for size in (0, FILE + 1):
        with pytest.raises(PermissionError):
            os.ftruncate(file, size)


def test_an_order_names_the_round_and_the_rank_and_waits_for_the_choice(memory: SnapshotMemory) -> None:
    memory.start(start(5))
    assert order(memory) == (MAGIC, SLOT, 3, 0, 1, 5, RANK, WORLD_SIZE, 0, 0, 0, 0)


def test_whole_slots_are_found_and_the_chosen_one_is_in_the_order(memory: SnapshotMemory) -> None:
    memory.start(start(5))
    save(memory, 0, header(5, 8))
    save(memory, 1, header(5, 7))
    assert memory.start(start(6)) == (SavedStep(token(5), 7), SavedStep(token(5), 8))
    memory.choose(RestoreChoice(SavedStep(token(5), 7)))
    assert order(memory)[3:] == (0, 1, 6, RANK, WORLD_SIZE, 2, 1, 7, 0)


def test_a_rank_without_the_chosen_snapshot_gets_no_slot(memory: SnapshotMemory) -> None:
    memory.start(start(5))
    memory.choose(RestoreChoice(SavedStep(token(4), 7)))
    assert order(memory)[8:] == (2, -1, 7, 0)


def test_the_reason_for_storage_is_in_the_order(memory: SnapshotMemory) -> None:
    memory.start(start(5))
    memory.choose(RestoreChoice(None, "no pod has a snapshot"))
    assert order(memory)[8:] == (1, 0, -1, 21)
    assert os.pread(memory.files[0], 21, 96) == b"no pod has a snapshot"


def test_the_step_before_which_snapshots_on_storage_count_is_in_the_order(memory: SnapshotMemory) -> None:
    memory.start(start(5))
    memory.choose(RestoreChoice(None, "suspect", before_step=9))
    assert order(memory)[8:] == (1, 0, 9, 7)


@pytest.mark.parametrize("damaged", [b"", bytes(160), header(5, 7)[:-1], b"x" + header(5, 7)[1:]])
def test_a_header_that_is_empty_cut_or_damaged_is_none(damaged: bytes) -> None:
    assert read_header(damaged) is None


def test_each_flipped_bit_of_a_header_makes_it_none() -> None:
    whole = header(5, 7)
    assert read_header(whole) is not None
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        assert read_header(bytes(flipped)) is None


def test_a_process_of_its_own_allocates_all_pages_and_keeps_what_a_worker_writes(memory: SnapshotMemory) -> None:
    save(memory, 0, header(5, 8))
    memory.allocate()
    pid, status = os.waitpid(memory.pid, 0)
    assert memory.ended(pid, status) == ""
    assert memory.pid == 0
    assert os.fstat(memory.files[0]).st_blocks * 512 == FILE
    assert read_header(os.pread(memory.files[0], 160, PAGE)) is not None


def test_an_allocation_that_was_killed_is_reported(memory: SnapshotMemory) -> None:
    memory.allocate()
    os.kill(memory.pid, signal.SIGSTOP)
    os.kill(memory.pid, signal.SIGKILL)
    pid, status = os.waitpid(memory.pid, 0)
    if os.WIFSIGNALED(status):  # else it was done before
        assert "allocated by the first saves" in memory.ended(pid, status)


# The newest one, for reports


def test_the_newest_snapshot_is_reported_with_its_age(memory: SnapshotMemory) -> None:
    memory.start(start(5))
    assert memory.newest() is None
    # when a worker has saved steps 7 and 8, 60 and 30 s ago
    save(memory, 0, header(5, 7, int(time.time()) - 60))
    save(memory, 1, header(5, 8, int(time.time()) - 30))
    # then
    newest = memory.newest()
    assert newest is not None
    assert newest.step == 8
    assert 30 <= newest.age_s < 50


def test_a_snapshot_from_a_clock_that_is_ahead_has_the_age_0(memory: SnapshotMemory) -> None:
    memory.start(start(5))
    save(memory, 0, header(5, 7, int(time.time()) + 3600))
    assert memory.newest() == SnapshotAge(7, 0.0)


# Copies


def test_for_each_rank_of_another_pod_there_is_a_file_with_two_slots_for_its_copies() -> None:
    memory = SnapshotMemory(2, SLOT, 1, copies=2)
    # each slot: a page for the header, and whole pages for the content, 176 bytes of its head and a tag
    assert [os.fstat(file).st_size for file in memory.kept] == [2 * (PAGE + 3 * PAGE)] * 4
    with pytest.raises(PermissionError):
        os.ftruncate(memory.kept[0], 0)
    memory.allocate()
    memory.ended(*os.waitpid(memory.pid, 0))
    assert memory.is_allocated
    assert {os.fstat(file).st_blocks * 512 for file in memory.kept} == {2 * (PAGE + 3 * PAGE)}
    for file in (*memory.files.values(), *memory.kept):
        os.close(file)


def test_the_sidecar_gets_all_files(tmp_path: Path) -> None:
    memory = SnapshotMemory(1, SLOT, 1, copies=1)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "copies"))
        listener.listen()
        memory.pass_files(str(tmp_path / "copies"))
        connection, _ = listener.accept()
        with connection:
            line, fds, _, _ = socket.recv_fds(connection, 10, 10)
    assert line == b"1"
    passed = [os.fstat(fd).st_ino for fd in fds]
    assert passed == [os.fstat(file).st_ino for file in (memory.files[0], memory.kept[0])]
    for file in (*fds, memory.files[0], memory.kept[0]):
        os.close(file)


def test_a_snapshot_that_was_fetched_after_the_read_is_in_the_order(memory: SnapshotMemory) -> None:
    memory.start(start(5))
    save(memory, 1, header(4, 7))
    memory.choose(RestoreChoice(SavedStep(token(4), 7), from_copies=True))
    assert order(memory)[8:] == (2, 1, 7, 0)
