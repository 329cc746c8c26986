"""The verdict in the pod's annotation, as the kubelet keeps it in a file."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.unit.launcher.fake_sidecar import wait_for
from understudy_protocol import wire
from understudy_protocol.enums import FaultClass, Verdict
from understudy_protocol.membership import NodeVerdict
from understudy_sidecar.annotation import AnnotationFile

BROKEN = NodeVerdict(Verdict.FAULTY, "gpu-xid: Xid 79", None, FaultClass.HARDWARE, at=100.0)
WITHDRAWN = NodeVerdict(Verdict.UNKNOWN, at=200.0)


async def test_each_verdict_is_heard_once_and_what_is_none_is_said_and_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    heard: asyncio.Queue[NodeVerdict] = asyncio.Queue()
    path = tmp_path / "told" / "verdict"
    watch = AnnotationFile(path, heard.put_nowait, every_s=0.01)
    watch.start()
    try:
        # given no volume yet, then an annotation that is not set: the kubelet makes an empty file
        path.parent.mkdir()
        path.write_text("")
        # when the operator writes one, and the kubelet swaps the file
        path.write_text(wire.encode(BROKEN))
        assert await asyncio.wait_for(heard.get(), 5) == BROKEN
        # and then nonsense, and that it is withdrawn
        path.write_text("{")
        await asyncio.to_thread(wait_for, lambda: "expected a NodeVerdict" in caplog.text, "the word about it")
        path.write_text(wire.encode(WITHDRAWN))
        # then each is heard once
        assert await asyncio.wait_for(heard.get(), 5) == WITHDRAWN
        assert heard.empty()
    finally:
        watch.stop()


async def test_a_verdict_that_cannot_be_handled_is_handled_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    heard: asyncio.Queue[NodeVerdict] = asyncio.Queue()
    failures = [OSError(28, "No space left on device"), OSError(28, "No space left on device")]

    def on_change(verdict: NodeVerdict) -> None:
        if failures:
            raise failures.pop()
        heard.put_nowait(verdict)

    # given a verdict, and a disk that is full at the first two looks
    path = tmp_path / "verdict"
    path.write_text(wire.encode(BROKEN))
    watch = AnnotationFile(path, on_change, every_s=0.01)
    watch.start()
    try:
        # then the watch goes on, and says so once
        assert await asyncio.wait_for(heard.get(), 5) == BROKEN
        assert caplog.text.count("No space left on device") == 1
        # and the next verdict is heard too
        path.write_text(wire.encode(WITHDRAWN))
        assert await asyncio.wait_for(heard.get(), 5) == WITHDRAWN
    finally:
        watch.stop()
