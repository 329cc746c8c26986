"""The whole simulation: an API server, a cluster, the jobs' trainings, and replicas of the real operator."""

from __future__ import annotations

import asyncio
import copy
import random
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from tests.simulation_operator.api_server import ApiServer, Raw, where
from tests.simulation_operator.claims import ClaimWatch
from tests.simulation_operator.client import ClientFaults, Process
from tests.simulation_operator.clockwork import clock_of
from tests.simulation_operator.cluster import Cluster
from tests.simulation_operator.rules import Rule, Wrong
from tests.simulation_operator.training import SUCCEEDED, TICK_S, Link, Training
from tests.unit.operator.given import IMAGE, KEYRING, TEMPLATE
from tests.unit.operator.given_pool import SPARE_TEMPLATE
from understudy_operator.apply.adoption_link import AdoptionKeys
from understudy_operator.operator import Operator
from understudy_operator.plan.facts.observed import Coordination
from understudy_operator.plan.facts.ownership import API_VERSION, KIND, POOL_KIND
from understudy_operator.plan.intents import AdoptSpare
from understudy_operator.runtime.line import Keys, Share
from understudy_protocol import pod as names
from understudy_protocol.handshake import NotProven

LEASE = ("system", "operator")
NAMESPACE = "research"
TRACED = 400
#: Plans need not know reports of the coordinator that are newer than this.
PLANS_AGE_S = 7.0
#: The probability that a spare that is claimed Warm cannot be reached by any operator.
DEAF = 0.1


