"""A spare's warm-up: it runs once, when the zygote is ready, and ends as soon as a job needs the spare."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable

import pytest

from tests.unit.launcher.driven import Driven, ended, kills, start
from tests.unit.launcher.fake_sidecar import Launched, alive, round_, wait_for
from understudy_launcher import events as e
from understudy_launcher.phases import LauncherPhase
from understudy_protocol import launcher as m
from understudy_protocol import pod
from understudy_protocol.enums import WorkersState
from understudy_protocol.launcher import ExitLauncher, WorkersFinished, WorkersStarted

WARMUP = -1

Launch = Callable[..., Launched]
READY = e.ZygoteReady(2.0, {})


def warming() -> Driven:
    driven = Driven(warmup=True)
    assert driven.log[-1].endswith("the warm-up starts")
    return driven


def test_a_warm_up_waits_for_the_imports() -> None:
    driven = Driven(zygote=True, warmup=True)
    assert e.SpawnWarmup() in driven.do(READY)
    assert e.SpawnWarmup() not in driven.do(e.StoreReady(5000))


def test_a_warm_up_runs_without_a_zygote_too() -> None:
    driven = Driven(zygote=True, warmup=True)
    assert e.SpawnWarmup() in driven.do(e.ZygoteLost("it has ended", is_final=True))


def test_a_warm_up_runs_only_once() -> None:
    driven = Driven(zygote=True, warmup=True)
    driven.do(READY, ended(WARMUP), e.GroupEmptied(WARMUP))
    later = driven.do(e.ZygoteLost("lost", is_final=False), READY, start(), m.StopWorkers("a spare again"), READY)
    assert e.SpawnWarmup() not in later


def test_a_round_that_comes_first_prevents_the_warm_up() -> None:
    driven = Driven(zygote=True, warmup=True)
    driven.do(start())
    effects = driven.do(READY)
    assert e.SpawnWarmup() not in effects
    assert any(isinstance(effect, e.Spawn) for effect in effects)


def test_a_round_kills_the_warm_up_and_starts_when_none_of_its_processes_is_left() -> None:
    driven = warming()
    assert driven.do(start()) == kills(WARMUP)
    driven.do(ended(WARMUP, 137, "SIGKILL"))
    assert driven.phase is LauncherPhase.STARTING
    effects = driven.do(e.GroupEmptied(WARMUP))
    assert any(isinstance(effect, e.Spawn) for effect in effects)
    assert any("the warm-up was stopped after 0.0 s" in line for line in driven.log)


@pytest.mark.parametrize("code", [0, 3])
def test_the_result_of_a_warm_up_is_only_logged(code: int) -> None:
    driven = warming()
    driven.later(2.5)
    assert driven.do(ended(WARMUP, code), e.GroupEmptied(WARMUP)) == kills(WARMUP), "its children"
    result = "finished after 2.5 s" if code == 0 else "failed after 2.5 s (exit code 3)"
    assert f"the warm-up {result}" in driven.log[-1]
    assert driven.hello().workers is WorkersState.IDLE
    assert any(isinstance(effect, e.Spawn) for effect in driven.do(start()))


@pytest.mark.parametrize(("end", "code"), [(e.AskedToEnd("SIGTERM"), 143), (m.ExitLauncher(0, "Succeeded"), 0)])
def test_a_warm_up_is_killed_with_the_launcher_without_a_save(end: e.Event, code: int) -> None:
    driven = warming()
    assert driven.do(end)[-1:] == kills(WARMUP)
    left = driven.do(ended(WARMUP, 137, "SIGKILL"), e.GroupEmptied(WARMUP))[-1]
    assert isinstance(left, e.Exit)
    assert left.code == code


# A launcher's process -------------------------------------------------------------------------------------------------

FAMILY = 'sleep 600 & echo $! $$ "[$RANK]" > "$HERE/new"; mv "$HERE/new" "$HERE/warm"; wait'


def warm_up(*command: str) -> dict[str, str]:
    return {pod.ENV_WARMUP: json.dumps(command)}


def pids(launched: Launched) -> list[int]:
    """The warm-up and its child; it has no rank."""
    wait_for(launched.path("warm").exists, "the warm-up")
    *numbers, rank = launched.path("warm").read_text().split()
    assert rank == "[]"
    return [int(number) for number in numbers]


@pytest.mark.parametrize("zygote", ["true", "false"])
def test_a_claimed_spare_ends_its_warm_up_with_all_its_children(launch: Launch, zygote: str) -> None:
    launched = launch("python3", "-c", "print('trained')", **warm_up("sh", "-c", FAMILY), **{pod.ENV_ZYGOTE: zygote})
    launched.join()
    family = pids(launched)
    launched.sidecar.send(round_(0))
    launched.sidecar.expect(WorkersStarted)
    assert not any(alive(pid) for pid in family), "before the workers start"
    launched.sidecar.expect(WorkersFinished)
    launched.sidecar.send(ExitLauncher(0, "Succeeded"))
    assert launched.wait() == 0
    assert launched.out == "[rank 0] trained\n"


@pytest.mark.parametrize("command", [["/nowhere/warm"], ["sh", "-c", "echo cold >&2; exit 3"], ["true"]])
def test_a_spare_continues_whatever_its_warm_up_did(launch: Launch, command: list[str]) -> None:
    launched = launch("python3", "-c", "print('trained')", **warm_up(*command))
    launched.join()
    word = "finished" if command == ["true"] else "failed"
    launched.logs(f"the warm-up {word} after ")
    launched.sidecar.send(round_(0))
    launched.sidecar.expect(WorkersFinished)
    if command[0] == "sh":
        launched.logs("[warm-up] cold\n")


def test_sigterm_on_a_spare_ends_the_warm_up(launch: Launch) -> None:
    launched = launch("true", **warm_up("sh", "-c", f"trap '' TERM; {FAMILY}"))
    launched.join()
    family = pids(launched)
    os.kill(launched.process.pid, signal.SIGTERM)
    assert launched.wait() == 143
    wait_for(lambda: not any(alive(pid) for pid in family), "its end")


@pytest.mark.parametrize("text", ["python3", '"python3"', "[1]", "{}"])
def test_an_unknown_setting_is_rejected(launch: Launch, text: str) -> None:
    launched = launch("true", **{pod.ENV_WARMUP: text})
    assert launched.wait() == 78
    assert f"UNDERSTUDY_WARMUP={text!r}: expected a JSON list of a command's words" in launched.err
