"""Weight updates that fail half way, on the real cluster: the trainer and its two servers are pods, with gateways.

In each act clients call both gateways all the time, and no answer may have tokens of two versions: `clients` asserts
that at its end.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from tests.cluster import Cluster
from tests.e2e.acts import worker_pids
from tests.e2e.compared import compared, fault_of, sampled
from tests.e2e.lanes import NAMESPACE
from tests.e2e.rl import RlJob, clients, version_of
from tests.e2e.training import Raw
from tests.e2e.truth import JOB_RESTART, REPORTED_WITHIN_S, Observed, Step, differences, unix
from tests.e2e.waiting import wait_until
from understudy_protocol.pod import GATEWAY_CONTAINER

pytestmark = pytest.mark.timeout(600)

#: Until the workers of a new attempt run: their pods and those of the servers are recreated.
RESTARTS_S = 180.0
MakeJob = Callable[..., RlJob]


@pytest.fixture
def make_job(cluster: Cluster) -> Iterator[MakeJob]:
    """A job that is deleted after the test."""
    made: list[RlJob] = []

    def make(name: str, **changes: object) -> RlJob:
        job = RlJob(cluster, NAMESPACE, name, **changes)  # type: ignore[arg-type]
        made.append(job)
        return job

    yield make
    for job in made:
        job.discard()


def server_pid(job: RlJob, pod: Raw) -> int:
    pids: dict[str, int] = job.cluster.container_pids(NAMESPACE, pod["metadata"]["name"])
    return pids["server"]


def uids(pods: list[Raw]) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods}


def test_a_trainer_killed_in_a_transfer_restarts_in_place_and_a_killed_server_restarts_the_job(
    make_job: MakeJob,
) -> None:
    # given a job that has updated its servers
    job = make_job("rl-job")
    job.apply()
    with clients(job) as seen:
        job.wait_for_whole_updates(2)
        wait_until("answers come", lambda: seen["whole"] > 10, 30, seen=lambda: seen)
        servers, before = uids(job.pods("rollout")), job.status()["round"]
        # when the trainer is killed in mid transfer
        job.wait_for_transfer()
        (trainer,) = job.pods("trainer")
        # then it restarts in place, with its servers Uncertain until it has updated them
        with compared(job, replace(fault_of(trainer, "Process", "InPlace"), signal="SIGKILL")):
            os.kill(worker_pids(job, trainer["metadata"]["name"])[0], signal.SIGKILL)
            status = job.wait_for(
                "the trainer has recovered", lambda s: s["round"] > before and s["rollouts"]["fresh"] == 2
            )
        assert uids(job.pods("rollout")) == servers
        assert status["restarts"] == 0

        # when a server is killed in mid transfer
        previous = servers | uids([trainer])
        job.wait_for_transfer()
        with compared(job, fault_of(trainer, "WeightUpdate", JOB_RESTART), RESTARTS_S) as comparison:
            os.kill(server_pid(job, job.pods("rollout")[1]), signal.SIGKILL)
            # then the whole job restarts, and status has the reason
            job.wait_for("the job restarts", lambda s: s.get("restarts") == 1)
            job.wait_for_whole_updates(1)
        assert "were not updated" in comparison.recovery["cause"]["message"]
        # and it continues with new pods, whose weights are complete
        job.wait_for_whole_updates(2)
        assert not previous & (uids(job.pods("rollout")) | uids(job.pods("trainer")))
        answers = seen["whole"]
        wait_until("answers come again", lambda: seen["whole"] > answers + 10, 30, seen=lambda: seen)


def test_if_the_rollouts_restart_alone_the_trainer_stays(make_job: MakeJob) -> None:
    job = make_job("rl-alone")
    job.apply(onFailedUpdate="RestartRollouts")
    with clients(job):
        job.wait_for_whole_updates(2)
        servers, trainer = uids(job.pods("rollout")), uids(job.pods("trainer"))
        job.wait_for_transfer()
        (holder,), killed_at = job.pods("trainer"), time.time()
        with sampled(job.status) as samples:
            os.kill(server_pid(job, job.pods("rollout")[0]), signal.SIGKILL)
            status = job.wait_for("an update is whole", lambda s: s.get("lastRecovery", {}).get("resumedAt"))
        # then the recovery lasts from the update's failure, which the trainer logs once it has undone as much as
        # possible, to the next successful update
        updates = [(at, outcome) for at, _, outcome in job.logged_updates() if at > killed_at]
        failed_at = next(at for at, outcome in updates if outcome == "failed")
        whole_at = next(at for at, outcome in updates if outcome == "whole")
        began_at = unix(status["lastRecovery"]["detectedAt"])
        assert killed_at <= began_at <= failed_at + REPORTED_WITHIN_S
        lasts = {"trainer": [Step((0, 0, 0), began_at), Step((0, 0, 1), whole_at)]}
        fault = fault_of(holder, "WeightUpdate", "PodRecreate")
        found = differences(fault, Observed(began_at, (), lasts, samples), status)
        assert not found, found
        assert (status["rollouts"]["fresh"], status["restarts"]) == (2, 0)
        assert not servers & uids(job.pods("rollout"))
        assert uids(job.pods("trainer")) == trainer


def test_a_server_that_exits_with_success_is_started_again(make_job: MakeJob) -> None:
    """Found by the soak: the example's server exits with 0 at SIGTERM, so its Job is complete."""
    job = make_job("rl-exit", pause_s=6.0)
    job.apply()
    with clients(job):
        job.wait_for_whole_updates(1)
        servers = job.pods("rollout")
        # when the pod of a server is deleted, as an eviction does
        job.cluster.kubectl("-n", NAMESPACE, "delete", "pod", servers[1]["metadata"]["name"], "--wait=false")
        # then there is another one, and updates of both succeed
        wait_until("another server runs", lambda: len(uids(running(job)) - uids(servers)) == 1, 120, seen=job.text)
        job.wait_for_whole_updates(1)
    assert job.status()["phase"] == "Running"


