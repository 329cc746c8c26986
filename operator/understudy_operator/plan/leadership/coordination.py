"""The coordinator of a job: the operator follows the elections among members, and appoints one if none is possible.

Rules: the first coordinator is a spare if there is one (the member least likely to fail with the training). If it is
promoted, it stays the coordinator. Status has the leader of the newest (epoch, term) that was found. The operator
appoints a coordinator, in a higher epoch that it first writes to status,
  - at the start of the job;
  - without a voter configuration (before the first round; before the appointed pod has reported): once the
    coordinator's pod has ended or is being deleted, its node is not ready, it was not reachable
    for UNREACHABLE_S, or its sidecar reports that it is not the leader and names no other;
  - otherwise only if no election can succeed any more (elections.py), and only a pod that has answered. A coordinator
    whose pod is being deleted transfers its leadership by itself.
Members follow only the newest epoch, and a round needs every rank: so of two coordinators that both consider
themselves the leader, at most one can train.

An epoch is the Unix time of its appointment: a job that is deleted and recreated on the same storage has newer rounds
than all that the old job wrote there, so UNDERSTUDY_ROUND also fences across jobs of the same name.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from understudy_operator.plan.facts.cluster_objects import Node, Pod, with_findings
from understudy_operator.plan.facts.launcher_choice import MOST_MEMBERS
from understudy_operator.plan.facts.observed import Observed, ends_early, term_of
from understudy_operator.plan.facts.pods import Pods, cached_with_pods
from understudy_operator.plan.facts.status import written
from understudy_operator.plan.faults.drains import drain_requests
from understudy_operator.plan.intents import MESSAGE_BYTES, POD_BYTES, Callee, Follow, PatchPod, Unfollow
from understudy_operator.plan.leadership.elections import (
    UNREACHABLE_S,
    ended_voters,
    has_voters,
    lacks_other_voter,
    missing_voters,
    reason_against_election,
)
from understudy_operator.plan.times.reconcile_clock import is_due
from understudy_protocol import enums
from understudy_protocol import pod as names
from understudy_protocol.enums import CloseReason
from understudy_protocol.membership import Close, RankHolder
from understudy_protocol.observer import Appoint, End, NodeFact

#: Without a coordinator all workers have ended after twice this time. Used also with coordinatorLossTimeout Off.
FENCE_S = 30.0
#: How long after its creation a job waits for a spare to be up before an active member becomes the coordinator.
SPARE_PATIENCE_S = 10.0
#: An Appoint names at most so many rank holders.
MAX_RANK_HOLDERS = 100
#: After a rejected appointment the operator waits at least so long: answers come within milliseconds.
REFUSED_S = 1.0
#: The message to the pods of a deleted job. They get SIGTERM anyway.
JOB_DELETED = Unfollow(End(CloseReason.DELETED, "the TrainingJob was deleted"))


@dataclass(frozen=True)
class Leadership:
    """The current leader, as in status. reason: why the operator has appointed a new one; "" if it has not."""

    epoch: int
    term: int  # 0: appointed, and not yet known to lead
    pod: Pod | None
    reason: str

    @property
    def as_term(self) -> enums.Term:
        return enums.Term(self.epoch, self.term)


def plan_leadership(observed: Observed, now: float) -> Leadership:
    """The leadership after this reconcile."""
    leadership = _known_leadership(observed)
    if observed.job.spec.world is None or observed.close is not None or observed.job.deleting:
        return leadership
    if observed.job.spec.suspend:
        return leadership  # the remaining pods are about to be deleted
    answered = observed.coordination.answers.pods
    if leadership.epoch <= observed.job.previous_epoch:
        reason, eligible = "the job starts", _eligible_pods(observed, observed.live)
    elif lacks_other_voter(observed, leadership.as_term):
        reason = "the other voter is lost, and one of two voters is no majority"
        eligible = (
            pod
            for pod in _eligible_pods(observed, observed.pods)
            if leadership.pod is not None and pod.uid == leadership.pod.uid
        )
    elif has_voters(observed, leadership.as_term):
        reason = reason_against_election(observed, leadership.as_term, now)
        # A pod that has answered runs, even if a coordinator without a majority has reported it as lost.
        eligible = (pod for pod in _eligible_pods(observed, observed.pods) if pod.uid in answered)
    else:
        reason = _unfit(observed, leadership.pod, now)
        # A pod that is no longer the leader may become it in a new epoch; an unreachable one may not.
        excluded_uid = "" if leadership.pod is None or leadership.pod.uid in answered else leadership.pod.uid
        eligible = (pod for pod in _eligible_pods(observed, observed.live) if pod.uid != excluded_uid)
    appointee = _choose(observed, list(eligible), now) if reason else None
    return leadership if appointee is None else Leadership(max(leadership.epoch + 1, int(now)), 0, appointee, reason)


def plan_link(observed: Observed, leadership: Leadership, now: float) -> Follow | Unfollow | None:
    """The operator's connections to the coordinator, or to pods that may know one."""
    if observed.job.deleting:
        return Unfollow() if observed.job.orphans else JOB_DELETED
    if observed.close is not None:
        return _send_end(observed, leadership, observed.close)
    if not leadership.epoch:
        return None
    if leadership.epoch <= observed.job.previous_epoch:
        return Unfollow()
    appoint = _appointment(observed, leadership.epoch, now) if leadership.term == 0 else None
    first = (
        []
        if leadership.pod is None or leadership.pod.ended
        else [Callee(leadership.pod.uid, leadership.pod.address, appoint)]
    )
    unended = observed.pods.unended
    running = unended.by_uid
    standbys = () if observed.snapshot is None else observed.snapshot.standby_coordinators
    first += [Callee(uid, running[uid].address) for uid in standbys if uid in running]
    searching = not observed.coordination.coordinator_uid or observed.lacks_majority
    # A pod that runs and is not a member may follow a coordinator that was replaced.
    unknown = unended if searching else unended.with_uids(running.keys() - observed.member_uids)
    others = [Callee(pod.uid, pod.address) for pod in unknown if pod.sidecar_started]
    nodes, drains = _nodes(observed, unended, now), drain_requests(unended)
    return Follow(
        leadership.as_term,
        _reachable(first),
        _reachable(others),
        nodes,
        drains,
        _addresses(unended),
        _message_bytes(observed),
        ended_pods=ended_voters(observed),
    )


