"""What the pods that are not in office have answered in a search: the newest answer of each."""

from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace

from understudy_protocol.observer import Refused, Snapshot

NEVER = float("inf")
REASON_CHARACTERS = 200
UID_CHARACTERS = 64


@dataclass(frozen=True)
class PodAnswer:
    reason: str = ""  # why it is not in office
    coordinator_uid: str = ""  # pod uid of who is in office, as far as this pod knows
    config_epoch: int = 0  # the newest in which it has heard of an electorate
    replacement_reason: str = ""  # why the pod has to be replaced; "" if it need not
    replaced_at: float = NEVER  # when it said so first


@dataclass(frozen=True)
class PodAnswers:
    by_pod: Mapping[str, PodAnswer] = field(default_factory=dict)
    since: float = NEVER  # when the first of them came: from then on it is not the operator that is cut off

    @property
    def pods(self) -> frozenset[str]:
        return frozenset(self.by_pod)

    @property
    def named_coordinators(self) -> frozenset[str]:
        """Whom they follow, unless that one has answered that it is not in office, too."""
        return (
            frozenset(answer.coordinator_uid for answer in self.by_pod.values() if answer.coordinator_uid) - self.pods
        )

    @property
    def config_epoch(self) -> int:
        return max((answer.config_epoch for answer in self.by_pod.values()), default=0)

    def with_refusal(self, uid: str, refused: Refused, now: float) -> "PodAnswers":
        reason = refused.reason[:REASON_CHARACTERS]  # one is kept of each pod
        answer = PodAnswer(reason, refused.pod_uid[:UID_CHARACTERS], refused.config_epoch)
        if refused.replacement_reason:
            before = self.by_pod.get(uid, answer)
            answer = replace(
                answer,
                replacement_reason=refused.replacement_reason[:REASON_CHARACTERS],
                replaced_at=min(before.replaced_at, now),
            )
        return self._with(uid, answer, now)

    def is_to_be_replaced(self, uid: str) -> bool:
        """Whether the pod says that it takes part in nothing any more."""
        answer = self.by_pod.get(uid)
        return answer is not None and bool(answer.replacement_reason)

    def with_older_term(self, uid: str, snapshot: Snapshot, now: float) -> "PodAnswers":
        """It believes to be in office, and the office does not count."""
        config_epoch = snapshot.token.epoch if snapshot.voters else 0
        return self._with(uid, PodAnswer("its term is not the newest one", "", config_epoch), now)

    def without(self, uid: str) -> "PodAnswers":
        others = {pod: answer for pod, answer in self.by_pod.items() if pod != uid}
        return PodAnswers(others, self.since) if others else NO_ANSWERS

    def on_lines(self, uids: Container[str]) -> "PodAnswers":
        """Who is not on a line any more may follow another one by now: whom it named, and its end, do not count."""
        stale = {
            pod: replace(answer, coordinator_uid="", replacement_reason="", replaced_at=NEVER)
            for pod, answer in self.by_pod.items()
            if pod not in uids
        }
        return PodAnswers({**self.by_pod, **stale}, self.since)

    def of(self, running: Container[str]) -> "PodAnswers":
        """Without pods that are not there any more."""
        running_answers = {pod: answer for pod, answer in self.by_pod.items() if pod in running}
        return PodAnswers(running_answers, self.since) if running_answers else NO_ANSWERS

    def _with(self, uid: str, answer: PodAnswer, now: float) -> "PodAnswers":
        return PodAnswers({**self.by_pod, uid: answer}, min(self.since, now))


NO_ANSWERS = PodAnswers()
