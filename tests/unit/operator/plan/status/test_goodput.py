"""The account of a job's time, over reconciles: what each second went to, and what faults have cost.

The job has two pods with eight ranks each. It was created at 0. All times are seconds since then.
"""

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from tests.unit.operator.given import (
    A0,
    A1,
    LEADERSHIP,
    SUCCEEDED,
    S,
    a_job,
    a_recovery,
    a_snapshot,
    in_round,
    member,
    observed,
    pending,
)
from understudy_operator.plan.facts.cluster_objects import Pod
from understudy_operator.plan.facts.job import Job
from understudy_operator.plan.facts.observed import Coordination, Observed
from understudy_operator.plan.facts.status import Goodput, JobStatus, LostTime, ProgressStatus, RecoveryStatus
from understudy_operator.plan.status.next_status import is_worth_writing, plan_status
from understudy_operator.plan.times.rfc3339 import micro_time, parse_time
from understudy_protocol.enums import Fault, Strategy, WorkersState
from understudy_protocol.goodput import Part
from understudy_protocol.observer import Cause, Recovery, Snapshot, StepProgress

CREATED = 1_800_000_000.0
WHOLE = (member(A0, 0), member(A1, 1), member(S, None))
BROKEN = (member(A0, 0), member(S, None))


class Account:
    """Reconciles one job, and keeps its status as the API server would."""

    def __init__(self, **job: Any) -> None:
        self.job: Job = replace(a_job(status=in_round(0), **job), created_at=CREATED)
        self.writes = 0

    def reconcile(self, at: float, snapshot: Snapshot | None = None, **changes: Any) -> "Account":
        given = observed(self.job, snapshot=snapshot, **changes)
        status = plan_status(given, LEADERSHIP, CREATED + at)
        has_coordinator = bool(given.coordination.coordinator_uid)
        if is_worth_writing(self.job.status, status, CREATED + at, has_coordinator=has_coordinator):
            self.job, self.writes = replace(self.job, status=status), self.writes + 1
        return self

    def change(self, **spec: Any) -> "Account":
        self.job = replace(self.job, spec=replace(self.job.spec, **spec))
        return self

    @property
    def status(self) -> JobStatus:
        return self.job.status

    @property
    def goodput(self) -> Goodput:
        assert self.status.goodput is not None
        return self.status.goodput

    @property
    def seconds(self) -> dict[str, float]:
        """The parts that have any, until `since`."""
        return {name: value for name, value in self.goodput.seconds_by_field.items() if value}

    @property
    def since(self) -> float:
        return round(parse_time(self.goodput.since) - CREATED, 6)


def trains(step: int, at: float, *, since: float | None = None, is_counted: bool = False, **changes: Any) -> Snapshot:
    """The training has made this step. since: the first one of the round; None: the coordinator does not know it."""
    progress = StepProgress(step, None, CREATED + at, is_counted)
    snapshot = a_snapshot(progress=progress, actives=2, **({"members": WHOLE} | changes))
    return replace(snapshot, stepping_since=None if since is None else CREATED + since)


def fault(detected: float, resumed: float | None = None, **changes: Any) -> Recovery:
    """Times as for `trains`."""
    times = {
        name: None if value is None else CREATED + value
        for name, value in changes.items()
        if name in ("running_at", "vacant_until", "caught_up_at")
    }
    cause = Cause(8, "a1", "", None, "SIGKILL", "killed")
    resumed_at = None if resumed is None else CREATED + resumed
    return a_recovery(CREATED + detected, resumed_at, **({"cause": cause} | changes | times))


def training(**job: Any) -> Account:
    """The first step came after 60 s, and the newest one that the operator knows, number 100, after 160 s."""
    return Account(**job).reconcile(61.0, trains(1, 60.5, since=60.0)).reconcile(161.0, trains(100, 160.0, since=60.0))


def test_a_job_starts_until_its_first_step():
    account = Account().reconcile(5.0)
    assert (account.goodput.part, account.since) == (Part.STARTING, 0.0)
    account.reconcile(61.0, trains(1, 60.5, since=60.0))
    assert (account.goodput.part, account.since, account.seconds) == (Part.PRODUCTIVE, 60.0, {"starting": 60.0})


