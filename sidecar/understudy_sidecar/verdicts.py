"""The verdict that the launcher finds: what the operator tells of the node, and what a file on the node says.

Rules: the node is faulty as long as either says so; one that is withdrawn leaves the other. What was told outlives a
sidecar that crashes, apart from the file's word, which the next one looks for itself.
"""

from pathlib import Path

from understudy_protocol.membership import NodeVerdict
from understudy_protocol.words import Verdict
from understudy_sidecar import records


class Verdicts:
    """Keeps `verdict.json` in the launcher's folder. node_file: the file's name on the node."""

    def __init__(self, folder: Path, state: Path, node_file: str) -> None:
        self._folder, self._state, self._node_file = folder, state, node_file
        self._told = records.recorded_told(state)
        self._exists = False

    @property
    def newest(self) -> NodeVerdict:
        """What was told last."""
        return self._told

    def told(self, verdict: NodeVerdict) -> None:
        """By the operator, in place of what it told before: member.py has seen that it is newer."""
        self._told = verdict
        records.record_told(self._state, verdict)
        self._write()

    def found(self, exists: bool) -> None:
        self._exists = exists
        self._write()

    def _write(self) -> None:
        own = NodeVerdict(Verdict.FAULTY, f"{self._node_file} exists on the node") if self._exists else None
        records.record_verdict(self._folder, combined(self._told, own))


def combined(told: NodeVerdict, own: NodeVerdict | None) -> NodeVerdict:
    """own: of the file, where it is there; it does not expire."""
    if own is None:
        return told
    if told.verdict is not Verdict.FAULTY or told.until is not None:  # which would take the file's word along
        return own
    return NodeVerdict(Verdict.FAULTY, f"{told.reason}; {own.reason}" if told.reason else own.reason)
