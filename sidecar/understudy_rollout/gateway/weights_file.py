"""What a gateway knows of its server's weights, kept in a file for the gateway that is started after it.

Rules: what is told is in the file before it is answered, so a gateway that dies at any point knows afterwards no more
than was so. What was kept counts only for the server that it was kept about: `listener` tells whether it is still the
same process. Of any other server, and where that cannot be told, nothing is known: Uncertain. The file belongs on a
memory-backed volume of the pod, which outlives its containers and not the pod.
"""

import json
import logging
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any, Optional

from understudy_rollout.gateway.listener import NOBODY
from understudy_rollout.weights import Call, Commit, Event, Group, Held, Known, Lost, Refused, State, Weights

_FORMAT = 2
NO_VERSION = "this gateway was restarted, and the inference server may have been restarted, too"
log = logging.getLogger(__name__)


class WeightsFile:
    """weights: what is known, whatever else is here. Without a file nothing outlives the process."""

    def __init__(self, weights: Weights, file: Optional[Path] = None, server: Optional[str] = NOBODY) -> None:
        self.weights = weights
        self._file = file
        self._server = server  # whose weights these are, as `listener_at` names it

    def handle(self, event: Event) -> None:
        """Raises Refused, or OSError where it could not be kept: then it must not be taken for told."""
        try:
            self.weights.handle(event)
        except Refused:
            self._write_or_log()  # a late event is refused, and yet changes what is known
            raise
        if isinstance(event, Call):
            return
        if isinstance(event, Commit) and self._server == NOBODY:
            self._server = (
                None  # an update has reached it, so it listens: where that is not seen, no look can be relied on
            )
        self.write()

    def on_listener(self, listener: Optional[str]) -> Optional[Lost]:
        """Who listens now. Gives what follows if that is not whose weights these are."""
        if listener is None or listener == self._server:
            return None
        former, self._server = self._server, listener
        if not former:
            self._write_or_log()
            return None
        who = "no process" if listener == NOBODY else "another process"
        return Lost(engine_gone(f"{who} listens on its port"))

    def on_engine_lost(self, lost: Lost) -> None:
        self.weights.handle(lost)
        self._write_or_log()

    def write(self) -> None:
        if self._file is None:
            return
        told = {"format": _FORMAT, "server": self._server, "weights": asdict(self.weights.known())}
        unfinished = self._file.with_name(f"{self._file.name}.unfinished")
        unfinished.write_text(json.dumps(told, default=lambda value: value.value))
        os.replace(unfinished, self._file)

    def _write_or_log(self) -> None:
        try:
            self.write()
        except OSError as error:
            # Whoever comes after us sees another server than the one in the file, and does not trust it.
            log.error("cannot write the state file: %s; after a restart of the gateway, the weights are unknown", error)


def open_weights_file(file: Path, listener: Optional[str], initial_version: str) -> WeightsFile:
    """What a gateway begins with, and has written. listener: who listens at the server's port now.

    initial_version: of the weights that the server starts with; counts for the first gateway alone, which finds no
    file. Raises OSError where the file cannot be written.
    """
    weights_file = _read(file, listener, initial_version)
    weights_file.write()
    return weights_file


def engine_gone(why: str) -> str:
    return f"the inference server was restarted or lost ({why}), and its weights are unknown until the next update"


def _read(file: Path, listener: Optional[str], initial_version: str) -> WeightsFile:
    try:
        told = json.loads(file.read_text())
        known, server = _known(told), told["server"]
    except FileNotFoundError:
        return WeightsFile(Weights.fresh(initial_version) if initial_version else Weights(), file, listener)
    except (ValueError, KeyError, TypeError, RecursionError, OSError) as error:
        why = error.strerror if isinstance(error, OSError) else type(error).__name__  # other texts quote the file
        reason = f"this gateway was restarted and cannot read its state file {file}: {why}"
        return WeightsFile(Weights.of(Known(Held(reason=reason))), file, listener)
    weights_file = WeightsFile(Weights.of(known), file, server)
    lost = weights_file.on_listener(listener) if listener is not None and server is not None else Lost(NO_VERSION)
    if lost is not None:
        weights_file.weights.handle(lost)
    log.info("read the state file: weights %s %s", weights_file.weights.state.value, weights_file.weights.version)
    return weights_file


def _known(told: Any) -> Known:
    if told["format"] != _FORMAT:
        raise ValueError(f"expected format {_FORMAT}; seen {told['format']!r}")
    weights = dict(told["weights"])
    now, before = _held(weights.pop("now")), _held(weights.pop("before"))
    epoch, term, number = weights.pop("fence")
    group = weights.pop("group")
    joined = None if group is None else Group(**group)
    return Known(now=now, before=before, fence=(epoch, term, number), group=joined, **weights)


def _held(told: Any) -> Held:
    return Held(State(told["state"]), told["version"], told["reason"])
