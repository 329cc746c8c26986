"""Watches whether a file exists on the node (such as /run/nologin), through a mounted folder of the node.

Rules: check each INTERVAL_S, in a separate thread, so that a hanging file system blocks nothing else. Only the folder
entry counts, not the target of a link. If a check fails, the last result stays, and the log has the reason.
"""

import asyncio
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

INTERVAL_S = 1.0
log = logging.getLogger(__name__)


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
