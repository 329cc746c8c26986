"""Each fault in status has one Recovery object: created, updated when it matters, and pruned."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from msgspec.structs import replace as changed

from tests.unit.operator.fake_api import merged
from tests.unit.operator.given import (
    A0,
    A1,
    LEADERSHIP,
    NOW,
    TIES,
    S,
    a_job,
    a_pod,
    a_recovery,
    a_snapshot,
    a_status,
    after,
    in_round,
    member,
    observed,
    status_of,
)
from understudy_operator.plan.facts.job import InjectedJob
from understudy_operator.plan.facts.recovery_objects import (
    Outcome,
    RecoveryFields,
    read_recovery,
    recovery_json,
    recovery_manifest,
)
from understudy_operator.plan.intents import RecoveryHistory
from understudy_operator.plan.status.next_status import plan_status
from understudy_operator.plan.status.recovery_history import (
    CreateRecovery,
    DeleteRecovery,
    PatchRecovery,
    RecoveryWrite,
    merge_patch,
    plan_recovery_history,
    plan_recovery_writes,
)
from understudy_operator.plan.times.rfc3339 import micro_time
from understudy_protocol.enums import Fault, Strategy, Tier
from understudy_protocol.observer import Consequence, Recovery

TRACEBACK = 'File "train.py", line 7, in <module>\nRuntimeError: boom'
BOOM = replace(a_recovery().cause, signal=None, exit_code=1, message="RuntimeError: boom", traceback=TRACEBACK)
FOLLOWED = (Consequence(0, "a0", None, "SIGABRT", "killed by SIGABRT"),)
OPEN = a_recovery(strategy=None, cause=BOOM, consequences=FOLLOWED, consequence_count=1)
FORMED = replace(OPEN, strategy=Strategy.IN_PLACE, reason="restart 1 of 10 within 1 h")
RESUMED = replace(FORMED, resumed_at=NOW, pause_s=1.5, lost_steps=3)


def history_of(
    *recoveries: Recovery, status: Mapping[str, Any] | None = None, now: float = NOW, **job: Any
) -> RecoveryHistory | None:
    """The history of a job whose coordinator reports these recoveries."""
    given = observed(a_job(status=status or in_round(0), **job), snapshot=a_snapshot(recoveries=recoveries, number=1))
    return plan_recovery_history(given, a_status(status_of(given, now=now)), now)


def objects_of(*recoveries: Recovery, **given: Any) -> list[RecoveryFields]:
    history = history_of(*recoveries, **given)
    return [] if history is None else list(history.objects.values())


class Objects:
    """The objects of one job, with all writes that the plans ask for."""

    def __init__(self) -> None:
        self.known: dict[str, RecoveryFields | None] = {}
        self.sent: list[RecoveryWrite] = []

    def write(self, history: RecoveryHistory | None) -> list[str]:
        """The kinds of the writes."""
        writes = [] if history is None else plan_recovery_writes(history, self.known)
        for write in writes:
            if isinstance(write, DeleteRecovery):
                self.known.pop(write.name)
            else:
                self.known[write.name] = write.fields
        self.sent += writes
        return [type(write).__name__.removesuffix("Recovery") for write in writes]

    def fields(self) -> list[RecoveryFields]:
        return [fields for _, fields in sorted(self.known.items()) if fields is not None]


def test_a_fault_has_an_object_with_its_cause_its_consequences_and_its_cost() -> None:
    # given a world of two pods with eight workers and no devices each
    (fields,) = objects_of(RESUMED)
    # then ranks that waited are the cost
    assert recovery_json(fields) == {
        "jobName": "llm",
        "fault": "Process",
        "cause": {
            "rank": 8,
            "pod": "a1",
            "node": "node-a1",
            "exitCode": 1,
            "message": "RuntimeError: boom",
            "traceback": TRACEBACK,
        },
        "consequences": [{"rank": 0, "pod": "a0", "signal": "SIGABRT", "message": "killed by SIGABRT"}],
        "consequenceCount": 1,
        "strategy": "InPlace",
        "reason": "restart 1 of 10 within 1 h",
        "round": 1,
        "outcome": "Recovered",
        "detectedAt": micro_time(NOW - 2),
        "resumedAt": micro_time(NOW),
        "pauseSeconds": 1.5,
        "lostSteps": 3,
        "rankSecondsLost": 24.0,
    }


def test_the_cost_of_a_pause_counts_the_devices_of_all_pods_with_ranks() -> None:
    # given two pods with ranks and eight devices each, and a spare with eight
    pods = [replace(pod, devices=8) for pod in (A0, A1, S)]
    given = observed(pods=pods, snapshot=a_snapshot(recoveries=[RESUMED], number=1))
    history = plan_recovery_history(given, a_status(status_of(given)), NOW)
    assert history is not None
    (fields,) = history.objects.values()
    # then a pause of 1.5 s costs 16 times as much
    assert (fields.gpu_seconds_lost, fields.rank_seconds_lost) == (24.0, None)


def test_the_cost_is_not_known_while_a_pod_with_a_rank_is_not() -> None:
    members = [member(A0, 0), member(a_pod("b1", 1), 1)]
    given = observed(snapshot=a_snapshot(members, recoveries=[RESUMED], number=1))
    history = plan_recovery_history(given, a_status(status_of(given)), NOW)
    assert history is not None
    (fields,) = history.objects.values()
    assert (fields.gpu_seconds_lost, fields.rank_seconds_lost) == (None, None)


def test_what_was_restored_stays_although_a_new_coordinator_does_not_know_it() -> None:
    # given a fault of a job with snapshots, after which the training was restored from storage
    restored = replace(RESUMED, tier=Tier.STORAGE, tier_reason="a1 has no snapshot of its ranks", lost_steps=7)
    given = Objects()
    given.write(history_of(replace(OPEN, consequence_count=2)))
    given.write(history_of(replace(restored, resumed_at=None, pause_s=None)))
    # when the next coordinator ends it
    given.write(history_of(replace(RESUMED, lost_steps=None)))
    (fields,) = given.fields()
    assert (fields.restored_from, fields.restore_reason) == ("Storage", "a1 has no snapshot of its ranks")
    assert (fields.lost_steps, fields.outcome) == (7, Outcome.RECOVERED)


def test_status_does_not_repeat_the_traceback_and_the_consequences() -> None:
    status = json.dumps(after(in_round(0), a_snapshot(recoveries=[RESUMED], number=1)))
    assert "train.py" not in status
    assert "SIGABRT" not in status


def test_a_fault_costs_one_creation_and_two_updates() -> None:
    given = Objects()
    assert given.write(history_of(OPEN)) == ["Create"]
    assert given.write(history_of(OPEN)) == []
    # when details arrive, they wait for the next update
    assert given.write(history_of(replace(OPEN, consequence_count=2, reason="not counted yet"))) == []
    assert given.write(history_of(FORMED)) == ["Patch"]
    assert given.write(history_of(FORMED)) == []
    assert given.write(history_of(replace(RESUMED, consequence_count=2))) == ["Patch"]
    assert given.write(history_of(RESUMED)) == []
    (fields,) = given.fields()
    assert (fields.outcome, fields.consequence_count) == (Outcome.RECOVERED, 2)


def test_another_cause_is_written_at_once_without_the_traceback_of_the_first_one() -> None:
    given = Objects()
    given.write(history_of(FORMED))
    # when a node turns out to have been lost before
    cause = replace(
        BOOM, rank=0, pod="a0", node="node-a0", exit_code=None, message="its connection ended", traceback=""
    )
    assert given.write(history_of(replace(OPEN, fault=Fault.NODE, cause=cause))) == ["Patch"]
    (fields,) = given.fields()
    assert (fields.fault, fields.cause.pod, fields.cause.traceback, fields.strategy) == (Fault.NODE, "a0", "", None)
    write = given.sent[-1]
    assert isinstance(write, PatchRecovery)
    assert write.patch["strategy"] is None
    assert write.patch["cause"]["traceback"] is None
    assert write.patch["cause"]["exitCode"] is None


def test_a_patch_leads_from_the_object_to_the_wanted_fields() -> None:
    given = Objects()
    given.write(history_of(FORMED))
    given.write(history_of(RESUMED))
    first, second = given.sent
    assert isinstance(first, CreateRecovery)
    assert isinstance(second, PatchRecovery)
    assert merged(recovery_json(first.fields), second.patch) == recovery_json(second.fields)


def test_details_that_a_new_coordinator_does_not_know_stay() -> None:
    given = Objects()
    given.write(history_of(OPEN))
    # when the next coordinator continues the recovery
    brief = replace(RESUMED, cause=replace(BOOM, traceback=""), consequences=(), consequence_count=0, lost_steps=None)
    given.write(history_of(brief))
    (fields,) = given.fields()
    assert fields.cause.traceback == TRACEBACK
    assert [x.rank for x in fields.consequences] == [0]
    assert (fields.consequence_count, fields.outcome) == (1, Outcome.RECOVERED)
    # and the same for the steps lost, which the one after that does not know
    given.write(history_of(replace(brief, lost_steps=3)))
    assert given.write(history_of(brief)) == []
    (fields,) = given.fields()
    assert fields.lost_steps == 3


def test_the_cost_stays_when_the_job_has_another_size_later() -> None:
    given = Objects()
    given.write(history_of(RESUMED))
    # when a pod less has a rank, and no pod is left at all
    smaller = observed(snapshot=a_snapshot([member(A0, 0)], recoveries=[RESUMED], number=1))
    assert given.write(plan_recovery_history(smaller, a_status(status_of(smaller)), NOW)) == []
    (fields,) = given.fields()
    assert fields.rank_seconds_lost == 24.0


def test_faults_of_the_same_moment_have_objects_of_their_own() -> None:
    history = history_of(*TIES)
    assert history is not None
    assert [fields.cause.pod for fields in history.objects.values()] == ["a0", "a1"]
    assert len(history.objects) == 2


def test_the_names_of_a_jobs_objects_are_those_of_every_operator_and_sort_by_time() -> None:
    first, second = history_of(a_recovery(NOW)), history_of(a_recovery(NOW), a_recovery(NOW + 1))
    assert first is not None
    assert second is not None
    assert list(first.objects) == list(second.objects)[:1]
    assert sorted(second.objects) == list(second.objects)
    # 1_790_000_000 is 2026-09-21T14:13:20Z
    assert next(iter(first.objects)).startswith("llm-20260921-141320-")


def test_a_restart_of_the_whole_job_is_an_object_too() -> None:
    status = in_round(0, recoveries=[{"fault": "Process", "detectedAt": micro_time(NOW - 9), "strategy": "JobRestart"}])
    (fields,) = objects_of(status=status)
    assert (fields.strategy, fields.outcome) == ("JobRestart", Outcome.RECOVERED)


def test_a_job_that_fails_during_a_recovery_is_its_outcome() -> None:
    given = observed(a_job(status=in_round(0)), snapshot=a_snapshot(recoveries=[FORMED]))
    status = changed(plan_status(given, LEADERSHIP, NOW), terminal_state="Failed")
    history = plan_recovery_history(given, status, NOW)
    assert history is not None
    (fields,) = history.objects.values()
    assert fields.outcome is Outcome.FAILED


def test_a_suspension_ends_an_open_recovery() -> None:
    given = Objects()
    given.write(history_of(FORMED))
    # when a suspension drops it from status
    suspended = observed(a_job(status=after(in_round(0), a_snapshot(recoveries=[FORMED]))))
    history = plan_recovery_history(suspended, a_status(in_round(0)), NOW)
    assert given.write(history) == ["Patch"]
    (fields,) = given.fields()
    assert fields.outcome is Outcome.SUSPENDED
    assert given.write(history) == []


def test_a_suspension_ends_an_open_recovery_also_after_faults_of_long_ago() -> None:
    old = {"fault": "Pod", "detectedAt": micro_time(NOW - 9000), "resumedAt": micro_time(NOW - 8999)}
    status = in_round(0, recoveries=[old])
    given = Objects()
    given.write(history_of(FORMED, status=status))
    suspended = observed(a_job(status=after(status, a_snapshot(recoveries=[FORMED]))))
    given.write(plan_recovery_history(suspended, a_status(status), NOW))
    assert [fields.outcome for fields in given.fields()] == [Outcome.RECOVERED, Outcome.SUSPENDED]


def test_an_open_fault_that_ten_others_followed_has_an_unknown_outcome() -> None:
    given = Objects()
    given.write(history_of(a_recovery(NOW - 90, strategy=None)))
    # when the coordinator reports ten newer ones only, and status has no room for more
    newer = [a_recovery(NOW - 80 + number, strategy=None) for number in range(10)]
    status = after(in_round(0), a_snapshot(recoveries=[a_recovery(NOW - 90, strategy=None)]))
    given.write(history_of(*newer, status=status))
    assert [fields.outcome for fields in given.fields()] == [Outcome.UNKNOWN, *[None] * 10]


def test_the_newest_objects_are_kept() -> None:
    given, recoveries = Objects(), list[Recovery]()
    for number in range(5):
        recoveries.append(a_recovery(NOW - 50 + number, NOW - 50 + number))
        given.write(history_of(*recoveries, history_limit=3))
    assert [fields.detected_at for fields in given.fields()] == [micro_time(NOW - 48 + number) for number in range(3)]
    # and a new leader, which finds three objects and five faults, does not write the older two again
    assert given.write(history_of(*recoveries, history_limit=3)) == []


def test_a_limit_of_0_keeps_none() -> None:
    given = Objects()
    given.write(history_of(RESUMED))
    assert given.write(history_of(RESUMED, history_limit=0)) == ["Delete"]
    assert given.write(history_of(RESUMED, history_limit=0)) == []


def test_faults_that_ended_an_hour_ago_are_written_already() -> None:
    ended = a_recovery(NOW - 3602, NOW - 3600)
    assert history_of(ended) is None
    assert history_of(ended, a_recovery(NOW - 3602, NOW - 3599)) is not None
    assert history_of(a_recovery(NOW - 9000, strategy=None)) is not None


def test_an_open_fault_of_a_job_that_ended_an_hour_ago_is_written_already() -> None:
    given = observed(a_job(status=in_round(0)), snapshot=a_snapshot(recoveries=[FORMED]))
    status = changed(plan_status(given, LEADERSHIP, NOW), terminal_state="Failed")
    before, after_ = (changed(status, completion_time=micro_time(NOW - ago_s)) for ago_s in (3599, 3600))
    assert plan_recovery_history(given, before, NOW) is not None
    assert plan_recovery_history(given, after_, NOW) is None


def test_a_job_without_faults_has_nothing_to_write() -> None:
    assert history_of() is None


def test_an_object_that_a_user_has_changed_is_read_field_by_field() -> None:
    (fields,) = objects_of(RESUMED)
    manifest = recovery_manifest(a_job(), "llm-1", fields)
    assert read_recovery(manifest) == fields
    assert read_recovery({**manifest, "round": "first", "cause": 7}) == changed(
        fields, round=None, cause=RecoveryFields().cause
    )


def test_a_manifest_is_owned_by_its_job() -> None:
    (fields,) = objects_of(RESUMED)
    metadata = recovery_manifest(a_job(), "llm-1", fields)["metadata"]
    assert metadata == {
        "name": "llm-1",
        "namespace": "research",
        "labels": {"understudy.dev/job-uid": "job-uid", "understudy.dev/job-name": "llm"},
        "ownerReferences": [
            {
                "apiVersion": "understudy.dev/v1alpha1",
                "kind": "TrainingJob",
                "name": "llm",
                "uid": "job-uid",
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }


def test_a_manifest_of_an_injected_job_is_owned_by_the_injectedjob() -> None:
    job = replace(a_job(name="job.train"), injected=InjectedJob("uid-of-it", (), 30, "Job", "train"))
    manifest = recovery_manifest(job, "job.train-1", RecoveryFields(job_name="job.train"))
    (owner,) = manifest["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], manifest["jobName"]) == ("InjectedJob", "uid-of-it", "job.train")
    assert manifest["metadata"]["labels"]["understudy.dev/job-uid"] == "uid-of-it"


def test_a_merge_patch_has_only_the_difference() -> None:
    before = {"a": 1, "b": {"c": 1, "d": 2}, "e": [1], "f": 5}
    after_ = {"a": 1, "b": {"c": 1, "d": 3}, "e": [1, 2], "g": 6}
    assert merge_patch(before, after_) == {"b": {"d": 3}, "e": [1, 2], "f": None, "g": 6}
