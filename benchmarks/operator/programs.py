"""The processes of the cluster and of the systems: starts them, checks them, and ends them with this process."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from benchmarks.child import LOGS, ChildFailed
from benchmarks.machine import Usage
from tests.cluster.commands import tail

END_S = 10.0


class Program:
    """One process, from its start to its end. If it ends by itself, raises ChildFailed with the end of its log."""

    def __init__(self, name: str, command: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        """env: its whole environment besides PATH and HOME, so it gets no proxy and no credential of the caller."""
        LOGS.mkdir(parents=True, exist_ok=True)
        self.name, self.log = name, LOGS / f"operator-{name}.log"
        self.started_at = time.monotonic()
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={"PATH": os.environ["PATH"], "HOME": str(Path.home()), **(env or {})},
            )

    @property
    def usage(self) -> Usage:
        self.check()
        return Usage.of(self._process.pid)

    def check(self) -> None:
        if self._process.poll() is not None:
            lines = tail(self.log.read_text(errors="replace"), 15)
            raise ChildFailed(
                f"{self.name} ended with status {self._process.returncode}:\n{lines}\n  all of it: {self.log}"
            )

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        """Send SIGTERM, as a rollout does, and SIGKILL if that is not enough."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(END_S)
            except subprocess.TimeoutExpired:
                self.kill()

    def __enter__(self) -> Program:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()
