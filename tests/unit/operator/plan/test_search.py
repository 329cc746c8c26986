"""Whom the operator calls to find who is in office, whom it believes, and what it says."""

import math
from collections.abc import Sequence

import pytest

from tests.unit.operator.given import A0, A1, NOW, S, a_pod, a_snapshot, member
from understudy_operator.plan.answers import Answer, Answers
from understudy_operator.plan.intents import Callee, Follow
from understudy_operator.plan.observed import Coordination, Pod
from understudy_operator.plan.search import Say, Search
from understudy_protocol.observer import (
    Appoint,
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
from understudy_protocol.words import CloseReason, Office

NEVER = math.inf
LINES = 8
LINGER_S = 1.0
RETRY_REPLACED_S = 5.0
RETRY_S = 0.5
VISIT_S = 1.0

T, U = a_pod("t"), a_pod("u")
CROWD = [a_pod(f"c{number}", number) for number in range(20)]
VOTERS = [A0, A1, S]
FIRST = Office(1, 1)
NODES = (NodeFact("node-a0", "rack-1"),)


def _callees(pods: Sequence[Pod | Callee]) -> tuple[Callee, ...]:
    return tuple(x if isinstance(x, Callee) else Callee(x.uid, x.ip) for x in pods)


class Calls:
    """A search, and an edge to it that dials whom it wants."""

    def __init__(self, before: Coordination | None = None) -> None:
        self.now = NOW
        self.search = Search(before or Coordination(), self.now)
        self.lines: dict[str, Callee] = {}
        self.said: list[tuple[str, object]] = []

    @property
    def knows(self) -> Coordination:
        return self.search.knows

    def follow(
        self,
        first: Sequence[Pod | Callee] = (S,),
        others: Sequence[Pod | Callee] = (),
        office: Office = FIRST,
        nodes: tuple[NodeFact, ...] = (),
        running: Sequence[Pod] = (A0, A1, S, T, U),
    ) -> None:
        there = {x.uid: x.ip for x in running}
        self._say(self.search.follow(Follow(office, _callees(first), _callees(others), nodes, there), self.now))

    def appoint(self, pod: Pod, epoch: int, others: Sequence[Pod] = ()) -> None:
        self.follow([Callee(pod.uid, pod.ip, Appoint(epoch, -1, {}))], others, Office(epoch, 0))

    def dialed(self) -> list[str]:
        """Who is on a line, or called now; who was called anew is greeted."""
        wanted = self.search.calls(self.now)
        for uid, callee in wanted.items():
            if self.lines.get(uid) is not callee:
                self.said.append((uid.removeprefix("uid-"), callee.greeting))
        self.lines = wanted
        return [uid.removeprefix("uid-") for uid in wanted]

    def hears(self, pod: Pod, message: object) -> None:
        self._say(self.search.heard(self.lines[pod.uid], message, self.now))

    def loses(self, *pods: Pod) -> None:
        for pod in pods:
            self.search.ended(self.lines.pop(pod.uid), self.now)

    def later(self, seconds: float) -> list[str]:
        self.now += seconds
        return self.dialed()

    def _say(self, answers: list[Say]) -> None:
        self.said += [(x.pod_uid.removeprefix("uid-"), x.message) for x in answers]


def in_office(pod: Pod, term: int = 1, epoch: int = 1, number: int = 0) -> Snapshot:
    members = [member(A0, 0), member(A1, 1), member(S, None)]
    return a_snapshot(members, epoch=epoch, term=term, number=number, coordinator=pod, electorate=VOTERS)


def refused(to: Pod | None = None) -> Refused:
    return Refused("not in office", "" if to is None else to.uid, "" if to is None else to.ip)


def on_the_line(pod: Pod = S) -> Calls:
    """Found, and settled: the others were given up."""
    calls = Calls()
    calls.follow([pod, A0, A1])
    calls.dialed()
    calls.hears(pod, in_office(pod))
    assert calls.later(LINGER_S) == [pod.name]
    return calls


# Whom it calls ------------------------------------------------------------------------------------------------------


def test_the_likely_are_called_first_then_the_others_as_far_as_there_are_lines():
    calls = Calls()
    calls.follow([S, A0], [A0, A1, S, *CROWD])
    assert calls.dialed() == ["s", "a0", "a1", "c0", "c1", "c2", "c3", "c4"]
    assert len(calls.lines) == LINES
    assert {message for _, message in calls.said} == {Observe()}


def test_others_are_called_in_turns_and_the_likely_stay_on_the_line():
    calls = Calls()
    calls.follow([S, A0], CROWD)
    turns = [set(calls.dialed())] + [set(calls.later(VISIT_S)) for _ in range(4)]
    assert all({"s", "a0"} < turn for turn in turns)
    asked = [sorted(turn - {"s", "a0"}, key=lambda name: int(name[1:])) for turn in turns]
    assert [names[0] for names in asked] == ["c0", "c6", "c12", "c0", "c4"]  # 18, 19, then round again
    assert calls.said.count(("s", Observe())) == 1


def test_a_visit_lasts_its_time_whoever_is_asked_to_be_called_meanwhile():
    calls = Calls()
    calls.follow([S], CROWD)
    before = calls.dialed()
    calls.follow([S], list(reversed(CROWD)))
    assert sorted(calls.later(VISIT_S / 2)) == sorted(before)


def test_few_pods_stay_on_their_lines():
    calls = Calls()
    calls.follow([S], [A0, A1])
    calls.dialed()
    calls.later(VISIT_S)
    calls.later(VISIT_S)
    assert [name for name, _ in calls.said] == ["s", "a0", "a1"]


def test_a_line_that_ended_is_tried_again_a_little_later():
    calls = Calls()
    calls.follow([S], [A0])
    calls.dialed()
    calls.loses(S)
    assert calls.later(RETRY_S / 2) == ["a0"]
    assert calls.later(RETRY_S / 2) == ["s", "a0"]


def test_a_clock_that_is_set_back_holds_nothing_up():
    calls = on_the_line()
    calls.loses(S)
    calls.follow([S], [A0, A1])
    calls.dialed()
    calls.loses(A0)
    assert calls.later(-3600.0) == ["s", "a0", "a1"]


def test_who_is_named_is_called_too():
    calls = Calls()
    calls.follow([S])
    calls.dialed()
    calls.hears(S, refused(T))
    assert calls.dialed() == ["s", "t"]
    calls.hears(T, in_office(T, term=2))
    assert calls.knows.in_office == T.uid


# Whom it believes ---------------------------------------------------------------------------------------------------


def test_who_is_in_office_stays_on_the_line_alone():
    calls = Calls()
    calls.follow([S, A0], [A1])
    calls.dialed()
    calls.hears(S, in_office(S))
    assert calls.knows == Coordination(in_office(S), S.uid, NOW)
    assert calls.later(LINGER_S - 0.01) == ["s", "a0", "a1"]
    assert not calls.search.settled(calls.now)
    calls.follow([S, A0])  # all others are its members
    assert calls.later(0.01) == ["s"]
    assert calls.search.settled(calls.now)


def test_a_newer_office_on_another_line_is_the_one_that_counts():
    calls = Calls()
    calls.follow([S, A0])
    calls.dialed()
    calls.hears(S, in_office(S, term=1, number=7))
    calls.now += 0.3
    calls.hears(A0, in_office(A0, term=2))
    assert (calls.knows.in_office, calls.knows.since) == (A0.uid, NOW + 0.3)
    calls.hears(S, in_office(S, term=1, number=8))
    assert (calls.knows.in_office, calls.knows.snapshot) == (A0.uid, in_office(A0, term=2))


def test_an_older_office_than_status_tells_does_not_count():
    calls = Calls()
    calls.follow([S], office=Office(1, 3))
    calls.dialed()
    calls.hears(S, in_office(S, term=2))
    assert (calls.knows.in_office, calls.knows.snapshot, calls.knows.answers.pods) == ("", None, frozenset({S.uid}))
    calls.hears(S, in_office(S, term=3))
    assert calls.knows.in_office == S.uid


def test_words_of_a_former_search_are_known_and_an_older_office_does_not_count():
    calls = Calls(Coordination(in_office(S, term=5), S.uid, 1.0, Answers({"x": Answer()}, 1.0)))
    assert calls.knows == Coordination(in_office(S, term=5), "", NOW)
    calls.follow([A0])
    calls.dialed()
    calls.hears(A0, in_office(A0, term=4))
    assert calls.knows.in_office == ""


def test_a_coordinator_that_hears_no_majority_is_not_the_last_word():
    # given one that is cut off from the other voters, and does not know yet that it was replaced
    calls = on_the_line()
    cut_off = a_snapshot([member(S, None)], coordinator=S, electorate=VOTERS)
    calls.hears(S, cut_off)
    calls.follow([S, A0], [A1])
    assert calls.dialed() == ["s", "a0", "a1"]
    calls.hears(A1, refused())
    assert (calls.knows.in_office, calls.knows.answers.pods) == (S.uid, frozenset({A1.uid}))

    # when its successor is heard
    calls.hears(A0, in_office(A0, term=2))

    # then that is the one, and the former is told
    assert calls.said[-2:] == [("s", Superseded(Office(1, 2), A0.uid, A0.ip)), ("a0", Nodes((), NOW + 1))]
    calls.hears(S, refused(A0))
    calls.follow([S, A0])
    assert calls.later(LINGER_S) == ["a0"]
    assert calls.knows == Coordination(in_office(A0, term=2), A0.uid, NOW + LINGER_S)


# How it loses who was in office -------------------------------------------------------------------------------------


def test_who_runs_and_does_not_follow_it_is_asked_whom_it_follows():
    """Found by the simulation (seed 100570): a pod trained on under a coordinator that had been replaced."""
    calls = on_the_line()
    calls.later(LINGER_S)
    calls.follow([S], [A0])
    assert calls.dialed() == ["s", "a0"]
    calls.hears(A0, refused(A1))
    assert calls.dialed() == ["s", "a1", "a0"]
    calls.hears(A1, in_office(A1, epoch=0))
    assert calls.said[-1] == ("a1", Superseded(FIRST, S.uid, S.ip))


def test_the_end_of_the_line_begins_a_search_at_once():
    calls = on_the_line()
    version, calls.now = calls.search.version, NOW + 60
    calls.loses(S)
    assert calls.knows == Coordination(in_office(S), "", NOW + 60, lost_at=NOW + 60)
    assert calls.search.version > version
    assert calls.dialed() == ["a0", "a1"]


def test_so_does_its_own_word_and_whom_it_names_is_called():
    calls = on_the_line()
    calls.hears(S, refused(A1))
    assert (calls.knows.in_office, calls.knows.since) == ("", calls.now)
    assert calls.dialed() == ["s", "a0", "a1"]


def test_an_election_is_told_on_the_open_lines():
    calls = on_the_line()
    calls.loses(S)
    calls.dialed()
    calls.hears(A0, refused())
    calls.hears(A0, in_office(A0, term=2))
    assert (calls.knows.in_office, calls.knows.answers.pods, calls.knows.answers.since) == (A0.uid, frozenset(), NEVER)


def test_who_answered_is_known_for_as_long_as_it_may_be_there():
    calls = Calls()
    calls.follow([S], [A0, A1])
    calls.dialed()
    calls.hears(A0, refused())
    calls.now += 1
    calls.hears(A1, refused())
    assert (calls.knows.answers.pods, calls.knows.answers.since) == (frozenset({A0.uid, A1.uid}), NOW)
    calls.loses(A0)
    assert (calls.knows.answers.pods, calls.knows.answers.since) == (frozenset({A1.uid}), NOW)
    calls.loses(A1)
    assert (calls.knows.answers.pods, calls.knows.answers.since) == (frozenset(), NEVER)


def test_answers_of_the_many_count_on_when_their_visit_is_over():
    calls = Calls()
    calls.follow([], CROWD)
    for name in calls.dialed():
        calls.hears(a_pod(name), refused())
    calls.later(VISIT_S)
    assert calls.knows.answers.pods == {f"uid-c{number}" for number in range(LINES)}


# Who was replaced, and does not know --------------------------------------------------------------------------------


def test_who_believes_to_be_in_office_is_told_once_a_line_who_has_replaced_it():
    calls = Calls()
    calls.follow([S, A0])
    calls.dialed()
    calls.hears(A0, in_office(A0, term=2))
    calls.hears(S, in_office(S, term=1))
    calls.hears(S, in_office(S, term=1, number=1))
    told = ("s", Superseded(Office(1, 2), A0.uid, A0.ip))
    assert calls.said.count(told) == 1
    calls.loses(S)
    calls.later(RETRY_S)
    calls.hears(S, in_office(S, term=1, number=1))
    assert calls.said.count(told) == 2


def test_it_is_told_as_soon_as_there_is_somebody_to_name():
    calls = Calls()
    calls.follow([A0, S], office=Office(1, 2))
    calls.dialed()
    calls.hears(S, in_office(S, term=1))
    assert [message for _, message in calls.said] == [Observe(), Observe()]
    calls.hears(A0, in_office(A0, term=2))
    assert calls.said[2:] == [("s", Superseded(Office(1, 2), A0.uid, A0.ip)), ("a0", Nodes((), NOW))]


def test_it_stays_on_the_line_until_it_says_that_it_is_no_more():
    calls = Calls()
    calls.follow([S, A0])
    calls.dialed()
    calls.hears(A0, in_office(A0, term=2))
    calls.hears(S, in_office(S, term=1))
    assert calls.later(LINGER_S) == ["a0", "s"]
    assert not calls.search.idle(calls.now)
    calls.hears(S, refused(A0))
    assert calls.dialed() == ["a0"]
    assert calls.search.idle(calls.now)


def test_a_lost_coordinator_is_called_now_and_then_after_another_one_was_appointed():
    # given a coordinator that is out of reach
    calls = on_the_line()
    calls.loses(S)
    calls.appoint(A0, 7, [A0, S])
    calls.dialed()
    calls.hears(A0, in_office(A0, epoch=7))
    calls.follow([A0], office=Office(7, 1))
    assert calls.dialed() == ["a0", "s"]
    calls.loses(S)

    # then it is called, for as long as its pod is there
    assert calls.later(LINGER_S) == ["a0"]
    assert calls.later(RETRY_REPLACED_S - LINGER_S) == ["a0", "s"]
    calls.hears(S, in_office(S))
    assert calls.said[-1] == ("s", Superseded(Office(7, 1), A0.uid, A0.ip))
    calls.follow([A0], office=Office(7, 1), running=[A0])
    assert calls.dialed() == ["a0"]
    assert calls.search.idle(calls.now)


def test_one_that_has_said_so_before_needs_not_be_told():
    calls = on_the_line()
    calls.hears(S, refused())
    calls.dialed()
    calls.hears(A0, in_office(A0, term=2))
    assert calls.later(LINGER_S) == ["a0"]


def test_who_comes_into_office_again_was_not_replaced():
    calls = Calls()
    calls.follow([S, A0])
    calls.dialed()
    calls.hears(A0, in_office(A0, term=2))
    calls.hears(S, in_office(S, term=1))
    calls.hears(S, in_office(S, term=3))
    calls.hears(A0, refused(S))
    assert calls.later(LINGER_S) == ["s"]
    assert calls.search.idle(calls.now)


# What their answers are worth ---------------------------------------------------------------------------------------


def test_an_answer_names_somebody_for_as_long_as_its_pod_is_on_the_line():
    calls = Calls()
    calls.follow([], CROWD, running=[*CROWD, T])
    for name in calls.dialed():
        calls.hears(a_pod(name), refused(T))
    assert calls.knows.answers.named == {T.uid}
    calls.later(VISIT_S)  # others have the lines now, and t, which was named
    assert (len(calls.knows.answers.pods), calls.knows.answers.named) == (LINES, frozenset())


@pytest.mark.attack(
    "B3",
    "a pod of the job names another pod with the address of any host",
    before="the operator called that address",
)
def test_a_pod_that_is_named_is_called_at_the_address_that_the_api_server_reports():
    # given a pod that names a pod of the job, with an address of its choice
    calls = Calls()
    calls.follow([S])
    calls.dialed()
    calls.hears(S, Refused("not in office", T.uid, "169.254.169.254"))

    # then that pod is called at its own address
    assert calls.dialed() == ["s", "t"]
    assert calls.lines[T.uid].ip == T.ip


@pytest.mark.attack(
    "B3",
    "a pod of the job names a pod that is not one of the job",
    before="the operator called it",
)
def test_a_pod_that_is_not_of_the_job_is_not_called_whoever_names_it():
    calls = Calls()
    calls.follow([S])
    calls.dialed()
    for number in range(100):
        calls.hears(S, Refused("not in office", f"uid-{number}", "10.0.0.1"))
    assert calls.dialed() == ["s"]


def test_a_long_answer_is_kept_short():
    """One is kept of each pod: 10,000 pods with 1 MiB each would be 10 GB."""
    calls = Calls()
    calls.follow([S])
    calls.dialed()
    calls.hears(S, Refused("r" * 1_000_000, "u" * 1_000_000, "10.0.0.1"))
    (answer,) = calls.knows.answers.by_pod.values()
    assert (len(answer.reason), len(answer.named)) == (200, 64)


def test_who_answers_itself_is_not_in_office_whoever_names_it():
    calls = Calls()
    calls.follow([S, A0])
    calls.dialed()
    calls.hears(S, refused(A0))
    assert calls.knows.answers.named == {A0.uid}
    calls.hears(A0, refused())
    assert calls.knows.answers.named == frozenset()


def test_answers_of_pods_that_are_gone_do_not_count():
    """Found by the simulation (seed 32404): one that was deleted named its coordinator for ever."""
    calls = Calls()
    calls.follow([S, A0])
    calls.dialed()
    calls.hears(S, refused(T))
    calls.hears(A0, refused())
    calls.follow([A0], running=[A0])
    assert (calls.knows.answers.pods, calls.knows.answers.named) == (frozenset({A0.uid}), frozenset())
    calls.follow([A0], running=[])
    assert calls.knows.answers.since == NEVER


# Appointments -------------------------------------------------------------------------------------------------------


def test_the_appointee_is_greeted_with_its_appointment():
    calls = Calls()
    calls.appoint(S, 7)
    calls.dialed()
    assert calls.said == [("s", Appoint(7, -1, {}))]


def test_one_on_the_line_is_called_anew_and_its_former_answers_are_not_about_the_appointment():
    calls = Calls()
    calls.follow([S], [A0])
    calls.dialed()
    former = calls.lines[A0.uid]
    calls.appoint(A0, 7)
    calls.dialed()
    assert calls.said[-1] == ("a0", Appoint(7, -1, {}))
    calls.search.heard(former, refused(), calls.now)
    assert calls.knows.answers.pods == frozenset()


def test_one_that_was_replaced_may_be_appointed_again():
    """Found by the simulation (seed 128): it stayed on the line that told it of its successor, and never heard."""
    calls = on_the_line(A0)
    calls.hears(A0, in_office(A0, epoch=3))
    calls.appoint(S, 4, [A0])
    calls.dialed()
    calls.hears(A0, in_office(A0, epoch=3))
    calls.appoint(A0, 5)
    calls.dialed()
    assert calls.said[-1] == ("a0", Appoint(5, -1, {}))


def test_an_appointment_is_sent_once_and_the_search_for_its_epoch_begins_with_it():
    calls = on_the_line()
    calls.now += 60
    calls.appoint(A0, 7)
    assert (calls.knows.in_office, calls.knows.since) == ("", calls.now)
    calls.dialed()
    calls.now += 1
    calls.appoint(A0, 7)  # the next pass wants the same
    assert calls.knows.since == calls.now - 1
    calls.hears(A0, in_office(A0, epoch=7))
    calls.follow([A0], office=Office(7, 1))
    assert calls.later(LINGER_S) == ["a0"]
    assert [message for _, message in calls.said].count(Appoint(7, -1, {})) == 1


def test_what_the_appointee_has_said_before_was_not_about_its_appointment():
    calls = Calls()
    calls.follow([S], [A0])
    calls.dialed()
    calls.hears(S, refused())
    calls.hears(A0, refused())
    calls.appoint(S, 7, [A0])
    assert calls.knows.answers.pods == {A0.uid}
    calls.dialed()
    calls.hears(S, refused())
    assert calls.knows.answers.by_pod[S.uid] == Answer("not in office")


# What is passed on --------------------------------------------------------------------------------------------------


def test_steps_come_between_snapshots_and_only_the_first_one_is_news():
    calls = on_the_line()
    version = calls.search.version
    calls.hears(S, Stepping(StepProgress(12, 100, NOW)))
    assert calls.search.version == version + 1
    calls.hears(S, Stepping(StepProgress(13, 100, NOW)))
    assert calls.knows.snapshot is not None
    assert calls.knows.snapshot.progress == StepProgress(13, 100, NOW)
    assert calls.search.version == version + 1


def test_steps_of_another_one_are_not_the_jobs():
    calls = Calls()
    calls.follow([S, A0])
    calls.dialed()
    calls.hears(S, in_office(S))
    calls.hears(A0, Stepping(StepProgress(12, 100, NOW)))
    assert calls.knows.snapshot == in_office(S)


def test_who_is_in_office_is_told_of_nodes_whenever_they_change():
    calls = Calls()
    calls.follow([S], nodes=NODES)
    calls.dialed()
    assert calls.said == [("s", Observe())]
    calls.hears(S, in_office(S))
    calls.hears(S, in_office(S, number=1))
    calls.follow([S], nodes=NODES)
    calls.follow([S], nodes=())
    calls.follow([S], nodes=())
    assert calls.said[1:] == [("s", Nodes(NODES, NOW)), ("s", Nodes((), NOW))]


def test_so_is_its_successor_and_itself_on_a_new_line():
    calls = Calls()
    calls.follow([S, A0], nodes=NODES)
    calls.dialed()
    calls.hears(S, in_office(S))
    calls.hears(A0, in_office(A0, term=2))
    calls.loses(A0)
    calls.later(RETRY_S)
    calls.hears(A0, in_office(A0, term=2))
    told = [(uid, message.facts) for uid, message in calls.said if isinstance(message, Nodes)]
    assert told == [("s", NODES), ("a0", NODES), ("a0", NODES)]


def test_without_facts_it_is_told_once_that_nothing_is_held_against_any():
    """What a former coordinator has told may still lie in the pods."""
    calls = on_the_line()
    assert [x for x in calls.said if x[1] != Observe()] == [("s", Nodes((), NOW))]


def test_a_message_of_a_newer_version_is_passed_over():
    calls = on_the_line()
    before = calls.knows
    calls.hears(S, object())
    assert calls.knows == before


def test_who_is_on_a_line_already_is_told_on_another_that_the_job_has_ended():
    """One that came as the training ended is called because it may follow somebody who was replaced."""
    # given a pod on a line, which is no member
    calls = Calls()
    calls.follow(first=(), others=[T])
    assert calls.dialed() == ["t"]

    # when the job has ended
    end = End(CloseReason.SUCCEEDED, "all workers exited 0")
    calls.follow(first=(), others=[Callee(T.uid, T.ip, end=end)])

    # then it is told so, once
    assert calls.dialed() == ["t"]
    assert calls.dialed() == ["t"]
    assert calls.said == [("t", Observe()), ("t", end)]


def test_who_was_named_by_another_is_told_that_the_job_has_ended_and_not_asked():
    # given a pod that names another one
    calls = Calls()
    calls.follow(first=(), others=[T])
    calls.dialed()
    calls.hears(T, Refused("this sidecar is not in office", U.uid, U.ip))

    # when the job has ended
    end = End(CloseReason.SUCCEEDED, "all workers exited 0")
    calls.follow(first=(), others=[Callee(pod.uid, pod.ip, end=end) for pod in (T, U)])

    # then both are told so
    assert sorted(calls.dialed()) == ["t", "u"]
    assert [told for told in calls.said if told[1] == end] == [("t", end), ("u", end)]
