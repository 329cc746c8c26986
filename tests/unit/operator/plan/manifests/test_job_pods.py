"""The pod that the Job controller would create for an index of an Indexed Job."""

from __future__ import annotations

from typing import Any

from understudy_operator.plan.facts.cluster_objects import ChildJob
from understudy_operator.plan.manifests.job_pods import job_pod

INDEX = "batch.kubernetes.io/job-completion-index"
TEMPLATE: dict[str, Any] = {
    "metadata": {
        "creationTimestamp": None,
        "labels": {"app": "llm", "batch.kubernetes.io/controller-uid": "job-uid"},
        "annotations": {"understudy.dev/spares": "1"},
        "finalizers": ["example.com/billing"],
    },
    "spec": {
        "restartPolicy": "Never",
        "initContainers": [{"name": "fetch"}],
        "containers": [
            {"name": "trainer", "env": [{"name": "A", "value": "1"}]},
            {"name": "logs", "env": [{"name": "JOB_COMPLETION_INDEX", "value": "own"}]},
        ],
    },
}


def job(name: str = "llm", template: dict[str, Any] = TEMPLATE) -> ChildJob:
    return ChildJob("job-uid", name, "", 0, 0, 0, 3, template=template)


def test_the_pod_has_the_index_where_the_job_controller_would_write_it() -> None:
    pod = job_pod(job(), 2, "x")
    metadata, spec = pod["metadata"], pod["spec"]
    assert metadata["labels"] == {"app": "llm", "batch.kubernetes.io/controller-uid": "job-uid", INDEX: "2"}
    assert metadata["annotations"] == {"understudy.dev/spares": "1", INDEX: "2"}
    assert spec["hostname"] == "llm-2"
    variable = {
        "name": "JOB_COMPLETION_INDEX",
        "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{INDEX}']"}},
    }
    fetch, (trainer, logs) = spec["initContainers"][0], spec["containers"]
    assert fetch["env"] == [variable]
    assert trainer["env"] == [{"name": "A", "value": "1"}, variable]
    # and a container that sets the variable itself keeps its value
    assert logs["env"] == [{"name": "JOB_COMPLETION_INDEX", "value": "own"}]


def test_the_job_controls_and_counts_the_pod() -> None:
    metadata = job_pod(job(), 2, "x")["metadata"]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "llm", "uid": "job-uid", "controller": True}
    assert metadata["ownerReferences"] == [owner]
    assert metadata["finalizers"] == ["example.com/billing", "batch.kubernetes.io/job-tracking"]


def test_names_are_unique_and_as_long_as_those_that_kubernetes_generates() -> None:
    names = {job_pod(job(), 2, serial)["metadata"]["name"] for serial in ("a", "b")}
    assert len(names) == 2
    assert {name[:6] for name in names} == {"llm-2-"}
    long = job_pod(job("j" * 63), 12, "a")["metadata"]["name"]
    assert long.startswith(f"{'j' * 54}-12-")
    assert len(long) == 63


def test_a_template_without_metadata_and_environment_is_enough() -> None:
    pod = job_pod(job(template={"spec": {"containers": [{"name": "trainer"}]}}), 0, "x")
    assert pod["metadata"]["labels"] == {INDEX: "0"}
    assert [x["name"] for x in pod["spec"]["containers"][0]["env"]] == ["JOB_COMPLETION_INDEX"]


def test_the_template_of_the_job_stays_as_it_was() -> None:
    job_pod(job(), 2, "x")
    assert "hostname" not in TEMPLATE["spec"]
    assert TEMPLATE["spec"]["initContainers"] == [{"name": "fetch"}]
