"""How the verbs of a cluster and of local mode print their views."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.live import Live

from understudy_cli import render
from understudy_cli.command_errors import NotFound
from understudy_cli.facts import Fleet
from understudy_cli.log_lines import Wanted, grouped, newest_dumps
from understudy_cli.render import OutputFormat

#: A narrower terminal breaks the lines itself. Otherwise the columns that can be broken, such as names, would vanish.
LEAST_COLUMNS = 80
#: Lines of `logs` unless --tail says otherwise.
DEFAULT_TAIL = 1_000

#: Of `dashboard`.
DEFAULT_PORT, LOOPBACK = 8090, "127.0.0.1"

Format = Annotated[OutputFormat, typer.Option("--output", "-o", metavar="FORMAT", help="table, wide, json or yaml.")]
Rank = Annotated[
    int | None, typer.Option("--rank", min=0, metavar="N", help="Lines of one rank, from each pod that held it.")
]
Round = Annotated[int | None, typer.Option("--round", min=0, metavar="N", help="Lines of one round.")]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Print new lines, also of new pods, until Ctrl-C.")]
Tail = Annotated[int, typer.Option("--tail", min=-1, metavar="N", help="The newest N lines; -1: all.")]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Draw again when something changes, until Ctrl-C.")]
Port = Annotated[int, typer.Option("--port", min=0, max=65535, metavar="N", help="Port of the page; 0: a free one.")]
Listen = Annotated[
    str, typer.Option("--listen", metavar="ADDRESS", help="Address of the page. Others can read it at another address.")
]
Hosts = Annotated[
    list[str] | None,
    typer.Option("--host", metavar="NAME", help="A name by which browsers may call the page, beside localhost."),
]
Last = Annotated[int, typer.Option("--last", min=1, metavar="N", help="Explain the newest N faults.")]


def show(value: object, output: OutputFormat, drawn: Callable[[], RenderableType]) -> None:
    """value: the view, for JSON and YAML."""
    if output.is_data:
        sys.stdout.write(render.data(value, output))
        return
    console = render.console()
    if console.is_terminal:
        console.width = max(console.width, LEAST_COLUMNS)
        console.print(drawn())
    else:
        sys.stdout.write(render.plain(console, drawn()))


def remark(text: str) -> None:
    """Print a line that is no part of the output."""
    sys.stderr.write(f"{text}\n")


#: Draws the objects of one moment; the argument is the time that ages refer to, in Unix seconds.
Frame = Callable[[float], RenderableType]


def draw(frames: Iterator[Frame]) -> None:
    """In a terminal in place. Else print each frame that differs from the one before by more than its ages."""
    console = render.console()
    if console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            for frame in frames:
                live.update(frame(time.time()), refresh=True)
        return
    before = ""
    for frame in frames:
        ageless = render.plain(console, frame(0.0))
        if ageless != before:
            before = ageless
            sys.stdout.write(f"{render.plain(console, frame(time.time()))}\n")
            sys.stdout.flush()


def serve_page(fleets: Iterator[Fleet], listen: str, port: int, hosts: list[str] | None) -> None:
    """Until Ctrl-C."""
    from understudy_cli.dashboard.server import serve  # aiohttp: half a second that other verbs do not need

    serve(fleets, listen, port, hosts or (), lambda url: typer.echo(f"the dashboard is at {url}. Ctrl-C ends it"))


def no_lines(wanted: Wanted, *, has_prefixes: bool) -> str:
    wish = " and ".join(
        f"{name} {number}" for name, number in (("rank", wanted.rank), ("round", wanted.round)) if number is not None
    )
    if wanted.rank is not None and not has_prefixes:
        return "the logs have no line with the prefix of a rank: launcher.logPrefix is false, or no worker has printed"
    return f"the logs of the pods that exist have no lines{f' of {wish}' if wish else ''}"


def show_stacks(logs_of: Mapping[str, Sequence[str]], rank: int | None, output: OutputFormat, condition: str) -> None:
    """logs_of: the lines of each pod. condition: for hang detection. Raises NotFound."""
    dumps = [dump for lines in logs_of.values() for dump in newest_dumps(lines).values()]
    groups = grouped(dump for dump in dumps if rank is None or dump.rank == rank)
    if not groups:
        of_rank = "" if rank is None else f" of rank {rank}"
        raise NotFound(
            f"the logs have no stacks{of_rank}: workers write them at a hang, if {condition} and the script "
            "reports steps (docs/how-to/workers.md#when-a-training-hangs)"
        )
    show({"groups": groups}, output, lambda: render.stacks(groups))
