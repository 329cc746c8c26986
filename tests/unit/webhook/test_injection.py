"""Pods as their controllers create them, and their injection: golden files, and declined pods."""

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonpatch
import pytest

from tests.unit.webhook.golden import IMAGE, NAMES, golden, pod, text
from understudy_operator.plan.facts.host_ports import HostPorts
from understudy_operator.plan.facts.sidecar_settings import SidecarSettings
from understudy_operator.plan.injection.injected_pods import InjectedPod, inject
from understudy_operator.plan.injection.settings import ANNOTATIONS, Objection, read_injection_settings
from understudy_protocol import pod as names
from understudy_webhook.review import json_patch

Raw = dict[str, Any]


def changed(name: str, change: Callable[[Raw], object]) -> Raw:
    raw = pod(name)
    change(raw)
    return raw


def injected(raw: Raw) -> InjectedPod:
    return inject(raw, IMAGE)


def container(raw: Raw, name: str) -> Raw:
    (found,) = [x for x in (*raw["spec"]["initContainers"], *raw["spec"]["containers"]) if x["name"] == name]
    return dict(found)


def env(raw: Raw, name: str) -> dict[str, str]:
    return {x["name"]: x.get("value", "") for x in container(raw, name)["env"]}


@pytest.mark.parametrize("name", NAMES)
def test_a_pod_is_injected_as_in_its_golden_file(name: str) -> None:
    assert text(injected(pod(name)).pod) == golden(name), "python -m tests.unit.webhook.golden rewrites it"


@pytest.mark.parametrize("name", NAMES)
def test_the_patch_turns_the_pod_into_the_injected_pod(name: str) -> None:
    before, after = pod(name), injected(pod(name)).pod
    assert jsonpatch.apply_patch(before, json_patch(before, after)) == after


@pytest.mark.parametrize("name", NAMES)
def test_a_second_call_changes_nothing(name: str) -> None:
    once = injected(pod(name)).pod
    again = injected(once)
    assert json_patch(once, again.pod) == []
    assert again.warnings == ()


@pytest.mark.parametrize("name", NAMES)
def test_a_patch_that_is_applied_twice_has_the_same_result(name: str) -> None:
    patch = json_patch(pod(name), injected(pod(name)).pod)
    once = jsonpatch.apply_patch(pod(name), patch)
    assert jsonpatch.apply_patch(once, patch) == once


@pytest.mark.parametrize("name", NAMES)
def test_only_the_sidecar_has_the_jobs_key_and_all_others_have_the_service_account(name: str) -> None:
    spec = injected(pod(name)).pod["spec"]
    for each in (*spec["initContainers"], *spec["containers"]):
        mounts = {mount["name"]: mount["mountPath"] for mount in each.get("volumeMounts", ())}
        own = each["name"] == names.SIDECAR_CONTAINER
        assert (names.POD_VOLUME in mounts) is own
        if own:
            assert names.SERVICE_ACCOUNT_FOLDER in [mount["mountPath"] for mount in each["volumeMounts"]]
    (volume,) = [x for x in spec["volumes"] if x["name"] == names.POD_VOLUME]
    secrets = [source for source in volume["projected"]["sources"] if "secret" in source]
    assert len(secrets) == (0 if name == "alone" else 1)  # a pod without a job is no member


@pytest.mark.parametrize("name", NAMES)
def test_the_pod_that_was_sent_is_not_changed(name: str) -> None:
    raw = pod(name)
    injected(raw)
    assert raw == pod(name)


# After another webhook -----------------------------------------------------------------------------------------------


def test_our_fields_that_another_webhook_has_changed_stay_changed() -> None:
    once = injected(pod("job")).pod
    once["spec"]["initContainers"][0]["image"] = "mirror.example.com/sidecar:1"
    once["spec"]["initContainers"].insert(0, {"name": "mesh", "image": "mesh:1"})
    once["spec"]["containers"][1]["env"].append({"name": "MESH", "value": "1"})
    assert json_patch(once, injected(once).pod) == []


