"""The Helm chart, rendered by the real helm: the objects of an installation."""

import base64
import hashlib
import json
import re
import subprocess
import sys
from functools import cache
from typing import Any

import pytest
import yaml

from tests.cluster.audit import granted
from tests.cluster.paths import CHECKOUT, Paths
from understudy_operator.plan.facts.host_ports import HostPorts, read_host_ports
from understudy_operator.plan.facts.sidecar_settings import read_sidecar_settings
from understudy_operator.plan.leadership.shard import Shard
from understudy_operator.plan.manifests.network_policy import Rules
from understudy_operator.plan.verdicts.built_in import BUILT_IN
from understudy_operator.settings import (
    FaultSettings,
    read_fault_settings,
    read_lease_settings,
    read_namespaces,
    read_network_rules,
)
from understudy_protocol import pod as names

COORDINATOR_PORT = 8478

CHART = CHECKOUT / "charts" / "understudy"

Documents = dict[str, dict[str, Any]]


@cache
def rendered(*settings: str, webhook: bool = False) -> Documents:
    """The objects of the operator, or of the webhook, by kind; no test changes them."""
    documents = items(*settings)
    crds = "injectedjobs" if webhook else "trainingjobs"
    own = "understudy-webhook" if webhook else "understudy-operator"
    known = (own, f"{crds}.understudy.dev")
    return {document["kind"]: document for document in documents if document["metadata"]["name"] in known}


@cache
def named(name: str, *settings: str) -> Documents:
    """The objects of that name, by kind; no test changes them."""
    return {document["kind"]: document for document in items(*settings) if document["metadata"]["name"] == name}


@cache
def items(*settings: str) -> list[dict[str, Any]]:
    result = template(*settings)
    assert result.returncode == 0, result.stderr
    return [document for document in yaml.load_all(result.stdout, yaml.CSafeLoader) if document]  # a CRD is long


@cache  # helm takes a quarter of a second each time
def template(*settings: str) -> "subprocess.CompletedProcess[str]":
    helm = Paths.from_environment().binaries / "helm"
    if not helm.exists():
        pytest.fail(f"{helm} is not built: run python -m tests.cluster binaries")
    words = [word for setting in settings for word in (_flag(setting), setting)]
    command = [str(helm), "template", "understudy", str(CHART), "-n", "system", *words]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def _flag(setting: str) -> str:
    return "--set-json" if setting.partition("=")[2].startswith(("[", '{"', '"')) else "--set"


def test_the_crd_is_installed_with_the_chart_and_stays_when_it_is_uninstalled():
    crd = rendered()["CustomResourceDefinition"]
    source = yaml.safe_load((CHECKOUT / "crds" / "trainingjobs.yaml").read_text())
    assert crd["spec"] == source["spec"]
    assert crd["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_the_crd_can_be_omitted_or_removed_with_the_chart():
    assert "CustomResourceDefinition" not in rendered("crds.enabled=false")
    annotations = rendered("crds.keep=false")["CustomResourceDefinition"]["metadata"]["annotations"]
    assert "helm.sh/resource-policy" not in annotations


def test_images_are_those_of_the_values_and_the_operator_runs_unprivileged():
    deployment = rendered("operator.image=a/operator:1", "sidecar.image=a/sidecar:1")["Deployment"]
    pod = deployment["spec"]["template"]["spec"]
    container = pod["containers"][0]
    assert container["image"] == "a/operator:1"
    assert {"name": "UNDERSTUDY_SIDECAR_IMAGE", "value": "a/sidecar:1"} in container["env"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True


#: Of each number of shards: while it changes, the replicas of both numbers renew their Leases.
LEASES_OF_SHARDS = [f"understudy-operator-{index}-of-{count}" for count in range(2, 9) for index in range(count)]


def test_two_replicas_share_a_lease_and_have_a_role_for_it_only_in_their_own_namespace():
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
            "resourceNames": ["understudy-operator", *LEASES_OF_SHARDS],
            "verbs": ["get", "update"],
        },
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["list"]},
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"]},
        {
            "apiGroups": [""],
            "resources": ["configmaps"],
            "resourceNames": ["understudy-operator-node-faults"],
            "verbs": ["get", "update"],
        },
    ]
    assert not any("leases" in rule["resources"] for rule in documents["ClusterRole"]["rules"])


def deployments_of_operator(*settings: str) -> list[dict[str, Any]]:
    found = [document for document in items(*settings) if document["kind"] == "Deployment"]
    return [document for document in found if "-operator" in document["metadata"]["name"]]


def environment_of(deployment: dict[str, Any]) -> dict[str, str]:
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return {variable["name"]: variable["value"] for variable in container["env"]}


def test_a_single_shard_has_the_names_of_an_installation_without_shards():
    (deployment,) = deployments_of_operator("operator.shards=1")
    assert deployment["metadata"]["name"] == "understudy-operator"
    assert "UNDERSTUDY_SHARD" not in environment_of(deployment)
    assert deployment["spec"]["selector"]["matchLabels"] == {
        "app.kubernetes.io/name": "understudy",
        "app.kubernetes.io/instance": "understudy",
        "app.kubernetes.io/component": "operator",
    }


def test_each_of_three_shards_has_a_deployment_with_the_name_of_its_lease():
    deployments = deployments_of_operator("operator.shards=3")
    names = [deployment["metadata"]["name"] for deployment in deployments]
    assert names == ["understudy-operator-0-of-3", "understudy-operator-1-of-3", "understudy-operator-2-of-3"]
    settings = [read_lease_settings(environment_of(deployment)) for deployment in deployments]
    assert [x.shard for x in settings] == [Shard(0, 3), Shard(1, 3), Shard(2, 3)]
    assert [x.shard.lease_name(x.lease[1]) for x in settings if x.lease is not None] == names
    assert {deployment["spec"]["replicas"] for deployment in deployments} == {2}


