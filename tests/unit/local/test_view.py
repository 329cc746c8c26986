"""The text of the live view, without a terminal."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

from msgspec.structs import replace
from rich.console import Console

from understudy_local.cluster import LocalCluster
from understudy_local.options import Options
from understudy_local.output import LocalOutput, Plain
from understudy_local.run_folder import RunFolder
from understudy_local.view import LiveScreen, headline, recovery_lines
from understudy_operator.plan.facts.status import CauseStatus, JobStatus, RecoveryStatus
from understudy_operator.plan.times.rfc3339 import Time, parse_time
from understudy_protocol.enums import Fault, RoundToken
from understudy_protocol.observer import Snapshot, StepProgress

AT = Time("2026-11-20T10:00:00.250000Z")


def snapshot(waiting_for: str = "", progress: StepProgress | None = None) -> Snapshot:
    return Snapshot(RoundToken(1, 1, 2), "uid-0", (), (), (), {}, progress, waiting_for, None)


def test_the_headline_of_a_new_run_has_only_its_phase() -> None:
    assert headline(JobStatus(), None, 0.0) == "understudy local  Pending  0:00"


def test_the_headline_has_the_round_and_the_step() -> None:
    status = JobStatus(phase="Running", round=2)
    assert headline(status, snapshot(progress=StepProgress(7, 100, 1.0)), 65.0) == (
        "understudy local  Running  round 2  step 7/100  1:05"
    )
    assert "step 7 " in headline(status, snapshot(progress=StepProgress(7, None, 1.0)), 1.0)
    counted = StepProgress(7, None, 1.0, is_counted=True)
    assert "step 7 in round " in headline(status, snapshot(progress=counted), 1.0)


def test_the_headline_has_the_reason_for_a_wait() -> None:
    line = headline(JobStatus(phase="Recovering", round=2), snapshot(waiting_for="1 of 3 members"), 1.0)
    assert "waiting for 1 of 3 members" in line


def test_open_and_finished_recoveries_have_a_line_each() -> None:
    cause = CauseStatus(rank=3, pod="p", node="node-1", message="killed by SIGKILL")
    done = RecoveryStatus(Fault.PROCESS, AT, "InPlace", round=1, cause=cause, resumed_at=AT, pause_seconds=0.0712)
    swap = replace(done, strategy="SpareSwap", reason="pod p failed twice within 1 h")
    waits = RecoveryStatus(Fault.POD, AT, round=2, cause=CauseStatus(message="its connection ended"))
    assert recovery_lines([done, swap, waits], parse_time("2026-11-20T10:01:14.000000Z")) == [
        "round 1: Process, rank 3 on node-1: killed by SIGKILL -> InPlace 0.07 s",
        "round 1: Process, rank 3 on node-1: killed by SIGKILL -> SpareSwap 0.07 s (pod p failed twice within 1 h)",
        "round 2: Pod, a member: its connection ended -> no strategy yet, for 73 s so far",
    ]


def test_an_open_recovery_has_no_negative_duration_if_the_clock_was_set_back() -> None:
    entry = RecoveryStatus(Fault.POD, AT, round=2, cause=CauseStatus(message="gone"))
    (line,) = recovery_lines([entry], parse_time("2026-11-20T09:59:00.000000Z"))
    assert line.endswith("no strategy yet, for 0 s so far")


def test_only_the_newest_are_shown() -> None:
    entry = RecoveryStatus(Fault.POD, AT, "SpareSwap", pause_seconds=1.0)
    lines = recovery_lines([replace(entry, round=number) for number in range(8)], 0.0)
    assert [line.split(":")[0] for line in lines] == ["round 3", "round 4", "round 5", "round 6", "round 7"]


class Terminal(io.StringIO):
    """Collects the output until it contains a text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text, self.expected = text, asyncio.Event()

    def write(self, text: str) -> int:
        if self._text in text:
            self.expected.set()
        return super().write(text)


async def test_the_views_clock_advances_while_nothing_changes() -> None:
    # given a view of a job without events
    printed = Terminal("0:02")
    screen = LiveScreen(Console(file=printed, force_terminal=True, width=100))
    output = LocalOutput(Plain(), verbose=False)
    screen.watch(LocalCluster(Options(("true",)), RunFolder(Path("/nonexistent")), "127.16", (), output))
    # when time passes, then its clock advances
    with screen:
        async with asyncio.timeout(20):
            await printed.expected.wait()
    assert "0:01" in printed.getvalue()
