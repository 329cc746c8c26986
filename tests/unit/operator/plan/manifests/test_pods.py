"""A pod's manifest: the user's template, run by the launcher, with our sidecar."""

import copy
import json
import re
from dataclasses import asdict, replace
from typing import Any

import pytest

from tests.unit.operator.given import ADDRESS, IMAGE, TEMPLATE, a_job
from understudy_operator.plan.facts.job import Job
from understudy_operator.plan.facts.keys import COMPLETION_INDEX
from understudy_operator.plan.facts.spec import ReplicatedJob, SharedMemory
from understudy_operator.plan.jobset.validation import find_spec_errors
from understudy_operator.plan.manifests.pods import command_of, pod_manifest
from understudy_operator.plan.manifests.shape import facts_secret_name, job_facts_json
from understudy_protocol import pod as names

RICH: dict[str, Any] = {
    "metadata": {
        "labels": {"team": "vision", "app": "llm", names.LABEL_JOB: "not-this"},
        "annotations": {"note": "pod's"},
    },
    "spec": {
        "restartPolicy": "OnFailure",
        "terminationGracePeriodSeconds": 120,
        "schedulerName": "custom",
        "volumes": [{"name": "data", "emptyDir": {}}],
        "initContainers": [{"name": "fetch", "image": "fetch:1"}],
        "containers": [
            {"name": "logs", "image": "logs:1"},
            {
                "name": "trainer",
                "image": "trainer:1",
                "command": ["python", "-u", "train.py"],
                "args": ["--lr", "1e-4"],
                "env": [
                    {"name": "NCCL_DEBUG", "value": "INFO"},
                    {"name": names.ENV_NPROC, "value": "99"},
                    {"name": "JOB_COMPLETION_INDEX", "value": "7"},
                ],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                "resources": {"limits": {"nvidia.com/gpu": 8}},
            },
        ],
    },
}


FACTS = "llm-job-uid-facts-0123456789"


def manifest(job: Job | None = None, index: int | None = 0, serial: str = "1", **changes: Any) -> dict[str, Any]:
    job = job if job is not None else a_job(pod_template=RICH)
    return pod_manifest(job, index=index, serial=serial, facts=FACTS, sidecar_image=IMAGE, avoid_nodes=(), **changes)


def facts_of(job: Job) -> dict[str, Any]:
    """The facts that the sidecars of the job's pods read."""
    facts: dict[str, Any] = json.loads(job_facts_json(job, ADDRESS))
    return facts


def launcher_env(job: Job | None = None, index: int | None = 0) -> dict[str, str]:
    """The variables that the launcher gets: those in the pod, and those of the job's facts."""
    job = job if job is not None else a_job(pod_template=RICH)
    of_pod, of_job = env(manifest(job, index), "trainer"), facts_of(job)["variables"]
    assert not of_pod.keys() & of_job.keys()
    return {**of_pod, **of_job}


