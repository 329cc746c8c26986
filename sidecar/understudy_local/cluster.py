"""Executes the operator's plan with processes in place of pods: the coordinator, the pods, and the end of the job.

A node is a name and an address of the loopback network, on which one pod runs at a time, as long as there are enough
nodes. The operator's plan makes all decisions: this module reconciles, and acts, on one machine.
"""

import asyncio
import contextlib
import os
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from understudy_local import manifest as written
from understudy_local import process, rank_process
from understudy_local.directory import JobCallers
from understudy_local.local_pod import LocalPod
from understudy_local.manifest import PodPlacement
from understudy_local.options import Options
from understudy_local.output import LocalOutput
from understudy_local.run_folder import RunFolder
from understudy_local.training_job import training_job
from understudy_operator.apply.coordinator_link import CoordinatorLink
from understudy_operator.plan.facts.cluster_objects import Node
from understudy_operator.plan.facts.job import Job
from understudy_operator.plan.facts.keyring import Keyring
from understudy_operator.plan.facts.observed import Coordination, Observed
from understudy_operator.plan.facts.pods import Pods
from understudy_operator.plan.facts.recovery_objects import RecoveryFields
from understudy_operator.plan.facts.secret_writes import SecretWrites
from understudy_operator.plan.facts.status import JobStatus
from understudy_operator.plan.intents import CreatePod, DeletePod, Follow, PatchPod, Plan, RecoveryHistory, Unfollow
from understudy_operator.plan.leadership.coordination import JOB_DELETED
from understudy_operator.plan.manifests.object_names import membership_secret_name
from understudy_operator.plan.manifests.shape import facts_secret_name, job_facts_json
from understudy_operator.plan.reconcile import reconcile
from understudy_operator.plan.status.recovery_history import (
    CreateRecovery,
    DeleteRecovery,
    PatchRecovery,
    plan_recovery_writes,
)
from understudy_operator.runtime.line import Keys
from understudy_protocol import pod as names
from understudy_protocol.observer import Snapshot
from understudy_sidecar.server import Server, SidecarIdentity

IMAGE = "local"
#: While a killed launcher has live descendants, or a pod waits for a node.
RECONCILE_AGAIN_S = 0.05
INTERRUPTED = 130
FAILED = 1
_EXIT_CODES = {"Completed": 0, "Failed": FAILED}


#: Events that `understudy local timeline` can show: the newest.
MOST_EVENTS = 500


@dataclass(frozen=True)
class Happened:
    """An event of the job. at: Unix seconds. kind: Normal or Warning, as in Kubernetes."""

    at: float
    kind: str
    reason: str
    message: str


class NoSuchTarget(ValueError):
    """The target does not exist: the text lists the targets that do."""


