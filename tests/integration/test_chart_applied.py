"""The chart on a real API server: the API server accepts each of its objects, and docs/how-to/install.md works.

The server is these tests' own, because they remove the CRDs. No controller runs there: no pods are created, so the
tests wait for none; tests/e2e/test_chart.py tests the chart with real pods.
"""

import base64
import copy
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.cluster.paths import CHECKOUT
from tests.e2e.installation import PREVIOUS
from tests.integration.cert_manager import crds
from tests.integration.conftest import an_api_server, running
from tests.integration.test_crd import wait_until_found
from tests.integration.versions import minor
from tests.unit.operator.given import IMAGE, a_group, a_job
from tests.unit.operator.given_warm import SECRET, a_warm_pool
from tests.unit.webhook.golden import pod as golden_pod
from understudy_operator.plan.facts.spec import RolloutGateway, RolloutsSpec
from understudy_operator.plan.injection.injected_pods import inject
from understudy_operator.plan.manifests.child_jobs import job_manifest
from understudy_operator.plan.manifests.network_policy import network_policy
from understudy_operator.plan.manifests.pods import pod_manifest
from understudy_operator.plan.manifests.pool_pods import pool_spare_manifest
from understudy_operator.runtime.api import FIELD_MANAGER
from understudy_protocol import pod as names
from understudy_webhook import openssl

if TYPE_CHECKING:
    from tests.integration.conftest import ApiServer

pytestmark = pytest.mark.timeout(240)  # the first test waits for the API server

CHART = CHECKOUT / "charts" / "understudy"
PAGE = CHECKOUT / "docs" / "how-to" / "install.md"
SYSTEM = "understudy-system"
RESTRICTED = "restricted"
AGGREGATION_LIMIT_S = 60.0
PROVIDED = "certificates: {mode: Provided, secretName: own, caBundle: QQ==}"
PLACED = (
    "priorityClassName: system-cluster-critical, nodeSelector: {a: b}, tolerations: [{key: a, operator: Exists}], "
    "podLabels: {a: b}, podAnnotations: {a: b}, "
    "topologySpreadConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway}]"
)
VALUES = {
    "as it is": "{}",
    "the least": "{webhook: {enabled: false}, crds: {enabled: false}, operator: {replicas: 1}}",
    "one replica of each": "{operator: {replicas: 1}, webhook: {replicas: 1, validation: {enabled: false}}}",
    "cert-manager": "{webhook: {certificates: {mode: CertManager}}}",
    "an issuer": "{webhook: {certificates: {mode: CertManager, issuerRef: {kind: ClusterIssuer, name: a}}}}",
    "one's own certificate": f"{{webhook: {{{PROVIDED}}}}}",
    "placed": f"{{operator: {{{PLACED}}}, webhook: {{{PLACED}}}, imagePullSecrets: [{{name: a}}]}}",
    "networks": "{networkPolicies: {enabled: true, jobs: {enabled: true}, extraFrom: [{namespaceSelector: {}}]}}",
    "a named namespace": "{watchNamespaces: [default], metrics: {enabled: true}}",
    "a dashboard": "{dashboard: {enabled: true, from: [{podSelector: {}}]}, networkPolicies: {enabled: true}}",
    "a dashboard of a namespace": "{dashboard: {enabled: true}, watchNamespaces: [default]}",
    "no policies": "{admissionPolicies: {enabled: false}}",
    "policies for labelled namespaces": "{admissionPolicies: {namespaceLabels: {example.com/a: b, c: d}}}",
    "one's own master secret": "{masterSecret: {name: own}}",
    "CRDs that go": "{crds: {keep: false}, faults: {sources: [{name: cordon, enabled: false}]}}",
}


@pytest.fixture(scope="module")
def server() -> Iterator["ApiServer"]:
    with an_api_server() as server:
        yield server


