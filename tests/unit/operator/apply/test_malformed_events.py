"""The events on malformed objects: one for each object and message, at a limited rate."""

import time

import pytest

from tests.unit.operator.fake_api import CREATED, FakeApi, Raw
from understudy_operator.apply.malformed_events import MalformedEvents
from understudy_operator.apply.pace import Pace
from understudy_operator.observe.store import Kind, Store
from understudy_operator.runtime.api import ApiError


def a_pod(name: str, version: int = 1, containers: object = 3, namespace: str = "team") -> Raw:
    metadata = {"namespace": namespace, "name": name, "uid": f"uid-{name}", "resourceVersion": str(version)}
    return {"metadata": {**metadata, "creationTimestamp": CREATED}, "spec": {"containers": containers}}


class Leader:
    def __init__(self, namespaces: tuple[str, ...] = ()) -> None:
        self.api, self.store = FakeApi(), Store()
        self.events = MalformedEvents(self.api, self.store, Pace(time.monotonic), namespaces)

    async def written(self) -> list[str]:
        """The paths of the events written in one run, and of their objects."""
        self.api.calls.clear()
        await self.events.run_once()
        return [path.rpartition("/")[0].removeprefix("/apis/events.k8s.io/v1/") for _, path in self.api.calls]


@pytest.fixture
def leader() -> Leader:
    return Leader()


async def test_an_object_has_one_event_for_each_of_its_errors(leader: Leader) -> None:
    # given a pod that changes, and is malformed in the same way each time
    for version in range(1, 5):
        leader.store.put(Kind.POD, a_pod("a", version))
        await leader.events.run_once()
    # then the pod has one event, and a second one for another error
    assert len(leader.api.of_kind("Event")) == 1
    leader.store.put(Kind.POD, a_pod("a", 6, containers=[3]))
    await leader.events.run_once()
    assert [event["note"].partition(".")[0] for event in leader.api.of_kind("Event")] == ["spec", "spec"]
    assert len({event["note"] for event in leader.api.of_kind("Event")}) == 2


async def test_an_event_on_a_node_is_in_the_namespace_of_kubernetes_own_node_events(leader: Leader) -> None:
    metadata = {"name": "n1", "uid": "uid-n1", "resourceVersion": "1"}
    leader.store.put(Kind.NODE, {"metadata": metadata, "status": {"conditions": "none"}})
    assert await leader.written() == ["namespaces/default/events"]
    (event,) = leader.api.of_kind("Event")
    assert event["regarding"] == {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "uid-n1"}


async def test_an_operator_of_named_namespaces_writes_no_event_where_it_has_no_rights() -> None:
    # given a malformed node, whose events belong in the namespace default, and a malformed pod
    leader = Leader(("team",))
    metadata = {"name": "n1", "uid": "uid-n1", "resourceVersion": "1"}
    leader.store.put(Kind.NODE, {"metadata": metadata, "status": {"conditions": "none"}})
    leader.store.put(Kind.POD, a_pod("a"))
    # then the operator writes only the pod's event; the log and a metric report the node
    assert await leader.written() == ["namespaces/team/events"]
    assert await Leader(("team", "default")).written() == []


async def test_thousands_of_malformed_objects_get_events_a_few_at_a_time(leader: Leader) -> None:
    for number in range(50):
        leader.store.put(Kind.POD, a_pod(f"p{number}"))
    assert [len(await leader.written()) for _ in range(4)] == [20, 20, 10, 0]


