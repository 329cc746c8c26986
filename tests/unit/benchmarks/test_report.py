"""A session records its command, commit and machine with its first sample."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from benchmarks.journal import read_sessions
from benchmarks.records import Sample
from benchmarks.report import add_arguments, open_journal


def parse_arguments(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(arguments)


def test_a_session_names_its_command_commit_and_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["x", "--runs", "3"])

    open_journal("x", parse_arguments("--results", str(tmp_path)), {"torch": "2.13.0"}).add(
        [Sample("a", "b", 1, 0, {"cpu_s": 1})]
    )

    (session,) = read_sessions(tmp_path / "x.json")
    assert session.facts["command"] == 'make bench-x ARGS="--runs 3"'
    assert re.fullmatch(r"[0-9a-f]{10}\+?", session.facts["commit"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", session.facts["date"])
    assert list(session.facts) == ["command", "commit", "date", "cores", "memory", "kernel", "Python", "torch"]


def test_a_command_without_arguments_has_none_and_writes_into_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["x"])

    journal = open_journal("x", parse_arguments())

    assert journal.path == Path(__file__).resolve().parents[3] / "benchmarks" / "results" / "x.json"
    assert not journal.path.exists()
