"""The verdict that the launcher finds, of a coordinator's word and of a file on the node."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.unit.launcher.fake_sidecar import wait_for
from understudy_protocol import pod, wire
from understudy_protocol.enums import Verdict
from understudy_protocol.membership import NodeVerdict
from understudy_sidecar.node_file import NodeFile
from understudy_sidecar.verdicts import Verdicts

XID = NodeVerdict(Verdict.FAULTY, "Xid 79")
WELL = NodeVerdict(Verdict.UNKNOWN)
FILE = NodeVerdict(Verdict.FAULTY, "/run/nologin exists on the node")
BOTH = NodeVerdict(Verdict.FAULTY, "Xid 79; /run/nologin exists on the node")


def verdicts(folder: Path) -> Verdicts:
    return Verdicts(folder, folder, "/run/nologin")


def held(folder: Path) -> object:
    return wire.decode((folder / pod.VERDICT_FILE).read_text(), {"NodeVerdict": NodeVerdict})


def test_either_makes_the_node_faulty_and_one_withdrawn_leaves_the_other(tmp_path: Path) -> None:
    both = verdicts(tmp_path)
    both.on_node_file(False)
    assert held(tmp_path) == WELL
    both.on_verdict(XID)
    assert held(tmp_path) == XID
    both.on_node_file(True)
    assert held(tmp_path) == BOTH
    both.on_verdict(WELL)
    assert held(tmp_path) == FILE
    both.on_verdict(XID)
    both.on_node_file(False)
    assert held(tmp_path) == XID
    both.on_verdict(WELL)
    assert held(tmp_path) == WELL


def test_a_word_that_expires_does_not_take_the_files_along(tmp_path: Path) -> None:
    both = verdicts(tmp_path)
    both.on_node_file(True)
    both.on_verdict(NodeVerdict(Verdict.FAULTY, "Xid 79", until=1000.0))
    assert held(tmp_path) == FILE
    both.on_node_file(False)
    assert held(tmp_path) == NodeVerdict(Verdict.FAULTY, "Xid 79", until=1000.0)


@pytest.mark.parametrize(("told", "exists", "then"), [(XID, True, XID), (WELL, True, WELL), (XID, False, XID)])
def test_a_sidecar_that_crashed_withdraws_the_files_word_and_keeps_the_told_one(
    tmp_path: Path, told: NodeVerdict, exists: bool, then: NodeVerdict
) -> None:
    # given a sidecar that was told something, saw the file or not, and has crashed
    before = verdicts(tmp_path)
    before.on_verdict(told)
    before.on_node_file(exists)
    # when the next one finds no file, before any coordinator has told it anything
    verdicts(tmp_path).on_node_file(False)
    # then what was told is what holds
    assert held(tmp_path) == then


async def test_the_file_is_seen_when_it_comes_and_when_it_goes(tmp_path: Path) -> None:
    seen: asyncio.Queue[bool] = asyncio.Queue()
    path = tmp_path / "folder" / "nologin"
    watch = NodeFile(path, seen.put_nowait, every_s=0.01)
    watch.start()
    try:
        # given a folder that is not there, then one that is empty: neither is an error, and nothing is told twice
        assert await asyncio.wait_for(seen.get(), 5) is False
        path.parent.mkdir()
        # when the file comes, even one that leads nowhere, and goes
        path.symlink_to("/nowhere")
        assert await asyncio.wait_for(seen.get(), 5) is True
        path.unlink()
        assert await asyncio.wait_for(seen.get(), 5) is False
        assert seen.empty()
    finally:
        watch.stop()


async def test_where_nobody_can_look_what_was_seen_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    # given a file that was seen
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "nologin").touch()
    folder, loop = tmp_path / "folder", tmp_path / "loop"
    folder.symlink_to("real")
    seen: asyncio.Queue[bool] = asyncio.Queue()
    watch = NodeFile(folder / "nologin", seen.put_nowait, every_s=0.01)
    watch.start()
    try:
        assert await asyncio.wait_for(seen.get(), 5) is True
        # when its folder cannot be entered any more (links that lead to each other: root may enter any other)
        loop.symlink_to("folder")
        loop.replace(folder)
        await asyncio.to_thread(wait_for, lambda: "cannot read" in caplog.text, "the word about it")
        # then the log tells it, and nothing else does
        assert seen.empty()
    finally:
        watch.stop()