@pytest.fixture(scope="module")
def restricted(server: "ApiServer") -> str:
    """A namespace that enforces the restricted pod security standard."""
    metadata = {"name": RESTRICTED, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
    must(server.kubectl("create", "-f", "-", stdin=json.dumps(namespace)))
    return RESTRICTED


def must(done: "subprocess.CompletedProcess[str]") -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rendered(server: "ApiServer", values: str, tmp_path: Path, *options: str, namespace: str = SYSTEM) -> str:
    file = tmp_path / "values.yaml"
    file.write_text(values)
    words = ["template", "understudy", str(CHART), "--namespace", namespace, "--values", str(file), *options]
    return must(subprocess.run([server.binaries / "helm", *words], check=False, capture_output=True, text=True))


@pytest.mark.parametrize("case", VALUES)
def test_the_api_server_accepts_every_object_of_the_chart(server: "ApiServer", tmp_path: Path, case: str) -> None:
    # given the kinds of cert-manager, and the namespace
    for crd in crds():
        must(server.kubectl("apply", "--server-side", "-f", str(crd)))
    must(server.kubectl("wait", "--for=condition=Established", "crd", "--all"))
    server.kubectl("create", "namespace", SYSTEM)
    # when all objects that the chart renders with these values are sent as a dry run
    objects = rendered(server, VALUES[case], tmp_path)
    strict = ("--server-side", "--dry-run=server", "--validate=strict")
    result = server.kubectl("apply", *strict, "-f", "-", stdin=objects)
    # then none is rejected, not even for an unknown field
    assert (result.returncode, result.stderr) == (0, "")
    sent = [item for item in yaml.load_all(objects, yaml.CSafeLoader) if item]
    assert len(result.stdout.splitlines()) == len(sent)


def test_an_unknown_field_is_found(server: "ApiServer") -> None:
    wrong = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "dta": {}}
    strict = ("--server-side", "--dry-run=server", "--validate=strict")
    result = server.kubectl("apply", *strict, "-f", "-", stdin=json.dumps(wrong))
    assert result.returncode != 0
    assert "dta" in result.stderr


def test_a_jobs_network_policy_is_stored_unchanged(server: "ApiServer") -> None:
    # The operator would treat a default of the API server as a change by hand, and restore the policy forever.
    rules = ({"from": [{"namespaceSelector": {}}], "ports": [{"protocol": "TCP", "port": 8478}]},)
    policy = network_policy(a_job(), rules)
    policy["metadata"]["namespace"] = "default"
    strict = ("--server-side", "--dry-run=server", "--validate=strict")
    result = must(server.kubectl("apply", *strict, "-f", "-", "-o", "json", stdin=json.dumps(policy)))
    assert json.loads(result)["spec"] == policy["spec"]


# Pod security --------------------------------------------------------------------------------------------------------


def admitted(server: "ApiServer", namespace: str, spec: dict[str, Any]) -> str:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "a-", "namespace": namespace}, "spec": spec}
    result = server.kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(pod))
    return result.stderr


def test_the_charts_own_pods_are_admitted_under_restricted_pod_security(
    server: "ApiServer", restricted: str, tmp_path: Path
) -> None:
    everything = "{dashboard: {enabled: true}}"
    objects = [item for item in yaml.load_all(rendered(server, everything, tmp_path), yaml.CSafeLoader) if item]
    specs = [item["spec"]["template"]["spec"] for item in objects if item["kind"] == "Deployment"]
    specs += [item["spec"] for item in objects if item["kind"] == "Pod"]
    assert len(specs) >= 2
    for spec in specs:
        del spec["serviceAccountName"]
        spec.pop("priorityClassName", None)
        assert admitted(server, restricted, spec) == ""
        for container in spec["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert container["resources"]["limits"]["memory"]


#: Sets all required fields on its own container, and none on the pod's others.
CAREFUL = {
    "containers": [
        {
            "name": "trainer",
            "image": "trainer:1",
            "command": ["python", "train.py"],
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 1000,
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "seccompProfile": {"type": "RuntimeDefault"},
            },
        }
    ],
}