@pytest.mark.attack(
    "A1",
    "changes 30 malformed objects in each of 30 namespaces all the time",
    before="objects of all other tenants got no event as long as it went on",
)
async def test_malformed_objects_that_keep_changing_do_not_block_events_of_another_namespace(leader: Leader) -> None:
    # given malformed objects in many namespaces, whose events have been written
    def change(version: int) -> None:
        for number in range(900):
            wrong = ["x"] * (number % 30) + [version % 2] if version % 2 else {"a": version}
            pod = a_pod(f"evil{number}", version, wrong, namespace=f"evil{number % 30}")
            leader.store.put(Kind.POD, pod)

    for version in range(1, 4):
        change(version)
        await leader.events.run_once()
    # when an object of another tenant appears, and the others keep changing
    leader.store.put(Kind.POD, a_pod("late"))
    written = []
    for version in range(4, 7):
        change(version)
        written += await leader.written()
    # then its event is written in the first or second run
    assert "namespaces/team/events" in written[:40]


@pytest.mark.attack(
    "A1", "has a namespace to which no event can be written", before="no other namespace got an event after that"
)
async def test_a_namespace_whose_events_fail_does_not_block_events_of_another_one(leader: Leader) -> None:
    leader.store.put(Kind.POD, a_pod("evil", namespace="evil"))
    leader.store.put(Kind.POD, a_pod("a"))
    leader.api.deny = lambda _, path: OSError("connection refused") if "/evil/" in path else None
    written = [await leader.written() for _ in range(2)]
    assert written == [["namespaces/evil/events"], ["namespaces/team/events", "namespaces/evil/events"]]


@pytest.mark.attack("A1", "changes malformed objects all the time", before="each change was a line in the log")
def test_malformed_objects_that_change_all_the_time_fill_no_log(caplog: pytest.LogCaptureFixture) -> None:
    # given a pod that is malformed in a new way again and again
    at = 0.0
    store = Store(lambda: at)
    for version in range(1, 1001):
        store.put(Kind.POD, a_pod("evil", version, ["x"] * version + [1], namespace="evil"))
        store.put(Kind.POD, a_pod("evil", version, [{}] * version + [1], namespace="evil"))
    logged = len(caplog.records)
    # when a pod of another tenant is malformed
    store.put(Kind.POD, a_pod("a"))
    # then that pod is logged; of the others, 20 lines a minute are logged, and the number of those left out
    assert (logged, len(caplog.records)) == (20, 21)
    assert "team/a is malformed" in caplog.records[-1].getMessage()
    at = 61.0
    store.put(Kind.POD, a_pod("evil", 2000, 7, namespace="evil"))
    assert "namespace evil: " in caplog.records[21].getMessage()
    assert "more states of malformed objects are not logged" in caplog.records[21].getMessage()


async def test_an_unanswered_event_is_sent_again_and_a_rejected_one_is_not(leader: Leader) -> None:
    # given an API server that is down
    leader.store.put(Kind.POD, a_pod("a"))
    leader.api.deny = lambda *_: OSError("connection refused")
    assert len(await leader.written()) == 1
    # when the server is back, then the event is sent again
    leader.api.deny = lambda *_: ApiError(403, "Forbidden", "the namespace is being terminated")
    assert len(await leader.written()) == 1
    assert await leader.written() == []


def test_a_malformed_object_is_logged_once_for_each_of_its_states(caplog: pytest.LogCaptureFixture) -> None:
    # given a malformed pod that watches and lists report again and again
    store = Store()
    for _ in range(3):
        store.put(Kind.POD, a_pod("a"))
        store.replace(Kind.POD, [a_pod("a")], time.monotonic())
    # then one line describes the error, and the pod is listed as long as it exists
    (record,) = caplog.records
    assert record.getMessage() == "pods team/a is malformed: spec.containers: Expected `array | null`, got `int`"
    assert [found.name for found in store.malformed(Kind.POD)] == ["a"]
    store.replace(Kind.POD, [], time.monotonic())
    assert store.malformed(Kind.POD) == []


def test_a_corrected_object_is_no_longer_malformed() -> None:
    store = Store()
    store.put(Kind.POD, a_pod("a"))
    assert store.get(Kind.POD, ("team", "a")) is None
    store.put(Kind.POD, a_pod("a", 2, containers=[]))
    assert store.get(Kind.POD, ("team", "a")) is not None
    assert store.malformed(Kind.POD) == []
