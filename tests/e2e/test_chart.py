"""Changes of the chart under a job that trains: upgrade, rollback and uninstall do not disturb it, and uninstall leaves
the objects that docs/how-to/install.md lists.

The images are this checkout's in both versions of the chart, so only the objects of the charts differ.
"""

import asyncio
import base64
import json
import math
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pytest

from tests.cluster import Cluster
from tests.cluster.audit import uses
from tests.e2e.acts import worker_pids
from tests.e2e.compared import compared, fault_of
from tests.e2e.injected import NAMESPACE as INJECTED
from tests.e2e.injected import label_namespace
from tests.e2e.installation import NAMESPACE as SYSTEM
from tests.e2e.installation import OPERATOR_PODS, PREVIOUS, RELEASE, install, operator_node
from tests.e2e.lanes import NAMESPACE
from tests.e2e.objects import listed
from tests.e2e.plain import PlainJob
from tests.e2e.test_access_rights import NETWORKS, lines
from tests.e2e.training import Raw
from tests.e2e.truth import unix
from tests.e2e.waiting import wait_until
from tests.unit.webhook.golden import pod as golden_pod
from understudy_webhook import openssl
from understudy_webhook.rotation import CertificateSet

pytestmark = [pytest.mark.timeout(400), pytest.mark.alone]

STEPS_S = 2.0  # in which a job steps 20 times
#: The operator lists policies when it begins to lead.
POLICY_S = 60
WEBHOOK_PODS = "app.kubernetes.io/component=webhook"
OWN_CERTIFICATE = "webhook-certificate"
#: Kubelets look at Secrets each minute or so.
SECRET_S = 120


@pytest.fixture(scope="module", autouse=True)
def restored(cluster: Cluster) -> Iterator[None]:
    """Restores the chart for the other tests."""
    yield
    install(cluster, print)
    operator_node(cluster)


@pytest.fixture(scope="module")
def job(cluster: Cluster) -> Iterator[PlainJob]:
    job = PlainJob(cluster, NAMESPACE, "chart")
    job.apply()
    job.wait_until_whole()
    yield job
    job.discard()


@dataclass(frozen=True)
class Seen:
    """The facts by which a job would notice a change."""

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
    return {pod["metadata"]["uid"] for pod in listed(cluster, SYSTEM, "pods", OPERATOR_PODS)}


def steps_go_on(job: PlainJob) -> None:
    """Wait until status has a step from now on: training continues, and an operator leads and receives its reports."""
    later = time.time() + STEPS_S
    job.wait_for("status has a later step", lambda status: unix(status["progress"]["at"]) > later, 120)


def revision(cluster: Cluster) -> Raw:
    history = json.loads(cluster.helm("history", RELEASE, "--namespace", SYSTEM, "--output", "json"))
    newest: Raw = max(history, key=lambda entry: int(entry["revision"]))
    return newest


def test_helms_test_reports_that_the_installation_works(cluster: Cluster) -> None:
    install(cluster, print)
    assert "Succeeded" in cluster.helm("test", RELEASE, "--namespace", SYSTEM, "--timeout", "120s")
    # and none of its objects stays
    left = ("pods,serviceaccounts,roles,rolebindings", f"{RELEASE}-test", "--ignore-not-found", "-o", "name")
    for kind in left[0].split(","):
        assert cluster.kubectl("-n", SYSTEM, "get", kind, *left[1:]) == ""


def is_injected(cluster: Cluster) -> bool:
    """Whether the API server reaches the webhook, and trusts it, for the pod of a Job. No pod is created."""
    pod = golden_pod("job")
    pod["metadata"]["namespace"] = INJECTED
    words = ("create", "--dry-run=server", "-f", "-", "-o", "jsonpath={.spec.initContainers[*].name}")
    return "understudy-sidecar" in cluster.kubectl(*words, input=json.dumps(pod), check=False).split()


def replace_certificate(cluster: Cluster, made: CertificateSet) -> None:
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


def policy_of(cluster: Cluster, job: PlainJob) -> Raw | None:
    words = ("get", "networkpolicy", f"{job.name}-members", "-o", "json", "--ignore-not-found")
    found = cluster.kubectl("-n", NAMESPACE, *words)
    return json.loads(found) if found else None


