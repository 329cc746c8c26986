"""Which snapshot a round restores: the newest of the training that every rank has, and the reason if there is none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.sidecar.membership.driven import DrivenCoordinator, running
from understudy_protocol import membership as m
from understudy_protocol.enums import ConfigVersion, RoundToken, Strategy, Term, Tier, WorkersState
from understudy_protocol.snapshots import CopyPlan, KeptSteps, MadeStep, RestoreChoice, SavedStep, SavedSteps
from understudy_sidecar.membership.config_change import take_leader_snapshot

R0, R1, R2 = (RoundToken(1, 1, number) for number in range(3))
NO_POD = RestoreChoice(None, "no pod has a snapshot")


def steps_of(token: RoundToken, *steps: int, newest: int | None = None) -> SavedSteps:
    made = None if newest is None else MadeStep(token, newest)
    return SavedSteps(tuple(SavedStep(token, step) for step in steps), made)


def trained(max_in_place: int = 2) -> DrivenCoordinator:
    """A job of two pods with snapshots, whose round 0 has restored none and made steps."""
    driven = DrivenCoordinator(snapshots=True, max_in_place=max_in_place)
    driven.join("spare-0")
    for number in (0, 1):
        driven.join(f"active-{number}")
    for number in (0, 1):
        report(driven, f"active-{number}", SavedSteps(()))
    driven.report_step("active-0")
    driven.sent.clear()
    return driven


def report(driven: DrivenCoordinator, name: str, saved: SavedSteps | None) -> None:
    """The member's workers have been started."""
    driven.receive(name, m.Ack(driven.token))
    driven.receive(name, m.Started(driven.token, saved))


def choices(driven: DrivenCoordinator, name: str) -> list[RestoreChoice]:
    return [message.choice for message in driven.take(name, m.Restore)]


def chosen(driven: DrivenCoordinator, **saved: SavedSteps | None) -> RestoreChoice:
    """The choice after these reports; the same for each member, and only after the last report."""
    names = {name: name.replace("_", "-") for name in saved}
    for number, (name, of_member) in enumerate(saved.items()):
        report(driven, names[name], of_member)
        found = [choices(driven, pod) for pod in names.values()]
        if number < len(saved) - 1:
            assert found == [[]] * len(names)
    assert all(each == found[0] for each in found)
    (choice,) = found[0]
    return choice


def appointed_above(round_number: int, *rank_holders: str) -> DrivenCoordinator:
    """A new coordinator of a job of one pod, after a round of these pods. active-0 comes from round 0."""
    holders = tuple(
        m.RankHolder(rank, f"uid-{name}", name, f"node-of-{name}") for rank, name in enumerate(rank_holders)
    )
    driven = DrivenCoordinator(1, epoch=2, at_least_round=round_number, snapshots=True, rank_holders=holders)
    driven.join("active-0", R0, 0, WorkersState.IDLE, stepped=R0)
    driven.join("spare-0")
    driven.later(1.0, "active-0", "spare-0")
    assert driven.assigned() == {"active-0": 0}
    return driven


def test_a_snapshot_does_not_count_if_the_pods_of_a_newer_round_are_missing() -> None:
    """Found by the simulation (seed 1392363): that round had trained to the end, and its pod was cut off."""
    driven = appointed_above(1, "spare-7")
    choice = chosen(driven, active_0=steps_of(R0, 23))
    assert choice == RestoreChoice(None, "the snapshots are of a round that another one has replaced")


@pytest.mark.parametrize(
    ("round_number", "rank_holders"),
    [
        pytest.param(0, (), id="no newer round"),
        pytest.param(1, ("spare-0",), id="the pod of the newer round has joined, and did not know that round"),
    ],
)
def test_a_snapshot_counts_if_no_newer_round_can_have_stepped(round_number: int, rank_holders: tuple[str, ...]) -> None:
    driven = appointed_above(round_number, *rank_holders)
    assert chosen(driven, active_0=steps_of(R0, 23)) == RestoreChoice(SavedStep(R0, 23))


def test_a_first_round_restores_no_snapshot() -> None:
    driven = DrivenCoordinator(snapshots=True)
    driven.join("active-0")
    driven.join("active-1")
    assert chosen(driven, active_0=SavedSteps(()), active_1=SavedSteps(())) == NO_POD


def test_the_newest_step_that_all_have_is_restored() -> None:
    driven = trained()
    driven.fail_worker("active-1")
    choice = chosen(driven, active_0=steps_of(R0, 7, 8), active_1=steps_of(R0, 6, 7))
    assert choice == RestoreChoice(SavedStep(R0, 7))


def test_two_rounds_that_saved_the_same_step_have_saved_different_snapshots() -> None:
    # given round 1 has restored step 7 of round 0, and pod 1 alone has saved step 8 again
    driven = trained()
    driven.fail_worker("active-1")
    chosen(driven, active_0=steps_of(R0, 7, 8), active_1=steps_of(R0, 7))
    driven.report_step("active-0", 8)
    driven.fail_worker("active-1")
    # then pod 0's step 8 of round 0 is another one
    mixed = SavedSteps((SavedStep(R0, 7), SavedStep(R1, 8)))
    assert chosen(driven, active_0=steps_of(R0, 7, 8), active_1=mixed) == RestoreChoice(SavedStep(R0, 7))


def test_without_a_common_step_storage_is_restored_with_the_reason() -> None:
    driven = trained()
    driven.fail_worker("active-1")
    choice = chosen(driven, active_0=steps_of(R0, 8, 9), active_1=steps_of(R0, 6, 7))
    assert choice == RestoreChoice(None, "the pods have no snapshot of the same step")


