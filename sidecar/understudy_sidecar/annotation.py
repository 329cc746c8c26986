"""Watches the verdict in the pod's own annotation, which the kubelet keeps as a file: for when no coordinator tells it.

Rules: a look each EVERY_S at a file in memory. One that is missing, empty or broken says nothing: what was told before
stays, because whoever withdraws a verdict writes that it is withdrawn.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from understudy_protocol import wire
from understudy_protocol.membership import NodeVerdict

EVERY_S = 1.0
_KNOWN = {"NodeVerdict": NodeVerdict}
log = logging.getLogger(__name__)


class Annotation:
    """`on_change` hears each verdict once."""

    def __init__(self, path: Path, on_change: Callable[[NodeVerdict], None], every_s: float = EVERY_S) -> None:
        self._path, self._on_change, self._every_s = path, on_change, every_s
        self._text = ""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="annotation")

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            self._look()
            await asyncio.sleep(self._every_s)

    def _look(self) -> None:
        try:
            text = self._path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            return
        if not text or text == self._text:
            return
        self._text = text
        try:
            verdict = wire.decode(text, _KNOWN)
        except wire.WireError as error:
            log.warning("the pod's annotation is no verdict: %s", error)
            return
        if isinstance(verdict, NodeVerdict):
            self._on_change(verdict)
