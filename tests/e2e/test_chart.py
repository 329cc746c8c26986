"""The chart's life under a job that trains: upgrade, rollback and uninstall are not noticed, and what stays is what
docs/install.md says.

The images are this checkout's in both versions of the chart: what differs is what the charts make of them.
"""

import asyncio
import base64
import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.cluster import Cluster
from tests.cluster.audit import uses
from tests.e2e.acts import worker_pids
from tests.e2e.conftest import NAMESPACE
from tests.e2e.injected import NAMESPACE as INJECTED
from tests.e2e.injected import label_namespace
from tests.e2e.installation import NAMESPACE as SYSTEM
from tests.e2e.installation import OPERATOR_PODS, PREVIOUS, RELEASE, install, operator_node
from tests.e2e.plain import PlainJob
from tests.e2e.test_zz_rbac import NETWORKS, lines
from tests.e2e.training import Raw
from tests.e2e.waiting import wait_until
from tests.unit.webhook.golden import pod as golden_pod
from understudy_webhook import openssl
from understudy_webhook.rotation import Made

pytestmark = pytest.mark.timeout(400)

RESTRICTED = "understudy-restricted"
STEPS = 20  # that have to be told after something, for the training to have gone on
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
#: Policies are listed each minute.
POLICY_S = 100
WEBHOOK_PODS = "app.kubernetes.io/component=webhook"
OWN_CERTIFICATE = "webhook-certificate"
#: Kubelets look at Secrets each minute or so.
SECRET_S = 120


@pytest.fixture(scope="module", autouse=True)
def restored(cluster: Cluster) -> Iterator[None]:
    """The chart is again as the other tests have it."""
    yield
    install(cluster, print)
    operator_node(cluster)


@pytest.fixture(scope="module")
def job(cluster: Cluster) -> Iterator[PlainJob]:
    job = PlainJob(cluster, NAMESPACE, "chart")
    job.delete()
    job.apply()
    job.wait_until_whole()
    yield job
    job.delete()


@dataclass(frozen=True)
class Seen:
    """What a job would notice by."""

    pods: frozenset[str]  # uids
    restarts: int  # of all containers, as kubelets count them
    round: int
    coordinator: str
    recoveries: int


def seen(job: PlainJob) -> Seen:
    status, pods = job.status(), job.pods()
    fields = ("initContainerStatuses", "containerStatuses")
    containers = [container for pod in pods for field in fields for container in pod["status"].get(field, ())]
    return Seen(
        frozenset(pod["metadata"]["uid"] for pod in pods),
        sum(container["restartCount"] for container in containers),
        status["round"],
        status["coordinator"]["podUID"],
        len(status.get("recoveries", ())),
    )


def operators(cluster: Cluster) -> set[str]:
    told = cluster.kubectl("-n", SYSTEM, "get", "pods", "-l", OPERATOR_PODS, "-o", "jsonpath={.items[*].metadata.uid}")
    return set(told.split())


def steps_go_on(job: PlainJob) -> None:
    """As the operator tells: one leads, and is on the coordinator's line. After a recovery the job steps from 1 on."""
    told = job.status()["progress"]["step"]
    other = job.wait_for("a step is told", lambda status: status["progress"]["step"] != told, 120)["progress"]["step"]
    job.wait_for(f"training is {STEPS} steps on", lambda status: status["progress"]["step"] > other + STEPS)


def revision(cluster: Cluster) -> Raw:
    history = json.loads(cluster.helm("history", RELEASE, "--namespace", SYSTEM, "--output", "json"))
    newest: Raw = max(history, key=lambda entry: int(entry["revision"]))
    return newest


def test_an_upgrade_from_the_previous_chart_and_a_rollback_are_not_noticed(cluster: Cluster, job: PlainJob) -> None:
    # given an installation of the previous chart, and a job that trains under its operator
    install(cluster, print, chart=str(PREVIOUS))
    assert revision(cluster)["chart"] == PREVIOUS.stem
    steps_go_on(job)
    before, operators_before = seen(job), operators(cluster)

    # when the chart is upgraded: its operators are others
    install(cluster, print)
    assert revision(cluster)["chart"] != PREVIOUS.stem
    wait_until("the former operators are gone", lambda: not operators_before & operators(cluster), 60)
    # then training goes on, in the same pods, containers and round
    steps_go_on(job)
    assert seen(job) == before

    # and so it does when that is rolled back
    operators_before = operators(cluster)
    cluster.helm("rollback", RELEASE, "--namespace", SYSTEM, "--wait", "--timeout", "90s")
    assert revision(cluster)["chart"] == PREVIOUS.stem
    wait_until("the newer operators are gone", lambda: not operators_before & operators(cluster), 60)
    steps_go_on(job)
    assert seen(job) == before