def test_a_lost_pod_leads_to_storage_and_the_reason_names_its_successor() -> None:
    driven = trained()
    driven.drop("active-0")
    choice = chosen(driven, spare_0=SavedSteps(()), active_1=steps_of(R0, 7, 8))
    assert choice == RestoreChoice(None, "spare-0 has no snapshot of its ranks")


def test_the_reason_names_the_first_pods_of_many() -> None:
    driven = DrivenCoordinator(5, snapshots=True)
    for number in range(5):
        driven.join(f"active-{number}")
    some, none = steps_of(R0, 7), SavedSteps(())
    choice = chosen(driven, active_0=some, active_1=none, active_2=none, active_3=none, active_4=none)
    assert choice.reason == "4 pods have no snapshot of their ranks: active-1, active-2, active-3, …"


def test_a_pod_without_memory_leads_to_storage() -> None:
    driven = trained()
    driven.fail_worker("active-1")
    choice = chosen(driven, active_0=steps_of(R0, 7), active_1=None)
    assert choice == RestoreChoice(None, "active-1 has no snapshot of its ranks")


def test_a_job_without_snapshots_gets_no_choice() -> None:
    driven = running()
    driven.fail_worker("active-1")
    driven.report_started("active-0", "active-1")
    assert choices(driven, "active-0") == choices(driven, "active-1") == []
    assert driven.recovery().tier is None


# Only the history of the training counts


def test_a_snapshot_of_a_round_that_another_one_has_replaced_is_not_restored() -> None:
    # given round 1 ran on other pods, and round 0 continued while it was cut off
    driven = trained()
    driven.drop("active-0")
    chosen(driven, spare_0=SavedSteps(()), active_1=SavedSteps(()))
    driven.report_step("spare-0", 5)
    driven.fail_worker("active-1")
    # when all pods of the next round have only what round 0 has saved
    choice = chosen(driven, spare_0=steps_of(R0, 50), active_1=steps_of(R0, 50))
    # then it is not restored
    assert choice == RestoreChoice(None, "the snapshots are of a round that another one has replaced")


def test_a_round_that_ended_before_its_choice_does_not_count() -> None:
    driven = trained()
    driven.fail_worker("active-1")
    report(driven, "active-0", steps_of(R0, 7))
    driven.fail_worker("active-1")
    driven.later(2, "active-0", "active-1", "spare-0")
    assert driven.token == R2
    choice = chosen(driven, active_0=steps_of(R0, 7), active_1=steps_of(R0, 7))
    assert choice == RestoreChoice(SavedStep(R0, 7))


def restored_step_8() -> DrivenCoordinator:
    """Round 2 has restored step 8 of round 1, which has restored step 5 of round 0."""
    driven = trained(max_in_place=9)
    driven.fail_worker("active-1")
    chosen(driven, active_0=steps_of(R0, 5), active_1=steps_of(R0, 5, 6, 7))
    driven.report_step("active-0", 9)
    driven.fail_worker("active-1")
    chosen(driven, active_0=steps_of(R1, 7, 8, 9), active_1=steps_of(R1, 7, 8))
    driven.report_step("active-0", 9)
    driven.fail_worker("active-1")
    return driven


def test_without_the_restored_snapshot_the_newest_older_one_of_its_round_is_restored() -> None:
    choice = chosen(restored_step_8(), active_0=steps_of(R1, 7, 8), active_1=steps_of(R1, 6, 7))
    assert choice == RestoreChoice(SavedStep(R1, 7))


def test_a_newer_step_of_the_round_whose_snapshot_was_restored_does_not_count() -> None:
    choice = chosen(restored_step_8(), active_0=steps_of(R1, 7, 9), active_1=steps_of(R1, 7, 9))
    assert choice == RestoreChoice(SavedStep(R1, 7))
    # and after that, step 8 does not count either
    driven = restored_step_8()
    chosen(driven, active_0=steps_of(R1, 7), active_1=steps_of(R1, 7))
    driven.report_step("active-0", 20)
    driven.fail_worker("active-1")
    both = SavedSteps(steps_of(R1, 7, 8).whole, MadeStep(RoundToken(1, 1, 3), 20))
    assert chosen(driven, active_0=both, active_1=both) == RestoreChoice(SavedStep(R1, 7))


def test_a_snapshot_of_a_round_before_the_one_whose_snapshot_was_restored_does_not_count() -> None:
    """Step 6 of round 0 is smaller than the restored step 8, but round 1 has left it."""
    choice = chosen(restored_step_8(), active_0=steps_of(R0, 6), active_1=steps_of(R0, 6))
    assert choice == RestoreChoice(None, "the snapshots are of a round that another one has replaced")


def test_a_job_that_has_shrunk_and_grows_restores_no_snapshot_from_before_it_has_shrunk() -> None:
    """Else the progress of the smaller world would be lost."""
    # given a round of three pods that has saved step 7, and a later round of two pods that has made more steps
    pods = [f"active-{number}" for number in range(3)]
    driven = DrivenCoordinator(3, snapshots=True, min_actives=2)
    for pod in pods:
        driven.join(pod)
    chosen(driven, active_0=SavedSteps(()), active_1=SavedSteps(()), active_2=SavedSteps(()))
    driven.report_step("active-0", 7)
    driven.drop("active-2")
    driven.later(31.0, "active-0", "active-1")
    assert chosen(driven, active_0=SavedSteps(()), active_1=SavedSteps(())).saved is None
    driven.report_step("active-0", 50)
    # when a third pod joins, and all pods report the snapshot of three ranks
    driven.join("spare-9")
    driven.fail_worker("active-0")
    of_three = steps_of(R0, 7)
    choice = chosen(driven, active_0=of_three, active_1=of_three, spare_9=of_three)
    # then it is not restored
    assert choice == RestoreChoice(None, "the snapshots are of a round that another one has replaced")


