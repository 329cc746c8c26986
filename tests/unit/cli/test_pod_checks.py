"""`doctor` finds volume claims that pods cannot use, and NetworkPolicies that separate the pods of a job."""

from typing import Any

import pytest

from tests.unit.cli import samples
from understudy_cli.views.check_result import CheckResult, Level
from understudy_cli.views.pod_checks import blocked_ports, unusable_claims

Raw = dict[str, Any]


def pod(name: str, *, claim: str = "", ip: str = "", rank: int | None = 0, labels: Raw | None = None) -> Raw:
    found = samples.pod(name, "node-a", rank=rank)
    found["metadata"]["labels"] |= labels or {}
    found["spec"]["volumes"] = [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}] if claim else []
    found["spec"]["containers"][0]["ports"] = [{"name": "members", "containerPort": 8478}]
    found["status"]["podIP"] = ip
    return found


def claim(name: str, phase: str, *modes: str) -> Raw:
    metadata = {"name": name, "namespace": "team-a"}
    return {"metadata": metadata, "spec": {"accessModes": list(modes)}, "status": {"phase": phase}}


def policy(spec: Raw, namespace: str = "team-a") -> Raw:
    return {"metadata": {"name": "strict", "namespace": namespace}, "spec": {"podSelector": {}} | spec}


def ingress(*rules: Raw) -> Raw:
    return policy({"policyTypes": ["Ingress"], "ingress": list(rules)})


def egress(*rules: Raw) -> Raw:
    return policy({"policyTypes": ["Egress"], "egress": list(rules)})


def ports_of(*policies: Raw, pods: tuple[Raw, ...] = ()) -> list[CheckResult]:
    job = pods or (pod("a", ip="10.0.0.1"), pod("b", ip="10.0.0.2", rank=1), pod("spare", ip="10.0.0.3", rank=None))
    return list(blocked_ports("Ports", job, policies))


# Storage --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("claims", "level", "text"),
    [
        ([], Level.ERROR, "claim data (team-a) of pods a, b, c and 1 more does not exist"),
        (
            [claim("data", "Pending", "ReadWriteMany")],
            Level.ERROR,
            "claim data (team-a) of pods a, b, c and 1 more is Pending",
        ),
        ([claim("data", "Lost", "ReadWriteMany")], Level.ERROR, "of pods a, b, c and 1 more is Lost"),
        ([claim("data", "Bound", "ReadWriteOnce")], Level.WARNING, "has only ReadWriteOnce: a spare on another node"),
    ],
)
def test_a_claim_that_pods_of_a_job_cannot_use_is_found(claims: list[Raw], level: Level, text: str) -> None:
    (found,) = unusable_claims("Storage", [pod(name, claim="data") for name in "cadb"], claims)
    assert (found.level, text in found.text, bool(found.fix)) == (level, True, True), found.text


def test_claims_that_can_be_used_are_not_reported() -> None:
    # given a claim for many nodes, one of a single pod, and one that only an ended pod and a pod of no job have
    ended = pod("ended", claim="gone")
    ended["status"]["phase"] = "Succeeded"
    other = pod("other", claim="gone")
    del other["metadata"]["labels"]["understudy.dev/job-uid"]
    pods = [pod("a", claim="data"), pod("b", claim="data"), pod("c", claim="own"), ended, other]
    claims = [claim("data", "Bound", "ReadWriteOnce", "ReadWriteMany"), claim("own", "Bound", "ReadWriteOnce")]
    assert list(unusable_claims("Storage", pods, claims)) == []


# Ports ----------------------------------------------------------------------------------------------------------------

FROM_JOB = {"podSelector": {"matchLabels": {"understudy.dev/job-uid": "uid-of-llm"}}}
WEB_PODS = {"podSelector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["web"]}]}}


def test_pods_without_a_policy_reach_each_other() -> None:
    elsewhere = policy({"policyTypes": ["Ingress"]}, namespace="team-b")
    other = policy({"podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Ingress"]})
    assert ports_of() == ports_of(elsewhere, other) == []


