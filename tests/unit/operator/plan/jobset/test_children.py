"""The resumption of a suspended Job, and the patch that it gets. All else about child Jobs is in scenarios/."""

import tracemalloc
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.operator.given import IMAGE, NOW, a_group, a_job, observed
from understudy_operator.observe.read_child import read_child
from understudy_operator.plan.facts import keys
from understudy_operator.plan.facts.observed import Observed
from understudy_operator.plan.facts.queue import Queue
from understudy_operator.plan.intents import CreateJob, DeleteJob, JobIntent, PatchJob
from understudy_operator.plan.jobset.children import merge_template, plan_children
from understudy_operator.plan.manifests.child_jobs import job_manifest


def resumed(**changes: Any) -> Observed:
    """A job that is resumed; its only Job is suspended."""
    group = a_group()
    job = a_job(spec={"replicated_jobs": (group,), "world": None})
    manifest = job_manifest(job, group, 0)
    manifest["metadata"] |= {"uid": "uid-0", "creationTimestamp": "2026-11-20T10:00:00Z"}
    manifest["spec"]["suspend"] = True
    return observed(job, (), children=(read_child(manifest),), **changes)


def planned(given: Observed) -> tuple[JobIntent, ...]:
    return plan_children(given, IMAGE, NOW)


def test_a_suspended_job_is_resumed_with_its_trainingjob():
    (intent,) = planned(resumed())
    assert isinstance(intent, PatchJob)
    assert intent.patch["spec"]["suspend"] is False


def test_no_job_is_resumed_while_the_spec_has_an_error():
    """The condition Invalid says that the job does not start."""
    assert planned(resumed(spec_error="replicatedJobs[1].replicas is 20001")) == ()


@pytest.mark.parametrize("how", ["a queue", "a label", "an annotation"])
def test_a_job_that_gets_another_queue_label_or_annotation_while_it_is_suspended_is_recreated(how: str):
    """Kueue never sees a Job that is resumed without its queue."""
    # given a suspended Job
    given = resumed()
    metadata = {"a label": {"labels": {"team": "a"}}, "an annotation": {"annotations": {"note": "a"}}}.get(how, {})
    # when the job is resumed with a change
    spec = replace(given.job.spec, replicated_jobs=(a_group(metadata=metadata),))
    job = replace(given.job, spec=spec, queue=Queue("research") if how == "a queue" else None)
    # then the Job is deleted, and the next reconcile creates it with the change
    (intent,) = planned(replace(given, job=job))
    assert isinstance(intent, DeleteJob)


def test_a_resumed_job_gets_the_numbers_of_the_changed_spec():
    # given a suspended Job, and a replicatedJob that was added before it
    given = resumed()
    spec = replace(given.job.spec, replicated_jobs=(a_group("driver", 3), a_group()))
    # when the job is resumed
    intents = planned(replace(given, job=replace(given.job, spec=spec)))
    # then the labels of the Job and of its pods have the new index
    (intent,) = [intent for intent in intents if isinstance(intent, PatchJob)]
    for metadata in (intent.patch["metadata"], intent.patch["spec"]["template"]["metadata"]):
        assert (metadata["labels"][keys.JOB_GLOBAL_INDEX], metadata["annotations"][keys.GLOBAL_REPLICAS]) == ("3", "4")


@pytest.mark.attack(
    "A1",
    "creates a TrainingJob of 1,000 Jobs whose template has 75,000 values",
    before="the plan had all manifests, of 5 GB: the operator was killed, again after each restart",
)
def test_a_plan_does_not_have_the_manifests_of_its_jobs():
    # given a job of 200 Jobs without a launcher, whose template has 500 variables
    variables = [{"name": f"V{number}", "value": ""} for number in range(500)]
    template = {"spec": {"containers": [{"name": "trainer", "env": variables}]}}
    job = a_job(spec={"replicated_jobs": (a_group("workers", 200, 1, template),), "world": None})
    tracemalloc.start()
    try:
        # when the operator plans to create them
        intents = planned(observed(job, ()))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # then the plan takes 1 MB at most: a manifest takes 0.2 MB, and is made when it is sent
    assert len(intents) == 200
    assert peak < 1 << 20
    last = intents[-1]
    assert isinstance(last, CreateJob)
    assert last.manifest["metadata"]["name"] == "llm-workers-199"


def test_fields_of_other_writers_stay_unless_the_operator_sets_them():
    present = {
        "metadata": {"labels": {"kept-by-merge": "a"}},
        "spec": {"tolerations": [{"key": "theirs"}, {"key": "both"}], "schedulingGates": [{"name": "theirs"}]},
    }
    wanted = {
        "metadata": {"labels": {"ours": "b"}, "annotations": {"c": "d"}},
        "spec": {"tolerations": [{"key": "both"}], "nodeSelector": {"pool": "a"}, "containers": []},
    }
    assert merge_template(present, wanted, {}) == {
        "metadata": {"labels": {"ours": "b"}, "annotations": {"c": "d"}},
        "spec": {
            "nodeSelector": {"pool": "a"},
            "tolerations": [{"key": "both"}, {"key": "theirs"}],
            "schedulingGates": [{"name": "theirs"}],
        },
    }


def test_a_field_that_the_operator_has_written_and_no_longer_wants_is_removed():
    present = {
        "metadata": {"labels": {"ours": "a", "theirs": "b"}},
        "spec": {
            "nodeSelector": {"pool": "a", "theirs": "b"},
            "tolerations": [{"key": "ours"}, {"key": "theirs"}],
            "schedulingGates": [{"name": "ours"}],
        },
    }
    wanted: dict[str, Any] = {"metadata": {"labels": {"new": "c"}}, "spec": {"nodeSelector": {"zone": "b"}}}
    written: dict[str, Any] = {
        "labels": ["ours", "gone-already"],
        "nodeSelector": ["pool"],
        "tolerations": [{"key": "ours"}],
        "schedulingGates": [{"name": "ours"}],
    }
    assert merge_template(present, wanted, written) == {
        "metadata": {"labels": {"ours": None, "new": "c"}, "annotations": {}},
        "spec": {
            "nodeSelector": {"pool": None, "zone": "b"},
            "tolerations": [{"key": "theirs"}],
            "schedulingGates": [],
        },
    }
