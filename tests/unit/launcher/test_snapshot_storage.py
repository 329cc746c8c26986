"""Snapshots on storage: save() marks a slot, the process beside the launcher writes it, and load() restores it."""

from __future__ import annotations

import errno
import io
import mmap
import os
import shutil
import signal
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.snapshot_rounds import Rounds, token
from understudy_launcher.snapshot_storage import SlotWriter, SnapshotStorage, StorageSettings, total
from understudy_protocol import snapshot_slots
from understudy_protocol.launcher import SnapshotsStored
from understudy_protocol.snapshot_slots import DamagedSnapshotError, Part, SnapshotSlots
from understudy_protocol.snapshot_storage import SnapshotStorageError

PAGE, SLOT = 4096, 1 << 20
LIMIT_S = 20.0


def pack(state: bytes) -> tuple[bytes, list[Part]]:
    """A state with one array, which is the state."""

    def copy(memory: mmap.mmap, offset: int) -> bytes:
        memory[offset : offset + len(state)] = state
        return state

    return b"one array of %d" % len(state), [Part(len(state), copy)]


def unpack(structure: bytes) -> tuple[bytearray, list[Part]]:
    state = bytearray(int(structure.split()[-1]))

    def copy(memory: mmap.mmap, offset: int) -> bytes:
        state[:] = memory[offset : offset + len(state)]
        return bytes(state)

    return state, [Part(len(state), copy)]


class Job:
    """The ranks of a pod, with memory of its own, and a folder on storage."""

    def __init__(self, folder: Path, *, every: int = 10, keep: int = 2, first_round: int = 0, ranks: int = 1) -> None:
        self.rounds, self.ranks = Rounds(SLOT, ranks=ranks), ranks
        self.rounds.number = first_round - 1
        self.settings = StorageSettings(str(folder), every, keep)
        storage = SnapshotStorage(self.rounds.memory.files, self.settings)
        storage._write_settings(every)  # as start() does, without its process
        self.writers = [SlotWriter(file, self.settings) for file in self.rounds.memory.files.values()]
        self.begin()

    def begin(self) -> None:
        """The next round, which has no snapshot in memory."""
        self.rounds.next()
        self.rounds.choose(None)
        numbers = token(self.rounds.number)
        files = self.rounds.memory.files.values()
        self.workers = [SnapshotSlots(file, (numbers.epoch, numbers.term, numbers.round)) for file in files]

    def save(self, step: int, state: bytes = b"state") -> None:
        for worker in self.workers:
            assert worker.save(step, state, pack)

    def write(self) -> None:
        for writer in self.writers:
            writer.write_marked()

    def close(self) -> None:
        self.rounds.close()


@pytest.fixture
def make_job(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    made: list[Job] = []

    def make(**options: int) -> Job:
        made.append(Job(tmp_path / "snapshots", **options))
        return made[-1]

    yield make
    for job in made:
        job.close()


def names(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "snapshots").glob("*-of-*"))


def test_a_job_that_lost_all_its_memory_restores_the_newest_snapshot_on_storage(make_job: Callable[..., Job]) -> None:
    # given a job whose snapshot of step 10 is on storage
    job = make_job(ranks=2)
    job.save(9, b"nine")
    job.save(10, b"ten" * 100_000)
    job.save(11, b"eleven")
    job.write()
    # when another job with new memory starts there
    again = make_job(ranks=2, first_round=1)
    # then each rank has its state, and a save leaves it whole in memory
    assert [bytes(worker.load(unpack) or b"") for worker in again.workers] == [b"ten" * 100_000] * 2
    assert [worker.reason for worker in again.workers] == ["", ""]
    again.save(11)


def test_of_each_ten_steps_the_first_saved_one_is_written(tmp_path: Path, make_job: Callable[..., Job]) -> None:
    job = make_job(keep=9)
    for step in (8, 9, 11, 12, 19, 20, 27, 28, 45):
        job.save(step)
        job.write()
    assert names(tmp_path) == [f"0000000000.0000000001.0000000000-{step}-of-1" for step in (11, 20, 45)]


def test_a_restored_step_counts_as_saved(tmp_path: Path, make_job: Callable[..., Job]) -> None:
    """So rounds that are shorter than `every` steps write snapshots, too."""
    job = make_job()
    for step in (9, 10):
        job.save(step)
        job.write()
    again = make_job(first_round=1)
    assert again.workers[0].load(unpack) is not None
    again.save(20)
    again.write()
    assert names(tmp_path)[-1] == "0000000000.0000000001.0000000001-20-of-1"


