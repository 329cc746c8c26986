"""Which TrainingJobs have a launcher: the manifest alone decides, and a job without one says why."""

from typing import Any

import pytest

from understudy_operator.plan.facts.launcher_choice import LauncherChoice, LauncherReason, choose_launcher

ANNOTATION = "understudy.dev/jobset-compatible"
TRAINER: dict[str, Any] = {"name": "trainer", "command": ["python", "train.py"]}


def a_group(name: str = "workers", replicas: int = 1, pod: dict[str, Any] | None = None, **job: Any) -> dict[str, Any]:
    """As the API server returns it, with the CRD's defaults. pod: its pods' spec; job: other fields of the Job."""
    template = {"spec": {"containers": [TRAINER], "restartPolicy": "OnFailure"} if pod is None else pod}
    spec = {"parallelism": 4, "completions": 4, "completionMode": "Indexed", "backoffLimit": 0, "template": template}
    return {"name": name, "replicas": replicas, "template": {"spec": spec | job}}


def choose(
    *groups: dict[str, Any], name: str = "llm", annotations: dict[str, str] | None = None, **spec: Any
) -> LauncherChoice:
    return choose_launcher(name, {"replicatedJobs": list(groups or [a_group()]), **spec}, annotations or {})


@pytest.mark.parametrize(
    ("given", "annotations", "reason"),
    [
        ({"launcher": {}}, {}, LauncherReason.SET),
        ({"launcher": {"mode": "Torchrun"}}, {ANNOTATION: "true"}, LauncherReason.SET),
        ({"launcher": {"mode": "Off"}}, {}, LauncherReason.OFF),
        ({"launcher": {"mode": "Off"}}, {ANNOTATION: "true"}, LauncherReason.OFF),
        ({}, {ANNOTATION: "true"}, LauncherReason.JOBSET_COMPATIBLE),
        ({}, {ANNOTATION: "false"}, LauncherReason.DEFAULTED),
        ({}, {}, LauncherReason.DEFAULTED),
    ],
)
def test_the_launcher_the_annotation_and_then_the_template_decide(
    given: dict[str, Any], annotations: dict[str, str], reason: LauncherReason
):
    choice = choose(annotations=annotations, **given)
    assert choice.reason is reason
    assert choice.has_launcher is (reason in (LauncherReason.SET, LauncherReason.DEFAULTED))


def test_the_default_is_reported_with_the_way_back_to_a_jobset():
    assert choose().message == (
        "launcher is unset, so the job has the default launcher {}: after a fault, workers restart in place, and "
        "single pods are replaced. The image needs Python 3.9 and /bin/sh; without /bin/sh, create the job with "
        "launcher.python, the path of its Python. For the behavior of a JobSet, create the "
        'job with the annotation understudy.dev/jobset-compatible: "true"'
    )


@pytest.mark.parametrize(
    ("groups", "why"),
    [
        (
            [a_group("driver"), a_group()],
            "it has 2 replicatedJobs, and the manifest does not say which of them train as one: create it with "
            "launcher.targetReplicatedJobs",
        ),
        ([a_group(replicas=0)], "replicatedJobs[0] has 0 pods, and a launcher needs 1 to 20000: change replicas or"),
        ([a_group(replicas=5001)], "replicatedJobs[0] has 20004 pods, and a launcher needs 1 to 20000: change"),
        (
            [a_group(completions=8)],
            "replicatedJobs[0].template.spec.completions is 8 and parallelism 4, but all pods of a training run at "
            "the same time: set both to the same number",
        ),
        (
            [a_group(completionMode="NonIndexed")],
            "replicatedJobs[0].template.spec.completionMode is NonIndexed, but each pod of a training has its own",
        ),
        (
            [a_group(podFailurePolicy={"rules": []})],
            "replicatedJobs[0].template.spec.podFailurePolicy has no effect with a launcher: remove it, or set",
        ),
        (
            [a_group(pod={"containers": [{"name": "trainer"}]})],
            "replicatedJobs[0].template.spec.template.spec.containers[0] has no command, and the launcher cannot start",
        ),
        (
            [a_group(pod={"containers": [TRAINER | {"command": ["bash", "-c", "echo python-free; sleep 5"]}]})],
            "replicatedJobs[0].template.spec.template.spec.containers[0].command names no Python program and no script",
        ),
        (
            [a_group(pod={"containers": [TRAINER | {"command": ["deepspeed", "train.py"]}]})],
            "replicatedJobs[0].template.spec.template.spec.containers[0]: deepspeed starts the processes of a pod",
        ),
        (
            [a_group(pod={"containers": [TRAINER | {"restartPolicy": "Always"}]})],
            "replicatedJobs[0].template.spec.template.spec: restartPolicy Always of container trainer would make the "
            "kubelet restart the launcher: remove it",
        ),
        (
            [a_group("w" * 48)],
            "metadata.name and replicatedJobs[0].name have more than 50 characters together, and names of spares",
        ),
    ],
)
def test_a_job_that_can_have_none_behaves_as_a_jobset_and_reports_why(groups: list[dict[str, Any]], why: str):
    choice = choose(*groups)
    assert choice.reason is LauncherReason.NOT_POSSIBLE
    assert choice.message.startswith(
        f"the job has no launcher, and behaves as a JobSet, which recreates its Jobs after a fault: {why}"
    )
    assert choice.message.endswith(
        'If you want a JobSet, create it with the annotation understudy.dev/jobset-compatible: "true"'
    )


def test_the_longest_names_that_fit_have_a_launcher():
    assert choose(a_group("w" * 47)).has_launcher


def test_fields_without_an_effect_are_named():
    spec: dict[str, Any] = {"spares": {"replicas": 1}, "elastic": {"minPods": 1}, "faults": {}}
    policy = {"restartStrategy": "InPlaceRestart"}
    assert choose(**spec, failurePolicy=policy).needing_fields == (
        "spares",
        "elastic",
        "faults",
        "failurePolicy.restartStrategy InPlaceRestart",
    )
    assert choose(spares={"replicas": 0}, failurePolicy={"restartStrategy": "Recreate"}).needing_fields == ()
    assert choose(spares={"replicas": 0, "pool": "shared"}).needing_fields == ("spares",)
