"""The reason of a pod's failure, as a text for a condition."""

from typing import Any

import pytest

from understudy_operator.observe import read
from understudy_operator.runtime.kept_fields import PodStatus, select_pod_fields
from understudy_protocol import pod as names

CLOSE = '{"type":"Close","reason":"Failed"}'


def kept(status: dict[str, Any]) -> PodStatus:
    """The fields that the operator keeps of a pod with that status."""
    selected: PodStatus = select_pod_fields({"metadata": {"name": "llm-0"}, "status": status})["status"]
    return selected


def failure(status: dict[str, Any]) -> str:
    return read.failure(kept(status))


def could_start(status: dict[str, Any], *, sidecar_ran: bool) -> bool:
    return read.could_start(kept(status), sidecar_ran)


def ended(name: str, exit_code: int, **more: Any) -> dict[str, Any]:
    return {"name": name, "state": {"terminated": {"exitCode": exit_code, **more}}}


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (
            {"reason": "UnexpectedAdmissionError", "message": "no healthy devices present"},
            "UnexpectedAdmissionError: no healthy devices present",
        ),
        ({"reason": "Evicted"}, "Evicted"),
        (
            {"containerStatuses": [ended("logs", 0), ended("trainer", 128, reason="StartError", message="no /bin/sh")]},
            "container trainer ended with exit code 128: StartError: no /bin/sh",
        ),
        (
            {"initContainerStatuses": [ended(names.SIDECAR_CONTAINER, 1, message=CLOSE), ended("fetch", 2)]},
            "container fetch ended with exit code 2",
        ),
        ({"message": "gone with its node"}, "gone with its node"),
        ({}, ""),
    ],
)
def test_the_kubelets_message_comes_first_then_the_first_container_that_failed(status: dict[str, Any], words: str):
    assert failure({"phase": "Failed", **status}) == words
    assert failure({"phase": "Running", **status}) == ""


def test_a_pod_could_not_start_if_its_sidecar_never_ran_or_a_container_could_not_start():
    failed = {"phase": "Failed", "containerStatuses": [ended("trainer", 1, reason="Error")]}
    no_shell = {"phase": "Failed", "containerStatuses": [ended("trainer", 128, reason="StartError")]}
    assert could_start(failed, sidecar_ran=True)
    assert not could_start(failed, sidecar_ran=False)
    assert not could_start(no_shell, sidecar_ran=True)
    assert could_start({"phase": "Pending"}, sidecar_ran=False)