def test_a_list_of_namespaces_reaches_each_shard():
    settings = ("operator.shards=2", "operator.shardNamespaces.team-b=1", "operator.shardNamespaces.team-a=0")
    deployments = deployments_of_operator(*settings)
    read = [read_lease_settings(environment_of(deployment)) for deployment in deployments]
    assert [x.shard for x in read] == [Shard(index, 2, "team-a=0,team-b=1") for index in range(2)]


def test_a_listed_namespace_needs_a_shard_that_exists():
    answer = template("operator.shards=2", "operator.shardNamespaces.team-a=2")
    assert answer.returncode != 0
    assert "operator.shardNamespaces.team-a is 2, and operator.shards is 2: use a number below it" in answer.stderr


def test_a_listed_namespace_is_one_that_the_operator_watches():
    """Otherwise a misspelled name would have no effect."""
    answer = template("watchNamespaces={team-a,team-b}", "operator.shards=2", "operator.shardNamespaces.taem-a=1")
    assert answer.returncode != 0
    assert (
        "operator.shardNamespaces names taem-a, which is not in watchNamespaces: correct or remove it" in answer.stderr
    )
    assert items("watchNamespaces={team-a,team-b}", "operator.shards=2", "operator.shardNamespaces.team-a=1")


def test_the_list_fits_into_a_variable_of_the_container():
    """The kernel starts no process with a variable of more than 128 KiB."""
    names = [f"operator.shardNamespaces.{'n' * 59}{number:04}=1" for number in range(1001)]
    answer = template("operator.shards=2", ",".join(names))
    assert answer.returncode != 0
    assert "maxProperties" in answer.stderr, answer.stderr
    assert template("operator.shards=2", ",".join(names[1:])).returncode == 0


def test_no_shard_selects_the_pods_of_another_one():
    deployments = deployments_of_operator("operator.shards=3")
    budgets = [document for document in items("operator.shards=3") if document["kind"] == "PodDisruptionBudget"]
    budgets = [budget for budget in budgets if "-operator-" in budget["metadata"]["name"]]
    pods = [deployment["spec"]["template"]["metadata"]["labels"] for deployment in deployments]
    for selecting in (deployments, budgets):
        assert len(selecting) == 3
        for index, document in enumerate(selecting):
            wanted = document["spec"]["selector"]["matchLabels"].items()
            assert [number for number, labels in enumerate(pods) if wanted <= labels.items()] == [index]
    # and the replicas of a shard avoid each other's nodes, but not those of other shards
    for deployment, labels in zip(deployments, pods, strict=True):
        affinity = deployment["spec"]["template"]["spec"]["affinity"]["podAntiAffinity"]
        (term,) = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
        assert term["podAffinityTerm"]["labelSelector"]["matchLabels"] == labels


def test_the_metrics_the_network_and_the_rights_are_those_of_all_shards():
    settings = ("operator.shards=3",)
    (metrics,) = (x for x in items(*settings) if x["metadata"]["name"] == "understudy-operator-metrics")
    for deployment in deployments_of_operator(*settings):
        assert metrics["spec"]["selector"].items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
        assert deployment["spec"]["template"]["spec"]["serviceAccountName"] == "understudy-operator"
    # and the Role does not depend on the number of shards: both numbers run while it changes
    assert rendered(*settings)["Role"] == rendered()["Role"]


def test_helm_test_checks_the_lease_of_each_shard():
    (pod,) = (document for document in items("operator.shards=2") if document["kind"] == "Pod")
    (container,) = pod["spec"]["containers"]
    environment = {variable["name"]: variable["value"] for variable in container["env"]}
    names = "understudy-operator-0-of-2,understudy-operator-1-of-2"
    assert environment["UNDERSTUDY_LEASES"] == names
    assert environment["UNDERSTUDY_DEPLOYMENTS"] == f"{names},understudy-webhook"
    granted_names = [right.name for right in granted([named("understudy-test", "operator.shards=2")["Role"]])]
    assert sorted(set(granted_names)) == [*names.split(","), "understudy-webhook"]


@pytest.mark.parametrize(("shards", "result"), [("0", "minimum: got 0, want 1"), ("9", "maximum: got 9, want 8")])
def test_a_number_of_shards_that_cannot_work_is_rejected(shards: str, result: str):
    answer = template(f"operator.shards={shards}")
    assert answer.returncode != 0
    assert "at '/operator/shards'" in answer.stderr
    assert result in answer.stderr


def test_fault_sources_of_the_values_and_the_memory_of_nodes_reach_the_operator():
    def environment(*settings: str) -> dict[str, str]:
        (container,) = rendered(*settings)["Deployment"]["spec"]["template"]["spec"]["containers"]
        return {entry["name"]: entry["value"] for entry in container["env"]}

    ordinary = read_fault_settings(environment())
    assert ordinary == FaultSettings(BUILT_IN, ("system", "understudy-operator-node-faults"))
    row = ("name=rack", "signal=Label", "keys={example.com/rack}", "values={hot}", "class=Maintenance")
    result = read_fault_settings(environment(*(f"faults.sources[0].{field}" for field in row)))
    assert (result.table[-1].name, result.table[-1].values) == ("rack", ("hot",))


