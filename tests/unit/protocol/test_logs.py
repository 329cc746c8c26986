"""Lines of JSON for a collector, from our own loggers and from kopf's; and lines of text."""

import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import kopf
import pytest
from kopf._core.actions.loggers import ObjectLogger

from understudy_protocol import logs
from understudy_protocol.logs import JsonLines, TextLines

log = logging.getLogger("understudy_operator.controllers.job_worker")


class Lines(logging.Handler):
    """The written text, one item per line."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonLines())
        self.written: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.written.append(self.format(record))

    def logged(self) -> list[dict[str, Any]]:
        assert not any("\n" in line for line in self.written)
        return [json.loads(line) for line in self.written]


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lines]:
    monkeypatch.setattr(logs, "_of_process", {})
    lines, root = Lines(), logging.getLogger()
    level = root.level
    root.addHandler(lines)
    root.setLevel(logging.INFO)
    yield lines
    root.removeHandler(lines)
    root.setLevel(level)


def test_a_line_has_time_level_logger_and_message(lines: Lines):
    log.warning("%s created: %s", "llm-0", "it is “missing”\nsince noon")
    (logged,) = lines.logged()
    at = logged.pop("time")
    assert at.endswith("Z")
    assert at[10] == "T"
    assert logged == {
        "level": "WARNING",
        "logger": "understudy_operator.controllers.job_worker",
        "message": "llm-0 created: it is “missing”\nsince noon",
    }


async def test_a_task_sets_its_subject_once_and_the_tasks_that_it_starts_inherit_it(lines: Lines):
    async def deeper() -> None:
        log.info("deeper")

    async def one(name: str) -> None:
        logs.about(namespace="research", job=name)
        log.info("begins")
        await asyncio.create_task(deeper())

    await asyncio.gather(one("a"), one("b"))
    log.info("neither")
    logged = [(line["message"], line.get("job")) for line in lines.logged()]
    assert sorted(logged[:4]) == [("begins", "a"), ("begins", "b"), ("deeper", "a"), ("deeper", "b")]
    assert logged[4] == ("neither", None)


def test_every_line_of_a_process_of_one_job_names_the_job(lines: Lines):
    logs.of_process(namespace="research", job="llm")
    log.info("listens")
    assert (lines.logged()[0]["namespace"], lines.logged()[0]["job"]) == ("research", "llm")


def test_an_error_has_its_traceback_in_the_same_line(lines: Lines):
    try:
        raise ValueError("no such fact")
    except ValueError:
        log.exception("a pass failed")
    (logged,) = lines.logged()
    assert logged["message"] == "a pass failed"
    assert logged["error"].startswith("Traceback")
    assert logged["error"].endswith("ValueError: no such fact")


@pytest.mark.attack(
    "B2",
    "a coordinator reports a fault whose text has line ends and sequences for a terminal",
    before="the operator's log had lines that another text looked like, and `kubectl logs` set the terminal's title",
)
def test_a_text_of_a_user_is_neither_another_line_nor_a_command_for_a_terminal():
    formatter = TextLines("%(levelname)s %(message)s")
    text = "it was lost\nERROR the key is wrong\r\x1b]0;title\x07 \x9b2J \u202eevil"
    record = logging.LogRecord("log", logging.INFO, "", 1, "llm-0 deleted: %s — “é”", (text,), None)
    expected = r"INFO llm-0 deleted: it was lost\nERROR the key is wrong\r\x1b]0;title\x07 \x9b2J \u202eevil — “é”"
    assert formatter.format(record) == expected


def test_a_traceback_keeps_its_lines_and_has_no_command_for_a_terminal():
    try:
        raise ValueError("\x1b[2J")
    except ValueError as error:
        record = logging.LogRecord("log", logging.INFO, "", 1, "failed", (), (type(error), error, error.__traceback__))
    lines = TextLines("%(message)s").format(record).splitlines()
    assert lines[:2] == ["failed", "Traceback (most recent call last):"]
    assert lines[-1] == r"ValueError: \x1b[2J"


def test_a_line_of_kopf_about_an_object_has_its_reference(lines: Lines):
    metadata: Any = {"namespace": "research", "name": "llm", "uid": "u"}
    body = kopf.Body({"apiVersion": "understudy.dev/v1alpha1", "kind": "TrainingJob", "metadata": metadata})
    ObjectLogger(body=body, settings=kopf.OperatorSettings()).warning("is patched")
    (logged,) = lines.logged()
    assert (logged["namespace"], logged["kind"], logged["name"]) == ("research", "TrainingJob", "llm")


@pytest.mark.parametrize("program", ["understudy_operator", "understudy_webhook", "understudy_sidecar"])
def test_each_program_writes_json_if_that_is_set_and_else_text(program: str):
    """It ends at once with an error, because required settings are missing."""

    def written(**env: str) -> str:
        command = [sys.executable, "-m", program]
        path = {"PYTHONPATH": "operator:sidecar", "PATH": "/usr/bin:/bin"}
        done = subprocess.run(command, check=False, capture_output=True, text=True, env=path | env, timeout=50)
        assert done.returncode == 2
        return done.stderr

    lines = [json.loads(line) for line in written(UNDERSTUDY_LOG_FORMAT="json").splitlines()]
    assert [line["level"] for line in lines] == ["ERROR"]
    assert not written().startswith("{")
    assert "UNDERSTUDY_LOG_FORMAT is 'xml': set it to text or json" in written(UNDERSTUDY_LOG_FORMAT="xml")