def test_our_fields_that_another_webhook_has_removed_are_restored() -> None:
    once = injected(pod("job")).pod
    missing = copy.deepcopy(once)
    missing["spec"]["initContainers"] = [x for x in missing["spec"]["initContainers"] if x["name"] == "fetch"]
    missing["spec"]["volumes"] = missing["spec"]["volumes"][:1]
    assert injected(missing).pod == once


def test_a_container_that_another_webhook_puts_first_does_not_become_the_trainer() -> None:
    once = injected(pod("jobset")).pod
    once["spec"]["containers"].insert(0, {"name": "mesh", "image": "mesh:1", "command": ["mesh"]})
    assert json_patch(once, injected(once).pod) == []


# hostNetwork ---------------------------------------------------------------------------------------------------------


PORTS = HostPorts(24000, 24009)


def on_host_network(name: str, entropy: str = "u-1") -> Raw:
    return inject(
        changed(name, lambda x: x["spec"].update(hostNetwork=True)), IMAGE, SidecarSettings(host_ports=PORTS), entropy
    ).pod


@pytest.mark.parametrize("name", NAMES)
def test_a_pod_with_host_network_gets_two_ports_of_the_range(name: str) -> None:
    raw = on_host_network(name)
    trainer = container(raw, raw["metadata"]["annotations"][names.ANNOTATION_TRAINER_CONTAINER])
    ports = {x["name"]: x["containerPort"] for x in trainer["ports"] if x.get("name", "").startswith("understudy")}
    # the sidecar listens on the first, and answers probes on the second
    port = int(env(raw, names.SIDECAR_CONTAINER)["UNDERSTUDY_MEMBERSHIP_PORT"])
    assert ports == {"understudy": port, "understudy-http": port + 1}
    assert port in range(24000, 24009, 2)
    sidecar = container(raw, names.SIDECAR_CONTAINER)
    assert sidecar["startupProbe"]["httpGet"]["port"] == port + 1
    # and declares none: before Kubernetes 1.34 the scheduler ignores ports of init containers
    assert "ports" not in sidecar


@pytest.mark.parametrize("name", NAMES)
def test_the_patch_of_a_pod_with_host_network_contains_its_ports(name: str) -> None:
    """The coordinator's Service names one of them, and the scheduler keeps pods with the same ports apart."""
    before, after = changed(name, lambda x: x["spec"].update(hostNetwork=True)), on_host_network(name)
    assert jsonpatch.apply_patch(before, json_patch(before, after)) == after


def test_pods_of_other_requests_get_other_ports() -> None:
    drawn = {
        env(on_host_network("job", f"u-{n}"), names.SIDECAR_CONTAINER)["UNDERSTUDY_MEMBERSHIP_PORT"] for n in range(50)
    }
    assert drawn == {"24000", "24002", "24004", "24006", "24008"}


def test_a_second_call_keeps_the_ports_also_if_another_webhook_has_removed_the_sidecar() -> None:
    once = on_host_network("job")
    again = inject(once, IMAGE, SidecarSettings(host_ports=PORTS), "another request").pod
    assert json_patch(once, again) == []
    missing = copy.deepcopy(once)
    missing["spec"]["initContainers"] = [x for x in missing["spec"]["initContainers"] if x["name"] == "fetch"]
    assert inject(missing, IMAGE, SidecarSettings(host_ports=PORTS), "another request").pod == once


# The launcher and the number of workers -------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "stub"), [("Auto", "launch"), ("Torchrun", "launch-torchrun"), (None, "launch")])
def test_the_launcher_gets_the_mode_and_reads_the_command_itself(mode: str | None, stub: str) -> None:
    command = ["bash", "-c", "cd /src && torchrun t.py"]
    raw = changed("jobset", lambda x: x["spec"]["containers"][0].update(command=command))
    if mode is not None:
        annotated("launcher", mode)(raw)
    done = injected(raw).pod
    assert container(done, "trainer")["command"] == ["/bin/sh", f"/understudy/{stub}", *command]
    assert env(done, "trainer").get(names.ENV_MODE) == {None: "Auto", "Torchrun": None}.get(mode, mode)


@pytest.mark.parametrize("option", ["--nproc-per-node=8", "--nproc_per_node 8", "--nproc_per_node=8;"])
def test_torchruns_own_argument_sets_the_number_of_workers(option: str) -> None:
    raw = changed(
        "jobset", lambda x: x["spec"]["containers"][0].update(command=["sh", "-c", f"torchrun {option} t.py"])
    )
    assert env(injected(raw).pod, "trainer")[names.ENV_NPROC] == "8"