def test_a_drain_leaves_one_ready_replica_and_is_not_blocked_by_a_single_or_unready_one():
    for webhook in (False, True):
        spec = rendered(webhook=webhook)["PodDisruptionBudget"]["spec"]
        assert (spec["minAvailable"], spec["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")
    assert "PodDisruptionBudget" not in rendered("operator.replicas=1")


def test_replicas_prefer_different_nodes_by_default():
    pod = rendered()["Deployment"]["spec"]["template"]["spec"]
    assert "preferredDuringSchedulingIgnoredDuringExecution" in pod["affinity"]["podAntiAffinity"]
    term = {"labelSelector": {"matchLabels": {"a": "b"}}, "topologyKey": "rack"}
    given = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    own = rendered(f"operator.affinity={json.dumps(given)}")["Deployment"]["spec"]["template"]["spec"]["affinity"]
    assert own == given


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
    assert webhook["objectSelector"] == {
        "matchExpressions": [{"key": "understudy.dev/inject", "operator": "In", "values": ["enabled", "true"]}]
    }
    assert webhook["namespaceSelector"] == {"matchLabels": {"understudy.dev/inject": "enabled"}}
    assert (webhook["reinvocationPolicy"], webhook["sideEffects"]) == ("IfNeeded", "None")
    assert (webhook["failurePolicy"], webhook["timeoutSeconds"]) == ("Fail", 5)
    (other,) = rendered("webhook.failurePolicy=Ignore", "webhook.timeoutSeconds=2", webhook=True)[
        "MutatingWebhookConfiguration"
    ]["webhooks"]
    assert (other["failurePolicy"], other["timeoutSeconds"]) == ("Ignore", 2)


def test_validation_fails_open_and_can_be_disabled():
    assert {x["failurePolicy"] for x in rendered(webhook=True)["ValidatingWebhookConfiguration"]["webhooks"]} == {
        "Ignore"
    }
    assert "ValidatingWebhookConfiguration" not in rendered("webhook.validation.enabled=false", webhook=True)


def test_without_the_webhook_only_its_crd_is_installed():
    assert list(rendered("webhook.enabled=false", webhook=True)) == ["CustomResourceDefinition"]
    assert named("understudy-rotation", "webhook.enabled=false") == {}


def test_self_made_certificates_need_rights_only_on_their_own_secret_and_configurations():
    # given the process that renews them
    rotation = named("understudy-rotation")
    pod = rotation["Deployment"]["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is True
    # then no port of it can be called
    (container,) = pod["containers"]
    assert "ports" not in container
    assert rotation.keys().isdisjoint({"Service", "PodDisruptionBudget"})
    # and its rights are on the certificate's Secret and on the webhook's configurations
    secrets = [rule for rule in rotation["Role"]["rules"] if rule["verbs"] != ["create"]]
    assert [rule["resourceNames"] for rule in secrets] == [["understudy-webhook-tls"]]
    assert [rule["resourceNames"] for rule in rotation["ClusterRole"]["rules"]] == [["understudy-webhook"]]
    # and the webhook mounts that Secret, and its configurations have no caBundle
    documents = rendered(webhook=True)
    (volume,) = documents["Deployment"]["spec"]["template"]["spec"]["volumes"]
    assert volume["secret"] == {"secretName": "understudy-webhook-tls"}
    assert not any("caBundle" in webhook["clientConfig"] for webhook in called(documents))
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        assert documents[kind]["metadata"]["annotations"] == {"understudy.dev/certificate-mode": "SelfSigned"}


@pytest.mark.parametrize("settings", [(), ("webhook.certificates.mode=CertManager",), PROVIDED])
def test_the_webhook_has_no_rights_and_no_token_because_every_pod_can_call_it(settings: tuple[str, ...]):
    documents = rendered(*settings, webhook=True)
    assert documents["Deployment"]["spec"]["template"]["spec"]["automountServiceAccountToken"] is False
    assert not {"Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"} & documents.keys()


@pytest.mark.parametrize("settings", [("webhook.certificates.mode=CertManager",), PROVIDED])
def test_provided_certificates_are_mounted_and_the_chart_does_not_renew_them(settings: tuple[str, ...]):
    assert named("understudy-rotation", *settings) == {}
    documents = rendered(*settings, webhook=True)
    pod = documents["Deployment"]["spec"]["template"]["spec"]
    provided = settings == PROVIDED
    (volume,) = pod["volumes"]
    assert volume["secret"]["secretName"] == ("own" if provided else "understudy-webhook-cert")
    assert [x["clientConfig"].get("caBundle") for x in called(documents)] == [("QQ==" if provided else None)] * 3
    annotation = documents["MutatingWebhookConfiguration"]["metadata"]["annotations"]
    values = {"understudy.dev/certificate-mode": "Provided" if provided else "CertManager"}
    if not provided:
        values["cert-manager.io/inject-ca-from"] = "system/understudy-webhook"
    assert annotation == values
    assert ("Certificate" in documents) is not provided


def test_the_webhook_gets_the_names_of_its_clients():
    def is_reported(*settings: str) -> dict[str, str]:
        (container,) = rendered(*settings, webhook=True)["Deployment"]["spec"]["template"]["spec"]["containers"]
        return {x["name"]: x["value"] for x in container["env"] if x["name"].startswith("UNDERSTUDY_CLIENT")}

    assert is_reported() == {}
    names = json.dumps(["kube-apiserver", "other"])
    assert is_reported("webhook.clients.caBundle=QQ==", f"webhook.clients.names={names}") == {
        "UNDERSTUDY_CLIENT_CA": "QQ==",
        "UNDERSTUDY_CLIENT_NAMES": "kube-apiserver,other",
    }


def test_operator_and_webhook_draw_ports_from_the_same_range():
    def is_reported(*settings: str) -> set[HostPorts]:
        containers = [
            rendered(*settings, webhook=which)["Deployment"]["spec"]["template"]["spec"]["containers"][0]
            for which in (False, True)
        ]
        return {read_host_ports({x["name"]: x.get("value", "") for x in each["env"]}) for each in containers}

    assert is_reported() == {HostPorts(24000, 24999)}
    assert is_reported("hostNetworkPorts=25000-25099") == {HostPorts(25000, 25099)}


def test_the_users_of_all_containers_can_be_set_or_left_to_the_namespaces():
    def found(*settings: str) -> tuple[list[tuple[int | None, int | None]], set[tuple[int | None, int | None]]]:
        of_pods, of_sidecars = [], set()
        for which in (False, True):
            spec = rendered(*settings, webhook=which)["Deployment"]["spec"]["template"]["spec"]
            security = spec["securityContext"]
            assert security["runAsNonRoot"] is True
            of_pods.append((security.get("runAsUser"), security.get("runAsGroup")))
            env = {x["name"]: x.get("value", "") for x in spec["containers"][0]["env"]}
            read = read_sidecar_settings(env)
            of_sidecars.add((read.user, read.group))
        return of_pods, of_sidecars

    assert found() == ([(65532, 65532)] * 2, {(65532, None)})
    assert found("runAs.user=1001", "runAs.group=1002") == ([(1001, 1002)] * 2, {(65532, None)})
    assert found("sidecar.runAs.user=1001", "sidecar.runAs.group=1002") == ([(65532, 65532)] * 2, {(1001, 1002)})
    nothing = ("runAs.user=null", "runAs.group=null", "sidecar.runAs.user=null")
    assert found(*nothing) == ([(None, None)] * 2, {(None, None)})


DIGEST = f"sha256:{'0123456789abcdef' * 4}"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("runAs.user=0", "at '/runAs/user': minimum: got 0, want 1"),
        ("sidecar.runAs.user=0", "at '/sidecar/runAs/user': minimum: got 0, want 1"),
        ("operator.relicas=2", "at '/operator': additional properties 'relicas' not allowed"),
        ("operater.replicas=2", "additional properties 'operater' not allowed"),
        ("operator.replicas=two", "at '/operator/replicas': got string, want integer"),
        ("operator.image=", "at '/operator/image': minLength"),
        ("operator.imageDigest=sha256:1", "at '/operator/imageDigest'"),
        ("operator.tolerations[0].efect=NoSchedule", "at '/operator/tolerations/0': additional properties 'efect'"),
        ("operator.resources.limit.memory=1Gi", "at '/operator/resources': additional properties 'limit'"),
        ("faults.sources[0].nmae=cordon", "at '/faults/sources/0'"),
        ("webhook.certificates.mode=Own", "at '/webhook/certificates/mode': value must be one of 'SelfSigned'"),
        ("webhook.certificates.mode=Provided", "webhook.certificates.secretName must name the Secret"),
        ("webhook.failurePolicy=Retry", "at '/webhook/failurePolicy': value must be one of 'Fail', 'Ignore'"),
        ("networkPolicies.extraFrom=[{}]", "at '/networkPolicies/extraFrom/0': minProperties"),
        ("crds.install=false", "at '/crds/install': value must be 'now named crds.enabled'"),
        ("networkPolicies.alsoFrom=[{}]", "value must be 'now named networkPolicies.extraFrom'"),
        ("networkPolicies.alsoTo=[{}]", "value must be 'now named networkPolicies.extraTo'"),
        ("networkPolicies.jobs=true", "value must be 'now named networkPolicies.jobs.enabled'"),
        ("networkPolicies.egress=true", "value must be 'now named networkPolicies.egress.enabled'"),
        ("admissionPolicies.authors=false", "value must be 'now named admissionPolicies.authors.enabled'"),
        ("rbac.aggregate=false", "value must be 'now named rbac.aggregate.enabled'"),
        ("faults.sources[0].except[0]=x", "value must be 'now named faults.sources[].exceptValues'"),
        ("webhook.certificates.mode=SelfMade", "value must be one of 'SelfSigned'"),
        ("webhook.timeoutSeconds=60", "at '/webhook/timeoutSeconds'"),
        ("metrics.port=8443", "at '/metrics/port'"),
        ("fullnameOverride=my.release", "at '/fullnameOverride'"),
        (f"fullnameOverride={'a' * 54}", "at '/fullnameOverride'"),
        ("watchNamespaces={Team}", "at '/watchNamespaces/0'"),
        ("watchNamespaces={red,red}", "at '/watchNamespaces': items at 0 and 1 are equal"),
        ("webhook.certificates.duration=90d", "at '/webhook/certificates/duration'"),
        ("masterSecret.name=My_Secret", "at '/masterSecret/name'"),
        ("hostNetworkPorts=24000", "at '/hostNetworkPorts'"),
        ("hostNetworkPorts=24999-24000", "hostNetworkPorts is 24999-24000: expected FIRST-LAST"),
        ("hostNetworkPorts=65000-65536", "hostNetworkPorts is 65000-65536: expected FIRST-LAST"),
        ("hostNetworkPorts=1000-2000", "hostNetworkPorts is 1000-2000: expected FIRST-LAST"),
        ("operator.leaderElection.renewDeadline=15", "leaseDuration must be longer than renewDeadline"),
        ("operator.leaderElection.retryPeriod=3", "renewDeadline at least 4 times retryPeriod"),
        ("fullnameOverride=1st", "at '/fullnameOverride'"),
    ],
)
def test_a_misspelled_or_invalid_value_is_rejected_with_its_path(setting: str, message: str):
    result = template(setting)
    assert result.returncode != 0
    assert message in result.stderr


