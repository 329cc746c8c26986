"""The sidecar of an injected pod without a launcher: it writes the verdict in the pod's annotation for the script."""

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

from tests.ports import free_port
from understudy_protocol import pod, wire
from understudy_protocol.enums import Verdict
from understudy_protocol.membership import NodeVerdict
from understudy_sidecar.sidecar_alone import AloneSettings, SidecarAlone
from understudy_torch.sigterm import read_hardware_finding


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110 (no event reports it)
            await asyncio.sleep(0.01)


async def test_it_writes_the_verdict_installs_the_modules_of_scripts_and_ends_at_sigterm(tmp_path: Path) -> None:
    folder, shipped, annotation = tmp_path / "shared", tmp_path / "shipped", tmp_path / "verdict"
    folder.mkdir()
    (shipped / "python").mkdir(parents=True)
    (shipped / "python" / "x.py").write_text("")
    verdict = str(folder / pod.VERDICT_FILE)
    settings = AloneSettings(
        folder, tmp_path, annotation, shipped, look_every_s=0.02, listen="127.0.0.1", health_port=free_port()
    )
    running = asyncio.create_task(SidecarAlone(settings).run())
    await until(lambda: (folder / pod.VERDICT_FILE).exists())
    assert read_hardware_finding(verdict, 0.0) == ""
    assert (folder / "python" / "x.py").exists()
    annotation.write_text(wire.encode(NodeVerdict(Verdict.FAULTY, "Xid 79 on GPU 3")))
    await until(lambda: read_hardware_finding(verdict, 0.0) == "Xid 79 on GPU 3")
    annotation.write_text(wire.encode(NodeVerdict(Verdict.UNKNOWN)))  # the verdict was withdrawn explicitly
    await until(lambda: read_hardware_finding(verdict, 0.0) == "")
    os.kill(os.getpid(), signal.SIGTERM)
    async with asyncio.timeout(10):
        await running
