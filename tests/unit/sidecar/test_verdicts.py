"""The verdict that the launcher reads, from a coordinator's message, the pod's annotation, and a file on the node."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.unit.launcher.fake_sidecar import wait_for
from understudy_protocol import pod, wire
from understudy_protocol.enums import FaultClass, Verdict
from understudy_protocol.membership import NodeVerdict
from understudy_sidecar.verdicts import AnnotationFile, NodeFile, Verdicts

XID = NodeVerdict(Verdict.FAULTY, "Xid 79")
WELL = NodeVerdict(Verdict.UNKNOWN)
FILE = NodeVerdict(Verdict.FAULTY, "/run/nologin exists on the node")
BOTH = NodeVerdict(Verdict.FAULTY, "Xid 79; /run/nologin exists on the node")
BROKEN = NodeVerdict(Verdict.FAULTY, "gpu-xid: Xid 79", None, FaultClass.HARDWARE, at=100.0)
WITHDRAWN = NodeVerdict(Verdict.UNKNOWN, at=200.0)


def verdicts(folder: Path) -> Verdicts:
    return Verdicts(folder, folder, "/run/nologin")


def stored(folder: Path) -> object:
    return wire.decode((folder / pod.VERDICT_FILE).read_text(), {"NodeVerdict": NodeVerdict})


def test_either_source_makes_the_node_faulty_and_a_withdrawal_leaves_the_other(tmp_path: Path) -> None:
    both = verdicts(tmp_path)
    both.on_node_file(False)
    assert stored(tmp_path) == WELL
    both.on_verdict(XID)
    assert stored(tmp_path) == XID
    both.on_node_file(True)
    assert stored(tmp_path) == BOTH
    both.on_verdict(WELL)
    assert stored(tmp_path) == FILE
    both.on_verdict(XID)
    both.on_node_file(False)
    assert stored(tmp_path) == XID
    both.on_verdict(WELL)
    assert stored(tmp_path) == WELL


def test_a_verdict_that_expires_does_not_remove_the_finding_of_the_file(tmp_path: Path) -> None:
    both = verdicts(tmp_path)
    both.on_node_file(True)
    both.on_verdict(NodeVerdict(Verdict.FAULTY, "Xid 79", until=1000.0))
    assert stored(tmp_path) == FILE
    both.on_node_file(False)
    assert stored(tmp_path) == NodeVerdict(Verdict.FAULTY, "Xid 79", until=1000.0)


@pytest.mark.parametrize(("sent", "exists", "then"), [(XID, True, XID), (WELL, True, WELL), (XID, False, XID)])
def test_a_restarted_sidecar_withdraws_the_finding_of_the_file_and_keeps_the_verdict_of_the_coordinator(
    tmp_path: Path, sent: NodeVerdict, exists: bool, then: NodeVerdict
) -> None:
    # given a sidecar that received a verdict, saw the file or not, and has crashed
    before = verdicts(tmp_path)
    before.on_verdict(sent)
    before.on_node_file(exists)
    # when the next one finds no file, before any coordinator has sent a verdict
    verdicts(tmp_path).on_node_file(False)
    # then the received verdict still counts
    assert stored(tmp_path) == then


async def test_the_file_is_reported_when_it_appears_and_when_it_is_removed(tmp_path: Path) -> None:
    seen: asyncio.Queue[bool] = asyncio.Queue()
    path = tmp_path / "folder" / "nologin"
    watch = NodeFile(path, seen.put_nowait, every_s=0.01)
    watch.start()
    try:
        # given a missing folder, then an empty one: neither is an error, and nothing is reported twice
        assert await asyncio.wait_for(seen.get(), 5) is False
        path.parent.mkdir()
        # when the file appears, even as a link to nowhere, and is removed
        path.symlink_to("/nowhere")
        assert await asyncio.wait_for(seen.get(), 5) is True
        path.unlink()
        assert await asyncio.wait_for(seen.get(), 5) is False
        assert seen.empty()
    finally:
        watch.stop()


async def test_if_the_folder_cannot_be_read_the_last_result_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # given a file that was reported
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "nologin").touch()
    folder, loop = tmp_path / "folder", tmp_path / "loop"
    folder.symlink_to("real")
    seen: asyncio.Queue[bool] = asyncio.Queue()
    watch = NodeFile(folder / "nologin", seen.put_nowait, every_s=0.01)
    watch.start()
    try:
        assert await asyncio.wait_for(seen.get(), 5) is True
        # when its folder cannot be entered any more (links to each other, because root may enter any other folder)
        loop.symlink_to("folder")
        loop.replace(folder)
        await asyncio.to_thread(wait_for, lambda: "cannot read" in caplog.text, "the log line")
        # then the error is only logged
        assert seen.empty()
    finally:
        watch.stop()


# The annotation -----------------------------------------------------------------------------------------------------


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
