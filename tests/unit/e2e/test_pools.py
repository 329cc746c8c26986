"""A watch of a pool's pods shows how many spares a job could claim."""

import json
from typing import Any

import pytest

from tests.e2e.pools import Claimable


def event(kind: str, uid: str, ready: str = "True", labels: dict[str, str] | None = None, **metadata: str) -> bytes:
    pod = {
        "metadata": {"uid": uid, "labels": {"understudy.dev/pool": "shared", **(labels or {})}, **metadata},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    }
    return json.dumps({"type": kind, "object": pod}).encode() + b"\n"


def seen(*events: bytes) -> tuple[set[str], int | None]:
    claimable = Claimable()
    claimable.read(events)
    return claimable.uids, claimable.fewest


def test_a_new_spare_is_ready_before_the_previous_one_goes() -> None:
    result = event("ADDED", "a"), event("ADDED", "b", ready="False"), event("MODIFIED", "b"), event("DELETED", "a")
    assert seen(*result) == ({"b"}, 1)


@pytest.mark.parametrize(
    "gone",
    [
        event("DELETED", "a"),
        event("MODIFIED", "a", ready="False"),
        event("MODIFIED", "a", deletionTimestamp="2026-11-25T00:00:00Z"),
        event("MODIFIED", "a", labels={"understudy.dev/claimed-by-uid": "job"}),
    ],
)
def test_a_moment_without_a_spare_is_found(gone: bytes) -> None:
    assert seen(event("ADDED", "a"), gone, event("ADDED", "b")) == ({"b"}, 0)


def test_a_pod_without_conditions_is_no_spare_yet() -> None:
    pod: dict[str, Any] = {"metadata": {"uid": "b", "labels": {}}, "status": {}}
    assert seen(event("ADDED", "a"), json.dumps({"type": "ADDED", "object": pod}).encode()) == ({"a"}, 1)


def test_an_error_of_the_watch_is_no_event() -> None:
    with pytest.raises(AssertionError, match="ERROR"):
        seen(event("ADDED", "a"), b'{"type": "ERROR", "object": {"code": 410}}')
