"""Attacks of a trainer on its sidecar through the folder that both write to, and a sidecar with a state file that it
did not write: it never blocks, writes through no link, and never quotes a file.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.obstacles import OBSTACLES, UNREADABLE, Obstacle
from tests.unit.sidecar.pod_files import write_pod_files
from tests.unit.sidecar.recording_handler import until
from understudy_launcher.__main__ import read_environment
from understudy_launcher.verdict_file import read_hardware_finding
from understudy_protocol import files, pod, wire
from understudy_protocol.enums import CloseReason, Term, Verdict
from understudy_protocol.hard_state import HardState
from understudy_protocol.membership import Close, NodeVerdict
from understudy_sidecar import records, settings
from understudy_sidecar.copy_commands import Setup
from understudy_sidecar.copy_link import CopyLink
from understudy_sidecar.launcher_link import LauncherLink
from understudy_sidecar.records import CannotRead
from understudy_sidecar.rollouts_link import RolloutsLink
from understudy_sidecar.sidecar_alone import AloneSettings, SidecarAlone
from understudy_sidecar.verdicts import AnnotationFile

HARD_STATE_FILE = "hard-state.json"

KEY = "ab" * 32
XID = NodeVerdict(Verdict.FAULTY, "Xid 79")
HARD_STATE = HardState(Term(7, 3))
pytestmark = pytest.mark.timeout(20)  # a FIFO that blocks fails its test


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user may enter, with a short path: sockets are in it."""
    with tempfile.TemporaryDirectory(prefix="understudy-") as path:
        os.chmod(path, 0o777)
        yield Path(path)


@pytest.fixture
def private(folder: Path) -> Path:
    """A file of the sidecar that the trainer cannot see, such as one in its state folder."""
    path = folder / "private"
    path.write_text(KEY)
    return path


def shipped(folder: Path) -> Path:
    source = folder / "image"
    (source / "python" / "understudy_torch").mkdir(parents=True)
    (source / "python" / "understudy_torch" / "__init__.py").write_text("step = print\n")
    (source / "launch").write_text("#!/bin/sh\n")
    (source / "launch").chmod(0o755)
    return source


def mode(path: Path) -> int:
    """Of the entry itself."""
    return stat.S_IMODE(path.lstat().st_mode)


# The sidecar writes into the shared folder

WRITTEN: dict[str, tuple[str, Callable[[Path, Path], object]]] = {
    "verdict": (pod.VERDICT_FILE, lambda shared, _: records.record_verdict(shared, XID)),
    "previous-name-of-the-verdict": (f"{pod.VERDICT_FILE}.new", lambda shared, _: records.record_verdict(shared, XID)),
    "launcher": ("launch", records.install_launcher),
    "python-folder": ("python", records.install_launcher),
    "package": ("python/understudy_torch", records.install_launcher),
    "module": ("python/understudy_torch/__init__.py", records.install_launcher),
}


@pytest.mark.attack(
    "C4", "an entry in the shared folder instead of a file of the sidecar's", before="written through; a FIFO blocked"
)
@pytest.mark.parametrize("obstacle", OBSTACLES.values(), ids=OBSTACLES)
@pytest.mark.parametrize(("name", "write"), WRITTEN.values(), ids=WRITTEN)
def test_obstacles_of_a_trainer_are_replaced_and_not_written_through(
    folder: Path, private: Path, name: str, write: Callable[[Path, Path], object], obstacle: Obstacle
) -> None:
    # given an image, and a trainer that has put an obstacle where the sidecar writes
    source, shared = shipped(folder), folder / "shared"
    (shared / name).parent.mkdir(parents=True)
    obstacle(shared / name, private)
    # when the sidecar restarts and writes there
    write(shared, source)
    # then its file is complete, and no other file was written
    assert private.read_text() == KEY
    match name:
        case "launch" | "python" | "python/understudy_torch" | "python/understudy_torch/__init__.py":
            assert (shared / "launch").read_text() == "#!/bin/sh\n"
            assert mode(shared / "launch") == 0o755
            module = shared / "python" / "understudy_torch" / "__init__.py"
            assert module.read_text() == "step = print\n"
            assert not any(path.is_symlink() for path in (module, *module.parents) if shared in path.parents)
        case _:
            verdict = shared / pod.VERDICT_FILE
            assert stat.S_ISREG(verdict.lstat().st_mode)
            assert wire.decode(verdict.read_bytes(), {"NodeVerdict": NodeVerdict}) == XID
            assert mode(verdict) == 0o644, "the trainer runs as any user"


