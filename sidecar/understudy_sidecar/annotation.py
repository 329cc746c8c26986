"""Watches the verdict in the pod's own annotation, which the kubelet keeps as a file: for when no coordinator tells it.

Rules: a look each INTERVAL_S at a file in memory. One that is missing, empty or broken says nothing: what was told
before stays, because a verdict is withdrawn by another one. A verdict that could not be handled, because a disk is full
for example, is handled again at the next look.
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
    """`on_change` hears each verdict once."""

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