@pytest.mark.parametrize("name", ["serviceMonitor", "prometheusRule"])
def test_monitors_and_alerts_are_rejected_without_metrics(name: str):
    result = template("metrics.enabled=false", f"metrics.{name}.enabled=true")
    assert result.returncode != 0
    assert f"metrics.{name}.enabled is true, and metrics.enabled is false" in result.stderr


def test_pods_can_be_injected_in_all_namespaces():
    (webhook,) = rendered("webhook.namespaceSelector.matchLabels=null", webhook=True)["MutatingWebhookConfiguration"][
        "webhooks"
    ]
    assert webhook["namespaceSelector"] == {}


# Dashboard ------------------------------------------------------------------------------------------------------------

DASHBOARD = "dashboard.enabled=true"
DASHBOARD_RULES = [
    {
        "apiGroups": ["understudy.dev"],
        "resources": ["trainingjobs", "injectedjobs", "hotsparepools", "recoveries"],
        "verbs": ["list", "watch"],
    },
    {"apiGroups": [""], "resources": ["pods", "events"], "verbs": ["list", "watch"]},
]
NODE_RULE = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"]}


def dashboard_command(*settings: str) -> list[str]:
    (container,) = named("understudy-dashboard", DASHBOARD, *settings)["Deployment"]["spec"]["template"]["spec"][
        "containers"
    ]
    command: list[str] = container["command"]
    return command


