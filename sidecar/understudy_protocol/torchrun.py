"""How a torchrun passes its job to the pod's launcher: JSON lines over a unix socket in the shared folder.

torchrun sends one RunWorkers or RunStock, with its stdout and stderr attached (SCM_RIGHTS). The launcher answers with
Proceed or EndTorchrun. After Proceed, a torchrun that has sent RunWorkers only waits for EndTorchrun. One that has sent
RunStock runs its workers itself, and the connection ends.
"""

from dataclasses import dataclass
from typing import Optional

#: A longer line is rejected: the kernel limits the environment of a process to 2 MiB by default.
LINE_BYTES = 4 << 20


@dataclass(frozen=True)
class MemoryPolicy:
    """As set_mempolicy(2) takes it."""

    mode: int
    nodes: tuple[int, ...]


@dataclass(frozen=True)
class ProcessSettings:
    """Settings that a process inherits from its parent, other than its environment."""

    umask: int
    nice: int
    cpus: tuple[int, ...]  # on which it may run
    limits: dict[str, tuple[int, ...]]  # RLIMIT_… -> soft and hard
    memory_policy: Optional[MemoryPolicy] = None  # of numactl; None: not known


@dataclass(frozen=True)
class WorkerFiles:
    """Paths in the folder of attempt 0 or /dev/null; "": the stream goes to torchrun's own.

    tees_…: the stream goes to the file, and with line_prefix to torchrun's own stream.
    """

    stdout: str
    stderr: str
    tees_stdout: bool
    tees_stderr: bool
    error_file: str


@dataclass(frozen=True)
class RunWorkers:
    """The launcher is to run torchrun's workers.

    ${local_rank} stands for the worker's local rank in line_prefix, and in all words of the command except the first.
    ${rank} stands for its rank in line_prefix. env: the environment of each worker, without the values of a round.
    """

    command: tuple[str, ...]
    nproc: int
    env: dict[str, str]
    folder: str
    process: ProcessSettings
    files: tuple[WorkerFiles, ...]  # by local rank
    attempt_folder: str  # the folder of attempt 0, which ends in 0; "": no files
    line_prefix: str


@dataclass(frozen=True)
class RunStock:
    """torchrun runs its workers itself, with Understudy's rendezvous. reason: the option that the launcher cannot
    honor.
    """

    reason: str


@dataclass(frozen=True)
class Proceed:
    """The launcher has accepted the call."""


@dataclass(frozen=True)
class EndTorchrun:
    """torchrun is to exit. message: for its stderr; "" if none."""

    code: int
    message: str = ""
