"""`drain`: the pods of a job that a user means, whether their ranks can move, and the result. Pure.

The operator and the coordinator do the swap (understudy_sidecar/membership/proactive.py). A pod with ranks waits until
a spare is ready; a pod without ranks is deleted.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from understudy_cli.command_errors import NotFound, NotPossible
from understudy_cli.facts import Job, Pod, Recovery
from understudy_cli.views.jobs import ranks_of
from understudy_cli.views.phrases import NONE, precise
from understudy_protocol import pod as names

#: Names that a message lists.
NAMED = 8


class DrainState(StrEnum):
    REQUESTED = "requested"
    WAITING = "waits"  # for a spare, or for the workers that save
    RECOVERING = "a spare takes over"
    DONE = "done"


@dataclass(frozen=True)
class DrainRow:
    """A pod that is drained. strategy, pause and lost: of its recovery, as far as they are known."""

    pod: str
    ranks: str
    node: str
    state: DrainState
    strategy: str = NONE
    pause: str = NONE
    lost_steps: str = NONE


@dataclass(frozen=True)
class DrainPlan:
    """pods: to drain, the oldest rank first. spares: ready ones that may take their ranks."""

    pods: tuple[Pod, ...]
    spares: int

    @property
    def with_ranks(self) -> int:
        return sum(pod.group_rank is not None for pod in self.pods)

    @property
    def remark(self) -> str:
        """A note for the user about the request; "" if there is none."""
        if self.with_ranks > self.spares:
            few = "1 spare is" if self.spares == 1 else f"{self.spares} spares are"
            return f"{few} ready for {self.with_ranks} pods: the others follow when new spares are ready"
        return ""


def plan_drain(job: Job, pods: Sequence[Pod], target: str) -> DrainPlan:
    """target: the name of a pod, or of a node. Raises NotFound, NotPossible."""
    chosen = chosen_pods(job, pods, target)
    if job.has_ended:
        raise NotPossible(f"job {job.name} has ended: there are no ranks to move")
    if job.is_true("Suspended"):
        raise NotPossible(f"job {job.name} is suspended: its pods end without a drain")
    if job.round is None or job.round < 0:
        raise NotPossible(f"job {job.name} has not begun to train: delete the pod instead: kubectl delete pod NAME")
    uids = {pod.uid for pod in chosen}
    spares = sum(
        pod.role == names.ROLE_SPARE and pod.is_ready and not pod.has_ended for pod in pods if pod.uid not in uids
    )
    drain = DrainPlan(chosen, spares)
    if drain.with_ranks and not spares:
        raise NotPossible(_no_spare(job, chosen))
    return drain


def chosen_pods(job: Job, pods: Sequence[Pod], target: str) -> tuple[Pod, ...]:
    """The pods of this name or on this node that have not ended, by rank. Raises NotFound, NotPossible."""
    named = [pod for pod in pods if pod.name == target] or [pod for pod in pods if pod.node == target]
    if not named:
        raise NotFound(
            f"job {job.name} has no pod {target}, and no pod on a node {target}. Its pods: "
            f"{_listed(pod.name for pod in pods)}. Their nodes: {_listed(pod.node for pod in pods)}"
        )
    running = [pod for pod in named if not pod.has_ended and pod.state != "Terminating"]
    if not running:
        raise NotPossible(f"pod {named[0].name} of job {job.name} ends already: {named[0].state}")
    return tuple(sorted(running, key=lambda pod: (pod.group_rank is None, pod.group_rank or 0, pod.name)))


def requested_rows(drain: DrainPlan) -> tuple[DrainRow, ...]:
    return tuple(DrainRow(pod.name, ranks_of(pod), pod.node or NONE, DrainState.REQUESTED) for pod in drain.pods)


def drain_rows(
    drain: DrainPlan, pods: Iterable[Pod], recoveries: Iterable[Recovery], known: Collection[float | None]
) -> tuple[DrainRow, ...]:
    """The state of the drained pods. pods, recoveries: of the job now. known: when earlier ones were detected."""
    left = {pod.uid for pod in pods if not pod.has_ended}
    newest = {recovery.cause.pod: recovery for recovery in recoveries if recovery.detected_at not in known}
    return tuple(_row(pod, newest.get(pod.name), exists=pod.uid in left) for pod in drain.pods)


def _row(pod: Pod, recovery: Recovery | None, *, exists: bool) -> DrainRow:
    ranks, node = ranks_of(pod), pod.node or NONE
    if recovery is None:
        is_done = pod.group_rank is None and not exists
        return DrainRow(pod.name, ranks, node, DrainState.DONE if is_done else DrainState.WAITING)
    return DrainRow(
        pod=pod.name,
        ranks=ranks,
        node=node,
        state=DrainState.RECOVERING if recovery.is_open else DrainState.DONE,
        strategy=recovery.strategy or NONE,
        pause=NONE if recovery.pause_s is None else precise(recovery.pause_s),
        lost_steps=NONE if recovery.lost_steps is None else str(recovery.lost_steps),
    )


def late(job: Job, rows: Iterable[DrainRow], limit_s: float, program: str) -> str:
    """The message when the time of --wait is over."""
    waiting = [row.pod for row in rows if row.state is not DrainState.DONE]
    spares = job.condition("SparesReady")
    why = "" if spares is None or spares.is_true or not spares.message else f" ({spares.message})"
    return (
        f"not done after {limit_s:g} s: {_listed(waiting)}{why}. The request stays: {program} get {job.name} -w shows "
        f"the job, and {program} drain {job.name} {waiting[0]} --cancel withdraws the request"
    )


def _no_spare(job: Job, pods: Sequence[Pod]) -> str:
    pool = f" A spare of pool {job.pool} is claimed only for a pod that is lost." if job.pool else ""
    many = f"pod {pods[0].name}" if len(pods) == 1 else f"{len(pods)} pods"
    return (
        f"job {job.name} has no ready spare that could take the ranks of {many} (spares: {job.spares_ready} of "
        f"{job.spares_desired} ready).{pool} Raise spec.spares.replicas, or wait until a spare is ready"
    )


def _listed(found: Iterable[str]) -> str:
    unique = sorted({name for name in found if name})
    more = [f"and {len(unique) - NAMED} more"] if len(unique) > NAMED else []
    return ", ".join([*unique[:NAMED], *more]) or "none"
