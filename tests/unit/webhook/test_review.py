"""AdmissionReviews and their answers; and the validation of jobs when they are applied."""

import base64
import copy
import json
from typing import Any

import pytest

from tests.unit.webhook.golden import IMAGE, pod
from understudy_operator.plan.facts import keys
from understudy_operator.plan.injection.injected_pods import inject
from understudy_webhook.object_validation import find_objections
from understudy_webhook.review import NoReview, json_patch, mutate, read_request, validate

Raw = dict[str, Any]


def request(raw: Raw, kind: str = "Pod") -> Raw:
    return {"uid": "u-1", "kind": {"kind": kind}, "object": raw}


def response(review: Raw) -> Raw:
    assert (review["apiVersion"], review["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    assert review["response"]["uid"] == "u-1"
    return dict(review["response"])


def test_a_pod_with_the_label_is_admitted_with_a_patch() -> None:
    result = response(mutate(request(pod("job")), IMAGE))
    assert (result["allowed"], result["patchType"]) == (True, "JSONPatch")
    assert json.loads(base64.b64decode(result["patch"])) == json_patch(pod("job"), inject(pod("job"), IMAGE).pod)
    assert any("restartPolicy" in warning for warning in result["warnings"])


@pytest.mark.parametrize("label", ["false", "", "TRUE"])
def test_a_pod_without_the_label_is_never_touched(label: str) -> None:
    raw = pod("job")
    raw["metadata"]["labels"]["understudy.dev/inject"] = label
    assert response(mutate(request(raw), IMAGE)) == {"uid": "u-1", "allowed": True}


def test_a_pod_with_the_former_value_of_the_label_is_refused_with_the_new_one() -> None:
    raw = pod("job")
    raw["metadata"]["labels"]["understudy.dev/inject"] = "true"
    result = response(mutate(request(raw), IMAGE))
    expected = "label understudy.dev/inject is 'true', a value that is now named enabled: set it to enabled"
    assert (result["allowed"], result["status"]["message"]) == (False, f"understudy cannot inject this pod: {expected}")
    job = a_job(template=template())
    job["spec"]["template"]["metadata"]["labels"] = {"understudy.dev/inject": "true"}
    assert find_objections("Job", job) == [f"understudy cannot inject the pods of this Job: {expected}"]


def labeled(value: str) -> Raw:
    raw = template()
    raw["metadata"]["labels"]["understudy.dev/inject"] = value
    return raw


@pytest.mark.parametrize("value", ["Enabled", "yes", "enable", "TRUE"])
def test_a_label_with_a_wrong_value_is_rejected_when_the_job_is_applied(value: str) -> None:
    """Otherwise the job would silently train without Understudy."""
    why = f"label understudy.dev/inject is '{value}', so no pod would be injected: set it to enabled, or to disabled"
    for kind, raw in (
        ("Job", a_job(template=labeled(value))),
        ("JobSet", a_jobset(template(), labeled(value))),
        ("PyTorchJob", a_pytorch_job(labeled(value))),
    ):
        assert find_objections(kind, raw) == [f"understudy cannot inject the pods of this {kind}: {why}"]


@pytest.mark.parametrize("value", ["disabled", "false", ""])
def test_a_label_may_rule_out_injection(value: str) -> None:
    assert find_objections("Job", a_job(template=labeled(value), completionMode="NonIndexed")) == []


def test_other_objects_than_pods_are_never_touched() -> None:
    assert response(mutate(request(pod("job"), "Job"), IMAGE)) == {"uid": "u-1", "allowed": True}


def test_a_pod_that_is_injected_already_needs_no_patch() -> None:
    result = response(mutate(request(inject(pod("job"), IMAGE).pod), IMAGE))
    assert result == {"uid": "u-1", "allowed": True}


def test_a_template_drains_no_injected_pod() -> None:
    raw = pod("job")
    raw["metadata"].setdefault("annotations", {})["understudy.dev/drain"] = "always"
    assert "understudy.dev/drain" not in inject(raw, IMAGE).pod["metadata"]["annotations"]


def test_a_pod_that_cannot_be_injected_is_refused_with_the_reason() -> None:
    raw = pod("jobset")
    raw["metadata"].setdefault("annotations", {})["understudy.dev/launcher"] = "wrap"
    result = response(mutate(request(raw), IMAGE))
    assert not result["allowed"]
    assert result["status"]["message"].startswith(
        "understudy cannot inject this pod: annotation understudy.dev/launcher"
    )


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"apiVersion": "admission.k8s.io/v1beta1", "request": {"uid": "a"}}']
)
def test_a_body_that_is_no_review_is_rejected_with_a_message(body: bytes) -> None:
    with pytest.raises(NoReview):
        read_request(body)


# Jobs, when they are applied -----------------------------------------------------------------------------------------


