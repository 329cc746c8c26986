"""Which jobs can take a pool's spare unchanged, the field that excludes a job, and the order that a spare gets."""

import copy
from typing import Any

import pytest

from tests.unit.operator.given import TEMPLATE, a_job
from tests.unit.operator.given_warm import a_warm_pool
from understudy_operator.plan.facts.keys import EXCLUSIVE, NODE_SELECTOR
from understudy_operator.plan.facts.pool_facts import PoolLauncher
from understudy_operator.plan.facts.spec import RolloutsSpec, SharedMemory, VolumeClaim
from understudy_operator.plan.pool.comparing import difference, take_over


def with_trainer(**changes: Any) -> dict[str, Any]:
    """The template with other fields of its trainer container."""
    template = copy.deepcopy(dict(TEMPLATE))
    template["spec"]["containers"][0] |= changes
    return template


def with_spec(**changes: Any) -> dict[str, Any]:
    template = copy.deepcopy(dict(TEMPLATE))
    template["spec"] |= changes
    return template


def test_a_job_of_the_pools_template_and_launcher_can_take_a_spare() -> None:
    assert difference(a_job(), a_warm_pool()) == ""


@pytest.mark.parametrize(
    "template",
    [
        with_trainer(command=["python", "other.py"]),
        with_trainer(args=["--lr", "0.1"]),
        with_trainer(env=[{"name": "LR", "value": "0.1"}]),
        {**TEMPLATE, "metadata": {"labels": {"team": "a"}}},
        with_spec(nodeSelector={}, tolerations=[]),
    ],
    ids=["command", "args", "variables", "labels", "empty is not there"],
)
def test_fields_of_the_order_and_the_pods_metadata_may_differ(template: dict[str, Any]) -> None:
    assert difference(a_job(pod_template=template), a_warm_pool()) == ""


def test_ports_of_pods_with_host_network_may_differ() -> None:
    template = with_spec(hostNetwork=True)
    assert difference(a_job(pod_template=template), a_warm_pool(template=template)) == ""
    assert "spec.hostNetwork is True" in difference(a_job(pod_template=template), a_warm_pool())


def test_the_shared_memory_has_to_be_equal() -> None:
    memory = SharedMemory("16Gi")
    pool = a_warm_pool(launcher=PoolLauncher(nproc_per_node=8, shared_memory=memory))
    assert difference(a_job(shared_memory=memory), pool) == ""
    assert difference(a_job(), pool) == "launcher.sharedMemory is 'not set', and '16Gi' in the pool"
    on_disk = a_job(shared_memory=SharedMemory("16Gi", on_disk=True))
    assert difference(on_disk, pool) == "launcher.sharedMemory is '16Gi on disk', and '16Gi' in the pool"


def test_settings_of_members_may_differ() -> None:
    job = a_job(min_actives=1, replica_groups=((0, 1),), proactive_replacement="Now", fence_s=0.0, warmup=("true",))
    assert difference(job, a_warm_pool()) == ""


