"""Faults that are not in the story, which users meet sooner or later, each on a small job of its own."""

import json
import os
import signal
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from tests.e2e.acts import described, running, worker_pids
from tests.e2e.compared import compared, fault_of
from tests.e2e.lanes import NAMESPACE
from tests.e2e.plain import FAIL_FILE, FAILING, STEP_FILE, MakeJob, PlainJob, steps_in
from tests.e2e.training import GROUP_RANK, Raw
from tests.e2e.truth import Steps, is_open, pauses, unix
from tests.e2e.waiting import wait_until

pytestmark = pytest.mark.timeout(200)

FENCE_S = 12


def active(job: PlainJob) -> Raw:
    """An active pod that does not coordinate."""
    coordinator = job.status()["coordinator"]["podUID"]
    ranked = [pod for pod in job.pods() if pod["metadata"]["labels"]["understudy.dev/role"] == "active"]
    return next(pod for pod in ranked if pod["metadata"]["uid"] != coordinator)


def test_a_worker_that_always_fails_ends_the_job_with_its_own_exit_code(make_job: MakeJob) -> None:
    # given a budget of two restarts, and a rank that exits 7 each time
    job = make_job("failing", script=FAILING)
    job.apply(recovery={"inPlace": {"maxRestarts": 2}})
    # then it is restarted in place, then on another pod, and then the job fails, and names the rank
    trainers = wait_until("all pods run", lambda: trainer_pids(job, 3), 60, seen=job.text)
    paths = wait_until("both ranks have stepped", lambda: have_stepped(trainers, 2), 60, seen=job.text)
    with ExitStack() as files:
        reports = [files.enter_context(path.open()) for path in paths]  # an open file outlives its container
        for pid in trainers:
            Path(f"/proc/{pid}/root{FAIL_FILE}").touch()
        status = job.wait_for("the job has failed", lambda s: s.get("terminalState") == "Failed")
        steps = {report.name: steps_in(report.read()) for report in reports}
    assert status["phase"] == "Failed"
    assert status["recoveriesByStrategy"]["inPlace"] >= 1
    assert status["recoveriesByStrategy"]["spareSwap"] == 1
    failed = next(c for c in status["conditions"] if c["type"] == "Failed")
    assert failed["status"] == "True"
    assert "rank 1 failed on another pod as well" in failed["message"]
    assert "exit code 7" in failed["message"]
    # and no worker runs any more: the failed rank's pods have its code, and the spare does not report a success
    wait_until("all pods have failed", lambda: all(p["status"]["phase"] == "Failed" for p in job.pods()), 30)
    codes = {
        pod["metadata"]["name"]: pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"]
        for pod in job.pods()
    }
    # and each entry names the pod and its node, the exit code, and the pause of one of the active pods
    nodes = {
        pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in job.pods() if codes[pod["metadata"]["name"]] == 7
    }
    check_recoveries(status, nodes, steps)
    assert codes.pop(status["lastRecovery"]["cause"]["pod"]) == 7
    assert sorted(codes.values()) == [7, *[81] * (len(codes) - 1)]


def trainer_pids(job: PlainJob, pods: int) -> list[int]:
    """The containers of all pods of the job; none until there are so many."""
    names = [pod["metadata"]["name"] for pod in job.pods()]
    pids = [job.cluster.container_pids(NAMESPACE, name).get("trainer", 0) for name in names]
    return pids if len(pids) == pods and all(pids) else []


def have_stepped(trainers: list[int], ranks: int) -> list[Path]:
    """The step files of these containers; none until there are so many."""
    paths = [Path(f"/proc/{pid}/root{STEP_FILE}") for pid in trainers]
    found = [path for path in paths if path.exists()]
    return found if len(found) == ranks else []


def check_recoveries(status: Raw, nodes: dict[str, str], steps: Steps) -> None:
    """Compare the entries with the pods whose worker exited 7 (name, node), and with the steps of the active pods."""
    entries = status["recoveries"]
    for entry in entries:
        cause = entry["cause"]
        assert (entry["fault"], cause["rank"], cause["exitCode"]) == ("Process", 1, 7), entry
        assert nodes[cause["pod"]] == cause["node"], (entry, nodes)
        if is_open(entry):
            continue
        found = pauses(steps, unix(entry["detectedAt"]))
        pause = min(found, key=lambda one: abs(one.seconds - entry["pauseSeconds"]))
        assert abs(entry["pauseSeconds"] - pause.seconds) <= pause.allowed_s, (entry, pause)
        assert abs(unix(entry["resumedAt"]) - pause.first) <= pause.allowed_s, (entry, pause)
    assert {entry["cause"]["pod"] for entry in entries} == nodes.keys()
    strategies = [entry["strategy"] for entry in entries if not is_open(entry)]
    counts = status["recoveriesByStrategy"]
    assert strategies == ["InPlace"] * counts["inPlace"] + ["SpareSwap"] * counts["spareSwap"], entries


