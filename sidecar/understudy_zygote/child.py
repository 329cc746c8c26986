"""The first steps of a fork of the zygote: they make it equal to a fresh process.

Rules: it leads its own session and process group, so that all its children can be killed with it, and it dies with the
zygote. Signals are as Python sets them at its start. Its random numbers differ from those of other forks. If CUDA was
initialized before the fork, it would fail in the fork, so the fork becomes a fresh process by exec. So does a fork
whose script sets variables that an import has already read (early_variables.py).
"""

import contextlib
import ctypes
import fcntl
import importlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence

from understudy_zygote.import_record import record_imports

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_STEP_FD = "UNDERSTUDY_STEP_FD"
_SNAPSHOT_FD = "UNDERSTUDY_SNAPSHOT_FD"
_START_TIMEOUT = "UNDERSTUDY_START_TIMEOUT_SECONDS"
#: High enough that no file that a script opens gets such a number by chance.
_STEP_FD_FROM = 200
_libc = ctypes.CDLL(None, use_errno=True)


def name_process(name: str) -> None:
    """Set the name that `ps` and `top` show; at most 15 bytes."""
    _libc.prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def begin(parent: int) -> None:
    os.setsid()
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the call
        os._exit(1)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def become_worker(env: Mapping[str, str], files: Mapping[str, int], command: Sequence[str]) -> None:
    """files: see serve.py. command: the command of a fresh process."""
    _become_outputs(files)
    os.environ.update(env)
    os.environ[_STEP_FD] = ",".join(str(_inherited(files[name])) for name in ("bell", "page"))
    if "snapshots" in files:
        os.environ[_SNAPSHOT_FD] = str(_inherited(files["snapshots"]))
    if cuda_is_spoiled():
        start_afresh(command)
    if "imports" in files:
        record_imports(files["imports"])
    _reseed()


def show_stacks() -> None:
    """Import understudy_torch if a start timeout is set, because a script imports it late, or never."""
    if os.environ.get(_START_TIMEOUT):
        with contextlib.suppress(Exception):  # the user may have another module of that name
            importlib.import_module("understudy_torch")


def _become_outputs(files: Mapping[str, int]) -> None:
    """Without files of its own, the fork writes to the zygote's outputs."""
    for name, number in (("stdout", 1), ("stderr", 2)):
        if name in files:
            os.dup2(files[name], number)
            os.close(files[name])


def _inherited(fd: int) -> int:
    """The same file under a high number, which the worker's own children inherit."""
    try:
        high = fcntl.fcntl(fd, fcntl.F_DUPFD, _STEP_FD_FROM)
    except OSError:  # RLIMIT_NOFILE is lower than that
        os.set_inheritable(fd, True)
        return fd
    os.close(fd)
    return high


def _reseed() -> None:
    """Python's own `random` reseeds itself."""
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed()
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.seed()  # not torch.seed(), which also initializes CUDA


def cuda_is_spoiled() -> bool:
    """In a fork: whether CUDA was initialized before the fork."""
    cuda = sys.modules.get("torch.cuda")
    return cuda is not None and bool(cuda._is_in_bad_fork())


def start_afresh(command: Sequence[str]) -> None:
    """Never returns."""
    for name in ("SIGPIPE", "SIGXFSZ"):  # Python ignores them, and the executed program would inherit that
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    os.execvp(command[0], list(command))  # noqa: S606 - the user's command
