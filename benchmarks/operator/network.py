"""A separate network: all ports are free, other clusters are unreachable, and it ends with its processes.

In it every pod's address is this machine. So a controller that calls a pod reaches the benchmark, which simulates the
pods' sidecars, at an address that EndpointSlices accept (they reject loopback addresses). Needs root, and the program
`ip`.
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
    """Move this process and its future children into it. Call it before threads start: they would stay outside."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        raise MissingTool(
            "the benchmark's cluster has a network namespace of its own: that needs root, and the program `ip`"
        )
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET) != 0:
        raise MissingTool(f"cannot create a network namespace: {os.strerror(ctypes.get_errno())}; run it as root")
    run(["ip", "link", "set", "lo", "up"])
    run(["ip", "address", "add", f"{API_SERVER_IP}/32", "dev", "lo"])
    run(["ip", "route", "add", "local", PODS, "dev", "lo"])
