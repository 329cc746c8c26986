"""An installation as users see it: refusals at apply, explanations, and how the images run."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.cluster import Cluster, CommandFailed
from tests.e2e.installation import DEPLOYMENT
from tests.e2e.installation import NAMESPACE as SYSTEM
from tests.e2e.lanes import NAMESPACE, create_namespace
from tests.e2e.plain import PlainJob

pytestmark = pytest.mark.timeout(200)

SIDECAR_MEGABYTES = 120
RESTRICTED = f"{NAMESPACE}-restricted"
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"

Change = Callable[[dict[str, Any]], None]


def _no_replicas(spec: dict[str, Any]) -> None:
    spec["replicatedJobs"][0]["replicas"] = 0


def _negative_spares(spec: dict[str, Any]) -> None:
    spec["spares"]["replicas"] = -1


def _unknown_field(spec: dict[str, Any]) -> None:
    spec["spares"]["replica"] = 1


def _wrong_container(spec: dict[str, Any]) -> None:
    spec["launcher"]["container"] = "triner"


@pytest.mark.parametrize(
    ("change", "field", "fix"),
    [
        (_no_replicas, "spec.replicatedJobs", "replicas must be at least 1"),
        (_negative_spares, "spec.spares.replicas", "0 or more"),
        (_unknown_field, "spec.spares.replica", "unknown field"),
        (_wrong_container, "launcher.container", "must name a container"),
    ],
)
def test_bad_input_is_refused_at_apply_with_field_and_fix(cluster: Cluster, change: Change, field: str, fix: str):
    manifest = PlainJob(cluster, NAMESPACE, "bad").manifest()
    change(manifest["spec"])
    with pytest.raises(CommandFailed) as refusal:
        cluster.kubectl("apply", "-f", "-", input=json.dumps(manifest))
    assert field in str(refusal.value)
    assert fix in str(refusal.value)


def test_kubectl_explains_the_fields(cluster: Cluster):
    result = cluster.kubectl("explain", "tj.spec.spares")
    assert "take a lost pod's ranks" in " ".join(result.split())
    assert "replicas" in result


def test_images_run_without_root_on_a_read_only_file_system_and_the_sidecar_is_small(cluster: Cluster):
    # given a running job
    job = PlainJob(cluster, NAMESPACE, "look", actives=1, spares=0)
    job.apply()
    job.wait_until_whole()
    pod = job.pods()[0]["metadata"]["name"]
    for namespace, where, container in ((NAMESPACE, pod, "understudy-sidecar"), (SYSTEM, DEPLOYMENT, "operator")):

        def run(*command: str, at: tuple[str, str, str] = (namespace, where, container)) -> str:
            return cluster.kubectl("-n", at[0], "exec", at[1], "-c", at[2], "--", *command, check=False)

        # then neither can write to its own file system, nor is root
        assert run("id", "-u").strip() == "65532"
        assert "Read-only" in run("sh", "-c", "touch /opt/understudy/x 2>&1 || true")
        # and neither compiles modules at its start, which it could never store and which would take most of the start
        started = run("sh", "-c", "/opt/understudy/bin/python -v -c 'import aiohttp, understudy_protocol' 2>&1")
        assert [line for line in started.splitlines() if line.endswith(".py'") and "code object from" in line] == []
        assert "understudy_protocol/__pycache__" in started
    # and the sidecar's image adds little to its base, and has no torch
    size = cluster.kubectl("-n", NAMESPACE, "exec", pod, "-c", "understudy-sidecar", "--", "du", "-sm", "/opt")
    assert int(size.split()[0]) < SIDECAR_MEGABYTES, size
    job.discard()


@pytest.mark.attack(
    "C4", "a sidecar that was taken over and looks for a token, or writes to its root", before="refused, too"
)
def test_pods_train_under_restricted_pod_security_and_the_sidecar_has_no_token(cluster: Cluster) -> None:
    # given a namespace that enforces restricted Pod Security, and a template that is admitted there
    create_namespace(cluster, RESTRICTED, **{"pod-security.kubernetes.io/enforce": "restricted"})
    job = PlainJob(cluster, RESTRICTED, "restricted")
    manifest = job.manifest()
    spec: dict[str, Any] = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    spec["securityContext"] = {
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "runAsGroup": 1000,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    spec["containers"][0]["securityContext"] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    # when the job is applied
    cluster.kubectl("apply", "-f", "-", input=json.dumps(manifest))
    # then it trains, with its spare
    job.wait_until_whole()
    # and only the trainer has the service account's token
    for pod in job.pods():
        mounted = {
            container["name"]: [x["name"] for x in container["volumeMounts"] if x["mountPath"] == ACCOUNT]
            for container in (*pod["spec"]["initContainers"], *pod["spec"]["containers"])
        }
        assert mounted["understudy-sidecar"] == ["understudy-pod"]
        (token,) = mounted["trainer"]
        assert token.startswith("kube-api-access-")
        # and an attacker in the sidecar finds no token, is another user, and can write to no folder of its image
        sidecar = ("-n", RESTRICTED, "exec", pod["metadata"]["name"], "-c", "understudy-sidecar", "--", "sh", "-c")
        tried = f"cat {ACCOUNT}/token; touch /written /opt/written; id -u; echo"
        lines = cluster.kubectl(*sidecar, f"({tried}) 2>/dev/null")
        assert lines.split() == ["65532"]
    job.discard()
