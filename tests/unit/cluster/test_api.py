"""When a node counts as Ready: reports from before its last boot do not count."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.cluster.api import Api

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp()


def stamp(seconds: float) -> str:
    return datetime.fromtimestamp(NOW + seconds, UTC).isoformat().replace("+00:00", "Z")


def api_with_answer(status: str, heartbeat_s: float, renewed_s: float = 0, taints: tuple[str, ...] = ()) -> Api:
    node = {
        "spec": {"taints": [{"key": key} for key in taints]},
        "status": {"conditions": [{"type": "Ready", "status": status, "lastHeartbeatTime": stamp(heartbeat_s)}]},
    }
    lease = {"spec": {"renewTime": stamp(renewed_s)}}

    class Canned(Api):
        def get(self, path: str, *, timeout_s: float = 5):
            return node if path == "/api/v1/nodes/node1" else lease

    return Canned(Path("unused"))


def test_a_ready_node_is_ready():
    assert api_with_answer("True", 0).node_is_ready("node1")


@pytest.mark.parametrize("status", ["False", "Unknown"])
def test_a_node_that_is_not_ready_is_not(status):
    assert not api_with_answer(status, 0).node_is_ready("node1")


def test_a_status_from_before_the_boot_does_not_count():
    assert not api_with_answer("True", -1).node_is_ready("node1", booted_at=NOW)
    assert api_with_answer("True", 0).node_is_ready("node1", booted_at=NOW + 0.4)


def test_a_lease_from_before_the_thaw_does_not_count():
    assert not api_with_answer("True", -60, renewed_s=-1).node_is_ready("node1", heartbeat_since=NOW)
    assert api_with_answer("True", -60, renewed_s=1).node_is_ready("node1", heartbeat_since=NOW)


def test_an_unreachable_node_is_not_ready():
    assert not api_with_answer("True", 0, taints=("node.kubernetes.io/unreachable",)).node_is_ready("node1")
    assert api_with_answer("True", 0, taints=("example.com/mine",)).node_is_ready("node1")