# A poisoned state


def failed_again(driven: DrivenCoordinator, saved: SavedSteps) -> RestoreChoice:
    """A worker fails after a step, and the pods report these snapshots for the next round."""
    driven.report_step("active-0", 8)
    driven.fail_worker("active-1")
    return chosen(driven, active_0=saved, active_1=saved)


def test_after_two_failures_within_3_steps_of_a_restore_storage_is_restored() -> None:
    driven = trained(max_in_place=9)
    assert failed_again(driven, steps_of(R0, 7)).saved == SavedStep(R0, 7)
    assert failed_again(driven, steps_of(R1, 9)).saved == SavedStep(R1, 9)
    third = failed_again(driven, steps_of(R2, 11))
    assert third.saved is None
    assert third.reason == ("2 rounds in a row have failed within 3 steps of a restored snapshot: it may be the cause")
    # and of the snapshots on storage, only those before the suspect one count
    assert third.before_step == 9
    # and a snapshot after that is trusted again
    assert failed_again(driven, steps_of(RoundToken(1, 1, 3), 12)).saved == SavedStep(RoundToken(1, 1, 3), 12)


def test_a_round_that_made_3_steps_after_a_restore_has_cleared_the_snapshots() -> None:
    driven = trained(max_in_place=9)
    failed_again(driven, steps_of(R0, 7))
    assert failed_again(driven, steps_of(R1, 10)).saved == SavedStep(R1, 10)
    assert failed_again(driven, steps_of(R2, 11)).saved == SavedStep(R2, 11)


def made(token: RoundToken, step: int) -> SavedSteps:
    """The pods have the snapshot of step 100, and this round has made this step."""
    return SavedSteps((SavedStep(R0, 100),), MadeStep(token, step))


def test_steps_that_were_not_saved_clear_the_snapshots_too() -> None:
    """With `every: 100`, rounds may fail 50 steps after a restore, and have saved nothing since."""
    driven = trained(max_in_place=9)
    restored = SavedStep(R0, 100)
    assert failed_again(driven, steps_of(R0, 100)).saved == restored
    assert [failed_again(driven, made(RoundToken(1, 1, number), 150)).saved for number in (1, 2, 3)] == [restored] * 3


def test_steps_of_the_rounds_before_a_restore_clear_no_snapshot() -> None:
    # given round 0 has made 90 steps after its last save, and rounds 1 and 2 fail before their first step
    driven = trained(max_in_place=9)
    assert failed_again(driven, made(R0, 190)).saved == SavedStep(R0, 100)
    assert failed_again(driven, made(R0, 190)).saved == SavedStep(R0, 100)
    assert failed_again(driven, made(R0, 190)).saved is None


# Members that disconnect, and new coordinators


def test_a_member_that_joins_again_without_the_choice_gets_it() -> None:
    driven = trained()
    driven.fail_worker("active-1")
    chosen(driven, active_0=steps_of(R0, 7), active_1=steps_of(R0, 7))
    driven.drop("active-1", silent=True)
    driven.join("active-1", R1, 1, WorkersState.RUNNING, saved=steps_of(R0, 7))
    assert choices(driven, "active-1") == [RestoreChoice(SavedStep(R0, 7))]
    assert choices(driven, "active-0") == []


def test_a_member_that_joins_again_may_send_the_last_report() -> None:
    driven = trained()
    driven.fail_worker("active-1")
    report(driven, "active-0", steps_of(R0, 7))
    driven.drop("active-1", silent=True)
    driven.join("active-1", R1, 1, WorkersState.RUNNING, saved=steps_of(R0, 7))
    assert choices(driven, "active-0") == choices(driven, "active-1") == [RestoreChoice(SavedStep(R0, 7))]


def elected() -> DrivenCoordinator:
    uids = ("uid-active-0", "uid-active-1", "uid-spare-0")
    version = ConfigVersion(1, 1, 1)
    snapshot = m.LeaderSnapshot(version, uids, (), "uid-coordinator-0", {}, token=R1, stepped=R0)
    return DrivenCoordinator(elected=snapshot, snapshots=True)


def test_a_new_coordinator_chooses_for_a_round_that_has_no_choice() -> None:
    driven = elected()
    for number in (0, 1):
        driven.join(f"active-{number}", R1, number, WorkersState.RUNNING, saved=steps_of(R0, 7), term=Term(1, 2))
    driven.join("spare-0", term=Term(1, 2))
    driven.later(10, "active-0", "active-1", "spare-0")
    assert driven.token == R1
    assert choices(driven, "active-0") == choices(driven, "active-1") == [RestoreChoice(SavedStep(R0, 7))]


@pytest.mark.parametrize("first", [0, 1])
def test_a_new_coordinator_keeps_the_choice_that_any_member_has(first: int) -> None:
    driven, choice = elected(), RestoreChoice(SavedStep(R0, 6))
    for number in (first, 1 - first):
        received = SavedSteps(steps_of(R0, 6, 7).whole, choice=choice if number == 0 else None)
        driven.join(f"active-{number}", R1, number, WorkersState.RUNNING, saved=received, term=Term(1, 2))
    driven.later(10, "active-0", "active-1")
    assert driven.token == R1
    assert (choices(driven, "active-0"), choices(driven, "active-1")) == ([], [choice])


