"""What the pods that are not in office have answered in a search: the newest answer of each."""

from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace

from understudy_protocol.observer import Refused, Snapshot

NEVER = float("inf")
REASON_CHARACTERS = 200
UID_CHARACTERS = 64


@dataclass(frozen=True)
class Answer:
    reason: str = ""  # why it is not in office
    named: str = ""  # pod uid of who is in office, as far as this pod knows
    electorate_epoch: int = 0  # the newest in which it has heard of an electorate
    replaced: str = ""  # why the pod has to be replaced; "" if it need not
    replaced_at: float = NEVER  # when it said so first


@dataclass(frozen=True)
class Answers:
    by_pod: Mapping[str, Answer] = field(default_factory=dict)
    since: float = NEVER  # when the first of them came: from then on it is not the operator that is cut off

    @property
    def pods(self) -> frozenset[str]:
        return frozenset(self.by_pod)

    @property
    def named(self) -> frozenset[str]:
        """Whom they follow, unless that one has answered that it is not in office, too."""
        return frozenset(answer.named for answer in self.by_pod.values() if answer.named) - self.pods

    @property
    def electorate_epoch(self) -> int:
        return max((answer.electorate_epoch for answer in self.by_pod.values()), default=0)

    def refused(self, uid: str, refused: Refused, now: float) -> "Answers":
        reason = refused.reason[:REASON_CHARACTERS]  # one is kept of each pod
        answer = Answer(reason, refused.pod_uid[:UID_CHARACTERS], refused.electorate_epoch)
        if refused.replaced:
            before = self.by_pod.get(uid, answer)
            answer = replace(
                answer, replaced=refused.replaced[:REASON_CHARACTERS], replaced_at=min(before.replaced_at, now)
            )
        return self._with(uid, answer, now)

    def to_replace(self, uid: str) -> bool:
        """Whether the pod says that it takes part in nothing any more."""
        answer = self.by_pod.get(uid)
        return answer is not None and bool(answer.replaced)

    def older(self, uid: str, snapshot: Snapshot, now: float) -> "Answers":
        """It believes to be in office, and the office does not count."""
        electorate_epoch = snapshot.token.epoch if snapshot.electorate else 0
        return self._with(uid, Answer("its term is not the newest one", "", electorate_epoch), now)

    def without(self, uid: str) -> "Answers":
        rest = {pod: answer for pod, answer in self.by_pod.items() if pod != uid}
        return Answers(rest, self.since) if rest else NO_ANSWERS

    def on_lines(self, uids: Container[str]) -> "Answers":
        """Who is not on a line any more may follow another one by now: whom it named, and its end, do not count."""
        stale = {
            pod: replace(answer, named="", replaced="", replaced_at=NEVER)
            for pod, answer in self.by_pod.items()
            if pod not in uids
        }
        return Answers({**self.by_pod, **stale}, self.since)

    def of(self, running: Container[str]) -> "Answers":
        """Without pods that are not there any more."""
        there = {pod: answer for pod, answer in self.by_pod.items() if pod in running}
        return Answers(there, self.since) if there else NO_ANSWERS

    def _with(self, uid: str, answer: Answer, now: float) -> "Answers":
        return Answers({**self.by_pod, uid: answer}, min(self.since, now))


NO_ANSWERS = Answers()
