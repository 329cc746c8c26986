"""Finds the process of a rank among the children of a launcher."""

import contextlib
import os

import psutil

#: The kernel's names of a launcher's children that are not workers (docs/how-to/workers.md, Names).
_HELPERS = ("zygote", "store", "logs")


def worker_pids(launcher: int) -> list[int]:
    """By local rank: workers are started in that order, as children of the launcher or of its zygote.

    Each leads its own session, unlike the orphans of a worker.
    """
    with contextlib.suppress(psutil.NoSuchProcess):
        parent = psutil.Process(launcher)
        children = parent.children()
        for zygote in [child for child in children if _name(child) == "zygote"]:
            children += zygote.children()
        started = [child for child in children if _name(child) not in _HELPERS and _leads_session(child.pid)]
        return [child.pid for child in sorted(started, key=lambda child: (child.create_time(), child.pid))]
    return []


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