@pytest.mark.attack("C4", "an entry instead of a socket of the sidecar's", before="a private file's mode was changed")
@pytest.mark.parametrize("obstacle", OBSTACLES.values(), ids=OBSTACLES)
@pytest.mark.parametrize(
    ("name", "link"),
    [(pod.LAUNCHER_SOCKET, LauncherLink(print, print, print)), (pod.ROLLOUTS_SOCKET, RolloutsLink(print))],
)
async def test_a_socket_takes_connections_whatever_was_at_its_path(
    folder: Path, private: Path, name: str, link: LauncherLink | RolloutsLink, obstacle: Obstacle
) -> None:
    path, before = folder / name, mode(private)
    obstacle(path, private)
    async with await link.listen(path):
        assert stat.S_ISSOCK(path.lstat().st_mode)
        assert mode(path) == 0o666
        with socket.socket(socket.AF_UNIX) as process:
            process.connect(str(path))
    assert (mode(private), files.read_file(private, 100)) == (before, KEY.encode())


@pytest.mark.attack("C4", "an entry instead of the socket for snapshots", before="there were no copies")
@pytest.mark.parametrize("obstacle", OBSTACLES.values(), ids=OBSTACLES)
async def test_the_socket_for_snapshots_takes_connections_whatever_was_at_its_path(
    folder: Path, private: Path, obstacle: Obstacle
) -> None:
    path, before = folder / "copies.sock", mode(private)
    obstacle(path, private)
    link = CopyLink(Setup("00" * 32, "job-uid", "uid-0", 1), lambda event: None)
    await link.start(path)
    try:
        assert stat.S_ISSOCK(path.lstat().st_mode)
        assert mode(path) == 0o666
        with socket.socket(socket.AF_UNIX) as process:
            process.connect(str(path))
    finally:
        await link.close()
    assert (mode(private), files.read_file(private, 100)) == (before, KEY.encode())


@pytest.mark.attack("C4", "a FIFO where the sidecar writes the verdict", before="the sidecar stopped forever")
async def test_a_sidecar_comes_up_and_keeps_the_verdict_in_a_folder_full_of_obstacles(folder: Path) -> None:
    # given a shared folder in which a trainer has put FIFOs wherever the sidecar writes
    source, shared, state, annotation = shipped(folder), folder / "shared", folder / "state", folder / "verdict"
    for made in (shared, state):
        os.mkdir(made)
    for name in ("launch", "python", pod.VERDICT_FILE, f"{pod.VERDICT_FILE}.new"):
        os.mkfifo(shared / name)
    files.write_file(annotation, wire.encode(XID).encode())
    opened: list[tuple[str, int]] = []
    is_watching = True  # an audit hook stays for as long as the process

    def audit(event: str, args: tuple[object, ...]) -> None:
        if is_watching and event == "open" and isinstance(args[2], int) and str(args[0]).startswith(str(shared)):
            opened.append((str(args[0]), args[2]))

    sys.addaudithook(audit)
    # when the sidecar of a pod without a launcher starts there
    alone = SidecarAlone(
        AloneSettings(shared, state, annotation, source, look_every_s=0.01, listen="127.0.0.1", health_port=0)
    )
    life = asyncio.create_task(alone.run())
    # then the trainer finds the verdict
    await until(lambda: (shared / pod.VERDICT_FILE).is_file())
    os.kill(os.getpid(), signal.SIGTERM)
    await life
    is_watching = False
    # and the sidecar has opened folders and its own new files there, and has read no file
    assert opened != []
    assert [path for path, flags in opened if not flags & (os.O_DIRECTORY | os.O_CREAT)] == []
    assert [path for path, flags in opened if flags & os.O_CREAT and not flags & os.O_EXCL] == []
    assert read_hardware_finding(str(shared), 0.0) == "Xid 79"


