"""Objects of larger clusters than tests/unit/cli/samples.py has: a fleet of jobs, a job of thousands of pods, and a job
with a history of a day."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from tests.ui.fake_cluster import FakeCluster
from tests.unit.cli import samples

Object = dict[str, Any]
PHASES = ("Running",) * 12 + ("Recovering", "Pending", "Succeeded", "Suspended", "Failed")
MODELS = ("llm-7b", "llm-70b", "vision", "speech", "reward", "embed")
HOUR_S = 3600.0


def written(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def fill_fleet(cluster: FakeCluster, count: int, now: float) -> None:
    cluster.put("trainingjobs", *(fleet_job(number, now) for number in range(count)))


def fleet_job(number: int, now: float) -> Object:
    """Jobs differ in phase, size, step and age. Every third one has had faults."""
    phase = PHASES[number % len(PHASES)]
    pods = 2 ** (number % 8)
    ready = pods - 1 if phase == "Recovering" else pods if phase == "Running" else 0
    fault = samples.recovery(detectedAt=written(now - 97 * (number + 1)), cause={"rank": number % 64, "pod": "p"})
    has_fault = number % 3 == 0
    status: Object = {
        "phase": phase,
        "conditions": [],
        "members": {"desired": pods, "active": pods, "ready": ready},
        "spares": {"desired": number % 3, "ready": number % 3},
        "recoveriesByStrategy": {"inPlace": 1 + number % 5, "spareSwap": number % 2} if has_fault else {},
        "recoveries": [],
        "lastRecovery": fault if has_fault else None,
        "progress": {"step": 137 * number, "total": 100_000},
        "avoidedNodes": [],
    }
    if phase == "Failed":
        message = "rank 3 failed 10 times within 1 h: ValueError: loss is nan"
        status["conditions"] = [samples.condition("Failed", "True", "RestartLimit", message)]
    raw = samples.job(f"{MODELS[number % len(MODELS)]}-{number:03d}", **status)
    raw["metadata"] |= {
        "namespace": f"team-{'abcd'[number % 4]}",
        "creationTimestamp": written(now - 700 * number - 600),
    }
    return raw


def fill_large_job(cluster: FakeCluster, pods: int, now: float, name: str = "huge") -> None:
    """One job with so many pods of eight workers each, and two spares."""
    members = {"desired": pods, "active": pods, "ready": pods}
    cluster.put("trainingjobs", samples.job(name, members=members, spares={"desired": 2, "ready": 2}))
    cluster.put("pods", *(large_pod(name, rank, now) for rank in range(pods)))
    cluster.put("pods", *(large_pod(name, None, now, number) for number in range(2)))


def large_pod(job: str, rank: int | None, now: float, number: int = 0, **changes: Any) -> Object:
    pod_name = f"{job}-spare-{number}" if rank is None else f"{job}-workers-0-{rank}"
    raw = samples.pod(pod_name, f"node-{number if rank is None else rank // 2}", rank=rank, **changes)
    raw["metadata"]["labels"] |= {"understudy.dev/job-name": job, "understudy.dev/job-uid": f"uid-of-{job}"}
    raw["metadata"]["creationTimestamp"] = written(now - 2 * HOUR_S)
    raw["spec"]["containers"][1]["env"][0]["value"] = "8"
    return raw


# A job with a history ---------------------------------------------------------------------------------------------


def fill_story(cluster: FakeCluster, now: float) -> None:
    """Job team-a/llm-70b-main: eight pods that have trained for a day, with ten faults. The last one is open."""
    recoveries = list(_story(now))
    missing = "1 of 2 spares are ready: pod llm-70b-main-spare-q4 starts"
    status = {
        "phase": "Recovering",
        "startTime": written(now - 26 * HOUR_S),
        "members": {"desired": 8, "active": 8, "ready": 7},
        "spares": {"desired": 2, "ready": 1, "claimed": 0},
        "round": 9,
        "coordinator": {"epoch": 1, "podName": "llm-70b-main-workers-0-3"},
        "recoveriesByStrategy": {"inPlace": 5, "spareSwap": 3, "podRecreate": 1},
        "recoveries": [],
        "lastRecovery": recoveries[-1],
        "progress": {"step": 48_210, "total": 100_000, "at": written(now - 4)},
        "avoidedNodes": [
            {
                "node": "gpu-17",
                "source": "dcgm",
                "class": "Hardware",
                "reason": "Xid 79: the GPU has fallen off the bus",
                "until": written(now + 22 * HOUR_S),
            }
        ],
        "conditions": [
            samples.condition("Recovering", "True", "Node", "1 of 8 pods is lost", written(now - 4)),
            samples.condition("SparesReady", "False", "TooFewSpares", missing, written(now - 300)),
        ],
    }
    job = samples.job("llm-70b-main", **status)
    job["metadata"]["creationTimestamp"] = written(now - 26.2 * HOUR_S)
    cluster.put("trainingjobs", job)
    cluster.put("recoveries", *recoveries)
    cluster.put("pods", *_story_pods(now))
    cluster.put("events", *_story_events(now))
    cluster.put("nodes", *_story_nodes())
    cluster.put("hotsparepools", samples.pool())


def _story(now: float) -> Iterator[Object]:
    workers = "llm-70b-main-workers-0-"
    nan = "\n".join(
        (
            '  File "train.py", line 212, in main',
            "    loss = step(batch)",
            '  File "model.py", line 88, in step',
            '    raise ValueError("loss is nan")',
            "ValueError: loss is nan",
        )
    )
    faults: list[tuple[float, str, str, int, str, str, str, float, int]] = [
        (25.1, "Process", "InPlace", 11, f"{workers}1", "gpu-04", "ended by SIGKILL", 0.8, 1),
        (21.4, "Node", "SpareSwap", 40, f"{workers}5", "gpu-09", "it did not respond for 5.0 s", 8.2, 1),
        (18.9, "Process", "InPlace", 3, f"{workers}0", "gpu-02", "ValueError: loss is nan", 1.3, 12),
        (14.2, "Hang", "InPlace", 22, f"{workers}2", "gpu-05", "no step for 300 s; it waits in all_reduce", 306.0, 0),
        (13.8, "Process", "InPlace", 22, f"{workers}2", "gpu-05", "ended by SIGSEGV", 0.9, 1),
        (9.6, "Pod", "PodRecreate", 56, f"{workers}7", "gpu-12", "evicted: the node was low on memory", 74.0, 3),
        (6.1, "Process", "InPlace", 41, "llm-70b-main-spare-b7", "gpu-14", "CUDA error: out of memory", 1.1, 1),
        (3.3, "Node", "SpareSwap", 40, "llm-70b-main-spare-b7", "gpu-14", "it did not respond for 5.0 s", 7.9, 1),
        (0.9, "Node", "SpareSwap", 16, f"{workers}2", "gpu-05", "it did not respond for 5.0 s", 9.4, 2),
    ]
    for number, (hours, fault, strategy, rank, pod, node, message, pause, lost) in enumerate(faults):
        at = now - hours * HOUR_S
        cause: Object = {"rank": rank, "pod": pod, "node": node, "message": message}
        if "nan" in message:
            cause |= {"exitCode": 1, "traceback": nan}
        yield _recovery(number, fault=fault, strategy=strategy, cause=cause, detectedAt=written(at)) | {
            "pauseSeconds": pause,
            "resumedAt": written(at + pause),
            "outcome": "Recovered",
            "lostSteps": lost,
            "gpuSecondsLost": pause * 64,
            "restoredFrom": "Storage" if lost > 2 else "PeerMemory",
            "reason": "restart 1 of 10 within 1 h" if strategy == "InPlace" else f"pod {pod} was lost",
        }
    cause = {"rank": 8, "pod": f"{workers}1", "node": "gpu-17", "message": "Xid 79: the GPU has fallen off the bus"}
    late = _recovery(len(faults), fault="Node", strategy="SpareSwap", cause=cause, detectedAt=written(now - 4))
    yield late | {"resumedAt": None, "pauseSeconds": None, "reason": f"pod {workers}1 was lost"}


def _recovery(number: int, **changes: Any) -> Object:
    owner = {"uid": "uid-of-llm-70b-main"}
    metadata = {"namespace": "team-a", "name": f"llm-70b-main-{number}", "ownerReferences": [owner]}
    return {"metadata": metadata, "jobName": "llm-70b-main"} | samples.recovery(round=number + 1, **changes)


def _story_pods(now: float) -> Iterator[Object]:
    names = [f"llm-70b-main-workers-0-{rank}" for rank in range(8)]
    names[2], names[5] = "llm-70b-main-spare-k2", "llm-70b-main-spare-c3"
    nodes = ("gpu-02", "gpu-17", "gpu-21", "gpu-06", "gpu-07", "gpu-15", "gpu-11", "gpu-13")
    for rank, (name, node) in enumerate(zip(names, nodes, strict=True)):
        lost = (
            {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]}} if rank == 1 else {}
        )
        yield _story_pod(name, node, rank, now - 26 * HOUR_S if "workers" in name else now - 3 * HOUR_S, **lost)
    yield _story_pod("llm-70b-main-spare-p9", "gpu-18", None, now - 2 * HOUR_S)
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image registry/train:41"}}
    status = {"phase": "Pending", "containerStatuses": [{"name": "trainer", "state": waiting}]}
    yield _story_pod("llm-70b-main-spare-q4", "gpu-19", None, now - 300, status=status)


def _story_pod(name: str, node: str, rank: int | None, created_at: float, **changes: Any) -> Object:
    raw = samples.pod(name, node, rank=rank, coordinator=rank == 3, **changes)
    uid = {"understudy.dev/job-name": "llm-70b-main", "understudy.dev/job-uid": "uid-of-llm-70b-main"}
    raw["metadata"]["labels"] |= uid
    raw["metadata"]["creationTimestamp"] = written(created_at)
    raw["spec"]["containers"][1]["env"][0]["value"] = "8"
    return raw


def _story_events(now: float) -> Iterator[Object]:
    about = {"uid": "uid-of-llm-70b-main"}
    events = (
        (26.1, "Normal", "CoordinatorAppointed", "pod llm-70b-main-workers-0-0: the job has no coordinator"),
        (9.6, "Warning", "Disrupted", "pod llm-70b-main-workers-0-7: evicted, the node was low on memory"),
        (0.01, "Warning", "NodeAvoided", "new pods avoid node gpu-17"),
    )
    for number, (hours, kind, reason, message) in enumerate(events):
        yield {
            "metadata": {"namespace": "team-a", "name": f"event-{number}"},
            "involvedObject": about,
            "type": kind,
            "reason": reason,
            "message": message,
            "eventTime": written(now - hours * HOUR_S),
        }


def _story_nodes() -> Iterator[Object]:
    for number in range(2, 22):
        annotations = {"understudy.dev/maintenance": "kernel upgrade at 14:00"} if number == 19 else {}
        ready = "Unknown" if number in (9, 14) else "True"
        yield {
            "metadata": {"name": f"gpu-{number:02d}", "annotations": annotations},
            "spec": {"unschedulable": number == 14},
            "status": {"conditions": [{"type": "Ready", "status": ready}]},
        }
