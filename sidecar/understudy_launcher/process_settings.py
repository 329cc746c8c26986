"""Settings that processes inherit: the launcher takes over those of the torchrun whose workers it runs.

So `ulimit`, `umask`, `nice`, `taskset` and `numactl` before a torchrun have the same effect on its workers as without
Understudy. A setting that cannot be read is not sent; one that cannot be changed is reported.
"""

import os
import platform
import resource
from collections.abc import Sequence
from functools import partial
from typing import Any, Callable, Optional

from understudy_protocol.torchrun import MemoryPolicy, ProcessSettings

#: Numbers of the system calls get_mempolicy and set_mempolicy.
_POLICY_CALLS = {"x86_64": (239, 238), "aarch64": (236, 237)}
_ALIAS = "RLIMIT_OFILE"  # of RLIMIT_NOFILE
_MOST_NODES = 1024
_BITS = 64


def read() -> ProcessSettings:
    """The settings of this process."""
    umask = os.umask(0o077)
    os.umask(umask)
    limits: dict[str, tuple[int, ...]] = {
        name: resource.getrlimit(getattr(resource, name))
        for name in dir(resource)
        if name.startswith("RLIMIT_") and name != _ALIAS
    }
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    return ProcessSettings(umask, os.getpriority(os.PRIO_PROCESS, 0), cpus, limits, _memory_policy())


def adopt(asked: ProcessSettings) -> list[str]:
    """Change this process's settings to these. Return the errors."""
    own, errors = read(), []

    def change(setting: str, set_it: Callable[[], Any]) -> None:
        try:
            set_it()
        except (OSError, ValueError, OverflowError) as error:
            errors.append(f"{setting}: {error}")

    os.umask(asked.umask & 0o777)
    if asked.nice != own.nice:
        change(f"nice {asked.nice}", lambda: os.setpriority(os.PRIO_PROCESS, 0, asked.nice))
    if asked.cpus != own.cpus:
        change(f"CPUs {asked.cpus}", lambda: os.sched_setaffinity(0, asked.cpus))
    for name in own.limits.keys() & asked.limits.keys():
        if own.limits[name] != asked.limits[name]:
            change(f"{name} {asked.limits[name]}", partial(_set_limit, name, asked.limits[name]))
    if asked.memory_policy is not None and asked.memory_policy != own.memory_policy:
        policy = asked.memory_policy
        change(f"memory policy of numactl {policy}", lambda: _set_memory_policy(policy))
    return errors


def _set_limit(name: str, soft_and_hard: Sequence[int]) -> None:
    """Raises OSError, or ValueError."""
    soft, hard = soft_and_hard
    resource.setrlimit(getattr(resource, name), (soft, hard))


def _memory_policy() -> Optional[MemoryPolicy]:
    ctypes = _ctypes()
    if ctypes is None:
        return None
    mode, mask = ctypes.c_int(), (ctypes.c_ulong * (_MOST_NODES // _BITS))()
    if not _call(0, ctypes.byref(mode), mask, ctypes.c_ulong(_MOST_NODES), None, ctypes.c_ulong(0)):
        return None
    nodes = (node for node in range(_MOST_NODES) if mask[node // _BITS] >> node % _BITS & 1)
    return MemoryPolicy(mode.value, tuple(nodes))


def _set_memory_policy(policy: MemoryPolicy) -> None:
    """Raises OSError."""
    ctypes = _ctypes()
    if ctypes is None:
        raise OSError("no ctypes in this Python")
    mask = (ctypes.c_ulong * (_MOST_NODES // _BITS))()
    for node in policy.nodes:
        if not 0 <= node < _MOST_NODES:
            raise OSError(f"there is no NUMA node {node}")
        mask[node // _BITS] |= 1 << node % _BITS
    if not _call(1, ctypes.c_int(policy.mode), mask, ctypes.c_ulong(_MOST_NODES + 1)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _call(which: int, *arguments: Any) -> bool:
    """Whether the system call has succeeded: get_mempolicy (0) or set_mempolicy (1)."""
    number, ctypes = _POLICY_CALLS.get(platform.machine()), _ctypes()
    if number is None or ctypes is None:
        return False
    return bool(ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(number[which]), *arguments) == 0)


def _ctypes() -> Any:
    try:
        import ctypes  # some minimal builds of Python lack it
    except ImportError:
        return None
    return ctypes
