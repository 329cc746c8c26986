"""The operator in simulated time: its real plan for the coordinator, the links and the pods.

Only the plan's inputs and outputs are simulated: the API server (api_server.py), and the links to pods
(operator_links.py). While the operator is down, it plans nothing and has no links; status stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec import structs

from tests.simulation.api_server import ApiServer, Site, is_ready, patch
from tests.simulation.network import Machine
from tests.simulation.operator_links import CoordinatorLink
from tests.simulation.world import EPOCH_S
from understudy_operator.plan.facts.cluster_objects import Node
from understudy_operator.plan.facts.job import Job
from understudy_operator.plan.facts.keyring import Keyring
from understudy_operator.plan.facts.observed import TERMINAL_STATES, Coordination, Observed
from understudy_operator.plan.facts.pods import Pods
from understudy_operator.plan.facts.recoveries import merge_history, with_recoveries
from understudy_operator.plan.facts.secret_writes import SecretWrites
from understudy_operator.plan.facts.spec import JobSpec, ReplicatedJob, World
from understudy_operator.plan.facts.status import (
    Condition,
    CoordinatorStatus,
    JobStatus,
    ProgressStatus,
    StrategyCounts,
)
from understudy_operator.plan.intents import CreatePod, DeletePod, Follow, PatchPod
from understudy_operator.plan.leadership.coordination import plan_label, plan_leadership, plan_link
from understudy_operator.plan.leadership.elections import is_coordinator_missing
from understudy_operator.plan.manifests.object_names import membership_secret_name
from understudy_operator.plan.manifests.shape import facts_secret_name
from understudy_operator.plan.status.goodput import plan_goodput
from understudy_operator.plan.status.next_status import is_worth_writing
from understudy_operator.plan.times.rfc3339 import micro_time
from understudy_operator.plan.verdicts.findings import Finding
from understudy_operator.plan.world.members import avoided_nodes, plan_members
from understudy_protocol.enums import FaultClass, Strategy
from understudy_protocol.membership import Close
from understudy_protocol.observer import DrillOrder

KEYRING = Keyring(b"the master secret of this model, of 42 B..")
ADDRESS = "10.0.0.1:8478"
PASS_DELAY_S = (0.02, 0.2)
LOOK_AGAIN_S = 2.0
TEMPLATE: Mapping[str, Any] = {"spec": {"containers": [{"name": "trainer", "command": ["python", "train.py"]}]}}


def _findings(machine: Machine) -> tuple[Finding, ...]:
    findings = ((FaultClass.HARDWARE, machine.hardware_finding), (FaultClass.MAINTENANCE, machine.leaving_reason))
    return tuple(Finding("simulated", fault_class, reason) for fault_class, reason in findings if reason)


@dataclass
class OperatorModel:
    site: Site
    api: ApiServer
    spares: int
    up: bool = True
    status: JobStatus = field(default_factory=JobStatus)
    #: What the status has for the account of the job's time. `status` is without it, because the plan avoids nodes of
    #: recorded faults, and the faults of this simulation are not those of nodes.
    account: JobStatus = field(default_factory=JobStatus)
    completed_at: float | None = None
    recorded_close: Close | None = None
    drill: DrillOrder | None = None
    machine: Machine = field(default_factory=lambda: Machine("control-plane"))
    _link: CoordinatorLink | None = None
    _coordination: Coordination = field(default_factory=Coordination)
    _due: bool = False
    has_service: bool = False  # the coordinator's Service exists
    _passes: int = 0

    def start(self) -> None:
        self.api.changed = self.enqueue
        self._reconcile_later()

    def go_down(self) -> None:
        self.site.training.world.log("operator", "FAULT: it goes down")
        self.up = False
        self._unfollow()
        self._coordination = Coordination()

    def come_up(self) -> None:
        self.site.training.world.log("operator", "it is up again")
        self.up = True
        self.enqueue()

    def enqueue(self) -> None:
        world = self.site.training.world
        if self.up and not self._due:
            self._due = True
            world.after(world.between(*PASS_DELAY_S), self._reconcile)

    def _reconcile_later(self) -> None:
        self.enqueue()
        self.api.evict()
        self.site.training.world.after(LOOK_AGAIN_S, self._reconcile_later)

    @property
    def coordination(self) -> Coordination:
        return self._coordination if self._link is None else self._link.coordination

    # Reconcile ------------------------------------------------------------------------------------------------------

    def _reconcile(self) -> None:
        self._due = False
        if not self.up:
            return
        now = self.site.training.world.now
        observed = self._observe(now)
        observed = replace(observed, coordinator_missing=is_coordinator_missing(observed, now))
        leadership = plan_leadership(observed, now)
        if leadership.reason and leadership.pod is not None:
            text = f"appoints {leadership.pod.name} in epoch {leadership.epoch}: {leadership.reason}"
            self.site.training.world.log("operator", text)
            self.site.appointed(leadership.epoch)
        if leadership.epoch and leadership.pod is not None:
            coordinator = CoordinatorStatus(leadership.epoch, leadership.term, pod_uid=leadership.pod.uid)
            self.status = structs.replace(self.status, coordinator=coordinator)
        if observed.snapshot is not None:
            counts = observed.snapshot.recoveries_by_strategy
            self.status = structs.replace(
                self.status,
                round=max(self.status.round, observed.snapshot.token.round),
                recoveries_by_strategy=StrategyCounts(*(counts.get(strategy.value) for strategy in Strategy)),
            )
        if observed.close is not None and self.recorded_close is None:
            self.recorded_close, self.completed_at = observed.close, now
            state = TERMINAL_STATES[observed.close.reason]
            condition = Condition(state, "True", state, observed.close.message, micro_time(now))
            self.status = structs.replace(self.status, terminal_state=state, conditions=(condition,))
        self._keep_account(observed, now)
        link = plan_link(observed, leadership, now)
        for intent in (*plan_members(observed, "sidecar:1", now), *plan_label(observed, leadership)):
            self._do(intent, observed, now)
        if isinstance(link, Follow):
            self._link = self._link or CoordinatorLink(
                self.site, self.api, self.machine, self._coordination, self.enqueue
            )
            self._link.follow(replace(link, drill=self.drill))
        elif link is not None:
            self._unfollow()

    def _keep_account(self, observed: Observed, now: float) -> None:
        """As plan_status, for these fields."""
        before, snapshot, status = self.account, observed.snapshot, self.account
        if snapshot is not None:
            counts = [snapshot.recoveries_by_strategy.get(strategy.value) for strategy in Strategy]
            status = with_recoveries(status, tuple(merge_history(before.recoveries, snapshot, now)))
            status = structs.replace(status, recoveries_by_strategy=StrategyCounts(*counts))
            if (progress := snapshot.progress) is not None:
                at, is_counted = micro_time(progress.at), progress.is_counted
                status = structs.replace(status, progress=ProgressStatus(progress.step, None, at, is_counted))
        if self.status.terminal_state and self.completed_at is not None:
            end = micro_time(self.completed_at)
            status = structs.replace(status, terminal_state=self.status.terminal_state, completion_time=end)
        job = replace(observed.job, status=before, created_at=EPOCH_S)
        status = structs.replace(status, goodput=plan_goodput(replace(observed, job=job), status, now))
        if is_worth_writing(before, status, now, has_coordinator=bool(observed.coordination.coordinator_uid)):
            self.account = status

    def _observe(self, now: float) -> Observed:
        shape = self.site.shape
        members = ReplicatedJob("workers", {"spec": {"parallelism": shape.actives, "template": TEMPLATE}})
        world = World(
            groups=(members,),
            nproc_per_node=shape.nproc_per_node,
            spares=self.spares,
            in_place_max_restarts=shape.in_place_max_restarts,
            in_place_window_s=shape.in_place_window_s,
        )
        spec = JobSpec((members,), world)
        self._passes += 1
        nodes = (Node(x.name, is_ready(x, now), findings=_findings(x)) for x in self.site.machines)
        job = Job("ns", "job", "job-uid", 1, "1", False, 0.0, self.completed_at, spec, self.status)
        self.has_service = self.has_service or job.needs_service
        address = ADDRESS if self.has_service else ""
        secrets = (membership_secret_name(job), facts_secret_name(job, address))
        return Observed(
            job=job,
            pods=Pods(entry.observed() for entry in self.api.objects.values()),
            nodes={node.name: node for node in nodes},
            coordination=self.coordination,
            keyring=KEYRING,
            has_hostnames_service=True,
            coordinator_address=address,
            entropy=str(self._passes),
            secret_writes=SecretWrites(dict.fromkeys(secrets, 0.0)),
        )

    def _do(self, intent: object, observed: Observed, now: float) -> None:
        match intent:
            case CreatePod(manifest):
                self.api.create(manifest, avoided_nodes(observed, now), now)
            case DeletePod(name=name) | PatchPod(name=name) if name not in self.api.objects:
                pass  # 404: an intent of the same reconcile has removed it
            case DeletePod(name, _, grace_s, reason, _):
                self.api.delete(self.api.objects[name], grace_s, reason, now)
            case PatchPod(name, labels, annotations):
                entry = self.api.objects[name]
                patch(entry.labels, labels)
                patch(entry.annotations, annotations)

    def _unfollow(self) -> None:
        if self._link is not None:
            self._coordination = self._link.coordination
            self._link.close()
        self._link = None
