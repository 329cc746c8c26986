"""A whole sidecar in a process of its own, with real files and connections."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.sidecar.pod_files import write_pod_files
from tests.unit.sidecar.recording_handler import KEY, OPERATOR, SERVER_POD, ServedSidecar, serving, until
from understudy_protocol import launcher, pod, wire
from understudy_protocol import membership as m
from understudy_protocol.enums import NO_ROUND, Term, WorkersState
from understudy_protocol.launcher import ExitLauncher, LauncherHello
from understudy_protocol.noise import public_key

TO_LAUNCHER = {cls.__name__: cls for cls in launcher.TO_LAUNCHER}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A unix socket's path has at most 107 characters."""
    with tempfile.TemporaryDirectory(prefix="understudy-") as made:
        for name in ("own", "state", "shared", "shipped"):
            (Path(made) / name).mkdir()
        yield Path(made)


def start(folder: Path, served: ServedSidecar) -> subprocess.Popen[str]:
    """A member of the job that `served` coordinates, on an address of its own. It cannot write a byte to any file."""
    shape = pod.JobShape("job-uid", "research", "llm", 2, 8, 10, 3600.0)
    write_pod_files(folder / "own", pod.JobFacts(shape, f"{served.host}:{served.port}"), uid="uid-1", name="llm-1")
    (folder / "own" / pod.KEY_FILE).write_text(KEY.hex())
    (folder / "own" / pod.OPERATOR_KEY_FILE).write_text(public_key(OPERATOR).hex())
    own = ".".join(str(random.randint(1, 254)) for _ in range(3))
    env = {
        **os.environ,
        pod.ENV_NODE: "n1",
        pod.ENV_POD_IP: f"127.{own}",
        pod.ENV_LISTEN: f"127.{own}",
        pod.ENV_POD_FOLDER: str(folder / "own"),
        pod.ENV_STATE_FOLDER: str(folder / "state"),
        pod.ENV_SHARED_FOLDER: str(folder / "shared"),
        pod.ENV_SHIPPED_FOLDER: str(folder / "shipped"),
    }
    return subprocess.Popen(
        [sys.executable, "-m", "understudy_sidecar"],
        env=env,
        text=True,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),
    )


async def test_a_member_that_cannot_store_its_state_reports_the_reason_and_ends_its_pod(folder: Path) -> None:
    async with serving() as coordinator:
        # given a sidecar that can store nothing, and its launcher
        sidecar = start(folder, coordinator)
        try:
            path = folder / "shared" / pod.LAUNCHER_SOCKET
            await until(path.exists, 20.0)
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(wire.encode(LauncherHello(1, NO_ROUND, None, WorkersState.IDLE, 4711)).encode() + b"\n")
            await until(lambda: coordinator.handler.messages)

            # when a coordinator welcomes it, whose term it has to store
            (link,) = coordinator.handler.links
            link.send(m.Welcome(NO_ROUND, Term(1, 1), pod_uid=SERVER_POD, ip="127.0.0.1"))

            # then it reports to the coordinator why it leaves, and hangs up
            await until(lambda: coordinator.handler.dropped_links)
            reason = f"its sidecar cannot store its state in {folder}/state: File too large"
            assert coordinator.handler.messages[-1] == m.Gone(reason)
            # and it orders its launcher to exit, after which the sidecar ends with code 0
            order = wire.decode(await asyncio.wait_for(reader.readline(), 5.0), TO_LAUNCHER)
            while not isinstance(order, ExitLauncher):
                order = wire.decode(await asyncio.wait_for(reader.readline(), 5.0), TO_LAUNCHER)
            assert order == ExitLauncher(84, f"replaced: {reason}")
            writer.close()
            _, stderr = await asyncio.to_thread(sidecar.communicate, timeout=10)
            assert sidecar.returncode == 0
            assert "Traceback" not in stderr
        finally:
            sidecar.kill()
            sidecar.wait()
    assert list((folder / "state").iterdir()) == []