def test_saves_leave_a_marked_slot_alone_until_it_is_written(tmp_path: Path, make_job: Callable[..., Job]) -> None:
    job = make_job()
    job.save(9)
    job.save(10, b"ten")
    # given many saves before the process writes the slot, of which one would be written, too
    for step in range(11, 25):
        job.save(step, b"later")
    job.write()
    # then the file has the state of step 10
    (name,) = names(tmp_path)
    assert name == "0000000000.0000000001.0000000000-10-of-1"
    assert (tmp_path / "snapshots" / name / "0").read_bytes().endswith(b"ten")
    # and after that the next step is written again
    job.save(30)
    job.write()
    assert names(tmp_path)[-1] == "0000000000.0000000001.0000000000-30-of-1"


def test_a_step_for_which_the_storage_is_too_slow_is_named_once(
    make_job: Callable[..., Job], capfd: pytest.CaptureFixture[str]
) -> None:
    job = make_job()
    for step in range(9, 50):
        job.save(step)
    assert capfd.readouterr().err == (
        "understudy: the snapshot of step 20 is not written to storage, because the writing of an earlier one has not "
        "ended: raise spec.snapshots.storage.every\n"
    )


def test_a_slot_is_not_overwritten_for_a_copy_while_it_is_written_to_storage(make_job: Callable[..., Job]) -> None:
    job, file = make_job(), 0
    file = job.rounds.memory.files[0]
    job.save(9)
    job.save(10)
    # given the sidecar copies the other slot
    (mark,) = struct.unpack("<q", os.pread(file, 8, PAGE - 16))
    os.pwrite(file, struct.pack("<q", 3 - mark), PAGE - 8)
    job.save(11)
    headers = job.rounds.memory._slots()[0]
    assert {header.saved.step for header in headers if header} == {10, 11}


def test_the_newest_complete_snapshots_are_kept(tmp_path: Path, make_job: Callable[..., Job]) -> None:
    job = make_job(keep=2, ranks=2)
    job.save(9)
    for step in (10, 20, 30):
        job.save(step)
        job.writers[1].write_marked()
        job.writers[0].write_marked()
    # given step 40, which rank 0 has written, and rank 1 has not
    job.save(40)
    job.writers[0].write_marked()
    # then two complete ones are left besides it
    assert [name.split("-")[1] for name in names(tmp_path)] == ["20", "30", "40"]


def test_an_incomplete_snapshot_is_removed_once_a_newer_one_is_complete(
    tmp_path: Path, make_job: Callable[..., Job]
) -> None:
    job = make_job(ranks=2)
    job.save(9)
    # given step 10, which rank 1 does not write
    job.save(10)
    os.pwrite(job.rounds.memory.files[1], bytes(8), PAGE - 16)
    job.write()
    assert [name.split("-")[1] for name in names(tmp_path)] == ["10"]
    # when step 20 is complete, then rank 0 removes step 10 with its next snapshot
    job.save(20)
    job.write()
    job.save(30)
    job.write()
    assert [name.split("-")[1] for name in names(tmp_path)] == ["20", "30"]


def steps(tmp_path: Path) -> list[int]:
    return [int(name.split("-")[1]) for name in names(tmp_path)]


def test_the_folder_needs_room_for_one_more_snapshot_than_it_keeps(
    tmp_path: Path, make_job: Callable[..., Job]
) -> None:
    job = make_job(keep=2, ranks=2)
    job.save(9)
    for step in (10, 20, 30):
        job.save(step)
        job.write()
    # when rank 0 finds that rank 1 has written its file, too, then it does not wait for its next snapshot
    job.writers[0].look()
    assert steps(tmp_path) == [20, 30]


def without_rank_1_since_30(make_job: Callable[..., Job]) -> Job:
    """Steps 10 and 20 are complete, and the pod of rank 1 was lost before it had written step 30."""
    job = make_job(keep=2, ranks=2)
    job.save(9)
    for step in (10, 20):
        job.save(step)
        job.write()
    job.writers[0].look()
    job.save(30)
    os.pwrite(job.rounds.memory.files[1], bytes(8), PAGE - 16)
    job.write()
    return job


def test_a_snapshot_that_a_lost_pod_leaves_incomplete_is_removed_once_a_newer_one_is_complete(
    tmp_path: Path, make_job: Callable[..., Job]
) -> None:
    job = without_rank_1_since_30(make_job)
    # when the next snapshot is complete
    job.save(40)
    job.write()
    job.writers[0].look()
    assert steps(tmp_path) == [20, 40]


