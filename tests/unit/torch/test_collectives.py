"""The reports of a worker: of which steps, what it reads from torch's flight recorders, and how it writes them."""

from __future__ import annotations

import json
import mmap
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import understudy_torch
from understudy_launcher import step_page
from understudy_launcher.events import CollectivesRead
from understudy_launcher.step_page import StepFiles
from understudy_protocol import pod
from understudy_torch import collectives, progress
from understudy_torch.collectives import CollectiveReports, read_entries

STEP_NS = 100_000_000
START_NS = 1_795_744_842_000_000_000


def entry(at_ns: int, sequence: int = 1, **changes: Any) -> dict[str, Any]:
    """As torch 2.13 writes it."""
    return {
        "collective_seq_id": sequence,
        "is_p2p": False,
        "process_group": ["0", "default_pg"],
        "profiling_name": "gloo:all_reduce",
        "state": "scheduled",
        "time_created_ns": at_ns,
        "time_discovered_completed_ns": 0,
        **changes,
    }


def recorded(*entries: Any) -> bytes:
    return json.dumps({"version": "2.10", "entries": list(entries)}).encode()


class Worker:
    """A rank that makes steps of STEP_NS with two collectives each: 30 ms and 80 ms after the step before."""

    def __init__(self, page: memoryview, *, ranks: int = 4) -> None:
        self.now, self.steps, self.reads, self.fails = START_NS, 0, 0, False
        self.entries: list[dict[str, Any]] = [entry(START_NS - 1, 0)]
        self.with_collectives = True
        self.reports = CollectiveReports(page, ranks, self._read, lambda: self.now)
        self.record_from = self.reports.record_from

    def _read(self) -> list[bytes]:
        self.reads += 1
        if self.fails:
            raise RuntimeError("no flight recorder")
        return [recorded(*self.entries)]

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self.steps += 1
            for number, delay_ns in enumerate((30_000_000, 80_000_000) if self.with_collectives else ()):
                self.entries.append(entry(self.now + delay_ns, 2 * self.steps + number))
            self.now += STEP_NS
            if self.steps >= self.record_from:
                self.record_from = self.reports.on_step(self.steps)


@pytest.fixture
def files(tmp_path: Path) -> Iterator[StepFiles]:
    made = StepFiles(str(tmp_path))
    yield made
    made.given()
    made.close()


def page_of(files: StepFiles) -> memoryview:
    return memoryview(mmap.mmap(files.inherited[1], 424)).cast("q")[9:]


@pytest.fixture
def worker(files: StepFiles) -> Worker:
    return Worker(page_of(files))


def test_worker_and_launcher_agree() -> None:
    assert collectives.ENV_SLOW_RANK_PERCENT == pod.ENV_SLOW_RANK_PERCENT
    assert step_page._AREA.size == 8 * 44


def test_the_first_window_is_of_the_steps_11_to_20(worker: Worker, files: StepFiles) -> None:
    # given a worker with a step of 0.1 s
    worker.step(19)
    assert files.page.collectives_read(3) == []
    # when it has made its 20th step
    worker.step()
    # then it has reported ten steps with two collectives each
    (read,) = files.page.collectives_read(3)
    assert (read.local_rank, read.window, read.step_ns) == (3, 20, STEP_NS)
    assert read.delays_ns == (30_000_000, 80_000_000) * 10
    assert len(set(read.collectives)) == 20
    assert all(0 <= collective < 10**18 for collective in read.collectives)
    # and the launcher reads the report once
    assert files.page.collectives_read(3) == []


@pytest.mark.parametrize(("ranks", "second"), [(4, 160), (1000, 320), (10_000, 1280)])
def test_the_next_window_follows_ten_seconds_or_more_later_at_a_step_that_is_the_same_for_all_ranks(
    files: StepFiles, ranks: int, second: int
) -> None:
    # given jobs whose coordinator may get 100 reports a second
    worker = Worker(page_of(files), ranks=ranks)
    # when their ranks make steps of 0.1 s
    worker.step(second)
    # then the second window ends at a power of two, times ten
    assert worker.reads == 2
    assert files.page.collectives_read(0)[0].window == second


