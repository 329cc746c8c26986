"""Snapshots in memory on the real cluster: what a round restores after faults that destroy or damage some of them.

The first tests share one training, as the acts of the story do: three pods of two ranks, two spares, and copies of each
snapshot in two other pods. The last test has a training of its own, whose state is the cause of its failures.
"""

import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.e2e import acts
from tests.e2e.lanes import NAMESPACE
from tests.e2e.report import Token, newest_round, newest_step
from tests.e2e.training import CHECKOUT, Raw, Training
from tests.e2e.truth import is_open, new_entries
from tests.e2e.undisturbed import check_losses
from tests.e2e.waiting import wait_until
from tests.soak.jobs import host_name
from understudy_protocol.snapshot_files import HEADER, header_offset, kept_slot_bytes, read_header, slot_bytes_of

pytestmark = pytest.mark.timeout(400)

HERE = Path(__file__).parent
ALLOCATING = HERE.parent / "soak" / "worker.py"
SLOT_BYTES = 8 << 20
PAGE_BYTES, SLOTS = 4096, 2
MEMORY_LIMIT = "2Gi"
#: The budget is for a test each, not for their sum.
BUDGET = 50
#: A copy may be of the step before the newest, and the newest one may be on its way.
LOST_WITH_A_POD = 3
STILL_S = 2.0
#: A worker looks for the request twice a second, and takes 32 MiB at a time.
ALLOCATED_WITHIN_S = 15.0
PODS = 5
ARRANGED_WITHIN_S = 150.0


