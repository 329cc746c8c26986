"""Raw objects are read into facts."""

import copy
from typing import Any

import pytest

from understudy_operator.observe import read
from understudy_operator.observe.read import read_job
from understudy_operator.observe.read_node import NodeReader
from understudy_operator.observe.read_pool import read_pool
from understudy_operator.plan.facts.cluster_objects import Node, Pod
from understudy_operator.plan.facts.queue import Queue
from understudy_operator.plan.facts.status import JobStatus
from understudy_operator.plan.times.rfc3339 import parse_time
from understudy_operator.runtime import kept_fields
from understudy_operator.runtime.kept_fields import select_node_fields, select_pod_fields
from understudy_protocol import pod as names
from understudy_protocol import wire
from understudy_protocol.enums import CloseReason
from understudy_protocol.membership import Close

AT = "2026-11-20T10:00:00Z"
T = parse_time(AT)

JOB: dict[str, Any] = {
    "metadata": {
        "namespace": "research",
        "name": "llm",
        "uid": "job-uid",
        "generation": 3,
        "resourceVersion": "42",
        "creationTimestamp": AT,
    },
    "spec": {
        "launcher": {"nprocPerNode": 8},
        "spares": {"replicas": 2},
        "recovery": {"inPlace": {"maxRestarts": 3, "maxRestartsPerPod": 2, "window": "1h30m"}},
        "replicatedJobs": [
            {
                "name": "workers",
                "replicas": 2,
                "template": {
                    "metadata": {"labels": {"team": "research"}},
                    "spec": {
                        "parallelism": 4,
                        "template": {"spec": {"containers": [{"name": "trainer"}, {"name": "logs"}]}},
                    },
                },
            }
        ],
    },
}

POD: dict[str, Any] = {
    "metadata": {
        "namespace": "research",
        "name": "llm-workers-0-1-abcde",
        "uid": "pod-uid",
        "creationTimestamp": AT,
        "labels": {names.LABEL_ROLE: "active"},
        "annotations": {names.ANNOTATION_GROUP_RANK: "1"},
    },
    "spec": {
        "nodeName": "n1",
        "terminationGracePeriodSeconds": 60,
        "initContainers": [
            {"name": names.SIDECAR_CONTAINER, "env": [{"name": names.ENV_INDEX, "value": "1"}]},
        ],
    },
    "status": {
        "phase": "Running",
        "podIP": "10.1.2.3",
        "initContainerStatuses": [{"name": names.SIDECAR_CONTAINER, "started": True, "state": {"running": {}}}],
    },
}


def read_pod(raw: dict[str, Any]) -> Pod:
    """The fact that the operator gets: it does not read a field that it does not keep."""
    return read.read_pod(select_pod_fields(raw))


def read_node(raw: dict[str, Any]) -> Node:
    return NodeReader()(select_node_fields(raw))


def no_reader_may_use_a_field_that_is_not_listed(pod: kept_fields.RawPod, node: kept_fields.RawNode) -> list[str]:
    """mypy checks this function: strict mode rejects an ignore comment that ignores no error."""
    return [
        pod["status"]["hostIP"],  # type: ignore[typeddict-item]
        pod["status"].get("hostIP", ""),  # type: ignore[list-item]
        node["spec"]["podCIDR"],  # type: ignore[typeddict-item]
    ]


def pod_with(**sidecar: Any) -> dict[str, Any]:
    """The pod with another status of its sidecar."""
    raw = copy.deepcopy(POD)
    raw["status"]["initContainerStatuses"] = [{"name": names.SIDECAR_CONTAINER, **sidecar}]
    return raw


@pytest.mark.parametrize(
    ("state", "since"),
    [({"running": {"startedAt": AT}}, T), ({"running": {}}, 0.0), ({"terminated": {"exitCode": 0}}, 0.0), ({}, 0.0)],
)
def test_the_start_of_the_trainer_container_is_read_while_it_runs(state: dict[str, Any], since: float):
    raw = copy.deepcopy(POD)
    raw["spec"]["containers"] = [{"name": "logs"}, {"name": "trainer", "env": [{"name": names.ENV_NPROC}]}]
    raw["status"]["containerStatuses"] = [{"name": "logs", "state": {"running": {"startedAt": AT}}}]
    raw["status"]["containerStatuses"].append({"name": "trainer", "state": state})
    assert read_pod(raw).trainer_started_at == since


