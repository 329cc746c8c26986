"""The verdict in the pod's annotation, which the kubelet writes to a file."""

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


async def test_each_verdict_is_reported_once_and_other_content_is_logged_and_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reported: asyncio.Queue[NodeVerdict] = asyncio.Queue()
    path = tmp_path / "verdict" / "verdict"
    watch = AnnotationFile(path, reported.put_nowait, every_s=0.01)
    watch.start()
    try:
        # given no volume yet, then an annotation that is not set: the kubelet makes an empty file
        path.parent.mkdir()
        path.write_text("")
        # when the operator writes one, and the kubelet swaps the file
        path.write_text(wire.encode(BROKEN))
        assert await asyncio.wait_for(reported.get(), 5) == BROKEN
        # and then invalid JSON, and then the withdrawal
        path.write_text("{")
        await asyncio.to_thread(wait_for, lambda: "expected a NodeVerdict" in caplog.text, "the log line")
        path.write_text(wire.encode(WITHDRAWN))
        # then each is reported once
        assert await asyncio.wait_for(reported.get(), 5) == WITHDRAWN
        assert reported.empty()
    finally:
        watch.stop()


async def test_a_verdict_that_cannot_be_handled_is_handled_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reported: asyncio.Queue[NodeVerdict] = asyncio.Queue()
    failures = [OSError(28, "No space left on device"), OSError(28, "No space left on device")]

    def on_change(verdict: NodeVerdict) -> None:
        if failures:
            raise failures.pop()
        reported.put_nowait(verdict)

    # given a verdict, and a disk that is full at the first two attempts
    path = tmp_path / "verdict"
    path.write_text(wire.encode(BROKEN))
    watch = AnnotationFile(path, on_change, every_s=0.01)
    watch.start()
    try:
        # then the watch continues, and logs the error once
        assert await asyncio.wait_for(reported.get(), 5) == BROKEN
        assert caplog.text.count("No space left on device") == 1
        # and the next verdict is reported too
        path.write_text(wire.encode(WITHDRAWN))
        assert await asyncio.wait_for(reported.get(), 5) == WITHDRAWN
    finally:
        watch.stop()
