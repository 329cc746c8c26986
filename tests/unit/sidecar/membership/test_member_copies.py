"""The member's part in copies: its plan, its report, and what it fetches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.unit.sidecar.membership.test_member import R0, R1, WELCOME, DrivenMember, assign, hello, joined, start
from understudy_protocol import launcher as l
from understudy_protocol import membership as m
from understudy_protocol.enums import NO_ROUND, RoundToken, Verdict, WorkersState
from understudy_protocol.snapshots import (
    CopyHolder,
    CopyOwner,
    CopyPlan,
    FetchedStep,
    KeptSteps,
    RestoreChoice,
    SavedStep,
    SavedSteps,
)
from understudy_sidecar.membership import events as e

R2 = RoundToken(1, 1, 2)
BEFORE_R0 = RoundToken(1, 0, 9)
HOLDER = CopyHolder("uid-1", "10.0.0.2")
PLAN = CopyPlan(16, (HOLDER,), (CopyOwner(1, "uid-1"),))
SAVED = SavedSteps((SavedStep(R0, 7),))
KEPT = (KeptSteps(1, (SavedStep(R0, 6), SavedStep(R0, 7))),)


def assigned(token: RoundToken = R1) -> DrivenMember:
    driven = joined()
    driven.hear(replace(assign(token), copies=PLAN))
    return driven


def to_coordinator(effects: list[Any]) -> list[Any]:
    return [effect.message for effect in effects if isinstance(effect, e.ToCoordinator)]


def test_the_plan_of_a_round_begins_before_its_workers() -> None:
    effects = joined().hear(replace(assign(R1), copies=PLAN))
    assert effects == [e.PlanCopies(R1, 0, PLAN), start(R1), e.ToCoordinator(m.Ack(R1))]


def test_the_start_is_reported_once_the_kept_copies_are_known_too() -> None:
    for events in (
        (e.FromLauncher(l.WorkersStarted(R1, SAVED, R1)), e.CopiesPlanned(R1, KEPT)),
        (e.CopiesPlanned(R1, KEPT), e.FromLauncher(l.WorkersStarted(R1, SAVED, R1))),
    ):
        driven = assigned()
        assert to_coordinator(driven.do(events[0])) == []
        assert to_coordinator(driven.do(events[1])) == [m.Started(R1, SAVED, KEPT)]


def test_copies_that_are_known_before_the_welcome_are_reported_to_the_next_coordinator() -> None:
    # given workers that run, and a Join without the copies of the pod
    driven = assigned()
    driven.report(l.WorkersStarted(R1, SAVED, R1))
    driven.do(e.LinkDown())
    (join,) = to_coordinator(driven.do(e.LinkUp("10.0.0.9")))
    assert join.kept is None
    # when the copies are known
    assert to_coordinator(driven.do(e.CopiesPlanned(R1, KEPT))) == []
    # then the member sends its Join again
    (again,) = [x for x in to_coordinator(driven.hear(WELCOME)) if isinstance(x, m.Join)]
    assert again == replace(join, kept=KEPT)


def test_without_a_plan_the_start_is_reported_at_once() -> None:
    driven = joined()
    driven.hear(assign(R1))
    assert to_coordinator(driven.report(l.WorkersStarted(R1, SAVED, R1))) == [m.Started(R1, SAVED)]


def test_an_answer_to_the_plan_of_an_older_round_is_ignored() -> None:
    driven = assigned()
    driven.report(l.WorkersStarted(R1, SAVED, R1))
    assert driven.do(e.CopiesPlanned(R0, KEPT)) == []


def test_a_waiting_member_reports_its_copies_by_themselves() -> None:
    driven = joined()
    assert driven.hear(m.PlanCopies(R1, PLAN)) == [e.PlanCopies(R1, None, PLAN)]
    assert to_coordinator(driven.do(e.CopiesPlanned(R1, KEPT))) == [m.CopiesKept(R1, KEPT)]


def test_a_plan_of_an_older_round_is_ignored() -> None:
    assert assigned().hear(m.PlanCopies(R0, PLAN)) == []


def test_a_changed_plan_of_the_running_round_begins_and_is_not_reported_again() -> None:
    driven, changed = assigned(), CopyPlan(16, (), PLAN.owners)
    driven.do(e.CopiesPlanned(R1, KEPT), e.FromLauncher(l.WorkersStarted(R1, SAVED, R1)))
    assert driven.hear(m.PlanCopies(R1, changed)) == [e.PlanCopies(R1, 0, changed)]
    assert driven.do(e.CopiesPlanned(R1, ())) == []


def test_a_copy_is_fetched_and_counts_as_the_pods_own() -> None:
    driven = assigned()
    driven.do(e.CopiesPlanned(R1, KEPT), e.FromLauncher(l.WorkersStarted(R1, SAVED, R1)))
    order = m.FetchCopy(R1, SavedStep(R0, 8), (HOLDER,))
    assert driven.hear(order) == [e.FetchCopy(R1, 0, SavedStep(R0, 8), (HOLDER,))]
    # a repeated order changes nothing
    assert driven.hear(order) == []
    answer = m.CopyFetched(R1, SavedStep(R0, 8), whole=(SavedStep(R0, 7), SavedStep(R0, 8)))
    assert to_coordinator(driven.do(e.CopyFetched(R1, SavedStep(R0, 8)))) == [answer]
    # then the next coordinator learns of it, and a repeated order is answered at once
    assert to_coordinator(driven.hear(order)) == [answer]
    driven.do(e.LinkDown(), e.LinkUp("10.0.0.9"))
    effects = driven.do(e.LinkUp("10.0.0.9"))
    (join,) = [x for x in to_coordinator(effects) if isinstance(x, m.Join)]
    assert join.saved == SavedSteps((SavedStep(R0, 7), SavedStep(R0, 8)))
    assert join.kept == KEPT


def test_a_fetch_that_has_failed_is_reported_with_its_reason() -> None:
    driven = assigned()
    driven.do(e.CopiesPlanned(R1, KEPT), e.FromLauncher(l.WorkersStarted(R1, SAVED, R1)))
    driven.hear(m.FetchCopy(R1, SavedStep(R0, 8), (HOLDER,)))
    failed = driven.do(e.CopyFetched(R1, SavedStep(R0, 8), "it is damaged"))
    assert to_coordinator(failed) == [m.CopyFetched(R1, SavedStep(R0, 8), "it is damaged", SAVED.whole)]
    # and another copy of it may be fetched
    assert driven.hear(m.FetchCopy(R1, SavedStep(R0, 8), (HOLDER,))) != []


def fetching(saved: SavedSteps = SAVED) -> DrivenMember:
    driven = assigned()
    driven.do(e.CopiesPlanned(R1, KEPT), e.FromLauncher(l.WorkersStarted(R1, saved, R1)))
    driven.hear(m.FetchCopy(R1, SavedStep(R0, 8), (HOLDER,)))
    return driven


def test_a_snapshot_that_a_fetch_has_overwritten_does_not_count_any_more() -> None:
    both = SavedSteps((SavedStep(R0, 6), SavedStep(R0, 7)))
    for overwritten, left in (((SavedStep(R0, 6),), (SavedStep(R0, 7),)), (None, ())):
        failed = e.CopyFetched(R1, SavedStep(R0, 8), "it is damaged", overwritten)
        answer = m.CopyFetched(R1, SavedStep(R0, 8), "it is damaged", left)
        assert to_coordinator(fetching(both).do(failed)) == [answer]


def test_a_coordinator_that_is_elected_during_a_fetch_does_not_choose_what_the_fetch_overwrites() -> None:
    # given a fetch
    driven = fetching(SavedSteps((SavedStep(R0, 6), SavedStep(R0, 7))))
    # when it begins to write, and the coordinator is lost
    assert to_coordinator(driven.do(e.CopyOverwrites(SavedStep(R0, 6)))) == []
    driven.do(e.LinkDown())
    # then the next coordinator learns of what is left
    (join,) = to_coordinator(driven.do(e.LinkUp("10.0.0.9")))
    assert join.saved == SavedSteps((SavedStep(R0, 7),))


def test_a_snapshot_that_a_fetch_of_the_round_before_has_overwritten_is_not_reported() -> None:
    both = SavedSteps((SavedStep(R0, 6), SavedStep(R0, 7)))
    for overwritten, left in (((SavedStep(R0, 6),), (SavedStep(R0, 7),)), (None, ())):
        driven = assigned()
        driven.report(l.WorkersStarted(R1, both, R1))
        started = driven.do(e.CopiesPlanned(R1, KEPT, overwritten))
        assert to_coordinator(started) == [m.Started(R1, SavedSteps(left), KEPT)]
        # and in the next round the launcher's report counts again: its memory has not what was overwritten before
        driven.hear(replace(assign(R2), copies=PLAN))
        driven.report(l.WorkersStarted(R2, both, R2))
        assert to_coordinator(driven.do(e.CopiesPlanned(R2, KEPT))) == [m.Started(R2, both, KEPT)]


def started_again(driven: DrivenMember, fetched: tuple[FetchedStep, ...], since: RoundToken) -> SavedSteps | None:
    """The report of round 2. fetched: what its plan finds in the memory. since: as its launcher has reported."""
    driven.hear(replace(assign(R2), copies=PLAN))
    driven.report(l.WorkersStarted(R2, SavedSteps(()), since))
    (report,) = to_coordinator(driven.do(e.CopiesPlanned(R2, (), fetched=fetched)))
    assert isinstance(report, m.Started)
    return report.saved


def test_a_snapshot_that_was_fetched_for_a_round_without_a_choice_counts_in_the_next_one() -> None:
    fetched = (FetchedStep(R1, SavedStep(R0, 8)),)
    assert started_again(fetching(), fetched, since=R1) == SavedSteps((SavedStep(R0, 8),))
    # also if its fetch ended between the assignment of the next round and its plan: the plan finds it (seed 1242570:
    # the only copy had left, and the job fell back to storage)
    driven = fetching()
    driven.hear(replace(assign(R2), copies=PLAN))
    assert to_coordinator(driven.do(e.CopyFetched(R1, SavedStep(R0, 8)))) == []
    driven.report(l.WorkersStarted(R2, SavedSteps(()), R1))
    (report,) = to_coordinator(driven.do(e.CopiesPlanned(R2, (), fetched=fetched)))
    assert report == m.Started(R2, SavedSteps((SavedStep(R0, 8),)), ())
    # but not once a round since then had its choice, because then the training went on from that choice
    assert started_again(fetching(), fetched, since=R2) == SavedSteps(())
    assert started_again(fetching(), fetched, since=NO_ROUND) == SavedSteps(())
    # nor if the plan does not find it: it was of other ranks, is not whole, or the memory is that of another launcher
    driven = fetching()
    driven.do(e.CopyFetched(R1, SavedStep(R0, 8)))
    assert started_again(driven, (), since=R1) == SavedSteps(())


def test_a_restarted_sidecar_knows_of_a_fetched_snapshot() -> None:
    """Found by the simulation (seed 1301552): its pod had the only copy, and the job fell back to storage."""
    # given a sidecar that fetches a copy for round 1, and is killed. Round 1 ends before it has its choice
    driven = DrivenMember()
    running = replace(hello(R1, 0, WorkersState.RUNNING), saved=SavedSteps(()), fetched_since=R1)
    # when a new sidecar starts, then its Join does not have that copy, because the plan is not known
    driven.do(e.LauncherUp(running))
    (join,) = joins(driven.do(e.LinkUp(e.SERVICE)))
    assert join.saved == SavedSteps(())
    driven.hear(replace(WELCOME, token=R1))
    # and the report of the next round has it
    fetched = (FetchedStep(R1, SavedStep(R0, 8)),)
    assert started_again(driven, fetched, since=R1) == SavedSteps((SavedStep(R0, 8),))


def test_a_restarted_sidecar_reports_what_was_fetched_for_the_round_that_runs() -> None:
    driven = DrivenMember()
    running = replace(hello(R1, 0, WorkersState.RUNNING), saved=SavedSteps(()), fetched_since=R1)
    driven.do(e.LauncherUp(running), e.LinkUp(e.SERVICE))
    driven.hear(replace(WELCOME, token=R1))
    driven.hear(m.PlanCopies(R1, PLAN))
    fetched = (FetchedStep(R1, SavedStep(R0, 8)),)
    (report,) = to_coordinator(driven.do(e.CopiesPlanned(R1, (), fetched=fetched)))
    assert report == m.Started(R1, SavedSteps((SavedStep(R0, 8),)), ())


def test_the_choice_reaches_the_launcher_after_the_fetch() -> None:
    driven, choice = assigned(), RestoreChoice(SavedStep(R0, 8), from_copies=True)
    driven.do(e.CopiesPlanned(R1, ()), e.FromLauncher(l.WorkersStarted(R1, SavedSteps(()), R1)))
    driven.hear(m.FetchCopy(R1, SavedStep(R0, 8), (HOLDER,)))
    driven.do(e.CopyFetched(R1, SavedStep(R0, 8)))
    assert driven.hear(m.Restore(R1, choice)) == [e.ToLauncher(l.Restore(R1, choice))]


def test_copies_of_rounds_before_one_that_was_formed_without_this_member_do_not_count() -> None:
    # given a spare that keeps copies of round 0 is disconnected, and round 1 is formed meanwhile
    driven = joined()
    driven.hear(m.PlanCopies(R0, PLAN))
    driven.do(e.CopiesPlanned(R0, ()), e.LinkDown(), e.LinkUp("10.0.0.9"))
    driven.hear(replace(WELCOME, token=R1))
    # then it reports none of round 0
    driven.hear(m.PlanCopies(R1, PLAN))
    whole = (SavedStep(R0, 7), SavedStep(R1, 9))
    answered = to_coordinator(driven.do(e.CopiesPlanned(R1, (KeptSteps(1, whole),))))
    assert answered == [m.CopiesKept(R1, (KeptSteps(1, (SavedStep(R1, 9),)),))]


def test_a_join_names_the_owners_of_which_there_is_no_copy_yet() -> None:
    driven = DrivenMember()
    driven.do(e.LauncherUp(hello(NO_ROUND)), e.LinkUp(e.SERVICE))
    driven.hear(WELCOME)
    driven.hear(m.PlanCopies(R0, PLAN))
    driven.do(e.CopiesPlanned(R0, ()), e.LinkDown())
    (join,) = [x for x in to_coordinator(driven.do(e.LinkUp("10.0.0.9"))) if isinstance(x, m.Join)]
    assert join.kept == (KeptSteps(1, ()),)


def test_a_member_that_gets_its_assignment_late_was_not_left_out() -> None:
    driven = joined()
    driven.hear(replace(assign(R0), copies=PLAN))
    driven.do(e.CopiesPlanned(R0, ()), e.LinkDown(), e.LinkUp("10.0.0.9"))
    driven.hear(replace(WELCOME, token=R1))
    driven.hear(replace(assign(R1), copies=PLAN))
    driven.report(l.WorkersStarted(R1, SAVED, R1))
    assert to_coordinator(driven.do(e.CopiesPlanned(R1, KEPT))) == [m.Started(R1, SAVED, KEPT)]


def test_once_a_round_has_its_choice_it_counts_with_the_older_copies_of_its_round_and_newer_rounds() -> None:
    # given round 1 has restored step 6 of round 0
    driven = assigned()
    driven.do(e.CopiesPlanned(R1, KEPT), e.FromLauncher(l.WorkersStarted(R1, SAVED, R1)))
    driven.hear(m.Restore(R1, RestoreChoice(SavedStep(R0, 6))))
    driven.hear(replace(assign(R2), copies=PLAN))
    driven.report(l.WorkersStarted(R2, SAVED, R2))
    counted = (SavedStep(R0, 5), SavedStep(R0, 6), SavedStep(R1, 8))
    whole = (SavedStep(BEFORE_R0, 4), *counted[:2], SavedStep(R0, 7), *counted[2:])
    answered = to_coordinator(driven.do(e.CopiesPlanned(R2, (KeptSteps(1, whole),))))
    assert answered == [m.Started(R2, SAVED, (KeptSteps(1, counted),))]


def test_a_restarted_sidecar_reports_the_start_again_once_it_knows_its_copies() -> None:
    driven = DrivenMember()
    driven.do(e.LauncherUp(replace(hello(R1, 0, WorkersState.RUNNING), saved=SAVED)))
    (join,) = [x for x in to_coordinator(driven.do(e.LinkUp(e.SERVICE))) if isinstance(x, m.Join)]
    assert join.kept is None
    driven.hear(replace(WELCOME, token=R1))
    driven.hear(m.PlanCopies(R1, PLAN))
    assert to_coordinator(driven.do(e.CopiesPlanned(R1, KEPT))) == [m.Started(R1, SAVED, KEPT)]


# The end of a pod


def running_with_copies() -> DrivenMember:
    driven = assigned()
    driven.do(e.CopiesPlanned(R1, KEPT), e.FromLauncher(l.WorkersStarted(R1, SAVED, R1)))
    return driven


def test_a_drain_is_reported_once_the_newest_snapshots_are_copied() -> None:
    driven = running_with_copies()
    assert driven.report(l.WorkersDrained(R1)) == [e.FlushCopies(R1)]
    assert driven.do(e.CopiesFlushed(R1)) == [e.ToCoordinator(m.Drained(R1))]


def test_without_copies_a_drain_is_reported_at_once() -> None:
    driven = joined()
    driven.hear(assign(R1))
    driven.report(l.WorkersStarted(R1, SAVED, R1))
    assert driven.report(l.WorkersDrained(R1)) == [e.ToCoordinator(m.Drained(R1))]


def test_a_pod_that_was_asked_to_end_leaves_once_its_newest_snapshots_are_copied() -> None:
    driven = running_with_copies()
    driven.report(l.Terminating(30.0, Verdict.UNKNOWN))
    assert driven.do(e.LauncherDown()) == [e.FlushCopies(R1)]
    assert driven.member.is_flushing
    assert to_coordinator(driven.do(e.CopiesFlushed(R1))) == [m.Gone("its launcher has ended")]
    assert not driven.member.is_flushing


def test_a_pod_whose_launcher_has_crashed_leaves_at_once() -> None:
    driven = running_with_copies()
    assert to_coordinator(driven.do(e.LauncherDown())) == [m.Gone("its launcher has ended")]


def test_a_flush_of_another_round_is_no_answer() -> None:
    driven = running_with_copies()
    driven.report(l.WorkersDrained(R1))
    assert driven.do(e.CopiesFlushed(R0)) == []
    assert driven.do(e.CopiesFlushed(R1)) == [e.ToCoordinator(m.Drained(R1))]
    # nor is another answer
    assert driven.do(e.CopiesFlushed(R1)) == []


def test_a_flush_that_the_next_round_did_not_wait_for_ends_no_drain_of_that_round() -> None:
    # given the next round has begun while the newest snapshots of this one were still being copied
    driven = running_with_copies()
    driven.report(l.WorkersDrained(R1))
    driven.hear(replace(assign(R2), copies=PLAN))
    driven.do(e.CopiesPlanned(R2, KEPT), e.FromLauncher(l.WorkersStarted(R2, SAVED, R2)))
    # when its workers are drained too, then their snapshots are copied first
    assert driven.report(l.WorkersDrained(R2)) == [e.FlushCopies(R2)]
    assert driven.do(e.CopiesFlushed(R1)) == []
    assert driven.do(e.CopiesFlushed(R2)) == [e.ToCoordinator(m.Drained(R2))]


def joins(effects: list[Any]) -> list[m.Join]:
    return [x for x in to_coordinator(effects) if isinstance(x, m.Join)]


def test_to_the_next_coordinator_a_drain_has_not_ended_while_the_newest_snapshots_are_being_copied() -> None:
    # given a drain, after which the newest snapshots are being copied when the coordinator is lost
    driven = running_with_copies()
    driven.hear(m.Drain(R1, 20.0))
    driven.report(l.WorkersDrained(R1))
    driven.do(e.LinkDown())
    (join,) = joins(driven.do(e.LinkUp("10.0.0.9")))
    assert (join.workers, join.drain_s) == (WorkersState.RUNNING, 20.0)
    # when they are copied before the next coordinator has answered, then the member reports the end in another Join
    assert joins(driven.do(e.CopiesFlushed(R1))) == []
    (join,) = joins(driven.hear(replace(WELCOME, token=R1)))
    assert (join.workers, join.drain_s) == (WorkersState.IDLE, 20.0)


def test_the_end_of_a_drain_is_reported_to_the_next_coordinator_too() -> None:
    driven = running_with_copies()
    driven.report(l.WorkersDrained(R1))
    driven.do(e.LinkDown(), e.LinkUp("10.0.0.9"))
    driven.hear(replace(WELCOME, token=R1))
    # its Drain changes nothing: the workers have ended, and their snapshots are being copied already
    driven.hear(m.Drain(R1, 10.0))
    assert driven.report(l.WorkersDrained(R1)) == []
    assert driven.do(e.CopiesFlushed(R1)) == [e.ToCoordinator(m.Drained(R1))]


def test_a_leaving_pod_whose_launcher_has_ended_calls_the_next_coordinator_until_its_snapshots_are_copied() -> None:
    driven = running_with_copies()
    driven.report(l.Terminating(30.0, Verdict.UNKNOWN))
    driven.do(e.LauncherDown(), e.LinkDown())
    (join,) = joins(driven.do(e.LinkUp("10.0.0.9")))
    assert (join.workers, join.leaving) == (
        WorkersState.RUNNING,
        m.Leaving("the trainer container got SIGTERM", 30.0, Verdict.UNKNOWN),
    )
    driven.hear(replace(WELCOME, token=R1))
    assert to_coordinator(driven.do(e.CopiesFlushed(R1))) == [m.Gone("its launcher has ended")]


# The stride


def test_a_member_reports_the_stride_that_it_needs_and_repeats_it_to_the_next_coordinator() -> None:
    driven = assigned()
    assert to_coordinator(driven.do(e.CopyStrideNeeded(1))) == []
    assert to_coordinator(driven.do(e.CopyStrideNeeded(4))) == [m.CopyStride(4)]
    driven.do(e.LinkDown())
    driven.do(e.LinkUp("10.0.0.9"))
    assert m.CopyStride(4) in to_coordinator(driven.hear(WELCOME))
    assert to_coordinator(driven.do(e.CopyStrideNeeded(1))) == [m.CopyStride(1)]