def test_a_training_causes_no_write_for_the_account():
    account = training()
    writes = account.writes
    account.reconcile(165.0, trains(104, 164.0, since=60.0))
    assert account.writes == writes
    # and the ratio in status is that of the newest step in status
    account.reconcile(171.0, trains(110, 170.0, since=60.0))
    assert account.writes == writes + 1
    assert account.goodput.ettr == pytest.approx(110 / 170, abs=1e-4)


def test_a_pause_is_split_at_the_detection_of_the_fault():
    # given a fault that is detected 2 s after the newest step
    account = training().reconcile(172.5, trains(110, 170.0, recoveries=[fault(172.0)], members=BROKEN))
    assert (account.goodput.part, account.goodput.fault) == (Part.RESTART, Fault.PROCESS)
    # when training has made its next step, and no step was lost
    ended = fault(172.0, 177.0, lost_steps=0)
    account.reconcile(177.5, trains(111, 177.0, since=177.0, recoveries=[ended]))
    # then 108 s of 110 were productive
    assert account.seconds == {"starting": 60.0, "productive": 110.0, "detection": 2.0, "restart": 5.0}
    assert (account.goodput.part, account.since) == (Part.PRODUCTIVE, 177.0)


def test_a_step_that_is_reported_together_with_the_fault_is_the_last_one_before_it():
    """Found by the simulation (seed 720541): status has microseconds, and the coordinator's times are more exact."""
    # given a fault at the time of the newest step, which rounds to an earlier microsecond
    at = 172.0000004
    account = training().reconcile(172.5, trains(112, at, recoveries=[fault(at)], members=BROKEN))
    # then the time until then was productive, while the pause lasts
    assert (account.goodput.part, account.since) == (Part.RESTART, 172.0)
    assert account.seconds == {"starting": 60.0, "productive": 112.0}


def test_what_a_fault_has_cost_is_the_time_of_all_ranks():
    account = training().reconcile(172.5, trains(110, 170.0, recoveries=[fault(172.0)], members=BROKEN))
    account.reconcile(177.5, trains(111, 177.0, since=177.0, recoveries=[fault(172.0, 177.0, lost_steps=0)]))
    assert account.goodput.lost == (LostTime(Fault.PROCESS, "", 7.0, rank_seconds=112.0),)


def test_what_a_fault_has_cost_is_gpu_time_if_pods_request_gpus():
    pods = [replace(pod, devices=8) for pod in (A0, A1, S)]
    account = Account().reconcile(61.0, trains(1, 60.5, since=60.0), pods=pods)
    account.reconcile(72.5, trains(11, 70.0, recoveries=[fault(72.0)], members=BROKEN), pods=pods[::2])
    account.reconcile(77.5, trains(12, 77.0, since=77.0, recoveries=[fault(72.0, 77.0, lost_steps=0)]), pods=pods)
    assert account.goodput.lost == (LostTime(Fault.PROCESS, "", 7.0, gpu_seconds=112.0),)


def test_the_time_without_a_pod_for_a_vacant_rank_is_a_part_of_its_own():
    # given a pod that is lost, and no spare
    waits = fault(171.0, fault=Fault.POD, strategy=None)
    account = training().reconcile(
        172.0, trains(110, 170.0, recoveries=[waits], members=(member(A0, 0),), waiting_for="1 of 2 pods")
    )
    assert (account.goodput.part, account.since) == (Part.CAPACITY, 171.0)
    # when a new pod has joined after 30 s, and its workers have made a step after 4 s more
    recreated = Strategy.POD_RECREATE
    ended = fault(171.0, 205.0, fault=Fault.POD, strategy=recreated, vacant_until=201.0, lost_steps=0)
    account.reconcile(205.5, trains(111, 205.0, since=205.0, recoveries=[ended]))
    lost = {"detection": 1.0, "capacity": 30.0, "restart": 4.0}
    assert account.seconds == {"starting": 60.0, "productive": 110.0, **lost}


