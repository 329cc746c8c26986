"""Prints views: as tables and trees with rich, or as JSON and YAML with the fields of the view.

Text comes from the cluster, so it is never read as rich's markup. Output to a file or pipe is neither cut nor colored.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from enum import Enum, StrEnum
from typing import Literal, TextIO

import yaml
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from understudy_cli.log_lines import StackGroup, ranges
from understudy_cli.views.causes import Explanation, Why
from understudy_cli.views.check_result import CheckResult, Level
from understudy_cli.views.drains import DrainRow, DrainState
from understudy_cli.views.drills import DrillResult
from understudy_cli.views.goodput import GoodputRow, JobGoodput
from understudy_cli.views.jobs import FaultRow, JobRow, JobTree, PodRow
from understudy_cli.views.nodes import NodeRow
from understudy_cli.views.phrases import NONE, duration, precise
from understudy_cli.views.spares import SpareTables
from understudy_cli.views.timeline import TimelineEntry

#: Wide enough for every table. A pipe and a file have no width.
UNLIMITED = 10_000
_PHASES = {
    "Running": "green",
    "Succeeded": "green",
    "Failed": "red",
    "Recovering": "yellow",
    "Restarting": "yellow",
    "Pending": "yellow",
    "Starting": "yellow",
    "Suspended": "dim",
    "Stopped": "dim",  # a local run
}
_LEVELS = {Level.OK: "green", Level.WARNING: "yellow", Level.ERROR: "red", Level.SKIPPED: "dim"}


class OutputFormat(StrEnum):
    """The formats of -o."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"

    @property
    def is_data(self) -> bool:
        return self in (OutputFormat.JSON, OutputFormat.YAML)


def console(stream: TextIO | None = None) -> Console:
    stream = sys.stdout if stream is None else stream
    width = None if stream.isatty() else UNLIMITED
    return Console(file=stream, width=width, highlight=False, markup=False, emoji=False)


def plain(console: Console, drawn: RenderableType) -> str:
    """The text without the spaces that fill a table's lines."""
    with console.capture() as captured:
        console.print(drawn)
    return "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())


def data(value: object, output: OutputFormat) -> str:
    """A view as JSON or YAML."""
    fields = _plain(value)
    if output is OutputFormat.YAML:
        return yaml.safe_dump(fields, sort_keys=False, allow_unicode=True, width=UNLIMITED)
    return json.dumps(fields, indent=2, ensure_ascii=False) + "\n"


def _plain(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return {name: _plain(part) for name, part in asdict(value).items()}
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple | list):
        return [_plain(part) for part in value]
    return value


# Jobs -----------------------------------------------------------------------------------------------------------------


def jobs(rows: Sequence[JobRow], *, wide: bool, all_namespaces: bool) -> RenderableType:
    columns = ["NAME", "PHASE", "READY", "SPARES", "STEP", "RECOVERIES", "LAST FAULT", "AGE"]
    columns = (["NAMESPACE"] if all_namespaces else []) + columns + (["ROUND", "COORDINATOR", "TARGET"] if wide else [])
    lines = []
    for row in rows:
        cells = [row.namespace] if all_namespaces else []
        cells += [row.name, row.phase, row.ready, row.spares, row.step, str(row.recoveries), row.last_fault, row.age]
        cells += [row.round, row.coordinator, row.target or "-"] if wide else []
        lines.append([Text(cell, style=_PHASES.get(cell, "") if cell == row.phase else "") for cell in cells])
    fold = ("NAMESPACE", "NAME", "LAST FAULT", "COORDINATOR", "TARGET")
    padding = 1 if all_namespaces else 2  # so that a terminal of 80 columns has room for it
    return _table(columns, lines, right=("RECOVERIES", "AGE"), fold=fold, padding=padding)


