"""Who coordinates: follows the elections among members, and appoints where none is possible.

Rules: the first coordinator is a spare if there is one (the member least likely to fail with the training). Promoted,
it stays coordinator. Whoever is found in office in the newest (epoch, term) is told in status. The operator appoints,
in a higher epoch that is written to status first,
  - at the start of the job;
  - while there is no electorate (before the first round; the appointee has not been heard yet; sidecars of version 1):
    once the coordinator's pod has ended or is being deleted, its node is not ready, it was not found for UNREACHABLE_S,
    or its sidecar says that it is not in office, and names nobody else;
  - else only where no election can succeed any more (elections.py), and only who has answered. A coordinator's pod that
    is being deleted hands its office over by itself.
Members follow the newest epoch only, and a round needs every rank, so two coordinators that both believe to be in
office cannot both train.

An epoch is the Unix time of its appointment: a job that is deleted and created anew on the same storage has newer
rounds than all that its predecessor wrote there, so UNDERSTUDY_ROUND fences across jobs of a name, too.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from understudy_operator.plan.elections import (
    UNREACHABLE_S,
    has_electorate,
    lacks_other_voter,
    missing_voters,
    why_no_election,
)
from understudy_operator.plan.intents import MESSAGE_BYTES, POD_BYTES, Callee, Follow, PatchPod, Unfollow
from understudy_operator.plan.jobset.validation import MOST_MEMBERS
from understudy_operator.plan.moment import reached
from understudy_operator.plan.observed import Node, Observed, Pod, ends_early, office_of
from understudy_protocol import pod as names
from understudy_protocol import words
from understudy_protocol.membership import Close, Seat
from understudy_protocol.observer import Appoint, End, NodeFact
from understudy_protocol.words import CloseReason

#: Workers without a coordinator have ended after twice this time. Jobs with coordinatorLossTimeout Off get it too.
FENCE_S = 30.0
#: How long after its creation a job waits for a spare to be up before an active coordinates.
SPARE_PATIENCE_S = 10.0
#: An Appoint names at most so many pods that held ranks.
SEATS_TOLD = 100
#: An appointment that was refused is not followed by another one sooner: answers come within milliseconds.
REFUSED_S = 1.0
#: What the pods of a deleted job are told. They get their SIGTERM anyway.
FAREWELL = Unfollow(End(CloseReason.DELETED, "the TrainingJob was deleted"))


@dataclass(frozen=True)
class Office:
    """Who coordinates now, as it goes into status. reason: why somebody new was appointed, "" if nobody was."""

    epoch: int
    term: int  # 0: appointed, and not heard in office yet
    pod: Pod | None
    reason: str

    @property
    def held(self) -> words.Office:
        return words.Office(self.epoch, self.term)


def plan_office(observed: Observed, now: float) -> Office:
    """The office after this pass."""
    office = _known_office(observed)
    if observed.job.spec.world is None or observed.close is not None or observed.job.deleting:
        return office
    if observed.job.spec.suspend:
        return office  # what pods there are still are about to go
    answered = observed.coordination.answers.pods
    if office.epoch <= observed.job.former_epoch:
        reason, able = "the job starts", _able(observed, observed.live())
    elif lacks_other_voter(observed, office.held):
        reason = "the other voter is lost, and one of two voters is no majority"
        able = (pod for pod in _able(observed, observed.pods) if office.pod is not None and pod.uid == office.pod.uid)
    elif has_electorate(observed, office.held):
        reason = why_no_election(observed, office.held, now)
        # Who has answered is there, whatever a coordinator without a majority said of it last.
        able = (pod for pod in _able(observed, observed.pods) if pod.uid in answered)
    else:
        reason = _unfit(observed, office.pod, now)
        # One that is not in office any more may take it in a new epoch; one that is out of reach may not.
        former = "" if office.pod is None or office.pod.uid in answered else office.pod.uid
        able = (pod for pod in _able(observed, observed.live()) if pod.uid != former)
    appointee = _choose(observed, list(able), now) if reason else None
    return office if appointee is None else Office(max(office.epoch + 1, int(now)), 0, appointee, reason)


def plan_link(observed: Observed, office: Office, now: float) -> Follow | Unfollow | None:
    """The operator's own lines to the coordinator, or to those who may know of one."""
    if observed.job.deleting:
        return Unfollow() if observed.job.orphans else FAREWELL
    if observed.close is not None:
        return _tell_the_end(observed, office, observed.close)
    if not office.epoch:
        return None
    if office.epoch <= observed.job.former_epoch:
        return Unfollow()
    appoint = _appointment(observed, office.epoch, now) if office.term == 0 else None
    first = [] if office.pod is None or office.pod.ended else [Callee(office.pod.uid, office.pod.ip, appoint)]
    running = {pod.uid: pod for pod in observed.pods if not pod.ended}
    heirs = () if observed.snapshot is None else observed.snapshot.heirs
    first += [Callee(uid, running[uid].ip) for uid in heirs if uid in running]
    searching = not observed.coordination.in_office or observed.cut_off
    # Who runs and is no member of the coordinator's may follow one that was replaced, and not know.
    members = set() if searching or observed.snapshot is None else {x.pod_uid for x in observed.snapshot.members}
    asked = [pod for pod in running.values() if pod.sidecar_started and pod.uid not in members]
    others = [Callee(pod.uid, pod.ip) for pod in asked]
    nodes = _nodes(observed, running.values(), now)
    addresses = {uid: pod.ip for uid, pod in running.items()}
    return Follow(office.held, _reachable(first), _reachable(others), nodes, addresses, _message_bytes(observed))