def container(pod: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [x for x in [*pod["spec"]["initContainers"], *pod["spec"]["containers"]] if x["name"] == name]
    return dict(found)


def env(pod: dict[str, Any], name: str) -> dict[str, str]:
    return {entry["name"]: entry.get("value", "") for entry in container(pod, name)["env"]}


def mounts(pod: dict[str, Any], volume: str) -> set[str]:
    """The containers that mount a volume."""
    every = [*pod["spec"]["initContainers"], *pod["spec"]["containers"]]
    return {x["name"] for x in every if any(m["name"] == volume for m in x.get("volumeMounts", ()))}


# hostNetwork ---------------------------------------------------------------------------------------------------------

ON_HOST: dict[str, Any] = {"spec": {**RICH["spec"], "hostNetwork": True}}


def test_a_pod_with_host_network_has_two_ports_of_its_own():
    pod = manifest(a_job(pod_template=ON_HOST))
    port = int(env(pod, names.SIDECAR_CONTAINER)["UNDERSTUDY_MEMBERSHIP_PORT"])
    assert port in range(24000, 24999, 2)
    # the scheduler knows them from the trainer container
    assert container(pod, "trainer")["ports"] == [
        {"name": "understudy", "containerPort": port},
        {"name": "understudy-http", "containerPort": port + 1},
    ]
    assert "ports" not in container(pod, names.SIDECAR_CONTAINER)
    assert container(pod, names.SIDECAR_CONTAINER)["startupProbe"]["httpGet"]["port"] == port + 1


def test_pods_of_a_job_with_host_network_draw_different_ports():
    pods = [manifest(a_job(pod_template=ON_HOST), serial=str(n)) for n in range(20)]
    ports = {env(pod, names.SIDECAR_CONTAINER)["UNDERSTUDY_MEMBERSHIP_PORT"] for pod in pods}
    assert len(ports) > 15


def test_a_pod_without_host_network_has_the_usual_ports():
    pod = manifest()
    assert "UNDERSTUDY_MEMBERSHIP_PORT" not in env(pod, names.SIDECAR_CONTAINER)
    assert "ports" not in container(pod, names.SIDECAR_CONTAINER)
    assert container(pod, names.SIDECAR_CONTAINER)["startupProbe"]["httpGet"]["port"] == 8479
    assert "ports" not in container(pod, "trainer")


# The user's fields --------------------------------------------------------------------------------------------------


def test_the_template_is_not_changed():
    template = copy.deepcopy(RICH)
    job = a_job(pod_template=template)
    pod_manifest(job, index=0, serial="1", facts=FACTS, sidecar_image=IMAGE, avoid_nodes=["node-1"])
    assert template == RICH


def test_the_users_fields_are_kept():
    spec = manifest()["spec"]
    assert spec["schedulerName"] == "custom"
    assert spec["terminationGracePeriodSeconds"] == 120
    assert spec["volumes"][0] == {"name": "data", "emptyDir": {}}
    assert spec["containers"][0] == {"name": "logs", "image": "logs:1"}
    assert container(manifest(), "trainer")["args"] == ["--lr", "1e-4"]
    assert container(manifest(), "trainer")["resources"] == {"limits": {"nvidia.com/gpu": 8}}
    assert mounts(manifest(), "data") == {"trainer"}


def test_a_template_may_use_each_account_and_secret_of_the_namespace():
    """A limit that docs/explanation/security.md states."""
    secret = {"name": "v", "secret": {"secretName": "theirs"}}
    job = a_job(pod_template={"spec": {**RICH["spec"], "serviceAccountName": "admin", "volumes": [secret]}})
    assert list(find_spec_errors("llm", job.spec)) == []
    spec = manifest(job)["spec"]
    assert spec["serviceAccountName"] == "admin"
    assert secret in spec["volumes"]


def test_the_launcher_precedes_the_trainers_command():
    trainer = container(manifest(), "trainer")
    assert trainer["command"] == ["/bin/sh", "/understudy/launch", "python", "-u", "train.py"]


def test_the_trainers_environment_is_kept_and_ours_takes_precedence():
    variables = env(manifest(), "trainer")
    assert variables["NCCL_DEBUG"] == "INFO"
    assert variables[names.ENV_NPROC] == "8"
    assert variables["JOB_COMPLETION_INDEX"] == "0"
    assert variables[names.ENV_GRACE] == "120"
    listed = [entry["name"] for entry in container(manifest(), "trainer")["env"]]
    assert len(listed) == len(set(listed))


def test_only_a_spare_gets_the_warm_up():
    job = a_job(pod_template=RICH, warmup=("python3", "fill caches.py"))
    assert json.loads(env(manifest(job, index=None), "trainer")[names.ENV_WARMUP]) == ["python3", "fill caches.py"]
    assert names.ENV_WARMUP not in env(manifest(job, index=0), "trainer")
    assert names.ENV_WARMUP not in env(manifest(index=None), "trainer")


def test_the_launcher_gets_the_setting_of_the_log_prefix():
    assert launcher_env(a_job(log_prefix=False))[names.ENV_LOG_PREFIX] == "false"


def test_launcher_and_coordinator_get_the_setting_of_slow_ranks():
    off = a_job(slow_rank_percent=0)
    assert names.ENV_SLOW_RANK_PERCENT not in launcher_env()
    assert launcher_env(off)[names.ENV_SLOW_RANK_PERCENT] == "0"
    assert names.JobShape("uid", "ns", "llm", 2, 8, 10, 3600.0).slow_rank_percent == 150
    assert facts_of(off)["shape"]["slow_rank_percent"] == 0


def test_an_entry_script_of_the_shell_finds_a_python_for_the_launcher():
    command = container(manifest(), "trainer")["command"]
    assert command[:2] == ["/bin/sh", "/understudy/launch"]
    assert command_of({"command": command}) == command[2:]


def test_with_a_python_the_launcher_needs_no_shell():
    command = container(manifest(a_job(python="/opt/python/bin/python3")), "trainer")["command"]
    assert command[:6] == ["/opt/python/bin/python3", "-I", "-S", "-u", "/understudy/launcher.pyz", "--"]
    assert command[6:] == ["python", "train.py"]
    assert command_of({"command": command}) == command[6:]


def test_the_launcher_gets_the_settings_of_the_zygote():
    assert names.ENV_PRELOAD not in launcher_env()
    cold = launcher_env(a_job(zygote=False, preload=("torch", "my.model")))
    assert (cold[names.ENV_ZYGOTE], cold[names.ENV_PRELOAD]) == ("false", "torch,my.model")
    assert launcher_env(a_job(preload=()))[names.ENV_PRELOAD] == ""


def test_the_launcher_gets_the_hang_timeouts_of_the_job():
    assert names.ENV_STEP_TIMEOUT not in launcher_env()
    assert launcher_env(a_job(step_timeout_s=10_000_000.0))[names.ENV_STEP_TIMEOUT] == "10000000"


def test_the_launcher_gets_the_start_timeout_of_the_job():
    assert names.ENV_START_TIMEOUT not in launcher_env()
    assert launcher_env(a_job(start_timeout_s=600.0))[names.ENV_START_TIMEOUT] == "600"


def test_the_launcher_gets_the_worker_grace_of_the_job():
    assert names.ENV_WORKER_GRACE_PERIOD not in launcher_env()
    assert launcher_env(a_job(worker_grace_period_s=0.0))[names.ENV_WORKER_GRACE_PERIOD] == "0"
    assert launcher_env(a_job(worker_grace_period_s=65.0))[names.ENV_WORKER_GRACE_PERIOD] == "65"
    assert names.ENV_WORKER_GRACE_PERIOD not in launcher_env(a_job(mode="Torchrun", worker_grace_period_s=5.0))


def test_the_launcher_gets_the_memory_for_snapshots_and_the_sidecar_that_there_is_some():
    assert names.ENV_SNAPSHOT_BYTES not in launcher_env()
    with_snapshots = a_job(snapshot_bytes=1 << 20, snapshot_every=5)
    assert launcher_env(with_snapshots)[names.ENV_SNAPSHOT_BYTES] == "1048576"
    assert launcher_env(with_snapshots)[names.ENV_SNAPSHOT_EVERY] == "5"
    shape = facts_of(with_snapshots)["shape"]
    assert (shape["snapshots"], shape["snapshot_copies"]) == (True, 1)
    assert launcher_env(with_snapshots)[names.ENV_SNAPSHOT_COPIES] == "1"
    assert names.ENV_SNAPSHOT_STORAGE_PATH not in launcher_env(with_snapshots)


def test_the_launcher_gets_the_folder_for_snapshots_on_storage():
    given = launcher_env(a_job(snapshot_bytes=1 << 20, snapshot_path="/checkpoints/snapshots", snapshot_path_keep=3))
    assert given[names.ENV_SNAPSHOT_STORAGE_PATH] == "/checkpoints/snapshots"
    assert given[names.ENV_SNAPSHOT_STORAGE_EVERY] == "1000"
    assert given[names.ENV_SNAPSHOT_STORAGE_KEEP] == "3"


def test_a_torchrun_command_gets_its_job_and_no_zygote():
    trainer = container(manifest(a_job(pod_template=RICH, mode="Torchrun")), "trainer")
    assert trainer["command"] == ["/bin/sh", "/understudy/launch-torchrun", "python", "-u", "train.py"]
    variables = launcher_env(a_job(parallelism=8, mode="Torchrun"))
    assert (variables[names.ENV_NNODES], variables[names.ENV_RUN_ID]) == ("8", "llm")
    assert names.ENV_ZYGOTE not in variables
    elastic = launcher_env(a_job(parallelism=8, min_actives=6, mode="Torchrun"))
    assert elastic[names.ENV_NNODES] == "6:8"


def test_with_auto_the_launcher_gets_the_mode_and_the_values_for_a_torchrun():
    trainer = container(manifest(a_job(pod_template=RICH)), "trainer")
    assert trainer["command"] == ["/bin/sh", "/understudy/launch", "python", "-u", "train.py"]
    variables = launcher_env(a_job(parallelism=8, min_actives=6))
    assert variables[names.ENV_MODE] == "Auto"
    assert (variables[names.ENV_NNODES], variables[names.ENV_RUN_ID]) == ("6:8", "llm")


def test_with_wrap_the_launcher_gets_the_mode_alone():
    variables = launcher_env(a_job(mode="Wrap"))
    assert variables[names.ENV_MODE] == "Wrap"
    assert names.ENV_RUN_ID not in variables


def test_pods_are_never_restarted_by_the_kubelet():
    assert manifest()["spec"]["restartPolicy"] == "Never"
    assert manifest(a_job())["spec"]["restartPolicy"] == "Never"


def test_labels_and_annotations_of_job_and_pod_template_are_merged_and_ours_take_precedence():
    metadata = {"labels": {"team": "research", "queue": "a"}, "annotations": {"note": "job's", "owner": "x"}}
    result = manifest(a_job(pod_template=RICH, job_template_metadata=metadata))["metadata"]
    assert {key: result["labels"][key] for key in ("team", "queue", "app")} == {
        "team": "vision",
        "queue": "a",
        "app": "llm",
    }
    assert result["labels"][names.LABEL_JOB] == "llm"
    assert (result["annotations"]["note"], result["annotations"]["owner"]) == ("pod's", "x")


def test_a_template_drains_no_pod():
    metadata = {"annotations": {"understudy.dev/drain": "always"}}
    for template in ({**TEMPLATE, "metadata": metadata}, TEMPLATE):
        job = a_job(pod_template=template, job_template_metadata=metadata)
        assert "understudy.dev/drain" not in manifest(job)["metadata"]["annotations"]


# Our fields ---------------------------------------------------------------------------------------------------------


def test_the_sidecar_is_the_first_init_container_and_a_native_one():
    containers = manifest()["spec"]["initContainers"]
    assert [x["name"] for x in containers] == [names.SIDECAR_CONTAINER, "fetch"]
    assert (containers[0]["restartPolicy"], containers[0]["image"]) == ("Always", IMAGE)


def test_a_sidecar_that_starts_slowly_on_a_busy_machine_is_not_restarted():
    probe = pod_manifest(a_job(), index=0, serial="1", facts=FACTS, sidecar_image=IMAGE)["spec"]["initContainers"][0][
        "startupProbe"
    ]
    assert probe["periodSeconds"] == 1  # a quick start is detected at once
    assert probe["timeoutSeconds"] == 10  # an answer that takes seconds counts
    assert probe["failureThreshold"] == 1800  # half an hour, or longer


def test_the_sidecar_gets_its_job_and_its_coordinators_address():
    elastic: dict[str, Any] = {"min_actives": 6, "spare_timeout_s": 5.0, "fence_s": 0.0}
    elastic["replica_groups"] = ((0, 1), (2, 3))
    elastic["in_place_max_per_pod"] = 2
    elastic["launcher_timeout_s"] = 20.0
    elastic["start_timeout_s"] = 600.0
    job = a_job(
        parallelism=4,
        replicas=2,
        in_place_max_restarts=3,
        in_place_window_s=90.0,
        backoff_max_delay_s=0.0,
        proactive_replacement="Now",
        **elastic,
    )
    facts = facts_of(job)
    changed = {
        "uid": "job-uid",
        "namespace": "research",
        "name": "llm",
        "actives": 8,
        "nproc_per_node": 8,
        "in_place_max_restarts": 3,
        "in_place_window_s": 90.0,
        "backoff_max_s": 0.0,
        **elastic,
        "replica_groups": [[0, 1], [2, 3]],
        "proactive": "Now",
        "launcher_timeout_s": 20.0,
        "start_timeout_s": 600.0,
    }
    assert facts["shape"] == {**asdict(names.JobShape("", "", "", 0, 0, 0, 0.0)), **changed}
    assert facts["coordinator"] == ADDRESS
    assert env(manifest(job, index=5), names.SIDECAR_CONTAINER)[names.ENV_INDEX] == "5"


def test_what_all_pods_of_a_job_share_is_not_in_the_pod():
    """A job may have thousands of pods, and all of them would contain it."""
    job = a_job(snapshot_bytes=1 << 20)
    pod = manifest(job)
    assert set(env(pod, "trainer")) == {"UNDERSTUDY_NPROC_PER_NODE", "JOB_COMPLETION_INDEX"}
    assert set(env(pod, names.SIDECAR_CONTAINER)) == {"UNDERSTUDY_INDEX", "UNDERSTUDY_POD_IP", "UNDERSTUDY_NODE"}
    assert facts_of(job)["variables"].keys() == {
        "UNDERSTUDY_MODE",
        "UNDERSTUDY_NNODES",
        "UNDERSTUDY_RUN_ID",
        "UNDERSTUDY_SNAPSHOT_BYTES",
        "UNDERSTUDY_SNAPSHOT_EVERY",
        "UNDERSTUDY_SNAPSHOT_COPIES",
    }


def test_with_mode_torchrun_the_variables_are_in_the_pod_because_no_launcher_reads_the_facts():
    job = a_job(mode="Torchrun", step_timeout_s=30.0)
    assert facts_of(job)["variables"] == {}
    assert set(env(manifest(job), "trainer")) == {
        "UNDERSTUDY_NPROC_PER_NODE",
        "UNDERSTUDY_NNODES",
        "UNDERSTUDY_RUN_ID",
        "UNDERSTUDY_STEP_TIMEOUT_SECONDS",
        "JOB_COMPLETION_INDEX",
    }


def test_the_coordinator_gives_pods_the_longest_grace_period_of_their_templates():
    def group(name: str, grace_s: int) -> ReplicatedJob:
        template = {"spec": {**TEMPLATE["spec"], "terminationGracePeriodSeconds": grace_s}}
        return ReplicatedJob(name, {"spec": {"parallelism": 1, "template": template}})

    job = a_job()
    world = replace(job.world, groups=(group("a", 40), group("b", 45), *job.world.groups))
    assert facts_of(replace(job, spec=replace(job.spec, world=world)))["shape"]["grace_s"] == 45.0


def test_the_secret_with_the_facts_has_another_name_if_they_change():
    job = a_job()
    name = facts_secret_name(job, ADDRESS)
    assert re.fullmatch(r"llm-job-uid-facts-[0-9a-f]{10}", name)
    assert facts_secret_name(a_job(), ADDRESS) == name
    assert facts_secret_name(a_job(in_place_max_restarts=99), ADDRESS) != name
    assert facts_secret_name(job, "10.0.0.99:8478") != name


@pytest.mark.parametrize("container_name", ["trainer", names.SIDECAR_CONTAINER])
def test_a_grace_period_other_than_the_default_of_kubernetes_is_in_the_pod(container_name: str) -> None:
    template = {"spec": {**TEMPLATE["spec"], "terminationGracePeriodSeconds": 45}}
    assert env(manifest(a_job(pod_template=template)), container_name)[names.ENV_GRACE] == "45"


def test_a_users_variable_does_not_change_a_setting_that_has_its_default() -> None:
    (trainer,) = TEMPLATE["spec"]["containers"]
    own = [{"name": name, "value": "false"} for name in ("UNDERSTUDY_ZYGOTE", "UNDERSTUDY_FOLDER", "MINE")]
    variables = env(manifest(a_job(pod_template={"spec": {"containers": [{**trainer, "env": own}]}})), "trainer")
    assert {"UNDERSTUDY_ZYGOTE", "UNDERSTUDY_FOLDER", "MINE"} & variables.keys() == {"MINE"}


def test_only_the_sidecar_mounts_the_folder_of_the_nodes_file():
    pod = manifest(a_job(pod_template=RICH, nologin_path="/run/here/nologin"))
    (volume,) = [v for v in pod["spec"]["volumes"] if v["name"] == names.NODE_VOLUME]
    assert volume["hostPath"] == {"path": "/run/here", "type": "DirectoryOrCreate"}
    assert mounts(pod, names.NODE_VOLUME) == {names.SIDECAR_CONTAINER}
    assert container(pod, names.SIDECAR_CONTAINER)["volumeMounts"][-1]["readOnly"] is True
    assert env(pod, names.SIDECAR_CONTAINER)[names.ENV_NOLOGIN] == "/run/here/nologin"


def test_only_the_sidecar_mounts_the_keys_the_facts_and_the_pods_own_fields():
    pod = manifest()
    (volume,) = [v for v in pod["spec"]["volumes"] if v["name"] == names.POD_VOLUME]
    membership, facts, of_pod = volume["projected"]["sources"]
    assert membership == {"secret": {"name": "llm-job-uid-membership"}}
    assert facts == {"secret": {"name": FACTS}}
    assert {item["path"]: item["fieldRef"]["fieldPath"] for item in of_pod["downwardAPI"]["items"]} == {
        "name": "metadata.name",
        "uid": "metadata.uid",
        "verdict": "metadata.annotations['understudy.dev/node-verdict']",
    }
    assert mounts(pod, names.POD_VOLUME) == {names.SIDECAR_CONTAINER}
    assert mounts(pod, names.SHARED_VOLUME) == {names.SIDECAR_CONTAINER, "trainer"}


def test_without_a_node_file_no_folder_of_the_node_is_mounted():
    pod = manifest()
    assert not [v for v in pod["spec"]["volumes"] if "hostPath" in v]
    assert mounts(pod, names.NODE_VOLUME) == set()
    assert names.ENV_NOLOGIN not in env(pod, names.SIDECAR_CONTAINER)


def test_the_job_owns_its_pods():
    (owner,) = manifest()["metadata"]["ownerReferences"]
    assert owner == {
        "apiVersion": "understudy.dev/v1alpha1",
        "kind": "TrainingJob",
        "name": "llm",
        "uid": "job-uid",
        "controller": True,
        "blockOwnerDeletion": True,
    }


# Names and indexes --------------------------------------------------------------------------------------------------


def test_an_active_has_the_name_hostname_and_indexes_that_a_job_controller_would_give_it():
    job = a_job(replicas=2, parallelism=4)
    pod = manifest(job, index=6)
    assert re.fullmatch(r"llm-workers-1-2-[0-9a-f]{5}", pod["metadata"]["name"])
    assert (pod["spec"]["hostname"], pod["spec"]["subdomain"]) == ("llm-workers-1-2", "llm")
    assert pod["metadata"]["labels"][COMPLETION_INDEX] == pod["metadata"]["annotations"][COMPLETION_INDEX] == "2"
    assert pod["metadata"]["annotations"][names.ANNOTATION_GROUP_RANK] == "6"
    assert pod["metadata"]["labels"][names.LABEL_ROLE] == names.ROLE_ACTIVE
    assert env(pod, "trainer")["JOB_COMPLETION_INDEX"] == "2"


def test_a_spare_requests_the_same_resources_as_an_active():
    """So it occupies the place of the pod that it will replace, and filler pods cannot take this place."""
    template = copy.deepcopy(dict(TEMPLATE))
    template["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": 8}}
    template["spec"] |= {"priorityClassName": "training", "nodeSelector": {"gpu": "h200"}}
    active, spare = (manifest(a_job(pod_template=template), index)["spec"] for index in (0, None))
    for field in ("priorityClassName", "nodeSelector"):
        assert spare[field] == active[field] == template["spec"][field]
    assert spare["containers"][0]["resources"] == active["containers"][0]["resources"]