def test_the_dashboard_is_installed_only_if_enabled_and_may_only_read():
    assert named("understudy-dashboard") == {}
    documents = named("understudy-dashboard", DASHBOARD)
    expected = {"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Deployment", "Service"}
    assert set(documents) == expected
    assert documents["ClusterRole"]["rules"] == [NODE_RULE, *DASHBOARD_RULES]
    assert documents["ServiceAccount"]["automountServiceAccountToken"] is False


def test_with_watched_namespaces_the_dashboard_reads_only_these_and_nodes():
    objects = [
        x
        for x in items(DASHBOARD, "watchNamespaces={team-a,team-b}")
        if x["metadata"]["name"] == "understudy-dashboard"
    ]
    roles = {x["metadata"]["namespace"]: x["rules"] for x in objects if x["kind"] == "Role"}
    assert roles == {"team-a": DASHBOARD_RULES, "team-b": DASHBOARD_RULES}
    (cluster_role,) = [x for x in objects if x["kind"] == "ClusterRole"]
    assert cluster_role["rules"] == [NODE_RULE]
    assert "--namespaces=team-a,team-b" in dashboard_command("watchNamespaces={team-a,team-b}")


def test_only_port_forward_reaches_the_dashboard_unless_configured():
    assert "--listen=127.0.0.1" in dashboard_command()
    opened = dashboard_command("dashboard.listen=Pod", "dashboard.hosts={training.example.com}")
    assert {"--listen=", "--hosts=training.example.com"} <= set(opened)


