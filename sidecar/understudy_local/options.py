"""The command line of a local run, checked. Pure."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata

from understudy_operator.plan.facts.malformed import number_in
from understudy_operator.plan.facts.quantities import bytes_in
from understudy_operator.plan.facts.trainer import torchruns_nproc, workers_per_pod
from understudy_protocol.command_words import program_of_ranks

MAX_NODES = 64
#: More than any in-place budget of a cluster, because the user watches the run.
RESTARTS = 1000


class UsageError(ValueError):
    """The command line is wrong: the text has the wrong part and the expected one."""


@dataclass(frozen=True)
class Options:
    command: tuple[str, ...]
    nodes: int = 2
    spares: int = 1
    nproc: int = 1
    grace_s: int = 30
    restarts: int = RESTARTS
    zygote: bool = True
    preload: tuple[str, ...] | None = None  # None: the launcher's default
    name: str = ""  # of the run; "": random
    plain: bool = False  # lines only, no live view
    verbose: bool = False  # also print the lines of launchers and sidecars
    restarts_per_member: int = RESTARTS
    snapshot_bytes: int = 0  # memory for the state of one worker; 0: no snapshots
    snapshot_every: int = 1


@dataclass(frozen=True)
class Kill:
    """SIGKILL to the worker of a rank, or to all processes of a member."""

    target: str
    run: str = ""  # "": the newest


@dataclass(frozen=True)
class Show:
    """Print the members of a run."""

    run: str = ""


def parse(arguments: Sequence[str]) -> Options | Kill | Show:
    """`local …`, `local kill …`, `local show`. Raises UsageError, or SystemExit if the parser has printed its help."""
    if not arguments or arguments[0] in ("-h", "--help", "--version"):
        _top().parse_args(list(arguments) or ["--help"])
    if arguments[0] != "local":
        raise UsageError(f"expected `understudy local …`, got {arguments[0]!r}; see `understudy local --help`")
    rest = list(arguments[1:])
    if rest[:1] == ["kill"]:
        return _parse_kill(rest[1:])
    return _parse_show(rest[1:]) if rest[:1] == ["show"] else _parse_run(rest)


def _top() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="understudy",
        description="understudy local runs a training as plain processes of this machine, with spares and recoveries.",
        epilog="understudy local --help, understudy local kill --help, understudy local show --help",
    )
    parser.add_argument("local")
    parser.add_argument("--version", action="version", version=f"understudy {_version()}")
    return parser


def _version() -> str:
    try:
        return metadata.version("understudy-training")
    except metadata.PackageNotFoundError:
        return "(run from its sources, not installed)"


def _parse_run(arguments: Sequence[str]) -> Options:
    if "--" in arguments:
        at = list(arguments).index("--")
        ours, command = arguments[:at], arguments[at + 1 :]
    else:
        ours, command = arguments, ()
    asked = _run_parser().parse_args(ours, argparse.Namespace(nproc=None, snapshots=""))
    if not command:
        raise UsageError("expected `--` and the command of a worker: understudy local --nodes 3 -- python train.py")
    least_of = {"nodes": 1, "spares": 0, "nproc": 1, "grace": 1, "restarts": 0, "restarts-per-member": 0}
    least_of["snapshot-every"] = 1
    for name, least in least_of.items():
        number = getattr(asked, name.replace("-", "_"))
        if number is not None and number < least:
            raise UsageError(f"--{name} {number}: expected {least} or more")
    if asked.nodes + asked.spares > MAX_NODES:
        raise UsageError(f"--nodes and --spares: expected at most {MAX_NODES} together, for one machine")
    snapshot_bytes = bytes_in(asked.snapshots) if asked.snapshots else 0
    if snapshot_bytes is None or (asked.snapshots and not snapshot_bytes):
        raise UsageError(f"--snapshots {asked.snapshots}: expected the memory for one worker's state, such as 512Mi")
    of_torchrun = torchruns_nproc({"command": command})
    if asked.nproc is None and of_torchrun and number_in(of_torchrun) is None:
        raise UsageError(f"torchrun's --nproc-per-node is {of_torchrun}: expected a number, or add --nproc NUMBER")
    nproc = asked.nproc if asked.nproc is not None else workers_per_pod({"command": command})
    if asked.nodes * nproc > 1 and (program := program_of_ranks(command)):
        raise UsageError(
            f"{program} starts several processes itself, so each worker would start a training of its own: make the "
            "script the command, and set --nproc to the workers of each member"
        )
    preload = None if asked.preload is None else tuple(name for name in asked.preload.split(",") if name)
    return Options(
        tuple(command),
        asked.nodes,
        asked.spares,
        nproc,
        asked.grace,
        asked.restarts,
        not asked.no_zygote,
        preload,
        asked.name,
        asked.plain,
        asked.verbose,
        asked.restarts_per_member,
        snapshot_bytes,
        asked.snapshot_every,
    )


def _run_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="understudy local",
        usage="understudy local [option …] -- COMMAND [argument …], or understudy local kill RANK|MEMBER [--run NAME]",
        description="Run a training on --nodes members of --nproc workers each, and --spares members that wait.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    default = Options(())
    parser.add_argument("--nodes", type=int, default=default.nodes, metavar="N", help="members that train")
    parser.add_argument("--spares", type=int, default=default.spares, metavar="N", help="members that wait")
    help_text = "workers of each member; if unset, the number in torchrun's --nproc-per-node, else 1"
    parser.add_argument("--nproc", type=int, default=argparse.SUPPRESS, metavar="N", help=help_text)
    parser.add_argument("--grace", type=int, default=default.grace_s, metavar="SECONDS", help="to save after Ctrl-C")
    parser.add_argument("--restarts", type=int, default=default.restarts, metavar="N", help="in place within an hour")
    help_text = "restarts in place for the workers of one member, after which it is replaced"
    parser.add_argument(
        "--restarts-per-member", type=int, default=default.restarts_per_member, metavar="N", help=help_text
    )
    help_text = "memory for the state of one worker, such as 512Mi (docs/how-to/snapshots.md); none if unset"
    parser.add_argument("--snapshots", default=argparse.SUPPRESS, metavar="SIZE", help=help_text)
    help_text = "of so many calls of snapshot.save(), one is stored"
    parser.add_argument("--snapshot-every", type=int, default=default.snapshot_every, metavar="N", help=help_text)
    parser.add_argument("--preload", metavar="A,B", help="modules that workers share (docs/how-to/workers.md)")
    parser.add_argument("--no-zygote", action="store_true", help="start every worker as a new process")
    parser.add_argument("--name", default=default.name, help="name of this run, for `kill --run`; random if unset")
    parser.add_argument("--plain", action="store_true", help="print lines instead of the live view")
    parser.add_argument("--verbose", action="store_true", help="also print the lines of launchers and sidecars")
    return parser


def _parse_kill(arguments: Sequence[str]) -> Kill:
    parser = _Parser(
        prog="understudy local kill",
        description="SIGKILL to the worker of a RANK (a number), or to all processes of a MEMBER (node-1, …).",
    )
    parser.add_argument("target", metavar="RANK|MEMBER")
    parser.add_argument("--run", default="", metavar="NAME", help="name of the run; the newest run if unset")
    asked = parser.parse_args(arguments)
    return Kill(asked.target, asked.run)


def _parse_show(arguments: Sequence[str]) -> Show:
    parser = _Parser(prog="understudy local show", description="Print the members and their ranks.")
    parser.add_argument("--run", default="", metavar="NAME", help="name of the run; the newest run if unset")
    return Show(parser.parse_args(arguments).run)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        raise UsageError(f"{message}; see `{self.prog} --help`")