def test_network_policies_and_a_renewed_certificate_take_effect_while_a_job_trains(
    cluster: Cluster, job: PlainJob
) -> None:
    """Both in one installation. test_network_policies.py tests a deleted policy."""
    # given certificates of two authorities, and an installation with network policies and with the first certificate,
    # which trusts both authorities, as docs/how-to/install.md describes for a change of the authority
    label_namespace(cluster, INJECTED)
    one, other = (asyncio.run(openssl.make_certificate([f"{RELEASE}-webhook.{SYSTEM}.svc"], 86400.0)) for _ in range(2))
    replace_certificate(cluster, one)
    before = seen(job)
    since = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S")

    def install_trusting(*authorities: str) -> None:
        bundle = base64.b64encode("".join(authorities).encode()).decode()
        certificate = (f"webhook.certificates.secretName={OWN_CERTIFICATE}", f"webhook.certificates.caBundle={bundle}")
        policies = ("networkPolicies.enabled=true", "networkPolicies.jobs.enabled=true")
        mode = "webhook.certificates.mode=Provided"
        install(cluster, print, mode, *certificate, *policies, options=["--force-conflicts"])

    install_trusting(one.authority, other.authority)
    assert wait_until("the API server trusts the first certificate", lambda: is_injected(cluster), 30)
    webhooks_before = webhooks(cluster)
    assert len(webhooks_before) == 2
    # then the job has a policy of its own
    found = wait_until("the job has a policy", lambda: policy_of(cluster, job), POLICY_S, seen=job.text)
    assert found is not None
    assert found["metadata"]["ownerReferences"][0]["name"] == job.name
    selector = ",".join(f"{x}={y}" for x, y in found["spec"]["podSelector"]["matchLabels"].items())
    assert {pod["metadata"]["uid"] for pod in listed(cluster, NAMESPACE, "pods", selector)} == before.pods

    # when the certificate is replaced
    replace_certificate(cluster, other)

    def served() -> dict[str, int]:
        """The number of certificates that each replica has served so far."""
        logs = {pod: cluster.kubectl("-n", SYSTEM, "logs", pod) for pod in webhooks_before}
        return {pod: log.count("serves the certificate in") for pod, log in logs.items()}

    # then both replicas serve the new one without a restart
    wait_until("both replicas serve it", lambda: set(served().values()) == {2}, SECRET_S, seen=served)
    assert is_injected(cluster)
    # and its authority alone is enough
    install_trusting(other.authority)
    assert wait_until("the API server trusts the second certificate", lambda: is_injected(cluster), 30)
    assert webhooks(cluster) == webhooks_before
    # and the operator had the rights for all its requests, and the job was not disturbed
    requests = [use for use in uses(lines()) if use.at >= since and use.right.group == NETWORKS]
    assert {use.right.verb for use in requests} >= {"list", "create"}
    assert all(use.allowed for use in requests)
    steps_go_on(job)
    assert seen(job) == before
    cluster.kubectl("-n", SYSTEM, "delete", "secret", OWN_CERTIFICATE, "--wait=false")


def test_uninstall_leaves_the_documented_objects_and_another_installation_uses_them(
    cluster: Cluster, job: PlainJob
) -> None:
    steps_go_on(job)
    before = seen(job)
    # when the chart is uninstalled
    cluster.helm("uninstall", RELEASE, "--namespace", SYSTEM, "--wait", "--timeout", "90s")
    own = ("-l", f"app.kubernetes.io/instance={RELEASE}", "-o", "name")
    assert (
        cluster.kubectl("-n", SYSTEM, "get", "deployments,services,roles,serviceaccounts,poddisruptionbudgets", *own)
        == ""
    )
    kinds = "clusterroles,clusterrolebindings,mutatingwebhookconfigurations,validatingwebhookconfigurations"
    kinds += ",validatingadmissionpolicies,validatingadmissionpolicybindings"
    assert cluster.kubectl("get", kinds, *own) == ""
    # then the CRDs, the job with its Secret, and the objects that the programs have created for themselves remain
    assert seen(job) == before
    kept = (f"secret/{RELEASE}-master", f"secret/{RELEASE}-webhook-tls", f"lease/{RELEASE}-operator")
    cluster.kubectl("-n", SYSTEM, "get", *kept, "-o", "name")
    of_job = ("-l", f"understudy.dev/job-name={job.name}", "-o", "name")
    assert cluster.kubectl("-n", NAMESPACE, "get", "secrets", *of_job) != ""

    # and the job still recovers: a killed worker restarts in place
    by_name = {pod["metadata"]["name"]: pod for pod in job.pods()}
    victim = next(name for name, pod in by_name.items() if pod["metadata"]["labels"]["understudy.dev/role"] == "active")
    (worker,) = worker_pids(job, victim)
    fault = replace(fault_of(by_name[victim], "Process", "InPlace"), reported_within_s=math.inf)
    with compared(job, fault, 120):
        os.kill(worker, signal.SIGKILL)
        wait_until("it has another worker", lambda: worker_pids(job, victim) not in ([], [worker]), 60, seen=job.text)
        assert seen(job) == before  # no operator updates the status
        # when the chart is installed again (not the previous one, whose CRD does not know all fields of a recovery)
        install(cluster, print)
    # then status has the recovery that no operator has reported until now, and no pod was created or restarted
    steps_go_on(job)
    after = seen(job)
    assert (after.pods, after.restarts) == (before.pods, before.restarts)


def test_an_upgrade_from_the_previous_chart_and_a_rollback_do_not_disturb_a_job(
    cluster: Cluster, job: PlainJob
) -> None:
    # given an installation of the previous chart, and a job that trains under its operator. (A setting changes the
    # operator's pods: without it the two charts differ in their versions only.)
    install(cluster, print, "logFormat=json", chart=str(PREVIOUS))
    assert revision(cluster)["chart"] == PREVIOUS.stem
    steps_go_on(job)
    before, operators_before = seen(job), operators(cluster)

    # when the chart is upgraded, which replaces the operators
    install(cluster, print)
    assert revision(cluster)["chart"] != PREVIOUS.stem
    wait_until("the former operators are gone", lambda: not operators_before & operators(cluster), 60)
    # then training continues, in the same pods, containers and round
    steps_go_on(job)
    assert seen(job) == before

    # and so it does after a rollback
    operators_before = operators(cluster)
    cluster.helm("rollback", RELEASE, "--namespace", SYSTEM, "--wait", "--timeout", "90s")
    assert revision(cluster)["chart"] == PREVIOUS.stem
    wait_until("the newer operators are gone", lambda: not operators_before & operators(cluster), 60)
    steps_go_on(job)
    assert seen(job) == before