def running(job: RlJob) -> list[Raw]:
    """The rollout servers that run."""
    return [pod for pod in job.pods("rollout") if pod["status"].get("phase") == "Running"]


@pytest.mark.nightly  # each make test: rollout/test_restarts.py, the same processes without Kubernetes
def test_a_gateway_that_is_killed_comes_back_with_its_state(make_job: MakeJob) -> None:
    # given a job whose updates are far apart
    job = make_job("rl-gateway", pause_s=4.0)
    job.apply()
    with clients(job) as seen:
        version = version_of(job.wait_for_whole_updates())
        servers, (pod, _) = uids(job.pods("rollout")), job.pods("rollout")
        # when a gateway is killed between two of them
        killed = kill_gateway(job, pod)
        # then another one admits the same weights again, at the next update at the latest
        wait_until("there is another gateway", lambda: gateway_pid(job, pod) not in (0, killed), 30, seen=job.text)
        result = wait_until("it answers", lambda: job.weights(pod), 30, seen=job.text)
        assert result is not None
        assert (result["state"], result["version"]) == ("Fresh", str(version))
        before = seen["whole"]
        wait_until("answers come", lambda: seen["whole"] > before + 10, 30, seen=lambda: seen)
        # and the next update succeeds, with the same pods
        status = job.wait_for_whole_updates()
        assert status.get("recoveries", []) == []
        assert uids(job.pods("rollout")) == servers

        # when one is killed in mid transfer
        job.wait_for_transfer()
        kill_gateway(job, pod)
        # then both have complete weights again in the end, and newer ones
        job.wait_for_whole_updates()


def gateway_pid(job: RlJob, pod: Raw) -> int:
    """The pid; 0 while there is none."""
    return int(job.cluster.container_pids(NAMESPACE, pod["metadata"]["name"]).get(GATEWAY_CONTAINER, 0))


def kill_gateway(job: RlJob, pod: Raw) -> int:
    pid = gateway_pid(job, pod)
    os.kill(pid, signal.SIGKILL)
    return pid


def test_a_server_behind_a_partition_is_recreated_and_answers_no_client_meanwhile(make_job: MakeJob) -> None:
    job = make_job("rl-part", transfer_timeout_s=10.0)
    job.apply()
    with clients(job) as seen:
        job.wait_for_whole_updates(2)
        cut = job.pods("rollout")[1]
        wait_until("it answers clients", lambda: cut["status"]["podIP"] in seen.request_times, 30, seen=lambda: seen)
        # when its node is cut off in mid transfer
        job.wait_for_transfer()
        (trainer,) = job.pods("trainer")
        with compared(job, fault_of(trainer, "WeightUpdate", JOB_RESTART), RESTARTS_S):
            job.cluster.partition(cut["spec"]["nodeName"])
            cut_at = time.monotonic()
            # then the update fails by its time limits, and the job restarts; a client on the node gets no answer
            with job.send_from_node(cut):
                job.wait_for("the job restarts", lambda s: s.get("restarts") == 1, 180)
            # the job waits for the pod on that node, whose end no kubelet reports
            job.cluster.restore(cut["spec"]["nodeName"])
        # and when the node is back, its former gateway is closed, or gone with its pod
        weights = job.weights(cut)
        if weights is None:
            assert cut["metadata"]["uid"] not in uids(job.pods("rollout"))
        else:
            assert weights["state"] in ("Updating", "Uncertain")
        job.wait_for_whole_updates(2)
        # and has admitted no weights since
        assert seen.request_times[cut["status"]["podIP"]] < cut_at
