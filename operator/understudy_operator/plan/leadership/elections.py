"""Whether members can still elect a coordinator among themselves.

Rules: once a coordinator has reported a voter configuration, the operator does not interfere as long as an election may
succeed. It appoints a coordinator only if pods have answered for RESPONDING_S, no answer has led to a leader, and
  - less than a majority of the voters may still run: a leader that the operator does not reach forms no round, or
  - it has found no coordinator for UNREACHABLE_S, and every pod that could become the leader (the last coordinator and
    its standby coordinators) has provably ended, or
  - it has found no coordinator for twice the coordinatorLossTimeout: by then the workers of all members without a
    coordinator have ended, on every node. With coordinatorLossTimeout Off, time proves nothing.

Proof that a pod has ended: its phase, from its kubelet; or its node is deleted, or has the taint out-of-service; or the
object is deleted while its node is ready, whose kubelet then has ended the pod. An object that was deleted by force
from a dead node proves nothing. The operator knows the nodes of deleted pods that it has seen, and of the members and
lost members of the last snapshot. A restarted operator knows no voter configuration: it relies on time alone.

As long as the members that answer name a coordinator, the operator appoints none: members can reach this coordinator,
and would not follow an appointed one.

One of at most two voters is no majority, so the operator has the casting vote. It appoints one of them
  - at once, if this voter coordinates and lacks the other voter: no other pod can be elected without its vote
  - after WITNESS_S without a coordinator, if the other voter does not respond to the operator either
  - at once, if the other voter has provably ended.
The only voter elects itself; if it has not within WITNESS_S, the operator appoints it. If no voter is left, it appoints
another pod: at once if all have provably ended, or after UNREACHABLE_S without a coordinator if the nodes of the others
are not ready.
"""

from collections.abc import Callable, Collection
from functools import cache

from understudy_operator.plan.facts.job import Job
from understudy_operator.plan.facts.observed import FEW_VOTERS, Observed, term_of
from understudy_operator.plan.times.reconcile_clock import is_due
from understudy_protocol import pod as names
from understudy_protocol.enums import Term
from understudy_protocol.observer import Snapshot
from understudy_protocol.pod import COORDINATOR_PORT

UNREACHABLE_S = 8.0
#: A coordinator whose sidecar restarts is back within so long, and is elected again.
WITNESS_S = 3.0
#: An operator finds a coordinator within so long after the first answer, also if it was cut off itself. It stays
#: connected to all pods that can be elected.
RESPONDING_S = 2.0
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"


def has_voters(observed: Observed, term: Term) -> bool:
    """Whether members may elect a coordinator within the epoch of this term."""
    if observed.coordination.answers.config_epoch >= term.epoch:
        return True
    if term.number == 0:
        return False  # the appointed pod has not reported yet, and an epoch begins without a voter configuration
    snapshot = _snapshot_since(observed, term)
    if snapshot is None:
        return observed.job.round >= 0  # a previous operator found this leader: since the first round it has voters
    return bool(snapshot.voters)


def reason_against_election(observed: Observed, term: Term, now: float) -> str:
    """Why members cannot elect a coordinator any more; "" as long as they may, or there is a leader."""
    link, ended = observed.coordination, provably_ended(observed)
    if link.coordinator_uid or _named_coordinator(observed, ended):
        return ""
    snapshot = _snapshot_since(observed, term)
    if snapshot is not None and observed.has_few_voters and (why := _casting_vote(observed, snapshot, ended, now)):
        return why
    if not is_due(max(link.since, link.answers.since) + RESPONDING_S, now):
        return ""
    if snapshot is not None and (why := _lost_majority(snapshot, ended)):
        return f"{why}, and no pod that responds has a coordinator"
    if not is_due(link.since + UNREACHABLE_S, now):
        return ""
    fence_s = observed.job.world.fence_s
    if fence_s and is_due(link.since + 2 * fence_s, now):
        return f"no coordinator was found for {2 * fence_s:g} s, twice the coordinatorLossTimeout"
    why = "" if snapshot is None else _lost_candidates(snapshot, ended)
    return f"no coordinator was found for {UNREACHABLE_S:g} s, and {why}" if why else ""