@pytest.mark.parametrize("index", [0, None], ids=["active", "spare"])
def test_the_launcher_gets_the_number_of_devices(index: int | None) -> None:
    assert env(manifest(index=index), "trainer")[names.ENV_DEVICES] == "8"
    assert names.ENV_DEVICES not in env(manifest(a_job(), index=index), "trainer")
    # a null in the template is as good as no field
    template = copy.deepcopy(dict(TEMPLATE))
    for resources in (None, {"limits": None}):
        template["spec"]["containers"][0]["resources"] = resources
        assert names.ENV_DEVICES not in env(manifest(a_job(pod_template=template), index=index), "trainer")


def test_a_spare_has_no_index():
    pod = manifest(a_job(), index=None)
    assert re.fullmatch(r"llm-workers-spare-[0-9a-f]{5}", pod["metadata"]["name"])
    assert COMPLETION_INDEX not in pod["metadata"]["labels"]
    assert pod["metadata"]["labels"][names.LABEL_ROLE] == names.ROLE_SPARE
    assert names.ENV_INDEX not in env(pod, names.SIDECAR_CONTAINER)


def test_the_command_of_a_spare_finds_a_completion_index_that_no_other_pod_has():
    """`torchrun --node-rank=$JOB_COMPLETION_INDEX` fails without a number."""
    template = copy.deepcopy(dict(TEMPLATE))
    template["spec"]["containers"][0]["env"] = [{"name": "JOB_COMPLETION_INDEX", "value": "7"}]
    pod = manifest(a_job(replicas=2, parallelism=4, pod_template=template), index=None)
    assert pod["metadata"]["annotations"][COMPLETION_INDEX] == "4"
    variables = container(pod, "trainer")["env"]
    assert [x for x in variables if x["name"] == "JOB_COMPLETION_INDEX"] == [
        {"name": "JOB_COMPLETION_INDEX", "value": "4"}
    ]