@cached_with_pods
def _addresses(pods: Pods) -> Mapping[str, str]:
    """By uid."""
    return {pod.uid: pod.address for pod in pods}


def _send_end(observed: Observed, leadership: Leadership, close: Close) -> Follow | Unfollow:
    """Send the close to pods that still run, because their coordinator may have ended before it could send it."""
    if ends_early(observed):
        return Unfollow(End(CloseReason.DELETED, f"the job has ended: {close.message}"))
    end = End(close.reason, close.message)
    running = [pod for pod in observed.pods if not pod.is_done and pod.sidecar_started and pod.address]
    if not running:
        return Unfollow()
    callees = tuple(Callee(pod.uid, pod.address, end=end) for pod in running)
    addresses = {pod.uid: pod.address for pod in running}
    return Follow(leadership.as_term, (), callees, (), (), addresses, _message_bytes(observed))


def _message_bytes(observed: Observed) -> int:
    world = observed.job.world
    return MESSAGE_BYTES + POD_BYTES * min(world.actives + world.spares, MOST_MEMBERS)


def plan_label(observed: Observed, leadership: Leadership) -> tuple[PatchPod, ...]:
    """The Service selects by this label, so that members find the coordinator. In a job without a Service, each pod is
    created with the label (manifests/pods.py), and keeps it.
    """
    patches = []
    holder = leadership.pod
    if holder is not None and holder.labels.get(names.LABEL_COORDINATOR) != "true":
        patches.append(PatchPod(holder.name, {names.LABEL_COORDINATOR: "true"}))
    for pods in (observed.pods, observed.previous_pods) if observed.coordinator_address else ():
        for pod in pods.with_label(names.LABEL_COORDINATOR):
            if holder is None or pod.uid != holder.uid:
                patches.append(PatchPod(pod.name, {names.LABEL_COORDINATOR: None}))
    return tuple(patches)


def _known_leadership(observed: Observed) -> Leadership:
    """The newest leadership that status or a coordinator reports."""
    recorded = observed.job.status.coordinator
    epoch, term, uid = recorded.epoch, recorded.term, recorded.pod_uid
    newest = observed.snapshot
    if newest is not None and term_of(newest) >= enums.Term(epoch, term):
        epoch, term, uid = newest.token.epoch, newest.token.term, newest.pod_uid
    return Leadership(epoch, term, observed.pods.by_uid.get(uid), "")


def _unfit(observed: Observed, holder: Pod | None, now: float) -> str:
    """Why the leader cannot continue, if there is no voter configuration; "" if it can."""
    if holder is None:
        return "the coordinator's pod is gone"
    if holder.ended:
        return f"the coordinator's pod {holder.name} has ended"
    if holder.deleting_since is not None:
        return f"the coordinator's pod {holder.name} is being deleted"
    link = observed.coordination
    answer = link.answers.by_pod.get(holder.uid)
    if (
        answer is not None
        and not answer.coordinator_uid
        and not link.coordinator_uid
        and is_due(link.since + REFUSED_S, now)
    ):
        return f"pod {holder.name} is not the coordinator: {answer.reason}"
    if not is_due(link.since + _patience_s(observed, holder), now):
        return ""
    if not observed.node_ready(holder.node):
        return f"node {holder.node} of the coordinator's pod {holder.name} is not ready"
    if link.coordinator_uid:
        return ""
    if is_due(link.since + UNREACHABLE_S, now):
        return f"the coordinator's pod {holder.name} could not be reached for {UNREACHABLE_S:g} s"
    return ""


