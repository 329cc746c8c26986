"""docs/how-to/inject.md, followed step by step on the local cluster: its commands and manifests are used unchanged,
except for the image and the script in it, which steps for a few seconds without torch.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.cluster import Cluster
from tests.e2e.compared import compared, fault_of
from tests.e2e.lanes import create_namespace
from tests.e2e.objects import read
from tests.e2e.plain import STEP, PlainJob
from tests.e2e.training import TORCH, Raw
from tests.e2e.waiting import wait_until
from tests.unit.docs.inject_page import Shell, blocks, lines

pytestmark = pytest.mark.timeout(400)

NAMESPACE = "research"  # the namespace on the page
FOLDER = "/in-the-image"
TRAIN = f"""{STEP}
for n in range(1, 151):
    step(n)
    time.sleep(0.1)
"""
TORCHRUN = '#!/bin/sh\nexec python3 -m torch.distributed.run "$@"\n'


class InjectedJob(PlainJob):
    """The pods of a Job or JobSet that train together, by the name of their InjectedJob."""

    def status(self) -> Raw:
        status: Raw = read(self.cluster, self.namespace, "injectedjobs", self.name).get("status", {})
        return status


@pytest.fixture(scope="module")
def shell(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """The page's shell, with the page's namespace, which has no label yet."""
    cluster.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait=true")
    create_namespace(cluster, NAMESPACE)
    files = {"train.py": TRAIN, "torchrun": TORCHRUN, "python": '#!/bin/sh\nexec python3 "$@"\n'}
    metadata = {"name": "image", "namespace": NAMESPACE}
    image = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": files}
    cluster.kubectl("apply", "-f", "-", input=json.dumps(image))
    yield Shell(Path(cluster.kubectl_command()[0]), cluster.kubeconfig, tmp_path_factory.mktemp("page"))
    cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def localized(cluster: Cluster, template: Raw) -> None:
    """The pods use the local image, and a volume with the content of the page's image."""
    (trainer,) = template["spec"]["containers"]
    path = f"{FOLDER}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    trainer |= {"image": cluster.base_image, "imagePullPolicy": "IfNotPresent", "workingDir": FOLDER}
    runs_torchrun = "bash" in trainer["command"]
    own = [{"name": "PATH", "value": path}, *([{"name": "PYTHONPATH", "value": TORCH}] if runs_torchrun else ())]
    trainer["env"] = [*trainer.get("env", ()), *own]
    trainer["volumeMounts"] = [
        {"name": "image", "mountPath": FOLDER},
        {"name": "torch", "mountPath": TORCH, "readOnly": True},
    ]
    template["spec"]["volumes"] = [
        {"name": "image", "configMap": {"name": "image", "defaultMode": 0o555}},
        {"name": "torch", "hostPath": {"path": str(cluster.torch_path)}},
    ]


def columns(listed: str, name: str) -> dict[str, str]:
    """kubectl's table row for that object."""
    header, *rows = [line.split() for line in listed.splitlines()] or [[]]
    return next((dict(zip(header, row, strict=False)) for row in rows if row[0] == name), {})


def test_the_three_steps_of_the_page_lead_to_a_training_with_a_spare(cluster: Cluster, shell: Shell) -> None:
    label, (apply, listing, describing) = (lines(block) for block in blocks("sh"))
    # given the namespace after the page's first step, and the page's Job
    for line in label:
        shell.must(line)
    job = yaml.safe_load(blocks("yaml")[0])
    localized(cluster, job["spec"]["template"])
    shell.write(job)
    # when it is applied with the page's command
    shell.must(apply)
    # then the next command lists it as it trains, with the sizes on the page
    wanted = {"PHASE": "Running", "READY": "4/4", "SPARES": "1", "RECOVERIES": "0"}

    def listed() -> bool:
        return wanted.items() <= columns(shell.must(listing), "job.train").items()

    wait_until("the InjectedJob is listed with four pods and a spare", listed, 120, seen=lambda: shell.must(listing))
    # and the last command describes it
    result = shell.must(describing)
    assert "SparesReady" in result
    assert "CoordinatorAppointed" in result
    # and it completes
    done = "kubectl -n research wait --for=condition=Complete job/train --timeout=120s"
    shell.must(done)


@pytest.mark.nightly  # each make test: test_inject_lives.py, a JobSet with the label
def test_the_jobset_of_the_page_trains_with_the_label_alone(cluster: Cluster, shell: Shell, jobsets: None) -> None:
    del jobsets
    for line in lines(blocks("sh")[0]):
        shell.must(line)
    (jobset,) = (raw for raw in map(yaml.safe_load, blocks("yaml")) if raw.get("kind") == "JobSet")
    (entry,) = jobset["spec"]["replicatedJobs"]
    localized(cluster, entry["template"]["spec"]["template"])
    # given the defaults of JobSet's own webhook, which does not run here
    entry |= {"replicas": 1, "groupName": "default"}
    entry["template"]["spec"]["completionMode"] = "Indexed"
    entry["template"]["spec"]["template"]["spec"]["restartPolicy"] = "OnFailure"
    jobset["spec"] |= {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "successPolicy": {"operator": "All"},
        "startupPolicy": {"startupPolicyOrder": "AnyOrder"},
    }
    # when it is applied
    shell.write(jobset)
    shell.must("kubectl apply -f train.yaml")
    # then all its pods train
    listing = "kubectl -n research get injectedjobs"
    wanted = {"PHASE": "Running", "READY": "4/4", "SPARES": "0"}

    def listed() -> bool:
        return wanted.items() <= columns(shell.must(listing), "jobset.pytorch").items()

    wait_until("the InjectedJob is listed with four pods", listed, 120, seen=lambda: shell.must(listing))
    # when one of them is deleted, then the pod that its Job creates instead trains with the others in the next round
    job = InjectedJob(cluster, NAMESPACE, "jobset.pytorch", container="pytorch")
    wanted["ROUND"] = str(int(columns(shell.must(listing), "jobset.pytorch")["ROUND"]) + 1)
    victim = job.pods()[-1]
    with compared(job, fault_of(victim, "Pod", "PodRecreate"), 120):
        shell.must(f"kubectl -n {NAMESPACE} delete --wait=false pod/{victim['metadata']['name']}")
        wait_until("the InjectedJob is listed in the next round", listed, 120, seen=lambda: shell.must(listing))
    # and the JobSet completes
    shell.must("kubectl -n research wait --for=condition=Completed jobset/pytorch --timeout=120s")
