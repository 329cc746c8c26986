"""The listed fields are decoded from the API server's bytes, and kept_fields.py keeps no other field."""

import json
from typing import Any

import msgspec
import pytest

from understudy_operator.runtime.decoding import WatchEvent, decode_watch_event, decoder, object_of
from understudy_operator.runtime.kept_fields import select_node_fields, select_pod_fields

METADATA = {
    "name": "a",
    "generateName": "a-",
    "namespace": "team",
    "uid": "u-1",
    "resourceVersion": "7",
    "generation": 2,
    "creationTimestamp": "2026-11-20T10:00:00Z",
    "deletionTimestamp": "2026-11-20T10:05:00Z",
    "deletionGracePeriodSeconds": 30,
    "labels": {"app": "a"},
    "annotations": {"note": "b", "understudy.dev/pod-index": "pods/0/1"},
    "ownerReferences": [{"kind": "Job", "uid": "u-0"}],
    "finalizers": ["x/y"],
}
LEFT_OUT = {"managedFields": [{"manager": "kubelet", "fieldsV1": {"f:status": {}}}]}
CONDITION = {"type": "Ready", "status": "True", "reason": "r", "message": "m", "lastTransitionTime": "t"}
POD = {
    "kind": "Pod",
    "metadata": METADATA | LEFT_OUT,
    "spec": {
        "nodeName": "n",
        "terminationGracePeriodSeconds": 30,
        "schedulingGates": [{"name": "g"}],
        "containers": [
            {
                "name": "c",
                "image": "i",
                "env": [{"name": "UNDERSTUDY_NPROC", "value": "8"}, {"name": "X", "valueFrom": {"fieldRef": {}}}],
                "resources": {"limits": {"memory": "1Gi"}, "requests": {"memory": "1Gi"}},
            }
        ],
        "initContainers": [{"name": "s", "env": [{"name": "UNDERSTUDY_INDEX", "value": "3"}]}],
        "volumes": [
            {"name": "v", "emptyDir": {}},
            {"name": "understudy-membership", "secret": {"secretName": "s", "defaultMode": 292}},
        ],
    },
    "status": {
        "phase": "Running",
        "podIP": "10.0.0.1",
        "nominatedNodeName": "n2",
        "reason": "r",
        "message": "m",
        "qosClass": "Burstable",
        "conditions": [CONDITION | {"lastProbeTime": None}],
        "containerStatuses": [{"name": "c", "state": {"running": {}}, "ready": True, "imageID": "sha256:0"}],
        "initContainerStatuses": [
            {"name": "s", "started": True, "restartCount": 1, "lastState": {"terminated": {"exitCode": 1}}}
        ],
    },
}
NODE = {
    "kind": "Node",
    "metadata": METADATA | LEFT_OUT,
    "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}], "unschedulable": True, "podCIDR": "10.0.0.0/24"},
    "status": {"conditions": [CONDITION | {"lastHeartbeatTime": "t"}], "images": [{"names": ["i"]}]},
}


@pytest.mark.parametrize(
    ("resource", "raw", "select"), [("pods", POD, select_pod_fields), ("nodes", NODE, select_node_fields)]
)
def test_every_field_that_is_kept_of_an_object_is_decoded(resource: str, raw: Any, select: Any) -> None:
    read = decoder("GET", f"/api/v1/{resource}/a")(json.dumps(raw).encode())
    assert select(read) == select(raw)
    assert "managedFields" not in read["metadata"]
    assert "kind" not in read


@pytest.mark.parametrize(("resource", "raw"), [("pods", POD), ("nodes", NODE)])
def test_a_watch_event_a_list_item_and_an_object_are_decoded_alike(resource: str, raw: Any) -> None:
    text = json.dumps(raw)
    alone = decoder("POST", f"/api/v1/namespaces/team/{resource}")(text.encode())
    listed = decoder("GET", f"/api/v1/{resource}")(f'{{"metadata": {{"continue": "x"}}, "items": [{text}]}}'.encode())
    line = decode_watch_event(f'{{"type": "ADDED", "object": {text}}}'.encode())
    assert {**listed, "items": list(listed["items"])} == {"metadata": {"continue": "x"}, "items": [alone]}
    assert (line.type, object_of(resource, line)) == ("ADDED", alone)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("DELETE", "/api/v1/namespaces/team/pods/a"),  # the answer is a Status, or the pod
        ("GET", "/api/v1/namespaces/pods"),  # a namespace of this name
        ("GET", "/api/v1/namespaces/team/secrets/pods"),
        ("GET", "/apis/understudy.dev/v1alpha1/namespaces/team/trainingjobs/nodes"),
    ],
)
def test_other_resources_are_decoded_whole(method: str, path: str) -> None:
    text = b'{"kind": "Status", "status": "Success", "metadata": {}, "spec": "x"}'
    assert decoder(method, path)(text) == json.loads(text)


def test_a_bookmark_has_a_version_and_nothing_else() -> None:
    line = WatchEvent("BOOKMARK", msgspec.Raw(b'{"kind": "Pod", "metadata": {"resourceVersion": "9"}, "spec": {}}'))
    assert object_of("pods", line)["metadata"] == {"resourceVersion": "9"}
