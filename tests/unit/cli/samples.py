"""Objects of a small cluster, as the API server returns them, and the time at which the tests look at them."""

from typing import Any

from understudy_cli.views.check_result import Unreadable
from understudy_cli.views.checks import Installation

#: 2026-11-20T12:00:00Z.
NOW = 1795176000.0


def recovery(**changes: Any) -> dict[str, Any]:
    """A worker of rank 3 was killed, and restarted in place."""
    return {
        "fault": "Process",
        "strategy": "InPlace",
        "round": 1,
        "cause": {
            "rank": 3,
            "pod": "llm-workers-0-1",
            "node": "node-b",
            "signal": "SIGKILL",
            "message": "ended by SIGKILL",
        },
        "detectedAt": "2026-11-20T11:50:00.000000Z",
        "resumedAt": "2026-11-20T11:50:00.412000Z",
        "pauseSeconds": 0.412,
    } | changes


def swap() -> dict[str, Any]:
    """A node was lost, and a spare took its ranks."""
    return recovery(
        fault="Node",
        strategy="SpareSwap",
        reason="pod llm-workers-0-0 was lost",
        round=2,
        cause={"pod": "llm-workers-0-0", "node": "node-a", "message": "it did not respond for 5.0 s"},
        detectedAt="2026-11-20T11:58:00.000000Z",
        resumedAt="2026-11-20T11:58:08.230000Z",
        pauseSeconds=8.23,
    )


def drained() -> dict[str, Any]:
    """A user has drained the pod of ranks 2 and 3."""
    return recovery(
        fault="Pod",
        strategy="SpareSwap",
        reason="a user drains its pod",
        round=3,
        cause={"rank": 2, "pod": "llm-workers-0-1", "node": "node-b", "message": "its pod is drained: a new kernel"},
        detectedAt="2026-11-20T11:59:30.000000Z",
        resumedAt="2026-11-20T11:59:31.800000Z",
        pauseSeconds=1.8,
        lostSteps=0,
    )


def drilled() -> dict[str, Any]:
    """A drill has deleted the pod of ranks 2 and 3."""
    return drained() | {
        "reason": "a drill; its pod is lost",
        "cause": {"rank": 2, "pod": "llm-workers-0-1", "node": "node-b", "message": "its connection ended"},
        "detectedAt": "2026-11-20T11:59:30.400000Z",
        "resumedAt": "2026-11-20T11:59:32.200000Z",
        "lostSteps": 5,
    }


def recovery_object() -> dict[str, Any]:
    """An object of kind Recovery about a worker with a Python exception, which other workers followed."""
    traceback = '  File "train.py", line 30, in main\n    batch = next(data)\nValueError: no data'
    return {
        "metadata": {"name": "llm-1", "ownerReferences": [{"uid": "uid-of-llm"}]},
        "jobName": "llm",
        "fault": "Process",
        "cause": {
            "rank": 3,
            "pod": "llm-workers-0-1",
            "node": "node-b",
            "exitCode": 1,
            "message": "ValueError: no data",
            "traceback": traceback,
        },
        "consequences": [{"rank": 0, "pod": "llm-spare-x7k2p", "signal": "SIGABRT"}],
        "consequenceCount": 3,
        "strategy": "InPlace",
        "reason": "restart 2 of 10 within 1 h",
        "round": 3,
        "outcome": "Recovered",
        "detectedAt": "2026-11-20T11:59:00.000000Z",
        "resumedAt": "2026-11-20T11:59:01.250000Z",
        "pauseSeconds": 1.25,
        "lostSteps": 12,
        "gpuSecondsLost": 20.0,
        "restoredFrom": "Storage",
        "restoreReason": "llm-workers-0-0 has no snapshot of its ranks",
    }


def goodput(**changes: Any) -> dict[str, Any]:
    """Of three hours. The newest step is that of `job`: half a second before NOW."""
    return {
        "startTime": "2026-11-20T09:00:00.000000Z",
        "since": "2026-11-20T11:58:20.000000Z",
        "part": "Productive",
        "seconds": {"productive": 10000.0, "repeated": 11.77, "detection": 3.25, "restart": 5.98, "starting": 679.0},
        "ettr": 0.9352,
        "gpus": 4,
        "ranks": 4,
        "lost": [
            {"fault": "Node", "node": "node-a", "seconds": 20.0, "gpuSeconds": 80.0},
            {"fault": "Process", "node": "node-b", "seconds": 0.6, "gpuSeconds": 2.4},
            {"fault": "Process", "seconds": 0.4, "gpuSeconds": 1.6},
        ],
    } | changes