def test_steps_that_are_made_again_are_not_productive():
    # given a recovery that has lost 10 steps
    ended = fault(171.0, 175.0, lost_steps=10)
    account = training().reconcile(171.5, trains(110, 170.0, recoveries=[fault(171.0)], members=BROKEN))
    account.reconcile(175.5, trains(101, 175.0, since=175.0, recoveries=[ended]))
    assert (account.goodput.part, account.since) == (Part.REPEATED, 175.0)
    # when step 110 is done again after 9 s
    caught_up = replace(ended, caught_up_at=CREATED + 184.0)
    account.reconcile(190.0, trains(115, 189.0, since=175.0, recoveries=[caught_up]))
    assert (account.goodput.part, account.since, account.seconds["repeated"]) == (Part.PRODUCTIVE, 184.0, 9.0)
    assert account.goodput.lost[0].seconds == 14.0


def test_lost_steps_that_the_operator_has_never_seen_are_repeated_too():
    """Found by the simulation (seed 1603739): pods trained on while the operator and the coordinator were down."""
    # given a recovery that has lost the steps 132 to 221, and an operator that has seen none of them
    account = training().reconcile(171.5, trains(100, 160.0, recoveries=[fault(171.0)], members=BROKEN))
    ended = fault(171.0, 175.0, lost_steps=90)
    account.reconcile(175.5, trains(132, 175.0, since=175.0, recoveries=[ended]))
    # when the round makes some of them again
    account.reconcile(190.0, trains(150, 189.0, since=175.0, recoveries=[ended]))
    assert (account.goodput.part, account.since) == (Part.REPEATED, 175.0)
    # then the time is productive when it has made all of them
    account.reconcile(220.0, trains(222, 219.0, since=175.0, recoveries=[ended]))
    assert (account.goodput.part, account.since) == (Part.PRODUCTIVE, 219.0)


def test_a_new_coordinator_that_does_not_know_the_lost_steps_is_corrected_by_the_newest_step_of_status():
    ended = fault(171.0, 175.0, pause_s=5.0)
    account = training().reconcile(175.5, trains(95, 175.0, since=175.0, recoveries=[ended], term=2))
    assert account.goodput.part is Part.REPEATED
    account.reconcile(181.0, trains(100, 180.0, since=175.0, recoveries=[ended], term=2))
    assert (account.goodput.part, account.since) == (Part.PRODUCTIVE, 180.0)


def counting() -> Account:
    """As `training`, with steps that are counted from the start of their round."""
    account = Account().reconcile(61.0, trains(1, 60.5, since=60.0, is_counted=True))
    return account.reconcile(161.0, trains(100, 160.0, since=60.0, is_counted=True))


def test_counted_steps_are_productive():
    account = counting()
    assert account.status.progress == ProgressStatus(100, None, micro_time(CREATED + 160.0), is_counted=True)
    assert (account.goodput.part, account.goodput.newest_step) == (Part.PRODUCTIVE, None)
    assert account.goodput.ettr == pytest.approx(100 / 160)
    # and before the first recovery, none of them can be a repeated one
    assert not account.goodput.is_repeated_unknown


def test_counted_steps_of_a_later_round_are_productive_and_whether_they_are_repeated_is_unknown():
    account = counting().reconcile(172.5, trains(110, 170.0, is_counted=True, recoveries=[fault(172.0)]))
    ended = fault(172.0, 177.0)
    account.reconcile(177.5, trains(1, 177.0, since=177.0, is_counted=True, recoveries=[ended]))
    account.reconcile(190.0, trains(13, 189.0, since=177.0, is_counted=True, recoveries=[ended]))
    assert account.seconds == {"starting": 60.0, "productive": 110.0, "detection": 2.0, "restart": 5.0}
    assert (account.goodput.part, account.since) == (Part.PRODUCTIVE, 177.0)
    assert account.goodput.is_repeated_unknown