def test_a_new_coordinator_learns_from_its_members_what_the_round_before_has_restored() -> None:
    # given round 1 has restored storage, and the coordinator was lost before its first step
    driven, storage = elected(), SavedSteps((), choice=NO_POD)
    for number, workers in ((0, WorkersState.RUNNING), (1, WorkersState.FAILED)):
        driven.join(f"active-{number}", R1, number, workers, saved=storage, term=Term(1, 2))
    driven.join("spare-0", term=Term(1, 2))
    assert driven.token > R1
    # then what round 0 has saved does not count
    choice = chosen(driven, active_0=steps_of(R0, 7), active_1=steps_of(R0, 7))
    assert choice == RestoreChoice(None, "the snapshots are of a round that another one has replaced")


def elected_in_round_3(**known: object) -> DrivenCoordinator:
    """Round 2 has restored step 8 of round 1 and has stepped. The coordinator of round 3 is lost before its choice, and
    a worker fails. known: what the new coordinator's snapshot has instead.
    """
    uids, version = ("uid-active-0", "uid-active-1", "uid-spare-0"), ConfigVersion(1, 1, 1)
    snapshot = take_leader_snapshot(restored_step_8().coordinator.state)
    driven = DrivenCoordinator(
        elected=replace(snapshot, voters=uids, config_version=version, **known),  # type: ignore[arg-type]
        snapshots=True,
        max_in_place=9,
    )
    for number, workers in ((0, WorkersState.STARTING), (1, WorkersState.FAILED)):
        driven.join(f"active-{number}", RoundToken(1, 1, 3), number, workers, term=Term(1, 2))
    driven.join("spare-0", term=Term(1, 2))
    assert driven.token == RoundToken(1, 2, 4)
    return driven


def test_a_new_coordinator_knows_what_the_newest_round_with_a_choice_has_restored() -> None:
    """Found by the simulation (seed 1337328): the newest steps could not be fetched, and this step was not restored."""
    driven = elected_in_round_3()
    choice = chosen(driven, active_0=steps_of(R1, 8), active_1=steps_of(R1, 8))
    assert choice == RestoreChoice(SavedStep(R1, 8))


def test_a_choice_before_the_newest_round_that_has_stepped_does_not_count() -> None:
    # given a new coordinator that does not know the choice of round 2
    driven = elected_in_round_3(chose=R1, restored=SavedStep(R0, 5))
    choice = chosen(driven, active_0=steps_of(R0, 5), active_1=steps_of(R0, 5))
    assert choice == RestoreChoice(None, "the snapshots are of a round that another one has replaced")


# Status


def test_a_recovery_has_the_tier_and_the_lost_steps() -> None:
    driven = trained()
    driven.fail_worker("active-1")
    chosen(driven, active_0=steps_of(R0, 7, 8, newest=9), active_1=steps_of(R0, 7, newest=8))
    driven.report_step("active-0", 8)
    recovery = driven.recovery()
    assert (recovery.strategy, recovery.tier, recovery.tier_reason) == (Strategy.IN_PLACE, Tier.MEMORY, "")
    assert recovery.lost_steps == 2


def test_the_lost_steps_of_a_restore_from_storage_are_known_at_the_first_step() -> None:
    driven = trained()
    driven.drop("active-0")
    chosen(driven, spare_0=SavedSteps(()), active_1=steps_of(R0, 7, 8, newest=9))
    assert (driven.recovery().tier, driven.recovery().lost_steps) == (Tier.STORAGE, None)
    driven.report_step("spare-0", 3)
    assert driven.recovery().lost_steps == 7
    assert driven.recovery().tier_reason == "spare-0 has no snapshot of its ranks"


# Copies


def kept(**steps: tuple[SavedStep, ...]) -> tuple[KeptSteps, ...]:
    """By the names rank_0, rank_1, …"""
    return tuple(KeptSteps(int(name.removeprefix("rank_")), whole) for name, whole in steps.items())


def of(token: RoundToken, *steps: int) -> tuple[SavedStep, ...]:
    return tuple(SavedStep(token, step) for step in steps)


def copying(copies: int = 1) -> DrivenCoordinator:
    """A job of two pods with copies and a spare, which has made steps."""
    driven = DrivenCoordinator(snapshots=True, snapshot_copies=copies)
    driven.join("spare-0")
    for number in (0, 1):
        driven.join(f"active-{number}")
    for number in (0, 1):
        report(driven, f"active-{number}", SavedSteps(()))
    driven.receive("spare-0", m.CopiesKept(R0, ()))
    driven.report_step("active-0")
    driven.sent.clear()
    return driven


def started(driven: DrivenCoordinator, name: str, saved: SavedSteps, copies: tuple[KeptSteps, ...] = ()) -> None:
    driven.receive(name, m.Ack(driven.token))
    driven.receive(name, m.Started(driven.token, saved, copies))


def fetches(driven: DrivenCoordinator, name: str) -> list[tuple[SavedStep, tuple[str, ...]]]:
    return [(x.saved, tuple(holder.pod_uid for holder in x.holders)) for x in driven.take(name, m.FetchCopy)]


