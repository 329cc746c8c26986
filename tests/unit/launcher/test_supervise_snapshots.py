"""The supervisor reads the snapshots before each round, reports them, and passes the coordinator's choice on once."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.launcher.driven import PORT, Driven, start, steps, token
from understudy_launcher import events as e
from understudy_protocol import launcher as m
from understudy_protocol.enums import NO_ROUND, RoundToken, WorkersState
from understudy_protocol.snapshots import MadeStep, RestoreChoice, SavedStep, SavedSteps

SAVED = SavedStep(token(0), 7)


def with_snapshots() -> Driven:
    """Round 0 runs, and no snapshot was saved before."""
    driven = Driven(snapshots=True)
    driven.do(start(0), e.SnapshotsRead(token(0), ()))
    return driven


def replaced(driven: Driven, number: int) -> list[e.Effect]:
    """A round replaces the one that runs, and all old workers end."""
    ended = [e.WorkerEnded(rank, None, "SIGKILL", 137, "killed by SIGKILL", 1000.0) for rank in (0, 1)]
    return driven.do(start(number), *ended, e.GroupEmptied(0), e.GroupEmptied(1))


def test_the_snapshots_are_read_when_no_older_worker_is_left_and_before_new_ones_start() -> None:
    driven = with_snapshots()
    effects = [x for x in replaced(driven, 1) if isinstance(x, (e.Signal, e.ReadSnapshots, e.Spawn))]
    assert [type(x) for x in effects[-2:]] == [e.ReadSnapshots, e.Spawn]
    assert effects[-2] == e.ReadSnapshots(start(1))


def test_the_start_of_the_workers_is_reported_with_their_snapshots() -> None:
    driven = with_snapshots()
    assert not [x for x in replaced(driven, 1) if x == e.Report(m.WorkersStarted(token(1)))]
    reported = driven.do(e.SnapshotsRead(token(1), (SAVED,)))
    assert reported == [e.Report(m.WorkersStarted(token(1), SavedSteps((SAVED,)), token(0)))]


def test_the_newest_step_before_the_round_is_reported() -> None:
    driven = with_snapshots()
    driven.do(steps(6), steps(8, rank=1))
    replaced(driven, 1)
    # then a round without steps reports it again
    for number in (1, 2):
        (report,) = driven.do(e.SnapshotsRead(token(number), ()))
        assert report == e.Report(m.WorkersStarted(token(number), SavedSteps((), MadeStep(token(0), 8)), token(0)))
        replaced(driven, number + 1)


def test_a_step_that_is_counted_from_the_start_of_its_round_is_not_the_newest_step() -> None:
    # given a round after one that has made step 8
    driven = with_snapshots()
    driven.do(steps(8))
    replaced(driven, 1)
    # when it counts its steps
    driven.do(replace(steps(3), is_counted=True), replace(steps(2, rank=1), is_counted=True))
    replaced(driven, 2)
    # then the newest step is not known
    (report,) = driven.do(e.SnapshotsRead(token(2), ()))
    assert report == e.Report(m.WorkersStarted(token(2), SavedSteps((), None), token(0)))


def fetched_since(effects: list[e.Effect]) -> RoundToken:
    (effect,) = effects
    assert isinstance(effect, e.Report)
    assert isinstance(effect.message, (m.WorkersStarted, m.LauncherHello))
    return effect.message.fetched_since


def test_what_was_fetched_counts_since_the_first_round_after_the_last_choice() -> None:
    def reported(number: int) -> RoundToken:
        replaced(driven, number)
        return fetched_since(driven.do(e.SnapshotsRead(token(number), ())))

    # given no round that had its choice
    driven = with_snapshots()
    assert (reported(1), reported(2)) == (token(0), token(0))
    # when a round has its choice, then nothing that was fetched for it or before counts in the next one
    driven.do(m.Restore(token(2), RestoreChoice(None, "no pod has a snapshot")))
    assert fetched_since(driven.do(e.Connected())) == NO_ROUND
    assert (reported(3), reported(4)) == (token(3), token(3))
    # and a restarted sidecar learns of it too
    assert fetched_since(driven.do(e.Connected())) == token(3)


def test_snapshots_that_were_read_for_an_older_round_are_not_reported() -> None:
    driven = with_snapshots()
    replaced(driven, 1)
    assert driven.do(e.SnapshotsRead(token(0), (SAVED,))) == []


def test_the_choice_is_passed_to_the_workers_once() -> None:
    driven = with_snapshots()
    choice = RestoreChoice(None, "no pod has a snapshot")
    assert driven.do(m.Restore(token(0), choice)) == [e.ChooseSnapshot(choice)]
    assert driven.do(m.Restore(token(0), RestoreChoice(SAVED))) == []


def test_the_choice_for_another_round_is_ignored() -> None:
    driven = with_snapshots()
    assert driven.do(m.Restore(token(1), RestoreChoice(SAVED))) == []


def test_a_hello_reports_the_snapshots_and_the_choice() -> None:
    driven = with_snapshots()
    driven.do(m.Restore(token(0), RestoreChoice(SAVED)))
    (hello,) = driven.do(e.Connected())
    expected = (1, token(0), 1, WorkersState.RUNNING, PORT)
    assert hello == e.Report(m.LauncherHello(*expected, saved=SavedSteps((), None, RestoreChoice(SAVED))))


def test_without_memory_no_snapshots_are_read() -> None:
    driven = Driven()
    effects = driven.do(start(0))
    assert e.Report(m.WorkersStarted(token(0))) in effects
    assert not [x for x in effects if isinstance(x, e.ReadSnapshots)]


def test_the_counts_of_snapshots_on_storage_are_reported_and_repeated_to_a_sidecar_that_was_restarted() -> None:
    driven, stored = with_snapshots(), m.SnapshotsStored(3, 1, 3000, 7.5)
    assert e.Report(stored) not in driven.do(e.Connected())
    assert driven.do(e.StorageReported(stored)) == [e.Report(stored)]
    assert e.Report(stored) in driven.do(e.Connected())
