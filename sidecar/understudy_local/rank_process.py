"""Finds the process of a rank among the children of a launcher."""

import contextlib
import os

import psutil

#: The kernel's names of a launcher's children that are not workers (docs/how-to/workers.md, Names).
_HELPERS = ("zygote", "store", "logs")


def worker_pids(launcher: int) -> list[int]:
    """By local rank: workers are started in that order, as children of the launcher, of its zygote, of the fork of a
    zygote that has imported what the script imports, or of a torchrun that runs its workers itself.

    Each leads its own session, unlike the orphans of a worker and the processes of the container's command.
    """
    with contextlib.suppress(psutil.NoSuchProcess):
        children = psutil.Process(launcher).children()
        for child in children:  # also those that are added
            if _name(child) == "zygote":
                children += child.children()
        started = _session_leaders(children)
        if not started:
            started = _session_leaders([one for child in children for one in child.children(recursive=True)])
        return [child.pid for child in sorted(started, key=lambda child: (child.create_time(), child.pid))]
    return []


def _session_leaders(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [one for one in processes if _name(one) not in _HELPERS and _leads_session(one.pid)]


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return ""


def _leads_session(pid: int) -> bool:
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:
        return False