def test_the_program_of_the_dashboard_accepts_the_arguments_of_the_chart():
    python, *words = dashboard_command("dashboard.hosts={a.example.com,b.example.com}", "watchNamespaces={team-a}")
    assert python == "/opt/understudy/bin/python"
    done = subprocess.run(
        [sys.executable, *words],
        env={"PYTHONPATH": "sidecar", "HOME": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    # no cluster is there
    assert (done.returncode, "there is no kubeconfig" in done.stderr) == (2, True), done.stderr


def test_the_dashboard_runs_unprivileged_with_the_values_for_pods():
    values = {
        "nodeSelector": {"pool": "system"},
        "podLabels": {"team": "ml"},
        "resources": {"limits": {"memory": "1Gi"}},
    }
    made = named(
        "understudy-dashboard", DASHBOARD, *(f"dashboard.{name}={json.dumps(value)}" for name, value in values.items())
    )
    pod = made["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert (pod["securityContext"]["runAsNonRoot"], container["securityContext"]["readOnlyRootFilesystem"]) == (
        True,
        True,
    )
    assert (pod["nodeSelector"], container["resources"]["limits"]) == ({"pool": "system"}, {"memory": "1Gi"})
    selector = made["Deployment"]["spec"]["selector"]["matchLabels"]
    assert made["Service"]["spec"]["selector"] == selector
    assert made["Deployment"]["spec"]["template"]["metadata"]["labels"] == {**selector, "team": "ml"}


# Operator and webhook -------------------------------------------------------------------------------------------------

BOTH = pytest.mark.parametrize("which", ["operator", "webhook"])


def deployment(which: str, *settings: str) -> dict[str, Any]:
    return rendered(*settings, webhook=which == "webhook")["Deployment"]


@BOTH
def test_images_can_be_pinned_by_their_digests(which: str):
    pinned = (f"operator.imageDigest={DIGEST}", f"sidecar.imageDigest={DIGEST}")
    images = ("operator.image=a/operator:1", "sidecar.image=a/sidecar:1")
    (container,) = deployment(which, *images, *pinned)["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"a/operator:1@{DIGEST}"
    assert {"name": "UNDERSTUDY_SIDECAR_IMAGE", "value": f"a/sidecar:1@{DIGEST}"} in container["env"]


@BOTH
def test_the_values_for_pods_reach_the_pods(which: str):
    values = {
        "priorityClassName": "system-cluster-critical",
        "nodeSelector": {"pool": "system"},
        "tolerations": [{"key": "system", "operator": "Exists"}],
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "ScheduleAnyway"}
        ],
        "resources": {"requests": {"cpu": "2"}},
        "podLabels": {"team": "ml", "app.kubernetes.io/component": "mine"},
        "podAnnotations": {"example.com/a": "b"},
    }
    settings = [f"{which}.{name}={json.dumps(value)}" for name, value in values.items()]
    made = deployment(which, *settings, 'imagePullSecrets=[{"name": "registry"}]')
    pod, metadata = made["spec"]["template"]["spec"], made["spec"]["template"]["metadata"]
    for field in ("priorityClassName", "nodeSelector", "tolerations"):
        assert pod[field] == values[field]
    assert pod["containers"][0]["resources"]["requests"] == {"cpu": "2"} | (
        {"memory": "128Mi"} if which == "operator" else {"memory": "96Mi"}
    )
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    # a constraint counts the pods of its own Deployment, and the labels that it matches are not removed from it
    selector = made["spec"]["selector"]
    assert [x["labelSelector"] for x in pod["topologySpreadConstraints"]] == [selector]
    assert metadata["labels"] == {**selector["matchLabels"], "team": "ml"}
    assert metadata["annotations"]["example.com/a"] == "b"


@BOTH
def test_a_spread_constraint_may_count_other_pods(which: str):
    constraint = {"maxSkew": 1, "topologyKey": "x", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}
    made = deployment(which, f"{which}.topologySpreadConstraints={json.dumps([constraint])}")
    assert made["spec"]["template"]["spec"]["topologySpreadConstraints"] == [constraint]


def test_only_pods_that_call_the_api_server_have_a_token():
    for which, has in (("operator", True), ("rotation", True), ("dashboard", True), ("webhook", False)):
        documents = named(f"understudy-{which}", "dashboard.enabled=true")
        assert documents["Deployment"]["spec"]["template"]["spec"]["automountServiceAccountToken"] is has
        assert documents["ServiceAccount"]["automountServiceAccountToken"] is False


def test_the_webhooks_pods_run_unprivileged_and_a_drain_leaves_one():
    documents = rendered(webhook=True)
    pod = documents["Deployment"]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True
    assert (documents["Deployment"]["spec"]["replicas"], documents["PodDisruptionBudget"]["spec"]["minAvailable"]) == (
        2,
        1,
    )
    assert "PodDisruptionBudget" not in rendered("webhook.replicas=1", webhook=True)


# Networks ------------------------------------------------------------------------------------------------------------


def policies(*settings: str) -> dict[str, dict[str, Any]]:
    result = template("networkPolicies.enabled=true", "crds.enabled=false", *settings)
    documents = [document for document in yaml.safe_load_all(result.stdout) if document]
    return {x["metadata"]["name"]: x["spec"] for x in documents if x["kind"] == "NetworkPolicy"}


def test_network_policies_admit_calls_only_to_served_ports():
    assert "NetworkPolicy" not in rendered()
    found = policies()
    assert found["understudy-operator"]["ingress"] == []
    assert found["understudy-webhook"]["ingress"] == [{"ports": [{"protocol": "TCP", "port": 8443}]}]
    for which in ("operator", "webhook"):
        assert found[f"understudy-{which}"]["podSelector"] == deployment(which)["spec"]["selector"]
        assert found[f"understudy-{which}"]["policyTypes"] == ["Ingress"]
    # and if the addresses of the API server are configured, only these are admitted
    block = {"ipBlock": {"cidr": "10.1.0.0/28"}}
    (rule,) = policies(f"networkPolicies.apiServer.from={json.dumps([block])}")["understudy-webhook"]["ingress"]
    assert rule == {"ports": [{"protocol": "TCP", "port": 8443}], "from": [block]}
    # and other configured peers, such as a Prometheus, reach all ports
    peer = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    opened = policies(f"networkPolicies.extraFrom={json.dumps([peer])}")
    assert [opened[f"understudy-{which}"]["ingress"][-1] for which in ("operator", "webhook")] == [{"from": [peer]}] * 2
    # and the process that renews the certificate cannot be reached
    assert opened["understudy-rotation"]["ingress"] == []
    assert list(policies("webhook.enabled=false")) == ["understudy-operator"]
    # and the dashboard only by configured peers
    assert policies("dashboard.enabled=true")["understudy-dashboard"]["ingress"] == []
    proxy = {"podSelector": {"matchLabels": {"app": "proxy"}}}
    opened = policies("dashboard.enabled=true", f"dashboard.from={json.dumps([proxy])}")
    port = {"protocol": "TCP", "port": 8090}
    assert opened["understudy-dashboard"]["ingress"] == [{"ports": [port], "from": [proxy]}]


@pytest.mark.attack("D2", "calls each port of the chart's pods, with networkPolicies.enabled", before="refused, too")
def test_other_pods_reach_one_port_of_the_charts_pods():
    found = {name: spec for name, spec in policies().items() if spec["policyTypes"] == ["Ingress"]}
    received = [
        (name, port)
        for name, spec in found.items()
        for port in (443, 6443, 8080, 8081, 8443, 8478, 9443)
        for rule in spec["ingress"]
        if "from" not in rule and any(x["port"] == port for x in rule.get("ports", [{"port": port}]))
    ]
    # the webhook's port
    assert sorted(found) == ["understudy-operator", "understudy-rotation", "understudy-webhook"]
    assert received == [("understudy-webhook", 8443)]


@pytest.mark.attack(
    "B3",
    "an operator that an attacker has taken over, or misled, calls a host of the attacker's choice",
    before="the chart had no policy for what leaves the operator and the webhook",
)
def test_the_operator_may_call_only_the_api_server_and_sidecars_and_the_webhook_nothing():
    assert not any(name.endswith("-egress") for name in policies())
    found = policies("networkPolicies.egress.enabled=true")
    api_server = {"ports": [{"protocol": "TCP", "port": 443}, {"protocol": "TCP", "port": 6443}]}
    pods = {
        "namespaceSelector": {},
        "podSelector": {"matchExpressions": [{"key": names.LABEL_JOB_UID, "operator": "Exists"}]},
    }
    sidecars = {"ports": [{"protocol": "TCP", "port": COORDINATOR_PORT}], "to": [pods]}
    assert found["understudy-operator-egress"]["egress"] == [api_server, sidecars]
    assert found["understudy-webhook-egress"]["egress"] == []
    assert found["understudy-rotation-egress"]["egress"] == [api_server]
    shown = policies("networkPolicies.egress.enabled=true", "dashboard.enabled=true")
    assert shown["understudy-dashboard-egress"]["egress"] == [api_server]
    for which in ("operator", "webhook"):
        assert found[f"understudy-{which}-egress"]["podSelector"] == deployment(which)["spec"]["selector"]
        assert found[f"understudy-{which}-egress"]["policyTypes"] == ["Egress"]

    # with provided certificates no process renews them
    issued = policies("networkPolicies.egress.enabled=true", "webhook.certificates.mode=CertManager")
    assert issued["understudy-webhook-egress"]["egress"] == []
    assert not any("rotation" in name for name in issued)

    # and the addresses of the API server and of nodes can be configured
    present, nodes = {"ipBlock": {"cidr": "10.0.0.10/32"}}, {"ipBlock": {"cidr": "10.1.0.0/16"}}
    named = policies(
        "networkPolicies.egress.enabled=true",
        f"networkPolicies.apiServer.to={json.dumps([present])}",
        f"networkPolicies.extraTo={json.dumps([nodes])}",
    )
    assert named["understudy-operator-egress"]["egress"] == [
        {**api_server, "to": [present]},
        {**sidecars, "to": [pods, nodes]},
        {"ports": [{"protocol": "TCP", "port": 24000, "endPort": 24999}], "to": [nodes]},
    ]


def test_the_operator_gets_network_rules_and_may_write_policies_only_if_enabled():
    def is_reported(*settings: str) -> tuple[Rules | None, list[str]]:
        documents = rendered(*settings)
        (container,) = documents["Deployment"]["spec"]["template"]["spec"]["containers"]
        env = {entry["name"]: entry["value"] for entry in container["env"]}
        rules = [x for x in documents["ClusterRole"]["rules"] if x["resources"] == ["networkpolicies"]]
        return read_network_rules(env), [verb for rule in rules for verb in rule["verbs"]]

    assert is_reported("networkPolicies.enabled=true") == (None, [])
    rules, verbs = is_reported("networkPolicies.jobs.enabled=true")
    assert verbs == ["list", "create", "update"]
    assert rules is not None
    (operator,) = rules
    assert operator["ports"] == [{"protocol": "TCP", "port": COORDINATOR_PORT}]
    (peer,) = operator["from"]
    assert peer["namespaceSelector"] == {"matchLabels": {"kubernetes.io/metadata.name": "system"}}
    assert peer["podSelector"] == deployment("operator")["spec"]["selector"]
    rules, _ = is_reported(
        "networkPolicies.jobs.enabled=true", 'networkPolicies.extraFrom=[{"ipBlock": {"cidr": "10.0.0.0/8"}}]'
    )
    assert rules is not None
    assert rules[1] == {"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}


# Users ---------------------------------------------------------------------------------------------------------------


def users_roles(*settings: str) -> dict[str, dict[str, Any]]:
    """ClusterRoles that Kubernetes adds to its own, by the names of these."""
    result = template("crds.enabled=false", *settings)
    documents = [document for document in yaml.safe_load_all(result.stdout) if document]
    prefix = "rbac.authorization.k8s.io/aggregate-to-"
    return {
        label.removeprefix(prefix): x
        for x in documents
        if x["kind"] == "ClusterRole"
        for label in x["metadata"]["labels"]
        if label.startswith(prefix)
    }


def test_kubernetes_own_roles_include_our_kinds():
    roles = users_roles()
    assert set(roles) == {"view", "edit", "admin"}
    given = {name: {(right.resource, right.verb) for right in granted([role])} for name, role in roles.items()}
    assert {verb for _, verb in given["view"]} == {"get", "list", "watch"}
    assert {resource for resource, verb in given["edit"] if verb == "create"} == {"trainingjobs", "hotsparepools"}
    assert ("hotsparepools/scale", "patch") in given["edit"]
    # only the operator may write it
    status = {resource for resource, verb in given["edit"] | given["admin"] if resource.endswith("/status")}
    assert status == set()
    assert users_roles("rbac.aggregate.enabled=false") == {}


# Named namespaces ----------------------------------------------------------------------------------------------------

WATCHED = "watchNamespaces={red,blue}"


def test_with_watched_namespaces_the_operator_has_roles_there_and_a_cluster_role_only_for_nodes():
    # given two namespaces
    operator = named("understudy-operator", WATCHED)
    # then nodes are the only cluster-scoped objects that it may read
    nodes = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]}
    assert operator["ClusterRole"]["rules"] == [nodes]
    # and in each of them it has the rights that it otherwise has in all namespaces
    everywhere = [rule for rule in rendered()["ClusterRole"]["rules"] if rule != nodes]
    roles = [x for x in items(WATCHED) if x["metadata"]["name"] == "understudy-operator-jobs"]
    assert {(x["kind"], x["metadata"]["namespace"]) for x in roles} == {
        (kind, namespace) for kind in ("Role", "RoleBinding") for namespace in ("red", "blue")
    }
    for role in roles:
        if role["kind"] == "Role":
            assert role["rules"] == everywhere
        else:
            assert role["roleRef"]["name"] == "understudy-operator-jobs"
            (subject,) = role["subjects"]
            assert (subject["name"], subject["namespace"]) == ("understudy-operator", "system")
    # and it gets their names
    (container,) = operator["Deployment"]["spec"]["template"]["spec"]["containers"]
    result = {entry["name"]: entry["value"] for entry in container["env"]}
    assert read_namespaces(result) == ("red", "blue")