def test_a_job_without_the_field_launcher_survives_the_loss_of_a_worker(make_job: MakeJob) -> None:
    # given a manifest as short as a JobSet's
    job = make_job("shortest", spares=0, actives=3)
    manifest = job.manifest()
    del manifest["spec"]["launcher"], manifest["spec"]["spares"]
    job.cluster.kubectl("apply", "-f", "-", input=json.dumps(manifest))
    status = job.wait_until_whole()
    # then its user reads that it is fault tolerant, and why
    tolerant = next(c for c in status["conditions"] if c["type"] == "FaultTolerant")
    assert (tolerant["status"], tolerant["reason"]) == ("True", "LauncherDefaulted")
    events = job.cluster.kubectl("-n", NAMESPACE, "get", "events", "--field-selector", "reason=LauncherDefaulted")
    assert "trainingjob/shortest" in events
    # and a killed worker restarts in place
    victim = active(job)
    (pid,) = worker_pids(job, victim["metadata"]["name"])
    with compared(job, replace(fault_of(victim, "Process", "InPlace"), signal="SIGKILL")):
        os.kill(pid, signal.SIGKILL)


def test_a_lost_pod_without_a_spare_is_replaced_by_a_new_one(make_job: MakeJob) -> None:
    job = make_job("spareless", spares=0, actives=3)
    job.apply()
    job.wait_until_whole()
    victim = active(job)
    with compared(job, fault_of(victim, "Pod", "PodRecreate")):
        job.cluster.kubectl("-n", NAMESPACE, "delete", "pod", victim["metadata"]["name"], "--grace-period=0", "--force")
    assert job.status()["members"]["active"] == 3


def test_a_job_of_one_pod_recovers_without_a_service_for_its_coordinator(make_job: MakeJob) -> None:
    # given a job of one pod without spares, which has only the Service for hostnames
    job = make_job("single", spares=0, actives=1)
    job.apply()
    job.wait_until_whole()
    label = "understudy.dev/job-name=single"
    services = job.cluster.kubectl("-n", NAMESPACE, "get", "services", "-l", label, "-o", "name")
    assert services.split() == ["service/single"]
    # then a killed worker restarts in place
    (victim,) = job.pods()
    name = victim["metadata"]["name"]
    (worker,) = worker_pids(job, name)
    with compared(job, replace(fault_of(victim, "Process", "InPlace"), signal="SIGKILL")):
        os.kill(worker, signal.SIGKILL)
    # and a sidecar that is killed alone continues its round
    kill_sidecar(job, victim)
    # and a deleted pod is replaced
    job.cluster.kubectl("-n", NAMESPACE, "delete", "pod", name)
    status = job.wait_for("another pod trains", lambda s: s["coordinator"].get("podName") != name and trains(s))
    assert status["recoveriesByStrategy"] == {"inPlace": 1, "podRecreate": 1, "spareSwap": 0}


def trains(status: Raw) -> bool:
    return bool(status["phase"] == "Running" and status["members"]["active"] == 1)


def test_training_continues_when_the_coordinators_node_dies(make_job: MakeJob) -> None:
    # given a spare that coordinates
    job = make_job("coordinator-node", apart=True)
    job.apply_until_a_spare_coordinates()
    job.wait_for_voters()
    before = job.status()
    coordinator = job.pod(before["coordinator"]["podUID"])
    workers = [pid for pod in job.pods() if pod != coordinator for pid in worker_pids(job, pod["metadata"]["name"])]
    node, was = coordinator["spec"]["nodeName"], before["coordinator"]
    with compared(job, None):
        # when its node is powered off
        job.cluster.power_off(node)
        # then members elect another pod, in the same round, and no worker is restarted
        after = job.wait_for(
            "another pod coordinates", lambda s: s.get("coordinator", {}).get("podUID") != was["podUID"]
        )
        assert after["coordinator"]["epoch"] == was["epoch"]
        assert after["round"] == before["round"]
        job.wait_until_whole()
    assert not any(job.status().get("recoveriesByStrategy", {}).values())
    assert all(running(pid) for pid in workers)
    job.cluster.restore(node)