def lost_active_0(kept_by_active_1: tuple[KeptSteps, ...]) -> DrivenCoordinator:
    """active-0 is lost, and spare-0 takes its rank. Both pods of the round have started."""
    driven = copying()
    driven.drop("active-0")
    started(driven, "spare-0", SavedSteps(()))
    started(driven, "active-1", steps_of(R0, 7, 8, newest=9), kept_by_active_1)
    return driven


def test_a_pod_without_the_newest_snapshot_fetches_the_copy_and_then_all_get_the_choice() -> None:
    driven = lost_active_0(kept(rank_0=of(R0, 7, 8)))
    assert fetches(driven, "spare-0") == [(SavedStep(R0, 8), ("uid-active-1",))]
    assert choices(driven, "spare-0") == choices(driven, "active-1") == []
    # when it has it
    driven.receive("spare-0", m.CopyFetched(R1, SavedStep(R0, 8)))
    chosen = RestoreChoice(SavedStep(R0, 8), from_copies=True)
    assert choices(driven, "spare-0") == choices(driven, "active-1") == [chosen]
    assert (driven.recovery().tier, driven.recovery().lost_steps) == (Tier.PEER, 1)


def test_all_restore_the_step_of_the_newest_copy_if_that_is_older_than_their_own() -> None:
    driven = lost_active_0(kept(rank_0=of(R0, 6, 7)))
    assert fetches(driven, "spare-0") == [(SavedStep(R0, 7), ("uid-active-1",))]


def test_a_pod_whose_own_snapshots_are_newer_than_the_common_one_fetches_its_own_copy() -> None:
    # given spare-0 keeps the copies of active-0
    driven = copying()
    driven.drop("active-1")
    started(driven, "spare-0", SavedSteps(()), kept(rank_0=of(R0, 5, 6)))
    started(driven, "active-0", steps_of(R0, 7, 8), kept(rank_1=of(R0, 5, 6)))
    assert fetches(driven, "active-0") == [(SavedStep(R0, 6), ("uid-spare-0",))]
    assert fetches(driven, "spare-0") == [(SavedStep(R0, 6), ("uid-active-0",))]
    # then the choice follows both
    driven.receive("active-0", m.CopyFetched(R1, SavedStep(R0, 6)))
    assert choices(driven, "active-0") == []
    driven.receive("spare-0", m.CopyFetched(R1, SavedStep(R0, 6)))
    assert [x.saved for x in choices(driven, "active-0")] == [SavedStep(R0, 6)]


def test_a_spare_that_keeps_the_copy_of_its_new_rank_fetches_from_itself_first() -> None:
    driven = copying()
    driven.drop("active-0")
    started(driven, "spare-0", SavedSteps(()), kept(rank_0=of(R0, 8)))
    started(driven, "active-1", steps_of(R0, 8), kept(rank_0=of(R0, 8)))
    assert fetches(driven, "spare-0") == [(SavedStep(R0, 8), ("uid-spare-0", "uid-active-1"))]


def test_a_copy_that_cannot_be_fetched_does_not_count() -> None:
    driven = lost_active_0(kept(rank_0=of(R0, 7, 8)))
    driven.sent.clear()
    # when the copy of step 8 is damaged
    driven.receive("spare-0", m.CopyFetched(R1, SavedStep(R0, 8), "pod uid-active-1: it is damaged"))
    # then the next older one is fetched
    assert fetches(driven, "spare-0") == [(SavedStep(R0, 7), ("uid-active-1",))]
    # and if that is damaged too, the script's own checkpoint is restored, with the reason
    driven.receive("spare-0", m.CopyFetched(R1, SavedStep(R0, 7), "pod uid-active-1: it is damaged"))
    (choice,) = choices(driven, "active-1")
    assert choice.saved is None
    assert choice.reason.startswith("copies could not be fetched: spare-0: pod uid-active-1: it is damaged")


def test_the_next_choice_waits_for_all_fetches_and_counts_what_they_have_overwritten() -> None:
    # given two pods fetch step 6, and both have another one of their own
    driven = copying()
    driven.drop("active-1")
    started(driven, "spare-0", steps_of(R0, 5), kept(rank_0=of(R0, 5, 6)))
    started(driven, "active-0", steps_of(R0, 5, 7), kept(rank_1=of(R0, 5, 6)))
    assert fetches(driven, "active-0") == [(SavedStep(R0, 6), ("uid-spare-0",))]
    assert fetches(driven, "spare-0") == [(SavedStep(R0, 6), ("uid-active-0",))]
    driven.sent.clear()
    # when one fetch fails, then nothing is chosen until the other one has ended
    driven.receive("spare-0", m.CopyFetched(R1, SavedStep(R0, 6), "it is damaged", of(R0, 5)))
    assert fetches(driven, "spare-0") == []
    assert choices(driven, "spare-0") == []
    # and the snapshot that this one has overwritten is fetched first
    driven.receive("active-0", m.CopyFetched(R1, SavedStep(R0, 6), whole=of(R0, 6, 7)))
    assert choices(driven, "spare-0") == []
    assert fetches(driven, "active-0") == [(SavedStep(R0, 5), ("uid-spare-0",))]
    driven.receive("active-0", m.CopyFetched(R1, SavedStep(R0, 5), whole=of(R0, 5, 7)))
    assert [x.saved for x in choices(driven, "spare-0")] == [SavedStep(R0, 5)]


def test_an_error_of_another_snapshot_than_the_wanted_one_is_ignored() -> None:
    driven = lost_active_0(kept(rank_0=of(R0, 7, 8)))
    driven.receive("spare-0", m.CopyFetched(R1, SavedStep(R0, 7), "damaged"))
    driven.receive("spare-0", m.CopyFetched(R1, SavedStep(R0, 8)))
    assert [x.saved for x in choices(driven, "active-1")] == [SavedStep(R0, 8)]


