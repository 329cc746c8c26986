"""Objects of larger clusters than tests/unit/cli/samples.py has: a fleet of jobs, and a job of thousands of pods."""

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