def condition(
    kind: str, status: str, reason: str, message: str = "", at: str = "2026-11-20T11:58:09Z"
) -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": at}


def job(name: str = "llm", **status: Any) -> dict[str, Any]:
    """A job of two pods with two workers each, and one spare that is not replaced yet."""
    return {
        "apiVersion": "understudy.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {
            "name": name,
            "namespace": "team-a",
            "uid": f"uid-of-{name}",
            "creationTimestamp": "2026-11-20T09:00:00Z",
        },
        "spec": {"spares": {"replicas": 1}},
        "status": {
            "phase": "Running",
            "conditions": [
                condition("Ready", "True", "Running", "2 of 2 pods train"),
                condition("SparesReady", "False", "TooFewSpares", "0 of 1 spares are ready: pod llm-spare-new1 starts"),
            ],
            "startTime": "2026-11-20T09:01:00Z",
            "members": {"desired": 2, "active": 2, "ready": 2},
            "spares": {"desired": 1, "ready": 0, "claimed": 1},
            "round": 2,
            "coordinator": {"epoch": 1, "podName": "llm-workers-0-1"},
            "recoveriesByStrategy": {"inPlace": 1, "spareSwap": 1, "podRecreate": 0, "jobRestart": 0},
            "recoveries": [recovery(), swap()],
            "lastRecovery": swap(),
            "progress": {
                "step": 1200,
                "total": 5000,
                "at": "2026-11-20T11:59:59.500000Z",
                "snapshot": {"step": 1199, "at": "2026-11-20T11:59:58.900000Z"},
                "copiedSnapshot": {"step": 1195, "at": "2026-11-20T11:59:54.700000Z"},
            },
            "goodput": goodput(),
            "avoidedNodes": [
                {
                    "node": "node-a",
                    "source": "memory",
                    "reason": "a pod of the job stopped responding there",
                    "until": "2026-11-20T12:00:30Z",
                }
            ],
        }
        | status,
    }


def drillable(**status: Any) -> dict[str, Any]:
    """A job that allows drills."""
    found = job(**status)
    return found | {"spec": found["spec"] | {"drills": "Allowed"}}


