"""The members of a run, for display."""

from collections.abc import Iterable
from dataclasses import dataclass

from understudy_local.local_pod import LocalPod
from understudy_protocol.enums import WorkersState
from understudy_protocol.observer import MemberView, Snapshot

_STATES = {
    WorkersState.IDLE: ("idle", "dim"),
    WorkersState.STARTING: ("starting", "yellow"),
    WorkersState.RUNNING: ("running", "green"),
    WorkersState.FAILED: ("failed", "red"),
    WorkersState.FINISHED: ("finished", "cyan"),
}


@dataclass(frozen=True)
class Row:
    """A member as it is shown."""

    node: str
    role: str
    ranks: str
    state: str
    style: str
    coordinates: bool


def member_rows(pods: Iterable[LocalPod], snapshot: Snapshot | None, nproc: int) -> list[Row]:
    """The live members, by node."""
    members = {} if snapshot is None else {member.pod_uid: member for member in snapshot.members}
    coordinator = "" if snapshot is None else snapshot.pod_uid
    live = sorted((pod for pod in pods if pod.holds_node), key=lambda pod: int(pod.place.node.rpartition("-")[2]))
    return [_row(pod, members.get(pod.place.pod_uid), coordinator, nproc) for pod in live]


def _row(pod: LocalPod, member: MemberView | None, coordinator: str, nproc: int) -> Row:
    coordinates = pod.place.pod_uid == coordinator
    if member is None:
        return Row(pod.place.node, "-", "-", "ending" if pod.deleting else "joining", "yellow", coordinates)
    if member.group_rank is None:
        return Row(pod.place.node, "spare", "-", "warm", "dim", coordinates)
    first = member.group_rank * nproc
    ranks = str(first) if nproc == 1 else f"{first}-{first + nproc - 1}"
    return Row(pod.place.node, "active", ranks, *_STATES[member.workers], coordinates)
