"""A runner and its children: questions, answers, and the error if a child fails."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import child as child_module
from benchmarks.child import Child, ChildFailed, Unfinished
from benchmarks.machine import Usage

ECHO = """
import json, sys, time
for line in sys.stdin:
    asked = json.loads(line)
    if asked["do"] == "fail":
        sys.exit("it broke")
    if asked["do"] == "work":
        start = time.process_time()
        while time.process_time() < start + asked["s"]:
            pass
    if asked["do"] != "be silent":
        print(json.dumps({"error": "cannot"} if asked["do"] == "refuse" else asked), flush=True)
"""


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Child]:
    monkeypatch.setattr(child_module, "LOGS", tmp_path / "logs")
    monkeypatch.setattr(child_module, "CHECKOUT", tmp_path)
    (tmp_path / "echo.py").write_text(ECHO)
    return lambda: Child("echo", "echo")


def test_a_child_answers_in_the_order_of_the_questions(start: Callable[[], Child]) -> None:
    with start() as child:
        child.send("first", number=1)
        child.send("second")
        assert child.answer(10) == {"do": "first", "number": 1}
        assert child.ask("third", 10) == {"do": "second"}


def test_no_answer_within_the_limit_is_a_result(start: Callable[[], Child]) -> None:
    with start() as child, pytest.raises(Unfinished) as seen:
        child.ask("be silent", 0.05)
    # its text is stored, so it has no path of this machine
    assert (str(seen.value), seen.value.after_s) == ("echo did not answer within 0 s; its log: logs/echo.log", 0.05)


def test_a_missing_answer_before_a_measurement_is_an_error(start: Callable[[], Child]) -> None:
    with start() as child, pytest.raises(ChildFailed, match="did not answer within"):
        child.prepare("be silent", 0.05)


def test_a_child_that_ends_is_reported_with_its_last_output(start: Callable[[], Child]) -> None:
    with start() as child, pytest.raises(ChildFailed, match=r"(?s)status 1.*it broke"):
        child.ask("fail", 10)


def test_a_child_that_refuses_is_a_failure(start: Callable[[], Child]) -> None:
    with start() as child, pytest.raises(ChildFailed, match="cannot"):
        child.ask("refuse", 10)


def test_a_child_ends_when_its_runner_closes_it(start: Callable[[], Child]) -> None:
    with start() as child:
        child.ask("anything", 10)
    assert not os.path.exists(f"/proc/{child.pid}")


def test_the_resources_of_a_child_are_counted(start: Callable[[], Child]) -> None:
    with start() as child:
        child.ask("anything", 10)
        before = Usage.of(child.pid)
        child.ask("work", 10, s=0.1)
        assert 0.08 <= Usage.of(child.pid).cpu_s - before.cpu_s <= 0.2
        assert 1 < before.rss_mb < 100
