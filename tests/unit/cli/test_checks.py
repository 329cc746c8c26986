"""The findings of `doctor`: each problem is found, and has a fix."""

import base64
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli import samples
from understudy_cli.views.check_result import CheckResult, Level, Unreadable
from understudy_cli.views.checks import authority_ends, findings, shard_of

OPERATOR = ("understudy-system", "understudy-operator")

HEALTHY: dict[str, Any] = {
    "rights": {"list pods": True},
    "deployments": [samples.deployment("understudy-operator", 2)],
    "webhooks": [],
    "pods": [],
    "rejection": "",
}


NO_CALLERS = {"metadata": {"name": "strict", "namespace": "team-a"}, "spec": {"podSelector": {}}}


def pod_with_claim(name: str) -> dict[str, Any]:
    pod = samples.pod("llm-workers-0-0", "node-a", rank=0)
    pod["spec"]["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": name}}]
    return pod


def found(**changes: Any) -> dict[str, list[CheckResult]]:
    by_check: dict[str, list[CheckResult]] = {}
    for finding in findings(samples.installation(**(HEALTHY | changes)), samples.NOW):
        by_check.setdefault(finding.check, []).append(finding)
    return by_check


def levels(**changes: Any) -> dict[str, list[Level]]:
    return {check: [finding.level for finding in some] for check, some in found(**changes).items()}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An authority that is valid for thirty days, as a caBundle."""
    folder: Path = tmp_path_factory.mktemp("authority")
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30"]
    words += ["-subj", "/CN=authority", "-keyout", str(folder / "key"), "-out", str(folder / "crt")]
    subprocess.run(words, check=True, capture_output=True)
    return base64.b64encode((folder / "crt").read_bytes()).decode()


def test_a_cluster_without_an_installation_is_not_reported_to_have_no_webhook() -> None:
    assert "Webhook" not in found(deployments=[], webhooks=[])


def test_a_healthy_installation_has_no_problem() -> None:
    assert {level for some in levels().values() for level in some} == {Level.OK}


@pytest.mark.parametrize(
    ("check", "changes", "level", "text"),
    [
        (
            "Kubernetes",
            {"version": {"major": "1", "minor": "29+", "gitVersion": "v1.29.3"}},
            Level.ERROR,
            "older than 1.30",
        ),
        ("Kubernetes", {"version": {}}, Level.WARNING, "unknown"),
        (
            "Kinds",
            {"served": ["trainingjobs", "hotsparepools"]},
            Level.ERROR,
            "does not serve injectedjobs, recoveries",
        ),
        ("Kinds", {"served": []}, Level.ERROR, "trainingjobs, injectedjobs, hotsparepools, recoveries"),
        ("Your rights", {"rights": {"list pods": False, "get pods/log": True}}, Level.WARNING, "may not list pods"),
        ("Operator", {"deployments": []}, Level.ERROR, "no Deployment"),
        ("Operator", {"deployments": [samples.deployment("understudy-operator", 0)]}, Level.ERROR, "0 of 2 replicas"),
        ("Operator", {"deployments": [samples.deployment("understudy-operator", 1)]}, Level.WARNING, "1 of 2 replicas"),
        ("Operator", {"own_version": "0.2.0"}, Level.WARNING, "its version is 0.1.0"),
        ("Leader", {"leases": {}}, Level.ERROR, "no replica of the operator is the leader"),
        ("Leader", {"leases": {OPERATOR: None}}, Level.ERROR, "no replica of the operator is the leader"),
        (
            "Leader",
            {"leases": {OPERATOR: samples.a_lease("")}},
            Level.ERROR,
            "no replica of the operator is the leader",
        ),
        (
            "Leader",
            {"leases": {OPERATOR: samples.a_lease("a", "2026-11-20T11:50:00Z")}},
            Level.ERROR,
            "has not renewed its Lease for 10m",
        ),
        ("DNS", {"dns": []}, Level.WARNING, "there is no Service kube-dns"),
        ("DNS", {"dns": [{"endpoints": [{"conditions": {"ready": False}}]}]}, Level.ERROR, "no ready endpoint"),
        ("Images", {"pods": samples.pods()}, Level.ERROR, "example.com/t:2 cannot be pulled: pods llm-spare-new1"),
        (
            "Storage",
            {"pods": [pod_with_claim("gone")]},
            Level.ERROR,
            "claim gone (team-a) of pods llm-workers-0-0 does not exist",
        ),
        ("Ports", {"pods": samples.pods(), "policies": [NO_CALLERS]}, Level.ERROR, "blocks port 8478"),
        ("Admission", {"rejection": "quota exceeded"}, Level.ERROR, "rejects a small TrainingJob (a dry run): quota"),
        ("Webhook", {"webhooks": [samples.webhook()]}, Level.ERROR, "0 ready endpoints"),
        ("Certificates", {"webhooks": [samples.webhook()]}, Level.ERROR, "has no caBundle"),
        ("Certificates", {"webhooks": [samples.webhook("bm90IGEgY2VydA==")]}, Level.ERROR, "cannot be read"),
    ],
)
def test_a_problem_is_found_and_has_a_fix(check: str, changes: dict[str, Any], level: Level, text: str) -> None:
    (finding,) = found(**changes)[check]
    assert finding.level is level
    assert text in finding.text
    assert finding.fix or level is Level.WARNING


def test_each_shard_has_a_leader_of_its_own() -> None:
    # given two shards, one of which has no leader
    leases = {
        ("understudy-system", "understudy-operator-0-of-2"): samples.a_lease("a"),
        ("understudy-system", "understudy-operator-1-of-2"): samples.a_lease(""),
    }
    first, second = found(leases=leases)["Leader"]
    assert (first.level, first.text) == (Level.OK, "a is the leader of shard 0-of-2")
    assert (second.level, second.text) == (Level.ERROR, "no replica of the operator is the leader of shard 1-of-2")
    assert second.fix == "see kubectl --namespace understudy-system logs deployment/understudy-operator-1-of-2"


def test_operators_with_the_same_name_in_two_namespaces_have_a_leader_each() -> None:
    # given two installations in one cluster, for different namespaces. The second one has no leader
    leases = {("blue", "understudy-operator"): samples.a_lease("a"), ("red", "understudy-operator"): None}
    first, second = found(leases=leases)["Leader"]
    assert (first.level, second.level) == (Level.OK, Level.ERROR)
    assert second.fix == "see kubectl --namespace red logs deployment/understudy-operator"


@pytest.mark.parametrize(
    ("deployment", "shard"),
    [
        ("understudy-operator", ""),
        ("understudy-operator-1-of-2", "1-of-2"),
        ("understudy-webhook", None),
        ("understudy-operator-x", None),
    ],
)
def test_the_operators_deployments_are_known_by_their_names(deployment: str, shard: str | None) -> None:
    assert shard_of(deployment) == shard


@pytest.mark.parametrize(
    "fact",
    [
        "version",
        "served",
        "rights",
        "deployments",
        "leases",
        "webhooks",
        "dns",
        "pods",
        "claims",
        "policies",
        "rejection",
    ],
)
def test_a_fact_that_cannot_be_read_is_reported_as_not_checked(fact: str) -> None:
    shown = levels(**{fact: Unreadable("nodes is forbidden")})
    assert [Level.SKIPPED] in shown.values()
    assert Level.ERROR not in {level for some in shown.values() for level in some}


@pytest.mark.parametrize(
    ("left_s", "level", "text"),
    [
        (29 * 86400, Level.OK, "is valid for another 29d"),
        (4 * 86400, Level.WARNING, "expires in 4d"),
        (-86400, Level.ERROR, "expired 24h ago"),
    ],
)
def test_a_certificate_is_compared_with_the_time(bundle: str, left_s: int, level: Level, text: str) -> None:
    (ends,) = authority_ends(bundle)
    seen = samples.installation(**(HEALTHY | {"webhooks": [samples.webhook(bundle)]}))
    (finding,) = [each for each in findings(seen, ends - left_s) if each.check == "Certificates"]
    assert (finding.level, text in finding.text) == (level, True), finding.text


def test_a_bundle_may_have_comments_with_any_characters(bundle: str) -> None:
    with_comment = "# Autorit\u00e9\n".encode() + base64.b64decode(bundle)
    assert authority_ends(base64.b64encode(with_comment).decode()) == authority_ends(bundle)


def test_the_end_of_an_authority_is_that_of_its_certificate(bundle: str, tmp_path: Path) -> None:
    path = tmp_path / "crt"
    path.write_bytes(base64.b64decode(bundle))
    words = ["openssl", "x509", "-in", str(path), "-noout", "-enddate"]
    printed = subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip().removeprefix("notAfter=")
    assert authority_ends(bundle) == (ssl.cert_time_to_seconds(printed),)