def test_on_a_full_volume_incomplete_snapshots_make_room_for_the_next_one(
    tmp_path: Path, make_job: Callable[..., Job]
) -> None:
    job = without_rank_1_since_30(make_job)
    # and there is no room for its file of step 40
    job.save(40)
    (tmp_path / "snapshots" / "0000000000.0000000001.0000000000-40-of-2" / ".1").mkdir(parents=True)
    job.write()
    # when rank 0 begins to write step 50
    job.save(50)
    job.writers[0].write_marked()
    # then the files of steps 30 and 40, which rank 1 will not write any more, are removed
    assert steps(tmp_path) == [10, 20, 50]


def test_a_rank_that_is_slower_than_the_others_keeps_its_chance_to_complete_a_snapshot(
    tmp_path: Path, make_job: Callable[..., Job]
) -> None:
    job = make_job(keep=2, ranks=2)
    job.save(9)
    # given rank 1, which still writes step 10 when rank 0 has written step 20
    job.save(10)
    job.writers[0].write_marked()
    job.save(20)
    job.writers[0].write_marked()
    assert steps(tmp_path) == [10, 20]
    # when it has written step 10, and later step 30
    job.writers[1].write_marked()
    job.save(30)
    job.write()
    job.writers[0].look()
    # then step 20, which it has skipped, is removed
    assert steps(tmp_path) == [10, 30]


def test_ranks_that_never_write_their_files_do_not_fill_the_storage(
    tmp_path: Path, make_job: Callable[..., Job], capfd: pytest.CaptureFixture[str]
) -> None:
    # given rank 1, whose pod cannot write
    job = make_job(ranks=2)
    job.save(9)
    for step in range(10, 200, 10):
        job.save(step)
        os.pwrite(job.rounds.memory.files[1], bytes(8), PAGE - 16)
        job.write()
    # then the newest incomplete snapshots stay, because rank 1 may only be slow
    assert [int(name.split("-")[1]) for name in names(tmp_path)] == [120, 130, 140, 150, 160, 170, 180, 190]
    assert capfd.readouterr().err.count("removed incomplete snapshots: other ranks have not written") == 1


def test_a_rank_0_that_cannot_write_removes_the_files_of_the_others(
    tmp_path: Path, make_job: Callable[..., Job]
) -> None:
    job = make_job(ranks=2)
    job.save(9)
    for step in range(10, 200, 10):
        # given an error of rank 0's file
        (tmp_path / "snapshots" / f"0000000000.0000000001.0000000000-{step}-of-2" / ".0").mkdir(parents=True)
        job.save(step)
        job.write()
    assert steps(tmp_path) == [190]


def test_a_snapshot_of_a_replaced_round_overwrites_none_of_a_newer_round(
    tmp_path: Path, make_job: Callable[..., Job]
) -> None:
    # given a pod that was cut off and continues, and a newer round that repeats its step
    old, new = make_job(), make_job(first_round=1)
    for job, state in ((new, b"new"), (old, b"old")):
        job.save(9)
        job.save(10, state)
        job.write()
    # then the newest round's state is restored
    assert bytes(make_job(first_round=2).workers[0].load(unpack) or b"") == b"new"


def test_a_damaged_file_fails_the_round_and_the_next_round_restores_an_older_snapshot(
    tmp_path: Path, make_job: Callable[..., Job]
) -> None:
    job = make_job()
    job.save(9)
    for step in (10, 20):
        job.save(step, b"%d" % step)
        job.write()
    path = tmp_path / "snapshots" / names(tmp_path)[-1] / "0"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    again = make_job(first_round=1)
    with pytest.raises(DamagedSnapshotError, match=r"-20-of-1/0 cannot be restored \(its digest is wrong\)"):
        again.workers[0].load(unpack)
    again.begin()
    assert bytes(again.workers[0].load(unpack) or b"") == b"10"


@pytest.mark.parametrize("length", [0, 100, PAGE, PAGE + 3])
def test_an_incomplete_file_is_damaged(tmp_path: Path, make_job: Callable[..., Job], length: int) -> None:
    job = make_job()
    job.save(9)
    job.save(10)
    job.write()
    path = tmp_path / "snapshots" / names(tmp_path)[0] / "0"
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(DamagedSnapshotError, match="cannot be restored"):
        make_job(first_round=1).workers[0].load(unpack)
    assert path.with_name("0.damaged").exists()