def is_coordinator_missing(observed: Observed, now: float) -> bool:
    """Whether no coordinator is left that could report the pods on nodes that are not ready as lost.

    For a small job, if it has had no coordinator for UNREACHABLE_S: a connection may end while the pod behind it is
    well, so the operator searches that long first. For any other job, if its members can elect none any more.
    """
    if observed.coordination.coordinator_uid:
        return False
    if not observed.on_dead_nodes:
        return False  # nothing depends on the answer, so no reconcile is due for it
    if observed.has_few_voters:
        return is_due(observed.coordination.since + UNREACHABLE_S, now)
    recorded = observed.job.status.coordinator
    return bool(reason_against_election(observed, Term(recorded.epoch, recorded.term), now))


def lacks_other_voter(observed: Observed, term: Term) -> bool:
    """Whether one of at most two voters is the coordinator, and has lost the other one."""
    snapshot = _snapshot_since(observed, term)
    if snapshot is None or observed.coordination.coordinator_uid != snapshot.pod_uid:
        return False
    return snapshot.lacks_quorum and snapshot.pod_uid in snapshot.voters and len(snapshot.voters) <= FEW_VOTERS


def missing_voters(observed: Observed) -> frozenset[str]:
    """Of at most two voters, those that no process has reached: an appointed coordinator does not wait for them."""
    snapshot = observed.snapshot
    if snapshot is None or len(snapshot.voters) > FEW_VOTERS:
        return frozenset()
    reached = observed.coordination.answers.pods
    if snapshot.lacks_quorum:
        reached |= {snapshot.pod_uid}
    return frozenset(snapshot.voters) - reached


def ended_voters(observed: Observed) -> tuple[str, ...]:
    """uids of the voters that a new coordinator need not wait for: their pods have ended, or no longer exist.

    It waits only for a limited time anyway, so this needs less proof than an appointment.
    """
    snapshot = observed.snapshot
    if snapshot is None or not snapshot.waiting_for:
        return ()
    ended = provably_ended(observed)
    existing = {pod.uid for pod in (*observed.pods, *observed.claimed)}
    missing = set(snapshot.voters).difference(member.pod_uid for member in snapshot.members)
    return tuple(sorted(uid for uid in missing if uid not in existing or ended(uid)))


def _casting_vote(observed: Observed, snapshot: Snapshot, ended: Callable[[str], bool], now: float) -> str:
    link = observed.coordination
    left = [uid for uid in snapshot.voters if not ended(uid)]
    answered = link.answers.pods.intersection(left)
    if answered and len(left) == 1 < len(snapshot.voters):
        return "the other voter has ended"
    if answered and is_due(max(link.since, link.answers.since) + WITNESS_S, now):
        missing = ", ".join(_names(observed, snapshot, set(left) - answered))
        if not missing:
            return f"the voters respond, but have elected no coordinator within {WITNESS_S:g} s"
        return f"{missing} did not respond to the operator and to the other pod for {WITNESS_S:g} s"
    if answered:
        return ""
    nodes = {member.pod_uid: member.node for member in snapshot.members}
    dead = all(uid in nodes and not observed.node_ready(nodes[uid]) for uid in left)
    if dead and (not left or is_due(link.since + UNREACHABLE_S, now)):
        return "no voter is left: they have ended, or their nodes are not ready"
    return ""


def _names(observed: Observed, snapshot: Snapshot, uids: Collection[str]) -> list[str]:
    known = {x.pod_uid: x.pod_name for x in snapshot.members} | {pod.uid: pod.name for pod in observed.pods}
    return sorted(known.get(uid, uid) for uid in uids)


def unreported_loss(observed: Observed, now: float) -> str:
    """A message about why the job does not train while it has no coordinator; "" if it may train.

    A coordinator that the operator has found, or that members name, reports losses itself.
    """
    link = observed.coordination
    if observed.job.round < 0 or link.coordinator_uid or _named_coordinator(observed, provably_ended(observed)):
        return ""
    pods = {pod.uid: pod for pod in (*observed.pods, *observed.claimed)}
    rank_holders = _rank_holders(observed)
    for uid, name in rank_holders.items():
        pod = pods.get(uid)
        if pod is None or pod.phase == "Failed":
            state = "is gone" if pod is None else f"has failed{pod.failure and ': '}{pod.failure}"
            return f"no coordinator, and pod {name} {state}"
    if all(pod.is_done for pod in pods.values()):
        return "no coordinator, and no pod of the job is left"
    if not is_due(link.since + UNREACHABLE_S, now):
        return ""
    for uid, name in rank_holders.items():
        node = pods[uid].node
        if node and not pods[uid].is_done and not observed.node_ready(node):
            return f"no coordinator, and pod {name} is on node {node}, which is not ready"
    answered = rank_holders.keys() & link.answers.pods
    coordinator = "" if observed.snapshot is None else observed.snapshot.pod_uid
    if answered and coordinator in rank_holders.keys() - answered:
        return f"no coordinator, and pod {rank_holders[coordinator]}, which was the coordinator, does not respond"
    fence_s = observed.job.world.fence_s
    if fence_s and answered and is_due(link.since + fence_s, now):
        return f"no coordinator for {fence_s:g} s, the coordinatorLossTimeout: the pods have stopped their workers"
    return ""


