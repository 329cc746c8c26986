"""A program is identified by its pid and its start time, because another process may have the pid by now."""

from __future__ import annotations

import subprocess
import time

import pytest

from tests.cluster.cgroups import ControlGroup
from tests.cluster.processes import Component, Record, parse_start_time, start_time


@pytest.fixture
def sleeper():
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def test_the_start_time_is_found_after_a_name_with_brackets():
    stat = "77 (a) b (c) S 1 77 77 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 123456 1000 10 18446744073709551615"
    assert parse_start_time(stat) == 123456


@pytest.mark.parametrize("state", ["Z", "X"])
def test_a_zombie_does_not_run(state):
    assert parse_start_time(f"77 (sleep) {state} 1 77 77 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 123456 0 0") is None


def test_a_process_is_adopted_by_pid_and_start(sleeper):
    started = start_time(sleeper.pid)
    assert started is not None
    assert Record(sleeper.pid, started, "").runs()
    assert not Record(sleeper.pid, started + 1, "").runs()


def test_a_dead_process_does_not_run(sleeper):
    record = Record(sleeper.pid, start_time(sleeper.pid) or 0, "")
    sleeper.kill()
    deadline = time.monotonic() + 5
    while record.runs() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not record.runs()  # a zombie: no process has waited for it


def test_a_record_knows_when_its_process_was_started(sleeper):
    record = Record(sleeper.pid, start_time(sleeper.pid) or 0, "")
    assert abs(time.time() - record.started_at()) < 30


def test_records_survive_a_round_trip_and_garbage_is_none(tmp_path):
    file = tmp_path / "records" / "kubelet.json"
    Record(7, 8, "abc").write(file)
    assert Record.read(file) == Record(7, 8, "abc")
    file.write_text('{"pid": 7')
    assert Record.read(file) is None
    assert Record.read(tmp_path / "none.json") is None


def test_another_configuration_has_another_digest():
    group = ControlGroup("understudy/test")
    one = Component("kubelet", group, ["kubelet", "--config=f"], "a")
    assert one.digest == Component("kubelet", group, ["kubelet", "--config=f"], "a", ["nsenter"]).digest
    assert one.digest != Component("kubelet", group, ["kubelet", "--config=f"], "b").digest
    assert one.digest != Component("kubelet", group, ["kubelet", "--config=g"], "a").digest
