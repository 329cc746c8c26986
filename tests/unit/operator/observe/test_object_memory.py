"""The objects of one namespace take a limited part of the operator's memory."""

import json
import tracemalloc
from typing import Any

import msgspec
import pytest

from tests.unit.operator.fake_api import CREATED, Raw
from understudy_operator.observe.store import Kind, Store
from understudy_operator.runtime.decoding import WatchEvent, decoder, object_of
from understudy_operator.runtime.json_size import memory_of

MIB = 1 << 20
#: JSON of 60 KB to 1.4 MB; as Python objects each needs many times its bytes.
FILLS = {
    "empty objects": '"x":[' + ",".join(["{}"] * 33_000) + "]",
    "empty lists": '"x":[' + ",".join(["[]"] * 33_000) + "]",
    "one emoji in a long text": '"x":"' + "a" * 1_400_000 + '\N{SLIGHTLY SMILING FACE}"',
    "short names": '"x":{' + ",".join(f'"{number:x}":0' for number in range(45_000)) + "}",
}


def text_of(number: int, fill: str, namespace: str = "evil") -> str:
    metadata: Raw = {"namespace": namespace, "name": f"j{number}", "uid": f"u{number}", "resourceVersion": "1"}
    metadata |= {"creationTimestamp": CREATED, "labels": {"understudy.dev/job-uid": "x"}}
    containers = '[{"name":"c",' + fill + "}]"
    return f'{{"metadata":{json.dumps(metadata)},"spec":{{"template":{{"spec":{{"containers":{containers}}}}}}}}}'


def listed(store: Store, kind: Kind, texts: list[str]) -> list[Any]:
    """As Api.list and Resync do."""
    page = b'{"metadata":{},"items":[' + b",".join(text.encode() for text in texts) + b"]}"
    keep = store.item_filter(kind)
    return [keep(item) for item in decoder("GET", f"/apis/x/v1/{kind.value}")(page)["items"]]


def watch_line(store: Store, kind: Kind, text: str) -> None:
    """As a watch does."""
    store.put(kind, object_of(kind.value, WatchEvent("ADDED", msgspec.Raw(text.encode()))))


@pytest.mark.attack(
    "A1",
    "creates 30 TrainingJobs, or Jobs with one label, of 1.4 MB and 460,000 values",
    before="33 MiB of memory for each: the operator was out of memory, and so was each replica after it",
)
@pytest.mark.parametrize("kind", [Kind.JOB, Kind.POOL, Kind.CHILD, Kind.POD], ids=lambda kind: str(kind.value))
def test_an_object_of_too_many_values_is_not_decoded(kind: Kind) -> None:
    # given an object of 1.4 MB that fits into etcd
    store, text = Store(), text_of(1, '"env":[' + ",".join(["{}"] * 460_000) + "]")
    ordinary = text_of(2, '"env":[]')
    # when a watch reports it
    tracemalloc.start()
    try:
        watch_line(store, kind, text)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # then decoding takes no memory except for its own bytes, for a moment
    assert most < 4 * MIB
    # and the object is malformed, also in a list, whose other objects count
    (malformed,) = store.malformed(kind)
    assert malformed.message.startswith("the object has 9200")
    assert malformed.message.endswith("values; at most 100000 are allowed: make it smaller")
    store.replace(kind, listed(store, kind, [text, ordinary]), 0.0)
    assert [raw["metadata"]["name"] for raw in store.all(kind)] == ["j2"]
    assert [found.name for found in store.malformed(kind)] == ["j1"]


@pytest.mark.attack(
    "A1",
    "creates objects without end that are within all limits of one object",
    before="the operator kept all of them",
)
@pytest.mark.parametrize("fill", FILLS.values(), ids=FILLS.keys())
@pytest.mark.parametrize("comes", [watch_line, listed], ids=["by a watch", "by a list"])
def test_the_objects_of_a_namespace_take_a_limited_part_of_the_memory(
    fill: str, comes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a limit of 12 MiB in place of 512 MiB
    monkeypatch.setattr("understudy_operator.observe.store.NAMESPACE_BYTES", 12 * MIB)
    store = Store()
    texts = [text_of(number, fill) for number in range(12)]
    kept: list[Any] = []
    # when a namespace has more objects than that
    tracemalloc.start()
    try:
        if comes is watch_line:
            for text in texts:
                watch_line(store, Kind.JOB, text)
        else:
            kept = listed(store, Kind.JOB, texts)
        memory, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # then its objects take no more, also not for a moment, except for the bytes of the list
    assert memory < 13 * MIB
    assert most < 13 * MIB + 3 * sum(map(len, texts))
    if kept:
        store.replace(Kind.JOB, kept, 0.0)
    assert 1 <= len(store.all(Kind.JOB)) < 12
    assert "the objects of namespace evil take more than 12 MiB" in store.malformed(Kind.JOB)[0].message
    # and another namespace has room
    watch_line(store, Kind.JOB, text_of(1, '"env":[]', "research"))
    assert store.get(Kind.JOB, ("research", "j1")) is not None


def test_the_objects_of_three_namespaces_take_more_than_the_limit_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit that docs/explanation/security.md states: the limit is that of each namespace."""
    monkeypatch.setattr("understudy_operator.observe.store.NAMESPACE_BYTES", 12 * MIB)
    store = Store()
    tracemalloc.start()
    try:
        for namespace in ("a", "b", "c"):
            for number in range(12):
                watch_line(store, Kind.JOB, text_of(number, FILLS["one emoji in a long text"], namespace))
        memory = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert 13 * MIB < memory < 3 * 13 * MIB


def test_room_is_given_back_with_each_object(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("understudy_operator.observe.store.NAMESPACE_BYTES", 8 * MIB)
    store, fill = Store(), FILLS["empty lists"]
    for number in range(20):
        # when an object is deleted, or replaced by a small one, then the next one gets its room
        watch_line(store, Kind.JOB, text_of(number, fill))
        assert store.get(Kind.JOB, ("evil", f"j{number}")) is not None
        raw = object_of("trainingjobs", WatchEvent("", msgspec.Raw(text_of(number, '"env":[]').encode())))
        if number % 2:
            store.remove(Kind.JOB, raw)
        else:
            store.put(Kind.JOB, {**raw, "metadata": {**raw["metadata"], "resourceVersion": "2"}})
    for number in range(20):
        store.remove(Kind.JOB, json.loads(text_of(number, '"env":[]')))
    store.replace(Kind.JOB, [], float("inf"))
    assert store.size() == 0


@pytest.mark.parametrize("fill", FILLS.values(), ids=FILLS.keys())
def test_the_estimate_is_at_least_an_objects_memory(fill: str) -> None:
    text = "{" + fill + "}"
    tracemalloc.start()
    try:
        decoded = msgspec.json.decode(text)
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert taken <= memory_of(decoded) <= 4 * taken
