"""Pods that users drain: the annotation understudy.dev/drain of a pod, whose value is the reason. Pure.

The coordinator gives the ranks of such a pod to a spare. The annotation is on the pod and not on the job: so it
disappears with the pod, it works for injected jobs too, and nothing has to remember it.
"""

from collections.abc import Iterator

from understudy_operator.plan.facts.cluster_objects import Pod
from understudy_operator.plan.facts.observed import Observed
from understudy_operator.plan.facts.pods import Pods
from understudy_protocol import pod as names
from understudy_protocol.observer import DrainRequest

#: As a node's annotations about faults.
UNSET_VALUES = ("", "false")
REASON_CHARACTERS = 200


def drain_requests(pods: Pods) -> tuple[DrainRequest, ...]:
    """In the order of the pods' names, so that the coordinator gets a message only after a change."""
    annotated = pods.with_annotation(names.ANNOTATION_DRAIN)
    return tuple(
        DrainRequest(pod.uid, reason)
        for pod in sorted(annotated, key=lambda pod: pod.name)
        if (reason := drain_reason(pod))
    )


def drain_reason(pod: Pod) -> str:
    """Why a user drains this pod; "" if none does."""
    value = pod.annotations.get(names.ANNOTATION_DRAIN, "").strip()
    return "" if value in UNSET_VALUES else value[:REASON_CHARACTERS]


def drained_spares(observed: Observed) -> Iterator[tuple[Pod, str]]:
    """Pods that users drain, and that have no ranks to give away; each with the user's reason.

    Not while ranks are vacant: the coordinator may be about to give them to one of these pods. A coordinator stays
    until a standby coordinator can take over at once.
    """
    snapshot = observed.snapshot
    annotated = observed.pods.with_annotation(names.ANNOTATION_DRAIN)
    if (
        not annotated
        or snapshot is None
        or observed.before_first_round
        or not observed.rank_holders_known
        or snapshot.waiting_for
    ):
        return
    waiting = {member.pod_uid for member in snapshot.members if member.group_rank is None}
    waiting &= observed.live.by_uid.keys()
    if not snapshot.standby_coordinators:
        waiting.discard(snapshot.pod_uid)
    for pod in annotated:
        if pod.uid in waiting and (reason := drain_reason(pod)):
            yield pod, reason
