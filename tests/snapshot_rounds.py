"""The rounds of a pod with one worker, for tests of snapshots: the test plays the launcher with its real memory."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from understudy_launcher.snapshot_memory import SnapshotMemory
from understudy_protocol import snapshot_slots
from understudy_protocol.enums import RoundToken
from understudy_protocol.launcher import StartWorkers
from understudy_protocol.snapshots import RestoreChoice, SavedStep


def token(number: int) -> RoundToken:
    return RoundToken(0, 1, number)


class Rounds:
    """A launcher's memory for the ranks of a pod, and the rounds that run on it."""

    def __init__(self, slot_bytes: int, every: int = 1, ranks: int = 1) -> None:
        self.memory = SnapshotMemory(ranks, slot_bytes, every)
        self.number, self._ranks = -1, ranks

    def next(self) -> tuple[SavedStep, ...]:
        self.number += 1
        return self.memory.start(StartWorkers(token(self.number), 0, 1, 0, self._ranks, "127.0.0.1", 1))

    def choose(self, saved: SavedStep | None) -> None:
        self.memory.choose(RestoreChoice(saved, "" if saved else "none was saved"))

    def close(self) -> None:
        for file in self.memory.files.values():
            os.close(file)


def become_worker(rounds: Rounds, setenv: Callable[[str, str], object]) -> None:
    setenv("UNDERSTUDY_SNAPSHOT_FD", str(rounds.memory.files[0]))
    setenv("UNDERSTUDY_ROUND", str(token(rounds.number)))


def begin_worker(rounds: Rounds, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process becomes the worker of the newest round, as after its start."""
    become_worker(rounds, monkeypatch.setenv)
    monkeypatch.setattr(snapshot_slots, "_found", None)
    monkeypatch.setattr(snapshot_slots, "_looked", False)