def assert_owned(spec: dict[str, Any]) -> None:
    """Its sidecar or gateway runs as its own user, with a read-only root filesystem."""
    own = [x for x in spec["initContainers"] if x["name"] in (names.SIDECAR_CONTAINER, names.GATEWAY_CONTAINER)]
    assert len(own) == 1
    security = own[0]["securityContext"]
    assert (security["runAsUser"], security["readOnlyRootFilesystem"]) == (65532, True)


def test_a_restricted_template_stays_restricted_with_our_containers(server: "ApiServer", restricted: str) -> None:
    # given a user's template that is admitted there
    assert admitted(server, restricted, {**copy.deepcopy(CAREFUL), "restartPolicy": "Never"}) == ""
    # then so are an active, a spare, a pool's warm spare, a rollout with its gateway, and an injected pod
    rollout = a_group("rollout", 1, 1, pod_template={"spec": CAREFUL})
    rollouts = RolloutsSpec(("rollout",), gateway=RolloutGateway(engine_port=30000))
    plain = a_job(pod_template={"spec": CAREFUL})
    groups = (*plain.spec.replicated_jobs, rollout)
    job = replace(plain, spec=replace(plain.spec, replicated_jobs=groups, rollouts=rollouts))
    for index in (0, None):
        made = pod_manifest(job, index=index, serial="1", facts="facts", sidecar_image=IMAGE)
        assert admitted(server, restricted, made["spec"]) == ""
        assert_owned(made["spec"])
    warm = pool_spare_manifest(a_warm_pool(template={"spec": CAREFUL}), "1", sidecar_image=IMAGE, secret=SECRET)["spec"]
    assert admitted(server, restricted, warm) == ""
    assert_owned(warm)
    spec = job_manifest(job, rollout, 0, IMAGE)["spec"]["template"]["spec"]
    assert [container["name"] for container in spec["initContainers"]] == [names.GATEWAY_CONTAINER]
    assert admitted(server, restricted, spec) == ""
    assert_owned(spec)
    pod = golden_pod("job")
    pod["spec"] = copy.deepcopy(CAREFUL)
    injected = inject(pod, IMAGE).pod["spec"]
    assert admitted(server, restricted, injected) == ""
    assert_owned(injected)


# docs/how-to/install.md ----------------------------------------------------------------------------------------------

