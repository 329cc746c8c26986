"""What the launcher knows of its newest round: the order, how its workers ended, and what a sidecar must hear of it.

Rules: a worker's failure and a drain are told when they happen and again on every connect, for the sidecar may have
been away; never once a newer round has come. Only workers that failed by themselves have a say in the exit code, and
the first of them counts. Pure.
"""

from enum import Enum
from typing import Any, Optional

from understudy_launcher.events import WorkerEnded
from understudy_launcher.hangs import HangWatch
from understudy_launcher.steps import RoundSteps
from understudy_protocol.enums import NO_ROUND, RoundToken
from understudy_protocol.launcher import StartWorkers, WorkerExited, WorkersDrained


class Drain(Enum):
    """Whether the round's workers were asked to end, and whether the sidecar was told that they have."""

    NOT_ASKED = "not asked"
    ASKED = "asked"
    REPORTED = "told"


class Round:
    """Without `start`: before the first one."""

    def __init__(self, start: Optional[StartWorkers] = None) -> None:
        self.start = start
        self.failures: list[WorkerExited] = []
        self.first_code: Optional[int] = None  # of its first failed worker
        self.drain = Drain.NOT_ASKED
        self.steps: Optional[RoundSteps] = None  # from the spawn on, until it is stopped
        self.hangs: Optional[HangWatch] = None  # likewise

    @property
    def token(self) -> RoundToken:
        return self.start.token if self.start else NO_ROUND

    @property
    def group_rank(self) -> Optional[int]:
        return self.start.group_rank if self.start else None

    def failed(self, event: WorkerEnded) -> WorkerExited:
        self.note_code(event)
        failure = WorkerExited(self.token, event.local_rank, event.exit_code, event.signal, event.message, event.at)
        self.failures.append(failure)
        return failure

    def note_code(self, event: WorkerEnded) -> None:
        if self.first_code is None and event.shell_code != 0:
            self.first_code = event.shell_code

    def drained(self) -> WorkersDrained:
        self.drain = Drain.REPORTED
        return WorkersDrained(self.token)

    def history(self) -> list[Any]:
        """What a sidecar that has just connected may not have heard."""
        lines = [WorkersDrained(self.token)] if self.drain is Drain.REPORTED else []
        return [*self.failures, *lines]
