"""The verbs of local mode: `understudy local -- COMMAND` runs a job, the others show it or inject faults.

The same views as for a cluster show a run: it answers with the objects that a cluster would have. The modules of local
mode are imported by the verbs that need them, because they need packages that the verbs for a cluster do not need.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import RenderableType
from typer.core import TyperGroup

from understudy_cli import fields, render
from understudy_cli.command_errors import NoAnswer, NotFound, WrongCall
from understudy_cli.facts import Event, Fleet, Job, Pod, Recovery
from understudy_cli.log_lines import LogFilter, Wanted
from understudy_cli.printing import (
    DEFAULT_PORT,
    DEFAULT_TAIL,
    LOOPBACK,
    Follow,
    Format,
    Frame,
    Hosts,
    Last,
    Listen,
    Port,
    Rank,
    Round,
    Tail,
    Watch,
    draw,
    no_lines,
    serve_page,
    show,
    show_stacks,
)
from understudy_cli.reading import read_event, read_job, read_pod, read_recovery, recoveries_of
from understudy_cli.render import OutputFormat
from understudy_cli.untrusted import log_line
from understudy_cli.views import causes, goodput, jobs, timeline
from understudy_cli.views.suspects import Logs, Source

T = TypeVar("T")
POLL_S = 0.25
PROGRAM = "understudy local"
NO_COMMAND = "expected `--` and the command of a worker: understudy local --nodes 3 -- python train.py"


class RunByDefault(TyperGroup):
    """`local OPTION … -- COMMAND` runs a job: the verb `run` may be left out."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """All words go to `run`, unless the first is another verb or asks for help. Raises WrongCall."""
        first = args[0] if args else ""
        if args and first not in (*self.commands, "-h", "--help"):
            args = ["run", *args]
        ours = args[: args.index("--")] if "--" in args else args
        asks_for_help = {"-h", "--help"} & set(ours)
        if args[:1] == ["run"] and ours is args and not asks_for_help and not ctx.resilient_parsing:
            if first == "run" or first.startswith("-"):
                raise WrongCall(NO_COMMAND)
            verbs = ", ".join(self.commands)
            raise WrongCall(f"{NO_COMMAND}. Local mode has no verb `{first}`: its verbs are {verbs}")
        return list(super().parse_args(ctx, args))


local = typer.Typer(
    cls=RunByDefault,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Run and show a job on this machine.\n\nThe launchers, sidecars and workers are plain processes.",
    epilog="Example: understudy local --nodes 3 --spares 1 --nproc 2 -- python train.py",
)

Run = Annotated[str, typer.Argument(metavar="[RUN]", help="Name of a run. Default: the newest.")]
RunOption = Annotated[str, typer.Option("--run", metavar="NAME", help="Name of the run. Default: the newest.")]


@local.command("run", epilog="Example: understudy local --nodes 3 --spares 1 --nproc 2 -- python train.py")
def run(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="-- COMMAND ...", help="The command of a worker.")
    ] = None,
    nodes: Annotated[int, typer.Option("--nodes", metavar="N", help="Members that train.")] = 2,
    spares: Annotated[int, typer.Option("--spares", metavar="N", help="Members that wait.")] = 1,
    nproc: Annotated[
        int | None,
        typer.Option(
            "--nproc", metavar="N", help="Workers of each member. Default: torchrun's --nproc-per-node, else 1."
        ),
    ] = None,
    grace: Annotated[int, typer.Option("--grace", metavar="SECONDS", help="Time to save after Ctrl-C.")] = 30,
    restarts: Annotated[int, typer.Option("--restarts", metavar="N", help="Restarts in place within an hour.")] = 1000,
    restarts_per_member: Annotated[
        int,
        typer.Option(
            "--restarts-per-member", metavar="N", help="Restarts in place for one member, after which it is replaced."
        ),
    ] = 1000,
    snapshots: Annotated[
        str,
        typer.Option(
            "--snapshots",
            metavar="SIZE",
            help="Memory for the state of one worker, such as 512Mi (docs/how-to/snapshots.md). Default: none.",
        ),
    ] = "",
    snapshot_every: Annotated[
        int,
        typer.Option("--snapshot-every", metavar="N", help="Of so many calls of snapshot.save(), one is stored."),
    ] = 1,
    snapshot_copies: Annotated[
        int | None,
        typer.Option(
            "--snapshot-copies", metavar="N", help="Other members that keep a copy of each snapshot. Default: 1."
        ),
    ] = None,
    snapshot_path: Annotated[
        str,
        typer.Option("--snapshot-path", metavar="FOLDER", help="Write snapshots to this folder, too. Default: none."),
    ] = "",
    snapshot_path_every: Annotated[
        int,
        typer.Option(
            "--snapshot-path-every", metavar="STEPS", help="Of so many steps, one is written to --snapshot-path."
        ),
    ] = 1000,
    step_timeout: Annotated[
        int,
        typer.Option(
            "--step-timeout",
            metavar="SECONDS",
            help="A worker hangs if it has made a step, and makes none for this time. 0: no worker hangs.",
        ),
    ] = 0,
    start_timeout: Annotated[
        int,
        typer.Option(
            "--start-timeout",
            metavar="SECONDS",
            help="A round hangs if it makes no step for this time. 0: no round hangs.",
        ),
    ] = 0,
    slow_rank_percent: Annotated[
        int,
        typer.Option(
            "--slow-rank-percent",
            metavar="PERCENT",
            help="Name a rank as slow if it makes each step this long, in percent (110 to 1000). 0: name no rank.",
        ),
    ] = 150,
    preload: Annotated[
        str | None,
        typer.Option("--preload", metavar="A,B", help="Modules that workers share (docs/how-to/workers.md)."),
    ] = None,
    no_zygote: Annotated[bool, typer.Option("--no-zygote", help="Start every worker as a new process.")] = False,
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="Name of this run. Default: random.")] = "",
    plain: Annotated[bool, typer.Option("--plain", help="Print lines instead of the live view.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Also print the lines of launchers and sidecars.")] = False,
) -> None:
    """Run a job. The word `run` may be left out."""
    from understudy_local import run as runs
    from understudy_local.options import Options, checked, nproc_of, snapshot_bytes_of

    if not command:
        raise WrongCall(NO_COMMAND)

    def start() -> int:
        options = Options(
            command=tuple(command),
            nodes=nodes,
            spares=spares,
            nproc=nproc if nproc is not None else nproc_of(command),
            grace_s=grace,
            restarts=restarts,
            zygote=not no_zygote,
            preload=None if preload is None else tuple(module for module in preload.split(",") if module),
            name=name,
            plain=plain,
            verbose=verbose,
            restarts_per_member=restarts_per_member,
            snapshot_bytes=snapshot_bytes_of(snapshots),
            snapshot_every=snapshot_every,
            snapshot_copies=snapshot_copies,
            step_timeout_s=step_timeout,
            start_timeout_s=start_timeout,
            slow_rank_percent=slow_rank_percent,
            snapshot_path=os.path.abspath(snapshot_path) if snapshot_path else "",
            snapshot_path_every=snapshot_path_every,
        )
        return runs.run(checked(options))

    raise typer.Exit(_checked(start))


@local.command("kill", epilog="Example: understudy local kill node-1")
def kill(
    target: Annotated[str, typer.Argument(metavar="RANK|MEMBER", help="A rank (a number), or a member (node-1, ...).")],
    name: RunOption = "",
) -> None:
    """Kill a rank or a member.

    SIGKILL to the worker of a rank, or to all processes of a member.
    """
    from understudy_local import run as runs

    typer.echo(_asked(lambda: runs.kill(target, name)))


@local.command("get", epilog="Example: understudy local get -w")
def get(
    name: Run = "",
    watch: Watch = False,
    output: Format = OutputFormat.TABLE,
) -> None:
    """Show a run with its members and faults."""
    if watch and output.is_data:
        raise WrongCall(f"-w with -o {output.value}: the live view has no {output.value}; leave one of them out")
    wide = output is OutputFormat.WIDE
    if watch:
        draw(_frames(name, wide=wide))
        return
    shown = _tree(_read(name), time.time())
    show(shown, output, lambda: render.tree(shown, wide=wide))


@local.command("why", epilog="Example: understudy local why --last 3")
def why(
    name: Run = "",
    last: Last = 1,
    output: Format = OutputFormat.TABLE,
) -> None:
    """Explain the newest fault of a run."""
    seen = _read(name)
    shown = causes.why(seen.job, seen.recoveries, time.time(), last, PROGRAM, lambda _: _logs(name))
    show(shown, output, lambda: render.why(shown))


@local.command("timeline", epilog="Example: understudy local timeline")
def show_timeline(name: Run = "", output: Format = OutputFormat.TABLE) -> None:
    """List the history of a run."""
    seen = _read(name)
    entries = timeline.timeline(seen.job, seen.recoveries, seen.events)
    show({"entries": entries}, output, lambda: render.timeline(entries))


@local.command("goodput", epilog="Example: understudy local goodput")
def show_goodput(name: Run = "", output: Format = OutputFormat.TABLE) -> None:
    """Show what the time of a run went to."""
    shown = goodput.job_goodput(_read(name).job, time.time())
    show(shown, output, lambda: render.goodput(shown))


@local.command("logs", epilog="Example: understudy local logs --rank 3 --round 5")
def logs(
    name: Run = "",
    rank: Rank = None,
    round_number: Round = None,
    follow: Follow = False,
    tail: Tail = DEFAULT_TAIL,
) -> None:
    """Print logs of ranks and rounds."""
    wanted = Wanted(rank, round_number)
    folder = _asked(lambda: _folder(name))
    files = [_Tail(path, wanted) for path in sorted(folder.logs.glob("*.log"))]
    has_lines = False
    for file in files:
        for line in file.newest(tail):
            has_lines = True
            _print(file.member, line, name_member=rank is None)
    is_active = follow
    while is_active:
        is_active = _asked(lambda: _is_active(folder.name))  # first: its last lines come before its end
        known = {file.path for file in files}
        files += [_Tail(path, wanted) for path in sorted(folder.logs.glob("*.log")) if path not in known]
        for file in files:
            for line in file.new_lines():
                has_lines = True
                _print(file.member, line, name_member=rank is None)
        if is_active:
            time.sleep(POLL_S)
    if not has_lines and tail:
        raise NotFound(no_lines(wanted, has_prefixes=any(file.filter.has_prefixes for file in files)))


@local.command("stacks", epilog="Example: understudy local stacks")
def stacks(
    name: Run = "",
    rank: Annotated[int | None, typer.Option("--rank", min=0, help="Only this rank.")] = None,
    output: Format = OutputFormat.TABLE,
) -> None:
    """Show the Python stacks of the newest hang."""
    folder = _asked(lambda: _folder(name))
    logs_of = {source.node: lines for source, lines in _logs(folder.name).items()}
    show_stacks(logs_of, rank, output, "--step-timeout is set")


@local.command("dashboard", epilog="Example: understudy local dashboard")
def dashboard(name: Run = "", port: Port = DEFAULT_PORT, listen: Listen = LOOPBACK, host: Hosts = None) -> None:
    """Serve a web page about a run, until Ctrl-C."""
    serve_page(_fleets(name), listen, port, host)


# Edges ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Seen:
    job: Job
    pods: tuple[Pod, ...]
    events: tuple[Event, ...]
    recoveries: tuple[Recovery, ...]  # the oldest first


class _Tail:
    """The wanted lines of a member's log, as they are written."""

    def __init__(self, path: Path, wanted: Wanted) -> None:
        self.path, self.member, self.filter = path, path.stem, LogFilter(wanted)
        self._at, self._rest = 0, b""

    def newest(self, count: int) -> list[str]:
        found = self.new_lines()
        return found if count < 0 else found[len(found) - min(count, len(found)) :]

    def new_lines(self) -> list[str]:
        with self.path.open("rb") as file:
            file.seek(self._at)
            content = file.read()
        self._at += len(content)
        *lines, self._rest = (self._rest + content).split(b"\n")
        texts = (log_line(line.decode(errors="replace")) for line in lines)
        return [text for text in texts if self.filter.takes(text)]


