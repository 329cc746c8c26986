"""The command line of `understudy local`."""

from __future__ import annotations

import pytest

from understudy_local.options import Kill, Options, Show, UsageError, parse


def test_a_command_alone_is_enough() -> None:
    assert parse(["local", "--", "python", "train.py"]) == Options(("python", "train.py"))


def test_every_option_can_be_set() -> None:
    text = "--nodes 3 --spares 2 --nproc 4 --grace 5 --restarts 0 --preload a,b --no-zygote --name x --plain --verbose"
    text += " --restarts-per-member 2 --snapshots 512Mi --snapshot-every 5"
    assert parse(["local", *text.split(), "--", "python", "-m", "x", "--", "y"]) == Options(
        ("python", "-m", "x", "--", "y"), 3, 2, 4, 5, 0, False, ("a", "b"), "x", True, True, 2, 536870912, 5
    )


def test_a_run_is_shown() -> None:
    assert parse(["local", "show"]) == Show()
    assert parse(["local", "show", "--run", "x"]) == Show("x")


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", {"understudy-training": "1.2.3"}.__getitem__)
    with pytest.raises(SystemExit) as ended:
        parse(["--version"])
    assert (ended.value.code, capsys.readouterr().out) == (0, "understudy 1.2.3\n")


def test_kill_has_a_target_and_a_run() -> None:
    assert parse(["local", "kill", "3"]) == Kill("3")
    assert parse(["local", "kill", "node-1", "--run", "x"]) == Kill("node-1", "x")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["local", "python", "train.py"], "unrecognized arguments: python train.py"),
        (["local", "--nodes", "3"], "expected `--` and the command of a worker"),
        (["local", "--nodes", "0", "--", "x"], "--nodes 0: expected 1 or more"),
        (["local", "--spares", "-1", "--", "x"], "--spares -1: expected 0 or more"),
        (["local", "--restarts-per-member", "-1", "--", "x"], "--restarts-per-member -1: expected 0 or more"),
        (["local", "--nodes", "60", "--spares", "5", "--", "x"], "at most 64 together"),
        (["local", "--snapshots", "much", "--", "x"], "--snapshots much: expected the memory for one worker's state"),
        (["local", "--snapshots", "0", "--", "x"], "--snapshots 0: expected the memory"),
        (["local", "--snapshot-every", "0", "--", "x"], "--snapshot-every 0: expected 1 or more"),
        (["local", "--nproc", "two", "--", "x"], "invalid int value: 'two'"),
        (["local", "--", "deepspeed", "train.py"], "deepspeed starts several processes itself, so each worker would"),
        (["local", "kill"], "RANK|MEMBER"),
        (["run"], "expected `understudy local …`, got 'run'"),
    ],
)
def test_a_wrong_command_line_is_reported_with_the_reason(arguments: list[str], text: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse(arguments)
    assert text in str(raised.value)