def template(**annotations: str) -> Raw:
    result = {f"understudy.dev/{name.replace('_', '-')}": text for name, text in annotations.items()}
    metadata = {"labels": {"understudy.dev/inject": "enabled"}, "annotations": result}
    return {"metadata": metadata, "spec": {"containers": [{"name": "t", "command": ["python", "t.py"]}]}}


def without_command() -> Raw:
    raw = template()
    del raw["spec"]["containers"][0]["command"]
    return raw


def a_job(**spec: Any) -> Raw:
    ordinary = {"completionMode": "Indexed", "completions": 3, "parallelism": 3, "template": template()}
    return {"metadata": {"name": "train"}, "spec": {**ordinary, **spec}}


_IGNORED = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}


def fails_at(code: int) -> Raw:
    """A podFailurePolicy that ignores lost nodes, and ends the Job at an exit code of a pod."""
    return {"rules": [_IGNORED, {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [code]}}]}


def a_jobset(*templates: Raw) -> Raw:
    jobs: list[Raw] = [{"name": f"r{i}", "replicas": 2, "template": a_job(template=x)} for i, x in enumerate(templates)]
    return {"metadata": {"name": "train"}, "spec": {"replicatedJobs": jobs}}


def child_of(jobset: Raw, number: int = 0) -> Raw:
    """The first Job of a replicatedJob, as JobSet's controller creates it."""
    entry, name = jobset["spec"]["replicatedJobs"][number], jobset["metadata"]["name"]
    spec = copy.deepcopy(entry["template"]["spec"])
    labels = {keys.NAME: name, keys.UID: "u", keys.REPLICATED_JOB: entry["name"], keys.JOB_INDEX: "0"}
    spec["template"]["metadata"]["labels"] |= labels
    owner = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": name, "uid": "u", "controller": True}
    metadata = {"name": f"{name}-{entry['name']}-0", "labels": labels, "ownerReferences": [owner]}
    return {"metadata": metadata, "spec": spec}


def a_pytorch_job(template: Raw) -> Raw:
    replicas = {"Master": {"replicas": 1, "template": template}, "Worker": {"replicas": 3, "template": template}}
    return {"metadata": {"name": "train"}, "spec": {"pytorchReplicaSpecs": replicas}}


def training_job(**spec: Any) -> Raw:
    jobs: list[Raw] = [{"name": name, "template": {"spec": {"template": {"spec": {}}}}} for name in ("a", "b")]
    return {"metadata": {"name": "train", "namespace": "n"}, "spec": {"replicatedJobs": jobs, **spec}}


def in_a_circle() -> Raw:
    raw = training_job()
    for job, other in zip(raw["spec"]["replicatedJobs"], "ba", strict=True):
        job["dependsOn"] = [{"name": other, "status": "Ready"}]
    return raw


def with_pattern(text: str) -> Raw:
    rule = {"action": "FailJobSet", "onJobFailureMessagePatterns": [text]}
    return training_job(failurePolicy={"maxRestarts": 1, "rules": [rule]})


@pytest.mark.parametrize(
    ("kind", "raw"),
    [
        ("Job", a_job()),
        ("Job", a_job(template=template(spares="1"))),
        ("Job", a_job(podFailurePolicy={"rules": [_IGNORED]})),
        ("Job", a_job(podFailurePolicy=fails_at(42), template=template(launcher="None"))),
        ("Job", {"metadata": {"name": "x"}, "spec": {"template": {"spec": {}}}}),
        ("JobSet", a_jobset(template(spares="1", nproc_per_node="1"))),
        ("JobSet", {"metadata": {"name": "x"}, "spec": {"replicatedJobs": []}}),
        # two Jobs with three pods each; one Job alone has too few
        ("JobSet", a_jobset(template(spares="5"))),
        ("Job", child_of(a_jobset(template(spares="5")))),
        ("Job", child_of(a_jobset(template(min_pods="6"), template(min_pods="6")), 1)),
        ("PyTorchJob", a_pytorch_job(template())),
        ("TrainingJob", training_job()),
        ("ConfigMap", {"metadata": {}}),
    ],
)
def test_a_valid_job_is_admitted(kind: str, raw: Raw) -> None:
    assert find_objections(kind, raw) == []
    assert response(validate(request(raw, kind)))["allowed"]