def _tell_the_end(observed: Observed, office: Office, close: Close) -> Follow | Unfollow:
    """To pods that run on: their coordinator may have ended before it could tell them, and they are right to exit 0."""
    if ends_early(observed):
        return Unfollow(End(CloseReason.DELETED, f"the job has ended: {close.message}"))
    end = End(close.reason, close.message)
    running = [pod for pod in observed.pods if not pod.over and pod.sidecar_started and pod.ip]
    if not running:
        return Unfollow()
    callees = tuple(Callee(pod.uid, pod.ip, end=end) for pod in running)
    addresses = {pod.uid: pod.ip for pod in running}
    return Follow(office.held, (), callees, (), addresses, _message_bytes(observed))


def _message_bytes(observed: Observed) -> int:
    world = observed.job.world
    return MESSAGE_BYTES + POD_BYTES * min(world.actives + world.spares, MOST_MEMBERS)


def plan_label(observed: Observed, office: Office) -> tuple[PatchPod, ...]:
    """The Service selects by this label, so that members find the coordinator."""
    patches = []
    for pod in (*observed.pods, *observed.former):
        is_holder = office.pod is not None and pod.uid == office.pod.uid
        if is_holder and pod.labels.get(names.LABEL_COORDINATOR) != "true":
            patches.append(PatchPod(pod.name, {names.LABEL_COORDINATOR: "true"}))
        if not is_holder and names.LABEL_COORDINATOR in pod.labels:
            patches.append(PatchPod(pod.name, {names.LABEL_COORDINATOR: None}))
    return tuple(patches)


def _known_office(observed: Observed) -> Office:
    """The newest that status or a coordinator tells."""
    told = observed.job.status.get("coordinator", {})
    epoch, term, uid = int(told.get("epoch", 0)), int(told.get("term", 0)), str(told.get("podUID", ""))
    newest = observed.snapshot
    if newest is not None and office_of(newest) >= words.Office(epoch, term):
        epoch, term, uid = newest.token.epoch, newest.token.term, newest.pod_uid
    return Office(epoch, term, next((pod for pod in observed.pods if pod.uid == uid), None), "")


def _unfit(observed: Observed, holder: Pod | None, now: float) -> str:
    """Why the holder of the office cannot go on, where there is no electorate; "" if it can."""
    if holder is None:
        return "the coordinator's pod is gone"
    if holder.ended:
        return f"the coordinator's pod {holder.name} has ended"
    if holder.deleting_since is not None:
        return f"the coordinator's pod {holder.name} is being deleted"
    link = observed.coordination
    answer = link.answers.by_pod.get(holder.uid)
    if answer is not None and not answer.named and not link.in_office and reached(link.since + REFUSED_S, now):
        return f"pod {holder.name} is not the coordinator: {answer.reason}"
    if not reached(link.since + _patience_s(observed, holder), now):
        return ""
    if not observed.node_ready(holder.node):
        return f"node {holder.node} of the coordinator's pod {holder.name} is not ready"
    if link.in_office:
        return ""
    if reached(link.since + UNREACHABLE_S, now):
        return f"the coordinator's pod {holder.name} could not be reached for {UNREACHABLE_S:g} s"
    return ""


