"""Settings that processes inherit are taken over. Each test runs in a process of its own, which it changes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import understudy_launcher

SOURCES = str(Path(understudy_launcher.__file__).parents[1])
HEAD = """
import os, resource
from dataclasses import replace
from understudy_launcher import process_settings
from understudy_protocol.torchrun import MemoryPolicy
own = process_settings.read()
"""


def printed(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", HEAD + script], env={"PYTHONPATH": SOURCES}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_umask_nice_cpus_and_limits_are_those_of_the_caller() -> None:
    script = """
soft, hard = own.limits["RLIMIT_NOFILE"]
limits = {**own.limits, "RLIMIT_NOFILE": (100, hard), "RLIMIT_CORE": (0, 0)}
asked = replace(own, umask=0o027, nice=min(own.nice + 2, 19), cpus=own.cpus[:1], limits=limits)
print(process_settings.adopt(asked), process_settings.read() == asked)
"""
    assert printed(script) == "[] True\n"


def test_the_memory_policy_is_that_of_the_caller() -> None:
    script = """
if own.memory_policy is None:
    print("none")
else:
    asked = replace(own, memory_policy=MemoryPolicy(1, (0,)))  # MPOL_PREFERRED, as `numactl --preferred=0`
    print(process_settings.adopt(asked), process_settings.read().memory_policy == asked.memory_policy)
"""
    result = printed(script)
    if result == "none\n":
        pytest.skip("the kernel has no memory policies, or refuses the system call")
    assert result == "[] True\n"


def test_a_setting_that_cannot_be_changed_is_reported_and_the_others_are_changed() -> None:
    script = """
asked = replace(own, cpus=(100_000,), umask=0o077, limits={"RLIMIT_NOFILE": (8, 4), "RLIMIT_UNKNOWN": (1, 1)})
print([text.split(":")[0] for text in process_settings.adopt(asked)], oct(os.umask(0)))
"""
    assert printed(script) == "['CPUs (100000,)', 'RLIMIT_NOFILE (8, 4)'] 0o77\n"