def test_partitioned_workers_are_replaced_and_end_themselves(make_job: MakeJob) -> None:
    # given an active pod on a node of its own, and three voters: with two, the remaining one would have no majority
    job = make_job("partitioned", apart=True)
    job.apply(recovery={"coordinatorLossTimeout": f"{FENCE_S}s"})
    job.wait_until_whole()
    job.wait_for_voters()
    victim = active(job)
    node, workers = victim["spec"]["nodeName"], worker_pids(job, victim["metadata"]["name"])
    # when its node is cut off, and all processes there continue, then a spare has its ranks
    with compared(job, fault_of(victim, "Node", "SpareSwap")):
        job.cluster.partition(node)
    # and the workers behind the partition end without a command: no coordinator was heard for FENCE_S
    wait_until(
        "the workers behind the partition end",
        lambda: not any(map(running, workers)),
        60,
        seen=lambda: described(workers),
    )
    job.cluster.restore(node)


def test_a_graceful_deletion_lets_the_worker_end_and_then_swaps(make_job: MakeJob) -> None:
    job = make_job("graceful")
    job.apply()
    job.wait_until_whole()
    victim = active(job)
    with compared(job, fault_of(victim, "Pod", "SpareSwap")):
        job.cluster.kubectl("-n", NAMESPACE, "delete", "pod", victim["metadata"]["name"], "--wait=false")


def test_a_sidecar_that_is_killed_alone_causes_no_swap(make_job: MakeJob) -> None:
    """Its launcher has a copy of the connection, and the kubelet restarts it."""
    job = make_job("alone")
    job.apply()
    job.wait_until_whole()
    kill_sidecar(job, active(job))


def test_a_sidecar_of_rank_0_that_hangs_for_8_s_causes_no_swap(make_job: MakeJob) -> None:
    """Rank 0 alone reports each step. Found on a busy machine, where the kubelet restarted a sidecar after 5.7 s: the
    training seemed to stall, and a healthy pod was replaced.
    """
    job = make_job("hung-sidecar")
    job.apply_until_a_spare_coordinates()
    before = job.status()
    (victim,) = (pod for pod in job.pods() if pod["metadata"]["annotations"].get(GROUP_RANK) == "0")
    sidecar = job.cluster.container_pids(NAMESPACE, victim["metadata"]["name"])["understudy-sidecar"]
    # when the sidecar of rank 0 does not run for 8 s, while all workers make steps
    with compared(job, None):
        os.kill(sidecar, signal.SIGSTOP)
        try:
            time.sleep(8.0)
        finally:
            os.kill(sidecar, signal.SIGCONT)
        step = job.status()["progress"]["step"]
        status = job.wait_for("training is reported again", lambda s: s["progress"]["step"] > step + 20)
    # then the round goes on
    assert status["round"] == before["round"]


def kill_sidecar(job: PlainJob, victim: Raw) -> None:
    """Kill the pod's sidecar alone. Training continues in the same round, with the same workers."""
    before, name = job.status(), victim["metadata"]["name"]
    workers = [pid for pod in job.pods() for pid in worker_pids(job, pod["metadata"]["name"])]

    def restarted() -> bool:
        status = job.pod(victim["metadata"]["uid"])["status"]
        sidecar = next(x for x in status["initContainerStatuses"] if x["name"] == "understudy-sidecar")
        return bool(sidecar["restartCount"] > 0 and sidecar.get("started"))

    with compared(job, None):
        os.kill(job.cluster.container_pids(NAMESPACE, name)["understudy-sidecar"], signal.SIGKILL)
        wait_until("the sidecar runs again", restarted, 30)
        step = job.status()["progress"]["step"]
        status = job.wait_for("training continues", lambda s: s["progress"]["step"] > step + 20)
    assert status["round"] == before["round"]
    assert all(map(running, workers))


def test_deleting_a_running_job_leaves_no_objects(make_job: MakeJob) -> None:
    job = make_job("deleted")
    job.apply()
    job.wait_until_whole()
    job.delete()

    def left() -> str:
        label = "understudy.dev/job-name=deleted"
        return job.cluster.kubectl("-n", NAMESPACE, "get", "pods,services,secrets", "-l", label, "-o", "name").strip()

    wait_until("nothing of the job is left", lambda: not left(), 30, seen=left)
