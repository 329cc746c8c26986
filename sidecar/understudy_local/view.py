"""The live view of a run in a terminal: members and their ranks, the round, the recoveries. Lines scroll above it."""

import asyncio
import sys
import time
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from understudy_local.cluster import LocalCluster
from understudy_local.member_table import member_rows
from understudy_local.output import reader_may_have_ended
from understudy_operator.plan.facts.status import JobStatus, RecoveryStatus
from understudy_operator.plan.times.rfc3339 import parse_time
from understudy_protocol.enums import Strategy
from understudy_protocol.observer import Snapshot, StepProgress

EVERY_S = 0.1
CLOCK_S = 1.0
RECOVERIES = 5


class LiveScreen:
    """Draws the state of a cluster, between once and ten times a second, and prints lines above it."""

    def __init__(self, console: Console) -> None:
        self._console, self._stream = console, sys.stdout
        self._live = Live(console=console, auto_refresh=False, transient=False)
        self._cluster: LocalCluster | None = None
        self._due: asyncio.TimerHandle | None = None

    def __enter__(self) -> "LiveScreen":
        with reader_may_have_ended(self._stream):
            self._live.start()
        self._later()
        return self

    def __exit__(self, *_: object) -> None:
        if self._due is not None:
            self._due.cancel()
        self._show()
        with reader_may_have_ended(self._stream):
            self._live.stop()

    def watch(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        cluster.changed = self._later

    def line(self, text: str, *, error: bool) -> None:
        with reader_may_have_ended(self._stream):
            self._console.print(Text.from_ansi(text), soft_wrap=True)

    def ours(self, text: str, *, warning: bool) -> None:
        with reader_may_have_ended(self._stream):
            self._console.print(Text(f"understudy: {text}", style="yellow" if warning else "cyan"), soft_wrap=True)

    def _later(self) -> None:
        loop = asyncio.get_running_loop()
        if self._due is not None and self._due.when() <= loop.time() + EVERY_S:
            return
        if self._due is not None:
            self._due.cancel()
        self._due = loop.call_later(EVERY_S, self._draw)

    def _draw(self) -> None:
        self._show()
        self._due = asyncio.get_running_loop().call_later(CLOCK_S, self._draw)

    def _show(self) -> None:
        if self._cluster is None:
            return
        with reader_may_have_ended(self._stream):
            self._live.update(drawn(self._cluster, time.time()), refresh=True)


def drawn(cluster: LocalCluster, now: float) -> RenderableType:
    """The current picture."""
    rows = member_rows(cluster.pods.values(), cluster.snapshot, cluster.options.nproc)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("MEMBER", "ROLE", "RANKS", "WORKERS", ""):
        table.add_column(column)
    for row in rows:
        mark = "coordinates" if row.coordinates else ""
        table.add_row(row.node, row.role, row.ranks, Text(row.state, style=row.style), Text(mark, style="dim"))
    recoveries = [Text(line) for line in recovery_lines(cluster.status.recoveries, now)]
    head = Text(headline(cluster.status, cluster.snapshot, now - cluster.started_at), "bold")
    hint = Text("try: understudy local kill 0   understudy local kill node-1", style="dim")
    return Group(head, table, *recoveries, hint)


def headline(status: JobStatus, snapshot: Snapshot | None, age_s: float) -> str:
    """Phase, round, step, the reason for a wait, and the run's age."""
    parts = [f"understudy local  {status.phase or 'Pending'}"]
    if status.round >= 0:
        parts.append(f"round {status.round}")
    if snapshot is not None and snapshot.progress is not None:
        parts.append(f"step {_step(snapshot.progress)}")
    if snapshot is not None and snapshot.waiting_for and snapshot.closed is None:
        parts.append(f"waiting for {snapshot.waiting_for}")
    parts.append(f"{int(age_s) // 60}:{int(age_s) % 60:02d}")
    return "  ".join(parts)


def _step(progress: StepProgress) -> str:
    if progress.is_counted:
        return f"{progress.step} in round"
    return str(progress.step) if progress.total is None else f"{progress.step}/{progress.total}"


def recovery_lines(entries: Sequence[RecoveryStatus], now: float) -> list[str]:
    """The newest recoveries, one per line; for an open one, its duration so far."""
    return [_recovery(entry, now) for entry in entries[-RECOVERIES:]]


def _recovery(entry: RecoveryStatus, now: float) -> str:
    cause = entry.cause
    subject = f"rank {cause.rank}" if cause.rank is not None else "a member"
    if entry.pause_seconds is not None:
        took = f" {entry.pause_seconds:.2f} s"
    elif entry.is_open:
        took = f", for {max(0, int(now - parse_time(entry.detected_at)))} s so far"
    else:
        took = ", workers are running again"
    how = entry.strategy or "no strategy yet"
    where = f" on {cause.node}" if cause.node else ""
    why = f" ({entry.reason})" if entry.reason and how != Strategy.IN_PLACE.value else ""
    return f"round {entry.round}: {entry.fault.value}, {subject}{where}: {cause.message} -> {how}{took}{why}"