def test_helms_test_says_that_the_installation_works(cluster: Cluster) -> None:
    install(cluster, print)
    assert "Succeeded" in cluster.helm("test", RELEASE, "--namespace", SYSTEM, "--timeout", "120s")
    # and nothing of it stays
    left = ("pods,serviceaccounts,roles,rolebindings", f"{RELEASE}-test", "--ignore-not-found", "-o", "name")
    for kind in left[0].split(","):
        assert cluster.kubectl("-n", SYSTEM, "get", kind, *left[1:]) == ""


def test_uninstall_leaves_what_the_docs_say_and_another_installation_takes_it_over(
    cluster: Cluster, job: PlainJob
) -> None:
    steps_go_on(job)
    before = seen(job)
    # when the chart is uninstalled
    cluster.helm("uninstall", RELEASE, "--namespace", SYSTEM, "--wait", "--timeout", "90s")
    ours = ("-l", f"app.kubernetes.io/instance={RELEASE}", "-o", "name")
    assert (
        cluster.kubectl("-n", SYSTEM, "get", "deployments,services,roles,serviceaccounts,poddisruptionbudgets", *ours)
        == ""
    )
    kinds = "clusterroles,clusterrolebindings,mutatingwebhookconfigurations,validatingwebhookconfigurations"
    assert cluster.kubectl("get", kinds, *ours) == ""
    # then the kinds, the job with its Secret, and what the programs have made for themselves are there
    assert seen(job) == before
    cluster.kubectl("-n", NAMESPACE, "get", "secret", f"{job.name}-membership", "-o", "name")
    cluster.kubectl("-n", SYSTEM, "get", f"secret/{RELEASE}-webhook-tls", f"lease/{RELEASE}-operator", "-o", "name")

    # and the job still recovers: a worker that is killed starts anew in place
    by_name = {pod["metadata"]["name"]: pod for pod in job.pods()}
    victim = next(name for name, pod in by_name.items() if pod["metadata"]["labels"]["understudy.dev/role"] == "active")
    (worker,) = worker_pids(job, victim)
    os.kill(worker, signal.SIGKILL)
    wait_until("it has another worker", lambda: worker_pids(job, victim) not in ([], [worker]), 60, seen=job.text)
    assert seen(job) == before  # nobody tells status of it

    # when it is installed again
    install(cluster, print)
    # then status tells of the round since, and no pod was made or restarted
    status = job.wait_for("status tells of the recovery", lambda status: status["round"] > before.round, 120)
    assert status["recoveries"][-1]["strategy"] == "InPlace"
    steps_go_on(job)
    after = seen(job)
    assert (after.pods, after.restarts) == (before.pods, before.restarts)


def test_pods_train_where_pod_security_is_restricted_and_the_sidecar_has_no_token(cluster: Cluster) -> None:
    # given a namespace that enforces it, and a template that is admitted there
    label = "pod-security.kubernetes.io/enforce=restricted"
    cluster.kubectl("create", "namespace", RESTRICTED, check=False)
    cluster.kubectl("label", "namespace", RESTRICTED, label, "--overwrite")
    job = PlainJob(cluster, RESTRICTED, "restricted")
    job.delete()
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
    # and the service account's token is the trainer's alone
    for pod in job.pods():
        mounted = {
            container["name"]: [x["name"] for x in container["volumeMounts"] if x["mountPath"] == ACCOUNT]
            for container in (*pod["spec"]["initContainers"], *pod["spec"]["containers"])
        }
        assert mounted["understudy-sidecar"] == ["understudy-told"]
        (token,) = mounted["trainer"]
        assert token.startswith("kube-api-access-")
    job.delete()


def test_a_job_gets_its_network_policy_and_gets_it_back(cluster: Cluster, job: PlainJob) -> None:
    # given an installation that is to make them
    before = seen(job)
    since = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S")
    install(cluster, print, "networkPolicies.enabled=true", "networkPolicies.jobs=true")

    def policy() -> Raw | None:
        found = cluster.kubectl(
            "-n", NAMESPACE, "get", "networkpolicy", f"{job.name}-members", "-o", "json", "--ignore-not-found"
        )
        return json.loads(found) if found else None

    def uid() -> str:
        found = policy()
        return found["metadata"]["uid"] if found is not None else ""

    # then a job that trains has one, of its own
    first = wait_until("the job has a policy", uid, POLICY_S, seen=job.text)
    found = policy()
    assert found is not None
    assert found["metadata"]["ownerReferences"][0]["name"] == job.name
    selected = ",".join(f"{x}={y}" for x, y in found["spec"]["podSelector"]["matchLabels"].items())
    told = cluster.kubectl("-n", NAMESPACE, "get", "pods", "-l", selected, "-o", "jsonpath={.items[*].metadata.uid}")
    assert set(told.split()) == before.pods
    # and has it again after somebody has deleted it
    cluster.kubectl("-n", NAMESPACE, "delete", "networkpolicy", f"{job.name}-members")
    assert wait_until("it has one again", uid, POLICY_S, seen=job.text) != first
    # the operator could do all that it asked for, and the job has noticed nothing
    asked = [use for use in uses(lines()) if use.at >= since and use.right.group == NETWORKS]
    assert {use.right.verb for use in asked} >= {"list", "create"}
    assert all(use.allowed for use in asked)
    steps_go_on(job)
    assert seen(job) == before


