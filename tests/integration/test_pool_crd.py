"""Validation and defaults of a HotSparePool by a real API server."""

import copy
import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.test_crd import CRDS, ROOT, wait_until_found
from understudy_operator.observe.read import read_job
from understudy_operator.observe.read_pool import read_pool
from understudy_operator.plan.pool.comparing import difference

if TYPE_CHECKING:
    from tests.integration.conftest import ApiServer

pytestmark = pytest.mark.timeout(240)  # the first test waits for the API server

POOLS = "/apis/understudy.dev/v1alpha1/namespaces/default/hotsparepools"
Manifest = dict[str, Any]
Change = Callable[[Manifest], object]
POOL: Manifest = {
    "apiVersion": "understudy.dev/v1alpha1",
    "kind": "HotSparePool",
    "metadata": {"name": "shared"},
    "spec": {
        "replicas": 2,
        "template": {
            "metadata": {"labels": {"team": "a"}},
            "spec": {
                "containers": [
                    {"name": "hold", "image": "pause", "resources": {"limits": {"cpu": "1.5", "nvidia.com/gpu": 8}}}
                ]
            },
        },
    },
}


def sized_by_itself(**auto: Any) -> Change:
    def change(pool: Manifest) -> None:
        del pool["spec"]["replicas"]
        pool["spec"]["autoSize"] = auto

    return change


def with_launcher(launcher: Manifest | None = None, **trainer: Any) -> Change:
    """trainer: the fields of the trainer container that differ."""

    def change(pool: Manifest) -> None:
        pool["spec"]["launcher"] = {} if launcher is None else launcher
        pool["spec"]["template"]["spec"]["containers"][0] |= {"command": ["python", "train.py"], **trainer}

    return change


def with_launcher_and(**spec: Any) -> Change:
    """spec: of the pods."""

    def change(pool: Manifest) -> None:
        with_launcher()(pool)
        pool["spec"]["template"]["spec"] |= spec

    return change


ACCEPTED: dict[str, Change] = {
    "as it is": lambda pool: None,
    "none": lambda pool: pool["spec"].update(replicas=0),
    "sized by itself": sized_by_itself(),
    "with all that autoSize has": sized_by_itself(nodes=512, failuresPerNodeDay="0.002", minReplicas=0, maxReplicas=8),
    "warm": with_launcher(),
    "warm, with all that a launcher has": with_launcher(
        {
            "container": "hold",
            "nprocPerNode": 8,
            "forkServer": True,
            "preload": ["torch", "torch.distributed"],
            "warmup": {"command": ["python", "warm.py"]},
        }
    ),
    "warm, as a job's template is": with_launcher_and(restartPolicy="Never"),
    "spread over racks": lambda pool: pool["spec"].update(topologyKey="example.com/rack"),
}
REFUSED: dict[str, tuple[Change, str, str]] = {
    "a negative number": (lambda pool: pool["spec"].update(replicas=-1), "spec.replicas", "0 or more"),
    "no number": (lambda pool: pool["spec"].pop("replicas"), "spec.replicas", "exactly one of replicas and autoSize"),
    "two numbers": (
        lambda pool: pool["spec"].update(autoSize={}),
        "spec.replicas",
        "exactly one of replicas and autoSize",
    ),
    "a likelihood of 1": (
        sized_by_itself(failuresPerNodeDay="1"),
        "spec.autoSize.failuresPerNodeDay",
        "above 0 and below 1",
    ),
    "a likelihood of 0": (
        sized_by_itself(failuresPerNodeDay="0.0"),
        "spec.autoSize.failuresPerNodeDay",
        "above 0 and below 1",
    ),
    "bounds that exclude each other": (
        sized_by_itself(minReplicas=5, maxReplicas=2),
        "spec.autoSize.minReplicas",
        "at most autoSize.maxReplicas",
    ),
    "a name with a dot": (lambda pool: pool["metadata"].update(name="a.b"), "metadata.name", "DNS label"),
    "a pod that ends": (
        lambda pool: pool["spec"]["template"]["spec"].update(restartPolicy="Never"),
        "spec.template.spec.restartPolicy",
        "must be Always",
    ),
    "a launcher without a command": (with_launcher(command=[]), "spec.template.spec.containers", "needs a command"),
    "a launcher in a container that is not there": (
        with_launcher({"container": "trainer"}),
        "spec.launcher.container",
        "must name a container",
    ),
    "no workers": (with_launcher({"nprocPerNode": 0}), "spec.launcher.nprocPerNode", "1 to 128"),
    "a module that is none": (with_launcher({"preload": ["a b"]}), "spec.launcher.preload", "names of Python modules"),
    "the previous name of forkServer": (
        with_launcher({"zygote": False}),
        "spec.launcher.zygote",
        "launcher.zygote is now named launcher.forkServer",
    ),
    "the previous name of autoSize": (
        lambda pool: pool["spec"].update(auto={"nodes": 8}),
        "spec.auto",
        "auto is now named autoSize",
    ),
    "a warm-up of nothing": (
        with_launcher({"warmup": {"command": []}}),
        "spec.launcher.warmup.command",
        "the words of a command",
    ),
    "an unknown field": (lambda pool: pool["spec"].update(replica=1), "spec", 'unknown field "spec.replica"'),
}


