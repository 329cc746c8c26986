"""The verdict that the launcher finds: what the operator tells of the node, and what a file on the node says.

Rules: the node is faulty as long as either says so; one that is withdrawn leaves the other. What was told outlives a
sidecar that crashes, apart from the file's word, which the next one looks for itself.
"""

from pathlib import Path

from understudy_protocol.enums import Verdict
from understudy_protocol.membership import NodeVerdict
from understudy_sidecar import records


class Verdicts:
    """Keeps `verdict.json` in the launcher's folder. node_file: the file's name on the node."""

    def __init__(self, folder: Path, state: Path, node_file: str) -> None:
        self._folder, self._state, self._node_file = folder, state, node_file
        self._coordinator_verdict = records.recorded_coordinator_verdict(state)
        self._node_file_exists = False

    @property
    def newest(self) -> NodeVerdict:
        """What was told last."""
        return self._coordinator_verdict

    def on_verdict(self, verdict: NodeVerdict) -> None:
        """By the operator, in place of what it told before: member.py has seen that it is newer."""
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
    """own: of the file, where it is there; it does not expire."""
    if own is None:
        return from_coordinator
    if (
        from_coordinator.verdict is not Verdict.FAULTY or from_coordinator.until is not None
    ):  # which would take the file's word along
        return own
    return NodeVerdict(
        Verdict.FAULTY, f"{from_coordinator.reason}; {own.reason}" if from_coordinator.reason else own.reason
    )
