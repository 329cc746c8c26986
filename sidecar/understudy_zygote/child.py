"""What a fork of the zygote does before it runs anything: it becomes what a fresh process would be.

Rules: a session and process group of its own, so that all it starts can be ended with it; it dies with the zygote.
Signals are as Python sets them at its start. Random numbers are as unlike as those of two processes. Where CUDA was
touched before the fork it would fail in the fork: then this process becomes a fresh one, by exec. So it does where the
script sets variables that an import has read already (early_variables.py).
"""

import contextlib
import ctypes
import fcntl
import importlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_STEP_FD = "UNDERSTUDY_STEP_FD"
_START_TIMEOUT = "UNDERSTUDY_START_TIMEOUT_SECONDS"
#: Where nothing that a script opens lands by chance.
_STEP_FD_FROM = 200
_libc = ctypes.CDLL(None, use_errno=True)


def name_process(name: str) -> None:
    """As `ps` and `top` show it; at most 15 bytes."""
    _libc.prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def begin(parent: int) -> None:
    os.setsid()
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it has died before that
        os._exit(1)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def become_worker(env: Mapping[str, str], files: Mapping[str, int], command: Sequence[str]) -> None:
    """files: see serve.py. command: what a fresh process would have been started with."""
    _become_outputs(files)
    os.environ.update(env)
    os.environ[_STEP_FD] = ",".join(str(_inherited(files[name])) for name in ("bell", "page"))
    if cuda_is_spoiled():
        start_afresh(command)
    _reseed()


def show_stacks() -> None:
    """If a start without a step is to be found: a script imports understudy_torch late, or never."""
    if os.environ.get(_START_TIMEOUT):
        with contextlib.suppress(Exception):  # whatever there is under that name
            importlib.import_module("understudy_torch")


def _become_outputs(files: Mapping[str, int]) -> None:
    """Where it has none of its own, it writes to where the zygote does."""
    for name, number in (("stdout", 1), ("stderr", 2)):
        if name in files:
            os.dup2(files[name], number)
            os.close(files[name])


def _inherited(fd: int) -> int:
    """The same file under a high number, which what the worker starts inherits."""
    try:
        high = fcntl.fcntl(fd, fcntl.F_DUPFD, _STEP_FD_FROM)
    except OSError:  # RLIMIT_NOFILE is lower than that
        os.set_inheritable(fd, True)
        return fd
    os.close(fd)
    return high


def _reseed() -> None:
    """Python's own `random` does it by itself."""
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed()
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.seed()  # not torch.seed(), which speaks to CUDA too


def cuda_is_spoiled() -> bool:
    """In a fork: CUDA was touched before it."""
    cuda = sys.modules.get("torch.cuda")
    return cuda is not None and bool(cuda._is_in_bad_fork())


def start_afresh(command: Sequence[str]) -> None:
    """Never returns."""
    for name in ("SIGPIPE", "SIGXFSZ"):  # Python ignores them, and what it executes would too
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    os.execvp(command[0], list(command))  # noqa: S606 - the user's command