def _rank_holders(observed: Observed) -> dict[str, str]:
    """The rank holders of the newest round, described, by uid; from their labels if no coordinator has reported."""
    snapshot = observed.snapshot
    if snapshot is None:
        active_pods = (
            pod for pod in observed.pods if pod.labels.get(names.LABEL_ROLE) == names.ROLE_ACTIVE and not pod.is_done
        )
        return {pod.uid: pod.name for pod in active_pods}
    rank_holders = (member for member in snapshot.members if member.group_rank is not None)
    return {member.pod_uid: f"{member.pod_name} (group rank {member.group_rank})" for member in rank_holders}


def waits_for_election(observed: Observed, now: float) -> str:
    """A message about the wait of a job without a coordinator; "" if it has one, or lost it only a moment ago."""
    link = observed.coordination
    if observed.job.round < 0 or link.coordinator_uid or not is_due(link.since + UNREACHABLE_S, now):
        return ""
    if named := _named_coordinator(observed, provably_ended(observed)):
        pod = observed.pods.by_uid.get(named)
        name = named if pod is None else pod.name
        return (
            f"the pods follow coordinator {name}, which the operator cannot reach, so status does not change: allow "
            f"the operator to connect to {_ports(observed.job)} of the job's pods"
        )
    fence_s = observed.job.world.fence_s
    until = f", or {2 * fence_s:g} s after the last coordinator was lost"
    return (
        "waiting for a coordinator: the pods elect one if a majority of them is left; otherwise the operator appoints "
        f"one when the missing pods have ended, or when their nodes are deleted or have the taint {OUT_OF_SERVICE}"
    ) + (until if fence_s else " (coordinatorLossTimeout is Off: there is no time limit)")


def _ports(job: Job) -> str:
    return f"ports {job.sidecar_settings.host_ports}" if job.world.host_network else f"port {COORDINATOR_PORT}"


def _named_coordinator(observed: Observed, ended: Callable[[str], bool]) -> str:
    """The coordinator that the answering members follow; "" if there is none that may run."""
    return next((uid for uid in sorted(observed.coordination.answers.named_coordinators) if not ended(uid)), "")


def _snapshot_since(observed: Observed, term: Term) -> Snapshot | None:
    """The newest report of a leader of that term or a later one."""
    snapshot = observed.snapshot
    return None if snapshot is None or term_of(snapshot) < term else snapshot


def _lost_majority(snapshot: Snapshot, ended: Callable[[str], bool]) -> str:
    """Why the voters that may run are no majority; "" if they are one, or before there are voters."""
    remaining, needed = sum(not ended(uid) for uid in snapshot.voters), len(snapshot.voters) // 2 + 1
    if snapshot.voters and remaining < needed:
        return f"{remaining} of {len(snapshot.voters)} voters are left, but an election needs {needed}"
    return ""


def _lost_candidates(snapshot: Snapshot, ended: Callable[[str], bool]) -> str:
    """Why no voter can be elected; "" if one can, or before there are voters."""
    if not snapshot.voters or not all(ended(uid) for uid in {snapshot.pod_uid, *snapshot.standby_coordinators}):
        return ""
    return "the pods of the last coordinator and of all its standby coordinators have ended"


def provably_ended(observed: Observed) -> Callable[[str], bool]:
    """A test for pod uids. A pod about which nothing is known may run."""
    pods = observed.pods.by_uid

    @cache
    def last_nodes() -> dict[str, str]:
        seen = {stay.uid: stay.node for stay in observed.past_stays}
        snapshot = observed.snapshot
        if snapshot is None:
            return seen
        return {x.pod_uid: x.node for x in snapshot.lost} | {x.pod_uid: x.node for x in snapshot.members} | seen

    def gone(node: str) -> bool:
        entry = observed.nodes.get(node)
        return bool(node) and (entry is None or entry.out_of_service)

    def ended(uid: str) -> bool:
        pod = pods.get(uid)
        if pod is not None:
            return pod.ended or gone(pod.node)
        node = last_nodes().get(uid, "")
        return gone(node) or observed.node_ready(node)

    return ended