def is_injected(cluster: Cluster) -> bool:
    """Whether the API server reaches the webhook, and believes it, for the pod of a Job. None is made."""
    pod = golden_pod("job")
    pod["metadata"]["namespace"] = INJECTED
    words = ("create", "--dry-run=server", "-f", "-", "-o", "jsonpath={.spec.initContainers[*].name}")
    return "understudy-sidecar" in cluster.kubectl(*words, input=json.dumps(pod), check=False).split()


def replace_certificate(cluster: Cluster, made: Made) -> None:
    data = {"tls.crt": made.certificate, "tls.key": made.key}
    metadata = {"name": OWN_CERTIFICATE, "namespace": SYSTEM}
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/tls",
        "metadata": metadata,
        "stringData": data,
    }
    cluster.kubectl("apply", "-f", "-", input=json.dumps(secret))


def webhooks(cluster: Cluster) -> dict[str, int]:
    """Restarts of its replicas, by their pods' names."""
    pods = json.loads(cluster.kubectl("-n", SYSTEM, "get", "pods", "-l", WEBHOOK_PODS, "-o", "json"))["items"]
    return {
        pod["metadata"]["name"]: sum(x["restartCount"] for x in pod["status"]["containerStatuses"])
        for pod in pods
        if "deletionTimestamp" not in pod["metadata"]
    }


def test_a_renewed_certificate_of_ones_own_is_served_by_both_replicas_without_a_restart(cluster: Cluster) -> None:
    # given certificates of two authorities, and an installation with the first one that trusts both, as docs/install.md
    # says of a change of the authority
    label_namespace(cluster, INJECTED)
    one, other = (asyncio.run(openssl.make([f"{RELEASE}-webhook.{SYSTEM}.svc"], 86400.0)) for _ in range(2))
    replace_certificate(cluster, one)

    def trust(*authorities: str) -> None:
        bundle = base64.b64encode("".join(authorities).encode()).decode()
        mode = "webhook.certificates.mode=Provided"
        told = (f"webhook.certificates.secretName={OWN_CERTIFICATE}", f"webhook.certificates.caBundle={bundle}")
        install(cluster, print, mode, *told, options=["--force-conflicts"])

    trust(one.authority, other.authority)
    assert wait_until("the API server believes the first one", lambda: is_injected(cluster), 30)
    before = webhooks(cluster)
    assert len(before) == 2
    # when the Secret is changed
    replace_certificate(cluster, other)

    def served() -> dict[str, int]:
        """How many certificates each has served so far."""
        logs = {pod: cluster.kubectl("-n", SYSTEM, "logs", pod) for pod in before}
        return {pod: log.count("serves the certificate in") for pod, log in logs.items()}

    # then both replicas serve the new one, as soon as their kubelets have brought it
    wait_until("both serve it", lambda: set(served().values()) == {2}, SECRET_S, seen=served)
    assert is_injected(cluster)
    # and it is enough to trust its authority alone
    trust(other.authority)
    assert wait_until("the API server believes the second one", lambda: is_injected(cluster), 30)
    assert webhooks(cluster) == before
    cluster.kubectl("-n", SYSTEM, "delete", "secret", OWN_CERTIFICATE, "--wait=false")


@pytest.mark.parametrize(
    ("role", "verb", "allowed"), [("view", "get", True), ("view", "create", False), ("edit", "create", True)]
)
def test_kubernetes_own_roles_say_who_may_do_what_with_jobs(
    cluster: Cluster, role: str, verb: str, allowed: bool
) -> None:
    binding = f"chart-{role}"
    cluster.kubectl("-n", NAMESPACE, "delete", "rolebinding", binding, "--ignore-not-found")
    cluster.kubectl("-n", NAMESPACE, "create", "rolebinding", binding, f"--clusterrole={role}", f"--user={binding}")

    def asked() -> bool:
        who = ("--as", binding, "-n", NAMESPACE)
        return cluster.kubectl("auth", "can-i", verb, "trainingjobs.understudy.dev", *who, check=False).strip() == "yes"

    try:
        # Kubernetes adds our role to its own within a moment, and what is not allowed was never
        assert asked() is allowed or (allowed and wait_until("the role is added", asked, 30))
    finally:
        cluster.kubectl("-n", NAMESPACE, "delete", "rolebinding", binding)