SECTION = re.compile(r"^## (.+?)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
FENCE = re.compile(r"^ *```sh\n(.*?)^ *```", re.MULTILINE | re.DOTALL)


class Reader:
    """A user who follows docs/how-to/install.md literally, except for steps that need controllers and nodes."""

    def __init__(self, server: "ApiServer", folder: Path) -> None:
        self._server, self.folder = server, folder
        for name in ("charts", "crds"):
            (folder / name).symlink_to(CHECKOUT / name)
        (folder / "my-values.yaml").write_text("operator: {image: a/operator:1}\nsidecar: {image: a/sidecar:1}\n")
        self._blocks = {
            heading: [re.sub(r"^ +", "", block, flags=re.MULTILINE) for block in FENCE.findall(text)]
            for heading, text in SECTION.findall(PAGE.read_text())
        }

    def follow(self, heading: str, block: int = 0, namespace: str = SYSTEM) -> str:
        """The output of the commands of the section's block."""
        lines = self._blocks[heading][block].replace(SYSTEM, namespace).splitlines()
        lines = [line for line in lines if "rollout status" not in line and "helm test" not in line]
        output = [self.run(line.replace(" --wait", "")) for line in lines]
        return "".join(output)

    def run(self, line: str) -> str:
        path = f"{self._server.binaries}:{os.environ['PATH']}"
        environment = {"PATH": path, "HOME": str(self.folder), "KUBECONFIG": str(self._server.kubeconfig)}
        done = subprocess.run(
            ["bash", "-ec", line], check=False, capture_output=True, text=True, cwd=self.folder, env=environment
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        if line.startswith("helm install"):  # its --wait does so, and also waits for pods
            wait_until_found(self._server, "explain", "trainingjobs.spec")
        return done.stdout


@pytest.fixture(scope="module")
def reader(server: "ApiServer", tmp_path_factory: pytest.TempPathFactory) -> Reader:
    return Reader(server, tmp_path_factory.mktemp("reader"))


def list_objects(server: "ApiServer", *what: str) -> set[str]:
    result = server.kubectl("get", *what, "-o", "name", "--ignore-not-found")
    assert result.returncode == 0, result.stderr
    return set(result.stdout.split())


JOB = {
    "apiVersion": "understudy.dev/v1alpha1",
    "kind": "TrainingJob",
    "metadata": {"name": "llm", "namespace": "default"},
    "spec": {
        "replicatedJobs": [
            {"name": "w", "template": {"spec": {"template": {"spec": {"containers": [{"name": "a", "image": "a"}]}}}}}
        ]
    },
}


def test_the_previous_chart_can_be_upgraded_and_rolled_back_to(server: "ApiServer", reader: Reader) -> None:
    if minor() < 31:
        pytest.skip("this Kubernetes rejects the CRDs of the previous chart")
    # given an installation of it, with its values
    reader.run(f"helm install understudy {PREVIOUS} --namespace {SYSTEM} --create-namespace --values my-values.yaml")
    # then every object of it can be upgraded to the newest chart's, and back again
    reader.follow("Upgrade")
    reader.follow("Roll back")
    reader.run(f"helm upgrade understudy charts/understudy --namespace {SYSTEM} --reset-then-reuse-values")
    reader.follow("Uninstall", 0)


def test_install_upgrade_and_rollback_as_the_page_states(server: "ApiServer", reader: Reader) -> None:
    reader.follow("Install")
    assert list_objects(server, "-n", SYSTEM, "deployments") == {
        "deployment.apps/understudy-operator",
        "deployment.apps/understudy-rotation",
        "deployment.apps/understudy-webhook",
    }
    must(server.kubectl("apply", "-f", "-", stdin=json.dumps(JOB)))
    reader.follow("Upgrade")
    assert "success" in reader.follow("Roll back")
    assert list_objects(server, "tj", "llm") == {"trainingjob.understudy.dev/llm"}


def master_secret(server: "ApiServer") -> bytes:
    """The master secret that the operator's pods mount."""
    words = ("-n", SYSTEM, "get", "deployment", "understudy-operator", "-o", "json")
    pod = json.loads(must(server.kubectl(*words)))["spec"]["template"]
    (volume,) = pod["spec"]["volumes"]
    name = volume["secret"]["secretName"]
    value = base64.b64decode(must(server.kubectl("-n", SYSTEM, "get", "secret", name, "-o", "jsonpath={.data.secret}")))
    digest = pod["metadata"].get("annotations", {}).get("understudy.dev/master-secret-sha256")
    assert digest == (hashlib.sha256(value).hexdigest() if name == "understudy-master" else None)
    return value


def test_the_master_secret_is_kept_and_can_be_rotated_and_restored_as_the_page_states(
    server: "ApiServer", reader: Reader
) -> None:
    first = master_secret(server)
    # when the chart is upgraded with another setting, then the secret stays
    reader.run(f"helm upgrade understudy charts/understudy --namespace {SYSTEM} --set logFormat=json")
    assert master_secret(server) == first
    # when the page's commands rotate it, then it is another one, and the pods have its digest
    reader.follow("Master secret", 1)
    second = master_secret(server)
    assert second != first
    # when an administrator's own secret replaces it, then the pods mount that one
    reader.follow("Master secret", 0)
    assert master_secret(server) not in (first, second)
    # when the generated one is backed up, lost and restored, then the pods mount the same secret
    reader.follow("Master secret", 2)
    must(server.kubectl("-n", SYSTEM, "delete", "secret", "understudy-master"))
    reader.follow("Master secret", 3)
    assert master_secret(server) == second


def test_kubernetes_own_roles_allow_users_to_view_or_to_edit_jobs(server: "ApiServer", tmp_path: Path) -> None:
    # given the installation, and users with Kubernetes' own roles
    for role, user in (("view", "viewer"), ("edit", "editor")):
        words = ("create", "rolebinding", f"chart-{role}", f"--clusterrole={role}", f"--user={user}")
        must(server.kubectl("-n", "default", *words))

    def may(user: str, verb: str) -> bool:
        words = ("auth", "can-i", verb, "trainingjobs.understudy.dev", "--as", user, "-n", "default")
        return server.kubectl(*words).stdout.strip() == "yes"

    # when Kubernetes' controller has added the chart's rules to its own roles
    command = [
        str(server.binaries / "kube-controller-manager"),
        f"--kubeconfig={server.kubeconfig}",
        "--controllers=clusterrole-aggregation-controller",
        "--leader-elect=false",
        "--secure-port=0",
    ]
    log = tmp_path / "kube-controller-manager.log"
    with running(command, log):
        deadline = time.monotonic() + AGGREGATION_LIMIT_S
        while not (may("viewer", "get") and may("editor", "create")):
            assert time.monotonic() < deadline, log.read_text()[-4000:]
            time.sleep(0.2)
    # then a viewer may read and not write, and an editor may write
    assert not may("viewer", "create")
    assert may("editor", "delete")
    for role in ("view", "edit"):
        must(server.kubectl("-n", "default", "delete", "rolebinding", f"chart-{role}"))


async def test_a_provided_certificate_as_the_page_states(server: "ApiServer", reader: Reader, tmp_path: Path) -> None:
    # given an installation whose webhook has a trusted self-signed certificate
    for kind in ("mutatingwebhookconfiguration", "validatingwebhookconfiguration"):
        found = json.loads(must(server.kubectl("get", kind, "understudy-webhook", "-o", "json")))
        for webhook in found["webhooks"]:
            webhook["clientConfig"]["caBundle"] = base64.b64encode(b"self-signed").decode()
        must(server.kubectl("replace", f"--field-manager={FIELD_MANAGER}", "-f", "-", stdin=json.dumps(found)))
    # when the page is followed
    made = await openssl.make_certificate(["understudy-webhook.understudy-system.svc"], 86400.0)
    for name, text in {"tls.crt": made.certificate, "tls.key": made.key, "ca.crt": made.authority}.items():
        (reader.folder / name).write_text(text)
    reader.follow("Certificates")
    # then the provided certificate is trusted
    result = json.loads(must(server.kubectl("get", "mutatingwebhookconfiguration", "understudy-webhook", "-o", "json")))
    assert base64.b64decode(result["webhooks"][0]["clientConfig"]["caBundle"]).decode() == made.authority


def test_helms_test_passes_with_its_own_rights_and_fails_without_a_leader(server: "ApiServer", tmp_path: Path) -> None:
    # given the test's account and rights, and the objects that kubelets and the operator would write
    hooks = rendered(server, "{}", tmp_path, "--show-only", "templates/tests/installation.yaml")
    items = [item for item in yaml.safe_load_all(hooks) if item]
    (pod,) = [item for item in items if item["kind"] == "Pod"]
    must(server.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(item for item in items if item is not pod)))
    status = json.dumps({"status": {"replicas": 2, "readyReplicas": 2, "availableReplicas": 2}})
    for name in ("understudy-operator", "understudy-webhook"):
        where = ("-n", SYSTEM, "patch", "deployment", name, "--subresource=status", "--type=merge")
        must(server.kubectl(*where, "--patch", status))
    token = must(server.kubectl("-n", SYSTEM, "create", "token", "understudy-test")).strip()
    configuration = json.loads(server.kubeconfig.read_text())
    configuration["users"][0]["user"] = {"token": token}
    (tmp_path / "kubeconfig").write_text(json.dumps(configuration))
    result = {entry["name"]: entry["value"] for entry in pod["spec"]["containers"][0]["env"]}
    environment = result | {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "KUBECONFIG": str(tmp_path / "kubeconfig"),
        "PYTHONPATH": f"{CHECKOUT / 'operator'}:{CHECKOUT / 'sidecar'}",
        "PYTHONWARNINGS": "ignore",
    }
    program = (
        "import sys; from understudy_operator import installation_check as check; "
        "check.LIMIT_S = {}; sys.exit(check.main())"
    )

    def run(limit_s: float) -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", program.format(limit_s)]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    # then it reports only that there is no leader
    lines, _ = run(0.5).communicate()
    assert lines.splitlines() == ["ERROR no replica renews Lease understudy-operator: see the operator's log"]
    # and passes once there is one
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "understudy-operator"}}
    check, second = run(60.0), 0
    while check.poll() is None:
        second += 1
        renewed = {**lease, "spec": {"renewTime": f"2026-11-20T10:00:{second % 60:02}.000000Z"}}
        must(server.kubectl("-n", SYSTEM, "apply", "-f", "-", stdin=json.dumps(renewed)))
    lines, _ = check.communicate()
    assert check.returncode == 0, lines
    assert list_objects(server, "-n", SYSTEM, "trainingjobs") == set()  # the creation was a dry run
    must(server.kubectl("delete", "-f", "-", stdin=yaml.safe_dump_all(items[:-1])))