def tree(shown: JobTree, *, wide: bool) -> RenderableType:
    """One job: its headline, its pods, its newest faults, and the messages of its conditions."""
    job = shown.job
    head = Text.assemble((job.name, "bold"), "  ", (job.phase, f"bold {_PHASES.get(job.phase, '')}".strip()))
    facts = [f"{job.ready} ready", f"spares {job.spares}", f"round {job.round}", f"step {job.step}", f"age {job.age}"]
    head.append("  ".join(["", *facts]), style="")
    parts: list[RenderableType] = [head]
    if job.target:
        parts.append(Text(f"injected: {job.target}", style="dim"))
    if job.snapshot:
        parts.append(Text(f"snapshot: {job.snapshot}", style="dim"))
    is_last = not shown.faults and not shown.more_pods
    parts.append(
        _pods(shown.pods, is_last=is_last, wide=wide)
        if shown.pods
        else Text(f"{'└─' if is_last else '├─'} no pods", style="dim")
    )
    if shown.more_pods:
        parts.append(Text(f"{'├─' if shown.faults else '└─'} and {shown.more_pods} more pods: -o wide", style="dim"))
    if shown.faults:
        parts.append(_faults(shown.faults, shown.more_faults))
    parts += [Text(f"! {note}", style="yellow") for note in shown.notes]
    return Group(*parts)


def _pods(pods: Sequence[PodRow], *, is_last: bool, wide: bool) -> RenderableType:
    columns = ["", "RANKS", "POD", "NODE", "STATE", "", "AGE"] + (["MESSAGE"] if wide else [])
    lines = []
    for number, pod in enumerate(pods):
        guide = "└─" if is_last and number == len(pods) - 1 else "├─"
        style = "green" if pod.is_ready else "dim" if pod.state in ("Succeeded", "Completed") else "yellow"
        cells = [
            Text(guide, style="dim"),
            Text(pod.ranks, style="dim" if pod.ranks == "spare" else ""),
            Text(pod.name),
            Text(pod.node),
            Text(pod.state, style=style),
            Text("coordinator" if pod.is_coordinator else "", style="cyan"),
            Text(pod.age),
        ]
        lines.append([*cells, *([Text(pod.message)] if wide else [])])
    return _table(columns, lines, right=("AGE",), fold=("POD", "NODE", "MESSAGE"), padding=1)


def _faults(faults: Sequence[FaultRow], more: int) -> RenderableType:
    title = f"└─ faults, the newest first{f' (and {more} more)' if more else ''}"
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(width=2)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(overflow="fold")
    for fault in faults:
        grid.add_row("", Text(fault.ago, style="dim"), Text(fault.text, style="yellow" if fault.is_open else ""))
    return Group(Text(title, style="dim"), grid)


# why, timeline --------------------------------------------------------------------------------------------------------


def why(shown: Why) -> RenderableType:
    parts: list[RenderableType] = [Text(shown.summary, style="bold")]
    parts += [Text(f"! {problem}", style="yellow") for problem in shown.problems]
    for fault in shown.faults:
        parts += [Text(""), _explanation(fault)]
    if shown.next_steps:
        parts += [Text(""), Text("Next", style="dim"), *(Text(f"  {step}") for step in shown.next_steps)]
    return Group(*parts)


def _explanation(fault: Explanation) -> RenderableType:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    number = "" if fault.round is None else f", round {fault.round}"
    rows = [
        ("Fault", Text(fault.fault, style="yellow" if fault.is_open else "bold")),
        ("First failure", Text(fault.place)),
        ("Symptom", Text(fault.symptom, style="red")),
        ("Stack", Text("\n".join(fault.stack), style="dim")),
        ("Reported", Text(fault.reported)),
        ("Traceback", Text("\n".join(fault.traceback), style="dim")),
        ("Detected", Text(fault.detected)),
        ("Strategy", Text(f"{fault.strategy}{number}")),
        ("Reason", Text(fault.reason)),
        ("Pause", Text(fault.pause)),
        ("Restored from", Text(fault.restored)),
        ("Lost", Text(fault.lost)),
    ]
    for name, text in rows:
        if text.plain:
            grid.add_row(name, text)
    for consequence in fault.consequences:
        grid.add_row("Followed", Text(consequence, style="dim"))
    return grid