def test_without_a_number_a_pod_has_a_worker_for_each_device() -> None:
    limits = {"limits": {"nvidia.com/gpu": "4"}}
    for command in (["python", "t.py"], ["torchrun", "--nproc-per-node=gpu", "t.py"]):
        raw = changed("jobset", lambda x: x["spec"]["containers"][0].update(command=command, resources=limits))  # noqa: B023
        assert env(injected(raw).pod, "trainer")[names.ENV_NPROC] == "4"


def test_the_rendezvous_that_a_controller_has_configured_stays_with_auto() -> None:
    done = injected(pod("pytorchjob"))
    assert env(done.pod, "pytorch")["PET_RDZV_BACKEND"] == "c10d"
    assert not any("PET_RDZV_BACKEND" in warning for warning in done.warnings)


def test_with_torchrun_the_rendezvous_that_a_controller_has_configured_is_removed_and_reported() -> None:
    done = injected(changed("pytorchjob", annotated("launcher", "Torchrun")))
    assert names.ENV_NPROC in env(done.pod, "pytorch")
    assert "PET_RDZV_BACKEND" not in env(done.pod, "pytorch")
    assert any("PET_RDZV_BACKEND" in warning for warning in done.warnings)


def test_the_kubelets_restarts_become_the_launchers_and_are_reported() -> None:
    done = injected(pod("job"))
    assert done.pod["spec"]["restartPolicy"] == "Never"
    assert any("restartPolicy" in warning for warning in done.warnings)


def test_the_launchers_own_variables_in_the_manifest_are_ignored() -> None:
    own = [{"name": names.ENV_NPROC, "value": "99"}]
    raw = changed("jobset", lambda x: x["spec"]["containers"][0].update(env=own))
    done = injected(raw).pod
    assert container(done, "trainer")["command"][1] == "/understudy/launch"
    assert env(done, "trainer")[names.ENV_NPROC] == "1"


# The pod's job --------------------------------------------------------------------------------------------------------


def test_the_pods_of_a_restarted_jobset_are_a_new_job() -> None:
    labels = injected(pod("jobset")).pod["metadata"]["labels"]
    assert labels[names.LABEL_JOB] == "jobset.llm.1"
    assert labels[names.LABEL_JOB_UID].endswith("000000000002-1")
    first = changed("jobset", lambda x: x["metadata"]["labels"].update({"jobset.sigs.k8s.io/restart-attempt": "0"}))
    labels = injected(first).pod["metadata"]["labels"]
    assert (labels[names.LABEL_JOB], labels[names.LABEL_JOB_UID][-5:]) == ("jobset.llm", "00002")


def test_a_name_that_is_too_long_for_a_label_is_shortened_and_stays_unique() -> None:
    def named(last: str) -> str:
        long = changed(
            "job", lambda x: x["metadata"]["labels"].update({"batch.kubernetes.io/job-name": "j" * 62 + last})
        )
        return str(injected(long).pod["metadata"]["labels"][names.LABEL_JOB])

    assert len(named("a")) <= 63
    assert named("a") != named("b")


# Declined pods --------------------------------------------------------------------------------------------------------


def annotated(name: str, value: str) -> Callable[[Raw], object]:
    return lambda raw: raw["metadata"].setdefault("annotations", {}).update({f"understudy.dev/{name}": value})


def without_labels(raw: Raw) -> None:
    raw["metadata"]["labels"] = {"understudy.dev/inject": "enabled"}


def without_index(raw: Raw) -> None:
    for field in ("labels", "annotations"):
        raw["metadata"][field].pop("batch.kubernetes.io/job-completion-index")


def labelled(key: str, text: str = "") -> Callable[[Raw], object]:
    """With a label value that no controller writes; without the label if no text is given."""

    def change(raw: Raw) -> None:
        raw["metadata"]["labels"].pop(key, None)
        if text:
            raw["metadata"]["labels"][key] = text

    return change


