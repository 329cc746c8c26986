"""A run as objects, after its end."""

from __future__ import annotations

from pathlib import Path

from understudy_local.cluster import LocalCluster
from understudy_local.options import Options
from understudy_local.output import LocalOutput, Plain
from understudy_local.run_folder import RunFolder
from understudy_local.run_objects import described, stopped
from understudy_operator.plan.facts.recovery_objects import RecoveryFields
from understudy_operator.plan.facts.status import Goodput, JobStatus, PartSeconds, ProgressStatus
from understudy_operator.plan.times.rfc3339 import micro_time
from understudy_protocol.goodput import Part

NOW = 1_800_000_000.0


def test_no_time_passes_after_a_run_that_was_stopped() -> None:
    # given a run that has trained for 90 s, and made its newest step 2 s ago
    account = Goodput(
        start_time=micro_time(NOW - 100),
        since=micro_time(NOW - 90),
        part=Part.PRODUCTIVE,
        seconds=PartSeconds(starting=10.0),
    )
    status = JobStatus(phase="Running", goodput=account, progress=ProgressStatus(7, None, micro_time(NOW - 2)))
    # when it is stopped
    ended = stopped(status, NOW)
    # then its account has ended, with the time since its newest step as that of its end
    assert ended.phase == "Stopped"
    assert ended.goodput is not None
    assert (ended.goodput.part, ended.goodput.since) == (None, micro_time(NOW))
    assert ended.goodput.seconds == PartSeconds(productive=88.0, starting=10.0, ending=2.0)


def test_a_run_without_an_account_can_be_stopped() -> None:
    assert stopped(JobStatus(), NOW).goodput is None


def test_a_recovery_ends_with_the_run() -> None:
    # given a run with an open recovery
    output = LocalOutput(Plain(), verbose=False)
    cluster = LocalCluster(Options(("true",)), RunFolder(Path("/nonexistent")), "127.16", (), output)
    cluster.recoveries["night-1"] = RecoveryFields(job_name="night", detected_at=micro_time(NOW))
    # when it is stopped, then the recovery has ended, too
    assert "outcome" not in described(cluster)["recoveries"][0]
    assert described(cluster, has_ended=True)["recoveries"][0]["outcome"] == "Unknown"
