"""The demo's acts: one real fault each, measured from outside.

A recovery is measured by the training's own report on shared storage: `resumed_s` is the time from the kill until a
worker of a new round completed a step, `paused_s` the time between that step and the last one before it, `lost_steps`
the number of repeated steps. `detected_s` is from the kill to the time in status. An act fails if status is not true:
see truth.py.
"""

import math
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from tests.cluster import Cluster
from tests.e2e.compared import compared
from tests.e2e.installation import NAMESPACE, OPERATOR_PODS, operator_node, scale_operator
from tests.e2e.objects import listed, read_log
from tests.e2e.report import Token, first_step_after, newest_step
from tests.e2e.training import CHECKPOINT_EVERY, Raw, Training
from tests.e2e.truth import REPORTED_WITHIN_S, Fault, unix
from tests.e2e.waiting import wait_until

RECOVERY_LIMIT_S = 90.0
READY_LIMIT_S = 90.0
#: A fault is only caused after so many steps of the round, so that steps can be lost.
STEADY_STEPS = CHECKPOINT_EVERY + 2
FREEZE_S = 40.0
SPARE_MOVES_S = 120.0
THAW_S = 60.0


@dataclass(frozen=True)
class Act:
    """One row of the demo's table; times in seconds since the kill."""

    act: str
    fault: str
    strategy: str
    detected_s: float
    resumed_s: float
    paused_s: float
    lost_steps: int
    status_s: float  # from status.lastRecovery; it is compared with paused_s
    victim: "Victim"
    operator_pods_at_swap: int
    pods_before: tuple[str, ...]  # uids
    pods_after: tuple[str, ...]
    round_before: int
    recovery: Raw  # status.lastRecovery


@dataclass(frozen=True)
class Victim:
    rank: int
    pod: str
    node: str
    uid: str


def settle(training: Training) -> None:
    """Wait until the job is complete: all ranks step, all pods and spares are ready, and status reports that."""

    def is_complete(status: Raw) -> bool:
        pods = (status.get("members", {}), status.get("spares", {}))
        ready = all(group.get("ready", 0) >= group.get("desired", 0) for group in pods)
        return status.get("phase") == "Running" and ready

    training.wait_for_status("the job runs with all its pods and spares", is_complete, READY_LIMIT_S)
    start = newest_step(training.report())
    training.wait_for_step(start + STEADY_STEPS, READY_LIMIT_S)


def give_spare_a_node(training: Training) -> None:
    """Recreate the spare until it shares its node with no active pod, so that a fault of a node stops only one of them.

    A node that has just come back accepts no pods for a moment, and the scheduler puts a spare on another node.
    """
    end = time.monotonic() + SPARE_MOVES_S
    while time.monotonic() < end:
        settle(training)
        pods = {pod["metadata"]["name"]: pod["spec"].get("nodeName") for pod in running_pods(training)}
        actives = {pod["metadata"]["name"] for pod in training.pods_by_rank().values()}
        spares = [name for name in pods if name not in actives]
        shared = [name for name in spares if list(pods.values()).count(pods[name]) > 1]
        if not shared:
            return
        training.cluster.kubectl("-n", training.namespace, "delete", "pod", *shared, "--grace-period=0", "--force")
    raise AssertionError(f"the spare got no node of its own within {SPARE_MOVES_S:g} s:\n{training.pods_text()}")


def running_pods(training: Training) -> list[Raw]:
    return [
        pod
        for pod in training.pods()
        if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
    ]


def choose_victim(training: Training, ranks: tuple[int, ...]) -> Victim:
    """An active pod: the first of `ranks` that does not coordinate, and that has a node without other pods of ours."""
    coordinator = training.status()["coordinator"]["podUID"]
    nodes = [pod["spec"].get("nodeName") for pod in running_pods(training)]
    spared = {node for node in nodes if nodes.count(node) > 1}
    spared |= {pod["spec"].get("nodeName") for pod in training.pods() if pod["metadata"]["uid"] == coordinator}
    spared.add(operator_node(training.cluster))  # the operator has to update status at once, also for this fault
    by_rank = training.pods_by_rank()
    for rank in ranks:
        pod = by_rank.get(rank)
        if pod is not None and pod["spec"]["nodeName"] not in spared:
            return Victim(rank, pod["metadata"]["name"], pod["spec"]["nodeName"], pod["metadata"]["uid"])
    raise AssertionError(f"no pod of ranks {ranks} is on a node of its own:\n{training.pods_text()}")


class HasCluster(Protocol):
    cluster: Cluster
    namespace: str


def worker_pids(training: HasCluster, pod: str) -> list[int]:
    """Host pids of a pod's workers: the children of the launcher, or of one of its zygotes, that train.

    Each leads its own session, unlike a command that calls torchrun.
    """
    launcher = training.cluster.container_pids(training.namespace, pod)["trainer"]
    children = _children(launcher)
    zygotes = [pid for pid in children if _is_zygote(pid)]
    forked = [fork for pid in zygotes for fork in _children(pid).items()]
    # a zygote that has imported the learned modules is a child of the first one
    forked += [fork for pid, name in forked if name == "zygote" for fork in _children(pid).items()]
    others = [(pid, name) for pid, name in children.items() if pid not in zygotes]
    workers = [pid for pid, name in [*others, *forked] if name not in ("zygote", "store", "logs")]
    return [pid for pid in workers if _leads_session(pid)]


