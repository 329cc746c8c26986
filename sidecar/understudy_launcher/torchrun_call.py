"""The job that a torchrun passes to the launcher: the values for its workers, and why the launcher rejects it. Pure.

Rules: the words of a worker's command, and the files of its output, are those that torchrun would use. Variables of the
pod keep the launcher's values, whatever the command has done to them. Variables that the launcher set for torchrun
alone are removed, so that workers have the environment that they have under a stock torchrun.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import Template

from understudy_protocol import pod
from understudy_protocol.command_words import NPROC_VARIABLE
from understudy_protocol.torchrun import RunWorkers, WorkerFiles

_FIRST_ATTEMPT = "0"


@dataclass(frozen=True)
class Stream:
    """Where a worker's stdout or stderr goes. path: "": to torchrun's own. tees: to both, with the prefix."""

    path: str = ""
    tees: bool = False
    prefix: str = ""


@dataclass(frozen=True)
class WorkerOutput:
    stdout: Stream = Stream()
    stderr: Stream = Stream()
    error_file: str = ""  # "": none


NO_FILES = WorkerOutput()


def torchrun_defaults(env: Mapping[str, str], sidecar: str) -> dict[str, str]:
    """Variables with the job's values for torchrun, as launch-torchrun sets them, if the pod does not. sidecar: the
    path of its socket.

    With these, a torchrun that does not find the rendezvous backend fails, and does not train alone.
    """
    run_id, nproc = env.get(pod.ENV_RUN_ID) or "understudy", env.get(pod.ENV_NPROC) or "1"
    wanted = {
        "PET_RDZV_BACKEND": "understudy",
        "PET_RDZV_ENDPOINT": sidecar,
        "PET_RDZV_ID": run_id,
        "PET_NNODES": env.get(pod.ENV_NNODES) or "1",
        NPROC_VARIABLE: nproc,
        "PET_SHUTDOWN_TIMEOUT": env.get(pod.ENV_GRACE) or "30",
    }
    return {name: value for name, value in wanted.items() if not env.get(name)}


def rejection(call: RunWorkers, nproc: int) -> str:
    """Why the launcher cannot run this job; "" if it can. nproc: the number of workers in the job's spec."""
    if call.nproc != nproc:
        return (
            f"torchrun's --nproc-per-node is {call.nproc}, but launcher.nprocPerNode is {nproc}: set both to the same "
            "number, or remove one of them"
        )
    if not call.command or len(call.files) != nproc:
        return f"torchrun sent no command, or files of {len(call.files)} workers in place of {nproc}: this is a bug"
    if call.attempt_folder and not _in_attempt(call):
        return f"the files of torchrun's workers are not in {call.attempt_folder!r}: this is a bug"
    return ""


def job_environment(call: RunWorkers, own: Mapping[str, str], defaults: Mapping[str, str]) -> dict[str, str]:
    """The launcher's environment for this job. own: before the call. defaults: set for torchrun alone."""
    kept = {name: value for name, value in call.env.items() if defaults.get(name) != value}
    ours = {name: value for name, value in own.items() if name.startswith(pod.VARIABLES_PREFIX)}
    others = {name: value for name, value in kept.items() if not name.startswith(pod.VARIABLES_PREFIX)}
    return {**others, **ours}


def command_of(command: Sequence[str], local_rank: int) -> list[str]:
    """A worker's command, as torchrun's macros expand it."""
    return [command[0], *(Template(word).safe_substitute(local_rank=local_rank) for word in command[1:])]


def output_of(call: RunWorkers, attempt: int, local_rank: int, rank: int) -> WorkerOutput:
    """attempt: the number of the round."""
    files = call.files[local_rank]
    prefix = Template(call.line_prefix).safe_substitute(local_rank=local_rank, rank=rank)

    def stream(path: str, tees: bool) -> Stream:
        return Stream(_of_attempt(call, path, attempt), tees, prefix if tees else "")

    error_file = _of_attempt(call, files.error_file, attempt)
    return WorkerOutput(stream(files.stdout, files.tees_stdout), stream(files.stderr, files.tees_stderr), error_file)


def tees(call: RunWorkers) -> bool:
    """Whether a stream of any worker goes to a file and to torchrun's own."""
    return any(one.tees_stdout or one.tees_stderr for one in call.files)


def _of_attempt(call: RunWorkers, path: str, attempt: int) -> str:
    """The path in the folder of that attempt."""
    if not call.attempt_folder or not path.startswith(f"{call.attempt_folder}/"):
        return path
    folder = call.attempt_folder.removesuffix(_FIRST_ATTEMPT) + str(attempt)
    return folder + path[len(call.attempt_folder) :]


def _in_attempt(call: RunWorkers) -> bool:
    folder = call.attempt_folder
    paths = [path for one in call.files for path in _paths(one) if path not in ("", os.devnull)]
    return folder.endswith(f"_{_FIRST_ATTEMPT}") and all(path.startswith(f"{folder}/") for path in paths)


def _paths(files: WorkerFiles) -> tuple[str, ...]:
    return files.stdout, files.stderr, files.error_file
