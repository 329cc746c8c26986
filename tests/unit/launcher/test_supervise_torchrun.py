"""The supervisor of a command that calls torchrun: it waits for the call, and the job ends with torchrun."""

from __future__ import annotations

from tests.unit.launcher.driven import Driven, start
from understudy_launcher import events as e
from understudy_launcher.phases import LauncherPhase
from understudy_protocol import launcher as m

HOURS_S = 7200.0
READY = e.ZygoteReady(2.0, {})


def calling() -> Driven:
    return Driven(calls_torchrun=True)


def spawned(effects: list[e.Effect]) -> list[bool]:
    """For each Spawn, whether the workers were forked."""
    return [effect.is_warmup_done for effect in effects if isinstance(effect, e.Spawn)]


def test_a_round_waits_for_the_call_without_a_limit_and_then_for_the_imports() -> None:
    driven = calling()
    assert driven.do(start()) == []
    assert driven.later(59.0) == []
    assert driven.log == []
    assert driven.later(HOURS_S) == []
    assert len(driven.log) == 1
    assert "has not called torchrun for 60 s" in driven.log[0]
    assert driven.do(e.TorchrunCalled(may_fork=True)) == [e.StartZygote()]
    assert spawned(driven.do(READY)) == [True]


def test_workers_that_cannot_be_forked_start_at_the_call() -> None:
    driven = calling()
    driven.do(start())
    assert spawned(driven.do(e.TorchrunCalled(may_fork=False))) == [False]


def test_a_warm_up_waits_for_the_call() -> None:
    driven = Driven(calls_torchrun=True, warmup=True)
    assert driven.do(e.TorchrunCalled(may_fork=False)) == [e.SpawnWarmup()]


def test_a_zygote_that_ends_is_started_again_and_the_command_is_not() -> None:
    driven = calling()
    driven.do(e.TorchrunCalled(may_fork=True), READY)
    assert driven.do(e.ZygoteLost("it has ended", is_final=False)) == [e.StartZygote()]


def test_a_command_that_fails_before_its_call_ends_the_launcher_with_the_reason() -> None:
    driven = calling()
    effects = driven.do(e.ContainerCommandFailed(64, "no call of torchrun"))
    assert effects == [e.Exit(64, "no call of torchrun")]


def test_the_end_of_torchrun_ends_the_workers_which_may_save() -> None:
    driven = calling()
    driven.do(e.TorchrunCalled(may_fork=False), start())
    effects = driven.do(e.TorchrunEnded())
    assert driven.phase is LauncherPhase.SAVING
    assert e.Report(m.Terminating(30.0)) in effects


def test_the_end_of_torchrun_after_the_job_changes_nothing() -> None:
    driven = calling()
    driven.do(e.TorchrunCalled(may_fork=False), start(), m.ExitLauncher(0, "Succeeded"))
    assert driven.phase is LauncherPhase.LEAVING
    assert driven.do(e.TorchrunEnded()) == []


def test_a_claimed_spare_starts_the_jobs_command_if_that_calls_torchrun() -> None:
    driven = Driven(zygote=True)
    driven.do(READY)
    assert driven.do(e.ZygoteEnded(False, calls_torchrun=True)) == [e.StartCommand()]
    assert spawned(driven.do(start())) == []
    driven.do(e.TorchrunCalled(may_fork=True))
    assert spawned(driven.do(READY)) == [True]


def test_torchrun_that_runs_its_workers_itself_reports_the_reason_on_each_connect() -> None:
    driven = Driven(own_stores=True, fork_fallback_reason="--run-path")
    driven.do(e.StoreReady(5000))
    reports = driven.do(e.Connected())
    assert e.Report(m.ForkFallback("--run-path")) in reports
