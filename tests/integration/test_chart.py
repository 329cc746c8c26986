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


def rendered(*settings: str) -> Documents:
    """The chart's objects by kind."""
    helm = Paths.from_environment().binaries / "helm"
    if not helm.exists():
        pytest.skip(f"{helm} is not built: python -m tests.cluster binaries")
    words = [word for setting in settings for word in ("--set", setting)]
    told = subprocess.run(
        [helm, "template", "understudy", CHART, "-n", "system", *words], check=True, capture_output=True, text=True
    )
    return {document["kind"]: document for document in yaml.safe_load_all(told.stdout) if document}


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
