"""The environment of a worker: the launcher's own, with the round's values as torchrun would set them. Pure.

Rules: values of the round override the manifest (rank 0 may run on another pod by now, so a MASTER_ADDR in the manifest
is wrong). Internal variables of the pod are removed. The folder with `understudy_torch` comes last on PYTHONPATH, so
that it shadows no module of the user. OMP_NUM_THREADS is the user's value, or 1 where torchrun sets 1.
"""

import json
from collections.abc import Collection, Mapping
from typing import Optional

from understudy_protocol import pod
from understudy_protocol.launcher import StartWorkers, TakeOver

_INTERNAL = (
    pod.ENV_POD_IP,
    pod.ENV_NODE,
    pod.ENV_INDEX,
    pod.ENV_PLACE,
    pod.ENV_POOL,
    pod.ENV_STATE_FOLDER,
    pod.ENV_TEMPLATE_VARIABLES,
    pod.ENV_SHARED_FOLDER,
    pod.ENV_POD_FOLDER,
    pod.ENV_SHIPPED_FOLDER,
    pod.ENV_LISTEN,
    pod.ENV_PORT,
    pod.ENV_MODE,
    pod.ENV_TORCHRUN_SOCKET,
    pod.ENV_NNODES,
    pod.ENV_RUN_ID,
    pod.ENV_NPROC,
    pod.ENV_GRACE,
    pod.ENV_ZYGOTE,
    pod.ENV_PRELOAD,
    pod.ENV_ON_SIGTERM,
    pod.ENV_LOG_PREFIX,
    pod.ENV_NOLOGIN,
    pod.ENV_WARMUP,
    pod.ENV_STEP_TIMEOUT,
    pod.ENV_WORKER_GRACE_PERIOD,
    pod.ENV_DEVICES,
    pod.ENV_STEP_FOLDER,
    pod.ENV_WORKER_PARENT,
    pod.ENV_SNAPSHOT_FD,
    pod.ENV_SNAPSHOT_BYTES,
    pod.ENV_SNAPSHOT_EVERY,
    pod.ENV_SNAPSHOT_COPIES,
    pod.ENV_SNAPSHOT_STORAGE_PATH,
    pod.ENV_SNAPSHOT_STORAGE_EVERY,
    pod.ENV_SNAPSHOT_STORAGE_KEEP,
)
#: Prefixes of the variables that the interpreter, or a module that the zygote imports, reads only at its start.
_READ_AT_START = (
    "PYTHON",
    "LD_",
    "OMP_",
    "GOMP_",
    "KMP_",
    "MKL_",
    "OPENBLAS_",
    "MALLOC_",
    "GLIBC_",
    "TORCH",
    "PYTORCH_",
)
#: Exceptions: these are read later.
_READ_LATER = ("TORCH_NCCL_", "TORCH_GLOO_", "TORCHELASTIC_")
#: The changed variables of a fork have to fit into one packet, with the round's own variables.
_MAX_NAME_CHARACTERS = 1 << 16
#: Variables that make torch dump NCCL's flight recorder, and the default time for the dump.
_DUMP_ON_TIMEOUT = "TORCH_NCCL_DUMP_ON_TIMEOUT"
_RECORDED = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
FLIGHT_RECORDER_GRACE_S = 5.0
#: As torch 2.13 does by default. A torch that records nothing by default (2.6) also dumps nothing by default.
_RECORDED_ENTRIES = "2000"
_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
_THREADS = "OMP_NUM_THREADS"
_ARROW_MALLOC = "JE_ARROW_MALLOC_CONF"
DEFAULT_RUN_ID = "understudy"


def common_environment(launcher: Mapping[str, str], nproc: int) -> dict[str, str]:
    """The variables that all workers of all rounds get, and the zygote that forks them."""
    env = {name: value for name, value in launcher.items() if name not in _INTERNAL and name != _ERROR_FILE}
    env["PYTHONPATH"] = _python_path(launcher)
    env.update(flight_recorder(launcher))
    if single_threaded(launcher, nproc):
        env[_THREADS] = "1"
    return env


def flight_recorder(env: Mapping[str, str]) -> dict[str, str]:
    """The variable that makes workers record their collectives, unless they have one (understudy_torch/collectives.py).

    The launcher's own environment does not contain it: workerGracePeriod has another default if the user asks for
    dumps.
    """
    is_set = env.get(pod.ENV_SLOW_RANK_PERCENT) == "0" or any(name in env for name in _RECORDED)
    return {} if is_set else {_RECORDED[0]: _RECORDED_ENTRIES}


def command_environment(launcher: Mapping[str, str], defaults: Mapping[str, str], socket: str) -> dict[str, str]:
    """The variables of a container's command that calls torchrun. defaults: for torchrun."""
    return {
        **launcher,
        **defaults,
        "PYTHONPATH": _python_path(launcher),
        pod.ENV_TORCHRUN_SOCKET: socket,
    }


def zygote_environment(launcher: Mapping[str, str], nproc: int) -> dict[str, str]:
    """By default Arrow's allocator starts a thread when it is imported, and a fork has only one thread."""
    return {_ARROW_MALLOC: "background_thread:false", **common_environment(launcher, nproc)}


