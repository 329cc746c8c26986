"""TrainingJobs as JobSets: child Jobs on a real API server, whose Job controller the test plays."""

from typing import Any

import pytest

from tests.integration.operator.kube import Kube, Raw
from tests.integration.operator.process import OperatorProcess
from tests.integration.operator.training import NAME, Training
from tests.integration.versions import minor
from understudy_operator.plan.facts import keys
from understudy_operator.plan.times.rfc3339 import parse_time
from understudy_protocol import pod as names

pytestmark = pytest.mark.timeout(120)
AT = "2026-11-20T10:00:00Z"


def as_jobset(job: Raw, **spec: Any) -> None:
    """No launcher: a leader, and two Jobs of workers."""
    job["spec"] |= {"launcher": {"mode": "Off"}, "spares": {"replicas": 0}}
    (workers,) = job["spec"]["replicatedJobs"]
    leader = {"name": "leader", "template": {"spec": {"template": workers["template"]["spec"]["template"]}}}
    job["spec"] |= {"replicatedJobs": [leader, workers | {"replicas": 2}], **spec}


class Jobs:
    """The Jobs of a namespace, and their controller."""

    def __init__(self, kube: Kube) -> None:
        self.kube = kube

    async def names(self) -> list[Raw]:
        """The Jobs that are not being deleted, in the order of their names."""
        return [x for x in await self.kube.list("jobs") if "deletionTimestamp" not in x["metadata"]]

    async def until(self, *wanted: str) -> list[Raw]:
        async def look() -> list[Raw]:
            present = await self.names()
            return present if [x["metadata"]["name"] for x in present] == list(wanted) else []

        return await self.kube.until(f"Jobs {', '.join(wanted)}", look)

    async def ends(self, name: str, kind: str, **end: str) -> None:
        first = {"Complete": "SuccessCriteriaMet", "Failed": "FailureTarget"}[kind]
        times = {"lastProbeTime": AT, "lastTransitionTime": AT}
        # Before 1.31, only a Job with a successPolicy has SuccessCriteriaMet.
        kinds = (kind,) if kind == "Complete" and minor() < 31 else (first, kind)
        conditions = [{"type": x, "status": "True", **times, **end} for x in kinds]
        done = {"completionTime": AT} if kind == "Complete" else {}
        status = {"startTime": AT, **done, "conditions": conditions}
        await self.kube.call("PATCH", f"jobs/{name}/status", {"status": status})

    async def collect(self) -> None:
        """As the garbage collector does once a Job's pods are gone."""
        for job in await self.kube.list("jobs"):
            if "deletionTimestamp" in job["metadata"]:
                name = job["metadata"]["name"]
                await self.kube.call("PATCH", f"jobs/{name}", {"metadata": {"finalizers": None}})


@pytest.fixture
def jobs(kube: Kube) -> Jobs:
    return Jobs(kube)


async def test_a_jobset_becomes_jobs_and_succeeds_with_them(training: Training, jobs: Jobs, kube: Kube):
    # when a JobSet's manifest is applied, with its header lines changed
    job = await training.apply(as_jobset)
    made = await jobs.until("llm-leader-0", "llm-workers-0", "llm-workers-1")

    # then its Jobs exist, without the objects of a launcher
    assert {x["metadata"]["ownerReferences"][0]["uid"] for x in made} == {job["metadata"]["uid"]}
    assert [x["metadata"]["labels"][keys.JOB_GLOBAL_INDEX] for x in made] == ["0", "1", "2"]
    assert made[1]["spec"]["template"]["spec"]["subdomain"] == NAME
    assert [x["metadata"]["name"] for x in await kube.list("services")] == [NAME]
    assert await kube.list("secrets") == []

    # when all have succeeded
    for name in ("llm-leader-0", "llm-workers-0", "llm-workers-1"):
        await jobs.ends(name, "Complete")

    # then the job has succeeded
    status = await training.until_phase("Succeeded")
    assert status["terminalState"] == "Completed"
    assert [entry["succeeded"] for entry in status["replicatedJobsStatus"]] == [1, 2]


def as_written(job: Raw, **annotations: str) -> None:
    """One replicatedJob, and no field of Understudy."""
    del job["spec"]["launcher"], job["spec"]["spares"]
    job["metadata"]["annotations"] = annotations