def pod(name: str, node: str, *, rank: int | None = None, coordinator: bool = False, **changes: Any) -> dict[str, Any]:
    """A running pod; without a rank it is a spare."""
    labels = {
        "understudy.dev/job-name": "llm",
        "understudy.dev/job-uid": "uid-of-llm",
        "understudy.dev/role": "spare" if rank is None else "active",
    }
    if coordinator:
        labels["understudy.dev/coordinator"] = "true"
    trainer = {"name": "trainer", "env": [{"name": "UNDERSTUDY_NPROC_PER_NODE", "value": "2"}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "team-a",
            "uid": f"uid-of-{name}",
            "labels": labels,
            "annotations": {} if rank is None else {"understudy.dev/group-rank": str(rank)},
            "creationTimestamp": "2026-11-20T11:30:00Z",
        },
        "spec": {"nodeName": node, "containers": [{"name": "proxy"}, trainer]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    } | changes


def pods() -> list[dict[str, Any]]:
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image example.com/t:2"}}
    starting = pod(
        "llm-spare-new1",
        "node-d",
        status={
            "phase": "Pending",
            "containerStatuses": [{"name": "trainer", "image": "example.com/t:2", "state": waiting}],
        },
    )
    return [
        starting,
        pod("llm-workers-0-1", "node-b", rank=1, coordinator=True),
        pod("llm-spare-x7k2p", "node-c", rank=0),
    ]


def events() -> list[dict[str, Any]]:
    return [
        {
            "type": "Normal",
            "reason": "CoordinatorAppointed",
            "message": "pod llm-workers-0-0: the job has no coordinator",
            "eventTime": "2026-11-20T09:00:58.000000Z",
        },
        {
            "type": "Warning",
            "reason": "FaultDetected",
            "message": "Node, pod llm-workers-0-0",
            "eventTime": "2026-11-20T11:58:00.100000Z",
        },
        {
            "type": "Warning",
            "reason": "NodeAvoided",
            "message": "new pods avoid node node-a",
            "lastTimestamp": "2026-11-20T11:58:01Z",
            "count": 3,
        },
    ]


def pool() -> dict[str, Any]:
    return {
        "apiVersion": "understudy.dev/v1alpha1",
        "kind": "HotSparePool",
        "metadata": {"name": "shared", "namespace": "team-a", "creationTimestamp": "2026-11-19T12:00:00Z"},
        "status": {
            "desired": 2,
            "ready": 1,
            "claimed": 0,
            "available": 1,
            "conditions": [condition("Ready", "False", "Unschedulable", "1 of 2 spares are ready: no node has room")],
        },
    }


def nodes() -> list[dict[str, Any]]:
    def node(name: str, ready: str, **annotations: str) -> dict[str, Any]:
        named = {f"understudy.dev/{key}": value for key, value in annotations.items()}
        return {
            "metadata": {"name": name, "annotations": named},
            "spec": {},
            "status": {"conditions": [{"type": "Ready", "status": ready}]},
        }

    return [
        node("node-a", "Unknown"),
        node("node-b", "True"),
        node("node-c", "True"),
        node("node-d", "True", maintenance="kernel upgrade at 14:00"),
        node("node-e", "True"),
    ]


def deployment(name: str, available: int) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "namespace": "understudy-system",
            "labels": {"app.kubernetes.io/version": "0.1.0"},
        },
        "spec": {"replicas": 2},
        "status": {"availableReplicas": available},
    }


def a_lease(holder: str, renewed_at: str = "2026-11-20T11:59:58.000000Z") -> dict[str, Any]:
    return {"spec": {"holderIdentity": holder, "renewTime": renewed_at}}


def webhook(bundle: str | None = None) -> dict[str, Any]:
    service = {"name": "understudy-webhook", "namespace": "understudy-system"}
    config: dict[str, Any] = {"service": service}
    if bundle is not None:
        config["caBundle"] = bundle
    return {"metadata": {"name": "understudy-webhook"}, "webhooks": [{"clientConfig": config}]}


def installation(**changes: Any) -> Installation:
    """An installation whose webhook has no certificate and no pod, seen by an account that may not list nodes."""
    healthy: dict[str, Any] = {
        "version": {"major": "1", "minor": "36", "gitVersion": "v1.36.0"},
        "served": ["trainingjobs", "injectedjobs", "hotsparepools", "recoveries"],
        "rights": {"list pods": True, "list nodes": False},
        "deployments": [deployment("understudy-operator", 2), deployment("understudy-webhook", 0)],
        "leases": {("understudy-system", "understudy-operator"): a_lease("understudy-operator-7d4")},
        "webhooks": [webhook()],
        "endpoints": {"understudy-webhook": []},
        "dns": [{"endpoints": [{"conditions": {"ready": True}}, {"conditions": {}}]}],
        "pods": pods(),
        "claims": [],
        "policies": [],
        "rejection": Unreadable("this account may not create TrainingJobs in namespace team-a"),
        "own_version": "0.1.0",
    }
    return Installation(**(healthy | changes))


def hang_log() -> list[str]:
    """The log of a pod with three workers: ranks 0 and 2 wait in a collective, rank 1 reads data."""

    def dump(rank: int, place: str) -> list[str]:
        return [
            f"understudy launcher: round=1763632800.1.4 worker local_rank={rank} rank={rank} made no step for 300 s "
            "since step 120: its stacks follow",
            f"[rank {rank}] Current thread 0x00007f{rank}000 (most recent call first):",
            f'[rank {rank}]   File "{place}',
            f'[rank {rank}]   File "train.py", line 30 in main',
            f"[rank {rank}] loss 2.5",
        ]

    waits, reads = 'distributed_c10d.py", line 2810 in all_reduce', 'data.py", line 9 in read'
    return [*dump(0, waits), *dump(1, reads), *dump(2, waits)]
