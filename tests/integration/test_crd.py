"""Validation and defaults of a TrainingJob by a real API server."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.integration.trainingjob_cases import (
    ACCEPTED,
    ALLOWED_LATER,
    ALLOWED_WHILE_SUSPENDED,
    JOB_SET,
    OPEN_RECOVERY,
    REFUSED,
    REFUSED_LATER,
    REFUSED_LATER_OF_ELASTIC,
    STATUS,
    UNKNOWN_FIELDS,
    Change,
    Manifest,
    another,
    changed,
    job_spec,
    pod_spec,
    pod_template,
    replicated_job,
    trainer,
    without_launcher,
)

if TYPE_CHECKING:
    from tests.integration.conftest import ApiServer

pytestmark = pytest.mark.timeout(240)  # the first test waits for the API server

ROOT = Path(__file__).resolve().parents[2]
CRDS = ROOT / "crds"
TRAINING_JOBS = "/apis/understudy.dev/v1alpha1/namespaces/default/trainingjobs"


@pytest.fixture(scope="module")
def cluster(api_server: "ApiServer") -> "Iterator[ApiServer]":
    """An API server with our CRDs, applied as a user applies them. No operator of other tests sees these jobs."""
    applied = api_server.kubectl("apply", "-f", str(CRDS))
    assert applied.returncode == 0, applied.stderr
    wait_until_found(api_server, "get", "trainingjobs")  # kubectl wait fails on a CRD that has no conditions yet
    yield api_server
    deleted = api_server.kubectl("delete", "trainingjobs", "--all")
    assert deleted.returncode == 0, deleted.stderr


def wait_until_found(api_server: "ApiServer", *command: str) -> None:
    """Wait until the API server serves the kind that a kubectl command needs."""
    deadline = time.monotonic() + 60
    while (found := api_server.kubectl(*command)).returncode != 0:
        assert time.monotonic() < deadline, found.stderr
        time.sleep(0.2)


def read_back(cluster: "ApiServer", name: str) -> Manifest:
    got = cluster.kubectl("get", "trainingjob", name, "-o", "json")
    assert got.returncode == 0, got.stderr
    manifest: Manifest = json.loads(got.stdout)
    return manifest


def test_the_folder_has_only_crds_and_can_be_applied_client_side_and_server_side(cluster: "ApiServer") -> None:
    # given the CRDs, applied client-side
    # when they are applied again, in both ways
    client_side = cluster.kubectl("apply", "-f", str(CRDS))
    server_side = cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CRDS))

    # then both work, and the folder has only CRDs
    assert (client_side.returncode, server_side.returncode) == (0, 0), client_side.stderr + server_side.stderr
    kinds = {line.partition("/")[0] for line in client_side.stdout.splitlines()}
    assert kinds == {"customresourcedefinition.apiextensions.k8s.io"}


@pytest.mark.parametrize("case", ACCEPTED)
def test_the_manifest_is_accepted(cluster: "ApiServer", case: str) -> None:
    # given a valid manifest
    manifest = changed(ACCEPTED[case])

    # when it is created
    refusal = cluster.refusal(TRAINING_JOBS, manifest)

    # then it is accepted
    assert refusal == ""


@pytest.mark.parametrize("case", REFUSED)
def test_the_manifest_is_rejected_with_the_reason(cluster: "ApiServer", case: str) -> None:
    # given a manifest with one error
    change, field, message = REFUSED[case]

    # when it is created
    refusal = cluster.refusal(TRAINING_JOBS, changed(change))

    # then it is rejected, with the field and the fix
    assert f"{field}: " in refusal
    assert message in refusal


@pytest.mark.parametrize("field", UNKNOWN_FIELDS)
def test_an_unknown_field_is_rejected(cluster: "ApiServer", field: str) -> None:
    # given a manifest with a field that the CRD does not know
    manifest = changed(UNKNOWN_FIELDS[field])

    # when it is created
    refusal = cluster.refusal(TRAINING_JOBS, manifest)

    # then it is rejected, with the field's path
    assert f'unknown field "{field}"' in refusal


def test_a_minimal_job_reads_back_with_defaults(cluster: "ApiServer") -> None:
    # given a manifest with only the required fields
    def minimal(job: Manifest) -> None:
        job["spec"].update(launcher={})
        del job["spec"]["spares"], replicated_job(job)["replicas"]
        del job_spec(job)["parallelism"], job_spec(job)["completions"]

    # when it is created and read back
    created = cluster.kubectl("create", "-f", "-", stdin=changed(minimal, name="least"))
    assert created.returncode == 0, created.stderr
    job = read_back(cluster, "least")

    # then the defaults are filled in, in the pod as in our fields, and quantities are unchanged
    defaults = {"mode": "Auto", "forkServer": True, "logPrefix": True, "slowRankPercent": 150}
    assert job["spec"]["launcher"] == defaults
    assert job["spec"]["termination"] == {"onSigterm": "Auto"}
    assert job["spec"]["spares"] == {"replicas": 0}
    assert job["spec"]["recovery"] == {
        "inPlace": {"maxRestartsPerPod": 1, "window": "1h"},
        "backoff": {"maxDelay": "30s", "maxIdenticalFailures": 0},
        "spareTimeout": "30s",
        "coordinatorLossTimeout": "30s",
        "launcherTimeout": "15s",
        "historyLimit": 200,
    }
    assert "elastic" not in job["spec"]
    assert replicated_job(job)["replicas"] == 1
    assert {key: job_spec(job)[key] for key in ("parallelism", "completionMode")} == {
        "parallelism": 1,
        "completionMode": "Indexed",
    }
    assert replicated_job(job)["groupName"] == "default"
    assert pod_spec(job)["restartPolicy"] == "OnFailure"
    assert job["spec"]["network"] == {"enableDNSHostnames": True, "publishNotReadyAddresses": True}
    assert job["spec"]["successPolicy"] == {"operator": "All"}
    assert job["spec"]["startupPolicy"] == {"startupPolicyOrder": "AnyOrder"}
    assert trainer(job)["ports"] == [{"containerPort": 29500, "protocol": "TCP"}]
    assert trainer(job)["resources"] == {"limits": {"nvidia.com/gpu": 8, "memory": "64Gi", "cpu": "1.5"}}


@pytest.mark.parametrize("launcher", [{}, {"launcher": {"nprocPerNode": 2}}])
def test_a_jobset_manifest_needs_other_header_lines(cluster: "ApiServer", launcher: Manifest) -> None:
    # given a JobSet's manifest, with its two header lines changed, as it is or with a launcher
    manifest = yaml.safe_load(JOB_SET)
    manifest |= {"apiVersion": "understudy.dev/v1alpha1", "kind": "TrainingJob"}
    manifest["spec"] |= launcher
    manifest["metadata"]["name"] = f"pytorch-{len(launcher)}"

    # when it is applied
    applied = cluster.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))

    # then it is stored unchanged
    assert applied.returncode == 0, applied.stderr
    job = read_back(cluster, manifest["metadata"]["name"])
    assert pod_spec(job)["volumes"] == pod_spec(manifest)["volumes"]
    assert pod_template(job)["metadata"] == {"labels": {"team": "research"}}


def test_a_pods_field_that_is_newer_than_the_crd_is_kept(cluster: "ApiServer") -> None:
    # given pods with fields that the CRD does not know, at several depths
    def use_tomorrows_fields(job: Manifest) -> None:
        pod_spec(job).update(fieldOfTomorrow={"a": [1]}, securityContext={"fieldOfTomorrow": "b"})
        trainer(job)["fieldOfTomorrow"] = "c"
        trainer(job)["resources"]["fieldOfTomorrow"] = ["d"]

    # when they are created
    created = cluster.kubectl("create", "-f", "-", stdin=changed(use_tomorrows_fields, name="tomorrow"))

    # then each is kept
    assert created.returncode == 0, created.stderr
    job = read_back(cluster, "tomorrow")
    assert pod_spec(job)["fieldOfTomorrow"] == {"a": [1]}
    assert pod_spec(job)["securityContext"] == {"fieldOfTomorrow": "b"}
    assert trainer(job)["fieldOfTomorrow"] == "c"
    assert trainer(job)["resources"]["fieldOfTomorrow"] == ["d"]


@pytest.fixture(scope="module", params=["--server-side=false", "--server-side=true"])
def how(request: pytest.FixtureRequest) -> str:
    """The mode of kubectl apply. A server-side apply removes only fields that were applied server-side."""
    return str(request.param)


@pytest.fixture(scope="module")
def existing(cluster: "ApiServer", how: str) -> str:
    """A TrainingJob that exists; its trainer has a field that the CRD does not know."""
    name = "existing" + how.replace("--server-side=", "-")
    created = cluster.kubectl("apply", how, "-f", "-", stdin=changed(add_tomorrows_field, name=name))
    assert created.returncode == 0, created.stderr
    return name


def add_tomorrows_field(job: Manifest) -> None:
    trainer(job)["fieldOfTomorrow"] = 1


def changed_later(change: Change, name: str) -> str:
    def both(job: Manifest) -> None:
        add_tomorrows_field(job)
        change(job)

    return changed(both, name=name)


@pytest.mark.parametrize("case", REFUSED_LATER)
def test_a_field_that_pods_depend_on_cannot_be_changed_later(
    cluster: "ApiServer", existing: str, how: str, case: str
) -> None:
    # given a TrainingJob, and a change to a field that its pods depend on
    change, field, message = REFUSED_LATER[case]

    # when the change is applied
    manifest = changed_later(change, existing)
    applied = cluster.kubectl("apply", how, "--dry-run=server", "-f", "-", stdin=manifest)

    # then it is rejected, with the field and the fix
    assert applied.returncode != 0
    assert f"{field}: " in applied.stderr
    assert message in applied.stderr


@pytest.fixture(scope="module")
def elastic(cluster: "ApiServer") -> str:
    """An elastic job with at least 6 pods."""
    created = cluster.kubectl("apply", "-f", "-", stdin=changed(may_shrink, name="elastic"))
    assert created.returncode == 0, created.stderr
    return "elastic"


def may_shrink(job: Manifest) -> None:
    job["spec"]["elastic"] = {"minPods": 6}


@pytest.mark.parametrize("case", REFUSED_LATER_OF_ELASTIC)
def test_the_elastic_range_cannot_be_changed_later(cluster: "ApiServer", elastic: str, case: str) -> None:
    # given an elastic TrainingJob, and a change to its range
    change, field, message = REFUSED_LATER_OF_ELASTIC[case]

    def both(job: Manifest) -> None:
        may_shrink(job)
        change(job)

    # when the change is applied
    applied = cluster.kubectl("apply", "--dry-run=server", "-f", "-", stdin=changed(both, name=elastic))

    # then it is rejected, with the field and the fix
    assert applied.returncode != 0
    assert f"{field}: " in applied.stderr
    assert message in applied.stderr


def test_fields_that_pods_depend_on_can_be_changed_while_the_job_is_suspended_and_as_it_is_resumed(
    cluster: "ApiServer",
) -> None:
    # given a TrainingJob that is suspended
    def suspend(job: Manifest) -> None:
        job["spec"]["suspend"] = True

    created = cluster.kubectl("apply", "-f", "-", stdin=changed(suspend, name="suspended"))
    assert created.returncode == 0, created.stderr

    def resume_with_a_node_selector(job: Manifest) -> None:
        job["spec"]["suspend"] = False
        pod_spec(job)["nodeSelector"] = {"pool": "a"}

    # when its pods' template changes in the same step that resumes it, as by Kueue
    enqueued = cluster.kubectl("apply", "-f", "-", stdin=changed(resume_with_a_node_selector, name="suspended"))

    # then the change is accepted, and later changes are rejected
    assert enqueued.returncode == 0, enqueued.stderr
    again = cluster.kubectl("apply", "-f", "-", stdin=changed(lambda _: None, name="suspended"))
    assert again.returncode != 0
    assert "replicatedJobs is immutable while the job runs" in again.stderr


@pytest.mark.parametrize("suspend", [False, True], ids=["running", "suspended"])
def test_the_order_of_replicatedjobs_can_be_changed_only_while_the_job_is_suspended(
    cluster: "ApiServer", suspend: bool
) -> None:
    """It decides the ranks of pods, the indexes of Jobs, and with InOrder their start."""
    # given a TrainingJob with two replicatedJobs
    name = f"order-{suspend}".lower()

    def two(job: Manifest) -> None:
        job["spec"] |= {"suspend": suspend, "replicatedJobs": [replicated_job(job), another(job, "others")]}
        job["spec"]["launcher"]["targetReplicatedJobs"] = ["workers", "others"]

    def reversed_two(job: Manifest) -> None:
        two(job)
        job["spec"]["replicatedJobs"].reverse()

    created = cluster.kubectl("apply", "-f", "-", stdin=changed(two, name=name))
    assert created.returncode == 0, created.stderr

    # when they are applied in the other order
    applied = cluster.kubectl("apply", "--dry-run=server", "-f", "-", stdin=changed(reversed_two, name=name))

    # then the job accepts that only while it is suspended
    assert (applied.returncode == 0) == suspend, applied.stderr
    assert suspend or "replicatedJobs is immutable while the job runs" in applied.stderr


@pytest.fixture(scope="module")
def suspended(cluster: "ApiServer") -> str:
    created = cluster.kubectl("apply", "-f", "-", stdin=changed(_suspend, name="while-suspended"))
    assert created.returncode == 0, created.stderr
    return "while-suspended"


def _suspend(job: Manifest) -> None:
    job["spec"]["suspend"] = True


@pytest.mark.parametrize("resumed", [False, True], ids=["suspended", "resumed"])
@pytest.mark.parametrize("case", ALLOWED_WHILE_SUSPENDED)
def test_a_field_of_the_launcher_can_be_changed_while_the_job_is_suspended_and_as_it_is_resumed(
    cluster: "ApiServer", suspended: str, case: str, resumed: bool
) -> None:
    def change(job: Manifest) -> None:
        job["spec"]["suspend"] = not resumed
        REFUSED_LATER[case][0](job)

    applied = cluster.kubectl("apply", "--dry-run=server", "-f", "-", stdin=changed(change, name=suspended))
    assert applied.returncode == 0, applied.stderr


@pytest.mark.parametrize("change", [without_launcher, lambda job: job["spec"]["launcher"].update(mode="Off")])
def test_the_launcher_cannot_be_removed_in_the_request_that_suspends_the_job(
    cluster: "ApiServer", existing: str, how: str, change: Change
) -> None:
    def both(job: Manifest) -> None:
        _suspend(job)
        job["spec"].pop("spares", None)
        change(job)

    applied = cluster.kubectl("apply", how, "--dry-run=server", "-f", "-", stdin=changed_later(both, existing))
    assert applied.returncode != 0
    assert "launcher cannot be added, removed or switched Off or on in the request that suspends" in applied.stderr


@pytest.mark.parametrize("case", ALLOWED_LATER)
def test_a_field_that_pods_do_not_depend_on_can_be_changed_later(
    cluster: "ApiServer", existing: str, how: str, case: str
) -> None:
    # given a TrainingJob, and a change to a field that its pods do not depend on
    manifest = changed_later(ALLOWED_LATER[case], existing)

    # when the change is applied
    applied = cluster.kubectl("apply", how, "--dry-run=server", "-f", "-", stdin=manifest)

    # then it is accepted
    assert applied.returncode == 0, applied.stderr


def test_status_is_a_subresource_and_shows_in_columns(cluster: "ApiServer") -> None:
    # given a TrainingJob, created with a status that is ignored
    created = cluster.kubectl(
        "create", "-f", "-", stdin=changed(lambda job: job.update(status={"phase": "Failed"}), name="shown")
    )
    assert created.returncode == 0, created.stderr
    assert "status" not in read_back(cluster, "shown")

    # when the operator writes the status
    recoveries = [STATUS["lastRecovery"], OPEN_RECOVERY]
    patch = json.dumps({"status": STATUS | {"recoveries": recoveries}})
    written = cluster.kubectl("patch", "tj", "shown", "--subresource=status", "--type=merge", "-p", patch)
    assert written.returncode == 0, written.stderr

    # then it reads back as written, and the columns show it
    assert read_back(cluster, "shown")["status"] == STATUS | {"recoveries": recoveries}
    narrow = cluster.kubectl("get", "tj", "shown").stdout.splitlines()
    columns = ["NAME", "PHASE", "READY", "SPARES", "RECOVERIES", "LAST", "FAULT", "STEP", "AGE"]
    assert narrow[0].split() == columns
    assert narrow[1].split()[:-1] == ["shown", "Running", "6/8", "1", "4", "Process", "1200"]
    wide = cluster.kubectl("get", "tj", "shown", "-o", "wide").stdout.splitlines()
    of_wide = {
        "FAULTTOLERANT",
        "SUSPENDED",
        "ACTIVE",
        "ROUND",
        "RESTARTS",
        "INPLACE",
        "SWAPS",
        "COORDINATOR",
        "PROMOTED",
    }
    assert of_wide < set(wide[0].split())
    promoted = '[{"groupRank":3,"pod":"shown-workers-spare-0-fghij"}]'
    assert {"1200", "shown-workers-spare-0-abcde", promoted} < set(wide[1].split())


def test_explain_reports_our_fields(cluster: "ApiServer") -> None:
    # given the CRD, whose schema the API server publishes within seconds
    wait_until_found(cluster, "explain", "tj")

    # when a user asks for a field of ours
    spares = cluster.kubectl("explain", "tj.spec.spares").stdout
    fence = " ".join(cluster.kubectl("explain", "tj.spec.recovery.coordinatorLossTimeout").stdout.split())

    # then the answer explains the field
    assert "How long a pod trains without a coordinator." in fence
    assert "Off: pods train without a limit" in fence
    assert "Warm pods that wait to take a lost pod's ranks. May be changed at any time." in spares
    assert "Number of spares to keep. Default: 0." in spares


@pytest.mark.parametrize(
    ("example", "job"), [("ddp", "ddp"), ("ddp-one-node", "ddp"), ("fsdp", "fsdp"), ("jax", "jax"), ("rl", "rl")]
)
def test_an_example_is_accepted_unchanged(cluster: "ApiServer", example: str, job: str) -> None:
    applied = cluster.kubectl("apply", "-k", str(ROOT / "examples" / example), "--dry-run=server")
    assert applied.returncode == 0, applied.stderr
    assert f"trainingjob.understudy.dev/{job} created" in applied.stdout