# The sidecar reads its own state

READ: dict[str, tuple[str, Callable[[Path], object]]] = {
    "hard-state": (HARD_STATE_FILE, records.recorded_hard_state),
    "close": (records.CLOSE_FILE, records.recorded_close),
    "coordinator-verdict": (records.COORDINATOR_VERDICT_FILE, records.recorded_coordinator_verdict),
    "order": (records.ORDER_FILE, records.recorded_order),
}


@pytest.mark.attack(
    "C4", "hard-state.json is a link to the key, or anything else", before="the log showed the whole key"
)
@pytest.mark.parametrize("obstacle", UNREADABLE.values(), ids=UNREADABLE)
@pytest.mark.parametrize(("name", "read"), READ.values(), ids=READ)
def test_a_state_file_that_no_sidecar_wrote_causes_an_error_that_names_it_and_quotes_nothing(
    folder: Path, private: Path, name: str, read: Callable[[Path], object], obstacle: Obstacle
) -> None:
    with obstacle.at(folder / name, private), pytest.raises(CannotRead) as raised:
        read(folder)
    text = str(raised.value)
    assert str(folder / name) in text
    assert "delete the pod" in text
    assert KEY[:8] not in text
    assert raised.value.__cause__ is None, "nor does a traceback show the error that quotes the file"
    assert raised.value.__suppress_context__