def test_a_file_system_that_returns_fewer_bytes_than_requested_damages_no_snapshot(
    make_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As FUSE may, if it does not cache."""
    job = make_job()
    job.save(9)
    job.save(10, b"ten" * 1000)
    job.write()

    class Short(io.FileIO):
        def read(self, size: int | None = -1) -> bytes:
            return super().read(min(size or 0, 1000))

        def readinto(self, buffer: Any) -> int:
            return super().readinto(memoryview(buffer)[:1000])

    monkeypatch.setattr(snapshot_slots, "open", lambda path, *_, **options: Short(path), raising=False)
    assert bytes(make_job(first_round=1).workers[0].load(unpack) or b"") == b"ten" * 1000


def test_the_file_of_another_rank_is_damaged(tmp_path: Path, make_job: Callable[..., Job]) -> None:
    job = make_job(ranks=2)
    job.save(9)
    job.save(10)
    job.write()
    folder = tmp_path / "snapshots" / names(tmp_path)[0]
    (folder / "0").write_bytes((folder / "1").read_bytes())
    with pytest.raises(DamagedSnapshotError, match="it is of rank 1 of 2"):
        make_job(ranks=2, first_round=1).workers[0].load(unpack)


def test_a_file_that_cannot_be_read_is_kept(tmp_path: Path, make_job: Callable[..., Job]) -> None:
    job = make_job()
    job.save(9)
    job.save(10)
    job.write()
    path = tmp_path / "snapshots" / names(tmp_path)[0] / "0"
    path.unlink()
    path.symlink_to("/proc/self/mem")  # an error of the storage
    with pytest.raises(SnapshotStorageError, match="0 cannot be read: Input/output error"):
        make_job(first_round=1).workers[0].load(unpack)
    assert path.exists()


def test_a_snapshot_that_does_not_fit_into_the_memory_any_more_is_kept(
    tmp_path: Path, make_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job()
    job.save(9)
    job.save(10, bytes(SLOT // 2))
    job.write()
    # given a job with half as much memory
    monkeypatch.setattr(sys.modules[__name__], "SLOT", SLOT // 2)
    with pytest.raises(
        SnapshotStorageError, match=r"has 0\.5 MiB, and spec\.snapshots\.size is 0\.5 MiB: raise the size"
    ):
        make_job(first_round=1).workers[0].load(unpack)
    assert [path.name for path in (tmp_path / "snapshots" / names(tmp_path)[0]).iterdir()] == ["0"]


def test_a_whole_snapshot_that_a_script_cannot_unpack_is_kept(tmp_path: Path, make_job: Callable[..., Job]) -> None:
    job = make_job()
    job.save(9)
    job.save(10)
    job.write()

    def fail(_structure: bytes) -> tuple[bytearray, list[Part]]:
        raise MemoryError("the script needs too much memory")

    with pytest.raises(MemoryError):
        make_job(first_round=1).workers[0].load(fail)
    assert [path.name for path in (tmp_path / "snapshots" / names(tmp_path)[0]).iterdir()] == ["0"]


def test_a_round_of_another_size_restores_none_with_the_reason(tmp_path: Path, make_job: Callable[..., Job]) -> None:
    job = make_job()
    job.save(9)
    job.save(10)
    job.write()
    (worker, _) = make_job(ranks=2, first_round=1).workers
    assert worker.load(unpack) is None
    assert (
        worker.reason == f"none was saved; the snapshots in {tmp_path}/snapshots are of 1 ranks, and this round has 2"
    )


# Counts


def test_written_and_failed_snapshots_and_the_newest_complete_step_are_counted(
    tmp_path: Path, make_job: Callable[..., Job]
) -> None:
    job = make_job(ranks=2)
    of_rank_0, of_rank_1 = job.writers
    job.save(9)
    job.save(10)
    of_rank_0.write_marked()
    # then a step counts only when the other rank has written it, too
    of_rank_0.look()
    assert of_rank_0.stored == SnapshotsStored(written=1, failed=0)
    of_rank_1.write_marked()
    of_rank_0.look()
    assert (of_rank_0.stored.written, of_rank_0.stored.step, of_rank_1.stored.step) == (1, 10, None)
    assert abs(of_rank_0.stored.at - time.time()) < 60
    # and if a step fails, the one before stays the newest
    shutil.rmtree(tmp_path / "snapshots")
    (tmp_path / "snapshots").touch()
    job.save(20)
    of_rank_0.write_marked()
    of_rank_0.look()
    assert (of_rank_0.stored.written, of_rank_0.stored.failed, of_rank_0.stored.step) == (1, 1, 10)


def test_the_counts_of_a_pod_are_those_of_all_its_ranks() -> None:
    of_ranks = (SnapshotsStored(3, 1), SnapshotsStored(2, 2, 20, 7.5))
    assert total(of_ranks) == SnapshotsStored(5, 3, 20, 7.5)


# The process


def wait_for(is_done: Callable[[], bool]) -> None:
    until = time.monotonic() + LIMIT_S
    while not is_done():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.fixture
def storage(make_job: Callable[..., Job]) -> Iterator[tuple[Job, SnapshotStorage]]:
    job = make_job()
    made = SnapshotStorage(job.rounds.memory.files, job.settings)
    made.start()
    yield job, made
    if made.pid:
        os.kill(made.pid, signal.SIGKILL)
        os.waitpid(made.pid, 0)


def test_the_process_writes_what_was_marked(tmp_path: Path, storage: tuple[Job, SnapshotStorage]) -> None:
    job, _ = storage
    job.save(9)
    job.save(10)
    wait_for(lambda: (tmp_path / "snapshots" / "0000000000.0000000001.0000000000-10-of-1" / "0").exists())


def received(process: SnapshotStorage) -> list[int | None]:
    """Written, failed and step of the next report."""
    until, found = time.monotonic() + LIMIT_S, process.receive()
    while found is None:
        assert time.monotonic() < until
        time.sleep(0.02)
        found = process.receive()
    return [found.written, found.failed, found.step]


def test_the_process_reports_its_counts_and_the_next_process_adds_to_them(
    storage: tuple[Job, SnapshotStorage],
) -> None:
    job, process = storage
    assert process.receive() is None
    job.save(9)
    job.save(10)
    assert received(process) == [1, 0, 10]
    os.kill(process.pid, signal.SIGKILL)
    pid, _ = os.waitpid(process.pid, 0)
    assert process.ended(pid)
    assert process.receive() is None
    process.start()
    job.save(20)
    assert received(process) == [2, 0, 20]


def test_a_pod_that_cannot_start_the_process_restores_the_same_snapshot_as_the_others(
    make_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its ranks would continue from a checkpoint of the script, and the other ranks from the snapshot."""
    job = make_job(ranks=2)
    job.save(9)
    job.save(10)
    job.write()

    # given a pod with rank 0, and a pod with rank 1 whose container has too many processes
    def fail() -> int:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    again = make_job(ranks=2, first_round=1)
    file = again.rounds.memory.files[1]
    os.pwrite(file, bytes(1024), 2304)
    process = SnapshotStorage({0: file}, again.settings)
    monkeypatch.setattr(os, "fork", fail)
    with pytest.raises(OSError, match="Resource temporarily unavailable"):
        process.start()
    assert [bytes(worker.load(unpack) or b"") for worker in again.workers] == [b"state"] * 2
    # and it marks no slot, which no process would write
    again.save(20)
    assert os.pread(file, 8, PAGE - 16) == bytes(8)


def test_a_failure_of_the_storage_is_logged_once_and_saves_continue(
    tmp_path: Path, make_job: Callable[..., Job], capfd: pytest.CaptureFixture[str]
) -> None:
    # given a file in place of the folder
    (tmp_path / "snapshots").touch()
    job = make_job()
    for step in (9, 10, 20, 30):
        job.save(step)
        job.write()
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(
        "understudy: a snapshot was not written to storage (spec.snapshots.storage): Not a directory"
    )
    assert line.endswith("The training continues")


def test_a_slot_that_was_overwritten_meanwhile_leaves_no_file(
    tmp_path: Path, make_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job()
    job.save(9)
    job.save(10)
    # given a fetch of a copy that overwrites the slot before the file is complete
    file = job.rounds.memory.files[0]
    sync = os.fsync

    def overwrite(target: int) -> None:
        for slot in (0, 1):
            os.pwrite(file, bytes(100), PAGE + slot * (PAGE + SLOT))
        sync(target)

    monkeypatch.setattr(os, "fsync", overwrite)
    job.write()
    (folder,) = (tmp_path / "snapshots").iterdir()
    assert [path.name for path in folder.iterdir()] == ["0.failed"]


def test_without_the_process_no_slot_stays_marked_and_the_next_start_begins_again(
    tmp_path: Path, storage: tuple[Job, SnapshotStorage]
) -> None:
    # given a process that was killed before it could write
    job, process = storage
    os.kill(process.pid, signal.SIGSTOP)
    job.save(9)
    job.save(10)
    os.kill(process.pid, signal.SIGKILL)
    pid, _ = os.waitpid(process.pid, 0)
    assert process.ended(pid)
    # then saves use both slots, and mark none
    job.save(20)
    job.save(30)
    assert {header.saved.step for header in job.rounds.memory._slots()[0] if header} == {20, 30}
    # when the next round starts it again, then it writes
    process.start()
    job.save(40)
    wait_for(lambda: (tmp_path / "snapshots" / "0000000000.0000000001.0000000000-40-of-1" / "0").exists())
