"""The fields that the operator keeps of an object are few, and enough for its readers."""

import copy
import json
import sys
from typing import Any

import pytest

from tests.unit.operator.given import IMAGE, a_job
from tests.unit.operator.observe.test_read import AT, LIMITED, POD
from tests.unit.webhook.golden import pod as golden_pod
from understudy_operator.observe.read import read_pod
from understudy_operator.observe.read_node import read_node
from understudy_operator.plan.faults.avoidance import avoided_by, prefers_not
from understudy_operator.plan.injection.injected_pods import inject
from understudy_operator.plan.manifests.pods import pod_manifest
from understudy_operator.runtime.kept_fields import select_fields, select_node_fields, select_pod_fields
from understudy_protocol import pod as names

LONGEST_ANNOTATION = 1024


def a_whole_pod() -> dict[str, Any]:
    """As the API server sends it, with all the fields that the operator does not read."""
    manifest = pod_manifest(a_job(), index=1, serial="1", facts="facts", sidecar_image=IMAGE)
    metadata = {**POD["metadata"], **manifest["metadata"], "managedFields": [{"manager": "kubelet", "x": "y" * 2000}]}
    status = {
        **POD["status"],
        "hostIPs": [{"ip": "10.0.0.1"}],
        "containerStatuses": [
            {
                "name": "trainer",
                "image": "example.com/trainer:1",
                "imageID": "sha256:1",
                "lastState": {"terminated": {"reason": "OOMKilled", "exitCode": 137}},
            }
        ],
    }
    return {"metadata": metadata, "spec": manifest["spec"], "status": status}


def test_a_pod_is_read_alike_from_all_fields_and_from_the_kept_ones():
    raw = a_whole_pod()
    assert read_pod(select_pod_fields(raw)) == read_pod(raw)
    assert read_pod(raw).out_of_memory
    kept = copy.deepcopy(raw)
    kept["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
    kept["metadata"]["finalizers"] = ["kueue.x-k8s.io/managed"]
    target = {"type": "TerminationTarget", "status": "True", "reason": "Preempted", "message": "for llm-2"}
    kept["status"]["conditions"] = [target]
    assert read_pod(select_pod_fields(kept)) == read_pod(kept)
    assert read_pod(kept).gates
    assert read_pod(kept).disruption
    limited = copy.deepcopy(raw)
    limited["spec"]["containers"][0]["resources"] = LIMITED["resources"]
    assert "limit 64Gi" in read_pod(select_pod_fields(limited)).out_of_memory


@pytest.mark.parametrize("count", [1, 10, 100, 900])
def test_the_nodes_that_a_pod_avoids_are_kept_however_many_they_are(count: int):
    def raw() -> dict[str, Any]:
        manifest = a_whole_pod()
        nodes = ",".join(f"gke-training-a3-mega-pool-{number:04d}" for number in range(count))
        manifest["metadata"]["annotations"] |= {
            names.ANNOTATION_AVOIDED_NODES: nodes,
            names.ANNOTATION_LEAST_PREFERRED_NODES: nodes,
        }
        return manifest

    one, other = select_pod_fields(raw()), select_pod_fields(raw())
    pod = read_pod(one)
    assert (len(avoided_by(pod)), len(prefers_not(pod))) == (count, count)
    # a thousand such pods share one text in memory
    texts = [fields["metadata"]["annotations"][names.ANNOTATION_AVOIDED_NODES] for fields in (one, other)]
    assert texts[0] is texts[1]


def test_the_secret_that_an_injected_pod_mounts_is_kept():
    raw = inject(golden_pod("job"), IMAGE).pod
    raw["metadata"] |= {"name": "train-0-x", "uid": "u", "creationTimestamp": AT}
    assert read_pod(select_pod_fields(raw)) == read_pod(raw)
    uid = raw["metadata"]["labels"]["batch.kubernetes.io/controller-uid"]
    assert read_pod(raw).secrets == {f"job.train-{uid}-membership"}


def test_the_operators_secrets_that_a_pod_mounts_are_kept_and_the_users_are_not():
    raw = a_whole_pod()
    raw["spec"]["volumes"] += [
        {"name": names.ROLLOUT_VOLUME, "secret": {"secretName": "llm-job-uid-rollouts"}},
        {"name": "wandb", "secret": {"secretName": "wandb"}},
    ]
    fields = select_pod_fields(raw)
    mounted = {"llm-job-uid-membership", "facts", "llm-job-uid-rollouts"}
    assert read_pod(fields).secrets == read_pod(raw).secrets == mounted
    # a thousand such pods share the names in memory
    assert select_pod_fields(raw)["spec"]["volumes"] is fields["spec"]["volumes"]


def test_the_kubelets_condition_shows_whether_volumes_are_mounted():
    raw = a_whole_pod()
    assert not read_pod(raw).volumes_mounted
    raw["status"]["conditions"] = [{"type": "PodReadyToStartContainers", "status": "False"}]
    assert not read_pod(select_pod_fields(raw)).volumes_mounted
    raw["status"]["conditions"] = [{"type": "PodReadyToStartContainers", "status": "True"}]
    assert read_pod(select_pod_fields(raw)).volumes_mounted


def test_a_pod_that_is_stuck_or_has_failed_is_read_alike_from_the_kept_fields():
    raw = a_whole_pod()
    raw["metadata"] |= {"finalizers": ["a/b"], "deletionTimestamp": AT, "deletionGracePeriodSeconds": 0}
    raw["status"] |= {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no healthy devices present"}
    assert read_pod(select_pod_fields(raw)) == read_pod(raw)
    assert (read_pod(raw).blocking_finalizers, read_pod(raw).failure) == (
        ("a/b",),
        "UnexpectedAdmissionError: no healthy devices present",
    )
    raw["status"] = {
        "phase": "Pending",
        "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": AT}],
    }
    assert read_pod(select_pod_fields(raw)) == read_pod(raw)
    assert read_pod(raw).waiting_since