def timeline(entries: Sequence[TimelineEntry]) -> RenderableType:
    lines = [
        [
            Text(entry.time),
            Text(entry.after, style="dim"),
            Text(entry.kind, style="yellow" if entry.is_warning else ""),
            Text(entry.text),
        ]
        for entry in entries
    ]
    return _table(["TIME (UTC)", "AFTER", "EVENT", "DETAILS"], lines, right=("AFTER",), fold=("DETAILS",))


# goodput --------------------------------------------------------------------------------------------------------------


def goodputs(rows: Sequence[GoodputRow], *, all_namespaces: bool) -> RenderableType:
    columns = [
        *(["NAMESPACE"] if all_namespaces else []),
        "NAME",
        "PHASE",
        "ETTR",
        "WALL",
        "PRODUCTIVE",
        "LOST",
        "OTHER",
    ]
    lines = []
    for row in rows:
        cells = [row.namespace, row.name] if all_namespaces else [row.name]
        seconds = (row.wall_seconds, row.productive_seconds, row.lost_seconds, row.other_seconds)
        cells += [row.phase, _share(row.ettr), *map(duration, seconds)]
        lines.append([Text(cell, style=_PHASES.get(cell, "") if cell == row.phase else "") for cell in cells])
    right = ("ETTR", "WALL", "PRODUCTIVE", "LOST", "OTHER")
    table = _table(columns, lines, right=right, fold=("NAMESPACE", "NAME"))
    notes = [Text(f"! {row.name}: {row.note}", style="yellow") for row in rows if row.note]
    return Group(table, *notes)


def goodput(shown: JobGoodput) -> RenderableType:
    """One job: the parts of its time, and what faults have cost."""
    job = shown.job
    head = Text.assemble((job.name, "bold"), "  ", (job.phase, f"bold {_PHASES.get(job.phase, '')}".strip()))
    head.append(f"  ETTR {_share(job.ettr)}  wall time {precise(job.wall_seconds)}")
    parts: list[RenderableType] = [head]
    if job.note:
        parts.append(Text(f"! {job.note}", style="yellow"))
    if shown.parts:
        lines = [
            [Text(row.part), Text(precise(row.seconds)), Text(_share(row.share)), Text(row.meaning, style="dim")]
            for row in shown.parts
        ]
        parts.append(_table(["PART", "TIME", "SHARE", ""], lines, right=("TIME", "SHARE"), fold=("",)))
    for title, rows in (("LOST TO", shown.lost_by_fault), ("ON NODE", shown.lost_by_node)):
        if rows:
            lines = [
                [Text(row.name or "not known"), Text(precise(row.seconds)), Text(f"{row.device_seconds:.0f}")]
                for row in rows
            ]
            columns = [title, "TIME", shown.unit.upper()]
            parts += [Text(""), _table(columns, lines, right=columns[1:], fold=(title,))]
    return Group(*parts)


def _share(ratio: float | None) -> str:
    return NONE if ratio is None else f"{100 * ratio:.1f} %"


# spares, nodes, doctor, stacks ----------------------------------------------------------------------------------------


def spares(shown: SpareTables, *, all_namespaces: bool) -> RenderableType:
    first = ["NAMESPACE"] if all_namespaces else []
    lines = []
    for row in shown.owners:
        cells = [row.owner, row.kind, row.ready, str(row.claimed), row.available, row.pool, row.note]
        lines.append(list(map(Text, [row.namespace, *cells] if all_namespaces else cells)))
    columns = [*first, "OWNER", "KIND", "READY", "CLAIMED", "AVAILABLE", "POOL", "NOTE"]
    owners = _table(columns, lines, fold=("OWNER", "POOL", "NOTE"))
    if not shown.pods:
        return owners
    lines = []
    for pod in shown.pods:
        cells = [pod.name, pod.owner, pod.node, pod.state, pod.claimed_by, pod.age]
        lines.append(list(map(Text, [pod.namespace, *cells] if all_namespaces else cells)))
    columns = [*first, "SPARE", "OWNER", "NODE", "STATE", "CLAIMED BY", "AGE"]
    pods = _table(columns, lines, fold=("SPARE", "OWNER", "NODE", "CLAIMED BY"))
    return Group(owners, Text(""), pods)


