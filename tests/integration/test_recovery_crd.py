"""Validation and columns of a Recovery by a real API server."""

import copy
import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.test_crd import CRDS, wait_until_found

if TYPE_CHECKING:
    from tests.integration.conftest import ApiServer

pytestmark = pytest.mark.timeout(240)  # the first test waits for the API server

RECOVERY: dict[str, Any] = {
    "apiVersion": "understudy.dev/v1alpha1",
    "kind": "Recovery",
    "metadata": {"name": "llm-20261120-100000-0a1b2", "namespace": "default"},
    "jobName": "llm",
    "fault": "Process",
    "cause": {"rank": 12, "pod": "llm-workers-0-1-abcde", "node": "node-7", "message": "RuntimeError: boom"},
    "strategy": "SpareSwap",
    "outcome": "Recovered",
    "round": 4,
    "detectedAt": "2026-11-20T10:00:00.000000Z",
    "pauseSeconds": 1.25,
    "lostSteps": 3,
    "gpuSecondsLost": 20.0,
}


@pytest.fixture(scope="module")
def cluster(api_server: "ApiServer") -> "ApiServer":
    applied = api_server.kubectl("apply", "-f", str(CRDS))
    assert applied.returncode == 0, applied.stderr
    wait_until_found(api_server, "get", "recoveries")
    return api_server


def test_the_columns_name_the_first_failure_and_the_cost(cluster: "ApiServer") -> None:
    created = cluster.kubectl("create", "-f", "-", stdin=json.dumps(RECOVERY))
    assert created.returncode == 0, created.stderr
    header, row = cluster.kubectl("get", "recoveries").stdout.splitlines()
    assert header.split() == ["NAME", "JOB", "FAULT", "POD", "RANK", "STRATEGY", "OUTCOME", "PAUSE", "AGE"]
    values = ["llm", "Process", "llm-workers-0-1-abcde", "12", "SpareSwap", "Recovered", "1.25"]
    assert row.split()[:-1] == ["llm-20261120-100000-0a1b2", *values]
    wide = cluster.kubectl("get", "recoveries", "-o", "wide").stdout.splitlines()
    assert {"NODE", "ROUND", "GPU-SECONDS", "LOST-STEPS", "MESSAGE"} < set(wide[0].split())
    assert {"node-7", "4", "20", "3"} < set(wide[1].split())
    explained = cluster.kubectl("explain", "recovery.cause.traceback").stdout
    assert "Python traceback" in " ".join(explained.split())


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("outcome", "Lost", "outcome: Unsupported value"),
        ("fault", "Flood", "fault: Unsupported value"),
        ("strategy", "Hope", "strategy: Unsupported value"),
        ("consequences", [{"rank": 1}] * 17, "consequences: Too many"),
        ("cause", {"traceback": "x" * 2001}, "cause.traceback: Too long"),
        ("phase", "Running", 'unknown field "phase"'),
    ],
)
def test_a_value_beyond_the_limits_is_rejected(cluster: "ApiServer", field: str, value: Any, message: str) -> None:
    given = copy.deepcopy(RECOVERY) | {field: value}
    given["metadata"]["name"] = "odd"
    created = cluster.kubectl("create", "--dry-run=server", "--validate=strict", "-f", "-", stdin=json.dumps(given))
    assert created.returncode != 0
    assert message in created.stderr