def _leads_session(pid: int) -> bool:
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:
        return False


def _children(pid: int) -> dict[int, str]:
    """The names of a process's children, by host pid, in the order of their start."""
    # Not by pid: a later child may have a lower pid, after the pids have wrapped around.
    command = ["ps", "-o", "pid=,comm=", "--sort=start_time,pid", "--ppid", str(pid)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    pairs = (line.split(None, 1) for line in result.stdout.splitlines())
    return {int(pid): name.strip() for pid, name in pairs}


def _is_zygote(child: int) -> bool:
    """Whether a child of the launcher is the zygote, by its command line: its name may be another one."""
    try:
        return b"understudy_zygote" in Path(f"/proc/{child}/cmdline").read_bytes()
    except OSError:
        return False


def kill_worker(training: Training) -> Act:
    victim = choose_victim(training, (1, 2, 0, 3))
    pid = worker_pids(training, victim.pod)[
        0
    ]  # pid of the pod's first rank: a launcher starts its workers in their order
    return measure(
        training,
        "SIGKILL a worker",
        victim,
        lambda: os.kill(pid, signal.SIGKILL),
        kind="Process",
        strategies=("InPlace",),
        killed_by="SIGKILL",
    )


def delete_pod(training: Training) -> Act:
    give_spare_a_node(training)
    victim = choose_victim(training, (2, 1, 0, 3))

    def delete() -> None:
        training.cluster.kubectl(
            "-n", training.namespace, "delete", "pod", victim.pod, "--grace-period=0", "--force", "--wait=false"
        )

    return measure(training, "delete an active pod", victim, delete, kind="Pod")


def delete_coordinator(training: Training) -> None:
    """Delete the coordinator's pod, and wait until another pod coordinates and all ranks step.

    If the pod has ranks, status has to report its loss. The loss of a spare that coordinates stops no training.
    """
    settle(training)
    status, entries = training.status(), training.report()
    coordinator = status["coordinator"]["podUID"]
    (pod,) = [pod for pod in training.pods() if pod["metadata"]["uid"] == coordinator]
    name, node = pod["metadata"]["name"], pod["spec"]["nodeName"]
    ranks = [rank for rank, active in training.pods_by_rank().items() if active["metadata"]["uid"] == coordinator]
    fault = None
    if ranks:
        rank = ranks[0] * training.workers
        fault = Fault("Pod", (training.replacement,), name, node, rank, ended=coordinator)

    def elected(status: Raw) -> bool:
        return bool(status["coordinator"].get("podUID")) and status["coordinator"]["podUID"] != coordinator

    def steps_on() -> bool:
        if ranks:
            return first_step_after(training.report(), entries[-1].token) is not None
        return newest_step(training.report()) > newest_step(entries) + STEADY_STEPS

    with compared(training, fault, RECOVERY_LIMIT_S):
        words = ("-n", training.namespace, "delete", "pod", name, "--grace-period=0", "--force", "--wait=false")
        training.cluster.kubectl(*words)
        training.wait_for_status("another pod coordinates", elected, RECOVERY_LIMIT_S)
        wait_until("training continues", steps_on, RECOVERY_LIMIT_S, seen=training.pods_text)


def power_off_node(training: Training, limit_s: float = RECOVERY_LIMIT_S) -> Act:
    give_spare_a_node(training)
    victim = choose_victim(training, (1, 2, 0, 3))
    off = partial(training.cluster.power_off, victim.node)
    return measure(training, "power off a node", victim, off, kind="Node", limit_s=limit_s)


def kill_containers_without_operator(training: Training, meanwhile: Callable[[], Any] = lambda: None) -> Act:
    """Kill a pod while no operator runs: only the training's report shows the swap.

    meanwhile: called after the swap, before the operator runs again.
    """
    give_spare_a_node(training)
    victim = choose_victim(training, (1, 2, 0, 3))
    pids = training.cluster.container_pids(training.namespace, victim.pod)
    scale_operator(training.cluster, 0)

    def kill() -> None:
        for pid in pids.values():
            os.kill(pid, signal.SIGKILL)

    def before_status() -> None:
        meanwhile()
        scale_operator(training.cluster)

    try:
        return measure(training, "no operator, kill a pod", victim, kill, kind="Pod", before_status=before_status)
    finally:
        scale_operator(training.cluster)


@dataclass(frozen=True)
class Thaw:
    victim: Victim
    token: Token  # of the round that the frozen workers were in
    pids: tuple[int, ...]
    report_at_freeze: int  # entries of that round when the node was frozen
    checkpoints_at_thaw: dict[str, float]


def freeze_node(training: Training, freeze_s: float = FREEZE_S) -> tuple[Act, Thaw]:
    """Freeze a node for freeze_s seconds, then thaw it. Prefers the node of rank 0, which writes the checkpoints."""
    give_spare_a_node(training)
    victim = choose_victim(training, (0, 1, 2))
    pids = tuple(worker_pids(training, victim.pod))
    token = training.report()[-1].token
    freeze = partial(training.cluster.freeze, victim.node)
    act = measure(training, f"freeze a node {freeze_s:g} s", victim, freeze, kind="Node")
    frozen_until = time.time() - act.resumed_s + freeze_s
    written = len([entry for entry in training.report() if entry.token == token])
    wait_until("the freeze has lasted long enough", lambda: time.time() >= frozen_until, freeze_s + 10)
    checkpoints, step = checkpoints_of(training, token), newest_step(training.report())

    def goes_on() -> bool:
        return not any(map(running, pids)) and newest_step(training.report()) > step

    with compared(training, None):
        training.cluster.thaw(victim.node)
        wait_until("the thawed workers end, and training continues", goes_on, THAW_S, seen=training.pods_text)
    return act, Thaw(victim, token, pids, written, checkpoints)


def checkpoints_of(training: Training, token: Token) -> dict[str, float]:
    """Checkpoint files of a round and of earlier ones, with their modification times."""
    found = {}
    for file in training.folder.rglob("*"):
        if file.is_file() and _round_of(file.relative_to(training.folder).parts[0]) == token:
            found[str(file)] = file.stat().st_mtime
    return found


def described(pids: list[int]) -> str:
    """The output of `ps` for these processes, for the message of a wait for their end."""
    command = ["ps", "-ww", "-o", "pid,ppid,pgid,stat,comm,wchan:20,lstart,args", "-p", ",".join(map(str, pids))]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def running(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _round_of(folder: str) -> Token | None:
    parts = folder.split("-")[0].split(".")
    if len(parts) == 3 and all(part.isdigit() for part in parts):
        return int(parts[0]), int(parts[1]), int(parts[2])
    return None


def measure(
    training: Training,
    name: str,
    victim: Victim,
    fault: Callable[[], Any],
    *,
    kind: str,
    strategies: tuple[str, ...] = (),
    before_status: Callable[[], Any] | None = None,
    limit_s: float = RECOVERY_LIMIT_S,
    killed_by: str | None = None,
    effective_within_s: float = 0.0,
    ranks: int = 1,
) -> Act:
    """Cause the fault, wait for a step of a new round, and compare status with the observed recovery.

    strategies: if empty, that of a lost pod. before_status: is called after the step; if None, the operator runs all
    the time. killed_by: the signal that ends a worker. effective_within_s, ranks: see Fault.
    """
    status = training.status()
    entries = training.report()
    token, pods = entries[-1].token, uids(training)
    rank = victim.rank * training.workers
    reported_s = math.inf if before_status else REPORTED_WITHIN_S
    expected = Fault(
        kind,
        strategies or (training.replacement,),
        victim.pod,
        victim.node,
        rank,
        reported_s,
        killed_by,
        effective_within_s=effective_within_s,
        ranks=ranks,
    )
    with compared(training, expected, limit_s=30) as comparison:
        killed_at = comparison.at
        fault()
        step = wait_until(
            f"a new round steps after: {name}",
            lambda: first_step_after(training.report(), token),
            limit_s,
            seen=training.pods_text,
        )
        assert step is not None
        operators = len(_operator_pods(training))
        if before_status:
            before_status()
    done = [entry.step for entry in training.report() if entry.token == token and entry.event == "step"]
    recovery = comparison.recovery
    return Act(
        act=name,
        fault=recovery["fault"],
        strategy=recovery["strategy"],
        detected_s=round(unix(recovery["detectedAt"]) - killed_at, 3),
        resumed_s=round(step.time - killed_at, 3),
        paused_s=round(comparison.paused_s, 3),
        lost_steps=max(done) - step.step + 1,
        status_s=recovery["pauseSeconds"],
        victim=victim,
        operator_pods_at_swap=operators,
        pods_before=pods,
        pods_after=uids(training),
        round_before=int(status["round"]),
        recovery=recovery,
    )


def uids(training: Training) -> tuple[str, ...]:
    """Uids of all of the job's pods."""
    return tuple(sorted(pod["metadata"]["uid"] for pod in training.pods()))


def restarts(training: Training) -> int:
    """The restarts of all containers of the job's pods, as the kubelet counts them."""
    statuses = [pod["status"] for pod in training.pods()]
    containers = [c for s in statuses for c in (*s.get("initContainerStatuses", ()), *s.get("containerStatuses", ()))]
    return sum(container["restartCount"] for container in containers)


def world_size(training: Training) -> int:
    """The number of ranks that train now, from rank 0's log of its round."""
    pod = training.pods_by_rank()[0]["metadata"]["name"]
    log = read_log(training.cluster, training.namespace, pod, "trainer")
    rounds = [word for line in log.splitlines() for word in line.split() if word.startswith("world_size=")]
    return int(rounds[-1].removeprefix("world_size="))


def _operator_pods(training: Training) -> list[Raw]:
    return listed(training.cluster, NAMESPACE, "pods", OPERATOR_PODS)
