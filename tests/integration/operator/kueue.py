"""A fake Kueue: its webhook's changes to a pod that names a queue, and its controller's treatment of groups.

The webhook is a MutatingAdmissionPolicy, so the API server changes the operator's pods, as with Kueue. The controller
follows Kueue's rules for groups (docs: Run Plain Pods): it admits only whole groups, deletes pods beyond a group's
size, and removes its finalizer from pods that have been replaced, or whose group has ended.
"""

import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from tests.integration.operator.kube import Kube, Raw
from understudy_operator.plan.facts import queue as kueue

if TYPE_CHECKING:
    from tests.integration.conftest import ApiServer

ADMISSION = "/apis/admissionregistration.k8s.io/v1"
GATED = (
    "Object{metadata: Object.metadata{labels: {'kueue.x-k8s.io/managed': 'true'},"
    " finalizers: (has(object.metadata.finalizers) ? object.metadata.finalizers : []) + ['kueue.x-k8s.io/managed']},"
    " spec: Object.spec{schedulingGates: [Object.spec.schedulingGates{name: 'kueue.x-k8s.io/admission'}]}}"
)


def api_group(server: "ApiServer") -> Iterator[None]:
    """The API group by which an operator detects Kueue."""
    crd = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"localqueues.{kueue.API_GROUP}",
            "annotations": {"api-approved.kubernetes.io": "unapproved, a test's own"},
        },
        "spec": {
            "group": kueue.API_GROUP,
            "names": {"kind": "LocalQueue", "plural": "localqueues", "singular": "localqueue"},
            "scope": "Namespaced",
            "versions": [
                {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
            ],
        },
    }
    done = server.kubectl("apply", "-f", "-", stdin=json.dumps(crd))
    assert done.returncode == 0, done.stderr
    deadline = time.monotonic() + 60
    while (found := server.kubectl("get", "--raw", f"/apis/{kueue.API_GROUP}")).returncode != 0:
        assert time.monotonic() < deadline, found.stderr
        time.sleep(0.2)
    yield
    server.kubectl("delete", "crd", f"localqueues.{kueue.API_GROUP}")


@asynccontextmanager
async def webhook(kube: Kube) -> AsyncIterator[None]:
    """Enforced in the test's namespace."""
    name = f"kueue-{kube.namespace}"
    pods = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}
    here = {"matchLabels": {"kubernetes.io/metadata.name": kube.namespace}}
    named = f"has(object.metadata.labels) && '{kueue.QUEUE}' in object.metadata.labels"
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "matchConstraints": {"resourceRules": [pods], "namespaceSelector": here},
            "matchConditions": [{"name": "queued", "expression": named}],
            "failurePolicy": "Fail",
            "reinvocationPolicy": "Never",
            "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": GATED}}],
        },
    }
    binding = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name},
    }
    await kube.call("POST", f"{ADMISSION}/mutatingadmissionpolicies", policy)
    await kube.call("POST", f"{ADMISSION}/mutatingadmissionpolicybindings", binding)
    try:
        await kube.until("the policy is in force", lambda: _gates(kube))
        yield
    finally:
        await kube.call("DELETE", f"{ADMISSION}/mutatingadmissionpolicybindings/{name}")
        await kube.call("DELETE", f"{ADMISSION}/mutatingadmissionpolicies/{name}")


async def _gates(kube: Kube) -> bool:
    spec = {"containers": [{"name": "c", "image": "x"}]}
    metadata = {"name": "probe", "labels": {kueue.QUEUE: "team"}}
    answer = await kube.call("POST", "pods", {"metadata": metadata, "spec": spec}, dryRun="All")
    return bool(answer["spec"].get("schedulingGates"))


class Controller:
    """Kueue's controller, one step at a time."""

    def __init__(self, kube: Kube) -> None:
        self.kube = kube

    async def admit(self, pods: list[Raw]) -> None:
        """There is quota for these pods."""
        for pod in pods:
            gates = [gate for gate in pod["spec"].get("schedulingGates", ()) if gate["name"] != kueue.GATE]
            body = {"spec": {"schedulingGates": gates or None}}
            await self.kube.call("PATCH", f"pods/{pod['metadata']['name']}", body)

    async def evict(self, pods: list[Raw]) -> None:
        for pod in pods:
            path = f"pods/{pod['metadata']['name']}"
            target = {
                "type": "TerminationTarget",
                "status": "True",
                "reason": "WorkloadEvicted",
                "message": "Preempted to accommodate a workload",
                "lastTransitionTime": "2026-11-20T10:00:00Z",
            }
            await self.kube.call("PATCH", f"{path}/status", {"status": {"conditions": [target]}})
            await self.kube.call("DELETE", path)

    async def let_go(self, pods: list[Raw]) -> None:
        for pod in pods:
            body = {"metadata": {"finalizers": None}}
            await self.kube.call("PATCH", f"pods/{pod['metadata']['name']}", body)