def test_without_a_copy_storage_is_restored_with_the_reason() -> None:
    driven = lost_active_0(())
    assert choices(driven, "active-1") == [RestoreChoice(None, "spare-0 has no snapshot and no copy of its ranks")]


def test_the_choice_waits_for_the_copies_of_a_spare_but_not_for_long() -> None:
    driven = copying()
    driven.fail_worker("active-1")
    for name in ("active-0", "active-1"):
        started(driven, name, steps_of(R0, 7, 8))
    assert choices(driven, "active-0") == []
    driven.later(0.9)
    assert choices(driven, "active-0") == []
    driven.later(0.2)
    assert [x.saved for x in choices(driven, "active-0")] == [SavedStep(R0, 8)]


def test_the_copies_of_a_spare_count() -> None:
    driven = copying()
    driven.join("spare-1")
    driven.drop("active-0")
    started(driven, "spare-0", SavedSteps(()))
    started(driven, "active-1", steps_of(R0, 8))
    driven.receive("spare-1", m.CopiesKept(R1, kept(rank_0=of(R0, 8))))
    assert fetches(driven, "spare-0") == [(SavedStep(R0, 8), ("uid-spare-1",))]


def test_a_copy_of_a_round_that_another_one_has_replaced_is_not_restored() -> None:
    # given round 1 has restored storage, and stepped
    driven = lost_active_0(())
    driven.report_step("spare-0", 3)
    driven.fail_worker("active-1")
    # when all have only what round 0 has saved
    for name, copy in (("spare-0", ()), ("active-1", kept(rank_0=of(R0, 50)))):
        started(driven, name, steps_of(R0, 50), copy)
    (choice,) = choices(driven, "active-1")[-1:]
    assert choice == RestoreChoice(None, "the snapshots are of a round that another one has replaced")


def test_a_member_that_joins_again_before_it_has_fetched_is_asked_again() -> None:
    driven = lost_active_0(kept(rank_0=of(R0, 8)))
    driven.sent.clear()
    driven.drop("spare-0", silent=True)
    driven.join("spare-0", R1, 0, WorkersState.RUNNING, saved=SavedSteps(()))
    assert fetches(driven, "spare-0") == [(SavedStep(R0, 8), ("uid-active-1",))]


def test_a_report_about_ranks_that_do_not_exist_is_ignored() -> None:
    driven = lost_active_0(kept(rank_7=of(R0, 8)))
    assert choices(driven, "active-1") == [RestoreChoice(None, "spare-0 has no snapshot and no copy of its ranks")]


# Who keeps copies


def plans(driven: DrivenCoordinator, name: str) -> list[tuple[list[str], list[int]]]:
    """Of the messages to this pod: the uids of the holders, and the group ranks whose copies it keeps."""
    found = [plan_in(message) for message in driven.sent.get(name, [])]
    return [([x.pod_uid for x in p.holders], [x.group_rank for x in p.owners]) for p in found if p is not None]


def plan_in(message: object) -> CopyPlan | None:
    if isinstance(message, m.PlanCopies):
        return message.plan
    return message.copies if isinstance(message, m.Assign) else None


def test_each_member_gets_its_plan_with_its_assignment_and_a_spare_a_plan_of_its_own() -> None:
    driven = DrivenCoordinator(snapshots=True, snapshot_copies=1)
    driven.join("spare-0")
    driven.join("active-0")
    driven.join("active-1")
    assert plans(driven, "active-0") == [(["uid-spare-0"], [1])]
    assert plans(driven, "active-1") == [(["uid-active-0"], [])]
    assert plans(driven, "spare-0") == [([], [0])]


def test_without_copies_no_member_gets_a_plan() -> None:
    driven = trained()
    driven.fail_worker("active-1")
    assert plans(driven, "active-0") == plans(driven, "spare-0") == []


def test_a_holder_that_is_lost_while_the_round_runs_is_replaced_at_once() -> None:
    driven = copying()
    driven.drop("spare-0")
    # then only the pods that this concerns get another plan
    assert plans(driven, "active-0") == [(["uid-active-1"], [1])]
    assert plans(driven, "active-1") == [(["uid-active-0"], [0])]


def test_a_spare_that_joins_while_the_round_runs_keeps_the_copies_for_which_there_was_no_pod() -> None:
    # given a job that wants two copies of each snapshot, and has lost its only spare
    driven = copying(copies=2)
    driven.drop("spare-0")
    driven.sent.clear()
    # when another spare joins
    driven.join("spare-1")
    driven.later(1.0, *ACTIVE)
    # then it keeps the second copies
    assert plans(driven, "active-0") == [(["uid-active-1", "uid-spare-1"], [1])]
    assert plans(driven, "active-1") == [(["uid-active-0", "uid-spare-1"], [0])]
    assert plans(driven, "spare-1") == [([], [0, 1])]


def test_copies_are_placed_once_for_spares_that_join_soon_after_each_other() -> None:
    driven = copying(copies=2)
    driven.drop("spare-0")
    driven.sent.clear()
    # when two spares join within a second
    driven.join("spare-1")
    driven.join("spare-2")
    assert plans(driven, "active-0") == plans(driven, "active-1") == []
    driven.later(1.0, *ACTIVE)
    # then each pod with ranks gets one new plan
    assert len(plans(driven, "active-0")) == len(plans(driven, "active-1")) == 1