def test_a_pod_that_others_are_preempted_for_is_read_alike_from_the_kept_fields():
    raw = a_whole_pod()
    raw["status"]["nominatedNodeName"] = "n1"
    assert read_pod(select_pod_fields(raw)) == read_pod(raw)
    assert read_pod(raw).nominated_node == "n1"


def test_a_pod_that_has_just_been_created_is_read_alike_from_the_kept_fields():
    raw = {"metadata": POD["metadata"], "spec": {"initContainers": POD["spec"]["initContainers"]}}
    assert read_pod(select_pod_fields(raw)) == read_pod(raw)


def test_less_than_half_of_a_pod_is_kept():
    raw = a_whole_pod()
    assert len(json.dumps(select_pod_fields(raw))) < len(json.dumps(raw)) / 2


def test_a_node_is_read_alike_from_the_kept_fields_which_have_no_images():
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-02T03:04:05Z", "lastHeartbeatTime": "x"}
    raw = {
        "metadata": {"name": "n1", "labels": {"rack": "r1"}, "annotations": {"understudy.dev/faulty": "Xid 79"}},
        "spec": {"taints": [{"key": "node.kubernetes.io/out-of-service"}], "podCIDR": "10.0.0.0/24"},
        "status": {"conditions": [{"type": "DiskPressure", "status": "False"}, ready], "images": [{"names": ["x"]}]},
    }
    assert read_node(select_node_fields(raw)) == read_node(raw)
    kept = {name: ready[name] for name in ("type", "status", "lastTransitionTime")}
    assert select_node_fields(raw)["status"] == {"conditions": [{"type": "DiskPressure", "status": "False"}, kept]}


@pytest.mark.attack(
    "A1", "writes a message of 1 MB into a condition of its node", before="each read of the node took 80 s"
)
@pytest.mark.parametrize("character", ["x", "\N{SLIGHTLY SMILING FACE}"])
def test_the_beginning_of_a_nodes_long_message_is_kept(character: str):
    condition = {"type": "XIDErrors", "status": "True", "message": "Xid 79 " + character * 1_000_000}
    (kept,) = select_node_fields({"metadata": {"name": "n1"}, "status": {"conditions": [condition]}})["status"][
        "conditions"
    ]
    assert kept["message"] == "Xid 79 " + character * 4089
    # Python stores each character of a text in up to 4 bytes
    assert sys.getsizeof(kept["message"]) < 17_000


def test_the_beginning_of_a_nodes_long_annotation_is_kept_for_sources():
    long = "Xid 79 on GPU 3, and what the kernel said: " + "x" * LONGEST_ANNOTATION
    raw = {"metadata": {"name": "n1", "annotations": {"understudy.dev/faulty": long, "understudy.dev/other": "y"}}}
    kept = select_node_fields(raw)
    assert kept["metadata"]["annotations"] == {
        "understudy.dev/faulty": long[:LONGEST_ANNOTATION],
        "understudy.dev/other": "y",
    }
    blocked = read_node(kept).verdict_at(0.0)
    assert blocked is not None
    assert blocked.reason.startswith("Xid 79 on GPU 3")


def test_our_own_annotations_of_a_pod_are_kept_whole():
    avoids = ",".join(f"ip-10-0-{number}-17.eu-west-1.compute.internal" for number in range(100))
    own = {names.ANNOTATION_AVOIDED_NODES: avoids, names.ANNOTATION_LEAST_PREFERRED_NODES: avoids}
    raw = a_whole_pod()
    raw["metadata"]["annotations"] = {**own, "last-applied": "x" * (LONGEST_ANNOTATION + 1)}
    assert select_pod_fields(raw)["metadata"]["annotations"] == own


def test_a_long_annotation_is_not_kept_and_the_object_given_is_not_changed():
    manifest = "x" * (LONGEST_ANNOTATION + 1)
    raw = {"metadata": {"name": "a", "annotations": {"last-applied": manifest, "short": "y"}}, "spec": {"z": 1}}
    assert select_fields(raw) == {"metadata": {"name": "a", "annotations": {"short": "y"}}, "spec": {"z": 1}}
    assert raw["metadata"]["annotations"]["last-applied"] == manifest  # type: ignore[index]