@pytest.mark.parametrize(
    ("template", "field"),
    [
        (with_trainer(image="example.com/trainer:2"), "spec.containers[0].image is 'example.com/trainer:2'"),
        (with_trainer(resources={"limits": {"nvidia.com/gpu": 8}}), "spec.containers[0].resources"),
        (with_trainer(env=[{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]), "env"),
        (with_trainer(envFrom=[{"secretRef": {"name": "s"}}]), "spec.containers[0].envFrom"),
        (with_trainer(name="main"), "launcher.container is main, and trainer in the pool"),
        (with_spec(priorityClassName="training"), "spec.priorityClassName is 'training', and not set in the pool"),
        (with_spec(nodeSelector={"gpu": "h200"}), "spec.nodeSelector"),
        (with_spec(terminationGracePeriodSeconds=60), "spec.terminationGracePeriodSeconds"),
        (
            with_spec(volumes=[{"name": "v", "emptyDir": {}}]),
            "spec.volumes is a list of length 2, and a list of length 1 in the pool",
        ),
        (with_spec(initContainers=[{"name": "i", "image": "i"}]), "spec.initContainers"),
        ({**TEMPLATE, "metadata": {"annotations": {"networks": "rdma"}}}, "annotations.networks is 'rdma'"),
        (with_trainer(args=["$(HOME)"]), "$(NAME), which only a kubelet expands"),
        (with_trainer(env=[{"name": "A", "value": "$(B)/x"}]), "$(NAME), which only a kubelet expands"),
    ],
)
def test_another_difference_of_the_template_is_reported_with_its_field(template: dict[str, Any], field: str) -> None:
    job = a_job(pod_template=template, container="")
    assert field in difference(job, a_warm_pool())


@pytest.mark.parametrize(
    ("world", "field"),
    [
        ({"mode": "Torchrun"}, "launcher.mode is 'Torchrun', and 'Wrap' in the pool"),
        ({"nproc_per_node": 4}, "launcher.nprocPerNode is 4, and 8 in the pool"),
        ({"zygote": False}, "launcher.forkServer is False, and True in the pool"),
        ({"preload": ("json",)}, "launcher.preload is 'json', and 'the default' in the pool"),
        ({"python": "/usr/bin/python3"}, "launcher.python is '/usr/bin/python3', and '' in the pool"),
        ({"log_prefix": False}, "launcher.logPrefix"),
        ({"slow_rank_percent": 0}, "launcher.slowRankPercent is 0, and 150 in the pool"),
        ({"on_sigterm": "Never"}, "termination.onSigterm"),
        ({"nologin_path": "/run/nologin"}, "faults.nodeFile"),
        ({"worker_grace_period_s": 0.0}, "recovery.workerGracePeriod is '0s', and 'the default' in the pool"),
        ({"step_timeout_s": 90.0}, "faults.hang.stepTimeout is '90s', and '0s' in the pool"),
        ({"start_timeout_s": 600.0}, "faults.hang.startTimeout is '600s', and '0s' in the pool"),
        ({"spare_priority_class": "spare"}, "spec.priorityClassName"),
        ({"snapshot_bytes": 1 << 20}, "snapshots is 'set', and '' in the pool"),
        ({"spec": {"rollouts": RolloutsSpec(("servers",))}}, "rollouts"),
    ],
)
def test_a_job_with_another_launcher_or_sidecar_cannot_take_a_spare(world: dict[str, Any], field: str) -> None:
    assert difference(a_job(**world), a_warm_pool()).startswith(field)


@pytest.mark.parametrize(
    ("mode", "field"), [("Auto", "launcher.mode is 'Torchrun', and 'Wrap' in the pool"), ("Wrap", "")]
)
def test_a_job_whose_command_calls_torchrun_cannot_take_a_spare_with_auto(mode: str, field: str) -> None:
    job = a_job(pod_template=with_trainer(command=["bash", "-c", "torchrun train.py"]), container="", mode=mode)
    assert difference(job, a_warm_pool()) == field


def test_a_job_whose_spares_have_the_pools_priority_can_take_a_spare() -> None:
    pool = a_warm_pool(template=with_spec(priorityClassName="spare"))
    assert difference(a_job(spare_priority_class="spare"), pool) == ""


def test_a_quantity_may_be_written_as_a_number_or_as_text() -> None:
    job = a_job(pod_template=with_trainer(resources={"limits": {"nvidia.com/gpu": 8}}))
    pool = a_warm_pool(template=with_trainer(resources={"limits": {"nvidia.com/gpu": "8"}}))
    assert difference(job, pool) == ""


def test_a_jobs_own_volume_claim_cannot_be_mounted_later() -> None:
    template = with_trainer(volumeMounts=[{"name": "data", "mountPath": "/data"}])
    job = a_job(pod_template=template, spec={"claims": (VolumeClaim("data", {"metadata": {"name": "data"}}),)})
    assert "spec.volumes" in difference(job, a_warm_pool(template=template))


def test_marks_of_gang_schedulers_may_differ() -> None:
    template = {**TEMPLATE, "metadata": {"annotations": {"yunikorn.apache.org/task-groups": "[]"}}}
    assert difference(a_job(pod_template=template), a_warm_pool()) == ""


def test_annotations_of_exclusive_placement_may_differ() -> None:
    """They concern Jobs: a spare of a job with them has none, and runs anywhere."""
    exclusive = {"annotations": {EXCLUSIVE: "rack", NODE_SELECTOR: "true"}}
    assert difference(a_job(job_template_metadata=exclusive), a_warm_pool()) == ""
    assert difference(a_job(), a_warm_pool(template={**TEMPLATE, "metadata": exclusive})) == ""


def test_the_launcher_gets_the_whole_command_and_all_plain_variables() -> None:
    secret = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    steps = {"name": "UNDERSTUDY_AUTOMATIC_STEPS", "value": "false"}
    trainer = with_trainer(args=["--lr"], env=[{"name": "LR", "value": "1"}, steps, secret])
    result = take_over(a_job(pod_template=trainer))
    assert result.command == ("python", "train.py", "--lr")
    assert result.env == {"LR": "1", "UNDERSTUDY_AUTOMATIC_STEPS": "false"}


def test_the_warm_up_may_differ() -> None:
    pool = a_warm_pool(launcher=PoolLauncher(nproc_per_node=8, warmup=("true",)))
    assert difference(a_job(), pool) == ""


@pytest.mark.parametrize("field", [{"terminationGracePeriodSeconds": 0}, {"automountServiceAccountToken": False}])
def test_zero_and_false_differ_from_unset(field: dict[str, Any]) -> None:
    assert next(iter(field)) in difference(a_job(pod_template=with_spec(**field)), a_warm_pool())
