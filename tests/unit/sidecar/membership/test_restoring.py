"""Which snapshot a round restores: the newest of the training that every rank has, and the reason if there is none."""

from __future__ import annotations

import pytest

from tests.unit.sidecar.membership.driven import DrivenCoordinator, running
from understudy_protocol import membership as m
from understudy_protocol.enums import ConfigVersion, RoundToken, Strategy, Term, Tier, WorkersState
from understudy_protocol.snapshots import RestoreChoice, SavedStep, SavedSteps

R0, R1, R2 = (RoundToken(1, 1, number) for number in range(3))
NO_POD = RestoreChoice(None, "no pod has a snapshot")


def steps_of(token: RoundToken, *steps: int, newest: int | None = None) -> SavedSteps:
    return SavedSteps(tuple(SavedStep(token, step) for step in steps), newest)


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
    # and a snapshot after that is trusted again
    assert failed_again(driven, steps_of(RoundToken(1, 1, 3), 12)).saved == SavedStep(RoundToken(1, 1, 3), 12)


def test_a_round_that_made_3_steps_after_a_restore_has_cleared_the_snapshots() -> None:
    driven = trained(max_in_place=9)
    failed_again(driven, steps_of(R0, 7))
    assert failed_again(driven, steps_of(R1, 10)).saved == SavedStep(R1, 10)
    assert failed_again(driven, steps_of(R2, 11)).saved == SavedStep(R2, 11)


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


# Status


def test_a_recovery_tells_the_tier_and_the_lost_steps() -> None:
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