@dataclass
class World:
    rng: random.Random
    nodes: int
    replicas: int
    warm: bool = False  # pools' spares have a launcher
    aside: bool = False  # each job has a Job that waits for its pods forever: the operator lists them again and again
    has_lease: bool = True  # without it all replicas act at once
    kill_at_claim: int = 0  # the writing replica is killed after this many more writes that carry out claims; 0: never
    client_faults: ClientFaults = field(default_factory=ClientFaults)
    trainings: dict[str, Training] = field(default_factory=dict)  # by job uid
    processes: list[Process] = field(default_factory=list)  # all processes of the run
    writes: Counter[str] = field(default_factory=Counter)  # by method and plural, without those of the lease
    last_write_at: float = 0.0
    deaf: dict[str, bool] = field(default_factory=dict)  # spares, by uid: whether they can never be reached
    violations: list[Wrong] = field(default_factory=list)
    _attempts: dict[str, int] = field(default_factory=dict)  # by job uid, as in status
    _background: set[asyncio.Task[None]] = field(default_factory=set)
    trace: deque[str] = field(default_factory=lambda: deque(maxlen=TRACED))

    def __post_init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.claims = ClaimWatch(self)
        self._writer: Process | None = None  # whose request is being executed
        self.server = ApiServer(self.loop.time)
        self.cluster = Cluster(self.server, self.rng, [f"n{number}" for number in range(self.nodes)])
        self.cluster.start()
        self.server.watchers.append(self._on_change)
        for number in range(self.replicas):
            self.start_replica(f"operator-{number}")
        self._every(TICK_S, self._tick)

    # Users

    def apply(self, name: str, actives: int, spares: int, pool: str = "") -> None:
        replicated = {"name": "workers", "template": {"spec": {"parallelism": actives, "template": TEMPLATE}}}
        result: Raw = {"replicas": spares, "pool": pool} if pool else {"replicas": spares}
        spec: Raw = {"replicatedJobs": [replicated], "launcher": {"nprocPerNode": 1}, "spares": result}
        if self.aside:
            template = {"spec": {**TEMPLATE["spec"], "nodeSelector": {"pool": "a"}}}
            aside = {"name": "aside", "template": {"spec": {"template": template}}}
            spec |= {"replicatedJobs": [replicated, aside], "successPolicy": {"targetReplicatedJobs": ["workers"]}}
            spec["successPolicy"]["operator"] = "All"
            spec["launcher"]["targetReplicatedJobs"] = ["workers"]
        metadata = {"namespace": NAMESPACE, "name": name, "generation": 1}
        self.log(f"apply {name}: {actives} + {spares}")
        body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}
        raw = self.server.put("trainingjobs", body)
        uid = raw["metadata"]["uid"]
        self.trainings[uid] = Training(self.cluster, uid, actives)

    def apply_pool(self, name: str, replicas: int) -> None:
        metadata = {"namespace": NAMESPACE, "name": name, "generation": 1}
        spec: Raw = {"replicas": replicas, "template": SPARE_TEMPLATE}
        if self.warm:
            spec |= {"template": TEMPLATE, "launcher": {"nprocPerNode": 1}}
        self.log(f"apply pool {name}: {replicas}{', warm' if self.warm else ''}")
        self.server.put(
            "hotsparepools", {"apiVersion": API_VERSION, "kind": POOL_KIND, "metadata": metadata, "spec": spec}
        )

    def pool(self, name: str) -> Raw | None:
        raw = self.server.objects.get(("hotsparepools", NAMESPACE, name))
        return copy.deepcopy(raw) if raw is not None else None

    def change_pool(self, name: str, **spec: Any) -> None:
        if raw := self.pool(name):
            raw["spec"] |= spec
            raw["metadata"]["generation"] += 1
            self.server.put("hotsparepools", raw)

    def delete_pool(self, name: str) -> None:
        if raw := self.pool(name):
            self.server.remove("hotsparepools", raw)

    def job(self, name: str) -> Raw | None:
        raw = self.server.objects.get(("trainingjobs", NAMESPACE, name))
        return copy.deepcopy(raw) if raw is not None else None

    def change_spares(self, name: str, spares: int) -> None:
        self.change(name, lambda spec: spec["spares"].update(replicas=spares))

    def change(self, name: str, change: Callable[[Raw], None]) -> None:
        """Change the job's spec."""
        if raw := self.job(name):
            change(raw["spec"])
            raw["metadata"]["generation"] += 1
            self.server.put("trainingjobs", raw)

    def delete(self, name: str) -> None:
        if raw := self.job(name):
            self.server.remove("trainingjobs", raw)

    # Replicas

    def start_replica(self, name: str) -> None:
        process = Process(self.server, self.client_faults, self.rng, f"{name}.{len(self.processes)}", self._written)
        lease = LEASE if self.has_lease else None
        process.operator = Operator(process.connect, KEYRING, IMAGE, lease, process.name, clock_of(self.loop))
        self.processes.append(process)
        process.operator.start()
        self.watch(process)
        self.log(f"{process.name} starts")

    def alive(self) -> list[Process]:
        return [process for process in self.processes if not process.dead]

    def kill(self, process: Process) -> None:
        """SIGKILL: all its tasks end, and requests that it has sent may still arrive."""
        self.log(f"{process.name} is killed")
        operator = process.operator
        assert operator is not None
        doomed = list[asyncio.Task[None] | None]()
        for supervisor in (operator._supervisor, operator._reconciles):
            doomed += [entry.task for entry in supervisor._tasks.values()]
            supervisor._tasks.clear()  # no task is restarted
        doomed += [task for worker in operator._workers.values() for task in worker._adopter._tasks.values()]
        for task in doomed:
            if task is not None:
                task.cancel()
        operator._writer.cancel_writes()
        self._gone(process)

    def replace_replica(self, process: Process) -> None:
        if not process.dead:
            self.kill(process)
            self.loop.call_later(2.0, self.start_replica, process.name.rpartition(".")[0])

    async def stop(self, process: Process) -> None:
        self.log(f"{process.name} is stopped")
        assert process.operator is not None
        await process.operator.stop()
        self._gone(process)

    def _gone(self, process: Process) -> None:
        process.dead = True
        self.unwatch(process)

    def link(self, job_uid: str, keys: Keys, before: Coordination, on_change: Callable[[], None], share: Share) -> Link:
        """Replaces CoordinatorLink."""
        del share
        training = next((x for uid, x in self.trainings.items() if f"{job_uid}-".startswith(f"{uid}-")), None)
        return Link(training, before, on_change, lambda pod_uid: self._called(pod_uid, keys))

    def _called(self, pod_uid: str, keys: Keys) -> None:
        for pod in self.server.of("pods"):
            # A pool's spare that is claimed Warm has the job's key only once it has got its order.
            warm = names.ANNOTATION_WARM_POOL_UID in pod["metadata"].get("annotations", {})
            known = self.cluster.keys.get(pod_uid, keys.membership.hex())
            if pod["metadata"]["uid"] == pod_uid and not warm and known != keys.membership.hex():
                self.violate(
                    Rule.PODS_ARE_CALLED_WITH_THEIR_KEY, f"pod {pod_uid} is called with another key than it has mounted"
                )

    async def adopt(self, intent: AdoptSpare, keys: AdoptionKeys) -> str:
        """Replaces adoption_link.adopt: the spare itself, and the connection to it."""
        await asyncio.sleep(self.rng.uniform(0.002, 0.2))
        pods = [pod for pod in self.server.of("pods") if pod["metadata"]["uid"] == intent.pod_uid]
        deaf = self.deaf.setdefault(intent.pod_uid, self.rng.random() < DEAF)
        if deaf or not pods or not self.cluster.runs(pods[0]) or self.rng.random() < self.client_faults.unanswered:
            raise TimeoutError
        owner = self.cluster.adopted.get(intent.pod_uid, "")
        if not owner and self.cluster.keys[intent.pod_uid] != keys.line.membership.hex():
            raise NotProven("it does not know the pool's key")
        if not owner:
            owner = self.cluster.adopted[intent.pod_uid] = intent.shape.uid
            self.cluster.keys[intent.pod_uid] = keys.job
        self.log(f"{pods[0]['metadata']['name']} gets the order of job {intent.shape.uid}")
        if self.rng.random() < self.client_faults.unanswered:
            raise TimeoutError  # although it was executed
        return "" if owner == intent.shape.uid else f"it already belongs to job {owner}"

    def watch(self, process: Process) -> None:
        if not process.dead:
            self.server.watchers.append(process.on_change)
            process.restart_watches()

    def unwatch(self, process: Process) -> None:
        if process.on_change in self.server.watchers:
            self.server.watchers.remove(process.on_change)

    def background(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def accept_all(self) -> None:
        self.server.refuse = lambda _: None
        self.server.forbid = lambda: None

    # Checks

    def log(self, text: str) -> None:
        self.trace.append(f"{self.loop.time():8.3f} {text}")

    def _written(self, process: Process, method: str, path: str, body: Raw | None) -> None:
        at = where(path)
        if at.plural == "leases":
            return
        self.writes[f"{method} {at.plural}"] += 1
        self.last_write_at = self.loop.time()
        self.log(f"{process.name}: {method} {at.plural}/{at.name}{'/' + at.sub if at.sub else ''}")
        self._writer = process
        self.loop.call_soon(self._has_written)
        lease = self.server.objects.get(("leases", *LEASE))
        holds = lease is not None and lease["spec"]["holderIdentity"] in ("", process.name)
        if self.has_lease and not holds:
            self.violate(Rule.ONLY_THE_LEADER_WRITES, f"{process.name} writes, and does not hold the lease")
        present = self.server.objects.get((at.plural, at.namespace, at.name), {"metadata": {"ownerReferences": True}})
        if method == "DELETE" and not present["metadata"].get("ownerReferences"):
            self.violate(Rule.ONLY_OBJECTS_OF_JOBS_ARE_DELETED, f"{at.plural}/{at.name} is no job's and is deleted")
        if method == "DELETE" and at.plural == "pods":
            self._may_go(at.name, (body or {}).get("preconditions", {}).get("resourceVersion", ""))

    def _has_written(self) -> None:
        self._writer = None

    def _may_go(self, name: str, as_seen: str) -> None:
        pod = self.server.objects.get(("pods", NAMESPACE, name))
        if pod is None:
            return
        metadata = pod["metadata"]
        if as_seen and as_seen != metadata["resourceVersion"]:
            return  # it is rejected
        training = self.trainings.get(metadata["labels"][names.LABEL_JOB_UID])
        if training is None or not training.has_rank(metadata["uid"]):
            return
        if training.now - training.returned.get(metadata["uid"], 0.0) > PLANS_AGE_S:
            self.violate(Rule.NO_POD_THAT_TRAINS_IS_DELETED, f"{name} trains, and is deleted")

    def violate(self, rule: Rule, text: str) -> None:
        self.log(f"VIOLATION: {text}")
        self.violations.append(Wrong(rule, text))

    def _on_change(self, plural: str, kind: str, raw: Raw) -> None:
        if plural in ("pods", "trainingjobs", "nodes"):
            metadata, status = raw["metadata"], raw.get("status", {})
            going = " terminating" if "deletionTimestamp" in metadata else ""
            self.log(f"{kind} {plural}/{metadata['name']} {status.get('phase', '')}{going}")
        if plural == "pods":
            self.claims.on_pod(kind, raw, self._writer)
        if plural == "trainingjobs" and kind == "DELETED":
            self.trainings.pop(raw["metadata"]["uid"], None)
            self._attempts.pop(raw["metadata"]["uid"], None)
        elif plural == "trainingjobs":
            self._find_attempt(raw)
        for training in list(self.trainings.values()):
            if plural in ("pods", "nodes"):
                self.loop.call_soon(training.tick)

    def _find_attempt(self, raw: Raw) -> None:
        """Status ends an attempt of the job, which must not have succeeded."""
        uid, status = raw["metadata"]["uid"], raw.get("status", {})
        attempt = status.get("coordinator", {}).get("formerEpoch", 0)
        if attempt == self._attempts.setdefault(uid, 0) or uid not in self.trainings:
            return
        self._attempts[uid], training = attempt, self.trainings[uid]
        if training.closed == SUCCEEDED:
            name = raw["metadata"]["name"]
            self.violate(Rule.A_SUCCEEDED_JOB_TRAINS_NO_MORE, f"{name} has succeeded, and another attempt of it begins")
        training.begin_attempt()

    def _tick(self) -> None:
        self.claims.tick()
        for training in list(self.trainings.values()):
            training.tick()
            if training.closed is not None:
                training.end()
        self.cluster.collect_orphans()

    def _every(self, pause_s: float, do: Callable[[], None]) -> None:
        def again() -> None:
            do()
            self.loop.call_later(pause_s, again)

        self.loop.call_later(pause_s, again)