def nodes(rows: Sequence[NodeRow]) -> RenderableType:
    lines = [
        [
            Text(row.name),
            Text(row.state, style={"Ready": "green", "NotReady": "red"}.get(row.state, "")),
            Text(", ".join(row.pods) or "-"),
            Text(", ".join(row.avoided_by) or "-"),
            Text("\n".join(row.findings) or "-", style="yellow" if row.findings else ""),
        ]
        for row in rows
    ]
    fold = ("NODE", "PODS", "AVOIDED BY", "FINDINGS")
    return _table(["NODE", "STATE", "PODS", "AVOIDED BY", "FINDINGS"], lines, fold=fold)


def drain(rows: Sequence[DrainRow]) -> RenderableType:
    lines = [
        [
            Text(row.pod),
            Text(row.ranks),
            Text(row.node),
            Text(row.state.value, style="green" if row.state is DrainState.DONE else "yellow"),
            Text(row.strategy),
            Text(row.pause),
            Text(row.lost_steps),
        ]
        for row in rows
    ]
    columns = ["POD", "RANKS", "NODE", "STATE", "STRATEGY", "PAUSE", "STEPS LOST"]
    return _table(columns, lines, right=("PAUSE", "STEPS LOST"), fold=("POD", "NODE"))


def drill(shown: DrillResult) -> RenderableType:
    lines = [
        [
            Text(shown.fault),
            Text(row.broken),
            Text(row.detected_after),
            Text(row.first_step_after),
            Text(row.steps_lost),
            Text(row.strategy),
        ]
        for row in shown.rows
    ]
    columns = ["FAULT", "BROKEN", "DETECTED AFTER", "FIRST STEP AFTER", "STEPS LOST", "STRATEGY"]
    return _table(columns, lines, right=columns[2:5], fold=("BROKEN",), padding=1)


def manifests(objects: Sequence[Mapping[str, object]]) -> str:
    return yaml.safe_dump_all(objects, sort_keys=False, allow_unicode=True, width=UNLIMITED)


def diagnosis(found: Sequence[CheckResult]) -> RenderableType:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True, style="bold")
    grid.add_column(overflow="fold")
    for finding in found:
        text = Text(finding.text)
        if finding.fix:
            text.append(f"\n→ {finding.fix}", style="cyan")
        grid.add_row(Text(finding.level.value, style=_LEVELS[finding.level]), finding.check, text)
    return grid


def stacks(groups: Sequence[StackGroup]) -> RenderableType:
    """The groups of equal stacks, the smallest first."""
    parts: list[RenderableType] = []
    for group in groups:
        many = "ranks" if len(group.ranks) > 1 else "rank"
        title = f"{many} {ranges(group.ranks)}, round {group.round}: no step for {group.since}"
        parts += [Text(title, style="bold"), *(Text(line) for line in group.lines), Text("")]
    return Group(*parts[:-1])


def _table(
    columns: Sequence[str],
    lines: Sequence[Sequence[Text]],
    *,
    right: Sequence[str] = (),
    fold: Sequence[str] = (),
    padding: int = 2,
) -> Table:
    """right: columns of numbers. fold: columns that a narrow terminal breaks into lines. Others keep their width."""
    table = Table(box=None, pad_edge=False, padding=(0, padding, 0, 0), header_style="dim")
    for column in columns:
        justify: Literal["left", "right"] = "right" if column in right else "left"
        table.add_column(column, justify=justify, overflow="fold", no_wrap=column not in fold)
    for line in lines:
        table.add_row(*line)
    return table
