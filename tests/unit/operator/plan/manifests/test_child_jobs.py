"""Child Jobs, volume claims and pods of the world as they are created: with the fields that JobSet and the Job
controller set.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.operator.given import IMAGE, TEMPLATE, a_group, a_job
from understudy_operator.plan.facts import keys
from understudy_operator.plan.facts.job import Job
from understudy_operator.plan.facts.queue import Queue
from understudy_operator.plan.facts.spec import CoordinatorPod, Exclusive, Network, ReplicatedJob, VolumeClaim
from understudy_operator.plan.manifests.child_jobs import FINGERPRINT, claim_manifest, job_fingerprint, job_manifest
from understudy_operator.plan.manifests.pods import pod_manifest
from understudy_protocol import pod as names

LEADER = a_group("leader", 1, 1, group="lead")
WORKERS = a_group("workers", 3, 2, metadata={"labels": {"team": "a"}, "annotations": {"note": "x"}})
EXTRA = a_group("extra", 2, 1)


def job_of(*groups: ReplicatedJob, status: Mapping[str, Any] | None = None, **spec: Any) -> Job:
    given = {"replicated_jobs": groups or (LEADER, WORKERS, EXTRA), "world": None, **spec}
    return a_job(status=status, spec=given)


def made(job: Job | None = None, group: ReplicatedJob = WORKERS, index: int = 1) -> dict[str, Any]:
    return job_manifest(job or job_of(), group, index)


def pod_spec(manifest: Mapping[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = manifest["spec"]["template"]["spec"]
    return spec


JOBSETS_LABELS = {
    "jobset.sigs.k8s.io/jobset-name": "llm",
    "jobset.sigs.k8s.io/jobset-uid": "job-uid",
    "jobset.sigs.k8s.io/replicatedjob-name": "workers",
    "jobset.sigs.k8s.io/replicatedjob-replicas": "3",
    "jobset.sigs.k8s.io/global-replicas": "6",
    "jobset.sigs.k8s.io/job-index": "1",
    "jobset.sigs.k8s.io/job-global-index": "2",
    "jobset.sigs.k8s.io/group-name": "default",
    "jobset.sigs.k8s.io/group-replicas": "5",
    "jobset.sigs.k8s.io/job-group-index": "1",
    "jobset.sigs.k8s.io/restart-attempt": "0",
    "jobset.sigs.k8s.io/job-restart-attempt": "0",
    "jobset.sigs.k8s.io/job-key": hashlib.sha1(b"research/llm-workers-1").hexdigest(),
}


def test_a_job_is_named_owned_and_labelled_as_jobset_does_it_and_as_ours():
    metadata = made()["metadata"]
    assert (metadata["name"], metadata["namespace"]) == ("llm-workers-1", "research")
    assert metadata["ownerReferences"][0]["uid"] == "job-uid"
    own = {names.LABEL_JOB: "llm", names.LABEL_JOB_UID: "job-uid", names.LABEL_REPLICATED_JOB: "workers"}
    assert metadata["labels"] == {"team": "a", **JOBSETS_LABELS, **own}
    assert metadata["annotations"].items() >= {"note": "x", **JOBSETS_LABELS}.items()


def test_a_child_job_has_no_ttl_so_that_it_stays_as_long_as_the_training_job():
    """A deleted Job is recreated: one that had succeeded would run again, and a failure would be forgotten."""
    brief = a_group("workers", 3, 2, job_spec={"ttlSecondsAfterFinished": 60, "backoffLimit": 3})
    spec = made(job_of(LEADER, brief, EXTRA), brief)["spec"]
    assert "ttlSecondsAfterFinished" not in spec
    assert spec["backoffLimit"] == 3
    assert brief.job_spec["ttlSecondsAfterFinished"] == 60


def test_pods_of_a_child_job_have_its_labels_and_do_not_count_as_pods_of_the_world():
    metadata = made()["spec"]["template"]["metadata"]
    assert metadata["labels"] == {
        **JOBSETS_LABELS,
        names.LABEL_JOB: "llm",
        names.LABEL_REPLICATED_JOB: "workers",
    }
    assert metadata["annotations"] == JOBSETS_LABELS


def test_other_metadata_of_the_pod_template_stays():
    template = {**TEMPLATE, "metadata": {"finalizers": ["example.com/billing"], "labels": {"a": "b"}}}
    group = a_group(pod_template=template)
    metadata = made(job_of(group), group, 0)["spec"]["template"]["metadata"]
    assert metadata["finalizers"] == ["example.com/billing"]
    assert metadata["labels"].items() >= {"a": "b", keys.JOB_INDEX: "0"}.items()


def test_indexes_count_over_the_job_and_within_the_group():
    labels = made(group=EXTRA)["metadata"]["labels"]
    assert (labels[keys.JOB_GLOBAL_INDEX], labels[keys.JOB_GROUP_INDEX]) == ("5", "4")
    first = made(group=LEADER, index=0)["metadata"]["labels"]
    assert (first[keys.JOB_GLOBAL_INDEX], first[keys.JOB_GROUP_INDEX], first[keys.GROUP_REPLICAS]) == ("0", "0", "1")


def test_the_labels_have_the_attempts_of_the_training_job_and_of_this_job():
    status = {"restarts": 2, "replicatedJobsStatus": [{"name": "workers", "jobRestarts": [0, 3, 0]}]}
    labels = made(job_of(status=status))["metadata"]["labels"]
    assert (labels[keys.RESTART_ATTEMPT], labels[keys.JOB_RESTART_ATTEMPT]) == ("2", "3")


def test_the_spec_is_the_users_with_the_defaults_of_an_indexed_job():
    group = a_group("workers", 1, 4, job_spec={"backoffLimit": 3, "podFailurePolicy": {"rules": []}, "suspend": True})
    spec = made(job_of(group), group, 0)["spec"]
    assert (spec["backoffLimit"], spec["podFailurePolicy"]) == (3, {"rules": []})
    assert (spec["parallelism"], spec["completions"], spec["completionMode"]) == (4, 4, "Indexed")
    assert spec["suspend"] is False  # the TrainingJob's own field counts
    assert spec["template"]["spec"]["restartPolicy"] == "OnFailure"
    assert spec["template"]["spec"]["containers"] == TEMPLATE["spec"]["containers"]


def test_a_nonindexed_job_stays_nonindexed():
    group = a_group(job_spec={"completionMode": "NonIndexed"})
    spec = made(job_of(group), group, 0)["spec"]
    assert "completions" not in spec
    assert spec["completionMode"] == "NonIndexed"


def test_child_jobs_of_a_suspended_job_are_suspended():
    assert made(job_of(suspend=True))["spec"]["suspend"] is True


@pytest.mark.parametrize(
    ("network", "subdomain"),
    [(Network(), "llm"), (Network(subdomain="net"), "net"), (Network(hostnames=False), None)],
)
def test_pods_have_the_subdomain_of_the_specs_network(network: Network, subdomain: str | None):
    assert pod_spec(made(job_of(network=network))).get("subdomain") == subdomain


def test_all_pods_have_the_label_of_jobsets_coordinator():
    manifest = made(job_of(coordinator=CoordinatorPod("leader", 0, 0), network=Network(subdomain="net")))
    for metadata in (manifest["metadata"], manifest["spec"]["template"]["metadata"]):
        assert metadata["labels"][keys.COORDINATOR] == metadata["annotations"][keys.COORDINATOR] == "llm-leader-0-0.net"


# Placement ----------------------------------------------------------------------------------------------------------


def test_exclusive_jobs_keep_together_and_repel_each_other():
    group = a_group("workers", 3, 2, exclusive=Exclusive("rack"))
    manifest = made(job_of(group), group)
    key = manifest["metadata"]["labels"][keys.JOB_KEY]
    affinity = pod_spec(manifest)["affinity"]
    (together,) = affinity["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (separate,) = affinity["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert together["topologyKey"] == separate["topologyKey"] == "rack"
    assert together["labelSelector"]["matchExpressions"] == [{"key": keys.JOB_KEY, "operator": "In", "values": [key]}]
    assert separate["labelSelector"]["matchExpressions"][1] == {
        "key": keys.JOB_KEY,
        "operator": "NotIn",
        "values": [key],
    }
    assert manifest["spec"]["template"]["metadata"]["annotations"][keys.EXCLUSIVE] == "rack"


def test_nodes_that_are_labelled_for_a_job_are_selected():
    group = a_group("workers", 3, 2, exclusive=Exclusive("rack", node_selector=True))
    spec = pod_spec(made(job_of(group), group))
    assert spec["nodeSelector"] == {keys.NAMESPACED_JOB: "research_llm-workers-1"}
    assert spec["tolerations"] == [{"key": keys.NO_SCHEDULE, "operator": "Exists", "effect": "NoSchedule"}]
    assert "affinity" not in spec


# Volumes ------------------------------------------------------------------------------------------------------------

MOUNTS = {"spec": {"containers": [{"name": "c", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}]}}
CLAIM = VolumeClaim("data", {"metadata": {"name": "data", "labels": {"a": "b"}}, "spec": {"accessModes": []}})


def test_a_claim_is_a_volume_of_the_pods_that_mount_it():
    mounting, other = a_group("workers", 1, 1, MOUNTS), a_group("leader")
    job = job_of(mounting, other, claims=(CLAIM,))
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "data-llm"}}
    assert pod_spec(made(job, mounting, 0))["volumes"] == [volume]
    assert "volumes" not in pod_spec(made(job, other, 0))


@pytest.mark.parametrize(("retained", "owners"), [(False, 1), (True, 0)])
def test_a_volume_claim_is_deleted_with_the_job_unless_it_is_retained(retained: bool, owners: int):
    claim = VolumeClaim(CLAIM.name, CLAIM.template, retained)
    manifest = claim_manifest(job_of(claims=(claim,)), claim)
    assert manifest["metadata"]["name"] == "data-llm"
    assert manifest["metadata"]["labels"].items() >= {"a": "b", keys.NAME: "llm"}.items()
    assert manifest["spec"] == {"accessModes": []}
    assert len(manifest["metadata"].get("ownerReferences", [])) == owners


# The fingerprint of a Job's template --------------------------------------------------------------------------------


def changed(**changes: Any) -> dict[str, Any]:
    template = {"metadata": {}, "spec": {**TEMPLATE["spec"], **changes}}
    group = a_group(pod_template=template)
    return job_manifest(job_of(group), group, 0)


def test_the_fingerprint_omits_fields_that_may_be_changed_while_the_job_is_suspended():
    annotations = changed()["metadata"]["annotations"][FINGERPRINT]
    selected = changed(nodeSelector={"pool": "a"}, tolerations=[{"key": "t"}], schedulingGates=[{"name": "g"}])
    assert selected["metadata"]["annotations"][FINGERPRINT] == annotations
    assert changed(containers=[])["metadata"]["annotations"][FINGERPRINT] != annotations
    assert job_fingerprint({**changed()["spec"], "suspend": True}, {}) == annotations
    assert job_fingerprint({**changed()["spec"], "backoffLimit": 9}, {}) != annotations


def test_the_fingerprint_has_the_labels_annotations_and_queue_that_users_choose_for_a_job():
    def fingerprint(queue: Queue | None = None, *before: ReplicatedJob, **metadata: dict[str, str]) -> str:
        group = a_group(metadata=metadata)
        job = replace(job_of(*before, group), queue=queue)
        return str(job_manifest(job, group, 0)["metadata"]["annotations"][FINGERPRINT])

    assert fingerprint(labels={}, annotations={}) == fingerprint()
    assert fingerprint(labels={"team": "a"}) != fingerprint()
    assert fingerprint(annotations={"note": "a"}) != fingerprint()
    assert fingerprint(Queue("research")) != fingerprint()
    # and not the indexes of the Job, which a resumption updates
    assert fingerprint(None, LEADER) == fingerprint()


# Pods of the world --------------------------------------------------------------------------------------------------


def world_pod(index: int | None, status: Mapping[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    group = a_group("workers", 2, 3, **changes)
    job = a_job(status=status, spec={"replicated_jobs": (LEADER, group)}, groups=(LEADER, group), container="")
    return pod_manifest(job, index=index, serial="1", facts="facts", sidecar_image=IMAGE)


def test_a_pod_of_the_world_has_the_fields_that_jobset_and_the_job_controller_set():
    pod = world_pod(5)
    labels, annotations = pod["metadata"]["labels"], pod["metadata"]["annotations"]
    assert (labels[keys.JOB_INDEX], labels[keys.JOB_GLOBAL_INDEX], labels[keys.COMPLETION_INDEX]) == ("1", "2", "1")
    assert labels[keys.JOB_NAME] == labels[keys.LEGACY_JOB_NAME] == "llm-workers-1"
    assert labels[keys.CONTROLLER_UID] == labels[keys.LEGACY_CONTROLLER_UID] == "job-uid"
    assert annotations[keys.COMPLETION_INDEX] == "1"
    assert annotations[keys.REPLICATED_JOB] == "workers"
    assert (pod["spec"]["hostname"], pod["spec"]["subdomain"]) == ("llm-workers-1-1", "llm")


def test_a_spare_belongs_to_no_job_and_carries_no_index():
    labels = world_pod(None)["metadata"]["labels"]
    assert labels[keys.REPLICATED_JOB] == "leader"
    indexes = {keys.JOB_INDEX, keys.JOB_GLOBAL_INDEX, keys.JOB_GROUP_INDEX, keys.JOB_KEY, keys.COMPLETION_INDEX}
    assert not labels.keys() & (indexes | {keys.JOB_NAME, keys.LEGACY_JOB_NAME})


def exclusive_pod(index: int | None, *, node_selector: bool = False) -> dict[str, Any]:
    """A pod of a job with the annotations of exclusive placement on its template."""
    annotations = {"note": "x", keys.EXCLUSIVE: "rack"} | ({keys.NODE_SELECTOR: "true"} if node_selector else {})
    group = a_group(metadata={"annotations": annotations}, exclusive=Exclusive("rack", node_selector))
    job = a_job(spec={"replicated_jobs": (group,)}, groups=(group,))
    return pod_manifest(job, index=index, serial="1", facts="facts", sidecar_image=IMAGE)


def test_a_spare_has_no_placement_rules_and_an_exclusive_jobs_pods_have_them():
    assert "affinity" in exclusive_pod(1)["spec"]
    assert "affinity" not in exclusive_pod(None)["spec"]
    assert "nodeSelector" in exclusive_pod(1, node_selector=True)["spec"]
    assert "nodeSelector" not in exclusive_pod(None, node_selector=True)["spec"]


def test_a_spare_has_no_annotations_of_exclusive_placement():
    """With the annotation JobSet's webhook, if it is installed, would look for the first pod of the spare's Job, find
    none, and reject the spare.
    """
    placement = {keys.EXCLUSIVE: "rack", keys.NODE_SELECTOR: "true"}
    assert exclusive_pod(1, node_selector=True)["metadata"]["annotations"].items() >= placement.items()
    annotations = exclusive_pod(None, node_selector=True)["metadata"]["annotations"]
    assert annotations["note"] == "x"
    assert not annotations.keys() & placement.keys()


def test_pods_of_a_later_attempt_report_it_and_belong_to_a_membership_of_their_own():
    first, later = world_pod(0), world_pod(0, {"coordinator": {"epoch": 7, "formerEpoch": 7}, "restarts": 1})
    assert names.LABEL_ATTEMPT not in first["metadata"]["labels"]
    assert later["metadata"]["labels"][names.LABEL_ATTEMPT] == "7"
    assert later["metadata"]["labels"][keys.RESTART_ATTEMPT] == "1"

    def key_secret(pod: Mapping[str, Any]) -> str:
        (volume,) = [x for x in pod["spec"]["volumes"] if x["name"] == names.POD_VOLUME]
        return str(volume["projected"]["sources"][0]["secret"]["name"])

    assert (key_secret(first), key_secret(later)) == ("llm-job-uid-membership", "llm-job-uid-membership-7")
