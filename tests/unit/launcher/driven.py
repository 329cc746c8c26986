"""A supervisor that a test drives: events in, effects out, with the test's own clock."""

from __future__ import annotations

from typing import Any

from understudy_launcher import events as e
from understudy_launcher.phases import LauncherPhase, OnSigterm
from understudy_launcher.supervise import Supervisor
from understudy_protocol import launcher as m
from understudy_protocol.enums import RoundToken

LEFTOVERS = -2

PORT = 29400
KILL_LEFTOVERS = e.Signal(LEFTOVERS, e.Aim.KILL_GROUP)


def token(number: int, term: int = 1) -> RoundToken:
    return RoundToken(0, term, number)


def start(number: int = 0, rank_offset: int = 2, term: int = 1, store: int = 0) -> m.StartWorkers:
    """store: the port of a store that already listens."""
    where = ("10.0.0.1", store or 4711, bool(store))
    return m.StartWorkers(token(number, term), rank_offset // 2, 2, rank_offset, 4, *where)


def ended(rank: int, code: int = 0, signal: str | None = None) -> e.WorkerEnded:
    text = f"killed by {signal}" if signal else f"exit code {code}"
    return e.WorkerEnded(rank, None if signal else code, signal, code, text, 1000.0)


def steps(step: int, reports: int = 1, rank: int = 0, at: float = 0.0) -> e.StepsRead:
    """at: the time of the step, by the test's clock."""
    return e.StepsRead(rank, step, 100, reports, 1000.0 + step, at)


def kills(*ranks: int) -> list[e.Effect]:
    return [e.Signal(rank, e.Aim.KILL_GROUP) for rank in ranks]


def terms(*ranks: int) -> list[e.Effect]:
    return [e.Signal(rank, e.Aim.TERM_WORKER) for rank in ranks]


class Driven:
    """A supervisor of two workers, the time, and every effect except the log lines and the reads.

    pages: the workers' reports for the next read. raised: the exceptions that the next read of error files finds.
    leftovers: whether a process has left its worker's group; else each
    kill of leftovers finds none.
    """

    def __init__(
        self,
        nproc: int = 2,
        grace_s: float = 30.0,
        *,
        zygote: bool = False,
        on_sigterm: OnSigterm = OnSigterm.AUTO,
        warmup: bool = False,
        step_timeout_s: float = 0.0,
        devices: bool = False,
        worker_grace_period_s: float = 0.0,
        calls_torchrun: bool = False,
        own_stores: bool = False,
        fork_fallback_reason: str = "",
        snapshots: bool = False,
    ) -> None:
        self.now = 100.0
        self.supervisor = Supervisor(
            1,
            nproc,
            grace_s,
            zygote=zygote,
            on_sigterm=on_sigterm,
            warmup=warmup,
            step_timeout_s=step_timeout_s,
            devices=devices,
            calls_torchrun=calls_torchrun,
            own_stores=own_stores,
            fork_fallback_reason=fork_fallback_reason,
            snapshots=snapshots,
        )
        self.log: list[str] = []
        self.pages: list[e.StepsRead] = []
        self.raised: list[e.WorkerRaised] = []
        self.leftovers = False
        assert self.do(e.LauncherStarted(worker_grace_period_s)) == [
            e.ReservePort(),
            *([e.MakeStore()] if own_stores else []),
            *([e.StartCommand()] if calls_torchrun else [e.StartZygote()] if zygote else []),
            *self._begun(zygote or calls_torchrun, warmup),
        ]
        assert self.do(e.PortReserved(PORT)) == [e.Report(m.NextPort(PORT))]

    @staticmethod
    def _begun(zygote: bool, warmup: bool) -> list[e.Effect]:
        return [e.SpawnWarmup()] if warmup and not zygote else []

    def do(self, *events: e.Event) -> list[e.Effect]:
        effects = [effect for event in events for effect in self.supervisor.handle(event, self.now)]
        self.log += [effect.text for effect in effects if isinstance(effect, e.Log)]
        if e.ReadSteps() in effects:
            pages, self.pages = self.pages, []
            effects += self.do(*pages)
        if e.ReadExceptions() in effects:
            raised, self.raised = self.raised, []
            effects += self.do(*raised)
        if KILL_LEFTOVERS in effects and not self.leftovers:
            effects.remove(KILL_LEFTOVERS)
            effects += self.do(e.GroupEmptied(LEFTOVERS))
        return [effect for effect in effects if not isinstance(effect, (e.Log, e.ReadSteps, e.ReadExceptions))]

    def later(self, seconds: float) -> list[e.Effect]:
        """Advance the time, with a Tick at each deadline."""
        until, effects = self.now + seconds, []
        while (due := self.supervisor.deadline()) is not None and due <= until:
            self.now = max(self.now, due)
            effects += self.do(e.Tick())
            assert self.supervisor.deadline() != due or self.exited(effects), "a Tick must move its deadline"
            if self.exited(effects):
                break
        self.now = until
        return effects

    @staticmethod
    def exited(effects: list[e.Effect]) -> bool:
        return any(isinstance(effect, e.Exit) for effect in effects)

    def hello(self) -> m.LauncherHello:
        first = self.do(e.Connected())[0]
        assert isinstance(first, e.Report)
        assert isinstance(first.message, m.LauncherHello)
        return first.message

    @property
    def phase(self) -> LauncherPhase:
        return self.supervisor.phase


def running(number: int = 0, **options: Any) -> Driven:
    driven = Driven(**options)
    driven.do(start(number))
    assert driven.phase is LauncherPhase.RUNNING
    return driven


def failed() -> Driven:
    """Local rank 1 failed with code 3; its group is empty, and local rank 0 keeps running."""
    driven = running()
    driven.do(ended(1, 3), e.GroupEmptied(1))
    return driven


def finished() -> Driven:
    driven = running()
    driven.do(ended(0), e.GroupEmptied(0), ended(1), e.GroupEmptied(1))
    return driven
