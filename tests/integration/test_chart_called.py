"""The chart under any release name: the API server accepts every object, no two objects have the same name, and a
second installation is rejected.

The server is these tests' own, because they install and remove CRDs. No controller runs there: the tests wait for no
pods.
"""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.cluster.paths import CHECKOUT
from tests.e2e.installation import PREVIOUS
from tests.integration.cert_manager import crds
from tests.integration.conftest import an_api_server
from tests.integration.test_chart_applied import Reader, must

if TYPE_CHECKING:
    from tests.integration.conftest import ApiServer

pytestmark = pytest.mark.timeout(240)  # the first test waits for the API server

CHART = CHECKOUT / "charts" / "understudy"
SYSTEM = "training-system"
LONGEST = 53  # helm's limit for a release's name
#: Valid names of a Service up to Kubernetes 1.33; newer versions also allow a leading digit.
SERVICE_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
MOST = 63  # characters of a Service's name, and of a label's value
PARTS = ("serviceMonitor", "podMonitor", "prometheusRule", "dashboard")
#: All optional objects of the chart.
EVERYTHING = {
    "networkPolicies": {"enabled": True, "jobs": {"enabled": True}},
    "webhook": {"certificates": {"mode": "CertManager"}},
    "metrics": {part: {"enabled": True} for part in PARTS},
    "dashboard": {"enabled": True},
}
SELF_SIGNED = {"webhook": {"certificates": {"mode": "SelfSigned"}}}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "as the docs have it": ("understudy", {}),
    "without our name": ("prod", {}),
    "with our name in it": ("team-understudy", {}),
    "the longest": ("understudy-of-the-platform-team-for-the-large-cluster", {}),
    "the longest, and self-signed certificates": ("a" * LONGEST, SELF_SIGNED),
    "dots": ("ml.platform.2", {}),
    "a digit first": ("2nd", {}),
    "the longest with a digit first and dots": ("2nd." + "b" * (LONGEST - 5) + "c", {}),
    "of a ClusterRole of Kubernetes": ("cluster", {}),
    "nameOverride": ("prod", {"nameOverride": "recovery"}),
    "nameOverride that is in it already": ("recovery-prod", {"nameOverride": "recovery"}),
    "the longest with a nameOverride": ("a" * LONGEST, {"nameOverride": "recovery"}),
    "fullnameOverride": ("prod", {"fullnameOverride": "training-recovery"}),
    "the longest fullnameOverride": ("prod", {"fullnameOverride": "f" * LONGEST}),
}
Item = dict[str, Any]


def assert_longest(name: str) -> None:
    assert len(name) == LONGEST, f"{name} is not as long as it can be"


@pytest.fixture(scope="module")
def server() -> Iterator["ApiServer"]:
    """With the kinds of cert-manager and of the Prometheus operator, and the chart's namespace."""
    with an_api_server() as server:
        kinds = [monitoring_crd(kind) for kind in ("ServiceMonitor", "PodMonitor", "PrometheusRule")]
        for crd in crds():
            must(server.kubectl("apply", "--server-side", "-f", str(crd)))
        must(server.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": kinds})))
        must(server.kubectl("wait", "--for=condition=Established", "crd", "--all"))
        must(server.kubectl("create", "namespace", SYSTEM))
        yield server


def monitoring_crd(kind: str) -> Item:
    plural = f"{kind.lower()}s"
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"type": "object", "properties": {"spec": anything}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.monitoring.coreos.com"},
        "spec": {
            "group": "monitoring.coreos.com",
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
        },
    }


def template(server: "ApiServer", chart: Path, release: str, *values: Item) -> "subprocess.CompletedProcess[str]":
    """Without the objects of `helm test`, which are only in the chart's own output."""
    words = [word for each in values for word in ("--values", _file(server, each))]
    command = [str(server.binaries / "helm"), "template", release, str(chart), "--namespace", SYSTEM, *words]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def _file(server: "ApiServer", values: Item) -> str:
    text = json.dumps(values)
    file = server.kubeconfig.parent / f"values-{abs(hash(text))}.json"
    file.write_text(text)
    return str(file)