@pytest.mark.parametrize(("is_counted_before", "is_counted_after"), [(True, False), (False, True)])
def test_steps_of_rounds_that_number_them_differently_are_not_compared(is_counted_before: bool, is_counted_after: bool):
    # given a job whose newest step has the number 110, and a next round that begins with the number 50
    account = counting() if is_counted_before else training()
    account.reconcile(172.5, trains(110, 170.0, is_counted=is_counted_before, recoveries=[fault(172.0)]))
    ended = fault(172.0, 177.0)
    account.reconcile(177.5, trains(50, 177.0, since=177.0, is_counted=is_counted_after, recoveries=[ended]))
    # then its steps count as new ones, although they may be repeated
    assert (account.goodput.part, account.goodput.is_repeated_unknown) == (Part.PRODUCTIVE, True)
    assert "repeated" not in account.seconds


def test_numbered_steps_after_a_first_step_with_an_early_time_are_known_to_be_new():
    account = Account().reconcile(60.0, trains(1, -5.0, since=-5.0))
    account.reconcile(62.0, trains(2, 61.0, since=60.5))
    goodput = account.status.goodput
    assert goodput is not None
    assert (goodput.part, goodput.is_repeated_unknown) == (Part.PRODUCTIVE, False)


def test_counted_steps_after_a_suspension_and_after_a_restart_of_the_job_are_not_compared():
    account = counting().change(suspend=True).reconcile(180.0, trains(110, 170.0, since=60.0, is_counted=True))
    account.change(suspend=False).reconcile(1000.0)
    assert not account.goodput.is_repeated_unknown
    account.reconcile(1031.0, trains(1, 1030.0, since=1030.0, is_counted=True, epoch=9))
    assert (account.goodput.part, account.goodput.is_repeated_unknown) == (Part.PRODUCTIVE, True)


def test_a_round_that_repeats_steps_and_is_followed_by_one_that_counts_them_repeats_none_that_is_known():
    # given a round that has to make the steps 96 to 100 again
    account = training().reconcile(171.5, trains(95, 170.0, since=170.0, recoveries=[fault(165.0, 170.0)], term=2))
    assert account.goodput.part is Part.REPEATED
    # when another round follows, which counts its steps
    both = [fault(165.0, 170.0), fault(175.0, 180.0)]
    account.reconcile(180.5, trains(1, 180.0, since=180.0, is_counted=True, recoveries=both, term=2))
    assert (account.goodput.part, account.since) == (Part.PRODUCTIVE, 180.0)


def test_a_measured_pause_shows_the_last_step_if_the_coordinator_of_that_time_is_lost():
    # given a new coordinator, which has not seen the last step, 4 s before the fault was detected
    account = training()
    account.reconcile(185.0, replace(trains(0, 0.0, recoveries=[fault(184.0)], term=2), progress=None))
    assert account.goodput.part is Part.RESTART
    # when a pod has measured a pause of 10 s
    ended = fault(184.0, 190.0, pause_s=10.0, lost_steps=0)
    account.reconcile(190.5, trains(121, 190.0, since=190.0, recoveries=[ended], term=2))
    assert account.seconds == {"starting": 60.0, "productive": 120.0, "detection": 4.0, "restart": 6.0}


def test_time_that_nobody_has_seen_is_unknown():
    """No pod is left that was in the round before the fault, and its coordinator is lost."""
    account = training()
    ended = fault(184.0, 190.0, lost_steps=0)
    account.reconcile(190.5, trains(121, 190.0, since=190.0, recoveries=[ended], term=2))
    # the newest step that the operator has seen was made at 160
    assert account.seconds == {"starting": 60.0, "productive": 100.0, "unknown": 24.0, "restart": 6.0}


def test_recoveries_that_no_coordinator_reports_any_more_make_time_unknown():
    # given an operator that was away, and a coordinator that has recovered from a fault and was then lost itself
    account = training()
    # when the next coordinator reports the count of the first recovery, and its own
    own = fault(500.0, 503.0, pause_s=4.0, lost_steps=0)
    counts = {"InPlace": 2}
    account.reconcile(600.0, trains(400, 599.0, since=503.0, recoveries=[own], counts=counts, term=3))
    # then only the time until the newest step of status was productive for certain
    assert account.seconds["productive"] == pytest.approx(100.0)
    assert account.seconds["unknown"] == pytest.approx(340.0)
    assert (account.goodput.part, account.since) == (Part.PRODUCTIVE, 503.0)


