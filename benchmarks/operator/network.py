"""A network of the benchmark's own: all ports are free, nobody else's cluster is met, and it goes with its processes.

In it every address of a pod is this machine. So a controller that calls a pod reaches the benchmark, which plays the
pods' sidecars, at an address that EndpointSlices accept (they refuse a loopback's). Needs root, and the program `ip`.
"""

from __future__ import annotations

import ctypes
import os
import shutil

from tests.cluster.commands import run
from tests.cluster.failures import MissingTool

API_SERVER_IP = "10.97.0.1"
PODS = "10.128.0.0/16"
_CLONE_NEWNET = 0x40000000


def enter() -> None:
    """From now on this process, and what it starts, is in there. Not after a thread was started: that would stay."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        raise MissingTool(
            "the benchmark's cluster has a network namespace of its own: that needs root, and the program `ip`"
        )
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET) != 0:
        raise MissingTool(f"a network namespace could not be made: {os.strerror(ctypes.get_errno())}; run it as root")
    run(["ip", "link", "set", "lo", "up"])
    run(["ip", "address", "add", f"{API_SERVER_IP}/32", "dev", "lo"])
    run(["ip", "route", "add", "local", PODS, "dev", "lo"])