def worker_environment(
    launcher: Mapping[str, str],
    start: StartWorkers,
    local_rank: int,
    nproc: int,
    step_files: tuple[int, int],
    error_file: Optional[str],
    snapshot_file: Optional[int] = None,
) -> dict[str, str]:
    """The variables of the worker `local_rank` of the round."""
    env = common_environment(launcher, nproc)
    env.update(_ranks(launcher, start, local_rank, nproc))
    env.update(_torchelastic(launcher, start))
    env[pod.ENV_ROUND] = str(start.token)
    env[pod.ENV_STEP_FD] = ",".join(map(str, step_files))
    if snapshot_file is not None:
        env[pod.ENV_SNAPSHOT_FD] = str(snapshot_file)
    elif pod.ENV_SNAPSHOT_STORAGE_PATH in launcher:
        env[pod.ENV_SNAPSHOT_STORAGE_PATH] = launcher[pod.ENV_SNAPSHOT_STORAGE_PATH]
    env["JOB_COMPLETION_INDEX"] = str(start.group_rank)
    if error_file is not None:
        env[_ERROR_FILE] = error_file
    return env


def fresh_environment(env: Mapping[str, str], folder: str, parent: int) -> dict[str, str]:
    """The variables of a worker that is a fresh process: its exception is reported too (understudy_zygote/fresh).

    folder: the shared folder. parent: the process that starts the worker.
    """
    hook = f"{folder}/{pod.PYTHON_FOLDER}/{pod.FRESH_FOLDER}"
    theirs = env.get("PYTHONPATH")
    entries = [entry for entry in theirs.split(":") if entry != hook] if theirs else []
    return {**env, "PYTHONPATH": ":".join([*entries, hook]), pod.ENV_WORKER_PARENT: str(parent)}


def environment_after_take_over(launcher: Mapping[str, str], order: TakeOver) -> dict[str, str]:
    """The launcher's environment as the job's manifest would have set it."""
    of_the_pool = json.loads(launcher.get(pod.ENV_TEMPLATE_VARIABLES) or "[]")
    return {**{name: value for name, value in launcher.items() if name not in of_the_pool}, **order.env}


def fresh_start_reason(before: Mapping[str, str], after: Mapping[str, str], reads: Collection[str] = ()) -> str:
    """Why a zygote that was started with `before` cannot fork for `after`; "" if it can.

    reads: further variables that its imports have read.
    """
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    at_start = [name for name in changed if name.startswith(_READ_AT_START) and not name.startswith(_READ_LATER)]
    early = at_start or [name for name in changed if name in reads and not name.startswith(pod.VARIABLES_PREFIX)]
    if early:
        return f"the job sets {early[0]} to another value, and Python or a module reads it only at start"
    size = sum(len(name) + len(after.get(name, "")) for name in changed)
    return (
        f"the job's variables differ by {size} characters, too many for a fork" if size > _MAX_NAME_CHARACTERS else ""
    )


def worker_grace_period_s(asked_s: Optional[float], launcher: Mapping[str, str]) -> float:
    """How long workers may continue when a round replaces them. asked_s: the job's setting; None: unset."""
    if asked_s is not None:
        return asked_s
    return FLIGHT_RECORDER_GRACE_S if _dumps_flight_recorder(launcher) else 0.0


def _dumps_flight_recorder(env: Mapping[str, str]) -> bool:
    asked = env.get(_DUMP_ON_TIMEOUT, "").strip().lower()
    if asked:
        return asked in ("1", "t", "true", "y", "yes")  # as torch reads it
    sizes = (env.get(name, "").strip() for name in _RECORDED)
    return any(size.isdecimal() and int(size[:9]) > 0 for size in sizes)


def without(env: Mapping[str, str], common: Mapping[str, str]) -> dict[str, str]:
    """The variables that differ from the common ones."""
    return {name: value for name, value in env.items() if common.get(name) != value}


def single_threaded(launcher: Mapping[str, str], nproc: int) -> bool:
    """Whether OMP_NUM_THREADS is unset and becomes 1, as with torchrun, so that workers do not overload the CPU."""
    return nproc > 1 and _THREADS not in launcher


def _ranks(launcher: Mapping[str, str], start: StartWorkers, local_rank: int, nproc: int) -> dict[str, str]:
    rank = str(start.rank_offset + local_rank)
    return {
        "RANK": rank,
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(start.world_size),
        "LOCAL_WORLD_SIZE": str(nproc),
        "GROUP_RANK": str(start.group_rank),
        "GROUP_WORLD_SIZE": str(start.group_world_size),
        "NODE_RANK": str(start.group_rank),
        "ROLE_NAME": launcher.get("ROLE_NAME") or "default",
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": str(start.world_size),
        "MASTER_ADDR": start.master_addr,
        "MASTER_PORT": str(start.master_port),
    }


def _torchelastic(launcher: Mapping[str, str], start: StartWorkers) -> dict[str, str]:
    return {
        "TORCHELASTIC_RUN_ID": launcher.get("TORCHELASTIC_RUN_ID") or DEFAULT_RUN_ID,
        "TORCHELASTIC_RESTART_COUNT": str(start.token.round),
        # The coordinator's budget is a number of restarts in a time window, so no fixed number is true here.
        "TORCHELASTIC_MAX_RESTARTS": launcher.get("TORCHELASTIC_MAX_RESTARTS") or "0",
        # Whether a store listens already (torch's name for it). If not, rank 0 serves it.
        "TORCHELASTIC_USE_AGENT_STORE": str(start.agent_store),
    }


def _python_path(launcher: Mapping[str, str]) -> str:
    ours = f"{launcher.get(pod.ENV_SHARED_FOLDER) or pod.SHARED_FOLDER}/{pod.PYTHON_FOLDER}"
    theirs = launcher.get("PYTHONPATH")
    if theirs and ours in theirs.split(":"):
        return theirs
    return f"{theirs}:{ours}" if theirs else ours
