"""Collections that are followed, through lost connections and expired versions."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.cli.server import Answer, Scripted, scripted
from understudy_cli.command_errors import NoAnswer
from understudy_cli.fields import Raw
from understudy_cli.following import Collection, Followed

PODS = "/api/v1/pods"
LIMIT_S = 20.0


def listed(version: str, *names: str) -> Answer:
    items = [{"metadata": {"name": name, "resourceVersion": version}} for name in names]
    return Answer({"metadata": {"resourceVersion": version}, "items": items})


def event(kind: str, name: str, version: str) -> dict[str, Any]:
    return {"type": kind, "object": {"metadata": {"name": name, "resourceVersion": version}}}


def follow(server: Scripted) -> Followed:
    return Followed(server.api(), (Collection("pods", PODS),))


def names(followed: Followed) -> list[str]:
    return sorted(raw["metadata"]["name"] for raw in followed.objects("pods"))


def wait(followed: Followed, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, (names(followed), followed.disconnected)
        followed.take(0.1)


def test_objects_are_listed_once_and_then_watched() -> None:
    changes = (event("ADDED", "b", "8"), event("DELETED", "a", "9"), event("BOOKMARK", "", "10"))
    with scripted({PODS: [listed("7", "a"), Answer(lines=changes), Answer(stays=True)]}) as server:
        followed = follow(server)
        wait(followed, lambda: names(followed) == ["b"])
        wait(followed, lambda: len(server.requests) == 3)
    # the second watch continues from the bookmark
    assert [query.get("resourceVersion") for query in server.queries(PODS)][:3] == [None, ["7"], ["10"]]


def test_a_version_that_has_expired_leads_to_a_new_list() -> None:
    gone = Answer(lines=({"type": "ERROR", "object": {"code": 410, "message": "too old"}},))
    with scripted({PODS: [listed("7", "a"), gone, listed("20", "c"), Answer(stays=True)]}) as server:
        followed = follow(server)
        wait(followed, lambda: names(followed) == ["c"])


def test_a_collection_without_an_answer_is_reported_and_retried() -> None:
    with scripted({PODS: [Answer({"message": "etcd is down"}, 500), listed("7", "a"), Answer(stays=True)]}) as server:
        followed = follow(server)
        wait(followed, lambda: followed.disconnected == {"pods": "etcd is down"})
        assert not followed.is_complete
        wait(followed, lambda: names(followed) == ["a"])
        assert (followed.is_complete, followed.disconnected) == (True, {})


def test_a_lost_watch_is_reported_until_the_collection_is_listed_again() -> None:
    # given a watch that fails, and a collection that has not changed meanwhile
    answers = [listed("7", "a"), Answer({"message": "etcd is down"}, 500), listed("7", "a"), Answer(stays=True)]
    with scripted({PODS: answers}) as server:
        followed = follow(server)
        wait(followed, lambda: followed.disconnected == {"pods": "etcd is down"})
        # when the API server responds again, then the report ends
        wait(followed, lambda: followed.disconnected == {})
    assert names(followed) == ["a"]


def test_an_object_is_read_when_it_arrives_and_only_the_fact_is_kept() -> None:
    reads: list[str] = []

    def read_name(raw: Raw) -> str:
        reads.append(raw["metadata"]["name"])
        return reads[-1].upper()

    changes = (event("ADDED", "b", "8"), event("MODIFIED", "a", "9"), event("DELETED", "b", "10"))
    with scripted({PODS: [listed("7", "a", "c"), Answer(lines=changes, stays=True)]}) as server:
        followed = Followed(server.api(), (Collection("pods", PODS, read=read_name),))
        wait(followed, lambda: reads == ["a", "c", "b", "a"] and "B" not in followed.objects("pods"))
        assert followed.objects("pods") == ("A", "C")


def test_collections_of_several_namespaces_are_one_result() -> None:
    paths = [f"/api/v1/namespaces/{name}/pods" for name in ("team-a", "team-b")]
    answers = {path: [listed("7", name), Answer(stays=True)] for path, name in zip(paths, ("a", "b"), strict=True)}
    with scripted(answers) as server:
        followed = Followed(server.api(), tuple(Collection("pods", path) for path in paths))
        wait(followed, lambda: names(followed) == ["a", "b"])


def test_a_collection_that_may_not_be_read_ends_with_its_error() -> None:
    with scripted({PODS: [Answer({"message": "pods is forbidden"}, 403)]}) as server:
        followed = follow(server)
        with pytest.raises(NoAnswer, match="pods is forbidden"):
            wait(followed, lambda: False)


def test_a_closed_api_ends_the_thread_also_while_it_waits_to_retry() -> None:
    before = set(threading.enumerate())
    with scripted({PODS: [Answer({"message": "etcd is down"}, 500)]}) as server:
        api = server.api()
        followed = Followed(api, (Collection("pods", PODS),))
        (follower,) = [thread for thread in set(threading.enumerate()) - before if "_follow" in thread.name]
        wait(followed, lambda: "pods" in followed.disconnected)
        api.closed.set()
        follower.join(LIMIT_S)
        assert not follower.is_alive()
        assert len(server.requests) == 1
