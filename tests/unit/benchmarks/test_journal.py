"""Every sample is written to disk at once, and a session continues where the earlier ones ended."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.journal import Journal, Session, read_sessions
from benchmarks.records import Sample

FACTS = {"command": "make bench-x", "commit": "abc", "date": "2026-11-25", "cores": "2"}


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results" / "x.json"


def sample(run: int, seconds: float) -> Sample:
    return Sample("understudy", "next-round", 64, run, {"seconds": seconds})


def unfinished(run: int, after_s: float) -> Sample:
    return Sample("understudy", "next-round", 64, run, {}, "nobody came", ("seconds", "connect_s"), after_s)


def test_samples_and_facts_are_restored_from_the_file(path: Path) -> None:
    Journal(path, FACTS, resume=False, clock=Clock()).add([sample(0, 0.1234567), unfinished(1, 5.0)])

    (session,) = read_sessions(path)

    assert session == Session(FACTS, 0.0, [sample(0, 0.123457), unfinished(1, 5.0)])


def test_a_sample_has_a_line_of_its_own(path: Path) -> None:
    Journal(path, FACTS, resume=False).add([sample(0, 3.0), sample(1, 2.0)])

    lines = [line for line in path.read_text().splitlines() if '"run"' in line]
    assert len(lines) == 2
    assert json.loads(lines[1]) == {
        "system": "understudy",
        "case": "next-round",
        "size": 64,
        "run": 1,
        "values": {"seconds": 2.0},
    }


def test_a_resumed_session_follows_the_earlier_ones(path: Path) -> None:
    # given an interrupted session of 60 s
    clock = Clock()
    first = Journal(path, FACTS, resume=False, clock=clock)
    clock.now += 60
    first.add([sample(0, 3.0)])
    # when another one continues
    second = Journal(path, {**FACTS, "commit": "def"}, resume=True, clock=clock)
    assert second.has("understudy", "next-round", 64, 0)
    assert not second.has("understudy", "next-round", 64, 1)
    assert second.next_run("understudy", "next-round", 64) == 1
    assert second.next_run("understudy", "next-round", 65) == 0
    clock.now += 5
    second.begin()  # five seconds of installation do not count
    clock.now += 30
    second.add([sample(1, 2.0)])
    clock.now += 10
    second.close()
    # then the file has both, each with its own seconds
    assert [(x.facts["commit"], x.seconds, x.samples) for x in read_sessions(path)] == [
        ("abc", 60.0, [sample(0, 3.0)]),
        ("def", 40.0, [sample(1, 2.0)]),
    ]
    assert second.samples == [sample(0, 3.0), sample(1, 2.0)]


def test_a_session_without_samples_changes_nothing(path: Path) -> None:
    Journal(path, FACTS, resume=False).add([sample(0, 3.0)])
    before = path.read_text()

    Journal(path, FACTS, resume=False).close()

    assert path.read_text() == before


def test_a_session_that_does_not_resume_replaces_the_earlier_ones(path: Path) -> None:
    Journal(path, FACTS, resume=False).add([sample(0, 3.0)])

    Journal(path, FACTS, resume=False).add([sample(0, 4.0)])

    assert [x.samples for x in read_sessions(path)] == [[sample(0, 4.0)]]


def test_the_runs_that_never_finished_in_their_time_are_known(path: Path) -> None:
    journal = Journal(path, FACTS, resume=False)
    journal.add([sample(0, 3.0), unfinished(1, 5.0)])

    assert journal.hopeless("understudy", ("next-round", "first-round"), 64, 5.0) == [unfinished(1, 5.0)]
    assert journal.hopeless("understudy", ("next-round", "first-round"), 64, 5.1) == []
    assert journal.hopeless("understudy", ("first-round",), 64, 5.0) == []
    assert journal.hopeless("understudy", ("next-round",), 65, 5.0) == []