def test_a_job_is_read_with_its_fields():
    job = read_job(JOB)
    assert (job.namespace, job.name, job.uid, job.generation) == ("research", "llm", "job-uid", 3)
    assert (job.resource_version, job.deleting, job.created_at, job.completed_at) == ("42", False, T, None)
    assert [group.name for group in job.world.groups] == ["workers"]
    assert (job.world.actives, job.world.spares, job.world.nproc_per_node) == (8, 2, 8)
    assert (job.world.in_place_max_restarts, job.world.in_place_window_s) == (3, 5400.0)
    assert job.world.in_place_max_per_pod == 2
    assert (job.world.container, job.round, job.status) == ("", -1, JobStatus())


def test_a_minimal_job_is_read_with_the_apis_defaults():
    raw = copy.deepcopy(JOB)
    raw["spec"]["launcher"] = {}
    for field in ("spares", "recovery"):
        del raw["spec"][field]
    del raw["spec"]["replicatedJobs"][0]["replicas"], raw["spec"]["replicatedJobs"][0]["template"]["metadata"]
    del raw["spec"]["replicatedJobs"][0]["template"]["spec"]["parallelism"]
    spec = read_job(raw).world
    assert (spec.actives, spec.spares, spec.nproc_per_node) == (1, 0, 1)
    assert (spec.in_place_max_restarts, spec.in_place_window_s, spec.groups[0].job_metadata) == (10, 3600.0, {})
    assert spec.in_place_max_per_pod == 1
    assert (spec.min_actives, spec.spare_timeout_s, spec.fence_s, spec.topology_key) == (0, 30.0, 30.0, "")
    assert (spec.mode, spec.zygote, spec.preload, spec.backoff_max_delay_s, spec.step_timeout_s) == (
        "Auto",
        True,
        None,
        30.0,
        0.0,
    )