@pytest.mark.parametrize("index", [0, None])
def test_a_pods_name_depends_on_the_reconcile(index: int | None):
    first, again, other = (manifest(a_job(), index, serial)["metadata"]["name"] for serial in ("1", "1", "2"))
    assert first == again != other


@pytest.mark.parametrize("index", [0, 99_999 * 100_000 + 99_999, None])
def test_the_longest_names_that_the_api_allows_are_dns_labels(index: int | None):
    # given names of 44 characters together, and indexes of five digits
    job = a_job(name="j" * 22, replicated_job="r" * 22, replicas=100_000, parallelism=100_000)
    pod = manifest(job, index)
    for name in (pod["metadata"]["name"], pod["spec"]["hostname"], pod["spec"]["subdomain"]):
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name), name


# Nodes to avoid -----------------------------------------------------------------------------------------------------


def affinity_of(given: Any, *avoid_nodes: str) -> Any:
    template = {"spec": {**TEMPLATE["spec"], **({"affinity": given} if given else {})}}
    pod = pod_manifest(
        a_job(pod_template=template),
        index=0,
        serial="1",
        facts=FACTS,
        sidecar_image=IMAGE,
        avoid_nodes=avoid_nodes,
    )
    return pod["spec"].get("affinity")


def not_on(node: str) -> dict[str, Any]:
    return {"key": "metadata.name", "operator": "NotIn", "values": [node]}


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
ON_GPUS = {"key": "gpu", "operator": "In", "values": ["h100"]}
ON_N1 = {"key": "metadata.name", "operator": "In", "values": ["n1"]}