async def test_a_job_without_the_field_launcher_is_fault_tolerant_and_its_user_reads_it_once(
    training: Training, jobs: Jobs, kube: Kube
):
    await training.apply(as_written)
    # then it gets pods with a launcher, and no Job
    (pod, _) = await training.until_pods(2)
    assert pod["spec"]["containers"][0]["command"][0] == "/bin/sh"
    assert await jobs.names() == []
    (event,) = await training.until_events("LauncherDefaulted")
    assert event.startswith("launcher is unset, so the job has the default launcher {}")
    assert await training.condition("FaultTolerant") == ("True", event)


async def test_with_the_annotation_the_same_job_is_a_jobset(training: Training, jobs: Jobs, kube: Kube):
    await training.apply(lambda job: as_written(job, **{names.ANNOTATION_JOBSET_COMPATIBLE: "true"}))
    await jobs.until("llm-workers-0")
    status, message = await training.condition("FaultTolerant")
    assert (status, "annotation understudy.dev/jobset-compatible" in message) == ("False", True)
    assert await kube.list("pods") == []
    assert await training.events("LauncherDefaulted") == []


async def test_a_job_that_loses_its_default_launcher_while_it_is_suspended_runs_as_a_jobset(
    training: Training, jobs: Jobs, kube: Kube
):
    # given a fault-tolerant job that was suspended
    await training.apply(as_written)
    await training.until_pods(2)
    await kube.call("PATCH", f"trainingjobs/{NAME}", {"spec": {"suspend": True}})

    async def are_gone() -> bool:
        return not await training.pods()

    await kube.until("its pods are gone", are_gone)
    # when its template gets a policy that a launcher would ignore, and it is resumed
    raw = await kube.call("GET", f"trainingjobs/{NAME}")
    (group,) = raw["spec"]["replicatedJobs"]
    group["template"]["spec"]["podFailurePolicy"] = {"rules": []}
    group["template"]["spec"]["template"]["spec"]["restartPolicy"] = "Never"
    patch = {"spec": {"suspend": False, "replicatedJobs": [group]}}
    await kube.call("PATCH", f"trainingjobs/{NAME}", patch)
    # then it has a Job, no pod of its own, and the reason
    await jobs.until("llm-workers-0")
    status, message = await training.condition("FaultTolerant")
    assert (status, "podFailurePolicy has no effect with a launcher" in message) == ("False", True)
    assert await training.pods() == []