def of_other_kubeflow_job(raw: Raw) -> None:
    raw["metadata"]["ownerReferences"][0]["kind"] = "MPIJob"


def mounting(volume: str) -> Callable[[Raw], object]:
    mount = {"name": volume, "mountPath": "/x"}
    return lambda raw: raw["spec"]["containers"][0].setdefault("volumeMounts", []).append(mount)


def command_of(text: str) -> Callable[[Raw], object]:
    return lambda raw: raw["spec"]["containers"][0].update(command=["bash", "-c", text])


def torchrun_mode(text: str) -> Callable[[Raw], object]:
    return lambda raw: (command_of(text)(raw), annotated("launcher", "Torchrun")(raw))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("job", without_labels, "for pods of a Job, a JobSet or a PyTorchJob"),
        ("pytorchjob", of_other_kubeflow_job, "Kubeflow's other jobs"),
        (
            "job",
            lambda x: x["metadata"]["labels"].update({names.LABEL_JOB: "llm"}),
            "the pod belongs to TrainingJob llm",
        ),
        ("jobset", without_index, "completionMode has to be Indexed"),
        ("jobset", lambda x: x["metadata"]["labels"].pop("jobset.sigs.k8s.io/jobset-uid"), "JobSet 0.6 or newer"),
        ("job", labelled("batch.kubernetes.io/controller-uid"), "no label batch.kubernetes.io/controller-uid"),
        ("jobset", labelled("jobset.sigs.k8s.io/replicatedjob-name"), "no label jobset.sigs.k8s.io/replicatedjob-name"),
        ("jobset", labelled("jobset.sigs.k8s.io/job-index", "one"), "label jobset.sigs.k8s.io/job-index is 'one'"),
        ("pytorchjob", labelled("training.kubeflow.org/replica-index", "x"), "replica-index is 'x'"),
        ("jobset", lambda x: x["spec"]["containers"][0].pop("command"), "container trainer needs a command"),
        (
            "jobset",
            lambda x: (
                x["spec"]["containers"][0].update(command=["deepspeed", "train.py"]),
                annotated("nproc-per-node", "8")(x),
            ),
            "container trainer: deepspeed starts the processes of a pod itself",
        ),
        (
            "jobset",
            lambda x: (
                x["spec"]["containers"][0].update(command=["bash", "-c", "torchrun t.py"]),
                annotated("launcher", "Wrap")(x),
            ),
            "container trainer: launcher.mode Wrap runs the command once for each worker, but torchrun starts workers",
        ),
        ("jobset", lambda x: x["spec"]["containers"][0].update(name=names.SIDECAR_CONTAINER), "rename yours"),
        ("job", lambda x: x["spec"]["volumes"][0].update(name=names.SHARED_VOLUME), "rename yours"),
        ("jobset", mounting(names.POD_VOLUME), "volumeMounts understudy-pod of container trainer: only"),
        ("job", mounting(names.NODE_VOLUME), "only Understudy may mount this volume: remove the mount"),
        ("job", annotated("container", "tainer"), "set it to one of logs, trainer"),
        ("job", annotated("container", ""), "set it to the name of the container that trains"),
        ("job", annotated("spares", "-1"), "understudy.dev/spares is '-1': set it to the number of pods that wait as"),
        ("job", annotated("spares", "1.5"), "understudy.dev/spares is '1.5': set it to the number of pods that wait"),
        ("job", annotated("spares", "many"), "understudy.dev/spares is 'many': set it to the number of pods that wait"),
        ("job", annotated("launcher", "wrap"), "'wrap': set it to Auto, Wrap, Torchrun or None"),
        ("job", annotated("launcher", ""), "'': set it to Auto, Wrap, Torchrun or None"),
        ("job", annotated("nproc-per-node", "gpu"), "'gpu': set it to the number of workers of each pod"),
        ("job", annotated("nproc-per-node", "0"), "set it to the number of workers of each pod"),
        ("job", annotated("step-timeout", "ten"), "set it to a duration such as"),
        ("job", annotated("start-timeout", "ten"), "set it to a duration such as"),
        ("job", annotated("worker-grace-period", "2h"), "'2h': set it to a duration of at most 1h, such as 30s or 10m"),
        (
            "job",
            annotated("launcher-timeout", "4s"),
            "is '4s': set it to a duration such as 30s, 10m or 1h, at least 5s",
        ),
        (
            "job",
            annotated("slow-rank-percent", "109"),
            "is '109': set it to a number from 110 to 1000, or 0 if no rank counts as slow",
        ),
        ("job", annotated("slow-rank-percent", "1001"), "set it to a number from 110 to 1000, or 0"),
        ("job", annotated("history-limit", "1001"), "is '1001': set it to a number of at most 1000, 0 or more"),
        ("job", annotated("launcher", "torchrun"), "set it to Auto, Wrap, Torchrun or None"),
        ("job", annotated("spare", "1"), "understudy.dev/spare is unknown: correct"),
        ("job", annotated("zygote", "false"), "zygote is now named understudy.dev/fork-server: rename it, and set it"),
        ("job", annotated("nologin-path", "/run/x"), "nologin-path is now named understudy.dev/node-file: rename it"),
        ("job", annotated("fence-timeout", "30s"), "is now named understudy.dev/coordinator-loss-timeout: rename it"),
        ("job", annotated("backoff-max", "30s"), "is now named understudy.dev/backoff-max-delay: rename it"),
        ("job", annotated("worker-grace", "5s"), "is now named understudy.dev/worker-grace-period: rename it"),
        (
            "job",
            annotated("world-size", "16"),
            "is now named understudy.dev/spares: rename it, and set it to the number of pods that wait as spares",
        ),
        (
            "job",
            annotated("min-world-size", "8"),
            "is now named understudy.dev/min-pods: rename it, and set it to the number of pods to shrink to",
        ),
        ("job", annotated("python", "python3"), "set it to the path of a Python in the image"),
        ("jobset", torchrun_mode("torchrun --rdzv-backend=c10d t.py"), "has --rdzv-backend=c10d"),
        ("jobset", torchrun_mode("torchrun --standalone t.py"), "has --standalone"),
        (
            "jobset",
            command_of("torchrun --nproc-per-node=gpu t.py"),
            "set annotation understudy.dev/nproc-per-node to the number",
        ),
    ],
)
def test_a_pod_that_cannot_be_injected_is_declined_with_the_fix(
    name: str, change: Callable[[Raw], object], message: str
) -> None:
    with pytest.raises(Objection) as refused:
        injected(changed(name, change))
    assert message in str(refused.value)