@cache  # helm takes a quarter of a second each time
def rendered(server: "ApiServer", case: str) -> list[Item]:
    """The chart's objects; no test changes them."""
    release, values = CASES[case]
    result = must(template(server, CHART, release, EVERYTHING, values))
    return [item for item in yaml.load_all(result, yaml.CSafeLoader) if item]


def have_different_names(items: list[Item]) -> list[tuple[str, str, str]]:
    return [(x["kind"], x["metadata"].get("namespace", ""), x["metadata"]["name"]) for x in items]


@pytest.mark.parametrize("case", CASES)
def test_the_api_server_accepts_every_object_under_any_name(server: "ApiServer", case: str) -> None:
    if "longest" in case:
        release, values = CASES[case]
        assert_longest(values.get("fullnameOverride", release))
    items = rendered(server, case)
    # when all objects are sent as a dry run
    strict = ("--server-side", "--dry-run=server", "--validate=strict")
    result = server.kubectl(
        "apply", *strict, "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    )
    # then none is rejected, and none has the name of an object of Kubernetes
    assert result.returncode == 0, result.stderr
    assert len(result.stdout.splitlines()) == len(items)
    own = [item for item in items if item["kind"] != "CustomResourceDefinition"]
    present = server.kubectl("get", "--ignore-not-found", "-o", "name", "-f", "-", stdin=yaml.safe_dump_all(own))
    assert present.stdout == ""


def test_the_api_server_accepts_the_objects_of_eight_shards_under_the_longest_name(server: "ApiServer") -> None:
    result = must(template(server, CHART, "a" * LONGEST, EVERYTHING, {"operator": {"shards": 8}}))
    items = [item for item in yaml.load_all(result, yaml.CSafeLoader) if item]
    names = have_different_names(items)
    assert len(set(names)) == len(names)
    assert len([name for kind, _, name in names if kind == "Deployment" and "-operator-" in name]) == 8
    strict = ("--server-side", "--dry-run=server", "--validate=strict")
    applied = server.kubectl("apply", *strict, "-f", "-", stdin=result)
    assert applied.returncode == 0, applied.stderr


@pytest.mark.parametrize("case", CASES)
def test_names_are_short_enough_and_selectors_match_only_their_own_pods(server: "ApiServer", case: str) -> None:
    items = rendered(server, case)
    assert len(set(have_different_names(items))) == len(items)
    for item in items:
        name = item["metadata"]["name"]
        if item["kind"] in ("Service", "Pod"):  # a pod's name is its hostname
            assert SERVICE_NAME.fullmatch(name)
            assert len(name) <= MOST
        for value in item["metadata"].get("labels", {}).values():
            assert LABEL_VALUE.fullmatch(value)
            assert len(value) <= MOST
    deployments = {x["metadata"]["name"]: x["spec"] for x in items if x["kind"] == "Deployment"}
    labels = {name: spec["template"]["metadata"]["labels"] for name, spec in deployments.items()}
    assert len(labels) == (4 if CASES[case][1] is SELF_SIGNED else 3)

    def found(selector: Item) -> list[str]:
        return [name for name, own in labels.items() if selector.items() <= own.items()]

    for name, spec in deployments.items():
        assert found(spec["selector"]["matchLabels"]) == [name]
    for item in items:
        if item["kind"] == "Service":
            (deployment,) = found(item["spec"]["selector"])
            part = deployment.rpartition("-")[2]
            assert item["metadata"]["name"].endswith((f"-{part}", f"-{part}-metrics"))
        if item["kind"] in ("PodDisruptionBudget", "NetworkPolicy"):
            selector = item["spec"].get("podSelector") or item["spec"]["selector"]
            assert found(selector["matchLabels"]) == [item["metadata"]["name"]]


@pytest.mark.parametrize("case", CASES)
def test_references_name_existing_objects(server: "ApiServer", case: str) -> None:
    items = rendered(server, case)
    present = {(kind, name) for kind, _, name in have_different_names(items)}
    for item in items:
        if item["kind"].endswith("RoleBinding"):
            assert (item["roleRef"]["kind"], item["roleRef"]["name"]) in present
            assert {("ServiceAccount", subject["name"]) for subject in item["subjects"]} <= present
        if item["kind"].endswith("WebhookConfiguration"):
            services = {("Service", webhook["clientConfig"]["service"]["name"]) for webhook in item["webhooks"]}
            assert services <= present
        if item["kind"] == "Deployment":
            assert ("ServiceAccount", item["spec"]["template"]["spec"]["serviceAccountName"]) in present
            (container,) = item["spec"]["template"]["spec"]["containers"]
            result = {entry["name"]: entry["value"] for entry in container["env"]}
            if lease := result.get("UNDERSTUDY_LEASE"):
                (role,) = [x for x in items if (x["kind"], x["metadata"]["name"]) == ("Role", item["metadata"]["name"])]
                assert lease == f"{SYSTEM}/{item['metadata']['name']}"
                named = {name for rule in role["rules"] for name in rule.get("resourceNames", ())}
                own = {part.rpartition("/")[2] for part in (lease, result["UNDERSTUDY_NODE_FAULTS"])}
                shards = {name for name in named if re.fullmatch(rf"{item['metadata']['name']}-\d-of-\d", name)}
                assert named - shards == own
                assert len(shards) == 35  # of all numbers of shards from 2 to 8
            if webhook := result.get("UNDERSTUDY_WEBHOOK"):
                namespace, _, name = webhook.partition("/")
                assert namespace == SYSTEM
                assert {("MutatingWebhookConfiguration", name), ("Service", name)} <= present
        if item["kind"] == "ValidatingAdmissionPolicyBinding":
            assert ("ValidatingAdmissionPolicy", item["spec"]["policyName"]) in present


@pytest.mark.parametrize(
    ("case", "begin"),
    [
        ("as the docs have it", "understudy"),
        ("without our name", "prod"),
        ("the longest", "understudy-of-the-platform-team-for-the-large-cluster"),
        ("dots", "ml-platform-2"),
        ("a digit first", "understudy-2nd"),
        ("nameOverride", "prod-recovery"),
        ("nameOverride that is in it already", "recovery-prod"),
        ("fullnameOverride", "training-recovery"),
    ],
)
def test_names_begin_as_the_page_states(server: "ApiServer", case: str, begin: str) -> None:
    names = {x["metadata"]["name"] for x in rendered(server, case) if x["kind"] == "Deployment"}
    assert names == {f"{begin}-operator", f"{begin}-webhook", f"{begin}-dashboard"}


def test_two_releases_share_no_name(server: "ApiServer") -> None:
    one, other = (have_different_names(rendered(server, case)) for case in ("without our name", "as the docs have it"))
    assert {kind for kind, *_ in set(one) & set(other)} == {"CustomResourceDefinition"}


@pytest.mark.parametrize("release", ["understudy", "prod", "a" * LONGEST])
def test_an_upgrade_from_the_previous_chart_keeps_names_lease_and_selectors(server: "ApiServer", release: str) -> None:
    # Otherwise new replicas would lead next to the existing ones.
    def is_reported(chart: Path) -> dict[tuple[str, str], Item]:
        items = yaml.load_all(must(template(server, chart, release)), yaml.CSafeLoader)
        return {(x["kind"], x["metadata"]["name"]): x for x in items if x}

    previous, newest = is_reported(PREVIOUS), is_reported(CHART)
    kinds = ("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
    # The webhook had the rights of the process that now renews its certificate.
    webhooks = {(kind, name) for kind, name in previous if kind in kinds and name.endswith("-webhook")}
    assert previous.keys() - newest.keys() == webhooks
    for key in previous:
        if key[0] == "Deployment":
            assert previous[key]["spec"]["selector"] == newest[key]["spec"]["selector"]
            leases = [
                [
                    entry["value"]
                    for entry in x["spec"]["template"]["spec"]["containers"][0]["env"]
                    if entry["name"] == "UNDERSTUDY_LEASE"
                ]
                for x in (previous[key], newest[key])
            ]
            assert leases[0] == leases[1]


# A second installation ------------------------------------------------------------------------------------------------


class Administrator:
    """A user with helm, who waits for no pods: there are none."""

    def __init__(self, server: "ApiServer") -> None:
        self._server = server

    def helm(self, *words: str) -> "subprocess.CompletedProcess[str]":
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self._server.kubeconfig.parent),
            "KUBECONFIG": str(self._server.kubeconfig),
        }
        command = [str(self._server.binaries / "helm"), *words]
        return subprocess.run(command, check=False, capture_output=True, text=True, env=environment)

    def install(self, release: str, namespace: str, *settings: str) -> "subprocess.CompletedProcess[str]":
        result = [word for setting in settings for word in ("--set", setting)]
        return self.helm("upgrade", "--install", release, str(CHART), "-n", namespace, "--create-namespace", *result)


