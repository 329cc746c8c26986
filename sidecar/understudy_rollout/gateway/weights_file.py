"""A gateway's state of its server's weights, in a file for the gateway that starts after it.

Rules: a message is in the file before it is answered. So after a crash of the gateway, the file never claims more than
was true. The stored state counts only for the server process that it describes; `listener` identifies this process. For
any other server, or if the process is unknown, the state is Uncertain. The file belongs on a memory-backed volume of
the pod, which survives the containers but not the pod.
"""

import json
import logging
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any, Optional

from understudy_rollout.gateway.listener import NOBODY
from understudy_rollout.weights import (
    Commit,
    Event,
    EventRejected,
    Group,
    Known,
    UpdateCall,
    Weights,
    WeightsLost,
    WeightsState,
    WeightsStatus,
)

_FORMAT = 2
NO_VERSION = "this gateway was restarted, and the inference server may have been restarted, too"
log = logging.getLogger(__name__)


class WeightsFile:
    """weights: the current state. Without a file no state survives the process."""

    def __init__(self, weights: Weights, file: Optional[Path] = None, server: Optional[str] = NOBODY) -> None:
        self.weights = weights
        self._file = file
        self._server = server  # the server process with these weights, from `listener_at`

    def handle(self, event: Event) -> None:
        """Raises EventRejected, or OSError if the state could not be stored: then do not acknowledge the message."""
        try:
            self.weights.handle(event)
        except EventRejected:
            self._write_or_log()  # a rejected late event still changes the state
            raise
        if isinstance(event, UpdateCall):
            return
        if isinstance(event, Commit) and self._server == NOBODY:
            self._server = None  # it listens, because an update has reached it, so the check is not reliable here
        self.write()

    def on_listener(self, listener: Optional[str]) -> Optional[WeightsLost]:
        """Take over the process that listens now. Return WeightsLost if these weights belong to another one."""
        if listener is None or listener == self._server:
            return None
        previous, self._server = self._server, listener
        if not previous:
            self._write_or_log()
            return None
        process = "no process" if listener == NOBODY else "another process"
        return WeightsLost(engine_gone(f"{process} listens on its port"))

    def on_engine_lost(self, lost: WeightsLost) -> None:
        self.weights.handle(lost)
        self._write_or_log()

    def write(self) -> None:
        if self._file is None:
            return
        fields = {"format": _FORMAT, "server": self._server, "weights": asdict(self.weights.known())}
        unfinished = self._file.with_name(f"{self._file.name}.unfinished")
        unfinished.write_text(json.dumps(fields, default=lambda value: value.value))
        os.replace(unfinished, self._file)

    def _write_or_log(self) -> None:
        try:
            self.write()
        except OSError as error:
            # The next gateway sees another server than the one in the file, and ignores the file.
            log.error("cannot write the state file: %s; after a restart of the gateway, the weights are unknown", error)


def open_weights_file(file: Path, listener: Optional[str], initial_version: str) -> WeightsFile:
    """The initial state of a gateway, which is also written. listener: the process at the server's port now.

    initial_version: of the weights that the server starts with; used only by the first gateway, which finds no file.
    Raises OSError if the file cannot be written.
    """
    weights_file = _read(file, listener, initial_version)
    weights_file.write()
    return weights_file


def engine_gone(why: str) -> str:
    return f"the inference server was restarted or lost ({why}), and its weights are unknown until the next update"


def _read(file: Path, listener: Optional[str], initial_version: str) -> WeightsFile:
    try:
        fields = json.loads(file.read_text())
        known, server = _known(fields), fields["server"]
    except FileNotFoundError:
        return WeightsFile(Weights.fresh(initial_version) if initial_version else Weights(), file, listener)
    except (ValueError, KeyError, TypeError, RecursionError, OSError) as error:
        why = error.strerror if isinstance(error, OSError) else type(error).__name__  # other texts quote the file
        reason = f"this gateway was restarted and cannot read its state file {file}: {why}"
        return WeightsFile(Weights.of(Known(WeightsStatus(reason=reason))), file, listener)
    weights_file = WeightsFile(Weights.of(known), file, server)
    lost = (
        weights_file.on_listener(listener) if listener is not None and server is not None else WeightsLost(NO_VERSION)
    )
    if lost is not None:
        weights_file.weights.handle(lost)
    log.info("read the state file: weights %s %s", weights_file.weights.state.value, weights_file.weights.version)
    return weights_file


def _known(fields: Any) -> Known:
    if fields["format"] != _FORMAT:
        raise ValueError(f"expected format {_FORMAT}; seen {fields['format']!r}")
    weights = dict(fields["weights"])
    now, before = _weights_status(weights.pop("now")), _weights_status(weights.pop("before"))
    epoch, term, number = weights.pop("fence")
    group = weights.pop("group")
    joined = None if group is None else Group(**group)
    return Known(now=now, before=before, fence=(epoch, term, number), group=joined, **weights)


def _weights_status(fields: Any) -> WeightsStatus:
    return WeightsStatus(WeightsState(fields["state"]), fields["version"], fields["reason"])