async def test_pods_with_host_network_have_host_ports_of_their_own_by_which_the_service_finds_them(
    training: Training, kube: Kube
):
    def on_host(job: Raw) -> None:
        job["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["hostNetwork"] = True

    await training.apply(on_host)
    pods = await training.until_pods(3)
    for pod in pods:
        # the API server makes the container's ports those of the node, which the scheduler compares
        ports = {x["name"]: x["hostPort"] for x in pod["spec"]["containers"][0]["ports"]}
        assert ports["understudy-http"] == ports["understudy"] + 1
        assert ports["understudy"] in range(24000, 24999, 2)
        sidecar = next(x for x in pod["spec"]["initContainers"] if x["name"] == names.SIDECAR_CONTAINER)
        assert {"name": "UNDERSTUDY_MEMBERSHIP_PORT", "value": str(ports["understudy"])} in sidecar["env"]
    service = await kube.call("GET", f"services/{NAME}-coordinator")
    assert [(x["port"], x["targetPort"]) for x in service["spec"]["ports"]] == [(8478, "understudy")]


async def test_a_failed_job_restarts_all_jobs(training: Training, jobs: Jobs):
    # given a job that may restart once
    await training.apply(lambda job: as_jobset(job, failurePolicy={"maxRestarts": 1}))
    previous = await jobs.until("llm-leader-0", "llm-workers-0", "llm-workers-1")

    # when one of its Jobs fails, and the others are gone
    await jobs.ends("llm-workers-1", "Failed", reason="BackoffLimitExceeded", message="too many retries")
    await training.until_phase("Restarting")

    async def new() -> list[Raw]:
        await jobs.collect()
        uids = {x["metadata"]["uid"] for x in previous}
        present = [x for x in await jobs.kube.list("jobs") if x["metadata"]["uid"] not in uids]
        return present if len(present) == len(previous) else []

    # then all Jobs are recreated
    made = await jobs.kube.until("new Jobs", new)
    assert {x["metadata"]["labels"][keys.RESTART_ATTEMPT] for x in made} == {"1"}
    assert (await training.status())["restarts"] == 1
    (result,) = await training.until_events("RestartJobSetFailurePolicyAction")
    assert "Job llm-workers-1 failed: BackoffLimitExceeded: too many retries" in result

    # and when one fails again, the job fails
    await jobs.ends("llm-leader-0", "Failed", reason="BackoffLimitExceeded", message="too many retries")
    assert (await training.until_phase("Failed"))["terminalState"] == "Failed"


async def test_a_suspended_job_is_resumed_with_another_node_selector(training: Training, jobs: Jobs, kube: Kube):
    # given a suspended job, one of whose Jobs has run before
    await training.apply(lambda job: as_jobset(job, suspend=True))
    made = await jobs.until("llm-leader-0", "llm-workers-0", "llm-workers-1")
    assert {x["spec"]["suspend"] for x in made} == {True}
    await kube.call("PATCH", "jobs/llm-leader-0/status", {"status": {"startTime": AT}})
    await training.until_phase("Suspended")

    # when its pods get another node selector, and it is resumed, as by Kueue
    spec = (await kube.call("GET", f"trainingjobs/{NAME}"))["spec"]
    for replicated in spec["replicatedJobs"]:
        replicated["template"]["spec"]["template"]["spec"]["nodeSelector"] = {"pool": "a"}
    await kube.call("PATCH", f"trainingjobs/{NAME}", {"spec": spec | {"suspend": False}})

    # then the same Jobs are resumed
    async def resumed() -> list[Raw]:
        present = await kube.list("jobs")
        return present if not any(x["spec"]["suspend"] for x in present) else []

    result = await kube.until("resumed Jobs", resumed)
    assert [x["metadata"]["uid"] for x in result] == [x["metadata"]["uid"] for x in made]
    assert {x["spec"]["template"]["spec"]["nodeSelector"]["pool"] for x in result} == {"a"}
    await jobs.kube.until("event Resumed", lambda: training.events("Resumed"))


async def test_a_typo_in_one_template_prevents_all_creations(training: Training, kube: Kube):
    def with_a_typo(job: Raw) -> None:
        as_jobset(job)
        pod = job["spec"]["replicatedJobs"][1]["template"]["spec"]["template"]["spec"]
        job["spec"]["replicatedJobs"][1]["template"]["spec"]["template"]["spec"] = {**pod, "nodeSelectr": {"a": "b"}}

    # when one of the templates has a field that Kubernetes does not know
    await training.apply(with_a_typo)

    async def is_reported() -> str:
        holds, message = await training.condition("Invalid")
        return message if holds == "True" else ""

    # then that is reported, and no Job exists
    assert "nodeSelectr" in await kube.until("the condition Invalid", is_reported)
    assert await kube.list("jobs") == []


async def test_volume_claims_are_created_before_the_jobs(training: Training, jobs: Jobs, kube: Kube):
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    policy = {"templates": [{"metadata": {"name": "data"}, "spec": claim}]}

    def mounting(job: Raw) -> None:
        as_jobset(job, volumeClaimPolicies=[policy])
        for replicated in job["spec"]["replicatedJobs"]:
            container = replicated["template"]["spec"]["template"]["spec"]["containers"][0]
            container["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]

    await training.apply(mounting)
    made = await jobs.until("llm-leader-0", "llm-workers-0", "llm-workers-1")
    (volume,) = made[0]["spec"]["template"]["spec"]["volumes"]
    assert volume["persistentVolumeClaim"] == {"claimName": "data-llm"}
    (present,) = await kube.list("persistentvolumeclaims")
    assert present["metadata"]["name"] == "data-llm"

    # when the claim is deleted, by hand or with a job whose name another one has now
    await kube.call("DELETE", "persistentvolumeclaims/data-llm")
    await kube.call("PATCH", "persistentvolumeclaims/data-llm", {"metadata": {"finalizers": None}})

    # then it is recreated
    async def another() -> bool:
        return [x["metadata"]["uid"] for x in await kube.list("persistentvolumeclaims")] not in (
            [],
            [present["metadata"]["uid"]],
        )

    await kube.until("another claim", another)


async def test_a_job_that_has_ended_is_deleted_after_its_ttl(training: Training, jobs: Jobs, kube: Kube):
    await training.apply(lambda job: as_jobset(job, ttlSecondsAfterFinished=0, successPolicy={"operator": "Any"}))
    await jobs.until("llm-leader-0", "llm-workers-0", "llm-workers-1")
    await jobs.ends("llm-leader-0", "Complete")

    async def going() -> bool:
        (job,) = await kube.list("trainingjobs")
        return "deletionTimestamp" in job["metadata"]

    await kube.until("its deletion", going)


async def test_a_training_that_is_suspended_has_no_pods_and_new_ones_when_it_is_resumed(training: Training, kube: Kube):
    # given a job with a launcher, whose pods are not scheduled yet
    await training.apply()
    previous = {pod["metadata"]["uid"] for pod in await training.until_pods(3)}

    # when it is suspended
    await kube.call("PATCH", f"trainingjobs/{NAME}", {"spec": {"suspend": True}})

    async def gone() -> bool:
        return await training.pods() == []

    await kube.until("no pods", gone)
    assert (await training.until_phase("Suspended"))["replicatedJobsStatus"][0]["suspended"] == 1

    # and resumed
    await kube.call("PATCH", f"trainingjobs/{NAME}", {"spec": {"suspend": False}})

    # then it has pods of another attempt
    pods = await training.until_pods(3)
    assert not previous & {pod["metadata"]["uid"] for pod in pods}
    epoch = (await training.status())["coordinator"]["formerEpoch"]
    assert {pod["metadata"]["labels"][names.LABEL_ATTEMPT] for pod in pods} == {str(epoch)}


async def test_settings_that_change_during_a_suspension_apply_to_the_next_pods(
    training: Training, jobs: Jobs, kube: Kube
):
    # given a suspended job
    path = f"trainingjobs/{NAME}"
    await training.apply()
    await training.until_pods(3)
    await kube.call("PATCH", path, {"spec": {"suspend": True}})

    async def has_no_pods() -> bool:
        return await training.pods() == []

    await kube.until("no pods", has_no_pods)
    # when its launcher and other settings change, and it is resumed in the same step
    changed = {"launcher": {"nprocPerNode": 3}, "faults": {"nodeFile": "/run/nologin"}, "elastic": {"minPods": 1}}
    await kube.call("PATCH", path, {"spec": {"suspend": False, **changed}})
    # then its next pods have them
    for pod in await training.until_pods(3):
        (trainer, *_) = pod["spec"]["containers"]
        assert {"name": "UNDERSTUDY_NPROC_PER_NODE", "value": "3"} in trainer["env"]
        assert any(volume.get("hostPath", {}).get("path") == "/run" for volume in pod["spec"]["volumes"])
    # and when the launcher is switched off during the next suspension, the job becomes Jobs
    await kube.call("PATCH", path, {"spec": {"suspend": True}})
    await kube.until("no pods", has_no_pods)
    off = {"launcher": {"mode": "Off"}, "spares": None, "elastic": None, "faults": None}
    await kube.call("PATCH", path, {"spec": {"suspend": False, **off}})
    await jobs.until("llm-workers-0")
    # and with a launcher again, pods
    await kube.call("PATCH", path, {"spec": {"suspend": True}})
    await kube.call("PATCH", path, {"spec": {"suspend": False, "launcher": {"mode": "Auto"}}})
    await training.until_pods(2)

    async def has_no_jobs() -> bool:
        return await jobs.names() == []

    await kube.until("no Job", has_no_jobs)


# Suspensions that no operator observes --------------------------------------------------------------------------------


async def suspend_change_and_resume(kube: Kube) -> None:
    """The change is another image."""
    path = f"trainingjobs/{NAME}"
    await kube.call("PATCH", path, {"spec": {"suspend": True}})
    replicated = (await kube.call("GET", path))["spec"]["replicatedJobs"]
    for entry in replicated:
        entry["template"]["spec"]["template"]["spec"]["containers"][0]["image"] = "example.com/trainer:2"
    await kube.call("PATCH", path, {"spec": {"replicatedJobs": replicated}})
    await kube.call("PATCH", path, {"spec": {"suspend": False}})


async def until_acted_on(training: Training, kube: Kube) -> None:
    async def acted_on() -> bool:
        job = await kube.call("GET", f"trainingjobs/{NAME}")
        return bool(job["status"].get("observedGeneration") == job["metadata"]["generation"])

    await kube.until("the newest generation is acted on", acted_on)


async def test_training_pods_are_recreated_after_an_unobserved_suspension(
    training: Training, kube: Kube, operator: OperatorProcess
):
    # given a job that runs
    previous = {pod["metadata"]["uid"] for pod in await training.start()}

    # when it is suspended, changed and resumed while no operator runs
    operator.kill()
    await suspend_change_and_resume(kube)
    operator.start()

    # then its pods are asked to end, and others are created from the new template, in another attempt
    async def are_recreated() -> list[Raw]:
        pods = await training.pods()
        return pods if len(pods) == 3 and not previous & {pod["metadata"]["uid"] for pod in pods} else []

    pods = await kube.until("other pods", are_recreated)
    assert {pod["spec"]["containers"][0]["image"] for pod in pods} == {"example.com/trainer:2"}
    epoch = (await training.status())["coordinator"]["formerEpoch"]
    assert {pod["metadata"]["labels"][names.LABEL_ATTEMPT] for pod in pods} == {str(epoch)}
    (result,) = await training.until_events("Resumed")
    assert "the operator missed that the job was suspended" in result
    await until_acted_on(training, kube)


async def test_jobs_are_recreated_after_an_unobserved_suspension(
    training: Training, jobs: Jobs, kube: Kube, operator: OperatorProcess
):
    # given Jobs, one of which has succeeded
    await training.apply(as_jobset)
    previous = await jobs.until("llm-leader-0", "llm-workers-0", "llm-workers-1")
    await jobs.ends("llm-leader-0", "Complete")

    # when the job is suspended, changed and resumed while no operator runs
    operator.kill()
    await suspend_change_and_resume(kube)
    operator.start()

    # then those that have not ended are recreated
    async def are_recreated() -> bool:
        await jobs.collect()
        images = {x["metadata"]["name"]: image_of(x) for x in await jobs.names()}
        return images == {
            "llm-leader-0": "example.com/trainer:1",
            "llm-workers-0": "example.com/trainer:2",
            "llm-workers-1": "example.com/trainer:2",
        }

    await kube.until("Jobs of the new template", are_recreated)
    await until_acted_on(training, kube)
    present = {x["metadata"]["name"]: x["metadata"]["uid"] for x in await jobs.names()}
    assert present["llm-leader-0"] == previous[0]["metadata"]["uid"]


def image_of(job: Raw) -> str:
    return str(job["spec"]["template"]["spec"]["containers"][0]["image"])


# Deadlines -----------------------------------------------------------------------------------------------------------


async def test_a_training_fails_when_the_deadline_of_its_jobs_has_passed(training: Training, kube: Kube):
    # given a job that runs, for twelve seconds at most
    def with_deadline(job: Raw) -> None:
        job["spec"]["replicatedJobs"][0]["template"]["spec"]["activeDeadlineSeconds"] = 12

    await training.start(with_deadline)
    status = await training.status()
    began, created = (
        parse_time(status["attemptStartTime"]),
        (await kube.call("GET", f"trainingjobs/{NAME}"))["metadata"],
    )
    assert 0 <= began - parse_time(created["creationTimestamp"]) < 5

    # then it fails after that, as its Job would have, and its pods are asked to end
    status = await training.until_phase("Failed")
    assert 12 <= parse_time(status["completionTime"]) - began < 15
    message = "Job llm-workers-0 failed: DeadlineExceeded: Job was active longer than specified deadline"
    assert await training.condition("Failed") == ("True", message)

    async def no_pods() -> bool:
        return await training.pods() == []

    await kube.until("no pods", no_pods)