def test_with_a_python_the_launcher_needs_no_shell_and_a_second_injection_adds_nothing() -> None:
    once = injected(changed("job", annotated("python", "/usr/bin/python3"))).pod
    trainer = once["metadata"]["annotations"][names.ANNOTATION_TRAINER_CONTAINER]
    command = container(once, trainer)["command"]
    assert command[:6] == ["/usr/bin/python3", "-I", "-S", "-u", "/understudy/launcher.pyz", "--"]
    assert container(injected(once).pod, trainer)["command"] == command


@pytest.mark.parametrize(
    ("name", "value", "variable", "result"),
    [("fork-server", "false", names.ENV_ZYGOTE, "false"), ("node-file", "/run/x", names.ENV_NOLOGIN, "/run/x")],
)
def test_the_old_names_of_annotations_still_work(name: str, value: str, variable: str, result: str) -> None:
    spec = injected(changed("job", annotated(name, value))).pod["spec"]
    variables = [x for container in (*spec["containers"], *spec["initContainers"]) for x in container.get("env", ())]
    assert [x["value"] for x in variables if x["name"] == variable] == [result]


def test_the_annotation_for_the_loss_of_the_coordinator_sets_the_fence() -> None:
    assert read_injection_settings({"understudy.dev/coordinator-loss-timeout": "1m"}).world == {"fence_s": 60.0}