def _print(member: str, line: str, *, name_member: bool) -> None:
    sys.stdout.write(f"{member} | {line}\n" if name_member else f"{line}\n")
    sys.stdout.flush()


def _checked(call: Callable[[], T]) -> T:
    """Report the errors of a user in local mode in the same way as all others. Raises NotFound, WrongCall."""
    from understudy_local.options import NoSuchRun, UsageError

    try:
        return call()
    except NoSuchRun as error:
        raise NotFound(str(error)) from error
    except UsageError as error:
        raise WrongCall(str(error)) from error


def _asked(call: Callable[[], T]) -> T:
    """The same for a question to a run. Raises NotFound, WrongCall, NoAnswer."""
    try:
        return _checked(call)
    except OSError as error:
        raise NoAnswer(f"the run does not respond ({error}): it may have just ended") from error


def _folder(name: str) -> Any:
    from understudy_local import run_folder

    return run_folder.newest(name)


def _logs(name: str) -> Logs:
    paths = sorted(_asked(lambda: _folder(name)).logs.glob("*.log"))
    return {Source("", path.stem): _Tail(path, Wanted()).newest(-1) for path in paths}


def _is_active(name: str) -> bool:
    from understudy_local import run_folder

    return any(run.name == name for run in run_folder.live())


def _read(name: str) -> _Seen:
    """The state of an active run, or the last one of a run that has ended. Raises NotFound, WrongCall."""
    from understudy_local import control

    folder = _asked(lambda: _folder(name))
    if _asked(lambda: _is_active(folder.name)):
        found = _asked(lambda: control.ask(folder.control, {"objects": True}))
    else:
        found = folder.recorded()
        if found is None:
            raise NotFound(f"run {folder.name} was killed, so only its logs are kept: {PROGRAM} logs {folder.name}")
    pods = tuple(map(read_pod, fields.entries(found, "pods")))
    events = tuple(map(read_event, fields.entries(found, "events")))
    job, objects = read_job(fields.table(found, "job")), map(read_recovery, fields.entries(found, "recoveries"))
    return _Seen(job, pods, events, recoveries_of(job, objects))


def _tree(seen: _Seen, now: float) -> jobs.JobTree:
    return jobs.job_tree(seen.job, seen.pods, seen.recoveries, now, None)


def _draw(seen: _Seen, now: float, *, wide: bool) -> RenderableType:
    return render.tree(_tree(seen, now), wide=wide)


def _followed(name: str) -> Iterator[_Seen]:
    """Until the run has ended."""
    folder = _asked(lambda: _folder(name))
    while True:
        is_active = _asked(lambda: _is_active(folder.name))
        yield _read(folder.name)
        if not is_active:
            return
        time.sleep(POLL_S)


def _frames(name: str, *, wide: bool) -> Iterator[Frame]:
    return (partial(_draw, seen, wide=wide) for seen in _followed(name))


def _fleets(name: str) -> Iterator[Fleet]:
    shown = None
    for seen in _followed(name):
        if seen != shown:
            yield Fleet((seen.job,), seen.pods, seen.recoveries, events=seen.events)
        shown = seen