def test_fields_that_the_job_does_not_set_have_the_values_of_its_torchrun():
    raw = copy.deepcopy(JOB)
    del raw["spec"]["launcher"]["nprocPerNode"], raw["spec"]["recovery"]["inPlace"]["maxRestarts"]
    trainer = raw["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]
    trainer |= {"command": ["bash", "-c"], "args": ["torchrun --nproc-per-node 4 --max-restarts=2 train.py"]}
    world = read_job(raw).world
    assert (world.nproc_per_node, world.in_place_max_restarts) == (4, 2)


def test_workers_are_as_many_as_the_devices_of_the_trainer_container():
    raw = copy.deepcopy(JOB)
    raw["spec"]["launcher"] = {"container": "logs"}
    containers = raw["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"]
    containers[0]["resources"] = {"limits": {"nvidia.com/gpu": "8"}}
    containers[1]["resources"] = {"limits": {"amd.com/gpu": "2"}}
    assert read_job(raw).world.nproc_per_node == 2


def test_the_warm_up_of_spares_is_read():
    raw = copy.deepcopy(JOB)
    assert read_job(raw).world.warmup == ()
    raw["spec"]["spares"]["warmup"] = {"command": ["python3", "fill.py"]}
    assert read_job(raw).world.warmup == ("python3", "fill.py")


def test_the_file_that_marks_a_node_as_faulty_is_read():
    raw = copy.deepcopy(JOB)
    assert read_job(raw).world.nologin_path == ""
    raw["spec"]["faults"] = {"nodeFile": "/run/nologin"}
    assert read_job(raw).world.nologin_path == "/run/nologin"


def test_the_python_of_the_launcher_is_read():
    raw = copy.deepcopy(JOB)
    assert read_job(raw).world.python == ""
    raw["spec"]["launcher"]["python"] = "/usr/bin/python3"
    assert read_job(raw).world.python == "/usr/bin/python3"


def test_the_log_prefix_is_read():
    raw = copy.deepcopy(JOB)
    assert read_job(raw).world.log_prefix
    raw["spec"]["launcher"]["logPrefix"] = False
    assert not read_job(raw).world.log_prefix


def test_the_percentage_of_slow_ranks_is_read():
    raw = copy.deepcopy(JOB)
    assert read_job(raw).world.slow_rank_percent == 150
    raw["spec"]["launcher"]["slowRankPercent"] = 0
    assert read_job(raw).world.slow_rank_percent == 0


def test_the_groups_of_pods_with_the_same_shards_are_read():
    assert read_job(JOB).world.replica_groups == ()
    raw = copy.deepcopy(JOB)
    raw["spec"]["termination"] = {"replicaGroups": [[0, 1], [2, 3]]}
    assert read_job(raw).world.replica_groups == ((0, 1), (2, 3))


def test_the_termination_of_workers_is_read():
    assert read_job(JOB).world.on_sigterm == "Auto"
    raw = copy.deepcopy(JOB)
    raw["spec"]["termination"] = {"onSigterm": "Never"}
    assert read_job(raw).world.on_sigterm == "Never"


def test_the_worker_grace_period_is_read():
    assert read_job(JOB).world.worker_grace_period_s is None
    raw = copy.deepcopy(JOB)
    raw["spec"]["recovery"] |= {"workerGracePeriod": "1m5s"}
    assert read_job(raw).world.worker_grace_period_s == 65.0


def test_the_launcher_timeout_is_read():
    assert read_job(JOB).world.launcher_timeout_s == 15.0
    raw = copy.deepcopy(JOB)
    raw["spec"]["recovery"] |= {"launcherTimeout": "1m30s"}
    assert read_job(raw).world.launcher_timeout_s == 90.0


def test_the_hang_timeout_is_read():
    raw = copy.deepcopy(JOB)
    raw["spec"]["faults"] = {"hang": {"stepTimeout": "1m30s"}}
    assert (read_job(raw).world.step_timeout_s, read_job(raw).world.start_timeout_s) == (90.0, 0.0)


def test_the_start_timeout_is_read():
    raw = copy.deepcopy(JOB)
    raw["spec"]["faults"] = {"hang": {"startTimeout": "10m"}}
    assert (read_job(raw).world.step_timeout_s, read_job(raw).world.start_timeout_s) == (0.0, 600.0)


@pytest.mark.parametrize("preload", [[], ["torch", "my.model"]])
def test_the_fork_server_and_its_imports_are_read(preload: list[str]):
    raw = copy.deepcopy(JOB)
    raw["spec"]["launcher"] |= {"forkServer": False, "preload": preload}
    assert (read_job(raw).world.zygote, read_job(raw).world.preload) == (False, tuple(preload))


@pytest.mark.parametrize(("launcher", "runs"), [({}, True), ({"forkServer": False}, False)])
def test_the_fork_server_of_a_pools_spares_is_read(launcher: dict[str, Any], runs: bool):
    metadata = {"namespace": "research", "name": "shared", "uid": "u", "resourceVersion": "1"}
    pool = read_pool({"metadata": metadata, "spec": {"launcher": launcher, "template": {"spec": {}}}})
    assert pool.launcher is not None
    assert pool.launcher.zygote is runs


def test_an_elastic_job_with_its_recovery_settings_is_read():
    raw = copy.deepcopy(JOB)
    raw["spec"]["elastic"] = {"minPods": 6}
    raw["spec"]["spares"]["topologyKey"] = "topology.kubernetes.io/zone"
    raw["spec"]["recovery"] |= {
        "spareTimeout": "0s",
        "coordinatorLossTimeout": "1m30s",
        "backoff": {"maxDelay": "5m", "maxIdenticalFailures": 4},
        "historyLimit": 0,
    }
    assert read_job(JOB).world.history_limit == 200
    spec = read_job(raw).world
    assert spec.history_limit == 0
    assert (spec.backoff_max_delay_s, spec.script_fault_rounds) == (300.0, 4)
    assert (spec.min_actives, spec.spare_timeout_s, spec.fence_s) == (6, 0.0, 90.0)
    assert spec.topology_key == "topology.kubernetes.io/zone"


def test_without_a_fence_there_is_no_time_after_which_workers_have_ended():
    raw = copy.deepcopy(JOB)
    raw["spec"]["recovery"]["coordinatorLossTimeout"] = "Off"
    assert read_job(raw).world.fence_s == 0.0


def test_a_job_that_has_ended_and_is_being_deleted_reports_it():
    raw = copy.deepcopy(JOB)
    raw["metadata"]["deletionTimestamp"] = AT
    raw["status"] = {"round": 4, "completionTime": AT}
    job = read_job(raw)
    assert (job.deleting, job.orphans, job.round, job.completed_at) == (True, False, 4, T)


def test_a_job_that_is_deleted_without_its_pods_reports_it():
    raw = copy.deepcopy(JOB)
    raw["metadata"] |= {"deletionTimestamp": AT, "finalizers": ["orphan"]}
    assert read_job(raw).orphans


def test_the_trainer_is_the_container_that_the_launcher_names():
    raw = copy.deepcopy(JOB)
    raw["spec"]["launcher"]["container"] = "logs"
    assert read_job(raw).world.container == "logs"


def test_a_pod_is_read():
    pod = read_pod(POD)
    assert (pod.uid, pod.name, pod.node, pod.ip, pod.phase) == (
        "pod-uid",
        "llm-workers-0-1-abcde",
        "n1",
        "10.1.2.3",
        "Running",
    )
    assert (pod.index, pod.spare, pod.created_at, pod.grace_s) == (1, False, T, 60.0)
    assert (pod.alive, pod.sidecar_started, pod.sidecar_ran, pod.close, pod.trouble) == (True, True, True, None, "")


@pytest.mark.parametrize(
    ("text", "port", "address"),
    [
        ("24002", 24002, "10.1.2.3:24002"),
        ("80", 8478, "10.1.2.3"),
        ("99999", 8478, "10.1.2.3"),
        ("x", 8478, "10.1.2.3"),
    ],
)
def test_the_port_of_a_sidecar_is_read_from_its_variable_and_any_other_text_is_ignored(
    text: str, port: int, address: str
):
    raw = copy.deepcopy(POD)
    raw["spec"]["initContainers"][0]["env"].append({"name": "UNDERSTUDY_MEMBERSHIP_PORT", "value": text})
    pod = read_pod(raw)
    assert (pod.port, pod.address) == (port, address)


def test_a_pod_without_that_variable_has_the_usual_port():
    assert (read_pod(POD).port, read_pod(POD).address) == (8478, "10.1.2.3")


@pytest.mark.parametrize(
    ("message", "since"),
    [
        ("0/3 nodes are available: 3 node(s) didn't have free ports for the requested pod ports.", T),
        ("0/3 nodes are available: 3 Insufficient nvidia.com/gpu.", 0.0),
    ],
)
def test_a_pod_whose_ports_are_taken_reports_since_when(message: str, since: float):
    entry = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    raw = {"metadata": POD["metadata"], "spec": {}, "status": {"conditions": [entry | {"lastTransitionTime": AT}]}}
    assert read_pod(raw).lacks_port_since == since


@pytest.mark.parametrize(("result", "attempt"), [("3", 3), ("", 0), ("three", 0), ("-1", 0), ("²", 0)])
def test_an_index_label_that_is_no_number_is_ignored(result: str, attempt: int):
    pod = pod_with()
    pod["metadata"].setdefault("labels", {})[names.LABEL_ATTEMPT] = result
    assert read_pod(pod).attempt == attempt


def test_a_pod_that_has_just_been_created_has_no_node_and_no_address():
    raw = {"metadata": POD["metadata"], "spec": {"initContainers": POD["spec"]["initContainers"]}}
    pod = read_pod(raw)
    assert (pod.node, pod.ip, pod.phase, pod.grace_s) == ("", "", "Pending", 30.0)
    assert (pod.sidecar_started, pod.sidecar_ran, pod.deleting_since) == (False, False, None)


def test_a_pod_without_an_index_is_a_spare():
    raw = copy.deepcopy(POD)
    raw["spec"]["initContainers"][0]["env"][0]["value"] = ""
    assert (read_pod(raw).index, read_pod(raw).spare) == (None, True)


def test_index_zero_is_no_spare():
    raw = copy.deepcopy(POD)
    raw["spec"]["initContainers"][0]["env"][0]["value"] = "0"
    assert (read_pod(raw).index, read_pod(raw).spare) == (0, False)


def test_a_deletion_is_timed_from_its_request():
    # deletionTimestamp is the end of the grace period
    raw = copy.deepcopy(POD)
    raw["metadata"] |= {"deletionTimestamp": "2026-11-20T10:01:00Z", "deletionGracePeriodSeconds": 60}
    pod = read_pod(raw)
    assert (pod.deleting_since, pod.alive) == (T, False)


def test_only_finalizers_block_a_deleted_pod_whose_grace_period_is_over():
    raw = copy.deepcopy(POD)
    raw["metadata"]["finalizers"] = ["example.com/audit"]
    assert read_pod(raw).blocking_finalizers == ()
    raw["metadata"] |= {"deletionTimestamp": AT, "deletionGracePeriodSeconds": 60}
    assert read_pod(raw).blocking_finalizers == ()
    raw["metadata"]["deletionGracePeriodSeconds"] = 0
    assert read_pod(raw).blocking_finalizers == ("example.com/audit",)


def test_a_pod_waits_for_its_first_container_since_it_has_its_node():
    raw = copy.deepcopy(POD)
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": AT}
    raw["status"] |= {"phase": "Pending", "conditions": [scheduled], "initContainerStatuses": []}
    assert read_pod(raw).waiting_since == T
    raw["status"]["initContainerStatuses"] = [{"name": "fetch", "state": {"waiting": {"reason": "PodInitializing"}}}]
    assert read_pod(raw).waiting_since == T
    raw["status"]["initContainerStatuses"] = [{"name": "fetch", "state": {"running": {}}}]
    assert read_pod(raw).waiting_since == 0.0


SIDECARS: dict[str, tuple[dict[str, Any], tuple[bool, bool]]] = {
    "waits": ({"started": False, "state": {"waiting": {"reason": "PodInitializing"}}}, (False, False)),
    "runs, its probe has not succeeded": ({"started": False, "state": {"running": {}}}, (False, False)),
    "is started": ({"started": True, "state": {"running": {}}}, (True, True)),
    "has ended": ({"started": False, "state": {"terminated": {"exitCode": 0}}}, (False, True)),
    "starts again": (
        {"started": False, "state": {"running": {}}, "lastState": {"terminated": {"exitCode": 1}}},
        (False, True),
    ),
}


@pytest.mark.parametrize("case", SIDECARS)
def test_the_state_of_the_sidecar_is_read(case: str):
    sidecar, expected = SIDECARS[case]
    pod = read_pod(pod_with(**sidecar))
    assert (pod.sidecar_started, pod.sidecar_ran) == expected


CLOSE = Close(CloseReason.SUCCEEDED, "all workers of all members exited 0")


@pytest.mark.parametrize("where", ["state", "lastState"])
def test_a_finished_pod_reports_the_close(where: str):
    assert read_pod(pod_with(**{where: {"terminated": {"message": wire.encode(CLOSE)}}})).close == CLOSE


@pytest.mark.parametrize("message", ["", "out of memory", "{", '{"v":1}', '{"v":1,"type":"Close","reason":"Unheard"}'])
def test_an_unrelated_termination_message_is_no_close(message: str):
    assert read_pod(pod_with(state={"terminated": {"message": message}})).close is None


def test_a_pod_that_cannot_be_scheduled_gives_the_reason():
    raw = copy.deepcopy(POD)
    raw["status"] = {
        "phase": "Pending",
        "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available"}
        ],
    }
    assert read_pod(raw).trouble == "Unschedulable: 0/3 nodes are available"