def test_without_nodes_to_avoid_the_affinity_stays_as_it_is():
    assert affinity_of(None) is None
    assert affinity_of({"podAffinity": {}}) == {"podAffinity": {}}


def test_nodes_to_avoid_are_excluded_each_by_name():
    assert affinity_of(None, "b", "a") == {
        "nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchFields": [not_on("a"), not_on("b")]}]}}
    }


def test_nodes_to_avoid_are_excluded_from_each_of_the_users_terms_which_are_alternatives():
    terms = [{"matchExpressions": [ON_GPUS]}, {"matchFields": [ON_N1]}]
    given = {"podAffinity": {}, "nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}
    assert affinity_of(given, "a") == {
        "podAffinity": {},
        "nodeAffinity": {
            REQUIRED: {
                "nodeSelectorTerms": [
                    {"matchExpressions": [ON_GPUS], "matchFields": [not_on("a")]},
                    {"matchFields": [ON_N1, not_on("a")]},
                ]
            }
        },
    }


def test_the_users_preferred_affinity_is_kept():
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}]}
    affinity = affinity_of({"nodeAffinity": preferred}, "a")
    assert affinity["nodeAffinity"].keys() == {REQUIRED, *preferred}


def test_the_pods_service_account_reaches_the_trainer_and_not_the_sidecar():
    # Kubernetes mounts its token if nothing is mounted at that path
    def paths(name: str) -> list[str]:
        return [mount["mountPath"] for mount in container(manifest(), name)["volumeMounts"]]

    assert names.SERVICE_ACCOUNT_FOLDER in paths(names.SIDECAR_CONTAINER)
    assert names.SERVICE_ACCOUNT_FOLDER not in paths("trainer")


