"""Measurements of the API server: its audit log, its metrics, and its watches."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks.child import ChildFailed, Unfinished
from benchmarks.operator import audit
from benchmarks.operator.exposition import BYTES, MetricMissing, api_bytes, histogram
from benchmarks.operator.kube import Refused
from benchmarks.operator.pod_parts import managed_size, new_pod, size, smaller_pods
from benchmarks.operator.watches import Jobs, Pods, Watches
from tests.unit.operator.given import a_job
from understudy_operator.plan.manifests.pods import pod_manifest
from understudy_protocol.pod import LABEL_JOB_UID

METRICS = "\n".join(
    [
        "# TYPE apiserver_response_sizes histogram",
        'apiserver_request_body_size_bytes_sum{resource="pods",verb="create"} 1000',
        'apiserver_response_sizes_bucket{resource="pods",le="1000"} 7',
        'apiserver_response_sizes_sum{resource="pods",verb="LIST"} 2e+06',
        'apiserver_response_sizes_sum{resource="nodes",verb="LIST"} 500',
        'apiserver_watch_events_sizes_sum{resource="pods"} 40',
    ]
)


def entry(user: str, verb: str, resource: str = "pods", *, stage: str = "ResponseComplete", **more: str) -> bytes:
    about = {"objectRef": {"resource": resource, **more}} if resource else {}
    return json.dumps({"kind": "Event", "verb": verb, "stage": stage, "user": {"username": user}, **about}).encode()


# The audit log ----------------------------------------------------------------------------------------------------


def test_the_times_of_writes_to_one_object_do_not_depend_on_their_answers() -> None:
    def arrived(second: int, user: str = "understudy", verb: str = "update", name: str = "job-0") -> bytes:
        written = json.loads(entry(user, verb, "trainingjobs", subresource="status", name=name))
        return json.dumps(written | {"requestReceivedTimestamp": f"1970-01-01T00:00:0{second}.250000Z"}).encode()

    log = [
        arrived(3),
        arrived(1),
        arrived(2, name="job-1"),
        arrived(4, "jobset"),
        arrived(5, verb="get"),
        entry("a", "get"),
    ]
    assert audit.arrivals(log, "understudy", "trainingjobs/status", "job-0") == [1.25, 3.25]


def test_requests_are_counted_by_client_and_resource() -> None:
    log = [entry("jobset", "update", "jobsets", subresource="status"), *[entry("controller-manager", "create")] * 3]
    requests = audit.count(log)

    assert requests == {("jobset", "update", "jobsets/status"): 1, ("controller-manager", "create", "pods"): 3}
    assert audit.total(requests, ("controller-manager", "jobset"), audit.WRITES) == 4
    assert audit.total(requests, ("understudy",), audit.WRITES) == 0


def test_reads_and_writes_are_distinguished() -> None:
    requests = audit.count(
        [entry("understudy", verb) for verb in ("get", "list", "patch", "watch", "deletecollection")]
    )

    assert audit.total(requests, ("understudy",), audit.WRITES) == 2
    assert audit.total(requests, ("understudy",), audit.READS) == 2


def test_unanswered_requests_and_requests_without_a_resource_do_not_count() -> None:
    assert audit.count([entry("jobset", "get", stage="RequestReceived"), entry("jobset", "get", "")]) == {}


def test_a_part_of_the_log_is_read(tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    log.write_bytes(entry("understudy", "create") + b"\n")
    before = log.stat().st_size
    with log.open("ab") as file:
        file.write(entry("understudy", "delete") + b"\n")

    assert audit.read(log, before, log.stat().st_size) == {("understudy", "delete", "pods"): 1}


# The metrics ------------------------------------------------------------------------------------------------------


def test_bytes_are_those_of_requests_answers_and_watches() -> None:
    assert api_bytes(METRICS) == 1000 + 2e6 + 500 + 40


@pytest.mark.parametrize("name", BYTES)
def test_a_missing_metric_is_an_error_and_not_zero(name: str) -> None:
    with pytest.raises(MetricMissing, match=name):
        api_bytes(METRICS.replace(name, "another"))


QUEUE = "\n".join(
    f'queue_bucket{{kind="{kind}",le="{bound}"}} {count}'
    for kind, counts in (("a", (0, 10, 10, 10)), ("b", (0, 40, 89, 90)))
    for bound, count in zip(("0.1", "0.2", "0.4", "+Inf"), counts, strict=True)
)


def test_a_quantile_is_interpolated_in_its_bucket_over_all_labels() -> None:
    found = histogram(QUEUE, "queue")
    assert found.count == 100
    assert found.quantile(0.25) == pytest.approx(0.15)  # the 25th of the 50 between 0.1 and 0.2
    assert found.quantile(0.745) == pytest.approx(0.3)  # half of the 49 between 0.2 and 0.4
    assert found.quantile(1.0) == 0.4  # the bucket without an upper bound


def test_only_observations_since_the_earlier_reading_count() -> None:
    found = histogram(QUEUE, "queue")
    assert (found - found).count == 0
    assert (found - found).quantile(0.99) == 0.0
    with pytest.raises(MetricMissing, match="no histogram another"):
        histogram(QUEUE, "another")


# The watches ------------------------------------------------------------------------------------------------------


def pod(name: str, phase: str = "Pending", *, deleted: bool = False, job: str = "", version: str = "1") -> msgspec.Raw:
    metadata: dict[str, Any] = {"name": name, "uid": f"uid-{name}", "resourceVersion": version}
    if deleted:
        metadata["deletionTimestamp"] = "2026-11-21T00:00:00Z"
    if job:
        metadata["labels"] = {LABEL_JOB_UID: job}
    return msgspec.Raw(json.dumps({"metadata": metadata, "spec": {}, "status": {"phase": phase}}).encode())


def test_a_pod_is_created_when_it_is_first_seen_and_running_when_it_first_reports_it() -> None:
    pods = Pods()
    for at, phase in enumerate(("Pending", "Pending", "Running", "Running")):
        pods.on_event("MODIFIED", pod("a", phase), float(at))

    assert (pods.created, pods.running) == ({"uid-a": 0.0}, {"uid-a": 2.0})


def test_a_pod_that_is_being_deleted_does_not_run() -> None:
    pods = Pods()
    pods.on_event("ADDED", pod("a", "Running"), 1.0)
    pods.on_event("MODIFIED", pod("a", "Running", deleted=True), 2.0)

    assert pods.running == {}
    assert pods.present.keys() == {"uid-a"}


def test_after_a_restart_only_new_pods_count() -> None:
    pods = Pods()
    pods.on_event("ADDED", pod("old", "Running"), 1.0)
    pods.begin()
    pods.on_event("MODIFIED", pod("old", "Running"), 2.0)
    pods.on_event("ADDED", pod("new", "Running"), 3.0)
    pods.on_event("DELETED", pod("old", "Running"), 4.0)

    assert (pods.created, pods.running) == ({"uid-new": 3.0}, {"uid-new": 3.0})
    assert pods.present.keys() == {"uid-new"}


def test_pods_are_known_by_their_job() -> None:
    pods = Pods()
    for name, job in (("a", "one"), ("b", "two"), ("c", "one")):
        pods.on_event("ADDED", pod(name, job=job), 1.0)
    pods.on_event("DELETED", pod("c", job="one"), 2.0)

    assert {job: list(those) for job, those in pods.of_job.items()} == {"one": ["uid-a"], "two": ["uid-b"]}


def test_the_newest_status_of_a_job_counts() -> None:
    jobs = Jobs()
    for number in (1, 2):
        raw = {"metadata": {"name": "job-0", "resourceVersion": "1"}, "status": {"restarts": number}}
        jobs.on_event("MODIFIED", msgspec.Raw(json.dumps(raw).encode()), 0.0)

    assert jobs.statuses() == [{"restarts": 2}]


async def test_a_wait_ends_with_its_condition_or_with_its_limit() -> None:
    watches = Watches(lambda: ())

    assert await watches.until("nothing", lambda: True, 10.0) > 0
    with pytest.raises(Unfinished, match="all pods created: not within 0 s") as seen:
        await watches.until("all pods created", lambda: False, 0.01)
    assert seen.value.after_s == 0.01


class EndingKube:
    """An API server that ends a watch of pods after one event or with one refusal, and has nothing after the last."""

    def __init__(self, *answers: tuple[str, msgspec.Raw] | Refused, listed: Sequence[msgspec.Raw] = ()) -> None:
        self._answers, self._listed, self.requests = list(answers), listed, list[str]()

    async def watch(self, path: str, after: str) -> AsyncIterator[bytes]:
        if path != "pods" or not self._answers:
            await asyncio.Event().wait()
        self.requests.append(after)
        answer = self._answers.pop(0)
        if isinstance(answer, Refused):
            raise answer
        kind, raw = answer
        yield b'{"type":"%s","object":%s}' % (kind.encode(), bytes(raw))

    async def call(self, method: str, path: str) -> dict[str, Any]:
        self.requests.append(method)
        return {"metadata": {"resourceVersion": "40"}, "items": [json.loads(bytes(raw)) for raw in self._listed]}


GONE = msgspec.Raw(b'{"kind":"Status","code":410,"message":"too old resource version"}')


async def test_a_watch_that_ended_continues_at_its_last_event() -> None:
    watches = Watches(lambda: ())
    kube = EndingKube(("ADDED", pod("a", version="7")), ("MODIFIED", pod("a", "Running", version="9")))

    async with watches.of(kube, "pods", "jobs"):  # type: ignore[arg-type]
        await watches.until("a pod runs", lambda: bool(watches.pods.running), 10.0)

    assert kube.requests == ["", "7"]


async def test_a_watch_continues_when_the_api_server_takes_watches_again(monkeypatch: pytest.MonkeyPatch) -> None:
    # given an API server that is too busy for a moment
    monkeypatch.setattr("benchmarks.operator.watches.BUSY_S", 0.0)
    watches = Watches(lambda: ())
    busy = Refused(429, "storage is (re)initializing")
    kube = EndingKube(("ADDED", pod("a", version="7")), busy, ("MODIFIED", pod("a", "Running", version="9")))
    # then the watch continues at its last event
    async with watches.of(kube, "pods", "jobs"):  # type: ignore[arg-type]
        await watches.until("a pod runs", lambda: bool(watches.pods.running), 10.0)
    assert kube.requests == ["", "7", "7"]


@pytest.mark.parametrize("gone", [("ERROR", GONE), Refused(410, "too old resource version")], ids=["event", "answer"])
async def test_a_watch_whose_version_is_forgotten_lists_everything_again(
    gone: tuple[str, msgspec.Raw] | Refused,
) -> None:
    # given pods "a" and "b"; while there was no watch, "a" was deleted, and "b" began to run
    watches = Watches(lambda: ())
    before = ("ADDED", pod("a", job="one", version="7")), ("ADDED", pod("b", job="one", version="8"))
    after = ("ADDED", pod("c", "Running", version="41"))
    kube = EndingKube(*before, gone, after, listed=[pod("b", "Running", job="one", version="30")])
    # when the API server has forgotten what happened since
    async with watches.of(kube, "pods", "jobs"):  # type: ignore[arg-type]
        await watches.until("two pods run", lambda: len(watches.pods.running) == 2, 10.0)
    # then the list says it, and the watch continues there
    assert watches.pods.present.keys() == {"uid-b", "uid-c"}
    assert watches.pods.of_job["one"].keys() == {"uid-b"}
    assert kube.requests == ["", "7", "8", "GET", "40"]


def test_a_list_of_jobs_forgets_those_that_are_not_in_it() -> None:
    jobs = Jobs()
    for name in ("one", "two"):
        raw = {"metadata": {"name": name, "resourceVersion": "1"}, "status": {"restarts": 3}}
        jobs.on_event("ADDED", msgspec.Raw(json.dumps(raw).encode()), 0.0)

    jobs.keep([{"metadata": {"name": "two"}}])

    assert jobs.present.keys() == {"two"}


async def test_a_watch_that_is_forbidden_fails_and_does_not_wait_without_end() -> None:
    watches = Watches(lambda: ())

    async with watches.of(EndingKube(Refused(403, "pods is forbidden")), "pods", "jobs"):  # type: ignore[arg-type]
        await asyncio.sleep(0)
        with pytest.raises(ChildFailed, match=r"watch of pods failed: .*pods is forbidden"):
            await watches.until("pods", lambda: False, 10.0)


def test_the_parts_of_a_pod_are_removed_one_after_the_other() -> None:
    # given a pod of the operator, as the API server stores it
    pod = pod_manifest(a_job(), index=0, serial="1", facts="facts", sidecar_image="example.com/sidecar:1")
    pod["spec"]["nodeName"] = "node-1"
    pod["metadata"] |= {"uid": "uid", "resourceVersion": "7", "managedFields": [{"manager": "operator"}]}
    # when its manifest is made again
    again = new_pod(pod)
    # then it has another name, and nothing that belongs to the stored object
    assert again["metadata"]["name"] != pod["metadata"]["name"]
    assert again["metadata"].keys() == {"name", "namespace", "labels", "annotations", "ownerReferences"}
    assert "nodeName" not in again["spec"]
    # and in the end no part of the operator is left
    smaller = dict(smaller_pods(again))
    sizes = [size(again), *map(size, smaller.values())]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == 9
    last = smaller["own_labels_bytes"]
    assert last["spec"]["initContainers"] == []
    assert [x["name"] for x in last["spec"]["containers"][0]["env"]] == ["JOB_COMPLETION_INDEX"]
    assert last["spec"]["volumes"] == []
    assert not any("understudy" in key for field in ("labels", "annotations") for key in last["metadata"][field])
    assert managed_size(pod) == 24
