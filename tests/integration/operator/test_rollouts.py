"""Weight updates of an RL job: its status, and the objects that the operator recreates, on a real API server."""

from dataclasses import replace
from typing import Any

import pytest

from tests.integration.operator.kube import Raw
from tests.integration.operator.test_jobs import Jobs
from tests.integration.operator.training import Training
from understudy_operator.plan.facts import keys
from understudy_protocol import pod as names
from understudy_protocol.enums import CloseReason, Fault
from understudy_protocol.membership import Close
from understudy_protocol.observer import Recovery
from understudy_protocol.recovery import Cause
from understudy_protocol.rollouts import Rollouts, UpdateFailure

pytestmark = pytest.mark.timeout(120)

CAUSE = Cause(0, "llm-workers-0-0-abcde", "node", None, None, "the weights of version step-7 were not updated")
FAILED = Rollouts(0, 0, 2, "step-6", UpdateFailure("u1", "step-7", "rollout-1 is gone", 1, 1_790_000_000.0), CAUSE)
SERVERS = ("llm-rollout-0", "llm-rollout-1")


def in_rl(job: Raw, **rollouts: Any) -> None:
    (workers,) = job["spec"]["replicatedJobs"]
    server = {"name": "rollout", "replicas": 2, "template": {"spec": {"template": pod_template(workers)}}}
    job["spec"]["replicatedJobs"].append(server)
    job["spec"]["launcher"]["targetReplicatedJobs"] = ["workers"]
    job["spec"]["failurePolicy"] = {"maxRestarts": 1}
    job["spec"]["rollouts"] = {"replicatedJobs": ["rollout"], "gateway": {"enginePort": 30000}, **rollouts}


def pod_template(workers: Raw) -> Raw:
    template: Raw = workers["template"]["spec"]["template"]
    return {"spec": {**template["spec"], "restartPolicy": "Never"}}


@pytest.fixture
def jobs(training: Training) -> Jobs:
    return Jobs(training.kube)


async def report_rollouts(training: Training, pods: list[Raw], rollouts: Rollouts, **changes: Any) -> None:
    rank_holders = [(pods[0], 0), (pods[1], 1), (pods[2], None)]
    await training.coordinator.report(replace(training.snapshot(0, rank_holders, **changes), rollouts=rollouts))


async def ready(jobs: Jobs) -> None:
    for name in SERVERS:
        status = {"active": 1, "ready": 1, "startTime": "2026-11-20T10:00:00Z"}
        await jobs.kube.call("PATCH", f"jobs/{name}/status", {"status": status})


async def test_rollouts_have_a_gateway_and_trainers_its_token(training: Training, jobs: Jobs) -> None:
    # given an RL job
    pods = await training.start(in_rl)
    made = await jobs.until(*SERVERS)

    # then the API server has accepted the gateways, and both sides mount the same token
    for job in made:
        (gateway,) = job["spec"]["template"]["spec"]["initContainers"]
        assert (gateway["name"], gateway["restartPolicy"]) == (names.GATEWAY_CONTAINER, "Always")
    specs = [*(job["spec"]["template"]["spec"] for job in made), *(pod["spec"] for pod in pods)]
    volumes = [x for spec in specs for x in spec["volumes"] if x["name"] == names.ROLLOUT_VOLUME]
    assert len(volumes) == len(specs)
    assert {x["secret"]["items"][0]["key"] for x in volumes} == {names.ROLLOUT_TOKEN_KEY}
    assert len({x["secret"]["secretName"] for x in volumes}) == 1
    secret = await training.kube.call("GET", f"secrets/{volumes[0]['secret']['secretName']}")
    assert set(secret["data"]) == {names.ROLLOUT_TOKEN_KEY}  # without the membership key


async def test_a_failed_update_recreates_the_rollouts_until_an_update_succeeds(training: Training, jobs: Jobs) -> None:
    # given a job whose rollouts may restart alone, once
    pods = await training.start(lambda job: in_rl(job, onFailedUpdate="RestartRollouts"))
    previous = await jobs.until(*SERVERS)
    await ready(jobs)
    await report_rollouts(training, pods, Rollouts(2, 0, 0, "step-6"))

    async def is_reported(**wanted: Any) -> bool:
        status = (await training.status()).get("rollouts", {})
        return all(status.get(name) == value for name, value in wanted.items())

    await training.kube.until("two Fresh replicas", lambda: is_reported(fresh=2, version="step-6"))

    # when an update fails
    await report_rollouts(training, pods, FAILED)
    status = await training.until_phase("Recovering")

    # then status reports it, and the recovery
    assert status["rollouts"]["uncertain"] == 2
    assert status["rollouts"]["failure"]["message"] == "rollout-1 is gone"
    assert (status["lastRecovery"]["fault"], status["lastRecovery"]["strategy"]) == ("WeightUpdate", "PodRecreate")
    assert await training.until_events("WeightUpdateFailed") == ["version step-7: rollout-1 is gone"]

    # and the servers are recreated, and no trainer is
    async def new() -> list[Raw]:
        await jobs.collect()
        present = await jobs.names()
        fresh = [x for x in present if x["metadata"]["uid"] not in {y["metadata"]["uid"] for y in previous}]
        return fresh if tuple(x["metadata"]["name"] for x in fresh) == SERVERS else []

    made = await training.kube.until("new rollouts", new)
    assert {x["metadata"]["labels"][keys.JOB_RESTART_ATTEMPT] for x in made} == {"1"}
    assert {x["metadata"]["uid"] for x in await training.pods()} == {x["metadata"]["uid"] for x in pods}

    # when the next update succeeds
    await report_rollouts(training, pods, Rollouts(2, 0, 0, "step-8"))

    # then the job has recovered
    status = await training.until_phase("Running")
    assert "resumedAt" in status["lastRecovery"]
    assert status["rollouts"] == {
        "fresh": 2,
        "updating": 0,
        "uncertain": 0,
        "version": "step-8",
        "restartedForUpdate": "u1",
    }

    # and if no restart is left, the next failure ends the job
    await ready(jobs)
    again = UpdateFailure("u2", "step-9", "rollout-1 is gone", 1, 1_790_000_100.0)
    await report_rollouts(training, pods, replace(FAILED, failure=again))
    assert (await training.until_phase("Failed"))["terminalState"] == "Failed"


async def test_a_failed_update_restarts_the_job_by_default(training: Training, jobs: Jobs) -> None:
    # given an RL job
    pods = await training.start(in_rl)
    await jobs.until(*SERVERS)

    # when its coordinator closes the world because of a failed update
    result = Recovery(1, Fault.WEIGHT_UPDATE, None, CAUSE, 1_790_000_000.0, None, "no retry is allowed")
    close = Close(CloseReason.FAILED, f"WeightUpdate: {CAUSE.message}; no retry is allowed")
    await report_rollouts(training, pods, FAILED, recoveries=(result,), closed=close)
    status = await training.until_phase("Restarting")

    # then the whole job restarts, and reports the reason
    assert status["restarts"] == 1
    assert (status["lastRecovery"]["fault"], status["lastRecovery"]["strategy"]) == ("WeightUpdate", "JobRestart")
    assert status["recoveriesByStrategy"]["jobRestart"] == 1
    (event,) = await training.until_events("RestartJobSetFailurePolicyAction")
    assert "WeightUpdate: the weights of version step-7 were not updated" in event