def test_a_pod_at_a_scheduling_gate_names_it_and_has_no_trouble():
    raw = copy.deepcopy(POD)
    raw["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}, {"name": "example.com/hold"}]
    raw["metadata"]["finalizers"] = ["kueue.x-k8s.io/managed"]
    gated = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "blocked"}
    raw["status"]["conditions"] = [gated]
    pod = read_pod(raw)
    assert (pod.gates, pod.trouble) == (("kueue.x-k8s.io/admission", "example.com/hold"), "")
    assert pod.finalizers == ("kueue.x-k8s.io/managed",)


@pytest.mark.parametrize("kind", ["DisruptionTarget", "TerminationTarget"])
def test_a_pod_that_is_disrupted_reports_the_cause(kind: str):
    raw = copy.deepcopy(POD)
    raw["status"]["conditions"] = [{"type": kind, "status": "True", "reason": "Preempted", "message": "for llm-2"}]
    assert read_pod(raw).disruption == "it was disrupted: Preempted: for llm-2"
    raw["status"]["conditions"][0]["status"] = "False"
    assert read_pod(raw).disruption == ""


@pytest.mark.parametrize(
    ("kind", "reason", "is_preempted"),
    [
        ("DisruptionTarget", "PreemptionByScheduler", True),
        ("DisruptionTarget", "EvictionByEvictionAPI", False),
        ("TerminationTarget", "Preempted", True),
        ("TerminationTarget", "PodsReadyTimeout", False),
    ],
)
def test_a_preemption_differs_from_other_disruptions(kind: str, reason: str, is_preempted: bool):
    raw = copy.deepcopy(POD)
    raw["status"]["conditions"] = [{"type": kind, "status": "True", "reason": reason, "message": ""}]
    assert read_pod(raw).is_preempted == is_preempted
    raw["status"]["conditions"][0]["status"] = "False"
    assert not read_pod(raw).is_preempted


