"""The newest answer of each pod that is not the leader, during a search."""

from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace

from understudy_protocol.observer import Refused, Snapshot

NEVER = float("inf")
REASON_CHARACTERS = 200
UID_CHARACTERS = 64


@dataclass(frozen=True)
class PodAnswer:
    reason: str = ""  # why it is not the leader
    coordinator_uid: str = ""  # pod uid of the leader, as far as this pod knows
    config_epoch: int = 0  # the newest epoch of whose voter configuration it knows
    replacement_reason: str = ""  # why the pod has to be replaced; "" if it need not
    replaced_at: float = NEVER  # when it first reported so
    no_launcher_since: float = NEVER  # when it first reported that no launcher is connected to its sidecar


@dataclass(frozen=True)
class PodAnswers:
    by_pod: Mapping[str, PodAnswer] = field(default_factory=dict)
    since: float = NEVER  # when the first of them came: since then the operator itself is not cut off

    @property
    def pods(self) -> frozenset[str]:
        return frozenset(self.by_pod)

    @property
    def named_coordinators(self) -> frozenset[str]:
        """The coordinators that these pods follow, except those that have answered that they are not the leader."""
        return (
            frozenset(answer.coordinator_uid for answer in self.by_pod.values() if answer.coordinator_uid) - self.pods
        )

    @property
    def config_epoch(self) -> int:
        return max((answer.config_epoch for answer in self.by_pod.values()), default=0)

    def with_refusal(self, uid: str, refused: Refused, now: float, no_launcher_since: float = NEVER) -> "PodAnswers":
        reason = refused.reason[:REASON_CHARACTERS]  # limited, because every pod's is stored
        answer = PodAnswer(
            reason, refused.pod_uid[:UID_CHARACTERS], refused.config_epoch, no_launcher_since=no_launcher_since
        )
        before = self.by_pod.get(uid, answer)
        if refused.replacement_reason:
            answer = replace(
                answer,
                replacement_reason=refused.replacement_reason[:REASON_CHARACTERS],
                replaced_at=min(before.replaced_at, now),
            )
        return self._with(uid, answer, now)

    def is_to_be_replaced(self, uid: str) -> bool:
        """Whether the pod reports that it is no longer a member."""
        answer = self.by_pod.get(uid)
        return answer is not None and bool(answer.replacement_reason)

    def with_older_term(self, uid: str, snapshot: Snapshot, now: float) -> "PodAnswers":
        """The pod considers itself the leader, in a term that is not the newest."""
        config_epoch = snapshot.token.epoch if snapshot.voters else 0
        return self._with(uid, PodAnswer("its term is not the newest one", "", config_epoch), now)

    def without(self, uid: str) -> "PodAnswers":
        others = {pod: answer for pod, answer in self.by_pod.items() if pod != uid}
        return PodAnswers(others, self.since) if others else NO_ANSWERS

    def on_lines(self, uids: Container[str]) -> "PodAnswers":
        """A pod without an open connection may follow another coordinator by now: drop these reports."""
        stale = {
            pod: replace(answer, coordinator_uid="", replacement_reason="", replaced_at=NEVER, no_launcher_since=NEVER)
            for pod, answer in self.by_pod.items()
            if pod not in uids
        }
        return PodAnswers({**self.by_pod, **stale}, self.since)

    def of(self, running: Container[str]) -> "PodAnswers":
        """Without pods that have ended."""
        running_answers = {pod: answer for pod, answer in self.by_pod.items() if pod in running}
        return PodAnswers(running_answers, self.since) if running_answers else NO_ANSWERS

    def _with(self, uid: str, answer: PodAnswer, now: float) -> "PodAnswers":
        return PodAnswers({**self.by_pod, uid: answer}, min(self.since, now))


NO_ANSWERS = PodAnswers()
