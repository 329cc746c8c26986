"""Watches the verdict in the pod's annotation, which the kubelet writes to a file: it works without a coordinator.

Rules: check a file in memory each INTERVAL_S. Ignore one that is missing, empty or broken: the last verdict stays in
effect, because only another verdict withdraws it. If a verdict could not be handled (the disk was full, say), the next
check handles it again.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from understudy_protocol import files, wire
from understudy_protocol.membership import NodeVerdict

INTERVAL_S = 1.0
#: Kubernetes allows 256 KiB for all annotations of an object.
LIMIT_BYTES = 256 << 10
_KNOWN = {"NodeVerdict": NodeVerdict}
log = logging.getLogger(__name__)


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