def _patience_s(observed: Observed, holder: Pod) -> float:
    """How long one that may live is searched for: it may train with those that do not answer either."""
    answered = observed.coordination.answers.pods
    may_follow = [pod for pod in observed.pods if pod.sidecar_started and not pod.ended and pod.uid != holder.uid]
    if all(pod.uid in answered for pod in may_follow):
        return 0.0
    return 2 * (observed.job.world.fence_s or FENCE_S)


def _able(observed: Observed, pods: Iterable[Pod]) -> Iterator[Pod]:
    answers = observed.coordination.answers
    there = (pod for pod in pods if pod.alive and pod.sidecar_started and observed.node_ready(pod.node))
    return (pod for pod in there if not answers.to_replace(pod.uid))


def _choose(observed: Observed, able: list[Pod], now: float) -> Pod | None:
    world = observed.job.world
    spares = sorted((pod for pod in able if _waits(pod)), key=lambda pod: pod.created_at)
    if spares:
        return spares[0]
    first = not observed.job.status.get("coordinator", {}).get("podUID")
    begun_at = max(observed.job.created_at, min((pod.created_at for pod in observed.pods), default=0.0))
    if first and world.spares and not reached(begun_at + SPARE_PATIENCE_S, now):
        return None
    if len(able) >= world.actives or not first:  # the first waits for everybody
        return min(able, key=lambda pod: (pod.index is None, pod.index or 0, pod.name), default=None)
    return None


def _waits(pod: Pod) -> bool:
    told = names.ROLE_SPARE if pod.spare else names.ROLE_ACTIVE  # of injected pods no label says it before a round
    return pod.labels.get(names.LABEL_ROLE, told) == names.ROLE_SPARE


def _appointment(observed: Observed, epoch: int, now: float) -> Appoint:
    newest = -1 if observed.snapshot is None else observed.snapshot.token.round
    counts = observed.job.status.get("recoveriesByStrategy", {})
    by_strategy = {name[0].upper() + name[1:]: int(count) for name, count in counts.items()}
    # A sidecar that is being restarted comes back; who has answered is there, whatever was last said of it.
    may_come = {pod.uid for pod in observed.live() if pod.sidecar_ran} - missing_voters(observed)
    may_come |= observed.coordination.answers.pods
    seats, holder = _newest_round(observed, may_come)
    lost_at = observed.coordination.lost_at
    lost_s = None if lost_at is None else max(0.0, now - lost_at)
    return Appoint(epoch, max(newest, observed.job.round), by_strategy, tuple(sorted(may_come)), seats, holder, lost_s)


def _newest_round(observed: Observed, may_come: Collection[str]) -> tuple[tuple[Seat, ...], str]:
    """The pods that held its ranks, and the uid of the one that coordinated. Empty if this operator missed that round.

    The pods that may be lost come first: a node that has just lost its power is Ready for a while.
    """
    told, answered = observed.snapshot, observed.coordination.answers.pods
    if told is None or told.token.round < observed.job.round:
        return (), ""
    seats = [Seat(x.group_rank, x.pod_uid, x.pod_name, x.node) for x in told.members if x.group_rank is not None]
    seats.sort(key=lambda seat: (seat.pod_uid in may_come, seat.pod_uid in answered, seat.group_rank))
    return tuple(seats[:SEATS_TOLD]), told.pod_uid


def _reachable(callees: Iterable[Callee]) -> tuple[Callee, ...]:
    return tuple(callee for callee in callees if callee.ip)


def _nodes(observed: Observed, pods: Iterable[Pod], now: float) -> tuple[NodeFact, ...]:
    """What a pod cannot read itself: the topology domains of the job's pods, and what is held against their nodes."""
    key = observed.job.world.topology_key
    known = (observed.nodes.get(name) for name in sorted({pod.node for pod in pods}))
    nodes = (node for node in known if node is not None and (key or node.findings))
    facts = (_fact(node, node.labels.get(key, ""), now) for node in nodes)
    return tuple(fact for fact in facts if key or fact.faulty or fact.going)


def _fact(node: Node, domain: str, now: float) -> NodeFact:
    finding = node.held(now)
    if finding is None:
        return NodeFact(node.name, domain)
    faulty, going = (finding.told, "") if finding.hardware else ("", finding.told)
    return NodeFact(node.name, domain, faulty, finding.until, finding.fault_class, going, finding.grace_s)