def test_with_watched_namespaces_no_cluster_role_grants_anything_else():
    allowed = {"nodes", "mutatingwebhookconfigurations", "validatingwebhookconfigurations"}
    bound = {x["roleRef"]["name"] for x in items(WATCHED) if x["kind"] == "ClusterRoleBinding"}
    assert bound == {"understudy-operator", "understudy-rotation"}
    for name in bound:
        assert {right.resource for right in granted([named(name, WATCHED)["ClusterRole"]])} <= allowed


def test_pods_are_injected_and_scraped_only_in_watched_namespaces():
    watched = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["red", "blue"]}
    documents = rendered(WATCHED, webhook=True)
    (webhook,) = documents["MutatingWebhookConfiguration"]["webhooks"]
    assert webhook["namespaceSelector"] == {
        "matchLabels": {"understudy.dev/inject": "enabled"},
        "matchExpressions": [watched],
    }
    monitor = named("understudy-coordinators", WATCHED, "metrics.podMonitor.enabled=true")["PodMonitor"]
    assert monitor["spec"]["namespaceSelector"] == {"matchNames": ["red", "blue"]}
    ordinary = named("understudy-coordinators", "metrics.podMonitor.enabled=true")["PodMonitor"]
    assert ordinary["spec"]["namespaceSelector"] == {"any": True}