def test_a_pod_that_joins_again_without_its_assignment_gets_the_newest_plan_with_it() -> None:
    """Found by the simulation (seed 1383290): it got the plan of the moment in which the round was formed."""
    # given a new round, whose assignment does not reach one pod
    driven = copying()
    driven.fail_worker("active-1")
    driven.drop("active-0", silent=True)
    # when a holder is lost, and then the pod joins again
    driven.receive("spare-0", m.Gone("its launcher has ended"))
    driven.sent.clear()
    driven.join("active-0", R0, 0, WorkersState.RUNNING)
    # then its assignment has the plan of now
    assert plans(driven, "active-0") == [(["uid-active-1"], [1])]
    assert driven.assigned() == {"active-0": 0}


def test_no_copies_are_placed_after_a_pod_whose_workers_had_ended_was_lost() -> None:
    driven = copying(copies=2)
    driven.receive("active-0", m.Finished(R0))
    driven.sent.clear()
    # when it is lost, and a pod joins
    driven.drop("active-0", silent=True)
    driven.join("spare-1")
    driven.later(10.0, "active-1", "spare-0", "spare-1")
    assert "uid-active-0" not in driven.coordinator.state.roster.members
    # then there is no new round, and no pod gets a plan in which the ranks of other pods are missing
    assert driven.token == R0
    assert [plans(driven, name) for name in ("active-1", "spare-0", "spare-1")] == [[], [], []]


def strides(driven: DrivenCoordinator, *names: str) -> list[list[int]]:
    """In the plans of these pods since the last call."""
    found = [[p.stride for x in driven.sent.get(name, []) if (p := plan_in(x)) is not None] for name in names]
    driven.sent.clear()
    return found


ACTIVE = ("active-0", "active-1")


def test_all_pods_get_the_largest_stride_that_one_of_them_needs() -> None:
    driven = copying()
    driven.sent.clear()
    driven.receive("active-0", m.CopyStride(4))
    assert strides(driven, *ACTIVE, "spare-0") == [[4], [4], []]
    # and a smaller need changes nothing
    driven.receive("active-1", m.CopyStride(2))
    assert strides(driven, *ACTIVE) == [[], []]
    # and the next round begins with it
    driven.fail_worker("active-1")
    assert strides(driven, *ACTIVE) == [[4], [4]]


def test_a_spare_that_becomes_a_holder_with_a_new_stride_learns_whose_copies_it_keeps() -> None:
    # given a round in which each pod keeps the copies of a pod on its own node, because there was no other node
    driven = DrivenCoordinator(snapshots=True, snapshot_copies=1)
    for name in ACTIVE:
        driven.join(name, node="node-0")
        report(driven, name, SavedSteps(()))
    driven.report_step("active-0")
    # when a spare on another node joins, and at once a pod needs a larger stride
    driven.join("spare-0", node="node-1")
    driven.sent.clear()
    driven.receive("active-0", m.CopyStride(4))
    # then the spare becomes a holder, and learns it
    assert plans(driven, "active-0") == [(["uid-spare-0"], [1])]
    assert plans(driven, "active-1") == [(["uid-active-0"], [])]
    assert plans(driven, "spare-0") == [([], [0])]


def test_the_stride_falls_a_minute_after_its_pod_needs_less() -> None:
    driven = copying()
    for name, stride in (("active-0", 8), ("active-1", 2)):
        driven.receive(name, m.CopyStride(stride))
    driven.sent.clear()
    driven.receive("active-0", m.CopyStride(1))
    driven.later(59, *ACTIVE, "spare-0")
    assert strides(driven, *ACTIVE) == [[], []]
    driven.later(2, *ACTIVE, "spare-0")
    assert strides(driven, *ACTIVE) == [[2], [2]]


def test_the_need_of_a_pod_without_ranks_does_not_count_before_it_has_some() -> None:
    driven = copying()
    driven.sent.clear()
    driven.receive("spare-0", m.CopyStride(8))
    assert strides(driven, *ACTIVE) == [[], []]
    driven.drop("active-1")
    assert strides(driven, "active-0", "spare-0") == [[8], [8]]


def test_a_stride_out_of_range_is_limited() -> None:
    driven = copying()
    driven.sent.clear()
    for stride in (-3, 1 << 60):
        driven.receive("active-0", m.CopyStride(stride))
    assert strides(driven, *ACTIVE) == [[1 << 16], [1 << 16]]


def test_a_stride_that_is_no_power_of_two_is_rounded_up_to_one() -> None:
    driven = copying()
    driven.sent.clear()
    for stride in (3, 4, 5, 6, 7, 8):
        driven.receive("active-0", m.CopyStride(stride))
    assert strides(driven, "active-0") == [[4, 8]]


def test_a_new_coordinator_keeps_the_stride_that_members_need() -> None:
    driven = elected_in_round_1()
    saved = SavedSteps(steps_of(R0, 6, 7).whole, choice=NO_POD)
    driven.join("active-0", R1, 0, WorkersState.RUNNING, saved=saved, term=Term(1, 2), kept=kept(rank_1=()))
    driven.join("active-1", R1, 1, WorkersState.RUNNING, saved=saved, term=Term(1, 2), kept=kept(rank_0=()))
    driven.join("spare-0", term=Term(1, 2))
    driven.receive("active-1", m.CopyStride(4))
    driven.later(10, *ACTIVE, "spare-0")
    assert driven.token == R1
    assert strides(driven, *ACTIVE) == [[4], [4]]