@pytest.mark.attack("C4", "a pod that claims to be injected, with a sidecar of its own", before="it got the key")
@pytest.mark.parametrize(
    "own",
    [
        {"image": "evil", "args": ["--supervised"]},
        {"image": "example.com/sidecar:1", "args": ["--supervised"], "command": ["sh"]},
        {"image": "example.com/sidecar:1", "args": ["--other"]},
        {
            "image": "example.com/sidecar:1",
            "args": ["--supervised"],
            "lifecycle": {"postStart": {"exec": {"command": ["sh"]}}},
        },
    ],
)
def test_a_pod_that_claims_to_be_injected_cannot_mount_the_key_in_its_own_containers(own: Raw) -> None:
    raw = pod("job")
    raw["metadata"]["annotations"]["understudy.dev/trainer-container"] = "trainer"
    mounts = [{"name": "understudy-pod", "mountPath": "/x"}]
    raw["spec"]["initContainers"] = [{"name": "understudy-sidecar", "volumeMounts": mounts, **own}]
    with pytest.raises(Objection, match="injection adds a container understudy-sidecar: rename yours"):
        injected(raw)


@pytest.mark.parametrize("mode", ["Wrap", "Torchrun", "Auto"])
def test_a_launcher_needs_a_command_to_start(mode: str) -> None:
    raw = changed("jobset", annotated("launcher", mode))
    del raw["spec"]["containers"][0]["command"]
    with pytest.raises(Objection, match=r"container trainer needs a command.*: set command, or understudy"):
        injected(raw)


def test_the_first_of_several_containers_trains_unless_another_one_is_named() -> None:
    raw = pod("job")
    del raw["metadata"]["annotations"]["understudy.dev/container"]
    raw["spec"]["containers"][0]["command"] = ["python", "t.py"]
    assert [x["name"] for x in raw["spec"]["containers"]] == ["logs", "trainer"]
    for named, trains in (("", "logs"), ("trainer", "trainer")):
        if named:
            annotated("container", named)(raw)
        done = injected(raw).pod
        behind = [x["name"] for x in done["spec"]["containers"] if "/understudy/launch" in x.get("command", ())]
        assert behind == [trains]


def test_torchrun_and_the_annotation_may_not_differ() -> None:
    raw = changed("torchrun", annotated("nproc-per-node", "4"))
    with pytest.raises(Objection, match="remove one of them"):
        injected(raw)


def test_a_variable_as_torchruns_number_of_workers_needs_the_annotation() -> None:
    raw = changed("torchrun", command_of("torchrun --nproc-per-node=$GPUS t.py"))
    with pytest.raises(Objection, match="is not a number"):
        injected(raw)
    annotated("nproc-per-node", "8")(raw)
    assert env(injected(raw).pod, "pytorch")[names.ENV_NPROC] == "8"


def test_the_documentation_has_a_row_for_each_annotation_and_no_other() -> None:
    docs = (Path(__file__).resolve().parents[3] / "docs" / "how-to" / "inject.md").read_text(encoding="utf-8")
    table = docs.split("## Annotations")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert sorted(name for row in rows for name in re.findall(r"`([a-z-]+)`", row)) == sorted(ANNOTATIONS)


@pytest.mark.parametrize("name", ["job", "jobset", "torchrun", "alone"])
def test_a_copy_of_a_pod_does_not_belong_to_the_job(name: str) -> None:
    raw = pod(name)
    del raw["metadata"]["ownerReferences"]
    with pytest.raises(Objection, match=r"which is not its controller.*remove the label understudy.dev/inject"):
        injected(raw)


def test_a_pod_of_a_copied_job_does_not_belong_to_the_jobset() -> None:
    """The Job controller writes its own name and uid, and the template still has the labels of the JobSet."""
    raw = pod("jobset")
    raw["metadata"]["labels"] |= {"batch.kubernetes.io/job-name": "my-debug"}
    raw["metadata"]["ownerReferences"][0]["name"] = "my-debug"
    with pytest.raises(Objection, match="the labels of JobSet llm, which is not its controller"):
        injected(raw)


def test_a_pod_whose_kubelet_would_restart_the_launcher_is_declined() -> None:
    rules = [{"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}]
    raw = changed("jobset", lambda x: x["spec"]["containers"][0].update(restartPolicyRules=rules))
    with pytest.raises(Objection, match=r"^restartPolicyRules of container trainer would make the kubelet restart"):
        injected(raw)
    alone = changed("alone", lambda x: x["spec"]["containers"][0].update(restartPolicyRules=rules))
    assert container(injected(alone).pod, "trainer")["restartPolicyRules"] == rules