def test_a_jobs_labels_name_its_queue():
    raw = copy.deepcopy(JOB)
    assert read_job(raw).queue is None
    raw["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "team", "kueue.x-k8s.io/priority-class": "high"}
    assert read_job(raw).queue == Queue("team", "high")


def test_the_priority_class_of_spares_is_read():
    raw = copy.deepcopy(JOB)
    raw["spec"]["spares"] = {"replicas": 1, "priorityClassName": "spares"}
    assert read_job(raw).world.spare_priority_class == "spares"


def test_a_container_that_cannot_start_gives_the_reason_and_one_that_is_starting_does_not():
    raw = copy.deepcopy(POD)
    raw["status"]["containerStatuses"] = [
        {"name": "logs", "state": {"waiting": {"reason": "ContainerCreating"}}},
        {"name": "trainer", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}},
    ]
    assert read_pod(raw).trouble == "container trainer: ImagePullBackOff: no such image"


@pytest.mark.parametrize(
    ("limits", "devices"),
    [
        ({"nvidia.com/gpu": "8", "rdma/hca": "4", "memory": "64Gi"}, 8),
        ({"habana.ai/gaudi": 2}, 2),
        ({"memory": "64Gi"}, 0),
        ({"nvidia.com/gpu": "many"}, 0),
        (None, 0),
    ],
)
def test_the_devices_of_a_pod_are_those_of_its_trainer(limits: dict[str, Any] | None, devices: int) -> None:
    raw = copy.deepcopy(POD)
    others = {"name": "logs", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    raw["spec"]["containers"] = [others, {**TRAINER, "resources": {"limits": limits}}]
    assert read_pod(raw).devices == devices


TRAINER = {"name": "trainer", "env": [{"name": names.ENV_NPROC, "value": "8"}]}
LIMITED = {**TRAINER, "resources": {"limits": {"memory": "64Gi"}}}
KILLED = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}


