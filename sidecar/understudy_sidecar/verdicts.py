"""The node health verdict in a sidecar: the operator's, in the pod's annotation too, and a file on the node.

Rules: the node is faulty as long as the operator or the file reports it. If one of them withdraws its verdict, the
other one stays in effect. The operator's verdict survives a crash of the sidecar; the next process checks the files
again. Each file is checked every INTERVAL_S.

- The annotation, which the kubelet writes to a file, works without a coordinator. A file that is missing, empty or
  broken is ignored: the last verdict stays in effect, because only another verdict withdraws it. If a verdict could not
  be handled (the disk was full, say), the next check handles it again.
- The file on the node (such as /run/nologin) is seen through a mounted folder of the node. The check runs in a separate
  thread, so that a hanging file system blocks nothing else. Only the folder entry counts, not the target of a link. If
  a check fails, the last result stays, and the log has the reason.
"""

import asyncio
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

from understudy_protocol import files, pod, wire
from understudy_protocol.enums import Verdict
from understudy_protocol.membership import NodeVerdict
from understudy_sidecar import records

INTERVAL_S = 1.0
#: Kubernetes allows 256 KiB for all annotations of an object.
LIMIT_BYTES = 256 << 10
_KNOWN = {"NodeVerdict": NodeVerdict}
log = logging.getLogger(__name__)


class Verdicts:
    """Writes `verdict.json` in the launcher's folder. node_file: the file's path on the node."""

    def __init__(self, folder: Path, state: Path, node_file: str) -> None:
        self._folder, self._state, self._node_file = folder, state, node_file
        self._coordinator_verdict = records.recorded_coordinator_verdict(state)
        self._node_file_exists = False

    @property
    def newest(self) -> NodeVerdict:
        """The operator's newest verdict."""
        return self._coordinator_verdict

    def on_verdict(self, verdict: NodeVerdict) -> None:
        """The operator's new verdict replaces the last one: member.py has checked that it is newer."""
        self._coordinator_verdict = verdict
        records.record_coordinator_verdict(self._state, verdict)
        self._write()

    def on_node_file(self, exists: bool) -> None:
        self._node_file_exists = exists
        self._write()

    def _write(self) -> None:
        own = NodeVerdict(Verdict.FAULTY, f"{self._node_file} exists on the node") if self._node_file_exists else None
        records.record_verdict(self._folder, combine(self._coordinator_verdict, own))


def combine(from_coordinator: NodeVerdict, own: NodeVerdict | None) -> NodeVerdict:
    """own: from the file on the node, if it exists; it does not expire."""
    if own is None:
        return from_coordinator
    if (
        from_coordinator.verdict is not Verdict.FAULTY or from_coordinator.until is not None
    ):  # with the coordinator's expiry, the combined verdict would expire too
        return own
    return NodeVerdict(
        Verdict.FAULTY, f"{from_coordinator.reason}; {own.reason}" if from_coordinator.reason else own.reason
    )


class AnnotationFile:
    """Calls `on_change` once for each verdict."""

    def __init__(self, path: Path, on_change: Callable[[NodeVerdict], None], every_s: float = INTERVAL_S) -> None:
        self._path, self._on_change, self._every_s = path, on_change, every_s
        self._text = self._last_error = ""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="annotation")

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            try:
                self._check()
                self._last_error = ""
            except Exception as error:  # noqa: BLE001 - the watch must not end: nothing waits for this task
                self._log_once(error)
            await asyncio.sleep(self._every_s)

    def _log_once(self, error: Exception) -> None:
        text = f"cannot process the verdict of the pod's annotation, and retries: {error}"
        if text != self._last_error:
            self._last_error = text
            log.error("%s", text)

    def _check(self) -> None:
        try:
            text = files.read_file(self._path, LIMIT_BYTES, follow_links=True).decode().strip()
        except (OSError, UnicodeDecodeError):
            return
        if not text or text == self._text:
            return
        try:
            verdict = wire.decode(text, _KNOWN)
        except wire.WireError:  # its text quotes the file
            self._text = text
            log.warning("%s: expected a NodeVerdict as JSON; the previous verdict remains in effect", self._path)
            return
        if isinstance(verdict, NodeVerdict):
            self._on_change(verdict)
        self._text = text


class NodeFile:
    """path: as mounted here. on_change gets whether it exists: at the start, and at each change."""

    def __init__(self, path: Path, on_change: Callable[[bool], None], every_s: float = INTERVAL_S) -> None:
        self._path, self._on_change, self._every_s = path, on_change, every_s
        self._stopped = threading.Event()
        self._last_error = ""

    def start(self) -> None:
        """Start the thread; on_change runs in the current event loop."""
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._run, args=(loop,), name="node-file", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        known: bool | None = None
        while not self._stopped.is_set():
            exists = self._check()
            if exists is not None and exists != known:
                known = exists
                try:
                    loop.call_soon_threadsafe(self._report, exists)
                except RuntimeError:
                    return  # the loop has ended, and the sidecar with it
            self._stopped.wait(self._every_s)

    def _report(self, exists: bool) -> None:
        if not self._stopped.is_set():
            self._on_change(exists)

    def _check(self) -> bool | None:
        try:
            os.lstat(self._path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            self._log_once(f"cannot read {self._path}: {error.strerror}; the last result remains in effect")
            return None
        return True

    def _log_once(self, text: str) -> None:
        if text != self._last_error:
            self._last_error = text
            log.warning("%s", text)


def watch_node_file(node_file: str, on_change: Callable[[bool], None]) -> NodeFile | None:
    """node_file: the file's path on the node; "": none is watched. on_change: see NodeFile."""
    if not node_file:
        return None
    watched = NodeFile(Path(pod.NODE_FOLDER) / Path(node_file).name, on_change)
    watched.start()
    return watched