def elected_in_round_1() -> DrivenCoordinator:
    uids = ("uid-active-0", "uid-active-1", "uid-spare-0")
    snapshot = m.LeaderSnapshot(ConfigVersion(1, 1, 1), uids, (), "uid-coordinator-0", {}, token=R1, stepped=R0)
    return DrivenCoordinator(elected=snapshot, snapshots=True, snapshot_copies=1)


def test_a_new_coordinator_keeps_the_holders_that_members_report() -> None:
    driven = elected_in_round_1()
    saved = SavedSteps(steps_of(R0, 6, 7).whole, choice=NO_POD)
    driven.join("active-0", R1, 0, WorkersState.RUNNING, saved=saved, term=Term(1, 2), kept=kept(rank_1=()))
    driven.join("active-1", R1, 1, WorkersState.RUNNING, saved=saved, term=Term(1, 2), kept=kept(rank_0=()))
    driven.join("spare-0", term=Term(1, 2))
    driven.later(10, "active-0", "active-1", "spare-0")
    assert driven.token == R1
    assert [plans(driven, name) for name in ("active-0", "active-1", "spare-0")] == [[], [], []]


def test_a_new_coordinator_keeps_a_holder_that_joins_after_the_round_continues() -> None:
    """Found by a scenario: a pod that left got a plan without holders, and did not hand over its newest snapshot."""
    # given a pod that leaves, and the spare that keeps its copies
    driven = elected_in_round_1()
    saved = SavedSteps(steps_of(R0, 6, 7).whole, choice=NO_POD)
    for number, leaving in ((0, m.Leaving("its pod is deleted", 30.0)), (1, None)):
        place = (f"active-{number}", R1, number, WorkersState.RUNNING)
        driven.join(*place, saved=saved, term=Term(1, 2), kept=kept(rank_1=()) if leaving else (), leaving=leaving)
    assert driven.token == R1
    driven.join("spare-0", term=Term(1, 2), kept=kept(rank_0=()))
    driven.later(4.9, "active-0", "active-1", "spare-0")
    assert [plans(driven, name) for name in ("active-0", "active-1", "spare-0")] == [[], [], []]


def test_a_new_coordinator_places_copies_at_once_if_workers_wait_for_the_choice() -> None:
    # given a pod whose sidecar was restarted, and does not know yet which copies it keeps
    driven = elected_in_round_1()
    driven.join("active-0", R1, 0, WorkersState.RUNNING, saved=steps_of(R0, 7), term=Term(1, 2), kept=None)
    driven.join("active-1", R1, 1, WorkersState.RUNNING, saved=steps_of(R0, 7), term=Term(1, 2), kept=kept(rank_0=()))
    # then it gets a plan, which it answers with its report
    assert plans(driven, "active-0") == [(["uid-active-1"], [1])]
    started(driven, "active-0", steps_of(R0, 7))
    assert [x.saved for x in choices(driven, "active-1")] == [SavedStep(R0, 7)]


def test_a_new_coordinator_replaces_a_holder_that_was_lost_with_the_previous_one() -> None:
    driven = elected_in_round_1()
    saved = SavedSteps(steps_of(R0, 6, 7).whole, choice=NO_POD)
    driven.join("active-0", R1, 0, WorkersState.RUNNING, saved=saved, term=Term(1, 2), kept=kept(rank_1=()))
    driven.join("active-1", R1, 1, WorkersState.RUNNING, saved=saved, term=Term(1, 2))
    driven.later(20, "active-0", "active-1")
    assert driven.token == R1
    assert plans(driven, "active-0") == [(["uid-active-1"], [1])]
    assert plans(driven, "active-1") == [(["uid-active-0"], [0])]


def test_a_join_before_the_copies_are_known_is_no_report() -> None:
    driven = copying()
    driven.drop("active-0")
    started(driven, "spare-0", SavedSteps(()))
    driven.drop("active-1", silent=True)
    driven.join("active-1", R1, 1, WorkersState.RUNNING, saved=steps_of(R0, 8), kept=None)
    assert (choices(driven, "spare-0"), fetches(driven, "spare-0")) == ([], [])
    # then the plan is sent again, and the next Started counts
    assert plans(driven, "active-1")[-1:] == [(["uid-spare-0"], [0])]
    driven.receive("active-1", m.Started(R1, steps_of(R0, 8), kept(rank_0=of(R0, 8))))
    assert fetches(driven, "spare-0") == [(SavedStep(R0, 8), ("uid-active-1",))]


def test_a_new_coordinator_asks_a_member_that_does_not_know_its_copies() -> None:
    uids = ("uid-active-0", "uid-active-1", "uid-spare-0")
    snapshot = m.LeaderSnapshot(ConfigVersion(1, 1, 1), uids, (), "uid-coordinator-0", {}, token=R1, stepped=R0)
    driven = DrivenCoordinator(elected=snapshot, snapshots=True, snapshot_copies=1)
    driven.join("active-0", R1, 0, WorkersState.RUNNING, saved=steps_of(R0, 7), term=Term(1, 2), kept=kept(rank_1=()))
    driven.join("active-1", R1, 1, WorkersState.RUNNING, saved=steps_of(R0, 7), term=Term(1, 2), kept=None)
    driven.later(20, "active-0", "active-1")
    assert len(plans(driven, "active-1")) >= 1
    assert choices(driven, "active-0") == []
    driven.receive("active-1", m.Started(R1, steps_of(R0, 7), ()))
    assert [x.saved for x in choices(driven, "active-0")] == [SavedStep(R0, 7)]
