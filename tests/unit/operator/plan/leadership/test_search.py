"""Which pods the operator calls to find the coordinator, which answers count, and its messages."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.unit.operator.given import A0, A1, NOW, S, a_pod, a_snapshot, member
from understudy_operator.plan.facts.cluster_objects import Pod
from understudy_operator.plan.facts.observed import Coordination
from understudy_operator.plan.facts.pod_answers import PodAnswer, PodAnswers
from understudy_operator.plan.intents import Callee, Follow
from understudy_operator.plan.leadership.search import PodMessage, Search
from understudy_protocol.enums import CloseReason, Term
from understudy_protocol.observer import (
    Appoint,
    DrainRequest,
    End,
    NodeFact,
    Nodes,
    Observe,
    Refused,
    Snapshot,
    Stepping,
    StepProgress,
    Superseded,
)

NEVER = math.inf
LINES = 8
LINGER_S = 1.0
RETRY_REPLACED_S = 5.0
RETRY_S = 0.5
VISIT_S = 1.0

T, U = a_pod("t"), a_pod("u")
CROWD = [a_pod(f"c{number}", number) for number in range(20)]
VOTERS = [A0, A1, S]
FIRST = Term(1, 1)
NODES = (NodeFact("node-a0", "rack-1"),)


def _callees(pods: Sequence[Pod | Callee]) -> tuple[Callee, ...]:
    return tuple(x if isinstance(x, Callee) else Callee(x.uid, x.ip) for x in pods)


class Calls:
    """A search with an edge that dials the pods that the search requests."""

    def __init__(self, before: Coordination | None = None) -> None:
        self.now = NOW
        self.search = Search(before or Coordination(), self.now)
        self.lines: dict[str, Callee] = {}
        self.sent: list[tuple[str, object]] = []

    @property
    def coordination(self) -> Coordination:
        return self.search.coordination

    def follow(
        self,
        first: Sequence[Pod | Callee] = (S,),
        others: Sequence[Pod | Callee] = (),
        term: Term = FIRST,
        nodes: tuple[NodeFact, ...] = (),
        running: Sequence[Pod] = (A0, A1, S, T, U),
        drains: tuple[DrainRequest, ...] = (),
        ended_pods: tuple[str, ...] = (),
    ) -> None:
        present = {x.uid: x.ip for x in running}
        follow = Follow(term, _callees(first), _callees(others), nodes, drains, present, ended_pods=ended_pods)
        self._record(self.search.follow(follow, self.now))

    def appoint(self, pod: Pod, epoch: int, others: Sequence[Pod] = ()) -> None:
        self.follow([Callee(pod.uid, pod.ip, Appoint(epoch, -1, {}))], others, Term(epoch, 0))

    def dialed(self) -> list[str]:
        """The pods that are on a line or are called now; a newly called pod gets its greeting."""
        wanted = self.search.calls(self.now)
        for uid, callee in wanted.items():
            if self.lines.get(uid) is not callee:
                self.sent.append((uid.removeprefix("uid-"), callee.greeting))
        self.lines = wanted
        return [uid.removeprefix("uid-") for uid in wanted]

    def receives(self, pod: Pod, message: object) -> None:
        self._record(self.search.on_message(self.lines[pod.uid], message, self.now))

    def loses(self, *pods: Pod) -> None:
        for pod in pods:
            self.search.on_line_ended(self.lines.pop(pod.uid), self.now)

    def later(self, seconds: float) -> list[str]:
        self.now += seconds
        return self.dialed()

    def _record(self, answers: list[PodMessage]) -> None:
        self.sent += [(x.pod_uid.removeprefix("uid-"), x.message) for x in answers]


def coordinator_snapshot(pod: Pod, term: int = 1, epoch: int = 1, number: int = 0) -> Snapshot:
    members = [member(A0, 0), member(A1, 1), member(S, None)]
    return a_snapshot(members, epoch=epoch, term=term, number=number, coordinator=pod, voters=VOTERS)


def refused(to: Pod | None = None) -> Refused:
    return Refused("not the coordinator", "" if to is None else to.uid, "" if to is None else to.ip)


def on_the_line(pod: Pod = S) -> Calls:
    """After the search: the other lines have ended."""
    calls = Calls()
    calls.follow([pod, A0, A1])
    calls.dialed()
    calls.receives(pod, coordinator_snapshot(pod))
    assert calls.later(LINGER_S) == [pod.name]
    return calls


def after_a_loss() -> Calls:
    """The coordinator S is lost, A0 and A1 are called, and A1 knows no other coordinator."""
    calls = on_the_line()
    calls.follow([S, A0, A1])
    calls.dialed()
    calls.loses(S)
    calls.later(LINGER_S)
    calls.receives(A1, refused())
    return calls


# The called pods ----------------------------------------------------------------------------------------------------


def test_likely_coordinators_are_called_first_then_others_up_to_the_limit_of_lines():
    calls = Calls()
    calls.follow([S, A0], [A0, A1, S, *CROWD])
    assert calls.dialed() == ["s", "a0", "a1", "c0", "c1", "c2", "c3", "c4"]
    assert len(calls.lines) == LINES
    assert {message for _, message in calls.sent} == {Observe()}


def test_other_pods_are_called_in_turn_and_likely_coordinators_stay_on_the_line():
    calls = Calls()
    calls.follow([S, A0], CROWD)
    visits = [set(calls.dialed())] + [set(calls.later(VISIT_S)) for _ in range(4)]
    assert all({"s", "a0"} < turn for turn in visits)
    requests = [sorted(turn - {"s", "a0"}, key=lambda name: int(name[1:])) for turn in visits]
    assert [names[0] for names in requests] == ["c0", "c6", "c12", "c0", "c4"]  # 18, 19, then from the start
    assert calls.sent.count(("s", Observe())) == 1


def test_a_call_lasts_its_time_even_if_other_pods_are_listed_meanwhile():
    calls = Calls()
    calls.follow([S], CROWD)
    before = calls.dialed()
    calls.follow([S], list(reversed(CROWD)))
    assert sorted(calls.later(VISIT_S / 2)) == sorted(before)


def test_all_pods_of_a_small_job_stay_on_their_lines():
    calls = Calls()
    calls.follow([S], [A0, A1])
    calls.dialed()
    calls.later(VISIT_S)
    calls.later(VISIT_S)
    assert [name for name, _ in calls.sent] == ["s", "a0", "a1"]


def test_a_line_that_has_ended_is_retried_after_a_pause():
    calls = Calls()
    calls.follow([S], [A0])
    calls.dialed()
    calls.loses(S)
    assert calls.later(RETRY_S / 2) == ["a0"]
    assert calls.later(RETRY_S / 2) == ["s", "a0"]


def test_a_clock_that_is_set_back_delays_no_call():
    calls = on_the_line()
    calls.loses(S)
    calls.follow([S], [A0, A1])
    calls.dialed()
    calls.loses(A0)
    assert calls.later(-3600.0) == ["s", "a0", "a1"]


def test_a_pod_that_is_named_is_called_too():
    calls = Calls()
    calls.follow([S])
    calls.dialed()
    calls.receives(S, refused(T))
    assert calls.dialed() == ["s", "t"]
    calls.receives(T, coordinator_snapshot(T, term=2))
    assert calls.coordination.coordinator_uid == T.uid


# The found coordinator ----------------------------------------------------------------------------------------------


def test_only_the_coordinator_stays_on_the_line():
    calls = Calls()
    calls.follow([S, A0], [A1])
    calls.dialed()
    calls.receives(S, coordinator_snapshot(S))
    assert calls.coordination == Coordination(coordinator_snapshot(S), S.uid, NOW)
    assert calls.later(LINGER_S - 0.01) == ["s", "a0", "a1"]
    assert not calls.search.has_certain_coordinator(calls.now)
    calls.follow([S, A0])  # all others are its members
    assert calls.later(0.01) == ["s"]
    assert calls.search.has_certain_coordinator(calls.now)


def test_a_newer_leadership_on_another_line_is_the_one_that_counts():
    calls = Calls()
    calls.follow([S, A0])
    calls.dialed()
    calls.receives(S, coordinator_snapshot(S, term=1, number=7))
    calls.now += 0.3
    calls.receives(A0, coordinator_snapshot(A0, term=2))
    assert (calls.coordination.coordinator_uid, calls.coordination.since) == (A0.uid, NOW + 0.3)
    calls.receives(S, coordinator_snapshot(S, term=1, number=8))
    assert (calls.coordination.coordinator_uid, calls.coordination.snapshot) == (
        A0.uid,
        coordinator_snapshot(A0, term=2),
    )


def test_an_older_leadership_than_status_reports_does_not_count():
    calls = Calls()
    calls.follow([S], term=Term(1, 3))
    calls.dialed()
    calls.receives(S, coordinator_snapshot(S, term=2))
    assert (calls.coordination.coordinator_uid, calls.coordination.snapshot, calls.coordination.answers.pods) == (
        "",
        None,
        frozenset({S.uid}),
    )
    calls.receives(S, coordinator_snapshot(S, term=3))
    assert calls.coordination.coordinator_uid == S.uid


def test_the_snapshot_of_a_previous_search_is_known_and_an_older_leadership_does_not_count():
    calls = Calls(Coordination(coordinator_snapshot(S, term=5), S.uid, 1.0, PodAnswers({"x": PodAnswer()}, 1.0)))
    assert calls.coordination == Coordination(coordinator_snapshot(S, term=5), "", NOW)
    calls.follow([A0])
    calls.dialed()
    calls.receives(A0, coordinator_snapshot(A0, term=4))
    assert calls.coordination.coordinator_uid == ""


def test_a_coordinator_without_a_majority_does_not_end_the_search():
    # given a coordinator that is disconnected from the other voters and does not know that it was replaced
    calls = on_the_line()
    cut_off = a_snapshot([member(S, None)], coordinator=S, voters=VOTERS)
    calls.receives(S, cut_off)
    calls.follow([S, A0], [A1])
    assert calls.dialed() == ["s", "a0", "a1"]
    calls.receives(A1, refused())
    assert (calls.coordination.coordinator_uid, calls.coordination.answers.pods) == (S.uid, frozenset({A1.uid}))

    # when its successor reports
    calls.receives(A0, coordinator_snapshot(A0, term=2))

    # then the successor counts, and the previous one gets its name
    assert calls.sent[-2:] == [("s", Superseded(Term(1, 2), A0.uid, A0.ip)), ("a0", Nodes((), NOW + 1))]
    calls.receives(S, refused(A0))
    calls.follow([S, A0])
    assert calls.later(LINGER_S) == ["a0"]
    assert calls.coordination == Coordination(coordinator_snapshot(A0, term=2), A0.uid, NOW + LINGER_S)


def test_pods_that_may_wait_for_an_election_get_the_name_of_an_appointed_coordinator():
    # given a lost coordinator, and two pods that know no other
    calls = after_a_loss()
    calls.receives(A0, refused())
    # when one of them is appointed, and a third pod has not answered yet
    calls.follow([Callee(A0.uid, A0.ip, Appoint(7, -1, {})), T, A1], term=Term(7, 0))
    calls.dialed()
    calls.receives(A0, coordinator_snapshot(A0, epoch=7))
    # then the other one, which has answered, gets its name
    informed = [x for x in calls.sent if isinstance(x[1], Superseded)]
    assert informed == [("a1", Superseded(Term(7, 1), A0.uid, A0.ip))]


def test_pods_get_the_name_of_an_elected_coordinator_from_each_other():
    calls = after_a_loss()
    calls.receives(A0, coordinator_snapshot(A0, term=2))
    assert [x for x in calls.sent if isinstance(x[1], Superseded)] == []


# The loss of the coordinator ----------------------------------------------------------------------------------------


def test_a_running_pod_that_does_not_follow_it_is_asked_for_its_coordinator():
    """Found by the simulation (seed 100570): a pod trained under a coordinator that had been replaced."""
    calls = on_the_line()
    calls.later(LINGER_S)
    calls.follow([S], [A0])
    assert calls.dialed() == ["s", "a0"]
    calls.receives(A0, refused(A1))
    assert calls.dialed() == ["s", "a1", "a0"]
    calls.receives(A1, coordinator_snapshot(A1, epoch=0))
    assert calls.sent[-1] == ("a1", Superseded(FIRST, S.uid, S.ip))


def test_the_end_of_the_coordinators_line_starts_a_search_at_once():
    calls = on_the_line()
    version, calls.now = calls.search.version, NOW + 60
    calls.loses(S)
    assert calls.coordination == Coordination(coordinator_snapshot(S), "", NOW + 60, lost_at=NOW + 60)
    assert calls.search.version > version
    assert calls.dialed() == ["a0", "a1"]


def test_a_coordinators_redirect_starts_a_search_that_calls_the_named_pod():
    calls = on_the_line()
    calls.receives(S, refused(A1))
    assert (calls.coordination.coordinator_uid, calls.coordination.since) == ("", calls.now)
    assert calls.dialed() == ["s", "a0", "a1"]


def test_an_election_is_reported_on_the_open_lines():
    calls = on_the_line()
    calls.loses(S)
    calls.dialed()
    calls.receives(A0, refused())
    calls.receives(A0, coordinator_snapshot(A0, term=2))
    assert (calls.coordination.coordinator_uid, calls.coordination.answers.pods, calls.coordination.answers.since) == (
        A0.uid,
        frozenset(),
        NEVER,
    )


def test_answers_of_pods_count_until_their_lines_end():
    calls = Calls()
    calls.follow([S], [A0, A1])
    calls.dialed()
    calls.receives(A0, refused())
    calls.now += 1
    calls.receives(A1, refused())
    assert (calls.coordination.answers.pods, calls.coordination.answers.since) == (frozenset({A0.uid, A1.uid}), NOW)
    calls.loses(A0)
    assert (calls.coordination.answers.pods, calls.coordination.answers.since) == (frozenset({A1.uid}), NOW)
    calls.loses(A1)
    assert (calls.coordination.answers.pods, calls.coordination.answers.since) == (frozenset(), NEVER)


def test_answers_of_pods_that_are_called_in_turn_count_after_the_call():
    calls = Calls()
    calls.follow([], CROWD)
    for name in calls.dialed():
        calls.receives(a_pod(name), refused())
    calls.later(VISIT_S)
    assert calls.coordination.answers.pods == {f"uid-c{number}" for number in range(LINES)}


# A replaced coordinator that does not know it -----------------------------------------------------------------------


def test_a_replaced_coordinator_is_sent_its_successor_once_on_each_line():
    calls = Calls()
    calls.follow([S, A0])
    calls.dialed()
    calls.receives(A0, coordinator_snapshot(A0, term=2))
    calls.receives(S, coordinator_snapshot(S, term=1))
    calls.receives(S, coordinator_snapshot(S, term=1, number=1))
    result = ("s", Superseded(Term(1, 2), A0.uid, A0.ip))
    assert calls.sent.count(result) == 1
    calls.loses(S)
    calls.later(RETRY_S)
    calls.receives(S, coordinator_snapshot(S, term=1, number=1))
    assert calls.sent.count(result) == 2


def test_a_replaced_coordinator_is_sent_its_successor_as_soon_as_that_is_known():
    calls = Calls()
    calls.follow([A0, S], term=Term(1, 2))
    calls.dialed()
    calls.receives(S, coordinator_snapshot(S, term=1))
    assert [message for _, message in calls.sent] == [Observe(), Observe()]
    calls.receives(A0, coordinator_snapshot(A0, term=2))
    assert calls.sent[2:] == [("s", Superseded(Term(1, 2), A0.uid, A0.ip)), ("a0", Nodes((), NOW))]


@pytest.mark.parametrize("voters", [(), (S.uid,)])
def test_a_coordinator_of_an_older_appointment_steps_down_if_it_has_no_voters(voters: tuple[str, ...]):
    """Found by the simulation (seed 661725): a sidecar that hung read an old appointment, and formed a round."""
    # given a job with a newer coordinator, which is lost
    calls = Calls()
    calls.follow([A0, S], term=Term(7, 1))
    calls.dialed()
    # when a pod reports that it coordinates in an older epoch
    calls.receives(S, replace(coordinator_snapshot(S), voters=voters))
    # then it has to step down, unless it has voters: these would lose it, and have no other coordinator to call
    assert (calls.sent[-1] == ("s", Superseded(Term(7, 1), "", ""))) is not bool(voters)


def test_a_coordinator_that_is_appointed_again_gets_only_its_appointment():
    """It would know the newer term then, and reject the appointment."""
    # given a pod that coordinates in an older epoch, has no voters yet, and is appointed again
    calls = Calls()
    calls.appoint(S, 7)
    calls.dialed()
    # when a report of the older epoch arrives
    calls.receives(S, replace(coordinator_snapshot(S), voters=()))
    # then it gets no message besides its appointment
    assert [type(message) for _, message in calls.sent] == [Appoint]


def test_a_replaced_coordinator_stays_on_the_line_until_it_reports_that_it_is_not_the_coordinator():
    calls = Calls()
    calls.follow([S, A0])
    calls.dialed()
    calls.receives(A0, coordinator_snapshot(A0, term=2))
    calls.receives(S, coordinator_snapshot(S, term=1))
    assert calls.later(LINGER_S) == ["a0", "s"]
    assert not calls.search.is_idle(calls.now)
    calls.receives(S, refused(A0))
    assert calls.dialed() == ["a0"]
    assert calls.search.is_idle(calls.now)


def test_a_lost_coordinator_is_called_now_and_then_after_another_one_was_appointed():
    # given a coordinator that is out of reach
    calls = on_the_line()
    calls.loses(S)
    calls.appoint(A0, 7, [A0, S])
    calls.dialed()
    calls.receives(A0, coordinator_snapshot(A0, epoch=7))
    calls.follow([A0], term=Term(7, 1))
    assert calls.dialed() == ["a0", "s"]
    calls.loses(S)

    # then it is called from time to time, as long as its pod exists
    assert calls.later(LINGER_S) == ["a0"]
    assert calls.later(RETRY_REPLACED_S - LINGER_S) == ["a0", "s"]
    calls.receives(S, coordinator_snapshot(S))
    assert calls.sent[-1] == ("s", Superseded(Term(7, 1), A0.uid, A0.ip))
    calls.follow([A0], term=Term(7, 1), running=[A0])
    assert calls.dialed() == ["a0"]
    assert calls.search.is_idle(calls.now)


def test_a_lost_coordinator_that_is_a_member_again_is_not_called():
    calls = on_the_line()
    calls.receives(S, refused())
    calls.dialed()
    calls.receives(A0, coordinator_snapshot(A0, term=2))
    assert calls.later(LINGER_S) == ["a0"]


def test_a_coordinator_that_is_elected_again_was_not_replaced():
    calls = Calls()
    calls.follow([S, A0])
    calls.dialed()
    calls.receives(A0, coordinator_snapshot(A0, term=2))
    calls.receives(S, coordinator_snapshot(S, term=1))
    calls.receives(S, coordinator_snapshot(S, term=3))
    calls.receives(A0, refused(S))
    assert calls.later(LINGER_S) == ["s"]
    assert calls.search.is_idle(calls.now)


# The validity of answers --------------------------------------------------------------------------------------------


def test_the_coordinator_that_an_answer_names_counts_while_the_answering_pod_is_on_the_line():
    calls = Calls()
    calls.follow([], CROWD, running=[*CROWD, T])
    for name in calls.dialed():
        calls.receives(a_pod(name), refused(T))
    assert calls.coordination.answers.named_coordinators == {T.uid}
    calls.later(VISIT_S)  # other pods have the lines now, and t, which was named
    assert (len(calls.coordination.answers.pods), calls.coordination.answers.named_coordinators) == (LINES, frozenset())


@pytest.mark.attack(
    "B3",
    "a pod of the job names another pod with the address of any host",
    before="the operator called that address",
)
def test_a_pod_that_is_named_is_called_at_the_address_that_the_api_server_reports():
    # given a pod that names a pod of the job, with an arbitrary address
    calls = Calls()
    calls.follow([S])
    calls.dialed()
    calls.receives(S, Refused("not the coordinator", T.uid, "169.254.169.254"))

    # then that pod is called at its own address
    assert calls.dialed() == ["s", "t"]
    assert calls.lines[T.uid].address == T.ip


@pytest.mark.attack(
    "B3",
    "a pod of the job names a pod that is not one of the job",
    before="the operator called it",
)
def test_a_pod_that_is_not_of_the_job_is_not_called_even_if_it_is_named():
    calls = Calls()
    calls.follow([S])
    calls.dialed()
    for number in range(100):
        calls.receives(S, Refused("not the coordinator", f"uid-{number}", "10.0.0.1"))
    assert calls.dialed() == ["s"]


def test_a_long_answer_is_truncated():
    """The operator keeps one of each pod: 10,000 pods with 1 MiB each would be 10 GB."""
    calls = Calls()
    calls.follow([S])
    calls.dialed()
    calls.receives(S, Refused("r" * 1_000_000, "u" * 1_000_000, "10.0.0.1"))
    (answer,) = calls.coordination.answers.by_pod.values()
    assert (len(answer.reason), len(answer.coordinator_uid)) == (200, 64)


def test_a_pod_that_answers_is_not_the_coordinator_even_if_another_names_it():
    calls = Calls()
    calls.follow([S, A0])
    calls.dialed()
    calls.receives(S, refused(A0))
    assert calls.coordination.answers.named_coordinators == {A0.uid}
    calls.receives(A0, refused())
    assert calls.coordination.answers.named_coordinators == frozenset()


def test_answers_of_pods_that_are_gone_do_not_count():
    """Found by the simulation (seed 32404): a deleted pod named its coordinator forever."""
    calls = Calls()
    calls.follow([S, A0])
    calls.dialed()
    calls.receives(S, refused(T))
    calls.receives(A0, refused())
    calls.follow([A0], running=[A0])
    assert (calls.coordination.answers.pods, calls.coordination.answers.named_coordinators) == (
        frozenset({A0.uid}),
        frozenset(),
    )
    calls.follow([A0], running=[])
    assert calls.coordination.answers.since == NEVER


# Appointments -------------------------------------------------------------------------------------------------------


def test_the_appointee_is_greeted_with_its_appointment():
    calls = Calls()
    calls.appoint(S, 7)
    calls.dialed()
    assert calls.sent == [("s", Appoint(7, -1, {}))]


def test_an_appointed_pod_on_a_line_is_called_again_and_its_previous_answers_do_not_count():
    calls = Calls()
    calls.follow([S], [A0])
    calls.dialed()
    previous = calls.lines[A0.uid]
    calls.appoint(A0, 7)
    calls.dialed()
    assert calls.sent[-1] == ("a0", Appoint(7, -1, {}))
    calls.search.on_message(previous, refused(), calls.now)
    assert calls.coordination.answers.pods == frozenset()


def test_a_replaced_coordinator_may_be_appointed_again():
    """Found by the simulation (seed 128): it stayed on the line on which it had been sent its successor, and never got
    the appointment.
    """
    calls = on_the_line(A0)
    calls.receives(A0, coordinator_snapshot(A0, epoch=3))
    calls.appoint(S, 4, [A0])
    calls.dialed()
    calls.receives(A0, coordinator_snapshot(A0, epoch=3))
    calls.appoint(A0, 5)
    calls.dialed()
    assert calls.sent[-1] == ("a0", Appoint(5, -1, {}))


def test_an_appointment_is_sent_once_and_the_search_for_its_epoch_begins_with_it():
    calls = on_the_line()
    calls.now += 60
    calls.appoint(A0, 7)
    assert (calls.coordination.coordinator_uid, calls.coordination.since) == ("", calls.now)
    calls.dialed()
    calls.now += 1
    calls.appoint(A0, 7)  # the next reconcile repeats the appointment
    assert calls.coordination.since == calls.now - 1
    calls.receives(A0, coordinator_snapshot(A0, epoch=7))
    calls.follow([A0], term=Term(7, 1))
    assert calls.later(LINGER_S) == ["a0"]
    assert [message for _, message in calls.sent].count(Appoint(7, -1, {})) == 1


def test_earlier_answers_of_the_appointee_do_not_count():
    calls = Calls()
    calls.follow([S], [A0])
    calls.dialed()
    calls.receives(S, refused())
    calls.receives(A0, refused())
    calls.appoint(S, 7, [A0])
    assert calls.coordination.answers.pods == {A0.uid}
    calls.dialed()
    calls.receives(S, refused())
    assert calls.coordination.answers.by_pod[S.uid] == PodAnswer("not the coordinator")


# Messages of the coordinator, and to it -----------------------------------------------------------------------------


def test_steps_update_the_snapshot_and_only_the_first_one_enqueues_the_job():
    calls = on_the_line()
    version = calls.search.version
    calls.receives(S, Stepping(StepProgress(12, 100, NOW)))
    assert calls.search.version == version + 1
    calls.receives(S, Stepping(StepProgress(13, 100, NOW)))
    assert calls.coordination.snapshot is not None
    assert calls.coordination.snapshot.progress == StepProgress(13, 100, NOW)
    assert calls.search.version == version + 1


def test_steps_of_a_pod_that_is_not_the_coordinator_are_ignored():
    calls = Calls()
    calls.follow([S, A0])
    calls.dialed()
    calls.receives(S, coordinator_snapshot(S))
    calls.receives(A0, Stepping(StepProgress(12, 100, NOW)))
    assert calls.coordination.snapshot == coordinator_snapshot(S)


def test_the_coordinator_is_sent_node_facts_whenever_they_change():
    calls = Calls()
    calls.follow([S], nodes=NODES)
    calls.dialed()
    assert calls.sent == [("s", Observe())]
    calls.receives(S, coordinator_snapshot(S))
    calls.receives(S, coordinator_snapshot(S, number=1))
    calls.follow([S], nodes=NODES)
    calls.follow([S], nodes=())
    calls.follow([S], nodes=())
    assert calls.sent[1:] == [("s", Nodes(NODES, NOW)), ("s", Nodes((), NOW))]


def test_the_coordinator_is_sent_drains_whenever_they_change():
    calls = on_the_line()
    drains = (DrainRequest("uid-a0", "a new kernel"),)
    calls.follow([S], drains=drains)
    calls.follow([S], drains=drains)
    calls.follow([S])
    sent = [message.drains for _, message in calls.sent if isinstance(message, Nodes)]
    assert sent == [(), drains, ()]


def test_the_coordinator_is_sent_the_pods_that_have_ended_whenever_they_change():
    calls = on_the_line()
    calls.follow([S], ended_pods=("uid-a0",))
    calls.follow([S], ended_pods=("uid-a0",))
    calls.follow([S])
    sent = [message.ended_pods for _, message in calls.sent if isinstance(message, Nodes)]
    assert sent == [(), ("uid-a0",), ()]


def test_a_new_coordinator_and_a_new_line_are_sent_the_node_facts():
    calls = Calls()
    calls.follow([S, A0], nodes=NODES)
    calls.dialed()
    calls.receives(S, coordinator_snapshot(S))
    calls.receives(A0, coordinator_snapshot(A0, term=2))
    calls.loses(A0)
    calls.later(RETRY_S)
    calls.receives(A0, coordinator_snapshot(A0, term=2))
    result = [(uid, message.facts) for uid, message in calls.sent if isinstance(message, Nodes)]
    assert result == [("s", NODES), ("a0", NODES), ("a0", NODES)]


def test_without_findings_the_coordinator_is_sent_an_empty_list_once():
    """Pods may still have facts that a previous coordinator has sent."""
    calls = on_the_line()
    assert [x for x in calls.sent if x[1] != Observe()] == [("s", Nodes((), NOW))]


def test_a_message_of_a_newer_version_is_ignored():
    calls = on_the_line()
    before = calls.coordination
    calls.receives(S, object())
    assert calls.coordination == before


def test_a_pod_on_a_line_gets_the_end_of_the_job_on_a_new_line():
    """A pod that started as the training ended is called because it may follow a replaced coordinator."""
    # given a pod on a line that is no member
    calls = Calls()
    calls.follow(first=(), others=[T])
    assert calls.dialed() == ["t"]

    # when the job has ended
    end = End(CloseReason.SUCCEEDED, "all workers exited 0")
    calls.follow(first=(), others=[Callee(T.uid, T.ip, end=end)])

    # then the pod is sent the end once
    assert calls.dialed() == ["t"]
    assert calls.dialed() == ["t"]
    assert calls.sent == [("t", Observe()), ("t", end)]


def test_a_pod_that_another_one_named_gets_the_end_of_the_job():
    # given a pod that names another one
    calls = Calls()
    calls.follow(first=(), others=[T])
    calls.dialed()
    calls.receives(T, Refused("this sidecar is not the coordinator", U.uid, U.ip))

    # when the job has ended
    end = End(CloseReason.SUCCEEDED, "all workers exited 0")
    calls.follow(first=(), others=[Callee(pod.uid, pod.ip, end=end) for pod in (T, U)])

    # then both are sent the end
    assert sorted(calls.dialed()) == ["t", "u"]
    assert [result for result in calls.sent if result[1] == end] == [("t", end), ("u", end)]


# Pods without a launcher ---------------------------------------------------------------------------------------------


def lacking(calls: Calls, pod: Pod) -> float:
    """Since when the pod has no launcher, by the answers of the pods that are on a line."""
    answer = calls.coordination.answers.by_pod.get(pod.uid)
    return NEVER if answer is None else answer.no_launcher_since


def visits(calls: Calls, seconds: float, connected: Sequence[str] = ()) -> dict[str, float]:
    """All pods on a line report that they have no launcher, except the connected ones. Return the time without a
    launcher of each pod, known at its last visit.
    """
    times: dict[str, float] = {}
    for _ in range(round(seconds / VISIT_S)):
        before = set(calls.lines)
        for name in calls.later(VISIT_S):
            pod = a_pod(name)
            if pod.uid not in before:
                calls.receives(pod, replace(refused(), lacks_launcher=name not in connected))
            times[name] = calls.now - lacking(calls, pod)
    return times


def test_many_pods_without_a_launcher_are_known_to_lack_it_since_their_first_visits():
    # given 21 pods, which take turns on eight lines
    calls = Calls()
    calls.follow([S], CROWD, running=[S, *CROWD])
    visits(calls, 120.0)
    # then each pod is known at its next visit to have had no launcher for more than 100 s
    times = visits(calls, 6.0)
    assert len(times) == 21
    assert min(times.values()) > 100.0


def test_the_time_without_a_launcher_ends_with_a_launcher_or_with_the_pod():
    calls = Calls()
    calls.follow([S], CROWD, running=[S, *CROWD])
    visits(calls, 60.0)
    # when c0 has a launcher for one of its visits, and c1 is replaced by another pod
    visits(calls, 6.0, connected=["c0"])
    calls.follow([S], CROWD, running=[S, CROWD[0], *CROWD[2:]])
    calls.follow([S], CROWD, running=[S, *CROWD])
    # then their times begin again, and those of the others do not
    times = visits(calls, 6.0)
    assert times["c0"] <= 6.0
    assert times["c1"] <= 6.0
    assert times["c2"] > 60.0


def test_the_time_without_a_launcher_begins_again_after_a_minute_without_a_visit():
    calls = Calls()
    calls.follow([S], [A0])
    calls.dialed()
    calls.receives(A0, replace(refused(), lacks_launcher=True))
    first = calls.now
    # given a pod that stays connected for longer than that
    for _ in range(7):
        calls.later(10.0)
    calls.receives(A0, replace(refused(S), lacks_launcher=True))
    assert lacking(calls, A0) == first
    # when no line to it is wanted for a minute
    calls.follow([S], [])
    calls.dialed()
    calls.now += 60.0
    calls.follow([S], [A0])
    calls.dialed()
    calls.receives(A0, replace(refused(), lacks_launcher=True))
    assert lacking(calls, A0) == calls.now


def test_the_time_without_a_launcher_begins_again_after_a_broken_line():
    # given a pod whose sidecar may have been restarted
    calls = Calls()
    calls.follow([S], [A0])
    calls.dialed()
    calls.receives(A0, replace(refused(), lacks_launcher=True))
    calls.loses(A0)
    calls.later(RETRY_S)
    calls.receives(A0, replace(refused(), lacks_launcher=True))
    assert lacking(calls, A0) == calls.now