def test_an_operator_that_was_away_adds_all_recoveries_that_the_coordinator_still_reports():
    recoveries = [fault(200.0, 203.0, pause_s=4.0, lost_steps=0), fault(300.0, 305.0, pause_s=6.0, lost_steps=0)]
    account = training()
    account.reconcile(400.0, trains(300, 399.0, since=305.0, recoveries=recoveries, counts={"InPlace": 2}))
    assert account.seconds == {"starting": 60.0, "productive": 139.0 + 96.0, "detection": 2.0, "restart": 8.0}


def test_faults_that_overlap_are_one_pause_with_one_cause():
    first, second = fault(171.0, 180.0, lost_steps=0), fault(174.0, 180.0, fault=Fault.HANG, lost_steps=0)
    account = training().reconcile(181.0, trains(111, 180.0, since=180.0, recoveries=[first, second]))
    assert [(entry.fault, entry.seconds) for entry in account.goodput.lost] == [(Fault.PROCESS, 9.0)]


def test_a_pause_whose_end_no_coordinator_reports_lasts_until_the_step_before_the_next_one():
    """Found by the simulation (seed 1062026)."""
    # given a pause that a new coordinator reports, which is lost soon after the first step of its round
    lost = a_snapshot(recoveries=[fault(172.0)], members=BROKEN, actives=2)
    account = training().reconcile(172.5, lost)
    # when the next coordinator reports a later fault alone, before which a step was made at 184
    ended = fault(183.0, 190.0, pause_s=6.0, lost_steps=0)
    account.reconcile(190.5, trains(120, 190.0, since=190.0, recoveries=[ended]))
    # then no part of the first pause was productive
    assert account.seconds == {"starting": 60.0, "productive": 100.0, "unknown": 12.0, "restart": 18.0}


def test_a_pause_that_ended_before_the_next_one_at_the_latest_is_not_productive():
    """Found by the simulation (seed 1188431): the coordinator was lost while training went on."""
    # given a pause, and another fault while the training made steps
    lost = a_snapshot(recoveries=[fault(172.0)], members=BROKEN, actives=2)
    account = training().reconcile(172.5, lost)
    # when the next coordinator knows only the last step before the second pause
    recoveries = [fault(172.0, 184.0), fault(182.0, 190.0, pause_s=6.0, lost_steps=0)]
    account.reconcile(190.5, trains(120, 190.0, since=190.0, recoveries=recoveries))
    assert account.seconds == {"starting": 60.0, "productive": 100.0, "unknown": 12.0, "restart": 18.0}


def test_a_suspension_begins_with_the_last_step_and_a_start_follows_it():
    # given a job that is suspended
    account = training().change(suspend=True).reconcile(180.0, trains(110, 170.0, since=60.0))
    assert (account.goodput.part, account.since) == (Part.SUSPENDED, 170.0)
    # when it is resumed, and its first step is one that was made before
    account.change(suspend=False).reconcile(1000.0).reconcile(1031.0, trains(101, 1030.0, since=1030.0, epoch=9))
    assert account.seconds["suspended"] == 830.0
    assert (account.goodput.part, account.since) == (Part.REPEATED, 1030.0)


def at_the_gate(pod: Pod) -> Pod:
    """Kueue has not admitted it."""
    return replace(pending(pod), gates=("kueue.x-k8s.io/admission",))


def test_the_wait_for_quota_in_a_queue_is_suspended_time():
    # given a job whose pods Kueue admits after 5000 s
    account = Account().reconcile(1.0, pods=[at_the_gate(A0), at_the_gate(A1)])
    account.reconcile(5000.0)
    # when it makes its first step
    account.reconcile(5061.0, trains(1, 5060.0, since=5060.0))
    assert account.seconds == {"starting": 61.0, "suspended": 4999.0}