@pytest.mark.parametrize(
    ("memory", "source"),
    [
        (SharedMemory("16Gi"), {"medium": "Memory", "sizeLimit": "16Gi"}),
        (SharedMemory("512Mi", on_disk=True), {"sizeLimit": "512Mi"}),
    ],
)
def test_the_trainer_alone_gets_the_shared_memory(memory: SharedMemory, source: dict[str, str]):
    pod = manifest(a_job(pod_template=RICH, shared_memory=memory))
    assert {"name": "understudy-shm", "emptyDir": source} in pod["spec"]["volumes"]
    assert {"name": "understudy-shm", "mountPath": "/dev/shm"} in container(pod, "trainer")["volumeMounts"]
    assert mounts(pod, "understudy-shm") == {"trainer"}


def test_a_template_with_its_own_shared_memory_keeps_it():
    template = copy.deepcopy(dict(RICH))
    (trainer,) = [each for each in template["spec"]["containers"] if each["name"] == "trainer"]
    trainer.setdefault("volumeMounts", []).append({"name": "mine", "mountPath": "/dev/shm/"})
    pod = manifest(a_job(pod_template=template, shared_memory=SharedMemory("16Gi")))
    assert pod == manifest(a_job(pod_template=template))


def test_without_the_field_no_shared_memory_is_added():
    assert mounts(manifest(), "understudy-shm") == set()
