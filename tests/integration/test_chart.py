"""The Helm chart, rendered by the real helm: what an installation applies."""

import subprocess
from typing import Any

import pytest
import yaml

from tests.cluster.paths import CHECKOUT, Paths
from understudy_operator.fault_settings import FaultSettings, read_fault_settings
from understudy_operator.plan.faults.built_in import BUILT_IN

CHART = CHECKOUT / "charts" / "understudy"

Documents = dict[str, dict[str, Any]]


def rendered(*settings: str, webhook: bool = False) -> Documents:
    """The objects of the operator, or of the webhook, by kind."""
    told = template(*settings)
    assert told.returncode == 0, told.stderr
    documents = [document for document in yaml.load_all(told.stdout, yaml.CSafeLoader) if document]  # a CRD is long
    crds = "injectedjobs" if webhook else "trainingjobs"
    ours = "understudy-webhook" if webhook else "understudy-operator"
    names = (ours, f"{crds}.understudy.dev")
    return {document["kind"]: document for document in documents if document["metadata"]["name"] in names}


def template(*settings: str) -> "subprocess.CompletedProcess[str]":
    helm = Paths.from_environment().binaries / "helm"
    if not helm.exists():
        pytest.skip(f"{helm} is not built: python -m tests.cluster binaries")
    words = [word for setting in settings for word in ("--set", setting)]
    command = [str(helm), "template", "understudy", str(CHART), "-n", "system", *words]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def test_the_crd_comes_with_the_chart_and_stays_when_it_is_uninstalled():
    crd = rendered()["CustomResourceDefinition"]
    source = yaml.safe_load((CHECKOUT / "crds" / "trainingjobs.yaml").read_text())
    assert crd["spec"] == source["spec"]
    assert crd["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_the_crd_can_be_left_out_or_be_removed_with_the_chart():
    assert "CustomResourceDefinition" not in rendered("crds.install=false")
    annotations = rendered("crds.keep=false")["CustomResourceDefinition"]["metadata"]["annotations"]
    assert "helm.sh/resource-policy" not in annotations


def test_images_are_the_values_and_the_operator_runs_without_rights_on_its_machine():
    deployment = rendered("operator.image=a/operator:1", "sidecar.image=a/sidecar:1")["Deployment"]
    pod = deployment["spec"]["template"]["spec"]
    container = pod["containers"][0]
    assert container["image"] == "a/operator:1"
    assert {"name": "UNDERSTUDY_SIDECAR_IMAGE", "value": "a/sidecar:1"} in container["env"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True


def test_two_replicas_share_a_lease_that_their_role_is_for_in_their_own_namespace_alone():
    documents = rendered()
    deployment = documents["Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    lease = next(entry["value"] for entry in container["env"] if entry["name"] == "UNDERSTUDY_LEASE")
    assert (deployment["spec"]["replicas"], lease) == (2, "system/understudy-operator")
    role = documents["Role"]
    assert role["metadata"]["namespace"] == "system"
    assert role["rules"] == [
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]},
        {
            "apiGroups": ["coordination.k8s.io"],
            "resources": ["leases"],
            "resourceNames": ["understudy-operator"],
            "verbs": ["get", "update"],
        },
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"]},
        {
            "apiGroups": [""],
            "resources": ["configmaps"],
            "resourceNames": ["understudy-operator-node-faults"],
            "verbs": ["get", "update"],
        },
    ]
    assert not any("leases" in rule["resources"] for rule in documents["ClusterRole"]["rules"])


def test_fault_sources_of_the_values_and_the_memory_of_nodes_reach_the_operator():
    def environment(*settings: str) -> dict[str, str]:
        (container,) = rendered(*settings)["Deployment"]["spec"]["template"]["spec"]["containers"]
        return {entry["name"]: entry["value"] for entry in container["env"]}

    ordinary = read_fault_settings(environment())
    assert ordinary == FaultSettings(BUILT_IN, ("system", "understudy-operator-node-faults"))
    row = ("name=rack", "signal=Label", "keys={example.com/rack}", "values={hot}", "class=Maintenance")
    told = read_fault_settings(environment(*(f"faults.sources[0].{field}" for field in row)))
    assert (told.table[-1].name, told.table[-1].values) == ("rack", ("hot",))


def test_a_drain_leaves_one_replica_and_a_single_one_stands_in_no_drains_way():
    assert rendered()["PodDisruptionBudget"]["spec"]["minAvailable"] == 1
    assert "PodDisruptionBudget" not in rendered("operator.replicas=1")


def test_replicas_prefer_nodes_of_their_own_unless_told_otherwise():
    pod = rendered()["Deployment"]["spec"]["template"]["spec"]
    assert "preferredDuringSchedulingIgnoredDuringExecution" in pod["affinity"]["podAntiAffinity"]
    own = rendered("operator.affinity.nodeAffinity.x=y")["Deployment"]["spec"]["template"]["spec"]["affinity"]
    assert own == {"nodeAffinity": {"x": "y"}}


# The webhook ---------------------------------------------------------------------------------------------------------

PROVIDED = (
    "webhook.certificates.mode=Provided",
    "webhook.certificates.secretName=own",
    "webhook.certificates.caBundle=QQ==",
)


def called(documents: Documents) -> list[dict[str, Any]]:
    kinds = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
    return [webhook for kind in kinds if kind in documents for webhook in documents[kind]["webhooks"]]


def test_only_labelled_pods_in_labelled_namespaces_wait_for_the_webhook():
    (webhook,) = rendered(webhook=True)["MutatingWebhookConfiguration"]["webhooks"]
    assert webhook["objectSelector"] == {"matchLabels": {"understudy.dev/inject": "true"}}
    assert webhook["namespaceSelector"] == {"matchLabels": {"understudy.dev/inject": "enabled"}}
    assert (webhook["reinvocationPolicy"], webhook["sideEffects"]) == ("IfNeeded", "None")
    assert (webhook["failurePolicy"], webhook["timeoutSeconds"]) == ("Fail", 5)
    (other,) = rendered("webhook.failurePolicy=Ignore", "webhook.timeoutSeconds=2", webhook=True)[
        "MutatingWebhookConfiguration"
    ]["webhooks"]
    assert (other["failurePolicy"], other["timeoutSeconds"]) == ("Ignore", 2)


def test_checks_hold_up_nobody_and_can_be_left_out():
    assert {x["failurePolicy"] for x in rendered(webhook=True)["ValidatingWebhookConfiguration"]["webhooks"]} == {
        "Ignore"
    }
    assert "ValidatingWebhookConfiguration" not in rendered("webhook.validation.enabled=false", webhook=True)


def test_without_the_webhook_nothing_of_it_is_installed_but_the_crd():
    assert list(rendered("webhook.enabled=false", webhook=True)) == ["CustomResourceDefinition"]


def test_self_made_certificates_take_rights_on_their_own_secret_and_configurations_alone():
    documents = rendered(webhook=True)
    assert documents["Deployment"]["spec"]["template"]["spec"]["automountServiceAccountToken"] is True
    secrets = [rule for rule in documents["Role"]["rules"] if rule["verbs"] != ["create"]]
    assert [rule["resourceNames"] for rule in secrets] == [["understudy-webhook-tls"]]
    assert [rule["resourceNames"] for rule in documents["ClusterRole"]["rules"]] == [["understudy-webhook"]]
    assert not any("caBundle" in webhook["clientConfig"] for webhook in called(documents))


@pytest.mark.parametrize("settings", [("webhook.certificates.mode=CertManager",), PROVIDED])
def test_certificates_of_others_are_mounted_and_the_webhook_has_no_rights_and_no_token(settings: tuple[str, ...]):
    documents = rendered(*settings, webhook=True)
    pod = documents["Deployment"]["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert not {"Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"} & documents.keys()
    provided = settings == PROVIDED
    (volume,) = pod["volumes"]
    assert volume["secret"]["secretName"] == ("own" if provided else "understudy-webhook-tls")
    assert [x["clientConfig"].get("caBundle") for x in called(documents)] == [("QQ==" if provided else None)] * 3
    annotation = documents["MutatingWebhookConfiguration"]["metadata"].get("annotations", {})
    told = {} if provided else {"cert-manager.io/inject-ca-from": "system/understudy-webhook"}
    assert annotation == told
    assert ("Certificate" in documents, "Issuer" in documents) == (not provided, not provided)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("webhook.certificates.mode=Own", "set it to SelfMade, CertManager or Provided"),
        ("webhook.certificates.mode=Provided", "webhook.certificates.secretName must name the Secret"),
        ("webhook.failurePolicy=Retry", "set it to Fail or Ignore"),
    ],
)
def test_what_means_nothing_is_refused_with_the_mend(setting: str, message: str):
    told = template(setting)
    assert told.returncode != 0
    assert message in told.stderr


def test_the_webhooks_pods_run_without_rights_on_their_machine_and_a_drain_leaves_one():
    documents = rendered(webhook=True)
    pod = documents["Deployment"]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True
    assert (documents["Deployment"]["spec"]["replicas"], documents["PodDisruptionBudget"]["spec"]["minAvailable"]) == (
        2,
        1,
    )
    assert "PodDisruptionBudget" not in rendered("webhook.replicas=1", webhook=True)