def test_uninstall_leaves_the_objects_that_the_page_states(server: "ApiServer", reader: Reader) -> None:
    # given the objects that the operator and the webhook create for themselves
    for kind, name in (("lease", "understudy-operator"), ("configmap", "understudy-operator-node-faults")):
        body = {
            "apiVersion": "coordination.k8s.io/v1" if kind == "lease" else "v1",
            "kind": "Lease" if kind == "lease" else "ConfigMap",
            "metadata": {"name": name, "namespace": SYSTEM},
        }
        must(server.kubectl("apply", "-f", "-", stdin=json.dumps(body)))
    # and a master secret
    reader.follow("Upgrade")
    secret = master_secret(server)
    # when the chart is uninstalled
    reader.follow("Uninstall", 0)
    # then the CRDs and the job exist, and nothing else of the chart
    assert list_objects(server, "tj", "llm") == {"trainingjob.understudy.dev/llm"}
    own = ("-l", "app.kubernetes.io/name=understudy")
    kinds = "deployments,serviceaccounts,roles,rolebindings,services,poddisruptionbudgets,networkpolicies"
    assert list_objects(server, "-A", kinds, *own) == set()
    cluster = "clusterroles,clusterrolebindings,mutatingwebhookconfigurations,validatingwebhookconfigurations"
    cluster += ",validatingadmissionpolicies,validatingadmissionpolicybindings"
    assert list_objects(server, cluster, *own) == set()
    # and a chart that is installed again adopts them, with the keys of the job
    reader.follow("Install")
    assert master_secret(server) == secret
    assert list_objects(server, "tj", "llm") == {"trainingjob.understudy.dev/llm"}


def test_everything_can_be_removed_as_the_page_states(server: "ApiServer", reader: Reader) -> None:
    reader.follow("Uninstall", 1)
    assert {name for name in list_objects(server, "crd") if "understudy" in name} == set()
    assert list_objects(server, "-n", SYSTEM, "secret", "understudy-master") == set()
    assert (
        list_objects(server, "-n", SYSTEM, "leases,configmaps", "--field-selector=metadata.name!=kube-root-ca.crt")
        == set()
    )


def test_without_helm_in_the_cluster_as_the_page_states(server: "ApiServer", reader: Reader) -> None:
    reader.follow("Without Helm", 0, "understudy-plain")
    assert len([name for name in list_objects(server, "crd") if "understudy" in name]) == 4
    reader.follow("Without Helm", 1, "understudy-plain")
    assert len(list_objects(server, "-n", "understudy-plain", "deployments")) == 3
