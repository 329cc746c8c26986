"""The errors of a spec, with the field and the fix: at creation, and in the condition of an existing job."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.unit.operator.given import IMAGE, NOW, TEMPLATE, a_group, a_job, observed
from understudy_operator.plan.facts.launcher_choice import LauncherChoice, LauncherReason
from understudy_operator.plan.facts.spec import (
    Action,
    CoordinatorPod,
    FailurePolicy,
    FailureRule,
    Network,
    VolumeClaim,
    World,
)
from understudy_operator.plan.jobset.validation import describe_spec_error, find_spec_errors
from understudy_operator.plan.jobset.views import views
from understudy_operator.plan.reconcile import reconcile


def find_messages(**spec: Any) -> list[str]:
    job = a_job(spec=spec)
    return [found.message for found in find_spec_errors(job.name, job.spec)]


def claims(*names: str) -> tuple[VolumeClaim, ...]:
    return tuple(VolumeClaim(name, {}, retained=number == 0) for number, name in enumerate(names))


def rules(*names: str) -> FailurePolicy:
    return FailurePolicy(rules=tuple(FailureRule(name, Action.FAIL) for name in names))


def test_an_ordinary_spec_has_no_errors():
    ordinary = {"claims": claims("data", "logs"), "failure": rules("a", "b"), "coordinator": CoordinatorPod("workers")}
    assert find_messages(**ordinary) == []
    assert describe_spec_error("llm", a_job(spec=ordinary).spec) == ""


def test_fields_that_need_a_launcher_are_rejected_in_a_job_without_one():
    choice = LauncherChoice(
        LauncherReason.OFF, "launcher.mode is Off: the job behaves as a JobSet", ("spares", "faults")
    )
    assert find_messages(world=None, launcher=choice) == [
        "spares, faults: no effect without a launcher: remove the field or the reason that the job has no launcher "
        "(launcher.mode is Off: the job behaves as a JobSet)"
    ]
    assert find_messages(launcher=LauncherChoice(needing_fields=("spares", "faults"))) == []


def test_the_subdomain_cannot_be_the_name_of_the_coordinators_service():
    """The operator took that Service for the headless one of the hostnames, and none of them resolved."""
    subdomain = Network(subdomain="llm-coordinator")
    assert find_messages(network=subdomain) == [
        "network.subdomain: llm-coordinator is the name of the Service of the job's coordinator: choose another name"
    ]
    assert find_messages(network=Network(subdomain="llm-net")) == []
    assert find_messages(network=Network(hostnames=False, subdomain="llm-coordinator")) == []
    assert find_messages(network=subdomain, world=None) == []


DEEPSPEED = (
    "replicatedJobs[0].template.spec.template.spec.containers: deepspeed starts the processes of a pod itself, so each "
    "worker of the job would start a training of its own: make the script the command, such as [python3, train.py], "
    "and set launcher.nprocPerNode to the processes of each pod"
)
TORCHRUN = (
    "replicatedJobs[0].template.spec.template.spec.containers: launcher.mode Wrap runs the command once for each "
    "worker, but torchrun starts workers itself: set launcher.mode to Auto"
)


@pytest.mark.parametrize(
    ("command", "world", "found"),
    [
        (["deepspeed", "train.py"], {"nproc_per_node": 8}, [DEEPSPEED]),
        (["deepspeed", "train.py"], {"nproc_per_node": 1}, [DEEPSPEED]),  # of two pods
        (["deepspeed", "train.py"], {"nproc_per_node": 1, "parallelism": 1}, []),
        (["torchrun", "train.py"], {"mode": "Wrap"}, [TORCHRUN]),
        (["torchrun", "train.py"], {"mode": "Auto"}, []),
        (["env", "-u", "UNDERSTUDY_ROUND", "torchrun", "check.py"], {"mode": "Wrap"}, []),
        (["python", "train.py"], {"mode": "Wrap"}, []),
    ],
)
def test_a_command_that_starts_several_ranks_itself_is_rejected_with_the_fix(
    command: list[str], world: dict[str, Any], found: list[str]
):
    template = {"spec": {"containers": [{"name": "trainer", "command": command}]}}
    job = a_job(pod_template=template, **world)
    assert [entry.message for entry in find_spec_errors(job.name, job.spec)] == found


def test_pods_that_train_as_one_all_have_host_network_or_none():
    on_host = {"spec": {**TEMPLATE["spec"], "hostNetwork": True}}
    one, other = a_group("one", pod_template=on_host), a_group("other")
    assert find_messages(replicated_jobs=(one, other), world=World(groups=(one, other))) == [
        "replicatedJobs: one has hostNetwork, and the others with a launcher do not: set it in all or in none of them"
    ]
    assert find_messages(replicated_jobs=(one, other), world=World(groups=(one,))) == []


def test_two_volume_claims_of_one_name_are_rejected():
    assert find_messages(claims=claims("data", "logs", "data")) == [
        "volumeClaimPolicies[].templates[].metadata.name: two claims have the name data: rename or remove one of them"
    ]


@pytest.mark.parametrize(("name", "fits"), [("a" * 24, True), ("a" * 25, False)])
def test_the_coordinators_label_has_at_most_63_characters(name: str, fits: bool):
    # <24>-workers-0-0.<24> is 60 characters long, and each character of the name counts twice
    spec = a_job(spec={"coordinator": CoordinatorPod("workers", 10, 0)}).spec
    assert [found.message for found in find_spec_errors(name, spec)] == (
        []
        if fits
        else [
            "coordinator: the label jobset.sigs.k8s.io/coordinator would be "
            "aaaaaaaaaaaaaaaaaaaaaaaaa-workers-10-0.aaaaaaaaaaaaaaaaaaaaaaaaa, of 64 characters; at most 63 are "
            "allowed: shorten metadata.name, replicatedJobs[].name or network.subdomain"
        ]
    )


def test_the_users_subdomain_counts_in_the_coordinators_label():
    spec = a_job(spec={"coordinator": CoordinatorPod("workers"), "network": Network(subdomain="s" * 50)}).spec
    (found,) = find_spec_errors("llm", spec)
    assert "of 66 characters" in found.message


@pytest.mark.parametrize(("replicas", "parallelism", "fits"), [(20_000, 107_374, True), (20_000, 107_375, False)])
def test_the_number_of_pods_is_limited_to_int32(replicas: int, parallelism: int, fits: bool):
    groups = (a_group("a", replicas, parallelism),)
    assert find_messages(replicated_jobs=groups, world=None) == (
        []
        if fits
        else [
            "replicatedJobs[0]: replicas times parallelism is 2147500000; at most 2147483647 pods are allowed: lower "
            "one of them"
        ]
    )


def test_a_rule_may_not_have_the_name_that_another_has_by_default():
    # observe/read_spec.py gives this name to a rule without one, after a rule called failurePolicyRule1
    assert find_messages(failure=rules("failurePolicyRule1", "failurePolicyRule1")) == [
        "failurePolicy.rules[1].name: two rules have the name failurePolicyRule1 (a rule without a name is "
        "called failurePolicyRule and its number, from 0): rename one of them"
    ]


RULES = [{"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}]
ALL_RULES = [{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}]


@pytest.mark.parametrize(
    ("of_trainer", "of_other", "field"),
    [
        ({"restartPolicy": "Never", "restartPolicyRules": RULES}, {}, "restartPolicyRules of container trainer"),
        ({"restartPolicy": "OnFailure"}, {}, "restartPolicy OnFailure of container trainer"),
        (
            {},
            {"restartPolicyRules": ALL_RULES},
            "restartPolicyRules with action RestartAllContainers of container logs",
        ),
    ],
)
def test_restart_rules_for_a_launcher_are_rejected(of_trainer: dict[str, Any], of_other: dict[str, Any], field: str):
    trainer, logs = {"name": "trainer", "command": ["x"], **of_trainer}, {"name": "logs", **of_other}
    job = a_job(pod_template={"spec": {"containers": [logs, trainer]}})
    (found,) = find_spec_errors("llm", job.spec)
    assert found.message == (
        f"replicatedJobs[0].template.spec.template.spec: {field} would make the kubelet restart the launcher, "
        "but the launcher restarts workers itself (recovery.inPlace): remove it"
    )
    assert found.changeable


def test_containers_without_a_launcher_may_have_restart_rules():
    trainer, logs = {"name": "trainer", "restartPolicy": "Never"}, {"name": "logs", "restartPolicyRules": RULES}
    assert find_messages() == []
    assert list(find_spec_errors("llm", a_job(pod_template={"spec": {"containers": [logs, trainer]}}).spec)) == []
    jobs = a_group("a", pod_template={"spec": {"containers": [{"name": "trainer", "restartPolicyRules": RULES}]}})
    assert find_messages(replicated_jobs=(jobs,), world=None) == []


@pytest.mark.attack("C4", "a template that mounts the volume with the job's key", before="the trainer got the key")
@pytest.mark.parametrize("kind", ["containers", "initContainers"])
@pytest.mark.parametrize("volume", ["pod", "state", "node", "gateway"])
def test_a_users_container_cannot_mount_the_operators_own_volumes(kind: str, volume: str):
    trainer = {"name": "trainer", "command": ["x"]}
    mounts = [{"name": "data", "mountPath": "/data"}, {"name": f"understudy-{volume}", "mountPath": "/x"}]
    curious: dict[str, Any] = {"name": "curious", "volumeMounts": mounts}
    spec: dict[str, Any] = {"containers": [trainer]}
    spec[kind] = [*spec.get(kind, []), curious]
    (found,) = find_spec_errors("llm", a_job(pod_template={"spec": spec}).spec)
    assert found.message == (
        f"replicatedJobs[0].template.spec.template.spec: volumeMounts understudy-{volume} of container curious: only "
        "Understudy may mount this volume: remove the mount"
    )
    assert found.changeable


@pytest.mark.attack("C4", "a template whose container has a name of ours and mounts the key", before="it got the key")
@pytest.mark.parametrize("name", ["understudy-gateway", "understudy-sidecar"])
def test_no_name_of_a_container_lets_it_mount_the_key(name: str):
    curious = {"name": name, "volumeMounts": [{"name": "understudy-pod", "mountPath": "/x"}]}
    spec = {"containers": [{"name": "trainer", "command": ["x"]}, curious]}
    found, *_ = find_spec_errors("llm", a_job(pod_template={"spec": spec}).spec)
    assert f"volumeMounts understudy-pod of container {name}: only Understudy may" in found.message


def test_a_container_may_mount_the_folder_that_sidecar_and_trainer_share():
    mounts = [{"name": "understudy", "mountPath": "/understudy"}]
    containers: list[dict[str, Any]] = [{"name": "trainer"}, {"name": "logs", "volumeMounts": mounts}]
    assert list(find_spec_errors("llm", a_job(pod_template={"spec": {"containers": containers}}).spec)) == []


def test_the_error_of_an_existing_job_states_how_to_correct_it():
    # given a field that can be changed while the job is suspended, and one that cannot
    groups = (a_group("a", 65536, 32768, TEMPLATE),)
    changeable, fixed = a_job(spec={"replicated_jobs": groups}).spec, a_job(spec={"claims": claims("d", "d")}).spec
    assert describe_spec_error("llm", changeable).endswith(
        ": lower one of them. The job does not start; to change this field, suspend the job, and resume it afterwards"
    )
    assert describe_spec_error("llm", fixed).endswith(
        ": rename or remove one of them. The job does not start; to change this field, delete the job and create it "
        "again"
    )


@pytest.mark.attack(
    "A1",
    "creates a TrainingJob of two billion pods, which the CRD lets through",
    before="the operator listed all of them in memory, again after each restart",
)
@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"replicas": 20_000, "parallelism": 100_000}, "the pods with a launcher and their spares are 2000000001"),
        ({"parallelism": 10_000, "spares": 10_001}, "the pods with a launcher and their spares are 20001"),
    ],
    ids=["pods", "spares"],
)
@pytest.mark.parametrize("suspend", [False, True])
def test_a_job_that_exceeds_the_operators_memory_is_rejected_and_not_planned(
    suspend: bool, spec: Any, field: str
) -> None:
    # given such a job
    job = a_job(**spec, spec={"suspend": suspend})
    # then the webhook and the condition Invalid report it
    assert field in describe_spec_error(job.name, job.spec)
    # and its reconcile creates and lists nothing
    plan = reconcile(observed(job, ()), IMAGE, NOW)
    assert (plan.pods, plan.jobs) == ((), ())


@pytest.mark.attack(
    "A1",
    "creates a suspended TrainingJob of three million Jobs that train as one, while the webhook does not answer",
    before="the operator counted them in each reconcile, in 0.8 GB of memory",
)
def test_the_jobs_of_a_suspended_job_that_exceeds_the_operators_memory_are_not_counted() -> None:
    job = a_job(replicas=100_000, parallelism=1, spec={"suspend": True})
    assert "the pods with a launcher and their spares are 100001" in describe_spec_error(job.name, job.spec)
    assert views(observed(job, ())) == ()


@pytest.mark.attack(
    "A1", "creates a TrainingJob of two billion Jobs without pods", before="the operator counted them, for an hour"
)
def test_the_pods_of_jobs_without_a_launcher_are_limited_too() -> None:
    group = a_group(replicas=2_000_000_000, parallelism=0)
    job = a_job(spec={"replicated_jobs": (group,), "world": None})
    assert "replicatedJobs[0].replicas is 2000000000; at most 20000" in describe_spec_error(job.name, job.spec)
    plan = reconcile(observed(job, ()), IMAGE, NOW)
    assert (plan.pods, plan.jobs) == ((), ())


def with_memory(limit: object) -> dict[str, Any]:
    containers = [{"name": "trainer", "resources": {"limits": {"memory": limit}}}]
    return {"spec": {"containers": containers}}


@pytest.mark.parametrize(("limit", "fits"), [("33Gi", True), ("32Gi", False), (34359738369, True), (None, True)])
def test_snapshots_must_fit_into_the_trainers_memory(limit: object, fits: bool):
    # 2 snapshots of 2 GiB for each of 8 workers
    template = with_memory(limit)
    job = a_job(pod_template=template, container="", nproc_per_node=8, snapshot_bytes=2 << 30, wanted_copies=0)
    assert [found.message for found in find_spec_errors(job.name, job.spec)] == (
        []
        if fits
        else [
            "snapshots.size: 2 snapshots for each of 8 workers need 32.00Gi of the trainer container's memory, and its "
            "limit in replicatedJobs[0] is 32.00Gi: raise resources.limits.memory, or lower snapshots.size"
        ]
    )


def test_the_copies_of_other_pods_must_fit_too():
    # one other pod: as much again
    job = a_job(pod_template=with_memory("64Gi"), container="", nproc_per_node=8, snapshot_bytes=2 << 30)
    assert [found.message for found in find_spec_errors(job.name, job.spec)] == [
        "snapshots.size: 2 snapshots for each of 8 workers, and as many for the workers of each of 1 other pods, need "
        "64.00Gi of the trainer container's memory, and its limit in replicatedJobs[0] is 64.00Gi: raise "
        "resources.limits.memory, or lower snapshots.size or snapshots.copies"
    ]


@pytest.mark.parametrize(("actives", "copies", "fits"), [(2, 1, True), (2, 2, False), (1, 1, False), (1, 0, True)])
def test_there_are_other_pods_for_the_copies(actives: int, copies: int, fits: bool):
    job = a_job(parallelism=actives, snapshot_bytes=1 << 20, wanted_copies=copies)
    found = [found.message for found in find_spec_errors(job.name, job.spec)]
    expected = (
        f"snapshots.copies: {copies} other pods cannot keep a copy, because {actives} pods of the job train: lower"
    )
    assert found == ([] if fits else [f"{expected} it to {actives - 1}"])


@pytest.mark.parametrize(
    ("mounts", "fits"),
    [
        (["/checkpoints"], True),
        (["/data", "/checkpoints/snapshots/"], True),
        (["/"], True),
        ([], False),
        (["/checkpoint"], False),
        (["/checkpoints/snapshots/deeper"], False),
    ],
)
def test_snapshots_on_storage_are_on_a_volume_of_the_trainer(mounts: list[str], fits: bool):
    volume_mounts = [{"name": "storage", "mountPath": path} for path in mounts]
    template = {"spec": {"containers": [{"name": "trainer", "volumeMounts": volume_mounts}]}}
    job = a_job(pod_template=template, container="", snapshot_bytes=1 << 20, snapshot_path="/checkpoints/snapshots")
    assert [found.message for found in find_spec_errors(job.name, job.spec)] == (
        []
        if fits
        else [
            "snapshots.storage.path: /checkpoints/snapshots is on no volume of the trainer container in "
            "replicatedJobs[0]: add a volume that all pods share, and mount it with volumeMounts at this path or at a "
            "folder above it"
        ]
    )


def storage_errors(
    path: str, mounts: Sequence[Mapping[str, object]], volumes: Sequence[Mapping[str, object]]
) -> list[str]:
    template = {"spec": {"containers": [{"name": "trainer", "volumeMounts": mounts}], "volumes": volumes}}
    job = a_job(pod_template=template, container="", snapshot_bytes=1 << 20, snapshot_path=path)
    return [found.message for found in find_spec_errors(job.name, job.spec)]


SHARED = {"name": "shared", "persistentVolumeClaim": {"claimName": "shared"}}
OWN = {"name": "own", "emptyDir": {"medium": "Memory"}}


@pytest.mark.parametrize("kind", ["emptyDir", "ephemeral", "configMap", "secret", "downwardAPI", "projected", "image"])
def test_snapshots_on_storage_are_on_no_volume_that_each_pod_has_for_itself(kind: str):
    """The ranks of the other pods would wait for five minutes in load(), and the round would fail, again and again."""
    volume = {"name": "own", kind: {}}
    mounts = [{"name": "own", "mountPath": "/ck"}]
    assert storage_errors("/ck/snapshots", mounts, [volume]) == [
        f"snapshots.storage.path: /ck/snapshots is on the volume own of replicatedJobs[0], and each pod has its own "
        f"({kind}): use a volume that all pods share, such as a PersistentVolumeClaim with the access mode "
        "ReadWriteMany"
    ]


def test_the_deepest_mount_has_the_snapshots_on_storage():
    outer, inner = {"name": "shared", "mountPath": "/ck"}, {"name": "own", "mountPath": "/ck/fast/"}
    assert storage_errors("/ck/snapshots", [outer, inner], [SHARED, OWN]) == []
    assert "on the volume own" in storage_errors("/ck/fast", [outer, inner], [SHARED, OWN])[0]


def test_snapshots_on_storage_are_on_no_mount_that_is_read_only():
    mounts = [{"name": "shared", "mountPath": "/ck", "readOnly": True}]
    assert storage_errors("/ck/snapshots", mounts, [SHARED]) == [
        "snapshots.storage.path: /ck/snapshots is on the volume shared of replicatedJobs[0], which the trainer "
        "container mounts with readOnly: remove readOnly, because the workers write there"
    ]


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("/ck/" + "\u00e9" * 500, "is longer than 1000 bytes"),
        ("/ck/a\nb", "contains a character that cannot be printed"),
    ],
)
def test_a_launcher_accepts_the_path_of_snapshots_on_storage(path: str, problem: str):
    """It would cut a longer path off, and restore from another folder than it writes to."""
    mounts = [{"name": "shared", "mountPath": "/ck"}]
    assert storage_errors(path, mounts, [SHARED]) == [f"snapshots.storage.path: {problem}: choose another folder"]
    assert storage_errors("/ck/" + "\u00e9" * 498, mounts, [SHARED]) == []


def test_a_launcher_can_pass_only_so_many_files():
    job = a_job(nproc_per_node=100, snapshot_bytes=1 << 20, wanted_copies=2, parallelism=3)
    assert [found.message for found in find_spec_errors(job.name, job.spec)] == [
        "snapshots.copies: 100 workers of a pod with 2 copies need more than 250 files in memory: lower copies or "
        "launcher.nprocPerNode"
    ]


@pytest.mark.parametrize(
    ("field", "names"),
    [
        (
            "volumes",
            [
                "understudy",
                "understudy-shm",
                "understudy-rollouts",
                "understudy-pod",
                "understudy-state",
                "understudy-node",
                "understudy-gateway",
            ],
        ),
        ("containers", ["understudy-sidecar", "understudy-gateway"]),
        ("initContainers", ["understudy-sidecar", "understudy-gateway"]),
    ],
)
def test_a_template_cannot_have_a_name_that_the_operator_adds(field: str, names: list[str]):
    for name in names:
        spec: dict[str, Any] = {"containers": [{"name": "trainer", "command": ["x"]}]}
        spec[field] = [*spec.get(field, []), {"name": name}]
        (found,) = find_spec_errors("llm", a_job(pod_template={"spec": spec}).spec)
        assert found.message == (
            f"replicatedJobs[0].template.spec.template.spec.{field}: Understudy adds one with the name {name}: "
            "rename yours"
        )
        assert found.changeable
        # without a launcher the operator adds nothing
        jobs = a_group("a", pod_template={"spec": spec})
        assert find_messages(replicated_jobs=(jobs,), world=None) == []