def changed(change: Change, name: str = "") -> str:
    pool = copy.deepcopy(POOL)
    change(pool)
    if name:
        pool["metadata"]["name"] = name
    return json.dumps(pool)


@pytest.fixture(scope="module")
def cluster(api_server: "ApiServer") -> "Iterator[ApiServer]":
    applied = api_server.kubectl("apply", "-f", str(CRDS))
    assert applied.returncode == 0, applied.stderr
    wait_until_found(api_server, "get", "hotsparepools")
    yield api_server
    deleted = api_server.kubectl("delete", "hotsparepools", "--all")
    assert deleted.returncode == 0, deleted.stderr


@pytest.mark.parametrize("case", ACCEPTED)
def test_the_pool_is_accepted(cluster: "ApiServer", case: str) -> None:
    assert cluster.refusal(POOLS, changed(ACCEPTED[case])) == ""


@pytest.mark.parametrize("case", REFUSED)
def test_the_pool_is_rejected_with_the_reason(cluster: "ApiServer", case: str) -> None:
    change, field, message = REFUSED[case]
    refusal = cluster.refusal(POOLS, changed(change))
    assert field in refusal
    assert message in refusal


def test_a_pool_can_be_scaled_shown_and_read_back(cluster: "ApiServer") -> None:
    # given a pool with a status
    created = cluster.kubectl("create", "-f", "-", stdin=changed(lambda pool: None, name="shown"))
    assert created.returncode == 0, created.stderr
    status = {"desired": 2, "replicas": 2, "ready": 2, "claimed": 1, "available": 1, "updated": 2, "selector": "a=b"}
    patch = json.dumps({"status": {**status, "oldestPodTime": "2026-01-01T00:00:00Z"}})
    written = cluster.kubectl("patch", "hsp", "shown", "--subresource=status", "--type=merge", "-p", patch)
    assert written.returncode == 0, written.stderr

    # when it is scaled
    scaled = cluster.kubectl("scale", "hotsparepool", "shown", "--replicas=3")
    assert scaled.returncode == 0, scaled.stderr

    # then its spec has the number, and the columns show the status
    spec = json.loads(cluster.kubectl("get", "hsp", "shown", "-o", "json").stdout)["spec"]
    assert spec["replicas"] == 3
    assert spec["template"]["metadata"] == {"labels": {"team": "a"}}
    lines = cluster.kubectl("get", "hsp", "shown").stdout.splitlines()
    assert lines[0].split() == ["NAME", "DESIRED", "READY", "CLAIMED", "AVAILABLE", "OLDEST", "AGE"]
    assert lines[1].split()[:5] == ["shown", "2", "2", "1", "1"]
    assert lines[1].split()[5].endswith("d")


def test_the_bounds_of_an_auto_sized_pool_are_filled_in(cluster: "ApiServer") -> None:
    created = cluster.kubectl("create", "-f", "-", stdin=changed(sized_by_itself(), name="auto"))
    assert created.returncode == 0, created.stderr
    spec = json.loads(cluster.kubectl("get", "hsp", "auto", "-o", "json").stdout)["spec"]
    assert spec["autoSize"] == {"minReplicas": 1, "maxReplicas": 16}


def test_a_launchers_defaults_are_filled_in(cluster: "ApiServer") -> None:
    created = cluster.kubectl("create", "-f", "-", stdin=changed(with_launcher(), name="warm"))
    assert created.returncode == 0, created.stderr
    spec = json.loads(cluster.kubectl("get", "hsp", "warm", "-o", "json").stdout)["spec"]
    assert spec["launcher"] == {"nprocPerNode": 1, "forkServer": True}


def test_each_job_of_the_example_with_warm_spares_can_take_one_unchanged(cluster: "ApiServer") -> None:
    # given the example as the API server stores it, with defaults
    example = str(ROOT / "examples" / "pool-warm")
    applied = cluster.kubectl("apply", "-k", example, "--dry-run=server", "-o", "json")
    assert applied.returncode == 0, applied.stderr
    objects = json.loads(applied.stdout)["items"]
    for item in objects:
        item["metadata"].setdefault("resourceVersion", "1")  # nothing was stored
    (pool,) = [read_pool(item) for item in objects if item["kind"] == "HotSparePool"]
    jobs = [read_job(item) for item in objects if item["kind"] == "TrainingJob"]

    # then neither job differs from the pool
    assert {job.name: difference(job, pool) for job in jobs} == {"alpha": "", "beta": ""}