class CopiedTraining(Training):
    """Its workers allocate memory without limit when a file asks for it."""

    def apply_items(self, items: list[Raw]) -> str:
        shutil.copy(ALLOCATING, self.folder / "worker.py")
        return super().apply_items(items)

    def _localize(self, job: Raw) -> None:
        super()._localize(job)
        job["spec"]["spares"] = {"replicas": 2}
        job["spec"]["snapshots"] = {"size": f"{SLOT_BYTES >> 20}Mi", "copies": 2}
        job["spec"].setdefault("recovery", {})["inPlace"] = {"maxRestarts": BUDGET}
        template = job["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
        trainer = template["spec"]["containers"][0]
        trainer["command"] = ["python3", "-u", "/checkpoints/worker.py"]
        trainer["resources"]["limits"] = {"memory": MEMORY_LIMIT}


class PoisonedTraining(Training):
    def apply_items(self, items: list[Raw]) -> str:
        shutil.copy(HERE / "poisoned_train.py", self.folder)
        return super().apply_items(items)

    def _localize(self, job: Raw) -> None:
        super()._localize(job)
        job["spec"]["launcher"]["nprocPerNode"] = 1
        job["spec"].setdefault("recovery", {})["inPlace"] = {"maxRestarts": BUDGET}
        template = job["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
        trainer = template["spec"]["containers"][0]
        trainer["command"], trainer["args"] = ["python3", "-u", "/checkpoints/poisoned_train.py"], []


@pytest.fixture(scope="module")
def training(cluster: Cluster) -> Iterator[Training]:
    training = CopiedTraining(cluster, CHECKOUT / "build" / "e2e-storage-copied", NAMESPACE, name="copied")
    training.apply()
    yield training
    training.discard()


def test_a_worker_that_the_kernel_kills_for_memory_continues_from_its_pods_memory(training: Training) -> None:
    victim = any_victim(training)
    host = host_name(training.cluster.container_pids(NAMESPACE, victim.pod))
    # when a worker allocates all memory of its container, which includes the snapshots
    act = acts.measure(
        training,
        "allocate all memory",
        victim,
        (training.folder / f"allocate-{host}").touch,
        kind="Process",
        strategies=("InPlace",),
        killed_by="SIGKILL",
        effective_within_s=ALLOCATED_WITHIN_S,
        ranks=training.workers,  # if the kernel also kills the fork server, each worker ends with it
    )
    # then the launcher and its snapshots outlive the worker
    assert act.recovery["restoredFrom"] == "Memory"
    assert 0 <= act.lost_steps <= 1
    assert act.pods_after == act.pods_before


def test_two_nodes_that_are_lost_at_once_cost_the_steps_since_the_newest_copies(training: Training) -> None:
    # given two active pods, each alone on its node, and copies of all ranks
    victims = two_victims(training)
    status, copied = training.status(), wait_for_copies(training)
    # when both nodes lose their power
    with ThreadPoolExecutor() as pool:
        list(pool.map(training.cluster.power_off, [victim.node for victim in victims]))
    # then the two spares take their ranks, and restore the copies of the third pod with ranks
    entries = recovered(training, status)
    assert {entry["restoredFrom"] for entry in entries} == {"Peer"}, entries
    assert {entry["strategy"] for entry in entries} == {"SpareSwap"}, entries
    assert training_resumed_at(training) >= copied
    uids = [pod["metadata"]["uid"] for pod in training.pods_by_rank().values()]
    assert len(uids) == 3
    assert not {victim.uid for victim in victims} & set(uids)
    for victim in victims:
        training.cluster.restore(victim.node)


def test_the_node_of_a_coordinator_with_ranks_is_lost(training: Training) -> None:
    # given a coordinator in an active pod
    victim = coordinator_with_ranks(training)
    off = partial(training.cluster.power_off, victim.node)
    # when the node loses its power
    act = acts.measure(training, "power off the coordinator's node", victim, off, kind="Node")
    # then the next coordinator knows where the copies of its snapshots are
    assert act.recovery["restoredFrom"] == "Peer"
    assert 0 <= act.lost_steps <= LOST_WITH_A_POD
    training.cluster.restore(victim.node)


def test_a_damaged_snapshot_in_its_own_pod_is_refused_and_a_copy_of_it_is_restored(training: Training) -> None:
    victim = any_victim(training)
    status = training.status()
    # given a training that stands still, so that no snapshot is overwritten, and copies of its newest step
    stopped = stop_a_worker_with_copies(training, victim)
    newest = newest_step(training.report())
    # and a flipped bit in each snapshot of the pod
    assert flip_bits(training, victim.pod, "snapshots", own_content) == 4
    # when a worker of the pod fails
    os.kill(stopped, signal.SIGKILL)
    # then load() refuses the snapshot, and the next round restores the same step from another pod
    first, *others = recovered(training, status)
    assert first["cause"]["signal"] == "SIGKILL"
    assert others
    # and the cause is the exception of its pod, which counts for its node, and not a peer that ended sooner
    message = others[0]["cause"]["message"]
    assert "DamagedSnapshotError" in message
    assert "is damaged (its digest is wrong), and is discarded" in message
    assert (others[0]["cause"]["pod"], others[0]["cause"]["node"]) == (victim.pod, victim.node)
    assert others[-1]["restoredFrom"] == "Peer"
    assert training_resumed_at(training) == newest


def test_damaged_copies_are_never_restored(training: Training) -> None:
    victim = any_victim(training, may_have_failed=True)
    status = training.status()
    # given a training that stands still, and a flipped bit in each copy that is kept in other pods
    stop_a_worker(training, victim)
    others = [name for pod in acts.running_pods(training) if (name := pod["metadata"]["name"]) != victim.pod]
    for name in others:
        flip_bits(training, name, "copies", kept_content)
    # when the pod is lost
    gone = ("delete", "pod", victim.pod, "--grace-period=0", "--force", "--wait=false")
    training.cluster.kubectl("-n", NAMESPACE, *gone)
    # then no round restores these copies: the script loads its checkpoint
    *_, last = recovered(training, status)
    assert last["restoredFrom"] == "Storage"
    assert "a block cannot be opened with its key" in last["restoreReason"]


def test_the_loss_of_every_step_is_that_of_a_run_without_faults(training: Training) -> None:
    training.finish()
    wait_until("it is done", lambda: training.report()[-1].event == "done", 60, seen=training.pods_text)
    check_losses(training)


def test_a_state_that_makes_the_training_fail_is_not_restored_forever(cluster: Cluster) -> None:
    # given a training without checkpoints, whose rank 1 fails in each step as soon as its state is wrong
    training = PoisonedTraining(cluster, CHECKOUT / "build" / "e2e-storage-poisoned", NAMESPACE, name="poisoned")
    training.apply()
    try:
        # when it fails again and again
        wait_until(
            "it trains beyond the step at which its state got wrong",
            lambda: newest_step(training.report()) > 65 and training_resumed_at(training) == 0,
            180,
            seen=training.pods_text,
        )
        entries = training.status()["recoveries"]
        # then the snapshot of the wrong state is restored twice, in the rank's pod or in a spare
        first, second, third = entries
        assert first["restoredFrom"] == "Memory"
        assert second["restoredFrom"] == {"InPlace": "Memory", "SpareSwap": "Peer"}[second["strategy"]]
        # and then the training begins at step 0, and status has the reason
        assert third["restoredFrom"] == "Storage"
        assert any("the loss is not a number" in entry["cause"]["message"] for entry in entries)
        reason = "2 rounds in a row have failed within 3 steps of a restored snapshot: it may be the cause"
        assert third["restoreReason"] == reason
    finally:
        training.discard()


# Help -----------------------------------------------------------------------------------------------------------------


def any_victim(training: Training, *, may_have_failed: bool = False) -> acts.Victim:
    """An active pod that does not coordinate. A pod that fails twice is replaced."""
    acts.settle(training)
    wait_for_copies(training)
    status = training.status()
    failed = set() if may_have_failed else {entry["cause"].get("pod") for entry in status.get("recoveries", ())}
    for _, pod in sorted(training.pods_by_rank().items(), reverse=True):
        if pod["metadata"]["uid"] != status["coordinator"]["podUID"] and pod["metadata"]["name"] not in failed:
            return victim_of(training, pod)
    raise AssertionError(f"each active pod coordinates or has failed before:\n{training.pods_text()}")


def wait_for_copies(training: Training) -> int:
    """Wait until two other pods keep copies of each rank of one of the two newest steps: a new pod first allocates its
    memory, and fewer steps are copied for a time after copies that were slow. Returns the step.
    """

    def copied() -> int | None:
        newest, step = newest_step(training.report()), newest_copied_step(training)
        return step if step is not None and step >= newest - 1 else None

    found = wait_until("each rank has its copies", copied, 90, seen=lambda: kept_copies(training))
    assert found is not None
    return found


def newest_copied_step(training: Training) -> int | None:
    """The newest step of this round that two other pods have copied from each rank."""
    token, copies, ranks = training.report()[-1].token, kept_copies(training), range(training.world_size)
    steps = {step for _, of, step in copies if of == token}
    return max((step for step in steps if all(copies[rank, token, step] >= 2 for rank in ranks)), default=None)


def kept_copies(training: Training) -> Counter[tuple[int, Token, int]]:
    """The number of pods that keep a copy of this rank from this round and step."""
    found = set()
    for pod in acts.running_pods(training):
        name = pod["metadata"]["name"]
        for path in memory_files(training.cluster.container_pids(NAMESPACE, name)["trainer"], "copies"):
            with path.open("rb", buffering=0) as file:
                for slot in range(SLOTS):
                    header = read_header(os.pread(file.fileno(), HEADER.size, slot * kept_slot_bytes(SLOT_BYTES)))
                    if header is not None:
                        token = header.saved.token
                        found.add((header.rank, (token.epoch, token.term, token.round), header.saved.step, name))
    return Counter((rank, token, step) for rank, token, step, _ in found)


def two_victims(training: Training) -> list[acts.Victim]:
    """Two active pods, each of them the only pod of the job on its node."""

    def found(pods: list[Raw]) -> list[acts.Victim]:
        nodes = [pod["spec"]["nodeName"] for pod in pods]
        ranked = training.pods_by_rank().values()
        alone = [pod for pod in ranked if nodes.count(pod["spec"]["nodeName"]) == 1]
        return [victim_of(training, pod) for pod in alone[:2]] if len(alone) >= 2 else []

    return arranged(training, found)


def coordinator_with_ranks(training: Training) -> acts.Victim:
    """Its node has no other pod with ranks and at most one spare, so the other pods are a majority."""

    def found(pods: list[Raw]) -> list[acts.Victim]:
        coordinator = training.status()["coordinator"]["podUID"]
        ranked = {pod["metadata"]["uid"]: pod for pod in training.pods_by_rank().values()}
        if coordinator not in ranked:
            acts.delete_coordinator(training)
            return []
        node = ranked[coordinator]["spec"]["nodeName"]
        beside = [pod["metadata"]["uid"] for pod in pods if pod["spec"]["nodeName"] == node]
        is_suitable = len(beside) <= 2 and len(ranked.keys() & set(beside)) == 1
        return [victim_of(training, ranked[coordinator])] if is_suitable else []

    (victim,) = arranged(training, found)
    return victim


def arranged(training: Training, found: Callable[[list[Raw]], list[acts.Victim]]) -> list[acts.Victim]:
    """The victims, once some are found among the job's pods. Until then, pods are moved: the scheduler uses a node only
    some time after it is back.
    """
    end = time.monotonic() + ARRANGED_WITHIN_S
    while time.monotonic() < end:
        acts.settle(training)
        pods = wait_until("all pods run", lambda: all_pods(training), 60, seen=training.pods_text)
        wait_for_copies(training)
        if victims := found(pods):
            return victims
        move_a_pod_away(training)
    raise AssertionError(f"no suitable pods within {ARRANGED_WITHIN_S:g} s:\n{training.pods_text()}")


def all_pods(training: Training) -> list[Raw]:
    """All pods that the job wants; none while one of them is missing or does not run."""
    pods = [pod for pod in training.pods() if "deletionTimestamp" not in pod["metadata"]]
    return pods if len(pods) == PODS and len(acts.running_pods(training)) == PODS else []


def move_a_pod_away(training: Training) -> None:
    """Delete a pod that shares its node with another one, if possible a spare: the scheduler prefers empty nodes."""
    actives = {pod["metadata"]["uid"] for pod in training.pods_by_rank().values()}
    pods = acts.running_pods(training)
    nodes = [pod["spec"]["nodeName"] for pod in pods]
    shared = [pod for pod in pods if nodes.count(pod["spec"]["nodeName"]) > 1]
    if not shared:
        return
    shared.sort(key=lambda pod: pod["metadata"]["uid"] in actives)
    name, uid = shared[0]["metadata"]["name"], shared[0]["metadata"]["uid"]
    training.cluster.kubectl("-n", NAMESPACE, "delete", "pod", name, "--grace-period=0", "--force", "--wait=false")
    wait_until("the pod is gone", lambda: uid not in acts.uids(training), 60, seen=training.pods_text)


def victim_of(training: Training, pod: Raw) -> acts.Victim:
    rank = next(rank for rank, x in training.pods_by_rank().items() if x["metadata"]["uid"] == pod["metadata"]["uid"])
    return acts.Victim(rank, pod["metadata"]["name"], pod["spec"]["nodeName"], pod["metadata"]["uid"])


def recovered(training: Training, before: Raw) -> list[Raw]:
    """The new entries of status, when all ranks step again."""
    known = {entry["detectedAt"] for entry in before.get("recoveries", ())}

    def ended(status: Raw) -> bool:
        entries = new_entries(status, known)
        return bool(entries) and not any(map(is_open, entries)) and status["phase"] == "Running"

    training.wait_for_status("the job runs again", ended, 120)
    acts.settle(training)
    return new_entries(training.status(), known)


def training_resumed_at(training: Training) -> int:
    return newest_round(training.report())[0].step


def stop_a_worker(training: Training, victim: acts.Victim) -> int:
    """Stop a worker of the pod, and wait until no rank steps any more. Returns the worker's host pid."""
    pid = acts.worker_pids(training, victim.pod)[0]
    os.kill(pid, signal.SIGSTOP)
    wait_until(
        "the training stands still",
        lambda: time.time() - training.report()[-1].time > STILL_S,
        30,
        seen=training.report,
    )
    return pid


def stop_a_worker_with_copies(training: Training, victim: acts.Victim) -> int:
    """Like stop_a_worker, but at a step that is copied from each rank: after slow copies, some steps are not copied."""

    def stopped() -> int | None:
        pid = stop_a_worker(training, victim)
        if newest_copied_step(training) == newest_step(training.report()):
            return pid
        os.kill(pid, signal.SIGCONT)
        wait_for_copies(training)
        return None

    found = wait_until("it stands still at a step with copies", stopped, 90, seen=lambda: kept_copies(training))
    assert found is not None
    return found


def flip_bits(training: Training, pod: str, name: str, content: Callable[[int, int], tuple[int, int]]) -> int:
    """Flip a bit in the content of each slot that is whole, in all files in memory of this kind. Returns their number.

    content: (slot, file's bytes) -> where the slot's header is, and a byte of its content.
    """
    flipped = 0
    for path in memory_files(training.cluster.container_pids(NAMESPACE, pod)["trainer"], name):
        with path.open("r+b", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            for slot in range(SLOTS):
                header, place = content(slot, size)
                if read_header(os.pread(file.fileno(), HEADER.size, header)) is None:
                    continue
                (byte,) = os.pread(file.fileno(), 1, place)
                os.pwrite(file.fileno(), bytes([byte ^ 1]), place)
                flipped += 1
    return flipped


def own_content(slot: int, size: int) -> tuple[int, int]:
    header = header_offset(slot, slot_bytes_of(size))
    return header, header + PAGE_BYTES + (1 << 20)


def kept_content(slot: int, size: int) -> tuple[int, int]:
    assert size == SLOTS * kept_slot_bytes(SLOT_BYTES)
    header = slot * kept_slot_bytes(SLOT_BYTES)
    return header, header + PAGE_BYTES + HEADER.size + 10_000


def memory_files(pid: int, name: str) -> list[Path]:
    """The files in memory that a process has opened, through /proc. name: without the number."""
    found = {}
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # it has just been closed
            target = os.readlink(entry)
            if target.startswith(f"/memfd:{name}-"):
                found[target] = entry
    return list(found.values())