def _patience_s(observed: Observed, holder: Pod) -> float:
    """How long to search for a coordinator that may run: it may train with pods that do not answer either."""
    answered = observed.coordination.answers.pods
    may_follow = [pod for pod in observed.pods.unended if pod.sidecar_started and pod.uid != holder.uid]
    if all(pod.uid in answered for pod in may_follow):
        return 0.0
    return 2 * (observed.job.world.fence_s or FENCE_S)


def _eligible_pods(observed: Observed, pods: Iterable[Pod]) -> Iterator[Pod]:
    answers = observed.coordination.answers
    running = (pod for pod in pods if pod.alive and pod.sidecar_started and observed.node_ready(pod.node))
    return (pod for pod in running if not answers.is_to_be_replaced(pod.uid))


def _choose(observed: Observed, eligible: list[Pod], now: float) -> Pod | None:
    world = observed.job.world
    spares = sorted((pod for pod in eligible if _is_waiting_spare(pod)), key=lambda pod: pod.created_at)
    if spares:
        return spares[0]
    first = not observed.job.status.coordinator.pod_uid
    begun_at = max(observed.job.created_at, min((pod.created_at for pod in observed.pods), default=0.0))
    if first and world.spares and not is_due(begun_at + SPARE_PATIENCE_S, now):
        return None
    if len(eligible) >= world.actives or not first:  # the first appointment waits for all active pods
        return min(eligible, key=lambda pod: (pod.index is None, pod.index or 0, pod.name), default=None)
    return None


def _is_waiting_spare(pod: Pod) -> bool:
    role = names.ROLE_SPARE if pod.spare else names.ROLE_ACTIVE  # injected pods have no role label before a round
    return pod.labels.get(names.LABEL_ROLE, role) == names.ROLE_SPARE


def _appointment(observed: Observed, epoch: int, now: float) -> Appoint:
    newest = -1 if observed.snapshot is None else observed.snapshot.token.round
    counts = written(observed.job.status.recoveries_by_strategy)
    by_strategy = {name[0].upper() + name[1:]: count for name, count in counts.items()}
    # A sidecar that restarts comes back; a pod that has answered runs, even if it was last reported as lost.
    may_come = {pod.uid for pod in observed.live if pod.sidecar_ran} - missing_voters(observed)
    may_come |= observed.coordination.answers.pods
    rank_holders, holder = _newest_round(observed, may_come)
    lost_at = observed.coordination.lost_at
    lost_s = None if lost_at is None else max(0.0, now - lost_at)
    return Appoint(
        epoch, max(newest, observed.job.round), by_strategy, tuple(sorted(may_come)), rank_holders, holder, lost_s
    )


def _newest_round(observed: Observed, may_come: Collection[str]) -> tuple[tuple[RankHolder, ...], str]:
    """Its rank holders, and the uid of its coordinator. Empty if this operator missed that round.

    Pods that may be lost come first: a node that has just lost its power is Ready for a while.
    """
    snapshot, answered = observed.snapshot, observed.coordination.answers.pods
    if snapshot is None or snapshot.token.round < observed.job.round:
        return (), ""
    rank_holders = [
        RankHolder(x.group_rank, x.pod_uid, x.pod_name, x.node) for x in snapshot.members if x.group_rank is not None
    ]
    rank_holders.sort(
        key=lambda rank_holder: (
            rank_holder.pod_uid in may_come,
            rank_holder.pod_uid in answered,
            rank_holder.group_rank,
        )
    )
    return tuple(rank_holders[:MAX_RANK_HOLDERS]), snapshot.pod_uid


def _reachable(callees: Iterable[Callee]) -> tuple[Callee, ...]:
    return tuple(callee for callee in callees if callee.address)


def _nodes(observed: Observed, pods: Pods, now: float) -> tuple[NodeFact, ...]:
    """Facts that a pod cannot read itself: topology domains of the job's nodes, and the nodes' findings."""
    key = observed.job.world.topology_key
    concerned = pods.by_node.keys() if key else [node.name for node in with_findings(observed.nodes)]
    job_nodes = (observed.nodes.get(name) for name in sorted(concerned) if name in pods.by_node)
    nodes = (node for node in job_nodes if node is not None)
    facts = (_fact(node, node.labels.get(key, ""), now) for node in nodes)
    return tuple(fact for fact in facts if key or fact.hardware_finding or fact.leaving_reason)


def _fact(node: Node, domain: str, now: float) -> NodeFact:
    finding = node.verdict_at(now)
    if finding is None:
        return NodeFact(node.name, domain)
    faulty, going = (finding.description, "") if finding.hardware else ("", finding.description)
    return NodeFact(node.name, domain, faulty, finding.until, finding.fault_class, going, finding.grace_s)
