"""The verdict for the launcher: the operator's verdict, combined with a file on the node.

Rules: the node is faulty as long as either of the two reports it; the withdrawal of one leaves the other. The
operator's verdict survives a crash of the sidecar; the next process checks the file again.
"""

from pathlib import Path

from understudy_protocol.enums import Verdict
from understudy_protocol.membership import NodeVerdict
from understudy_sidecar import records


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
