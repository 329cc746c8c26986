"""Each verb of the command line against a real API server, as an account that may only read.

No operator and no kubelet run: the tests write the status of jobs and pods, and play the kubelet that serves logs.
"""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.paths import CHECKOUT
from tests.integration.cli.kubelet import Logs, kubelet
from tests.integration.conftest import ApiServer
from tests.unit.cli import samples

LIMIT_S = 30.0
NAMESPACE = "team-a"
#: The rights that the chart adds to the role view, and those of Kubernetes in this role that the program uses.
READER = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRole",
    "metadata": {"name": "reader"},
    "rules": [
        {
            "apiGroups": ["understudy.dev"],
            "resources": ["trainingjobs", "hotsparepools", "injectedjobs", "recoveries"],
            "verbs": ["get", "list", "watch"],
        },
        {"apiGroups": [""], "resources": ["pods", "pods/log", "events"], "verbs": ["get", "list", "watch"]},
    ],
}
BINDING = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "RoleBinding",
    "metadata": {"name": "reader", "namespace": NAMESPACE},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "reader"},
    "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "viewer"}],
}


@dataclass(frozen=True)
class World:
    """A cluster with one job. kubeconfig: of an account that may only read in its namespace."""

    server: ApiServer
    kubeconfig: Path
    logs: Logs

    def apply(self, *objects: dict[str, Any]) -> None:
        text = yaml.safe_dump_all(objects)
        done = self.server.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=text)
        assert done.returncode == 0, done.stderr

    def set_status(self, kind: str, name: str, status: dict[str, Any], namespace: str = NAMESPACE) -> None:
        scope = ["-n", namespace] if namespace else []
        patch = ["--subresource=status", "--type=merge", "-p", json.dumps({"status": status})]
        done = self.server.kubectl("patch", kind, name, *scope, *patch)
        assert done.returncode == 0, done.stderr

    def command(self, *words: str, admin: bool = False) -> list[str]:
        config = self.server.kubeconfig if admin else self.kubeconfig
        return [sys.executable, "-m", "understudy_cli", *words, "--kubeconfig", str(config)]

    def run(self, *words: str, admin: bool = False, code: int = 0) -> str:
        """Stdout. The exit code has to be that one."""
        done = subprocess.run(
            self.command(*words, admin=admin), capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        return done.stdout if code == 0 else done.stdout + done.stderr

    def read(self, *words: str) -> Any:
        return json.loads(self.run(*words, "-o", "json"))


def job_manifest() -> dict[str, Any]:
    trainer = {"name": "trainer", "image": "example.com/t:1", "command": ["python3", "train.py"]}
    template = {"spec": {"parallelism": 2, "completions": 2, "template": {"spec": {"containers": [trainer]}}}}
    spec = {
        "launcher": {"nprocPerNode": 2},
        "spares": {"replicas": 1},
        "replicatedJobs": [{"name": "workers", "template": template}],
    }
    metadata = {"name": "llm", "namespace": NAMESPACE}
    return {"apiVersion": "understudy.dev/v1alpha1", "kind": "TrainingJob", "metadata": metadata, "spec": spec}


def pod_manifest(given: dict[str, Any], uid: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A pod of the samples for a real API server, and its status."""
    raw = copy.deepcopy(given)
    status = raw.pop("status")
    raw["metadata"] = {key: raw["metadata"][key] for key in ("name", "namespace", "labels", "annotations")}
    raw["metadata"]["labels"]["understudy.dev/job-uid"] = uid
    for container in raw["spec"]["containers"]:
        container["image"] = "example.com/t:1"
    return raw, status


@pytest.fixture(scope="module")
def world(api_server: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder: Path = tmp_path_factory.mktemp("cli")
    with kubelet(folder) as logs:
        config = yaml.safe_load(api_server.kubeconfig.read_text())
        config["users"][0]["user"]["as"] = "viewer"
        config["contexts"][0]["context"]["namespace"] = NAMESPACE
        (folder / "kubeconfig").write_text(yaml.safe_dump(config))
        world = World(api_server, folder / "kubeconfig", logs)
        world.apply(*(yaml.safe_load(path.read_text()) for path in sorted((CHECKOUT / "crds").glob("*.yaml"))))
        kinds = "trainingjobs,injectedjobs,hotsparepools,recoveries"
        wait_until(lambda: api_server.kubectl("get", kinds, "-A").returncode == 0, lambda: "the kinds are not served")
        world.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}, READER, BINDING)
        _fill(world)
        yield world


def _fill(world: World) -> None:
    """One job with three pods on three nodes, whose kubelet is that of the tests."""
    world.apply(job_manifest())
    world.set_status("trainingjob", "llm", samples.job()["status"])
    uid = world.server.kubectl("get", "tj", "llm", "-n", NAMESPACE, "-o", "jsonpath={.metadata.uid}").stdout
    for node in ("node-b", "node-c", "node-d"):
        world.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}})
        address = {"type": "InternalIP", "address": "127.0.0.1"}
        endpoint = {"kubeletEndpoint": {"Port": world.logs.port}}
        ready = {"type": "Ready", "status": "True", "reason": "Up", "message": ""}
        world.set_status(
            "node", node, {"addresses": [address], "daemonEndpoints": endpoint, "conditions": [ready]}, namespace=""
        )
    for given in samples.pods():
        manifest, status = pod_manifest(given, uid)
        world.apply(manifest)
        world.set_status("pod", manifest["metadata"]["name"], status)
    event = samples.events()[0] | {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "llm.1", "namespace": NAMESPACE},
        "involvedObject": {
            "apiVersion": "understudy.dev/v1alpha1",
            "kind": "TrainingJob",
            "name": "llm",
            "namespace": NAMESPACE,
            "uid": uid,
        },
        "action": "Appoint",
        "reportingComponent": "understudy",
        "reportingInstance": "understudy-operator",
    }
    world.apply(event)


def test_get_lists_jobs(world: World) -> None:
    lines = world.run("get").splitlines()
    assert lines[0].split() == ["NAME", "PHASE", "READY", "SPARES", "STEP", "RECOVERIES", "LAST", "FAULT", "AGE"]
    assert lines[1].split()[:6] == ["llm", "Running", "2/2", "0/1", "1200/5000", "2"]
    assert world.read("get")["jobs"][0]["name"] == "llm"
    assert yaml.safe_load(world.run("get", "-o", "yaml"))["jobs"][0]["phase"] == "Running"


def test_get_of_a_job_is_a_tree_of_its_pods(world: World) -> None:
    shown = world.run("get", "llm")
    assert "0-1   llm-spare-x7k2p" in shown
    assert "coordinator" in shown
    assert "faults, the newest first" in shown
    pods = world.read("get", "llm")["pods"]
    assert [(pod["ranks"], pod["state"]) for pod in pods] == [
        ("0-1", "Running"),
        ("2-3", "Running"),
        ("spare", "ImagePullBackOff"),
    ]


def test_get_w_prints_again_when_the_job_changes(world: World) -> None:
    # given a command that watches a job
    with Watching(world.command("get", "llm", "-w")) as watching:
        watching.wait_for("Running")
        # when its status changes
        world.set_status("trainingjob", "llm", {"phase": "Recovering"})
        # then the change is printed
        watching.wait_for("Recovering")
    world.set_status("trainingjob", "llm", {"phase": "Running"})


def test_get_w_of_all_jobs_has_one_watch_for_each_kind(world: World) -> None:
    with Watching(world.command("get", "-w")) as watching:
        watching.wait_for("llm")
        world.apply(job_manifest() | {"metadata": {"name": "second", "namespace": NAMESPACE}})
        watching.wait_for("second")
    world.server.kubectl("delete", "tj", "second", "-n", NAMESPACE)


def test_why_names_the_first_failure(world: World) -> None:
    fault = world.read("why", "llm")["faults"][0]
    assert (fault["fault"], fault["place"]) == ("Node", "pod llm-workers-0-0, node node-a")
    assert "8.23 s" in world.run("why", "llm")


def test_a_timeline_has_events_of_the_job(world: World) -> None:
    kinds = [entry["kind"] for entry in world.read("timeline", "llm")["entries"]]
    assert "CoordinatorAppointed" in kinds
    assert kinds.count("Fault") == 2


def test_the_dashboard_follows_a_job_with_the_rights_of_the_role_view(world: World) -> None:
    # given the dashboard of an account that may only read in the namespace, and a browser that shows the job
    with Watching(world.command("dashboard", "--port", "0")) as watching:
        watching.wait_for("Ctrl-C ends it")
        url = re.findall(r"http://127\.0\.0\.1:\d+/", watching.text)[0]
        with urllib.request.urlopen(f"{url}events?view=job&namespace={NAMESPACE}&name=llm", timeout=LIMIT_S) as stream:
            shown = wait_for_rows(stream, lambda rows: "CoordinatorAppointed" in json.dumps(rows.get("history")))
            assert set(shown["pods"]) == {"llm-workers-0-1", "llm-spare-x7k2p", "llm-spare-new1"}
            assert any("may not list and watch nodes" in warning for warning in shown["state"][""]["warnings"])
            # when the status of the job changes
            world.set_status("trainingjob", "llm", {"phase": "Recovering"})
            # then the browser gets it
            wait_for_rows(stream, lambda rows: rows.get("job", {}).get("", {}).get("phase") == "Recovering")
    world.set_status("trainingjob", "llm", {"phase": "Running"})


def wait_for_rows(stream: HTTPResponse, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The rows of a stream of the dashboard, by section, once they meet the condition."""
    rows: dict[str, Any] = {}
    while line := stream.readline():
        if line.startswith(b"data: "):
            for section, changed in json.loads(line.removeprefix(b"data: "))["set"].items():
                rows.setdefault(section, {}).update(changed)
            if condition(rows):
                return rows
    raise AssertionError(f"the stream has ended: {rows}")


def test_goodput_has_the_parts_of_a_jobs_time_and_what_faults_have_cost(world: World) -> None:
    (row,) = world.read("goodput")["jobs"]
    assert (row["name"], row["part"], row["lost_seconds"]) == ("llm", "Productive", 21.0)
    shown = world.read("goodput", "llm")
    assert {entry["part"]: entry["seconds"] for entry in shown["parts"]}["repeated"] == 11.77
    assert {entry["name"]: entry["device_seconds"] for entry in shown["lost_by_node"]}["node-a"] == 80.0
    assert "LOST TO" in world.run("goodput", "llm")


def test_spares_and_nodes(world: World) -> None:
    assert [row["owner"] for row in world.read("spares")["owners"]] == ["llm"]
    rows = {row["name"]: row for row in world.read("nodes")["nodes"]}
    assert (rows["node-a"]["avoided_by"], rows["node-b"]["pods"]) == (["llm"], ["llm:2-3"])
    # the account may not list nodes
    assert rows["node-b"]["state"] == "-"
    assert "Ready" in world.run("nodes", "-n", NAMESPACE, admin=True)


def test_logs_of_a_rank_and_a_round_are_found_in_each_pod_that_held_the_rank(world: World) -> None:
    # given rank 1 in round 4 in one pod, and in round 5 in another one
    started = "understudy launcher: round=1.1.{} workers started ranks={}/4"
    world.logs.write("llm-spare-x7k2p", 10, started.format(5, "0-1"), "[rank 0] a", "[rank 1] in round 5")
    world.logs.write("llm-workers-0-1", 5, started.format(4, "0-1"), "[rank 1] in round 4")
    # when its lines are asked for
    lines = world.run("logs", "llm", "--rank", "1").splitlines()
    # then both are there, in the order of time
    assert [line for line in lines if line.startswith("[rank")] == ["[rank 1] in round 4", "[rank 1] in round 5"]
    assert world.run("logs", "llm", "--rank", "1", "--round", "5").splitlines()[1:] == ["[rank 1] in round 5"]
    assert "have no lines of rank 7" in world.run("logs", "llm", "--rank", "7", code=3)


def test_logs_f_prints_new_lines_of_the_rank(world: World) -> None:
    with Watching(world.command("logs", "llm", "--rank", "3", "-f")) as watching:
        for number in range(3):
            world.logs.write("llm-workers-0-1", 20 + number, f"[rank 3] step {number}", "[rank 2] other")
            watching.wait_for(f"[rank 3] step {number}")
    assert "other" not in watching.text


def test_stacks_are_grouped(world: World) -> None:
    world.logs.write("llm-workers-0-1", 40, *samples.hang_log())
    groups = world.read("stacks", "llm")["groups"]
    assert [group["ranks"] for group in groups] == [[1], [0, 2]]
    assert [group["ranks"] for group in world.read("stacks", "llm", "--rank", "2")["groups"]] == [[2]]


def test_why_names_the_rank_that_the_others_waited_for(world: World) -> None:
    # given a hang for which status blames a rank that only waited
    cause = {"rank": 0, "pod": "llm-spare-x7k2p", "node": "node-c", "message": "no step for 300 s"}
    hang = samples.recovery(fault="Hang", round=5, cause=cause, detectedAt="2026-11-20T12:00:40.000000Z")
    kept = {key: value for key, value in hang.items() if key not in ("resumedAt", "pauseSeconds")}
    # and the stacks of all ranks in the log of a pod
    world.logs.write("llm-workers-0-1", 39, *samples.hang_log())
    world.set_status("trainingjob", "llm", {"recoveries": [*samples.job()["status"]["recoveries"], kept]})
    # when the user asks why
    fault = world.read("why", "llm")["faults"][0]
    # then it is the rank whose stack is outside of the collective
    assert fault["place"] == "rank 1, pod llm-workers-0-1, node node-b"
    assert fault["reported"] == "rank 0, pod llm-spare-x7k2p, node node-c: no step for 300 s"
    assert "data.py" in fault["stack"][0]
    world.set_status("trainingjob", "llm", samples.job()["status"])


def test_doctor_finds_that_no_operator_is_installed(world: World) -> None:
    # an administrator sees the missing operator, and that a job is accepted
    shown = world.run("doctor", "-n", NAMESPACE, admin=True, code=1)
    assert "no Deployment has the label app.kubernetes.io/name=understudy" in shown
    assert "the API server accepts a small TrainingJob (a dry run)" in shown
    assert "trainingjobs, injectedjobs, hotsparepools, recoveries are served" in shown
    assert world.server.kubectl("get", "tj", "-n", NAMESPACE, "understudy-doctor").returncode == 1
    # a user sees which checks need more rights; the error is the image of a spare
    found = json.loads(world.run("doctor", "-o", "json", code=1))["findings"]
    levels = {finding["check"]: finding["level"] for finding in found}
    assert (levels["Kinds"], levels["Operator"], levels["Admission"]) == ("ok", "not checked", "not checked")
    assert levels["Your rights"] == "warning"
    assert [finding["check"] for finding in found if finding["level"] == "error"] == ["Images"]


def test_doctor_does_not_report_a_claim_as_missing_that_the_account_may_not_read(world: World, tmp_path: Path) -> None:
    # given an account that may read all pods, but the volume claims of its own namespace only
    pods = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}
    claims = {"apiGroups": [""], "resources": ["persistentvolumeclaims"], "verbs": ["list"]}
    world.apply(*bound("wide", pods, namespace=""), *bound("wide", claims, namespace=NAMESPACE))
    config = yaml.safe_load(world.kubeconfig.read_text())
    config["users"][0]["user"]["as"] = "wide"
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
    wide = replace(world, kubeconfig=tmp_path / "kubeconfig")
    # when a pod of a job of that namespace mounts a claim that does not exist, then it is an error
    world.apply(pod_with_claim(NAMESPACE))
    missing = f"claim data ({NAMESPACE}) of pods with-claim does not exist"
    assert storage_findings(wide) == [("error", missing)]
    # when a pod of a job in another namespace mounts one, too, then the check says which right is missing
    world.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team-b"}}, pod_with_claim("team-b"))
    (storage,) = [
        x for x in json.loads(wide.run("doctor", "-o", "json", code=1))["findings"] if x["check"] == "Storage"
    ]
    assert storage["level"] == "not checked"
    assert 'cannot list resource "persistentvolumeclaims" in API group "" in the namespace "team-b"' in storage["text"]
    for namespace in (NAMESPACE, "team-b"):
        now = ("--grace-period=0", "--force")
        assert world.server.kubectl("delete", "pod", "with-claim", "-n", namespace, *now).returncode == 0


def storage_findings(world: World) -> list[tuple[str, str]]:
    found = json.loads(world.run("doctor", "-o", "json", code=1))["findings"]
    return [(finding["level"], finding["text"]) for finding in found if finding["check"] == "Storage"]


def bound(user: str, rule: dict[str, Any], namespace: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A role with this rule, and its binding. namespace: "" for all."""
    group, prefix = "rbac.authorization.k8s.io", "" if namespace else "Cluster"
    metadata = {"name": user, **({"namespace": namespace} if namespace else {})}
    role = {"apiVersion": f"{group}/v1", "kind": f"{prefix}Role", "metadata": metadata, "rules": [rule]}
    reference = {"apiGroup": group, "kind": role["kind"], "name": user}
    subjects = [{"apiGroup": group, "kind": "User", "name": user}]
    binding = {"kind": f"{prefix}RoleBinding", "roleRef": reference, "subjects": subjects}
    return role, {"apiVersion": role["apiVersion"], "metadata": metadata, **binding}


def pod_with_claim(namespace: str) -> dict[str, Any]:
    raw, _ = pod_manifest(samples.pod("with-claim", "node-c"), "a-uid")
    raw["metadata"]["namespace"] = namespace
    raw["spec"]["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    return raw


def test_a_drain_is_an_annotation_of_the_pod_and_needs_the_right_to_patch_pods(world: World) -> None:
    # given a job without a ready spare
    drain = ("drain", "llm", "llm-workers-0-1", "-n", NAMESPACE)
    assert "job llm has no ready spare" in world.run(*drain, admin=True, code=1)
    # when a spare is ready
    uid = world.server.kubectl("get", "tj", "llm", "-n", NAMESPACE, "-o", "jsonpath={.metadata.uid}").stdout
    manifest, status = pod_manifest(samples.pod("llm-spare-ready", "node-c"), uid)
    world.apply(manifest)
    world.set_status("pod", "llm-spare-ready", status)
    try:
        # then an account that may only read is refused, and another one drains the pod
        refused = world.run(*drain, code=4)
        assert 'cannot patch resource "pods"' in refused
        assert "Ask for the role edit" in refused
        assert drains(world) == {}
        assert "requested" in world.run(*drain, "--reason", "a new kernel", admin=True)
        assert drains(world) == {"llm-workers-0-1": "a new kernel"}
        world.run(*drain, "--cancel", admin=True)
        assert drains(world) == {}
    finally:
        world.server.kubectl("delete", "pod", "llm-spare-ready", "-n", NAMESPACE, "--force", "--grace-period=0")


def drains(world: World) -> dict[str, str]:
    found = json.loads(world.server.kubectl("get", "pods", "-n", NAMESPACE, "-o", "json").stdout)["items"]
    annotations = {pod["metadata"]["name"]: pod["metadata"].get("annotations", {}) for pod in found}
    return {name: of["understudy.dev/drain"] for name, of in annotations.items() if "understudy.dev/drain" in of}


def test_a_drill_is_an_annotation_of_the_job_and_needs_the_right_to_change_it(world: World) -> None:
    drill = ("drill", "llm", "--fault", "pod", "-n", NAMESPACE)
    assert "job llm does not allow drills" in world.run(*drill, "--yes", admin=True, code=1)
    # when the job allows it, as the message says
    allow = ("patch", "tj", "llm", "-n", NAMESPACE, "--type", "merge", "-p", '{"spec":{"drills":"Allowed"}}')
    done = world.server.kubectl(*allow)
    assert done.returncode == 0, done.stderr
    try:
        # then an account that may only read is refused
        assert 'cannot patch resource "trainingjobs"' in world.run(*drill, "--yes", code=4)
        # and without an operator nothing is broken
        late = world.run(*drill, "--yes", "--timeout", "2", admin=True, code=1)
        assert "the operator has not answered within 2 s" in late
        job = json.loads(world.server.kubectl("get", "tj", "llm", "-n", NAMESPACE, "-o", "json").stdout)
        request = job["metadata"]["annotations"]["understudy.dev/drill"]
        assert request.startswith("Pod 20")
        # the API server stores what the operator records about it
        record = {"request": request, "fault": "Pod", "at": "2026-11-20T11:59:30.000000Z", "pods": ["p"], "round": 2}
        world.set_status("trainingjob", "llm", {"drill": record})
        stored = json.loads(world.server.kubectl("get", "tj", "llm", "-n", NAMESPACE, "-o", "json").stdout)
        assert stored["status"]["drill"] == record
    finally:
        world.set_status("trainingjob", "llm", {"drill": None})
        world.apply(job_manifest())


def test_the_account_of_a_scheduled_drill_may_do_it_and_no_more(world: World) -> None:
    world.server.kubectl(
        "patch", "tj", "llm", "-n", NAMESPACE, "--type", "merge", "-p", '{"spec":{"drills":"Allowed"}}'
    )
    words = ("--fault", "process", "--schedule", "0 3 * * 1", "--image", "example.com/cli:1")
    world.apply(*yaml.safe_load_all(world.run("drill", "llm", *words)))
    account = f"system:serviceaccount:{NAMESPACE}:llm-drill-process"

    def may(verb: str, what: str) -> bool:
        asked = ("auth", "can-i", verb, what, "--as", account, "-n", NAMESPACE)
        return world.server.kubectl(*asked).stdout.strip() == "yes"

    allowed = [("patch", "tj/llm"), ("watch", "tj/llm"), ("list", "pods"), ("watch", "recoveries")]
    assert [one for one in allowed if not may(*one)] == []
    forbidden = [("patch", "tj/other"), ("create", "pods"), ("delete", "pods"), ("get", "secrets"), ("create", "tj")]
    assert [one for one in forbidden if may(*one)] == []
    schedule = world.server.kubectl(
        "get", "cronjob", "llm-drill-process", "-n", NAMESPACE, "-o", "jsonpath={.spec.schedule}"
    )
    assert schedule.stdout == "0 3 * * 1"


def test_the_missing_right_of_an_account_is_named(world: World) -> None:
    shown = world.run("get", "-n", "default", code=4)
    assert 'cannot list resource "trainingjobs"' in shown
    assert "Ask for the role view" in shown


def test_a_job_that_does_not_exist_is_named(world: World) -> None:
    assert "there is no job nope in namespace team-a; its jobs: llm" in world.run("why", "nope", code=3)
    assert "there is no job jobset.x in namespace" in world.run("get", "jobset.x", code=3)


class Watching:
    """A command that runs until the end of the block. text: its output so far."""

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self.text = ""

    def __enter__(self) -> Watching:
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment
        )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def wait_for(self, text: str) -> None:
        wait_until(lambda: text in self._read(), lambda: f"{text!r} in {self.text}")

    def _read(self) -> str:
        assert self._process.stdout is not None
        self.text += (self._process.stdout.read() or b"").decode()
        return self.text


def wait_until(condition: Callable[[], bool], description: Callable[[], str]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, description()
        time.sleep(0.05)
