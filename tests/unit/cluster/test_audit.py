"""An audit log is compared with roles: missing rights, and unused ones."""

import json
from typing import Any

from tests.cluster.audit import USER, Right, Use, granted, idle, missing, of_pods, uses

ROLES = [
    {
        "kind": "ClusterRole",
        "metadata": {"name": "operator"},
        "rules": [
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "delete"]},
            {"apiGroups": ["understudy.dev"], "resources": ["trainingjobs/status"], "verbs": ["update"]},
        ],
    },
    {
        "kind": "Role",
        "metadata": {"name": "operator", "namespace": "system"},
        "rules": [
            {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": ["op"], "verbs": ["get"]}
        ],
    },
]
RIGHTS = granted(ROLES)


def audit_entry(verb: str, resource: str, *, user: str = USER, decision: str = "allow", **reference: str) -> str:
    event: dict[str, Any] = {
        "user": {"username": user},
        "verb": verb,
        "objectRef": {"resource": resource, **reference},
        "requestReceivedTimestamp": "2026-11-21T10:00:00Z",
        "annotations": {"authorization.k8s.io/decision": decision},
    }
    return json.dumps(event)


CREATE = audit_entry("create", "pods", namespace="research")
STATUS = audit_entry(
    "update", "trainingjobs", apiGroup="understudy.dev", subresource="status", namespace="a", name="llm"
)
LEASE = audit_entry("get", "leases", apiGroup="coordination.k8s.io", namespace="system", name="op")
DELETE = audit_entry("delete", "pods", namespace="research", name="p")


def test_rules_are_split_into_rights():
    assert sorted(RIGHTS) == [
        Right("", "pods", "create"),
        Right("", "pods", "delete"),
        Right("coordination.k8s.io", "leases", "get", "system", "op"),
        Right("understudy.dev", "trainingjobs/status", "update"),
    ]


def test_a_run_that_uses_exactly_its_rights_has_no_findings():
    log = list(uses([CREATE, STATUS, LEASE, DELETE]))
    assert (missing(RIGHTS, log), idle(RIGHTS, log)) == (set(), set())


def test_an_unused_right_is_reported():
    assert idle(RIGHTS, list(uses([CREATE, STATUS, LEASE]))) == {Right("", "pods", "delete")}


def test_a_missing_right_is_reported_also_in_another_namespace_or_for_another_name():
    for line in (
        audit_entry("patch", "pods", namespace="research"),
        audit_entry("get", "leases", apiGroup="coordination.k8s.io", namespace="research", name="op"),
        audit_entry("get", "leases", apiGroup="coordination.k8s.io", namespace="system", name="another"),
    ):
        (use,) = uses([line])
        assert missing(RIGHTS, [use]) == {use.right}


def test_a_forbidden_request_is_missing_whatever_the_roles_state_now():
    assert missing(RIGHTS, uses([audit_entry("create", "pods", decision="forbid")])) == {Right("", "pods", "create")}


def test_other_users_and_paths_that_are_no_resources_do_not_count():
    version = json.dumps({"user": {"username": USER}, "verb": "get", "requestURI": "/version"})
    assert list(uses([audit_entry("create", "pods", user="somebody"), version])) == []


def test_uses_of_an_uninstalled_operator_whose_replica_set_had_the_same_name_do_not_count():
    # given a pod of the former operator, whose last request was denied, and one of the operator that is installed now
    def used(pod: str, at: str, *, allowed: bool = True) -> Use:
        return Use(at, pod, Right("coordination.k8s.io", "leases", "update", "system", "op"), allowed)

    former = [used("op-7d-a", "2026-11-26T00:05:07.9Z"), used("op-7d-a", "2026-11-26T00:53:11.3Z", allowed=False)]
    own = [used("op-7d-b", "2026-11-26T00:53:08.0Z"), used("op-7d-b", "2026-11-26T00:53:10.0Z")]
    other = [used("op-8e-c", "2026-11-26T00:53:12.0Z")]
    # when the ReplicaSet was created in the second of the new pod's first request
    assert of_pods([*former, *own, *other], "op-7d-", "2026-11-26T00:53:08Z") == own
