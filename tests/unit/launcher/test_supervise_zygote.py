"""The supervisor with a zygote: waits for it, lets it fork, offers its stores, and continues without it."""

from __future__ import annotations

import pytest

from tests.unit.launcher.driven import PORT, Driven, ended, kills, start
from understudy_launcher import events as e
from understudy_launcher.phases import LauncherPhase
from understudy_protocol import launcher as m

GIVE_UP = 3
LOAD_WITHIN_S = 180.0

READY = e.ZygoteReady(2.0, {})
GONE = e.ZygoteLost("it has ended", is_final=False)
STORE, NEXT_STORE = 5000, 5001


def loading() -> Driven:
    return Driven(zygote=True)


def ready() -> Driven:
    """The zygote has a store that listens."""
    driven = loading()
    assert driven.do(READY) == [e.MakeStore()]
    assert driven.do(e.StoreReady(STORE)) == [e.Report(m.NextPort(PORT, STORE))]
    return driven


def spawned(effects: list[e.Effect]) -> list[bool]:
    """For each Spawn, whether the workers were forked."""
    return [effect.is_warmup_done for effect in effects if isinstance(effect, e.Spawn)]


# Waiting --------------------------------------------------------------------------------------------------------------


def test_a_round_waits_for_the_imports_and_is_forked_then() -> None:
    driven = loading()
    assert driven.do(start()) == []
    assert driven.phase is LauncherPhase.STARTING
    assert spawned(driven.do(READY)) == [True]
    assert driven.supervisor.phase is LauncherPhase.RUNNING


def test_a_newer_round_replaces_the_waiting_one() -> None:
    driven = loading()
    driven.do(start(0), start(1))
    effects = driven.do(READY)
    assert [x.start.token.round for x in effects if isinstance(x, e.Spawn)] == [1]


def test_without_a_zygote_in_time_the_round_starts_fresh_processes() -> None:
    driven = loading()
    driven.do(start())
    effects = driven.later(LOAD_WITHIN_S)
    assert e.EndZygote() in effects
    assert spawned(effects) == [False]
    assert "was not ready within 180 s" in driven.log[-2]


@pytest.mark.parametrize("final", [True, False])
def test_a_zygote_that_ends_during_its_imports_is_not_restarted(final: bool) -> None:
    driven = loading()
    driven.do(start())
    assert spawned(driven.do(e.ZygoteLost("it crashed", final))) == [False]
    assert any("the fork server is off (it crashed)" in line for line in driven.log)
    assert driven.do(e.GroupEmptied(0), e.GroupEmptied(1)) == []
    assert spawned(driven.do(start(1))) == [False]


def test_sigterm_while_the_round_waits_ends_the_launcher() -> None:
    driven = loading()
    driven.do(start())
    effects = driven.do(e.AskedToEnd("SIGTERM"))
    assert [x.code for x in effects if isinstance(x, e.Exit)] == [143]


def test_stop_workers_while_the_round_waits_ends_the_wait() -> None:
    driven = loading()
    driven.do(start(), m.StopWorkers("another has its ranks"))
    assert driven.phase is LauncherPhase.IDLE
    assert spawned(driven.do(READY)) == []


def test_modules_that_are_missing_are_named() -> None:
    driven = loading()
    driven.do(e.ZygoteReady(0.1, {"torch": "ModuleNotFoundError: No module named 'torch'"}))
    missing = "module torch is not preloaded (ModuleNotFoundError: No module named 'torch')"
    assert f"ready after 0.1 s; {missing}" in driven.log[-1]


# Its end --------------------------------------------------------------------------------------------------------------


def test_a_lost_zygote_is_replaced_and_its_workers_have_failed() -> None:
    driven = ready()
    driven.do(start())
    effects = driven.do(GONE)
    assert effects == [e.StartZygote(), e.Report(m.NextPort(PORT, 0))]
    assert driven.do(ended(0, signal="SIGKILL"))[0] == kills(0)[0]
    driven.do(e.GroupEmptied(0), ended(1, signal="SIGKILL"), e.GroupEmptied(1))
    assert spawned(driven.do(start(1))) == []
    assert spawned(driven.do(READY)) == [True]


def test_a_zygote_is_given_up_after_some_losses() -> None:
    driven = ready()
    for _ in range(GIVE_UP):
        assert e.StartZygote() in driven.do(GONE)
        driven.do(READY)
    assert e.StartZygote() not in driven.do(GONE)
    assert spawned(driven.do(start())) == [False]


def test_a_zygote_that_became_unfit_is_not_replaced() -> None:
    driven = ready()
    assert e.StartZygote() not in driven.do(e.ZygoteLost("its imports run 2 threads", is_final=True))
    assert spawned(driven.do(start())) == [False]


