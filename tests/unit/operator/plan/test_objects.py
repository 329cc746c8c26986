"""The Secret and the Services that a job's pods need."""

from typing import Any

import pytest

from tests.unit.operator.given import a_job, observed
from understudy_operator.plan.jobset import keys
from understudy_operator.plan.objects import plan_objects
from understudy_protocol import pod as names

NOTHING: dict[str, Any] = {"has_secret": False, "has_hostnames_service": False, "coordinator_address": ""}


def planned(**given: Any) -> dict[str, dict[str, Any]]:
    intents = plan_objects(observed(a_job(), (), **given))
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
