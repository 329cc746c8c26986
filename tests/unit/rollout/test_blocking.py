"""Weight updates of trainers without an event loop."""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING

import pytest

from tests.unit.rollout.model import PATIENT, TENSORS, Broken, Cluster, Fault, Kind, Place, notes
from understudy_rollout import BlockingWeightUpdate, WeightsState, blocking, in_thread, interruptions

if TYPE_CHECKING:
    from _typeshed import TraceFunction

OURS = frozenset([blocking.__file__, interruptions.__file__])


def test_a_synchronous_trainer_updates_its_replicas_more_than_once() -> None:
    cluster = Cluster()
    for version in ("v1", "v2"):
        cluster.sends = version
        with BlockingWeightUpdate(cluster.replicas, cluster.trainer, version=version, timeouts=PATIENT) as update:
            update.transfer(TENSORS)
        cluster.check()
        assert {x.weights.version for x in cluster.replicas} == {version}


def test_a_forked_process_can_update_after_its_parent_has() -> None:
    # given a process that has made an update
    def update() -> None:
        cluster = Cluster()
        cluster.sends = "v1"
        with BlockingWeightUpdate(cluster.replicas, cluster.trainer, version="v1", timeouts=PATIENT) as update:
            update.transfer(TENSORS)
        cluster.check()

    update()
    # when its fork makes one
    child = multiprocessing.get_context("fork").Process(target=update)
    child.start()
    child.join(30)
    has_ended = child.exitcode is not None
    child.kill()
    # then it ends
    assert (has_ended, child.exitcode) == (True, 0)


def test_an_error_is_raised_in_the_trainers_thread_when_the_update_is_undone() -> None:
    cluster = Cluster()
    cluster.world.faults = [Fault("rollout-1", "receive", Place.IN, Kind.ERROR)]
    with (
        pytest.raises(Broken),
        BlockingWeightUpdate(cluster.replicas, cluster.trainer, version="v1", timeouts=PATIENT) as update,
    ):
        update.transfer(TENSORS)
    cluster.check()
    assert {x.weights.state for x in cluster.replicas} == {WeightsState.UNCERTAIN}


def test_a_failure_on_the_way_in_is_undone_too() -> None:
    cluster = Cluster()
    cluster.world.faults = [Fault("rollout-1", "join_group", Place.IN, Kind.ERROR)]
    with pytest.raises(Broken), BlockingWeightUpdate(cluster.replicas, cluster.trainer, version="v1", timeouts=PATIENT):
        raise AssertionError("not reached")
    cluster.check()


def test_an_engine_that_exits_is_undone_and_the_next_update_runs() -> None:
    # given an engine that calls sys.exit in its own thread
    cluster = Cluster()
    receive = cluster.engines["rollout-1"].receive
    cluster.engines["rollout-1"].receive = lambda *_: in_thread(sys.exit, 3)  # type: ignore[method-assign]
    # when an update calls it
    with (
        pytest.raises(SystemExit),
        BlockingWeightUpdate(cluster.replicas, cluster.trainer, version="v1", timeouts=PATIENT) as update,
    ):
        update.transfer(TENSORS)
    cluster.check()
    # then the next update succeeds
    cluster.engines["rollout-1"].receive, cluster.sends = receive, "v2"  # type: ignore[method-assign]
    with BlockingWeightUpdate(cluster.replicas, cluster.trainer, version="v2", timeouts=PATIENT) as update:
        update.transfer(TENSORS)
    assert {x.weights.version for x in cluster.replicas} == {"v2"}


