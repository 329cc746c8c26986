"""Out-of-memory kills, from the files of a control group."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.unit.launcher.fake_sidecar import wait_for
from understudy_launcher.events import GroupEmptied, WorkerEnded
from understudy_launcher.out_of_memory import OomKills
from understudy_launcher.processes import Workers

GI = 1 << 30


class Group:
    """A container's own group, in the files of a cgroup version."""

    def __init__(self, root: Path, version: int, path: str, seen_as: str) -> None:
        """path: from /proc/self/cgroup. seen_as: its path inside the container."""
        folder = (root if version == 2 else root / "memory") / seen_as.lstrip("/")
        folder.mkdir(parents=True, exist_ok=True)
        self._counter = folder / ("memory.events" if version == 2 else "memory.oom_control")
        self._limit = folder / ("memory.max" if version == 2 else "memory.limit_in_bytes")
        own = root / "own"
        own.write_text(f"0::{path}\n" if version == 2 else f"5:cpu:/x\n4:memory:{path}\n0::/\n")
        self.killed(0)
        self.limited("max" if version == 2 else str((1 << 63) - 4096))
        self.kills = OomKills(str(root), str(own))

    def killed(self, processes: int) -> None:
        self._counter.write_text(f"low 0\noom 3\noom_kill {processes}\noom_group_kill 0\n")

    def limited(self, text: str) -> None:
        self._limit.write_text(f"{text}\n")


@pytest.fixture(
    params=[
        (2, "/", "/"),
        (2, "/kubepods/pod1/c1", "/"),
        (2, "/a/b", "/a/b"),
        (1, "/kubepods/c1", "/"),
        (1, "/a", "/a"),
    ],
    ids=["v2", "v2-host-names", "v2-whole-tree", "v1", "v1-whole-tree"],
)
def group(request: pytest.FixtureRequest, tmp_path: Path) -> Group:
    return Group(tmp_path, *request.param)


def test_a_kill_for_another_reason_is_not_reported(group: Group) -> None:
    assert group.kills.describe_new_kills() == ""


def test_a_kill_is_reported_once_and_with_the_limit_if_there_is_one(group: Group) -> None:
    group.killed(1)
    assert group.kills.describe_new_kills() == "out of memory: the kernel has killed a process of this container"
    assert group.kills.describe_new_kills() == ""
    group.killed(3)
    group.limited(str(64 * GI))
    assert (
        group.kills.describe_new_kills()
        == "out of memory: the kernel has killed 2 processes of this container (limit 64Gi)"
    )


def test_a_kill_in_an_older_round_is_not_reported_for_a_newer_one(group: Group) -> None:
    group.killed(2)
    group.kills.forget()
    assert group.kills.describe_new_kills() == ""


@pytest.mark.parametrize(("limit", "text"), [(GI, "1Gi"), (1536 << 20, "1536Mi"), (100 << 10, "100Ki"), (1000, "1000")])
def test_limits(tmp_path: Path, limit: int, text: str) -> None:
    group = Group(tmp_path, 2, "/", "/")
    group.limited(str(limit))
    group.killed(1)
    assert group.kills.describe_new_kills().endswith(f"(limit {text})")


@pytest.mark.parametrize("own", ["", "0::/\n", "4:memory:/x\n"])
def test_a_container_that_cannot_see_its_group_reports_no_kill(tmp_path: Path, own: str) -> None:
    (tmp_path / "own").write_text(own)
    kills = OomKills(str(tmp_path), str(tmp_path / "own"))
    kills.forget()
    assert kills.describe_new_kills() == ""


def test_a_workers_failure_reports_the_kill(tmp_path: Path) -> None:
    """Also if a child of the worker was killed, and the worker fails with its own message."""
    group = Group(tmp_path, 2, "/", "/")
    command = [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]
    workers = Workers(command, str(tmp_path), lambda _: None, lambda _: None)
    workers.oom_kills = group.kills
    events: list[object] = []

    def run() -> WorkerEnded:
        events.clear()
        workers.spawn(0, lambda files: dict(os.environ))
        group.killed(1)

        def gone() -> bool:
            events.extend(workers.reap())
            return any(isinstance(event, GroupEmptied) for event in events)

        wait_for(gone, "its end")
        (ended,) = [event for event in events if isinstance(event, WorkerEnded)]
        return ended

    assert run().message == "killed by SIGKILL; out of memory: the kernel has killed a process of this container"
    assert run().message == "killed by SIGKILL", "the counter has not grown since"