@pytest.mark.parametrize(
    "rule",
    [
        {},
        {"from": [FROM_JOB]},
        {"from": [WEB_PODS, {"podSelector": {}}]},
        {"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]},
        {"from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "team-a"}}}]},
        {"from": [{"namespaceSelector": {"matchLabels": {"team": "a"}}}]},  # other labels are not known
        {"from": [{"podSelector": {"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}}]},
        {"from": [{"podSelector": {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web"]}]}}]},
        {"from": [{"podSelector": {"matchExpressions": [{"key": "understudy.dev/role", "operator": "Exists"}]}}]},
        {"ports": [{"protocol": "UDP"}, {"protocol": "TCP"}]},
        {"ports": [{"port": 1, "endPort": 65535}]},
    ],
)
def test_a_policy_that_allows_the_pods_of_the_job_is_not_reported(rule: Raw) -> None:
    assert ports_of(ingress(rule)) == []
    assert ports_of(egress({"to" if key == "from" else key: value for key, value in rule.items()})) == []


@pytest.mark.parametrize(
    "rule",
    [
        {"from": [WEB_PODS]},
        {"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.0.0.0/24"]}}]},
        {"from": [{"ipBlock": {"cidr": "192.168.0.0/16"}}]},
        {"from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "team-b"}}}]},
        {"from": [FROM_JOB], "ports": [{"port": 443}, {"port": 8478, "protocol": "UDP"}, {"port": "web"}]},
    ],
)
def test_a_policy_that_keeps_sidecars_apart_is_an_error(rule: Raw) -> None:
    (found,) = ports_of(ingress(rule))
    assert found.level is Level.ERROR
    assert found.text == (
        "NetworkPolicy strict (team-a) blocks port 8478 from pod a to pod b: their sidecars cannot reach each other"
    )
    assert found.fix.startswith("allow all ports between the pods of a job")
    (found,) = ports_of(egress({"to" if key == "from" else key: value for key, value in rule.items()}))
    assert "blocks port 8478 from pod a to pod b" in found.text


@pytest.mark.parametrize("ports", [[{"port": 8478}], [{"port": "members"}], [{"port": 8000, "endPort": 9000}]])
def test_a_policy_for_some_ports_is_a_warning_because_collectives_use_any_port(ports: list[Raw]) -> None:
    (found,) = ports_of(ingress({"from": [FROM_JOB], "ports": ports}))
    assert found.level is Level.WARNING
    assert found.text.startswith("NetworkPolicy strict (team-a) allows only some ports from pod a to pod b")


def test_policies_add_up() -> None:
    assert ports_of(ingress(), ingress({"from": [FROM_JOB]})) == []


def test_a_policy_that_blocks_only_the_spare_is_found() -> None:
    of_spares = {"podSelector": {"matchLabels": {"understudy.dev/role": "spare"}}, "policyTypes": ["Ingress"]}
    (found,) = ports_of(policy(of_spares))
    assert "from pod a to pod spare" in found.text


def test_a_policy_without_types_is_for_incoming_connections_and_for_outgoing_ones_with_rules() -> None:
    assert [found.level for found in ports_of(policy({}))] == [Level.ERROR]
    assert ports_of(policy({"ingress": [{}]})) == []
    assert [found.level for found in ports_of(policy({"ingress": [{}], "egress": []}))] == [Level.ERROR]


def test_pods_of_the_host_network_and_spares_of_a_pool_are_not_compared() -> None:
    on_host = pod("b")
    on_host["spec"]["hostNetwork"] = True
    of_pool = (pod("c", labels={"understudy.dev/pool": "shared"}), pod("d", labels={"understudy.dev/pool": "shared"}))
    assert ports_of(ingress(), pods=(pod("a"), on_host, *of_pool)) == []