@pytest.fixture
def heard() -> Iterator[None]:
    """Enables Ctrl-C, which a shell makes its background commands ignore."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heard")
def test_ctrl_c_in_a_transfer_is_raised_with_failed_undos_as_notes() -> None:
    # given a transfer that hangs, and a server that cannot resume generation
    cluster = Cluster()
    hanging = Fault("rollout-0", "receive", Place.IN, Kind.TIMEOUT)
    cluster.world.faults = [hanging, Fault("rollout-1", "resume_generation", Place.BEFORE, Kind.ERROR)]
    main = threading.get_ident()

    def interrupt() -> None:
        until(lambda: hanging.happened)
        signal.pthread_kill(main, signal.SIGINT)

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    # when it is interrupted, then the interruption is raised
    with (
        pytest.raises(KeyboardInterrupt) as raised,
        BlockingWeightUpdate(cluster.replicas, cluster.trainer, version="v1", timeouts=PATIENT) as update,
    ):
        update.transfer(TENSORS)
    cluster.check("rollout-1")
    assert any("resume generation, rollout-1" in line for line in notes(raised.value))
    interrupting.join()


@pytest.mark.usefixtures("heard")
def test_ctrl_c_undoes_the_update_and_a_second_one_does_not_interrupt_the_undo() -> None:
    # given an update that hangs in its transfer, and an undo that waits for the test
    cluster = Cluster()
    cluster.world.faults = [Fault("rollout-0", "receive", Place.IN, Kind.TIMEOUT)]
    engine = cluster.engines["rollout-1"]
    undoing, go_on = threading.Event(), threading.Event()
    resume = engine.resume_generation

    async def slow_resume() -> None:
        undoing.set()
        await in_thread(go_on.wait, 30)
        await resume()

    engine.resume_generation = slow_resume  # type: ignore[method-assign]

    def interrupt() -> None:
        until(lambda: cluster.world.faults[0].happened)
        signal.pthread_kill(main, signal.SIGINT)
        undoing.wait(30)
        signal.pthread_kill(main, signal.SIGINT)
        go_on.set()

    main = threading.get_ident()
    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    # when it is interrupted twice, then everything is undone before the interruption is raised
    with (
        pytest.raises(KeyboardInterrupt),
        BlockingWeightUpdate(cluster.replicas, cluster.trainer, version="v1", timeouts=PATIENT) as update,
    ):
        update.transfer(TENSORS)
    cluster.check()
    interrupting.join()


class InterruptedAt:
    """Ctrl-C in the main thread, before the n-th instruction of the tested module."""

    def __init__(self, instruction: int) -> None:
        self.left = instruction

    def __enter__(self) -> InterruptedAt:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _: object) -> TraceFunction | None:
        if frame.f_code.co_filename not in OURS:
            return None
        frame.f_trace_opcodes = True
        if event in ("opcode", "line"):  # the first versions of Python 3.12 have no event for most opcodes
            self.left -= 1
            if self.left == 0:
                signal.raise_signal(signal.SIGINT)
        return self._trace


@pytest.mark.usefixtures("heard")
def test_ctrl_c_at_any_instruction_leaves_nothing_half_done_and_is_always_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # with all signals, most instructions would be those of their loop
    monkeypatch.setattr(signal, "valid_signals", lambda: {signal.SIGINT, signal.SIGTERM})
    # given Ctrl-C before the first instruction of an update, the second, and so on
    instruction, happened = 0, True
    while happened:
        instruction += 1
        cluster = Cluster()
        cluster.sends = "v1"
        update = BlockingWeightUpdate(cluster.replicas, cluster.trainer, version="v1", timeouts=PATIENT)
        # when it runs
        raised = False
        try:
            with InterruptedAt(instruction) as at, update:
                update.transfer(TENSORS)
        except KeyboardInterrupt:
            raised = True
        # then the replicas are in order, the interruption was raised, and the handlers are restored
        happened = at.left <= 0
        cluster.check()
        assert raised == happened, instruction
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert {x.weights.version for x in cluster.replicas} == {"v1"}, "the last one came after the update"
    assert instruction > 50, "the module's instructions were seen"


def until(fulfilled) -> None:
    deadline = time.monotonic() + 30
    while not fulfilled():
        assert time.monotonic() < deadline
        time.sleep(0.001)


async def test_a_call_in_a_thread_gives_its_result_or_its_error_and_blocks_nothing() -> None:
    go_on = threading.Event()
    waiting = asyncio.ensure_future(in_thread(go_on.wait, 30))
    await asyncio.sleep(0)
    assert not waiting.done()
    go_on.set()
    assert await waiting is True
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: 1 / 0)


async def test_a_call_in_a_thread_that_is_no_longer_awaited_ends_alone() -> None:
    go_on, ended = threading.Event(), threading.Event()

    def work() -> None:
        go_on.wait(30)
        ended.set()

    waiting = asyncio.ensure_future(in_thread(work))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait({waiting})
    go_on.set()
    assert await in_thread(ended.wait, 30)
