"""Invariants that hold once the faults are over and all components have had time to recover.

During the faults, world.py checks that no replica writes without the lease, and that no training pod is deleted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tests.simulation_operator.api_server import Raw
from tests.simulation_operator.claims import find_pool_violations
from tests.simulation_operator.client import Process
from tests.simulation_operator.rules import Rule, Wrong
from tests.simulation_operator.training import Training
from tests.simulation_operator.world import World
from understudy_operator.observe.store import Kind, is_of_pool, owners_of
from understudy_operator.plan.facts import keys
from understudy_protocol import pod as names

#: All kinds are listed at this interval here, so lost events do not matter for longer.
RESYNC_S = 10.0
#: From the last fault to a stable world: a lost lease, a failed list's pause, a list and its consequences; the longest
#: backoff of a reconcile; 10 s until a refused write is retried.
RECOVERY_S = 75.0
#: The maximum, if calls without a response (30 s), a spare that cannot be reached (10 s) and a place that another pod
#: has taken (40 s) follow each other.
MAX_RECOVERY_S = 200.0
QUIET_S = 15.0
#: The maximum number of writes for one job, and for one fault, including failures of the API server.
WRITES_A_JOB = 60
WRITES_A_FAULT = 60


def find_violations(world: World, faults: int) -> Iterator[Wrong]:
    yield from world.violations
    if not world.has_lease:
        return  # two active replicas undo each other's work, and the world does not become stable
    for uid, training in world.trainings.items():
        (job,) = [raw for raw in world.server.of("trainingjobs") if raw["metadata"]["uid"] == uid]
        yield from _job(world, job, training)
    yield from find_pool_violations(world)
    jobs = set(world.trainings)
    owners = jobs | {raw["metadata"]["uid"] for raw in world.server.of("hotsparepools")}
    for plural in ("pods", "services", "secrets", "jobs", "recoveries"):
        left = {raw["metadata"]["labels"][names.LABEL_JOB_UID] for raw in world.server.of(plural)} - owners
        if left:
            yield Wrong(Rule.NOTHING_OF_A_DELETED_JOB_IS_LEFT, f"{plural} of deleted jobs: {left}")
    leaders = [process for process in world.alive() if process.operator is not None and process.operator.leads()]
    if len(leaders) != 1:
        yield Wrong(Rule.ONE_REPLICA_LEADS, f"{len(leaders)} replicas lead")
    for process in world.alive():
        yield from _process(world, process, process in leaders)
    if world.loop.time() - world.last_write_at < QUIET_S:
        yield Wrong(
            Rule.NOTHING_IS_WRITTEN_WHEN_STABLE,
            f"a replica writes in a stable world: the last write was at {world.last_write_at:.3f}",
        )
    writes, most = sum(world.writes.values()), WRITES_A_JOB * (2 + len(owners)) + WRITES_A_FAULT * faults
    if writes > most:
        yield Wrong(Rule.WRITES_ARE_BOUNDED, f"{writes} writes, more than {most}: {dict(world.writes)}")


def _index_entries(world: World) -> int:
    """The number of entries that the indexes of the store need for the existing objects: owners (also a deleted pool,
    while a job's pod has its place), namespaces by kind and in all, and pools by the labels of their pods.
    """
    objects = [
        (kind, raw, raw["metadata"].get("namespace", "")) for kind in Kind for raw in world.server.of(kind.value)
    ]
    owners = {(kind, owner) for kind, raw, _ in objects for owner in owners_of(kind, raw)}
    by_kind = {(kind, namespace) for kind, _, namespace in objects}
    namespaces = {namespace for _, _, namespace in objects}
    pools = {
        (namespace, raw["metadata"]["labels"][names.LABEL_POOL])
        for kind, raw, namespace in objects
        if kind is Kind.POD and is_of_pool(raw)
    }
    return len(owners) + len(by_kind) + len(namespaces) + len(pools)


def _job(world: World, job: Raw, training: Training) -> Iterator[Wrong]:
    name, status = job["metadata"]["name"], job.get("status", {})
    running = world.cluster.running(training.job_uid)
    yield from _events(world, job)
    yield from _recoveries(world, job)
    if training.closed is not None:
        if status.get("phase") != "Succeeded":
            yield Wrong(Rule.STATUS_IS_TRUE, f"{name} has succeeded, and its phase is {status.get('phase')}")
        if running:
            yield Wrong(Rule.A_JOB_HAS_ITS_PODS, f"{name} has succeeded, and {len(running)} of its pods run")
        return
    wanted = training.actives + job["spec"]["spares"]["replicas"]
    alive = [
        pod
        for pod in world.server.of("pods", **{names.LABEL_JOB_UID: training.job_uid})
        if pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")
    ]
    if job["spec"]["spares"]["replicas"] == 0 and training.coordinator_uid not in training.rank_holders.values():
        wanted += 1  # the job had spares before: one of them coordinates, and therefore stays
    if (len(running), len(alive)) != (wanted, wanted):
        yield Wrong(Rule.A_JOB_HAS_ITS_PODS, f"{name} wants {wanted} pods: {len(running)} run of {len(alive)}")
    yield from _children(world, job)
    if len(training.rank_holders) != training.actives or not all(
        map(training.has_rank, training.rank_holders.values())
    ):
        yield Wrong(Rule.A_JOB_TRAINS, f"{name} does not train: {training.rank_holders}")
    if status.get("phase") != "Running" or status.get("round") != training.round:
        yield Wrong(
            Rule.STATUS_IS_TRUE,
            f"{name} trains in round {training.round}: {status.get('phase')}, round {status.get('round')}",
        )
    if status.get("coordinator", {}).get("podUID") != training.coordinator_uid:
        yield Wrong(
            Rule.STATUS_IS_TRUE, f"{name} is coordinated by {training.coordinator_uid}: {status.get('coordinator')}"
        )
    labelled = [pod["metadata"]["uid"] for pod in alive if pod["metadata"]["labels"].get(names.LABEL_COORDINATOR)]
    if labelled != [training.coordinator_uid]:
        yield Wrong(
            Rule.THE_COORDINATOR_HAS_THE_LABEL,
            f"{name} is coordinated by {training.coordinator_uid}, and the label is at {labelled}",
        )
    refused = [entry for entry in status.get("conditions", ()) if entry["type"] in ("Invalid", "Blocked")]
    if any(entry["status"] == "True" for entry in refused):
        yield Wrong(Rule.STATUS_IS_TRUE, f"{name} has no refusals: {refused}")


def _children(world: World, job: Raw) -> Iterator[Wrong]:
    """The pod template of each Job that the job owns has the node selector of the job's spec."""
    wanted = {entry["name"]: entry["template"]["spec"]["template"]["spec"] for entry in job["spec"]["replicatedJobs"]}
    for child in world.server.of("jobs", **{names.LABEL_JOB_UID: job["metadata"]["uid"]}):
        if not child["metadata"].get("ownerReferences"):
            continue
        result = child["spec"]["template"]["spec"].get("nodeSelector", {})
        selector = wanted[child["metadata"]["labels"][keys.REPLICATED_JOB]].get("nodeSelector", {})
        if result != selector:
            yield Wrong(
                Rule.PODS_FOLLOW_THE_SPEC,
                f"pods of {child['metadata']['name']} need nodes with {result}, and its spec has {selector}",
            )


def _events(world: World, job: Raw) -> Iterator[Wrong]:
    """Each fault in status, its recovery and the job's end have their events."""
    name, status = job["metadata"]["name"], job.get("status", {})
    of_job = [event for event in world.server.events if event["regarding"]["uid"] == job["metadata"]["uid"]]
    wanted = [("Completed", "")] if status.get("terminalState") == "Completed" else []
    for entry in status.get("recoveries", ()):
        wanted.append(("FaultDetected", entry["cause"]["pod"]))
        if "resumedAt" in entry:
            wanted.append(("Recovered", entry["cause"]["pod"]))
    for reason, pod in wanted:
        if not any(event["reason"] == reason and pod in event["note"] for event in of_job):
            yield Wrong(Rule.RECORDED_FAULTS_HAVE_EVENTS, f"{name} has no event {reason} {pod}")


def _recoveries(world: World, job: Raw) -> Iterator[Wrong]:
    """Each fault in status has one Recovery object, with the same end."""
    name, uid = job["metadata"]["name"], job["metadata"]["uid"]
    objects = world.server.of("recoveries", **{names.LABEL_JOB_UID: uid})
    found = Counter((raw["detectedAt"], raw["cause"]["pod"], raw.get("resumedAt")) for raw in objects)
    recorded = job.get("status", {}).get("recoveries", ())
    wanted = Counter((entry["detectedAt"], entry["cause"]["pod"], entry.get("resumedAt")) for entry in recorded)
    if missing := wanted - found:
        yield Wrong(Rule.RECORDED_FAULTS_HAVE_OBJECTS, f"{name} has no Recovery {dict(missing)}: {dict(found)}")


def _process(world: World, process: Process, leads: bool) -> Iterator[Wrong]:
    operator = process.operator
    assert operator is not None
    if not operator.alive:
        yield Wrong(Rule.TASKS_LIVE, f"{process.name} has lost a task")
    for kind in Kind:
        present = {raw["metadata"]["uid"]: raw["metadata"]["resourceVersion"] for raw in world.server.of(kind.value)}
        known = {raw["metadata"]["uid"]: raw["metadata"]["resourceVersion"] for raw in operator.store.all(kind)}
        if present != known:
            yield Wrong(Rule.THE_STORE_IS_TRUE, f"{process.name}: {kind.value} are {present}, and it knows {known}")
    objects = sum(len(world.server.of(kind.value)) for kind in Kind)
    size = operator.store.size()
    pools = len(world.server.of("hotsparepools"))
    if size > objects + _index_entries(world):  # in a stable world nothing was removed since the last list
        yield Wrong(Rule.THE_STORE_IS_BOUNDED, f"{process.name} keeps {size} entries for {objects} objects")
    workers, wanted = len(operator._workers), len(world.trainings) if leads else 0
    if workers != wanted:
        yield Wrong(Rule.EACH_OWNER_HAS_A_WORKER, f"{process.name} has {workers} workers, and needs {wanted}")
    wanted = pools if leads else 0
    if len(operator._pool_workers) != wanted:
        yield Wrong(
            Rule.EACH_OWNER_HAS_A_WORKER,
            f"{process.name} has {len(operator._pool_workers)} workers of pools, and needs {wanted}",
        )
    if operator._executor._unanswered or operator._executor.pools._unanswered:
        yield Wrong(
            Rule.CREATIONS_ARE_RESOLVED,
            f"{process.name} still has unanswered creations: {operator._executor._unanswered}",
        )
