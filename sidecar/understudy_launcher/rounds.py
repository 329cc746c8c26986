"""The launcher's newest round: its order, how its workers ended, and the messages that a sidecar must receive about it.

Rules: a worker's failure and a drain are reported when they happen and again on every connect, because the sidecar may
have been disconnected. They are not reported any more once a newer round has started. The exit code is that of the
first worker that failed by itself. Pure.
"""

from enum import Enum
from typing import Any, Optional

from understudy_launcher.events import WorkerEnded
from understudy_launcher.hangs import HangWatch
from understudy_launcher.steps import RoundSteps
from understudy_protocol.enums import NO_ROUND, RoundToken
from understudy_protocol.launcher import StartWorkers, WorkerExited, WorkersDrained
from understudy_protocol.snapshots import SavedSteps


class DrainProgress(Enum):
    """Whether the round's workers were asked to end, and whether the sidecar got WorkersDrained."""

    NOT_ASKED = "not asked"
    ASKED = "asked"
    REPORTED = "reported"


class Round:
    """`start` is None before the first round."""

    def __init__(self, start: Optional[StartWorkers] = None) -> None:
        self.start = start
        self.failures: list[WorkerExited] = []
        self.first_code: Optional[int] = None  # of its first failed worker
        self.drain = DrainProgress.NOT_ASKED
        self.steps: Optional[RoundSteps] = None  # from the spawn until StopWorkers
        self.hangs: Optional[HangWatch] = None  # likewise
        self.saved: Optional[SavedSteps] = None  # its snapshots, once they were read, and the choice

    @property
    def token(self) -> RoundToken:
        return self.start.token if self.start else NO_ROUND

    @property
    def group_rank(self) -> Optional[int]:
        return self.start.group_rank if self.start else None

    def failed(self, event: WorkerEnded) -> WorkerExited:
        self.note_code(event)
        failure = WorkerExited(
            self.token, event.local_rank, event.exit_code, event.signal, event.message, event.at, event.traceback
        )
        self.failures.append(failure)
        return failure

    def note_code(self, event: WorkerEnded) -> None:
        if self.first_code is None and event.shell_code != 0:
            self.first_code = event.shell_code

    def drained(self) -> WorkersDrained:
        self.drain = DrainProgress.REPORTED
        return WorkersDrained(self.token)

    def history(self) -> list[Any]:
        """The messages that a newly connected sidecar may have missed."""
        lines = [WorkersDrained(self.token)] if self.drain is DrainProgress.REPORTED else []
        return [*self.failures, *lines]