@pytest.mark.parametrize(
    ("trainer", "status", "expected"),
    [
        (LIMITED, {"name": "trainer", "state": KILLED}, "container trainer ran out of memory (limit 64Gi)"),
        (LIMITED, {"name": "trainer", "state": {"running": {}}, "lastState": KILLED}, "container trainer ran out of"),
        (TRAINER, {"name": "trainer", "state": KILLED}, "container trainer ran out of memory"),
        (LIMITED, {"name": "trainer", "state": {"terminated": {"reason": "Error", "exitCode": 137}}}, ""),
        (LIMITED, {"name": "logs", "state": KILLED}, ""),
    ],
)
def test_a_trainer_that_ran_out_of_memory_reports_it(trainer: dict[str, Any], status: dict[str, Any], expected: str):
    raw = copy.deepcopy(POD)
    raw["spec"]["containers"] = [{"name": "logs"}, trainer]
    raw["status"]["containerStatuses"] = [status]
    out_of_memory = read_pod(raw).out_of_memory
    assert out_of_memory.startswith(expected)
    assert bool(out_of_memory) == bool(expected)


@pytest.mark.parametrize(("status", "ready"), [("True", True), ("False", False), ("Unknown", False)])
def test_a_node_is_ready_only_if_its_condition_reports_it(status: str, ready: bool):
    raw = {"metadata": {"name": "n1"}, "status": {"conditions": [{"type": "Ready", "status": status}]}}
    node = read_node(raw)
    assert (node.name, node.ready) == ("n1", ready)


