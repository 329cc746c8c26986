"""examples/ddp/checkpoints.py with its rank 0s stopped and resumed at any line: history stays one line."""

import random
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest

from examples.ddp import checkpoints
from examples.ddp.checkpoints import StaleRound
from tests.unit.examples.stores import resumed, store_of


class Event(NamedTuple):
    """The record of a round's rank 0: `line` is the sequence of (round, step) that its state went through."""

    action: str
    round: int
    line: list[list[int]]


class Interleaving:
    """Runs several rank 0s one line of checkpoints.py at a time, in an order drawn from a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._switches = self._random.choice([0.01, 0.05, 0.3])  # rare switches: long freezes
        self._slowdown = self._random.choice([1, 2, 4])  # each next one runs less often: it starts later
        self._schedule: dict[str, threading.Semaphore] = {}
        self._errors: list[BaseException] = []

    def run(self, programs: list[Callable[[], None]]) -> None:
        threads = [threading.Thread(target=self._traced, args=[run], name=str(n)) for n, run in enumerate(programs)]
        self._schedule = {thread.name: threading.Semaphore(0) for thread in threads}
        for thread in threads:
            thread.start()
        self._next().release()
        for thread in threads:
            thread.join()
        if self._errors:
            raise self._errors[0]

    def _traced(self, program: Callable[[], None]) -> None:
        name = threading.current_thread().name
        self._schedule[name].acquire()
        sys.settrace(self._trace)
        try:
            program()
        except BaseException as error:  # noqa: BLE001  (raised again by run)
            self._errors.append(error)
        finally:
            sys.settrace(None)
            del self._schedule[name]
            if self._schedule:
                self._next().release()

    def _next(self) -> threading.Semaphore:
        names = sorted(self._schedule)
        weights = [self._slowdown ** -int(name) for name in names]
        return self._schedule[self._random.choices(names, weights)[0]]

    def _trace(self, frame: FrameType, action: str, _arg: Any) -> Any:
        if frame.f_code.co_filename != checkpoints.__file__:
            return None
        if action == "line" and self._random.random() < self._switches:
            own = self._schedule[threading.current_thread().name]
            self._next().release()
            own.acquire()
        return self._trace


def rank_0(folder: Path, number: int, log: list[Event]) -> Callable[[], None]:
    def program() -> None:
        store = store_of(folder, f"1.1.{number}")
        log.append(Event("started", number, []))
        try:
            line = resumed(store) or []
            log.append(Event("began", number, line))
            for _ in range(3):
                line = [*line, [number, len(line) + 1]]
                store.save(len(line), line)
                log.append(Event("saved", number, line))
        except StaleRound:
            log.append(Event("stale", number, []))

    return program


def violations(log: list[Event], final: list[list[int]]) -> Iterator[str]:
    for at, event in enumerate(log):
        if event.action != "began":
            continue
        started = log.index(Event("started", event.round, []))
        before = [one for one in log[:started] if one.round < event.round and one.action in ("began", "saved")]
        newest = max((one.round for one in before), default=0)
        acknowledged = [one.line for one in before if one.round == newest]
        if acknowledged and event.line[: len(acknowledged[-1])] != acknowledged[-1]:
            yield f"{event} does not continue {acknowledged[-1]}"
        if any(one.action == "began" and one.round > event.round for one in log[:started]):
            yield f"{event} began after a newer round had, at {at}"
    newest = max(event.round for event in log)
    last = [event for event in log if event.round == newest][-1]
    if last.action != "saved" or final != last.line:
        yield f"ended with {final}, not with {last}"


@pytest.mark.parametrize("seed", range(100))
def test_in_any_interleaving_there_is_one_line_of_history(tmp_path, seed):
    # given four rounds whose rank 0s freeze and thaw at any line
    log: list[Event] = []
    programs = [rank_0(tmp_path, number, log) for number in (1, 2, 3, 4)]
    # when
    Interleaving(seed).run(programs)
    # then each round continued the state that was acknowledged before it started, and the newest round's line is the
    # last
    final = resumed(store_of(tmp_path, "1.1.99")) or []
    assert list(violations(log, final)) == []