class LocalCluster:
    """network: the first two numbers of the run's addresses, as in 127.93. devices: the machine's, by CUDA's names."""

    def __init__(
        self, options: Options, folder: RunFolder, network: str, devices: Sequence[str], output: LocalOutput
    ) -> None:
        self.options, self.folder, self._network, self._output = options, folder, network, output
        self._devices = devices
        self.pods: dict[str, LocalPod] = {}
        self.status = JobStatus()
        self.happened: deque[Happened] = deque(maxlen=MOST_EVENTS)
        self.recoveries: dict[str, RecoveryFields] = {}
        self.started_at = time.time()
        self.changed: Callable[[], None] = lambda: None  # set by the live view
        self._nodes = [f"node-{number}" for number in range(options.nodes + options.spares)]
        self.uid, self._keyring = secrets.token_hex(16), Keyring(secrets.token_bytes(32))
        self._key = self._keyring.of_job("", self.uid, 0)
        self._addresses = 0
        self._wakeup = asyncio.Event()
        self._ending = ""  # the reason, once the run has to end
        self._failed = False
        self._waits_for_node = False  # a planned pod waits
        self._link: CoordinatorLink | None = None
        self._coordination = Coordination()
        self._directory = JobCallers()

    async def run(self) -> int:
        """Run until the job and its processes have ended. Return the exit code."""
        me = SidecarIdentity("", self._address(0), bytes.fromhex(self._keyring.operator_public()))
        server = Server(self._directory, me, bytes.fromhex(self._key), self.uid)
        await server.listen(names.COORDINATOR_PORT, self._address(0))
        try:
            while True:
                again_in_s = await self._reconcile()
                if self._is_over():
                    break
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(again_in_s):
                        await self._wakeup.wait()
                self._wakeup.clear()
        finally:
            await self._unfollow(Unfollow())
            for pod in self.pods.values():
                pod.kill()
            await asyncio.gather(*(pod.wait_until_over() for pod in self.pods.values()))
            await server.close(0.0)
        return self._exit_code()

    @property
    def snapshot(self) -> Snapshot | None:
        return (self._coordination if self._link is None else self._link.coordination).snapshot

    def end(self, why: str) -> None:
        """Workers may save for the grace period. A second call kills them at once."""
        if self._ending:
            for pod in self.pods.values():
                pod.kill()
        else:
            self._ending = why
            self._output.note(f"{why}: workers have {self.options.grace_s} s to save; a second signal kills them")
            for pod in self.pods.values():
                pod.delete(None)
        self._enqueue()

    def abandon(self) -> None:
        """The keeper was killed: kill all processes without a save."""
        self._ending = self._ending or "the keeper was killed"
        for pod in self.pods.values():
            pod.kill()
        self._enqueue()

    def _fail(self) -> None:
        failed = next(pod for pod in self.pods.values() if pod.failed_to_start)
        self._ending, self._failed = "a member ended before the first round", True
        self._output.note(
            f"{failed.place.node} ended with exit code {failed.exit_code} before the first round, so the run ends: see "
            f"{self.folder.log(failed.place.node)}"
        )
        for pod in self.pods.values():
            pod.kill()

    def kill(self, target: str) -> str:
        """SIGKILL to a rank's worker or to a member. Return a text about the target. Raises NoSuchTarget."""
        return self._kill_rank(int(target)) if target.isdigit() else self._kill_member(target)

    # Faults -----------------------------------------------------------------------------------------------------------

    def _kill_rank(self, rank: int) -> str:
        ranks = self.options.nodes * self.options.nproc
        if rank >= ranks:
            raise NoSuchTarget(f"there is no rank {rank}: expected 0 to {ranks - 1}")
        group_rank, local_rank = divmod(rank, self.options.nproc)
        members = () if self.snapshot is None else self.snapshot.members
        uid = next((x.pod_uid for x in members if x.group_rank == group_rank), "")
        pod = next((pod for pod in self.pods.values() if pod.place.pod_uid == uid and not pod.ended), None)
        pids = [] if pod is None or pod.launcher_pid is None else rank_process.worker_pids(pod.launcher_pid)
        if pod is None or len(pids) != self.options.nproc:
            raise NoSuchTarget(f"rank {rank} has no running worker at the moment: retry when the phase is Running")
        os.kill(pids[local_rank], 9)
        return f"the worker of rank {rank} on {pod.place.node} (pid {pids[local_rank]})"

    def _kill_member(self, name: str) -> str:
        live = [pod for pod in self.pods.values() if pod.holds_node]
        named = [pod for pod in live if name in (pod.place.node, pod.place.pod_name)]
        pod = min(named, key=lambda pod: pod.deleting, default=None)  # prefer a pod that is not ending anyway
        if pod is None:
            there = ", ".join(sorted(pod.place.node for pod in live))
            raise NoSuchTarget(f"there is no member {name!r}: the members are {there or 'not started'}")
        pod.kill()
        return f"all processes of {pod.place.node}"

    # A reconcile ----------------------------------------------------------------------------------------------------

    def _is_over(self) -> bool:
        if any(not pod.ended for pod in self.pods.values()):
            return False
        return bool(self._ending or self.status.terminal_state)

    def _failed_to_start(self) -> bool:
        """A pod that cannot start before the first round would fail again and again."""
        return self.status.round < 0 and any(pod.failed_to_start for pod in self.pods.values())

    def _exit_code(self) -> int:
        if self.status.terminal_state:
            return _EXIT_CODES[self.status.terminal_state]
        return FAILED if self._failed else INTERRUPTED

    async def _reconcile(self) -> float | None:
        now = time.time()
        job = training_job(self.options, self.uid, self.started_at, self.status, deleting=bool(self._ending))
        if self._failed_to_start() and not self._ending:
            self._fail()
        plan = reconcile(self._observe(job), IMAGE, now)
        self._execute(job, plan)
        await self._follow(plan.link)
        self.changed()
        if process.end_orphans() or self._waits_for_node:
            return RECONCILE_AGAIN_S
        return plan.requeue_after_s

    def _observe(self, job: Job) -> Observed:
        return Observed(
            job=job,
            pods=Pods(pod.observed() for pod in self.pods.values()),
            nodes={name: Node(name, True) for name in self._nodes},
            coordination=self._coordination if self._link is None else self._link.coordination,
            keyring=self._keyring,
            has_hostnames_service=True,
            coordinator_address=self._directory_address,
            entropy=secrets.token_hex(8),
            # Their files are in the run's folder.
            secret_writes=SecretWrites(
                dict.fromkeys(
                    (membership_secret_name(job), facts_secret_name(job, self._directory_address)), self.started_at
                )
            ),
        )

    @property
    def _directory_address(self) -> str:
        return f"{self._address(0)}:{names.COORDINATOR_PORT}"

    def _execute(self, job: Job, plan: Plan) -> None:
        if plan.status is not None:
            self.status = plan.status
        if plan.recoveries is not None:
            self._record(plan.recoveries)
        self._waits_for_node = False
        for intent in plan.pods:
            match intent:
                case CreatePod(manifest):
                    self._create_pod(job, manifest)
                case DeletePod(name, _, grace_s, reason) if name in self.pods:
                    self._delete(self.pods[name], grace_s, reason)
                case PatchPod(name, labels, annotations) if name in self.pods:
                    _patch(self.pods[name].labels, labels)
                    _patch(self.pods[name].annotations, annotations)
                case _:
                    pass  # an earlier intent of this plan has removed it
        leader = next((pod for pod in self.pods.values() if names.LABEL_COORDINATOR in pod.labels), None)
        self._directory.set_coordinator(None if leader is None else (leader.place.pod_uid, leader.place.ip))
        for event in plan.events:
            message = self._by_node(event.message)
            self.happened.append(Happened(time.time(), event.type, event.reason, message))
            self._output.event(event.type, event.reason, message)

    def _record(self, history: RecoveryHistory) -> None:
        """Keep the facts that the Recovery objects of a cluster would have."""
        for write in plan_recovery_writes(history, self.recoveries):
            match write:
                case CreateRecovery(name, fields) | PatchRecovery(name, _, fields):
                    self.recoveries[name] = fields
                case DeleteRecovery(name):
                    del self.recoveries[name]

    def _by_node(self, text: str) -> str:
        """Replace pod names by node names, which the user knows."""
        for pod in self.pods.values():
            node = pod.place.node
            text = text.replace(f"{pod.place.pod_name} (node {node})", node).replace(pod.place.pod_name, node)
        return text

    def _create_pod(self, job: Job, manifest: Mapping[str, Any]) -> None:
        name = manifest["metadata"]["name"]
        index = manifest["metadata"]["annotations"].get(names.ANNOTATION_GROUP_RANK)
        node = self._node_for(None if index is None else self._nodes[int(index)])
        if node is None:
            self._waits_for_node = True
            return  # the next reconcile plans it again
        place = self._place(name, node)
        self._write_own_files(job, place)
        self.pods[name] = self._pod(manifest, place)

    def _node_for(self, own: str | None) -> str | None:
        used = {pod.place.node: pod.deleting for pod in self.pods.values() if pod.holds_node}
        return node_for(self._nodes, own, used)

    def _place(self, name: str, node: str) -> PodPlacement:
        self._addresses += 1
        folder = self.folder
        return PodPlacement(
            pod_uid=secrets.token_hex(16),
            pod_name=name,
            node=node,
            ip=self._address(self._addresses),
            folder=folder.pod(name),
            pod_folder=folder.sidecar(name),
            shipped=folder.shipped,
            devices=written.devices_of(self._nodes.index(node), len(self._nodes), self.options.nproc, self._devices),
        )

    def _write_own_files(self, job: Job, place: PodPlacement) -> None:
        """Only this user can access the run's folder."""
        place.pod_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = job_facts_json(job, self._directory_address)
        for file, text in written.pod_files(place, self._key, self._keyring.operator_public(), facts).items():
            (place.pod_folder / file).write_text(text)

    def _pod(self, manifest: Mapping[str, Any], place: PodPlacement) -> LocalPod:
        return LocalPod(manifest, place, self._enqueue, *self._output.of_pod(place.node, self.folder.log(place.node)))

    def _delete(self, pod: LocalPod, grace_s: float | None, reason: str) -> None:
        if pod.ended:
            del self.pods[pod.place.pod_name]
        else:
            self._output.note(f"stops {pod.place.node}: {reason}")
            pod.delete(grace_s)

    def _address(self, number: int) -> str:
        """The directory has 0; pods have 1, 2, …"""
        return f"{self._network}.{number // 250}.{number % 250 + 1}"

    def _enqueue(self) -> None:
        self._wakeup.set()

    async def _follow(self, link: Follow | Unfollow | None) -> None:
        match link:
            case Unfollow():
                await self._unfollow(link)
            case Follow():
                if self._link is not None and self._link.has_ended:
                    await self._unfollow(Unfollow())
                if self._link is None:
                    keys = Keys(bytes.fromhex(self._key), self._keyring.operator())
                    self._link = CoordinatorLink(self.uid, keys, self._coordination, self._enqueue)
                self._link.follow(link)

    async def _unfollow(self, unfollow: Unfollow) -> None:
        if self._link is None:
            return
        link, self._link = self._link, None
        self._coordination = link.coordination
        if unfollow.end is not None and unfollow == JOB_DELETED:
            await link.end(unfollow.end)
        await link.close()


def node_for(nodes: Sequence[str], own: str | None, used: Mapping[str, bool]) -> str | None:
    """The node of a new pod: its own, a free one, or one whose pod is ending; None if the pod has to wait for one.

    own: the node of an index, for a pod that is created at the start. used: the nodes that have a pod, and whether the
    pod is ending. The coordinator often detects the loss of a pod earlier than this process, so for a moment all nodes
    may be used.
    """
    if own is not None and own not in used:
        return own
    free = [node for node in nodes if node not in used] or [node for node in nodes if used[node]]
    return free[-1] if free else None


def _patch(target: dict[str, str], changes: Mapping[str, str | None]) -> None:
    for name, value in changes.items():
        if value is None:
            target.pop(name, None)
        else:
            target[name] = value