def test_workers_outlive_a_second_zygote_without_workers_and_the_first_one_creates_the_next_store() -> None:
    driven = ready()
    driven.do(start())
    driven.do(e.StoreReady(NEXT_STORE))
    effects = driven.do(e.SecondZygoteLost("it has ended"))
    assert effects == [e.MakeStore((NEXT_STORE,)), e.Report(m.NextPort(PORT, 0))]
    assert driven.phase is LauncherPhase.RUNNING


# Why workers are not forked -------------------------------------------------------------------------------------------


def fresh(driven: Driven) -> list[str]:
    """The reasons in the reports to a sidecar that connects now."""
    messages = [effect.message for effect in driven.do(e.Connected()) if isinstance(effect, e.Report)]
    return [message.reason for message in messages if isinstance(message, m.ForkFallback)]


def test_the_reason_for_fresh_processes_is_reported_at_once_and_on_each_connect() -> None:
    driven = loading()
    why = "the import of x starts a thread (bg)"
    reason = f"the fork server is off ({why}): workers start as new processes and import all modules"
    effects = driven.do(e.ZygoteLost(why, is_final=True))
    assert effects == [e.Report(m.ForkFallback(reason))]
    assert driven.log[-1].endswith(reason)
    assert fresh(driven) == [reason]


def test_a_module_that_initializes_cuda_is_reported_and_the_zygote_still_serves_stores() -> None:
    driven = loading()
    effects = driven.do(e.ZygoteReady(2.0, {}, cuda="deepspeed"))
    assert e.MakeStore() in effects
    (reason,) = fresh(driven)
    assert reason.startswith("the import of deepspeed initialized CUDA, which does not work in forked processes")
    assert e.Report(m.ForkFallback(reason)) in effects
    assert spawned(driven.do(start())) == [True]


def test_a_job_that_claims_the_spare_starts_without_a_reason() -> None:
    driven = loading()
    driven.do(e.ZygoteLost("the import of x starts a thread (bg)", is_final=True))
    assert e.Report(m.ForkFallback("")) in driven.do(e.ZygoteEnded(was_wanted=True))
    assert fresh(driven) == []


def test_no_reason_is_reported_if_workers_are_forked_or_need_not_be() -> None:
    assert fresh(ready()) == []
    assert fresh(Driven(zygote=False)) == []


# Stores ---------------------------------------------------------------------------------------------------------------


def test_rank_0_uses_the_store_and_another_is_created_for_the_next_round() -> None:
    driven = ready()
    effects = driven.do(start(rank_offset=0, store=STORE))
    assert spawned(effects) == [True]
    assert effects[-2:] == [e.MakeStore(keep=(STORE,)), e.Report(m.NextPort(PORT, 0))]
    assert e.ReleasePort() not in effects, "no worker binds a port"
    assert driven.do(e.StoreReady(NEXT_STORE)) == [e.Report(m.NextPort(PORT, NEXT_STORE))]


def test_other_ranks_keep_their_own_store_for_later() -> None:
    driven = ready()
    assert e.MakeStore() not in driven.do(start(rank_offset=2, store=6000))
    assert driven.hello().store_port == STORE


def test_a_round_without_a_store_gives_rank_0_the_reserved_port() -> None:
    driven = ready()
    effects = driven.do(start(rank_offset=0))
    assert e.ReleasePort() in effects
    assert e.MakeStore() not in effects


def test_a_store_that_has_ended_is_replaced() -> None:
    driven = ready()
    assert driven.do(e.StoreGone(STORE)) == [e.MakeStore(), e.Report(m.NextPort(PORT, 0))]


def test_another_store_is_offered_when_the_sidecar_asks_and_the_used_one_remains() -> None:
    driven = ready()
    driven.do(start(rank_offset=0, store=STORE), e.StoreReady(NEXT_STORE))
    assert driven.do(m.RenewStore()) == [e.MakeStore(keep=(STORE, NEXT_STORE)), e.Report(m.NextPort(PORT, 0))]
    assert driven.do(m.RenewStore()) == [], "that one was not offered yet"


def test_a_store_that_an_ordered_round_may_use_remains_when_another_is_offered() -> None:
    """Found by the simulation (seed 807756): a sidecar restarted while a round was formed on its pod's store."""
    driven = ready()
    assert driven.do(m.RenewStore(), e.StoreReady(NEXT_STORE))[0] == e.MakeStore(keep=(STORE,))
    effects = driven.do(start(rank_offset=0, store=STORE))
    assert spawned(effects) == [True]
    assert not [effect for effect in effects if isinstance(effect, e.MakeStore)], (
        "the store that was offered meanwhile remains"
    )


def test_a_store_of_an_older_round_may_end() -> None:
    driven = ready()
    driven.do(start(rank_offset=0, store=STORE), e.StoreReady(NEXT_STORE))
    assert driven.do(e.StoreGone(STORE)) == []


def test_without_a_store_the_hello_has_no_store_port() -> None:
    driven = loading()
    driven.do(READY)
    assert driven.do(e.StoreFailed("torch.distributed is not among the preloaded modules")) == []
    assert driven.hello().store_port == 0