def test_a_slow_flight_recorder_is_read_as_seldom_as_its_cost_demands(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a flight recorder that takes 0.3 s
    clock = iter([0.0, 0.3, 1000.0, 1000.3])
    monkeypatch.setattr(collectives, "perf_counter", lambda: next(clock))
    # when the worker has read it once, then the next time is 60 s later: 600 steps at least
    worker.step(639)
    assert worker.reads == 1
    worker.step()
    assert worker.reads == 2


def test_steps_outside_a_window_cost_nothing(worker: Worker) -> None:
    worker.step(20)
    assert (worker.reads, worker.record_from) == (1, 150)


def test_a_window_without_a_collective_in_each_step_is_not_reported(worker: Worker, files: StepFiles) -> None:
    worker.step(15)
    worker.with_collectives = False
    worker.step()
    worker.with_collectives = True
    worker.step(4)
    assert (worker.reads, files.page.collectives_read(0)) == (1, [])
    # and the next window is
    worker.step(140)
    assert files.page.collectives_read(0)[0].window == 160


def test_a_flight_recorder_that_does_not_reach_back_is_not_reported(worker: Worker, files: StepFiles) -> None:
    """A step has more collectives than it has place for."""
    worker.step(19)
    del worker.entries[:-17]
    worker.step()
    assert (worker.reads, files.page.collectives_read(0)) == (1, [])


def test_steps_of_another_process_between_are_not_reported(worker: Worker, files: StepFiles) -> None:
    """A fork that shares the page counts, too."""
    worker.step(15)
    worker.steps += 1
    worker.step(10)
    assert files.page.collectives_read(0) == []


def test_an_error_ends_the_reports_and_not_the_training(worker: Worker, files: StepFiles) -> None:
    worker.fails = True
    worker.step(1000)
    assert (worker.reads, worker.record_from > 1 << 60, files.page.collectives_read(0)) == (1, True, [])


def test_a_report_that_is_being_written_is_read_later(worker: Worker, files: StepFiles) -> None:
    # given the moment before the first number of a second report is written
    worker.step(20)
    words = page_of(files)
    (first,) = files.page.collectives_read(0)
    words[43], words[1] = 2, 160
    # when the launcher reads it, then it gets nothing
    assert files.page.collectives_read(0) == []
    # and the report once it is complete
    words[0] = 2
    assert files.page.collectives_read(0) == [
        CollectivesRead(0, 160, first.step_ns, first.collectives, first.delays_ns)
    ]


@pytest.mark.parametrize(("word", "value"), [(1, 0), (1, -1), (2, 0), (2, -5), (3, -1), (42, -(1 << 63))])
def test_numbers_that_no_worker_of_ours_writes_are_ignored(
    worker: Worker, files: StepFiles, word: int, value: int
) -> None:
    worker.step(20)
    page_of(files)[word] = value
    assert files.page.collectives_read(0) == []


def test_a_truncated_page_is_no_error(worker: Worker, files: StepFiles) -> None:
    os.ftruncate(files.inherited[1], 100)
    assert files.page.collectives_read(0) == []


# The flight recorder -------------------------------------------------------------------------------------------------


def test_ranks_agree_on_a_collective_by_its_group_its_backend_and_its_number() -> None:
    def identity(**changes: Any) -> int:
        return read_entries([recorded(entry(1, **changes))])[0][1]

    assert identity() == identity(thread_id="5", profiling_name="gloo:broadcast", process_group=["0", "undefined"])
    others = [
        identity(sequence=2),
        identity(process_group=["1", "default_pg"]),
        identity(profiling_name="nccl:all_reduce"),
    ]
    assert len({identity(), *others}) == 4
    assert identity(process_group="0") == identity()


def test_the_entries_of_all_flight_recorders_are_read_in_their_order() -> None:
    found = read_entries([recorded(entry(30, 3), entry(10, 1)), recorded(entry(20, 2), entry(30, 3))])
    assert [at for at, _ in found] == [10, 20, 30]


@pytest.mark.parametrize(
    "odd",
    [
        entry(5, is_p2p=True),
        entry(5, profiling_name="xccl:all_reduce"),
        entry(5, profiling_name=7),
        entry(5, process_group=[]),
        entry(5, process_group=None),
        {**entry(5), "time_created_ns": "5"},
        {**entry(5), "time_created_ns": 5.5},
        {**entry(5), "collective_seq_id": None},
        {"collective_seq_id": 1},
        "entry",
        None,
    ],
)
def test_entries_of_another_kind_are_left_out(odd: Any) -> None:
    assert [at for at, _ in read_entries([recorded(odd, entry(9))])] == [9]


@pytest.mark.parametrize("content", ["{}", "[]", "null", '{"entries": 5}', '{"entries": {}}'])
def test_a_flight_recorder_of_another_format_has_no_entries(content: str) -> None:
    assert read_entries([content]) == []


def test_a_torch_without_a_flight_recorder_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch._C._distributed_c10d", raising=False)
    assert collectives.read_flight_recorders() == []
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", SimpleNamespace())
    assert collectives.read_flight_recorders() == []


def test_the_flight_recorders_of_gloo_and_of_nccl_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    # given a torch of a build with NCCL, whose collectives are in a flight recorder of their own
    module = SimpleNamespace(
        _dump_fr_trace_json=lambda *options: ("gloo", options), _dump_nccl_trace_json=lambda *options: ("nccl", options)
    )
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", module)
    # then both are read, with all entries and not only those that are active
    assert collectives.read_flight_recorders() == [("gloo", (True, False)), ("nccl", (True, False))]


# The GPU -------------------------------------------------------------------------------------------------------------


def test_a_window_counts_only_if_the_gpu_was_idle_at_each_step(
    worker: Worker, files: StepFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a script whose CPU runs ahead of the GPU in its 15th step
    busy_at = 15
    stream = SimpleNamespace(query=lambda: worker.steps != busy_at)
    cuda = SimpleNamespace(
        is_initialized=lambda: True, is_current_stream_capturing=lambda: False, current_stream=lambda: stream
    )
    monkeypatch.setitem(sys.modules, "torch.cuda", cuda)
    worker.step(20)
    assert files.page.collectives_read(0) == []
    # when it waits for the GPU in each step of a later window, then this one is reported
    worker.step(300)
    assert files.page.collectives_read(0) != []


def test_a_stream_that_is_being_captured_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The question would break the capture."""
    cuda = SimpleNamespace(is_initialized=lambda: True, is_current_stream_capturing=lambda: True)
    monkeypatch.setitem(sys.modules, "torch.cuda", cuda)
    assert not collectives.has_waited_for_gpu()


# step() --------------------------------------------------------------------------------------------------------------


def job(monkeypatch: pytest.MonkeyPatch, files: StepFiles, **variables: str) -> None:
    for name in ("_files", "_page"):
        monkeypatch.setattr(progress, name, None)
    monkeypatch.setattr(progress, "_looked", False)
    monkeypatch.setenv(pod.ENV_STEP_FD, "{},{}".format(*files.inherited))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def module(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A torch whose flight recorder is empty. Return a list of its calls."""
    called: list[int] = []

    def dump(*options: bool) -> bytes:
        called.append(1)
        return recorded()

    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", SimpleNamespace(_dump_fr_trace_json=dump))
    return called


def test_step_reads_the_flight_recorder_at_its_20th_call(monkeypatch: pytest.MonkeyPatch, files: StepFiles) -> None:
    job(monkeypatch, files, WORLD_SIZE="4")
    called = module(monkeypatch)
    for number in range(19):
        understudy_torch.step(number)
    assert called == []
    understudy_torch.step(19)
    assert called == [1]


@pytest.mark.parametrize(
    "variables",
    [{"WORLD_SIZE": "4", pod.ENV_SLOW_RANK_PERCENT: "0"}, {"WORLD_SIZE": "1"}, {"WORLD_SIZE": "many"}, {}],
)
def test_step_reads_nothing_if_the_job_wants_no_reports_or_there_are_no_other_ranks(
    monkeypatch: pytest.MonkeyPatch, files: StepFiles, variables: dict[str, str]
) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    job(monkeypatch, files, **variables)
    called = module(monkeypatch)
    for number in range(50):
        understudy_torch.step(number)
    assert called == []
    assert struct.unpack("2q", os.pread(files.inherited[1], 16, 8)) == (50, 49)