# The master secret ---------------------------------------------------------------------------------------------------

DIGEST_ANNOTATION = "understudy.dev/master-secret-sha256"


def test_the_chart_generates_a_master_secret_that_outlives_the_release():
    # given the chart's own master secret
    secret = named("understudy-master")["Secret"]
    assert (secret["type"], secret["metadata"]["namespace"]) == ("Opaque", "system")
    # then it is 64 random characters
    value = base64.b64decode(secret["data"]["secret"])
    assert re.fullmatch(rb"[A-Za-z0-9]{64}", value)
    assert named("understudy-master", "crds.enabled=false")["Secret"]["data"] != secret["data"]
    # and helm keeps it when the release is uninstalled
    assert secret["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    # and another secret changes the operator's pods
    annotations = rendered()["Deployment"]["spec"]["template"]["metadata"]["annotations"]
    assert annotations == {DIGEST_ANNOTATION: hashlib.sha256(value).hexdigest()}


def test_an_administrators_own_master_secret_is_mounted_and_none_is_generated():
    documents = rendered("masterSecret.name=own")
    template = documents["Deployment"]["spec"]["template"]
    assert [volume["secret"]["secretName"] for volume in template["spec"]["volumes"]] == ["own"]
    assert [x for x in items("masterSecret.name=own") if x["kind"] == "Secret"] == []
    # and the pods have no digest of it, from which a weak secret could be guessed
    assert "annotations" not in template["metadata"]


def test_only_the_operators_pods_mount_the_master_secret():
    # given all pods of the chart
    specs = {x["metadata"]["name"]: x["spec"] for x in items() if x["kind"] == "Pod"}
    specs |= {x["metadata"]["name"]: x["spec"]["template"]["spec"] for x in items() if x["kind"] == "Deployment"}
    assert specs.keys() == {f"understudy-{name}" for name in ("operator", "webhook", "rotation", "test")}
    # then the operator's pod has it, as a file that its user can read
    operator = specs["understudy-operator"]
    (container,) = operator["containers"]
    (mount,) = container["volumeMounts"]
    assert (mount["mountPath"], mount["readOnly"]) == ("/understudy-master", True)
    (volume,) = operator["volumes"]
    assert volume["name"] == mount["name"]
    assert volume["secret"] == {"secretName": "understudy-master", "defaultMode": 0o444}
    # and no other pod names it
    assert [name for name, spec in specs.items() if "understudy-master" in json.dumps(spec)] == ["understudy-operator"]


@pytest.mark.attack("E1", "reads Secrets with the operator's token", before="the API server answered")
@pytest.mark.parametrize("settings", [(), (WATCHED,)])
def test_the_operator_may_create_and_delete_secrets_and_not_read_them(settings: tuple[str, ...]):
    # given all roles that are bound to the operator's account
    documents = items(*settings)
    bindings = [x for x in documents if x["kind"].endswith("RoleBinding")]
    bound = {x["roleRef"]["name"] for x in bindings if x["subjects"][0]["name"] == "understudy-operator"}
    roles = [x for x in documents if x["kind"] in ("Role", "ClusterRole") and x["metadata"]["name"] in bound]
    # then these are its rights on Secrets
    verbs = {right.verb for right in granted(roles) if right.resource in ("secrets", "*")}
    assert verbs == {"create", "delete"}


def test_policies_can_be_disabled():
    kinds = {x["kind"] for x in items("admissionPolicies.enabled=false")}
    assert not {kind for kind in kinds if kind.startswith("ValidatingAdmissionPolicy")}


@pytest.mark.parametrize(("version", "accepted"), [("1.29.5", False), ("1.30.0", True), ("1.30.4-gke.100", True)])
def test_helm_refuses_a_kubernetes_older_than_1_30(version: str, accepted: bool):
    helm = Paths.from_environment().binaries / "helm"
    command = [str(helm), "template", "understudy", str(CHART), "-n", "system", "--kube-version", version]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (result.returncode == 0) == accepted
    refusal = f"chart requires kubeVersion: >=1.30.0-0 which is incompatible with Kubernetes v{version}"
    assert (refusal in result.stderr) != accepted