@pytest.fixture(scope="module")
def administrator(server: "ApiServer") -> Administrator:
    """With the chart installed as release `first` in namespace `one`; the last test removes it."""
    administrator = Administrator(server)
    must(administrator.install("first", "one"))
    return administrator


@pytest.mark.parametrize(
    ("release", "namespace"), [("second", "two"), ("first", "two"), ("second", "one")], ids=lambda x: str(x)
)
@pytest.mark.parametrize("settings", [(), ("crds.enabled=false",)], ids=["with CRDs", "without CRDs"])
def test_a_second_release_is_rejected_with_the_place_of_the_first_one(
    administrator: Administrator, release: str, namespace: str, settings: tuple[str, ...]
) -> None:
    result = administrator.install(release, namespace, *settings)
    assert result.returncode != 0
    assert "Understudy is installed in this cluster already" in result.stderr
    assert "release first in namespace one" in result.stderr
    assert "cannot be imported" not in result.stderr
    # and it has created nothing
    assert must(administrator.helm("list", "-n", namespace, "-q")).split() == (["first"] if namespace == "one" else [])


def test_a_users_own_binding_with_our_label_does_not_count_as_an_installation(
    server: "ApiServer", administrator: Administrator
) -> None:
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "readers", "labels": {"app.kubernetes.io/name": "understudy"}},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [
            {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "researchers"},
            {"kind": "ServiceAccount", "name": "reader", "namespace": "elsewhere"},
        ],
    }
    must(server.kubectl("apply", "-f", "-", stdin=json.dumps(binding)))
    must(administrator.install("first", "one"))
    must(server.kubectl("delete", "clusterrolebinding", "readers"))


def test_a_change_of_names_is_rejected_with_the_value_that_keeps_them(administrator: Administrator) -> None:
    result = administrator.install("first", "one", "fullnameOverride=other")
    assert result.returncode != 0
    assert "fullnameOverride=first" in result.stderr
    # and with that value the upgrade works
    must(administrator.install("first", "one", "fullnameOverride=first"))


def test_another_release_adopts_the_remaining_crds_as_the_page_states(
    server: "ApiServer", administrator: Administrator, tmp_path: Path
) -> None:
    # given the CRDs of a release that is gone
    must(administrator.helm("uninstall", "first", "-n", "one"))
    refused = administrator.install("understudy", "understudy-system")
    assert "invalid ownership metadata" in refused.stderr
    # when the page is followed
    Reader(server, tmp_path).follow("Names")
    # then the newer release has them
    result = json.loads(must(server.kubectl("get", "crd", "trainingjobs.understudy.dev", "-o", "json")))
    assert result["metadata"]["annotations"]["meta.helm.sh/release-name"] == "understudy"
