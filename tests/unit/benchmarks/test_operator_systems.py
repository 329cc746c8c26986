"""The setup of a system for a session, and how its status shows that all jobs run or have followed a change."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks.operator import jobset_build
from benchmarks.operator.following import Following
from benchmarks.operator.jobset_build import Built
from benchmarks.operator.plan import Case, Session, System
from benchmarks.operator.settings import Files, User
from benchmarks.operator.sidecars import PlayedJob, Sidecars
from benchmarks.operator.systems import Setup, jobset_configuration, restarted
from benchmarks.operator.watches import Watches
from understudy_protocol.enums import RoundToken, WorkersState
from understudy_protocol.observer import MemberView, Snapshot
from understudy_protocol.pod import LABEL_JOB_UID

Status = dict[str, Any]
LIMIT_S = 10.0


def setup(system: System, *cases: Case, size: int = 100) -> Setup:
    return Setup(Session(system, size, 0, cases), Files(Path("/f"), Path("/b")), Built(Path("/j")))


UNDERSTUDY, JOBSET = setup(System.UNDERSTUDY, Case.CREATE), setup(System.JOBSET, Case.CREATE)


@pytest.mark.parametrize(
    ("description", "kind", "strategy"),
    [
        (UNDERSTUDY, "TrainingJob", None),
        (JOBSET, "JobSet", "Recreate"),
        (setup(System.UNDERSTUDY, Case.JOBS_RECREATE), "TrainingJob", "Recreate"),
        (setup(System.JOBSET, Case.RECREATE), "JobSet", "Recreate"),
        (setup(System.JOBSET, Case.IN_PLACE), "JobSet", "InPlaceRestart"),
    ],
)
def test_each_session_has_its_own_manifest(description: Setup, kind: str, strategy: str | None) -> None:
    manifest = description.manifest(0)

    assert (manifest["kind"], manifest["metadata"]["name"]) == (kind, "job-0")
    assert manifest["spec"].get("failurePolicy", {}).get("restartStrategy") == strategy
    assert ("launcher" in manifest["spec"]) == description.launcher == (description is UNDERSTUDY)
    assert description.jobs_path("ns").endswith("/namespaces/ns/" + kind.lower() + "s")


def test_its_requests_are_its_own_users() -> None:
    assert (UNDERSTUDY.user, JOBSET.user) == (User.UNDERSTUDY, User.JOBSET)


@pytest.mark.parametrize(
    ("description", "status", "well"),
    [
        (UNDERSTUDY, {"phase": "Running", "members": {"desired": 100, "ready": 100}}, True),
        (UNDERSTUDY, {"phase": "Running", "members": {"desired": 100, "ready": 99}}, False),
        (UNDERSTUDY, {"phase": "Starting", "members": {"desired": 100, "ready": 100}}, False),
        (UNDERSTUDY, {}, False),
        (JOBSET, {"replicatedJobsStatus": [{"name": "workers", "ready": 1}]}, True),
        (JOBSET, {"replicatedJobsStatus": [{"name": "workers", "ready": 0}]}, False),
        (JOBSET, {}, False),
    ],
)
def test_a_status_reports_that_all_is_well(description: Setup, status: Status, well: bool) -> None:
    assert description.all_well([status]) is well


def test_all_is_well_when_every_job_reports_it() -> None:
    many = setup(System.JOBSET, Case.MANY_CREATE, size=2)
    well: Status = {"replicatedJobsStatus": [{"ready": 1}]}

    assert many.all_well([well, well])
    assert not many.all_well([well])
    assert not many.all_well([well, {}])


def test_a_restart_is_over_when_it_is_counted_and_all_is_ready() -> None:
    ready = [{"ready": 1}]

    assert restarted([{"restarts": 1, "replicatedJobsStatus": ready}], launcher=False)
    assert not restarted([{"restarts": 0, "replicatedJobsStatus": ready}], launcher=False)
    assert not restarted([{"restarts": 1, "replicatedJobsStatus": [{"ready": 0}]}], launcher=False)
    assert not restarted([], launcher=False)
    trains = {"restarts": 1, "phase": "Running", "members": {"desired": 2, "ready": 2}}
    assert restarted([trains], launcher=True)
    assert not restarted([trains | {"phase": "Restarting"}], launcher=True)


@pytest.mark.parametrize("in_place", [True, False])
def test_jobsets_gate_is_on_for_its_restart_in_place_alone(in_place: bool) -> None:
    configuration = jobset_configuration(Path("/certificates"), in_place=in_place, shipped=in_place)

    assert configuration["featureGates"] == {"InPlaceRestart": in_place}
    assert configuration["webhook"]["certDir"] == "/certificates"
    assert ("clientConnection" in configuration) is not in_place


def test_jobset_is_pinned() -> None:
    assert jobset_build.version() == "0.12.0"


# Status follows the coordinator -----------------------------------------------------------------------------------


@pytest.fixture
async def played_job() -> AsyncIterator[tuple[PlayedJob, Watches]]:
    """A job in round 0, whose status repeats the state of its coordinator a moment later."""
    job, watches = PlayedJob("uid", "job-0", 2), Watches(lambda: ())
    members = tuple(MemberView(f"uid-{n}", f"job-0-{n}", "n", n, n, WorkersState.RUNNING) for n in range(2))
    job.snapshot = Snapshot(RoundToken(9, 1, 0), "uid-0", members, (), (), {}, None, "", None)

    async def operate() -> None:
        while True:
            status: Status = {"round": job.round}
            assert job.snapshot is not None
            if job.snapshot.recoveries:
                last = job.snapshot.recoveries[-1]
                resumed = {} if last.resumed_at is None else {"resumedAt": "now"}
                status["lastRecovery"] = {"round": last.round, **resumed}
            watches.jobs.present["job-0"] = {"status": status}
            await asyncio.sleep(0.02)

    task = asyncio.create_task(operate())
    yield job, watches
    task.cancel()


async def test_a_status_is_behind_by_the_longest_of_some_changes(
    played_job: tuple[PlayedJob, Watches], monkeypatch: pytest.MonkeyPatch
) -> None:
    job, watches = played_job
    monkeypatch.setattr("benchmarks.operator.following.PAUSE_S", 0.0)
    monkeypatch.setattr("benchmarks.operator.watches.CHECK_S", 0.01)

    assert 0.0 < await Following({"uid": job}, watches).longest_delay(LIMIT_S) < 1.0
    assert job.round == 5


async def test_a_recovery_in_place_is_one_round_and_one_recovery(
    played_job: tuple[PlayedJob, Watches], monkeypatch: pytest.MonkeyPatch
) -> None:
    job, watches = played_job
    monkeypatch.setattr("benchmarks.operator.following.SNAPSHOT_S", 0.05)
    monkeypatch.setattr("benchmarks.operator.watches.CHECK_S", 0.01)

    await Following({"uid": job}, watches).recover_in_place(LIMIT_S)

    assert "resumedAt" in watches.jobs.present["job-0"]["status"]["lastRecovery"]
    assert job.snapshot is not None
    (recovery,) = job.snapshot.recoveries
    assert (job.round, recovery.round) == (1, 1)
    assert recovery.resumed_at is not None
    assert job.snapshot.recoveries_by_strategy == {"InPlace": 1}
    assert {x.workers for x in job.snapshot.members} == {WorkersState.RUNNING}


async def test_another_pod_takes_the_rank_of_a_lost_one_in_the_next_round(
    played_job: tuple[PlayedJob, Watches], monkeypatch: pytest.MonkeyPatch
) -> None:
    job, watches = played_job
    monkeypatch.setattr("benchmarks.operator.following.SNAPSHOT_S", 0.05)
    monkeypatch.setattr("benchmarks.operator.watches.CHECK_S", 0.01)
    for uid in ("uid-0", "uid-1"):
        watches.pods.on_event("ADDED", running_pod(uid), 0.0)
    sidecars = Sidecars(None, "bench", watches)  # type: ignore[arg-type]
    recovery = asyncio.create_task(Following({"uid": job}, watches).lose_pod(sidecars, LIMIT_S))

    # given a coordinator that has reported the loss of the pod that is not its own
    await watches.until("the loss is reported", lambda: job.snapshot is not None and bool(job.snapshot.lost), LIMIT_S)
    assert job.snapshot is not None
    assert [x.pod_uid for x in job.snapshot.members] == ["uid-0"]
    assert (job.round, job.snapshot.lost[0].pod_uid, job.snapshot.waiting_for != "") == (0, "uid-1", True)
    # when another pod runs
    watches.pods.on_event("ADDED", running_pod("uid-2"), 0.0)
    assert 0.0 < await recovery < LIMIT_S
    # then it has the lost rank in the next round
    assert [(x.pod_uid, x.group_rank) for x in job.snapshot.members] == [("uid-0", 0), ("uid-2", 1)]
    assert (job.round, job.snapshot.waiting_for) == (1, "")
    assert job.snapshot.recoveries_by_strategy == {"PodRecreate": 1}
    assert [(x.round, x.resumed_at is not None) for x in job.snapshot.recoveries] == [(1, True)]


def running_pod(uid: str) -> msgspec.Raw:
    metadata = {"name": f"pod-{uid}", "uid": uid, "resourceVersion": "1", "labels": {LABEL_JOB_UID: "uid"}}
    pod = {"metadata": metadata, "spec": {"nodeName": "n"}, "status": {"phase": "Running", "podIP": "10.1.0.1"}}
    return msgspec.Raw(json.dumps(pod).encode())
