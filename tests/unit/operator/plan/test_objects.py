"""The Secret and the Services that a job's pods need."""

from typing import Any

import pytest

from tests.unit.operator.given import A0, SUCCEEDED, a_job, condition, ended, observed, starting, status_of
from understudy_operator.plan.jobset import keys
from understudy_operator.plan.objects import plan_objects
from understudy_operator.plan.observed import Pod
from understudy_operator.plan.refusals import Refusal
from understudy_protocol import pod as names

NOTHING: dict[str, Any] = {"has_secret": False, "has_hostnames_service": False, "coordinator_address": ""}


def planned(*pods: Pod, **given: Any) -> dict[str, dict[str, Any]]:
    intents = plan_objects(observed(a_job(), pods, **given))
    return {intent.manifest["metadata"]["name"]: dict(intent.manifest) for intent in intents}


@pytest.mark.parametrize(
    ("there", "missing"),
    [
        (NOTHING, ["llm-membership", "llm-coordinator", "llm"]),
        (NOTHING | {"has_secret": True}, ["llm-coordinator", "llm"]),
        ({"coordinator_address": ""}, ["llm-coordinator"]),
        ({"has_hostnames_service": False}, ["llm"]),
        ({}, []),
    ],
)
def test_what_is_missing_is_created(there: dict[str, Any], missing: list[str]):
    assert list(planned(**there)) == missing


def test_the_key_is_this_passs_randomness_and_never_changes():
    secret = planned(**NOTHING, entropy="random")["llm-membership"]
    assert secret["stringData"] == {names.KEY_FILE: "random"}
    assert secret["immutable"] is True


def test_the_coordinators_service_selects_the_labelled_pod_also_while_it_is_not_ready():
    spec = planned(**NOTHING)["llm-coordinator"]["spec"]
    assert spec["selector"] == {names.LABEL_JOB_UID: "job-uid", names.LABEL_COORDINATOR: "true"}
    assert spec["publishNotReadyAddresses"] is True
    assert "clusterIP" not in spec  # it gets one, which pods are told instead of a name
    assert [port["port"] for port in spec["ports"]] == [names.COORDINATOR_PORT]


def test_the_hostnames_service_is_headless_and_has_all_pods():
    spec = planned(**NOTHING)["llm"]["spec"]
    assert spec == {
        "clusterIP": "None",
        "selector": {keys.UID: "job-uid"},
        "publishNotReadyAddresses": True,
    }


def test_all_are_the_jobs_and_can_be_found_as_such():
    for manifest in planned(**NOTHING).values():
        metadata = manifest["metadata"]
        assert metadata["namespace"] == "research"
        assert metadata["labels"] == {names.LABEL_JOB: "llm", names.LABEL_JOB_UID: "job-uid"}
        (owner,) = metadata["ownerReferences"]
        assert (owner["kind"], owner["uid"], owner["controller"]) == ("TrainingJob", "job-uid", True)


GONE: dict[str, Any] = {"has_secret": False}


def test_a_secret_that_was_deleted_under_running_pods_comes_back_with_the_same_key():
    secret = planned(A0, **GONE, known_key="the key", entropy="random")["llm-membership"]
    assert secret["stringData"] == {names.KEY_FILE: "the key"}


def test_with_a_key_that_nobody_knows_none_is_made_while_pods_run_and_the_job_says_what_to_do():
    given = observed(a_job(), (A0,), **GONE)
    assert plan_objects(given) == ()
    told = condition(status_of(given), "Blocked")
    assert (told["status"], told["reason"]) == ("True", "KeyLost")
    assert "restore the Secret from a copy, or delete the job's pods" in told["message"]


@pytest.mark.parametrize("pod", [ended(A0), starting(A0)])
def test_pods_that_do_not_run_know_no_key(pod: Pod):
    assert list(planned(pod, **GONE)) == ["llm-membership"]


def test_a_job_that_has_ended_misses_no_key():
    given = observed(a_job(), (A0, ended(A0, SUCCEEDED)), **GONE)
    assert condition(status_of(given), "Blocked")["status"] == "False"


def test_the_coordinators_service_comes_back_at_the_address_that_pods_were_told():
    given = {"coordinator_address": "", "told_address": "10.0.0.9:8478"}
    assert planned(A0, **given)["llm-coordinator"]["spec"]["clusterIP"] == "10.0.0.9"


def test_or_at_another_one_if_somebody_has_taken_that():
    given = {"coordinator_address": "", "told_address": "10.0.0.9:8478"}
    message = (
        'Service "llm-coordinator" is invalid: spec.clusterIPs: failed to allocate: provided IP is already allocated'
    )
    assert "clusterIP" not in planned(A0, **given, refusals=(Refusal(message),))["llm-coordinator"]["spec"]
