"""The requests of a user of the API server, from its audit log, compared with the rights of roles in both directions.

The local cluster's API server logs the requests of the operator's service account at level Metadata (control_plane.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

USER = "system:serviceaccount:understudy-system:understudy-operator"
POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata", "users": [USER]}, {"level": "None"}],
}


@dataclass(frozen=True, order=True)
class Right:
    """A verb on a resource (subresource: pods/status). namespace, name: "" means all."""

    group: str
    resource: str
    verb: str
    namespace: str = ""
    name: str = ""

    def covers(self, use: Right) -> bool:
        same = (self.group, self.resource, self.verb) == (use.group, use.resource, use.verb)
        return same and self.namespace in ("", use.namespace) and self.name in ("", use.name)


@dataclass(frozen=True)
class Use:
    at: str  # RFC 3339; the time of the request: a watch is logged again when it ends
    pod: str  # name of the pod whose token it is; "" if it belongs to no pod
    right: Right
    allowed: bool


def uses(log: Iterable[str], user: str = USER) -> Iterator[Use]:
    """The user's requests for resources. Other paths, such as /version, need no right."""
    for line in log:
        event = json.loads(line)
        result = event.get("objectRef")
        if event["user"]["username"] != user or result is None:
            continue
        resource = "/".join(filter(None, (result["resource"], result.get("subresource"))))
        right = Right(
            result.get("apiGroup", ""), resource, event["verb"], result.get("namespace", ""), result.get("name", "")
        )
        decision = event.get("annotations", {}).get("authorization.k8s.io/decision")
        (pod,) = event["user"].get("extra", {}).get("authentication.kubernetes.io/pod-name", [""])
        yield Use(event["requestReceivedTimestamp"], pod, right, decision == "allow")


def of_pods(all_uses: Iterable[Use], prefix: str, since: str) -> list[Use]:
    """Of these, the uses by pods whose name begins with prefix, and whose first request is not before since."""
    by_pod: dict[str, list[Use]] = {}
    for use in all_uses:
        by_pod.setdefault(use.pod, []).append(use)
    begin = datetime.fromisoformat(since)
    return [
        use
        for pod, of_one in by_pod.items()
        if pod.startswith(prefix) and min(datetime.fromisoformat(x.at) for x in of_one) >= begin
        for use in of_one
    ]


def granted(roles: Iterable[Mapping[str, Any]]) -> set[Right]:
    """The rights of Roles and ClusterRoles, one by one."""
    rights = set()
    for role in roles:
        namespace = role["metadata"].get("namespace", "") if role["kind"] == "Role" else ""
        for rule in role["rules"]:
            rights |= {
                Right(group, resource, verb, namespace, name)
                for group in rule["apiGroups"]
                for resource in rule["resources"]
                for verb in rule["verbs"]
                for name in rule.get("resourceNames", [""])
            }
    return rights


def missing(rights: set[Right], used: Iterable[Use]) -> set[Right]:
    """Requests without a granted right."""
    return {use.right for use in used if not use.allowed or not any(right.covers(use.right) for right in rights)}


def idle(rights: set[Right], used: Iterable[Use]) -> set[Right]:
    """Granted rights without a request."""
    requests = {use.right for use in used}
    return {right for right in rights if not any(right.covers(use) for use in requests)}
