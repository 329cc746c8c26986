"""The verbs of local mode, without a run: the options that a run gets, and the output for an ended run."""

import json
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli import samples
from tests.unit.cli.test_entry import call
from understudy_cli.dashboard import server
from understudy_cli.facts import Fleet
from understudy_local import run, run_folder
from understudy_local.options import Options


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Options]:
    """The options of the runs that the command would start."""
    found: list[Options] = []

    def start(options: Options) -> int:
        found.append(options)
        return 7

    monkeypatch.setattr(run, "run", start)
    return found


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a run that has ended. Its path is short, as that of a Unix socket has to be."""
    with tempfile.TemporaryDirectory(prefix="runs-") as parent:
        monkeypatch.setattr("tempfile.tempdir", parent)
        yield end_a_run()


def end_a_run() -> Path:
    folder = run_folder.make("night")
    job = samples.job("night")
    recovery = samples.recovery_object()
    recovery["metadata"]["ownerReferences"] = [{"uid": "uid-of-night"}]
    pods = [samples.pod("p", "node-1", rank=0)]
    folder.record_end({"job": job, "pods": pods, "events": samples.events(), "recoveries": [recovery]})
    log = "understudy launcher: round=1.1.{} workers started ranks=0-1/2\n[rank 0] in round {}\n[rank 1] other\n"
    folder.log("node-1").write_text("".join(log.format(number, number) for number in range(3)))
    folder.log("node-0").write_text("sidecar: starts\n")
    return folder.path


def test_a_command_alone_is_enough_and_the_exit_code_is_that_of_the_run(
    monkeypatch: pytest.MonkeyPatch, started: list[Options]
) -> None:
    assert call(monkeypatch, "local", "--", "python", "train.py") == 7
    assert started == [Options(("python", "train.py"))]


def test_every_option_can_be_set(monkeypatch: pytest.MonkeyPatch, started: list[Options]) -> None:
    text = "--nodes 3 --spares 2 --nproc 4 --grace 5 --restarts 0 --preload a,b --no-zygote --name x --plain --verbose"
    text += " --restarts-per-member 2 --snapshots 512Mi --snapshot-every 5 --snapshot-copies 2"
    text += " --step-timeout 60 --start-timeout 300 --slow-rank-percent 200 --snapshot-path /s --snapshot-path-every 50"
    words = [*text.split(), "--", "python", "-m", "x", "--", "y", "-h"]
    call(monkeypatch, "local", *words)
    call(monkeypatch, "local", "run", *words)
    command = ("python", "-m", "x", "--", "y", "-h")
    expected = Options(
        *(command, 3, 2, 4, 5, 0, False, ("a", "b"), "x", True, True, 2, 536870912, 5, 2, 60, 300, 200, "/s", 50)
    )
    assert started == [expected] * 2


@pytest.mark.parametrize(
    ("words", "nproc"),
    [
        (["--", "torchrun", "--nproc-per-node", "4", "train.py"], 4),
        (["--nproc", "2", "--", "torchrun", "--nproc-per-node", "gpu", "train.py"], 2),
        (["--", "python", "train.py"], 1),
    ],
)
def test_torchrun_decides_about_the_workers_unless_an_option_does(
    monkeypatch: pytest.MonkeyPatch, started: list[Options], words: list[str], nproc: int
) -> None:
    call(monkeypatch, "local", *words)
    assert [options.nproc for options in started] == [nproc]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["python", "train.py"], "expected `--` and the command of a worker"),
        (
            ["doctor"],
            "Local mode has no verb `doctor`: its verbs are run, kill, get, why, timeline, goodput, logs, stacks",
        ),
        (["--nodes", "3"], "expected `--` and the command of a worker"),
        (["--nodes", "3", "--"], "expected `--` and the command of a worker"),
        (["--nodes", "0", "--", "x"], "--nodes 0: expected 1 or more"),
        (["--spares", "-1", "--", "x"], "--spares -1: expected 0 or more"),
        (["--grace", "0", "--", "x"], "--grace 0: expected 1 or more"),
        (["--restarts-per-member", "-1", "--", "x"], "--restarts-per-member -1: expected 0 or more"),
        (["--step-timeout", "-1", "--", "x"], "--step-timeout -1: expected 0 or more"),
        (["--start-timeout", "-1", "--", "x"], "--start-timeout -1: expected 0 or more"),
        (["--slow-rank-percent", "109", "--", "x"], "--slow-rank-percent 109: expected 110 to 1000, or 0 if no rank"),
        (["--slow-rank-percent", "1001", "--", "x"], "--slow-rank-percent 1001: expected 110 to 1000"),
        (["--nodes", "60", "--spares", "5", "--", "x"], "at most 64 together"),
        (["--snapshots", "much", "--", "x"], "--snapshots much: expected the memory for one worker's state"),
        (["--snapshots", "0", "--", "x"], "--snapshots 0: expected the memory"),
        (["--snapshot-every", "0", "--", "x"], "--snapshot-every 0: expected 1 or more"),
        (["--snapshot-path", "/s", "--", "x"], "--snapshot-path /s: add --snapshots SIZE, the memory for snapshots"),
        (["--snapshot-path-every", "0", "--", "x"], "--snapshot-path-every 0: expected 1 or more"),
        (["--snapshot-every", "100001", "--", "x"], "--snapshot-every 100001: expected at most 100000"),
        (
            ["--snapshot-path-every", "100000001", "--", "x"],
            "--snapshot-path-every 100000001: expected at most 1000000",
        ),
        (
            ["--snapshots", "1Mi", "--snapshot-path", "/" + "\u00e9" * 500, "--", "x"],
            "--snapshot-path: the absolute path is longer than 1000 bytes: choose another folder",
        ),
        (["--snapshots", "1Mi", "--snapshot-path", "/a\nb", "--", "x"], "contains a character that cannot be printed"),
        (["--snapshot-copies", "-1", "--", "x"], "--snapshot-copies -1: expected 0 or more"),
        (["--snapshot-copies", "2", "--", "x"], "--snapshot-copies 2: expected fewer than --nodes"),
        (["--snapshots", "1Mi", "--nproc", "126", "--", "x"], "--nproc 126: expected at most 125, because"),
        (["--", "deepspeed", "train.py"], "deepspeed starts several processes itself, so each worker would"),
        (["--nproc", "two", "--", "x"], "Invalid value for '--nproc'"),
        (["--", "torchrun", "--nproc-per-node", "gpu", "x"], "torchrun's --nproc-per-node is gpu: expected a number"),
        (["kill"], "RANK|MEMBER"),
    ],
)
def test_a_wrong_command_line_is_reported_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], text: str
) -> None:
    assert call(monkeypatch, "local", *words) == 2
    assert text in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["kill", "0", "--run", "no-such-run"], "no local run with the name no-such-run is active"),
        (["get", "no-such-run"], "no local run with the name no-such-run is kept"),
        (["logs", "no-such-run"], "no local run with the name no-such-run is kept"),
        (["dashboard", "no-such-run"], "no local run with the name no-such-run is kept"),
    ],
)
def test_a_run_that_does_not_exist_ends_with_3(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], text: str
) -> None:
    assert call(monkeypatch, "local", *words) == 3
    assert text in capsys.readouterr().err


def test_the_dashboard_shows_a_run_that_has_ended(monkeypatch: pytest.MonkeyPatch, ended: Path) -> None:
    shown: list[Fleet] = []
    monkeypatch.setattr(server, "serve", lambda fleets, *_: shown.extend(fleets))
    assert call(monkeypatch, "local", "dashboard") == 0
    (fleet,) = shown
    assert ([job.name for job in fleet.jobs], [pod.name for pod in fleet.pods]) == (["night"], ["p"])
    assert [event.reason for event in fleet.events] == ["CoordinatorAppointed", "FaultDetected", "NodeAvoided"]


def test_a_run_that_has_ended_can_still_be_explained(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ended: Path
) -> None:
    assert call(monkeypatch, "local", "why") == 0
    newest = capsys.readouterr().out
    assert "batch = next(data)" in newest  # the traceback, which only a Recovery has
    assert call(monkeypatch, "local", "why", "--last", "2") == 0
    assert "it did not respond for 5.0 s" in capsys.readouterr().out
    assert call(monkeypatch, "local", "timeline", "night") == 0
    assert "CoordinatorAppointed" in capsys.readouterr().out
    assert call(monkeypatch, "local", "goodput") == 0
    assert "productive" in capsys.readouterr().out
    assert call(monkeypatch, "local", "get", "-o", "json") == 0
    shown: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (shown["job"]["name"], [pod["ranks"] for pod in shown["pods"]]) == ("night", ["0-1"])


def test_why_names_the_rank_that_the_stacks_in_the_logs_show(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ended: Path
) -> None:
    # given a run whose newest fault is a hang of round 4, for which status names rank 0
    cause = {"rank": 0, "pod": "p", "message": "no step for 300 s; slowest: rank 0 at step 120 (others: 120)"}
    hang = samples.recovery(fault="Hang", round=5, cause=cause, detectedAt="2026-11-20T11:59:00.000000Z")
    objects = json.loads((ended / "objects.json").read_text()) | {"recoveries": []}
    objects["job"]["status"]["recoveries"] = [hang]
    (ended / "objects.json").write_text(json.dumps(objects))
    (ended / "logs" / "node-1.log").write_text("\n".join(samples.hang_log()))
    # then rank 1 is named, whose stack differs, with its stack, and the report of status
    assert call(monkeypatch, "local", "why", "-o", "json") == 0
    (fault,) = json.loads(capsys.readouterr().out)["faults"]
    assert fault["place"] == "rank 1, node node-1"
    assert fault["stack"][0] == '  File "data.py", line 9 in read'
    assert fault["reported"].startswith("rank 0, pod p: no step for 300 s")
    # and the next step is its log
    assert call(monkeypatch, "local", "why") == 0
    assert "understudy local logs night --rank 1 --round 4" in capsys.readouterr().out


def test_a_run_that_was_killed_has_only_its_logs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ended: Path
) -> None:
    (ended / "objects.json").unlink()
    assert call(monkeypatch, "local", "why") == 3
    assert "run night was killed, so only its logs are kept: understudy local logs night" in capsys.readouterr().err


def test_the_lines_of_a_rank_and_a_round_are_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ended: Path
) -> None:
    assert call(monkeypatch, "local", "logs", "night", "--rank", "0", "--round", "1") == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed == ["understudy launcher: round=1.1.1 workers started ranks=0-1/2", "[rank 0] in round 1"]
    assert call(monkeypatch, "local", "logs", "--rank", "9") == 3
    assert "have no lines of rank 9" in capsys.readouterr().err


def test_all_lines_have_the_name_of_their_member(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ended: Path
) -> None:
    assert call(monkeypatch, "local", "logs", "--tail", "1", "-f") == 0
    assert capsys.readouterr().out.splitlines() == ["node-0 | sidecar: starts", "node-1 | [rank 1] other"]


def test_followed_logs_have_the_last_lines_of_a_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ended: Path
) -> None:
    # given an active run
    running = socket.socket(socket.AF_UNIX)
    running.bind(str(ended / "control.sock"))
    running.listen()

    def end_the_run(_: float) -> None:
        with (ended / "logs" / "node-0.log").open("a") as log:
            log.write("[rank 0] the last line\n")
        running.close()

    # when it writes a line, and ends while the command waits for lines
    monkeypatch.setattr("time.sleep", end_the_run)
    assert call(monkeypatch, "local", "logs", "--tail", "0", "-f") == 0
    # then the line is printed
    assert capsys.readouterr().out == "node-0 | [rank 0] the last line\n"


def test_no_lines_of_a_run_are_what_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ended: Path
) -> None:
    assert call(monkeypatch, "local", "logs", "--tail", "0") == 0
    assert capsys.readouterr().out == ""