def test_a_preempted_job_is_suspended_until_it_has_quota_and_then_restarts():
    account = training()
    # given a preemption at 170 s. The new pods wait for quota from 180 s on
    account.reconcile(171.0, trains(110, 170.0, since=60.0, recoveries=[fault(170.5)], members=BROKEN))
    account.reconcile(180.0, pods=[at_the_gate(A0), at_the_gate(A1)])
    assert (account.goodput.part, account.since) == (Part.SUSPENDED, 180.0)
    # when Kueue admits them after an hour, and they train 20 s later
    account.reconcile(3780.0)
    assert account.goodput.part is Part.RESTART
    recovered = [fault(170.5, 3800.0, lost_steps=0)]
    account.reconcile(3801.0, trains(111, 3800.0, since=3800.0, recoveries=recovered))
    # then the queue does not count as lost time
    assert account.seconds["suspended"] == 3600.0
    assert [(x.fault, x.seconds) for x in account.goodput.lost] == [(Fault.PROCESS, 30.0)]


def test_one_pod_that_waits_for_quota_does_not_suspend_the_account():
    account = training()
    account.reconcile(171.0, trains(110, 170.0, since=60.0, recoveries=[fault(170.5)]), pods=[A0, at_the_gate(A1)])
    assert account.goodput.part is Part.RESTART


def test_a_script_that_reports_no_steps_has_no_productive_time():
    account = Account().reconcile(50.0, a_snapshot(members=WHOLE, actives=2))
    account.reconcile(100.0, a_snapshot(members=WHOLE, actives=2, recoveries=[fault(99.0)]))
    account.reconcile(110.0, a_snapshot(members=WHOLE, actives=2, recoveries=[fault(99.0, running_at=104.0)]))
    assert account.seconds == {"starting": 50.0, "withoutSteps": 49.0, "restart": 5.0}
    assert (account.goodput.part, account.goodput.ettr) == (Part.WITHOUT_STEPS, None)


def test_a_late_first_step_shows_that_the_job_was_starting():
    account = Account().reconcile(50.0, a_snapshot(members=WHOLE, actives=2))
    assert account.goodput.part is Part.WITHOUT_STEPS
    account.reconcile(90.0, trains(1, 89.0, since=88.0))
    assert (account.goodput.part, account.seconds) == (Part.PRODUCTIVE, {"starting": 88.0})


def test_a_restart_of_the_job_is_a_pause_until_the_next_step_of_its_new_pods():
    account = training()
    restart = structs.replace(
        account.status,
        recoveries=(_job_restart(170.0),),
        coordinator=structs.replace(account.status.coordinator, former_epoch=5),
    )
    account.job = replace(account.job, status=restart)
    account.reconcile(171.0)
    assert account.goodput.part is Part.RESTART
    account.reconcile(300.0, trains(101, 299.0, since=298.0, epoch=9))
    assert (account.goodput.part, account.since) == (Part.PRODUCTIVE, 298.0)


def _job_restart(at: float) -> RecoveryStatus:
    return RecoveryStatus(Fault.PROCESS, micro_time(CREATED + at), "JobRestart", "Job w failed")


def test_the_account_ends_with_the_job():
    account = training()
    account.reconcile(175.0, trains(110, 170.0, since=60.0, closed=SUCCEEDED))
    assert account.goodput.part is None
    assert account.seconds == {"starting": 60.0, "productive": 110.0, "ending": 5.0}
    before = account.goodput
    account.reconcile(900.0)
    assert account.goodput == before


def test_times_of_other_clocks_are_limited_to_the_present():
    account = Account().reconcile(61.0, trains(1, 10_000.0, since=9_000.0))
    assert account.since == 61.0
    account.reconcile(62.0, trains(2, -500.0, since=-900.0, recoveries=[fault(-800.0, -700.0, pause_s=99.0)]))
    assert sum(account.seconds.values()) == account.since


def test_a_job_without_a_launcher_has_no_account():
    job = replace(a_job(), spec=replace(a_job().spec, world=None))
    given: Observed = replace(observed(job), coordination=Coordination())
    assert plan_status(given, LEADERSHIP, CREATED).goodput is None


def test_workers_that_start_are_no_script_without_steps():
    members = (member(A0, 0), member(A1, 1, WorkersState.STARTING), member(S, None))
    assert Account().reconcile(50.0, a_snapshot(members=members, actives=2)).goodput.part is Part.STARTING