def test_a_node_without_conditions_is_not_ready():
    assert read_node({"metadata": {"name": "n1"}}) == Node("n1", False)


def test_a_node_states_since_when_it_is_ready():
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-02T03:04:05Z"}
    assert read_node({"metadata": {"name": "n1"}, "status": {"conditions": [ready]}}).since == parse_time(
        "2026-01-02T03:04:05Z"
    )


def test_a_node_reports_its_labels_and_whether_it_is_out_of_service():
    metadata = {"name": "n1", "labels": {"rack": "r1"}}
    other = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}
    out = {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}
    assert read_node({"metadata": metadata, "spec": {"taints": [other]}}) == Node("n1", False, 0.0, {"rack": "r1"})
    assert read_node({"metadata": metadata, "spec": {"taints": [other, out]}}).out_of_service


@pytest.mark.parametrize(("annotation", "faulty"), [("Xid 79", "Xid 79"), ("true", "true"), ("false", ""), (" ", "")])
def test_findings_about_a_node_are_read(annotation: str, faulty: str):
    metadata = {"name": "n1", "annotations": {names.ANNOTATION_FAULTY: annotation}}
    finding = read_node({"metadata": metadata}).verdict_at(0.0)
    assert ("" if finding is None else finding.reason) == faulty


def test_the_memory_for_snapshots_is_read():
    assert (read_job(JOB).world.snapshot_bytes, read_job(JOB).world.snapshot_every) == (0, 1)
    raw = copy.deepcopy(JOB)
    raw["spec"]["snapshots"] = {"size": "20Gi", "every": 5}
    assert (read_job(raw).world.snapshot_bytes, read_job(raw).world.snapshot_every) == (21474836480, 5)


@pytest.mark.parametrize(
    ("storage", "read"),
    [
        (None, ("", 1000, 2)),
        ({"path": "/checkpoints/snapshots"}, ("/checkpoints/snapshots", 1000, 2)),
        ({"path": "/checkpoints/snapshots", "every": 50, "keep": 3}, ("/checkpoints/snapshots", 50, 3)),
    ],
)
def test_the_folder_for_snapshots_on_storage_is_read(storage: Any, read: tuple[str, int, int]):
    raw = copy.deepcopy(JOB)
    raw["spec"]["snapshots"] = {"size": "20Gi", **({} if storage is None else {"storage": storage})}
    world = read_job(raw).world
    assert (world.snapshot_path, world.snapshot_path_every, world.snapshot_path_keep) == read


def test_a_trainer_whose_image_has_no_shell_failed_with_the_fix():
    message = 'exec: "/bin/sh": stat /bin/sh: no such file or directory'
    end = {"exitCode": 128, "reason": "StartError", "message": message}
    status: Any = {"phase": "Failed", "containerStatuses": [{"name": "trainer", "state": {"terminated": end}}]}
    assert read.failure(status) == (
        f"container trainer ended with exit code 128: StartError: {message}; the image has no /bin/sh, which starts "
        "the launcher: set launcher.python to the path of the image's Python"
    )


@pytest.mark.parametrize(
    ("snapshots", "pods", "copies"),
    [(None, 8, 0), ({}, 8, 1), ({}, 1, 0), ({"copies": 0}, 8, 0), ({"copies": 2}, 8, 2)],
)
def test_each_snapshot_has_a_copy_unless_the_job_sets_another_number(snapshots: object, pods: int, copies: int):
    raw = copy.deepcopy(JOB)
    raw["spec"]["replicatedJobs"][0]["replicas"] = 1
    raw["spec"]["replicatedJobs"][0]["template"]["spec"]["parallelism"] = pods
    if isinstance(snapshots, dict):
        raw["spec"]["snapshots"] = {"size": "20Gi", **snapshots}
    assert read_job(raw).world.snapshot_copies == copies
