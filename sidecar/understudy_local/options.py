"""The options of a local run, checked. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from understudy_operator.plan.facts.malformed import number_in
from understudy_operator.plan.facts.quantities import bytes_in
from understudy_operator.plan.facts.trainer import torchruns_nproc, workers_per_pod
from understudy_operator.plan.injection.settings import LEAST_SLOW_RANK_PERCENT, MOST_SLOW_RANK_PERCENT
from understudy_operator.plan.jobset.validation import MOST_FILES, describe_storage_path
from understudy_protocol.command_words import program_of_ranks

MAX_NODES = 64
#: As on a cluster. The launcher accepts a little more.
MOST_SNAPSHOT_EVERY, MOST_SNAPSHOT_PATH_EVERY = 100_000, 100_000_000
#: More than any in-place budget of a cluster, because the user watches the run.
RESTARTS = 1000


class UsageError(ValueError):
    """The command line is wrong: the text has the wrong part and the expected one."""


class NoSuchRun(UsageError):
    """No run has the name, or there is none at all."""


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
    snapshot_copies: int | None = None  # other members that keep a copy of each snapshot; None: one, if there is one
    step_timeout_s: int = 0  # a worker without a step for so long hangs; 0: no hang detection
    start_timeout_s: int = 0  # likewise a round without its first step
    slow_rank_percent: int = 150  # a rank is slow if it makes each step so long, in percent; 0: no rank is
    snapshot_path: str = ""  # a folder for snapshots on storage; absolute; "": none
    snapshot_path_every: int = 1000  # of so many steps, one is written there


def checked(options: Options) -> Options:
    """Raises UsageError if a value is out of its range."""
    least_of = {"nodes": 1, "spares": 0, "nproc": 1, "grace": 1, "restarts": 0, "restarts-per-member": 0}
    values = {"grace": options.grace_s, "restarts-per-member": options.restarts_per_member}
    least_of["snapshot-every"], values["snapshot-every"] = 1, options.snapshot_every
    least_of["snapshot-path-every"], values["snapshot-path-every"] = 1, options.snapshot_path_every
    if options.snapshot_path and not options.snapshot_bytes:
        raise UsageError(f"--snapshot-path {options.snapshot_path}: add --snapshots SIZE, the memory for snapshots")
    if problem := describe_storage_path(options.snapshot_path):
        raise UsageError(f"--snapshot-path: the absolute path {problem}: choose another folder")
    most_of = {"snapshot-every": MOST_SNAPSHOT_EVERY, "snapshot-path-every": MOST_SNAPSHOT_PATH_EVERY}
    if options.snapshot_copies is not None:
        least_of["snapshot-copies"], values["snapshot-copies"] = 0, options.snapshot_copies
        if options.snapshot_copies >= options.nodes:
            raise UsageError(f"--snapshot-copies {options.snapshot_copies}: expected fewer than --nodes")
    copies = min(1, options.nodes - 1) if options.snapshot_copies is None else options.snapshot_copies
    if options.snapshot_bytes and copies > 0 and options.nproc > (most := MOST_FILES // (1 + copies)):
        raise UsageError(
            f"--nproc {options.nproc}: expected at most {most}, because other members keep copies of their snapshots: "
            "lower it, or add --snapshot-copies 0"
        )
    least_of |= {"step-timeout": 0, "start-timeout": 0}
    values |= {"step-timeout": options.step_timeout_s, "start-timeout": options.start_timeout_s}
    for name, least in least_of.items():
        number = values[name] if name in values else getattr(options, name)
        if number < least:
            raise UsageError(f"--{name} {number}: expected {least} or more")
        if number > most_of.get(name, number):
            raise UsageError(f"--{name} {number}: expected at most {most_of[name]}")
    percent = options.slow_rank_percent
    if percent and not LEAST_SLOW_RANK_PERCENT <= percent <= MOST_SLOW_RANK_PERCENT:
        expected = f"{LEAST_SLOW_RANK_PERCENT} to {MOST_SLOW_RANK_PERCENT}, or 0 if no rank counts as slow"
        raise UsageError(f"--slow-rank-percent {percent}: expected {expected}")
    if options.nodes + options.spares > MAX_NODES:
        raise UsageError(f"--nodes and --spares: expected at most {MAX_NODES} together, for one machine")
    if options.nodes * options.nproc > 1 and (program := program_of_ranks(options.command)):
        raise UsageError(
            f"{program} starts several processes itself, so each worker would start a training of its own: make the "
            "script the command, and set --nproc to the workers of each member"
        )
    return options


def snapshot_bytes_of(size: str) -> int:
    """size: --snapshots, such as 512Mi; "" if it is unset. Raises UsageError."""
    bytes_ = bytes_in(size) if size else 0
    if bytes_ is None or (size and not bytes_):
        raise UsageError(f"--snapshots {size}: expected the memory for one worker's state, such as 512Mi")
    return bytes_


def nproc_of(command: Sequence[str]) -> int:
    """Workers of a member if --nproc is unset: those of torchrun's --nproc-per-node, else 1. Raises UsageError."""
    of_torchrun = torchruns_nproc({"command": command})
    if of_torchrun and number_in(of_torchrun) is None:
        raise UsageError(f"torchrun's --nproc-per-node is {of_torchrun}: expected a number, or add --nproc NUMBER")
    return workers_per_pod({"command": command})