@pytest.mark.parametrize("obstacle", UNREADABLE.values(), ids=UNREADABLE)
def test_a_file_about_the_launcher_that_no_sidecar_wrote_counts_as_none_and_is_not_quoted(
    folder: Path, private: Path, obstacle: Obstacle, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with obstacle.at(folder / "launcher-connected", private):
        assert not records.recorded_launcher(folder)
    assert [record for record in caplog.records if record.name.startswith("understudy")] == []


@pytest.mark.parametrize(
    "content",
    [
        KEY,
        f'{{"v":2,"type":"{KEY}"}}',
        f'{{"v":2,"type":"HardState","voted_for":["{KEY}"],"term":"{KEY}"}}',
        "",
        "[" * 9999,
    ],
    ids=["no-json", "another-type", "another-field", "empty", "deep"],
)
@pytest.mark.parametrize(("name", "read"), READ.values(), ids=READ)
def test_content_that_is_no_message_is_not_quoted(
    folder: Path, name: str, read: Callable[[Path], object], content: str
) -> None:
    (folder / name).write_text(content)
    with pytest.raises(CannotRead) as raised:
        read(folder)
    assert KEY[:8] not in str(raised.value)


def test_a_stored_state_is_read_back_and_is_private(folder: Path) -> None:
    before = os.umask(0)
    try:
        records.record_hard_state(folder, HARD_STATE)
        records.record_coordinator_verdict(folder, XID)
        records.record_close(folder, Close(CloseReason.FAILED, "x"), folder / "no-termination-log")
    finally:
        os.umask(before)
    assert records.recorded_hard_state(folder) == HARD_STATE
    assert records.recorded_coordinator_verdict(folder) == XID
    assert records.recorded_close(folder) == Close(CloseReason.FAILED, "x")
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert len(list(folder.iterdir())) == 3, "nothing beside them"


def test_no_file_is_left_beside_a_file_that_cannot_be_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(records.CannotStore, match="No space left"):
        records.record_hard_state(folder, HARD_STATE)
    assert list(folder.iterdir()) == []


@pytest.mark.attack(
    "C4", "a sidecar is restarted while hard-state.json is a link to the key", before="the log showed the key"
)
@pytest.mark.parametrize("name_of_state", [HARD_STATE_FILE, records.CLOSE_FILE, records.COORDINATOR_VERDICT_FILE])
def test_a_sidecar_whose_state_is_a_link_to_the_key_ends_with_one_line_and_no_key(
    folder: Path, name_of_state: str
) -> None:
    # given a pod's folders, in which a state file is a link to the key
    for name in ("key", "state", "shared"):
        (folder / name).mkdir()
    (folder / "key" / pod.KEY_FILE).write_text(KEY)
    (folder / "key" / pod.OPERATOR_KEY_FILE).write_text("cd" * 32)
    (folder / "state" / name_of_state).symlink_to(folder / "key" / pod.KEY_FILE)
    shape = pod.JobShape("uid", "research", "llm", 2, 8, 10, 3600.0)
    write_pod_files(folder / "key", pod.JobFacts(shape, "127.0.0.1:1"))
    env = {
        **os.environ,
        pod.ENV_NODE: "n",
        pod.ENV_POD_IP: "127.0.0.1",
        pod.ENV_POD_FOLDER: str(folder / "key"),
        pod.ENV_STATE_FOLDER: str(folder / "state"),
        pod.ENV_SHARED_FOLDER: str(folder / "shared"),
    }
    # when its sidecar starts
    ended = subprocess.run(
        [sys.executable, "-m", "understudy_sidecar"], env=env, capture_output=True, text=True, timeout=30, check=False
    )
    # then it ends with an error that names the file, and shows neither the key nor a traceback
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert str(folder / "state" / name_of_state) in line
    assert KEY[:8] not in ended.stderr + ended.stdout


# Volumes of the kubelet's


def test_an_annotation_is_read_through_the_kubelets_links_and_never_quoted(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # given the kubelet's folder: a link to a link
    (folder / "..2026").mkdir()
    (folder / "..2026" / "verdict").write_text(KEY)
    (folder / "..data").symlink_to("..2026")
    (folder / "verdict").symlink_to("..data/verdict")
    verdicts: list[NodeVerdict] = []
    watch = AnnotationFile(folder / "verdict", verdicts.append)
    # when the annotation is not a verdict, and then is one
    watch._check()
    (folder / "..2026" / "verdict").write_text(wire.encode(XID))
    watch._check()
    # then the log does not show it
    assert verdicts == [XID]
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert KEY[:8] not in caplog.text


def test_the_launcher_reads_the_variables_that_the_sidecar_writes(folder: Path) -> None:
    # given the folders of a pod, and a file of the trainer's at the path of the variables
    shared, shipped = folder / "shared", folder / "shipped"
    for made in (shared, shipped):
        made.mkdir()
    (shared / pod.VARIABLES_FILE).write_text('{"UNDERSTUDY_MODE": "Wrap"}')
    # when the sidecar starts
    records.install_launcher(shared, shipped, {"UNDERSTUDY_MODE": "Auto"})
    # then the launcher gets the sidecar's variables
    env = {"UNDERSTUDY_FOLDER": str(shared), "HOME": "/root"}
    assert read_environment(env) == {**env, "UNDERSTUDY_MODE": "Auto"}


def test_the_facts_about_the_job_are_not_quoted(folder: Path) -> None:
    (folder / pod.KEY_FILE).write_text(KEY)
    (folder / pod.OPERATOR_KEY_FILE).write_text("cd" * 32)
    (folder / pod.JOB_FILE).write_text(f'{{"shape": "{KEY}"}}')
    own = {pod.ENV_NODE: "n", pod.ENV_POD_IP: "10.1.0.1"}
    with pytest.raises(settings.SettingsError, match=r"job\.json") as raised:
        settings.read_settings({**own, pod.ENV_POD_FOLDER: str(folder), pod.ENV_PLACE: "w/0/0"})
    assert KEY[:8] not in str(raised.value)


def test_a_launcher_that_was_connected_is_known_until_its_end_or_a_reboot_of_the_node(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not records.recorded_launcher(folder)
    records.record_launcher(folder, True)
    assert records.recorded_launcher(folder)
    # its connection ends
    records.record_launcher(folder, False)
    assert not records.recorded_launcher(folder)
    # or the node reboots, and the trainer container restarts
    records.record_launcher(folder, True)
    (folder / "boot_id").write_text("another boot\n")
    monkeypatch.setattr(records, "BOOT_ID", folder / "boot_id")
    assert not records.recorded_launcher(folder)
