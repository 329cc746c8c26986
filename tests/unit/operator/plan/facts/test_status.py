"""The parts of a stored status that the operator can rely on."""

from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec
import pytest
import yaml

from understudy_operator.plan.facts.status import (
    JobStatus,
    PoolStatus,
    Record,
    read_job_status,
    read_pool_status,
    written,
)

CRDS = Path(__file__).parents[5] / "crds"
AT = "2026-11-20T10:00:00Z"
CAUSE = {"pod": "p", "node": "n1", "message": "m", "rank": 1}
RECOVERY = {
    "fault": "Node",
    "strategy": "JobRestart",
    "round": 1,
    "detectedAt": AT,
    "cause": CAUSE,
    "pauseSeconds": 1.5,
}


def described(kind: Any) -> Any:
    """The fields of a record, and their own fields: as `fields_of` derives them from a CRD."""
    if get_origin(kind) in (tuple, Annotated, UnionType, Union):
        return described(get_args(kind)[0])
    if not issubclass(kind, Record):
        return None
    return {field.encode_name: described(field.type) for field in msgspec.structs.fields(kind)}


def fields_of(schema: Any) -> Any:
    if schema.get("type") == "array":
        return fields_of(schema["items"])
    if "properties" not in schema:
        return None
    return {name: fields_of(field) for name, field in schema["properties"].items()}


@pytest.mark.parametrize(
    ("crd", "shape"),
    [("trainingjobs", JobStatus), ("injectedjobs", JobStatus), ("hotsparepools", PoolStatus)],
    ids=["TrainingJob", "InjectedJob", "HotSparePool"],
)
def test_all_fields_of_the_crd_are_known(crd: str, shape: Any) -> None:
    (version,) = yaml.safe_load((CRDS / f"{crd}.yaml").read_text())["spec"]["versions"]
    assert described(shape) == fields_of(version["schema"]["openAPIV3Schema"]["properties"]["status"])


def test_a_valid_status_is_read_unchanged() -> None:
    condition = {"type": "Ready", "status": "True", "reason": "r", "message": "m", "lastTransitionTime": AT}
    status = {"round": 3, "phase": "Running", "recoveries": [RECOVERY], "conditions": [condition], "startTime": AT}
    read, wrong = read_job_status({"status": status})
    assert wrong == ""
    assert written(read) == written(JobStatus()) | status
    assert read_job_status({}) == (JobStatus(), "")


@pytest.mark.parametrize(
    ("field", "value", "read"),
    [
        ("round", "three", None),
        ("round", 10**400, None),
        ("round", [3], None),
        ("restarts", -1, None),
        ("startTime", "soon", None),
        ("recoveries", [RECOVERY, {"fault": "Node"}, {"detectedAt": AT}, 3], [RECOVERY]),
        ("recoveries", [{**RECOVERY, "fault": "Other"}], []),
        ("recoveries", [{**RECOVERY, "pauseSeconds": 1e300}], []),
        ("recoveries", [{**RECOVERY, "strategy": "Magic"}], []),
        ("terminalState", "Exploded", None),
        ("conditions", [{"type": "Ready", "status": "True", "lastTransitionTime": "yesterday"}], []),
        ("coordinator", {"epoch": 2**60}, None),
        ("replicatedJobsStatus", [{"name": "a", "jobRestarts": ["x"]}, {"name": "b"}], [{"name": "b"}]),
    ],
)
def test_a_field_of_another_type_is_left_out_and_all_others_are_read(field: str, value: Any, read: Any) -> None:
    status, wrong = read_job_status({"status": {"phase": "Running", field: value}})
    valid = {"phase": "Running"} | ({} if read is None else {field: read})
    assert (status, "") == read_job_status({"status": valid})
    assert wrong.startswith(f"status.{field}: ")


def test_missing_required_fields_of_a_recovery_are_filled_in() -> None:
    status, wrong = read_job_status({"status": {"recoveries": [{"fault": "Node", "detectedAt": AT}]}})
    cause = {"pod": "", "node": "", "message": ""}
    assert written(status)["recoveries"] == [{"fault": "Node", "detectedAt": AT, "round": -1, "cause": cause}]
    assert wrong == ""


@pytest.mark.parametrize("status", [3, [], "x", None])
def test_a_status_that_is_no_object_is_read_as_empty(status: Any) -> None:
    result, wrong = read_job_status({"status": status})
    assert result == JobStatus()
    assert wrong.startswith("status: ")


def test_a_pool_status_with_invalid_numbers_is_read_without_them() -> None:
    auto = {"nodeDays": "2.5", "failures": "many", "countedUntil": AT}
    status, wrong = read_pool_status({"status": {"desired": 1, "autoSize": auto}})
    assert status == PoolStatus(desired=1)
    assert wrong.startswith("status.autoSize: ")
    assert read_pool_status({"status": {"autoSize": {**auto, "failures": "0.5"}}})[1] == ""