@pytest.mark.parametrize(
    ("kind", "raw", "message"),
    [
        ("Job", a_job(completionMode="NonIndexed"), "spec.completionMode has to be Indexed"),
        ("Job", a_job(completions=5), "spec.completions is 5 and parallelism 3"),
        ("Job", a_job(backoffLimitPerIndex=1), "spec.backoffLimitPerIndex ends an index"),
        ("Job", a_job(podFailurePolicy=fails_at(42)), "spec.podFailurePolicy.rules[1] fails the Job at an exit code"),
        ("Job", a_job(template=template(spares="3")), "understudy.dev/spares is 3, but the job has 3 pods"),
        ("Job", a_job(template=template(min_pods="4")), "understudy.dev/min-pods is 4, but 3 pods train: lower it"),
        ("Job", a_job(template=template(spares="1", min_pods="3")), "min-pods is 3, but 2 pods train: lower it"),
        ("Job", a_job(template=template(min_pods="0")), "min-pods is '0': set it to the number of pods to shrink to"),
        ("Job", a_job(template=template(launcher="torchrun")), "set it to Auto, Wrap, Torchrun or None"),
        ("JobSet", a_jobset(template(spares="7")), "spares is 7, but the job has 6 pods, and at least"),
        ("JobSet", a_jobset(template(spares="-1")), "spares is '-1': set it to the number of pods that wait as spares"),
        ("JobSet", a_jobset(without_command()), "container t needs a command"),
        ("JobSet", a_jobset(template(container="x")), "understudy.dev/container is 'x': set it to one of t"),
        ("PyTorchJob", a_pytorch_job(template(nproc_per_node="auto")), "'auto': set it to the number of workers"),
        ("JobSet", a_jobset(template(), template(fork_server="false")), "r0, r1 train as one, but their annotations"),
        ("PyTorchJob", a_pytorch_job(template(spares="4")), "but the job has 4 pods"),
        ("TrainingJob", in_a_circle(), "dependsOn"),
        ("TrainingJob", with_pattern("("), "onJobFailureMessagePatterns"),
    ],
)
def test_an_invalid_job_is_rejected_when_it_is_applied(kind: str, raw: Raw, message: str) -> None:
    result = response(validate(request(raw, kind)))
    assert not result["allowed"]
    assert message in result["status"]["message"]


def with_command(*command: str, gpus: int = 0, **annotations: str) -> Raw:
    raw = template(**annotations)
    raw["spec"]["containers"][0] |= {"command": [*command], "resources": {"limits": {"nvidia.com/gpu": gpus}}}
    return raw


DIFFER = "their pods have different numbers of workers ({}), which are torchrun's --nproc-per-node or the limits"


def test_templates_whose_pods_have_different_numbers_of_workers_are_rejected() -> None:
    """The ranks of their pods would overlap, or would be missing."""
    eight, four = with_command("torchrun", "--nproc-per-node=8", "t.py"), with_command("python", "t.py", gpus=4)
    (found,) = find_objections("JobSet", a_jobset(eight, four))
    assert DIFFER.format("r0: 8, r1: 4") in found
    assert found.endswith("set annotation understudy.dev/nproc-per-node to one number")
    job = a_pytorch_job(eight)
    job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"] = with_command("torchrun", "t.py")
    (found,) = find_objections("PyTorchJob", job)
    assert DIFFER.format("master: 8, worker: 1") in found


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (with_command("torchrun", "--nproc-per-node=4", "t.py"), with_command("python", "t.py", gpus=4)),
        (with_command("python", "t", gpus=8, nproc_per_node="2"), with_command("python", "t", nproc_per_node="2")),
        (with_command("python", "t.py", gpus=8, launcher="None"), with_command("python", "t.py", launcher="None")),
    ],
    ids=["equal", "annotation", "no launcher"],
)
def test_templates_may_have_the_same_number_for_different_reasons(one: Raw, other: Raw) -> None:
    assert find_objections("JobSet", a_jobset(one, other)) == []


def test_a_pytorch_job_may_set_the_number_for_all_templates() -> None:
    job = a_pytorch_job(with_command("torchrun", "--nproc-per-node=8", "t.py"))
    job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"] = with_command("torchrun", "t.py")
    job["spec"]["nprocPerNode"] = "8"
    assert find_objections("PyTorchJob", job) == []


# Existing TrainingJobs ------------------------------------------------------------------------------------------------


def a_training_job(*claims: str, **spec: Any) -> Raw:
    policies = [{"templates": [{"metadata": {"name": name}} for name in claims]}]
    whole = {"replicatedJobs": [{"name": "workers", "template": a_job()}], "volumeClaimPolicies": policies, **spec}
    return {"metadata": {"name": "llm"}, "spec": whole}


def test_a_new_training_job_is_rejected_with_its_error_and_without_advice_for_existing_ones() -> None:
    result = response(validate(request(a_training_job("data", "data"), "TrainingJob")))
    assert result["status"]["message"] == (
        "volumeClaimPolicies[].templates[].metadata.name: two claims have the name data: rename or remove one of them"
    )


def test_an_existing_training_job_with_an_error_may_be_changed_and_deleted_but_gets_no_other_error() -> None:
    before = a_training_job("data", "data")
    suspended, worse = a_training_job("data", "data", suspend=True), a_training_job("data", "data", "logs", "logs")
    changes = [{**request(raw, "TrainingJob"), "oldObject": before} for raw in (suspended, worse)]
    assert [response(validate(change))["allowed"] for change in changes] == [True, False]
